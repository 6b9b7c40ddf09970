//! A tar file of small texts (POSIX.1-1988, "ustar").

use std::time::SystemTime;

const BLOCK: usize = 512;
/// Longest name that its field holds.
const NAME_MAX: usize = 100;

/// Files below one folder.
pub(super) struct Archive {
    folder: &'static str,
    at: u64,
    bytes: Vec<u8>,
}

impl Archive {
    pub fn new(folder: &'static str) -> Self {
        let at = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        Self { folder, at, bytes: Vec::new() }
    }

    /// Adds a file; of a name that is too long, the end is cut.
    pub fn add(&mut self, name: &str, content: &[u8]) {
        let path = format!("{}/{name}", self.folder);
        let path = &path.as_bytes()[..path.len().min(NAME_MAX)];
        let mut header = [0; BLOCK];
        let mut put = |at: usize, field: &[u8]| header[at..at + field.len()].copy_from_slice(field);
        put(0, path);
        put(100, b"0000600\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, format!("{:011o}\0", self.at).as_bytes());
        // The sum is made with blanks in its own place.
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK, 0);
        self.bytes
    }
}
