//! One end of a coded tunnel on a host: the machine of `holdfast-tunnel` between an interface, or
//! local ports, and a UDP socket. `holdfast tunnel` starts it.
#![forbid(unsafe_code)]

mod cli;
mod config;
mod control;
mod host;
mod inside;
mod keyfile;
mod manager;
mod opening;
mod outside;
mod plan;
mod rights;
mod run_dir;
mod signals;
mod status;
mod test;
mod trial;
mod up;

use std::process::ExitCode;

fn main() -> ExitCode {
    holdfast_program::abort_on_panic();
    cli::main()
}
