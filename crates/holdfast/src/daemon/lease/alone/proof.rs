//! What proves that the other member is silent for good, or is taken for a proof.

use super::super::locked;
use super::{Done, Teller};
use crate::config::{Arbiter, ArbiterKind, Config, Member, PowerOff};
use crate::daemon::service_manager;
use anyhow::{Context as _, Result, bail};
use holdfast_linux::process;
use std::io::{ErrorKind, Read as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time between two looks at a command that runs.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Most of what a command says that is told.
const SAID_MAX: u64 = 400;
/// Time for which that is waited for when the command has ended.
const SAID_OUT: Duration = Duration::from_millis(100);

/// How often the router is asked, and the time that each answer has: what it said longer ago proves
/// nothing.
const PROBES: u32 = 3;
const PROBE_MAX: Duration = Duration::from_millis(40);
/// Where it is asked. Nothing listens there, and a router says so (RFC 863).
const DISCARD: u16 = 9;

/// Seeks proofs.
pub(super) struct Prover {
    how: How,
    group: String,
    me: String,
    other: String,
}

/// What proves it.
enum How {
    SwitchOff(PowerOff),
    /// No proof at all: the other member may reach it, too.
    AskRouter {
        interface: String,
    },
}

impl Prover {
    /// `None` where nothing but an operator's word proves anything.
    pub fn new(config: &Config, arbiter: &Arbiter, me: &Member) -> Option<Self> {
        let how = match &arbiter.kind {
            ArbiterKind::Command(off) => How::SwitchOff(off.clone()),
            ArbiterKind::Gateway => How::AskRouter { interface: me.interface.clone() },
            _ => return None,
        };
        let (group, other) = (config.group.name.clone(), config.other(me).name.clone());
        Some(Self { how, group, me: me.name.clone(), other })
    }

    /// A thread that seeks one whenever it is asked to, and leaves in `failure` why there is none. It
    /// has no real-time priority, and neither has what it runs.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(self, tell: Teller, failure: Arc<Mutex<Option<String>>>) -> Result<Sender<()>> {
        let (jobs, todo) = channel();
        std::thread::Builder::new().name("proof".to_owned()).spawn(move || {
            while todo.recv().is_ok() {
                let begun = Instant::now();
                let result = self.prove();
                let ms = begun.elapsed().as_millis();
                match (&result, &self.how) {
                    (Ok(()), How::SwitchOff(_)) => {
                        tracing::warn!("{} is switched off, after {ms} ms", self.other);
                    }
                    (Ok(()), How::AskRouter { .. }) => {
                        tracing::warn!(
                            "the router answers, after {ms} ms, and {} does not",
                            self.other
                        );
                    }
                    (Err(error), _) => {
                        tracing::error!("no proof that {} is off: {error:#}", self.other)
                    }
                }
                let is_proved = result.is_ok();
                *locked(&failure) = result.err().map(|error| format!("{error:#}"));
                tell.tell(Done::Proved(is_proved));
            }
        })?;
        Ok(jobs)
    }

    fn prove(&self) -> Result<()> {
        match &self.how {
            How::SwitchOff(PowerOff { command, timeout_ms }) => {
                let words = [&command[..], std::slice::from_ref(&self.other)].concat();
                self.run(&words, *timeout_ms)
            }
            How::AskRouter { interface } => reach_router(interface),
        }
    }

    /// Runs a command. Only exit code 0 proves anything.
    fn run(&self, command: &[String], timeout_ms: u64) -> Result<()> {
        let [program, words @ ..] = command else { bail!("no command") };
        let mut command = Command::new(program);
        for name in service_manager::VARIABLES {
            command.env_remove(name);
        }
        let mut child = command
            .args(words)
            .env("HOLDFAST_GROUP", &self.group)
            .env("HOLDFAST_MEMBER", &self.me)
            .env("HOLDFAST_OTHER", &self.other)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {program}"))?;
        let said = child.stderr.take().map(listen);
        let until = Instant::now() + Duration::from_millis(timeout_ms);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() >= until {
                // What it has started may not switch the host off later, when that serves again.
                process::kill_descendants(child.id());
                let _ = child.kill();
                let _ = child.wait();
                bail!("{program} took longer than {timeout_ms} ms");
            }
            std::thread::sleep(LOOK_EVERY);
        };
        if status.success() {
            return Ok(());
        }
        // Something that it has left behind may keep that open.
        let said = said.and_then(|said| said.recv_timeout(SAID_OUT).ok()).unwrap_or_default();
        match said.trim() {
            "" => bail!("{program} ended with {status}"),
            said => bail!("{program} ended with {status}: {said}"),
        }
    }
}

/// Takes all that a command says, and hands on the beginning when it ends, or when that is enough.
fn listen(mut stderr: ChildStderr) -> Receiver<String> {
    let (tell, said) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stderr.by_ref().take(SAID_MAX).read_to_end(&mut bytes);
        let _ = tell.send(String::from_utf8_lossy(&bytes).into_owned());
        // A command that nobody listens to would wait.
        let _ = std::io::copy(&mut stderr, &mut std::io::sink());
    });
    said
}

/// Asks the router of an interface, as a gateway is asked for a takeover.
///
/// # Errors
/// When there is none, or it does not answer.
pub fn reach_router(interface: &str) -> Result<()> {
    let router =
        router(interface).with_context(|| format!("no route by a router on {interface}"))?;
    ask_router(router)
}

/// Asks the router whether it is there: whatever it says of the connection, it says it now.
fn ask_router(router: Ipv4Addr) -> Result<()> {
    for _ in 0..PROBES {
        match TcpStream::connect_timeout(&(router, DISCARD).into(), PROBE_MAX) {
            Err(error) if error.kind() != ErrorKind::ConnectionRefused => {
                bail!("the router {router} does not answer at TCP port {DISCARD}: {error}");
            }
            _ => {}
        }
    }
    Ok(())
}

/// The router that leads farthest from this interface, by the kernel's table of IPv4.
fn router(interface: &str) -> Option<Ipv4Addr> {
    find_router(&std::fs::read_to_string("/proc/net/route").ok()?, interface)
}

fn find_router(table: &str, interface: &str) -> Option<Ipv4Addr> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
        let (router, mask) = (number(2)?, number(7)?);
        // The kernel writes addresses as they lie in memory.
        let router = Ipv4Addr::from(router.to_ne_bytes());
        (fields.first() == Some(&interface) && !router.is_unspecified())
            .then_some((mask.count_ones(), router))
    };
    table.lines().skip(1).filter_map(line).min().map(|found| found.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, timeout_ms: u64) -> Result<(), String> {
        let how = How::AskRouter { interface: String::new() };
        let name = || "x".to_owned();
        let prover = Prover { how, group: name(), me: name(), other: name() };
        let words = ["/bin/sh", "-c", script].map(str::to_owned);
        prover.run(&words, timeout_ms).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn only_exit_code_0_is_a_proof_whatever_a_command_says_or_leaves_behind() {
        assert_eq!(run("echo \"$HOLDFAST_OTHER\" >&2", 10_000), Ok(()));
        let said = run("echo no power >&2; exit 3", 10_000).unwrap_err();
        assert!(said.contains("exit status: 3: no power"), "{said}");
        assert!(run("head -c 1000000 /dev/zero >&2; exit 1", 10_000).is_err());
        let begun = Instant::now();
        let left = run("sleep 20 & echo left >&2; exit 1", 10_000).unwrap_err();
        assert!(left.contains("exit status: 1"), "{left}");
        let late = run("sleep 20; exit 0", 100).unwrap_err();
        assert!(late.contains("longer than 100 ms"), "{late}");
        assert!(begun.elapsed() < Duration::from_secs(10), "nobody waits for what is left behind");
    }

    #[test]
    fn the_router_is_that_of_the_shortest_prefix() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n\
            p0\t0000090A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n\
            p0\t0000080A\t0200090A\t0003\t0\t0\t0\t00FFFFFF\t0\n\
            p0\t00000000\t0100090A\t0003\t0\t0\t0\t00000000\t0\n\
            q0\t00000000\t0900090A\t0003\t0\t0\t0\t00000000\t0\n";
        let found = |interface| find_router(table, interface).map(|it| it.to_string());
        if cfg!(target_endian = "little") {
            assert_eq!(found("p0").as_deref(), Some("10.9.0.1"));
        }
        assert_eq!(found("r0"), None);
        assert_eq!(find_router("nonsense\nmore of it", "more"), None);
    }
}
