//! The socket between a server and its daemon. The daemon hands connections over by it, and hears
//! by its end that the server's process is about to end.

use crate::sockopt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

/// Size of the socket's buffer, in bytes, for the connections that nobody has
/// accepted, which wait in this socket until the replica is live: each message takes
/// less than 1 KiB of the kernel's memory, and the shim takes 4096 of them.
const CONTROL_BYTES: libc::c_int = 4 << 20;

/// Whether a UNIX socket takes descriptors (asm-generic/socket.h; Linux 6.16).
const SO_PASSRIGHTS: libc::c_int = 83;

pub(super) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors, owned by us on success.
    unsafe {
        if libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let pair = (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1]));
        // The kernel doubles this. Without the right to so much there is room for
        // fewer.
        let _ =
            sockopt::set(pair.0.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &CONTROL_BYTES);
        // The server hands nothing to its daemon. A socket that it closed meanwhile would end by
        // the daemon's hand, which waits for as long as SO_LINGER says. Linux before 6.16 takes it.
        let _ = sockopt::set(pair.0.as_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, &0i32);
        Ok(pair)
    }
}

/// Sends one message with one descriptor.
pub(super) fn send_fd(socket: RawFd, bytes: &[u8], fd: RawFd) -> io::Result<()> {
    let slice = IoSlice::new(bytes);
    let mut control = [0u64; 3];
    // SAFETY: a message built from buffers that outlive the call; CMSG macros
    // stay inside `control`, which holds one descriptor's worth.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = (&raw const slice).cast_mut().cast();
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(fd);
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;
    use std::time::{Duration, Instant};

    /// A connection that waits for 3 s when it is closed: its client reads nothing.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let client = TcpStream::connect(listener.local_addr().expect("its address"));
        let (mut stream, _) = listener.accept().expect("a connection");
        let linger = [1i32, 3];
        sockopt::set(stream.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &linger)
            .expect("an option");
        stream.set_nonblocking(true).expect("a mode");
        while stream.write(&[7; 1 << 16]).is_ok() {}
        (stream, client.expect("a client"))
    }

    #[test]
    fn the_server_hands_nothing_to_its_daemon() {
        let (daemon, server) = socket_pair().expect("a pair");
        if sockopt::get::<i32>(daemon.as_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS).is_err() {
            return;
        }
        let (stream, _client) = lingering();
        let handed = send_fd(server.as_raw_fd(), b"here", stream.as_raw_fd());
        // Somebody else holds it until the daemon looks.
        let keeper = std::thread::spawn(move || drop(stream));
        let begun = Instant::now();
        let mut word = [0; 64];
        let _none = sockopt::receive(daemon.as_fd(), &mut word, libc::MSG_DONTWAIT);
        assert!(handed.is_err() && begun.elapsed() < Duration::from_secs(1));
        let (own, _other) = std::io::pipe().expect("a pipe");
        let given = send_fd(daemon.as_raw_fd(), b"here", own.as_raw_fd());
        assert!(given.is_ok(), "the other way is open: {given:?}");
        keeper.join().expect("it waits");
    }
}
