//! Whether a server makes no progress although its process lives: somebody has stopped it, or it
//! hangs while clients wait to be accepted. A server that is only busy is never reported.

use std::time::{Duration, Instant};

/// Time that a server must have been stopped before it is reported: copying it, or a debugger's
/// short look, stops it for less.
const STOPPED_FOR: Duration = Duration::from_millis(900);
/// Time that clients must have waited in the accept queue of a server that does nothing, before
/// it is reported as hung. A busy server accepts, or at least reads the time, now and then.
const HANGS_FOR: Duration = Duration::from_secs(5);

/// What one look at a server has found.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The process whose threads are stopped by a signal, or traced: the server's, or one of its
    /// workers'.
    pub stopped: Option<u32>,
    /// Connections that wait to be accepted.
    pub queued: u32,
    /// A number that changes whenever the server does anything; `None` if there is none.
    pub moved: Option<u64>,
}

/// How a server stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// This process is stopped.
    Stopped(u32),
    /// It does nothing while this many clients wait to be accepted.
    Hangs(u32),
}

/// What earlier looks have found.
#[derive(Debug, Default)]
pub struct Standstill {
    stopped_since: Option<(Instant, u32)>,
    /// Since when nothing has changed, and the last look's `queued` and `moved`.
    still_since: Option<(Instant, u32, u64)>,
}

impl Standstill {
    /// Takes the next look; `None` if the server does not stand still, as far as the looks tell.
    pub fn judge(&mut self, look: Look, now: Instant) -> Option<Stands> {
        let Look { stopped, queued, moved } = look;
        let before = self.stopped_since;
        let same = |pid: u32| before.filter(|before| before.1 == pid).unwrap_or((now, pid));
        self.stopped_since = stopped.map(same);
        let fresh = moved.filter(|_| queued > 0).map(|moved| (now, queued, moved));
        self.still_since = match (self.still_since, fresh) {
            // More clients may have come. If fewer wait, the server has accepted some, or some
            // have gone: then the time starts again.
            (Some((since, before, at)), Some((_, _, moved))) if at == moved && before <= queued => {
                Some((since, queued, at))
            }
            (_, fresh) => fresh,
        };
        let has_lasted = |since: Instant, long| now.saturating_duration_since(since) >= long;
        if let Some((_, pid)) =
            self.stopped_since.filter(|(since, _)| has_lasted(*since, STOPPED_FOR))
        {
            return Some(Stands::Stopped(pid));
        }
        let (since, queued, _) = self.still_since?;
        has_lasted(since, HANGS_FOR).then_some(Stands::Hangs(queued))
    }
}

/// Who continues the service if a server that stands still is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heir {
    Backup,
    Nobody,
}

impl Stands {
    /// Reason and remedy for the server with this process id.
    #[must_use]
    pub fn words(self, pid: u32, heir: Heir) -> (String, String) {
        let then = match heir {
            Heir::Backup => "lets a backup take over, unless that hangs likewise",
            Heir::Nobody => "ends its connections with it, unless it is rebuilt in place",
        };
        match self {
            Self::Stopped(stopped) => {
                let who = match stopped == pid {
                    true => "the server is stopped (SIGSTOP, or a debugger): no client is served"
                        .to_owned(),
                    false => format!(
                        "the server's process {stopped} is stopped (SIGSTOP, or a debugger): its \
                         clients are not served"
                    ),
                };
                (who, format!("kill -CONT {stopped}, or let it go in the debugger"))
            }
            Self::Hangs(queued) => (
                format!(
                    "the server does nothing: {queued} of its clients {} to be accepted, and \
                     nothing has moved for {} s",
                    if queued == 1 { "waits" } else { "wait" },
                    HANGS_FOR.as_secs()
                ),
                format!(
                    "look at what process {pid} does, and at the server's log; if it does not come \
                     back, `kill -9 {pid}` {then}"
                ),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The results of looks that are taken once per second.
    fn told(looks: &[(Option<u32>, u32, Option<u64>)]) -> Vec<Option<Stands>> {
        let (mut standstill, mut now) = (Standstill::default(), Instant::now());
        let mut judge = |&(stopped, queued, moved): &(Option<u32>, u32, Option<u64>)| {
            now += SECOND;
            standstill.judge(Look { stopped, queued, moved }, now)
        };
        looks.iter().map(&mut judge).collect()
    }

    #[test]
    fn a_server_that_stays_stopped_stands_still_until_it_goes_on() {
        let (stopped, other, goes) = ((Some(7), 0, None), (Some(8), 0, None), (None, 0, None));
        assert_eq!(told(&[goes, stopped, goes, stopped, goes]), [None; 5], "only for a moment");
        assert_eq!(told(&[stopped, other, stopped, goes]), [None; 4], "one after the other");
        let stands = Some(Stands::Stopped(7));
        assert_eq!(told(&[stopped, stopped, stopped, goes]), [None, stands, stands, None]);
    }

    #[test]
    fn a_server_hangs_if_nothing_moves_while_clients_wait() {
        let last = |looks: &[_]| told(looks).pop().flatten();
        let waits = |queued, moved| (None, queued, Some(moved));
        let growing: Vec<_> = (1..8).map(|queued| waits(queued, 7)).collect();
        assert_eq!(last(&growing), Some(Stands::Hangs(7)));
        assert_eq!(last(&growing[..5]), None, "not long enough");
        let busy: Vec<_> = (0..60).map(|second| waits(511, second / 4)).collect();
        assert_eq!(told(&busy), [None; 60], "its queue is always full, and it goes on");
        let accepting: Vec<_> = (0..60).map(|second| waits(9 - second % 5, 7)).collect();
        assert_eq!(told(&accepting), [None; 60]);
        assert_eq!(last(&[waits(0, 7); 60]), None, "idle");
        assert_eq!(last(&[(None, 3, None); 60]), None, "nobody can tell");
    }

    #[test]
    fn the_words_name_the_process() {
        for (stopped, who) in
            [(42, "the server is stopped"), (43, "the server's process 43 is stopped")]
        {
            let (reason, remedy) = Stands::Stopped(stopped).words(42, Heir::Backup);
            assert!(reason.starts_with(&format!("{who} (SIGSTOP, or a debugger)")), "{reason}");
            assert!(remedy.starts_with(&format!("kill -CONT {stopped}")), "{remedy}");
        }
        let (reason, remedy) = Stands::Hangs(3).words(42, Heir::Backup);
        assert!(reason.contains("3 of its clients wait"), "{reason}");
        assert!(
            remedy.ends_with("`kill -9 42` lets a backup take over, unless that hangs likewise")
        );
        assert!(Stands::Hangs(3).words(42, Heir::Nobody).1.contains("kill -9 42` ends its"));
    }
}
