//! What people read of an edge's life, what members are sent beside answers, and what an edge that
//! starts takes for granted.

use super::*;

impl Bed {
    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.book.notes)
    }
}

#[test]
fn who_comes_and_goes_and_what_a_hand_does_is_noted() {
    let mut bed = Bed::pair();
    bed.notes();
    bed.machine.handle_closed(B, "no answer", bed.book.now, &mut bed.book);
    bed.machine.handle_opened(B, &mut bed.book);
    assert_eq!(bed.notes(), ["left: b: no answer", "joined: b"]);
    bed.machine.handle_close(true, &mut bed.book).expect("a fence");
    bed.machine.handle_open(bed.book.now, &mut bed.book).expect("a fence");
    assert_eq!(bed.notes(), ["fenced: by hand", "unfenced: by hand"]);
    assert!(!bed.machine.is_closed_by_hand());
}

#[test]
fn a_grant_is_noted_with_the_time_that_it_took() {
    let mut bed = Bed::new(EdgeState::default(), (0, None));
    bed.open(A, 0, false);
    bed.open(B, 0, false);
    bed.says(A, MemberRequest::Promote { epoch: 1, lives: false });
    bed.book.now = bed.book.now.plus(Nanos::from_ms(3));
    bed.written(Ok(()));
    assert_eq!(bed.notes().last().map(String::as_str), Some("granted: a, epoch 1, 3000 µs"));
    assert_eq!(bed.machine.fenced_epoch, 1, "no older one may follow");
}

#[test]
fn who_builds_its_server_is_noted_once() {
    let mut bed = Bed::pair();
    bed.notes();
    for (epoch, notes) in [(0, 0), (1, 1), (1, 0)] {
        bed.says(B, MemberRequest::Builds { epoch });
        assert_eq!(bed.notes(), ["builds: b, epoch 1"][..notes]);
    }
}

#[test]
fn who_is_here_gets_heartbeats() {
    let mut bed = Bed::pair();
    bed.machine.handle_closed(B, "test", bed.book.now, &mut bed.book);
    bed.book.beats = [0, 0];
    bed.pass(100, &[A], false);
    assert_eq!(bed.book.beats, [10, 0]);
}

/// A disk may take writes again, and a hand may open the edge again; who has no place gets none.
#[test]
fn who_is_refused_hears_whether_it_may_ask_again() {
    let refused = |bed: &mut Bed, index, epoch| {
        bed.book.again = None;
        bed.says(index, MemberRequest::Promote { epoch, lives: false });
        bed.book.again
    };
    let mut bed = Bed::pair();
    assert_eq!(refused(&mut bed, B, 1), Some(false), "it is not in step");
    bed.says(B, MemberRequest::InStep { epoch: 1, yes: true });
    assert_eq!(refused(&mut bed, B, 2), None);
    bed.written(Err("no room".to_owned()));
    assert_eq!(bed.book.again, Some(true));
    assert_eq!(refused(&mut bed, B, 2), None);
    bed.book.refuses = true;
    bed.written(Ok(()));
    assert_eq!(bed.book.again, Some(true));
    bed.book.refuses = false;
    bed.machine.handle_close(true, &mut bed.book).expect("a fence");
    assert_eq!(refused(&mut bed, B, 2), Some(true));
    assert!(!bed.says(B, MemberRequest::Nonsense));
    assert_eq!(bed.book.again, Some(false));
}

#[test]
fn the_member_that_is_named_first_is_first_wherever_its_file_lists_it() {
    let setup = Setup { group: GROUP, members: &["a", "b"], first: "b", period: PERIOD };
    let machine = EdgeMachine::new(&setup, EdgeState::default(), Nanos(0)).expect("a machine");
    let mut bed = Bed { machine, book: Book { flows: Some(0), ..Book::default() } };
    bed.machine.handle_start((0, None), &mut bed.book).expect("a start");
    bed.open(A, 0, false);
    bed.open(B, 0, false);
    bed.take();
    bed.says(A, MemberRequest::Promote { epoch: 1, lives: false });
    assert_eq!(bed.take(), ["to 0: Refused"]);
    bed.says(B, MemberRequest::Promote { epoch: 1, lives: false });
    assert_eq!(bed.take(), ["write 1"]);
}

/// The edge's host was not started again, so that nobody could speak whom it has not heard of.
#[test]
fn an_edge_whose_fence_is_open_waits_for_nobody_before_a_takeover() {
    let mut bed = Bed::new(state(1, Some("a")), (1, Some(A)));
    bed.open(B, 1, false);
    bed.says(B, MemberRequest::InStep { epoch: 1, yes: true });
    bed.take();
    bed.says(B, MemberRequest::Promote { epoch: 2, lives: false });
    assert_eq!(bed.take(), ["write 2"]);
}

#[test]
fn a_member_that_was_lost_while_the_edge_was_away_is_missed() {
    let mut bed = Bed::new(state(1, Some("a")), (1, Some(A)));
    bed.open(B, 1, false);
    bed.take();
    bed.pass(1500, &[B], false);
    assert!(bed.take().contains(&"to 1: Reach".to_owned()));
    assert!(bed.notes().contains(&"declare: a".to_owned()));
}

#[test]
fn a_member_that_comes_hears_that_another_one_is_not_heard() {
    let mut bed = Bed::pair();
    bed.pass(200, &[B], false);
    bed.machine.handle_closed(B, "test", bed.book.now, &mut bed.book);
    bed.book.reach = None;
    bed.open(B, 1, false);
    assert_eq!(bed.book.reach, Some(false));
}

#[test]
fn a_start_is_noted_with_what_it_found() {
    let found = |disk, fence| Bed::new(disk, fence).notes();
    assert_eq!(found(state(3, Some("a")), (3, Some(A))), ["started: epoch 3, current: a"]);
    let older = "disk: older than the fence: epoch 4, b it is";
    let started = "started: epoch 4, current: b";
    assert_eq!(found(state(1, Some("a")), (4, Some(B))), [older, started]);
    let never = "disk: epoch 3 was written and never granted: b goes on";
    let started = "started: epoch 2, current: b";
    assert_eq!(found(state(3, Some("a")), (2, Some(B))), [never, started]);
}

/// An earlier life of this daemon has left its taps, and has let somebody speak in this epoch.
#[test]
fn an_edge_that_starts_knows_what_an_earlier_life_has_done() {
    let setup = Setup { group: GROUP, members: &["a", "b"], first: "a", period: PERIOD };
    let machine = EdgeMachine::new(&setup, state(3, Some("a")), Nanos(0)).expect("a machine");
    let mut bed = Bed { machine, book: Book { taps: [true, true], ..Book::default() } };
    bed.machine.handle_start((3, Some(A)), &mut bed.book).expect("a start");
    assert_eq!(bed.book.taps, [false, false], "nobody is here");
    assert!(!bed.machine.is_here(A) && !bed.machine.is_here(B));
    assert_eq!(bed.machine.fenced_epoch, 3);
}

#[test]
fn a_suspicion_is_noted_at_once_and_once() {
    let suspects = |bed: &Bed| bed.book.notes.iter().filter(|note| *note == "suspect: a").count();
    let mut bed = Bed::pair();
    while !bed.machine.is_suspected(A) {
        bed.pass(1, &[B], false);
    }
    assert_eq!(suspects(&bed), 1);
    bed.pass(500, &[B], false);
    assert_eq!(suspects(&bed), 1);
}

#[test]
fn who_comes_into_step_and_out_of_it_is_noted_once() {
    let mut bed = Bed::pair();
    bed.book.notes.clear();
    for (yes, notes) in [(true, 1), (true, 1), (false, 2), (false, 2)] {
        bed.says(B, MemberRequest::InStep { epoch: 1, yes });
        assert_eq!(bed.book.notes.len(), notes);
    }
    bed.says(B, MemberRequest::InStep { epoch: 0, yes: true });
    assert_eq!(bed.book.notes, ["in step: b, epoch 1", "out of step: b, epoch 1"]);
}

#[test]
fn a_refusal_that_is_repeated_is_noted_once_until_somebody_is_granted() {
    let mut bed = Bed::pair();
    let noted = |bed: &mut Bed| {
        bed.book.notes.clear();
        bed.says(B, MemberRequest::Promote { epoch: 1, lives: false });
        bed.book.notes.len()
    };
    assert_eq!((noted(&mut bed), noted(&mut bed)), (1, 0));
    bed.says(B, MemberRequest::InStep { epoch: 1, yes: true });
    bed.says(B, MemberRequest::Promote { epoch: 2, lives: false });
    bed.written(Ok(()));
    assert_eq!(noted(&mut bed), 1);
}
