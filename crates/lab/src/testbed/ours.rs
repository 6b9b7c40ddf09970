//! A protected group on a testbed: the three daemons, run as a user would run
//! them, and what the lab must know about their processes.

mod fence;
pub mod switch;
mod told;

use super::config::{self, ArbiterKind, BACKUP_NAME, GroupConfig, PRIMARY_NAME, ServerRun};
use super::etcd::EtcdCluster;
use super::power::PowerSwitch;
use super::server::{Recipe, listens};
use super::topology::addresses;
use super::{Role, SETUP_LIMIT, Testbed};
use crate::command::{descendants_running, wait_for, waiting_places};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use holdfast_wire::buffering::Buffering;
use holdfast_wire::segment::Mode;
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use told::{is_protected, load, unprotected_yet};

pub use rustix::process::Signal;

/// Longest time until a group is protected: on a busy machine servers and programs start slowly.
const PROTECTED_MAX: Duration = Duration::from_secs(120);
/// Longest wait for clients that have yet to take what they were sent before a join: some of a
/// test's clients never do.
const AT_RISK_MAX: Duration = Duration::from_secs(5);

/// Longest time for a daemon to end after it was told to: what it gives its backup, its edge and
/// its server at most, and what the kernel of a busy machine needs besides.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait for a daemon's answer, in s.
const ANSWER_LIMIT_S: &str = "5";

/// Longest time for a verb that changes something, in s: a switchover waits for what clients have
/// not acknowledged before the members are a pair again.
const VERB_LIMIT_S: &str = "60";

/// Number of times that `nsenter` is told to go on: it may stop a moment after its child has gone
/// on.
const STARTER_LOOKS: u32 = 5;

/// Time between two questions for the status.
const STATUS_INTERVAL: Duration = Duration::from_millis(20);

/// Number of lines of a daemon's log that an error shows.
const LOG_TAIL_LINES: usize = 30;

/// Names of the states in which a member has left its pair for good.
const OVER: [&str; 4] = ["fenced", "diverged", "hung", "ended"];

/// Environment variable with which every pair has no edge, so that a test of pairs with one can be
/// run without: `chain`, `clone`, or anything else for `flood`.
const NO_EDGE: &str = "HOLDFAST_LAB_NO_EDGE";

/// Longest heartbeat of a pair without an edge, in ms.
const LEASED_MS_MAX: u64 = 100;

/// Settings of a group beyond the defaults, all for tests.
#[derive(Clone, Debug, Default)]
pub struct GroupOptions {
    /// What output waits for.
    pub buffering: Buffering,
    /// Whether the server's threads send their log to the backup themselves.
    pub direct: bool,
    /// Whether the members' channel goes over a coded tunnel.
    pub coded: bool,
    /// Time between two heartbeats, in ms; `None`: the default.
    pub heartbeat_ms: Option<u64>,
    /// Most connections that are protected at once; `None`: the default.
    pub connections_max: Option<u32>,
    /// Most connections that the edge follows at once; `None`: the default.
    pub flows_max: Option<u32>,
    /// Limit of open files with which the daemons are started (`ulimit -Sn`); `None`: that of the
    /// lab.
    pub open_files_soft: Option<u64>,
    /// Time for which a member waits for its backup, in s; `None`: the default.
    pub alone_after_s: Option<u64>,
    /// Options of a cold backup; `None`: the backup is hot.
    pub cold: Option<ColdOptions>,
    /// Whether a server without a backup is rebuilt if it falls. Then `cold` says where its image
    /// and log are kept, and the backup is hot.
    pub rebuild: bool,
    /// How the processes of the server run.
    pub run: ServerRun,
    /// How clients' frames reach both members of a pair without an edge: the edge's host is a plain
    /// router then, and the arbiter's. `None`: the pair has an edge.
    pub segment: Option<Mode>,
    /// Who decides between the members of a pair without an edge.
    pub arbiter: ArbiterKind,
    /// Group of users that may look at the daemons; then each serves its counters and its page, too.
    pub watchers: Option<String>,
    /// Environment variables of the edge's daemon.
    pub edge_env: Vec<(String, String)>,
    /// Environment variables of every daemon.
    pub env: Vec<(String, String)>,
}

/// Where and how image and log are kept.
#[derive(Clone, Debug, Default)]
pub struct ColdOptions {
    /// Folder as the hosts see it; `None`: beside the other files of the testbed.
    pub spool_dir: Option<PathBuf>,
    /// Most data that is kept, in MB; `None`: the default.
    pub spool_max_mb: Option<u64>,
    /// Log after which a new image is taken, in MB; `None`: the default.
    pub snapshot_every_mb: Option<u64>,
    /// Whether everything that is kept is synced.
    pub is_synced: bool,
}

/// The daemons of edge and members, and their server.
pub struct Group<'a> {
    testbed: &'a Testbed,
    recipe: Recipe,
    config: PathBuf,
    options: GroupOptions,
    daemons: Vec<(Role, Child)>,
    etcd: Option<EtcdCluster>,
    power: Option<PowerSwitch>,
}

/// The two members.
pub const MEMBERS: [Role; 2] = [Role::Primary, Role::Backup];

impl<'a> Group<'a> {
    /// Starts the edge and both members, and waits until the group protects and
    /// its server listens.
    ///
    /// # Errors
    /// When a daemon ends or the group does not protect in time; the error
    /// carries the tails of the daemons' logs.
    pub fn start(testbed: &'a Testbed, recipe: &Recipe, options: &GroupOptions) -> Result<Self> {
        let mut group = Self::launch(testbed, recipe, options)?;
        let (port, primary) = (recipe.port, testbed.host(Role::Primary).holder());
        let serves = group.wait_protected().and_then(|()| {
            wait_for("a listening server", SETUP_LIMIT, || listens(primary, port).then_some(()))
        });
        serves.map_err(|error| anyhow!("{error:#}\n{}", group.log_tails()))?;
        Ok(group)
    }

    /// Starts the edge and both members, and does not wait for the result.
    ///
    /// # Errors
    /// When a daemon cannot be started.
    pub fn launch(testbed: &'a Testbed, recipe: &Recipe, options: &GroupOptions) -> Result<Self> {
        let mut group = Self::prepare(testbed, recipe, options)?;
        let third = group.has_third().then_some(Role::Edge);
        for role in third.into_iter().chain(MEMBERS) {
            group.start_daemon(role)?;
        }
        Ok(group)
    }

    /// Writes what the daemons need, without starting one.
    ///
    /// # Errors
    /// When the hosts' folders cannot be written.
    pub fn prepare(testbed: &'a Testbed, recipe: &Recipe, options: &GroupOptions) -> Result<Self> {
        let segment = options.segment.or_else(without_edge);
        let mut options = GroupOptions { segment, ..options.clone() };
        if let Some(mode) = segment {
            switch::flood(testbed, mode == Mode::Flood)?;
            options.heartbeat_ms = options.heartbeat_ms.map(|ms| ms.min(LEASED_MS_MAX));
        }
        let options = &options;
        let key = crate::command::output(
            &crate::holdfast_binary()?.display().to_string(),
            &["key", "gen"],
        )?;
        let inside = testbed.host(Role::Primary).inside();
        let [config, key_file, run_dir, log_file] =
            ["holdfast.toml", "group.key", "run", "server.log"].map(|file| inside.join(file));
        let router = testbed.host(Role::Edge);
        let etcd = (segment.is_some() && options.arbiter == ArbiterKind::Etcd)
            .then(|| EtcdCluster::start(router, addresses::EDGE))
            .transpose()?;
        let power = (segment.is_some() && options.arbiter == ArbiterKind::Command)
            .then(|| PowerSwitch::start(testbed))
            .transpose()?;
        let group = GroupConfig {
            recipe,
            key_file: &key_file,
            run_dir: &run_dir,
            log_file: &log_file,
            options,
            etcd: etcd.as_ref(),
        };
        let text = config::text(testbed, &group);
        for role in [Role::Edge, Role::Primary, Role::Backup] {
            let outside = testbed.host(role).outside();
            fs::create_dir_all(outside.join("run"))?;
            fs::write(outside.join("holdfast.toml"), &text)?;
            if let Some(etcd) = &etcd {
                etcd.give(outside)?;
            }
            fs::write(outside.join("group.key"), &key)?;
            fs::set_permissions(outside.join("group.key"), fs::Permissions::from_mode(0o600))?;
        }
        let (recipe, options) = (recipe.clone(), options.clone());
        Ok(Self { testbed, recipe, config, options, daemons: Vec::new(), etcd, power })
    }

    /// Waits until a daemon has ended, and starts it again with its config.
    ///
    /// # Errors
    /// When it does not end, or cannot be started.
    pub fn restart(&mut self, role: Role) -> Result<()> {
        self.wait_ended(role, SETUP_LIMIT)?;
        self.start_daemon(role)
    }

    /// Starts a daemon that does not run.
    ///
    /// # Errors
    /// When it runs already, or cannot be started.
    pub fn start_daemon(&mut self, role: Role) -> Result<()> {
        ensure!(!self.has_daemon(role), "the {} daemon runs already", role.name());
        let child = self.spawn(role)?;
        self.daemons.push((role, child));
        Ok(())
    }

    /// Sends a signal to a daemon and waits until it has ended.
    ///
    /// # Errors
    /// When it does not run, or does not end in time.
    pub fn stop_daemon(&mut self, role: Role, signal: Signal) -> Result<()> {
        self.signal_daemon(role, signal)?;
        self.wait_ended(role, END_LIMIT)
    }

    /// kill -9 of a member's daemon and of its server.
    ///
    /// # Errors
    /// When they do not run, or the daemon does not end in time.
    pub fn kill_member(&mut self, role: Role) -> Result<()> {
        let server = self.server_pid(role)?;
        self.stop_daemon(role, Signal::KILL)?;
        // A server with a backup has died with its daemon.
        let _ = send(server, Signal::KILL);
        Ok(())
    }

    /// Sends a signal to a daemon.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal_daemon(&self, role: Role, signal: Signal) -> Result<()> {
        send(self.daemon_pid(role)?, signal)
    }

    /// Lets a daemon that was stopped by SIGSTOP go on, and with it `nsenter`,
    /// which stops when its child does.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume_daemon(&self, role: Role) -> Result<()> {
        send(self.daemon_pid(role)?, Signal::CONT)?;
        let starter = self.child_pid(role)?;
        for _ in 0..STARTER_LOOKS {
            std::thread::sleep(STATUS_INTERVAL);
            send(starter, Signal::CONT)?;
        }
        Ok(())
    }

    /// Sends a signal to a member's server.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal_server(&self, role: Role, signal: Signal) -> Result<()> {
        send(self.server_pid(role)?, signal)
    }

    /// Whether this group has started a daemon on the host, and has not seen it end.
    #[must_use]
    pub fn has_daemon(&self, role: Role) -> bool {
        self.daemons.iter().any(|daemon| daemon.0 == role)
    }

    /// The documented repair after a takeover: both members' daemons are stopped
    /// (those that still run) and started, and the group protects again.
    ///
    /// # Errors
    /// When a daemon does not end or start, or the group does not protect; the
    /// error carries the tails of the daemons' logs.
    pub fn repair(&mut self) -> Result<()> {
        self.repair_with(|| Ok(()))
    }

    /// Like [`Self::repair`], with something to be done while both members are stopped.
    ///
    /// # Errors
    /// As [`Self::repair`], and if `meanwhile` fails.
    pub fn repair_with(&mut self, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        for role in MEMBERS {
            let Some(daemon) = self.daemons.iter_mut().find(|daemon| daemon.0 == role) else {
                continue;
            };
            match daemon.1.try_wait()? {
                None => self.stop_daemon(role, Signal::TERM)?,
                Some(_) => self.wait_ended(role, END_LIMIT)?,
            }
        }
        meanwhile()?;
        MEMBERS.into_iter().try_for_each(|role| self.start_daemon(role))?;
        self.wait_protected().map_err(|error| anyhow!("{error:#}\n{}", self.log_tails()))
    }

    /// The member that says that it is the primary, protected or not.
    #[must_use]
    pub fn primary(&self) -> Option<Role> {
        MEMBERS.into_iter().find(|&role| {
            let status = self.status(role).unwrap_or_default();
            let serves = ["protected", "unprotected"].map(Value::from).contains(&status["state"]);
            status["role"] == "primary" && serves
        })
    }

    /// The member that says that it is the primary, as soon as one says so: on a busy machine
    /// its word may be `waiting` for a moment.
    ///
    /// # Errors
    /// When nobody says so; the error has the daemons' words and the tails of their logs.
    pub fn wait_primary(&self) -> Result<Role> {
        wait_for("a primary", SETUP_LIMIT, || self.primary()).with_context(|| {
            let [a, b] = MEMBERS.map(|role| self.status(role).unwrap_or_default());
            format!("{a}; {b}\n{}", self.log_tails())
        })
    }

    fn wait_ended(&mut self, role: Role, limit: Duration) -> Result<()> {
        let daemon = self.daemons.iter_mut().find(|daemon| daemon.0 == role);
        let daemon = &mut daemon.context("no daemon on this host")?.1;
        let starter = daemon.id();
        let ended = || {
            // `nsenter` has stopped with a daemon that was stopped, and does not see it end.
            let _it_may_be_gone = send(starter, Signal::CONT);
            daemon.try_wait().ok().flatten()
        };
        if let Err(error) = wait_for("the end of a daemon", limit, ended) {
            bail!("{error}; its processes wait here:\n{}", waiting_places(starter));
        }
        self.daemons.retain(|daemon| daemon.0 != role);
        Ok(())
    }

    fn spawn(&self, role: Role) -> Result<Child> {
        let host = self.testbed.host(role);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(host.outside().join("daemon.log"))?;
        let binary = crate::holdfast_binary()?;
        let mut command = match self.options.open_files_soft {
            None => host.command(binary),
            Some(soft) => {
                let mut limited = host.command("prlimit");
                limited.arg(format!("--nofile={soft}:")).arg("--").arg(binary);
                limited
            }
        };
        command
            .args([
                "run",
                "--config",
                &self.config.display().to_string(),
                "--role",
                self.name(role),
            ])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        command.envs(self.options.env.iter().map(|(name, value)| (name, value)));
        if role == Role::Edge {
            command.envs(self.options.edge_env.iter().map(|(name, value)| (name, value)));
        }
        command.spawn().context("cannot start a daemon")
    }

    /// Waits until a primary says that it is protected, whichever member it is, and that a
    /// takeover would end nobody's connection.
    ///
    /// # Errors
    /// When a daemon ends, or the time is over.
    pub fn wait_protected(&mut self) -> Result<()> {
        let start = Instant::now();
        let mut protected_since = None;
        loop {
            for (role, child) in &mut self.daemons {
                let ended = child.try_wait()?;
                ensure!(ended.is_none(), "the {} daemon ended: {ended:?}", role.name());
            }
            let statuses = MEMBERS.map(|role| self.status(role).unwrap_or_default());
            if let Some(status) = statuses.iter().find(|status| is_protected(status)) {
                let since = protected_since.get_or_insert_with(Instant::now);
                if status["at_risk"] == 0 || since.elapsed() > AT_RISK_MAX {
                    return Ok(());
                }
            }
            ensure!(start.elapsed() < PROTECTED_MAX, "{}", unprotected_yet(&statuses, load()));
            std::thread::sleep(STATUS_INTERVAL);
        }
    }

    /// Checks that the pair is protected: otherwise a measured number does not count.
    ///
    /// # Errors
    /// When no primary is protected now; the error has the daemons' words.
    pub fn ensure_protected(&self) -> Result<()> {
        let statuses = MEMBERS.map(|role| self.status(role).unwrap_or_default());
        let logs = || self.log_tails();
        let [a, b] = &statuses;
        let yes = statuses.iter().any(is_protected);
        ensure!(yes, "the pair has lost its protection: {a}; {b}\n{}", logs());
        Ok(())
    }

    /// Whether the pair that was protected still is a pair. A pair may be unprotected for a moment;
    /// of one that has ended, a member says so.
    ///
    /// # Errors
    /// When the daemons say neither.
    pub fn stands(&self) -> Result<bool> {
        wait_for("a pair, or its end", SETUP_LIMIT, || {
            let statuses = MEMBERS.map(|role| self.status(role).unwrap_or_default());
            let over = OVER.map(Value::from);
            let has_ended = statuses.iter().any(|status| over.contains(&status["state"]));
            let stands = statuses.iter().any(is_protected);
            (stands || has_ended).then_some(stands)
        })
        .with_context(|| self.log_tails())
    }

    /// The role's name on the command line.
    fn name(&self, role: Role) -> &'static str {
        match name(role) {
            "edge" if self.options.segment.is_some() => "witness",
            name => name,
        }
    }

    /// Whether a daemon of the group runs on the third host: its edge, or its witness.
    fn has_third(&self) -> bool {
        self.options.segment.is_none() || self.options.arbiter == ArbiterKind::Witness
    }

    /// What switches hosts off, if a command decides between the members.
    #[must_use]
    pub fn power(&self) -> Option<&PowerSwitch> {
        self.power.as_ref()
    }

    /// The etcd that decides between the members, if one does.
    #[must_use]
    pub fn etcd(&self) -> Option<&EtcdCluster> {
        self.etcd.as_ref()
    }

    /// Path of the group's file, the same on every host.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// `holdfast VERB.. --config FILE --role NAME` on a host.
    fn cli(&self, role: Role, verb: &[&str]) -> Result<Command> {
        let mut command = self.testbed.host(role).command("timeout");
        let config = self.config.display().to_string();
        command.arg(ANSWER_LIMIT_S).arg(crate::holdfast_binary()?).args(verb).args([
            "--config",
            &config,
            "--role",
            self.name(role),
        ]);
        Ok(command)
    }

    /// Runs `holdfast VERB.. --config FILE --role NAME` on a host to its end.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn verb(&self, role: Role, words: &[&str]) -> Result<Output> {
        let mut command = self.testbed.host(role).command("timeout");
        command.arg(VERB_LIMIT_S).arg(crate::holdfast_binary()?).args(words);
        command.arg("--config").arg(&self.config).args(["--role", self.name(role)]);
        Ok(command.stdin(Stdio::null()).output()?)
    }

    /// The pid of a member's server as seen from outside.
    ///
    /// # Errors
    /// When there is none.
    pub fn server_pid(&self, role: Role) -> Result<u32> {
        let program = &self.recipe.program;
        // A server that has outlived its daemon is a child of the host's first process.
        let from = [self.child_pid(role)?, self.testbed.host(role).holder()];
        // A family's first process comes behind its children.
        let of = |found: Vec<u32>| match self.options.run {
            ServerRun::Auto => found.first().copied(),
            ServerRun::Parallel | ServerRun::OneAtATime => found.last().copied(),
        };
        wait_for("the server's process", SETUP_LIMIT, || {
            from.iter().find_map(|from| of(descendants_running(*from, program)))
        })
    }

    /// The pid of a daemon as seen from outside.
    ///
    /// # Errors
    /// When it does not run.
    pub fn daemon_pid(&self, role: Role) -> Result<u32> {
        let from = self.child_pid(role)?;
        // The daemon is the oldest process of that program: nsenter's own child.
        let found = descendants_running(from, &crate::holdfast_binary()?);
        let ended = || {
            let log = self.testbed.host(role).outside().join("daemon.log");
            let log = fs::read_to_string(log).unwrap_or_default();
            let last = log.lines().last().unwrap_or_default();
            format!("the daemon of the {} does not run; its last word: {last}", role.name())
        };
        found.last().copied().with_context(ended)
    }

    fn child_pid(&self, role: Role) -> Result<u32> {
        let found = self.daemons.iter().find(|daemon| daemon.0 == role);
        found.map(|daemon| daemon.1.id()).context("no daemon on this host")
    }

    /// The last lines of every daemon's log.
    pub fn log_tails(&self) -> String {
        let mut out = String::new();
        // The logs of daemons that have ended are shown, too.
        for role in [Role::Edge, Role::Primary, Role::Backup] {
            let path = self.testbed.host(role).outside().join("daemon.log");
            out.push_str(&format!("--- {}\n{}\n", role.name(), tail(&path)));
        }
        out
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        for (_, child) in &mut self.daemons {
            // This kills nsenter; the daemon itself ends with its host.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How a pair that is to have no edge, whatever its test says, does without.
fn without_edge() -> Option<Mode> {
    let word = std::env::var_os(NO_EDGE)?;
    Some(Mode::ALL.into_iter().find(|mode| word == mode.word()).unwrap_or_default())
}

/// The last lines of a log, and the last of its warnings and errors before them.
pub(super) fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let (before, last) = lines.split_at(lines.len().saturating_sub(LOG_TAIL_LINES));
    let is_bad = |line: &&&str| line.contains(" WARN ") || line.contains(" ERROR ");
    let mut bad: Vec<&str> =
        before.iter().rev().filter(is_bad).take(LOG_TAIL_LINES).copied().collect();
    bad.reverse();
    [&bad, last].concat().join("\n")
}

/// The role's name on the command line.
fn name(role: Role) -> &'static str {
    match role {
        Role::Primary => PRIMARY_NAME,
        Role::Backup => BACKUP_NAME,
        Role::Client | Role::Edge => "edge",
    }
}

fn send(pid: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(pid.cast_signed()).context("no process number")?;
    kill_process(pid, signal).context("cannot send a signal")
}
