//! jemalloc's statistics: resident memory, waits for locks and addresses of arenas depend on the
//! machine, so they come from the log. Without jemalloc these functions do not exist.

use crate::base::log::{self, Entry, Taken};
use crate::base::real::{self, Real, real6};
use crate::base::state::{inside, uninterrupted};
use crate::base::sys;
use crate::base::table::Call;
use crate::calls::shapes::{question, with_data};
use core::ffi::{CStr, c_char, c_void};
use holdfast_wire::log::Op;

/// Room for `malloc_stats_print`'s text, in bytes; what is longer is cut.
const TEXT_MAX: usize = 512 << 10;

/// Where `malloc_stats_print` writes.
type Write = unsafe extern "C" fn(*mut c_void, *const c_char);

/// The text, collected: `len` bytes at `at`, which has room for [`TEXT_MAX`] and a NUL.
struct Text {
    at: *mut u8,
    len: usize,
}

/// `mallctl`: values below `stats.` come from the log; all others are the same on both members.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mallctl(
    name: *const u8,
    old: *mut u8,
    old_len: *mut usize,
    new: usize,
    new_len: usize,
) -> i32 {
    let raw = || match real::address(Real::Mallctl) {
        0 => libc::ENOENT as isize,
        _ => {
            let all = [name as usize, old as usize, old_len as usize, new, new_len, 0];
            real6(Real::Mallctl, all) as i32 as isize
        }
    };
    // SAFETY: the caller's name.
    let statistic = unsafe { CStr::from_ptr(name.cast()) }.to_bytes().starts_with(b"stats.");
    if !statistic || old.is_null() || old_len.is_null() || inside() {
        return raw() as i32;
    }
    // SAFETY: the size of the caller's buffer.
    let room = unsafe { *old_len };
    with_data(Call::mallctl, -1, &[(old_len.cast(), 8), (old, room)], raw) as i32
}

/// `malloc_stats_print`: the whole report, passed to `write` in one piece.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_stats_print(
    write: Option<Write>,
    opaque: *mut c_void,
    options: *const c_char,
) {
    let print = |write: usize, opaque: usize| {
        if real::address(Real::MallocStatsPrint) != 0 {
            // It calls `mallctl` for every value that it prints.
            let all = [write, opaque, options as usize, 0, 0, 0];
            uninterrupted(|| real6(Real::MallocStatsPrint, all));
        }
    };
    let Some(give) = write.filter(|_| !inside()) else {
        let write = write.map_or(0, |write| write as usize);
        return print(write, opaque as usize);
    };
    let at = sys::map_anonymous(TEXT_MAX + 1);
    if at.is_null() {
        return;
    }
    let collected = || {
        let mut text = Text { at, len: 0 };
        print(collect as Write as usize, (&raw mut text) as usize);
        text.len
    };
    let tell = |len: &usize| {
        log::append(Entry::new(Op::Data, Call::mallctl, -1, 0), &[(at.cast_const(), *len)]);
    };
    let copy = |(), taken: &Taken| {
        // It is run here, too, because on the primary it has touched all arenas.
        print(discard as Write as usize, 0);
        let len = taken.payload().len().min(TEXT_MAX);
        // SAFETY: there is room for this much.
        unsafe { core::ptr::copy_nonoverlapping(taken.payload().as_ptr(), at, len) };
        len
    };
    question(Call::mallctl, collected, tell, || (), copy);
    // SAFETY: the caller's function; the text ends with a NUL of fresh memory.
    unsafe { give(opaque, at.cast_const().cast()) };
    sys::unmap(at, TEXT_MAX + 1);
}

/// Takes a piece of the text.
unsafe extern "C" fn collect(text: *mut c_void, piece: *const c_char) {
    // SAFETY: jemalloc hands on what it was given, and a C string.
    let (text, piece) = unsafe { (&mut *text.cast::<Text>(), CStr::from_ptr(piece)) };
    let piece = piece.to_bytes();
    let n = piece.len().min(TEXT_MAX - text.len);
    // SAFETY: there is room for this much behind what has been collected.
    unsafe { core::ptr::copy_nonoverlapping(piece.as_ptr(), text.at.add(text.len), n) };
    text.len += n;
}

unsafe extern "C" fn discard(_: *mut c_void, _: *const c_char) {}

#[cfg(test)]
mod tests;
