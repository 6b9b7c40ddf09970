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

use super::reload::{Ended, Life};
use crate::config::spread::SpreadConfig;
use anyhow::{Context, Result};

/// Runs the daemon of this role until a signal ends it, or its file has changed. Its eBPF programs stay in the kernel.
///
/// # Errors
/// Whatever keeps it from starting, with its remedy.
pub fn run(config: &SpreadConfig, life: &mut Life<'_>) -> Result<Ended> {
    let role = life.role;
    if let Some(me) = config.edges.iter().position(|edge| edge.name == role) {
        return edge::run(config, me, life);
    }
    let me = config.host(role).context("there is no such host in the file")?;
    host::run(config, me, life)
}
