//! `/proc/PID/maps` and `/proc/PID/smaps`.

use super::bounds::list;
use super::error::{Doing, Result};
use std::collections::BTreeMap;
use std::io;

/// An area as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Protection: readable 1, writable 2, executable 4.
    pub prot: u8,
    pub is_shared: bool,
    pub offset: u64,
    /// Major and minor number of the device.
    pub device: (u32, u32),
    pub inode: u64,
    /// A path, a name in brackets, or nothing.
    pub name: Vec<u8>,
}

impl Mapping {
    /// The file's path if it still has one.
    pub fn path(&self) -> Option<&[u8]> {
        (self.name.first() == Some(&b'/') && !self.is_deleted()).then_some(&self.name)
    }

    pub fn is_deleted(&self) -> bool {
        self.name.ends_with(b" (deleted)")
    }

    pub fn is_writable(&self) -> bool {
        self.prot & libc::PROT_WRITE as u8 != 0
    }
}

/// All areas by address, without the one that every process has at the end.
pub(super) fn read(pid: u32) -> Result<Vec<Mapping>> {
    let path = format!("/proc/{pid}/maps");
    let text = list(&path).doing(&path)?;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let parsed: Option<Vec<Mapping>> = lines.map(parse).collect();
    let odd = || io::Error::new(io::ErrorKind::InvalidData, "a line of it makes no sense");
    let mut mappings = parsed.ok_or_else(odd).doing(path)?;
    mappings.retain(|mapping| mapping.name != b"[vsyscall]");
    Ok(mappings)
}

fn parse(line: &[u8]) -> Option<Mapping> {
    // Five columns, spaces, and a name that may hold spaces and any byte but a newline.
    let mut rest = line;
    let mut column = || {
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        let (found, behind) = rest.split_at(end);
        rest = behind.strip_prefix(b" ").unwrap_or(behind);
        std::str::from_utf8(found).ok()
    };
    let (range, rights, offset, device, inode) =
        (column()?, column()?.as_bytes(), column()?, column()?, column()?);
    let (start, end) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let bit = |at: usize, letter, bit| if rights.get(at) == Some(&letter) { bit } else { 0 };
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        prot: bit(0, b'r', 1) | bit(1, b'w', 2) | bit(2, b'x', 4),
        is_shared: rights.get(3)? == &b's',
        offset: hex(offset)?,
        device: (hex(major)? as u32, hex(minor)? as u32),
        inode: inode.parse().ok()?,
        name: unescaped(rest.trim_ascii_start()),
    })
}

/// The kernel writes a newline in a name as `\012`.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, behind)) = rest.split_first() {
        if let Some(behind) = rest.strip_prefix(b"\\012") {
            plain.push(b'\n');
            rest = behind;
        } else {
            plain.push(*first);
            rest = behind;
        }
    }
    plain
}

/// The kernel's flags (`VmFlags`) of the areas, by their start.
pub(super) fn flags(pid: u32) -> Result<BTreeMap<u64, Vec<String>>> {
    let path = format!("/proc/{pid}/smaps");
    let text = list(&path).doing(path)?;
    let mut flags = BTreeMap::new();
    let mut start = 0;
    for line in text.split(|byte| *byte == b'\n') {
        if let Some(words) = line.strip_prefix(b"VmFlags:") {
            let words = String::from_utf8_lossy(words);
            flags.insert(start, words.split_whitespace().map(str::to_owned).collect());
        } else if let Some(mapping) = parse(line) {
            start = mapping.start;
        }
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_the_file_is_called() {
        let line = b"7f00-8f00 r-xs 0000a000 fe:01 42            /a b\\012c (deleted)";
        let mapping = parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end, mapping.prot), (0x7f00, 0x8f00, 5));
        assert_eq!((mapping.offset, mapping.device, mapping.inode), (0xa000, (0xfe, 1), 42));
        assert_eq!(mapping.name, b"/a b\nc (deleted)");
        assert!(mapping.is_shared && mapping.is_deleted() && mapping.path().is_none());
        assert_eq!(parse(b"1000-2000 rw-p 00000000 00:00 0 ").unwrap().name, b"");
        assert_eq!(parse(b"Size:                132 kB"), None);
    }
}
