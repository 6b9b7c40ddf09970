//! The folder of sockets and locks. Whoever may write there could answer in the tunnel's place.

use crate::config::Config;
use anyhow::{Context as _, Result, bail};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Makes the folder if it is not there, and refuses one in which others may write.
///
/// # Errors
/// With the remedy.
pub fn make(folder: &Path) -> Result<()> {
    let shown = folder.display();
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o755);
    builder.create(folder).with_context(|| {
        format!("the folder {shown} cannot be made (remedy: choose another run_dir in [tunnel])")
    })?;
    look(folder)
}

/// Refuses a folder in which others may write.
///
/// # Errors
/// With the remedy.
pub fn look(folder: &Path) -> Result<()> {
    let shown = folder.display();
    let found = std::fs::metadata(folder).with_context(|| format!("the folder {shown}"))?;
    let own = rustix::process::geteuid().as_raw();
    if ![0, own].contains(&found.uid()) || found.mode() & 0o022 != 0 {
        bail!(
            "others may write to {shown}, and could answer as this tunnel\n  remedy: chmod go-w \
             {shown}, or choose another run_dir in [tunnel]"
        );
    }
    Ok(())
}

/// Takes the tunnel's lock, which ends with this process however that ends. The file stays: a removed
/// one could be locked twice.
///
/// # Errors
/// If another process has it, with the remedy.
pub fn lock(config: &Config) -> Result<File> {
    let path = config.lock();
    let shown = path.display();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    // Neither a pipe nor a link that somebody has put there.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let unusable =
        || format!("the lock {shown} cannot be had (remedy: choose another run_dir in [tunnel])");
    let mut file = options.custom_flags(flags).open(&path).with_context(unusable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => bail!("{}", runs_already(config, &mut file)),
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(unusable);
        }
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

fn runs_already(config: &Config, file: &mut File) -> String {
    let mut text = String::new();
    let _unknown = file.take(16).read_to_string(&mut text);
    let (name, path) = (&config.name, config.path.display());
    let pid = text.trim();
    format!(
        "the tunnel `{name}` runs already (pid {pid})\n  remedy: look at it with `holdfast tunnel \
         status --config {path}`, or end it first with `kill {pid}`"
    )
}
