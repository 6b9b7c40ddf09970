//! What earlier daemons of a role have left in a host, wherever it is: filters at interfaces, and
//! addresses, that the file named when they were started, and names no more.

use super::error::BpfError;
use super::layout::unmapped;
use super::loader::{Detached, detach};
use super::owner::{Owner, map_called, maps_of, owner_of};
use super::qdisc::{self, Filter};
use crate::link;
use aya::maps::{HashMap, Map, MapData};
use aya::programs::SchedClassifier;
use aya::programs::TcAttachType::{self, Egress, Ingress};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

/// Name of the map of a group's addresses.
const ADDRESSES: &str = "addresses";
/// Beginning of the names of the directories of pins, one for each role.
const PINS: &str = "bpf-";

/// Whose programs are looked for.
#[derive(Clone, Copy, Debug)]
pub enum Whose<'a> {
    /// A pair's, by its services.
    Services(&'a [(IpAddr, u16)]),
    /// Those of another group, by its name.
    Group(&'a str),
}

/// What was found; see the module.
#[derive(Debug, Default)]
pub struct Left {
    programs: BTreeSet<u32>,
    interfaces: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
}

impl Left {
    /// Looks at all interfaces for programs of these objects of `bpf/` that are pinned in `pin_dir`,
    /// or belong to the same group and are not pinned by another role beside it. Removes nothing.
    ///
    /// # Errors
    /// [`BpfError::Filters`] if the kernel does not list the filters of an interface.
    pub fn find(objects: &[&str], whose: Whose<'_>, pin_dir: &Path) -> Result<Self, BpfError> {
        let own = match whose {
            Whose::Services(services) => Owner::of_services(services),
            Whose::Group(name) => Owner::Group(name.to_owned()),
        };
        let pinned: BTreeSet<u32> =
            objects.iter().flat_map(|object| pinned_in(&pin_dir.join(object))).collect();
        let others = pinned_beside(pin_dir);
        let mut left = Self::default();
        for object in objects {
            let map = MapData::from_pin(pin_dir.join(object).join(ADDRESSES));
            left.addresses.extend(map.into_iter().flat_map(addresses_in));
        }
        for (interface, _, filter) in everywhere()? {
            let Some(program) = filter.program else { continue };
            let is_ours = objects.iter().any(|object| filter.name.starts_with(object));
            let is_pinned = pinned.contains(&program);
            if is_pinned || is_ours && !others.contains(&program) && owner_of(program).is(&own) {
                let map = map_called(&maps_of(program), ADDRESSES);
                left.addresses.extend(map.into_iter().flat_map(addresses_in));
                left.interfaces.insert(interface);
                left.programs.insert(program);
            }
        }
        Ok(left)
    }

    /// Interfaces at which such programs are.
    pub fn interfaces(&self) -> impl Iterator<Item = &str> {
        self.interfaces.iter().map(String::as_str)
    }

    /// Addresses of the groups that these programs were made for.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().copied()
    }

    /// Removes the filters that are still there.
    ///
    /// # Errors
    /// [`BpfError::Filters`] if the kernel refuses.
    pub fn detach(&self) -> Result<Vec<Detached>, BpfError> {
        let is_one = |it: &Filter| it.program.is_some_and(|it| self.programs.contains(&it));
        let found = everywhere()?.into_iter().filter(|(_, _, filter)| is_one(filter));
        found.map(|(interface, way, filter)| detach(filter, &interface, way)).collect()
    }
}

/// All filters of this network namespace.
fn everywhere() -> Result<Vec<(String, TcAttachType, Filter)>, BpfError> {
    let mut all = Vec::new();
    for (index, interface) in link::all() {
        for direction in [Ingress, Egress] {
            // An interface may go while it is looked at.
            let filters = qdisc::filters(index, direction).or_else(|source| {
                let gone = link::name_of(index).is_none();
                let interface = interface.clone();
                if gone { Ok(Vec::new()) } else { Err(BpfError::Filters { interface, source }) }
            })?;
            all.extend(filters.into_iter().map(|it| (interface.clone(), direction, it)));
        }
    }
    Ok(all)
}

/// Numbers of the programs that are pinned in a directory.
fn pinned_in(directory: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |path| SchedClassifier::from_pin(path).and_then(|it| it.info()).ok();
    entries.filter_map(|entry| Some(number(entry.path())?.id())).collect()
}

/// The same for all other roles that have pins beside this one's.
fn pinned_beside(pin_dir: &Path) -> BTreeSet<u32> {
    let folders = |path: &Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let is_pins =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PINS));
    let roles = pin_dir.parent().map(folders).unwrap_or_default();
    let others = roles.iter().filter(|path| *path != pin_dir && is_pins(path));
    others.flat_map(|role| folders(role)).flat_map(|object| pinned_in(&object)).collect()
}

fn addresses_in(map: MapData) -> Vec<IpAddr> {
    match HashMap::<_, [u8; 16], u32>::try_from(Map::HashMap(map)) {
        Ok(map) => map.keys().filter_map(Result::ok).map(unmapped).collect(),
        Err(_other_kind) => Vec::new(),
    }
}
