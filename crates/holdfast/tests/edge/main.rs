//! The edge's daemon with real eBPF on real interfaces. Needs root.

mod bed;
mod disk;
mod grants;
mod strangers;
