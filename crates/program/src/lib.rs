//! What the programs `holdfast`, `holdfast-lab` and `holdfast-watch` share at the command line: the
//! name of their build, the meaning of their exit codes, and the options of verbs for which
//! `holdfast` starts one of the others.
#![forbid(unsafe_code)]

mod demo;
pub mod exit;
mod top;

pub use demo::DemoArgs;
pub use top::TopArgs;

/// Version and commit of these programs, which are needed to replay a run.
pub const BUILD: &str = env!("HOLDFAST_BUILD");

/// File name of the laboratory, which is in the folder of `holdfast`.
pub const LAB: &str = "holdfast-lab";

/// File name of the program that looks at groups, which is there, too.
pub const WATCH: &str = "holdfast-watch";
