//! A member beside its own host's server: what it keeps, and a server that has fallen.

use super::*;
use crate::timing::primary::JOINER_SILENT;

impl Bed {
    /// A member whose own server has fallen, and which builds that anew.
    fn fallen() -> Self {
        let mut bed = Self::cold_in_step();
        (bed.book.kept, bed.book.beats) = (Some(Kept { image: 3, log: 100 }), None);
        bed.machine.heard_at = bed.book.now;
        bed.book.now = bed.book.now.plus(Nanos::from_ms(70));
        // Nobody else could go on, so the edge is asked at once, also by a host that is cut off.
        bed.book.bad = "interface";
        let turn = bed.machine.rebuild(&mut bed.book);
        assert!(matches!(turn, Turn::Until(_)), "{turn:?}");
        assert_eq!(bed.book.take(), ["promotes: Fallen", &in_step(true), &promote()]);
        assert!(!bed.book.builds, "it has asked");
        bed
    }

    /// Asserts that the server stays down, and why.
    fn stays_down(&mut self, reason: &str) {
        assert_eq!(self.book.take(), ["kill", "close tap", "hear", "NotRebuilt"]);
        assert_eq!(self.book.reason, reason);
        self.is_current_elsewhere();
        self.pass(5000);
        assert!(matches!(self.turn(), Turn::Until(_)), "it does not join by itself");
        assert_eq!(self.machine.turn(true, &mut self.book), Turn::End(End::Stopped));
    }

    fn is_current_elsewhere(&mut self) {
        self.book.edge.push(Message::Epoch { epoch: EPOCH + 1, current: "a" });
    }

    fn keep(&mut self) -> Result<Nanos, String> {
        self.machine.keep(&mut self.book)
    }
}

#[test]
fn a_server_that_has_fallen_is_built_and_goes_on() {
    let mut bed = Bed::fallen();
    let fell = Nanos(bed.book.now.0 - Nanos::from_ms(70).0);
    (bed.book.is_whole, bed.book.keeps, bed.book.bad) = (true, false, "");
    bed.pass(1);
    assert_eq!(bed.book.take(), ["makes", "Built", "end log"]);
    assert_eq!(bed.book.took, Some(Nanos::from_ms(1)));
    bed.book.is_whole = false;
    bed.grant();
    bed.book.replica = Replica::Parked;
    assert_eq!(bed.turn(), Turn::Busy);
    assert!(bed.book.has("TookOver"), "{:?}", bed.book.lines);
    let Phases { detect, total, .. } = bed.book.phases;
    assert_eq!(detect, Nanos::from_ms(70), "what the dead server left took that long");
    assert_eq!(total, bed.book.now.since(fell), "nobody served since the fall");
}

/// Its clients hear from the kernel that it is over.
#[test]
fn a_server_that_cannot_be_rebuilt_stays_down() {
    for (replica, reason) in [
        (Replica::Diverged("other bytes".to_owned()), "other bytes"),
        (Replica::Unkept("the disk is gone".to_owned()), "the disk is gone"),
        (Replica::Ended, TWICE),
    ] {
        let mut bed = Bed::fallen();
        bed.book.replica = replica;
        bed.turn();
        bed.stays_down(reason);
    }
    let mut bed = Bed::fallen();
    (bed.book.bad, bed.book.replica) = ("hear", Replica::Ended);
    bed.turn();
    bed.stays_down(&format!("{TWICE}; cannot hear"));
}

#[test]
fn a_rebuilding_that_is_stopped_ends_at_once() {
    let mut bed = Bed::fallen();
    assert_eq!(bed.machine.turn(true, &mut bed.book), Turn::End(End::Stopped));
    assert!(bed.book.has("NotRebuilt"), "{:?}", bed.book.lines);
}

/// The other member is current by now, and is told nothing of a fall.
#[test]
fn a_rebuilding_that_the_edge_refuses_is_given_up_for_the_other_member() {
    let mut bed = Bed::fallen();
    bed.book.edge.push(Message::Refused { reason: "another one speaks", again: false });
    bed.turn();
    assert!(bed.book.has("gave up: Fenced") && !bed.book.has("NotRebuilt"), "{:?}", bed.book.lines);
    assert_eq!(bed.book.reason, "the edge refused: another one speaks");
}

#[test]
fn the_client_whose_bytes_it_read_last_is_named_when_it_stays_down() {
    let mut bed = Bed::served();
    bed.connect();
    bed.book.tap = vec![TcpPacket { payload: b"hello", ..segment(0, b"raw") }];
    let records = [accept_record(), read_record(b"hello")].concat().leak();
    bed.book.peer.push(Message::Frame { number: 1, records });
    bed.turn();
    assert_eq!(bed.machine.last_input(), Some(record().key));
    bed.book.take();
    bed.machine.rebuild(&mut bed.book);
    bed.book.replica = Replica::Ended;
    bed.turn();
    assert!(bed.book.has("NotRebuilt, 5000"), "{:?}", bed.book.lines);
}

#[test]
fn what_is_kept_beside_the_server_is_as_long_as_nothing_fails() {
    let mut bed = Bed::cold_in_step();
    // Who speaks is in the same daemon, and has nothing to say.
    bed.book.beats = None;
    bed.pass_keeping(JOINER_SILENT.as_millis() as u64 + 1000);
    assert!(bed.machine.follows() && bed.book.take().is_empty());
    for replica in [Replica::Unkept("no room".to_owned()), Replica::Outgrown("no room".to_owned())]
    {
        bed.book.replica = replica;
        assert_eq!(bed.keep(), Err("no room".to_owned()));
    }
    bed.book.replica = Replica::Replays;
    assert!(bed.keep().is_ok_and(|at| at > bed.book.now));
    bed.book.peer.push(Message::Frame { number: 1, records: &[1, 2, 3] });
    let why = bed.keep().expect_err("the log makes no sense");
    assert!(!why.is_empty() && why != "no room", "{why}");
}

#[test]
fn who_begins_to_keep_joins_as_any_other_does() {
    let mut bed = Bed::cold();
    let image = [Message::Image { bytes: &[1, 2, 3] }, Message::Image { bytes: &[] }];
    bed.book.peer.push(Message::Join { log_from: 7, image_bytes: 3 });
    bed.book.peer.extend(image.clone());
    assert!(bed.keep().is_ok_and(|at| at > bed.book.now));
    bed.book.peer.push(Message::Closing { number: 0 });
    assert_eq!(bed.keep(), Ok(bed.book.now), "it has more to do at once");
    assert!(bed.book.has("send Joined") && bed.machine.follows(), "{:?}", bed.book.lines);
    let mut bed = Bed::cold();
    bed.book.peer.extend(image);
    assert_eq!(bed.keep(), Err("nothing is kept of the server".to_owned()));
}

impl Bed {
    fn pass_keeping(&mut self, ms: u64) {
        for _ in 0..ms {
            self.book.now = self.book.now.plus(Nanos::from_ms(1));
            assert!(self.keep().is_ok(), "{:?}", self.book.lines);
        }
    }
}

/// Nobody is left who could send what its log lacks.
#[test]
fn a_fallen_servers_log_ends_before_the_bytes_that_it_lacks() {
    let mut bed = Bed::served();
    bed.connect();
    let records = [accept_record(), read_record(b"hello")].concat().leak();
    bed.book.peer.push(Message::Frame { number: 1, records });
    bed.book.peer.push(Message::ServerDied { last: 1 });
    assert!(bed.keep().is_ok() && !bed.machine.has_all());
    bed.machine.rebuild(&mut bed.book);
    assert!(bed.book.has("end log"), "{:?}", bed.book.lines);
}
