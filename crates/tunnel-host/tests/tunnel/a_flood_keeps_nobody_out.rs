//! Strangers who know an end's public key send it first messages as fast as a kernel takes them.

use crate::bed::{A, B, Bed, INSIDE, OUTSIDE, PORT, SOON, wait};
use crate::traffic::ping;
use holdfast_tunnel::secure::{NoRandom, PublicKey, Random, SecretKey, Secure, Settings, Suites};
use quinn_udp::{Transmit, UdpSocketState};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const STRANGER: &str = "10.77.0.13";
/// Messages that the kernel takes at once.
const TOGETHER: usize = 64;
/// Ticks of a processor's time in a second (USER_HZ).
const TICKS_PER_S: f64 = 100.0;

struct Nothing;

impl Random for Nothing {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), NoRandom> {
        bytes.fill(7);
        Ok(())
    }
}

/// A first message for an end that has to look at it: its first MAC is right, and only its noise would
/// tell that a stranger sends it.
fn first_message(to: PublicKey, address: SocketAddr) -> Vec<u8> {
    let settings = Settings {
        key: SecretKey::from_random([9; 32]),
        peer: to,
        peer_address: Some(address),
        keepalive: None,
        suites: Suites::ALL,
    };
    let mut stranger = Secure::new(settings, Box::new(Nothing), Duration::ZERO);
    stranger.poll(Duration::ZERO, Duration::from_secs(1)).expect("it calls").bytes
}

/// Sends it until it is told to end, so many calls in a ms, or as fast as the kernel takes them; how
/// often.
fn flood(
    bed: &Bed,
    message: Vec<u8>,
    to: SocketAddr,
    calls_per_ms: Option<u32>,
    ends: Arc<AtomicBool>,
) -> JoinHandle<u64> {
    bed.inside(B, move || {
        let socket = UdpSocket::bind((STRANGER, 4000)).expect("a port");
        let state = UdpSocketState::new((&socket).into()).expect("a socket");
        let contents = message.repeat(TOGETHER);
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: &contents,
            segment_size: Some(message.len()),
            src_ip: None,
        };
        let (begun, mut sent, mut calls) = (Instant::now(), 0, 0);
        while !ends.load(Ordering::Relaxed) {
            let due = calls_per_ms.map(|it| Duration::from_millis((calls / it).into()));
            std::thread::sleep(due.unwrap_or_default().saturating_sub(begun.elapsed()));
            let done = state.try_send((&socket).into(), &transmit);
            (sent, calls) = (sent + u64::from(done.is_ok()) * TOGETHER as u64, calls + 1);
        }
        sent
    })
}

/// Seconds of a processor that an end has had.
fn processor_s(bed: &Bed, end: usize) -> f64 {
    let path = format!("/proc/{}/stat", bed.pid(end).as_raw_nonzero());
    let text = std::fs::read_to_string(path).expect("it runs");
    // Behind the name, which may have spaces: fields 14 and 15 of proc(5).
    let fields: Vec<&str> = text.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks: f64 = fields[11..13].iter().map(|it| it.parse::<f64>().expect("a number")).sum();
    ticks / TICKS_PER_S
}

/// Pings beside a flood; how many of `pings` were answered.
fn beside(bed: &Bed, calls_per_ms: Option<u32>, pings: u16) -> u16 {
    let to = SocketAddr::new(OUTSIDE[A].parse().expect("an address"), PORT);
    let message = first_message(bed.public_key(A).parse().expect("a key"), to);
    let before = bed.status(A).expect("an answer");
    let ends = Arc::new(AtomicBool::new(false));
    let (begun, processor) = (Instant::now(), processor_s(bed, A));
    let flood = flood(bed, message, to, calls_per_ms, ends.clone());
    let answered = ping(bed, INSIDE[B], pings, 56);
    let (took, processor) = (begun.elapsed().as_secs_f64(), processor_s(bed, A) - processor);
    let during = bed.status(A).expect("it answers its own");
    ends.store(true, Ordering::Relaxed);
    let sent = flood.join().expect("a flood");
    let count = |status: &serde_json::Value, name: &str| status["security"][name].as_f64();
    let more = |name| count(&during, name).expect(name) - count(&before, name).expect(name);
    let refused = more("dropped_flood");
    println!(
        "{:.0} first messages a second were sent, {:.0} came and were refused, at {:.2} us of a \
         processor each, with all else; {answered} of {pings} pings were answered",
        sent as f64 / begun.elapsed().as_secs_f64(),
        refused / took,
        processor / refused * 1e6,
    );
    assert!(refused > 10_000.0, "{during}");
    assert!(more("cookies_sent") <= 50.0 + 210.0 * (took + 2.0), "{during}");
    assert_eq!([more("handshakes"), more("roamed"), more("peer_restarts")], [0.0; 3], "{during}");
    answered
}

#[test]
fn a_session_goes_on_beside_a_million_a_second() {
    let Some(mut bed) = Bed::new() else { return };
    bed.ip(B, &["address", "add", &format!("{STRANGER}/24"), "dev", "w0"]);
    bed.write_tun(OUTSIDE);
    bed.start_both();
    assert_eq!(ping(&bed, INSIDE[B], 20, 56), 20);
    let answered = beside(&bed, Some(1_000_000 / 1000 / TOGETHER as u32), 200);
    assert!(answered >= 150, "{answered} of 200 pings were answered");
    // All that this machine can send: no promise, but it lives.
    beside(&bed, None, 50);
    wait("calm", SOON, || bed.is_up(A));
    assert_eq!(ping(&bed, INSIDE[B], 20, 56), 20);
}
