//! Timers of timer_create(2), made again by the stub with the numbers that they had.

use super::super::error::{Doing, Result};
use super::remote::Remote;
use crate::process;
use holdfast_wire::snapshot::{Member, TIMERS_MAX, Timer};
use std::io;

/// `struct sigevent`, in bytes; behind it the kernel writes the timer's number.
const EVENT: usize = 64;

/// Makes the timers that a process has. The kernel counts them upwards from 0.
pub(super) fn make(stub: &mut Remote, of: &Member) -> Result<()> {
    let what = "making a timer";
    for timer in &of.process.timers {
        let mut made = None;
        for _ in 0..TIMERS_MAX {
            let number = one(stub, what, timer)?;
            made = Some(number);
            if number >= timer.number {
                break;
            }
            stub.call(what, libc::SYS_timer_delete, &[number.into()])?;
        }
        if made != Some(timer.number) {
            return Err(io::Error::other("it cannot have its number again")).doing(what);
        }
    }
    Ok(())
}

fn one(stub: &mut Remote, what: &str, timer: &Timer) -> Result<u32> {
    let (mut notify, tid) = (timer.notify.cast_signed(), timer.tid);
    if tid != 0 {
        notify |= libc::SIGEV_THREAD_ID;
    }
    let mut event = [0; EVENT + 4];
    event[..8].copy_from_slice(&timer.value.to_ne_bytes());
    event[8..12].copy_from_slice(&timer.signal.to_ne_bytes());
    event[12..16].copy_from_slice(&notify.to_ne_bytes());
    event[16..20].copy_from_slice(&tid.to_ne_bytes());
    let at = stub.argument(&event)?;
    let clock = i64::from(timer.clock).cast_unsigned();
    let number_at = at + EVENT as u64;
    stub.call(what, libc::SYS_timer_create, &[clock, at, number_at])?;
    let mut number = [0; 4];
    let got = process::read_memory(stub.pid, number_at, &mut number).doing(what)?;
    match got {
        4 => Ok(u32::from_ne_bytes(number)),
        _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)).doing(what),
    }
}
