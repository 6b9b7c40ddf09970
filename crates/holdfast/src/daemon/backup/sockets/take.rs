//! What a takeover takes from the parked replica for a connection: its socket, and output that
//! its client may lack.

use super::{RestoredSocket, is_ipv6, listener_of};
use holdfast_linux::process;
use holdfast_linux::spawn::Server;
use holdfast_replica::promotion::Restore;
use holdfast_wire::shm::KEEP_BYTES_MAX;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Where a connection's socket and output are.
#[derive(Clone, Copy, Default)]
pub(super) struct Source {
    accept: Option<u32>,
    /// The server's descriptor, if it has one.
    fd: Option<RawFd>,
    /// The server's own output that is kept for the client, in stream offsets.
    output: (u64, u64),
    /// Bytes from `snd_una` on that may be under way already.
    under_way: u64,
}

impl Source {
    pub(super) fn of(r: &Restore<'_>) -> Self {
        Self {
            accept: r.accept,
            fd: r.fd,
            output: (r.snd_una_offset + r.earlier.len() as u64, r.out_end),
            under_way: r.in_flight_end - r.snd_una_offset,
        }
    }
}

/// Bytes of retained output that may still be copied from the replica, over all connections: at
/// first the size of its memory.
#[derive(Default)]
pub(super) struct Room(OnceLock<AtomicU64>);

impl Room {
    fn take(&self, replica: &Server, len: u64) -> bool {
        let room = self.0.get_or_init(|| AtomicU64::new(memory_bytes(replica)));
        room.fetch_update(Relaxed, Relaxed, |room| room.checked_sub(len)).is_ok()
    }
}

impl RestoredSocket {
    /// Takes what the replica has of the connection; any thread may do it.
    pub(super) fn fetch(&mut self, replica: &Server, room: &Room) {
        self.error = self.try_fetch(replica, room).err();
    }

    fn try_fetch(&mut self, replica: &Server, room: &Room) -> Result<(), String> {
        let key = self.key;
        let failed = |what: &'static str| move |error: io::Error| format!("{key}: {what}: {error}");
        let Source { accept, fd, output, under_way } = self.source;
        let socket = match fd {
            Some(fd) => taken(replica, accept, fd).map_err(failed("taking its descriptor"))?,
            None => self.fresh_socket(replica).map_err(failed("making its socket"))?,
        };
        if let Some(accept) = accept {
            let own = retained(replica, room, accept, output);
            self.in_flight.extend(own.map_err(failed("reading its output"))?);
        }
        let under_way = under_way.min(self.in_flight.len() as u64);
        self.retained = self.in_flight.split_off(under_way as usize);
        self.fd = Some(socket);
        Ok(())
    }

    /// A socket of the listener's family, for a connection without descriptor.
    fn fresh_socket(&self, replica: &Server) -> io::Result<OwnedFd> {
        let ipv6 = listener_of(replica, &self.key).is_some_and(|l| is_ipv6(&l));
        let domain = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
        Ok(Socket::new(domain, Type::STREAM.cloexec(), Some(Protocol::TCP))?.into())
    }
}

/// Retained output `[from, to)` of the connection with this accept number, in stream offsets,
/// read from the replica's memory. How much there is only the server says, so it is limited:
/// per connection to what a shim can keep, over all connections to `room`, the size of the
/// replica's memory.
fn retained(
    replica: &Server,
    room: &Room,
    accept: u32,
    (from, to): (u64, u64),
) -> io::Result<Vec<u8>> {
    let e = replica.memory.entry(accept);
    let is_family = replica.memory.is_family();
    let (address, cap) = (e.keep_addr.load(Acquire), e.keep_cap.load(Acquire));
    let len = to.saturating_sub(from);
    if len == 0 {
        return Ok(Vec::new());
    }
    if len > cap.min(KEEP_BYTES_MAX) || !room.take(replica, len) {
        return Err(io::Error::other("no replica keeps so much output"));
    }
    let mut bytes = vec![0; len as usize];
    let mut at = 0;
    while at < bytes.len() {
        let place = from.wrapping_add(at as u64) % cap.max(1);
        let n = (bytes.len() - at).min((cap - place) as usize);
        let into = &mut bytes[at..at + n];
        let got = match is_family {
            true => replica.memory.read_pool(accept, (cap, place), into).map(|()| n)?,
            false => process::read_memory(replica.pid(), address.wrapping_add(place), into)?,
        };
        if got == 0 {
            return Err(io::Error::other("the replica's output is gone"));
        }
        at += got;
    }
    Ok(bytes)
}

/// A duplicate of the server's descriptor of a connection.
fn taken(replica: &Server, accept: Option<u32>, fd: RawFd) -> io::Result<OwnedFd> {
    match accept {
        Some(accept) => replica.take_connection(accept, fd),
        None => replica.take_fd(fd),
    }
}

/// Memory that retained output may lie in, in bytes: all of the server's, or for a family of
/// processes the memory that they share with this daemon.
fn memory_bytes(replica: &Server) -> u64 {
    match replica.memory.is_family() {
        true => replica.memory.used_bytes(),
        false => process::memory_bytes(replica.pid()),
    }
}
