//! A spread group on a testbed: the edge, and the two members' hosts as host
//! servers, run as a user would run them.

use super::{Role, SETUP_LIMIT, Testbed, addresses, interface};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

/// Names of the host servers on the primary's and the backup's host.
pub const HOST_NAMES: [&str; 2] = ["a", "b"];

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest wait for a daemon's answer, in s.
const ANSWER_LIMIT_S: &str = "5";

/// Settings of a spread group beyond the defaults.
#[derive(Clone, Debug)]
pub struct SpreadOptions {
    /// Whether packets go to the host servers without encapsulation.
    pub layer2: bool,
    /// Services that the host servers name; `None`: those that are bound are noticed.
    pub services: Option<Vec<String>>,
    pub flows_max: u32,
    pub heartbeat_ms: u64,
    /// MTU of the paths to the host servers in bytes; `None`: that of their interfaces.
    pub mtu: Option<u16>,
}

impl Default for SpreadOptions {
    fn default() -> Self {
        Self { layer2: false, services: None, flows_max: 65_536, heartbeat_ms: 100, mtu: None }
    }
}

/// A running spread group.
pub struct SpreadGroup<'a> {
    testbed: &'a Testbed,
    config: PathBuf,
    daemons: Vec<(Role, Child)>,
}

impl<'a> SpreadGroup<'a> {
    /// Starts the edge and the host servers on `hosts`, and waits until they have
    /// joined.
    ///
    /// # Errors
    /// When a daemon ends or does not answer in time.
    pub fn start(testbed: &'a Testbed, hosts: &[Role], options: &SpreadOptions) -> Result<Self> {
        let binary = crate::holdfast_binary()?.display().to_string();
        let key = crate::command::output(&binary, &["key", "gen"])?;
        let inside = testbed.host(Role::Edge).inside();
        let text = text(&inside.join("run").display().to_string(), options);
        for role in [Role::Edge, Role::Primary, Role::Backup] {
            let outside = testbed.host(role).outside();
            fs::create_dir_all(outside.join("run"))?;
            fs::write(outside.join("spread.toml"), &text)?;
            fs::write(outside.join("group.key"), &key)?;
            fs::set_permissions(outside.join("group.key"), fs::Permissions::from_mode(0o600))?;
        }
        let config = inside.join("spread.toml");
        let mut group = Self { testbed, config, daemons: Vec::new() };
        group.launch(Role::Edge)?;
        for &host in hosts {
            group.launch(host)?;
        }
        group.wait_hosts(hosts.len())?;
        Ok(group)
    }

    /// Starts the daemon of a host.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn launch(&mut self, role: Role) -> Result<()> {
        let host = self.testbed.host(role);
        let path = host.outside().join("daemon.log");
        let log = fs::File::options().create(true).append(true).open(path)?;
        let mut command = host.command(crate::holdfast_binary()?);
        let config = self.config.display().to_string();
        command
            .args(["run", "--config", &config, "--role", name(role)])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn().context("cannot start a daemon")?;
        self.daemons.push((role, child));
        Ok(())
    }

    /// Kills the daemon of a host; programs and maps in its kernel go on.
    ///
    /// # Errors
    /// When no daemon runs there.
    pub fn kill(&mut self, role: Role) -> Result<()> {
        let at = self.daemons.iter().position(|(r, _)| *r == role).context("no daemon there")?;
        let (_, mut child) = self.daemons.remove(at);
        for pid in crate::command::descendants_running(child.id(), &crate::holdfast_binary()?) {
            let pid = pid.to_string();
            crate::command::output("kill", &["-9", &pid])?;
        }
        child.wait()?;
        Ok(())
    }

    /// Sends a signal to the daemon of a host.
    ///
    /// # Errors
    /// When no daemon runs there.
    pub fn signal(&self, role: Role, name: &str) -> Result<()> {
        let found = self.daemons.iter().find(|(r, _)| *r == role).context("no daemon there")?;
        for pid in crate::command::descendants_running(found.1.id(), &crate::holdfast_binary()?) {
            crate::command::output("kill", &["-s", name, &pid.to_string()])?;
        }
        Ok(())
    }

    /// `holdfast VERB.. --config FILE` on the edge.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn cli(&self, words: &[&str]) -> Result<Output> {
        self.cli_on(Role::Edge, words)
    }

    /// `holdfast VERB.. --config FILE --role NAME` on a host.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn verb(&self, role: Role, words: &[&str]) -> Result<Output> {
        self.cli_on(role, &[words, &["--role", name(role)]].concat())
    }

    fn cli_on(&self, role: Role, words: &[&str]) -> Result<Output> {
        let mut command = self.testbed.host(role).command("timeout");
        command.arg(ANSWER_LIMIT_S).arg(crate::holdfast_binary()?).args(words);
        command.arg("--config").arg(&self.config).stdin(Stdio::null());
        Ok(command.output()?)
    }

    /// The JSON that a verb prints on the edge.
    ///
    /// # Errors
    /// When the verb prints no JSON.
    pub fn ask(&self, words: &[&str]) -> Result<Value> {
        parse(&self.cli(&[words, &["--json"]].concat())?)
    }

    /// The `status` of a host's daemon.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn status(&self, role: Role) -> Result<Value> {
        parse(&self.cli_on(role, &["status", "--json", "--role", name(role)])?)
    }

    /// Waits until `edge show` satisfies `ready`; returns its answer then.
    ///
    /// # Errors
    /// When a daemon has ended, or the time is over.
    pub fn wait(&mut self, what: &str, ready: impl Fn(&Value) -> bool) -> Result<Value> {
        let until = Instant::now() + SETUP_LIMIT;
        loop {
            for (role, child) in &mut self.daemons {
                let ended = child.try_wait()?;
                ensure!(ended.is_none(), "{}'s daemon ended\n{}", role.name(), self.logs());
            }
            let show = self.ask(&["edge", "show"]).unwrap_or_default();
            if ready(&show) {
                return Ok(show);
            }
            ensure!(Instant::now() < until, "{what}: not in time; {show}\n{}", self.logs());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until `count` host servers have joined.
    ///
    /// # Errors
    /// As [`SpreadGroup::wait`].
    pub fn wait_hosts(&mut self, count: usize) -> Result<Value> {
        self.wait("the host servers", |show| {
            show["members"].as_array().is_some_and(|members| members.len() == count)
        })
    }

    /// Waits until new flows of a service go to exactly these host servers.
    ///
    /// # Errors
    /// As [`SpreadGroup::wait`].
    pub fn wait_members(&mut self, service: &str, members: &[&str]) -> Result<Value> {
        self.wait(&format!("{service} at {members:?}"), |show| {
            let services = show["services"].as_array().map_or(&[][..], Vec::as_slice);
            services.iter().any(|row| {
                row["address"] == service && row["members"] == serde_json::json!(members)
            })
        })
    }

    /// The logs of all daemons.
    pub fn logs(&self) -> String {
        let mut out = String::new();
        for role in [Role::Edge, Role::Primary, Role::Backup] {
            let path = self.testbed.host(role).outside().join("daemon.log");
            let text = fs::read_to_string(path).unwrap_or_default();
            out.push_str(&format!("--- {}\n{text}", role.name()));
        }
        out
    }
}

impl Drop for SpreadGroup<'_> {
    fn drop(&mut self) {
        for (_, child) in &mut self.daemons {
            // This kills nsenter; the daemon itself ends with its host.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn parse(done: &Output) -> Result<Value> {
    serde_json::from_slice(&done.stdout)
        .with_context(|| String::from_utf8_lossy(&done.stderr).into_owned())
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Primary => HOST_NAMES[0],
        Role::Backup => HOST_NAMES[1],
        Role::Client | Role::Edge => "edge",
    }
}

fn text(run_dir: &str, options: &SpreadOptions) -> String {
    let method = if options.layer2 { "layer-2" } else { "ip-in-ip" };
    let services =
        options.services.as_ref().map_or(String::new(), |s| format!("services = {s:?}\n"));
    let mtu = options.mtu.map_or(String::new(), |mtu| format!("mtu = {mtu}\n"));
    let mut text = format!(
        "[group]\nkind = \"spread\"\nname = \"lab\"\nkey_file = \"group.key\"\n\
         addresses = [\"{}\", \"{}\"]\nrun_dir = \"{run_dir}\"\nevents_dir = \"none\"\nheartbeat_ms = {}\n\
         flows_max = {}\n\n[edge]\nlisten = \"{}:7700\"\nclients = [\"{}\"]\n{mtu}",
        addresses::SERVICE_V4,
        addresses::SERVICE_V6,
        options.heartbeat_ms,
        options.flows_max,
        addresses::EDGE,
        interface::EDGE_CLIENT,
    );
    let hosts = [
        (HOST_NAMES[0], addresses::PRIMARY, "fd09::2", interface::PRIMARY),
        (HOST_NAMES[1], addresses::BACKUP, "fd09::3", interface::BACKUP),
    ];
    for (name, tunnel, tunnel6, interface) in hosts {
        text.push_str(&format!(
            "\n[[host]]\nname = \"{name}\"\ntunnel = \"{tunnel}\"\ntunnel6 = \"{tunnel6}\"\n\
             interface = \"{interface}\"\nmethod = \"{method}\"\n{services}"
        ));
    }
    text
}
