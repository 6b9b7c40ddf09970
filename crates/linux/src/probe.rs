//! Trying out what this machine can do, without a trace: `holdfast check` runs
//! its experiments in namespaces that end with them.

use crate::sockopt::checked;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::ptr;

/// Runs `experiment` on a thread with a network and mount namespace of its own,
/// in which `lo` is up. What it attaches or mounts there ends with the thread.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; a panic of the experiment is an error too.
pub fn apart<T: Send>(experiment: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter_empty_namespaces()?;
            Ok(experiment())
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the experiment failed")))
    })
}

fn enter_empty_namespaces() -> io::Result<()> {
    // SAFETY: no pointers; the calling thread was started for this alone.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) })?;
    // SAFETY: the strings are constants that end with NUL, the rest is null or
    // a number. Without this the mounts would propagate to the host.
    checked(unsafe {
        libc::mount(
            c"none".as_ptr(),
            c"/".as_ptr(),
            ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            ptr::null(),
        )
    })?;
    bring_loopback_up()
}

fn bring_loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: an all-zero ifreq is valid: an empty name and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq, which `request` is.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })?;
    Ok(())
}

/// Whether an established connection can be put into repair mode and back.
/// Call it in [`apart`].
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, `ENOPROTOOPT` in a kernel built without
/// checkpoint/restore.
pub fn tcp_repair() -> io::Result<()> {
    const REPAIR_ON: libc::c_int = 1;
    const REPAIR_OFF_NO_PROBE: libc::c_int = -1;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    for value in [REPAIR_ON, REPAIR_OFF_NO_PROBE] {
        // SAFETY: the pointer and the length describe one int that outlives the call.
        checked(unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_REPAIR,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        })?;
    }
    Ok(())
}
