//! The entries of an open folder, sorted by their names: each member's file system has an order
//! of its own, by when and how its files came there. All entries are read at once.

use crate::base::cells::Locked;
use crate::base::real::{Real, real6};
use crate::base::state::header;
use crate::base::sys::{self, set_errno};
use core::ffi::CStr;
use core::mem::offset_of;
use holdfast_wire::hash::hash_pieces;

type Item = libc::dirent64;

/// Most folders that a process reads at once in this way; of a further one the entries come one by
/// one, in its file system's order.
const LISTINGS_MAX: usize = 64;
/// Most bytes of a folder's entries: millions of them. Their offsets fit into 4 bytes.
const BYTES_MAX: usize = 1 << 30;
/// Room for entries at first, in bytes.
const ROOM: usize = 32 << 10;
/// What entries lie at multiples of, in bytes.
const ALIGN: usize = 8;

/// A folder that is being read.
#[derive(Clone, Copy)]
struct Listing {
    /// libc's stream; 0: the place is free.
    folder: usize,
    /// Where the entries are, and how many bytes there are.
    at: usize,
    bytes: usize,
    /// Where the offsets of the sorted entries are, of 4 bytes each, and how many.
    order: usize,
    count: usize,
    next: usize,
}

const FREE: Listing = Listing { folder: 0, at: 0, bytes: 0, order: 0, count: 0, next: 0 };

static LISTINGS: Locked<[Listing; LISTINGS_MAX]> = Locked::new([FREE; LISTINGS_MAX]);

/// The next entry of a folder whose entries were read: null behind the last one. `None` if they
/// were not.
pub fn next(folder: usize) -> Option<*mut Item> {
    with(folder, |listing| {
        let at = listing.offset(listing.next).map(|offset| listing.at + offset);
        listing.next += usize::from(at.is_some());
        at.map_or(core::ptr::null_mut(), |at| at as *mut Item)
    })
}

/// Where the next entry is, by its number.
pub fn position(folder: usize) -> Option<usize> {
    with(folder, |listing| listing.next)
}

/// Goes to the entry with this number; false if the folder's entries were not read.
pub fn go_to(folder: usize, number: usize) -> bool {
    with(folder, |listing| listing.next = number.min(listing.count)).is_some()
}

/// Forgets a folder's entries.
pub fn forget(folder: usize) {
    let found = with(folder, |listing| core::mem::replace(listing, FREE));
    if let Some(listing) = found {
        listing.unmap();
    }
}

/// Reads and sorts the entries of a folder; without the memory for them, it has none, and the
/// caller gets `ENOMEM`. Returns a hash of their names. With 0 nothing was read: too many folders
/// are being read.
pub fn make(folder: usize) -> i64 {
    let mut listings = LISTINGS.hold();
    let Some(free) = listings.iter_mut().find(|listing| listing.folder == 0) else { return 0 };
    *free = collected(folder).unwrap_or_else(|| {
        set_errno(libc::ENOMEM);
        Listing { folder, ..FREE }
    });
    free.sort()
}

fn with<T>(folder: usize, act: impl FnOnce(&mut Listing) -> T) -> Option<T> {
    LISTINGS.hold().iter_mut().find(|listing| listing.folder == folder && folder != 0).map(act)
}

/// The entries as libc gives them.
fn collected(folder: usize) -> Option<Listing> {
    let (mut at, mut room, mut bytes, mut count) = (sys::map_anonymous(ROOM), ROOM, 0, 0);
    while !at.is_null() {
        let item = real6(Real::Readdir, [folder, 0, 0, 0, 0, 0]) as *const Item;
        // SAFETY: null, or libc's own entry.
        let Some(item) = (unsafe { item.as_ref() }) else {
            let order = sys::map_anonymous(order_bytes(count)) as usize;
            let listing = Listing { folder, at: at as usize, bytes: room, order, count, next: 0 };
            if order == 0 {
                listing.unmap();
                return None;
            }
            return Some(listing);
        };
        let len = usize::from(item.d_reclen).next_multiple_of(ALIGN);
        if bytes + len > room {
            at = grown(at, room);
            room *= 2;
        }
        if !at.is_null() {
            // SAFETY: libc's entry has so many bytes, and there is room for them.
            unsafe {
                let from = (&raw const *item).cast::<u8>();
                core::ptr::copy_nonoverlapping(from, at.add(bytes), item.d_reclen.into());
                (*at.add(bytes).cast::<Item>()).d_reclen = len as u16;
            }
            (bytes, count) = (bytes + len, count + 1);
        }
    }
    None
}

/// Twice the room, with what was there; null if there is none.
fn grown(at: *mut u8, room: usize) -> *mut u8 {
    let more = if room < BYTES_MAX { sys::map_anonymous(2 * room) } else { core::ptr::null_mut() };
    if !more.is_null() {
        // SAFETY: both are mapped, and one is as long as the other's half.
        unsafe { core::ptr::copy_nonoverlapping(at, more, room) };
    }
    sys::unmap(at, room);
    more
}

/// Memory for the offsets of so many entries, in bytes; some in any case.
fn order_bytes(count: usize) -> usize {
    count.max(1) * size_of::<u32>()
}

impl Listing {
    fn order(&mut self) -> &mut [u32] {
        if self.count == 0 {
            return &mut [];
        }
        // SAFETY: so many were mapped, for this listing alone.
        unsafe { core::slice::from_raw_parts_mut(self.order as *mut u32, self.count) }
    }

    fn offset(&mut self, number: usize) -> Option<usize> {
        self.order().get(number).map(|offset| *offset as usize)
    }

    /// Sorts the entries by name, and numbers them. Returns a hash of all names.
    fn sort(&mut self) -> i64 {
        let (at, mut offset) = (self.at, 0);
        // SAFETY: entries lie behind each other, each with a name that libc has ended.
        let item = |offset: u32| unsafe { &mut *((at + offset as usize) as *mut Item) };
        let name = |offset: u32| {
            let name = (at + offset as usize + offset_of!(Item, d_name)) as *const _;
            // SAFETY: as above.
            unsafe { CStr::from_ptr(name) }.to_bytes_with_nul()
        };
        for place in self.order() {
            *place = offset;
            offset += u32::from(item(offset).d_reclen);
        }
        let order = self.order();
        order.sort_unstable_by(|a, b| name(*a).cmp(name(*b)));
        for (number, offset) in order.iter().enumerate() {
            item(*offset).d_off = number as i64 + 1;
        }
        hash_pieces(&header().hash_key, order.iter().map(|offset| name(*offset))) as i64
    }

    fn unmap(self) {
        sys::unmap(self.at as *mut u8, self.bytes);
        sys::unmap(self.order as *mut u8, order_bytes(self.count));
    }
}
