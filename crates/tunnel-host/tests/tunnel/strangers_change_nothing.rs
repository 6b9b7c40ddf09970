//! A third host sends garbage, and what it has overheard.

use crate::bed::{A, B, Bed, INSIDE, OUTSIDE, PORT, at};
use crate::relay::{self, Switches};
use crate::traffic::{pattern, ping, tcp};
use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::time::Duration;

const RELAY: &str = "10.77.0.9";
const STRANGER: &str = "10.77.0.13";

#[test]
fn garbage_and_replays_are_counted_and_dropped() {
    let Some(mut bed) = Bed::new() else { return };
    for address in [RELAY, STRANGER] {
        bed.ip(B, &["address", "add", &format!("{address}/24"), "dev", "w0"]);
    }
    let switches = Switches::default();
    let used = switches.clone();
    let ends = OUTSIDE.map(|it| at(it).parse().expect("an address"));
    let listen = at(RELAY).parse().expect("an address");
    let relay = bed.inside(B, move || relay::run(listen, ends, Duration::from_millis(1), &used));
    for end in [A, B] {
        let listen = bed.tun(end, "").replace("[::]", OUTSIDE[end]);
        bed.write(end, &listen, &format!("address = \"{}\"", at(RELAY)));
    }
    bed.start_both();
    assert_eq!(ping(&bed, INSIDE[B], 20, 56), 20);
    tcp(&bed, INSIDE[B], 1 << 20);
    let before = bed.status(A).expect("an answer");
    switches.ends.store(true, Ordering::Relaxed);
    let overheard = relay.join().expect("the relay");
    assert!(overheard.len() > 500, "{} datagrams", overheard.len());

    // Both directions of it, and each with a changed byte, and noise of any length.
    let stranger = bed.inside(B, move || {
        let socket = UdpSocket::bind((STRANGER, 4000)).expect("a port");
        socket.connect((OUTSIDE[A], PORT)).expect("a way");
        for (number, datagram) in overheard.iter().enumerate() {
            let mut changed = datagram.clone();
            changed[number % datagram.len()] ^= 1;
            for bytes in [datagram.clone(), changed, pattern(number % 1400, number as u64)] {
                let _ = socket.send(&bytes);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    stranger.join().expect("a stranger");
    let used = Switches::default();
    let again = used.clone();
    let relay = bed.inside(B, move || relay::run(listen, ends, Duration::from_millis(1), &again));
    bed.wait_up();
    assert_eq!(ping(&bed, INSIDE[B], 20, 56), 20);
    let after = bed.status(A).expect("an answer");
    let count = |status: &serde_json::Value, name: &str| {
        status["security"][name].as_u64().unwrap_or_else(|| panic!("{name} in {status}"))
    };
    for name in ["dropped_replayed", "dropped_malformed", "dropped_unknown_session"] {
        assert!(count(&after, name) > count(&before, name) + 50, "{name}: {after}");
    }
    assert!(count(&after, "dropped_forged") > count(&before, "dropped_forged"), "{after}");
    assert_eq!(after["peer"]["address"], at(RELAY), "nobody has led it away");
    assert_eq!(after["malformed"], 0, "nothing of it has come to the machine");
    used.ends.store(true, Ordering::Relaxed);
    relay.join().expect("the relay");
}
