//! What the daemon hands over in an environment variable: the numbers of three descriptors. A
//! program that has become this one by exec adds a fourth. And what it hands over later, by the
//! socket to it.

use crate::base::state::CONTROL_FD;
use crate::base::sys::syscall;
use core::ffi::CStr;
use core::sync::atomic::Ordering::Relaxed;
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

/// The next descriptor that the daemon has sent, and what it says of it: the listener of a
/// connection, or what else it is.
pub fn receive() -> Option<(i32, i32)> {
    let mut number = 0i32;
    let mut control = [0u64; 4];
    let mut iov = libc::iovec { iov_base: (&raw mut number).cast(), iov_len: 4 };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: memory of ours, of the sizes that are said.
    let r = unsafe { syscall!(SYS_recvmsg, CONTROL_FD.load(Relaxed), &raw mut message, flags) };
    if r != 4 || message.msg_controllen < 20 {
        return None;
    }
    // One SCM_RIGHTS message: cmsghdr of 16 bytes, then the descriptor.
    Some((number, control[2] as u32 as i32))
}

#[cfg(test)]
mod tests;
