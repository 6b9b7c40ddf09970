//! `[hooks]`: a program that is told when the state of this daemon changes.
//!
//! A thread runs it, one at a time. While it runs the newest change waits, and those between are
//! counted: whoever is slow hears of the last state. It gets nothing that is the daemon's, and
//! nobody waits for it, not even the daemon's end.

use crate::admin::{Level, Report};
use crate::config::Hooks;
use crate::daemon::placement;
use crate::fingerprint;
use crate::status::{State, Status, rfc3339};
use anyhow::{Context as _, Result, bail};
use holdfast_linux::epoll::Signals;
use holdfast_linux::process::{pidfd_open, poll};
use holdfast_linux::spawn::{kill_group, without_ours};
use serde::Serialize;
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Time after a change before the program is started: a takeover, which is over by then, is not to
/// wait for a fork, and its states are one change.
const SETTLES: Duration = Duration::from_millis(50);
/// Longest time for which the end of the daemon waits for a call that has begun.
const END_MAX: Duration = Duration::from_millis(500);
/// Most of what a program says that is told, in bytes.
const SAID_MAX: usize = 4096;
/// Most of it in an event.
const TOLD_MAX: usize = 400;
/// Longest reason that is handed on, in bytes; with it all fits into a pipe.
const REASON_MAX: usize = 2048;
/// Variables of the daemon that are not the program's business.
const OURS: [&str; 6] = [
    "LD_PRELOAD",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "JOURNAL_STREAM",
    "INVOCATION_ID",
];

/// A change of the state, as the program gets it on its standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    pub group: String,
    pub member: String,
    pub role: String,
    /// The state that was told before.
    pub old: String,
    pub new: String,
    pub reason: String,
    pub remedy: String,
    pub epoch: u64,
    pub time: String,
}

impl Change {
    /// The change from `old` to what the status says.
    #[must_use]
    pub fn new(status: &Status, old: State) -> Self {
        let cut = |text: &str| text[..text.floor_char_boundary(REASON_MAX)].replace('\0', "");
        Self {
            group: status.group.clone(),
            member: status.member.clone(),
            role: status.role.word(),
            old: old.word(),
            new: status.state.word(),
            reason: cut(&status.reason),
            remedy: cut(&status.remedy),
            epoch: status.epoch,
            time: rfc3339(SystemTime::now()),
        }
    }

    fn variables(&self) -> [(&'static str, String); 8] {
        [
            ("HOLDFAST_GROUP", self.group.clone()),
            ("HOLDFAST_MEMBER", self.member.clone()),
            ("HOLDFAST_ROLE", self.role.clone()),
            ("HOLDFAST_OLD", self.old.clone()),
            ("HOLDFAST_NEW", self.new.clone()),
            ("HOLDFAST_REASON", self.reason.clone()),
            ("HOLDFAST_EPOCH", self.epoch.to_string()),
            ("HOLDFAST_TIME", self.time.clone()),
        ]
    }
}

/// Has the program called, and never waits.
#[derive(Debug)]
pub struct Caller {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    slot: Mutex<Slot>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Slot {
    waiting: Option<Change>,
    /// Changes that a newer one has replaced since the last call.
    passed_over: u64,
    is_busy: bool,
    is_ending: bool,
}

impl Shared {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change; `None`: the daemon ends.
    fn next(&self) -> Option<(Change, u64)> {
        let mut slot = self.slot();
        slot.is_busy = false;
        self.changed.notify_all();
        let idle = |slot: &mut Slot| slot.waiting.is_none() && !slot.is_ending;
        slot = self.changed.wait_while(slot, idle).unwrap_or_else(PoisonError::into_inner);
        let lives = |slot: &mut Slot| !slot.is_ending;
        let settled = self.changed.wait_timeout_while(slot, SETTLES, lives);
        slot = settled.unwrap_or_else(PoisonError::into_inner).0;
        let change = slot.waiting.take()?;
        slot.is_busy = true;
        Some((change, std::mem::take(&mut slot.passed_over)))
    }
}

impl Caller {
    /// Starts the thread; what goes wrong with the program is reported to `tell`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(hooks: Hooks, tell: Sender<Report>) -> io::Result<Self> {
        // A signal that ends the daemon is for its loop, never for this thread.
        let _blocked = Signals::block()?;
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let work = move || {
            placement::leave();
            while let Some((change, passed_over)) = seen.next() {
                call(&hooks, &change, passed_over, &tell);
            }
        };
        std::thread::Builder::new().name("hook".to_owned()).spawn(work)?;
        Ok(Self { shared })
    }

    /// Has the program told of a change.
    pub fn call(&self, mut change: Change) {
        let mut slot = self.shared.slot();
        if let Some(earlier) = slot.waiting.take() {
            slot.passed_over += 1;
            change.old = earlier.old;
        }
        slot.waiting = Some(change);
        self.shared.changed.notify_all();
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut slot = self.shared.slot();
        slot.is_ending = true;
        self.shared.changed.notify_all();
        let works = |slot: &mut Slot| slot.is_busy || slot.waiting.is_some();
        let _late = self.shared.changed.wait_timeout_while(slot, END_MAX, works);
    }
}

fn call(hooks: &Hooks, change: &Change, passed_over: u64, tell: &Sender<Report>) {
    let report = |level, detail| {
        // The daemon may be ending.
        let _gone = tell.send(Report { level, what: "hook", detail });
    };
    if passed_over > 0 {
        let detail = format!("{passed_over} changes were over before it could be told of them");
        report(Level::Info, detail);
    }
    let begun = Instant::now();
    match run(hooks, change) {
        Ok(said) => {
            let (old, new, ms) = (&change.old, &change.new, begun.elapsed().as_millis());
            tracing::debug!("hook: told of {old} -> {new} in {ms} ms");
            said.lines().for_each(|line| tracing::info!("hook says: {line}"));
        }
        Err(error) => report(Level::Warn, format!("{error:#}")),
    }
}

/// Runs the program; returns what it has said.
fn run(hooks: &Hooks, change: &Change) -> Result<String> {
    let [program, words @ ..] = &hooks.on_state[..] else { bail!("there is no program") };
    let user = hooks.user.as_deref().map(fingerprint::user_of).transpose()?;
    let (output, end) = io::pipe().context("no pipe")?;
    let mut command = Command::new(program);
    command.args(words).envs(change.variables()).current_dir("/");
    for name in OURS {
        command.env_remove(name);
    }
    command.stdin(Stdio::piped()).stdout(end.try_clone()?).stderr(end);
    without_ours(&mut command, user);
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    // It keeps the other end of the pipe.
    drop(command);
    if let Some(mut stdin) = child.stdin.take() {
        let line = serde_json::to_string(change)? + "\n";
        // Who does not read it need not.
        let _closed = stdin.write_all(line.as_bytes());
    }
    let limit = Duration::from_secs(hooks.timeout_s);
    let (is_over, said) = attend(&child, output, limit);
    if !is_over {
        let _gone = kill_group(child.id());
    }
    let status = child.wait()?;
    let said = printable(&said);
    let told = &said[..said.floor_char_boundary(TOLD_MAX)];
    let colon = if told.is_empty() { "" } else { ": " };
    match (is_over, status.success()) {
        (false, _) => bail!("{program} was killed after {} s{colon}{told}", hooks.timeout_s),
        (true, false) => bail!("{program} ended with {status}{colon}{told}"),
        (true, true) => Ok(said),
    }
}

/// Takes what the program says until it has ended, or its time is over; whether it has ended.
fn attend(child: &Child, mut output: PipeReader, limit: Duration) -> (bool, Vec<u8>) {
    let (until, mut said) = (Instant::now() + limit, Vec::new());
    let Ok(process) = pidfd_open(child.id()) else { return (false, said) };
    let watched = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut is_open = true;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut fds = [watched(process.as_fd().as_raw_fd()), watched(output.as_raw_fd())];
        let count = if is_open { 2 } else { 1 };
        let ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        match poll(&mut fds[..count], ms.saturating_add(i32::from(!left.is_zero()))) {
            Ok(0) => return (false, said),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return (false, said),
            Ok(_) => {}
        }
        if is_open && fds[1].revents != 0 {
            let mut buffer = [0; SAID_MAX];
            let count = output.read(&mut buffer).unwrap_or(0);
            is_open = count > 0;
            let room = SAID_MAX.saturating_sub(said.len());
            said.extend_from_slice(&buffer[..count.min(room)]);
            // One that never stops talking has no more time for that.
            if count > 0 && Instant::now() < until {
                continue;
            }
        }
        if fds[0].revents != 0 {
            return (true, said);
        }
        if Instant::now() >= until {
            return (false, said);
        }
    }
}

/// What a program has said, without what a terminal would obey.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let plain = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
    text.trim().chars().map(plain).collect()
}

#[cfg(test)]
mod tests;
