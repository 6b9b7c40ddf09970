//! What Holdfast asks of Linux beyond the standard library.

pub mod address;
pub mod affinity;
pub mod arrival;
pub mod bpf;
pub mod diag;
pub mod epoll;
pub mod frame;
pub mod inlet;
pub mod limits;
pub mod link;
pub mod listener;
pub mod listeners;
pub mod neighbour;
mod netlink;
pub mod netns;
pub mod probe;
pub mod process;
pub mod raw;
pub mod repair;
pub mod route;
pub mod shm;
mod sockopt;
pub mod spawn;
pub mod tap;
pub mod timers;
pub mod unread;
pub mod way;
