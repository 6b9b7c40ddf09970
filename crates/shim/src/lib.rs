//! The shim: an `LD_PRELOAD` library that makes an unmodified server
//! deterministic. On the primary it logs the result of every call that could
//! differ on another machine; on the backup it answers those calls from the log,
//! so that the replica computes the same bytes (FT-TCP's "north side wrap").
//!
//! Three rules hold everywhere in this crate. Nothing is allocated with the
//! host program's allocator. No libc wrapper of a system call is used: calls go
//! to the kernel directly, because libc's names are our own exports. And the
//! process needs no privilege: everything privileged is the daemon's work.
#![allow(clippy::missing_safety_doc)] // the exports are libc's own, with libc's contracts
#![allow(clippy::not_unsafe_ptr_arg_deref)]

mod alarm;
mod alloc;
mod calls;
mod children;
mod clocks;
mod conns;
mod content;
mod controls;
mod copy;
mod defer;
mod descriptors;
mod family;
mod fds;
mod files;
mod identity;
mod init;
mod input;
mod interfaces;
mod leash;
mod live;
mod local;
mod locks;
mod log;
mod masks;
mod modules;
mod output;
mod paths;
mod processes;
mod processors;
mod random;
mod readings;
mod ready;
mod replace;
mod signals;
mod sockets;
mod spawn;
mod state;
mod streams;
mod sys;
mod threads;
