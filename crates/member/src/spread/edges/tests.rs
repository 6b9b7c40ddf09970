use super::*;
use crate::spread::{Given, Placed, Service, Setup, State};
use std::convert::Infallible;
use std::net::IpAddr;

const PERIOD: Nanos = Nanos::from_ms(100);
const NAMES: [&str; 3] = ["e1", "e2", "e3"];

/// One of several edges, and what it has said to the others and done.
struct Bed {
    spread: SpreadMachine,
    edges: Edges,
    desk: Desk,
}

#[derive(Default)]
struct Desk {
    said: Vec<(usize, EdgeWord)>,
    hung_up: Vec<usize>,
    full: bool,
    sound: bool,
    unix_ms: u64,
    seen: u64,
    flows: Vec<Elsewhere>,
    adopted: Vec<Elsewhere>,
    did: Vec<String>,
    states: Vec<(u8, State)>,
}

impl SpreadHost for Desk {
    type Error = Infallible;
    fn send(&mut self, _link: usize, _message: &Message<'_>) {}
    fn close(&mut self, _link: usize) {}
    fn find_ways(&mut self, _placed: &[Placed]) {}
    fn set_hosts(&mut self, placed: &[Placed]) {
        self.states = placed.iter().map(|it| (it.slot, it.state)).collect();
    }
    fn set_service(&mut self, _service: &Service, _table: &[u8]) -> Result<(), String> {
        Ok(())
    }
    fn remove_service(&mut self, _service: &Service) -> Result<(), Infallible> {
        Ok(())
    }
    fn tick(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
    fn age_flows(&mut self) -> Result<bool, Infallible> {
        Ok(false)
    }
    fn has_flows(&mut self) -> bool {
        false
    }
    fn resend(&mut self, _slots: &[u8]) -> usize {
        0
    }
    fn set_cache(&mut self, _on: bool) -> Result<(), Infallible> {
        Ok(())
    }
    fn note(&mut self, what: &'static str, words: String) {
        self.did.push(format!("{what}: {words}"));
    }
}

impl EdgesHost for Desk {
    fn tell(&mut self, edge: usize, message: &Message<'_>) {
        self.said.push((edge, EdgeWord::of(message.clone(), "web", "e1")));
    }
    fn has_room(&self, _edge: usize) -> bool {
        !self.full
    }
    fn hang_up(&mut self, edge: usize) {
        self.hung_up.push(edge);
    }
    fn is_sound(&self) -> bool {
        self.sound
    }
    fn elsewhere(&mut self) -> Vec<Elsewhere> {
        self.flows.clone()
    }
    fn adopt(&mut self, slot: u8, flows: &[EdgeFlow]) {
        self.adopted.extend(flows.iter().map(|flow| Elsewhere { slot, flow: *flow }));
    }
    fn unix_ms(&self) -> u64 {
        self.unix_ms
    }
    fn seen(&mut self) -> u64 {
        self.seen
    }
    fn serve(&mut self, since: Option<Nanos>) {
        self.did.push(format!("serve {:?}", since.map(Nanos::as_ms)));
    }
    fn rest(&mut self) {
        self.did.push("rest".to_owned());
    }
    fn show_able(&mut self, able: bool) {
        self.did.push(format!("able {able}"));
    }
}

fn ms(at: u64) -> Nanos {
    Nanos::from_ms(at)
}

fn flow(number: u16) -> EdgeFlow {
    use holdfast_wire::message::ConnKey;
    let key = ConnKey { server: [1; 16], client: [2; 16], server_port: 80, client_port: number };
    EdgeFlow { key, age_s: 1, lived_s: 2, flags: 3 }
}

impl Bed {
    /// Edge `me` of two or three, with a host server `a` that is heard.
    fn new(me: usize, count: usize, shared: bool) -> Self {
        Self::with(me, count, shared, &["a"])
    }

    /// The same, with these host servers in the file.
    fn with(me: usize, count: usize, shared: bool, hosts: &[&str]) -> Self {
        let tunnels = vec![IpAddr::from([10, 9, 0, 2])];
        let given = |name: &str| Given {
            name: name.to_owned(),
            tunnels: tunnels.clone(),
            layer2: false,
            weight: 100,
            services: None,
        };
        let setup = Setup {
            group: "web".to_owned(),
            me: NAMES[me].to_owned(),
            addresses: vec![IpAddr::from([10, 9, 0, 100])],
            hosts: hosts.iter().map(|it| given(it)).collect(),
            hosts_max: 250,
            period: PERIOD,
        };
        let mut desk = Desk { sound: true, ..Desk::default() };
        let mut spread = SpreadMachine::new(setup, Nanos(0));
        spread.handle_start(&[], Vec::new(), &mut desk);
        spread.place("a", &said(2), &mut desk);
        spread.roster.set_alive(0, true);
        let setup = EdgesSetup {
            group: "web".to_owned(),
            names: NAMES[..count].iter().map(|it| (*it).to_owned()).collect(),
            me,
            shared,
            period: PERIOD,
        };
        desk.did.clear();
        Self { spread, edges: Edges::new(setup, false, Nanos(0)), desk }
    }

    fn open(&mut self, edge: usize) {
        self.edges.handle_opened(edge, &self.spread, &mut self.desk);
    }

    fn hear(&mut self, edge: usize, word: EdgeWord, at: u64) -> bool {
        let Self { spread, edges, desk } = self;
        edges.handle_word(edge, word, ms(at), spread, desk)
    }

    /// The other edge is there, with all that it knows.
    fn meet(&mut self, edge: usize, at: u64) {
        self.open(edge);
        assert!(self.hear(edge, EdgeWord::Hello { fits: true }, at));
        let all = EdgeWord::Flows { host: String::new(), flows: Vec::new(), last: true };
        assert!(self.hear(edge, all, at));
    }

    fn turn(&mut self, at: u64) -> Vec<String> {
        self.edges.handle_timeout(ms(at), &mut self.spread, &mut self.desk);
        std::mem::take(&mut self.desk.did)
    }

    fn said(&mut self) -> Vec<(usize, EdgeWord)> {
        std::mem::take(&mut self.desk.said)
    }
}

fn said(last: u8) -> crate::spread::Said {
    let tunnel = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, last];
    let (weight, services) = (100, Vec::new());
    crate::spread::Said { weight, layer2: false, tunnels: vec![tunnel], services }
}

const DUTY: EdgeWord = EdgeWord::Duty { able: true, serves: false, seen: 0 };
const SERVES: EdgeWord = EdgeWord::Duty { able: true, serves: true, seen: 0 };
const UNABLE: EdgeWord = EdgeWord::Duty { able: false, serves: true, seen: 0 };

#[test]
fn a_lone_edge_is_ready_at_once_and_says_nothing() {
    let mut bed = Bed::new(0, 1, false);
    assert_eq!(bed.turn(0), ["able true"]);
    assert!(bed.edges.is_healthy() && bed.edges.serves().is_none());
    assert_eq!(bed.said(), []);
    assert_eq!(bed.edges.shown(ms(0), Shown::protected()), Shown::protected());
    bed.spread.roster.set_alive(0, false);
    assert_eq!(bed.turn(100), ["able false"], "it hears nobody");
    bed.spread.roster.set_alive(0, true);
    bed.desk.sound = false;
    assert_eq!(bed.turn(200), [""; 0]);
    // What an earlier life has left stands for a while, and no longer.
    let mut bed = Bed::new(0, 1, false);
    bed.spread.roster.set_alive(0, false);
    assert_eq!(bed.turn(1999), [""; 0]);
    assert_eq!((bed.turn(2000), bed.turn(2100)), (vec!["able false".to_owned()], Vec::new()));
}

#[test]
fn an_edge_waits_for_what_the_others_know() {
    let mut bed = Bed::with(0, 2, false, &["a", "b"]);
    assert_eq!(bed.turn(0), [""; 0]);
    bed.open(1);
    assert!(bed.hear(1, EdgeWord::Hello { fits: true }, 10));
    assert_eq!(bed.turn(10), ["joined: e2"]);
    let all = EdgeWord::Flows { host: "b".to_owned(), flows: vec![flow(1)], last: false };
    assert!(bed.hear(1, all, 20));
    assert_eq!(bed.desk.adopted, [], "host server b is not here yet");
    let all = EdgeWord::Flows { host: "a".to_owned(), flows: vec![flow(2)], last: true };
    assert!(bed.hear(1, all, 20));
    let of_a = Elsewhere { slot: 0, flow: flow(2) };
    assert_eq!(bed.desk.adopted, [of_a]);
    assert_eq!(bed.turn(20), [""; 0], "b's connections would go to a");
    bed.spread.place("b", &said(3), &mut bed.desk);
    bed.spread.roster.set_alive(1, true);
    assert_eq!(bed.turn(30), ["able true"]);
    assert_eq!(bed.desk.adopted, [of_a, Elsewhere { slot: 1, flow: flow(1) }]);
    // A newer list takes the place of one that nobody came for.
    let mut bed = Bed::with(0, 2, false, &["a", "b"]);
    bed.meet(1, 0);
    for number in [3, 4] {
        let list = EdgeWord::Flows { host: "b".to_owned(), flows: vec![flow(number)], last: true };
        assert!(bed.hear(1, list, 10));
    }
    assert_eq!(bed.turn(1999), ["joined: e2"]);
    assert_eq!(bed.turn(2000), ["able true"], "b does not come");
    bed.spread.place("b", &said(3), &mut bed.desk);
    bed.turn(2100);
    assert_eq!(bed.desk.adopted, [Elsewhere { slot: 1, flow: flow(4) }]);

    let mut alone = Bed::new(0, 2, false);
    assert_eq!(alone.turn(999), [""; 0]);
    assert_eq!(alone.turn(1000), ["able true"], "nobody came");
    let mut stuck = Bed::new(0, 2, false);
    stuck.open(1);
    assert_eq!(stuck.turn(1999), ["joined: e2"]);
    assert_eq!(stuck.turn(2000), ["able true"], "the other one never says all");
}

#[test]
fn what_is_elsewhere_is_told_when_it_changes_and_from_time_to_time() {
    let mut bed = Bed::new(0, 2, false);
    bed.desk.flows =
        (0..=FLOWS_MAX as u16).map(|it| Elsewhere { slot: 0, flow: flow(it) }).collect();
    bed.meet(1, 0);
    bed.turn(0);
    let sizes = |said: Vec<(usize, EdgeWord)>| {
        let flows = said.into_iter().filter_map(|(_, word)| match word {
            EdgeWord::Flows { host, flows, last } => Some((host, flows.len(), last)),
            _ => None,
        });
        flows.collect::<Vec<_>>()
    };
    let all =
        [("a".to_owned(), FLOWS_MAX, false), ("a".to_owned(), 1, false), (String::new(), 0, true)];
    assert_eq!(sizes(bed.said()), all);
    bed.turn(100);
    assert_eq!(sizes(bed.said()), []);
    (bed.spread.moved, bed.desk.full) = (true, true);
    bed.turn(200);
    assert_eq!(sizes(bed.said()), [], "it has no room");
    bed.desk.full = false;
    bed.turn(300);
    assert_eq!(sizes(bed.said()), all);
    bed.turn(10_000);
    assert_eq!(sizes(bed.said()), all, "before it grows old");
}

#[test]
fn the_last_word_on_a_drain_counts_everywhere() {
    let mut bed = Bed::with(0, 2, false, &["a", "b"]);
    bed.meet(1, 0);
    bed.said();
    bed.spread.handle_drain("a", false, &mut bed.desk).unwrap();
    bed.edges.handle_drained("a", false, &mut bed.desk);
    let drains = |yes, stamp| EdgeWord::Drains { host: "a".to_owned(), yes, stamp };
    assert_eq!(bed.said(), [(1, drains(true, 1))]);
    assert!(bed.hear(1, drains(false, 1), 10));
    assert_eq!(bed.desk.states, [(0, State::Draining)], "at the same time: drained");
    assert!(bed.hear(1, drains(false, 2), 10));
    assert_eq!(bed.desk.states, [(0, State::Up)]);
    assert!(bed.hear(1, drains(true, 1), 10));
    assert_eq!(bed.desk.states, [(0, State::Up)], "an older word");
    let unknown = EdgeWord::Drains { host: "x".to_owned(), yes: true, stamp: 9 };
    assert!(bed.hear(1, unknown, 10));
    bed.edges.handle_closed(1, "gone", &mut bed.desk);
    bed.said();
    bed.open(1);
    assert!(bed.said().contains(&(1, drains(false, 2))), "who comes later is told, too");
    // A word by the clock is newer than those of a life that counted further.
    bed.desk.unix_ms = 1 << 40;
    bed.edges.handle_drained("a", true, &mut bed.desk);
    assert!(bed.said().contains(&(1, drains(false, 1 << 40))));
    bed.edges.handle_closed(1, "gone", &mut bed.desk);
    bed.open(1);
    // One that has not come yet is drained when it comes.
    assert!(!bed.hear(1, drains(true, 3), 20), "no hello");
    bed.meet(1, 20);
    let b = EdgeWord::Drains { host: "b".to_owned(), yes: true, stamp: 1 };
    assert!(bed.hear(1, b, 20));
    bed.spread.place("b", &said(3), &mut bed.desk);
    assert!(bed.desk.states.iter().any(|(slot, state)| *slot == 1 && state.is_drained()));
}

#[test]
fn strangers_are_told_so_and_closed() {
    for word in [EdgeWord::Nonsense, EdgeWord::Hello { fits: false }, DUTY] {
        let mut bed = Bed::new(0, 2, false);
        bed.open(1);
        assert!(!bed.hear(1, word.clone(), 0), "{word:?}");
        assert_eq!(bed.desk.hung_up, [1]);
        assert!(!bed.hear(1, EdgeWord::Hello { fits: true }, 0), "it is closed");
    }
    let mut bed = Bed::new(0, 2, false);
    bed.meet(1, 0);
    assert!(!bed.hear(1, EdgeWord::Nonsense, 0));
}

#[test]
fn the_first_edge_acts_and_the_next_one_when_it_is_silent() {
    let mut first = Bed::new(0, 2, true);
    first.meet(1, 0);
    assert_eq!(first.turn(0), ["joined: e2", "acts: nobody did", "serve None", "able true"]);
    assert_eq!(first.edges.serves(), Some(true));

    let mut second = Bed::new(1, 2, true);
    second.meet(0, 0);
    assert!(second.hear(0, DUTY, 0));
    assert_eq!(second.turn(0), ["joined: e1", "able true"], "that is the first one's");
    assert!(second.hear(0, SERVES, 5));
    assert_eq!(second.turn(15), [""; 0]);
    assert_eq!(second.edges.next_deadline(), ms(30));
    assert_eq!(second.turn(49), [""; 0]);
    assert_eq!(second.edges.next_deadline(), ms(50), "three signs of life later");
    assert_eq!(second.turn(50), ["acts: e1 is silent", "serve Some(5)"]);
    assert_eq!(second.turn(65), [""; 0]);
    assert!(second.hear(0, SERVES, 70));
    assert_eq!(second.turn(70), ["rests: e1 acts", "rest"], "of two the first one goes on");
    assert!(second.hear(0, UNABLE, 80));
    assert_eq!(second.turn(80), ["acts: e1 hears no host server", "serve Some(80)"]);
}

#[test]
fn who_acts_goes_on_until_somebody_else_can() {
    let mut bed = Bed::new(0, 2, true);
    bed.meet(1, 0);
    bed.turn(0);
    bed.spread.roster.set_alive(0, false);
    assert_eq!(bed.turn(10), ["able false"], "nobody else can");
    assert!(bed.hear(1, DUTY, 20));
    assert_eq!(bed.turn(20), ["rests: e2 acts", "rest"]);
    assert!(bed.hear(1, SERVES, 25));
    bed.spread.roster.set_alive(0, true);
    assert_eq!(bed.turn(30), ["able true"], "who acts is left to it");
    assert_eq!(bed.edges.serves(), Some(false));
    let away = bed.edges.shown(ms(100), Shown::protected());
    assert_eq!(
        (away.protection, &away.reason[..]),
        (Protection::Unprotected, "the edge e2 does not answer")
    );
    assert_eq!(bed.edges.shown(ms(30), Shown::protected()), Shown::protected());
}

#[test]
fn what_an_earlier_life_has_drained_is_told_and_any_word_counts_more() {
    let mut bed = Bed::new(0, 2, false);
    bed.spread.handle_drain("a", false, &mut bed.desk).unwrap();
    bed.edges.handle_start(&bed.spread);
    bed.meet(1, 0);
    let drains = |yes, stamp| EdgeWord::Drains { host: "a".to_owned(), yes, stamp };
    assert!(bed.said().contains(&(1, drains(true, 0))));
    assert!(bed.hear(1, drains(false, 0), 1));
    assert_eq!(bed.desk.states, [(0, State::Draining)]);
    assert!(bed.hear(1, drains(false, 1), 1));
    assert_eq!(bed.desk.states, [(0, State::Up)]);
}

#[test]
fn why_another_edge_hangs_up_is_told() {
    let mut bed = Bed::new(0, 2, false);
    bed.open(1);
    assert!(!bed.edges.has_company(ms(0)));
    assert!(bed.hear(1, EdgeWord::Refused("another release".to_owned()), 0));
    assert_eq!(bed.desk.did.last().unwrap(), "refused: e2: another release");
    assert_eq!(bed.desk.hung_up, [0; 0]);
    bed.meet(1, 5);
    assert!(bed.hear(1, DUTY, 5));
    assert!(bed.edges.has_company(ms(6)));
}

#[test]
fn who_is_cut_off_from_clients_leaves_them_to_another_edge() {
    let serves = |seen| EdgeWord::Duty { able: true, serves: true, seen };
    let mut second = Bed::new(1, 2, true);
    second.meet(0, 0);
    assert!(second.hear(0, serves(5), 0));
    second.turn(0);
    for at in [15, 30, 45, 60] {
        second.desk.seen = at / 15;
        assert!(second.hear(0, serves(5 + at / 15), at));
        assert_eq!(second.turn(at), [""; 0], "both see the same");
    }
    for at in [75, 90] {
        second.desk.seen += 1;
        assert!(second.hear(0, serves(9), at));
        assert_eq!(second.turn(at), [""; 0]);
    }
    second.desk.seen += 1;
    assert!(second.hear(0, serves(9), 105));
    assert_eq!(second.turn(105), ["acts: e1 gets nothing of clients", "serve Some(60)"]);
    assert!(second.hear(0, serves(9), 120));
    assert_eq!(second.turn(120), [""; 0], "although it is the first one");
    assert!(second.hear(0, serves(10), 135));
    assert_eq!(second.turn(135), ["rests: e1 acts", "rest"], "it gets something again");

    let mut first = Bed::new(0, 2, true);
    first.meet(1, 0);
    first.turn(0);
    let rests = |seen| EdgeWord::Duty { able: true, serves: false, seen };
    for at in [15, 30, 45] {
        assert!(first.hear(1, rests(at / 15), at));
    }
    assert_eq!(first.turn(45), ["rests: e2 acts", "rest"]);
    assert!(first.hear(1, serves(4), 60));
    assert_eq!(first.turn(60), [""; 0], "it is deaf");
    assert_eq!(first.turn(200), ["acts: e2 is silent", "serve Some(60)"], "nobody else is there");
}
