//! What the shim knows: its mode, the shared memory, and who it is.

use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};
use holdfast_wire::shm;

/// How calls are treated. A cached copy of the shared mode, read on every call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mode {
    /// Not ours, or protection has ended: straight to the kernel.
    Pass = 0,
    Record = 1,
    Replay = 2,
    /// Promoted: the kernel answers, with the primary's clocks and names.
    Live = 3,
}

/// Memory shared with the daemon; null in mode [`Mode::Pass`].
pub struct Shared {
    pub header: *mut shm::Header,
    pub table: *mut shm::ConnEntry,
    pub ring: *mut u8,
    pub ring_bytes: u64,
}

/// A cell whose users order themselves (start-up, the log lock, or one thread).
pub struct Own<T>(UnsafeCell<T>);

// SAFETY: see the type's contract; each user states how it is ordered.
unsafe impl<T> Sync for Own<T> {}

impl<T> Own<T> {
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// # Safety
    /// No other reference may be in use: the caller states what orders access.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get(&self) -> &mut T {
        // SAFETY: by the caller's promise.
        unsafe { &mut *self.0.get() }
    }

    /// As [`Self::get`], for what several threads only read.
    ///
    /// # Safety
    /// Nobody writes meanwhile.
    pub unsafe fn read(&self) -> &T {
        // SAFETY: by the caller's promise.
        unsafe { &*self.0.get() }
    }
}

static MODE: AtomicU32 = AtomicU32::new(0);
static SHARED: Own<Shared> = Own::new(Shared {
    header: core::ptr::null_mut(),
    table: core::ptr::null_mut(),
    ring: core::ptr::null_mut(),
    ring_bytes: 0,
});

/// Threads of the server that run now.
pub static THREADS: AtomicU32 = AtomicU32::new(1);
/// Whether the server has ever made a thread. It never goes back: members would
/// not agree on when.
pub static THREADED: AtomicBool = AtomicBool::new(false);
/// Whether the main thread is where it neither delivers signals nor promotes:
/// it waits for another thread to end, or has ended itself.
pub static MAIN_AWAY: AtomicBool = AtomicBool::new(false);
/// Descriptor of the socket to the daemon, of the memory shared with it, and of
/// its wake-up eventfd.
pub static CONTROL_FD: AtomicI32 = AtomicI32::new(-1);
pub static MEMORY_FD: AtomicI32 = AtomicI32::new(-1);
pub static WAKE_FD: AtomicI32 = AtomicI32::new(-1);
/// Position after the last record that output must wait for.
pub static DIRTY: AtomicU64 = AtomicU64::new(0);
/// `Header::options`, cached.
pub static OPTIONS: AtomicU32 = AtomicU32::new(0);
/// Address ranges of allocator libraries, which stay outside (`lo`, `hi`).
pub static EXCLUDED: [(AtomicUsize, AtomicUsize); 8] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 8];
pub static HAS_EXCLUDED: AtomicBool = AtomicBool::new(false);

std::thread_local! {
    static TID: Cell<u16> = const { Cell::new(0) };
    /// Set while the shim itself calls into libc.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

#[inline]
pub fn mode() -> Mode {
    match MODE.load(Relaxed) {
        1 => Mode::Record,
        2 => Mode::Replay,
        3 => Mode::Live,
        _ => Mode::Pass,
    }
}

pub fn set_mode(mode: Mode) {
    MODE.store(mode as u32, core::sync::atomic::Ordering::SeqCst);
}

/// The calling thread's number in order of creation.
#[inline]
pub fn tid() -> u16 {
    TID.get()
}

pub fn set_tid(tid: u16) {
    TID.set(tid);
}

/// Whether the server has, or has had, more than one thread.
#[inline]
pub fn threaded() -> bool {
    THREADED.load(Relaxed)
}

pub fn inside() -> bool {
    INSIDE.get()
}

/// Runs `f` with interception off for this thread.
pub fn uninterrupted<T>(f: impl FnOnce() -> T) -> T {
    let before = INSIDE.replace(true);
    let result = f();
    INSIDE.set(before);
    result
}

/// Whether calls from this return address stay outside the replicated domain:
/// an allocator's locks and clocks depend on real contention.
#[inline]
pub fn excluded(caller: usize) -> bool {
    HAS_EXCLUDED.load(Relaxed)
        && EXCLUDED.iter().any(|(lo, hi)| (lo.load(Relaxed)..hi.load(Relaxed)).contains(&caller))
}

/// Sets the shared memory; called once, before the mode leaves [`Mode::Pass`].
pub fn set_shared(shared: Shared) {
    // SAFETY: start-up is single-threaded.
    unsafe { *SHARED.get() = shared }
}

#[inline]
pub fn shared() -> &'static Shared {
    // SAFETY: written once at start-up, read-only afterwards.
    unsafe { SHARED.read() }
}

/// The header page.
#[inline]
pub fn header() -> &'static shm::Header {
    // SAFETY: mapped for the life of the process once the mode is not Pass;
    // fields that change are atomics.
    unsafe { &*shared().header }
}
