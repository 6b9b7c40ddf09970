//! Timers of timer_create(2), as `/proc/PID/timers` lists them.

use super::super::error::{Doing, Result};
use crate::process;
use holdfast_wire::snapshot::Timer;
use std::io;

/// Lines about each timer: number, signal, whom it is sent to, clock.
const LINES: usize = 4;

/// The timers of a process, in order of number.
pub(super) fn of(pid: u32) -> Result<Vec<Timer>> {
    let path = format!("/proc/{pid}/timers");
    let text = std::fs::read_to_string(&path).doing(path)?;
    let lines: Vec<&str> = text.lines().collect();
    let inner = |tid| process::innermost_tid(pid, tid).ok();
    let timers: Option<Vec<Timer>> = lines.chunks(LINES).map(|it| timer(it, inner)).collect();
    let unread = || io::Error::from(io::ErrorKind::InvalidData);
    let mut timers = timers.ok_or_else(unread).doing("its timers")?;
    timers.sort_by_key(|timer| timer.number);
    Ok(timers)
}

/// `inner` gives a thread's number in its own pid namespace.
fn timer(lines: &[&str], inner: impl Fn(u32) -> Option<u32>) -> Option<Timer> {
    let field = |at: usize, name: &str| lines.get(at)?.strip_prefix(name).map(str::trim);
    // "signal: 14/0000000000001234"
    let (signal, value) = field(1, "signal:")?.split_once('/')?;
    // "notify: signal/tid.4711"
    let (how, whom) = field(2, "notify:")?.split_once('/')?;
    let (kind, number) = whom.split_once('.')?;
    let notify = match how {
        "signal" => libc::SIGEV_SIGNAL,
        "none" => libc::SIGEV_NONE,
        "thread" => libc::SIGEV_THREAD,
        _ => return None,
    };
    Some(Timer {
        number: field(0, "ID:")?.parse().ok()?,
        clock: field(3, "ClockID:")?.parse().ok()?,
        signal: signal.parse().ok()?,
        value: u64::from_str_radix(value.trim_start_matches("0x"), 16).ok()?,
        notify: notify.cast_unsigned(),
        tid: if kind == "tid" { inner(number.parse().ok()?)? } else { 0 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let read = |text: &str| {
            let lines: Vec<&str> = text.lines().collect();
            timer(&lines, |tid| (tid == 4711).then_some(9))
        };
        let text = "ID: 3\nsignal: 14/0000000000001234\nnotify: signal/tid.4711\nClockID: -10\n";
        let known = Timer { number: 3, clock: -10, signal: 14, value: 0x1234, notify: 0, tid: 9 };
        assert_eq!(read(text), Some(known));
        let text = text.replace("signal/tid.4711", "none/pid.4711");
        assert_eq!(read(&text), Some(Timer { notify: 1, tid: 0, ..known }));
        assert_eq!(read(&text.replace("none/pid.4711", "signal/tid.1")), None);
        assert_eq!(read("ID: 3\n"), None);
    }
}
