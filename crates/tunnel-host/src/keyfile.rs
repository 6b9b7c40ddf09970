//! Key files: they are made for their owner alone, and not believed if anybody else can read them.

use holdfast_tunnel::secure::{KEY_BYTES, NotAKey, SecretKey};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Largest key file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// Why a key file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("{0}")]
    Unreadable(io::Error),
    #[error("it cannot be made: {0}")]
    Unwritable(io::Error),
    #[error("it is no plain file")]
    NoFile,
    #[error("others than its owner can read it (mode {mode:04o})")]
    TooOpen { mode: u32 },
    #[error("it belongs to user {owner}, who can read and change it")]
    OtherOwner { owner: u32 },
    #[error("it {0}")]
    Malformed(NotAKey),
    #[error("it is there already, and may hold the only copy of a key")]
    Exists,
    #[error("the kernel gives no random bytes: {0}")]
    NoRandom(getrandom::Error),
}

impl KeyFileError {
    /// The remedy.
    pub fn remedy(&self, path: &Path) -> String {
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new(".")).display();
        let path = path.display();
        match self {
            Self::Unreadable(error) if error.kind() == io::ErrorKind::NotFound => {
                format!("make one: holdfast tunnel key gen {path}")
            }
            Self::Unreadable(_) | Self::NoFile => {
                "run as the owner of the file; it is a plain file with one line of digits"
                    .to_owned()
            }
            Self::Unwritable(error) => match error.kind() {
                io::ErrorKind::NotFound => format!("make its folder first: mkdir -p {folder}"),
                io::ErrorKind::PermissionDenied => {
                    format!("run it as a user that may write to {folder}, or name a file elsewhere")
                }
                _ => format!(
                    "look whether {folder} is a folder that has room, or name a file elsewhere"
                ),
            },
            Self::TooOpen { .. } => {
                format!("chmod 600 {path}, and make a new key if a stranger may have read it")
            }
            Self::OtherOwner { .. } => {
                format!(
                    "chown to this user: {path}, and make a new key if a stranger may have read it"
                )
            }
            Self::Malformed(_) => format!(
                "mend the line that is wrong, or make a new key elsewhere: holdfast tunnel key gen \
                 {path}.new"
            ),
            Self::Exists => format!("choose another name, or remove it first: rm {path}"),
            Self::NoRandom(_) => "look at the kernel's log".to_owned(),
        }
    }
}

/// Makes a key and its file, which must not be there yet.
///
/// # Errors
/// As [`KeyFileError`] tells.
pub fn generate(path: &Path) -> Result<SecretKey, KeyFileError> {
    let mut bytes = [0; KEY_BYTES];
    getrandom::fill(&mut bytes).map_err(KeyFileError::NoRandom)?;
    let key = SecretKey::from_random(bytes);
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => KeyFileError::Exists,
        _ => KeyFileError::Unwritable(error),
    })?;
    file.write_all(key.to_text().as_bytes()).map_err(KeyFileError::Unwritable)?;
    file.sync_all().map_err(KeyFileError::Unwritable)?;
    Ok(key)
}

/// Reads a key file.
///
/// # Errors
/// As [`KeyFileError`] tells.
pub fn load(path: &Path) -> Result<SecretKey, KeyFileError> {
    // Opening a pipe would wait for its writer.
    let mut options = File::options();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(KeyFileError::Unreadable)?;
    let found = file.metadata().map_err(KeyFileError::Unreadable)?;
    if !found.is_file() {
        return Err(KeyFileError::NoFile);
    }
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::TooOpen { mode });
    }
    let own = rustix::process::geteuid().as_raw();
    if ![0, own].contains(&found.uid()) {
        return Err(KeyFileError::OtherOwner { owner: found.uid() });
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(KeyFileError::Unreadable)?;
    SecretKey::parse(&text).map_err(KeyFileError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    #[test]
    fn a_key_file_is_for_its_owner_and_is_made_once() {
        let path = std::env::temp_dir().join(format!("hf-tunnel-key-{}", std::process::id()));
        let made = generate(&path).expect("a key");
        assert_eq!(load(&path).expect("it is readable"), made);
        assert!(matches!(generate(&path), Err(KeyFileError::Exists)));
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("a mode");
        let refused = load(&path).expect_err("others may read it");
        assert!(matches!(refused, KeyFileError::TooOpen { mode: 0o640 }));
        assert!(refused.remedy(&path).starts_with("chmod 600 "));
        std::fs::remove_file(&path).expect("it is there");
        let missing = load(&path).expect_err("it is gone");
        assert!(missing.remedy(&path).starts_with("make one: holdfast tunnel key gen "));
    }

    #[test]
    fn a_key_without_a_folder_is_not_told_to_be_made_again() {
        let path = std::env::temp_dir().join(format!("hf-none-{}/wan.key", std::process::id()));
        let refused = generate(&path).expect_err("there is no folder");
        let remedy = refused.remedy(&path);
        let folder = path.parent().expect("a folder").display();
        assert_eq!(remedy, format!("make its folder first: mkdir -p {folder}"));
        let denied = KeyFileError::Unwritable(io::ErrorKind::PermissionDenied.into());
        assert!(denied.remedy(Path::new("wan.key")).contains("may write to ., or"));
    }
}
