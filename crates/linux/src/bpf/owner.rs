//! Whose a tc filter is. Two groups must not share an interface: their filters have the
//! same priorities, and each would put its own into the other's place.

use super::layout::{ServiceKey, unmapped};
use super::loader::Object;
use super::qdisc::Filter;
use aya::maps::{HashMap, Map, MapData};
use aya::programs::SchedClassifier;
use std::net::SocketAddr;
use std::path::Path;

/// The kernel's name of the map of protected services.
const SERVICES: &str = "services";

impl Object {
    /// The services of another group, in words, if this filter looks after those: it is
    /// not the program that is pinned here, and serves none of `own`.
    pub(super) fn other_group(
        &self,
        filter: &Filter,
        own: &[ServiceKey],
        pin_dir: &Path,
    ) -> Option<String> {
        let program = filter.program?;
        let pinned = SchedClassifier::from_pin(self.directory(pin_dir).join(&filter.name));
        if pinned.and_then(|it| it.info()).is_ok_and(|own| own.id() == program) || own.is_empty() {
            return None;
        }
        let theirs = services_of(program);
        if theirs.is_empty() || theirs.iter().any(|service| own.contains(service)) {
            return None;
        }
        let words = theirs.iter().map(|it| SocketAddr::from((unmapped(it.address), it.port)));
        let mut words: Vec<_> = words.map(|service| service.to_string()).collect();
        words.sort();
        Some(words.join(", "))
    }

    /// What this group has pinned as its services.
    pub(super) fn own_services(&self, pin_dir: &Path) -> Vec<ServiceKey> {
        self.pinned(pin_dir, SERVICES).map_or_else(|_absent| Vec::new(), keys)
    }
}

/// The services of a program in the kernel.
fn services_of(program: u32) -> Vec<ServiceKey> {
    let found = aya::programs::loaded_programs().flatten().find(|info| info.id() == program);
    let maps = found.and_then(|info| info.map_ids().ok().flatten()).unwrap_or_default();
    let is_services = |map: &MapData| {
        map.info().is_ok_and(|info| info.name_as_str().is_some_and(|name| name == SERVICES))
    };
    let map = maps.into_iter().filter_map(|id| MapData::from_id(id).ok()).find(is_services);
    map.map_or_else(Vec::new, keys)
}

fn keys(map: MapData) -> Vec<ServiceKey> {
    match HashMap::<_, ServiceKey, u32>::try_from(Map::HashMap(map)) {
        Ok(map) => map.keys().filter_map(Result::ok).collect(),
        Err(_other_kind) => Vec::new(),
    }
}
