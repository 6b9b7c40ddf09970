//! What can go wrong when programs are loaded or maps are used, and the remedy.

use super::layout::{MEMBERS_MAX, SERVICES_MAX, SPREAD_SERVICES_MAX, STRINGS_MAX};
use super::owner::{OTHER_GROUP_REMEDY, OtherGroup};
use super::pins::{Shape, shown};
use std::io;
use std::path::PathBuf;

/// A failure of [`super::Gate`], [`super::TapDrop`], [`super::Edge`],
/// [`super::Redirect`], [`super::HostEnd`] or [`super::BindWatch`].
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    #[error(
        "cannot mount a BPF file system at {path}: {source}; run as root, or mount one there: mount -t bpf bpf {path}"
    )]
    Mount { path: PathBuf, source: io::Error },
    #[error("cannot use {path} for pins: {source}; choose another directory for pins")]
    PinDir { path: PathBuf, source: io::Error },
    #[error(
        "the kernel refused the eBPF object {object}: {source}; it needs Linux 6.6 or newer and root (CAP_BPF, CAP_NET_ADMIN)"
    )]
    Load { object: &'static str, source: Box<aya::EbpfError> },
    #[error("the kernel refused the eBPF program {program}: {source}")]
    Program { program: &'static str, source: Box<aya::programs::ProgramError> },
    #[error(
        "cannot attach {program} to {interface}: {source}; is the interface up and clsact supported?"
    )]
    Attach { program: &'static str, interface: String, source: Box<aya::programs::ProgramError> },
    #[error(
        "cannot reach the root of the control groups: {0}; it needs CONFIG_CGROUP_BPF and CAP_SYS_ADMIN"
    )]
    Cgroup(io::Error),
    #[error(
        "cannot attach {program} to the root of the control groups: {source}; a program that was attached there before must bear others beside it (BPF_F_ALLOW_MULTI)"
    )]
    AttachToCgroup { program: &'static str, source: Box<aya::programs::ProgramError> },
    #[error("cannot pin {path}: {source}; remove what is left there with detach")]
    Pin { path: PathBuf, source: aya::pin::PinError },
    #[error("cannot bind the group's name to the eBPF program {program}: {source}")]
    Owner { program: &'static str, source: io::Error },
    #[error("eBPF map {map}: {source}")]
    Map { map: &'static str, source: Box<aya::maps::MapError> },
    #[error(
        "eBPF map {map} is missing or of another kind: the binary is damaged, install it again"
    )]
    MissingMap { map: &'static str },
    #[error("no slot of the gate is free: raise `connections_max`")]
    NoSlot,
    #[error("the gate of an earlier life is of another version, or has other services")]
    OtherGate,
    #[error("cannot map the gate's slots into memory: {0}")]
    Slots(io::Error),
    #[error("cannot list or remove the tc filters of {interface}: {source}")]
    Filters { interface: String, source: io::Error },
    #[error("{0}: {OTHER_GROUP_REMEDY}")]
    OtherGroup(OtherGroup),
    #[error(
        "there is no interface {interface} here; `ip link` lists those of this network namespace"
    )]
    NoInterface { interface: String, source: io::Error },
    #[error("{0} services: a group has between 1 and {SERVICES_MAX}")]
    Services(usize),
    #[error("{0} members: an edge serves between 1 and {MEMBERS_MAX}")]
    Members(usize),
    #[error("{0} strings: a transit group has between 1 and {STRINGS_MAX}")]
    Strings(usize),
    #[error("{0} services are too many: a redirector has at most {SPREAD_SERVICES_MAX}")]
    SpreadServices(usize),
    #[error("there is no member {0} in the edge's configuration")]
    NoMember(usize),
    #[error("asking the program {program}: {source}")]
    Trace { program: &'static str, source: Box<aya::programs::ProgramError> },
    #[error(
        "the map {map} in {path} was made by another version or for another `flows_max`: wanted are {wanted}, found were {}; start what made it, or give up what it remembers of connections: rm -r {path}, and start again",
        shown(found.as_ref())
    )]
    Incompatible { path: PathBuf, map: &'static str, found: Option<Shape>, wanted: Shape },
}

impl BpfError {
    pub(crate) fn map(map: &'static str) -> impl FnOnce(aya::maps::MapError) -> Self {
        move |source| Self::Map { map, source: Box::new(source) }
    }
}

/// The result of removing a map's entry, where an entry that was missing already is no error.
pub(crate) fn absent_is_fine(
    result: Result<(), aya::maps::MapError>,
    map: &'static str,
) -> Result<(), BpfError> {
    match result {
        Ok(()) | Err(aya::maps::MapError::KeyNotFound) => Ok(()),
        Err(aya::maps::MapError::SyscallError(error))
            if error.io_error.kind() == io::ErrorKind::NotFound =>
        {
            Ok(())
        }
        Err(error) => Err(BpfError::map(map)(error)),
    }
}
