//! What the two programs, `holdfast` and `holdfast-lab`, share at the command
//! line: which build they are, what their exit codes mean, and the options of the
//! demonstration, which one of them asks the other for.
#![forbid(unsafe_code)]

mod demo;
pub mod exit;

pub use demo::DemoArgs;

/// Version and commit of these programs, which a replay of a run needs.
pub const BUILD: &str = env!("HOLDFAST_BUILD");

/// File name of the laboratory; it stands beside `holdfast`.
pub const LAB: &str = "holdfast-lab";
