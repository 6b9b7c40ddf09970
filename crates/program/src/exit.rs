//! The exit codes.

use std::io::{Error, ErrorKind};

pub const OK: u8 = 0;
/// Code of what works, but not as it should, or of a no.
pub const DEGRADED: u8 = 1;
/// Wrong usage or configuration.
pub const USAGE: u8 = 2;
pub const NOT_PERMITTED: u8 = 3;
/// The daemon or the peer does not answer.
pub const UNREACHABLE: u8 = 4;
pub const FENCED: u8 = 5;

/// The code of a call that failed.
#[must_use]
pub fn of(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::PermissionDenied => NOT_PERMITTED,
        ErrorKind::ConnectionRefused | ErrorKind::TimedOut => UNREACHABLE,
        _ => DEGRADED,
    }
}
