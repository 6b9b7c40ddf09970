use super::{Wait, acquire};
use crate::base::state::{Mode, THREADED, mode};
use crate::base::table::Call;
use crate::testing::attach;
use core::cell::Cell;
use core::sync::atomic::Ordering::SeqCst;

/// What is done to a lock, in order.
#[derive(Default)]
struct Lock {
    done: Cell<Vec<&'static str>>,
}

impl Lock {
    fn note(&self, what: &'static str) -> i32 {
        let mut done = self.done.take();
        done.push(what);
        self.done.set(done);
        0
    }
}

#[test]
fn a_copy_takes_its_lock_in_the_logs_order() {
    let member = attach(Mode::Record);
    THREADED.store(true, SeqCst);
    for (kind, r) in [(Wait::Open, 0), (Wait::Timed, libc::ETIMEDOUT)] {
        let lock = Lock::default();
        let take = |attempt: &dyn Fn() -> i32| {
            let (wait, undo) = (|| lock.note("wait"), || lock.note("give back"));
            acquire(kind, (Call::pthread_mutex, 0), || None, attempt, wait, undo)
        };
        // The original has the lock, and logs that; the copy came out of the same
        // wait.
        assert_eq!(take(&|| lock.note("take")), 0);
        let in_copy = || {
            member.become_mode(Mode::Replay);
            lock.note("take");
            r
        };
        assert_eq!((take(&in_copy), mode()), (0, Mode::Replay));
        let expected: &[_] = match r {
            0 => &["take", "take", "give back", "wait"],
            _ => &["take", "take", "wait"],
        };
        assert_eq!(lock.done.take(), expected);
        member.become_mode(Mode::Record);
    }
    THREADED.store(false, SeqCst);
}
