//! The exit codes.

use std::io::{Error, ErrorKind};

pub const OK: u8 = 0;
/// Exit code of a result that is degraded or negative.
pub const DEGRADED: u8 = 1;
/// Exit code of wrong usage or configuration.
pub const USAGE: u8 = 2;
pub const NOT_PERMITTED: u8 = 3;
/// Exit code for a daemon or peer that does not answer.
pub const UNREACHABLE: u8 = 4;
pub const FENCED: u8 = 5;

/// The exit code of an error.
#[must_use]
pub fn of(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::PermissionDenied => NOT_PERMITTED,
        ErrorKind::ConnectionRefused | ErrorKind::TimedOut => UNREACHABLE,
        _ => DEGRADED,
    }
}
