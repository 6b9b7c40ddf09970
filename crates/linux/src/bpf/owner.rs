//! Which group a tc filter belongs to. Two groups must not share an interface: their filters have
//! the same priorities, so each would replace the other's. A pair's filters are recognised by the
//! services in their maps, all others by a map with the group's name, which is bound to them.

use super::error::BpfError;
use super::layout::{GROUP_NAME_BYTES, ServiceKey, unmapped};
use super::loader::Object;
use super::qdisc::Filter;
use aya::maps::{Array, HashMap, Map, MapData};
use aya::programs::{SchedClassifier, TcAttachType};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

/// Name of the map of protected services.
const SERVICES: &str = "services";
/// Name of the map with the group's name.
pub(super) const GROUP_NAME: &str = "group_name";
/// `BPF_PROG_BIND_MAP` of `enum bpf_cmd` (Linux 5.10).
const PROG_BIND_MAP: libc::c_long = 35;

/// Remedy if another group uses an interface.
pub const OTHER_GROUP_REMEDY: &str =
    "give each group interfaces of its own on every host, or end that one with `holdfast down`";

/// An interface that another group uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherGroup {
    pub interface: String,
    /// Which group, as a text.
    pub whose: String,
}

impl fmt::Display for OtherGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, whose } = self;
        write!(f, "{interface} belongs to another group, {whose}")
    }
}

/// What a group is recognised by.
#[derive(Default)]
pub(super) enum Owner {
    /// A pair, by its services.
    Services(Vec<ServiceKey>),
    /// By its name.
    Group(String),
    #[default]
    Unknown,
}

impl Owner {
    pub(super) fn of_services(services: &[(IpAddr, u16)]) -> Self {
        let keys = services.iter().map(|(ip, port)| ServiceKey::new(*ip, *port));
        Self::Services(keys.collect())
    }

    /// The owner of a program, by its maps.
    fn of_maps(mut open: impl FnMut(&'static str) -> Option<MapData>) -> Self {
        let services = open(SERVICES).map_or_else(Vec::new, keys);
        if !services.is_empty() {
            return Self::Services(services);
        }
        let name = open(GROUP_NAME).and_then(name_in).filter(|name| !name.is_empty());
        name.map_or(Self::Unknown, Self::Group)
    }

    /// This owner as a text, if both are known and it is not `own`.
    fn unlike(&self, own: &Self) -> Option<String> {
        match (self, own) {
            (Self::Services(theirs), Self::Services(own)) => {
                let shared = theirs.iter().any(|service| own.contains(service));
                (!shared && !own.is_empty()).then(|| in_words(theirs))
            }
            (Self::Group(theirs), Self::Group(own)) => {
                (theirs != own).then(|| format!("`{theirs}`"))
            }
            _ => None,
        }
    }
}

impl Object {
    /// The filter's group as a text, if it is another one: the filter's program is not the pinned
    /// one, and has another owner.
    pub(super) fn other_group(
        &self,
        filter: &Filter,
        own: &Owner,
        pin_dir: &Path,
    ) -> Option<String> {
        let program = filter.program?;
        let pinned = SchedClassifier::from_pin(self.directory(pin_dir).join(&filter.name));
        if pinned.and_then(|it| it.info()).is_ok_and(|own| own.id() == program) {
            return None;
        }
        owner_of(program).unlike(own)
    }

    /// # Errors
    /// [`BpfError::OtherGroup`] if another group has a filter of this object at one of the
    /// interfaces. A missing interface is no error.
    pub(super) fn refuse_others(
        &self,
        interfaces: &[&str],
        directions: &[TcAttachType],
        own: &Owner,
        pin_dir: &Path,
    ) -> Result<(), BpfError> {
        for interface in interfaces {
            for direction in directions {
                let found = self.filter(interface, *direction)?;
                let whose = found.and_then(|found| self.other_group(&found, own, pin_dir));
                if let Some(whose) = whose {
                    let interface = (*interface).to_owned();
                    return Err(BpfError::OtherGroup(OtherGroup { interface, whose }));
                }
            }
        }
        Ok(())
    }

    /// The group that this object was pinned for.
    pub(super) fn pinned_owner(&self, pin_dir: &Path) -> Owner {
        Owner::of_maps(|map| self.pinned(pin_dir, map).ok())
    }
}

/// Binds a map to a program that does not use it, so that it is listed with the program's maps.
pub(super) fn bind(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    let attr: [u32; 3] = [program.as_raw_fd() as u32, map.as_raw_fd() as u32, 0];
    // SAFETY: the attribute is what the command takes (two descriptors and flags), and
    // outlives the call.
    let bound =
        unsafe { libc::syscall(libc::SYS_bpf, PROG_BIND_MAP, attr.as_ptr(), size_of_val(&attr)) };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The name as the map holds it: cut, or filled with zeros.
pub(super) fn raw_name(name: &str) -> [u8; GROUP_NAME_BYTES] {
    let mut raw = [0; GROUP_NAME_BYTES];
    raw.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    raw
}

/// The owner of a program in the kernel, by the program's id.
fn owner_of(program: u32) -> Owner {
    let found = aya::programs::loaded_programs().flatten().find(|info| info.id() == program);
    let ids = found.and_then(|info| info.map_ids().ok().flatten()).unwrap_or_default();
    let is_called = |map: &MapData, called: &str| {
        map.info().is_ok_and(|info| info.name_as_str().is_some_and(|name| name == called))
    };
    Owner::of_maps(|called| {
        let mut maps = ids.iter().filter_map(|id| MapData::from_id(*id).ok());
        maps.find(|map| is_called(map, called))
    })
}

fn in_words(services: &[ServiceKey]) -> String {
    let words = services.iter().map(|it| SocketAddr::from((unmapped(it.address), it.port)));
    let mut words: Vec<_> = words.map(|service| service.to_string()).collect();
    words.sort();
    format!("that of {}", words.join(", "))
}

fn keys(map: MapData) -> Vec<ServiceKey> {
    match HashMap::<_, ServiceKey, u32>::try_from(Map::HashMap(map)) {
        Ok(map) => map.keys().filter_map(Result::ok).collect(),
        Err(_other_kind) => Vec::new(),
    }
}

fn name_in(map: MapData) -> Option<String> {
    let map = Array::<_, [u8; GROUP_NAME_BYTES]>::try_from(Map::Array(map)).ok()?;
    let raw = map.get(&0, 0).ok()?;
    Some(String::from_utf8_lossy(&raw).trim_end_matches('\0').to_owned())
}
