//! Input: reads of every kind. On the primary the bytes go into the log (the daemon leaves out
//! those that the backup has from its tap); on the backup they come from the log.

use crate::base::fds::{self, Kind};
use crate::base::log::{self, Entry};
use crate::base::state::{self, Mode, header, mode};
use crate::base::sys::{self, libc_result, syscall};
use crate::base::table::Call;
use crate::base::{conns, defer, park, quiet, report, ring, token};
use crate::calls::passed::{self, Passed};
use crate::calls::{children, family, inherited, signals};
use holdfast_wire::hash::hash_pieces;
use holdfast_wire::log::{NO_CONN, Op, PAYLOAD_MAX, PEEKED, TAPPED};

type Iov = libc::iovec;

/// Most buffers of one vectored read that are filled; a shorter read is always legal.
const PARTS_MAX: usize = 64;
/// Most bytes of one `recv` and the like: a record's payload is limited.
const RECV_BYTES_MAX: usize = PAYLOAD_MAX / 2;
/// Most bytes of one read that drops them (`MSG_TRUNC` on TCP).
const DROP_BYTES_MAX: usize = 64 << 10;
/// Room for the sender's address of one message, in bytes, and below it for its control data.
const NAME_MAX: usize = 128;
const CONTROL_MAX: usize = 512;

/// A read that returns bytes and nothing else.
fn input(fd: i32, parts: &[Iov], peek: bool, raw: impl Fn() -> isize) -> isize {
    quiet::call(|call| input_by_mode(call, fd, parts, peek, &raw))
}

fn input_by_mode(
    call: &quiet::Call,
    fd: i32,
    parts: &[Iov],
    peek: bool,
    raw: impl Fn() -> isize,
) -> Option<isize> {
    match mode() {
        Mode::Pass => Some(raw()),
        Mode::Record => record(call, fd, parts, peek, raw),
        Mode::Replay => match log::take(Op::Read, Call::none, fd) {
            Some(taken) => Some(replay(fd, parts, taken)),
            None => park::start_over(),
        },
    }
}

/// Runs a call that may block until something comes, and handles signals as the kernel would.
/// `None`: the server's call starts over.
pub fn interruptible(call: &quiet::Call, fd: i32, mut raw: impl FnMut() -> isize) -> Option<isize> {
    signals::deliver();
    ring::before_block();
    loop {
        let may_block = token::may_wait_for_input(fd);
        let r = token::apart_if(may_block, || call.sleep(&mut raw))?;
        if r != -(libc::EINTR as isize) || !signals::deliver_and_restart() {
            return Some(r);
        }
    }
}

/// Like [`interruptible`], on a descriptor that may be one of the dead primary's
/// connections.
fn from_world(call: &quiet::Call, fd: i32, raw: impl Fn() -> isize) -> Option<isize> {
    defer::flush_before_blocking(fd);
    inherited::outside_reset(fd).or_else(|| interruptible(call, fd, raw))
}

fn record(
    call: &quiet::Call,
    fd: i32,
    parts: &[Iov],
    peek: bool,
    raw: impl Fn() -> isize,
) -> Option<isize> {
    let r = from_world(call, fd, raw)?;
    let conn = conns::of_fd(fd);
    if log::is_on() {
        log_read(fd, conn, parts, peek, r);
    }
    if conn != NO_CONN && r >= 0 && !peek {
        conns::read(conn, r as u64);
    }
    Some(r)
}

fn log_read(fd: i32, conn: u32, parts: &[Iov], peek: bool, r: isize) {
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
}

/// Sets `pieces` to the parts of the buffers that hold the first `r` bytes; returns their number.
fn fill(pieces: &mut [(*const u8, usize); PARTS_MAX], parts: &[Iov], r: isize) -> usize {
    let (mut left, mut n) = (r.max(0) as usize, 0);
    for part in parts {
        if left == 0 || n == PARTS_MAX {
            break;
        }
        if part.iov_len == 0 {
            continue;
        }
        pieces[n] = (part.iov_base.cast_const().cast(), part.iov_len.min(left));
        left -= pieces[n].1;
        n += 1;
    }
    n
}

fn replay(fd: i32, parts: &[Iov], taken: log::Taken) -> isize {
    let r = taken.ret();
    scatter(parts, &taken.payload()[..(r.max(0) as usize).min(taken.payload().len())]);
    let (conn, peeked) = (taken.header.conn, taken.header.flags & PEEKED != 0);
    if conn != NO_CONN && r >= 0 && !peeked {
        conns::read(conn, r as u64);
    }
    if !peeked {
        drain_local(fd, r);
    }
    taken.done();
    r
}

/// Copies bytes from the log into the caller's buffers.
pub fn scatter(parts: &[Iov], bytes: &[u8]) {
    let mut bytes = bytes;
    for part in parts {
        let n = part.iov_len.min(bytes.len());
        if n > 0 {
            // SAFETY: the caller's buffer of iov_len bytes.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), part.iov_base.cast(), n) };
        }
        bytes = &bytes[n..];
    }
}

/// Removes what the primary has read (`r` bytes, or one message) from the replica's pipe,
/// socketpair or eventfd, which is real on both members. Exactly that much, so that its content is
/// right when the replica becomes the server.
fn drain_local(fd: i32, r: isize) {
    if fds::kind(fd) != Kind::Local || r < 0 {
        return;
    }
    let mut sink = [0u8; 4096];
    let mut left = r as usize;
    let is_message = keeps_messages(fd);
    while left > 0 || is_message {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: memory of ours, of the sizes that are said.
        if unsafe { syscall!(SYS_poll, &raw mut poll, 1, 0) } <= 0 {
            return;
        }
        let room = if is_message { sink.len() } else { left.min(sink.len()) };
        // SAFETY: memory of ours, of the sizes that are said.
        let r = unsafe { syscall!(SYS_read, fd, sink.as_mut_ptr(), room) };
        if r <= 0 || is_message {
            return;
        }
        left = left.saturating_sub(r as usize);
    }
}

/// Whether each read of `fd` takes one whole message, however long.
fn keeps_messages(fd: i32) -> bool {
    matches!(fds::socket_option(fd, libc::SO_TYPE), libc::SOCK_DGRAM | libc::SOCK_SEQPACKET)
}

/// Whether a read drops its bytes: with `MSG_TRUNC` TCP does, and does not touch the caller's
/// buffers, which may be null (tcp(7)). Other sockets fill them, and return the message's length.
fn drops(fd: i32, flags: i32) -> bool {
    flags & libc::MSG_TRUNC != 0
        && (fds::kind(fd) == Kind::Conn
            || fds::socket_option(fd, libc::SO_PROTOCOL) == libc::IPPROTO_TCP)
}

/// Makes a TCP read that drops its bytes. They are part of the stream, so the log has them like
/// any others. `raw` is the caller's own call.
fn drop_bytes(fd: i32, len: usize, flags: i32, raw: impl Fn() -> isize) -> isize {
    let peek = flags & libc::MSG_PEEK != 0;
    quiet::call(|call| match mode() {
        Mode::Record => drop_recorded(call, fd, len, flags, peek),
        _ => input_by_mode(call, fd, &[], peek, &raw),
    })
}

fn drop_recorded(call: &quiet::Call, fd: i32, len: usize, flags: i32, peek: bool) -> Option<isize> {
    let sink = sys::map_anonymous(DROP_BYTES_MAX);
    if sink.is_null() {
        return Some(-(libc::ENOMEM as isize));
    }
    let (len, flags) = (len.min(DROP_BYTES_MAX), flags & !libc::MSG_TRUNC);
    let r = record(call, fd, &one(sink, len), peek, || {
        // SAFETY: a mapping of at least this size.
        unsafe { syscall!(SYS_recvfrom, fd, sink, len, flags, 0usize, 0usize) }
    });
    sys::unmap(sink, DROP_BYTES_MAX);
    r
}

fn one(buffer: *mut u8, len: usize) -> [Iov; 1] {
    [Iov { iov_base: buffer.cast(), iov_len: len }]
}

pub fn read_raw(fd: i32, buffer: *mut u8, len: usize) -> isize {
    if !fds::is_virtual(fd) || mode() == Mode::Pass {
        children::touch(fd);
        family::touch(fd, "read");
        // SAFETY: the server's own call, with its own arguments.
        return unsafe { syscall!(SYS_read, fd, buffer, len) };
    }
    let len = len.min(PAYLOAD_MAX);
    // SAFETY: the server's own call, with its own arguments.
    input(fd, &one(buffer, len), false, || unsafe { syscall!(SYS_read, fd, buffer, len) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn read(fd: i32, buffer: *mut u8, len: usize) -> isize {
    libc_result(read_raw(fd, buffer, len))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __read_chk(fd: i32, buffer: *mut u8, len: usize, _: usize) -> isize {
    libc_result(read_raw(fd, buffer, len))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readv(fd: i32, parts: *const Iov, count: i32) -> isize {
    if !fds::is_virtual(fd) || mode() == Mode::Pass || count <= 0 {
        children::touch(fd);
        family::touch(fd, "read");
        // SAFETY: the server's own call, with its own arguments.
        return libc_result(unsafe { syscall!(SYS_readv, fd, parts, count) });
    }
    let (clipped, n) = clip(parts, count as usize);
    // SAFETY: the server's own buffers, perhaps fewer of them.
    libc_result(input(fd, &clipped[..n], false, || unsafe {
        syscall!(SYS_readv, fd, clipped.as_ptr(), n)
    }))
}

/// The caller's buffers, cut to what one record can carry: a shorter read is always legal.
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

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvfrom(
    fd: i32,
    buffer: *mut u8,
    len: usize,
    flags: i32,
    from: *mut u8,
    from_len: *mut u32,
) -> isize {
    if !fds::is_virtual(fd) || mode() == Mode::Pass {
        children::touch(fd);
        family::touch(fd, "read");
        // SAFETY: the server's own call, with its own arguments.
        return libc_result(unsafe {
            syscall!(SYS_recvfrom, fd, buffer, len, flags, from, from_len)
        });
    }
    if !from.is_null() && from_len.is_null() {
        return libc_result(-(libc::EFAULT as isize));
    }
    if asks_for_errors(fd, flags) {
        return libc_result(-(libc::EAGAIN as isize));
    }
    if fds::kind(fd) != Kind::Conn && !from.is_null() {
        return libc_result(receive_from(fd, &one(buffer, len), flags, from, from_len));
    }
    // SAFETY: the server's own call, with its own arguments.
    let raw = |at: *mut u8, len: usize| unsafe {
        syscall!(SYS_recvfrom, fd, at, len, flags, 0usize, 0usize)
    };
    let r = whole(len, flags, |done, len| {
        let at = buffer.wrapping_add(done);
        if drops(fd, flags) {
            return drop_bytes(fd, len, flags, || raw(at, len));
        }
        let len = len.min(RECV_BYTES_MAX);
        input(fd, &one(at, len), flags & libc::MSG_PEEK != 0, || raw(at, len))
    });
    if r >= 0 && !from.is_null() {
        // SAFETY: the caller's; TCP tells no sender.
        unsafe { *from_len = 0 };
    }
    libc_result(r)
}

/// Repeats a read that has to wait for all of `len` bytes (`MSG_WAITALL`), because one record
/// cannot carry that many. `part` reads from an offset on, at most the given number of bytes.
fn whole(len: usize, flags: i32, part: impl Fn(usize, usize) -> isize) -> isize {
    let repeats = flags & (libc::MSG_WAITALL | libc::MSG_PEEK) == libc::MSG_WAITALL;
    let mut done = 0;
    loop {
        let r = part(done, len - done);
        if r < 0 && done > 0 {
            return done as isize;
        }
        let is_cut = r == RECV_BYTES_MAX as isize || r == DROP_BYTES_MAX as isize;
        if !repeats || !is_cut || done + r as usize >= len {
            return if r < 0 { r } else { done as isize + r };
        }
        done += r as usize;
    }
}

/// Receives a message together with its sender's address.
fn receive_from(fd: i32, parts: &[Iov; 1], flags: i32, from: *mut u8, from_len: *mut u32) -> isize {
    let mut iov = *parts;
    // SAFETY: all-zero is a valid msghdr; the pointers are the caller's.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = 1;
    message.msg_name = from.cast();
    // SAFETY: the caller has passed both.
    message.msg_namelen = unsafe { *from_len };
    let r = receive_message(fd, &mut message, flags);
    if r >= 0 {
        // SAFETY: as above.
        unsafe { *from_len = message.msg_namelen };
    }
    r
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recv(fd: i32, buffer: *mut u8, len: usize, flags: i32) -> isize {
    // SAFETY: the same call without an address.
    unsafe { recvfrom(fd, buffer, len, flags, core::ptr::null_mut(), core::ptr::null_mut()) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
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

#[cfg_attr(not(test), unsafe(no_mangle))]
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

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmsg(fd: i32, message: *mut libc::msghdr, flags: i32) -> isize {
    if !fds::is_virtual(fd) || mode() == Mode::Pass {
        children::touch(fd);
        family::touch(fd, "read");
        // SAFETY: the server's own call, with its own arguments.
        return libc_result(unsafe { syscall!(SYS_recvmsg, fd, message, flags) });
    }
    // SAFETY: the caller's message.
    libc_result(receive_message(fd, unsafe { &mut *message }, flags))
}

/// What a message has besides its bytes, as in the log.
#[repr(C)]
struct MessageHead {
    flags: i32,
    name_len: u32,
    control_len: u64,
    name: [u8; NAME_MAX],
    control: [u8; CONTROL_MAX],
}

/// Whether a call reads a client connection's error queue. It is empty while the connection is
/// protected, since what fills it (`SO_ZEROCOPY`) is refused.
fn asks_for_errors(fd: i32, flags: i32) -> bool {
    flags & libc::MSG_ERRQUEUE != 0 && fds::kind(fd) == Kind::Conn
}

fn receive_message(fd: i32, message: &mut libc::msghdr, flags: i32) -> isize {
    if asks_for_errors(fd, flags) {
        return -(libc::EAGAIN as isize);
    }
    let (mut parts, n) = clip(message.msg_iov, message.msg_iovlen);
    // SAFETY: the server's own call, with its own arguments.
    let raw = |m: *mut libc::msghdr| unsafe { syscall!(SYS_recvmsg, fd, m, flags) };
    if fds::kind(fd) == Kind::Conn || drops(fd, flags) {
        return receive_stream(fd, message, &parts[..n], flags, raw);
    }
    quiet::call(|call| match mode() {
        Mode::Pass => Some(raw(message)),
        Mode::Record => {
            let (base, count) = (message.msg_iov, message.msg_iovlen);
            let name_room = message.msg_namelen;
            message.msg_iov = parts.as_mut_ptr();
            message.msg_iovlen = n;
            let m: *mut libc::msghdr = message;
            let r = from_world(call, fd, || raw(m));
            message.msg_iov = base;
            message.msg_iovlen = count;
            let r = r?;
            if passes(fd) && r >= 0 {
                passed::note(&Passed::of(control_of(message)));
            }
            if log::is_on() {
                log_message(fd, message, name_room, &parts[..n], r);
            }
            Some(r)
        }
        Mode::Replay => match log::take(Op::ReadMsg, Call::none, fd) {
            Some(taken) => {
                let r = replay_message(message, &parts[..n], &taken);
                let passed = Passed::of(if r >= 0 { control_of(message) } else { &[] });
                if passes(fd) && !passed.numbers().is_empty() {
                    passed::receive(fd, r as usize, &passed, flags);
                } else if flags & libc::MSG_PEEK == 0 {
                    drain_local(fd, r);
                }
                taken.done();
                Some(r)
            }
            None => park::start_over(),
        },
    })
}

/// Whether processes may pass descriptors to each other over `fd`.
fn passes(fd: i32) -> bool {
    state::is_family() && fds::kind(fd) == Kind::Local
}

/// A message's control data, as it was received.
fn control_of(message: &libc::msghdr) -> &[u8] {
    if message.msg_control.is_null() {
        return &[];
    }
    // SAFETY: the caller's buffer, of which the kernel has filled this many bytes.
    unsafe { core::slice::from_raw_parts(message.msg_control.cast(), message.msg_controllen) }
}

/// Receives from TCP, where messages have no sender's address and no control data.
fn receive_stream(
    fd: i32,
    message: &mut libc::msghdr,
    parts: &[Iov],
    flags: i32,
    raw: impl Fn(*mut libc::msghdr) -> isize,
) -> isize {
    let m: *mut libc::msghdr = message;
    let r = if drops(fd, flags) {
        drop_bytes(fd, parts.iter().map(|p| p.iov_len).sum(), flags, || raw(m))
    } else {
        let mut cut = *message;
        cut.msg_iov = parts.as_ptr().cast_mut();
        cut.msg_iovlen = parts.len();
        input(fd, parts, flags & libc::MSG_PEEK != 0, || raw((&raw const cut).cast_mut()))
    };
    if r >= 0 {
        // The kernel returns this flag to the caller.
        message.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
        message.msg_controllen = 0;
        message.msg_namelen = 0;
    }
    r
}

fn log_message(fd: i32, message: &libc::msghdr, name_room: u32, parts: &[Iov], r: isize) {
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
        // A longer name than there was room for is cut.
        let name_len = head.name_len.min(name_room) as usize;
        copy_out(message.msg_name.cast(), name_len, &mut head.name);
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

fn replay_message(message: &mut libc::msghdr, parts: &[Iov], taken: &log::Taken) -> isize {
    let r = taken.ret();
    let head_len = size_of::<MessageHead>();
    if taken.payload().len() < head_len {
        report::diverged("a message record is too short");
    }
    // SAFETY: a plain-old-data struct read from at least its size of bytes.
    let head = unsafe { taken.payload().as_ptr().cast::<MessageHead>().read_unaligned() };
    if r >= 0 {
        let name_room = message.msg_namelen;
        message.msg_flags = head.flags;
        message.msg_controllen = (head.control_len as usize).min(CONTROL_MAX);
        // SAFETY: the same caller gave buffers of the same sizes as on the primary.
        unsafe {
            if !message.msg_name.is_null() {
                let n = (head.name_len.min(name_room) as usize).min(NAME_MAX);
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
        scatter(parts, &taken.payload()[head_len..]);
    }
    r
}
