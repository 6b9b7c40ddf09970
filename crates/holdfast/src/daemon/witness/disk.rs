//! What a witness keeps: a file for each group, and a number that lasts until its host is started
//! again.

use crate::daemon::record;
use crate::lock::{self, Lock};
use anyhow::{Context as _, Result, ensure};
use holdfast_cluster::arbiter::stored::{GROUP_BYTES_MAX, GroupState};
use std::fs;
use std::path::{Path, PathBuf};

/// Ending of a group's file.
const ENDING: &str = "group";
const BOOT: &str = "boot";
/// What the kernel draws at each start of the host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The folder, which nobody else uses meanwhile.
pub(super) struct Disk {
    folder: PathBuf,
    boot: u32,
    /// Held for as long as this lives.
    _lock: Lock,
}

impl Disk {
    /// Opens the folder, or makes it; returns also what it has of each group.
    pub fn open(folder: &Path) -> Result<(Self, Vec<GroupState>)> {
        let shown = folder.display();
        let failed = || format!("{shown}; it must be writable and survive a reboot");
        fs::create_dir_all(folder).with_context(failed)?;
        let lock = lock::exclusive(&folder.join("lock")).with_context(failed)?;
        let lock =
            lock.with_context(|| format!("{shown} is used by another witness; stop that one"))?;
        let stored = read_groups(folder)?;
        let boot = boot(folder).with_context(failed)?;
        Ok((Self { folder: folder.to_owned(), boot, _lock: lock }, stored))
    }

    pub fn boot(&self) -> u32 {
        self.boot
    }

    /// Writes what is known of a group, and waits until the disk has it.
    pub fn keep(&mut self, state: &GroupState) -> Result<()> {
        let path = self.folder.join(format!("{}.{ENDING}", state.group));
        record::replace(&path, state.to_string().as_bytes())
            .map(drop)
            .with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Whether it could write now: a disk that is full is noticed before somebody takes over.
    pub fn probe(&self) -> Result<()> {
        let path = self.folder.join("probe");
        record::replace(&path, &[b' '; GROUP_BYTES_MAX])
            .map(drop)
            .with_context(|| format!("{} cannot be written", self.folder.display()))
    }
}

fn read_groups(folder: &Path) -> Result<Vec<GroupState>> {
    let mut stored = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != ENDING) {
            continue;
        }
        let remedy = "remove it, and keep both members running: they say what they know";
        let Some(state) = record::read(&path, remedy)? else { continue };
        let is_its = path.file_stem().is_some_and(|stem| stem == state.group.as_str());
        ensure!(is_its, "{} is of the group `{}`; remedy: {remedy}", path.display(), state.group);
        stored.push(state);
    }
    Ok(stored)
}

/// The number of this start of the host: another one each time, because the disk may be another one
/// then.
fn boot(folder: &Path) -> Result<u32> {
    let id = fs::read_to_string(BOOT_ID)?;
    let path = folder.join(BOOT);
    let found = fs::read_to_string(&path).unwrap_or_default();
    let known = found.split_once(' ').filter(|(_, of)| of.trim() == id.trim());
    let known = known.and_then(|(number, _)| u32::from_str_radix(number, 16).ok());
    if let Some(number) = known.filter(|number| *number != 0) {
        return Ok(number);
    }
    let number = getrandom::u32().map_err(std::io::Error::other)? | 1;
    record::replace(&path, format!("{number:08x} {id}").as_bytes())?;
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_cluster::arbiter::{Mode, Owner, Record};

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("holdfast-witness-{name}-{}", std::process::id()))
    }

    fn state(epoch: u64) -> GroupState {
        let owner = Owner { name: "a".to_owned(), life: 7 };
        let record = Some(Record { epoch, owner, mode: Mode::Solo });
        let members = ["a".to_owned(), "b".to_owned()];
        GroupState { group: "web".to_owned(), members, lineage: 3, record }
    }

    #[test]
    fn what_was_kept_is_there_the_next_time_and_so_is_the_number_of_this_start() {
        let folder = folder("kept");
        let (mut disk, stored) = Disk::open(&folder).unwrap();
        assert!(stored.is_empty() && disk.boot() != 0);
        disk.keep(&state(1)).unwrap();
        disk.keep(&state(2)).unwrap();
        assert!(Disk::open(&folder).is_err(), "another witness uses it");
        let boot = disk.boot();
        drop(disk);
        let (disk, stored) = Disk::open(&folder).unwrap();
        assert_eq!((disk.boot(), stored), (boot, vec![state(2)]));
        drop(disk);
        fs::write(folder.join(BOOT), format!("{boot:08x} another-start")).unwrap();
        assert_ne!(Disk::open(&folder).unwrap().0.boot(), boot, "its disk may be another");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn groups_whose_names_have_dots_have_files_of_their_own() {
        let folder = folder("dots");
        let (mut disk, _) = Disk::open(&folder).unwrap();
        let named = |group: &str| GroupState { group: group.to_owned(), ..state(1) };
        let all = [named("web"), named("web.a"), named("web.b")];
        all.iter().for_each(|state| disk.keep(state).unwrap());
        drop(disk);
        let (_disk, mut stored) = Disk::open(&folder).unwrap();
        stored.sort_by(|one, other| one.group.cmp(&other.group));
        assert_eq!(stored, all);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_damaged_file_is_named_with_its_remedy() {
        let folder = folder("damaged");
        let (mut disk, _) = Disk::open(&folder).unwrap();
        disk.keep(&state(1)).unwrap();
        drop(disk);
        let path = folder.join("web.group");
        let text = fs::read_to_string(&path).unwrap();
        fs::rename(&path, folder.join("other.group")).unwrap();
        let refused = |folder: &Path| format!("{:#}", Disk::open(folder).err().unwrap());
        assert!(refused(&folder).contains("is of the group `web`"));
        fs::remove_file(folder.join("other.group")).unwrap();
        fs::write(&path, &text[..text.len() - 3]).unwrap();
        let told = refused(&folder);
        assert!(told.contains("web.group is damaged") && told.contains("remedy"), "{told}");
        fs::remove_dir_all(folder).unwrap();
    }
}
