//! What a daemon that starts no server keeps of root's rights: it parses what strangers send.
//!
//! It gives the others up before it has a second thread, and for good, so what it keeps must do for
//! every later life in the same process as well ([`super::reload`]). A member of a pair gives up
//! nothing: a server that starts as root, and one that is rebuilt from an image, gets its rights
//! from it.

use crate::config::{Common, GroupFile, Role};
use crate::run_dir;
use anyhow::{Context as _, Result};
use holdfast_linux::rights::{HARMFUL, Held, Keep, MOUNTS, RUNNING, set_of};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
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
        Self::shown(keep, &Held::now().unwrap_or_default())
    }

    /// Of a daemon that is started with all of root's rights, once it has this role of this file;
    /// `None`: it gives up nothing.
    #[must_use]
    pub fn planned(file: &GroupFile, role: &str) -> Option<Self> {
        let keep = match file {
            GroupFile::Replicated(config) => match config.role(role).ok()? {
                Role::Member(_) => return None,
                Role::Edge => of_packets(&file.common()),
                Role::Witness => {
                    let arbiter = config.arbiter.as_ref()?;
                    of_witness(&[file.common()], &arbiter.state_dir, arbiter.witness()?.port())
                }
            },
            GroupFile::Spread(_) | GroupFile::Transit(_) => of_packets(&file.common()),
        };
        let (capabilities, gains_none) = (keep.capabilities, !keep.gains);
        Some(Self::shown(&keep, &Held { capabilities, gains_none, filtered: true }))
    }

    /// In words, as a line for people.
    #[must_use]
    pub fn words(&self) -> String {
        let mut words = vec![match &self.capabilities[..] {
            [] => "it keeps no capability".to_owned(),
            some => format!("it keeps {}", some.join(", ")),
        }];
        let mut say = |holds: bool, what: &str| words.extend(holds.then(|| what.to_owned()));
        say(self.no_new_privileges, "gains no rights by programs that it starts");
        say(self.starts_nothing, "starts no program");
        say(self.filtered, "is refused the system calls that it does not need");
        if !self.writes.is_empty() {
            let all: Vec<String> = self.writes.iter().map(|it| it.display().to_string()).collect();
            words.push(format!("changes files in {} only", all.join(", ")));
        }
        words.join("; ")
    }

    fn shown(keep: &Keep, held: &Held) -> Self {
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
    enter(&of_packets(common))
}

fn of_packets(common: &Common<'_>) -> Keep {
    let keep = [&OF_PACKETS[..], &OF_PROGRAMS, &OF_WATCHERS].concat();
    let denied = HARMFUL.to_vec();
    Keep { capabilities: set_of(&keep), gains: common.hooks.is_some(), denied, writes: None }
}

/// Keeps what a witness of these groups needs, which listens at `port` and keeps its records in
/// `state_dir`: most often nothing. Called once, at the start.
///
/// # Errors
/// If a right that is to go stays, or a folder cannot be made.
pub(super) fn keep_for_witness(groups: &[Common<'_>], state_dir: &Path, port: u16) -> Result<()> {
    for group in groups {
        run_dir::make(group.run_dir)?;
    }
    for folder in &folders_of(groups, state_dir) {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    enter(&of_witness(groups, state_dir, port))
}

/// The folders of a witness.
fn folders_of(groups: &[Common<'_>], state_dir: &Path) -> Vec<PathBuf> {
    let of = |group: &Common<'_>| {
        let events_dir = group.events.events_dir.clone();
        [Some(group.run_dir.to_owned()), events_dir].into_iter().flatten()
    };
    [state_dir.to_owned()].into_iter().chain(groups.iter().flat_map(of)).collect()
}

fn of_witness(groups: &[Common<'_>], state_dir: &Path, port: u16) -> Keep {
    let any = |has: &dyn Fn(&Common<'_>) -> bool| groups.iter().any(has);
    let has_hooks = any(&|it| it.hooks.is_some());
    let shows = |it: &Common<'_>| it.watching.metrics.is_some() || it.watching.page.is_some();
    let starts = has_hooks || any(&shows);
    let mut names: Vec<&str> = Vec::new();
    names.extend(OF_PROGRAMS.iter().filter(|_| starts));
    names.extend(OF_WATCHERS.iter().filter(|_| any(&|it| it.watching.watchers.is_some())));
    names.extend(OF_PORTS.iter().filter(|_| port < FREE_PORTS));
    let mut folders = folders_of(groups, state_dir);
    let keys = groups.iter().map(|it| it.key_file);
    // What is missing is made by this user, or is missing for everybody.
    let own = |path: &Path| match std::fs::metadata(path) {
        Ok(found) => found.uid() == 0,
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    let all_own = folders.iter().map(PathBuf::as_path).chain(keys).all(own);
    names.extend(OF_FILES.iter().filter(|_| !all_own));
    folders.push("/dev/null".into());
    let mut denied = [&HARMFUL[..], &MOUNTS].concat();
    denied.extend(RUNNING.iter().filter(|_| !starts));
    // A hook is the operator's, and may write where it likes.
    let writes = (!has_hooks).then_some(folders);
    Keep { capabilities: set_of(&names), gains: has_hooks, denied, writes }
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

    fn planned(text: &str, role: &str) -> Option<Rights> {
        let file = GroupFile::parse(Path::new("/nowhere/x.toml"), text).expect("a file");
        Rights::planned(&file, role)
    }

    #[test]
    fn what_a_daemon_will_keep_is_told_before_it_starts() {
        let pair = include_str!("../../../../docs/example.toml");
        assert_eq!(planned(pair, "a"), None, "a member gives up nothing");
        let edge = planned(pair, "edge").expect("it gives up some");
        assert!(edge.filtered && edge.no_new_privileges && !edge.starts_nothing);
        assert!(edge.capabilities.iter().any(|it| it == "CAP_NET_ADMIN"));
        assert!(edge.capabilities.iter().all(|it| it != "CAP_SYS_PTRACE"));
        assert!(edge.writes.is_empty() && edge.words().contains("CAP_NET_ADMIN, "));
        let segment = include_str!("../../../../docs/example-segment.toml");
        assert_eq!(planned(segment, "b"), None);
        let witness = planned(segment, "witness").expect("it gives up nearly all");
        assert!(witness.capabilities.is_empty() && witness.starts_nothing, "{witness:?}");
        let state_dir = Path::new("/var/lib/holdfast/witness");
        assert!(witness.writes.iter().any(|it| it == state_dir), "{witness:?}");
        let words = witness.words();
        assert!(words.starts_with("it keeps no capability; "), "{words}");
        assert!(words.contains("starts no program") && words.contains("/demo, "), "{words}");
        // A hook is a program, and may write where it likes.
        let hooked = format!("{segment}\n[hooks]\non_state = [\"/bin/true\"]\n");
        let hooked = planned(&hooked, "witness").expect("fewer");
        assert!(!hooked.starts_nothing && !hooked.no_new_privileges && hooked.writes.is_empty());
        assert_eq!(hooked.capabilities, ["CAP_KILL", "CAP_SETGID", "CAP_SETUID"]);
        for (text, role) in [
            (include_str!("../../../../docs/example-spread.toml"), "a"),
            (include_str!("../../../../docs/example-transit.toml"), "near"),
        ] {
            let rights = planned(text, role).expect("it moves packets");
            assert_eq!(rights.capabilities, edge.capabilities, "{role}");
        }
    }

    #[test]
    fn a_daemon_that_has_given_up_nothing_lacks_nothing() {
        assert!(!lacks("hooks.on_state") && !lacks("group.events_dir"));
        let shown = Rights::now();
        assert!(!shown.starts_nothing && shown.writes.is_empty());
    }
}
