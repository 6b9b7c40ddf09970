//! Calls that are refused on sockets and pipes.

use crate::base::fds;
use crate::base::report::refused;
use crate::base::state::{Mode, mode};
use crate::base::sys::{self, libc_result};

macro_rules! refuse {
    ($($name:ident, $remedy:literal;)+) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
            if mode() == Mode::Pass || !any_virtual(a as i32, c as i32) {
                return libc_result(real_syscall(stringify!($name), [a, b, c, d, e, f]));
            }
            refused(stringify!($name), $remedy);
            libc_result(-(libc::ENOSYS as isize))
        }
    )+ };
}

fn any_virtual(a: i32, b: i32) -> bool {
    fds::is_virtual(a) || fds::is_virtual(b)
}

fn real_syscall(name: &str, x: [usize; 6]) -> isize {
    let number = match name {
        "splice" => libc::SYS_splice,
        "sendmmsg" => libc::SYS_sendmmsg,
        "recvmmsg" => libc::SYS_recvmmsg,
        "tee" => libc::SYS_tee,
        _ => return -(libc::ENOSYS as isize),
    };
    // SAFETY: the caller's own call.
    unsafe { sys::syscall6(number, x[0], x[1], x[2], x[3], x[4], x[5]) }
}

refuse! {
    splice, "use sendfile or read and write";
    tee, "use read and write";
    sendmmsg, "use sendmsg";
    recvmmsg, "use recvmsg";
}
