//! Names of hosts: each machine has its own /etc/hosts, in which often only its own name is, and
//! its own view of the DNS. The answers come from the log.

use crate::base::log::{self, Entry, Taken};
use crate::base::real::{self, Real, real};
use crate::base::state::{inside, uninterrupted};
use crate::base::sys::{self, errno, set_errno};
use crate::base::table::Call;
use crate::base::token;
use crate::calls::shapes::question;
use core::ffi::{CStr, c_char, c_void};
use holdfast_wire::log::{Op, PAYLOAD_MAX};

type Item = libc::addrinfo;

/// Bytes of an address; IPv6 has the longest.
const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_in6>();
/// Longest canonical name, in bytes (`NI_MAXHOST`).
const NAME_BYTES: usize = 1025;
/// Most addresses of one answer: as many as one record carries beside the name.
const ITEMS_MAX: usize = (PAYLOAD_MAX - size_of::<Head>() - NAME_BYTES) / size_of::<Logged>();
/// Room for an answer.
const ROOM: usize = size_of::<Head>() + ITEMS_MAX * size_of::<Logged>() + NAME_BYTES;

/// What an answer begins with, as logged; its items follow, then the canonical name.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
struct Head {
    /// What the caller gets: 0, or one of `EAI_…`.
    code: i32,
    errno: i32,
    items: u32,
    name_bytes: u32,
}

/// One address of an answer, as logged.
#[repr(C)]
#[derive(Clone, Copy)]
struct Logged {
    flags: i32,
    family: i32,
    kind: i32,
    protocol: i32,
    address_bytes: u32,
    address: [u8; ADDRESS_BYTES],
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const Item,
    out: *mut *mut Item,
) -> i32 {
    let ask = || {
        uninterrupted(|| {
            let (node, service) = (node as usize, service as usize);
            real(Real::Getaddrinfo)(node, service, hints as usize, out as usize)
        })
    };
    if inside() {
        return ask();
    }
    let tell = |code| {
        let answer = Answer::of(code, out);
        append(code, &[(answer.at.cast_const(), answer.bytes())]);
    };
    look_up(&ask, tell, |own, _, logged| {
        if Answer::of(own, out).as_bytes() == logged { own } else { replace(own, out, logged) }
    })
}

/// `ask` asks libc, `tell` logs what it said; `give` gets what it says on the replica, what it
/// said on the primary, and what was logged.
fn look_up(
    ask: &dyn Fn() -> i32,
    tell: impl Fn(i32),
    give: impl Fn(i32, i32, &[u8]) -> i32,
) -> i32 {
    // libc answers on the replica, too: that moves the heap as on the primary. It may wait for a
    // name server that does not answer there, while other threads go on.
    let begin = || {
        token::give();
        ask()
    };
    let from_log = |own, taken: &Taken| give(own, taken.ret() as i32, taken.payload());
    question(Call::getaddrinfo, ask, |code| tell(*code), begin, from_log)
}

fn append(code: i32, parts: &[(*const u8, usize)]) {
    log::append(Entry::new(Op::Data, Call::getaddrinfo, -1, code as isize), parts);
}

/// An answer in memory of its own, as it is logged.
struct Answer {
    at: *mut u8,
}

impl Answer {
    fn of(code: i32, out: *const *mut Item) -> Self {
        let at = sys::map_anonymous(ROOM);
        let answer = Self { at };
        if !at.is_null() {
            answer.write(code, out);
        }
        answer
    }

    fn write(&self, code: i32, out: *const *mut Item) {
        let errno = if code == libc::EAI_SYSTEM { errno() } else { 0 };
        let mut head = Head { code, errno, items: 0, name_bytes: 0 };
        // SAFETY: on success libc has made a list.
        let first = if code == 0 { unsafe { *out } } else { core::ptr::null_mut() };
        let mut next = first.cast_const();
        // SAFETY: libc's list, as getaddrinfo(3) describes it; there is room for so many, and
        // for the name behind them.
        unsafe {
            let places = self.at.add(size_of::<Head>()).cast::<Logged>();
            while let Some(item) = next.as_ref().filter(|_| (head.items as usize) < ITEMS_MAX) {
                places.add(head.items as usize).write(packed(item));
                head.items += 1;
                next = item.ai_next;
            }
            if let Some(name) = first.as_ref().map(|it| it.ai_canonname).filter(|it| !it.is_null())
            {
                let name = CStr::from_ptr(name).to_bytes_with_nul();
                head.name_bytes = name.len().min(NAME_BYTES) as u32;
                let to = places.add(head.items as usize).cast();
                core::ptr::copy_nonoverlapping(name.as_ptr(), to, head.name_bytes as usize);
            }
            self.at.cast::<Head>().write(head);
        }
    }

    fn bytes(&self) -> usize {
        // SAFETY: what was written there.
        let head = unsafe { self.at.cast::<Head>().as_ref() };
        head.map_or(0, |it| {
            let items = it.items as usize * size_of::<Logged>();
            size_of::<Head>() + items + it.name_bytes as usize
        })
    }

    fn as_bytes(&self) -> &[u8] {
        if self.at.is_null() {
            return &[];
        }
        // SAFETY: `bytes()` bytes were written there.
        unsafe { core::slice::from_raw_parts(self.at, self.bytes()) }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.at.is_null() {
            sys::unmap(self.at, ROOM);
        }
    }
}

fn packed(item: &Item) -> Logged {
    let mut address = [0; ADDRESS_BYTES];
    let len = (item.ai_addrlen as usize).min(ADDRESS_BYTES);
    if !item.ai_addr.is_null() {
        // SAFETY: libc's address of that length.
        let from = unsafe { core::slice::from_raw_parts(item.ai_addr.cast::<u8>(), len) };
        address[..len].copy_from_slice(from);
    }
    Logged {
        flags: item.ai_flags,
        family: item.ai_family,
        kind: item.ai_socktype,
        protocol: item.ai_protocol,
        address_bytes: len as u32,
        address,
    }
}

/// Gives the primary's answer in place of libc's own one.
fn replace(own: i32, out: *mut *mut Item, logged: &[u8]) -> i32 {
    if own == 0 {
        // SAFETY: the list that libc has just made.
        unsafe { libc::freeaddrinfo(*out) };
    }
    let Some((head, rest)) = logged.split_at_checked(size_of::<Head>()) else {
        return libc::EAI_MEMORY;
    };
    // SAFETY: plain numbers, and `head` has the size of a `Head`.
    let head = unsafe { head.as_ptr().cast::<Head>().read_unaligned() };
    if head.code != 0 {
        set_errno(head.errno);
        return head.code;
    }
    let mut first = core::ptr::null_mut();
    let mut link: *mut *mut Item = &raw mut first;
    let (items, rest) = rest.split_at(rest.len().min(head.items as usize * size_of::<Logged>()));
    for bytes in items.chunks_exact(size_of::<Logged>()) {
        // SAFETY: plain numbers, and `bytes` has the size of a `Logged`.
        let item = made(&unsafe { bytes.as_ptr().cast::<Logged>().read_unaligned() });
        if item.is_null() {
            return libc::EAI_MEMORY;
        }
        // SAFETY: the end of the list, and its new last item.
        unsafe {
            *link = item;
            link = &raw mut (*item).ai_next;
        }
    }
    if head.name_bytes > 0
        && let Some(first) = unsafe { first.as_mut() }
        && let Ok(name) = CStr::from_bytes_until_nul(rest)
    {
        // SAFETY: a C string; libc frees the copy with the list.
        first.ai_canonname = unsafe { libc::strdup(name.as_ptr()) };
    }
    // SAFETY: the caller's pointer.
    unsafe { *out = first };
    0
}

/// An item as libc's `freeaddrinfo` frees it: one piece of the server's heap. Null if there is
/// none.
fn made(logged: &Logged) -> *mut Item {
    let len = (logged.address_bytes as usize).min(ADDRESS_BYTES);
    // SAFETY: memory of that size, which the address is written behind the item in.
    unsafe {
        let item: *mut Item = libc::malloc(size_of::<Item>() + len).cast();
        if item.is_null() {
            return item;
        }
        let address = item.add(1).cast::<u8>();
        core::ptr::copy_nonoverlapping(logged.address.as_ptr(), address, len);
        item.write(Item {
            ai_flags: logged.flags,
            ai_family: logged.family,
            ai_socktype: logged.kind,
            ai_protocol: logged.protocol,
            ai_addrlen: len as u32,
            ai_addr: address.cast(),
            ai_canonname: core::ptr::null_mut(),
            ai_next: core::ptr::null_mut(),
        });
        item
    }
}

/// The name of an address. Where nothing is looked up, both members say the same.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getnameinfo(
    address: *const c_void,
    address_bytes: u32,
    host: *mut u8,
    host_bytes: u32,
    service: *mut u8,
    service_bytes: u32,
    flags: i32,
) -> i32 {
    type Real7 = extern "C" fn(*const c_void, u32, *mut u8, u32, *mut u8, u32, i32) -> i32;
    let ask = || {
        // SAFETY: libc's function, which these arguments are for.
        let real: Real7 = unsafe { core::mem::transmute(real::address(Real::Getnameinfo)) };
        let ask = || real(address, address_bytes, host, host_bytes, service, service_bytes, flags);
        uninterrupted(ask)
    };
    if inside() || host.is_null() || flags & libc::NI_NUMERICHOST != 0 {
        return ask();
    }
    let outs = [(host, host_bytes as usize), (service, service_bytes as usize)];
    let bytes = |(at, len): (*mut u8, usize)| if at.is_null() { 0 } else { len };
    let tell = |code| {
        let given = outs.map(|out| (out.0.cast_const(), if code == 0 { bytes(out) } else { 0 }));
        append(code, &given);
    };
    look_up(&ask, tell, |_, code, logged| {
        let mut logged = logged;
        for out in outs {
            let (piece, rest) = logged.split_at(bytes(out).min(logged.len()));
            // SAFETY: the caller's buffer of that length.
            unsafe { core::ptr::copy_nonoverlapping(piece.as_ptr(), out.0, piece.len()) };
            logged = rest;
        }
        code
    })
}

#[cfg(test)]
mod tests;
