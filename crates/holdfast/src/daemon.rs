//! `holdfast run`: one daemon per host, its role taken from the file.

pub mod backup;
pub mod beats;
pub mod edge;
pub mod edge_link;
pub mod edge_state;
pub mod member;
pub mod pairing;
mod placement;
pub mod primary;
pub mod recover;
pub mod regulate;
pub mod spread;
pub mod takeover;
mod trace;
pub mod transit;

use crate::config::{Config, GroupFile, Role};
use anyhow::{Context, anyhow};

/// Runs the daemon with this role until a signal ends it.
///
/// # Errors
/// Whatever keeps it from starting or ends it, with a remedy where there is one.
pub fn run(file: &GroupFile, role: &str) -> anyhow::Result<()> {
    let named = || format!("`{role}` of group `{}`", file.name());
    match file {
        GroupFile::Replicated(config) => {
            let role = config.role(role).map_err(|error| anyhow!(error))?;
            run_replicated(config, role).with_context(named)
        }
        GroupFile::Spread(config) => spread::run(config, role).with_context(named),
        GroupFile::Transit(config) => {
            let side = config.side(role).context("no such role")?;
            transit::run(config, side).with_context(named)
        }
    }
}

fn run_replicated(config: &Config, role: Role) -> anyhow::Result<()> {
    match role {
        Role::Edge => edge::run(config),
        Role::Member(index) => {
            let member = config.members.get(index).context("no such member")?;
            member::run(config, member)
        }
    }
}
