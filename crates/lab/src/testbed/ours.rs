//! A protected group on a testbed: the three daemons, run as a user would run
//! them, and what the lab must know about their processes.

use super::config::{self, BACKUP_NAME, GroupConfig, PRIMARY_NAME};
use super::server::{Recipe, listens};
use super::{Role, Testbed};
use crate::command::{descendants_running, wait_for};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a group may take until it protects.
const PROTECT_LIMIT: Duration = Duration::from_secs(15);

/// How long a member may take to start its server.
const SERVER_LIMIT: Duration = Duration::from_secs(2);

/// A daemon that does not answer within this many seconds has not answered.
const ANSWER_LIMIT_S: &str = "5";

/// How often status is asked while waiting.
const STATUS_INTERVAL: Duration = Duration::from_millis(20);

/// Lines of a daemon's log that an error shows.
const LOG_TAIL_LINES: usize = 15;

/// Settings of a group beyond the defaults, all for tests.
#[derive(Clone, Debug, Default)]
pub struct GroupOptions {
    /// Starts the daemons with output commit switched off: the tests must
    /// notice.
    pub no_commit: bool,
    /// Time between two heartbeats, ms; without it, the default.
    pub heartbeat_ms: Option<u64>,
    /// Connections protected at once; without it, the default.
    pub connections_max: Option<u32>,
}

/// Three running daemons and their server.
pub struct Group<'a> {
    testbed: &'a Testbed,
    recipe: Recipe,
    config: PathBuf,
    daemons: Vec<(Role, Child)>,
}

impl<'a> Group<'a> {
    /// Starts the edge and both members, and waits until the group protects and
    /// its server listens.
    ///
    /// # Errors
    /// When a daemon ends or the group does not protect in time; the error
    /// carries the tails of the daemons' logs.
    pub fn start(testbed: &'a Testbed, recipe: &Recipe, options: &GroupOptions) -> Result<Self> {
        let mut group = Self::launch(testbed, recipe, options)?;
        group.wait_protected().with_context(|| group.log_tails())?;
        let (port, primary) = (recipe.program.port(), testbed.host(Role::Primary).holder());
        wait_for("a listening server", PROTECT_LIMIT, || listens(primary, port).then_some(()))?;
        Ok(group)
    }

    /// Starts the edge and both members, whatever may come of it.
    ///
    /// # Errors
    /// When a daemon cannot be started.
    pub fn launch(testbed: &'a Testbed, recipe: &Recipe, options: &GroupOptions) -> Result<Self> {
        let key =
            crate::command::output(&crate::own_binary()?.display().to_string(), &["key", "gen"])?;
        let inside = testbed.host(Role::Primary).inside();
        let [config, key_file, run_dir, log_file] =
            ["holdfast.toml", "group.key", "run", "server.log"].map(|file| inside.join(file));
        let group = GroupConfig {
            recipe,
            key_file: &key_file,
            run_dir: &run_dir,
            log_file: &log_file,
            options,
        };
        let text = config::text(testbed, &group);
        let mut group = Self { testbed, recipe: recipe.clone(), config, daemons: Vec::new() };
        for role in [Role::Edge, Role::Primary, Role::Backup] {
            let outside = testbed.host(role).outside();
            fs::create_dir_all(outside.join("run"))?;
            fs::write(outside.join("holdfast.toml"), &text)?;
            fs::write(outside.join("group.key"), &key)?;
            fs::set_permissions(outside.join("group.key"), fs::Permissions::from_mode(0o600))?;
            let child = group.spawn(role, options)?;
            group.daemons.push((role, child));
        }
        Ok(group)
    }

    /// Waits until a daemon has ended, and starts it again with its config.
    ///
    /// # Errors
    /// When it does not end, or cannot be started.
    pub fn restart(&mut self, role: Role) -> Result<()> {
        let daemon = self.daemons.iter_mut().find(|daemon| daemon.0 == role);
        let daemon = &mut daemon.context("no daemon on this host")?.1;
        let ended = || daemon.try_wait().ok().flatten();
        wait_for("the end of a daemon", PROTECT_LIMIT, ended)?;
        let child = self.spawn(role, &GroupOptions::default())?;
        self.daemons.retain(|daemon| daemon.0 != role);
        self.daemons.push((role, child));
        Ok(())
    }

    fn spawn(&self, role: Role, options: &GroupOptions) -> Result<Child> {
        let host = self.testbed.host(role);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(host.outside().join("daemon.log"))?;
        let mut command = host.command(crate::own_binary()?);
        command
            .args(["run", "--config", &self.config.display().to_string(), "--role", name(role)])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if options.no_commit {
            command.env("HOLDFAST_TEST_NO_COMMIT", "1");
        }
        command.spawn().context("cannot start a daemon")
    }

    /// Waits until the primary says that it is protected.
    ///
    /// # Errors
    /// When a daemon ends, or the time is over.
    pub fn wait_protected(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            for (role, child) in &mut self.daemons {
                let ended = child.try_wait()?;
                ensure!(ended.is_none(), "the {} daemon ended: {ended:?}", role.name());
            }
            let status = self.status(Role::Primary).unwrap_or_default();
            if is_protected(&status) {
                return Ok(());
            }
            ensure!(start.elapsed() < PROTECT_LIMIT, "the group does not protect; status {status}");
            std::thread::sleep(STATUS_INTERVAL);
        }
    }

    /// A number does not count if the pair was none while it was measured.
    ///
    /// # Errors
    /// When the primary is not protected now; it tells what the daemons said.
    pub fn ensure_protected(&self) -> Result<()> {
        let status = self.status(Role::Primary)?;
        let logs = || self.log_tails();
        ensure!(is_protected(&status), "the pair has lost its protection: {status}\n{}", logs());
        Ok(())
    }

    /// What `holdfast status --json` says on a host.
    ///
    /// # Errors
    /// When the daemon does not answer or its answer is not JSON.
    pub fn status(&self, role: Role) -> Result<Value> {
        let done = self
            .cli(role, &["status"])?
            .arg("--json")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()?;
        serde_json::from_slice(&done.stdout).context("status is not JSON")
    }

    /// What `holdfast events --json` says on a host, oldest first: when, by the
    /// calendar, and what.
    #[must_use]
    pub fn events(&self, role: Role) -> Vec<(String, String)> {
        let asked = self.cli(role, &["events"]).and_then(|mut command| {
            Ok(command.arg("--json").stdin(Stdio::null()).stderr(Stdio::null()).output()?)
        });
        let text = asked.map(|done| done.stdout).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n');
        let events = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        let word = |event: &Value, name| event[name].as_str().unwrap_or_default().to_owned();
        events.map(|event| (word(&event, "at"), word(&event, "what"))).collect()
    }

    /// The group's file, at the same path on every host.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// `holdfast VERB.. --config FILE --role NAME` on a host.
    fn cli(&self, role: Role, verb: &[&str]) -> Result<Command> {
        let mut command = self.testbed.host(role).command("timeout");
        let config = self.config.display().to_string();
        command.arg(ANSWER_LIMIT_S).arg(crate::own_binary()?).args(verb).args([
            "--config",
            &config,
            "--role",
            name(role),
        ]);
        Ok(command)
    }

    /// The words that fence the service on the edge, for the fault to run.
    ///
    /// # Errors
    /// When the binary's path cannot be found.
    pub fn fence_words(&self) -> Result<Vec<String>> {
        let command = self.cli(Role::Edge, &["edge", "fence"])?;
        let words = [command.get_program()].into_iter().chain(command.get_args());
        Ok(words.map(|word| word.to_string_lossy().into_owned()).collect())
    }

    /// The pid of a member's server as seen from outside.
    ///
    /// # Errors
    /// When there is none.
    pub fn server_pid(&self, role: Role) -> Result<u32> {
        let program = Path::new(self.recipe.program.path());
        let from = self.child_pid(role)?;
        wait_for("the server's process", SERVER_LIMIT, || {
            descendants_running(from, program).first().copied()
        })
    }

    /// The pid of a daemon as seen from outside.
    ///
    /// # Errors
    /// When it does not run.
    pub fn daemon_pid(&self, role: Role) -> Result<u32> {
        let from = self.child_pid(role)?;
        // The daemon is the eldest of that program: nsenter's own child.
        let found = descendants_running(from, &crate::own_binary()?);
        found.last().copied().context("the daemon does not run")
    }

    fn child_pid(&self, role: Role) -> Result<u32> {
        let found = self.daemons.iter().find(|daemon| daemon.0 == role);
        found.map(|daemon| daemon.1.id()).context("no daemon on this host")
    }

    /// The last lines of every daemon's log.
    pub fn log_tails(&self) -> String {
        let mut out = String::new();
        for (role, _) in &self.daemons {
            let path = self.testbed.host(*role).outside().join("daemon.log");
            out.push_str(&format!("--- {}\n{}\n", role.name(), tail(&path)));
        }
        out
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        for (_, child) in &mut self.daemons {
            // nsenter; the daemon itself ends with its host.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The last lines of a log.
pub(super) fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}

/// The role's name on the command line.
fn name(role: Role) -> &'static str {
    match role {
        Role::Primary => PRIMARY_NAME,
        Role::Backup => BACKUP_NAME,
        Role::Client | Role::Edge => "edge",
    }
}

/// Whether a status says that the group is protected.
fn is_protected(status: &Value) -> bool {
    status.get("protected").and_then(Value::as_bool).unwrap_or(false)
        || status.get("state").and_then(Value::as_str) == Some("protected")
}
