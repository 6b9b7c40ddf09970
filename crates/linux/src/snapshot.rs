//! The image of a running server, and a server made of an image.
//!
//! The server's threads are frozen with ptrace(2), which only reads: nothing is
//! injected, no register changes, and a daemon that dies in the freeze leaves the
//! server running. Its memory is copied in the freeze, or, where the server has a
//! userfaultfd, in rounds before it, of which the freeze copies what changed last
//! (asynchronous write protection, Linux 6.7). What /proc does not say an eBPF
//! iterator reads. The restored process has the same addresses, thread ids and
//! descriptors, in a pid namespace of its own; what connects it with other hosts
//! (its sockets, the log's memory) is supplied by whoever restores it.

mod bounds;
mod describe;
pub(crate) mod error;
mod freeze;
mod guise;
mod insides;
mod maps;
mod memory;
mod names;
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
pub use state::settle;

use holdfast_wire::hash::HashKey;
use holdfast_wire::snapshot::Limits;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How an image is taken.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of the group: hashes the image, and the files that it relies on.
    pub key: HashKey,
    pub limits: Limits,
    /// How long the server may stand still before the attempt is given up.
    pub freeze_max: Duration,
    /// Whoever restores it has the files that the server writes, as they are now. Otherwise
    /// a server that has one open is refused.
    pub shares_files: bool,
    /// Folders whose content goes over with the image.
    pub state_dirs: Vec<PathBuf>,
    /// Whoever waits for the image sets it when it is not wanted any more: copying ends.
    pub is_off: Arc<AtomicBool>,
    pub external: External,
}

/// What is not in the image, because whoever restores it has it.
#[derive(Clone, Debug, Default)]
pub struct External {
    /// Memory files, by device and number.
    pub memory: Vec<(u64, u64)>,
    /// Descriptors.
    pub descriptors: Vec<u32>,
    /// What epoll sets watch.
    pub watches: bool,
    /// Connections, by their descriptors: before the freeze nothing is asked of them. In
    /// it [`quiet::Quiescence::reached`] says which they are.
    pub connections: Vec<u32>,
}
