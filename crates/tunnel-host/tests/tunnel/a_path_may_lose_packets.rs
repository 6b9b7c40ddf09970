//! A tenth of all datagrams is lost in the middle, or all that are long, and nobody inside misses anything.

use crate::bed::{A, B, Bed, INSIDE, OUTSIDE, at, wait};
use crate::relay::{self, Switches};
use crate::traffic::{ping, tcp};
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where the relay listens: in the namespace of B.
const RELAY: &str = "10.77.0.9";
const FOUND_MAX: Duration = Duration::from_secs(20);

/// Starts both ends with a relay between them; the path's size is found.
fn start_relayed(bed: &mut Bed, switches: &Switches) -> JoinHandle<Vec<Vec<u8>>> {
    bed.ip(B, &["address", "add", &format!("{RELAY}/24"), "dev", "w0"]);
    let used = switches.clone();
    let ends = OUTSIDE.map(|it| at(it).parse().expect("an address"));
    let listen = at(RELAY).parse().expect("an address");
    let delay = Duration::from_millis(5);
    let relay = bed.inside(B, move || relay::run(listen, ends, delay, &used));
    for end in [A, B] {
        let listen = bed.tun(end, "").replace("[::]", OUTSIDE[end]);
        bed.write(end, &listen, &format!("address = \"{}\"", at(RELAY)));
    }
    bed.start_both();
    // B's way to the relay is no wire, and the relay cuts what is too long for the one to A.
    let sizes = [1472, 8972];
    wait("the path's size", FOUND_MAX, || [A, B].map(|end| udp_bytes(bed, end)) == sizes);
    relay
}

/// How long a datagram may be, as an end says.
fn udp_bytes(bed: &Bed, end: usize) -> u64 {
    bed.status(end).and_then(|it| it["udp_bytes_max"].as_u64()).unwrap_or(0)
}

#[test]
fn connections_and_pings_come_through_a_tenth_of_loss() {
    let Some(mut bed) = Bed::new() else { return };
    let switches = Switches::default();
    let relay = start_relayed(&mut bed, &switches);
    switches.lost_of_1000.store(100, Ordering::Relaxed);

    let answered = ping(&bed, INSIDE[B], 300, 56);
    assert!(answered >= 297, "{answered} of 300 pings were answered; without a tunnel it were 243");
    let begun = Instant::now();
    tcp(&bed, INSIDE[B], 4 << 20);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(30), "8 MiB took {took:?}");

    let status = bed.status(A).expect("an answer");
    let loss = status["machine"]["sending"]["loss"].as_f64().expect("a number");
    assert!((0.05..0.2).contains(&loss), "a tenth is lost, and {loss} is shown");
    let dropped = switches.dropped.load(Ordering::Relaxed);
    assert!(dropped > 100, "the relay has lost {dropped}");
    switches.ends.store(true, Ordering::Relaxed);
    relay.join().expect("the relay");
}

/// A route has changed to one that takes less, and no word of it comes.
#[test]
fn a_path_that_takes_less_than_before_is_found_out_at_once() {
    let Some(mut bed) = Bed::new() else { return };
    let switches = Switches::default();
    let relay = start_relayed(&mut bed, &switches);
    // Between two looks of 15 s.
    std::thread::sleep(Duration::from_secs(1));
    switches.longest.store(1400, Ordering::Relaxed);
    let begun = Instant::now();
    tcp(&bed, INSIDE[B], 1 << 20);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(6), "2 MiB took {took:?}");
    wait("the new size", FOUND_MAX, || [A, B].iter().all(|end| udp_bytes(&bed, *end) == 1392));
    tcp(&bed, INSIDE[B], 1 << 20);
    switches.ends.store(true, Ordering::Relaxed);
    relay.join().expect("the relay");
}
