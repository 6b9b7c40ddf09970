//! The link emulator: a wire between two network namespaces that delays,
//! loses, reorders, duplicates and limits what it carries, alike or not in its
//! two directions, and counts what becomes of it; in user space, because not
//! every kernel has netem. The two ends of the wire are TAP (or,
//! for the shell, TUN) interfaces with segmentation offload, so one frame may
//! be 64 KiB and checksums stay unfinished as on a veth.

mod direction;
mod link;
mod namespace;
mod segment;
pub mod shell;
mod spec;

pub use direction::{Amount, Counts};
pub(crate) use link::carry;
pub use link::{End, Layer, Link, LinkArguments, WireCounts};
pub(crate) use namespace::Namespace;
pub use spec::{EmuSpec, Outage, SpecError};
