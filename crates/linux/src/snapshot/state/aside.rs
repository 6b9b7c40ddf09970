//! What a server that has fallen has left in its state folders, while it is rebuilt on its own
//! host (decision 31): set aside whole before an older image's files take its place, put back
//! if the server is not rebuilt, and forgotten once it has all of its log.

use super::place::{ARRIVED, ARRIVING, REMOVING, exists, names, remove, settle_in, sync};
use super::{LOST_AND_FOUND, Root};
use holdfast_wire::snapshot::STATE_RESERVED;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Folder into which it is moved: what is in it and what is beside it belong together.
const GOING_ASIDE: &str = ".holdfast-going-aside";
/// The same folder once all of it is there.
pub(super) const ASIDE: &str = ".holdfast-aside";

/// Sets aside all that the folder holds.
pub(super) fn set_aside(root: &Root) -> io::Result<()> {
    let going = root.at(GOING_ASIDE);
    DirBuilder::new().mode(0o700).create(&going)?;
    for name in names(root.at(""))? {
        let bytes = name.as_bytes();
        if !bytes.starts_with(STATE_RESERVED) && bytes != LOST_AND_FOUND {
            fs::rename(root.at(&name), going.join(&name))?;
        }
    }
    File::open(&going)?.sync_all()?;
    fs::rename(going, root.at(ASIDE))?;
    sync(root)
}

/// Puts back what was set aside, if anything was.
pub(super) fn put_back(root: &Root) -> io::Result<()> {
    let going = root.at(GOING_ASIDE);
    if is_folder(&going)? {
        // Nothing had taken its place yet.
        for name in names(going.clone())? {
            remove(root, &name)?;
            fs::rename(going.join(&name), root.at(&name))?;
        }
        sync(root)?;
    }
    remove(root, OsStr::new(GOING_ASIDE))?;
    if !is_folder(&root.at(ASIDE))? {
        return remove(root, OsStr::new(ASIDE));
    }
    remove(root, OsStr::new(ARRIVING))?;
    remove(root, OsStr::new(ARRIVED))?;
    // It arrives, and takes the place of all else.
    fs::rename(root.at(ASIDE), root.at(ARRIVED))?;
    settle_in(root)
}

/// It is of no use any more. Removing it takes a while: whoever copies or settles the folder
/// next does that.
pub(super) fn forget(root: &Root) -> io::Result<()> {
    if !exists(&root.at(ASIDE))? {
        return Ok(());
    }
    remove(root, OsStr::new(REMOVING))?;
    fs::rename(root.at(ASIDE), root.at(REMOVING))?;
    sync(root)
}

/// A link of that name is no folder of ours.
fn is_folder(path: &Path) -> io::Result<bool> {
    Ok(exists(path)? && fs::symlink_metadata(path)?.is_dir())
}
