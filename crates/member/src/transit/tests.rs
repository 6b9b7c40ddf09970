use super::*;
use holdfast_edge::strings::Mode;
use std::convert::Infallible;

const PERIOD: Nanos = Nanos::from_ms(20);
/// One-way delay of either string.
const DELAY: Nanos = Nanos::from_ms(3);

/// A test's host: a kernel's table, and sockets whose heartbeats the bed carries.
#[derive(Default)]
struct Book {
    now: Nanos,
    /// Heartbeats sent into all strings: the time of each, and the strings that it says are lost.
    beats: Vec<(Nanos, u32)>,
    traffic: Vec<u64>,
    table: Option<Table>,
    is_closed: bool,
    caching: bool,
    marks: usize,
    cap: Option<(Vec<usize>, u64)>,
    resent: Vec<(Nanos, Vec<Way>)>,
    /// Whether there was nothing to resend.
    kept_nothing: bool,
    lines: Vec<(Nanos, String)>,
}

impl TransitHost for Book {
    type Error = Infallible;
    fn now(&self) -> Nanos {
        self.now
    }
    fn beat(&mut self, lost: u32) {
        assert!(self.marks > self.beats.len(), "what came before is told apart");
        self.beats.push((self.now, lost));
    }
    fn traffic(&mut self) -> Vec<u64> {
        self.traffic.clone()
    }
    fn table(&mut self) -> Result<Option<Table>, Infallible> {
        Ok(self.table.clone())
    }
    fn set_table(&mut self, _epoch: u32, table: &Table, is_closed: bool) -> Result<(), Infallible> {
        self.table = Some(table.clone());
        self.is_closed = is_closed;
        Ok(())
    }
    fn mark(&mut self) {
        self.marks += 1;
    }
    fn set_cache(&mut self, on: bool) -> Result<bool, Infallible> {
        Ok(std::mem::replace(&mut self.caching, on) != on)
    }
    fn resend(&mut self, ways: &[Way], _usable: u32) -> usize {
        self.resent.push((self.now, ways.to_vec()));
        if self.kept_nothing { 0 } else { 7 }
    }
    fn cap(&mut self, strings: &[usize], bytes_per_s: u64) -> Result<Option<usize>, Infallible> {
        self.cap = Some((strings.to_vec(), bytes_per_s));
        Ok(Some(3))
    }
    fn uncap(&mut self) -> Result<bool, Infallible> {
        Ok(self.cap.take().is_some())
    }
    fn note(&mut self, what: &'static str, words: String) {
        self.lines.push((self.now, format!("{what}: {words}")));
    }
}

struct Edge {
    machine: TransitMachine,
    book: Book,
    /// Number of the next heartbeat, and of the last one that came through each string.
    number: u64,
    heard: [u64; 2],
    /// When the last heartbeat through each string was sent.
    got: [Nanos; 2],
    is_dead: bool,
}

/// A heartbeat on its way.
struct Beat {
    arrives: Nanos,
    to: usize,
    string: usize,
    number: u64,
    lost: u32,
    /// When the last heartbeat was sent that its sender had heard through this
    /// string.
    echoed: Nanos,
}

/// Two edges with two strings between them.
struct Bed {
    edges: [Edge; 2],
    now: Nanos,
    /// `cut[from][string]`: whether what this edge sends into the string is lost.
    cut: [[bool; 2]; 2],
    wire: Vec<Beat>,
}

fn edge(usable: u32, mode: Mode) -> Edge {
    let setup = Setup {
        names: vec!["upper".to_owned(), "lower".to_owned()],
        other: "far",
        strings: StringsConfig { mode, capacities_bytes_per_s: vec![12_500_000; 2] },
        period: PERIOD,
    };
    let left = Left { epoch: 4, usable, is_closed: false };
    let mut machine = TransitMachine::new(setup, left, Nanos(0));
    let mut book = Book { traffic: vec![0; 2], ..Book::default() };
    let Ok(()) = machine.handle_start("near", &mut book);
    let heard = [0; 2];
    Edge { machine, book, number: 0, heard, got: [Nanos(0); 2], is_dead: false }
}

impl Bed {
    fn new(mode: Mode) -> Self {
        let edges = [edge(u32::MAX, mode), edge(u32::MAX, mode)];
        let mut bed = Self { edges, now: Nanos(0), cut: [[false; 2]; 2], wire: Vec::new() };
        // The edges have known each other for a while.
        bed.run(2000);
        bed.edges.iter_mut().for_each(|edge| edge.book.lines.clear());
        bed
    }

    fn run(&mut self, ms: u64) {
        let until = self.now.plus(Nanos::from_ms(ms));
        while self.now < until {
            self.now = self.now.plus(Nanos(500_000));
            self.carry();
            for from in 0..2 {
                self.turn(from);
            }
        }
    }

    fn carry(&mut self) {
        let now = self.now;
        let (come, rest): (Vec<Beat>, Vec<Beat>) =
            self.wire.drain(..).partition(|beat| beat.arrives <= now);
        self.wire = rest;
        for Beat { arrives, to, string, number, lost, echoed } in come {
            let Edge { machine, heard, got, is_dead, .. } = &mut self.edges[to];
            if *is_dead {
                continue;
            }
            let step = if heard[string] == 0 { 0 } else { number - heard[string] };
            (heard[string], got[string]) = (number, arrives.since(DELAY));
            let fresh = Fresh {
                peer_lost: lost,
                step,
                round_trip_ns: Some(2 * DELAY.0),
                echoed_ns: Some(echoed.0),
            };
            machine.handle_beat(string, &fresh, now);
        }
    }

    fn turn(&mut self, from: usize) {
        let (now, cut) = (self.now, self.cut[from]);
        let Edge { machine, book, number, got, is_dead, .. } = &mut self.edges[from];
        if *is_dead {
            return;
        }
        book.now = now;
        let before = book.beats.len();
        if machine.next_deadline() <= now {
            let Ok(()) = machine.handle_timeout(now, book);
        }
        let Ok(()) = machine.handle_turned(book);
        for (at, lost) in book.beats[before..].iter().copied() {
            for (string, is_cut) in cut.into_iter().enumerate() {
                *number += 1;
                if !is_cut {
                    self.wire.push(Beat {
                        arrives: at.plus(DELAY),
                        to: 1 - from,
                        string,
                        number: *number,
                        lost,
                        echoed: got[string],
                    });
                }
            }
        }
    }

    fn cut(&mut self, string: usize, cut: bool) {
        self.cut.iter_mut().for_each(|it| it[string] = cut);
    }

    /// Restarts the near edge's daemon, which takes up what its earlier life left in the kernel.
    fn starts_again(&mut self) {
        let now = self.now;
        let Edge { machine, book, .. } = self.near();
        let usable = book.table.as_ref().unwrap().usable;
        let left = Left { epoch: machine.epoch(), usable, is_closed: book.is_closed };
        *machine = TransitMachine::new(machine.setup.clone(), left, now);
        let Ok(()) = machine.handle_start("near", book);
    }

    fn near(&mut self) -> &mut Edge {
        &mut self.edges[0]
    }

    /// What the near edge has noted since the last call.
    fn noted(&mut self) -> Vec<String> {
        self.near().book.lines.drain(..).map(|it| it.1).collect()
    }

    fn usable(&self) -> [u32; 2] {
        [0, 1].map(|edge| self.edges[edge].book.table.as_ref().unwrap().usable)
    }
}

#[test]
fn the_first_table_is_put_in_force_once() {
    let mut edge = edge(u32::MAX, Mode::ActiveActive);
    let lines: Vec<&str> = edge.book.lines.iter().map(|it| it.1.as_str()).collect();
    let expected =
        ["started: near, flows go by upper, lower", "switch: table 5: flows go by upper, lower"];
    assert_eq!(lines, expected);
    let table = edge.book.table.clone();
    let left = Left { epoch: 5, usable: 3, is_closed: false };
    let mut again = TransitMachine::new(edge.machine.setup.clone(), left, Nanos(0));
    edge.book.lines.clear();
    let Ok(()) = again.handle_start("near", &mut edge.book);
    assert_eq!((again.epoch(), edge.book.table), (5, table), "it is in force already");
}

#[test]
fn a_dead_string_is_declared_after_three_heartbeats_and_its_packets_go_by_the_other() {
    let mut bed = Bed::new(Mode::ActiveActive);
    let began = bed.now;
    bed.cut(0, true);
    bed.run(200);
    assert_eq!(bed.usable(), [2, 2]);
    let lines = std::mem::take(&mut bed.near().book.lines);
    let words: Vec<&str> = lines.iter().map(|it| it.1.as_str()).collect();
    assert_eq!(
        words,
        [
            "suspect: upper: two heartbeats are missing",
            "cache: packets may be lost: they are kept",
            "declare: upper: three heartbeats are missing",
            "fence: table 6: upper is out",
            "switch: table 6: flows go by lower",
            "resend: 7 flows",
            "capacity: 100 of 200 Mbit/s",
            "regulate: 3 flows share 100 Mbit/s",
            "cache: all is well: nothing is kept any more",
        ]
    );
    let after = |line: usize| lines[line].0.since(began).0 / 1_000_000;
    assert!((21..=43).contains(&after(0)) && (41..=63).contains(&after(2)), "{lines:?}");
    let (_, ways) = bed.near().book.resent.pop().unwrap();
    let [upper, none] = ways[..] else { panic!("{ways:?}") };
    assert_eq!((upper.from, upper.into), (Some(0), 1));
    // A heartbeat is echoed by the next one.
    assert!(began.since(upper.sound) <= Nanos::from_ms(45), "{upper:?} at {began:?}");
    assert!(upper.sound <= began);
    assert_eq!(none, Way { from: None, sound: Nanos(0), into: 1 });
    assert_eq!(bed.near().book.cap, Some((vec![1], 12_500_000)));
}

#[test]
fn a_string_returns_after_five_heartbeats_and_nothing_is_capped_any_more() {
    let mut bed = Bed::new(Mode::ActiveActive);
    bed.cut(0, true);
    bed.run(200);
    bed.noted();
    bed.near().book.resent.clear();
    let back = bed.now;
    bed.cut(0, false);
    bed.run(60);
    assert_eq!(bed.usable(), [2, 2], "it may flap");
    bed.run(140);
    assert_eq!(bed.usable(), [3, 3]);
    let lines = std::mem::take(&mut bed.near().book.lines);
    let words: Vec<&str> = lines.iter().map(|it| it.1.as_str()).collect();
    assert_eq!(
        words,
        [
            "return: upper",
            "switch: table 7: flows go by upper, lower",
            "capacity: 200 of 200 Mbit/s",
            "regulate: off: all the capacity is there",
        ]
    );
    assert!(lines[0].0.since(back) >= Nanos::from_ms(80), "five of them: {lines:?}");
    assert_eq!(bed.near().book.resent, [], "what it lacked went by the other one");
}

#[test]
fn a_direction_that_is_dead_takes_the_string_out_at_both_edges() {
    let mut bed = Bed::new(Mode::ActiveBackup);
    // What the far edge sends arrives; what the near one sends does not.
    bed.cut[0][0] = true;
    bed.run(200);
    assert_eq!(bed.usable(), [2, 2]);
    let noted = bed.noted();
    assert!(noted.contains(&"declare: upper: the far edge does not hear it".to_owned()));
    assert!(!noted.iter().any(|it| it.starts_with("suspect")), "{noted:?}");
    assert_eq!(bed.near().book.cap, None, "the backup carries as much");
}

#[test]
fn silence_on_all_strings_changes_no_table_and_is_resent_into_each_when_it_ends() {
    let mut bed = Bed::new(Mode::ActiveActive);
    bed.edges[1].is_dead = true;
    bed.run(500);
    assert_eq!(bed.usable()[0], 3);
    assert!(bed.near().machine.strings().is_all_silent() && bed.near().book.caching);
    let noted = bed.noted();
    assert_eq!(noted.last().unwrap(), "silent: nothing from the far edge; its daemon may be dead");
    assert!(bed.near().book.resent.is_empty());
    bed.edges[1].is_dead = false;
    bed.run(300);
    assert_eq!((bed.usable(), bed.near().book.caching), ([3, 3], false));
    let ways: Vec<(Option<usize>, usize)> =
        bed.near().book.resent.iter().flat_map(|it| &it.1).map(|it| (it.from, it.into)).collect();
    for string in 0..2 {
        let own = ways.iter().filter(|it| it.0 == Some(string)).collect::<Vec<_>>();
        assert_eq!(own, [&(Some(string), string)], "once, and its own way");
    }
}

#[test]
fn an_outage_that_is_too_short_to_be_declared_is_resent_into_the_same_string() {
    let mut bed = Bed::new(Mode::ActiveActive);
    let began = bed.now;
    bed.cut(0, true);
    // The time of two heartbeats.
    bed.run(40);
    bed.cut(0, false);
    bed.run(100);
    assert_eq!(bed.usable(), [3, 3]);
    let noted = bed.noted();
    assert!(noted.contains(&"trust: upper: heard again".to_owned()), "{noted:?}");
    let (_, ways) = bed.near().book.resent.first().cloned().unwrap();
    assert_eq!((ways[0].from, ways[0].into), (Some(0), 0));
    assert!(ways[0].sound <= began && began.since(ways[0].sound) <= Nanos::from_ms(45));
}

#[test]
fn packets_of_flows_keep_a_string_whose_queue_swallows_heartbeats() {
    let mut bed = Bed::new(Mode::ActiveActive);
    bed.cut(0, true);
    for _ in 0..50 {
        bed.edges.iter_mut().for_each(|edge| edge.book.traffic[0] += 1);
        bed.run(10);
    }
    assert_eq!(bed.usable(), [3, 3]);
    assert_eq!(bed.noted(), [""; 0], "nor is it suspected");
    bed.run(200);
    assert_eq!(bed.usable(), [2, 2], "and no longer than there are some");
    // Packets do not bring back a string that was declared dead.
    for _ in 0..50 {
        bed.edges.iter_mut().for_each(|edge| edge.book.traffic[0] += 1);
        bed.run(10);
    }
    assert_eq!(bed.usable(), [2, 2]);
}

#[test]
fn what_an_earlier_life_has_declared_dead_is_not_used_before_it_is_heard() {
    let mut near = edge(2, Mode::ActiveActive);
    assert_eq!(near.book.table.as_ref().unwrap().usable, 2);
    let fresh = Fresh { peer_lost: 0, step: 2, round_trip_ns: None, echoed_ns: None };
    for beat in 1..=5u64 {
        assert_eq!(near.book.table.as_ref().unwrap().usable, 2, "{beat}");
        let now = Nanos(PERIOD.0 * beat);
        near.book.now = now;
        (0..2).for_each(|string| near.machine.handle_beat(string, &fresh, now));
        let Ok(()) = near.machine.handle_timeout(now, &mut near.book);
    }
    assert_eq!(near.book.table.as_ref().unwrap().usable, 3);
}

#[test]
fn an_edge_that_is_closed_by_hand_lets_nothing_through_until_it_is_opened() {
    let mut bed = Bed::new(Mode::ActiveActive);
    let Edge { machine, book, .. } = bed.near();
    let Ok(epoch) = machine.handle_hand(true, book);
    assert_eq!((epoch, machine.is_closed()), (6, true));
    let said = |book: &Book, words: &str| book.lines.iter().any(|(_, line)| line == words);
    assert!(said(book, "fenced: by hand") && !said(book, "unfenced: by hand"));
    bed.cut(0, true);
    bed.run(200);
    assert_eq!(bed.usable(), [0, 2], "whatever is declared");
    assert!(bed.near().book.resent.is_empty(), "not even what was kept");
    bed.starts_again();
    bed.run(200);
    assert_eq!(bed.usable(), [0, 2], "whoever starts again");
    assert!(bed.near().machine.is_closed() && bed.near().book.resent.is_empty());
    let Edge { machine, book, .. } = bed.near();
    let Ok(_epoch) = machine.handle_hand(false, book);
    assert!(said(book, "unfenced: by hand"));
    assert_eq!(bed.usable(), [2, 2]);
    let (_, ways) = bed.near().book.resent.pop().unwrap();
    let ways: Vec<(Option<usize>, usize)> = ways.iter().map(|it| (it.from, it.into)).collect();
    assert_eq!(ways, [(Some(0), 1), (Some(1), 1), (None, 1)]);
}

#[test]
fn round_trips_tell_of_the_queue_in_front_of_a_string() {
    let mut bed = Bed::new(Mode::ActiveActive);
    assert_eq!(bed.near().machine.queue_delay(0), Some(Nanos(0)));
    assert_eq!(bed.near().machine.queue_delay(0), None, "nothing came since");
    let fresh = Fresh {
        peer_lost: 0,
        step: 2,
        round_trip_ns: Some(2 * DELAY.0 + 5_000_000),
        echoed_ns: None,
    };
    let now = bed.now;
    bed.near().machine.handle_beat(0, &fresh, now);
    assert_eq!(bed.near().machine.queue_delay(0), Some(Nanos::from_ms(5)));
    bed.near().machine.handle_beat(0, &fresh, now);
    assert_eq!(bed.near().machine.queue_bytes(&[0]), Some(0.005 * 12_500_000.0));
    assert_eq!(bed.near().machine.queue_bytes(&[0]), None);
}

#[test]
fn it_shows_what_is_left_and_what_to_do() {
    let shown = |bed: &mut Bed| {
        let Shown { protection, reason, remedy } = bed.near().machine.shown();
        (protection, reason, remedy)
    };
    let line =
        |protection, reason: &str, remedy: &str| (protection, reason.to_owned(), remedy.to_owned());
    let mut bed = Bed::new(Mode::ActiveActive);
    assert_eq!(shown(&mut bed), line(Protection::Protected, "", ""));
    bed.cut(0, true);
    bed.run(200);
    let one = "only one string is left; dead: upper";
    let remedy = "repair the dead strings";
    assert_eq!(shown(&mut bed), line(Protection::Unprotected, one, remedy));
    bed.cut(0, false);
    bed.run(300);
    bed.edges[1].is_dead = true;
    bed.run(300);
    let silent = "nothing is heard from the far edge; flows stay where they are";
    let start = "start holdfast on the far edge, or look at the strings";
    assert_eq!(shown(&mut bed), line(Protection::Waiting, silent, start));
    let Edge { machine, book, .. } = bed.near();
    let Ok(_epoch) = machine.handle_hand(true, book);
    let closed = "the edge was closed by hand";
    let open = "holdfast edge unfence --config FILE --role ROLE";
    assert_eq!(shown(&mut bed), line(Protection::Fenced, closed, open), "whatever else is so");
    *bed.near() = edge(0, Mode::ActiveActive);
    let lines = &bed.near().book.lines;
    assert!(lines.iter().any(|(_, line)| line == "started: near, no string is left"), "{lines:?}");
    let fresh = Fresh { peer_lost: 0, step: 2, round_trip_ns: None, echoed_ns: None };
    bed.near().machine.handle_beat(0, &fresh, Nanos(0));
    let none = line(Protection::Waiting, "no string is left", "look at the strings");
    assert_eq!(shown(&mut bed), none);
}

#[test]
fn heartbeats_that_are_only_late_lose_nothing() {
    let mut bed = Bed::new(Mode::ActiveActive);
    // The other edge's daemon has no processor.
    bed.edges[1].is_dead = true;
    while bed.near().machine.strings().word(0) != "suspected" {
        bed.run(1);
    }
    bed.edges[1].is_dead = false;
    bed.run(100);
    let noted = bed.noted();
    assert!(noted.contains(&"trust: upper: heard again".to_owned()), "{noted:?}");
    assert_eq!(bed.near().book.resent, []);
}

/// They came at any time since they were counted last.
#[test]
fn packets_that_came_before_a_string_died_do_not_delay_its_end() {
    let declared_after = |with_packets: bool| {
        let mut bed = Bed::new(Mode::ActiveActive);
        let began = bed.now;
        bed.cut(0, true);
        bed.near().book.traffic[0] += u64::from(with_packets);
        bed.run(200);
        let lines = &bed.near().book.lines;
        let declared = lines.iter().find(|it| it.1.starts_with("declare")).expect("declared");
        declared.0.since(began)
    };
    let (without, with) = (declared_after(false), declared_after(true));
    assert!(with <= without.plus(Nanos::from_ms(5)), "{with:?}, {without:?}");
}

#[test]
fn who_stays_silent_when_the_other_strings_are_back_is_dead() {
    let mut bed = Bed::new(Mode::ActiveActive);
    bed.edges[1].is_dead = true;
    bed.run(500);
    bed.cut(0, true);
    bed.edges[1].is_dead = false;
    bed.run(300);
    assert_eq!(bed.usable(), [2, 2]);
}

#[test]
fn what_is_due_is_done_at_once() {
    let mut near = edge(u32::MAX, Mode::ActiveActive);
    for _ in 0..20 {
        let due = near.machine.next_deadline();
        near.book.now = due;
        let Ok(()) = near.machine.handle_timeout(due, &mut near.book);
        assert!(near.machine.next_deadline() > due);
    }
}

#[test]
fn that_nothing_was_resent_is_not_worth_a_word() {
    let mut bed = Bed::new(Mode::ActiveActive);
    bed.near().book.kept_nothing = true;
    bed.cut(0, true);
    bed.run(200);
    assert_eq!(bed.near().book.resent.len(), 1);
    let noted = bed.noted();
    assert!(!noted.iter().any(|it| it.starts_with("resend")), "{noted:?}");
}

/// They tell of a string, and of nobody who would hear that the other one dies.
#[test]
fn packets_of_flows_do_not_stand_for_the_other_edge() {
    let mut bed = Bed::new(Mode::ActiveActive);
    let pass = |bed: &mut Bed, ms: u64| {
        for _ in 0..ms / 10 {
            bed.edges
                .iter_mut()
                .for_each(|edge| edge.book.traffic.iter_mut().for_each(|n| *n += 1));
            bed.run(10);
        }
    };
    let protection = |bed: &mut Bed| bed.near().machine.shown().protection;
    pass(&mut bed, 100);
    assert_eq!(protection(&mut bed), Protection::Protected);
    bed.edges[1].is_dead = true;
    pass(&mut bed, 100);
    assert_eq!(protection(&mut bed), Protection::Protected, "full queues may swallow some");
    pass(&mut bed, 400);
    let Shown { protection: shown, reason, .. } = bed.near().machine.shown();
    assert_eq!(shown, Protection::Waiting);
    assert_eq!(reason, "nothing is heard from the far edge; flows stay where they are");
    let told = "silent: nothing from the far edge; its daemon may be dead";
    bed.run(500);
    assert_eq!(bed.noted().iter().filter(|it| *it == told).count(), 1, "flows end: no news");
    bed.edges[1].is_dead = false;
    bed.run(300);
    assert_eq!(protection(&mut bed), Protection::Protected);
    let noted = bed.noted();
    assert_eq!(noted.iter().filter(|it| *it == "trust: far edge: heard again").count(), 1);
}

#[test]
fn what_was_not_heard_yet_is_not_protected() {
    let mut near = edge(u32::MAX, Mode::ActiveActive);
    assert_eq!(near.machine.shown().protection, Protection::Waiting);
    let fresh = Fresh { peer_lost: 0, step: 0, round_trip_ns: None, echoed_ns: None };
    near.machine.handle_beat(0, &fresh, Nanos(0));
    assert_eq!(near.machine.shown().protection, Protection::Protected);
}

#[test]
fn an_edge_with_another_key_is_called_so_while_it_is_not_heard() {
    let mut bed = Bed::new(Mode::ActiveActive);
    bed.near().machine.handle_foreign_beat();
    bed.run(100);
    assert_eq!(bed.near().machine.shown(), Shown::protected(), "anybody can send them");
    assert_eq!(bed.noted(), [""; 0]);
    bed.edges[1].is_dead = true;
    for _ in 0..25 {
        bed.near().machine.handle_foreign_beat();
        bed.run(20);
    }
    let Shown { protection, reason, remedy } = bed.near().machine.shown();
    let key = "heartbeats of the far edge are not believed: its key differs";
    let key_and_flows = format!("{key}; flows stay where they are");
    assert_eq!((protection, reason), (Protection::Waiting, key_and_flows));
    assert_eq!(remedy, SAME_KEY);
    let refused = format!("refused: {key}");
    assert_eq!(bed.noted().iter().filter(|it| **it == refused).count(), 1);
    bed.run(2100);
    let reason = bed.near().machine.shown().reason;
    assert!(reason.starts_with("nothing is heard"), "it has gone: {reason}");
}
