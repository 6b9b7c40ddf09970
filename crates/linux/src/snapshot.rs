//! The image of a running server, and a server made from an image: of one process, or of all
//! processes of a pid namespace.
//!
//! The server's threads are frozen with ptrace(2), which only reads: nothing is
//! injected, no register changes, and a daemon that dies during the freeze leaves
//! the server running. Its memory is copied in the freeze, or, if the server has
//! a userfaultfd, in rounds before it, so that the freeze copies only what
//! changed last (asynchronous write protection, Linux 6.7). An eBPF iterator
//! reads what /proc does not say. Restored processes have the same addresses,
//! thread ids and descriptors, in a pid namespace of their own; the restoring side
//! supplies what connects it with other hosts (its sockets, the log's memory).

mod bounds;
mod contents;
mod describe;
pub(crate) mod error;
mod family;
mod freeze;
mod guise;
mod insides;
mod last_pid;
mod maps;
mod memory;
mod names;
mod owner;
mod pages;
mod precopy;
pub mod quiet;
pub mod restore;
mod seize;
mod stand;
mod state;
mod store;
mod thread;

pub use error::SnapshotError;
pub use freeze::{Frozen, Preparation, Snapshot};
pub use stand::{Stand, Still};
pub use state::{forget, free_bytes, has_room, settle};

use holdfast_wire::hash::HashKey;
use holdfast_wire::snapshot::Limits;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How an image is taken.
#[derive(Clone, Debug)]
pub struct Options {
    /// Key of the group, for the hashes of the image and of the files that it
    /// relies on.
    pub key: HashKey,
    pub limits: Limits,
    /// Longest time that the server may stand still before the attempt is given
    /// up.
    pub freeze_max: Duration,
    /// Whether the restoring side has the files that the server writes, as they are now.
    /// Otherwise a server that has one open is refused.
    pub shares_files: bool,
    /// Folders whose content is transferred with the image.
    pub state_dirs: Vec<PathBuf>,
    /// Set when the image is not wanted any more: copying ends.
    pub is_off: Arc<AtomicBool>,
    pub external: External,
}

/// What is not in the image, because the restoring side has it.
#[derive(Clone, Debug, Default)]
pub struct External {
    /// Memory files, by device and number.
    pub memory: Vec<(u64, u64)>,
    /// Descriptors, of each process.
    pub descriptors: Vec<u32>,
    /// Whether the watches of epoll sets are external.
    pub watches: bool,
    /// Whether alarms ring in the original only: the copy follows a log that says when.
    pub alarms: bool,
    /// Connections, by their descriptors: before the freeze nothing is asked about them.
    /// In the freeze, [`quiet::Quiescence::reached`] says which they are.
    pub connections: Vec<u32>,
}
