//! Resource limits. They are set on both members; what they were before comes from the log. A
//! limit of the address space counts only the server's own memory: what the shim maps, which for a
//! family is large and nearly empty, comes on top.

use crate::base::state::{self, Mode, mode};
use crate::base::sys::{libc_result, syscall};
use crate::base::table::Call;
use crate::calls::shapes::with_data;
use holdfast_wire::shm::{POOL_BYTES, RING_OFFSET};

const LIMIT_BYTES: usize = size_of::<libc::rlimit>();
const ADDRESSES: i32 = libc::RLIMIT_AS as i32;

/// Address space that the shim takes, in bytes.
fn own_bytes() -> u64 {
    let pool = if state::is_family() { POOL_BYTES } else { 0 };
    (pool + RING_OFFSET) as u64 + 2 * state::ring_bytes()
}

fn changed(limit: libc::rlimit, change: impl Fn(u64) -> u64) -> libc::rlimit {
    let each = |bytes: u64| if bytes == libc::RLIM_INFINITY { bytes } else { change(bytes) };
    libc::rlimit { rlim_cur: each(limit.rlim_cur), rlim_max: each(limit.rlim_max) }
}

fn counts_ours(resource: i32) -> bool {
    resource == ADDRESSES && mode() != Mode::Pass
}

/// The kernel's `prlimit64`, in the server's numbers.
fn prlimit_raw(pid: i32, resource: i32, new: *const u8, old: *mut u8) -> isize {
    let own = own_bytes();
    // SAFETY: null, or the caller's limit.
    let wanted = unsafe { new.cast::<libc::rlimit>().as_ref() };
    let wider = wanted.map(|limit| match counts_ours(resource) {
        true => changed(*limit, |bytes| bytes.saturating_add(own)),
        false => *limit,
    });
    let at = wider.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: a limit of ours or none, and the caller's own pointer.
    let r = unsafe { syscall!(SYS_prlimit64, pid, resource, at, old) };
    if r == 0 && !old.is_null() && counts_ours(resource) {
        // SAFETY: the kernel has just filled it.
        unsafe {
            let at = old.cast::<libc::rlimit>();
            let told = changed(at.read_unaligned(), |bytes| bytes.saturating_sub(own));
            at.write_unaligned(told);
        }
    }
    r
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getrlimit(resource: i32, out: *mut u8) -> i32 {
    let raw = || prlimit_raw(0, resource, core::ptr::null(), out);
    libc_result(with_data(Call::sysinfo, resource, &[(out, LIMIT_BYTES)], raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getrlimit64(resource: i32, out: *mut u8) -> i32 {
    // SAFETY: the same call on a 64-bit system.
    unsafe { getrlimit(resource, out) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setrlimit(resource: i32, new: *const u8) -> i32 {
    libc_result(prlimit_raw(0, resource, new, core::ptr::null_mut())) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setrlimit64(resource: i32, new: *const u8) -> i32 {
    // SAFETY: the same call on a 64-bit system.
    unsafe { setrlimit(resource, new) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn prlimit(pid: i32, resource: i32, new: *const u8, old: *mut u8) -> i32 {
    if !new.is_null() && mode() == Mode::Replay {
        prlimit_raw(0, resource, new, core::ptr::null_mut());
    }
    let raw = || prlimit_raw(pid, resource, new, old);
    libc_result(with_data(Call::sysinfo, resource, &[(old, LIMIT_BYTES)], raw)) as i32
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn prlimit64(pid: i32, resource: i32, new: *const u8, old: *mut u8) -> i32 {
    // SAFETY: the same call on a 64-bit system.
    unsafe { prlimit(pid, resource, new, old) }
}
