//! The shim's state: its mode, the shared memory, and its identity.

use core::cell::Cell;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*,
};
use holdfast_wire::quiet::shim_mode;
use holdfast_wire::shm::{self, Group, Process, ShimState, option};

/// How calls are treated: a cached form of the shared mode, read on every call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Mode {
    /// Calls go straight to the kernel: the process is not protected, or protection has ended.
    Pass = shim_mode::PASS,
    /// The kernel answers, and its answers are logged if anybody reads the log.
    Record = shim_mode::RECORD,
    Replay = shim_mode::REPLAY,
}

/// State that the daemon may read, and that it changes in a copy of the server.
static SHIM: ShimState = ShimState::new();
/// The memory shared with the daemon, in parts; null until it is mapped.
static HEADER: AtomicPtr<shm::Header> = AtomicPtr::new(core::ptr::null_mut());
static TABLE: AtomicPtr<shm::ConnEntry> = AtomicPtr::new(core::ptr::null_mut());
static RING: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// Address of `Header::takes_turns`.
static TAKES_TURNS: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NO_TURNS).cast_mut());
/// Stands for it until the memory is mapped.
static NO_TURNS: AtomicU32 = AtomicU32::new(0);
/// Size of the ring, a power of two. It is mapped a second time behind itself.
static RING_BYTES: AtomicU64 = AtomicU64::new(0);

/// The group state of a server that is a single process: it lies in the server's own memory, and
/// so in an image of it.
static OWN_GROUP: Group = Group::new();
/// The group state in use: `OWN_GROUP`, or that of a family in the shared memory.
static GROUP: AtomicPtr<Group> = AtomicPtr::new((&raw const OWN_GROUP).cast_mut());
/// This process's place in the group.
static PLACE: AtomicUsize = AtomicUsize::new(0);
/// The number of its first thread.
static FIRST: AtomicU32 = AtomicU32::new(0);
/// Whether the log has, or has had, several writers: threads, or processes of a family. It is
/// never reset, because the members could not agree on when.
pub static THREADED: AtomicBool = AtomicBool::new(false);
/// Whether the process's first thread can neither deliver signals nor run a promotion: it waits
/// for another thread to end, or has ended itself.
pub static MAIN_AWAY: AtomicBool = AtomicBool::new(false);
/// If this process has left the log, or is becoming another program in it: the number of the only
/// thread that may still log, plus 1, or [`NO_THREAD`]. 0 if all may.
static LEAVING: AtomicU32 = AtomicU32::new(0);
pub const NO_THREAD: u32 = u32::MAX;
/// Descriptors of the socket to the daemon, of the memory shared with it, and of its
/// wake-up eventfd; and of the server's userfaultfd, which is for the daemon.
pub static CONTROL_FD: AtomicI32 = AtomicI32::new(-1);
pub static MEMORY_FD: AtomicI32 = AtomicI32::new(-1);
pub static WAKE_FD: AtomicI32 = AtomicI32::new(-1);
pub static FAULT_FD: AtomicI32 = AtomicI32::new(-1);
/// Descriptor of the socket to the backup (see `direct`); -1 before the daemon has sent one.
pub static DIRECT_FD: AtomicI32 = AtomicI32::new(-1);
/// `Header::options`, cached.
pub static OPTIONS: AtomicU32 = AtomicU32::new(0);
/// Address ranges (`lo`, `hi`) of allocator libraries, whose calls are not logged.
pub static EXCLUDED: [(AtomicUsize, AtomicUsize); 8] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 8];
pub static HAS_EXCLUDED: AtomicBool = AtomicBool::new(false);

std::thread_local! {
    static TID: Cell<u16> = const { Cell::new(0) };
    /// Set while the shim itself calls into libc.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// Set while the thread makes another process of the family.
    static FORKING: Cell<bool> = const { Cell::new(false) };
}

#[inline]
pub fn mode() -> Mode {
    match SHIM.mode.load(Relaxed) {
        shim_mode::RECORD => Mode::Record,
        shim_mode::REPLAY => Mode::Replay,
        _ => Mode::Pass,
    }
}

pub fn set_mode(mode: Mode) {
    SHIM.mode.store(mode as u32, SeqCst);
}

/// The state that the daemon may read.
#[inline]
pub fn shim() -> &'static ShimState {
    &SHIM
}

/// The calling thread's number in order of creation.
#[inline]
pub fn tid() -> u16 {
    TID.get()
}

/// The calling thread's number plus 1, for shared words in which 0 means no thread.
#[inline]
pub fn own_name() -> u32 {
    u32::from(tid()) + 1
}

pub fn set_tid(tid: u16) {
    TID.set(tid);
}

/// Whether the server has, or has had, more than one thread.
#[inline]
pub fn threaded() -> bool {
    THREADED.load(Relaxed)
}

/// Whether the server is a family of processes, all in one log.
#[inline]
pub fn is_family() -> bool {
    OPTIONS.load(Relaxed) & option::FAMILY != 0
}

/// Whether the server's threads run one at a time. This may begin together with a log, while all
/// threads stand still.
#[inline]
pub fn takes_turns() -> bool {
    // SAFETY: a static, or a word of the header page, which stays mapped.
    unsafe { (*TAKES_TURNS.load(Relaxed)).load(Relaxed) != 0 }
}

/// The state that the server's processes share.
#[inline]
pub fn group() -> &'static Group {
    // SAFETY: a static, or memory that stays mapped; all of it is atomics.
    unsafe { &*GROUP.load(Relaxed) }
}

/// This process's place in the group.
#[inline]
pub fn place() -> usize {
    PLACE.load(Relaxed)
}

/// This process's entry in the group.
#[inline]
pub fn process() -> &'static Process {
    &group().processes[place()]
}

/// Sets this process's place, and the number of its first thread, which must be the caller.
pub fn set_process(place: usize, first: u16) {
    PLACE.store(place, Relaxed);
    FIRST.store(u32::from(first), Relaxed);
    set_tid(first);
}

/// Whether the calling thread is the first one of its process.
#[inline]
pub fn is_first() -> bool {
    tid() == first()
}

/// Number of this process's first thread.
#[inline]
pub fn first() -> u16 {
    FIRST.load(Relaxed) as u16
}

/// Sets the only thread of the process that logs from here on, as its number plus 1, or
/// [`NO_THREAD`]; 0: all do. Call it with the log held.
pub fn set_leaving(thread: u32) {
    LEAVING.store(thread, Relaxed);
}

/// Whether the calling thread does not log any more, because its process is about to end. Call it
/// with the log held.
#[inline]
pub fn has_left() -> bool {
    let thread = LEAVING.load(Relaxed);
    thread != 0 && thread != u32::from(tid()) + 1
}

pub fn inside() -> bool {
    INSIDE.get()
}

/// Whether the calling thread is making another process of the family, and so holds the log.
pub fn is_forking() -> bool {
    FORKING.get()
}

pub fn set_forking(yes: bool) {
    FORKING.set(yes);
    INSIDE.set(yes);
}

/// Runs `f` with interception off for this thread.
pub fn uninterrupted<T>(f: impl FnOnce() -> T) -> T {
    let before = INSIDE.replace(true);
    let result = f();
    INSIDE.set(before);
    result
}

/// Whether calls from this return address are not logged: an allocator's locks and clock readings
/// depend on real contention.
#[inline]
pub fn excluded(caller: usize) -> bool {
    HAS_EXCLUDED.load(Relaxed)
        && EXCLUDED.iter().any(|(lo, hi)| (lo.load(Relaxed)..hi.load(Relaxed)).contains(&caller))
}

/// Sets the address of the shared memory; once, before the mode leaves
/// [`Mode::Pass`]. The options say then whether the server is a family.
///
/// # Safety
/// `base` has header, table, group, the ring and the ring again, as `shm` lays them out,
/// and is never unmapped.
pub unsafe fn set_shared(base: *mut u8, ring_bytes: u64) {
    // SAFETY: by the caller's promise these lie inside.
    let (table, ring) = unsafe { (base.add(shm::HEADER_BYTES), base.add(shm::RING_OFFSET)) };
    TABLE.store(table.cast(), Relaxed);
    RING.store(ring, Relaxed);
    RING_BYTES.store(ring_bytes, Relaxed);
    if is_family() {
        // SAFETY: as above.
        GROUP.store(unsafe { base.add(shm::GROUP_OFFSET) }.cast(), Relaxed);
    }
    let header = base.cast::<shm::Header>();
    // SAFETY: as above.
    TAKES_TURNS.store(unsafe { &raw mut (*header).takes_turns }, Relaxed);
    HEADER.store(header, Release);
}

/// Whether the memory is mapped.
pub fn is_attached() -> bool {
    !HEADER.load(Acquire).is_null()
}

/// The header page.
#[inline]
pub fn header() -> &'static shm::Header {
    // SAFETY: mapped for the life of the process once the mode is not Pass;
    // fields that change are atomics, or read by nobody before one says so.
    unsafe { &*header_ptr() }
}

/// The header page, for fields that are written completely before an atomic
/// beside them says so.
#[inline]
pub fn header_ptr() -> *mut shm::Header {
    HEADER.load(Relaxed)
}

/// The table of connections.
#[inline]
pub fn table() -> *mut shm::ConnEntry {
    TABLE.load(Relaxed)
}

/// The ring that holds the log, and its size.
#[inline]
pub fn ring() -> *mut u8 {
    RING.load(Relaxed)
}

#[inline]
pub fn ring_bytes() -> u64 {
    RING_BYTES.load(Relaxed)
}
