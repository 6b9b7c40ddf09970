//! The folder of a daemon's socket, pins and notes. Anybody who may write there could
//! answer in the daemon's place, and name processes that the next daemon ends.

use crate::spool;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

const BY_GROUP: u32 = 0o020;
const BY_ALL: u32 = 0o002;
/// Mode bit by which only its owner moves or removes what lies there.
const STICKY: u32 = 0o1000;

/// Makes the folder if it does not exist, and refuses it if others may write to
/// it, or this daemon may not.
///
/// # Errors
/// As mkdir(2), or with reason and remedy.
pub fn make(folder: &Path) -> io::Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
    let Some((reason, remedy)) = trouble(folder) else { return made };
    let kind = made.err().map_or(io::ErrorKind::Other, |error| error.kind());
    Err(io::Error::new(kind, format!("{reason}\n  remedy: {remedy}")))
}

/// What to do where it is full, or takes no files, and a server may have outlived its daemon: that is
/// found by this folder.
pub const KEEP: &str = "then start this daemon again; no `holdfast down`, and no other run_dir: a server \
    that has outlived its daemon is found by this folder, and would be ended with its clients' \
    connections";

/// Why the folder could not be a daemon's, and the remedy. A folder that does not
/// exist is judged by where it will be.
#[must_use]
pub fn trouble(folder: &Path) -> Option<(String, String)> {
    if let Some((reason, remedy)) = foreign(folder) {
        return Some((reason, or_keep(folder, &remedy)));
    }
    unwritable(folder)
}

fn or_another(remedy: &str) -> String {
    format!("{remedy}, or choose another run_dir in [group]")
}

/// As [`or_another`], unless a server may be found by this folder.
fn or_keep(folder: &Path, remedy: &str) -> String {
    match holds_a_server(folder) {
        true => format!("{remedy}, {KEEP}"),
        false => or_another(remedy),
    }
}

/// Whether some daemon has noted its server there, which may run still.
fn holds_a_server(folder: &Path) -> bool {
    let all = std::fs::read_dir(folder).into_iter().flatten().flatten();
    all.map(|entry| entry.path()).any(|path| path.extension().is_some_and(|it| it == "server"))
}

/// Why nothing can be made there.
fn unwritable(folder: &Path) -> Option<(String, String)> {
    let there = folder.ancestors().find(|path| path.exists())?;
    let error = spool::try_out(there).err()?;
    let reason = format!("no file can be made in {}: {error}", there.display());
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied if own_user() != Some(0) => or_another("do it as root"),
        io::ErrorKind::StorageFull => format!("make room there, {KEEP}"),
        _ => or_keep(folder, MOUNTED),
    };
    Some((reason, remedy))
}

const MOUNTED: &str = "look at how its file system is mounted, and at the room on it";

fn own_user() -> Option<u32> {
    std::fs::metadata("/proc/self").ok().map(|found| found.uid())
}

/// Why the folder is not this daemon's alone.
fn foreign(folder: &Path) -> Option<(String, String)> {
    let real = folder.canonicalize();
    let own = own_user()?;
    // Names of what does not exist lead nowhere yet.
    let known = real.as_deref().unwrap_or(folder);
    known.ancestors().find_map(|path| {
        let found = std::fs::metadata(path).ok()?;
        judge(path, &found, path == known, own)
    })
}

fn judge(path: &Path, found: &Metadata, is_last: bool, own: u32) -> Option<(String, String)> {
    let (shown, owner, mode) = (path.display(), found.uid(), found.mode());
    if !found.is_dir() {
        let remedy = format!("move {shown} away");
        return Some((format!("{shown} is not a folder"), remedy));
    }
    if owner != 0 && owner != own {
        let reason = format!("{shown} belongs to user {owner}, who could answer as this daemon");
        return Some((reason, format!("chown root {shown}")));
    }
    let forbidden = match (is_last, mode & STICKY != 0) {
        (true, _) => BY_GROUP | BY_ALL,
        (false, false) => BY_ALL,
        (false, true) => 0,
    };
    (mode & forbidden != 0).then(|| {
        let reason = format!(
            "other users may write to {shown} (mode {:o}), and could answer as this daemon",
            mode & 0o7777
        );
        // A folder that is meant for everybody stays so.
        let remedy = match mode & STICKY != 0 && mode & BY_ALL != 0 {
            true => format!("name a folder of its own below {shown}"),
            false => format!("chmod go-w {shown}"),
        };
        (reason, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::path::PathBuf;

    /// The folder `/tmp/…/above/run`, removed with the test.
    struct Folders(PathBuf);

    impl Folders {
        fn new(name: &str) -> Self {
            let own = format!("holdfast-run-dir-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(own))
        }

        fn above(&self) -> PathBuf {
            self.0.join("above")
        }

        fn run(&self) -> PathBuf {
            self.above().join("run")
        }
    }

    impl Drop for Folders {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
    }

    #[test]
    fn a_folder_of_ones_own_below_a_sticky_one_is_good() {
        let folders = Folders::new("good");
        assert_eq!(trouble(&folders.run()), None, "it is not there yet");
        make(&folders.run()).expect("a folder");
        set_mode(&folders.run(), 0o700);
        make(&folders.run()).expect("it was there");
    }

    /// Nobody makes files in `/proc`, and it has been there since before the daemon.
    #[test]
    fn a_folder_that_cannot_be_written_is_refused_with_the_remedy() {
        for folder in ["/proc", "/proc/sys/holdfast/demo"] {
            let (reason, remedy) = trouble(Path::new(folder)).expect("it cannot be written");
            assert!(reason.starts_with("no file can be made in /proc"), "{reason}");
            assert!(remedy.ends_with("choose another run_dir in [group]"), "{remedy}");
            let error = make(Path::new(folder)).expect_err("as check said").to_string();
            assert_eq!(error, format!("{reason}\n  remedy: {remedy}"));
        }
    }

    /// Another folder would have the next daemon end a server that it does not find.
    #[test]
    fn where_a_server_may_have_outlived_its_daemon_no_other_folder_is_advised() {
        let folders = Folders::new("full");
        make(&folders.run()).expect("a folder");
        let mount = |words: &[&str]| {
            let done = std::process::Command::new("mount").args(words).arg(folders.run()).status();
            assert!(done.is_ok_and(|done| done.success()), "mount {words:?}: it needs root");
        };
        mount(&["-t", "tmpfs", "-o", "size=64k,nr_inodes=3,mode=755", "none"]);
        std::fs::write(folders.run().join("a.server"), "1 2\nloose\n").expect("room");
        std::fs::write(folders.run().join("b"), "").expect("the last file");
        let full = trouble(&folders.run());
        std::fs::remove_file(folders.run().join("b")).expect("it is there");
        mount(&["-o", "remount,ro"]);
        let read_only = trouble(&folders.run());
        let unmounted = std::process::Command::new("umount").arg(folders.run()).status();
        assert!(unmounted.is_ok_and(|done| done.success()));
        for (found, begin) in [(full, "make room there, then start"), (read_only, "look at how")] {
            let (reason, remedy) = found.expect("no file can be made");
            assert!(reason.starts_with("no file can be made"), "{reason}");
            assert!(remedy.starts_with(begin) && remedy.contains(KEEP), "{remedy}");
            assert!(!remedy.contains("choose another"), "{remedy}");
        }
    }

    #[test]
    fn a_file_is_no_folder() {
        let folders = Folders::new("file");
        make(&folders.above()).expect("a folder");
        std::fs::write(folders.run(), "").expect("a file");
        let (reason, remedy) = trouble(&folders.run()).expect("it is a file");
        assert!(reason.ends_with("is not a folder") && remedy.starts_with("move "), "{reason}");
        assert_eq!(trouble(&folders.run().join("below")), Some((reason, remedy)));
    }

    #[test]
    fn where_others_may_write_nothing_is_put() {
        let folders = Folders::new("writable");
        make(&folders.run()).expect("a folder");
        let (run, above) = (folders.run(), folders.above());
        set_mode(&run, 0o1777);
        let error = make(&run).expect_err("it is everybody's").to_string();
        assert!(error.contains("remedy: name a folder of its own below "), "{error}");
        for (path, mode) in [(&run, 0o777), (&run, 0o775), (&above, 0o777)] {
            set_mode(path, mode);
            let error = make(&run).expect_err("others may write").to_string();
            let remedy = format!("remedy: chmod go-w {},", path.display());
            assert!(error.contains(&remedy), "{error}");
            set_mode(path, 0o755);
            make(&run).expect("the remedy helps");
        }
        set_mode(&above, 0o1777);
        make(&run).expect("nobody can move it");
    }

    #[test]
    fn a_folder_of_somebody_else_is_refused_wherever_a_link_leads() {
        let folders = Folders::new("owned");
        make(&folders.run()).expect("a folder");
        let link = folders.0.join("link");
        std::os::unix::fs::symlink(folders.above(), &link).expect("a link");
        chown(folders.above(), Some(65534), None).expect("the tests run as root");
        for run in [folders.run(), link.join("run")] {
            let error = make(&run).expect_err("it is another's").to_string();
            assert!(error.contains("belongs to user 65534"), "{error}");
            assert!(error.contains(&format!("remedy: chown root {}", folders.above().display())));
        }
    }
}
