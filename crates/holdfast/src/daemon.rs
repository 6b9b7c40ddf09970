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
pub mod takeover;

use crate::config::{Config, Role};
use anyhow::Context;

/// Runs the daemon with this role until a signal ends it.
///
/// # Errors
/// Whatever keeps it from starting or ends it, with a remedy where there is one.
pub fn run(config: &Config, role: Role) -> anyhow::Result<()> {
    let name = config.role_name(role);
    match role {
        Role::Edge => {
            edge::run(config).with_context(|| format!("edge of group `{}`", config.group.name))
        }
        Role::Member(index) => {
            let member = config.members.get(index).context("no such member")?;
            member::run(config, member)
                .with_context(|| format!("member `{name}` of group `{}`", config.group.name))
        }
    }
}
