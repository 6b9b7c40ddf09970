//! Who may look: the group of users of `group.watchers`, and its socket beside the admin socket.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The table of groups of users.
const GROUPS: &str = "/etc/group";

/// The socket of those who only look, beside the daemon's admin socket.
#[must_use]
pub fn watch_socket(admin: &Path) -> PathBuf {
    admin.with_extension("watch")
}

/// The number of the group called so on this host.
///
/// # Errors
/// If there is none, with the remedy.
pub fn group_id(name: &str) -> io::Result<u32> {
    let table = std::fs::read_to_string(GROUPS)?;
    lines(&table).find(|(found, _)| *found == name).map(|(_, gid)| gid).ok_or_else(|| {
        let message = format!(
            "watchers = \"{name}\": {GROUPS} has no such group\n  remedy: make it on this host \
             (`groupadd --system {name}`), or name another one in [group]"
        );
        io::Error::new(ErrorKind::NotFound, message)
    })
}

/// Who may look at the daemon with this admin socket, for the remedy of somebody who may not.
#[must_use]
pub fn who_may_look(admin: &Path) -> String {
    let socket = watch_socket(admin);
    let group = std::fs::symlink_metadata(&socket).ok().filter(|found| found.mode() & 0o060 != 0);
    let Some(group) = group.map(|found| found.gid()) else {
        return "ask as root, or name a group of users as watchers in [group]: its members may \
                look, and the daemon has to be started anew for that"
            .to_owned();
    };
    let table = std::fs::read_to_string(GROUPS).unwrap_or_default();
    let name = lines(&table).find(|(_, gid)| *gid == group).map(|(name, _)| name.to_owned());
    let name = name.unwrap_or_else(|| group.to_string());
    format!("ask as root, or be in the group `{name}`, which may look ({})", socket.display())
}

fn lines(table: &str) -> impl Iterator<Item = (&str, u32)> {
    table.lines().filter_map(|line| {
        let mut parts = line.split(':');
        let (name, _password, gid) = (parts.next()?, parts.next()?, parts.next()?);
        Some((name, gid.parse().ok()?))
    })
}
