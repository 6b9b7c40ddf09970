//! The daemons of a spread group: its edges, which redirect, and its host
//! servers, which serve.

mod edge;
mod gateway;
mod host;
mod links;
mod peers;
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
    if let Some(me) = config.edges.iter().position(|edge| edge.name == role) {
        return edge::run(config, me);
    }
    host::run(config, config.host(role).context("there is no such host in the file")?)
}
