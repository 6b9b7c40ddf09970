//! The daemons of a spread group: the edge, which redirects, and its host
//! servers, which serve.

mod edge;
mod host;
mod links;
mod prober;
mod report;
mod syns;
mod wire;

use crate::config::spread::SpreadConfig;
use anyhow::{Context, Result};

/// Runs the daemon of this role until a signal ends it. Its eBPF programs stay in the kernel.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub fn run(config: &SpreadConfig, role: &str) -> Result<()> {
    if role == "edge" {
        return edge::run(config);
    }
    host::run(config, config.host(role).context("there is no such host in the file")?)
}
