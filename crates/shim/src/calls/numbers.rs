//! System calls by number (libc's `syscall`), and calls that are refused on sockets and pipes.

use crate::base::fds;
use crate::base::report::refused;
use crate::base::state::{self, Mode, inside, mode};
use crate::base::sys::{self, libc_result, sys};
use crate::calls::{
    clocks, descriptors, files, identity, input, local, masks, output, processes, random, ready,
    replace, sockets, turns,
};

/// `syscall`: calls that the shim intercepts go to their functions.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall(
    number: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
) -> isize {
    // The sixth argument lies on the stack, and nothing of ours above it: put
    // the return address where the seventh parameter is expected.
    core::arch::naked_asm!(
        "mov rax, [rsp + 8]",
        "mov r11, [rsp]",
        // The stack is a multiple of 16 at every call.
        "sub rsp, 8",
        "push r11",
        "push rax",
        "call {f}",
        "add rsp, 24",
        "ret",
        f = sym syscall_from
    )
}

#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn syscall_from(
    n: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    caller: usize,
) -> isize {
    if mode() != Mode::Pass && !inside() && !state::excluded(caller) {
        // SAFETY: the arguments of the very calls, by number.
        if let Some(r) = unsafe { by_number(n, [a, b, c, d, e, f]) } {
            return r;
        }
    }
    // SAFETY: the caller's own system call.
    libc_result(unsafe { sys::syscall6(n, a, b, c, d, e, f) })
}

/// Calls the function that stands for a call by number; `None`: the call goes
/// to the kernel.
unsafe fn by_number(n: i64, x: [usize; 6]) -> Option<isize> {
    let [a, b, c, d, e, f] = x;
    let (fd, at) = (a as i32, b as *mut u8);
    let myself = || sys!(SYS_gettid) as i32;
    // SAFETY: by the caller's promise.
    let r = unsafe {
        match n {
            libc::SYS_getpid => identity::getpid() as isize,
            libc::SYS_getppid => identity::getppid() as isize,
            libc::SYS_gettid => identity::gettid() as isize,
            libc::SYS_getrandom => random::getrandom(a as *mut u8, b, c as u32),
            libc::SYS_clock_gettime => clocks::clock_gettime_from(fd, b as *mut _, 0) as isize,
            libc::SYS_gettimeofday => clocks::gettimeofday(a as *mut _, at) as isize,
            libc::SYS_time => clocks::time(a as *mut i64) as isize,
            libc::SYS_read => input::read(fd, at, c),
            libc::SYS_readv => input::readv(fd, b as *const _, c as i32),
            libc::SYS_recvfrom => input::recvfrom(fd, at, c, d as i32, e as *mut u8, f as *mut u32),
            libc::SYS_recvmsg => input::recvmsg(fd, b as *mut _, c as i32),
            libc::SYS_write => output::write(fd, at, c),
            libc::SYS_writev => output::writev(fd, b as *const _, c as i32),
            libc::SYS_sendto => output::sendto(fd, at, c, d as i32, e as *const u8, f as u32),
            libc::SYS_sendmsg => output::sendmsg(fd, b as *const _, c as i32),
            libc::SYS_close => descriptors::close(fd) as isize,
            libc::SYS_socket => sockets::socket(fd, b as i32, c as i32) as isize,
            libc::SYS_accept => sockets::accept(fd, at, c as *mut u32) as isize,
            libc::SYS_accept4 => sockets::accept4(fd, at, c as *mut u32, d as i32) as isize,
            libc::SYS_epoll_pwait2 => {
                ready::epoll_pwait2(fd, b as *mut _, c as i32, d as *const _, e as *const u8)
                    as isize
            }
            libc::SYS_eventfd2 => descriptors::eventfd(a as u32, b as i32) as isize,
            libc::SYS_openat => files::openat(fd, at.cast_const(), c as i32, d as u32) as isize,
            libc::SYS_execve => replace::execve(a, b, c) as isize,
            libc::SYS_tgkill if b as i32 == myself() => masks::raise(c as i32) as isize,
            libc::SYS_fork | libc::SYS_vfork => processes::fork() as isize,
            // A child on a copy of this stack is a fork. Any other is a thread, or is in a
            // namespace of its own, and the shim would not know it.
            libc::SYS_clone if b == 0 && a as i32 & !0xff & !CLONE_IDS == 0 => {
                processes::fork() as isize
            }
            // The error of a kernel without namespaces: servers that would like some (vsftpd)
            // then fork without, and go on serving.
            libc::SYS_clone if a as i32 & CLONE_NAMESPACES != 0 => {
                refused("clone", "with namespaces; a fork without is replicated");
                libc_result(-(libc::EINVAL as isize))
            }
            libc::SYS_clone | libc::SYS_clone3 => {
                no_such_call("clone", "use fork or pthread_create")
            }
            libc::SYS_signalfd => local::signalfd(fd, b as *const u64, 0) as isize,
            libc::SYS_signalfd4 => local::signalfd(fd, b as *const u64, d as i32) as isize,
            libc::SYS_prctl => identity::prctl(fd, b, c, d, e) as isize,
            libc::SYS_seccomp if identity::refuses_filters() => {
                libc_result(-(libc::EINVAL as isize))
            }
            libc::SYS_futex => return turns::futex(x),
            libc::SYS_sched_yield => libc_result(turns::yield_turn()),
            libc::SYS_fsync => turns::fsync(fd) as isize,
            libc::SYS_fdatasync => turns::fdatasync(fd) as isize,
            libc::SYS_io_uring_setup => {
                no_such_call("io_uring", "start the server without io_uring")
            }
            _ => return None,
        }
    };
    Some(r)
}

/// Flags of `clone` that only store the child's number, which libc's fork does.
const CLONE_IDS: i32 =
    libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID | libc::CLONE_PARENT_SETTID;

/// Flags of `clone` that give the child namespaces of its own.
const CLONE_NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

fn no_such_call(name: &str, remedy: &str) -> isize {
    refused(name, remedy);
    libc_result(-(libc::ENOSYS as isize))
}

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
