use super::{COMPUTES_TICKS, Watch, Why, own_task, parse, task_of};
use crate::base::state::{Mode, group};
use crate::base::token;
use crate::testing::attach;
use core::sync::atomic::{AtomicBool, Ordering::*};
use holdfast_wire::token::IN_CALL;
use std::time::{Duration, Instant};

/// A thread number that no other test uses, and the place of the process that owns it.
const NUMBER: usize = 900;

/// Looks again and again, for at most `limit`.
fn look(watch: &mut Watch, word: u32, limit: Duration) -> Option<Why> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if let Some(why) = watch.look(word) {
            return Some(why);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// A thread does `work` while another one looks at it as at the holder.
fn seen_at(word: u32, limit: Duration, work: impl FnOnce(&AtomicBool) + Send) -> Option<Why> {
    let (begins, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    let place = &group().processes[0];
    place.pid.store(std::process::id() as i32, SeqCst);
    group().owners[NUMBER].store(1, SeqCst);
    let why = std::thread::scope(|scope| {
        scope.spawn(|| {
            group().token.task.store(own_task(), SeqCst);
            begins.store(true, SeqCst);
            work(&ends);
        });
        while !begins.load(SeqCst) {
            std::thread::yield_now();
        }
        let why = look(&mut Watch::new(), word, limit);
        ends.store(true, SeqCst);
        why
    });
    group().owners[NUMBER].store(0, SeqCst);
    place.pid.store(0, SeqCst);
    why
}

#[test]
fn a_thread_is_seen_as_it_is() {
    let _member = attach(Mode::Record);
    let word = NUMBER as u32 + 1;
    let sleeps = |ends: &AtomicBool| {
        while !ends.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let computes = |ends: &AtomicBool| while !ends.load(SeqCst) {};
    let long = Duration::from_secs(20);
    assert_eq!(seen_at(word, long, sleeps), Some(Why::Sleeps));
    let begin = Instant::now();
    assert_eq!(seen_at(word, long, computes), Some(Why::Computes));
    assert!(begin.elapsed() >= Duration::from_millis(10 * (COMPUTES_TICKS - 2)));
    let short = Duration::from_millis(50);
    assert_eq!(seen_at(word | IN_CALL, short, sleeps), None, "nobody takes it from a call");
    assert_eq!(Watch::new().look(word), Some(Why::Gone), "nobody owns that number");
    group().token.task.store(0, SeqCst);
    token::give();
}

#[test]
fn a_task_is_two_numbers() {
    assert_eq!(task_of(b"17/task/23"), Some(17 << 32 | 23));
    assert_eq!(task_of(b""), None);
    assert_eq!(task_of(b"self/task/x"), None);
    let own = own_task();
    assert_eq!(own >> 32, u64::from(std::process::id()));
}

#[test]
fn a_name_cannot_be_mistaken_for_what_follows_it() {
    let line = b"12 (a) S 1 (b)) R 1 12 12 0 -1 4194304 100 0 0 0 7 5 0 0 20 0 1 0 99";
    assert_eq!(parse(line), Some((b'R', 12)));
    assert_eq!(parse(b"12 (a) S 1 2"), None);
    assert_eq!(parse(b""), None);
}
