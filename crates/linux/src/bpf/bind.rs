//! Notices when a process binds to a spread group's addresses (`bpf/bind.bpf.c`).

use super::cgroup;
use super::error::BpfError;
use super::layout::{BIND_COUNTERS, SERVICES_MAX, ServiceKey};
use super::loader::{Counters, Loaded, Object};
use crate::sockopt;
use aya::maps::{Array, MapData, RingBuf};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

static OBJECT: Object = Object {
    name: "bind",
    bytes: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/bind.bpf.o")),
    maps: &[],
    counters: &BIND_COUNTERS,
    priority: 0,
};

/// `SO_NETNS_COOKIE` of `<asm-generic/socket.h>`.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// Number of addresses to which a service can be bound: its own, and the unspecified address of
/// either family.
const WAYS_TO_BIND: u32 = 3;

/// Which binds are noticed.
#[derive(Clone, Copy, Debug)]
pub enum Watched<'a> {
    /// All binds that name one of these addresses.
    Addresses(&'a [IpAddr]),
    /// Binds after which one of these services could be served.
    Services(&'a [SocketAddr]),
}

/// The attached programs: they see the binds of all processes, and report those in the network
/// namespace of the thread that attached them. They are removed when this is dropped or its
/// process dies.
pub struct BindWatch {
    ring: RingBuf<MapData>,
    counters: Counters,
    _attached: Loaded,
}

impl BindWatch {
    /// Attaches to the root of the control groups, beside whatever is there.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses, or too much is watched.
    pub fn attach(watched: Watched<'_>) -> Result<Self, BpfError> {
        let cgroup = cgroup::root()?;
        let services = SERVICES_MAX as u32 * WAYS_TO_BIND;
        let mut loaded = OBJECT.load_unpinned(&[("services", services)])?;
        match watched {
            Watched::Addresses(addresses) => loaded.set_addresses(addresses)?,
            Watched::Services(services) => {
                loaded.replace_set("services", &bindings(services)?)?;
            }
        }
        let mut cookie: Array<MapData, u64> = loaded.map("bind_cookie")?;
        cookie
            .set(0, netns_cookie().map_err(BpfError::Cgroup)?, 0)
            .map_err(BpfError::map("bind_cookie"))?;
        let ring = loaded.map("binds")?;
        let counters = loaded.counters()?;
        for program in ["bind4", "bind6"] {
            loaded.attach_to_cgroup(program, cgroup.as_fd())?;
        }
        Ok(Self { ring, counters, _attached: loaded })
    }

    /// Whether a bind was noticed since the last call. The program runs before the kernel binds,
    /// so the bind may not be done yet.
    pub fn take(&mut self) -> bool {
        let mut noticed = false;
        while self.ring.next().is_some() {
            noticed = true;
        }
        noticed
    }

    /// Counts since the programs were attached.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.read()
    }
}

impl AsFd for BindWatch {
    /// Readable when a bind was noticed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// Addresses and ports whose bind may serve `services`.
fn bindings(services: &[SocketAddr]) -> Result<Vec<ServiceKey>, BpfError> {
    if services.len() > SERVICES_MAX {
        return Err(BpfError::Services(services.len()));
    }
    let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let ways = |service: &SocketAddr| {
        let port = service.port();
        [service.ip(), any[0], any[1]].map(|address| ServiceKey::new(address, port))
    };
    Ok(services.iter().flat_map(ways).collect())
}

/// Cookie of the calling thread's network namespace, by which BPF programs identify it.
fn netns_cookie() -> io::Result<u64> {
    let socket = sockopt::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    sockopt::get(socket.as_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE)
}
