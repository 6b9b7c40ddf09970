//! What earlier daemons of a role have left in a host, wherever it is: filters at interfaces, and
//! addresses, that the file named when they were started, and names no more.

use super::error::BpfError;
use super::layout::unmapped;
use super::loader::{Detached, detach};
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

/// What was found; see the module.
#[derive(Debug, Default)]
pub struct Left {
    programs: BTreeSet<u32>,
    interfaces: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
}

impl Left {
    /// Looks at all interfaces for programs of these objects of `bpf/` that are pinned in `pin_dir`.
    /// Others of the same group may be those of a living one that has its pins elsewhere. Removes
    /// nothing.
    ///
    /// # Errors
    /// [`BpfError::Filters`] if the kernel does not list the filters of an interface.
    pub fn find(objects: &[&str], pin_dir: &Path) -> Result<Self, BpfError> {
        let mut left = Self::default();
        for object in objects {
            let pins = pin_dir.join(object);
            left.programs.extend(pinned_in(&pins));
            let map = MapData::from_pin(pins.join(ADDRESSES));
            left.addresses.extend(map.into_iter().flat_map(addresses_in));
        }
        if left.programs.is_empty() {
            return Ok(left);
        }
        for (interface, _, filter) in everywhere()? {
            if filter.program.is_some_and(|it| left.programs.contains(&it)) {
                left.interfaces.insert(interface);
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
        self.detach_where(|_| true)
    }

    /// As [`Self::detach`], but for an interface where new programs take their place.
    ///
    /// # Errors
    /// As [`Self::detach`].
    pub fn detach_elsewhere(&self, here: &str) -> Result<Vec<Detached>, BpfError> {
        self.detach_where(|interface| interface != here)
    }

    fn detach_where(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<Detached>, BpfError> {
        if self.programs.is_empty() {
            return Ok(Vec::new());
        }
        let is_one = |it: &Filter| it.program.is_some_and(|it| self.programs.contains(&it));
        let all = everywhere()?.into_iter();
        let found = all.filter(|(interface, _, filter)| wanted(interface) && is_one(filter));
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

fn addresses_in(map: MapData) -> Vec<IpAddr> {
    match HashMap::<_, [u8; 16], u32>::try_from(Map::HashMap(map)) {
        Ok(map) => map.keys().filter_map(Result::ok).map(unmapped).collect(),
        Err(_other_kind) => Vec::new(),
    }
}
