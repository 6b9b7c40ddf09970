//! A client, a pair of edges with strings of routers between them, and a server, as network
//! namespaces for transit groups. Every string is a host of its own that forwards, and that can be
//! made to swallow what it should forward, in both directions or in one, without telling anybody.

mod wires;

pub use wires::{address, interface};

use super::host::{Host, Role};
use super::reaper::Reaper;
use super::{SETUP_LIMIT, Testbed, make_directory, ours};
use crate::command::{self, descendants_running, wait_for};
use crate::emu::{self, EmuSpec};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time between two questions for the status.
const STATUS_INTERVAL: Duration = Duration::from_millis(20);

/// Longest wait for a daemon's answer, in s.
const ANSWER_LIMIT_S: &str = "5";

/// Priority of the rule that makes a string swallow everything.
const CUT_PRIORITY: u32 = 1;

/// The two edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The edge on the clients' side.
    Near,
    /// The edge on the servers' side.
    Far,
}

impl Edge {
    /// Both edges, that of the clients first.
    pub const BOTH: [Edge; 2] = [Edge::Near, Edge::Far];

    /// The edge's role in the config file.
    pub fn name(self) -> &'static str {
        match self {
            Edge::Near => "near",
            Edge::Far => "far",
        }
    }
}

/// What a cut string swallows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All packets.
    Both,
    /// Packets that come from this edge.
    From(Edge),
}

/// How a string is to be built.
#[derive(Clone, Copy, Debug)]
pub struct StringPlan {
    /// Its capacity in the config file, and the rate of a token bucket at its
    /// exits if it is `limited`, bits per second.
    pub bits_per_second: u64,
    /// Whether the string's rate is enforced.
    pub limited: bool,
    /// Most packets that wait at each exit before others are dropped.
    pub queue_packets: u32,
}

impl Default for StringPlan {
    fn default() -> Self {
        Self { bits_per_second: 100_000_000, limited: false, queue_packets: 750 }
    }
}

/// How a testbed with strings is to be built.
#[derive(Clone, Debug)]
pub struct StringsPlan {
    /// The strings, at least one.
    pub strings: Vec<StringPlan>,
    /// What the emulator does between client and near edge.
    pub client_path: Option<EmuSpec>,
    /// Whether client and server hand single segments to their interfaces, as they do where nothing
    /// is offloaded.
    pub single_segments: bool,
    /// Settings of `[group]` beyond names and files, as lines of TOML.
    pub group: String,
    /// Tables after those of the strings, such as `[recover]`, as TOML.
    pub tables: String,
}

impl Default for StringsPlan {
    fn default() -> Self {
        Self {
            strings: vec![StringPlan::default(); 2],
            client_path: None,
            single_segments: false,
            group: String::new(),
            tables: String::new(),
        }
    }
}

/// The running hosts, and the edges' daemons once they are started.
pub struct Strings {
    daemons: Vec<(Edge, Child)>,
    client: Arc<Host>,
    near: Host,
    far: Host,
    server: Arc<Host>,
    strings: Vec<Host>,
    plan: StringsPlan,
    _links: Vec<emu::Link>,
    // The reaper is the last field, so that it runs after the others are gone.
    _reaper: Reaper,
}

/// What has passed the queue at a string's exit.
#[derive(Clone, Copy)]
pub struct Queue {
    pub sent_bytes: u64,
    /// Packets that found no room.
    pub dropped: u64,
    /// Packets that wait.
    pub waiting: u64,
}

impl Strings {
    /// Builds the hosts and the links between them.
    ///
    /// # Errors
    /// When the kernel or a tool refuses a step, in most cases for want of
    /// root; whatever was built until then is removed.
    pub fn build(plan: &StringsPlan) -> Result<Self> {
        Self::assemble(plan, None)
    }

    /// Builds edges and strings between the client of a pair and the pair's edge, in place of the
    /// link between these two.
    ///
    /// # Errors
    /// As [`Strings::build`].
    pub(super) fn in_front_of(pair: &Testbed, plan: &StringsPlan) -> Result<Self> {
        let ends = [Role::Client, Role::Edge].map(|role| pair.shared_host(role));
        Self::assemble(plan, Some(ends))
    }

    /// `pair`: client and edge of the pair behind the strings, if there is one.
    fn assemble(plan: &StringsPlan, pair: Option<[Arc<Host>; 2]>) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("hfs-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (directory, reaper) = make_directory(&id)?;
        // The hosts of a pair have the clocks before.
        let mut number = if pair.is_some() { Role::ALL.len() as u64 } else { 0 };
        let mut host = |name: &str| {
            number += 1;
            Host::start(&id, &directory, name, number)
        };
        let is_pair = pair.is_some();
        let [client, server] = match pair {
            Some(ends) => ends,
            None => [Arc::new(host("client")?), Arc::new(host("server")?)],
        };
        let (near, far) = (host("near")?, host("far")?);
        let strings = (1..=plan.strings.len()).map(|n| host(&format!("string{n}")));
        let strings = strings.collect::<Result<Vec<_>>>()?;
        let connect = if is_pair { wires::connect_pair } else { wires::connect };
        let links = connect([&client, &near, &far, &server], &strings, plan)?;
        Ok(Self {
            daemons: Vec::new(),
            client,
            near,
            far,
            server,
            strings,
            plan: plan.clone(),
            _links: links,
            _reaper: reaper,
        })
    }

    /// The host of the load.
    pub fn client(&self) -> &Host {
        &self.client
    }

    /// The host behind the far edge: the one with the service addresses of [`super::addresses`], or
    /// the edge of the pair that has them.
    pub fn server(&self) -> &Host {
        &self.server
    }

    /// One of the edges.
    pub fn edge(&self, edge: Edge) -> &Host {
        match edge {
            Edge::Near => &self.near,
            Edge::Far => &self.far,
        }
    }

    /// The host that is string `index`, counted from 0.
    pub fn string(&self, index: usize) -> &Host {
        &self.strings[index]
    }

    /// The queue at the exit `device` of a `limited` string.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn queue(&self, index: usize, device: &str) -> Result<Queue> {
        let namespace = self.string(index).namespace();
        let words = ["-n", namespace, "-s", "-j", "qdisc", "show", "dev", device];
        let all: Vec<Value> = serde_json::from_str(&command::output("tc", &words)?)?;
        let queue = all.iter().find(|queue| queue["kind"] == "pfifo");
        let queue = queue.context("no queue at the string")?;
        let number = |name: &str| queue[name].as_u64().with_context(|| format!("{name}: {queue}"));
        let (sent_bytes, dropped, waiting) = (number("bytes")?, number("drops")?, number("qlen")?);
        Ok(Queue { sent_bytes, dropped, waiting })
    }

    /// Makes a string swallow what it should forward from now on.
    ///
    /// # Errors
    /// When `ip` refuses.
    pub fn cut(&self, index: usize, what: Cut) -> Result<()> {
        self.rule(&[index], "add", what)
    }

    /// Ends a [`Strings::cut`] of the same kind.
    ///
    /// # Errors
    /// When the string was not cut.
    pub fn restore(&self, index: usize, what: Cut) -> Result<()> {
        self.rule(&[index], "del", what)
    }

    /// Cuts all strings, as nearly at the same time as possible.
    ///
    /// # Errors
    /// When `ip` refuses.
    pub fn cut_all(&self) -> Result<()> {
        self.rule(&self.all(), "add", Cut::Both)
    }

    /// Ends [`Strings::cut_all`].
    ///
    /// # Errors
    /// When the strings were not cut.
    pub fn restore_all(&self) -> Result<()> {
        self.rule(&self.all(), "del", Cut::Both)
    }

    fn all(&self) -> Vec<usize> {
        (0..self.strings.len()).collect()
    }

    /// Adds or deletes a blackhole rule of policy routing, which is silent, takes forwarded packets
    /// of one family, and leaves the links up.
    fn rule(&self, strings: &[usize], verb: &str, what: Cut) -> Result<()> {
        let from = match what {
            Cut::Both => String::new(),
            Cut::From(Edge::Near) => format!("iif {} ", interface::STRING_NEAR),
            Cut::From(Edge::Far) => format!("iif {} ", interface::STRING_FAR),
        };
        let mut script = "started=\n".to_owned();
        for family in ["-4", "-6"] {
            for index in strings {
                let namespace = self.string(*index).namespace();
                script += &format!(
                    "ip -n {namespace} {family} rule {verb} prio {CUT_PRIORITY} {from}blackhole &\n\
                     started=\"$started $!\"\n"
                );
            }
        }
        command::shell(&(script + "for one in $started; do wait $one; done")).map(drop)
    }

    /// Starts both edges' daemons and waits until they hear each other on every
    /// string.
    ///
    /// # Errors
    /// When a daemon ends or does not come so far; the error carries the tails
    /// of their logs.
    pub fn start_daemons(&mut self) -> Result<()> {
        let key =
            command::output(&crate::holdfast_binary()?.display().to_string(), &["key", "gen"])?;
        for edge in Edge::BOTH {
            let outside = self.edge(edge).outside();
            fs::create_dir_all(outside.join("run"))?;
            fs::write(outside.join("group.key"), &key)?;
            fs::set_permissions(outside.join("group.key"), fs::Permissions::from_mode(0o600))?;
        }
        self.write_config()?;
        for edge in Edge::BOTH {
            self.start_daemon(edge)?;
        }
        self.wait_ready().with_context(|| self.log_tails())
    }

    /// Has both edges go on with other [`StringsPlan::tables`], as an operator would: a changed file,
    /// and `holdfast reload`. Waits until they hear each other on every string again.
    ///
    /// # Errors
    /// When an edge refuses; the error has its words.
    pub fn reload(&mut self, tables: &str) -> Result<()> {
        tables.clone_into(&mut self.plan.tables);
        self.write_config()?;
        for edge in Edge::BOTH {
            self.ask(edge, &["reload"])?;
        }
        self.wait_ready().with_context(|| self.log_tails())
    }

    fn write_config(&self) -> Result<()> {
        let text = self.config_text();
        for edge in Edge::BOTH {
            fs::write(self.edge(edge).outside().join("holdfast.toml"), &text)?;
        }
        Ok(())
    }

    /// Starts one daemon; the config must have been written by
    /// [`Strings::start_daemons`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_daemon(&mut self, edge: Edge) -> Result<()> {
        let host = self.edge(edge);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(host.outside().join("daemon.log"))?;
        let child = host
            .command(crate::holdfast_binary()?)
            .args(["run", "--config", &self.config_path(edge), "--role", edge.name()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start a daemon")?;
        self.daemons.retain(|daemon| daemon.0 != edge);
        self.daemons.push((edge, child));
        Ok(())
    }

    /// Sends `kill -9` to a daemon; its programs stay.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill_daemon(&mut self, edge: Edge) -> Result<()> {
        let pid = self.daemon_pid(edge)?;
        command::output("kill", &["-9", &pid.to_string()])?;
        let daemon = self.daemons.iter_mut().find(|daemon| daemon.0 == edge);
        let child = &mut daemon.context("no daemon on this host")?.1;
        wait_for("the end of a daemon", SETUP_LIMIT, || child.try_wait().ok().flatten()).map(drop)
    }

    /// The pid of a daemon as seen from outside.
    ///
    /// # Errors
    /// When it does not run.
    pub fn daemon_pid(&self, edge: Edge) -> Result<u32> {
        let found = self.daemons.iter().find(|daemon| daemon.0 == edge);
        let child = &found.context("no daemon on this host")?.1;
        let found = descendants_running(child.id(), &crate::holdfast_binary()?);
        found.last().copied().context("the daemon does not run")
    }

    /// Waits until both daemons say that every string is alive.
    ///
    /// # Errors
    /// When a daemon ends, or the time is over.
    pub fn wait_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            for (edge, child) in &mut self.daemons {
                let ended = child.try_wait()?;
                ensure!(ended.is_none(), "the {} daemon ended: {ended:?}", edge.name());
            }
            let shown = Edge::BOTH.map(|edge| self.show(edge).unwrap_or_default());
            if shown.iter().all(all_alive) {
                return Ok(());
            }
            ensure!(start.elapsed() < SETUP_LIMIT, "the strings do not come up: {shown:?}");
            std::thread::sleep(STATUS_INTERVAL);
        }
    }

    /// What `holdfast edge show --json` says on an edge.
    ///
    /// # Errors
    /// When the daemon does not answer or its answer is not JSON.
    pub fn show(&self, edge: Edge) -> Result<Value> {
        let text = self.ask(edge, &["edge", "show", "--json"])?;
        serde_json::from_str(&text).context("the answer is not JSON")
    }

    /// What `holdfast edge trace --json FLOW` says on an edge.
    ///
    /// # Errors
    /// As [`Strings::show`].
    pub fn trace(&self, edge: Edge, flow: &str) -> Result<Value> {
        let text = self.ask(edge, &["edge", "trace", "--json", flow])?;
        serde_json::from_str(&text).context("the answer is not JSON")
    }

    /// One of an edge's counters.
    ///
    /// # Errors
    /// As [`Strings::show`], or when there is no such counter.
    pub fn counter(&self, edge: Edge, name: &str) -> Result<u64> {
        let shown = self.show(edge)?;
        let value = shown["counters"][name].as_u64();
        value.with_context(|| format!("no counter {name}: {}", shown["counters"]))
    }

    /// What `holdfast events --json` says on an edge.
    ///
    /// # Errors
    /// When the daemon does not answer or its answer is not JSON.
    pub fn events(&self, edge: Edge) -> Result<Vec<Value>> {
        let text = self.ask(edge, &["events", "--json"])?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// Output of `holdfast VERB.. --config FILE --role NAME` on an edge.
    pub fn ask(&self, edge: Edge, verb: &[&str]) -> Result<String> {
        let mut command: Command = self.edge(edge).command("timeout");
        command
            .arg(ANSWER_LIMIT_S)
            .arg(crate::holdfast_binary()?)
            .args(verb)
            .args(["--config", &self.config_path(edge), "--role", edge.name()])
            .stdin(Stdio::null());
        let done = command.output()?;
        ensure!(
            done.status.success(),
            "{verb:?} on {}: {}",
            edge.name(),
            String::from_utf8_lossy(&done.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    fn config_path(&self, edge: Edge) -> String {
        self.edge(edge).inside().join("holdfast.toml").display().to_string()
    }

    /// Text of the group's file, the same on both edges.
    fn config_text(&self) -> String {
        let inside = self.near.inside();
        let path = |file: &str| -> PathBuf { inside.join(file) };
        let mut out = format!(
            "[group]\nname = \"transit\"\nkind = \"transit\"\nkey_file = \"{}\"\n\
             run_dir = \"{}\"\nevents_dir = \"none\"\n{}\n[near]\noutside = [\"{}\"]\n\n[far]\noutside = [\"{}\"]\n",
            path("group.key").display(),
            path("run").display(),
            self.plan.group,
            interface::NEAR_OUTSIDE,
            interface::FAR_OUTSIDE,
        );
        for (index, string) in self.plan.strings.iter().enumerate() {
            let n = index + 1;
            // Writing to a string cannot fail.
            let _ = write!(
                out,
                "\n[[string]]\nname = \"s{n}\"\ncapacity = \"{}bit\"\nnear = {}\nfar = {}\n",
                string.bits_per_second,
                end(Edge::Near, n),
                end(Edge::Far, n),
            );
        }
        out + "\n" + &self.plan.tables
    }

    /// The last lines of every daemon's log.
    pub fn log_tails(&self) -> String {
        let tail = |edge: &Edge| {
            let path = self.edge(*edge).outside().join("daemon.log");
            format!("--- {}\n{}\n", edge.name(), ours::tail(&path))
        };
        Edge::BOTH.iter().map(tail).collect()
    }
}

impl Drop for Strings {
    fn drop(&mut self) {
        for (_, child) in &mut self.daemons {
            // This kills nsenter; the daemon itself ends with its host.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A string's end at an edge, as an inline table of TOML.
fn end(edge: Edge, n: usize) -> String {
    let net = wires::network(edge, n);
    format!(
        "{{ interface = \"{}\", next_hop = [\"{}\", \"{}\"], address = \"{}:{}\" }}",
        net.edge_interface,
        net.v4(wires::STRING_END),
        net.v6(wires::STRING_END),
        net.v4(wires::EDGE_END),
        wires::HEARTBEAT_PORT,
    )
}

/// Whether an edge's answer says that it hears and is heard on every string.
fn all_alive(shown: &Value) -> bool {
    let members = shown["members"].as_array().map_or(&[][..], Vec::as_slice);
    !members.is_empty() && members.iter().all(|member| member["state"] == "alive")
}
