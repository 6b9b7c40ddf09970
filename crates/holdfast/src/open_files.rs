//! Descriptors: at a takeover a member's daemon holds one for every connection,
//! and services are usually started with room for a thousand.

use crate::config::Config;
use anyhow::{Context as _, bail};
use holdfast_linux::limits::{self, OpenFiles};
use holdfast_wire::shm::{CONNS_MAX, mode};

/// Descriptors that a member's daemon needs besides those of connections.
const RESERVE: u64 = 256;

/// How many descriptors a member's daemon must be able to have: enough for as
/// many connections as its server can have open at once.
#[must_use]
pub fn needed(config: &Config) -> u64 {
    u64::from(config.group.connections_max).min(CONNS_MAX as u64) + RESERVE
}

/// The remedy if that is not allowed.
#[must_use]
pub fn remedy(config: &Config) -> String {
    format!(
        "start it with LimitNOFILE={0} (systemd) or after `ulimit -n {0}`, or lower connections_max",
        needed(config)
    )
}

/// Raises the limit to what a member needs, or refuses to start: a daemon that
/// could not carry all connections over would reset them at the takeover.
///
/// # Errors
/// If the limit is too low and cannot be raised.
pub fn take(config: &Config) -> anyhow::Result<()> {
    let need = needed(config);
    let has = limits::raise_open_files(need).context("the limit of open files")?;
    if has < need {
        let remedy = remedy(config);
        bail!("{has} open files are allowed, connections_max needs {need}; {remedy}");
    }
    // A takeover is slower without it.
    if let Err(error) = limits::reserve_descriptors(need) {
        tracing::warn!("no room for {need} descriptors yet: {error}");
    }
    Ok(())
}

/// The server's limit. The operator chose it; only a replica must not fail
/// where its primary did not, and learns its limit from the log anyway.
///
/// # Errors
/// As getrlimit(2).
pub fn of_server(as_mode: u32) -> anyhow::Result<Option<OpenFiles>> {
    let speaks = matches!(as_mode, mode::RECORD | mode::SOLO);
    Ok(if speaks { Some(limits::given_open_files()?) } else { None })
}
