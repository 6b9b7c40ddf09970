//! Gives the loader's thread the server's rights to files: the kernel then refuses the
//! loader what the server may not open, make or bind, too. All other rights stay.

use crate::rights::Capabilities;
use crate::sockopt::checked;
use holdfast_wire::snapshot::Ids;
use libc::{c_int, c_long, c_ulong};
use std::io;
use std::marker::PhantomData;

/// Capabilities that are rights to files (`CAP_FS_MASK` of the kernel): chown,
/// dac_override, dac_read_search, fowner, fsetid, linux_immutable, mknod, mac_override.
const OF_FILES: u64 = 0b1_1111 | 1 << 9 | 1 << 27 | 1 << 32;
/// Number that asks for the current one without setting it.
const ASK: u32 = u32::MAX;

/// The server's rights in one thread, until this is dropped.
pub(super) struct Guise {
    user: u32,
    group: u32,
    groups: Vec<u32>,
    capabilities: Capabilities,
    /// The dumpable flag, which a change of rights takes from a process.
    dumpable: c_int,
    dies_by: c_int,
    here: PhantomData<*mut ()>,
}

impl Guise {
    /// The guise of a server that has just been started as a user other than
    /// root.
    pub fn of_user(user: u32, group: u32) -> io::Result<Self> {
        Self::of(&Ids {
            users: [user; 4],
            groups: [group; 4],
            further_groups: Vec::new(),
            capabilities: [0; 5],
            secure_bits: 0,
        })
    }

    pub fn of(ids: &Ids) -> io::Result<Self> {
        let capabilities = Capabilities::get()?;
        let mut dies_by: c_int = 0;
        // SAFETY: plain numbers; the kernel writes one int.
        let dumpable = unsafe {
            checked(libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut dies_by))?;
            checked(libc::prctl(libc::PR_GET_DUMPABLE))?
        };
        let own = Self {
            user: set_number(libc::SYS_setfsuid, ASK),
            group: set_number(libc::SYS_setfsgid, ASK),
            groups: groups()?,
            capabilities,
            dumpable,
            dies_by,
            here: PhantomData,
        };
        // If this is dropped from here on, it gives back what was taken.
        set_groups(&ids.further_groups)?;
        set_number(libc::SYS_setfsgid, ids.groups[3]);
        set_number(libc::SYS_setfsuid, ids.users[3]);
        let is_set = set_number(libc::SYS_setfsuid, ASK) == ids.users[3]
            && set_number(libc::SYS_setfsgid, ASK) == ids.groups[3];
        if !is_set {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let [_, _, effective, _, _] = ids.capabilities;
        own.capabilities.with_files(effective).set()?;
        Ok(own)
    }
}

/// Ends the guise. A daemon that stayed in it would be refused its own files:
/// better no daemon.
impl Drop for Guise {
    fn drop(&mut self) {
        let own = self.capabilities.set();
        set_number(libc::SYS_setfsuid, self.user);
        set_number(libc::SYS_setfsgid, self.group);
        let groups = set_groups(&self.groups);
        let again = self.capabilities.set();
        let is_own = set_number(libc::SYS_setfsuid, ASK) == self.user
            && set_number(libc::SYS_setfsgid, ASK) == self.group;
        assert!(is_own && own.and(groups).and(again).is_ok(), "the loader's own rights");
        // SAFETY: plain numbers.
        unsafe {
            // Only 0 and 1 can be set; any other value nobody has set here.
            libc::prctl(libc::PR_SET_DUMPABLE, self.dumpable as c_ulong);
            libc::prctl(libc::PR_SET_PDEATHSIG, self.dies_by as c_ulong);
        }
    }
}

/// Sets this thread's user or group for files; returns the previous one. libc's own
/// call would set all threads'.
fn set_number(call: c_long, to: u32) -> u32 {
    // SAFETY: plain numbers.
    unsafe { libc::syscall(call, to) as u32 }
}

fn groups() -> io::Result<Vec<u32>> {
    // SAFETY: without room nothing is written.
    let count = checked(unsafe { libc::getgroups(0, std::ptr::null_mut()) })?;
    let mut groups = vec![0; count as usize];
    // SAFETY: the kernel writes at most as many numbers as there is room for.
    let count = checked(unsafe { libc::getgroups(count, groups.as_mut_ptr()) })?;
    groups.truncate(count as usize);
    Ok(groups)
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the kernel only reads the numbers.
    let set = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    checked(set as c_int).map(drop)
}

impl Capabilities {
    /// These capabilities with another's rights to files, as far as they may be
    /// had.
    fn with_files(mut self, effective: u64) -> Self {
        for (half, shift) in self.0.iter_mut().zip([0, 32]) {
            let [own, permitted, _] = half;
            let (files, theirs) = ((OF_FILES >> shift) as u32, (effective >> shift) as u32);
            *own = *own & !files | theirs & files & *permitted;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    /// Needs root.
    #[test]
    fn a_file_of_roots_is_refused_in_anothers_guise_and_to_root_without_rights() {
        let path = std::env::temp_dir().join(format!("hfguise{}", std::process::id()));
        let file = File::create(&path).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o000);
        file.set_permissions(mode).expect("it is ours");
        let nobody = |user, effective| Ids {
            users: [user; 4],
            groups: [user; 4],
            further_groups: vec![user],
            capabilities: [0, 0, effective, 0, 0],
            secure_bits: 0,
        };
        let before = std::fs::read_to_string("/proc/thread-self/status").expect("a status");
        for (user, effective, may) in [(65534, 0, false), (0, 0, false), (0, OF_FILES, true)] {
            let guise = Guise::of(&nobody(user, effective)).expect("root's");
            assert_eq!(File::open(&path).is_ok(), may, "{user} {effective:x}");
            let made = path.with_extension("made");
            let owner = File::create(&made).and_then(|made| made.metadata()).map(|it| it.uid());
            assert_eq!(owner.ok(), Some(user), "who makes files owns them");
            drop(guise);
            std::fs::remove_file(made).expect("it is there");
        }
        File::open(&path).expect("root may");
        let after = std::fs::read_to_string("/proc/thread-self/status").expect("a status");
        let rights = |status: &str| -> Vec<String> {
            let kept = status.lines().filter(|line| {
                ["Uid", "Gid", "Groups", "Cap"].iter().any(|name| line.starts_with(name))
            });
            kept.map(str::to_owned).collect()
        };
        assert_eq!(rights(&before), rights(&after));
        std::fs::remove_file(path).expect("it is there");
    }
}
