//! The daemons of a spread group.

use crate::config::spread::SpreadConfig;
use anyhow::{Result, bail};

/// Runs the daemon with this role until a signal ends it.
///
/// # Errors
/// Whatever keeps it from starting.
pub fn run(_config: &SpreadConfig, role: &str) -> Result<()> {
    bail!("role `{role}` of spread groups is not there yet")
}
