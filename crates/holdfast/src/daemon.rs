//! `holdfast run`: one daemon per host, with its role from the file.

mod advice;
pub mod backup;
mod child;
mod clients;
mod clock;
pub(crate) mod coded;
pub mod dialer;
mod direct;
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
pub(crate) mod placement;
pub mod primary;
mod processors;
mod proven;
mod pulse;
mod record;
pub mod recover;
pub mod regulate;
mod reload;
pub(crate) mod rights;
pub mod said;
mod sealed;
mod segment;
pub(crate) mod service_manager;
pub mod services;
mod speak;
mod spread;
mod standstill;
mod survivor;
mod trace;
pub mod transit;
mod viewer;
pub mod witness;

pub(crate) use lease::{LEASE_MIN, address as lease_address};
pub(crate) use pulse::PRIORITY;
pub(crate) use viewer::trouble_of as watchers_missing;

use crate::check;
use crate::config::{Config, GroupFile, Role};
use crate::mounts;
use crate::open_files;
use crate::poll::Signals;
use crate::status::State;
use anyhow::{Context, anyhow};
use holdfast_linux::limits;
use holdfast_member::shown::{Protection, Shown};
use reload::{Ended, Life, run_each};
use viewer::Viewer;

/// Runs the daemon with this role until a signal ends it.
///
/// # Errors
/// Whatever keeps it from starting or ends it, with a remedy where there is one.
pub fn run(file: &GroupFile, role: &str) -> anyhow::Result<()> {
    let named = || format!("`{role}` of group `{}`", file.name());
    placement::remember();
    // A daemon out of descriptors cannot even answer questions.
    limits::raise_open_files(0).context("the limit of open files")?;
    if let Some(why) = mounts::why_lost(std::process::id()) {
        tracing::warn!("{why}; {}", mounts::REMEDY);
    }
    if let GroupFile::Replicated(config) = file {
        match config.role(role).map_err(|error| anyhow!(error))? {
            Role::Member(index) => return run_member(config, index).with_context(named),
            Role::Witness => {
                return witness::run(vec![config.as_ref().clone()]).with_context(named);
            }
            Role::Edge => {}
        }
    }
    rights::keep_for_packets(&file.common()).with_context(named)?;
    run_each(file, role, run_life).with_context(named)
}

/// Runs a daemon whose data path needs no process, until a signal ends it or its file has changed.
fn run_life(life: &mut Life<'_>) -> anyhow::Result<Ended> {
    let _viewer = Viewer::start(&[(life.file.common(), life.role)]);
    match life.file {
        GroupFile::Replicated(config) => {
            let named = config.edge.as_ref().context("this group has no edge")?;
            edge::run(config, named, life)
        }
        GroupFile::Spread(config) => spread::run(config, life),
        GroupFile::Transit(config) => {
            let side = config.side(life.role).context("no such role")?;
            transit::run(config, side, life)
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

/// What a signal asks of a daemon.
enum Asked {
    /// To end; the signal's number.
    End(i32),
    /// To read its file again (SIGHUP), which never ends it.
    Reload,
}

/// What the signals that have come ask for, if the event loop has said that some have (`is_ready`);
/// to end counts more.
fn asked(signals: &Signals, is_ready: bool) -> Option<Asked> {
    let mut asked = None;
    while is_ready && let Some(signal) = signals.take() {
        if signal != libc::SIGHUP {
            service_manager::stopping();
            return Some(Asked::End(signal));
        }
        asked = Some(Asked::Reload);
    }
    asked
}

fn run_member(config: &Config, index: usize) -> anyhow::Result<()> {
    let member = config.members.get(index).context("no such member")?;
    open_files::take(config)?;
    for finding in check::program::findings(&config.server) {
        tracing::warn!("{}; {}", finding.found, finding.remedy);
    }
    member::run(config, member)
}
