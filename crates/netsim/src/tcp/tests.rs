//! Tests of the endpoints by scripts of sends and receives, in virtual time.
//!
//! A line is a time in ms, then `> segments` that must leave at that moment and
//! no other, or `< ack N` with `sack A-B` and `win N` for an acknowledgement
//! that arrives. For receivers `< N` is a segment that arrives and `> ack N`
//! what must leave. Timers run by themselves.

use super::*;
use std::collections::BTreeMap;

const MS: Ns = 1_000_000;

fn number(word: &str) -> u32 {
    word.parse().unwrap_or_else(|_| panic!("{word}: no number"))
}

fn range(word: &str) -> (u32, u32) {
    let (first, last) = word.split_once('-').expect("a range");
    (number(first), number(last) + 1)
}

fn acknowledgement(profile: &Profile, words: &[&str], now: Ns) -> Packet {
    let echo = now.saturating_sub(100 * MS);
    let window = profile.window_segments;
    let mut packet = Packet { window, sent_at: now, echo, ..Packet::default() };
    for pair in words.chunks(2) {
        match pair {
            ["ack", value] => packet.ack = number(value),
            ["sack", value] => {
                let at = packet.sack.iter().position(|it| *it == (0, 0)).expect("three blocks");
                packet.sack[at] = range(value);
            }
            ["win", value] => packet.window = number(value),
            other => panic!("{other:?}: no such words"),
        }
    }
    packet
}

struct Bench {
    profile: Profile,
    sender: Sender,
    now: Ns,
    sent: BTreeMap<u64, Vec<u32>>,
}

impl Bench {
    fn drain(&mut self) {
        while let Some(segment) = self.sender.poll_transmit(self.now, &self.profile) {
            self.sent.entry(self.now / MS).or_default().push(segment.seq);
        }
    }

    fn until(&mut self, at: Ns) {
        while let Some(deadline) = self.sender.poll_timeout().filter(|it| *it <= at) {
            self.now = self.now.max(deadline);
            self.sender.handle_timeout(self.now, &self.profile);
            self.drain();
        }
        self.now = at;
    }
}

/// Plays a script against a sender and returns it.
fn play(profile: Profile, segments: u32, script: &str) -> Sender {
    let sender = Sender::new(&profile, segments);
    let mut bench = Bench { profile, sender, now: 0, sent: BTreeMap::new() };
    let mut wanted: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    bench.sender.start();
    bench.drain();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at_ms = u64::from(number(words[0]));
        bench.until(at_ms * MS);
        match words[1] {
            ">" => {
                for word in &words[2..] {
                    let (first, end) = if word.contains('-') {
                        range(word)
                    } else {
                        (number(word), number(word) + 1)
                    };
                    wanted.entry(at_ms).or_default().extend(first..end);
                }
            }
            _ => {
                let ack = acknowledgement(&bench.profile, &words[2..], bench.now);
                bench.sender.handle_ack(bench.now, &bench.profile, &ack);
                bench.drain();
            }
        }
    }
    assert_eq!(bench.sent, wanted, "{script}");
    bench.sender
}

#[test]
fn slow_start_after_the_handshake() {
    let sender = play(
        Profile::NS2,
        10,
        "0 > 0
         200 < ack 1
         200 > 1 2
         300 < ack 3
         300 > 3 4 5
         400 < ack 5
         400 > 6 7 8
         450 < ack 11",
    );
    assert!(!sender.is_done(), "an acknowledgement of what was never sent is none");
    assert_eq!(sender.window(), (4.0, 64.0));
}

#[test]
fn a_lost_syn_costs_three_seconds_and_slow_start() {
    let sender = play(
        Profile::NS2,
        3,
        "0 > 0
         3000 > 0
         9000 > 0
         9100 < ack 1
         9100 > 1
         9300 < ack 2
         9300 > 2 3
         9400 < ack 4
         9400 > 4 5
         9500 < ack 6",
    );
    assert!(sender.is_done(), "three segments and one for each repeated SYN");
    assert_eq!((sender.counts().syn_timeouts, sender.window().1), (2, 2.0));
}

#[test]
fn timeouts_double_from_a_second_and_a_half() {
    let sender = play(
        Profile::NS2,
        10,
        "0 > 0
         200 < ack 1
         200 > 1 2
         1700 > 1
         4700 > 1
         10700 > 1
         10800 < ack 3
         10800 > 3 4",
    );
    assert_eq!((sender.counts().timeouts, sender.window().1), (3, 2.0));
}

/// Eight segments are out, and the first of them is lost.
const WINDOW_OF_EIGHT: &str = "
    0 > 0
    200 < ack 1
    200 > 1 2
    300 < ack 3
    300 > 3 4 5
    310 < ack 4
    310 > 6 7
    320 < ack 5
    320 > 8 9
    330 < ack 6
    330 > 10 11
    340 < ack 7
    340 > 12 13
    350 < ack 8
    350 > 14 15";

#[test]
fn reno_leaves_recovery_at_the_first_new_acknowledgement() {
    let script = format!(
        "{WINDOW_OF_EIGHT}
        410 < ack 8
        410 > 16
        411 < ack 8
        411 > 17
        412 < ack 8
        412 > 8
        413 < ack 8
        414 < ack 8
        415 < ack 8
        416 < ack 8
        416 > 18
        420 < ack 12
        1920 > 12"
    );
    let profile = Profile::NS2.with(Congestion::Reno);
    let sender = play(profile, 100, &script);
    assert_eq!(sender.counts().fast_retransmits, 1);
    assert_eq!(sender.counts().timeouts, 1, "the second hole needs a timeout");
}

#[test]
fn newreno_fills_a_hole_per_round_trip() {
    let script = format!(
        "{WINDOW_OF_EIGHT}
        410 < ack 8
        410 > 16
        411 < ack 8
        411 > 17
        412 < ack 8
        412 > 8
        512 < ack 10
        512 > 10
        612 < ack 12
        612 > 12
        712 < ack 18
        712 > 18-21"
    );
    let sender = play(Profile::NS2.with(Congestion::NewReno), 100, &script);
    assert_eq!((sender.counts().fast_retransmits, sender.counts().timeouts), (1, 0));
}

#[test]
fn sack_fills_what_it_knows_to_be_missing() {
    let script = format!(
        "{WINDOW_OF_EIGHT}
        410 < ack 8 sack 9-9
        410 > 16
        411 < ack 8 sack 9-9 sack 11-11
        411 > 17
        412 < ack 8 sack 9-9 sack 11-11 sack 13-13
        412 > 8
        413 < ack 8 sack 9-9 sack 11-11 sack 13-15
        414 < ack 8 sack 9-9 sack 11-11 sack 13-16
        415 < ack 8 sack 9-9 sack 11-11 sack 13-17
        512 < ack 10 sack 11-11 sack 13-17
        512 > 10
        513 < ack 10 sack 11-11 sack 13-18
        513 > 12"
    );
    let sender = play(Profile { sack: true, ..Profile::NS2.with(Congestion::Sack) }, 100, &script);
    assert_eq!((sender.counts().fast_retransmits, sender.counts().timeouts), (1, 0));
}

#[test]
fn the_receivers_window_is_obeyed() {
    play(
        Profile::NS2,
        100,
        "0 > 0
         200 < ack 1
         200 > 1 2
         300 < ack 3 win 1
         300 > 3
         400 < ack 4 win 3
         400 > 4-6",
    );
}

#[test]
fn vegas_stops_growing_before_a_loss() {
    // Each acknowledgement comes after a round trip that grows with what is out: the path holds ten
    // segments, and others queue.
    let profile = Profile::NS2.with(Congestion::Vegas);
    let mut sender = Sender::new(&profile, 5000);
    sender.start();
    let (mut now, mut una, mut cwnd_max) = (0u64, 0u32, 0.0f64);
    while !sender.is_done() {
        let mut count = 0u32;
        while sender.poll_transmit(now, &profile).is_some() {
            count += 1;
        }
        now += 100 * MS + u64::from(count).saturating_sub(10) * 10 * MS;
        for _ in 0..count {
            una += 1;
            let ack = Packet { ack: una, window: 64, ..Packet::default() };
            sender.handle_ack(now, &profile, &ack);
        }
        cwnd_max = cwnd_max.max(sender.window().0);
    }
    assert!((8.0..20.0).contains(&cwnd_max), "{cwnd_max}");
    assert_eq!(sender.counts().timeouts, 0);
}

/// Plays a script against a receiver.
fn receive(profile: Profile, script: &str) {
    let mut receiver = Receiver::default();
    let (mut sent, mut wanted) = (Vec::new(), Vec::new());
    let drain = |receiver: &mut Receiver, now, sent: &mut Vec<(u64, u32)>| {
        sent.extend(receiver.poll_transmit(now, &profile).map(|it| (now / MS, it.ack)));
    };
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at_ms = u64::from(number(words[0]));
        while let Some(deadline) = receiver.poll_timeout().filter(|it| *it <= at_ms * MS) {
            receiver.handle_timeout(deadline);
            drain(&mut receiver, deadline, &mut sent);
        }
        if words[1] == ">" {
            wanted.push((at_ms, number(words[3])));
            continue;
        }
        let seq = number(words[2]);
        let kind = if seq == 0 { Kind::Syn } else { Kind::Data };
        let packet = Packet { seq, kind, push: words.contains(&"push"), ..Packet::default() };
        receiver.handle_packet(at_ms * MS, &profile, &packet);
        drain(&mut receiver, at_ms * MS, &mut sent);
    }
    assert_eq!(sent, wanted, "{script}");
}

#[test]
fn the_sink_delays_a_lone_segment_and_the_syn() {
    receive(
        Profile::NS2,
        "50 < 0
         150 > ack 1
         250 < 1
         251 < 2
         251 > ack 3
         252 < 3
         352 > ack 4
         400 < 3
         500 > ack 4
         510 < 4 push
         510 > ack 5",
    );
}

#[test]
fn a_hole_is_reported_at_once_and_its_filling_too() {
    receive(
        Profile::NS2,
        "0 < 0
         100 > ack 1
         110 < 1
         111 < 3
         111 > ack 2
         112 < 4
         112 > ack 2
         113 < 2
         113 > ack 5
         114 < 2
         114 > ack 5
         115 < 5
         215 > ack 6",
    );
}

#[test]
fn a_syn_is_acknowledged_at_once_by_a_modern_receiver() {
    receive(
        Profile::NS3,
        "0 < 0
         0 > ack 1
         100 < 1
         100 > ack 2
         200 < 2
         400 > ack 3",
    );
}

#[test]
fn a_receiver_reports_the_newest_block_first() {
    let profile = Profile { sack: true, ..Profile::NS2 };
    let mut receiver = Receiver::default();
    let mut last = Packet::default();
    for seq in [0, 1, 5, 9, 7, 3] {
        let kind = if seq == 0 { Kind::Syn } else { Kind::Data };
        receiver.handle_packet(0, &profile, &Packet { seq, kind, ..Packet::default() });
        last = receiver.poll_transmit(0, &profile).unwrap_or(last);
    }
    assert_eq!((last.ack, last.sack), (2, [(3, 4), (9, 10), (7, 8)]));
}

/// Times at which a sender that hears nothing more sends, in ms after its last acknowledgement.
fn silence(profile: Profile, flight: u32) -> Vec<u64> {
    let mut sender = Sender::new(&profile, 1000);
    sender.start();
    let (mut now, mut una) = (0, 0);
    let drain = |sender: &mut Sender, now| {
        std::iter::from_fn(|| sender.poll_transmit(now, &profile)).count() as u32
    };
    let mut sent = drain(&mut sender, now);
    while una == 0 || sent < flight {
        now += 100 * MS;
        una += sent;
        let ack = Packet { ack: una, window: flight, echo: now - 100 * MS, ..Packet::default() };
        sender.handle_ack(now, &profile, &ack);
        sent = drain(&mut sender, now);
    }
    let silent_from = now;
    let mut times = Vec::new();
    while let Some(at) = sender.poll_timeout().filter(|at| *at < silent_from + 12_000 * MS) {
        sender.handle_timeout(at, &profile);
        if drain(&mut sender, at) > 0 {
            times.push((at - silent_from) / MS);
        }
    }
    times
}

#[test]
fn a_modern_sender_keeps_the_clocks_of_linux() {
    // Linux 6.18 with a round trip of 100 ms: TLP at 0.21, then 0.53, 1.17, 2.41, 4.9 and 10.0 s
    // after the last data. Its timer wheel adds some percent.
    let measured = [210.0, 530.0, 1170.0, 2410.0, 4900.0, 10_000.0];
    let ours = silence(Profile { window_segments: 4096, ..Profile::MODERN }, 40);
    assert_eq!(ours.len(), measured.len(), "{ours:?}");
    for (ours, measured) in ours.iter().zip(measured) {
        assert!((*ours as f64 / measured - 1.0).abs() < 0.06, "{ours} {measured}");
    }
}

#[test]
fn modern_syns_are_linear_at_first() {
    // Linux 6.18 repeats a SYN at 1.03, 2.05, 3.08, 4.10, 5.13, 7.15 and 11.37 s.
    let profile = Profile::MODERN;
    let mut sender = Sender::new(&profile, 10);
    sender.start();
    let mut times = Vec::new();
    while let Some(_segment) =
        sender.poll_transmit(times.last().map_or(0, |s| s * 1000 * MS), &profile)
    {
        let at = sender.poll_timeout().unwrap();
        sender.handle_timeout(at, &profile);
        times.push(at / (1000 * MS));
        if times.len() == 7 {
            break;
        }
    }
    assert_eq!(times, [1, 2, 3, 4, 5, 7, 11]);
}

#[test]
fn a_modern_sender_recovers_a_window_from_head_and_tail() {
    // Ten segments are out, all of them lost; the edge has resent the head and the tail. The hole
    // between them is sent again at once, as measured with Linux.
    let sender = play(
        Profile { congestion: Congestion::NewReno, ..Profile::MODERN },
        10,
        "0 > 0
         100 < ack 1
         100 > 1-10
         200 < ack 2 sack 10-10
         225 > 2
         325 < ack 3 sack 10-10
         325 > 3 4
         425 < ack 5 sack 10-10
         425 > 5-7
         525 < ack 11",
    );
    assert!(sender.is_done());
    assert_eq!((sender.counts().timeouts, sender.counts().fast_retransmits), (0, 1));
}
