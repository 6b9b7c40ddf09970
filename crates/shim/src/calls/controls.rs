//! `ioctl`: how many bytes each request writes, which the log must carry.

use crate::base::fds;
use crate::base::state::{Mode, mode};
use crate::base::sys::{libc_result, syscall};
use crate::base::table::Call;
use crate::calls::shapes::{simple, with_data};

const FIONBIO: u32 = 0x5421;
const FIOASYNC: u32 = 0x5452;
const SIOCGIFCONF: u32 = 0x8912;

/// Sizes of `struct termios` (the kernel's), `winsize`, `ifreq` and `arpreq`,
/// in bytes.
const TERMIOS_BYTES: usize = 36;
const WINSIZE_BYTES: usize = 8;
const IFREQ_BYTES: usize = 40;
const ARPREQ_BYTES: usize = 68;
/// Most bytes of interfaces in one answer to SIOCGIFCONF.
const IFCONF_BYTES_MAX: i32 = 64 << 10;

/// What a request writes through its argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fills {
    /// This many bytes there.
    Bytes(usize),
    /// A `struct ifconf`, and the buffer that it points to.
    Interfaces,
    /// Nothing: it sets what both members have.
    OnBoth,
    /// Memory behind a pointer in the argument, or a new descriptor: such requests are refused.
    Unknown,
}

fn fills(request: u32) -> Fills {
    /// Bits in the numbers of newer requests: the kernel writes, and how much.
    const WRITES: u32 = 0x8000_0000;
    const SIZE_SHIFT: u32 = 16;
    const SIZE_MASK: u32 = 0x3fff;
    match request {
        FIONBIO | FIOASYNC => Fills::OnBoth,
        // TCGETS, TIOCGWINSZ.
        0x5401 => Fills::Bytes(TERMIOS_BYTES),
        0x5413 => Fills::Bytes(WINSIZE_BYTES),
        // TIOCGPGRP, SIOCOUTQ, FIONREAD, TIOCGSID.
        0x540f | 0x5411 | 0x541b | 0x5429 => Fills::Bytes(4),
        // Owner of a socket and SIOCATMARK, SIOCOUTQNSD.
        0x8901..=0x8905 | 0x894b => Fills::Bytes(4),
        // SIOCGSTAMP and SIOCGSTAMPNS: when the last packet came.
        0x8906 | 0x8907 => Fills::Bytes(16),
        SIOCGIFCONF => Fills::Interfaces,
        // Interfaces by name or number: a struct ifreq without pointers.
        0x8910 | 0x8911 | 0x8913..=0x8938 | 0x8942 | 0x8943 | 0x8947..=0x8949 => {
            Fills::Bytes(IFREQ_BYTES)
        }
        0x8970 | 0x8971 => Fills::Bytes(IFREQ_BYTES),
        // ARP and reverse ARP.
        0x8953..=0x8955 | 0x8960..=0x8962 => Fills::Bytes(ARPREQ_BYTES),
        // SIOCETHTOOL and its like.
        0x8900..0x8a00 => Fills::Unknown,
        _ if request & WRITES != 0 => Fills::Bytes((request >> SIZE_SHIFT & SIZE_MASK) as usize),
        _ => Fills::Bytes(0),
    }
}

/// `struct ifconf`: the buffer's size, afterwards its used part, and its address.
#[repr(C)]
struct Interfaces {
    len: i32,
    at: *mut u8,
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(fd: i32, request: u64, arg: *mut u8) -> i32 {
    // SAFETY: the server's own call, with its own arguments.
    let raw = || unsafe { syscall!(SYS_ioctl, fd, request, arg) };
    if !fds::is_virtual(fd) || !matches!(mode(), Mode::Record | Mode::Replay) {
        return libc_result(raw()) as i32;
    }
    libc_result(match fills(request as u32) {
        Fills::OnBoth => simple(Call::ioctl, fd, true, raw),
        Fills::Bytes(n) => with_data(Call::ioctl, fd, &[(arg, n)], raw),
        Fills::Interfaces => interfaces(fd, arg, raw),
        Fills::Unknown => -(libc::EOPNOTSUPP as isize),
    }) as i32
}

fn interfaces(fd: i32, arg: *mut u8, raw: impl Fn() -> isize) -> isize {
    // SAFETY: the request's argument; null, which the kernel would not take, is not read.
    let Some(asked) = (unsafe { arg.cast::<Interfaces>().as_mut() }) else {
        return -(libc::EFAULT as isize);
    };
    asked.len = asked.len.min(IFCONF_BYTES_MAX);
    // Without a buffer the kernel tells how much there is.
    let room = if asked.at.is_null() { 0 } else { asked.len.max(0) as usize };
    let (len, at) = ((&raw mut asked.len).cast(), asked.at);
    with_data(Call::ioctl, fd, &[(len, size_of::<i32>()), (at, room)], raw)
}
