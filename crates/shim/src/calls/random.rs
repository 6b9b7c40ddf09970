//! Randomness: drawn on the primary, from the log on the backup.

use crate::base::sys::{libc_result, syscall};
use crate::base::table::Call;
use crate::calls::shapes::with_data;

/// Most random bytes in one record.
const CHUNK: usize = 64 << 10;

pub fn getrandom_raw(buffer: *mut u8, len: usize, flags: u32) -> isize {
    let len = len.min(CHUNK);
    // SAFETY: the server's own call, with its own arguments.
    with_data(Call::getrandom, -1, &[(buffer, len)], || unsafe {
        syscall!(SYS_getrandom, buffer, len, flags)
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getrandom(buffer: *mut u8, len: usize, flags: u32) -> isize {
    libc_result(getrandom_raw(buffer, len, flags))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getentropy(buffer: *mut u8, len: usize) -> i32 {
    if getrandom_raw(buffer, len, 0) == len as isize { 0 } else { -1 }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn arc4random() -> u32 {
    let mut word = 0u32;
    getrandom_raw((&raw mut word).cast(), 4, 0);
    word
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn arc4random_buf(buffer: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        // SAFETY: inside the caller's buffer of `len` bytes.
        let r = getrandom_raw(unsafe { buffer.add(done) }, len - done, 0);
        done += r.max(1) as usize;
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn arc4random_uniform(bound: u32) -> u32 {
    // SAFETY: no pointers.
    let word = unsafe { arc4random() };
    ((u64::from(word) * u64::from(bound)) >> 32) as u32
}
