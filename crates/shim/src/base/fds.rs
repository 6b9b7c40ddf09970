//! What the shim knows of each descriptor: its kind, its connection, and its epoll sets.

use crate::base::state::{self, Mode};
use crate::base::sys::{sys, syscall};
use crate::base::{brief, report};
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Number of descriptors that are supported; higher ones are refused with `EMFILE`.
pub const FD_MAX: usize = holdfast_wire::shm::FDS_MAX;
/// Epoll sets of a descriptor that are noted with it; further ones are in a [`Block`].
const NEAR: usize = 4;
/// Epoll sets of a descriptor in its block. With the near ones there is one for each thread of a
/// large server.
const FAR: usize = 124;
/// Most descriptors that may be in more than [`NEAR`] sets at a time: listeners are.
const BLOCKS_MAX: usize = 128;

/// What a descriptor refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A regular file, or something that was open before the shim: each member has its own.
    Own = 0,
    /// A stream socket that is neither listening nor connected yet.
    Socket,
    /// A listener of a protected port.
    Listener,
    /// Any other listener: what its connections receive is logged with the payload.
    PlainListener,
    /// A client's connection on a protected port.
    Conn,
    /// A socket to somewhere else: outbound, UNIX, UDP.
    Outside,
    /// Pipe, eventfd, timerfd, socketpair: real on both members.
    Local,
    Epoll,
    /// `/dev/urandom`, `/proc`: content from the log.
    Device,
}

/// A descriptor's registration in one epoll set.
pub struct Place {
    pub set: AtomicI32,
    pub events: AtomicU32,
    pub data: AtomicU64,
}

impl Place {
    const fn free() -> Self {
        Self { set: AtomicI32::new(-1), events: AtomicU32::new(0), data: AtomicU64::new(0) }
    }
}

/// Places of a descriptor that is in many epoll sets.
struct Block {
    is_taken: AtomicBool,
    places: [Place; FAR],
}

static BLOCKS: [Block; BLOCKS_MAX] =
    [const { Block { is_taken: AtomicBool::new(false), places: [const { Place::free() }; FAR] } };
        BLOCKS_MAX];

pub struct Fd {
    kind: AtomicU8,
    /// Backlog; 0 if the daemon need not listen on it at promotion.
    pub backlog: AtomicI32,
    pub conn: AtomicU32,
    /// Thread that has deferred writes for it, counted from 1; 0: none.
    pub deferred: AtomicU32,
    /// Its block, counted from 1; 0: none.
    block: AtomicU32,
    near: [Place; NEAR],
}

static FDS: [Fd; FD_MAX] = [const {
    Fd {
        kind: AtomicU8::new(0),
        backlog: AtomicI32::new(-1),
        conn: AtomicU32::new(0),
        deferred: AtomicU32::new(0),
        block: AtomicU32::new(0),
        near: [const { Place::free() }; NEAR],
    }
}; FD_MAX];

static HIGHEST: AtomicI32 = AtomicI32::new(-1);

#[inline]
pub fn get(fd: i32) -> Option<&'static Fd> {
    FDS.get(usize::try_from(fd).ok()?)
}

#[inline]
pub fn kind(fd: i32) -> Kind {
    get(fd).map_or(Kind::Own, Fd::kind)
}

/// Whether calls on `fd` concern the log in the current mode.
#[inline]
pub fn is_virtual(fd: i32) -> bool {
    kind(fd) != Kind::Own
}

impl Fd {
    #[inline]
    pub fn kind(&self) -> Kind {
        match self.kind.load(Relaxed) {
            1 => Kind::Socket,
            2 => Kind::Listener,
            3 => Kind::PlainListener,
            4 => Kind::Conn,
            5 => Kind::Outside,
            6 => Kind::Local,
            7 => Kind::Epoll,
            8 => Kind::Device,
            _ => Kind::Own,
        }
    }

    pub fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u8, Relaxed);
    }

    fn block(&self) -> Option<&'static Block> {
        BLOCKS.get((self.block.load(Relaxed) as usize).checked_sub(1)?)
    }

    /// Its places in epoll sets, free ones too; the few that most descriptors need come first.
    fn places(&self) -> impl Iterator<Item = &Place> {
        let far = core::iter::once_with(|| self.block()).flatten();
        self.near.iter().chain(far.flat_map(|block| &block.places))
    }

    /// Gives it a block if it has none, and one is left.
    fn take_block(&self) -> Option<&'static Block> {
        if self.block().is_none() {
            let at = BLOCKS.iter().position(|it| !it.is_taken.swap(true, Relaxed))?;
            self.block.store(at as u32 + 1, Relaxed);
        }
        self.block()
    }

    fn leave_all_sets(&self) {
        self.places().for_each(|place| place.set.store(-1, Relaxed));
        if let Some(block) = self.block() {
            self.block.store(0, Relaxed);
            block.is_taken.store(false, Relaxed);
        }
    }
}

/// Remembers that `fd` is now open as `kind`.
pub fn opened(fd: i32, kind: Kind) {
    if let Some(f) = get(fd) {
        f.set_kind(kind);
        f.backlog.store(-1, Relaxed);
        f.conn.store(0, Relaxed);
        HIGHEST.fetch_max(fd, Relaxed);
    }
}

/// Whether `fd` is closed when this program becomes another one.
pub fn ends_at_exec(fd: i32) -> bool {
    let flags = sys!(SYS_fcntl, fd, libc::F_GETFD);
    flags < 0 || flags & libc::FD_CLOEXEC as isize != 0
}

/// What the next program must know of an open descriptor (see `calls::carry`).
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
pub struct Carried {
    fd: i32,
    kind: u32,
    pub conn: u32,
    backlog: i32,
}

impl Carried {
    pub fn of(fd: i32, f: &Fd) -> Self {
        let (conn, backlog) = (f.conn.load(Relaxed), f.backlog.load(Relaxed));
        Self { fd, kind: f.kind() as u32, conn, backlog }
    }

    /// Enters what the program before this one knew.
    pub fn restore(self) {
        opened(self.fd, Kind::Own);
        if let Some(f) = get(self.fd) {
            f.kind.store(self.kind as u8, Relaxed);
            f.conn.store(self.conn, Relaxed);
            f.backlog.store(self.backlog, Relaxed);
        }
    }
}

/// Forgets `fd`, and its registrations in epoll sets.
pub fn closed(fd: i32) {
    if let Some(f) = get(fd) {
        if f.kind() == Kind::Epoll {
            for_each_place(|_, place| {
                if place.set.load(Relaxed) == fd {
                    place.set.store(-1, Relaxed);
                }
            });
        }
        f.set_kind(Kind::Own);
        f.conn.store(0, Relaxed);
        f.leave_all_sets();
    }
}

/// Calls `f` for every registration of a descriptor in an epoll set.
pub fn for_each_place(mut f: impl FnMut(i32, &Place)) {
    for_each(|fd, entry| {
        for place in entry.places() {
            if place.set.load(Relaxed) >= 0 {
                f(fd, place);
            }
        }
    });
}

pub fn for_each(mut f: impl FnMut(i32, &'static Fd)) {
    for fd in 0..=HIGHEST.load(Relaxed) {
        if let Some(entry) = get(fd) {
            f(fd, entry);
        }
    }
}

/// The registration of `fd` in `set`, if it has one.
#[inline]
pub fn place(fd: i32, set: i32) -> Option<&'static Place> {
    let f = get(fd)?;
    let is_it = |p: &&Place| p.set.load(Relaxed) == set;
    f.near.iter().find(is_it).or_else(|| f.block()?.places.iter().find(is_it))
}

/// A free registration of `fd`, which the caller then fills; `None` if it is in as many sets as it
/// may be in, or too many others are in many sets.
pub fn free_place(fd: i32) -> Option<&'static Place> {
    let f = get(fd)?;
    let is_free = |p: &&Place| p.set.load(Relaxed) < 0;
    f.near.iter().find(is_free).or_else(|| f.take_block()?.places.iter().find(is_free))
}

/// Moves a replica's descriptor to the number that it has on the primary. The kernel's choice is
/// nearly always right already.
pub fn renumber(fd: isize, want: isize, cloexec: bool) {
    if fd < 0 || want < 0 || fd == want {
        return;
    }
    brief::alone(|| {
        if sys!(SYS_fcntl, want, libc::F_GETFD) >= 0 {
            report::diverged_fd(want as i32);
        }
        sys!(SYS_dup3, fd, want, if cloexec { libc::O_CLOEXEC } else { 0 });
        sys!(SYS_close, fd);
    });
}

/// Like [`renumber`], for two at once: each may have the number that the other needs.
pub fn renumber_pair(fds: [i32; 2], want: [i32; 2], cloexec: bool) {
    if fds == want {
        return;
    }
    let away = fds.map(|fd| {
        let moved = sys!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, fds[1].max(want[1]) + 1);
        sys!(SYS_close, fd);
        moved
    });
    renumber(away[0], want[0] as isize, cloexec);
    renumber(away[1], want[1] as isize, cloexec);
}

/// Whether `fd` is one of the shim's own, which the server must not touch.
#[inline]
pub fn is_shim(fd: i32) -> bool {
    state::mode() != Mode::Pass
        && fd >= 0
        && [
            &state::CONTROL_FD,
            &state::MEMORY_FD,
            &state::WAKE_FD,
            &state::FAULT_FD,
            &state::DIRECT_FD,
        ]
        .iter()
        .any(|ours| fd == ours.load(Relaxed))
}

/// A socket option that is so many numbers; `None` if `fd` has no such one.
pub fn socket_numbers<const N: usize>(fd: i32, level: i32, option: i32) -> Option<[i32; N]> {
    let (mut values, mut len) = ([0i32; N], size_of::<[i32; N]>() as u32);
    let at = (&raw mut values, &raw mut len);
    // SAFETY: memory of ours, of the sizes that are said.
    let r = unsafe { syscall!(SYS_getsockopt, fd, level, option, at.0, at.1) };
    (r == 0 && len as usize == size_of::<[i32; N]>()).then_some(values)
}

/// A socket option that is a number; -1 if `fd` is no socket.
pub fn socket_option(fd: i32, option: i32) -> i32 {
    socket_numbers(fd, libc::SOL_SOCKET, option).map_or(-1, |[value]| value)
}

/// Whether `fd` is a UNIX socket.
pub fn is_unix(fd: i32) -> bool {
    socket_option(fd, libc::SO_DOMAIN) == libc::AF_UNIX
}

// Miri looks at the whole table with each access; there is nothing unsafe in it.
#[cfg(all(test, not(miri)))]
mod tests;
