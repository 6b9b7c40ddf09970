//! The entries of folders that several processes of a family may change: they change and read
//! them in the log's order, and change the attributes of files in it. Each member has its own
//! folder. A server that is a single process needs no record for this.

use crate::base::log::{self, Entry};
use crate::base::real::{Real, real6};
use crate::base::state::{self, Mode, header, inside, mode, threaded, uninterrupted};
use crate::base::table::Call;
use crate::base::{park, quiet, report};
use crate::calls::{listings, signals};
use core::ffi::CStr;
use holdfast_wire::hash::hash_pieces;
use holdfast_wire::log::Op;

type Item = libc::dirent64;

fn are_ordered() -> bool {
    state::is_family() && threaded() && mode() != Mode::Pass && !inside()
}

/// Makes a call on both members, in the log's order. `told` gives the part of its outcome that
/// must be equal.
fn ordered<T>(raw: impl Fn() -> T, told: impl Fn(&T) -> i64, what: &str) -> T {
    if !are_ordered() {
        return raw();
    }
    quiet::call(|_| match mode() {
        Mode::Pass => Some(raw()),
        Mode::Record => {
            signals::deliver();
            let held = log::hold();
            let result = raw();
            let entry = Entry::new(Op::Result, Call::readdir, -1, told(&result) as isize);
            log::append_held(&held, entry.lazy_if(true), &[]);
            Some(result)
        }
        Mode::Replay => match log::take(Op::Result, Call::readdir, -1) {
            Some(taken) => {
                let result = raw();
                if told(&result) != taken.header.ret {
                    report::diverged(what);
                }
                taken.done();
                Some(result)
            }
            None => park::start_over(),
        },
    })
}

/// A call that changes a folder.
pub fn change(raw: impl Fn() -> isize) -> isize {
    ordered(raw, |r| *r as i64, "a file that was made, moved or removed on the primary is not here")
}

/// A call that changes extended attributes of a file.
pub fn change_attribute(raw: impl Fn() -> isize) -> isize {
    ordered(raw, |r| *r as i64, "an extended attribute could be changed on one member only")
}

/// Reads an entry; null behind the last one. In a family they come sorted by name.
fn read(folder: usize) -> *mut Item {
    if !state::is_family() || mode() == Mode::Pass || inside() {
        return next(folder);
    }
    if let Some(item) = listings::next(folder) {
        return item;
    }
    let what = "a folder has other files than on the primary";
    ordered(|| uninterrupted(|| listings::make(folder)), |hash| *hash, what);
    listings::next(folder).unwrap_or_else(|| {
        ordered(|| next(folder), hash_of_name, "a folder is read in another order")
    })
}

fn next(folder: usize) -> *mut Item {
    real6(Real::Readdir, [folder, 0, 0, 0, 0, 0]) as *mut Item
}

fn hash_of_name(item: &*mut Item) -> i64 {
    // SAFETY: null, or libc's own entry.
    unsafe { item.as_ref() }.map_or(0, |item| {
        // SAFETY: libc ends it.
        let name = unsafe { CStr::from_ptr(item.d_name.as_ptr()) }.to_bytes();
        hash_pieces(&header().hash_key, [name]) as i64
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readdir(folder: usize) -> *mut Item {
    read(folder)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readdir64(folder: usize) -> *mut Item {
    read(folder)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn rewinddir(folder: usize) {
    listings::forget(folder);
    real6(Real::Rewinddir, [folder, 0, 0, 0, 0, 0]);
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn telldir(folder: usize) -> i64 {
    let real = || real6(Real::Telldir, [folder, 0, 0, 0, 0, 0]);
    listings::position(folder).unwrap_or_else(real) as i64
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn seekdir(folder: usize, at: i64) {
    if !listings::go_to(folder, at as usize) {
        real6(Real::Seekdir, [folder, at as usize, 0, 0, 0, 0]);
    }
}
