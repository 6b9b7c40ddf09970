//! Clock readings in the log. A server reads clocks several times for each request; readings with
//! no other record in between share one record.

use crate::base::log::{self, Entry};
use crate::base::table::Call;
use crate::base::{report, state};
use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use holdfast_wire::group::CLOCKS;
use holdfast_wire::log::{Header, Op, Reading};

/// Last reading of each clock in the log, in ns; on both members the same.
static LOGGED: [AtomicI64; CLOCKS] = [const { AtomicI64::new(i64::MIN) }; CLOCKS];
/// Number of readings that the replica has taken from the record at the head of
/// its log.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

fn last(clock: i32) -> Option<&'static AtomicI64> {
    LOGGED.get(usize::try_from(clock).ok()?)
}

/// The latest reading of all clocks of a kind; `i64::MIN` if there was none.
pub fn latest(is_of_kind: impl Fn(i32) -> bool) -> i64 {
    let clocks =
        state::group().latest.iter().enumerate().filter(|(clock, _)| is_of_kind(*clock as i32));
    let readings = clocks.map(|(_, latest)| latest.load(Relaxed)).filter(|it| *it != 0);
    readings.max().unwrap_or(i64::MIN)
}

fn note_latest(clock: i32, value_ns: i64) {
    let latest = usize::try_from(clock).ok().and_then(|n| state::group().latest.get(n));
    let Some(latest) = latest else { return };
    let is_later = value_ns > latest.load(Relaxed);
    if is_later && state::threaded() {
        latest.fetch_max(value_ns, Relaxed);
    } else if is_later {
        latest.store(value_ns, Relaxed);
    }
}

/// Logs a reading (primary). It is also remembered without a log, because a copy of the server may
/// have to continue from it.
pub fn note(call: Call, clock: i32, value_ns: i64) {
    note_latest(clock, value_ns);
    if log::is_on() {
        append(call, clock, value_ns);
    }
}

fn append(call: Call, clock: i32, value_ns: i64) {
    let held = log::hold();
    if !pack(call, clock, value_ns).is_some_and(|word| log::extend(&held, word)) {
        let entry = Entry { fd: clock, ..Entry::new(Op::Clock, call, clock, value_ns as isize) };
        log::append_open(&held, entry);
    }
    if let Some(last) = last(clock) {
        last.store(value_ns, Relaxed);
    }
}

fn pack(call: Call, clock: i32, value_ns: i64) -> Option<u64> {
    let before = last(clock)?.load(Relaxed);
    let delta_ns = value_ns.checked_sub(before)?;
    Reading { call: call as u16, clock: clock as u8, delta_ns }.pack()
}

/// The replica's next reading, in nanoseconds. `None`: the log has ended.
pub fn take(call: Call, clock: i32) -> Option<i64> {
    let record = log::take_any()?;
    let at = TAKEN.load(Relaxed);
    let there = reading(&record, at);
    if record.header.op != Op::Clock as u8 || there.fd != clock || there.hash != call as u64 {
        report::diverged_at(&there, Op::Clock, call, clock);
    }
    if let Some(last) = last(clock) {
        last.store(there.ret, Relaxed);
    }
    note_latest(clock, there.ret);
    if at < record.payload().len() / size_of::<u64>() {
        TAKEN.store(at + 1, Relaxed);
    } else {
        TAKEN.store(0, Relaxed);
        record.done();
    }
    Some(there.ret)
}

/// Reading number `at` of a shared record, as if it had a record of its own.
fn reading(record: &log::Taken, at: usize) -> Header {
    let word = at.checked_sub(1).and_then(|n| record.payload().as_chunks().0.get(n));
    let Some(word) = word else { return record.header };
    let Reading { call, clock, delta_ns } = Reading::unpack(u64::from_le_bytes(*word));
    let before = last(clock.into()).map_or(0, |last| last.load(Relaxed));
    Header {
        fd: clock.into(),
        hash: call.into(),
        ret: before.wrapping_add(delta_ns),
        ..record.header
    }
}
