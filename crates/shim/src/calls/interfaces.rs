//! `getifaddrs`: the addresses of a machine. The members never have the same ones (the service's
//! address, for example, is on one of them only), so the list comes from the log. It lies in
//! memory of its own, so that the server's heap is the same on both members.

use crate::base::log::{self, Entry, Taken};
use crate::base::real::{Real, real};
use crate::base::state::{inside, uninterrupted};
use crate::base::sys::{self, errno, libc_result};
use crate::base::table::Call;
use crate::calls::shapes::question;
use core::ffi::CStr;
use holdfast_wire::log::{Op, PAYLOAD_MAX};

type Item = libc::ifaddrs;

/// Sizes in bytes of an interface's name, of an address (a link-layer address is the longest), and
/// of a link's counters.
const NAME_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 40;
const COUNTERS_BYTES: usize = 92;
/// Most addresses in one list: as many as one record carries.
const ITEMS_MAX: usize = PAYLOAD_MAX / size_of::<Logged>();
/// Mark in front of every list that the shim has made.
const OURS: u64 = u64::from_le_bytes(*b"hf-ifadd");

/// One address of an interface, as logged.
#[repr(C)]
#[derive(Clone, Copy)]
struct Logged {
    flags: u32,
    /// Which of the addresses, and of the counters, are present.
    has: u32,
    name: [u8; NAME_BYTES],
    addresses: [[u8; ADDRESS_BYTES]; 3],
    counters: [u8; COUNTERS_BYTES],
}

/// One address, with what its pointers point to.
#[repr(C)]
struct Place {
    item: Item,
    logged: Logged,
}

#[repr(C)]
struct Head {
    ours: u64,
    bytes: usize,
}

const HAS_COUNTERS: u32 = 1 << 3;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getifaddrs(out: *mut *mut Item) -> i32 {
    let ask = || libc_result(ask(out)) as i32;
    if inside() {
        return ask();
    }
    let from_log = |(), taken: &Taken| {
        // libc's own list is made and freed here, too, which moves the heap as on the
        // primary.
        if ask() == 0 {
            // SAFETY: the list that was just made.
            unsafe { freeifaddrs(*out) };
        }
        let items: &[Logged] = items(taken.payload());
        libc_result(if taken.ret() == 0 { give(items, out) } else { taken.ret() }) as i32
    };
    question(Call::getifaddrs, ask, |r| record(*r, out), || (), from_log)
}

/// The records of a payload, which lies at a multiple of eight bytes.
fn items(payload: &[u8]) -> &[Logged] {
    let n = payload.len() / size_of::<Logged>();
    // SAFETY: plain numbers, and this many of them are there.
    unsafe { core::slice::from_raw_parts(payload.as_ptr().cast(), n) }
}

fn record(r: i32, out: *mut *mut Item) {
    let failed = if r < 0 { -(errno() as isize) } else { 0 };
    let entry = Entry::new(Op::Data, Call::getifaddrs, -1, failed);
    // SAFETY: on success it is a list of ours, or null.
    let first = if r < 0 { core::ptr::null() } else { unsafe { *out }.cast_const().cast() };
    let n = count(first);
    let packed = sys::map_anonymous((n * size_of::<Logged>()).max(1));
    let n = if packed.is_null() { 0 } else { n };
    for at in 0..n {
        // SAFETY: the list's places lie behind each other, and there is room for all.
        unsafe { packed.cast::<Logged>().add(at).write((*first.cast::<Place>().add(at)).logged) };
    }
    log::append(entry, &[(packed, n * size_of::<Logged>())]);
    if !packed.is_null() {
        sys::unmap(packed, (n * size_of::<Logged>()).max(1));
    }
}

fn count(first: *const Item) -> usize {
    let (mut n, mut at) = (0, first);
    while n < ITEMS_MAX
        && let Some(item) = unsafe { at.as_ref() }
    {
        n += 1;
        at = item.ifa_next;
    }
    n
}

/// Asks libc and copies its list into memory of ours. `-errno` on failure.
fn ask(out: *mut *mut Item) -> isize {
    let mut first: *mut Item = core::ptr::null_mut();
    if uninterrupted(|| real(Real::Getifaddrs)((&raw mut first) as usize, 0, 0, 0)) != 0 {
        return -(errno() as isize);
    }
    let r = copy(first, out);
    uninterrupted(|| real(Real::Freeifaddrs)(first as usize, 0, 0, 0));
    r
}

fn copy(first: *const Item, out: *mut *mut Item) -> isize {
    let n = count(first);
    let bytes = n * size_of::<Logged>();
    let room = sys::map_anonymous(bytes.max(1));
    if room.is_null() {
        return -(libc::ENOMEM as isize);
    }
    let mut at = first;
    for i in 0..n {
        // SAFETY: libc's list has `n` items, and the room as many places.
        unsafe {
            room.cast::<Logged>().add(i).write(packed(&*at));
            at = (*at).ifa_next;
        }
    }
    // SAFETY: `n` were just written.
    let r = give(unsafe { core::slice::from_raw_parts(room.cast(), n) }, out);
    sys::unmap(room, bytes.max(1));
    r
}

fn packed(item: &Item) -> Logged {
    let mut logged = Logged {
        flags: item.ifa_flags,
        has: 0,
        name: [0; NAME_BYTES],
        addresses: [[0; ADDRESS_BYTES]; 3],
        counters: [0; COUNTERS_BYTES],
    };
    // SAFETY: libc's strings and addresses, as getifaddrs(3) describes them.
    unsafe {
        let name = CStr::from_ptr(item.ifa_name).to_bytes();
        let len = name.len().min(NAME_BYTES - 1);
        logged.name[..len].copy_from_slice(&name[..len]);
        let of = [item.ifa_addr, item.ifa_netmask, item.ifa_ifu];
        for (i, from) in of.into_iter().enumerate().filter(|(_, from)| !from.is_null()) {
            let len = address_bytes((*from).sa_family);
            let to = logged.addresses[i].as_mut_ptr();
            core::ptr::copy_nonoverlapping(from.cast(), to, len);
            logged.has |= 1 << i;
        }
        let family = item.ifa_addr.as_ref().map_or(0, |a| a.sa_family);
        if i32::from(family) == libc::AF_PACKET && !item.ifa_data.is_null() {
            let to = logged.counters.as_mut_ptr();
            core::ptr::copy_nonoverlapping(item.ifa_data.cast(), to, COUNTERS_BYTES);
            logged.has |= HAS_COUNTERS;
        }
    }
    logged
}

/// Number of meaningful bytes in an address of `family`.
fn address_bytes(family: u16) -> usize {
    match i32::from(family) {
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        libc::AF_PACKET => size_of::<libc::sockaddr_ll>(),
        _ => size_of::<libc::sockaddr>(),
    }
}

/// Makes the server's list. An empty one is null, as with libc.
fn give(items: &[Logged], out: *mut *mut Item) -> isize {
    let mut first: *mut Item = core::ptr::null_mut();
    if !items.is_empty() {
        let bytes =
            size_of::<Head>() + size_of_val(items) / size_of::<Logged>() * size_of::<Place>();
        let room = sys::map_anonymous(bytes);
        if room.is_null() {
            return -(libc::ENOMEM as isize);
        }
        // SAFETY: there is room for the head and a place for each item.
        unsafe {
            room.cast::<Head>().write(Head { ours: OURS, bytes });
            let places: *mut Place = room.add(size_of::<Head>()).cast();
            first = places.cast();
            for (i, logged) in items.iter().enumerate() {
                let place = places.add(i);
                let next =
                    if i + 1 < items.len() { places.add(i + 1) } else { core::ptr::null_mut() };
                (&raw mut (*place).logged).write(*logged);
                (&raw mut (*place).item).write(linked(place, next, logged));
            }
        }
    }
    // SAFETY: the caller's pointer.
    unsafe { *out = first };
    0
}

/// An item whose pointers point into its own place.
///
/// # Safety
/// `place` is memory of a place.
unsafe fn linked(place: *mut Place, next: *mut Place, logged: &Logged) -> Item {
    // SAFETY: only addresses are taken.
    let (name, counters, addresses) = unsafe {
        let l = &raw mut (*place).logged;
        (
            &raw mut (*l).name,
            &raw mut (*l).counters,
            (&raw mut (*l).addresses).cast::<[u8; ADDRESS_BYTES]>(),
        )
    };
    let address = |i: usize| match logged.has & 1 << i {
        0 => core::ptr::null_mut(),
        // SAFETY: one of the three.
        _ => unsafe { addresses.add(i) }.cast(),
    };
    Item {
        ifa_next: next.cast(),
        ifa_name: name.cast(),
        ifa_flags: logged.flags,
        ifa_addr: address(0),
        ifa_netmask: address(1),
        ifa_ifu: address(2),
        ifa_data: if logged.has & HAS_COUNTERS != 0 {
            counters.cast()
        } else {
            core::ptr::null_mut()
        },
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn freeifaddrs(list: *mut Item) {
    if list.is_null() {
        return;
    }
    let head = list.cast::<u8>().wrapping_sub(size_of::<Head>());
    // SAFETY: every list comes from here.
    let Head { ours, bytes } = unsafe { head.cast::<Head>().read() };
    if ours == OURS {
        sys::unmap(head, bytes);
    } else {
        real(Real::Freeifaddrs)(list as usize, 0, 0, 0);
    }
}
