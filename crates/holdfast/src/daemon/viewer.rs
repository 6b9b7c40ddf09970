//! The program that serves the counters and the live page, as a child of the daemon: it listens to
//! strangers, so it has no right to anything but the daemon's socket for those who only look.
//!
//! A thread starts it, and starts it again when it has ended; nothing of it can harm the daemon.

use crate::admin::watch_socket;
use crate::config::{Common, admin_socket};
use crate::daemon::placement;
use crate::poll::Signals;
use holdfast_linux::address::AddressSocket;
use holdfast_wire::packet::mapped;
use std::io::{self, ErrorKind, Read as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Its name, beside the daemon's program.
const PROGRAM: &str = "holdfast-watch";
/// Time between two looks at whether it has ended, or whether the daemon's socket is there.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Pause before it is started again, which doubles up to the second one; one that has lived for as
/// long as that begins anew.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Most that is read of its last words, in bytes.
const WORDS_BYTES_MAX: u64 = 4096;
/// Stack of the thread, in bytes: all of it is locked in memory where the daemon's is.
const STACK_BYTES: usize = 128 << 10;

/// The child, for as long as this lives.
#[derive(Debug)]
pub struct Viewer {
    /// The thread ends when this is dropped.
    alive: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Viewer {
    /// Starts it if a file of these groups says that something is to be served on this host;
    /// `daemons` are the groups, and this daemon's role in each. Nothing that fails here keeps a
    /// daemon from its work: it is logged, with the remedy.
    #[must_use]
    pub fn start(daemons: &[(Common<'_>, &str)]) -> Option<Self> {
        let plan = Plan::of(daemons)?;
        if !plan.program.exists() {
            let program = plan.program.display();
            tracing::warn!(
                "{program} is missing: metrics and page are not served; remedy: install it beside \
                 this program (`cargo build --release -p holdfast-watch` makes it)"
            );
            return None;
        }
        // The signals that end a daemon are for its loop: a thread inherits that they are blocked.
        let begun = Signals::block().and_then(|_blocked| {
            let (alive, over) = channel();
            let thread = std::thread::Builder::new().name("viewer".to_owned());
            let thread = thread.stack_size(STACK_BYTES).spawn(move || {
                placement::leave();
                keep(&plan, &over);
            })?;
            Ok(Self { alive: Some(alive), thread: Some(thread) })
        });
        begun.inspect_err(|error| tracing::warn!("metrics and page are not served: {error}")).ok()
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        drop(self.alive.take());
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// What is to be started.
#[derive(Debug)]
struct Plan {
    program: PathBuf,
    /// The daemon's sockets for those who only look.
    sockets: Vec<PathBuf>,
    arguments: Vec<String>,
}

impl Plan {
    /// `None` if nothing is to be served here.
    fn of(daemons: &[(Common<'_>, &str)]) -> Option<Self> {
        let mut arguments = Vec::new();
        for (common, _) in daemons {
            let watching = common.watching;
            for (what, listen) in [("metrics", watching.metrics), ("page", watching.page)] {
                let Some(at) = listen.map(|it| it.listen).filter(|at| is_here(what, *at)) else {
                    continue;
                };
                arguments.push(format!("--{what}={at}"));
            }
        }
        if arguments.is_empty() {
            return None;
        }
        // Groups that a witness serves may say the same.
        arguments.sort();
        arguments.dedup();
        let socket =
            |(common, role): &(Common<'_>, &str)| watch_socket(&admin_socket(common.run_dir, role));
        let sockets: Vec<PathBuf> = daemons.iter().map(socket).collect();
        let program = std::env::current_exe().unwrap_or_default().with_file_name(PROGRAM);
        Some(Self { program, sockets, arguments })
    }

    fn spawn(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.arg("serve").args(&self.arguments);
        command.args(self.sockets.iter().flat_map(|path| [Path::new("--watch"), path]));
        command.env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
    }

    /// Whether the daemon answers there already.
    fn is_ready(&self) -> bool {
        self.sockets.iter().all(|path| UnixStream::connect(path).is_ok())
    }
}

/// Whether this host has the address: one file is for all hosts.
fn is_here(what: &str, at: SocketAddr) -> bool {
    let mut addresses = match AddressSocket::open() {
        Ok(addresses) if !at.ip().is_unspecified() => addresses,
        _ => return true,
    };
    let is_local = addresses.is_local(&mapped(at.ip())).unwrap_or(true);
    if !is_local {
        tracing::info!("[{what}] listen = {at} is no address of this host: nothing is served here");
    }
    is_local
}

/// Keeps the child alive until the daemon ends.
fn keep(plan: &Plan, over: &Receiver<()>) {
    let (mut pause, mut said) = (PAUSE_MIN, String::new());
    loop {
        while !plan.is_ready() {
            if is_over(over, LOOK_EVERY) {
                return;
            }
        }
        let begun = Instant::now();
        let words = match plan.spawn() {
            Err(error) => format!("cannot run {}: {error}", plan.program.display()),
            Ok(mut child) => match wait(&mut child, over) {
                None => return,
                Some(status) => last_words(child, status),
            },
        };
        if begun.elapsed() > PAUSE_MAX {
            (pause, said) = (PAUSE_MIN, String::new());
        }
        if words == said {
            tracing::debug!("{words}");
        } else {
            tracing::warn!("metrics and page are not served: {words}");
            said = words;
        }
        if is_over(over, pause) {
            return;
        }
        pause = PAUSE_MAX.min(pause * 2);
    }
}

/// Waits for the end of the child, or of the daemon: then it ends the child and returns `None`.
fn wait(child: &mut Child, over: &Receiver<()>) -> Option<ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if is_over(over, LOOK_EVERY) {
            let _gone = child.kill();
            let _reaped = child.wait();
            return None;
        }
    }
}

fn last_words(child: Child, status: ExitStatus) -> String {
    let mut words = Vec::new();
    if let Some(stderr) = child.stderr {
        // It has ended, so nothing more comes.
        let _ = stderr.take(WORDS_BYTES_MAX).read_to_end(&mut words);
    }
    let words = String::from_utf8_lossy(&words);
    match words.trim() {
        "" => format!("{PROGRAM} has ended ({status}); it is started again"),
        words => words.to_owned(),
    }
}

fn is_over(over: &Receiver<()>, after: Duration) -> bool {
    over.recv_timeout(after) != Err(RecvTimeoutError::Timeout)
}

/// What nobody can tell by a file: whether the host has the group of users.
#[must_use]
pub fn trouble_of(common: &Common<'_>) -> Option<String> {
    let error = crate::admin::group_id(common.watching.watchers?).err()?;
    (error.kind() == ErrorKind::NotFound).then(|| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{KeptEvents, Listen, Watching};

    fn common(metrics: &str, page: Option<&str>) -> Common<'static> {
        let listen = |text: &str| Listen { listen: text.parse().unwrap() };
        let watching =
            Watching { watchers: None, metrics: Some(listen(metrics)), page: page.map(listen) };
        let (run_dir, key_file) = (Path::new("/run/x"), Path::new("/nowhere"));
        let (events, hooks) = (&KeptEvents::NONE, None);
        Common { name: "x", key_file, run_dir, heartbeat_ms: 20, events, hooks, watching }
    }

    #[test]
    fn only_what_this_host_can_serve_is_started() {
        let none = Common { watching: Watching::default(), ..common("[::]:1", None) };
        assert!(Plan::of(&[(none, "a")]).is_none());
        assert!(Plan::of(&[(common("192.0.2.1:1", None), "a")]).is_none(), "another host's");
        let here = common("127.0.0.1:9464", Some("[::]:9465"));
        let plan = Plan::of(&[(here, "a"), (here, "witness")]).unwrap();
        assert_eq!(plan.arguments, ["--metrics=127.0.0.1:9464", "--page=[::]:9465"]);
        assert_eq!(plan.sockets, [Path::new("/run/x/a.watch"), Path::new("/run/x/witness.watch")]);
    }

    #[test]
    fn a_child_ends_with_its_daemon_and_its_last_words_are_kept() {
        let run = |words: &[&str]| {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).stderr(Stdio::piped()).spawn().unwrap()
        };
        let (alive, over) = channel();
        let mut brief = run(&["sh", "-c", "echo no room >&2; exit 3"]);
        let status = wait(&mut brief, &over).unwrap();
        assert_eq!(last_words(brief, status), "no room");
        let mut silent = run(&["true"]);
        let status = wait(&mut silent, &over).unwrap();
        assert!(last_words(silent, status).contains("it is started again"));
        let mut long = run(&["sleep", "1000"]);
        drop(alive);
        assert!(wait(&mut long, &over).is_none());
        assert!(long.try_wait().unwrap().is_some());
    }
}
