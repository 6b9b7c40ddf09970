//! The group on the testbed: its file, its daemons, and what they answer, run as a user would run
//! them.

use super::wires::{self, GATEWAY_V4, GATEWAY_V6, Segment, interface};
use super::{Edges, Node, Part, Running, Way, routing};
use crate::command;
use crate::testbed::{SETUP_LIMIT, addresses};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest wait for a daemon's answer, in s.
pub(super) const ANSWER_LIMIT_S: &str = "5";
/// Exit code of `edge healthy` at an edge that is not.
const NOT_READY: i32 = 1;
const CONFIG: &str = "spread.toml";

/// Settings of the group beyond the defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct EdgesOptions {
    /// Time between two heartbeats, in ms; `None`: the default.
    pub heartbeat_ms: Option<u64>,
}

impl Edges {
    /// Starts both edges and these host servers, waits until each edge hears them, and starts what
    /// leads clients' packets to the edges.
    ///
    /// # Errors
    /// When a daemon ends or does not answer in time.
    pub fn start(&mut self, hosts: &[Node], options: EdgesOptions) -> Result<()> {
        let binary = crate::holdfast_binary()?.display().to_string();
        let key = command::output(&binary, &["key", "gen"])?;
        let text = self.text(options)?;
        for node in Node::EDGES.into_iter().chain(Node::HOSTS) {
            let outside = self.host(node).outside();
            fs::create_dir_all(outside.join("run"))?;
            fs::write(outside.join(CONFIG), &text)?;
            fs::write(outside.join("group.key"), &key)?;
            fs::set_permissions(outside.join("group.key"), fs::Permissions::from_mode(0o600))?;
        }
        let config = self.config(Node::E1);
        self.healthy = Some(format!("{binary} edge healthy --config {}", config.display()));
        for node in Node::EDGES.iter().chain(hosts) {
            self.launch(*node)?;
        }
        self.wait_hosts(hosts.len())?;
        self.start_routing()
    }

    fn config(&self, node: Node) -> PathBuf {
        self.host(node).inside().join(CONFIG)
    }

    /// Starts the daemon of a host.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn launch(&mut self, node: Node) -> Result<()> {
        let host = self.host(node);
        let log = host.outside().join("daemon.log");
        let log = fs::File::options().create(true).append(true).open(log)?;
        let mut command = host.command(crate::holdfast_binary()?);
        command.arg("run").arg("--config").arg(self.config(node)).args(["--role", node.name()]);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().context("cannot start a daemon")?;
        self.running.push(Running { node, part: Part::Daemon, child });
        Ok(())
    }

    /// `holdfast VERB.. --config FILE --role NAME` on a host.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn cli(&self, node: Node, words: &[&str]) -> Result<Output> {
        Ok(self.verb(node, ANSWER_LIMIT_S, words)?.output()?)
    }

    pub(super) fn verb(&self, node: Node, limit_s: &str, words: &[&str]) -> Result<Command> {
        let mut command = self.host(node).command("timeout");
        command.arg(limit_s).arg(crate::holdfast_binary()?).args(words);
        command.arg("--config").arg(self.config(node)).args(["--role", node.name()]);
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// `holdfast edge show --json` at an edge.
    ///
    /// # Errors
    /// When its daemon does not answer.
    pub fn show(&self, edge: Node) -> Result<Value> {
        let done = self.cli(edge, &["edge", "show", "--json"])?;
        serde_json::from_slice(&done.stdout)
            .with_context(|| String::from_utf8_lossy(&done.stderr).into_owned())
    }

    /// Whether `holdfast edge healthy` says at an edge that it should get clients' packets.
    ///
    /// # Errors
    /// When the verb cannot be run, or ends with a code that says neither.
    pub fn is_healthy(&self, edge: Node) -> Result<bool> {
        let done = self.cli(edge, &["edge", "healthy"])?;
        let said = String::from_utf8_lossy(&done.stderr);
        let code = done.status.code();
        ensure!(matches!(code, Some(0 | NOT_READY)), "edge healthy: {}: {said}", done.status);
        Ok(code == Some(0))
    }

    /// Waits until `ready` has a value.
    ///
    /// # Errors
    /// When a process has ended, or the time is over; the error carries the ends of the logs.
    pub fn wait<T>(&mut self, what: &str, ready: impl Fn(&Self) -> Option<T>) -> Result<T> {
        let until = Instant::now() + SETUP_LIMIT;
        loop {
            let ended = self.running.iter_mut().find_map(|it| {
                let status = it.child.try_wait().ok().flatten()?;
                Some((it.node, status))
            });
            if let Some((node, status)) = ended {
                anyhow::bail!(
                    "{what}: a process of {} ended: {status}\n{}",
                    node.name(),
                    self.logs()
                );
            }
            if let Some(value) = ready(self) {
                return Ok(value);
            }
            ensure!(
                Instant::now() < until,
                "{what}: not in time; {}\n{}",
                self.told(),
                self.logs()
            );
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// What the living edges say, and who carries, for errors.
    fn told(&self) -> String {
        let carriers: Vec<_> = self.carriers().into_iter().map(Node::name).collect();
        let shows = self
            .living()
            .into_iter()
            .map(|edge| format!("{}: {}", edge.name(), self.show(edge).unwrap_or_default()));
        format!("carried by {carriers:?}; {}", shows.collect::<Vec<_>>().join("; "))
    }

    fn living(&self) -> Vec<Node> {
        Node::EDGES.into_iter().filter(|edge| !self.gone.contains(edge)).collect()
    }

    /// Waits until every living edge hears exactly `count` host servers.
    ///
    /// # Errors
    /// As [`Edges::wait`].
    pub fn wait_hosts(&mut self, count: usize) -> Result<()> {
        self.wait(&format!("{count} host servers"), |bed| {
            let hears = |edge: Node| {
                let show = bed.show(edge).unwrap_or_default();
                show["members"].as_array().is_some_and(|members| members.len() == count)
            };
            bed.living().into_iter().all(hears).then_some(())
        })
    }

    /// Waits until every living edge gives new flows of a service to exactly these host servers.
    ///
    /// # Errors
    /// As [`Edges::wait`].
    pub fn wait_members(&mut self, service: &str, members: &[&str]) -> Result<()> {
        self.wait(&format!("{service} at {members:?}"), |bed| {
            let serves = |edge: Node| {
                let show = bed.show(edge).unwrap_or_default();
                let services = show["services"].as_array().map_or(&[][..], Vec::as_slice);
                services.iter().any(|row| {
                    row["address"] == service && row["members"] == serde_json::json!(members)
                })
            };
            bed.living().into_iter().all(serves).then_some(())
        })
    }

    /// Text of the group's file, the same on all hosts.
    fn text(&self, options: EdgesOptions) -> Result<String> {
        let run_dir = self.host(Node::E1).inside().join("run");
        let heartbeat =
            options.heartbeat_ms.map_or(String::new(), |ms| format!("heartbeat_ms = {ms}\n"));
        let mut text = format!(
            "[group]\nkind = \"spread\"\nname = \"lab\"\nkey_file = \"group.key\"\n\
             addresses = [\"{}\", \"{}\"]\nrun_dir = \"{}\"\nevents_dir = \"none\"\n{heartbeat}",
            addresses::SERVICE_V4,
            addresses::SERVICE_V6,
            run_dir.display(),
        );
        for edge in Node::EDGES {
            let at = wires::address(edge, Segment::Service).context("an edge has an address")?;
            text += &format!(
                "\n[[edge]]\nname = \"{}\"\nlisten = \"{at}:7700\"\nclients = [\"{}\"]\n",
                edge.name(),
                interface::EDGE_OUTSIDE,
            );
        }
        text += &match self.way {
            Way::Mac => format!("\n[clients]\ngateway = [\"{GATEWAY_V4}\", \"{GATEWAY_V6}\"]\n"),
            Way::Bgp => format!("\n[clients]\nroutes_table = {}\n", routing::TABLE),
            Way::Keepalived => String::new(),
        };
        for host in Node::HOSTS {
            let at = wires::address(host, Segment::Service).context("a host has an address")?;
            let at6 = wires::address_v6(host, Segment::Service).context("a host has an address")?;
            text += &format!(
                "\n[[host]]\nname = \"{}\"\ntunnel = \"{at}\"\ntunnel6 = \"{at6}\"\ninterface = \"{}\"\n",
                host.name(),
                interface::HOST,
            );
        }
        Ok(text)
    }
}
