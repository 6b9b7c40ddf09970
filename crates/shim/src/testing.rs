//! Helpers for unit tests: memory as the daemon would have made it. All of the shim's state
//! belongs to the process, so only one test at a time may use it.

use crate::base::state::{self, Mode, header};
use core::sync::atomic::Ordering::*;
use holdfast_wire::log::{HEADER_LEN, Header, record_len};
use holdfast_wire::shm::{HEADER_BYTES, MAGIC, RING_OFFSET, TABLE_BYTES, VERSION, mode};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub const RING_BYTES: usize = 64 << 10;

static TURN: Mutex<()> = Mutex::new(());

/// Keeps the shim attached as long as this lives.
pub struct Attached {
    _turn: MutexGuard<'static, ()>,
}

/// Waits for the shim, and attaches it to an empty log.
pub fn attach(as_mode: Mode) -> Attached {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !state::is_attached() {
        map();
    }
    let h = state::header_ptr().cast::<u8>();
    // SAFETY: header and table are mapped, and nobody else looks at them.
    unsafe { core::ptr::write_bytes(h, 0, HEADER_BYTES + TABLE_BYTES) };
    state::group().dirty.0.store(0, Relaxed);
    state::group().slowed_at.0.store(0, Relaxed);
    let attached = Attached { _turn: turn };
    attached.become_mode(as_mode);
    attached
}

impl Attached {
    /// Switches to the other member's view of the same log.
    pub fn become_mode(&self, as_mode: Mode) {
        let shared = if as_mode == Mode::Replay { mode::REPLAY } else { mode::RECORD };
        header().mode.0.store(shared, SeqCst);
        state::set_mode(as_mode);
    }

    /// Confirms everything that was logged.
    pub fn confirm(&self) {
        header().stable.0.store(crate::base::ring::tail(), Release);
    }

    /// Headers and payloads of everything that was logged and not consumed.
    pub fn records(&self) -> Vec<(Header, Vec<u8>)> {
        let mut at = header().head.0.load(Acquire);
        let mut records = Vec::new();
        while at < crate::base::ring::tail() {
            // SAFETY: whole records lie between head and tail.
            let (record, payload) = unsafe {
                let place = crate::base::ring::at(at);
                let record = place.cast::<Header>().read();
                let payload = place.add(HEADER_LEN);
                (record, core::slice::from_raw_parts(payload, record.payload_len as usize).to_vec())
            };
            at += record_len(payload.len()) as u64;
            records.push((record, payload));
        }
        records
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        state::set_mode(Mode::Pass);
    }
}

/// Maps memory as the daemon hands it over: a file in memory, which start-up
/// maps.
#[cfg(not(miri))]
fn map() {
    // SAFETY: libc's calls with arguments of ours.
    unsafe {
        let memory = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
        assert_eq!(libc::ftruncate(memory, (RING_OFFSET + RING_BYTES) as i64), 0);
        let h = core::mem::offset_of!(holdfast_wire::shm::Header, magic) as i64;
        let version = core::mem::offset_of!(holdfast_wire::shm::Header, version) as i64;
        let ring_bytes = core::mem::offset_of!(holdfast_wire::shm::Header, ring_bytes) as i64;
        let put = |bytes: &[u8], at: i64| {
            let n = libc::pwrite(memory, bytes.as_ptr().cast(), bytes.len(), at);
            assert_eq!(n, bytes.len() as isize);
        };
        put(&MAGIC.to_ne_bytes(), h);
        put(&VERSION.to_ne_bytes(), version);
        put(&(RING_BYTES as u64).to_ne_bytes(), ring_bytes);
        crate::start::map(memory);
    }
}

/// Maps memory under Miri: without a kernel there is no second mapping, so no
/// record may reach the ring's end.
#[cfg(miri)]
fn map() {
    let _ = (MAGIC, VERSION);
    let layout = std::alloc::Layout::from_size_align(RING_OFFSET + 2 * RING_BYTES, 4096);
    // SAFETY: so large, and never freed.
    unsafe {
        let base = std::alloc::alloc_zeroed(layout.expect("a layout"));
        state::set_shared(base, RING_BYTES as u64);
    }
}
