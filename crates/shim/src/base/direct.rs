//! The short way of the log (decision 35): the thread that waits for the backup sends it what it
//! lacks and hears from it, without a daemon in between. What is lost, and what only a daemon may
//! send, takes the daemons' way.

use crate::base::cells::Locked;
use crate::base::state::{self, CONTROL_FD, DIRECT_FD, header};
use crate::base::sys::{self, sys, syscall};
use crate::base::{handed, log, ring};
use core::sync::atomic::{AtomicBool, Ordering::*, fence};
use holdfast_wire::direct::{
    DATAGRAM_MAX, KEY_BYTES, RECORDS_MAX, Seal, Speaker, len_of, records_at,
};
use holdfast_wire::log::{Header, record_len};
use holdfast_wire::shm::DIRECT;

/// Number of datagrams lost in a row after which the way counts as blocked.
const LOST_MAX: u32 = 8;
/// Number of commits that then take the daemons' way before it is tried again.
const REST: u32 = 1000;
/// Most datagrams looked at for one answer: an earlier one may still come.
const ANSWERS_MAX: usize = 64;

/// Whether a thread sends, or waits for an answer. Others take the daemons' way meanwhile.
static BUSY: AtomicBool = AtomicBool::new(false);
static END: Locked<End> =
    Locked::new(End { seal: None, lost: 0, rest: 0, datagram: [0; DATAGRAM_MAX] });

/// This end of the way.
struct End {
    seal: Option<Seal>,
    /// Number of datagrams lost in a row.
    lost: u32,
    /// Number of commits until it is tried again.
    rest: u32,
    datagram: [u8; DATAGRAM_MAX],
}

/// Makes the backup hold everything before `need`. False: the daemon has to, since the way is not
/// open, or something is in between that only the daemon may send, or was lost.
pub fn commit(need: u64) -> bool {
    let id = header().direct.id.load(Acquire);
    if id == 0 || state::is_family() || BUSY.swap(true, Acquire) {
        return false;
    }
    let done = END.hold().commit(id, need);
    BUSY.store(false, Release);
    done
}

/// Forgets the way, in a process that is not the one that opened it.
pub fn forget() {
    header().direct.fd.store(0, Relaxed);
    let fd = DIRECT_FD.swap(-1, Relaxed);
    if fd >= 0 {
        sys!(SYS_close, fd);
    }
}

impl End {
    fn commit(&mut self, id: u64, need: u64) -> bool {
        if self.rest > 0 {
            self.rest -= 1;
            return false;
        }
        if self.seal.as_ref().is_none_or(|seal| seal.id() != id) && !self.open(id) {
            self.rest = REST;
            return false;
        }
        let tail = log::close();
        let Some(len) = self.pack(header().stable.0.load(Acquire), tail) else { return false };
        if self.send(len.0, len.1) && self.hear(id, need, tail) {
            self.lost = 0;
            header().direct.confirmed.fetch_add(1, Relaxed);
            return true;
        }
        self.lost += 1;
        header().direct.lost.fetch_add(1, Relaxed);
        if self.lost >= LOST_MAX {
            (self.lost, self.rest) = (0, REST);
        }
        false
    }

    /// Takes the socket that the daemon has handed over for this key.
    fn open(&mut self, id: u64) -> bool {
        let direct = &header().direct;
        forget();
        let Some(fd) = take_socket() else { return false };
        DIRECT_FD.store(fd, Relaxed);
        direct.fd.store(fd, Relaxed);
        let mut key = [0; KEY_BYTES];
        for (to, word) in key.chunks_exact_mut(8).zip(&direct.key) {
            to.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        self.seal = Some(Seal::new(id, &key));
        self.lost = 0;
        direct.taken.store(id, Release);
        true
    }

    /// Puts the records of `[from, tail)` into the datagram; returns `from` and their length there.
    fn pack(&mut self, from: u64, tail: u64) -> Option<(u64, usize)> {
        let room = &mut self.datagram[records_at()..records_at() + RECORDS_MAX];
        let (mut pos, mut at) = (from, 0);
        while pos < tail {
            // SAFETY: whole records lie before `tail`, each contiguous by the double mapping. That
            // nothing was written over them meanwhile is checked below.
            let record = unsafe { ring::at(pos).cast::<Header>().read() };
            let len = len_of(&record).filter(|len| at + len <= room.len())?;
            // SAFETY: as above, and the room was just checked.
            unsafe { core::ptr::copy_nonoverlapping(ring::at(pos), room[at..].as_mut_ptr(), len) };
            (at, pos) = (at + len, pos + record_len(record.payload_len as usize) as u64);
        }
        fence(Acquire);
        // Nobody had room to write over them.
        let is_whole = header().head.0.load(Acquire) <= from;
        (pos == tail && is_whole).then_some((from, at))
    }

    fn send(&mut self, from: u64, len: usize) -> bool {
        let counter = header().direct.counter.fetch_add(1, Relaxed);
        let Some(seal) = &self.seal else { return false };
        let Some(len) = seal.seal(Speaker::Server, counter, from, len, &mut self.datagram) else {
            return false;
        };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let (fd, at) = (DIRECT_FD.load(Relaxed), self.datagram.as_ptr());
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_sendto, fd, at, len, flags, 0usize, 0usize) == len as isize }
    }

    /// Waits until the backup says that it holds everything before `need`.
    fn hear(&mut self, id: u64, need: u64, tail: u64) -> bool {
        for _ in 0..ANSWERS_MAX {
            if !self.wait() {
                return log::holds(need);
            }
            let (fd, at) = (DIRECT_FD.load(Relaxed), self.datagram.as_mut_ptr());
            let (room, flags) = (self.datagram.len(), libc::MSG_DONTWAIT);
            // SAFETY: memory of ours, of the sizes that are said.
            let r = unsafe { syscall!(SYS_recvfrom, fd, at, room, flags, 0usize, 0usize) };
            // An error is that of the last datagram: nobody listens there.
            if r < 0 && r != -(libc::EAGAIN as isize) && r != -(libc::EINTR as isize) {
                return false;
            }
            let datagram = &mut self.datagram[..r.max(0) as usize];
            let said = self.seal.as_ref().and_then(|seal| seal.open(Speaker::Backup, datagram));
            // What the daemon has ended, nobody confirms any more.
            let counts = header().direct.id.load(Acquire) == id;
            if let Some(said) = said.filter(|said| counts && said.position <= tail) {
                advance(said.position);
            }
            if log::holds(need) {
                return true;
            }
        }
        false
    }

    /// Waits until something has come, at most as long as that may take.
    fn wait(&self) -> bool {
        let mut poll =
            libc::pollfd { fd: DIRECT_FD.load(Relaxed), events: libc::POLLIN, revents: 0 };
        let wait_ns = header().direct.wait_ns.load(Relaxed).min(WAIT_NS_MAX);
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: wait_ns as i64 };
        // SAFETY: memory of ours, of the sizes that are said.
        unsafe { syscall!(SYS_ppoll, &raw mut poll, 1, &raw const timeout, 0usize, 8) > 0 }
    }
}

/// Longest wait for an answer, in ns, whatever the daemon says.
const WAIT_NS_MAX: u64 = 100_000_000;

/// Notes that the backup holds everything before `position`, for all threads.
fn advance(position: u64) {
    let h = header();
    h.stable.0.fetch_max(position, AcqRel);
    h.stable_futex.0.fetch_add(1, SeqCst);
    if h.shim_waiting.0.load(SeqCst) != 0 {
        sys::futex_wake(&h.stable_futex.0, true);
    }
}

/// The socket that the daemon has sent, out of the server's way. While the log is held nobody else
/// makes a descriptor.
fn take_socket() -> Option<i32> {
    let _held = log::hold();
    let mut last = None;
    // Those before the last one lead to backups that have gone before the server took them.
    while let Some((mark, fd)) = handed::receive() {
        let earlier = if mark == DIRECT { last.replace(fd) } else { Some(fd) };
        earlier.map(|fd| sys!(SYS_close, fd));
    }
    let high = sys!(SYS_fcntl, last?, libc::F_DUPFD_CLOEXEC, CONTROL_FD.load(Relaxed));
    sys!(SYS_close, last?);
    (high >= 0).then_some(high as i32)
}
