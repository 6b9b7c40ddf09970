use super::*;
use crate::recovery::{Direction, Inline, Passing};
use holdfast_wire::seq::SeqNo;
use std::collections::VecDeque;

const MS: Ns = 1_000_000;
const LIMITS: HalrLimits = HalrLimits {
    flows_max: 10_000,
    memory_bytes: 32 << 20,
    age_max_ns: 60_000 * MS,
    pace_bytes_per_s: 0,
    heaviest: 0,
};

/// A test's host: a data path that copies into a ring, and notes what it sends.
#[derive(Default)]
struct Book {
    ring: VecDeque<(u32, Passing, bool)>,
    copying: bool,
    holds: bool,
    lost: u64,
    sent: Vec<String>,
}

impl HalrHost for Book {
    type Key = u32;
    type PacketStore = Inline<(u32, Passing)>;
    type Held = String;
    type Error = &'static str;
    const DRAINS_MAX: usize = 4;

    fn set_copying(&mut self, on: bool) -> Result<(), &'static str> {
        self.copying = on;
        if !on {
            self.ring.clear();
        }
        Ok(())
    }
    fn drain(&mut self, now: Ns, intake: &mut Intake<Self>) -> bool {
        while let Some((key, passing, is_held)) = self.ring.pop_front() {
            if is_held {
                intake.hold(format!("held {key}:{}", passing.ack.unwrap().0));
            }
            intake.cache.handle_packet(now, key, &passing, |_| Some((key, passing)));
            if intake.is_full() {
                return false;
            }
        }
        true
    }
    fn hold(&mut self, at_most_ns: Ns) -> bool {
        assert_eq!(at_most_ns, 10 * MS, "a daemon that dies holds nothing for longer");
        self.holds = true;
        true
    }
    fn lost(&mut self) -> u64 {
        self.lost
    }
    fn release(&mut self) {
        self.holds = false;
    }
    fn forward(&mut self, held: String) {
        self.sent.push(held);
    }
    fn resend(&mut self, _: &Inline<(u32, Passing)>, resend: &Resend<(u32, Passing)>) {
        let (key, passing) = resend.packet;
        self.sent.push(format!("{key}:{}", passing.seq.0));
    }
}

struct Bed {
    halr: Halr<Book>,
    book: Book,
    now: Ns,
}

fn data(seq: u32) -> Passing {
    Passing {
        direction: Direction::IntoCluster,
        seq: SeqNo(seq),
        end: SeqNo(seq + 1000),
        ack: None,
        is_syn: false,
        is_end: false,
        is_last: false,
        sack: Some(true),
        bytes: 1500,
    }
}

fn ack(ack: u32) -> Passing {
    let (direction, seq) = (Direction::OutOfCluster, SeqNo(7));
    Passing { direction, seq, end: seq, ack: Some(SeqNo(ack)), bytes: 64, ..data(0) }
}

impl Bed {
    fn new(config: HalrConfig) -> Self {
        let (mut book, now) = (Book::default(), 1000 * MS);
        let mut halr = Halr::new(config, Inline::default());
        halr.handle_start(now, &mut book).unwrap();
        Self { halr, book, now }
    }

    fn shipped(keeps: Keeps) -> Self {
        Self::new(HalrConfig::shipped(keeps, false, &LIMITS))
    }

    /// Lets a packet pass the data path.
    fn pass(&mut self, key: u32, passing: Passing) {
        let is_ack = passing.direction == Direction::OutOfCluster;
        let is_held = self.book.holds && is_ack;
        if self.book.copying {
            self.book.ring.push_back((key, passing, is_held));
        }
    }

    fn suspect(&mut self) -> bool {
        self.halr.handle_suspected(self.now, &mut self.book).unwrap()
    }

    fn trust(&mut self) -> bool {
        self.halr.handle_trusted(&mut self.book).unwrap()
    }

    /// Restores the service; packets that pass from now on may have been lost.
    fn restore(&mut self) -> usize {
        let since = self.now;
        self.halr.handle_restored(self.now, |_| Some(since), &mut self.book)
    }

    /// Takes turns when they are due, until `ms` from now; returns what was sent, and when.
    fn turn(&mut self, ms: u64) -> Vec<(u64, String)> {
        let (start, until) = (self.now, self.now + ms * MS);
        let mut sent = Vec::new();
        let mut turns = 0;
        loop {
            sent.extend(self.book.sent.drain(..).map(|it| ((self.now - start) / MS, it)));
            let due = self.halr.poll_timeout().filter(|due| *due <= until);
            let Some(due) = due else { break };
            turns += 1;
            assert!(turns < 10_000, "it turns and turns at {}", self.now);
            self.now = self.now.max(due);
            self.halr.handle_timeout(self.now, &mut self.book);
        }
        self.now = until;
        sent
    }
}

fn words(sent: &[(u64, String)]) -> Vec<(u64, &str)> {
    sent.iter().map(|(at, what)| (*at, what.as_str())).collect()
}

#[test]
fn packets_are_kept_from_the_suspicion_on_and_forgotten_when_all_is_well() {
    let mut bed = Bed::shipped(Keeps::HeadTail);
    bed.pass(1, data(1000));
    assert!(!bed.book.copying && bed.halr.poll_timeout().is_none());
    bed.now += 5000 * MS;
    assert!(bed.suspect());
    assert!(!bed.suspect(), "said once");
    bed.pass(1, data(2000));
    // From here on flows are looked at every second.
    assert_eq!(bed.halr.poll_timeout(), Some(bed.now + 1000 * MS));
    bed.turn(1000);
    assert_eq!(bed.halr.cache().flows(), 1);
    assert!(bed.trust());
    assert!(!bed.trust());
    assert_eq!((bed.halr.cache().flows(), bed.book.copying), (0, false));
    assert_eq!((bed.restore(), bed.turn(1000)), (0, Vec::new()));
}

#[test]
fn nothing_is_forgotten_before_all_is_resent() {
    let mut bed = Bed::shipped(Keeps::HeadTail);
    bed.suspect();
    bed.pass(1, data(1000));
    assert_eq!(bed.restore(), 1, "what waited in the ring, too");
    assert!(!bed.trust());
    // This is 200 ms after the last look.
    bed.turn(379);
    assert!(!bed.trust());
    bed.turn(1);
    assert!(bed.trust());
}

#[test]
fn who_keeps_always_does_so_from_the_start_and_through_all_that_comes() {
    let mut bed = Bed::new(HalrConfig::shipped(Keeps::Syns, true, &LIMITS));
    assert!(bed.book.copying && !bed.suspect() && !bed.trust());
    let off = Bed::new(HalrConfig::shipped(Keeps::Nothing, true, &LIMITS));
    assert!(!off.book.copying && off.halr.poll_timeout().is_none());
    let mut off = Bed::shipped(Keeps::Nothing);
    assert!(!off.suspect());
}

#[test]
fn acknowledgements_wait_two_milliseconds_and_go_on_in_their_order() {
    let mut bed = Bed::shipped(Keeps::HeadTail);
    bed.suspect();
    bed.pass(1, data(1000));
    bed.pass(1, data(2000));
    bed.restore();
    assert_eq!(words(&bed.turn(0)), [(0, "1:1000"), (0, "1:2000")]);
    assert!(bed.book.holds);
    bed.pass(1, ack(2000));
    bed.pass(2, ack(500));
    assert_eq!(words(&bed.turn(1)), [(1, "1:2000")], "what they ask for overtakes them");
    assert_eq!(words(&bed.turn(1)), [(1, "held 1:2000"), (1, "held 2:500")]);
    assert!(!bed.book.holds);
    assert_eq!(bed.halr.held_count(), 2);
    // An acknowledgement that another processor has held meanwhile goes on at once.
    bed.book.ring.push_back((2, ack(600), true));
    bed.halr.handle_copies(bed.now, &mut bed.book);
    assert_eq!(words(&bed.turn(0)), [(0, "held 2:600")]);
}

#[test]
fn while_heads_are_being_resent_they_wait_for_ten_milliseconds_at_most() {
    // The pace is a packet per ms.
    let limits = HalrLimits { pace_bytes_per_s: 1_500_000, ..LIMITS };
    for (flows, until) in [(5, 4), (30, 10)] {
        let mut bed = Bed::new(HalrConfig::shipped(Keeps::Head, false, &limits));
        bed.suspect();
        (0..flows).for_each(|key| bed.pass(key, data(1000)));
        bed.restore();
        bed.pass(99, ack(500));
        let sent = bed.turn(100);
        let held = sent.iter().find(|it| it.1.starts_with("held")).unwrap();
        assert_eq!(held.0, until, "{flows} flows");
        let first: Vec<_> = sent.iter().take_while(|it| it.0 < 20).collect();
        let at = |key: u32| first.iter().find(|it| it.1 == format!("{key}:1000")).unwrap().0;
        assert_eq!((at(1), at(4)), (1, 4), "paced");
    }
}

#[test]
fn a_full_store_of_held_ones_ends_the_hold() {
    let mut bed = Bed::shipped(Keeps::HeadTail);
    bed.suspect();
    bed.pass(1, data(1000));
    bed.restore();
    bed.turn(0);
    (0..HELD_MAX + 5).for_each(|_| bed.pass(2, ack(500)));
    bed.halr.handle_copies(bed.now, &mut bed.book);
    assert_eq!((bed.book.sent.len(), bed.book.holds), (HELD_MAX, false));
    bed.halr.handle_copies(bed.now, &mut bed.book);
    assert_eq!(bed.book.sent.len(), HELD_MAX + 5);
}

#[test]
fn a_receiver_that_waits_for_another_segment_gets_it_for_a_while() {
    let mut bed = Bed::shipped(Keeps::HeadTail);
    bed.suspect();
    (1..=6).for_each(|number| bed.pass(1, data(number * 1000)));
    bed.restore();
    assert_eq!(words(&bed.turn(0)).first(), Some(&(0, "1:1000")));
    // The receiver has the second segment, and waits for the third.
    bed.pass(1, ack(3000));
    let sent = bed.turn(1);
    assert!(words(&sent).contains(&(1, "1:3000")), "within a millisecond: {sent:?}");
    // From 200 ms after the last look on, no flow is followed.
    bed.turn(400);
    bed.pass(1, ack(4000));
    bed.halr.look(bed.now, &mut bed.book);
    assert_eq!(words(&bed.turn(5)), []);
}

#[test]
fn who_got_no_answer_has_head_and_tail_resent_after_20_60_and_180_milliseconds() {
    let mut bed = Bed::shipped(Keeps::HeadTail);
    bed.suspect();
    for key in [1, 2] {
        bed.pass(key, data(1000));
        bed.pass(key, data(2000));
    }
    bed.halr.look(bed.now, &mut bed.book);
    bed.turn(5);
    bed.restore();
    bed.turn(1);
    bed.pass(2, ack(3000));
    let again: Vec<_> = bed.turn(500).into_iter().filter(|it| it.1.starts_with("1:")).collect();
    let expected =
        [(19, "1:1000"), (19, "1:2000"), (59, "1:1000"), (59, "1:2000"), (179, "1:1000")];
    assert_eq!(words(&again)[..5], expected);
    assert_eq!(again.len(), 6, "and the one that was answered never");
}

#[test]
fn syns_are_tried_eight_times_twelve_milliseconds_apart_and_hold_nobody() {
    let mut bed = Bed::shipped(Keeps::Syns);
    bed.suspect();
    let syn = Passing { is_syn: true, end: SeqNo(8), ..data(7) };
    bed.pass(1, syn);
    bed.pass(2, syn);
    bed.pass(1, data(8));
    bed.restore();
    assert!(!bed.book.holds);
    let first: Vec<_> = bed.turn(30);
    assert_eq!(words(&first)[..2], [(0, "1:7"), (0, "2:7")]);
    assert_eq!(first.iter().map(|it| it.0).collect::<Vec<_>>(), [0, 0, 12, 12, 24, 24]);
    // The first packet is acknowledged.
    bed.pass(1, ack(8));
    let rest = bed.turn(1000);
    assert_eq!(words(&rest).iter().map(|it| it.1).collect::<Vec<_>>(), ["2:7"; 5]);
    assert_eq!(rest.last().unwrap().0, 84 - 30);
}

#[test]
fn what_is_resent_in_one_turn_is_limited() {
    let mut bed = Bed::shipped(Keeps::Head);
    bed.suspect();
    (0..600).for_each(|key| bed.pass(key, data(1000)));
    assert_eq!(bed.restore(), 600);
    assert_eq!(bed.book.sent.len(), 256);
    assert_eq!(bed.halr.poll_timeout(), Some(bed.now), "the next turn is due");
    assert_eq!(bed.turn(1).len(), 600);
}

#[test]
fn only_flows_of_the_way_that_is_back_are_resent() {
    let mut bed = Bed::shipped(Keeps::HeadTail);
    bed.suspect();
    (1..=4).for_each(|key| bed.pass(key, data(1000)));
    let lost = |packet: &(u32, Passing)| packet.0.is_multiple_of(2).then_some(0);
    assert_eq!(bed.halr.handle_restored(bed.now, lost, &mut bed.book), 2);
    assert_eq!(words(&bed.turn(1)), [(0, "2:1000"), (0, "4:1000")]);
    assert_eq!(bed.restore(), 2, "the others are kept until their way is back");
}

#[test]
fn the_printed_policy_resends_all_at_once_and_holds_nobody() {
    let cache = crate::RecoveryConfig { flows_max: 1000, ..Default::default() };
    let mut bed = Bed::new(HalrConfig::printed(cache));
    assert!(bed.book.copying);
    (0..600).for_each(|key| bed.pass(key, data(1000)));
    assert_eq!(bed.restore(), 600);
    assert_eq!((bed.book.sent.len(), bed.book.holds), (600, false));
}

#[test]
fn the_cache_keeps_within_its_memory() {
    for (keeps, memory_mb) in [(Keeps::Syns, 1), (Keeps::HeadTail, 32), (Keeps::All, 64)] {
        let limits = HalrLimits { memory_bytes: memory_mb << 20, flows_max: 1 << 20, ..LIMITS };
        let config = HalrConfig::shipped(keeps, true, &limits);
        let per_flow = Recovery::<u64, crate::Slabs>::flow_overhead_bytes() as u64;
        let flows = config.cache.flows_max as u64 * per_flow;
        assert!(flows <= limits.memory_bytes / 2);
        assert_eq!(flows + config.cache.bytes_max, limits.memory_bytes);
        assert!(config.slabs_bytes() < config.cache.bytes_max);
        // Notes about as many of the smallest packets as fit have room beside them, if there may be
        // so many.
        let per_packet = Recovery::<u64, crate::Slabs>::packet_overhead_bytes() as u64;
        let most = flows / per_flow * (config.cache.segments_max as u64);
        let fit = (config.slabs_bytes() / policy::PACKET_BYTES_MIN).min(most);
        let notes = config.cache.bytes_max - config.slabs_bytes();
        assert!(notes >= fit * per_packet * 99 / 100, "{notes} for {fit}");
    }
    // What is not needed for notes is there for packets.
    let mut few = HalrConfig::shipped(Keeps::HeadTail, true, &LIMITS);
    few.cache.flows_max = 10;
    let notes = 10 * 3 * Recovery::<u64, crate::Slabs>::packet_overhead_bytes() as u64;
    assert_eq!(few.slabs_bytes(), few.cache.bytes_max - notes);
}

/// The connection would be with another host server than the one that has answered.
#[test]
fn in_front_of_host_servers_nothing_is_resent_that_may_have_been_answered() {
    let shipped = HalrConfig::shipped(Keeps::Syns, false, &LIMITS);
    let spread = HalrConfig::in_front_of_host_servers(Keeps::Syns, false, &LIMITS);
    for (config, kept) in [(shipped, 1), (spread, 0)] {
        let mut bed = Bed::new(config);
        bed.suspect();
        let syn = |key| (key, Passing { is_syn: true, end: SeqNo(1001), ..data(1000) });
        let pass = |bed: &mut Bed, (key, syn)| {
            bed.pass(key, syn);
            bed.halr.handle_copies(bed.now, &mut bed.book);
        };
        pass(&mut bed, syn(1));
        assert_eq!(bed.halr.cache().flows(), 1, "nothing was lost");
        bed.book.lost = 3;
        bed.halr.handle_copies(bed.now, &mut bed.book);
        assert_eq!(bed.halr.cache().flows(), kept);
        pass(&mut bed, syn(2));
        assert_eq!(bed.halr.cache().flows(), kept + 1, "no more was lost");
    }
    assert_eq!(spread.cache, shipped.cache);
}

#[test]
fn a_flow_that_has_ended_is_not_resent() {
    let mut bed = Bed::shipped(Keeps::Head);
    bed.suspect();
    [1, 2].into_iter().for_each(|key| bed.pass(key, data(1000)));
    bed.halr.handle_copies(bed.now, &mut bed.book);
    bed.halr.forget(1);
    assert_eq!((bed.restore(), words(&bed.turn(1))), (1, vec![(0, "2:1000")]));
}

#[test]
fn what_an_earlier_life_has_left_in_the_data_path_is_thrown_away() {
    for always in [false, true] {
        let mut book = Book { copying: true, ..Book::default() };
        book.ring.push_back((1, data(0), false));
        let config = HalrConfig::shipped(Keeps::All, always, &LIMITS);
        Halr::new(config, Inline::default()).handle_start(0, &mut book).unwrap();
        assert_eq!((book.copying, book.ring.len()), (always, 0));
    }
}
