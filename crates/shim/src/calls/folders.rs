//! The entries of folders that several processes of a family may change: they change and read
//! them in the log's order. Each member has its own folder. A server that is a single process
//! needs no record for this.

use crate::base::log::{self, Entry};
use crate::base::real::{Real, real6};
use crate::base::state::{self, Mode, header, inside, mode, threaded};
use crate::base::table::Call;
use crate::base::{park, quiet, report};
use crate::calls::signals;
use core::ffi::CStr;
use holdfast_wire::hash::hash_pieces;
use holdfast_wire::log::Op;

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

/// Reads an entry; null behind the last one.
fn read(folder: usize) -> *mut libc::dirent64 {
    // SAFETY: null, or libc's own entry.
    let name = |entry: &*mut libc::dirent64| match unsafe { entry.as_ref() } {
        None => 0,
        Some(entry) => {
            // SAFETY: libc ends it.
            let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_bytes();
            hash_pieces(&header().hash_key, [name]) as i64
        }
    };
    ordered(
        || real6(Real::Readdir, [folder, 0, 0, 0, 0, 0]) as *mut libc::dirent64,
        name,
        "a folder has other files than on the primary, or in another order",
    )
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readdir(folder: usize) -> *mut libc::dirent64 {
    read(folder)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readdir64(folder: usize) -> *mut libc::dirent64 {
    read(folder)
}
