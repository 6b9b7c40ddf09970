use super::*;
use crate::shown::{Protection, Shown};
use holdfast_edge::maglev;
use holdfast_wire::message::Offer;
use std::collections::BTreeMap;
use std::convert::Infallible;

const PERIOD: Nanos = Nanos::from_ms(100);

/// A test's host: a redirector, and channels that lead nowhere.
#[derive(Default)]
struct Book {
    /// The slots in each service's table.
    tables: BTreeMap<String, Vec<u8>>,
    hosts: BTreeMap<u8, State>,
    caching: bool,
    resent: Vec<Vec<u8>>,
    refused: Vec<String>,
    closed: Vec<usize>,
    beats: usize,
    hellos: usize,
    flows: bool,
    /// Whether there is no room for another service.
    full: bool,
    ticks: u64,
    ages: u64,
    /// How many times flows must be aged until none is left that is over.
    over: u64,
    /// Number of host servers whose ways were looked for, each time.
    ways: Vec<usize>,
    lines: Vec<String>,
}

impl SpreadHost for Book {
    type Error = Infallible;
    fn send(&mut self, _link: usize, message: &Message<'_>) {
        match message {
            Message::Refused { reason, .. } => self.refused.push((*reason).to_owned()),
            Message::Beat { .. } => self.beats += 1,
            Message::Hello { .. } => self.hellos += 1,
            _ => {}
        }
    }
    fn close(&mut self, link: usize) {
        self.closed.push(link);
    }
    fn find_ways(&mut self, placed: &[Placed]) {
        self.ways.push(placed.len());
    }
    fn set_hosts(&mut self, placed: &[Placed]) {
        self.hosts = placed.iter().map(|placed| (placed.slot, placed.state)).collect();
    }
    fn set_service(&mut self, service: &Service, table: &[u8]) -> Result<(), String> {
        if self.full && !self.tables.contains_key(&service.to_string()) {
            return Err("no room".to_owned());
        }
        let mut slots = table.to_vec();
        slots.sort_unstable();
        slots.dedup();
        slots.retain(|slot| *slot != maglev::NOBODY);
        self.tables.insert(service.to_string(), slots);
        Ok(())
    }
    fn remove_service(&mut self, service: &Service) -> Result<(), Infallible> {
        self.tables.remove(&service.to_string());
        Ok(())
    }
    fn tick(&mut self) -> Result<(), Infallible> {
        self.ticks += 1;
        Ok(())
    }
    fn age_flows(&mut self) -> Result<bool, Infallible> {
        self.ages += 1;
        self.over = self.over.saturating_sub(1);
        Ok(self.over > 0)
    }
    fn has_flows(&mut self) -> bool {
        self.flows
    }
    fn resend(&mut self, slots: &[u8]) -> usize {
        self.resent.push(slots.to_vec());
        slots.len()
    }
    fn set_cache(&mut self, on: bool) -> Result<(), Infallible> {
        self.caching = on;
        Ok(())
    }
    fn note(&mut self, what: &'static str, words: String) {
        self.lines.push(format!("{what}: {words}"));
    }
}

struct Bed {
    machine: SpreadMachine,
    book: Book,
    now: Nanos,
    /// Links that send heartbeats in every period.
    alive: Vec<usize>,
}

fn setup() -> Setup {
    let given = |number: u8, name: &str| Given {
        name: name.to_owned(),
        tunnels: vec![IpAddr::from([10, 9, 0, number])],
        layer2: false,
        weight: 100,
        services: None,
    };
    Setup {
        group: "web".to_owned(),
        me: "edge".to_owned(),
        addresses: vec![IpAddr::from([10, 9, 0, 100])],
        hosts: vec![given(2, "a"), given(3, "b"), given(4, "c")],
        hosts_max: 250,
        period: PERIOD,
    }
}

fn service(port: u16) -> Service {
    Service { address: ([10, 9, 0, 100], port).into(), udp: false }
}

fn placed(slot: u8, name: &str, number: u8, state: State) -> Placed {
    let tunnels = vec![IpAddr::from([10, 9, 0, number])];
    Placed { slot, name: name.to_owned(), tunnels, layer2: false, state }
}

fn said(number: u8, ports: &[u16]) -> Word {
    let mapped = |last: u8| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, last];
    let offer = |port: &u16| Offer { address: mapped(100), port: *port, udp: false };
    let services = ports.iter().map(offer).collect();
    Word::Announce(Said { weight: 100, layer2: false, tunnels: vec![mapped(number)], services })
}

impl Bed {
    fn new(services: &[Service], placed: Vec<Placed>) -> Self {
        let mut bed = Self {
            machine: SpreadMachine::new(setup(), Nanos(0)),
            book: Book::default(),
            now: Nanos(0),
            alive: Vec::new(),
        };
        bed.machine.handle_start(services, placed, &mut bed.book);
        bed
    }

    /// A bed in which host server `a` serves ports 80 and 443, and `b` port 80.
    fn serving() -> Self {
        let mut bed = Self::new(&[], Vec::new());
        bed.join("a", 2, &[80, 443]);
        bed.join("b", 3, &[80]);
        bed.run(500);
        bed.book.lines.clear();
        bed
    }

    fn open(&mut self, name: &str) -> usize {
        let index = self.machine.link_of(name, self.now).unwrap();
        self.machine.handle_opened(index, &mut self.book);
        index
    }

    fn say(&mut self, index: usize, word: Word) -> bool {
        self.machine.handle_word(index, word, self.now, &mut self.book)
    }

    fn join(&mut self, name: &str, number: u8, ports: &[u16]) -> usize {
        let index = self.open(name);
        assert!(self.say(index, Word::Hello { fits: true }));
        assert!(self.say(index, said(number, ports)));
        self.alive.push(index);
        index
    }

    fn turn(&mut self) {
        let Ok(()) = self.machine.handle_timeout(self.now, &mut self.book);
        let Ok(()) = self.machine.handle_turned(&mut self.book);
    }

    fn run(&mut self, ms: u64) {
        let until = self.now.plus(Nanos::from_ms(ms));
        while self.now < until {
            if self.now.as_ms().is_multiple_of(PERIOD.as_ms()) {
                for index in self.alive.clone() {
                    self.say(index, Word::Beat);
                }
            }
            self.turn();
            self.now = self.now.plus(Nanos::from_ms(5));
        }
    }

    fn dies(&mut self, index: usize) {
        self.alive.retain(|it| *it != index);
    }

    fn table(&self, port: u16) -> Option<&[u8]> {
        self.book.tables.get(&service(port).to_string()).map(Vec::as_slice)
    }

    fn noted(&mut self) -> Vec<String> {
        std::mem::take(&mut self.book.lines)
    }
}

#[test]
fn who_announces_a_service_gets_its_new_flows_at_once() {
    let mut bed = Bed::new(&[], Vec::new());
    bed.join("a", 2, &[80]);
    bed.turn();
    assert_eq!(bed.table(80), Some(&[0][..]));
    let expected = [
        "started: 0 services and 0 host servers found",
        "joined: a",
        "announced: a: 10.9.0.100:80, weight 100",
        "switch: 10.9.0.100:80 -> a",
    ];
    assert_eq!(bed.noted(), expected);
    bed.join("b", 3, &[80, 443]);
    bed.turn();
    assert_eq!((bed.table(80), bed.table(443)), (Some(&[0, 1][..]), Some(&[1][..])));
    bed.say(1, said(3, &[443]));
    bed.turn();
    assert_eq!(bed.table(80), Some(&[0][..]), "withdrawn");
}

#[test]
fn a_silent_host_server_is_out_after_three_heartbeats_and_in_again_with_the_next() {
    let mut bed = Bed::serving();
    let beats = bed.book.beats;
    bed.dies(0);
    bed.run(150);
    assert_eq!(bed.noted(), ["suspect: a"]);
    assert!(bed.book.caching, "SYNs on their way to it may be lost");
    assert_eq!(bed.table(443), Some(&[0][..]), "not yet");
    bed.run(110);
    let expected = [
        "declare: a",
        "switch: 10.9.0.100:80 -> b",
        "switch: 10.9.0.100:443 -> nobody",
        "resend: 1 flow",
    ];
    assert_eq!(bed.noted(), expected);
    assert_eq!((bed.book.hosts[&0], bed.book.hosts[&1]), (State::Dead, State::Up));
    assert_eq!(bed.book.resent, [vec![0]], "after the redirector knows");
    bed.run(3000);
    assert_eq!(bed.noted(), [""; 0], "said once");
    assert!(bed.book.beats > beats + 8, "it may come back");
    assert_eq!(bed.machine.due(bed.now.plus(PERIOD)), [0, 1]);
    assert!(bed.book.caching);
    bed.alive.push(0);
    bed.run(110);
    let expected = ["trusted: a", "switch: 10.9.0.100:80 -> a, b", "switch: 10.9.0.100:443 -> a"];
    assert_eq!(bed.noted()[..3], expected);
    assert_eq!(bed.book.resent.last().unwrap(), &[0], "what came meanwhile");
    assert!(!bed.book.caching);
    bed.noted();
    bed.dies(0);
    bed.run(500);
    assert_eq!(bed.noted()[..2], ["suspect: a", "declare: a"], "it dies again");
}

#[test]
fn one_that_was_only_late_keeps_its_flows_and_gets_its_syns_again() {
    let mut bed = Bed::serving();
    bed.dies(0);
    bed.run(150);
    bed.alive.push(0);
    bed.run(200);
    assert_eq!(bed.noted(), ["suspect: a", "resend: 1 flow"]);
    assert_eq!((bed.book.resent.clone(), bed.book.caching), (vec![vec![0]], false));
}

#[test]
fn nothing_is_announced_beyond_the_file() {
    let mut bed = Bed::serving();
    // With another host server's tunnel address, it would send all clients to that one.
    assert!(bed.say(0, said(3, &[80])));
    bed.turn();
    let reason = "it announces the tunnel address 10.9.0.3, the edge's file gives it 10.9.0.2";
    assert!(bed.book.refused[0].starts_with(reason), "{:?}", bed.book.refused);
    assert_eq!(bed.machine.placed()[1].name, "b");
    assert_eq!((bed.table(80), bed.table(443)), (Some(&[0, 1][..]), Some(&[0][..])), "as before");
    // However often the announcement comes, the complaint is told once.
    assert!(bed.say(0, said(3, &[80])));
    assert_eq!((bed.book.refused.len(), bed.noted().len()), (1, 1));
    // The part that it may serve is taken.
    let Word::Announce(mut strange) = said(2, &[80, 443]) else { return };
    strange.services[1].address[15] = 1;
    assert!(bed.say(0, Word::Announce(strange)));
    bed.turn();
    assert_eq!((bed.table(80), bed.table(443)), (Some(&[0, 1][..]), Some(&[][..])));
    assert!(bed.book.refused[1].starts_with("the edge's file does not give it 10.9.0.1:443"));
    // The file does not name this host server.
    let stranger = bed.join("d", 9, &[80]);
    bed.turn();
    assert!(bed.book.refused[2].contains("names no host server `d`"));
    bed.dies(stranger);
    assert_eq!(bed.table(80), Some(&[0, 1][..]));
    // The host server announces what it may again.
    assert!(bed.say(0, said(2, &[80, 443])));
    bed.turn();
    assert_eq!(bed.table(443), Some(&[0][..]));
}

#[test]
fn who_does_not_say_who_it_is_does_not_stay() {
    let mut bed = Bed::serving();
    for (word, why) in [
        (Word::Beat, "it did not say hello first"),
        (Word::Hello { fits: false }, "its hello is of another release, group or host"),
    ] {
        let index = bed.open("c");
        assert!(!bed.say(index, word));
        assert_eq!(bed.noted(), ["joined: c".to_owned(), format!("left: c: {why}")]);
        assert!(!bed.say(index, said(4, &[80])), "nothing more is heard of it");
    }
    assert!(!bed.say(0, Word::Nonsense));
    assert_eq!(bed.book.closed, [2, 2, 0]);
    assert!(!bed.machine.is_here("a") && bed.machine.is_here("b"));
    assert!(bed.machine.link_of("", bed.now).is_none());
    assert!(bed.machine.link_of("edge", bed.now).is_none());
}

#[test]
fn a_daemon_that_starts_again_takes_nobody_out() {
    let mut bed = Bed::serving();
    bed.machine.handle_closed(0, "it is gone", &mut bed.book);
    bed.turn();
    assert_eq!(
        (bed.noted(), bed.table(443)),
        (vec!["left: a: it is gone".to_owned()], Some(&[0][..]))
    );
    let again = bed.join("a", 2, &[80, 443]);
    bed.run(500);
    assert_eq!((again, bed.noted()), (0, vec!["joined: a".to_owned()]));
}

#[test]
fn one_that_is_drained_keeps_its_flows_and_gets_no_new_ones() {
    let mut bed = Bed::serving();
    let drain = |bed: &mut Bed, name: &str, end| bed.machine.handle_drain(name, end, &mut bed.book);
    assert_eq!(drain(&mut bed, "a", false), Ok(()));
    assert_eq!((bed.table(80), bed.book.hosts[&0]), (Some(&[1][..]), State::Draining));
    assert_eq!(drain(&mut bed, "a", false), Ok(()));
    let drains = |bed: &mut Bed| {
        let words = bed.noted();
        let of = |what: &str| words.iter().filter(|it| **it == format!("{what}: a")).count();
        (of("drained"), of("undrained"))
    };
    assert_eq!(drains(&mut bed), (1, 0), "said once");
    // The state stays whatever the host server announces.
    bed.say(0, said(2, &[80, 443]));
    bed.run(300);
    assert_eq!((bed.table(80), bed.table(443)), (Some(&[1][..]), Some(&[][..])));
    let remedy = "holdfast edge drain a --end --config FILE";
    assert_eq!(bed.machine.shown().remedy, remedy, "nobody serves port 443");
    bed.say(0, said(2, &[80]));
    bed.run(10_000);
    let Shown { reason, remedy: shown, .. } = bed.machine.shown();
    assert_eq!((&reason[..], &shown[..]), ("only b serves 10.9.0.100:80", remedy));
    assert_eq!(drain(&mut bed, "a", true), Ok(()));
    assert_eq!((bed.table(80), bed.book.hosts[&0]), (Some(&[0, 1][..]), State::Up));
    assert_eq!(drains(&mut bed), (0, 1));
    let error = drain(&mut bed, "x", false).unwrap_err();
    assert_eq!(error, "no host server `x`; there are: a, b");
}

#[test]
fn an_edge_that_starts_again_leaves_everything_as_it_is_until_all_are_back() {
    let found = vec![placed(0, "a", 2, State::Up), placed(5, "b", 3, State::Draining)];
    let services = [service(80)];
    let mut bed = Bed::new(&services, found.clone());
    bed.join("a", 2, &[80]);
    bed.run(1500);
    assert_eq!((bed.table(80), bed.book.hosts[&5]), (None, State::Draining), "not touched");
    bed.join("b", 3, &[80]);
    bed.turn();
    assert_eq!(bed.table(80), Some(&[0][..]), "both are back, b keeps its slot and is drained");
    assert_eq!(bed.machine.placed()[1].slot, 5);
    // A host server that does not come back is not waited for forever.
    let mut bed = Bed::new(&services, found);
    bed.join("a", 2, &[80]);
    bed.run(2990);
    assert_eq!(bed.table(80), None);
    bed.run(20);
    assert_eq!((bed.table(80), bed.book.hosts[&5]), (Some(&[0][..]), State::DeadDrained));
    // A host server that was dead before holds up nobody.
    let mut bed = Bed::new(&services, vec![placed(0, "a", 2, State::Dead)]);
    bed.turn();
    bed.join("b", 3, &[80]);
    bed.turn();
    assert_eq!(bed.table(80), Some(&[1][..]));
}

#[test]
fn a_service_that_nobody_serves_goes_when_the_last_flow_has_gone() {
    let mut bed = Bed::serving();
    bed.book.flows = true;
    bed.say(0, said(2, &[80]));
    bed.run(6000);
    assert_eq!(bed.table(443), Some(&[][..]), "old flows go on");
    bed.book.flows = false;
    bed.run(5000);
    assert_eq!((bed.table(443), bed.table(80)), (None, Some(&[0, 1][..])));
    assert_eq!(bed.noted().last().unwrap(), "removed: 10.9.0.100:443");
    assert!((10..=12).contains(&bed.book.ticks), "{}", bed.book.ticks);
    assert_eq!(bed.book.ages, bed.book.ticks / AGE_TICKS, "now and then");
}

#[test]
fn flows_that_a_flood_has_left_are_forgotten_second_by_second() {
    let mut bed = Bed::serving();
    bed.run(500);
    bed.book.over = 4;
    let (ages, ticks) = (bed.book.ages, bed.book.ticks);
    bed.run(1000 * (AGE_TICKS - ticks % AGE_TICKS));
    assert_eq!(bed.book.ages, ages + 1, "now and then");
    bed.run(3000);
    assert_eq!(bed.book.ages, ages + 4, "until none is left");
    bed.run(1000);
    assert_eq!((bed.book.ages, bed.book.over), (ages + 4, 0));
}

#[test]
fn a_service_that_nobody_serves_after_an_edge_has_started_again_goes_too() {
    let found = vec![placed(0, "a", 2, State::Up)];
    let mut bed = Bed::new(&[service(80), service(443)], found);
    bed.join("a", 2, &[80]);
    bed.run(8000);
    assert!(bed.noted().contains(&"removed: 10.9.0.100:443".to_owned()));
}

#[test]
fn strangers_leave_room_for_all_of_the_file() {
    let mut bed = Bed::serving();
    bed.machine.setup.hosts_max = 5;
    for number in 0..9 {
        let link = bed.machine.link_of(&format!("x{number}"), bed.now);
        assert_eq!(link.is_some(), number < 2, "{number}");
    }
    assert_eq!(bed.machine.link_of("c", bed.now), Some(4));
    assert_eq!(bed.machine.link_of("x1", bed.now), Some(3), "known by now");
}

#[test]
fn a_service_that_the_redirector_refuses_is_not_shown_as_served_and_is_tried_again() {
    let mut bed = Bed::serving();
    bed.book.full = true;
    bed.say(1, said(3, &[80, 8080]));
    bed.turn();
    assert_eq!(bed.noted().last().unwrap(), "refused: 10.9.0.100:8080: no room");
    bed.run(3000);
    assert_eq!(bed.noted(), [""; 0], "said once");
    let shown = bed.machine.shown();
    assert_eq!(shown.protection, Protection::Waiting);
    assert_eq!(shown.reason, "10.9.0.100:8080 is not redirected: no room");
    assert!(!bed.machine.roster().services().any(|(it, _)| *it == service(8080)));
    bed.book.full = false;
    bed.run(1100);
    assert_eq!(bed.table(8080), Some(&[1][..]));
    assert_eq!(bed.machine.shown().protection, Protection::Unprotected);
}

#[test]
fn who_was_drained_when_it_died_is_still_so_for_another_life() {
    let mut bed = Bed::new(&[service(80)], vec![placed(0, "", 2, State::DeadDrained)]);
    assert_eq!(bed.machine.name_of(0), "a", "as the file says");
    bed.join("a", 2, &[80]);
    bed.join("b", 3, &[80]);
    bed.run(200);
    assert_eq!((bed.table(80), bed.book.hosts[&0]), (Some(&[1][..]), State::Draining));
    bed.dies(0);
    bed.run(500);
    assert_eq!(bed.book.hosts[&0], State::DeadDrained);
}

#[test]
fn what_it_shows_is_what_it_has_done() {
    let mut bed = Bed::new(&[], Vec::new());
    let shown = bed.machine.shown();
    assert_eq!(
        (shown.protection, &shown.reason[..]),
        (Protection::Waiting, "nothing is announced")
    );
    bed.join("a", 2, &[80]);
    bed.turn();
    let shown = bed.machine.shown();
    assert_eq!(shown.protection, Protection::Unprotected);
    assert_eq!(shown.reason, "only a serves 10.9.0.100:80");
    bed.join("b", 3, &[80]);
    bed.turn();
    assert_eq!(bed.machine.shown().protection, Protection::Protected);
    bed.say(0, said(2, &[]));
    bed.say(1, said(3, &[]));
    bed.turn();
    assert_eq!(bed.machine.shown().reason, "nobody serves 10.9.0.100:80");
}

#[test]
fn ways_are_looked_for_when_somebody_comes_and_every_second() {
    let mut bed = Bed::new(&[], Vec::new());
    assert!(bed.machine.is_settled(), "there is nobody to wait for");
    bed.join("a", 2, &[80]);
    bed.join("b", 3, &[80]);
    assert_eq!(bed.book.ways, [1, 2]);
    bed.now = Nanos::from_ms(999);
    bed.turn();
    assert_eq!((bed.book.ticks, bed.book.ways.len()), (0, 2));
    bed.now = Nanos::from_ms(1000);
    bed.book.hosts.clear();
    bed.turn();
    assert_eq!((bed.book.ticks, bed.book.ways.len()), (1, 3));
    assert_eq!(bed.book.hosts.len(), 2, "what was found is used");
}

#[test]
fn a_slot_belongs_to_who_announces_its_tunnel() {
    let mut found = placed(4, "", 3, State::Up);
    found.tunnels.push(IpAddr::from([10, 9, 0, 2]));
    found.layer2 = true;
    let mut bed = Bed::new(&[], vec![found]);
    assert_eq!(bed.machine.name_of(4), "a", "the first in the file that has one of them");
    bed.join("b", 3, &[80]);
    assert_eq!(bed.machine.placed(), [placed(4, "b", 3, State::Up)]);
    bed.join("a", 2, &[80]);
    assert_eq!(bed.machine.placed()[1], placed(0, "a", 2, State::Up));
}

#[test]
fn each_channel_begins_with_a_hello() {
    let mut bed = Bed::serving();
    assert_eq!((bed.open("a"), bed.book.hellos), (0, 3), "and so does the edge");
    assert!(!bed.say(0, Word::Beat));
    assert_eq!(bed.book.refused, ["it did not say hello first"]);
}

#[test]
fn who_is_drained_before_all_are_back_is_so_at_once() {
    let found = vec![placed(0, "a", 2, State::Up), placed(1, "b", 3, State::Up)];
    let mut bed = Bed::new(&[service(80)], found);
    assert_eq!(bed.machine.handle_drain("a", false, &mut bed.book), Ok(()));
    assert_eq!((bed.book.hosts[&0], bed.book.hosts[&1]), (State::Draining, State::Up));
    assert!(!bed.machine.is_settled() && bed.book.tables.is_empty());
}

#[test]
fn it_is_due_for_whatever_comes_first() {
    let mut bed = Bed::new(&[], vec![placed(0, "a", 2, State::Up)]);
    let due = |bed: &Bed| (bed.machine.next_deadline().as_ms(), bed.machine.is_settled());
    assert_eq!(due(&bed), (1000, false), "the tick");
    for ms in [1100, 2200] {
        bed.now = Nanos::from_ms(ms);
        bed.turn();
    }
    assert_eq!(due(&bed), (3000, false), "no more is waited for the host server");
    bed.now = Nanos::from_ms(2999);
    bed.turn();
    assert_eq!(due(&bed), (3000, false), "not yet");
    bed.now = Nanos::from_ms(3000);
    bed.turn();
    assert_eq!(due(&bed), (3200, true));
    bed.open("b");
    assert_eq!(due(&bed), (3000, true), "a heartbeat");
    assert_eq!(bed.machine.due(Nanos::from_ms(2999)), [0; 0]);
    assert_eq!(bed.machine.due(bed.now), [0]);
}

#[test]
fn who_has_tunnels_of_both_families_is_placed_with_one_of_each() {
    let mut bed = Bed::new(&[], Vec::new());
    let Word::Announce(said) = said(2, &[]) else { unreachable!("it announces") };
    let six = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    bed.machine = SpreadMachine::new(
        Setup {
            hosts: vec![Given {
                tunnels: vec![IpAddr::from([10, 9, 0, 2]), IpAddr::from(six)],
                ..setup().hosts[0].clone()
            }],
            ..setup()
        },
        Nanos(0),
    );
    bed.machine.handle_start(&[], Vec::new(), &mut bed.book);
    let index = bed.open("a");
    assert!(bed.say(index, Word::Hello { fits: true }));
    let tunnels = vec![six, said.tunnels[0]];
    bed.say(index, Word::Announce(Said { tunnels, ..said }));
    let placed = bed.machine.placed();
    assert_eq!(placed[0].tunnels, [IpAddr::from([10, 9, 0, 2]), IpAddr::from(six)]);
    assert_eq!(bed.book.hosts.len(), 1, "its flows can go there");
}
