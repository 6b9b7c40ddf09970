//! Tests of a server that sends its log to the backup itself (decision 35).

use super::*;
use crate::timing::primary::DIRECT_READ_AFTER;

const LEN: u64 = HEADER_LEN as u64;

fn result_record() -> Vec<u8> {
    Header { op: Op::Result as u8, ..Header::default() }.as_bytes().to_vec()
}

impl Bed {
    /// The two have come to terms.
    fn direct() -> Self {
        let mut bed = Self::new();
        bed.book.offers = true;
        bed.turn();
        assert_eq!(bed.book.take(), ["send Direct"]);
        bed.book.peer.push(Message::DirectOk { id: 6, port: 1 });
        bed.turn();
        assert_eq!(bed.book.take(), Vec::<String>::new(), "another key");
        bed.book.peer.push(Message::DirectOk { id: 7, port: 41 });
        bed.turn();
        bed.turn();
        assert_eq!(bed.book.take(), ["send LogAt", "direct to 41"]);
        bed.book.announced = 0;
        bed
    }

    fn logs(&mut self, announces: bool) {
        self.book.log.extend(result_record());
        if announces {
            self.book.announced = self.book.log.len() as u64;
        }
    }
}

#[test]
fn log_that_the_backup_has_is_read_and_not_sent() {
    let mut bed = Bed::direct();
    bed.logs(false);
    bed.turn();
    assert_eq!((bed.book.take(), bed.book.stable), (vec![], 0), "the server sends it");
    bed.book.peer.push(Message::LogHeld { position: LEN });
    bed.turn();
    assert_eq!((bed.book.take(), bed.book.stable), (vec![], LEN));
    // What has come meanwhile waits.
    bed.logs(false);
    bed.logs(false);
    bed.book.peer.push(Message::LogHeld { position: 2 * LEN });
    bed.turn();
    assert_eq!((bed.book.take(), bed.book.stable), (vec![], 2 * LEN));
}

#[test]
fn log_that_is_announced_is_sent_at_once() {
    let mut bed = Bed::direct();
    bed.logs(false);
    bed.logs(true);
    bed.turn();
    assert_eq!(bed.book.take(), ["send FrameAt"]);
    bed.book.peer.push(Message::FrameOk { number: 1 });
    bed.turn();
    assert_eq!(bed.book.stable, 2 * LEN);
}

#[test]
fn log_of_which_nothing_is_heard_is_sent_after_a_while() {
    let mut bed = Bed::direct();
    bed.logs(false);
    let Turn::Until(at) = bed.turn() else { panic!("it sleeps") };
    let due = bed.book.now.plus(nanos(DIRECT_READ_AFTER));
    assert!(at <= due, "{at:?}");
    bed.turn_at(Nanos(due.0 - 1));
    assert_eq!(bed.book.take(), Vec::<String>::new());
    bed.turn_at(due);
    assert_eq!(bed.book.take(), ["send FrameAt"]);
}

#[test]
fn nothing_is_offered_before_the_backup_is_in_step() {
    let mut bed = Bed::new();
    bed.turn();
    bed.book.take();
    bed.turn();
    assert_eq!(bed.book.take(), Vec::<String>::new(), "the host cannot");
}

#[test]
fn a_backup_that_is_lost_is_not_heard_by_the_server_either() {
    let mut bed = Bed::direct();
    bed.book.is_lost = true;
    bed.turn();
    let done = bed.book.take();
    let (ends, drops) = ("direct ends".to_owned(), "drop peer".to_owned());
    let at = |what: &String| done.iter().position(|it| it == what);
    assert!(at(&ends).is_some() && at(&ends) < at(&drops), "{done:?}");
}
