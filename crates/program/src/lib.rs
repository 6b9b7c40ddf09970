//! What the two programs, `holdfast` and `holdfast-lab`, share at the command line: the name of
//! their build, the meaning of their exit codes, and the options of the demonstration, for which
//! `holdfast` starts `holdfast-lab`.
#![forbid(unsafe_code)]

mod demo;
pub mod exit;

pub use demo::DemoArgs;

/// Version and commit of these programs, which are needed to replay a run.
pub const BUILD: &str = env!("HOLDFAST_BUILD");

/// File name of the laboratory, which is in the folder of `holdfast`.
pub const LAB: &str = "holdfast-lab";
