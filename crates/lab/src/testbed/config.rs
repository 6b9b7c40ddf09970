//! The config file of a testbed's group, which is the same on every host.

use super::etcd::EtcdCluster;
use super::host::DISK;
use super::ours::{ColdOptions, GroupOptions};
use super::server::Recipe;
use super::topology::addresses;
use super::{Role, Testbed, interface, power};
use std::fmt::Write as _;
use std::path::Path;

/// How the processes of the server run, as `[server] run` says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerRun {
    /// As one process.
    #[default]
    Auto,
    /// In one log.
    Parallel,
    /// Besides, one thread of all of them at a time.
    OneAtATime,
}

impl ServerRun {
    /// The line of the file; `""`: it is the default.
    #[must_use]
    pub const fn line(self) -> &'static str {
        match self {
            Self::Auto => "",
            Self::Parallel => "run = \"parallel\"",
            Self::OneAtATime => "run = \"one-at-a-time\"",
        }
    }
}

/// Who decides between the members of a pair without an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ArbiterKind {
    /// `holdfast witness`, on the router's host.
    #[default]
    Witness,
    /// An etcd of three members with TLS and users, on the router's host.
    Etcd,
    /// Nobody: silence waits for an operator's word.
    None,
    /// A command that switches the other host off.
    Command,
    /// Whoever reaches its router, which both may.
    Gateway,
}

/// What the config of a testbed's group contains besides the topology.
pub struct GroupConfig<'a> {
    /// The server that both members run.
    pub recipe: &'a Recipe,
    /// File of the group's key, as the hosts see it.
    pub key_file: &'a Path,
    /// Directory for sockets and state, as the hosts see it.
    pub run_dir: &'a Path,
    /// File for the server's own messages, as the hosts see it.
    pub log_file: &'a Path,
    /// Settings beyond the defaults.
    pub options: &'a GroupOptions,
    /// The etcd that decides, if one does.
    pub etcd: Option<&'a EtcdCluster>,
}

/// Where a daemon serves those who look at it.
pub mod ports {
    /// The counters.
    pub const METRICS: u16 = 9464;
    /// The live page.
    pub const PAGE: u16 = 9465;
}

/// Name of the primary in the config file.
pub const PRIMARY_NAME: &str = "a";

/// Name of the backup in the config file.
pub const BACKUP_NAME: &str = "b";

/// Text of the config file of a testbed's group.
pub fn text(testbed: &Testbed, config: &GroupConfig<'_>) -> String {
    let (primary, backup) = if testbed.has_log_link() {
        (addresses::PRIMARY_LOG, addresses::BACKUP_LOG)
    } else {
        (addresses::PRIMARY, addresses::BACKUP)
    };
    let port = config.recipe.port;
    let mut services = format!("\"{}:{port}\"", addresses::SERVICE_V4);
    // A server must listen at every service of its group.
    if config.recipe.has_ipv6 {
        services += &format!(", \"[{}]:{port}\"", addresses::SERVICE_V6);
    }
    let run_dir = config.run_dir.display();
    let settings = setting("heartbeat_ms", config.options.heartbeat_ms)
        + &setting("connections_max", config.options.connections_max.map(u64::from))
        + &setting("alone_after_s", config.options.alone_after_s)
        + &format!("buffering = \"{}\"\n", config.options.buffering.word())
        + if config.options.direct { "direct = true\n" } else { "" }
        + if config.options.coded { "channel = \"coded\"\n" } else { "" }
        + &config
            .options
            .watchers
            .as_ref()
            .map_or_else(String::new, |it| format!("watchers = {it:?}\n"))
        + match (config.options.rebuild, &config.options.cold) {
            (true, _) => "rebuild = true\n",
            (false, Some(_)) => "mode = \"cold\"\n",
            (false, None) => "",
        };
    let mut out = format!(
        "[group]\nname = \"demo\"\nkey_file = \"{}\"\nservices = [{services}]\n\
         run_dir = \"{run_dir}\"\nevents_dir = \"none\"\n{settings}\n{}",
        config.key_file.display(),
        front(testbed, config),
    );
    let members = [
        (
            PRIMARY_NAME,
            primary,
            interface::PRIMARY,
            interface::EDGE_PRIMARY,
            addresses::PRIMARY_MAC,
        ),
        (BACKUP_NAME, backup, interface::BACKUP, interface::EDGE_BACKUP, addresses::BACKUP_MAC),
    ];
    for (name, address, device, port, mac) in members {
        let port = match config.options.segment {
            Some(_) => String::new(),
            None => format!("edge_port = \"{port}\"\nmac = \"{mac}\"\n"),
        };
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "\n[[member]]\nname = \"{name}\"\naddress = \"{address}:7701\"\n\
             interface = \"{device}\"\n{port}"
        );
    }
    let command: Vec<String> =
        config.recipe.command.iter().map(|word| format!("{word:?}")).collect();
    let _ = write!(
        out,
        "\n[server]\ncommand = [{}]\nstate_dirs = {:?}\ndirectory = \"{}\"\nuser = \"{}\"\nlog = \"{}\"\n",
        command.join(", "),
        config.recipe.state_dirs,
        config.recipe.directory.display(),
        config.recipe.user,
        config.log_file.display(),
    );
    if !config.recipe.env.is_empty() {
        let pair = |(name, value): &(String, String)| format!("{name} = {value:?}");
        let pairs: Vec<String> = config.recipe.env.iter().map(pair).collect();
        out += &format!("env = {{ {} }}\n", pairs.join(", "));
    }
    out += &format!("{}\n", config.options.run.line());
    if config.options.watchers.is_some() {
        let [metrics, page] = [ports::METRICS, ports::PAGE];
        out += &format!("[metrics]\nlisten = \":{metrics}\"\n[page]\nlisten = \":{page}\"\n");
    }
    if let Some(cold) = &config.options.cold {
        out += &cold_table(testbed, cold);
    }
    out
}

/// What stands before the members: the edge, or a router that knows nothing of the service and
/// beside it the arbiter.
fn front(testbed: &Testbed, config: &GroupConfig<'_>) -> String {
    let (host, options) = (testbed.host(Role::Edge), config.options);
    let disk = host.inside().join(DISK);
    if let Some(mode) = options.segment {
        let arbiter = match config.etcd {
            Some(etcd) => etcd.lines(host.inside()),
            None if options.arbiter == ArbiterKind::None => "none = true\n".to_owned(),
            None if options.arbiter == ArbiterKind::Gateway => "gateway = \"unsafe\"\n".to_owned(),
            None if options.arbiter == ArbiterKind::Command => {
                format!("command = [{:?}]\n", host.inside().join(power::COMMAND))
            }
            None => format!("witness = \"{}:7702\"\n", addresses::EDGE),
        };
        return format!(
            "[segment]\nmode = \"{}\"\nfirst = \"{PRIMARY_NAME}\"\n\n\
             [arbiter]\n{arbiter}state_dir = \"{}/witness\"\n",
            mode.word(),
            disk.display(),
        );
    }
    format!(
        "[edge]\nlisten = \"{}:7700\"\nclients = [\"{}\"]\nl3 = \"{}\"\n\
         state_file = \"{}/edge.state\"\nfirst = \"{PRIMARY_NAME}\"\n{}",
        addresses::EDGE,
        interface::EDGE_CLIENT,
        interface::EDGE_BRIDGE,
        disk.display(),
        setting("flows_max", options.flows_max.map(u64::from)),
    )
}

/// The table that says where a cold backup keeps what it needs.
fn cold_table(testbed: &Testbed, cold: &ColdOptions) -> String {
    let dir = cold.spool_dir.clone();
    let dir = dir.unwrap_or_else(|| testbed.host(Role::Backup).inside().join("spool"));
    let sync = if cold.is_synced { "always" } else { "none" };
    format!(
        "\n[cold]\nspool_dir = {dir:?}\nspool_sync = \"{sync}\"\n{}{}",
        setting("spool_max_mb", cold.spool_max_mb),
        setting("snapshot_every_mb", cold.snapshot_every_mb),
    )
}

/// A line of the file, if the setting has a value.
fn setting(name: &str, value: Option<u64>) -> String {
    value.map_or_else(String::new, |value| format!("{name} = {value}\n"))
}
