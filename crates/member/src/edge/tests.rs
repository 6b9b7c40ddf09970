use super::*;
use crate::timing::edge::TAP_LINGER;
use holdfast_wire::seq::SeqNo;

mod notes;
mod words;

const PERIOD: Nanos = Nanos::from_ms(10);
const GROUP: &str = "demo";
const A: usize = 0;
const B: usize = 1;
const KEY: ConnKey = ConnKey { server: [1; 16], server_port: 1, client: [2; 16], client_port: 2 };
const FLOW: FlowBounds = FlowBounds {
    key: KEY,
    iss: None,
    seq_end: SeqNo(1),
    right_edge: SeqNo(2),
    tsval: 3,
    client_ack: SeqNo(4),
};

/// A test's host, which notes what the machine does.
#[derive(Default)]
struct Book {
    now: Nanos,
    lines: Vec<String>,
    notes: Vec<String>,
    writes: u64,
    ages: u64,
    refuses: bool,
    taps: [bool; 2],
    caches: bool,
    /// Flows whose bounds the edge has seen; `None`: they cannot be read.
    flows: Option<usize>,
    /// Length of every message with bounds, and whether it is the last one.
    bounds: Vec<(usize, bool)>,
    /// Flows of which nothing was heard for long.
    quiet: Vec<ConnKey>,
    /// Whether somebody could be asked about them.
    can_ask: bool,
    /// Heartbeats to each member.
    beats: [u32; 2],
    /// Whether the last one that was refused may ask again.
    again: Option<bool>,
    /// Whether the member is heard that others were told of last.
    reach: Option<bool>,
}

impl EdgeHost for Book {
    fn now(&self) -> Nanos {
        self.now
    }
    fn send(&mut self, member: usize, message: &Message<'_>) {
        if !matches!(message, Message::Beat { .. }) {
            let name = format!("{message:?}");
            let name = name.split([' ', '{']).next().unwrap_or_default();
            self.lines.push(format!("to {member}: {name}"));
        }
        match message {
            Message::Beat { .. } => self.beats[member] += 1,
            Message::Bounds { flows, last } => self.bounds.push((flows.len(), *last)),
            Message::Refused { again, .. } => self.again = Some(*again),
            Message::Reach { yes, .. } => self.reach = Some(*yes),
            Message::Hello { speaks, .. } => assert!(!speaks, "an edge serves nobody"),
            _ => {}
        }
    }
    fn close(&mut self, member: usize) {
        self.lines.push(format!("close {member}"));
    }
    fn set_fence(&mut self, epoch: u64, current: Option<usize>) -> Result<(), String> {
        if self.refuses {
            return Err("refused".to_owned());
        }
        self.lines.push(format!("fence {epoch} {current:?}"));
        Ok(())
    }
    fn set_tap(&mut self, member: usize, on: bool) {
        self.taps[member] = on;
    }
    fn keep(&mut self, state: &EdgeState) -> u64 {
        self.writes += 1;
        self.lines.push(format!("write {}", state.epoch));
        self.writes
    }
    fn bounds(&mut self) -> Result<Vec<FlowBounds>, String> {
        let flows = self.flows.ok_or("no memory")?;
        Ok(vec![FLOW; flows])
    }
    fn set_cache(&mut self, member: usize, on: bool) {
        if std::mem::replace(&mut self.caches, on) != on {
            let what = if on { "caches" } else { "caches no more" };
            self.lines.push(format!("{what}: {member}"));
        }
    }
    fn resend(&mut self, member: usize) {
        self.lines.push(format!("resend {member}"));
    }
    fn age_flows(&mut self, _now: Nanos, can_ask: bool) -> Vec<ConnKey> {
        self.ages += 1;
        self.can_ask = can_ask;
        self.quiet.clone()
    }
    fn forget_flows(&mut self, keys: &[ConnKey]) {
        self.lines.push(format!("forget {}", keys.len()));
    }
    fn note(&mut self, what: &'static str, words: String) {
        self.notes.push(format!("{what}: {words}"));
    }
}

struct Bed {
    machine: EdgeMachine,
    book: Book,
}

fn state(epoch: u64, current: Option<&str>) -> EdgeState {
    EdgeState { epoch, current: current.map(str::to_owned), fenced: false }
}

impl Bed {
    fn new(disk: EdgeState, fence: (u64, Option<usize>)) -> Self {
        let members = &["a", "b"];
        let setup = Setup { group: GROUP, members, first: "a", period: PERIOD };
        let machine = EdgeMachine::new(&setup, disk, Nanos(0)).expect("a machine");
        let mut bed = Self { machine, book: Book { flows: Some(0), ..Book::default() } };
        bed.machine.handle_start(fence, &mut bed.book).expect("a start");
        bed
    }

    /// Member 0 has been current in epoch 1 for a while, and member 1 is here.
    fn pair() -> Self {
        let mut bed = Self::new(EdgeState::default(), (0, None));
        bed.open(A, 0, false);
        bed.open(B, 0, false);
        bed.says(A, MemberRequest::Promote { epoch: 1, lives: false });
        bed.written(Ok(()));
        // Member 0's server has started by then.
        bed.pass(1200, &[A, B], false);
        bed.take();
        bed
    }

    fn open(&mut self, index: usize, epoch: u64, speaks: bool) {
        self.machine.handle_opened(index, &mut self.book);
        let member = self.machine.name(index).to_owned();
        let hello = hello(GROUP, &member, (epoch, speaks), Vec::new());
        self.says(index, MemberRequest::of(hello, GROUP, &member));
    }

    fn says(&mut self, index: usize, wish: MemberRequest) -> bool {
        self.machine.handle_wish(index, wish, self.book.now, &mut self.book)
    }

    fn written(&mut self, outcome: Result<(), String>) {
        let number = self.book.writes;
        self.machine.handle_written(number, outcome, &mut self.book);
    }

    /// Lets time pass, in which the members in `heard` send heartbeats.
    fn pass(&mut self, ms: u64, heard: &[usize], passing: bool) {
        for _ in 0..ms {
            self.book.now = self.book.now.plus(Nanos::from_ms(1));
            for index in heard {
                self.says(*index, MemberRequest::Nothing);
            }
            self.machine.handle_timeout(passing, self.book.now, &mut self.book);
        }
    }

    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.book.lines)
    }
}

#[test]
fn a_grant_is_on_disk_then_in_the_fence_then_told() {
    let mut bed = Bed::new(EdgeState::default(), (0, None));
    bed.open(A, 0, false);
    bed.open(B, 0, false);
    bed.take();
    bed.says(A, MemberRequest::Promote { epoch: 1, lives: false });
    assert_eq!(bed.take(), ["write 1"]);
    bed.book.now = bed.book.now.plus(Nanos::from_ms(3));
    bed.written(Ok(()));
    assert_eq!(bed.machine.last_grant(), Nanos::from_ms(3));
    let told = ["fence 1 Some(0)", "to 0: Granted", "to 0: Bounds", "to 1: Epoch", "resend 0"];
    assert_eq!(bed.take(), told);
    assert_eq!(bed.book.taps, [false, true]);
    let noted = ["fence: epoch 1: nobody but a speaks", "switch: clients' packets go to a"];
    assert!(noted.iter().all(|note| bed.book.notes.iter().any(|it| it == note)));
}

/// A backup that builds its server has not asked yet, and a primary that was only cut off goes on.
#[test]
fn a_primary_that_lives_does_not_wait_for_a_backup_that_builds() {
    let mut bed = Bed::pair();
    bed.says(B, MemberRequest::Builds { epoch: 1 });
    bed.says(A, MemberRequest::Promote { epoch: 2, lives: false });
    assert_eq!(bed.take(), ["to 1: Alone", "to 0: Refused"], "it begins anew");
    bed.says(A, MemberRequest::Promote { epoch: 2, lives: true });
    bed.written(Ok(()));
    let told = ["write 2", "fence 2 Some(0)", "to 0: Granted", "to 0: Bounds", "to 1: Epoch"];
    assert_eq!(bed.take()[..5], told);
}

#[test]
fn what_the_disk_or_the_kernel_refuses_is_not_granted() {
    let mut bed = Bed::pair();
    bed.says(B, MemberRequest::InStep { epoch: 1, yes: true });
    bed.says(B, MemberRequest::Promote { epoch: 2, lives: false });
    bed.written(Err("no room".to_owned()));
    assert_eq!(bed.take(), ["write 2", "to 1: Refused"]);
    assert_eq!(bed.machine.membership().handle_ask().epoch, 1);
    bed.says(B, MemberRequest::Promote { epoch: 2, lives: false });
    bed.book.refuses = true;
    bed.written(Ok(()));
    assert_eq!(bed.take(), ["write 2", "to 1: Refused"]);
    // The epoch has begun all the same, and the fence opens once it can.
    bed.book.refuses = false;
    bed.says(B, MemberRequest::Promote { epoch: 2, lives: false });
    assert_eq!(bed.take()[0], "fence 2 Some(1)");
}

#[test]
fn who_comes_back_is_in_step_no_more() {
    for closes in [true, false] {
        let mut bed = Bed::pair();
        assert!(bed.says(B, MemberRequest::InStep { epoch: 1, yes: true }));
        assert!(bed.machine.membership().is_in_step("b"));
        if closes {
            bed.machine.handle_closed(B, "test", bed.book.now, &mut bed.book);
            assert!(!bed.machine.membership().is_in_step("b"), "and not while it is away");
        }
        bed.open(B, 1, false);
        assert!(!bed.machine.membership().is_in_step("b"));
        bed.says(B, MemberRequest::Promote { epoch: 2, lives: false });
        assert_eq!(bed.take().last().map(String::as_str), Some("to 1: Refused"));
    }
}

/// A daemon that is started again was never gone.
#[test]
fn a_member_whose_channel_is_gone_has_some_time_to_come_back() {
    let mut bed = Bed::pair();
    bed.machine.handle_closed(A, "test", bed.book.now, &mut bed.book);
    bed.pass(900, &[B], false);
    assert_eq!(bed.take(), Vec::<String>::new());
    bed.pass(300, &[B], false);
    assert!(bed.take().contains(&"to 1: Reach".to_owned()), "not for ever");
}

#[test]
fn strangers_to_the_group_are_shown_the_door() {
    let other = MemberRequest::of(hello("other", "b", (0, false), Vec::new()), GROUP, "b");
    for wish in [other, MemberRequest::Ask, MemberRequest::Promote { epoch: 2, lives: false }] {
        let mut bed = Bed::pair();
        bed.machine.handle_opened(B, &mut bed.book);
        bed.take();
        assert!(!bed.says(B, wish.clone()), "{wish:?}");
        assert_eq!(bed.take(), ["to 1: Refused", "close 1"], "{wish:?}");
        assert!(!bed.says(B, wish), "it is gone");
    }
    let mut bed = Bed::pair();
    assert_eq!(
        MemberRequest::of(Message::Granted { epoch: 9 }, GROUP, "b"),
        MemberRequest::Nonsense
    );
    assert!(!bed.says(B, MemberRequest::Nonsense) && !bed.machine.is_here(B));
}

#[test]
fn only_where_fence_and_disk_agree_it_stays_open() {
    let mut same = Bed::new(state(3, Some("a")), (3, Some(A)));
    assert!(same.take().is_empty());
    let mut died_between = Bed::new(state(3, Some("a")), (2, Some(A)));
    assert_eq!(died_between.take(), ["fence 3 None"], "a has to ask");
    let mut older = Bed::new(state(3, Some("a")), (1, Some(B)));
    assert_eq!(older.take(), ["fence 3 None"]);
    let mut lost = Bed::new(state(1, Some("a")), (4, Some(B)));
    assert_eq!(lost.take(), ["write 4"]);
    assert_eq!(lost.machine.membership().handle_ask(), &state(4, Some("b")));
    // Closed by hand in an epoch that the disk does not know.
    let closed = Bed::new(state(1, Some("a")), (4, None));
    assert!(closed.machine.is_closed_by_hand());
    // After a reboot, the edge waits for a member that speaks.
    let mut booted = Bed::new(state(3, Some("a")), (0, None));
    booted.open(B, 4, true);
    booted.says(B, MemberRequest::Promote { epoch: 5, lives: false });
    assert!(!booted.take().contains(&"write 5".to_owned()));
    booted.pass(2900, &[B], false);
    assert!(!booted.take().contains(&"write 4".to_owned()), "others may speak yet");
    booted.pass(200, &[B], false);
    assert!(booted.take().contains(&"write 4".to_owned()), "its claim");
    booted.written(Ok(()));
    assert!(booted.take().contains(&"fence 4 Some(1)".to_owned()));
}

/// A grant that was written when the edge's daemon died, before anybody heard of it: the member that
/// was let through until then goes on, for the other one may be gone.
#[test]
fn a_grant_that_was_written_and_not_given_is_none() {
    let mut bed = Bed::new(state(3, Some("a")), (2, Some(B)));
    assert_eq!(bed.take(), ["write 2", "fence 2 None"], "b has to ask");
    assert_eq!(bed.machine.membership().handle_ask(), &state(2, Some("b")));
    bed.open(B, 2, true);
    bed.says(B, MemberRequest::Promote { epoch: 2, lives: true });
    assert!(bed.take().contains(&"fence 2 Some(1)".to_owned()));
    let by_hand = EdgeState { fenced: true, ..state(3, Some("a")) };
    let closed = Bed::new(by_hand.clone(), (2, Some(B)));
    assert_eq!(closed.machine.membership().handle_ask(), &by_hand);
}

/// The edge may die before the members have contradicted a disk that was rolled
/// back.
#[test]
fn a_reboot_is_not_over_with_the_first_life_of_the_edge() {
    let mut bed = Bed::new(state(1, Some("b")), (1, None));
    bed.open(B, 0, false);
    bed.says(B, MemberRequest::Promote { epoch: 2, lives: false });
    assert!(!bed.take().contains(&"write 2".to_owned()), "a lives in epoch 3");
    bed.open(A, 3, true);
    bed.says(B, MemberRequest::Promote { epoch: 2, lives: false });
    let lines = bed.take();
    assert!(lines.contains(&"write 3".to_owned()), "its claim: {lines:?}");
    bed.written(Ok(()));
    assert!(bed.take().contains(&"fence 3 Some(0)".to_owned()));
}

#[test]
fn one_difference_between_fence_and_disk_closes_it() {
    let fenced = EdgeState { fenced: true, ..state(3, Some("a")) };
    for (disk, fence) in [
        (state(3, Some("a")), (2, Some(A))),
        (state(3, Some("a")), (3, Some(B))),
        (state(3, Some("a")), (3, None)),
        (fenced, (3, Some(A))),
    ] {
        assert_eq!(Bed::new(disk, fence).take(), ["fence 3 None"]);
    }
}

#[test]
fn a_name_is_taken_while_its_member_answers() {
    let mut bed = Bed::pair();
    assert!(!bed.machine.admits(A) && !bed.machine.admits(B));
    bed.pass(100, &[B], false);
    assert!(bed.machine.admits(A) && !bed.machine.admits(B), "nobody answers by the name of a");
    // At the start every member counts as heard; one without a channel may
    // come.
    let started = Bed::new(state(3, Some("a")), (3, Some(A)));
    assert!(started.machine.admits(A) && started.machine.admits(B));
}

#[test]
fn who_is_silent_is_missed_and_others_hear_of_it() {
    let mut bed = Bed::pair();
    bed.pass(25, &[B], false);
    assert_eq!(bed.take(), ["caches: 0"]);
    bed.pass(15, &[B], false);
    assert_eq!(bed.take(), ["to 1: Reach"]);
    bed.pass(1, &[A, B], false);
    assert_eq!(bed.take(), ["to 1: Reach", "caches no more: 0"], "and is back");
}

/// Only the current member's silence loses anything. What is lost is kept until
/// somebody answers: the member that was silent, or the one that has taken over.
#[test]
fn what_clients_say_is_kept_while_nobody_may_answer() {
    let mut bed = Bed::pair();
    bed.says(B, MemberRequest::InStep { epoch: 1, yes: true });
    bed.pass(1, &[A, B], false);
    bed.take();
    bed.pass(200, &[A], false);
    assert_eq!(bed.take(), ["to 0: Reach"], "a backup answers nobody");
    bed.pass(200, &[A, B], false);
    bed.take();
    bed.pass(200, &[B], false);
    assert_eq!(bed.take(), ["caches: 0", "to 1: Reach"], "however long it lasts");
    bed.says(B, MemberRequest::Promote { epoch: 2, lives: false });
    bed.written(Ok(()));
    assert!(bed.take().contains(&"resend 1".to_owned()));
    bed.pass(1, &[B], false);
    assert_eq!(bed.take(), ["caches no more: 1"]);
}

#[test]
fn packets_that_pass_buy_time_and_only_for_the_current_member() {
    let mut bed = Bed::pair();
    bed.pass(45, &[B], true);
    assert!(!bed.take().contains(&"to 1: Reach".to_owned()));
    bed.pass(25, &[B], true);
    assert!(bed.take().contains(&"to 1: Reach".to_owned()), "not for ever");
    bed.says(B, MemberRequest::InStep { epoch: 1, yes: true });
    bed.pass(300, &[A, B], true);
    bed.take();
    bed.pass(45, &[A], true);
    assert!(bed.take().contains(&"to 0: Reach".to_owned()), "the fence lets it say nothing");
}

/// A turn in which nothing else is due has its news, too: the next one does not repeat them.
#[test]
fn packets_that_have_passed_between_two_deadlines_count() {
    let mut bed = Bed::pair();
    for _ in 0..45 {
        bed.pass(1, &[B], false);
        let soon = bed.book.now.plus(Nanos(1000));
        if bed.machine.next_deadline() > soon {
            bed.machine.handle_timeout(true, soon, &mut bed.book);
        }
    }
    assert!(!bed.take().contains(&"to 1: Reach".to_owned()));
}

#[test]
fn an_edge_that_hears_nobody_accuses_nobody() {
    let mut bed = Bed::pair();
    bed.pass(2000, &[], false);
    assert!(!bed.take().iter().any(|line| line.contains("Reach")));
    bed.pass(40, &[B], false);
    assert!(!bed.take().iter().any(|line| line.contains("Reach")), "links come up in turn");
    bed.pass(200, &[B], false);
    assert!(bed.take().contains(&"to 1: Reach".to_owned()));
}

#[test]
fn a_tap_outlives_its_channel_for_a_while() {
    let mut bed = Bed::pair();
    bed.machine.handle_closed(B, "test", bed.book.now, &mut bed.book);
    let linger_ms = TAP_LINGER.as_millis() as u64;
    bed.pass(linger_ms - 10, &[A], false);
    assert_eq!(bed.book.taps, [false, true]);
    bed.pass(20, &[A], false);
    assert_eq!(bed.book.taps, [false, false]);
    bed.open(B, 1, false);
    assert_eq!(bed.book.taps, [false, true]);
}

#[test]
fn a_hand_that_closed_the_edge_is_not_overruled() {
    let mut bed = Bed::pair();
    assert_eq!(bed.machine.handle_close(true, &mut bed.book), Ok(None));
    bed.says(A, MemberRequest::Promote { epoch: 1, lives: false });
    assert_eq!(bed.take(), ["fence 1 None", "to 0: Refused"]);
    assert!(bed.machine.is_closed_by_hand());
    // Closed until the next takeover.
    bed.says(B, MemberRequest::InStep { epoch: 1, yes: true });
    bed.says(B, MemberRequest::Promote { epoch: 2, lives: false });
    bed.written(Ok(()));
    assert!(!bed.machine.is_closed_by_hand());
    bed.take();
    // Closed for good, even while a grant is being written.
    bed.says(A, MemberRequest::InStep { epoch: 2, yes: true });
    bed.says(A, MemberRequest::Promote { epoch: 3, lives: false });
    let grant = bed.book.writes;
    assert_eq!(bed.machine.handle_close(false, &mut bed.book), Ok(Some(grant + 1)));
    bed.machine.handle_written(grant, Ok(()), &mut bed.book);
    assert!(bed.take().contains(&"fence 3 None".to_owned()));
    assert_eq!(bed.machine.handle_opening(&mut bed.book), Some(grant + 2));
    assert_eq!(bed.machine.handle_open(bed.book.now, &mut bed.book), Ok(3));
    assert_eq!(bed.take(), ["write 3", "fence 3 Some(0)"]);
}

/// The primary asks no more, and went on while the disk was lost.
#[test]
fn a_hand_that_opens_the_edge_lets_a_primary_go_on_that_knows_more_than_the_disk() {
    let closed = EdgeState { fenced: true, ..state(1, Some("a")) };
    let mut bed = Bed::new(closed, (1, None));
    bed.open(B, 0, false);
    bed.open(A, 3, true);
    assert!(!bed.take().contains(&"write 3".to_owned()), "it is closed by hand");
    assert!(bed.machine.handle_opening(&mut bed.book).is_some());
    assert_eq!(bed.machine.handle_open(bed.book.now, &mut bed.book), Ok(1));
    assert_eq!(bed.take(), ["write 1", "fence 1 Some(0)", "write 3"]);
}

#[test]
fn who_comes_later_hears_who_is_not_heard() {
    let mut bed = Bed::pair();
    bed.machine.handle_closed(B, "test", bed.book.now, &mut bed.book);
    bed.take();
    bed.open(B, 1, false);
    assert!(!bed.take().contains(&"to 1: Reach".to_owned()), "all are heard");
    bed.pass(200, &[B], false);
    assert!(bed.take().contains(&"to 1: Reach".to_owned()));
    bed.machine.handle_closed(B, "test", bed.book.now, &mut bed.book);
    bed.open(B, 1, false);
    assert_eq!(bed.take(), ["to 1: Hello", "to 1: Epoch", "to 1: Reach"]);
}

/// A primary that begins anew has lost its connections; its backup may have them, and says so
/// right behind its hello.
#[test]
fn a_backup_of_this_epoch_is_waited_for_until_it_says_whether_it_is_in_step() {
    for in_step in [true, false] {
        let mut bed = Bed::new(state(1, Some("a")), (1, Some(A)));
        bed.open(A, 0, false);
        bed.open(B, 1, false);
        bed.take();
        bed.says(A, MemberRequest::Promote { epoch: 2, lives: false });
        assert_eq!(bed.take(), ["to 0: Refused"], "it has not said it yet");
        bed.says(B, MemberRequest::InStep { epoch: 1, yes: in_step });
        bed.says(A, MemberRequest::Promote { epoch: 2, lives: false });
        assert_eq!(bed.take().contains(&"write 2".to_owned()), !in_step);
    }
}

#[test]
fn all_that_are_asked_about_fit_into_a_message() {
    let mut bed = Bed::pair();
    let key = ConnKey { server: [1; 16], server_port: 1, client: [2; 16], client_port: 2 };
    bed.book.quiet = vec![key; KEYS_MAX];
    bed.pass(100, &[A, B], false);
    assert_eq!(bed.take(), ["to 0: AreAlive"]);
}

/// Looking at flows costs a share of a processor each time.
#[test]
fn flows_are_looked_through_now_and_then() {
    let mut bed = Bed::pair();
    bed.book.ages = 0;
    bed.pass(2000, &[A, B], false);
    assert_eq!(bed.book.ages, 2000 / FLOW_AGE_PERIOD.as_millis() as u64);
}

#[test]
fn only_who_is_current_knows_which_clients_vanished() {
    let mut bed = Bed::pair();
    for (index, epoch, lines) in [(B, 1, 0), (A, 0, 0), (A, 1, 1)] {
        bed.says(index, MemberRequest::NotAlive { epoch, keys: vec![KEY] });
        assert_eq!(bed.take().len(), lines, "{index} {epoch}");
    }
}

#[test]
#[should_panic(expected = "L3")]
fn no_epoch_returns() {
    let mut bed = Bed::pair();
    bed.machine.fenced_epoch = 2;
    let _ = bed.machine.handle_close(true, &mut bed.book);
}

/// The member has been granted an epoch for a server that is not there yet.
#[test]
fn the_silence_of_a_server_that_starts_means_nothing() {
    let mut bed = Bed::new(EdgeState::default(), (0, None));
    bed.open(A, 0, false);
    bed.open(B, 0, false);
    bed.says(A, MemberRequest::Promote { epoch: 1, lives: false });
    bed.written(Ok(()));
    bed.take();
    bed.pass(990, &[B], false);
    assert_eq!(bed.take(), Vec::<String>::new());
    bed.pass(200, &[B], false);
    assert!(bed.take().contains(&"to 1: Reach".to_owned()));
}

/// The backup's host may be busy with its replica for a while, again and again, until
/// it is in step. From then on it keeps the primary from running on alone.
#[test]
fn the_silence_of_a_backup_that_starts_means_nothing() {
    let mut bed = Bed::pair();
    for _ in 0..3 {
        bed.pass(900, &[A], false);
        assert_eq!(bed.take(), Vec::<String>::new());
        bed.pass(1, &[A, B], false);
    }
    bed.pass(2000, &[A], false);
    assert_eq!(bed.take(), ["to 0: Reach"], "it is gone");
    bed.says(B, MemberRequest::InStep { epoch: 1, yes: true });
    bed.pass(1, &[A, B], false);
    bed.take();
    bed.pass(45, &[A], false);
    assert_eq!(bed.take(), ["to 0: Reach"]);
}

#[test]
fn nobody_is_accused_while_a_part_of_the_edges_host_stands_still() {
    let declared = |bed: &Bed| bed.book.notes.iter().any(|note| note == "declare: a");
    let mut bed = Bed::pair();
    for _ in 0..200 {
        bed.machine.handle_standstill(bed.book.now);
        bed.pass(1, &[B], false);
    }
    assert!(!declared(&bed) && !bed.machine.is_suspected(A));
    let ended = bed.book.now;
    bed.pass(8, &[B], false);
    assert!(!declared(&bed), "what waited may still be on its way");
    bed.pass(40, &[B], false);
    assert!(declared(&bed), "it has been silent since {ended:?}");
}
