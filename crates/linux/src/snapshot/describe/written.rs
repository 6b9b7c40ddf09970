//! Files that a server has open and writes. The other host does not get what it writes:
//! that host has its own files, as they were when its member was last a backup. Logs
//! that are only appended to may differ.

use holdfast_wire::message::clip;
use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Standard input, output and error, which the restoring side provides.
const STANDARD: std::ops::Range<u32> = 0..3;

/// The written files; see the module.
#[derive(Default)]
pub(super) struct Written(BTreeSet<PathBuf>);

impl Written {
    /// Looks at one descriptor.
    pub fn note(&mut self, number: u32, path: &Path, metadata: &Metadata, flags: u32) {
        // A file without a name is transferred with the image.
        let is_file = path.is_absolute() && metadata.is_file() && metadata.nlink() > 0;
        if is_file && !STANDARD.contains(&number) && is_state(path, flags) {
            self.0.insert(path.to_owned());
        }
    }

    /// Notes a file of which a part is mapped writable.
    pub fn note_mapped(&mut self, path: &Path) {
        self.0.insert(path.to_owned());
    }

    /// Why there is no image, if any such file was found.
    pub fn refusal(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let names: Vec<String> = self.0.iter().map(|path| path.display().to_string()).collect();
        Some(format!(
            "it has files open that it writes, which do not go over: {}; name their folders in \
             state_dirs of [server] on all hosts, or restart both members at a quiet moment",
            clip(&names.join(", "))
        ))
    }
}

/// Whether a file opened like this holds data that the server may read again.
fn is_state(path: &Path, flags: u32) -> bool {
    let writes = flags & libc::O_ACCMODE.cast_unsigned() != libc::O_RDONLY.cast_unsigned();
    let appends = flags & libc::O_APPEND.cast_unsigned() != 0;
    let is_log = path.starts_with("/var/log") || path.extension().is_some_and(|it| it == "log");
    writes && !(appends && is_log)
}

#[cfg(test)]
mod tests {
    use super::super::fdinfo::flags_of;
    use super::*;
    use std::fs;

    #[test]
    fn only_logs_that_are_appended_to_may_differ() {
        let (write, append) = (libc::O_WRONLY as u32, (libc::O_WRONLY | libc::O_APPEND) as u32);
        for (path, flags, expected) in [
            ("/etc/mime.types", libc::O_RDONLY as u32, false),
            ("/srv/error.log", append, false),
            ("/var/log/nginx/access", append, false),
            ("/srv/error.log", write, true),
            ("/srv/appendonly.aof", append, true),
            ("/srv/db", libc::O_RDWR as u32, true),
        ] {
            assert_eq!(is_state(Path::new(path), flags), expected, "{path}");
        }
        assert_eq!(flags_of("pos:\t0\nflags:\t02100001\nmnt_id:\t1\n"), 0o2_100_001);
        assert_eq!((flags_of("pos:\t0\n"), flags_of("flags: x")), (0, 0));
    }

    #[test]
    fn only_named_files_behind_other_descriptors_count() {
        let path = std::env::temp_dir().join(format!("holdfast-state-{}", std::process::id()));
        let file = fs::File::create(&path).expect("a file");
        let named = file.metadata().expect("metadata");
        fs::remove_file(&path).expect("it was there");
        let unnamed = file.metadata().expect("metadata");
        let folder = fs::metadata("/").expect("metadata");
        let flags = libc::O_RDWR as u32;
        for (number, metadata, counts) in
            [(3, &named, true), (2, &named, false), (3, &unnamed, false), (3, &folder, false)]
        {
            let mut written = Written::default();
            written.note(number, &path, metadata, flags);
            let named = |reason: String| reason.contains(&*path.to_string_lossy());
            assert_eq!(written.refusal().is_some_and(named), counts, "{number}");
        }
    }
}
