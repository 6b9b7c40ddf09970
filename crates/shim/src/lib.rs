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
// Unit tests have no exports, which reach everything and for which `_Exit` may have its
// name.
#![cfg_attr(test, allow(dead_code, non_snake_case))]

mod base;
mod calls;
mod promotion;
mod start;
#[cfg(test)]
mod testing;
