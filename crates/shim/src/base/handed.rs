//! What the daemon hands over in the environment: the numbers of three
//! descriptors.

use core::ffi::CStr;

/// Variable set by the daemon: descriptor numbers "control,memory,wake".
pub const VARIABLE: &[u8] = b"HOLDFAST_SHIM=";

/// Reads the three numbers and removes the variable, so that neither the server
/// nor its children see it.
pub fn take(environment: *mut *mut u8) -> Option<[i32; 3]> {
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

fn parse(value: &[u8]) -> Option<[i32; 3]> {
    let mut numbers = [0; 3];
    let mut parts = core::str::from_utf8(value).ok()?.split(',');
    for n in &mut numbers {
        *n = parts.next()?.parse().ok()?;
    }
    Some(numbers)
}

#[cfg(test)]
mod tests;
