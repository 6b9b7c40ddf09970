//! Modules that the server loads itself (`dlopen`). Each member loads its own file, and the files
//! must be equal (decision 25). Libraries that a module needs in turn, and names without a slash,
//! are found by the loader's search and not compared.

use crate::base::log::{self, Entry};
use crate::base::quiet;
use crate::base::real::{self, Real};
use crate::base::state::{self, Mode, inside, mode};
use crate::base::sys::{sys, syscall};
use crate::base::table::Call;
use crate::calls::content::{self, Content};
use crate::calls::signals;
use core::ffi::CStr;
use holdfast_wire::log::Op;

/// `dlopen`: libc's function uses its return address to choose search path and namespace. So it is
/// jumped to, with the caller's registers and stack unchanged; the three pushes also align the
/// stack for the call in between.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(path: *const u8, flags: i32) -> *mut u8 {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rsi, [rsp + 24]",
        "call {f}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        f = sym before_dlopen
    )
}

/// Like `dlopen`, with the path in the second register.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlmopen(namespace: i64, path: *const u8, flags: i32) -> *mut u8 {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rdi, rsi",
        "mov rsi, [rsp + 24]",
        "call {f}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        f = sym before_dlmopen
    )
}

/// Returns the address to continue at.
unsafe extern "C" fn before_dlopen(path: *const u8, caller: usize) -> usize {
    announce(path, caller);
    real::address(Real::Dlopen)
}

unsafe extern "C" fn before_dlmopen(path: *const u8, caller: usize) -> usize {
    announce(path, caller);
    real::address(Real::Dlmopen)
}

/// Logs the module's identity, or compares it with the primary's.
fn announce(path: *const u8, caller: usize) {
    if inside() || state::excluded(caller) || !names_a_file(path) {
        return;
    }
    quiet::call(|_| {
        match mode() {
            Mode::Record if log::is_on() => {
                signals::deliver();
                // Held, because no other thread may notice the descriptor that is open meanwhile.
                let held = log::hold();
                let (r, content) = look(path);
                let payload = content::payload(&content);
                let entry = Entry::new(Op::Data, Call::dlopen, -1, r);
                log::append_held(&held, entry, &[(payload.as_ptr(), payload.len())]);
            }
            Mode::Replay => {
                if let Some(taken) = log::take(Op::Data, Call::dlopen, -1) {
                    content::compare("module", path, &look(path).1, taken.payload());
                    taken.done();
                }
            }
            _ => {}
        }
        Some(())
    });
}

fn names_a_file(path: *const u8) -> bool {
    // SAFETY: the caller's string, unless it is null.
    !path.is_null() && unsafe { CStr::from_ptr(path.cast()) }.to_bytes().contains(&b'/')
}

/// The outcome of opening the file, and its content. A file that cannot be
/// opened has none, as on the other member, where libc will fail as well.
fn look(path: *const u8) -> (isize, Content) {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the server's own path.
    let fd = unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path, flags, 0) };
    if fd < 0 {
        return (fd, None);
    }
    let content = content::of(fd as i32);
    sys!(SYS_close, fd);
    (0, content)
}
