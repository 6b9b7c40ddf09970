//! Looks at the host in a thread of its own: the kernel may make who asks it wait for the lock of
//! all network namespaces, and heartbeats must not wait with it. The thread has not the loop's
//! real-time priority either. The loop asks for a look, and takes what was found at one of its next
//! turns.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

/// See the module. Dropping it ends the thread after its look.
pub struct Looker<T> {
    ask: Sender<()>,
    found: Receiver<T>,
    is_looking: bool,
    /// Whether to look again after that, since what has changed may have been passed already.
    again: bool,
}

impl<T: Send + 'static> Looker<T> {
    /// # Errors
    /// If there can be no thread.
    pub fn start(mut look: impl FnMut() -> T + Send + 'static) -> io::Result<Self> {
        let (ask, asked) = channel();
        let (finds, found) = channel();
        let work = move || while asked.recv().is_ok() && finds.send(look()).is_ok() {};
        std::thread::Builder::new().name("look".to_owned()).spawn(work)?;
        Ok(Self { ask, found, is_looking: false, again: false })
    }

    /// Asks for a look that begins after this call.
    pub fn ask(&mut self) {
        if self.is_looking {
            self.again = true;
            return;
        }
        // The thread ends by a panic only, and that is reported.
        self.is_looking = self.ask.send(()).is_ok();
    }

    /// What a look has found, once for each look.
    pub fn take(&mut self) -> Option<T> {
        let found = self.found.try_recv().ok()?;
        self.is_looking = false;
        if std::mem::take(&mut self.again) {
            self.ask();
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn next<T: Send + 'static>(looker: &mut Looker<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = looker.take() {
                return found;
            }
            assert!(Instant::now() < until, "a look takes no time");
            std::thread::yield_now();
        }
    }

    #[test]
    fn nobody_waits_for_a_look_and_a_change_meanwhile_is_looked_at() {
        // A look lasts until the test says so.
        let (go, gate) = channel::<()>();
        let mut looks = 0;
        let look = move || {
            looks += 1;
            gate.recv_timeout(PATIENCE).map(|()| looks)
        };
        let mut looker = Looker::start(look).expect("a thread");
        looker.ask();
        assert!(looker.take().is_none(), "it looks still");
        looker.ask();
        looker.ask();
        go.send(()).expect("it waits");
        assert_eq!(next(&mut looker), Ok(1));
        go.send(()).expect("it waits");
        assert_eq!(next(&mut looker), Ok(2), "both changes are seen by one more look");
        assert!(looker.take().is_none());
        looker.ask();
        go.send(()).expect("it waits");
        assert_eq!(next(&mut looker), Ok(3));
    }
}
