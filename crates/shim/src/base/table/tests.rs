//! The numbers are in every log: members of one release agree on them, and a
//! stored log must keep its meaning.

use super::{Call, TABLE};
use holdfast_wire::log::Op;

/// Names of the calls in order of their number.
const CALLS: &[&str] = &[
    "none",
    "socket",
    "socketpair",
    "bind",
    "listen",
    "accept",
    "connect",
    "shutdown",
    "getsockopt",
    "setsockopt",
    "getsockname",
    "getpeername",
    "read",
    "write",
    "sendfile",
    "pread",
    "pwrite",
    "splice",
    "sendmmsg",
    "recvmmsg",
    "stdio",
    "io_uring",
    "close",
    "dup",
    "fcntl",
    "ioctl",
    "pipe",
    "eventfd",
    "timerfd",
    "signalfd",
    "inotify",
    "epoll_create",
    "epoll_ctl",
    "epoll_wait",
    "poll",
    "select",
    "clock_gettime",
    "clock_getres",
    "gettimeofday",
    "time",
    "times",
    "clock",
    "getrusage",
    "sleep",
    "localtime",
    "vdso",
    "rdtsc",
    "rdrand",
    "getrandom",
    "open",
    "open_device",
    "readlink",
    "mkstemp",
    "tmpnam",
    "stat",
    "fstatfs",
    "readdir",
    "lseek",
    "dlopen",
    "mmap",
    "isatty",
    "syslog",
    "getpid",
    "getppid",
    "gettid",
    "getpgrp",
    "getpwnam",
    "uname",
    "sysinfo",
    "getcpu",
    "mallctl",
    "interfaces",
    "getifaddrs",
    "getaddrinfo",
    "kill",
    "sigaction",
    "sigprocmask",
    "sigsuspend",
    "sigwait",
    "alarm",
    "fork",
    "clone",
    "exec",
    "spawn",
    "popen",
    "daemon",
    "wait",
    "exit",
    "pthread_create",
    "pthread_join",
    "pthread_cancel",
    "pthread_mutex",
    "pthread_rwlock",
    "pthread_cond",
    "pthread_spin",
    "pthread_barrier",
    "pthread_once",
    "mtx",
    "sem",
    "atomics",
    "syscall",
    "sched_yield",
    "futex",
    "fsync",
    "getxattr",
];

const OPS: [&str; 19] = [
    "Pad", "NewFd", "NewPair", "Accept", "Result", "Data", "Read", "ReadMsg", "Intent", "Written",
    "Close", "Shutdown", "Signal", "Clock", "Lock", "Thread", "Fork", "Exit", "Death",
];

#[test]
fn the_numbers_of_calls_stay() {
    let names: Vec<&str> = TABLE.iter().map(|row| row.0).collect();
    assert_eq!(names, CALLS, "a new call goes to the end, or `shm::VERSION` changes");
    for (number, row) in TABLE.iter().enumerate() {
        assert_eq!(row.1 as usize, number, "{}", row.0);
    }
    assert_eq!((Call::none as u16, Call::read as u16, Call::syscall as u16), (0, 12, 100));
}

#[test]
fn the_numbers_of_operations_stay() {
    let names: Vec<&str> = (0..=u8::MAX).map_while(Op::from_u8).map(Op::name).collect();
    assert_eq!(names, OPS, "a new operation goes to the end, or `LOG_VERSION` changes");
    assert_eq!((Op::Pad as u8, Op::Read as u8, Op::Exit as u8), (0, 6, 17));
}
