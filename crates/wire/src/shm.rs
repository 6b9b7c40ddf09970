//! The memory that shim and daemon share: one header page, then the log ring.
//!
//! On the primary the shim produces and the daemon consumes; on the backup the
//! other way round. The ring is mapped twice in a row, so that a record is
//! always contiguous. Positions are byte counts since the start and never wrap.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use crate::direct::KEY_BYTES;
use crate::group::HOLDER_WORDS;
pub use crate::group::{Group, PROCESSES_MAX, Process};
pub use crate::quiet::ShimState;

/// First word of the header page.
pub const MAGIC: u64 = 0x686f_6c64_6661_7374;
/// Version of the layout and of what the shim writes into records; shim and
/// daemon must agree.
pub const VERSION: u32 = 12;
/// Bytes of the header; the connection table follows, then what the processes of a
/// family share, then the ring, and for a family the pool of retained output.
pub const HEADER_BYTES: usize = 4096;
/// Most connections of one server, open or closing, at a time.
pub const CONNS_MAX: usize = 16384;
/// Most descriptors of one server that the shim keeps track of.
pub const FDS_MAX: usize = 65536;
/// Descriptors that the shim reserves at the upper end of the server's range.
pub const SHIM_FDS: usize = 8;
/// Size of the connection table, in bytes.
pub const TABLE_BYTES: usize = CONNS_MAX * size_of::<ConnEntry>();
/// Most listeners of a server at protected services.
pub const LISTENERS_MAX: usize = 16;
/// What the daemon says of the socket of the log's short way, which it sends to the shim: no
/// listener of a server has this number.
pub const DIRECT: i32 = -1;
/// Number of descriptors that the daemon hands to the shim.
pub const HANDED: usize = 3;
/// Offset of the [`Group`] in the shared memory, in bytes.
pub const GROUP_OFFSET: usize = HEADER_BYTES + TABLE_BYTES;
/// Offset of the ring in the shared memory, in bytes.
pub const RING_OFFSET: usize = GROUP_OFFSET + size_of::<Group>();
/// Most output that a replica keeps for one connection until the client has it,
/// in bytes.
pub const KEEP_BYTES_MAX: u64 = 64 << 20;
/// Part of a family's pool in which one connection's retained output lies, in bytes. A
/// ring of `n` bytes, a power of two, begins at `n` there: so one that grows lies beside
/// the one that it comes from.
pub const POOL_PART_BYTES: usize = 2 * KEEP_BYTES_MAX as usize;
/// Size of a family's pool, behind the ring, in bytes; nearly all of it is a hole. Servers
/// have 64 bits; the machines alone are built for less, too.
#[cfg(target_pointer_width = "64")]
pub const POOL_BYTES: usize = CONNS_MAX * POOL_PART_BYTES;
/// Default size of the ring, in bytes; a power of two.
pub const RING_BYTES: usize = 16 << 20;

/// What the shim is doing; stored in [`Header::mode`].
pub mod mode {
    /// Calls are executed and logged (primary).
    pub const RECORD: u32 = 1;
    /// Calls are answered from the log (backup).
    pub const REPLAY: u32 = 2;
    /// The log has ended at `Header::end`: consume it, keep what the server
    /// still writes, park at the first call that needs a live answer.
    pub const DRAIN: u32 = 3;
    /// The replica is parked; the connection table is valid.
    pub const PARKED: u32 = 4;
    /// The sockets are real: rearm and run. The shim then sets [`SOLO`].
    pub const LIVE: u32 = 5;
    /// Like [`SOLO`], for good: something happened that no snapshot could hold.
    pub const OFF: u32 = 6;
    /// The replica differs from the primary; it is never promoted.
    pub const DIVERGED: u32 = 7;
    /// A call escaped the shim: its effect is not in the log, so protection has
    /// ended although the server runs on. Set by the primary's shim, in place of
    /// [`RECORD`]; `Header::reason` says which call, from where.
    pub const BROKEN: u32 = 8;
    /// The server speaks alone: nothing is logged, but the books (connection table,
    /// descriptors, order of connections) are kept, so that a log may begin later.
    pub const SOLO: u32 = 9;

    /// Whether the server speaks alone: no backup hears of what it does.
    #[must_use]
    pub const fn is_alone(mode: u32) -> bool {
        matches!(mode, LIVE | OFF | SOLO)
    }
}

/// Values of `Header::leash`: whether the server dies with its daemon.
pub mod leash {
    /// The server dies with its daemon, and nothing can change that.
    pub const FIXED: u32 = 0;
    /// The server dies with its daemon until its first thread gets a queued
    /// `SIGSYS` (`SI_QUEUE`) while the server speaks alone.
    pub const HELD: u32 = 1;
    /// The server no longer dies with its daemon.
    pub const LOOSE: u32 = 2;
}

/// Bits of `Header::options`.
pub mod option {
    /// Read clocks by system call and trap `rdtsc`: a server that reads the time
    /// stamp counter itself is reported instead of diverging later.
    pub const TRAP_TSC: u32 = 2;
    /// Where the two bits lie that say what output waits for; see
    /// [`Buffering`](crate::buffering::Buffering).
    pub const BUFFERING_SHIFT: u32 = 2;
    /// The server's processes are all in one log (decision 33).
    pub const FAMILY: u32 = 16;
    /// One of its threads runs at a time, from its start on (decision 34).
    pub const ONE_AT_A_TIME: u32 = 32;
}

/// Bit of `Header::tail` (records are 8-aligned): the producer may still extend
/// the last record, so its `payload_len` is not valid yet. Whoever clears the bit
/// ends the record and sets the length.
pub const OPEN: u64 = 1;

/// A word of the producer or consumer on its own cache line.
#[repr(C, align(64))]
pub struct Line<T>(pub T);

/// The header page.
#[repr(C, align(4096))]
pub struct Header {
    pub magic: u64,
    pub version: u32,
    pub options: u32,
    pub ring_bytes: u64,
    pub hash_key: crate::hash::HashKey,
    /// Protected ports in host order; 0 ends the list.
    pub ports: [u16; 16],
    /// One of [`mode`]; also a futex word.
    pub mode: Line<AtomicU32>,
    /// End of what was produced; has the bit [`OPEN`] while the last record may
    /// grow.
    pub tail: Line<AtomicU64>,
    /// Start of the record that `tail` marks as open.
    pub open_at: Line<AtomicU64>,
    /// Low half of `tail`, the futex word that the replaying shim sleeps on.
    pub tail_futex: Line<AtomicU32>,
    /// End of what was consumed: space before it may be overwritten.
    pub head: Line<AtomicU64>,
    /// In record mode, the position up to which the backup holds the log. Beyond every
    /// position while a backup joins: nobody waits for it.
    pub stable: Line<AtomicU64>,
    /// Bumped with `stable` (and `head`); the futex word that writers sleep on.
    pub stable_futex: Line<AtomicU32>,
    /// Not 0 while one of the shim's threads sleeps on `stable_futex` or
    /// `tail_futex`.
    pub shim_waiting: Line<AtomicU32>,
    /// Not 0 while the daemon sleeps: the shim must then signal its eventfd.
    pub daemon_waiting: Line<AtomicU32>,
    /// Where the log ends (mode DRAIN).
    pub end: Line<AtomicU64>,
    /// Not 0 while the daemon keeps the server's main thread on one processor.
    pub kept: Line<AtomicU32>,
    /// Odd while threads shall stand still: each parks at its next logged call,
    /// before the call has any effect, until this is even again; after one second a
    /// thread makes it even itself. Only counts up. Also a futex word.
    pub park: Line<AtomicU32>,
    /// Why protection ended or the replica diverged: UTF-8, 0-terminated.
    pub reason_len: AtomicU32,
    pub reason: [u8; 512],
    /// The server's process; 0 while no shim runs in it.
    pub pid: AtomicI32,
    /// Processes that the server has forked.
    pub forks: AtomicU32,
    /// Whether the server dies with its daemon; one of [`leash`].
    pub leash: AtomicU32,
    /// Number of logs begun after the server had run alone.
    pub logs: AtomicU32,
    /// Not 0 if one of the server's threads runs at a time while it has a log (decision 34):
    /// from its start on, or from the beginning of a log.
    pub takes_turns: AtomicU32,
    /// How often another thread went on beside one that computed and made no call. The replica
    /// may differ from there.
    pub overlaps: AtomicU64,
    /// The server's descriptor of a userfaultfd over its own memory; 0 if the kernel
    /// gave none.
    pub userfault: AtomicI32,
    /// The server's numbers for the descriptors it was handed: the socket to the
    /// daemon, this memory, and the daemon's wake-up.
    pub handed: [AtomicI32; HANDED],
    /// Address of the shim's [`ShimState`] in the server's memory; 0 before there is one.
    pub control: AtomicU64,
    /// Listeners that promotion must rebuild. Final in mode PARKED; before that a hint,
    /// updated when the server listens.
    pub listeners_len: AtomicU32,
    pub listeners: [Listener; LISTENERS_MAX],
    pub direct: Direct,
    /// Not 0 if the replica understands intents that have [`BY_FILE`](crate::log::BY_FILE) or
    /// [`LATER`](crate::log::LATER).
    pub spares_hashes: AtomicU32,
}

/// The short way of the log to the backup (see [`crate::direct`]). A shim of a release without it
/// leaves it alone: it never takes a key.
#[repr(C)]
pub struct Direct {
    /// Which key counts; 0: none, and the daemon sends the log.
    pub id: AtomicU64,
    /// The key, set before `id`.
    pub key: [AtomicU64; KEY_BYTES / 8],
    /// Number of datagrams that the shim has sealed.
    pub counter: AtomicU64,
    /// Time in ns after which an unanswered datagram counts as lost.
    pub wait_ns: AtomicU64,
    /// The key whose socket the shim has taken.
    pub taken: AtomicU64,
    /// End of the log when the daemon was last told of it.
    pub announced: AtomicU64,
    /// How often what was sent was confirmed in time, and how often it was not.
    pub confirmed: AtomicU64,
    pub lost: AtomicU64,
    /// The server's number for the socket; 0 before it has one.
    pub fd: AtomicI32,
}

/// A listening socket of the replica.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Listener {
    pub fd: i32,
    pub backlog: i32,
    pub addr_len: u32,
    pub addr: [u8; 32],
    /// Of a family: a process that has it, in the server's own numbers.
    pub pid: i32,
    /// Of a family: cookie of the replica's socket (SO_COOKIE), which is one in however
    /// many processes.
    pub socket: u64,
}

/// Values of `ConnEntry::state`.
pub mod conn_state {
    pub const FREE: u32 = 0;
    /// The server holds a descriptor.
    pub const OPEN: u32 = 1;
    /// The server closed it; output may still be on its way.
    pub const CLOSED: u32 = 2;
    /// The backup's daemon no longer needs the entry.
    pub const DONE: u32 = 3;
}

/// One protected connection as the replica's shim sees it, indexed by accept
/// number modulo [`CONNS_MAX`].
#[repr(C, align(128))]
#[derive(Default)]
pub struct ConnEntry {
    /// Accept number; entries are reused for later connections.
    pub conn: AtomicU32,
    /// One of [`conn_state`].
    pub state: AtomicU32,
    pub fd: AtomicI32,
    /// How the server shut the connection down: 1 = its sending side, 2 = its
    /// receiving side.
    pub shut: AtomicU32,
    /// Stream bytes that the server has read, without the end of stream
    /// (`eof`).
    pub in_bytes: AtomicU64,
    /// Stream bytes that the server has written.
    pub out_bytes: AtomicU64,
    /// Stream bytes that the client's kernel has acknowledged, written by the
    /// daemon; older output may be dropped.
    pub acked_bytes: AtomicU64,
    /// Address of retained output in the replica's memory: a ring of `keep_cap`
    /// bytes in which stream offset `o` lies at `o % keep_cap`.
    pub keep_addr: AtomicU64,
    pub keep_cap: AtomicU64,
    /// Oldest retained stream offset.
    pub keep_from: AtomicU64,
    /// Process that holds `fd`, in the server's own numbers; 0 while none has said so.
    pub pid: AtomicI32,
    /// 1 = the server has seen the client's end of stream.
    pub eof: AtomicU32,
    /// Cookie of the kernel's socket (SO_COOKIE), by which the gate knows it too.
    pub socket: AtomicU64,
    /// Not 0 while the daemon holds a duplicate of `fd`. The server's last close
    /// waits for its end: a socket that outlives the server's descriptor would
    /// still be reported by the server's epoll sets.
    pub borrowed: AtomicU32,
    /// In a family, the lock of who writes: the owner's process, as in [`Group::lock`].
    pub writer: AtomicU32,
    /// Processes of a family that hold the connection, one bit for each place.
    pub holders: [AtomicU64; HOLDER_WORDS],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lies_between_the_header_and_the_ring() {
        assert_eq!((size_of::<Header>(), size_of::<ConnEntry>()), (HEADER_BYTES, 128));
        assert_eq!((TABLE_BYTES, GROUP_OFFSET), (2 << 20, (2 << 20) + 4096));
        assert!(RING_OFFSET > GROUP_OFFSET && RING_OFFSET.is_multiple_of(4096));
    }

    #[test]
    fn a_server_without_a_log_is_alone() {
        use mode::{BROKEN, DIVERGED, DRAIN, LIVE, OFF, PARKED, RECORD, REPLAY, SOLO, is_alone};
        assert!([LIVE, OFF, SOLO].into_iter().all(is_alone));
        assert!(![RECORD, REPLAY, DRAIN, PARKED, DIVERGED, BROKEN].into_iter().any(is_alone));
    }
}
