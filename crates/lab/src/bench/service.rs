//! A running service, with or without Holdfast, on a testbed of its own: one of the two sides of
//! every comparison.

use crate::command::cpu_seconds;
use crate::load::Workload;
use crate::testbed::ours::{Group, GroupOptions};
use crate::testbed::server::{PlainServer, Program, Recipe};
use crate::testbed::{Host, Plan, Role, Testbed, addresses};
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::net::IpAddr;

/// Which side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// Plain kernel forwarding, nothing of ours attached.
    Clean,
    /// Holdfast with its default config.
    Ours,
}

/// The variants that a bench was asked for, in the order in which they alternate.
pub fn variants(only: Option<Variant>) -> Vec<Variant> {
    only.map_or_else(|| vec![Variant::Clean, Variant::Ours], |variant| vec![variant])
}

/// CPU time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuSeconds {
    /// CPU time of server and daemon on the primary, in seconds.
    pub primary: f64,
    /// CPU time of replica and daemon on the backup, in seconds.
    pub backup: f64,
}

/// A testbed with a service on it, which lives as long as `with_service` runs.
pub struct Service<'a> {
    /// The testbed with its hosts.
    pub testbed: &'a Testbed,
    /// The daemons, in the variant `ours`.
    pub group: Option<Group<'a>>,
    plain: Option<PlainServer>,
}

/// Builds a testbed with a service, hands it to `work`, and removes it.
///
/// # Errors
/// Those of the building and those of `work`.
pub fn with_service<T>(
    variant: Variant,
    program: Program,
    plan: &Plan,
    options: &GroupOptions,
    documents: u64,
    work: impl FnOnce(&mut Service<'_>) -> Result<T>,
) -> Result<T> {
    let install = |first: &Host, others: &[&Host]| {
        others.iter().try_for_each(|host| Recipe::prepare(program, host, documents).map(drop))?;
        Recipe::prepare(program, first, documents)
    };
    with_recipe(variant, plan, options, install, work)
}

/// Like [`with_service`]; `install` prepares the server on the first of these hosts, and the same
/// on the others.
///
/// # Errors
/// Those of the building, those of `install` and those of `work`.
pub fn with_recipe<T>(
    variant: Variant,
    plan: &Plan,
    options: &GroupOptions,
    install: impl FnOnce(&Host, &[&Host]) -> Result<Recipe>,
    work: impl FnOnce(&mut Service<'_>) -> Result<T>,
) -> Result<T> {
    let testbed = Testbed::build(plan)?;
    let [primary, backup] = [Role::Primary, Role::Backup].map(|role| testbed.host(role));
    let mut service = match variant {
        Variant::Clean => {
            let recipe = install(primary, &[])?;
            testbed.own_service_addresses(Role::Primary)?;
            let plain = recipe.start_plain(primary)?;
            Service { testbed: &testbed, group: None, plain: Some(plain) }
        }
        Variant::Ours => {
            let recipe = install(primary, &[backup])?;
            let group = Group::start(&testbed, &recipe, options)?;
            Service { testbed: &testbed, group: Some(group), plain: None }
        }
    };
    work(&mut service)
}

impl<'a> Service<'a> {
    /// The protected group.
    ///
    /// # Errors
    /// In the variant `clean`.
    pub fn group(&mut self) -> Result<&mut Group<'a>> {
        self.group.as_mut().context("nothing protects this service")
    }

    /// See [`Group::ensure_protected`]; does nothing in the variant `clean`.
    ///
    /// # Errors
    /// When the pair is not protected any more.
    pub fn ensure_protected(&self) -> Result<()> {
        self.group.as_ref().map_or(Ok(()), Group::ensure_protected)
    }

    /// The pid of the primary's server as seen from outside.
    ///
    /// # Errors
    /// When it does not run.
    pub fn server_pid(&self) -> Result<u32> {
        match (&self.plain, &self.group) {
            (Some(plain), _) => Ok(plain.pid()),
            (None, Some(group)) => group.server_pid(Role::Primary),
            (None, None) => anyhow::bail!("no server runs"),
        }
    }

    /// CPU time used so far.
    pub fn cpu(&self) -> CpuSeconds {
        if let Some(plain) = &self.plain {
            return CpuSeconds { primary: cpu_seconds(plain.pid()), backup: 0.0 };
        }
        let of = |role| {
            let Some(group) = &self.group else { return 0.0 };
            let pids = [group.server_pid(role), group.daemon_pid(role)];
            pids.into_iter().flatten().map(cpu_seconds).sum()
        };
        CpuSeconds { primary: of(Role::Primary), backup: of(Role::Backup) }
    }
}

/// The server that serves a workload; `wanted` is taken if it is one of several that can.
pub fn program_for(workload: Workload, wanted: Option<Program>) -> Program {
    match workload {
        Workload::HttpClose | Workload::HttpDownload | Workload::HttpKeepalive => {
            wanted.unwrap_or(Program::Nginx)
        }
        Workload::Memcached | Workload::MemcachedShared => wanted.unwrap_or(Program::Memcached4),
        Workload::Mqtt => Program::Mosquitto,
        _ => Program::Redis,
    }
}

/// The address that clients use.
pub fn address(ipv6: bool) -> Result<IpAddr> {
    let text = if ipv6 { addresses::SERVICE_V6 } else { addresses::SERVICE_V4 };
    text.parse().context("the service address is an address")
}
