//! Which function stands for which system call, where the two take and return the same. What
//! servers call by number (libuv and others do, for calls that their libc may not have) is answered
//! as by that function.

use crate::calls::{
    attributes, clocks, controls, descriptors, file_locks, files, identity, input, limits, local,
    masks, output, paths, processes, random, ready, refusals, replace, sendfile, sockets, turns,
};

macro_rules! routes {
    ($n:ident; $($number:ident => $module:ident::$call:ident($($x:expr),*);)+) => {
        // SAFETY: by the promise of the caller, who has made the very call.
        unsafe {
            match $n {
                $(libc::$number => Some($module::$call($($x as _),*) as isize),)+
                _ => None,
            }
        }
    };
}

/// Calls the function that stands for a call by number.
///
/// # Safety
/// As the system call's own contract with its arguments.
pub unsafe fn route(n: i64, x: [usize; 6]) -> Option<isize> {
    // SAFETY: by the caller's promise.
    unsafe { streams(n, x).or_else(|| sockets_and_waits(n, x)).or_else(|| rest(n, x)) }
}

unsafe fn rest(n: i64, x: [usize; 6]) -> Option<isize> {
    // SAFETY: by the caller's promise.
    unsafe { files_by_name(n, x).or_else(|| process(n, x)).or_else(|| times_and_signals(n, x)) }
}

unsafe fn streams(n: i64, [a, b, c, d, e, f]: [usize; 6]) -> Option<isize> {
    routes! { n;
        SYS_read => input::read(a, b, c);
        SYS_readv => input::readv(a, b, c);
        SYS_recvfrom => input::recvfrom(a, b, c, d, e, f);
        SYS_recvmsg => input::recvmsg(a, b, c);
        SYS_recvmmsg => refusals::recvmmsg(a, b, c, d, e, f);
        SYS_write => output::write(a, b, c);
        SYS_writev => output::writev(a, b, c);
        SYS_sendto => output::sendto(a, b, c, d, e, f);
        SYS_sendmsg => output::sendmsg(a, b, c);
        SYS_sendmmsg => refusals::sendmmsg(a, b, c, d, e, f);
        SYS_sendfile => sendfile::sendfile(a, b, c, d);
        SYS_splice => refusals::splice(a, b, c, d, e, f);
        SYS_tee => refusals::tee(a, b, c, d, e, f);
        SYS_close => descriptors::close(a);
        SYS_close_range => descriptors::close_range(a, b, c);
        SYS_dup => descriptors::dup(a);
        SYS_dup2 => descriptors::dup2(a, b);
        SYS_dup3 => descriptors::dup3(a, b, c);
        SYS_fcntl => descriptors::fcntl(a, b, c);
        SYS_flock => file_locks::flock(a, b);
        SYS_ioctl => controls::ioctl(a, b, c);
        SYS_lseek => files::lseek(a, b, c);
        SYS_fsync => turns::fsync(a);
        SYS_fdatasync => turns::fdatasync(a);
        SYS_pipe => descriptors::pipe(a);
        SYS_pipe2 => descriptors::pipe2(a, b);
        SYS_eventfd => descriptors::eventfd(a, 0);
        SYS_eventfd2 => descriptors::eventfd(a, b);
        SYS_timerfd_create => descriptors::timerfd_create(a, b);
        SYS_timerfd_settime => descriptors::timerfd_settime(a, b, c, d);
        SYS_timerfd_gettime => local::timerfd_gettime(a, b);
        SYS_signalfd => local::signalfd(a, b, 0);
        SYS_signalfd4 => local::signalfd(a, b, d);
        SYS_inotify_init => descriptors::inotify_init();
        SYS_inotify_init1 => descriptors::inotify_init1(a);
        SYS_inotify_add_watch => local::inotify_add_watch(a, b, c);
        SYS_inotify_rm_watch => local::inotify_rm_watch(a, b);
    }
}

unsafe fn sockets_and_waits(n: i64, [a, b, c, d, e, _]: [usize; 6]) -> Option<isize> {
    routes! { n;
        SYS_socket => sockets::socket(a, b, c);
        SYS_socketpair => descriptors::socketpair(a, b, c, d);
        SYS_bind => sockets::bind(a, b, c);
        SYS_listen => sockets::listen(a, b);
        SYS_connect => sockets::connect(a, b, c);
        SYS_accept => sockets::accept(a, b, c);
        SYS_accept4 => sockets::accept4(a, b, c, d);
        SYS_shutdown => sockets::shutdown(a, b);
        SYS_getsockname => sockets::getsockname(a, b, c);
        SYS_getpeername => sockets::getpeername(a, b, c);
        SYS_getsockopt => sockets::getsockopt(a, b, c, d, e);
        SYS_setsockopt => sockets::setsockopt(a, b, c, d, e);
        SYS_epoll_create => ready::epoll_create(a);
        SYS_epoll_create1 => ready::epoll_create1(a);
        SYS_epoll_ctl => ready::epoll_ctl(a, b, c, d);
        SYS_epoll_wait => ready::epoll_wait(a, b, c, d);
        SYS_epoll_pwait => ready::epoll_pwait(a, b, c, d, e);
        SYS_epoll_pwait2 => ready::epoll_pwait2(a, b, c, d, e);
        SYS_poll => ready::poll(a, b, c);
        SYS_ppoll => ready::ppoll(a, b, c, d);
        SYS_select => ready::select(a, b, c, d, e);
    }
}

unsafe fn files_by_name(n: i64, [a, b, c, d, e, _]: [usize; 6]) -> Option<isize> {
    routes! { n;
        SYS_open => files::open(a, b, c);
        SYS_creat => files::open(a, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, b);
        SYS_openat => files::openat(a, b, c, d);
        SYS_stat => files::stat(a, b);
        SYS_lstat => files::lstat(a, b);
        SYS_fstat => files::fstat(a, b);
        SYS_newfstatat => files::fstatat(a, b, c, d);
        SYS_statx => files::statx(a, b, c, d, e);
        SYS_getxattr => attributes::getxattr(a, b, c, d);
        SYS_lgetxattr => attributes::lgetxattr(a, b, c, d);
        SYS_fgetxattr => attributes::fgetxattr(a, b, c, d);
        SYS_listxattr => attributes::listxattr(a, b, c);
        SYS_llistxattr => attributes::llistxattr(a, b, c);
        SYS_flistxattr => attributes::flistxattr(a, b, c);
        SYS_setxattr => attributes::setxattr(a, b, c, d, e);
        SYS_lsetxattr => attributes::lsetxattr(a, b, c, d, e);
        SYS_fsetxattr => attributes::fsetxattr(a, b, c, d, e);
        SYS_removexattr => attributes::removexattr(a, b);
        SYS_lremovexattr => attributes::lremovexattr(a, b);
        SYS_fremovexattr => attributes::fremovexattr(a, b);
        SYS_statfs => local::statfs(a, b);
        SYS_fstatfs => files::fstatfs(a, b);
        SYS_readlink => local::readlink(a, b, c);
        SYS_readlinkat => local::readlinkat(a, b, c, d);
        SYS_mkdir => paths::mkdir(a, b);
        SYS_mkdirat => paths::mkdirat(a, b, c);
        SYS_symlink => paths::symlink(a, b);
        SYS_symlinkat => paths::symlinkat(a, b, c);
        SYS_rename => paths::rename(a, b);
        SYS_renameat => paths::renameat(a, b, c, d);
        SYS_renameat2 => paths::renameat2(a, b, c, d, e);
        SYS_unlink => paths::unlink(a);
        SYS_unlinkat => paths::unlinkat(a, b, c);
        SYS_link => paths::link(a, b);
        SYS_linkat => paths::linkat(a, b, c, d, e);
        SYS_rmdir => paths::rmdir(a);
        SYS_truncate => paths::truncate(a, b);
        SYS_access => paths::access(a, b);
    }
}

unsafe fn process(n: i64, [a, b, c, d, e, _]: [usize; 6]) -> Option<isize> {
    routes! { n;
        SYS_getpid => identity::getpid();
        SYS_getppid => identity::getppid();
        SYS_gettid => identity::gettid();
        SYS_getpgrp => identity::getpgrp();
        SYS_getpgid => identity::getpgid(a);
        SYS_getsid => identity::getsid(a);
        SYS_setsid => identity::setsid();
        SYS_uname => identity::uname(a);
        SYS_sysinfo => identity::sysinfo(a);
        SYS_prctl => identity::prctl(a, b, c, d, e);
        SYS_getcpu => local::getcpu(a, b);
        SYS_getrlimit => limits::getrlimit(a, b);
        SYS_setrlimit => limits::setrlimit(a, b);
        SYS_prlimit64 => limits::prlimit64(a, b, c, d);
        SYS_getrandom => random::getrandom(a, b, c);
        SYS_execve => replace::execve(a, b, c);
        SYS_fork => processes::fork();
        SYS_vfork => processes::vfork();
        SYS_wait4 => processes::wait4(a, b, c, d);
    }
}

unsafe fn times_and_signals(n: i64, [a, b, c, _, _, _]: [usize; 6]) -> Option<isize> {
    routes! { n;
        SYS_clock_getres => local::clock_getres(a, b);
        SYS_gettimeofday => clocks::gettimeofday(a, b);
        SYS_time => clocks::time(a);
        SYS_times => clocks::times(a);
        SYS_getrusage => clocks::getrusage(a, b);
        SYS_nanosleep => clocks::nanosleep(a, b);
        SYS_alarm => identity::alarm(a);
        SYS_setitimer => identity::setitimer(a, b, c);
        SYS_getitimer => local::getitimer(a, b);
        SYS_pause => masks::pause();
        SYS_kill => masks::kill(a, b);
        SYS_rt_sigprocmask => masks::sigprocmask(a, b, c);
        SYS_rt_sigsuspend => masks::sigsuspend(a);
        SYS_rt_sigtimedwait => masks::sigtimedwait(a, b, c);
        SYS_rt_sigpending => masks::sigpending(a);
    }
}
