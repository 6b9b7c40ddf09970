//! The table of calls: what the shim does with each. `docs/SUPPORT.md` is made
//! from this text; a call's number is what records carry.

/// A call, how far it is supported, and what an operator must know about it. The
/// last two are for the page, which says what *Replayed*, *Passed* and *Refused*
/// mean.
macro_rules! calls {
    ($($name:ident $level:ident $note:literal;)+) => {
        /// A call of the table.
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u16)]
        pub enum Call { none, $($name),+ }
        /// Each call and its name, in order of number.
        pub const TABLE: &[(&str, Call)] =
            &[("none", Call::none), $((stringify!($name), Call::$name)),+];
    };
}

calls! {
    // Sockets
    socket Replayed "TCP, UNIX and UDP; the replica's TCP sockets are real and unconnected; with `[server] run` set to `parallel` UNIX sockets of messages are real on both members";
    socketpair Replayed "real on both members";
    bind Replayed "on TCP listeners repeated at promotion; UNIX sockets are bound on both members";
    listen Replayed "repeated at promotion, after the connections: at 16 addresses, those of the service first; more of these end protection";
    accept Replayed "accept and accept4";
    connect Replayed "outbound connections end with ECONNRESET at promotion";
    shutdown Replayed "waits until the backup knows";
    getsockopt Replayed "";
    setsockopt Replayed "applied to the replica's socket at once; SO_ZEROCOPY is refused with EOPNOTSUPP";
    getsockname Replayed "";
    getpeername Replayed "";
    // Reading and writing
    read Replayed "read, readv, recv, recvfrom, recvmsg, eventfd_read and their checked forms; all flags, MSG_TRUNC too";
    write Replayed "write, writev, send, sendto, sendmsg, eventfd_write; hash of the whole buffer, and of more than 64 KiB of what the kernel took; MSG_OOB to a client is refused with EOPNOTSUPP";
    sendfile Replayed "content hashed, of a regular file that has not changed for two seconds once for each part; at most 512 KiB a call";
    pread Passed "pread, preadv: regular files are the member's own";
    pwrite Passed "pwrite, pwritev: regular files are the member's own";
    splice Refused "splice and tee on sockets and pipes; use sendfile or read and write";
    sendmmsg Refused "use sendmsg";
    recvmmsg Refused "use recvmsg";
    stdio Passed "on regular files; threads open and close streams in the log's order; a stream made with fdopen from a socket or a pipe, and dprintf, are not seen, and end protection where a client gets what they write: use read and write";
    io_uring Refused "start the server without io_uring";
    // Descriptors
    close Replayed "of a connection: waits until the backup knows";
    dup Replayed "dup, dup2, dup3, F_DUPFD";
    fcntl Replayed "flags are set on both members; with `[server] run` set to `parallel` locks on files, also by flock, are taken in the log's order";
    ioctl Replayed "FIONBIO on both members; FIONREAD, SIOCOUTQ, SIOCGIFCONF, requests about interfaces, addresses and terminals from the log; SIOCETHTOOL and what else hides pointers fails with EOPNOTSUPP";
    pipe Replayed "real on both members; reads answered from the log";
    eventfd Replayed "real on both members; reads answered from the log";
    timerfd Replayed "real on both members; expirations from the log; one set to a moment before promotion keeps the primary's clock";
    signalfd Replayed "real on both members; reads answered from the log";
    inotify Replayed "watches are set on both members, events come from the log; after a takeover from the survivor's files, from that moment on";
    // Readiness
    epoll_create Replayed "";
    epoll_ctl Replayed "registrations are remembered and armed at promotion; a descriptor may be in 128 sets, and 128 descriptors in more than 4: beyond that ENOSPC";
    epoll_wait Replayed "epoll_wait, epoll_pwait, epoll_pwait2; events carry descriptors, so ASLR may differ";
    poll Replayed "poll and ppoll";
    select Replayed "select and pselect";
    // Time and randomness
    clock_gettime Replayed "also timespec_get; continues from the primary's last value after promotion";
    clock_getres Replayed "also clock_getcpuclockid; clocks of threads are told apart by kind, not by number";
    gettimeofday Replayed "";
    time Replayed "";
    times Replayed "";
    clock Replayed "";
    getrusage Replayed "";
    sleep Replayed "sleep, usleep, nanosleep, clock_nanosleep: the replica does not sleep";
    localtime Passed "time zone files must be alike on both members";
    vdso Refused "hidden from programs that look for it themselves, which then make system calls and are reported";
    rdtsc Passed "not seen unless `[server] trap_tsc = true`; then reported";
    rdrand Passed "cannot be seen: a server that uses it diverges, and the backup reports it";
    getrandom Replayed "getrandom, getentropy, arc4random*";
    // Files
    open Passed "both members; outcomes are compared, and until the first client comes the content of what is opened for reading, also by fopen";
    open_device Replayed "/dev/urandom, /dev/random, /proc, /sys: content from the log, and after a takeover from the survivor's machine; /proc/self/fd, /dev/fd, /dev/stdin: what that descriptor is";
    readlink Replayed "of links in /proc and /sys; others are the member's own";
    mkstemp Replayed "mkstemp, mkostemp, mkstemps, mkostemps, mkdtemp: the name's letters are drawn on the primary";
    tmpnam Passed "tmpnam, tempnam, mktemp make names that differ: use mkstemp";
    stat Replayed "stat, lstat, fstat, fstatat, statx";
    fstatfs Replayed "statfs, fstatfs, statvfs, fstatvfs";
    readdir Passed "the order of entries must not matter, or be alike on both members; opendir, closedir: as open and close; with `[server] run` set to `parallel` all names at once, sorted and compared, in the log's order, as are mkdir, rename, unlink, link, symlink and rmdir";
    lseek Passed "both members";
    dlopen Passed "dlopen, dlmopen: both members load; a module named by a path is compared, one that the loader searches for, and libraries that a module needs, are not";
    mmap Passed "shared mappings of files that other programs change are not covered";
    isatty Replayed "";
    syslog Passed "both members log; the log socket must exist on both or on none";
    // Names and limits
    getpid Replayed "the replica keeps the primary's process numbers";
    getppid Replayed "";
    gettid Replayed "";
    getpgrp Replayed "getpgrp, getpgid, getsid, setsid";
    getpwnam Passed "users and groups must be alike on both members";
    uname Replayed "uname and gethostname";
    sysinfo Replayed "sysinfo, getrlimit, prlimit (limits are set on both members), sched_getaffinity, sysconf, getloadavg";
    getcpu Replayed "getcpu and sched_getcpu";
    mallctl Replayed "mallctl, malloc_stats_print: jemalloc's statistics";
    interfaces Replayed "if_nametoindex, if_indextoname";
    getifaddrs Replayed "the whole list";
    getaddrinfo Replayed "also getnameinfo; the replica asks, too, and gives the primary's answer. For gethostbyname and gethostbyaddr names must resolve alike on both members";
    // Signals
    kill Replayed "kill, raise, killpg, pthread_kill; handlers of signals to oneself run before it returns";
    sigaction Replayed "handlers run at call boundaries, with their mask; siginfo is zero but for the number; SIGSYS stays the shim's";
    sigprocmask Passed "sigprocmask and pthread_sigmask: the mask is real on both members; SIGSYS stays open";
    sigsuspend Replayed "sigsuspend and pause";
    sigwait Replayed "sigwait, sigwaitinfo, sigtimedwait, sigpending";
    alarm Replayed "alarm, setitimer, getitimer, timer_settime fire on the primary; not rearmed at promotion";
    // Processes and threads
    fork Replayed "with `[server] run` set to `parallel` the child is in the log like its parent. Otherwise children run unprotected, and one that touches a client's socket ends protection; the replica forks too: its child works on files and pipes under the same number, and ends where it would touch a socket, another program or another process";
    clone Refused "use fork or pthread_create; by number, a plain fork is one, and one with namespaces fails with EINVAL. So do filters of system calls (seccomp) with `[server] run` set to `parallel`: the process runs without";
    exec Replayed "execve, execv, execvp, execvpe, execl, execlp, execle: the server's own new program is protected if no socket is open yet; a child's runs outside protection. With `[server] run` set to `parallel` every process stays in the log with what it has open, unless the program is static or gains rights of its own: that runs beside the primary only, and ends protection if it has a client's connection";
    spawn Replayed "system, posix_spawn, posix_spawnp: the program runs beside the primary only";
    popen Refused "use pipe, fork and read";
    daemon Passed "start the server in the foreground: what it does in the background is not protected";
    wait Replayed "wait, waitpid, wait3, wait4, waitid; before the server next opens or renames a file, the replica waits up to 0.9 s for its own child";
    exit Replayed "";
    pthread_create Replayed "also thrd_create; 65535 threads at a time";
    pthread_join Replayed "also thrd_join; outcome of the try and timed forms";
    pthread_cancel Refused "let threads end themselves";
    pthread_mutex Replayed "order of lock, and of its try and timed forms";
    pthread_rwlock Replayed "order of rdlock, wrlock, and of their try and timed forms";
    pthread_cond Replayed "order of wake-ups";
    pthread_spin Replayed "order of lock and trylock";
    pthread_barrier Replayed "order of arrival";
    pthread_once Replayed "also call_once: the same thread runs the routine";
    mtx Replayed "order of C11's mtx_lock, mtx_trylock, mtx_timedlock, cnd_wait, cnd_timedwait";
    sem Replayed "order of sem_wait, sem_trywait, sem_timedwait";
    atomics Passed "memory that threads share without these locks (by atomics, or by locks made of futexes, as in Rust's library) is ordered with `[server] run` set to `one-at-a-time` only: else, where it shows, the replica diverges and is reported";
    syscall Replayed "the calls of this page by number, as by their functions; those of timers and others pass";
    sched_yield Replayed "also thrd_yield: with `[server] run` set to `one-at-a-time` another thread may run here; else passed";
    futex Replayed "by number: with `[server] run` set to `one-at-a-time` waits and wake-ups are in the log, but for those of priority inheritance; else passed";
    // More on files
    fsync Replayed "fsync, fdatasync: each member waits for its own disk; with `[server] run` set to `one-at-a-time` other threads run meanwhile, and the primary's outcome counts; else passed";
    getxattr Replayed "getxattr, listxattr and their forms by link and descriptor; setxattr and removexattr are made on both members, with `[server] run` set to `parallel` in the log's order, and compared";
}

#[cfg(test)]
mod tests;
