//! The server's children, where its processes are not a family in one log. They run beside the
//! server, outside protection: a child that writes files, or becomes another program, does no
//! harm. A child that serves clients does, since the replica has no such child: what clients get
//! from it is in no log, and could not be continued. So protection ends as soon as a child touches
//! a client's socket, and the report says by which call of which program.

use crate::base::fds::{self, Kind};
use crate::base::state::{self, FAULT_FD, Mode, header, mode};
use crate::base::sys::{self, sys, syscall};
use crate::base::{alarm, handlers, report};
use crate::calls::{births, processors};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering::*};
use holdfast_wire::shm::mode as shared_mode;

/// Most descriptors of one `poll` or `select` that are looked at.
const LOOKS_MAX: usize = 256;
/// Most bytes of a program's name.
const NAME_BYTES: usize = 128;

/// Whether this process is a child of a server under protection.
static CHILD: AtomicBool = AtomicBool::new(false);

type Handler = extern "C" fn();

unsafe extern "C" {
    fn __register_atfork(
        prepare: Option<Handler>,
        parent: Option<Handler>,
        child: Option<Handler>,
        dso: *mut u8,
    ) -> i32;
}

/// Installs the handlers at start-up: every way to fork passes here, even
/// `daemon`.
pub fn note() {
    // SAFETY: libc keeps the address of a function that is never unloaded.
    unsafe { __register_atfork(Some(before), Some(after), Some(born), core::ptr::null_mut()) };
}

/// Runs in the parent before a fork: the child counts from now on, even if the parent ends first.
extern "C" fn before() {
    if mode() == Mode::Record {
        header().forks.fetch_add(1, Relaxed);
    }
    if state::is_family() {
        births::before();
    }
}

extern "C" fn after() {
    if state::is_family() {
        births::after();
    }
}

/// Runs in the child: none of its calls are logged, and none are answered from
/// the log.
extern "C" fn born() {
    if state::is_family() {
        return births::born();
    }
    if mode() != Mode::Record {
        return;
    }
    processors::free_thread();
    state::set_mode(Mode::Pass);
    sys!(SYS_close, FAULT_FD.load(Relaxed));
    CHILD.store(true, Relaxed);
    handlers::restore();
    alarm::allow_tsc();
}

/// Whether this process's calls could end protection.
#[inline]
fn is_watched() -> bool {
    let shared = || header().mode.0.load(Relaxed);
    CHILD.load(Relaxed) && matches!(shared(), shared_mode::RECORD | shared_mode::SOLO)
}

/// Called before a child makes a call on a descriptor: ends protection if it is a client's.
#[inline]
pub fn touch(fd: i32, call: &str) {
    if is_watched() {
        look(fd, call);
    }
}

/// Like [`touch`], for the descriptors of one call.
#[inline]
pub fn touch_with<I: Iterator<Item = i32>>(descriptors: impl FnOnce() -> I, call: &str) {
    if is_watched() {
        descriptors().take(LOOKS_MAX).for_each(|fd| look(fd, call));
    }
}

/// Like [`touch`], for the sets of `select`: `n` descriptors, one bit each.
pub fn touch_sets(n: i32, sets: [*const u8; 3], call: &str) {
    let has = |fd: i32| {
        let bit = |set: &*const u8| {
            // SAFETY: the caller's set has room for `n` bits.
            !set.is_null() && unsafe { set.add(fd as usize / 8).read() } & 1 << (fd % 8) != 0
        };
        sets.iter().any(bit)
    };
    touch_with(|| (0..n).filter(|fd| has(*fd)), call);
}

#[cold]
fn look(fd: i32, call: &str) {
    if is_protected(fd) {
        serves(call, "");
    }
}

/// Called before a process of a family becomes a program that cannot be in the log: it leaves the
/// log, or ends protection if it takes a client's socket along.
pub fn leave_for_another() {
    if !state::is_family() || mode() == Mode::Pass {
        return;
    }
    let mut kept = false;
    fds::for_each(|fd, f| {
        kept |= matches!(f.kind(), Kind::Conn) && !fds::ends_at_exec(fd);
    });
    if kept {
        report::end_protection(
            "a process of the server becomes a program that cannot be followed (exec; static, or \
             with rights of its own) with a client's connection: nobody could take that over",
        );
        return state::set_mode(Mode::Pass);
    }
    let is_replica = mode() == Mode::Replay;
    births::leave();
    if is_replica && !shared_mode::is_alone(header().mode.0.load(SeqCst)) {
        // The primary's process runs the program, which must not be done twice.
        sys::die(0);
    }
}

/// Called before a child becomes another program, whose calls the shim does not see: ends
/// protection if that program gets a client's socket.
pub fn before_exec(program: usize) {
    if !is_watched() {
        return;
    }
    let mut kept = false;
    fds::for_each(|fd, _| {
        kept |= is_client(fd) && !fds::ends_at_exec(fd);
    });
    // The socket may be its standard input, as with inetd.
    if kept || (0..=2).any(is_protected) {
        // SAFETY: the caller's path.
        let program = unsafe { CStr::from_ptr(program as *const _) };
        serves("exec of ", program.to_str().unwrap_or("?"));
    }
}

/// Ends protection because a child serves clients.
fn serves(call: &str, what: &str) {
    let mut buffer = [0; NAME_BYTES];
    let name = own_name(&mut buffer);
    report::end_protection_by(&[
        "a child process of the server (",
        name,
        ") serves clients, by ",
        call,
        what,
        ": only one process can be protected; start the server with one and in the foreground",
        directive(name),
    ]);
}

/// Remedies: for known programs, the settings that make them a single process.
const DIRECTIVES: [(&str, &str); 12] = [
    (
        "nginx",
        " (nginx: `daemon off; master_process off;`, or `[server] run = \"parallel\"` of holdfast)",
    ),
    ("apache2", " (apache: `-X`, or `[server] run = \"one-at-a-time\"` of holdfast)"),
    ("httpd", " (apache: `-X`, or `[server] run = \"one-at-a-time\"` of holdfast)"),
    ("haproxy", " (haproxy: `-db`, without `-W`, or `[server] run = \"parallel\"` of holdfast)"),
    ("dnsmasq", " (dnsmasq: `-d`, or `[server] run = \"parallel\"` of holdfast)"),
    ("lighttpd", " (lighttpd: `-D`, without server.max-worker)"),
    ("postgres", " (PostgreSQL: `[server] run = \"one-at-a-time\"` of holdfast)"),
    ("gunicorn", " (gunicorn: `[server] run = \"parallel\"` of holdfast)"),
    ("uvicorn", " (uvicorn: without `--workers`)"),
    ("sshd", " (sshd is not supported)"),
    ("dropbear", " (dropbear: `[server] run = \"parallel\"` of holdfast)"),
    ("vsftpd", " (vsftpd: `[server] run = \"parallel\"` of holdfast)"),
];

fn directive(name: &str) -> &'static str {
    DIRECTIVES.iter().find(|(known, _)| name.ends_with(known)).map_or("", |(_, text)| text)
}

/// The path of the program that this process runs.
fn own_name(buffer: &mut [u8; NAME_BYTES]) -> &str {
    let path = c"/proc/self/exe".as_ptr();
    // SAFETY: memory of ours, of the sizes that are said.
    let n = unsafe {
        syscall!(SYS_readlinkat, libc::AT_FDCWD, path, buffer.as_mut_ptr(), buffer.len())
    };
    core::str::from_utf8(&buffer[..n.max(0) as usize]).unwrap_or("?")
}

/// Whether a descriptor is a socket of a protected port. The kernel is asked, because the child
/// may have opened and closed anything.
fn is_protected(fd: i32) -> bool {
    let mut address = [0u8; 32];
    let mut len = address.len() as u32;
    // SAFETY: memory of ours, of the sizes that are said.
    if unsafe { syscall!(SYS_getsockname, fd, address.as_mut_ptr(), &raw mut len) } != 0 {
        return false;
    }
    let family = i32::from(u16::from_ne_bytes([address[0], address[1]]));
    let port = u16::from_be_bytes([address[2], address[3]]);
    let (mut kind, mut kind_len) = (0i32, 4u32);
    let (at, room) = (&raw mut kind, &raw mut kind_len);
    matches!(family, libc::AF_INET | libc::AF_INET6)
        && header().ports.iter().take_while(|p| **p != 0).any(|p| *p == port)
        // SAFETY: memory of ours, of the sizes that are said.
        && unsafe { syscall!(SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_TYPE, at, room) } == 0
        && kind == libc::SOCK_STREAM
}

/// Whether a descriptor is a client's connection.
fn is_client(fd: i32) -> bool {
    let (mut accepts, mut len) = (0i32, 4u32);
    let (at, room) = (&raw mut accepts, &raw mut len);
    is_protected(fd)
        // SAFETY: memory of ours, of the sizes that are said.
        && unsafe { syscall!(SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, at, room) } == 0
        && accepts == 0
}
