//! Which services answer clients, as far as test connections tell.
//!
//! A connection that is established proves little: until its queue is full, the kernel answers for
//! a server that hangs. So a server has to accept the test connection, or others that wait in its
//! queue: one that is only busy takes them one after the other.

use crate::nanos;
use crate::spread::Service;
use crate::timing::host_server::{FAILURES_MAX, STANDS_MAX};
use holdfast_cluster::Nanos;
use std::collections::BTreeMap;

/// Outcome of a test connection to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was established, and the server has accepted the one before.
    Served,
    /// It was not established.
    Refused,
    /// The one before is still in the queue, so no new one was made. `moved`: the server has
    /// accepted another connection from its queue.
    Queued { moved: bool },
}

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Refusals in a row.
    failures: u32,
    /// Answers in a row for which nothing has left the queue.
    standing: u32,
    /// When the queue last moved.
    moved_at: Nanos,
    /// Whether the queue has stood still for so long that the server counts as hanging.
    hangs: bool,
}

/// What is known of each service.
#[derive(Debug, Default)]
pub(super) struct Answering(BTreeMap<Service, Record>);

impl Answering {
    /// Forgets services that are not among `listening`: a later bind begins
    /// anew.
    pub fn keep(&mut self, listening: &[Service]) {
        self.0.retain(|service, _| listening.contains(service));
    }

    /// Takes the outcomes of test connections.
    pub fn learn(&mut self, now: Nanos, answers: &[(Service, Answer)]) {
        let fresh = Record { failures: 0, standing: 0, moved_at: now, hangs: false };
        for (service, answer) in answers {
            let record = self.0.entry(*service).or_insert(fresh);
            match answer {
                Answer::Served => *record = fresh,
                Answer::Refused => record.failures = record.failures.saturating_add(1),
                Answer::Queued { moved: true } => {
                    *record = Record { failures: record.failures, ..fresh };
                }
                Answer::Queued { moved: false } => {
                    record.standing = record.standing.saturating_add(1);
                    let long = now.since(record.moved_at) >= nanos(STANDS_MAX);
                    record.hangs |= long && record.standing >= FAILURES_MAX;
                }
            }
        }
    }

    /// Whether a service may be announced; one that was never tested may.
    pub fn is_good(&self, service: &Service) -> bool {
        self.0.get(service).is_none_or(|it| it.failures < FAILURES_MAX && !it.hangs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUED: Answer = Answer::Queued { moved: false };
    const MOVED: Answer = Answer::Queued { moved: true };

    /// Whether the service may be announced after each answer; the answers come with their times,
    /// in ms since the beginning.
    fn good(answers: &[(u64, Answer)]) -> Vec<bool> {
        let service = Service { address: ([10, 9, 0, 100], 80).into(), udp: false };
        let mut answering = Answering::default();
        let learn = |(ms, answer): &(u64, Answer)| {
            answering.learn(Nanos::from_ms(*ms), &[(service, *answer)]);
            answering.is_good(&service)
        };
        answers.iter().map(learn).collect()
    }

    #[test]
    fn a_queue_that_nobody_leaves_is_that_of_a_server_that_hangs() {
        use Answer::Served;
        // Twice, and for two seconds.
        let stands = [(0, Served), (1000, QUEUED), (2000, QUEUED), (9000, QUEUED)];
        assert_eq!(good(&stands), [true, true, false, false]);
        let late = [(0, Served), (5000, QUEUED), (5200, QUEUED)];
        assert_eq!(good(&late), [true, true, false], "one look is none");
        let soon = [(0, Served), (900, QUEUED), (1900, QUEUED), (2900, QUEUED)];
        assert_eq!(good(&soon), [true, true, true, false]);
    }

    #[test]
    fn a_server_that_is_only_busy_is_not_withdrawn() {
        use Answer::Served;
        let busy: Vec<_> =
            (0..60).map(|s| (s * 1000, if s % 2 == 0 { QUEUED } else { MOVED })).collect();
        assert!(good(&busy).iter().all(|good| *good));
        let slow = [(0, Served), (1000, QUEUED), (1900, QUEUED), (2800, Served), (3800, QUEUED)];
        assert!(good(&slow).iter().all(|good| *good));
    }

    #[test]
    fn a_server_that_goes_on_is_back() {
        use Answer::{Refused, Served};
        let hangs = [(0, Served), (1000, QUEUED), (2000, QUEUED)];
        for (next, is_good) in [(MOVED, true), (Served, true), (QUEUED, false), (Refused, false)] {
            let answers = [&hangs[..], &[(3000, next)]].concat();
            assert_eq!(good(&answers).last(), Some(&is_good), "{next:?}");
        }
        let refused = [(0, Refused), (1000, MOVED), (2000, Refused), (3000, MOVED)];
        assert_eq!(good(&refused), [true, true, false, false]);
        assert_eq!(good(&[(0, Refused), (1000, Served), (2000, Refused)]), [true; 3]);
    }
}
