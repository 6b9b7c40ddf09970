//! State folders from an image: assembled in a folder within each, and exchanged
//! for the old content once everything has arrived and is on the disk.

use super::super::error::{Doing, Result, SnapshotError, refuse};
use super::super::guise::Guise;
use super::super::names::Mounts;
use super::aside::{self, ASIDE, set_aside};
use super::attributes;
use super::{LOST_AND_FOUND, Root};
use crate::sockopt::checked;
use holdfast_wire::snapshot::{State, StateEntry, StateKind};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Folder in which arriving content is assembled. Nothing else has changed yet.
pub(super) const ARRIVING: &str = ".holdfast-arriving";
/// The same folder once all has arrived: it is being exchanged for the old
/// content.
pub(super) const ARRIVED: &str = ".holdfast-arrived";

/// Flags for opening without waiting: somebody may have put a FIFO in a file's
/// place.
const AT_ONCE: libc::c_int = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;

fn own_file(opened: io::Result<File>) -> io::Result<File> {
    let file = opened?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no file")),
    }
}

/// Content that is being placed; see the module. It is removed if this is dropped
/// before everything has arrived.
pub(in super::super) struct Placing<'a> {
    state: &'a State,
    roots: Vec<Root>,
    /// The old content is set aside, and not removed.
    keeps_old: bool,
    /// The file that was written to last.
    open: Option<(u32, File)>,
}

impl<'a> Placing<'a> {
    /// Makes room for what arrives, and all folders and files, still empty.
    ///
    /// # Errors
    /// If the folders are not those `allowed` by this host's own file.
    pub fn begin(
        state: &'a State,
        allowed: &[PathBuf],
        keeps_old: bool,
        mounts: &Mounts,
    ) -> Result<Self> {
        let same = state.folders.iter().map(|folder| Path::new(OsStr::from_bytes(folder)));
        if !same.clone().eq(allowed.iter()) {
            let shown: Vec<String> = same.map(|folder| folder.display().to_string()).collect();
            return refuse(format!(
                "the other member's state_dirs are [{}], and not those of this host's file",
                shown.join(", ")
            ));
        }
        let roots: Result<Vec<Root>> =
            allowed.iter().map(|path| Root::open(path, mounts)).collect();
        let placing = Self { state, roots: roots?, keeps_old, open: None };
        for root in &placing.roots {
            root.has_room(state.bytes)?;
            let settled = aside::put_back(root).and_then(|()| settle_in(root));
            settled.doing(format!("what is left in {}", root.path.display()))?;
            let mut private = DirBuilder::new();
            private.mode(0o700).create(root.at(ARRIVING)).doing(root.shown(ARRIVING.as_bytes()))?;
        }
        for entry in &state.entries {
            placing.make(entry).doing(placing.shown(entry))?;
        }
        Ok(placing)
    }

    fn root(&self, entry: &StateEntry) -> &Root {
        &self.roots[entry.folder as usize]
    }

    fn shown(&self, entry: &StateEntry) -> String {
        self.root(entry).shown(&entry.path)
    }

    fn path(&self, entry: &StateEntry) -> PathBuf {
        self.root(entry).at(Path::new(ARRIVING).join(OsStr::from_bytes(&entry.path)))
    }

    fn make(&self, entry: &StateEntry) -> io::Result<()> {
        let path = self.path(entry);
        match &entry.kind {
            StateKind::Folder => DirBuilder::new().mode(0o700).create(path),
            StateKind::File { size } => {
                let mut fresh = OpenOptions::new();
                fresh.write(true).create_new(true).mode(0o600).open(path)?.set_len(*size)
            }
            // No name of what arrives may lead through a link.
            StateKind::Link { .. } => Ok(()),
        }
    }

    /// Writes bytes of a file.
    pub fn fill(&mut self, number: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let entry = &self.state.entries[number as usize];
        let last = self.open.take();
        let what = || format!("filling {}", self.shown(entry));
        let file = match last {
            Some((open, file)) if open == number => file,
            _ => {
                let mut again = OpenOptions::new();
                again.write(true).custom_flags(AT_ONCE);
                own_file(again.open(self.path(entry))).doing(what())?
            }
        };
        file.write_all_at(bytes, offset).doing(what())?;
        self.open = Some((number, file));
        Ok(())
    }

    /// Everything has arrived: writes it to the disk, and exchanges it for the old
    /// content.
    pub fn finish(mut self) -> Result<()> {
        self.open = None;
        let order = |entry: &&StateEntry| matches!(entry.kind, StateKind::Folder);
        // A folder is written to until everything in it is there.
        let folders = self.state.entries.iter().rev().filter(order);
        for entry in self.state.entries.iter().filter(|it| !order(it)).chain(folders) {
            self.complete(entry).doing(self.shown(entry))?;
        }
        for root in &self.roots {
            let exchange = || {
                sync_all_of(root)?;
                if self.keeps_old {
                    set_aside(root)?;
                }
                fs::rename(root.at(ARRIVING), root.at(ARRIVED))?;
                settle_in(root)
            };
            exchange().doing(format!("exchanging what is in {}", root.path.display()))?;
        }
        Ok(())
    }

    /// Sets attributes, owner, rights and time of what is there by now. Whoever does this may not be
    /// its owner any more then, and a list of rights decides what the mode says of the group.
    fn complete(&self, entry: &StateEntry) -> io::Result<()> {
        // The kernel lets only root set other owners.
        let owner =
            |path: &Path, give: fn(&Path, Option<u32>, Option<u32>) -> io::Result<()>| match give(
                path,
                Some(entry.user),
                Some(entry.group),
            ) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
                given => given,
            };
        let path = self.path(entry);
        if let StateKind::Link { to } = &entry.kind {
            symlink(OsStr::from_bytes(to), &path)?;
            attributes::set(&path, &entry.attributes)?;
            return owner(&path, |path, user, group| lchown(path, user, group));
        }
        attributes::set(&path, &entry.attributes)?;
        owner(&path, |path, user, group| chown(path, user, group))?;
        let mut again = OpenOptions::new();
        let file = again.read(true).custom_flags(AT_ONCE).open(&path)?;
        let written = Duration::from_nanos(entry.written_ns.max(0).cast_unsigned());
        file.set_times(fs::FileTimes::new().set_modified(UNIX_EPOCH + written))?;
        file.set_permissions(Permissions::from_mode(entry.mode))
    }
}

impl Drop for Placing<'_> {
    fn drop(&mut self) {
        for root in &self.roots {
            // The next attempt removes it, too.
            let _ = remove(root, OsStr::new(ARRIVING));
        }
    }
}

/// Settles what an earlier life has left in a state folder: completes an exchange that
/// had begun, removes what had not arrived completely, and puts back what was set aside for a
/// server that was not rebuilt. Call it before a server uses
/// the folder, with the user and group that the server runs as (`None`: root).
///
/// # Errors
/// If the folder does not exist, or that user may not move its content.
pub fn settle(path: &Path, user: Option<(u32, u32)>) -> std::result::Result<(), SnapshotError> {
    let settled = |root: &Root| aside::put_back(root).and_then(|()| settle_in(root));
    as_server(path, user, settled)
}

/// Forgets what was set aside in a state folder: the server is rebuilt, and has all of its log.
///
/// # Errors
/// As [`settle`].
pub fn forget(path: &Path, user: Option<(u32, u32)>) -> std::result::Result<(), SnapshotError> {
    as_server(path, user, aside::forget)
}

fn as_server(
    path: &Path,
    user: Option<(u32, u32)>,
    does: impl FnOnce(&Root) -> io::Result<()>,
) -> Result<()> {
    let mounts = Mounts::read().doing("what is mounted")?;
    let guise = user.map(|(user, group)| Guise::of_user(user, group)).transpose();
    let _guise = guise.doing("the server's rights to files")?;
    let root = Root::open(path, &mounts)?;
    does(&root).doing(format!("what is left in {}", path.display()))
}

pub(super) fn settle_in(root: &Root) -> io::Result<()> {
    remove(root, OsStr::new(REMOVING))?;
    remove(root, OsStr::new(ARRIVING))?;
    let arrived = root.at(ARRIVED);
    if !exists(&arrived)? {
        return Ok(());
    }
    // It must not be a link that somebody has put there.
    if !fs::symlink_metadata(&arrived)?.is_dir() {
        return remove(root, OsStr::new(ARRIVED));
    }
    // What was moved already must not be removed, so a second life needs to know: the
    // old content is removed first, and only then anything is moved.
    let moving = root.at(Path::new(ARRIVED).join(MOVING));
    if !exists(&moving)? {
        for name in names(root.at(""))? {
            let stays = name == ARRIVED || name == ASIDE || name.as_bytes() == LOST_AND_FOUND;
            if !stays {
                remove(root, &name)?;
            }
        }
        sync(root)?;
        File::create_new(&moving)?.sync_all()?;
        File::open(&arrived)?.sync_all()?;
    }
    for name in names(arrived.clone())? {
        if name != MOVING {
            // Somebody may have put something there since.
            remove(root, &name)?;
            fs::rename(arrived.join(&name), root.at(&name))?;
        }
    }
    sync(root)?;
    remove(root, OsStr::new(ARRIVED))?;
    sync(root)
}

pub(super) fn names(folder: PathBuf) -> io::Result<Vec<OsString>> {
    fs::read_dir(folder)?.map(|found| Ok(found?.file_name())).collect()
}

/// Name within [`ARRIVED`] that says: the old content is gone.
const MOVING: &str = ".holdfast-moving";

/// Writes all of its file system to the disk: writing thousands of files one by one
/// takes long.
fn sync_all_of(root: &Root) -> io::Result<()> {
    let folder = File::open(root.at(""))?;
    // SAFETY: plain numbers.
    checked(unsafe { libc::syncfs(folder.as_raw_fd()) }).map(drop)
}

pub(super) fn sync(root: &Root) -> io::Result<()> {
    File::open(root.at(""))?.sync_all()
}

pub(super) fn exists(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes an entry of the folder, however deep it is: lower levels are moved up into
/// one folder, level by level, so that neither stack nor descriptors run out.
pub(super) fn remove(root: &Root, name: &OsStr) -> io::Result<()> {
    let path = root.at(name);
    let removed = match fs::symlink_metadata(&path) {
        Ok(found) if found.is_dir() => remove_folder(root, &path),
        Ok(_) => fs::remove_file(&path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => {
            let text =
                format!("{}: it, or something in it, cannot be removed: {error}", name.display());
            Err(io::Error::new(error.kind(), text))
        }
        Ok(()) => Ok(()),
    }
}

fn remove_folder(root: &Root, path: &Path) -> io::Result<()> {
    let heap = root.at(REMOVING);
    if !exists(&heap)? {
        DirBuilder::new().mode(0o700).create(&heap)?;
    }
    let mut number = 0u64;
    // An earlier life may have left some there, under such names.
    let mut put = |path: &Path| loop {
        let place = heap.join(number.to_string());
        number += 1;
        if !exists(&place)? {
            return fs::rename(path, place);
        }
    };
    if path != heap {
        put(path)?;
    }
    loop {
        let found: Vec<PathBuf> =
            fs::read_dir(&heap)?.map(|it| Ok(it?.path())).collect::<io::Result<_>>()?;
        if found.is_empty() {
            return fs::remove_dir(&heap);
        }
        for path in found {
            if !fs::symlink_metadata(&path)?.is_dir() {
                fs::remove_file(&path)?;
                continue;
            }
            // Its owner may have locked everybody out, even from what is in it.
            let _others = fs::set_permissions(&path, Permissions::from_mode(0o700));
            for below in fs::read_dir(&path)? {
                let below = below?.path();
                match fs::symlink_metadata(&below)?.is_dir() {
                    true => put(&below)?,
                    false => fs::remove_file(&below)?,
                }
            }
            fs::remove_dir(&path)?;
        }
    }
}

/// Name of the folder for entries that are being removed.
pub(super) const REMOVING: &str = ".holdfast-removing";
