//! Whether a verb sees what a daemon has mounted: its pins lie in a BPF file system of the
//! daemon's own mount namespace, and `ip netns exec` makes another one for each command.

use crate::leavings::{Kind, Removed};
use crate::mounts::{ancestors, has_company};
use holdfast_linux::process;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Folder where names of network namespaces are bound, as ip-netns(8) says.
const NAMES: &str = "/run/netns";

/// Why a verb finds no pins of the daemon that listens at `socket`, with the remedy, if it
/// looks where they cannot be.
pub(super) fn why_unseen(socket: &Path) -> Option<String> {
    let daemon = UnixStream::connect(socket).and_then(|daemon| process::peer(daemon.as_fd()));
    match daemon {
        Ok(pid) => is_elsewhere(pid).then(|| {
            format!(
                "its daemon (process {pid}) has another mount namespace, in which its pins are\n  \
                 remedy: nsenter -t {pid} -m -n holdfast …"
            )
        }),
        Err(_) => under_ip_netns_exec().then(elsewhere),
    }
}

/// Hint after `down` has found filters whose pins it does not see.
pub(super) fn hint_after(removed: &[Removed]) -> Option<String> {
    (has_unseen_pins(removed) && under_ip_netns_exec()).then(elsewhere)
}

fn has_unseen_pins(removed: &[Removed]) -> bool {
    let has = |kind| removed.iter().any(|one| one.kind == kind);
    has(Kind::Filter) && !has(Kind::Mount)
}

fn elsewhere() -> String {
    "`ip netns exec` has given this command a mount namespace of its own, in which pins and BPF \
     file systems of a daemon that was started otherwise are not seen\n  remedy: nsenter -t PID \
     -m -n holdfast …, PID being a process of that host"
        .to_owned()
}

/// Whether a process has another mount namespace than this one; false if nobody can tell.
fn is_elsewhere(pid: u32) -> bool {
    let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    of("self").zip(of(&pid.to_string())).is_some_and(|(own, other)| own != other)
}

/// Who has entered the mount namespace of a process has the same mounts as one who was given a
/// new one of that kind; but others are there.
fn under_ip_netns_exec() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    name_at_sys(&mounts).is_some_and(|name| Path::new(NAMES).join(name).exists())
        && !has_company(std::process::id(), &ancestors(std::process::id()))
}

/// The name of the network namespace, which `ip netns exec` gives to its new
/// mount of /sys.
fn name_at_sys(mounts: &str) -> Option<&str> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut of_sys = fields.filter_map(|fields| match fields[..] {
        [name, "/sys", "sysfs", ..] => Some(name),
        _ => None,
    });
    // Later mounts hide earlier ones.
    of_sys.next_back()
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
    }

    #[test]
    fn the_name_of_a_namespace_is_found_at_sys() {
        let plain = "/dev/vda / ext4 rw 0 0\nsysfs /sys sysfs rw,nosuid 0 0\n";
        assert_eq!(name_at_sys(plain), Some("sysfs"));
        let inside = format!("{plain}edge1 /sys sysfs rw 0 0\nx /run bpf rw 0 0\n");
        assert_eq!(name_at_sys(&inside), Some("edge1"));
        assert_eq!(name_at_sys(""), None);
    }
}
