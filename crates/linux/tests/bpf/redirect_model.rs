//! The redirector compared with its model: the same segments, drawn by seed, go through
//! `bpf/redirect.bpf.c` and through the simulator's data path of a spread group. After each of them
//! both have sent it to the same host server, let it go or refused it, have shown the cache the
//! same, and remember the same of its connection. There are more tuples than a table of connections
//! has room for.

use crate::common::flows::Places;
use crate::common::redirector::{FLOWS_MAX, Fixture, HOSTS, PORT, VIP4, VIP6};
use crate::common::redirector::{outer, request, request6};
use crate::common::{ACK, Drawn, FIN, Frame, PASS, PSH, REDIRECT, RST, STOLEN, SYN, draw};
use holdfast_linux::bpf::{Copies, CopyPolicy, HostState, ServiceKey};
use holdfast_sim::Rng;
use holdfast_sim::models::{Became, RedirectModel, Shown, State};

const SEEDS: u64 = 4;
/// Number of steps of a seed, nearly all of which are packets.
const STEPS: u32 = 2_500;
/// Number of tuples; half of the packets are of the first few, so that these have a history.
const TUPLES: u64 = 40;
const BUSY_TUPLES: u64 = 4;
/// Entry of the tables for a service of which no host server gets new connections.
const NOBODY: u8 = 255;
const STATES: [(HostState, State); 4] = [
    (HostState::Up, State::Up),
    (HostState::Draining, State::Draining),
    (HostState::Dead, State::Dead),
    (HostState::DeadDrained, State::DeadDrained),
];

struct Pair {
    f: Fixture,
    copies: Copies,
    places: Places,
    /// Models of the data paths of IPv4 and of IPv6.
    models: [RedirectModel; 2],
    rng: Rng,
    /// Describes the step, for the message of a failure.
    at: String,
    seen: Seen,
}

/// Counts of what the packets led to: draws that reach nothing compare nothing.
#[derive(Debug, Default)]
struct Seen {
    sent: [u32; 2],
    plain: u32,
    refused: u32,
    syns: u32,
    opened: u32,
    forgotten: usize,
}

#[test]
fn the_redirector_and_its_model_say_the_same_of_every_packet() {
    draw::<Pair>(SEEDS, STEPS);
}

impl Drawn for Pair {
    fn new(seed: u64) -> Self {
        let mut f = Fixture::new(&format!("redirect-model-{seed}"));
        f.serve(&[0]);
        let model = |address: &str| {
            let address = (address.parse::<std::net::IpAddr>().expect("address"), PORT).into();
            let mut model = RedirectModel::new(address, FLOWS_MAX as usize);
            (0..2).for_each(|slot| model.set_host(slot, State::Up));
            model.serve(Some(0));
            model
        };
        Self {
            copies: f.redirect.take_copies().expect("the first time"),
            places: Places::pinned(&f.pins()),
            f,
            models: [VIP4, VIP6].map(model),
            rng: Rng::new(seed, 1),
            at: String::new(),
            seen: Seen::default(),
        }
    }

    fn step(&mut self, at: String) {
        self.at = at;
        match self.rng.below(100) {
            0..2 => self.hosts_change(),
            2..4 => self.table_changes(),
            4 => self.copying_changes(),
            5 => self.time_passes(),
            _ => self.client_sends(),
        }
    }

    fn end(self, seed: u64) {
        let Seen { sent, plain, refused, syns, opened, forgotten } = self.seen;
        let least = [sent[0], sent[1], plain, refused, syns, opened, forgotten as u32];
        assert!(least.iter().all(|count| *count > 20), "seed {seed}: {:?}", self.seen);
        for counter in ["stray", "learnt", "established", "new_flows"] {
            assert!(self.f.count(counter) > 20, "few of {counter}");
        }
        self.f.redirect.detach().expect("detach");
    }
}

impl Pair {
    fn hosts_change(&mut self) {
        let slot = self.rng.below(2) as u8;
        let (shipped, state) = if self.rng.one_in(2) { STATES[0] } else { self.rng.pick(&STATES) };
        self.f.set_host(slot, |host| host.state = shipped);
        self.models.iter_mut().for_each(|model| model.set_host(slot, state));
    }

    fn table_changes(&mut self) {
        if self.rng.one_in(12) {
            let service = |address: &str| ServiceKey {
                address: address.parse().expect("address"),
                port: PORT,
                udp: false,
            };
            for address in [VIP4, VIP6] {
                self.f.redirect.remove_service(&service(address)).expect("removed");
            }
            return self.models.iter_mut().for_each(RedirectModel::remove_service);
        }
        let slot = self.rng.pick(&[Some(0), Some(0), Some(0), Some(1), Some(1), Some(1), None]);
        self.f.serve(&[slot.unwrap_or(NOBODY)]);
        self.models.iter_mut().for_each(|model| model.serve(slot));
    }

    fn copying_changes(&mut self) {
        let on = !self.rng.one_in(3);
        let policy = if on { CopyPolicy::Syns } else { CopyPolicy::Off };
        self.copies.set(policy).expect("set");
        self.models.iter_mut().for_each(|model| model.set_copying(on));
    }

    /// Lets time pass, as long as one of the ages, or a second more.
    fn time_passes(&mut self) {
        let ages = [1, 1, 2, 10, 11, 11, 30, 31, 120, 121, 600, 601];
        let ticks = if self.rng.one_in(40) { 10_801 } else { self.rng.pick(&ages) };
        for _ in 0..ticks {
            self.f.redirect.tick().expect("ticks");
            self.models.iter_mut().for_each(RedirectModel::tick);
        }
        self.seen.forgotten += self.f.redirect.age_flows().expect("ages");
        self.models.iter_mut().for_each(RedirectModel::age_flows);
    }

    fn client_sends(&mut self) {
        let frame = self.draw();
        let bytes = frame.build();
        let (verdict, out) = self.f.send(&bytes);
        let family = usize::from(frame.source.0.is_ipv6());
        let (became, shown) = self.models[family].client_sends(&bytes[14..]);
        let at = format!("{}: {frame:?}", self.at);
        match became {
            Became::Sent { slot } => {
                assert_eq!(verdict, REDIRECT, "{at}");
                let host = HOSTS[usize::from(slot)];
                let (header, inner) = outer(&out);
                assert_eq!(header.target, if family == 0 { host.0 } else { host.1 }, "{at}");
                assert_eq!(inner, frame.clone().ttl(63).build()[14..], "{at}");
                self.seen.sent[usize::from(slot)] += 1;
            }
            Became::Plain => {
                assert_eq!((verdict, out), (PASS, bytes), "{at}");
                self.seen.plain += 1;
            }
            Became::Refused => {
                assert_eq!(verdict, STOLEN, "{at}");
                self.seen.refused += 1;
            }
        }
        assert_eq!(self.copied(), shown, "{at}");
        match shown {
            Some(Shown::Syn { .. }) => self.seen.syns += 1,
            Some(Shown::Opened) => self.seen.opened += 1,
            None => {}
        }
        let [client, server] = [frame.source, frame.target].map(Into::into);
        let words = self.models[family].words(frame.source.1);
        assert_eq!(self.places.words(client, server), words, "{at}");
    }

    /// The part of the last packet that the cache was shown.
    fn copied(&mut self) -> Option<Shown> {
        let mut all = Vec::new();
        self.copies.drain(|copied| {
            let slot = copied.way as u8;
            all.push(if copied.is_opened { Shown::Opened } else { Shown::Syn { slot } });
            true
        });
        assert!(all.len() <= 1, "{}: {all:?}", self.at);
        all.pop()
    }

    fn draw(&mut self) -> Frame {
        let most = if self.rng.one_in(2) { BUSY_TUPLES } else { TUPLES };
        let port = 40000 + self.rng.below(most) as u16;
        let frame = if self.rng.one_in(3) { request6(port) } else { request(port) };
        let usual = [SYN, SYN, ACK, ACK, ACK | PSH];
        let rare = [FIN | ACK, FIN | ACK, RST, RST | ACK, SYN | ACK];
        let flags = if self.rng.one_in(4) { self.rng.pick(&rare) } else { self.rng.pick(&usual) };
        let payload = if flags & PSH != 0 { 100 } else { 0 };
        frame.seq(self.rng.draw() as u32).flags(flags).payload(payload)
    }
}
