//! `holdfast run`: one daemon per host, with its role from the file.

mod advice;
pub mod backup;
mod clients;
mod clock;
pub mod dialer;
mod distrust;
mod drive;
pub mod edge;
pub mod edge_state;
mod front;
mod intact;
mod kept;
pub(crate) mod lease;
mod looker;
pub mod member;
pub mod pairing;
mod placement;
pub mod primary;
mod processors;
mod proven;
mod pulse;
mod record;
pub mod recover;
pub mod regulate;
pub mod said;
mod sealed;
mod segment;
pub mod services;
mod speak;
mod spread;
mod standstill;
mod survivor;
mod trace;
pub mod transit;
pub mod witness;

pub(crate) use lease::{LEASE_MIN, address as lease_address};
pub(crate) use pulse::PRIORITY;

use crate::check;
use crate::config::{Config, GroupFile, Role};
use crate::mounts;
use crate::open_files;
use crate::poll::Signals;
use crate::status::State;
use anyhow::{Context, anyhow};
use holdfast_linux::limits;
use holdfast_member::shown::{Protection, Shown};

/// Runs the daemon with this role until a signal ends it.
///
/// # Errors
/// Whatever keeps it from starting or ends it, with a remedy where there is one.
pub fn run(file: &GroupFile, role: &str) -> anyhow::Result<()> {
    let named = || format!("`{role}` of group `{}`", file.name());
    // A daemon out of descriptors cannot even answer questions.
    limits::raise_open_files(0).context("the limit of open files")?;
    if let Some(why) = mounts::why_lost(std::process::id()) {
        tracing::warn!("{why}; {}", mounts::REMEDY);
    }
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

/// A machine's state as `status` gives it: state, reason and remedy.
fn shown(shown: Shown) -> (State, String, String) {
    let state = match shown.protection {
        Protection::Protected => State::Protected,
        Protection::Unprotected => State::Unprotected,
        Protection::Waiting => State::Waiting,
        Protection::Fenced => State::Fenced,
    };
    (state, shown.reason, shown.remedy)
}

/// Logs with `-v` the failure of something that this daemon can do without, and
/// tries again or shows elsewhere.
fn heed<T>(what: &str, result: Result<T, impl std::fmt::Display>) {
    if let Err(error) = result {
        tracing::debug!("{what}: {error}");
    }
}

/// The signal that ends this daemon, if one has come. SIGHUP never does: nothing
/// needs to be opened again, because the log is standard error, and the file counts
/// from the next start on.
fn ending(signals: &Signals) -> Option<i32> {
    while let Some(signal) = signals.take() {
        if signal != libc::SIGHUP {
            return Some(signal);
        }
        tracing::info!("SIGHUP: nothing to do; a changed file is read at the next start");
    }
    None
}

fn run_replicated(config: &Config, role: Role) -> anyhow::Result<()> {
    match role {
        Role::Edge => {
            let named = config.edge.as_ref().context("this group has no edge")?;
            edge::run(config, named)
        }
        Role::Witness => witness::run(vec![config.clone()]),
        Role::Member(index) => {
            let member = config.members.get(index).context("no such member")?;
            open_files::take(config)?;
            for finding in check::program::findings(&config.server) {
                tracing::warn!("{}; {}", finding.found, finding.remedy);
            }
            member::run(config, member)
        }
    }
}
