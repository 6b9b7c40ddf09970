//! Sockets like those of an image: they come without connections.

use super::super::describe::sockets::{Known, OF_ADDRESSES, OF_DEVICE, OPTIONS, value};
use crate::sockopt::{checked, set, socket};
use holdfast_wire::snapshot::{Socket, SocketOption};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// A socket as it was before it was connected or bound, with its options.
///
/// # Errors
/// As socket(2).
pub fn placeholder(of: &Socket) -> io::Result<OwnedFd> {
    let fd = socket(of.family, of.kind, of.protocol)?;
    set_options(fd.as_fd(), &of.options, &OPTIONS);
    if !of.is_connected {
        set_options(fd.as_fd(), &of.options, &OF_ADDRESSES);
        same_device(fd.as_fd(), &of.options)?;
    }
    Ok(fd)
}

/// Refuses a socket that is bound to an interface in the image and could not be bound to it here:
/// it would hear everybody.
fn same_device(fd: BorrowedFd<'_>, options: &[SocketOption]) -> io::Result<()> {
    let is_it = |it: &&SocketOption| (it.level, it.name) == (OF_DEVICE.0, OF_DEVICE.1);
    let Some(device) = options.iter().find(is_it).map(|it| &it.value[..]) else { return Ok(()) };
    let set_here = value(fd, OF_DEVICE).unwrap_or_default();
    let name = |of: &[u8]| of.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
    if name(device) == name(&set_here) {
        return Ok(());
    }
    set(fd, OF_DEVICE.0, OF_DEVICE.1, device).map_err(|error| {
        let name = String::from_utf8_lossy(&name(device)).into_owned();
        let text =
            format!("a socket is bound to the interface {name}, and cannot be here: {error}");
        io::Error::new(error.kind(), text)
    })
}

/// Sets those of the image's options that are known here, and are not as they were set. Some that
/// can be read cannot be set: most often to 0 seconds of something.
pub(super) fn set_options(fd: BorrowedFd<'_>, options: &[SocketOption], known: &[Known]) {
    for option in options {
        let it = (option.level, option.name, option.value.len());
        if known.contains(&it) && value(fd, it).as_ref() != Some(&option.value) {
            let _ = set(fd, option.level, option.name, &option.value[..]);
        }
    }
}

/// A socket that is bound, and listens, as the image's was.
///
/// # Errors
/// As bind(2) and listen(2).
pub fn bound(of: &Socket) -> io::Result<OwnedFd> {
    let fd = placeholder(of)?;
    bind(&fd, of)?;
    if of.is_listening {
        // SAFETY: plain numbers.
        checked(unsafe { libc::listen(fd.as_raw_fd(), libc::SOMAXCONN) })?;
    }
    Ok(fd)
}

/// Binds a socket to the image's address. If nobody listens at a UNIX socket's name any
/// more, only its file was left.
///
/// # Errors
/// As bind(2).
pub fn bind(fd: &OwnedFd, of: &Socket) -> io::Result<()> {
    let (address, len) = (of.local.as_ptr().cast(), of.local.len() as libc::socklen_t);
    // SAFETY: pointer and length describe the address.
    let bind = || checked(unsafe { libc::bind(fd.as_raw_fd(), address, len) });
    let failed = match bind() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        other => return other.map(drop),
    };
    let Some(path) = path_of(of).filter(|path| is_left(path, of)) else { return Err(failed) };
    std::fs::remove_file(path)?;
    bind().map(drop)
}

/// The path that a UNIX socket is bound to.
fn path_of(of: &Socket) -> Option<&Path> {
    let name = of.local.get(size_of::<libc::sa_family_t>()..)?;
    let name = name.split(|byte| *byte == 0).next()?;
    let is_path = of.family == libc::AF_UNIX && !name.is_empty();
    is_path.then(|| Path::new(OsStr::from_bytes(name)))
}

/// Whether a socket's file has no socket any more.
fn is_left(path: &Path, of: &Socket) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let refused = || {
        // A listener that accepts nobody is not waited for.
        let fd = socket(of.family, of.kind | libc::SOCK_NONBLOCK, of.protocol)?;
        let (address, len) = (of.local.as_ptr().cast(), of.local.len() as libc::socklen_t);
        // SAFETY: pointer and length describe the address.
        checked(unsafe { libc::connect(fd.as_raw_fd(), address, len) })
    };
    is_socket && refused().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Needs root.
    #[test]
    fn a_listener_of_one_interface_does_not_become_one_of_all() {
        let with = |device: &[u8; 16], is_connected: bool| Socket {
            family: libc::AF_INET,
            kind: libc::SOCK_STREAM,
            protocol: 0,
            cookie: 1,
            is_listening: !is_connected,
            is_connected,
            options: vec![SocketOption {
                level: OF_DEVICE.0,
                name: OF_DEVICE.1,
                value: device.to_vec(),
            }],
            local: Vec::new(),
        };
        let gone = b"hfgone0\0\0\0\0\0\0\0\0\0";
        let refused = placeholder(&with(gone, false)).expect_err("no such interface").to_string();
        let words = "bound to the interface hfgone0, and cannot be here: No such device";
        assert!(refused.contains(words), "{refused}");
        placeholder(&with(gone, true)).expect("a connection has its address");
        let here = b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        let made = placeholder(&with(here, false)).expect("everybody has that");
        assert_eq!(value(made.as_fd(), OF_DEVICE).as_deref(), Some(&here[..]));
        placeholder(&with(&[0; 16], false)).expect("bound to none");
    }

    #[test]
    fn a_name_that_nobody_listens_at_is_taken_and_another_is_not() {
        let path = std::env::temp_dir().join(format!("hfleft{}", std::process::id()));
        let mut local = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
        local.extend_from_slice(path.as_os_str().as_bytes());
        local.push(0);
        let of = Socket {
            family: libc::AF_UNIX,
            kind: libc::SOCK_STREAM,
            protocol: 0,
            cookie: 1,
            is_listening: true,
            is_connected: false,
            options: Vec::new(),
            local,
        };
        let listener = UnixListener::bind(&path).expect("a fresh name");
        // Nobody is accepted, and no more can wait for it.
        // SAFETY: plain numbers.
        unsafe { libc::listen(listener.as_raw_fd(), 0) };
        let waits = || socket(of.family, of.kind | libc::SOCK_NONBLOCK, 0).expect("a socket");
        let (address, len) = (of.local.as_ptr().cast(), of.local.len() as libc::socklen_t);
        // SAFETY: pointer and length describe the address.
        let connect = |fd: OwnedFd| unsafe { libc::connect(fd.as_raw_fd(), address, len) };
        while connect(waits()) == 0 {}
        let taken = bind(&placeholder(&of).expect("a socket"), &of);
        assert_eq!(taken.err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
        drop(listener);
        bind(&placeholder(&of).expect("a socket"), &of).expect("only a file was left");
        std::fs::remove_file(&path).expect("it is there");
        std::fs::write(&path, "").expect("a plain file");
        assert!(bind(&placeholder(&of).expect("a socket"), &of).is_err(), "no socket");
        std::fs::remove_file(path).expect("it is there");
    }
}
