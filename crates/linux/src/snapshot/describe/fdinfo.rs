//! What `/proc/PID/fdinfo` says about open files.

use super::super::bounds::list;
use holdfast_wire::snapshot::FileKind;
use std::io;

/// Mount and number of a file, as /proc gives them together with its flags.
pub(super) type Identity = (Option<u64>, Option<u64>);

pub(super) fn identity(info: &str) -> Identity {
    let number = |name| field(info, name).and_then(|found| found.parse().ok());
    (number("mnt_id:"), number("ino:"))
}

/// `/proc/PID/fdinfo/N`.
pub(in super::super) fn info_of(pid: u32, number: u32) -> io::Result<String> {
    let bytes = list(&format!("/proc/{pid}/fdinfo/{number}"))?;
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Flags of an open file, and `O_CLOEXEC` of its descriptor.
pub(in super::super) fn flags_of(info: &str) -> u32 {
    field(info, "flags:").and_then(|flags| u32::from_str_radix(flags, 8).ok()).unwrap_or(0)
}

pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_start().strip_prefix(name)).map(str::trim)
}

pub(super) fn event(info: &str) -> Option<FileKind> {
    let count = u64::from_str_radix(field(info, "eventfd-count:")?, 16).ok()?;
    let is_semaphore = field(info, "eventfd-semaphore:") == Some("1");
    Some(FileKind::Event { count, is_semaphore })
}

pub(super) fn timer(info: &str) -> Option<FileKind> {
    // "it_value: (seconds, nanoseconds)": the time left.
    let time = |name: &str| {
        let text = field(info, name)?.trim_matches(['(', ')']);
        let (seconds, nanoseconds) = text.split_once(", ")?;
        let seconds: u64 = seconds.parse().ok()?;
        seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds.parse().ok()?)
    };
    Some(FileKind::Timer {
        clock: field(info, "clockid:")?.parse().ok()?,
        ticks: field(info, "ticks:")?.parse().ok()?,
        left_ns: time("it_value:")?,
        interval_ns: time("it_interval:")?,
    })
}
