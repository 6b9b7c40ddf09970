//! Entering network namespaces that `ip netns` or a container has made.

use crate::sockopt::checked;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Why a network namespace could not be entered.
#[derive(Debug, thiserror::Error)]
#[error(
    "entering network namespace {path:?}: {source}; the path must exist and the caller have CAP_SYS_ADMIN"
)]
pub struct NetnsError {
    path: PathBuf,
    source: io::Error,
}

/// Moves the calling thread, and threads it starts later, into the namespace at
/// `path` (as `/run/netns/NAME`). Sockets that are already open stay where they are.
///
/// # Errors
/// [`NetnsError`].
pub fn enter(path: &Path) -> Result<(), NetnsError> {
    let failed = |source| NetnsError { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    // SAFETY: setns() touches no memory of ours.
    checked(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) }).map_err(failed)?;
    Ok(())
}

/// For tests that need a network namespace of their own, and root.
#[cfg(test)]
pub(crate) mod testing {
    use super::enter;
    use std::path::Path;
    use std::process::Command;

    /// Runs `program` with these words, and panics if it fails.
    pub(crate) fn run(program: &str, words: &str) {
        let done = Command::new(program).args(words.split(' ')).status();
        assert!(done.is_ok_and(|done| done.success()), "{program} {words}: it needs root");
    }

    /// Runs a test in a new namespace, whose `name` nobody else uses.
    pub(crate) fn inside(name: &str, test: impl FnOnce() + Send) {
        let name = format!("{name}{}", std::process::id());
        run("ip", &format!("netns add {name}"));
        let result = std::thread::scope(|scope| {
            let test = scope.spawn(|| {
                enter(&Path::new("/run/netns").join(&name)).unwrap();
                test();
            });
            test.join()
        });
        run("ip", &format!("netns del {name}"));
        assert!(result.is_ok(), "see above");
    }
}
