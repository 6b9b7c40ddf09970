//! What the daemon hands over in an environment variable: the numbers of three descriptors. A
//! program that has become this one by exec adds a fourth.

use core::ffi::CStr;
use holdfast_wire::shm::HANDED;

/// Variable set by the daemon: descriptor numbers "control,memory,wake". After an exec in the log
/// it also has the number of the file with what the program before knew.
pub const VARIABLE: &[u8] = b"HOLDFAST_SHIM=";

/// What was handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handed {
    /// The socket to the daemon, the shared memory, and the daemon's wake-up.
    pub descriptors: [i32; HANDED],
    /// The file with what the program before this one knew, if there was one.
    pub carried: Option<i32>,
}

/// Reads the numbers and removes the variable, so that neither the server nor its
/// children see it.
pub fn take(environment: *mut *mut u8) -> Option<Handed> {
    let mut at = environment;
    let mut found = None;
    // SAFETY: envp is a null-terminated array of strings.
    unsafe {
        while !(*at).is_null() {
            let text = CStr::from_ptr((*at).cast()).to_bytes();
            if let Some(value) = text.strip_prefix(VARIABLE) {
                found = parse(value);
                let mut shift = at;
                while !(*shift).is_null() {
                    *shift = *shift.add(1);
                    shift = shift.add(1);
                }
                continue;
            }
            at = at.add(1);
        }
    }
    found
}

fn parse(value: &[u8]) -> Option<Handed> {
    let mut numbers = [0; HANDED];
    let mut parts = core::str::from_utf8(value).ok()?.split(',');
    for n in &mut numbers {
        *n = parts.next()?.parse().ok()?;
    }
    let carried = parts.next().map(str::parse).transpose().ok()?;
    Some(Handed { descriptors: numbers, carried })
}

#[cfg(test)]
mod tests;
