//! The calls in front of which the shim stands: each is recorded on the primary
//! and answered from the log on the backup.

pub mod binds;
pub mod births;
pub mod children;
pub mod clocks;
pub mod content;
pub mod controls;
pub mod descriptors;
pub mod family;
pub mod file_locks;
pub mod files;
pub mod identity;
pub mod inherited;
pub mod input;
pub mod interfaces;
pub mod local;
pub mod locks;
pub mod masks;
pub mod modules;
pub mod numbers;
pub mod output;
pub mod passed;
pub mod paths;
pub mod processes;
pub mod processors;
pub mod random;
pub mod readings;
pub mod ready;
pub mod replace;
pub mod shapes;
pub mod signals;
pub mod sockets;
pub mod spawn;
pub mod streams;
pub mod threads;
pub mod turns;
