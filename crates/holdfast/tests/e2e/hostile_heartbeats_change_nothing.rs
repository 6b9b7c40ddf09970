//! An attacker on a string forges heartbeats, repeats old ones and cuts them short: no string dies
//! from that, and no dead one looks alive.

use crate::wire::{Forger, Worker};
use crate::{transit, world};
use holdfast_lab::testbed::strings::{Cut, Edge, Strings};
use std::time::Duration;

/// Port on which the testbed's edges listen for heartbeats.
const PORT: u16 = 7710;

/// Bytes of a datagram's headers.
const HEADERS: usize = 28;

/// Heartbeats that pass a string's host within `ms`.
fn overhear(strings: &Strings, string: usize, ms: u64) -> Vec<Vec<u8>> {
    let worker = Worker::start(strings.string(string), |wire| {
        let mut heard = Vec::new();
        while wire.should_go_on() {
            // The checksum is not complete, since the hosts share a machine.
            let datagram = wire.next_datagram(PORT);
            heard.extend(datagram.map(|it| with_payload(&it, &it[HEADERS..])));
        }
        heard
    });
    transit::pause(ms);
    let heard = worker.stop();
    assert!(heard.len() > 10, "{} heartbeats", heard.len());
    heard
}

/// Sends datagrams as they are from a string's host.
fn send(strings: &Strings, string: usize, datagrams: Vec<Vec<u8>>) {
    let worker = Worker::start(strings.string(string), move |_| {
        let forger = Forger::open(None);
        datagrams.into_iter().filter(|datagram| forger.send(datagram.clone())).count()
    });
    assert!(worker.stop() > 0);
}

/// A datagram with another payload; its checksum of 0 means that there is none.
fn with_payload(datagram: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut made = datagram[..HEADERS].to_vec();
    made.extend(payload);
    let total = (made.len() as u16).to_be_bytes();
    made[2..4].copy_from_slice(&total);
    let udp = ((made.len() - 20) as u16).to_be_bytes();
    made[24..26].copy_from_slice(&udp);
    made[26..28].fill(0);
    made
}

/// A datagram of string 1 with the addresses of string 2.
fn on_string_2(datagram: &[u8]) -> Vec<u8> {
    let mut made = datagram.to_vec();
    // These are the third octets of source and destination.
    (made[14], made[18]) = (2, 2);
    made
}

/// Forgeries that an attacker makes of heartbeats.
fn forgeries(heard: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut made = Vec::new();
    for datagram in heard.iter().take(12) {
        let payload = &datagram[HEADERS..];
        made.push(datagram.clone());
        made.extend(
            [0, 1, 8, payload.len() - 1].map(|len| with_payload(datagram, &payload[..len])),
        );
        made.push(with_payload(datagram, &[payload, &[0]].concat()));
        for at in [0, 5, 6, 7, 8, 16, 24, 32, 40, 55] {
            let mut changed = payload.to_vec();
            changed[at] ^= 0x81;
            made.push(with_payload(datagram, &changed));
        }
        // The same payload comes from another port.
        let mut elsewhere = with_payload(datagram, payload);
        elsewhere[21] ^= 1;
        made.push(elsewhere);
    }
    made
}

#[test]
fn forged_repeated_and_cut() {
    let _limit = world::limit(Duration::from_secs(90));
    let plan = transit::plan(&[100, 100], "mode = \"active/active\"");
    transit::with_strings(&plan, |strings| {
        let run = transit::counting(strings, 1500);
        let heard = overhear(strings, 0, 300);
        send(strings, 0, forgeries(&heard));
        // Heartbeats of one string are sent on the other.
        send(strings, 1, heard.iter().map(|datagram| on_string_2(datagram)).collect());
        transit::finish(strings, run);
        for edge in Edge::BOTH {
            assert!(transit::count(strings, edge, "beats.forged") > 20, "{}", edge.name());
            assert!(transit::count(strings, edge, "beats.replayed") > 0, "{}", edge.name());
            let events = transit::events(strings, edge);
            assert!(!events.contains(&"declare".to_owned()), "{}: {events:?}", edge.name());
        }
        // Old heartbeats do not make a dead string look alive.
        strings.cut(0, Cut::Both).expect("cut");
        for edge in Edge::BOTH {
            transit::wait_for_state(strings, edge, 0, "dead");
        }
        // The string's host itself still reaches both edges. On a busy machine heartbeats get
        // through before both rules are there.
        strings.restore(0, Cut::Both).expect("restored");
        strings.cut(0, Cut::From(Edge::Near)).expect("cut");
        strings.cut(0, Cut::From(Edge::Far)).expect("cut");
        transit::pause(500);
        for edge in Edge::BOTH {
            transit::wait_for_state(strings, edge, 0, "dead");
        }
        let returns =
            |edge| transit::events(strings, edge).iter().filter(|event| *event == "return").count();
        let before = Edge::BOTH.map(returns);
        for _ in 0..5 {
            send(strings, 0, heard.clone());
            transit::pause(50);
        }
        for edge in Edge::BOTH {
            assert_ne!(transit::member(strings, edge, 0)["state"], "alive");
        }
        assert_eq!(Edge::BOTH.map(returns), before);
    });
}
