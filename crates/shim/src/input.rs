//! Input: reads of every kind. On the primary the bytes go into the log (the
//! daemon leaves tapped ones out when it sends); on the backup they come from it.

use crate::calls::Call;
use crate::fds::{self, Kind};
use crate::log::{self, Entry};
use crate::state::{Mode, header, mode};
use crate::sys::{libc_result, sys};
use crate::{conns, defer, live, signals};
use holdfast_wire::hash::hash_pieces;
use holdfast_wire::log::{NO_CONN, Op, PAYLOAD_MAX, PEEKED, TAPPED};

type Iov = libc::iovec;

/// Buffers of one read that take part; the log limits a record's payload.
const PARTS_MAX: usize = 64;
/// Room for a sender's address, and for control data, of one message.
const NAME_MAX: usize = 128;
const CONTROL_MAX: usize = 512;

/// A read that the replica answers with bytes alone.
fn input(fd: i32, parts: &[Iov], peek: bool, raw: impl Fn() -> isize) -> isize {
    match mode() {
        Mode::Pass => raw(),
        Mode::Live => live::outside_reset(fd).unwrap_or_else(raw),
        Mode::Record => record(fd, parts, peek, raw),
        Mode::Replay => match log::take(Op::Read, Call::none, fd) {
            Some(taken) => replay(fd, parts, taken),
            None => {
                live::park();
                live::outside_reset(fd).unwrap_or_else(raw)
            }
        },
    }
}

/// Runs a call that may block, handling signals as the kernel would have.
pub fn interruptible(raw: impl Fn() -> isize) -> isize {
    signals::deliver();
    log::before_block();
    loop {
        let r = raw();
        if r != -(libc::EINTR as isize) || !signals::deliver_and_restart() {
            return r;
        }
    }
}

fn record(fd: i32, parts: &[Iov], peek: bool, raw: impl Fn() -> isize) -> isize {
    defer::flush_before_blocking(fd);
    let r = interruptible(raw);
    let conn = conns::of_fd(fd);
    let mut entry = Entry { op: Op::Read, flags: 0, fd, conn, ret: r as i64, hash: 0 };
    if conn != NO_CONN {
        entry.flags |= TAPPED;
    }
    if peek {
        entry.flags |= PEEKED;
    }
    let mut pieces = [(core::ptr::null(), 0); PARTS_MAX];
    let n = fill(&mut pieces, parts, r);
    if r > 0 {
        let read = pieces[..n].iter().map(|&(at, len)| {
            // SAFETY: the kernel has just filled these buffers.
            unsafe { core::slice::from_raw_parts(at, len) }
        });
        entry.hash = hash_pieces(&header().hash_key, read);
    }
    log::append(entry, &pieces[..n]);
    if conn != NO_CONN && r >= 0 && !peek {
        conns::read(conn, r as u64);
    }
    r
}

/// The pieces of `parts` that hold the first `r` bytes.
fn fill(pieces: &mut [(*const u8, usize); PARTS_MAX], parts: &[Iov], r: isize) -> usize {
    let (mut left, mut n) = (r.max(0) as usize, 0);
    for part in parts {
        if left == 0 || n == PARTS_MAX {
            break;
        }
        pieces[n] = (part.iov_base.cast_const().cast(), part.iov_len.min(left));
        left -= pieces[n].1;
        n += 1;
    }
    n
}

fn replay(fd: i32, parts: &[Iov], taken: log::Taken) -> isize {
    let r = taken.ret();
    scatter(parts, &taken.payload[..(r.max(0) as usize).min(taken.payload.len())]);
    let (conn, peeked) = (taken.header.conn, taken.header.flags & PEEKED != 0);
    if conn != NO_CONN && r >= 0 && !peeked {
        conns::read(conn, r as u64);
    }
    if fds::kind(fd) == Kind::Local && r > 0 {
        drain_local(fd, r as usize);
    }
    taken.done();
    r
}

/// Copies bytes of the log into the caller's buffers.
pub fn scatter(parts: &[Iov], bytes: &[u8]) {
    let mut bytes = bytes;
    for part in parts {
        let n = part.iov_len.min(bytes.len());
        // SAFETY: the caller's buffer of iov_len bytes.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), part.iov_base.cast(), n) };
        bytes = &bytes[n..];
    }
}

/// A pipe or eventfd is real on both members: what the primary read leaves the
/// replica's too, so that its content is right when it goes live.
fn drain_local(fd: i32, n: usize) {
    let mut sink = [0u8; 4096];
    let mut left = n.max(8);
    while left > 0 {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        if sys!(SYS_poll, &raw mut poll, 1, 0) <= 0 {
            return;
        }
        let r = sys!(SYS_read, fd, sink.as_mut_ptr(), left.min(sink.len()));
        if r <= 0 {
            return;
        }
        left = left.saturating_sub(r as usize);
    }
}

fn one(buffer: *mut u8, len: usize) -> [Iov; 1] {
    [Iov { iov_base: buffer.cast(), iov_len: len }]
}

pub fn read_raw(fd: i32, buffer: *mut u8, len: usize) -> isize {
    if !fds::is_virtual(fd) || mode() == Mode::Pass {
        return sys!(SYS_read, fd, buffer, len);
    }
    let len = len.min(PAYLOAD_MAX);
    input(fd, &one(buffer, len), false, || sys!(SYS_read, fd, buffer, len))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: i32, buffer: *mut u8, len: usize) -> isize {
    libc_result(read_raw(fd, buffer, len))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: i32, buffer: *mut u8, len: usize, _: usize) -> isize {
    libc_result(read_raw(fd, buffer, len))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: i32, parts: *const Iov, count: i32) -> isize {
    if !fds::is_virtual(fd) || mode() == Mode::Pass || count <= 0 {
        return libc_result(sys!(SYS_readv, fd, parts, count));
    }
    let (clipped, n) = clip(parts, count as usize);
    libc_result(input(fd, &clipped[..n], false, || sys!(SYS_readv, fd, clipped.as_ptr(), n)))
}

/// The caller's buffers, cut to what one record can carry. A shorter read is
/// always a legal answer.
fn clip(parts: *const Iov, count: usize) -> ([Iov; PARTS_MAX], usize) {
    let mut clipped = [Iov { iov_base: core::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
    let (mut left, mut n) = (PAYLOAD_MAX, 0);
    while n < count.min(PARTS_MAX) && left > 0 {
        // SAFETY: the caller's vector has `count` entries.
        clipped[n] = unsafe { *parts.add(n) };
        clipped[n].iov_len = clipped[n].iov_len.min(left);
        left -= clipped[n].iov_len;
        n += 1;
    }
    (clipped, n)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: i32,
    buffer: *mut u8,
    len: usize,
    flags: i32,
    from: *mut u8,
    from_len: *mut u32,
) -> isize {
    let len = if fds::is_virtual(fd) { len.min(PAYLOAD_MAX / 2) } else { len };
    let raw = || sys!(SYS_recvfrom, fd, buffer, len, flags, from, from_len);
    if !fds::is_virtual(fd) || mode() == Mode::Pass {
        return libc_result(raw());
    }
    if from.is_null() || fds::kind(fd) == Kind::Conn {
        return libc_result(input(fd, &one(buffer, len), flags & libc::MSG_PEEK != 0, raw));
    }
    let mut iov = one(buffer, len);
    // SAFETY: all-zero is a valid msghdr; the pointers are the caller's.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = 1;
    message.msg_name = from.cast();
    // SAFETY: a caller that passes an address passes its length.
    message.msg_namelen = unsafe { *from_len };
    let r = receive_message(fd, &mut message, flags);
    if r >= 0 {
        // SAFETY: as above.
        unsafe { *from_len = message.msg_namelen };
    }
    libc_result(r)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: i32, buffer: *mut u8, len: usize, flags: i32) -> isize {
    // SAFETY: the same call without an address.
    unsafe { recvfrom(fd, buffer, len, flags, core::ptr::null_mut(), core::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: i32,
    buffer: *mut u8,
    len: usize,
    _: usize,
    flags: i32,
) -> isize {
    // SAFETY: the checked form of the same call.
    unsafe { recv(fd, buffer, len, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: i32,
    buffer: *mut u8,
    len: usize,
    _: usize,
    flags: i32,
    from: *mut u8,
    from_len: *mut u32,
) -> isize {
    // SAFETY: the checked form of the same call.
    unsafe { recvfrom(fd, buffer, len, flags, from, from_len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: i32, message: *mut libc::msghdr, flags: i32) -> isize {
    if !fds::is_virtual(fd) || mode() == Mode::Pass {
        return libc_result(sys!(SYS_recvmsg, fd, message, flags));
    }
    // SAFETY: the caller's message.
    libc_result(receive_message(fd, unsafe { &mut *message }, flags))
}

/// What a message has besides its bytes, as it stands in the log.
#[repr(C)]
struct MessageHead {
    flags: i32,
    name_len: u32,
    control_len: u64,
    name: [u8; NAME_MAX],
    control: [u8; CONTROL_MAX],
}

fn receive_message(fd: i32, message: &mut libc::msghdr, flags: i32) -> isize {
    let (mut parts, n) = clip(message.msg_iov, message.msg_iovlen);
    if fds::kind(fd) == Kind::Conn {
        // TCP: no sender's address, no control data.
        let peek = flags & libc::MSG_PEEK != 0;
        let r = input(fd, &parts[..n], peek, || {
            sys!(SYS_recvmsg, fd, core::ptr::from_ref(message), flags)
        });
        message.msg_flags = 0;
        message.msg_controllen = 0;
        message.msg_namelen = 0;
        return r;
    }
    let raw = |m: *mut libc::msghdr| sys!(SYS_recvmsg, fd, m, flags);
    match mode() {
        Mode::Record => {
            let (base, count) = (message.msg_iov, message.msg_iovlen);
            message.msg_iov = parts.as_mut_ptr();
            message.msg_iovlen = n;
            let m: *mut libc::msghdr = message;
            defer::flush_before_blocking(fd);
            let r = interruptible(|| raw(m));
            message.msg_iov = base;
            message.msg_iovlen = count;
            log_message(fd, message, &parts[..n], r);
            r
        }
        Mode::Replay => match log::take(Op::ReadMsg, Call::none, fd) {
            Some(taken) => replay_message(message, &parts[..n], taken),
            None => {
                live::park();
                live::outside_reset(fd).unwrap_or_else(|| raw(message))
            }
        },
        _ => live::outside_reset(fd).unwrap_or_else(|| raw(message)),
    }
}

fn log_message(fd: i32, message: &libc::msghdr, parts: &[Iov], r: isize) {
    let mut head = MessageHead {
        flags: 0,
        name_len: 0,
        control_len: 0,
        name: [0; NAME_MAX],
        control: [0; CONTROL_MAX],
    };
    if r >= 0 {
        head.flags = message.msg_flags;
        head.name_len = if message.msg_name.is_null() { 0 } else { message.msg_namelen };
        head.control_len = message.msg_controllen as u64;
        copy_out(message.msg_name.cast(), head.name_len as usize, &mut head.name);
        copy_out(message.msg_control.cast(), message.msg_controllen, &mut head.control);
    }
    let mut pieces = [(core::ptr::null(), 0); PARTS_MAX];
    let n = fill(&mut pieces, parts, r);
    let mut all = [(core::ptr::null(), 0); PARTS_MAX + 1];
    all[0] = ((&raw const head).cast(), size_of::<MessageHead>());
    all[1..=n].copy_from_slice(&pieces[..n]);
    log::append(
        Entry { op: Op::ReadMsg, flags: 0, fd, conn: NO_CONN, ret: r as i64, hash: 0 },
        &all[..=n],
    );
}

fn copy_out(from: *const u8, len: usize, to: &mut [u8]) {
    if !from.is_null() {
        // SAFETY: the kernel filled `len` bytes there; `to` bounds the copy.
        unsafe { core::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), len.min(to.len())) };
    }
}

fn replay_message(message: &mut libc::msghdr, parts: &[Iov], taken: log::Taken) -> isize {
    let r = taken.ret();
    let head_len = size_of::<MessageHead>();
    if taken.payload.len() < head_len {
        live::diverged("a message record is too short");
    }
    // SAFETY: a plain-old-data struct read from at least its size of bytes.
    let head = unsafe { taken.payload.as_ptr().cast::<MessageHead>().read_unaligned() };
    if r >= 0 {
        message.msg_flags = head.flags;
        message.msg_controllen = (head.control_len as usize).min(CONTROL_MAX);
        // SAFETY: the same caller gave buffers of the same sizes as on the primary.
        unsafe {
            if !message.msg_name.is_null() {
                let n = (head.name_len as usize).min(NAME_MAX);
                core::ptr::copy_nonoverlapping(head.name.as_ptr(), message.msg_name.cast(), n);
                message.msg_namelen = head.name_len;
            }
            if !message.msg_control.is_null() {
                core::ptr::copy_nonoverlapping(
                    head.control.as_ptr(),
                    message.msg_control.cast(),
                    message.msg_controllen,
                );
            }
        }
        scatter(parts, &taken.payload[head_len..]);
    }
    taken.done();
    r
}
