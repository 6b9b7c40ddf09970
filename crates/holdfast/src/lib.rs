//! Holdfast's program: the daemons of the three hosts and the verbs around
//! them. The machines that decide live in `holdfast-replica` and
//! `holdfast-cluster`; this crate connects them to sockets and to people.
#![forbid(unsafe_code)]

pub mod admin;
pub mod channel;
pub mod check;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod fingerprint;
mod hooks;
pub mod init;
pub mod key;
pub mod leavings;
pub mod lock;
mod mounts;
pub mod open_files;
pub mod poll;
mod remembered;
pub mod run_dir;
pub mod spool;
pub mod status;
pub mod support;
