//! Mount namespaces. A daemon's pins lie in a BPF file system that it mounts; where it has a mount
//! namespace of its own, as some settings of a unit give it, that is gone when it ends, and the
//! next daemon finds nothing.

use holdfast_linux::process;
use std::path::PathBuf;

/// What to do about such a namespace.
pub const REMEDY: &str = "start it in the host's own mount namespace: a unit without PrivateTmp=, \
    PrivateDevices=, PrivateMounts=, ProtectSystem=, ProtectHome=, ReadWritePaths= and the like, \
    and nothing behind `ip netns exec`";

/// Why what a process mounts does not outlive it, if that is so: nobody else has its mount
/// namespace but its family, and who has started it.
#[must_use]
pub fn why_lost(pid: u32) -> Option<String> {
    of(pid)?;
    let own: Vec<u32> = ancestors(pid).into_iter().chain(process::family(pid)).collect();
    (!has_company(pid, &own)).then(|| {
        "it has a mount namespace of its own: programs and maps that it pins are gone from there \
         when it ends, and the next daemon cannot go on with them"
            .to_owned()
    })
}

fn of(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

/// Whether a process beside these `own` has the mount namespace of `pid`.
#[must_use]
pub fn has_company(pid: u32, own: &[u32]) -> bool {
    let Some(here) = of(pid) else { return false };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|other| !own.contains(other)).any(|other| of(other).as_ref() == Some(&here))
}

/// A process, its parent, and so on.
#[must_use]
pub fn ancestors(pid: u32) -> Vec<u32> {
    let parent = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        line.trim().parse().ok().filter(|pid| *pid > 0)
    };
    std::iter::successors(Some(pid), parent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    #[test]
    fn who_else_is_in_a_mount_namespace_is_seen() {
        let me = std::process::id();
        let own = ancestors(me);
        assert!(own.len() > 1 && own[0] == me, "{own:?}");
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(has_company(me, &own), "a process of ours is there too");
        assert!(!has_company(u32::MAX, &own), "there is no such process");
        other.kill().unwrap();
        other.wait().unwrap();
    }

    /// Waits until the child runs its program.
    fn sleeps(mut command: Command) -> Child {
        let child = command.spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        let comm = format!("/proc/{}/comm", child.id());
        while std::fs::read_to_string(&comm).unwrap() != "sleep\n" {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    #[test]
    fn mounts_of_a_namespace_that_is_nobody_elses_are_lost() {
        let sleep = |words: &[&str]| {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).arg("60");
            command
        };
        // The two that are alike have each other.
        let commands = [&["unshare", "--mount", "sleep"][..], &["sleep"], &["sleep"]].map(sleep);
        let mut children = commands.map(sleeps);
        let told = children.each_ref().map(|child| why_lost(child.id()).is_some());
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(told, [true, false, false]);
    }
}
