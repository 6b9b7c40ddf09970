//! An edge of a transit group compared with its model: the same segments, drawn by seed, go through
//! `bpf/transit.bpf.c` and through the simulator's data path. After each of them both have chosen
//! the same string, have shown the cache the same, and remember the same of its flow. There are
//! more flows than the table has room for.

use crate::common::flows::Strings;
use crate::common::transit::*;
use crate::common::{ACK, Drawn, FIN, PSH, REDIRECT, STOLEN, SYN, draw};
use holdfast_linux::bpf::{Copies, CopyPolicy, NO_STRING, TRANSIT_SLOTS};
use holdfast_sim::Rng;
use holdfast_sim::models::{StringShown, TransitModel};

/// Number of seeds: each combination of whether the edge leads and whether all flows return home
/// occurs once.
const SEEDS: u64 = 4;
/// Number of steps of a seed, nearly all of which are packets.
const STEPS: u32 = 1_500;
/// Number of flows; half of the packets are of the first few, so that these have a history.
const FLOWS: u64 = 24;
const BUSY_FLOWS: u64 = 4;

struct Pair {
    f: Fixture,
    copies: Copies,
    flows: Strings,
    model: TransitModel,
    rng: Rng,
    /// Describes the step, for the message of a failure.
    at: String,
    seen: Seen,
}

/// Counts of what the packets led to: draws that reach nothing compare nothing.
#[derive(Debug, Default)]
struct Seen {
    into: [u32; STRINGS],
    lost: u32,
    copied: u32,
    not_copied: u32,
}

#[test]
fn an_edge_of_a_transit_group_and_its_model_say_the_same_of_every_packet() {
    draw::<Pair>(SEEDS, STEPS);
}

impl Drawn for Pair {
    fn new(seed: u64) -> Self {
        let (leads, return_all) = (seed & 1 == 0, seed & 2 == 0);
        let mut f = Fixture::new(&format!("transit-model-{seed}"), leads, return_all);
        Self {
            copies: f.transit.take_copies().expect("the first time"),
            flows: Strings::pinned(&f.lab.pin_dir),
            f,
            model: TransitModel::new(STRINGS, FLOWS_MAX as usize, leads, return_all),
            rng: Rng::new(seed, 1),
            at: String::new(),
            seen: Seen::default(),
        }
    }

    fn end(self, seed: u64) {
        let Seen { into, lost, copied, not_copied } = self.seen;
        let reached = [into[0], into[1], into[2], lost, copied, not_copied];
        assert!(reached.iter().all(|count| *count > 20), "seed {seed}: {:?}", self.seen);
        for counter in ["moved", "followed", "full"] {
            assert!(self.f.count(counter) > 10, "seed {seed}: few of {counter}");
        }
        assert_eq!(self.f.count("moved") + self.f.count("returned"), self.model.moved());
        let is_bringing_back = seed == 0;
        assert_eq!(self.f.count("returned") > 10, is_bringing_back, "seed {seed}");
        for (string, (_, out)) in self.f.transit.traffic().iter().enumerate().take(STRINGS) {
            assert_eq!(out.packets, self.model.traffic(string), "seed {seed}, string {string}");
        }
        self.f.transit.detach().expect("detach");
    }

    fn step(&mut self, at: String) {
        self.at = at;
        match self.rng.below(100) {
            0..4 => self.table_changes(),
            4 => self.copying_changes(),
            5..60 => self.goes_in(),
            _ => self.comes_out(),
        }
    }
}

impl Pair {
    fn table_changes(&mut self) {
        let usable = self.rng.pick(&[0b111, 0b111, 0b011, 0b110, 0b101, 0b010, 0b100, 0]);
        let string = self.rng.below(STRINGS as u64) as u8;
        self.f.use_slots(usable, [string; TRANSIT_SLOTS]);
        self.model.set_table(usable, string);
    }

    fn copying_changes(&mut self) {
        let on = !self.rng.one_in(3);
        self.copies.set(if on { CopyPolicy::Segments } else { CopyPolicy::Off }).expect("set");
        self.model.set_copying(on);
    }

    fn draw_port(&mut self) -> u16 {
        let most = if self.rng.one_in(2) { BUSY_FLOWS } else { FLOWS };
        40000 + self.rng.below(most) as u16
    }

    fn goes_in(&mut self) {
        let port = self.draw_port();
        let flags = self.rng.pick(&[SYN, ACK, ACK | PSH, ACK | PSH, ACK | PSH, FIN | ACK]);
        let payload = if flags & PSH != 0 { 100 } else { 0 };
        let frame = request(port).seq(self.rng.draw() as u32).flags(flags).payload(payload);
        let bytes = frame.build();
        let (verdict, out) = self.f.outside_sends(&bytes);
        let (string, shown) = self.model.goes_in(&bytes[14..]);
        let at = format!("{}: {frame:?}", self.at);
        match string {
            Some(string) => {
                assert_eq!(verdict, REDIRECT, "{at}");
                assert_eq!(out, frame.clone().ttl(63).build(), "{at}");
                self.seen.into[string] += 1;
            }
            None => {
                assert_eq!(verdict, STOLEN, "{at}");
                self.seen.lost += 1;
            }
        }
        self.compare(port, shown, &at);
    }

    fn comes_out(&mut self) {
        let (port, string) = (self.draw_port(), self.rng.below(STRINGS as u64) as usize);
        let flags = self.rng.pick(&[SYN | ACK, ACK, ACK, ACK | PSH, FIN | ACK]);
        let payload = if flags & PSH != 0 { 100 } else { 0 };
        let frame = reply(port).seq(self.rng.draw() as u32).flags(flags).payload(payload);
        let bytes = frame.build();
        let (verdict, out) = self.f.string_sends(string, &bytes);
        let shown = self.model.comes_out(&bytes[14..], string);
        let at = format!("{}: from string {string} {frame:?}", self.at);
        assert_eq!(verdict, REDIRECT, "{at}");
        assert_eq!(out[14..], frame.clone().ttl(63).build()[14..], "{at}");
        self.compare(port, shown, &at);
    }

    /// Checks what the cache was shown of the last packet, and what is remembered of its flow.
    fn compare(&mut self, port: u16, shown: Option<StringShown>, at: &str) {
        let mut all = Vec::new();
        self.copies.drain(|copied| {
            let string = (copied.way != NO_STRING).then_some(copied.way.into());
            all.push(StringShown { into: copied.into, string });
            true
        });
        assert_eq!(all, Vec::from_iter(shown), "{at}");
        *(if shown.is_some() { &mut self.seen.copied } else { &mut self.seen.not_copied }) += 1;
        let ends = [(CLIENT4, port), (SERVER4, 80)].map(|(ip, port)| (address(ip), port).into());
        let words = self.model.words(port);
        assert_eq!(self.flows.words(ends[0], ends[1]), words, "{at}");
    }
}
