//! Whether a verb sees what a daemon has mounted: its pins lie in a BPF file system of the
//! daemon's own mount namespace, and `ip netns exec` makes another one for each command.

use crate::leavings::{Kind, Removed};
use holdfast_linux::process;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Why a verb finds no pins of the daemon that listens at `socket`, with the remedy, if it
/// looks for them where they cannot be.
pub(super) fn why_unseen(socket: &Path) -> Option<String> {
    let daemon = UnixStream::connect(socket).and_then(|daemon| process::peer(daemon.as_fd()));
    match daemon {
        Ok(pid) => is_elsewhere(pid).then(|| {
            format!(
                "its daemon (process {pid}) has another mount namespace, in which its pins are, \
                 as under `ip netns exec`\n  remedy: nsenter -t {pid} -m -n holdfast …"
            )
        }),
        Err(_) => is_elsewhere(1).then(elsewhere),
    }
}

/// What is to be added after `down` has found filters whose pins it does not see.
pub(super) fn hint_after(removed: &[Removed]) -> Option<String> {
    let is_elsewhere = is_elsewhere(1);
    has_unseen_pins(removed).then(elsewhere).filter(|_| is_elsewhere)
}

fn has_unseen_pins(removed: &[Removed]) -> bool {
    let has = |kind| removed.iter().any(|one| one.kind == kind);
    has(Kind::Filter) && !has(Kind::Mount)
}

fn elsewhere() -> String {
    "this command has a mount namespace of its own, as under `ip netns exec`: pins and BPF file \
     systems of another one are not seen\n  remedy: say it again where the daemon was started, \
     or with nsenter -t PID -m -n, PID being a process there"
        .to_owned()
}

/// Whether a process has another mount namespace than this one; false if nobody can tell.
fn is_elsewhere(pid: u32) -> bool {
    let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    of("self").zip(of(&pid.to_string())).is_some_and(|(own, other)| own != other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_without_their_mount_are_what_remains_unseen() {
        let one = |kind| Removed { kind, what: "x".to_owned() };
        assert!(!has_unseen_pins(&[]));
        assert!(!has_unseen_pins(&[one(Kind::Address)]));
        assert!(has_unseen_pins(&[one(Kind::Address), one(Kind::Filter)]));
        assert!(!has_unseen_pins(&[one(Kind::Filter), one(Kind::Mount)]));
        assert!(!is_elsewhere(std::process::id()));
        assert!(elsewhere().contains("`ip netns exec`"));
    }
}
