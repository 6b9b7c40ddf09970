//! What a daemon that starts no server keeps of root's rights: it parses what strangers send.
//!
//! It gives the others up before it has a second thread, and for good, so what it keeps must do for
//! every later life in the same process as well ([`super::reload`]). A member of a pair gives up
//! nothing: a server that starts as root, and one that is rebuilt from an image, gets its rights
//! from it.

use crate::config::Common;
use crate::run_dir;
use anyhow::{Context as _, Result};
use holdfast_linux::rights::{HARMFUL, Held, Keep, MOUNTS, RUNNING, set_of};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// For what moves packets. CAP_SYS_ADMIN is needed to look up eBPF programs and maps by their
/// numbers, and for a host server to open the control groups; most else that it gives is denied
/// as system calls.
const OF_PACKETS: [&str; 10] = [
    "CAP_BPF",
    "CAP_DAC_OVERRIDE",
    "CAP_IPC_LOCK",
    "CAP_NET_ADMIN",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_PERFMON",
    "CAP_SYS_ADMIN",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
];
/// To start hooks and the program that serves metrics and page as other users, and to end them.
const OF_PROGRAMS: [&str; 3] = ["CAP_KILL", "CAP_SETGID", "CAP_SETUID"];
/// To give those who may look their socket.
const OF_WATCHERS: [&str; 1] = ["CAP_CHOWN"];
/// Of a witness that listens at a port of the system's.
const OF_PORTS: [&str; 1] = ["CAP_NET_BIND_SERVICE"];
/// Of a witness whose files are another user's.
const OF_FILES: [&str; 1] = ["CAP_DAC_OVERRIDE"];
/// First port that needs no right.
const FREE_PORTS: u16 = 1024;

/// What this process has kept, as it is shown; `None`: it has given up nothing.
static KEPT: OnceLock<Rights> = OnceLock::new();

/// The rights of a daemon, as `status` shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// Names of the capabilities that it has.
    pub capabilities: Vec<String>,
    /// Whether programs that it starts gain no rights by their mode.
    pub no_new_privileges: bool,
    /// Whether system calls that it does not need are refused.
    pub filtered: bool,
    /// The folders below which alone it can change files; absent: anywhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<PathBuf>,
    /// Whether it can start no program.
    #[serde(default)]
    pub starts_nothing: bool,
}

impl Rights {
    /// Of this process.
    #[must_use]
    pub fn now() -> Self {
        static ALL: OnceLock<Rights> = OnceLock::new();
        let all = || ALL.get_or_init(|| Self::of(&Keep::default()));
        KEPT.get().unwrap_or_else(all).clone()
    }

    fn of(keep: &Keep) -> Self {
        let held = Held::now().unwrap_or_default();
        Self {
            capabilities: held.names().into_iter().map(str::to_owned).collect(),
            no_new_privileges: held.gains_none,
            filtered: held.filtered,
            writes: keep.writes.clone().unwrap_or_default(),
            starts_nothing: RUNNING.iter().all(|call| keep.denied.contains(call)),
        }
    }
}

/// Whether a daemon that has started without such a setting has given up what it needs: then it
/// counts only after a restart.
pub(super) fn lacks(setting: &str) -> bool {
    let Some(kept) = KEPT.get() else { return false };
    let has =
        |names: &[&str]| names.iter().all(|name| kept.capabilities.iter().any(|it| it == name));
    let begins = |names: &[&str]| names.iter().any(|name| setting.starts_with(name));
    begins(&["hooks.", "metrics.", "page."]) && (kept.starts_nothing || !has(&OF_PROGRAMS))
        || begins(&["group.watchers"]) && !has(&OF_WATCHERS)
        || begins(&["group.events_dir"]) && !kept.writes.is_empty()
}

/// Keeps what an edge, a host server, or an edge of strings needs. Called once, at the start.
///
/// # Errors
/// If a right that is to go stays.
pub(super) fn keep_for_packets(common: &Common<'_>) -> Result<()> {
    let keep = [&OF_PACKETS[..], &OF_PROGRAMS, &OF_WATCHERS].concat();
    let denied = HARMFUL.to_vec();
    enter(&Keep {
        capabilities: set_of(&keep),
        gains: common.hooks.is_some(),
        denied,
        writes: None,
    })
}

/// Keeps what a witness of these groups needs, which listens at `port` and keeps its records in
/// `state_dir`: most often nothing. Called once, at the start.
///
/// # Errors
/// If a right that is to go stays, or a folder cannot be made.
pub(super) fn keep_for_witness(groups: &[Common<'_>], state_dir: &Path, port: u16) -> Result<()> {
    let any = |has: &dyn Fn(&Common<'_>) -> bool| groups.iter().any(has);
    let has_hooks = any(&|it| it.hooks.is_some());
    let shows = |it: &Common<'_>| it.watching.metrics.is_some() || it.watching.page.is_some();
    let starts = has_hooks || any(&shows);
    let mut names: Vec<&str> = Vec::new();
    names.extend(OF_PROGRAMS.iter().filter(|_| starts));
    names.extend(OF_WATCHERS.iter().filter(|_| any(&|it| it.watching.watchers.is_some())));
    names.extend(OF_PORTS.iter().filter(|_| port < FREE_PORTS));
    let mut folders = vec![state_dir.to_owned()];
    for group in groups {
        run_dir::make(group.run_dir)?;
        folders.push(group.run_dir.to_owned());
        folders.extend(group.events.events_dir.clone());
    }
    for folder in &folders {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let keys = groups.iter().map(|it| it.key_file);
    let own = |path: &Path| std::fs::metadata(path).is_ok_and(|found| found.uid() == 0);
    let all_own = folders.iter().map(PathBuf::as_path).chain(keys).all(own);
    names.extend(OF_FILES.iter().filter(|_| !all_own));
    folders.push("/dev/null".into());
    let mut denied = [&HARMFUL[..], &MOUNTS].concat();
    denied.extend(RUNNING.iter().filter(|_| !starts));
    // A hook is the operator's, and may write where it likes.
    let writes = (!has_hooks).then_some(folders);
    enter(&Keep { capabilities: set_of(&names), gains: has_hooks, denied, writes })
}

fn enter(keep: &Keep) -> Result<()> {
    keep.enter().context("giving up rights that are not needed")?;
    let kept = KEPT.get_or_init(|| Rights::of(keep));
    tracing::debug!("rights that are kept: {kept:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_one_that_the_kernel_knows() {
        let all = [&OF_PACKETS[..], &OF_PROGRAMS, &OF_WATCHERS, &OF_PORTS, &OF_FILES].concat();
        assert!(all.iter().all(|name| set_of(&[name]) != 0));
        for never in ["CAP_SYS_PTRACE", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SETPCAP"] {
            assert!(!all.contains(&never));
        }
    }

    #[test]
    fn a_daemon_that_has_given_up_nothing_lacks_nothing() {
        assert!(!lacks("hooks.on_state") && !lacks("group.events_dir"));
        let shown = Rights::now();
        assert!(!shown.starts_nothing && shown.writes.is_empty());
    }
}
