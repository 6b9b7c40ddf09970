//! The memory that shim and daemon share: one header page, then the log ring.
//!
//! On the primary the shim produces and the daemon consumes; on the backup the
//! other way round. The ring is mapped twice in a row, so that a record is
//! always contiguous. Positions are byte counts since the start and never wrap.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

pub use crate::quiet::ShimState;

/// First word of the header page.
pub const MAGIC: u64 = 0x686f_6c64_6661_7374;
/// Version of the layout and of what the shim writes into records; shim and
/// daemon must agree.
pub const VERSION: u32 = 8;
/// Bytes of the header; the connection table follows, then the ring.
pub const HEADER_BYTES: usize = 4096;
/// Connections that one server can have open or closing at a time.
pub const CONNS_MAX: usize = 16384;
/// Descriptors of one server at most, of which the shim keeps books.
pub const FDS_MAX: usize = 65536;
/// Descriptors at the upper end of what the server may have that are the shim's.
pub const SHIM_FDS: usize = 8;
/// Bytes of the connection table.
pub const TABLE_BYTES: usize = CONNS_MAX * size_of::<ConnEntry>();
/// Listeners that a server can have at services.
pub const LISTENERS_MAX: usize = 16;
/// Descriptors of the daemon's that the shim is handed.
pub const HANDED: usize = 3;
/// Where the ring starts.
pub const RING_OFFSET: usize = HEADER_BYTES + TABLE_BYTES;
/// Output that a replica keeps of one connection until the client has it, bytes.
pub const KEEP_BYTES_MAX: u64 = 64 << 20;
/// Default size of the ring, a power of two.
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
    /// The sockets are real: rearm and run. The shim makes [`SOLO`] of it.
    pub const LIVE: u32 = 5;
    /// As [`SOLO`], for good: something happened that no snapshot could hold.
    pub const OFF: u32 = 6;
    /// The replica differs from the primary; it is never promoted.
    pub const DIVERGED: u32 = 7;
    /// A call escaped the shim: what it did is not in the log, so protection has
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

/// `Header::leash`
pub mod leash {
    /// It does, and nothing can be done about it.
    pub const FIXED: u32 = 0;
    /// It does; its first thread ends that at a `SIGSYS` that was queued
    /// (`SI_QUEUE`), if it speaks alone.
    pub const HELD: u32 = 1;
    /// It does not any more.
    pub const LOOSE: u32 = 2;
}

/// `Header::options` bits.
pub mod option {
    /// Read clocks by system call and trap `rdtsc`: a server that reads the time
    /// stamp counter itself is reported instead of diverging later.
    pub const TRAP_TSC: u32 = 2;
    /// Where the two bits lie that say what output waits for; see
    /// [`Buffering`](crate::buffering::Buffering).
    pub const BUFFERING_SHIFT: u32 = 2;
}

/// In `Header::tail` (records are 8-aligned): the producer may still add to the
/// last record, so that its `payload_len` says nothing yet. Whoever takes the bit
/// away ends the record and sets the length.
pub const OPEN: u64 = 1;

/// One producer or consumer word per cache line.
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
    /// Ports that are protected, in host order; 0 ends the list.
    pub ports: [u16; 16],
    /// See [`mode`]; also a futex word.
    pub mode: Line<AtomicU32>,
    /// Produced up to here; with [`OPEN`] while the last record may grow.
    pub tail: Line<AtomicU64>,
    /// Where the record starts that `tail` says is open.
    pub open_at: Line<AtomicU64>,
    /// Low half of `tail`, the futex word that the replaying shim sleeps on.
    pub tail_futex: Line<AtomicU32>,
    /// Consumed up to here: space before it may be overwritten.
    pub head: Line<AtomicU64>,
    /// Record mode: the backup holds everything up to here. Beyond every position while
    /// a backup joins: nobody waits for it.
    pub stable: Line<AtomicU64>,
    /// Bumped with `stable` (and `head`); the futex word that writers sleep on.
    pub stable_futex: Line<AtomicU32>,
    /// Not 0 while a thread of the shim sleeps on `stable_futex` or `tail_futex`.
    pub shim_waiting: Line<AtomicU32>,
    /// Not 0 while the daemon sleeps: the shim must then signal its eventfd.
    pub daemon_waiting: Line<AtomicU32>,
    /// Where the log ends (mode DRAIN).
    pub end: Line<AtomicU64>,
    /// Not 0 while the daemon keeps the server's main thread on one processor.
    pub kept: Line<AtomicU32>,
    /// Odd while threads shall stand still: each that comes to a logged call parks
    /// there, before the call has any effect, until this is even again, which after a
    /// second it makes it itself. It counts up.
    /// Also a futex word.
    pub park: Line<AtomicU32>,
    /// Why protection ended or the replica diverged: UTF-8, 0-terminated.
    pub reason_len: AtomicU32,
    pub reason: [u8; 512],
    /// The server's process; 0 while no shim runs in it.
    pub pid: AtomicI32,
    /// Processes that the server has made.
    pub forks: AtomicU32,
    /// Whether the server dies with its daemon; see [`leash`].
    pub leash: AtomicU32,
    /// Logs that have begun where the server had been alone.
    pub logs: AtomicU32,
    /// The server's descriptor of a userfaultfd over its own memory; 0 if the kernel
    /// gave none.
    pub userfault: AtomicI32,
    /// Where the server has what it was handed: the socket to the daemon, this memory,
    /// and the daemon's wake-up.
    pub handed: [AtomicI32; HANDED],
    /// Where the shim's [`ShimState`] lies in the server's memory; 0 before there is one.
    pub control: AtomicU64,
    /// Listeners that promotion must rebuild: final in mode PARKED, before that a hint,
    /// brought up to date when the server listens.
    pub listeners_len: AtomicU32,
    pub listeners: [Listener; LISTENERS_MAX],
}

/// A listening socket of the replica.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Listener {
    pub fd: i32,
    pub backlog: i32,
    pub addr_len: u32,
    pub addr: [u8; 32],
}

/// `ConnEntry::state`
pub mod conn_state {
    pub const FREE: u32 = 0;
    /// The server holds a descriptor.
    pub const OPEN: u32 = 1;
    /// The server closed it; output may still be on its way.
    pub const CLOSED: u32 = 2;
    /// The backup's daemon has no more use for it.
    pub const DONE: u32 = 3;
}

/// One protected connection as the replica's shim sees it, indexed by accept
/// number modulo [`CONNS_MAX`].
#[repr(C, align(128))]
pub struct ConnEntry {
    /// Accept number; entries are reused.
    pub conn: AtomicU32,
    /// See [`conn_state`].
    pub state: AtomicU32,
    pub fd: AtomicI32,
    /// 1 = the server shut down its sending side, 2 = receiving side.
    pub shut: AtomicU32,
    /// Stream bytes that the server has read; EOF is `eof`.
    pub in_bytes: AtomicU64,
    /// Stream bytes that the server has written.
    pub out_bytes: AtomicU64,
    /// Daemon: the client's kernel acknowledged this many; older output may go.
    pub acked_bytes: AtomicU64,
    /// Retained output in the replica's memory: a ring of `keep_cap` bytes at
    /// `keep_addr` in which stream offset `o` lies at `o % keep_cap`.
    pub keep_addr: AtomicU64,
    pub keep_cap: AtomicU64,
    /// Oldest retained stream offset.
    pub keep_from: AtomicU64,
    /// Unix process that holds `fd`.
    pub pid: AtomicI32,
    /// 1 = the server has seen the client's end of stream.
    pub eof: AtomicU32,
    /// The cookie of the kernel's socket (SO_COOKIE), by which the gate knows it too.
    pub socket: AtomicU64,
    /// Not 0 while the daemon holds a duplicate of `fd`. The server's last close
    /// waits for its end: a socket that outlives the server's descriptor would
    /// still be reported by the server's epoll sets.
    pub borrowed: AtomicU32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lies_between_the_header_and_the_ring() {
        assert_eq!((size_of::<Header>(), size_of::<ConnEntry>()), (HEADER_BYTES, 128));
        assert_eq!((TABLE_BYTES, RING_OFFSET), (2 << 20, (2 << 20) + 4096));
    }
}
