//! What switches a member's host off where a command decides: the command asks by a file on its own
//! host, and this answers once no process of the other host runs any more.

use super::Testbed;
use super::host::signal_all;
use super::ours::MEMBERS;
use anyhow::Result;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Name of the command in a host's directory.
pub(super) const COMMAND: &str = "power-off";
/// Time between two looks for somebody who asks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The switch of both members' hosts.
pub struct PowerSwitch {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    ends: AtomicBool,
    is_broken: AtomicBool,
    asked: AtomicU64,
    switched: AtomicU64,
}

/// A member's host, and what the other one's command needs to have it switched off.
struct Target {
    holder: u32,
    /// Directory of the host where the command runs.
    asks_at: PathBuf,
}

impl PowerSwitch {
    /// Gives both hosts their command, and waits for it to be run.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn start(testbed: &Testbed) -> Result<Self> {
        let state = Arc::new(State::default());
        let mut targets = Vec::new();
        for role in MEMBERS {
            let (host, asks) = (testbed.host(role), testbed.host(role.other()));
            write_command(host.outside(), host.inside())?;
            let asks_at = asks.outside().to_owned();
            targets.push(Target { holder: host.holder(), asks_at });
        }
        let shared = Arc::clone(&state);
        let serve = move || {
            while !shared.ends.load(Relaxed) {
                targets.iter().for_each(|target| shared.serve(target));
                std::thread::sleep(LOOK_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("power".to_owned()).spawn(serve)?;
        Ok(Self { state, thread: Some(thread) })
    }

    /// Whether commands fail from now on.
    pub fn breaks(&self, yes: bool) {
        self.state.is_broken.store(yes, Relaxed);
    }

    /// How often a command was run, and how many hosts were switched off.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.state.asked.load(Relaxed), self.state.switched.load(Relaxed))
    }
}

impl Drop for PowerSwitch {
    fn drop(&mut self) {
        self.state.ends.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl State {
    fn serve(&self, target: &Target) {
        let asked = target.asks_at.join("off-asked");
        if !asked.exists() {
            return;
        }
        self.asked.fetch_add(1, Relaxed);
        let _ = fs::remove_file(&asked);
        let is_off = !self.is_broken.load(Relaxed) && switch_off(target.holder).is_ok();
        self.switched.fetch_add(u64::from(is_off), Relaxed);
        // The command waits for a whole file.
        let answer = target.asks_at.join("off-answer");
        let part = target.asks_at.join("off-part");
        let written = fs::write(&part, if is_off { "0\n" } else { "1\n" });
        let _ = written.and_then(|()| fs::rename(&part, &answer));
    }
}

/// Kills until nothing is left. What a kernel without processes has to send, its lease has ended.
fn switch_off(holder: u32) -> Result<()> {
    while signal_all(holder, Signal::KILL)? > 0 {
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn write_command(outside: &Path, inside: &Path) -> Result<()> {
    let (file, inside) = (outside.join(COMMAND), inside.display());
    let script = format!(
        "#!/bin/sh\n# Asks the laboratory to switch the host of member $1 off.\n\
         rm -f {inside}/off-answer\necho \"$1\" > {inside}/off-asked\n\
         while [ ! -e {inside}/off-answer ]; do sleep 0.01; done\n\
         read code < {inside}/off-answer\n[ \"$code\" = 0 ] || echo 'it does not answer' >&2\n\
         exit \"$code\"\n"
    );
    fs::write(&file, script)?;
    Ok(fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?)
}
