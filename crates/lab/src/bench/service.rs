//! A running service, with or without Holdfast, on a testbed of its own: one of the sides of every
//! comparison.

use crate::command::cpu_seconds;
use crate::load::Workload;
use crate::testbed::haproxy::{self, Front};
use crate::testbed::ours::{Group, GroupOptions};
use crate::testbed::server::{PlainServer, Program, Recipe};
use crate::testbed::{Host, Plan, Role, Testbed, addresses};
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::net::IpAddr;

/// Which side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Plain kernel forwarding, nothing of ours attached.
    Clean,
    /// HAProxy on the edge's host, at the service addresses, in front of the same server on the
    /// primary's and, for when that fails, on the backup's. It asks each every 2 s, as by default.
    Haproxy,
    /// As quick as it can be: it asks every 20 ms, about as often as our members' hearts beat, and
    /// both servers serve at once, so that whom one refuses is sent to the other without a wait.
    HaproxyEager,
    /// Holdfast with its default config.
    Ours,
}

/// The variants that a bench was asked for, in the order in which they alternate.
pub fn variants(only: Option<Variant>, with_haproxy: bool) -> Vec<Variant> {
    match (only, with_haproxy) {
        (Some(variant), _) => vec![variant],
        (None, false) => vec![Variant::Clean, Variant::Ours],
        (None, true) => vec![Variant::Clean, Variant::Haproxy, Variant::Ours],
    }
}

/// CPU time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuSeconds {
    /// CPU time of server and daemon on the primary, in seconds.
    pub primary: f64,
    /// CPU time of replica and daemon on the backup, in seconds.
    pub backup: f64,
    /// CPU time of the proxy or the daemon on the edge, in seconds.
    pub edge: f64,
}

impl std::ops::Sub for CpuSeconds {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            primary: self.primary - before.primary,
            backup: self.backup - before.backup,
            edge: self.edge - before.edge,
        }
    }
}

/// A testbed with a service on it, which lives as long as `with_service` runs.
pub struct Service<'a> {
    /// The testbed with its hosts.
    pub testbed: &'a Testbed,
    /// The daemons, in the variant `ours`.
    pub group: Option<Group<'a>>,
    /// Servers without Holdfast: the primary's first.
    plain: Vec<PlainServer>,
    proxy: Option<PlainServer>,
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
            let plain = vec![recipe.start_plain(primary)?];
            Service { testbed: &testbed, group: None, plain, proxy: None }
        }
        Variant::Haproxy | Variant::HaproxyEager => {
            let recipe = install(primary, &[backup])?;
            behind_haproxy(&testbed, &recipe, variant == Variant::HaproxyEager)?
        }
        Variant::Ours => {
            let recipe = install(primary, &[backup])?;
            let group = Group::start(&testbed, &recipe, options)?;
            Service { testbed: &testbed, group: Some(group), plain: Vec::new(), proxy: None }
        }
    };
    work(&mut service)
}

/// Starts the server on both members' hosts, and HAProxy in front of them. Who is down loses his
/// sessions, so that clients need not wait for him. If it is not eager the backup's serves when the
/// primary's is down, as of our pair, and a refused connection counts as down at once: else HAProxy
/// would ask a dead one three times more. Eager, it would be slower with that: one that is left alone
/// is asked again after a second (HAProxy's Configuration Manual, "retries", "option redispatch",
/// "observe", "on-marked-down").
fn behind_haproxy<'a>(
    testbed: &'a Testbed,
    recipe: &Recipe,
    is_eager: bool,
) -> Result<Service<'a>> {
    let port = recipe.port;
    let members = [
        (Role::Primary, [addresses::PRIMARY, addresses::PRIMARY_V6]),
        (Role::Backup, [addresses::BACKUP, addresses::BACKUP_V6]),
    ];
    let mut plain = Vec::new();
    for (role, own) in members {
        let host = testbed.host(role);
        plain.push(recipe.bound_to(host, own)?.start_plain(host)?);
    }
    let (watched, stands_in) = if is_eager {
        ("check inter 20ms fall 3 on-marked-down shutdown-sessions", "")
    } else {
        (
            "check inter 2s fall 3 on-marked-down shutdown-sessions observe layer4 error-limit 1 \
             on-error mark-down",
            " backup",
        )
    };
    let front = |service: String, [primary, backup]: [String; 2]| Front {
        bind: format!("{service}:{port}"),
        servers: vec![
            format!("primary {primary}:{port} {watched}"),
            format!("backup {backup}:{port} {watched}{stands_in}"),
        ],
    };
    let [v4, v6] = [0, 1].map(|family| members.map(|(_, own)| own[family].to_owned()));
    let bracketed = |address: &str| format!("[{address}]");
    let fronts = [
        front(addresses::SERVICE_V4.to_owned(), v4),
        front(bracketed(addresses::SERVICE_V6), v6.map(|address| bracketed(&address))),
    ];
    testbed.own_service_addresses(Role::Edge)?;
    let proxy = haproxy::start(testbed.host(Role::Edge), port, &fronts)?;
    Ok(Service { testbed, group: None, plain, proxy: Some(proxy) })
}

impl<'a> Service<'a> {
    /// The protected group.
    ///
    /// # Errors
    /// In the other variants than `ours`.
    pub fn group(&mut self) -> Result<&mut Group<'a>> {
        self.group.as_mut().context("nothing protects this service")
    }

    /// See [`Group::ensure_protected`]; does nothing in the other variants than `ours`.
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
        match (self.plain.first(), &self.group) {
            (Some(plain), _) => Ok(plain.pid()),
            (None, Some(group)) => group.server_pid(Role::Primary),
            (None, None) => anyhow::bail!("no server runs"),
        }
    }

    /// CPU time used so far.
    pub fn cpu(&self) -> CpuSeconds {
        let plain = |at: usize| self.plain.get(at).map_or(0.0, |it| cpu_seconds(it.pid()));
        let Some(group) = &self.group else {
            let edge = self.proxy.as_ref().map_or(0.0, |proxy| cpu_seconds(proxy.pid()));
            return CpuSeconds { primary: plain(0), backup: plain(1), edge };
        };
        let daemon = |role| group.daemon_pid(role).map_or(0.0, cpu_seconds);
        let both = |role| daemon(role) + group.server_pid(role).map_or(0.0, cpu_seconds);
        let edge = daemon(Role::Edge);
        CpuSeconds { primary: both(Role::Primary), backup: both(Role::Backup), edge }
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
