//! Holdfast linux.
pub mod address;
pub mod affinity;
pub mod bpf;
pub mod diag;
pub mod epoll;
pub mod link;
pub mod listener;
pub mod neighbour;
mod netlink;
pub mod netns;
pub mod probe;
pub mod process;
pub mod raw;
pub mod repair;
pub mod shm;
mod sockopt;
pub mod spawn;
pub mod tap;
