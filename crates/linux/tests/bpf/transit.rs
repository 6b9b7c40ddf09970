//! An edge of a transit group, frame by frame: which string a packet takes, to which one its flow
//! is moved, and what is left to the plain route.

use crate::common::transit::*;
use crate::common::{
    ACK, Context, Frame, PASS, REDIRECT, STOLEN, SYN, TRACE_MARK, assert_too_big, ifindex, is_root,
    sh, sums_are_right,
};
use holdfast_linux::bpf::{
    How, Question, STRINGS_MAX, TRANSIT_SLOTS, Transit, TransitConfig, TransitState, Verdict,
};

fn udp(mut frame: Vec<u8>) -> Vec<u8> {
    frame[23] = 17;
    frame
}

/// An ICMP error from `source` to `target` that quotes `bytes` bytes of a frame.
fn icmp_error(source: &str, target: &str, quoted: &[u8], bytes: usize) -> Vec<u8> {
    let frame = Frame::new((address(source), 0), (address(target), 0));
    let v6 = address(source).is_ipv6();
    let mut error = frame.payload(8 + bytes).build();
    let l4 = if v6 { 54 } else { 34 };
    error.truncate(l4);
    // The types are "too big" and "fragmentation needed".
    error.extend(if v6 { [2, 0, 0, 0, 0, 0, 5, 0] } else { [3, 4, 0, 0, 0, 0, 5, 0] });
    error.extend(&quoted[14..14 + bytes]);
    error[if v6 { 20 } else { 23 }] = if v6 { 58 } else { 1 };
    error
}

#[test]
fn flows_keep_their_string_and_differ() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("keep", true, false);
    assert_eq!(f.transit.state().expect("table"), None);
    assert_eq!(f.outside_sends(&request(1).build()).0, STOLEN, "a new table is closed");
    f.use_both();
    let strings: Vec<usize> =
        (1..=8).map(|port| f.string_of(&request(port).flags(SYN).build())).collect();
    assert!(strings.contains(&0) && strings.contains(&1), "{strings:?}");
    for round in 0..3 {
        for port in 1..=8 {
            let here = f.string_of(&request(port).seq(round).build());
            assert_eq!(here, strings[usize::from(port) - 1], "port {port}");
        }
    }
    assert_eq!((f.count("new"), f.count("into"), f.count("no_string")), (8, 32, 1));
    for (frame, name) in [
        (udp(request(1).build()), "UDP"),
        (request6(1).build(), "IPv6"),
        (request(9).build(), "TCP"),
    ] {
        let string = f.string_of(&frame);
        assert_eq!(f.string_of(&frame), string, "{name}");
    }
    assert_eq!(f.count("new"), 11);
    let per_string = f.transit.sweeper().expect("flows").sweep();
    assert_eq!(per_string.iter().sum::<u64>(), 11);
    assert_eq!(per_string.len(), STRINGS_MAX);
}

#[test]
fn hops_and_sums_are_right_in_both_directions() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("hops", true, false);
    f.use_strings(0b001);
    for frame in [request(1), request6(1)] {
        let (verdict, out) = f.outside_sends(&frame.build());
        assert_eq!(verdict, REDIRECT);
        assert_eq!(out, frame.clone().ttl(frame.ttl - 1).build());
        assert!(sums_are_right(&out));
    }
    let reply6 = Frame::new((address(SERVER6), 80), (address(CLIENT6), 1)).payload(9);
    for frame in [reply(1), reply6] {
        let (verdict, out) = f.string_sends(0, &frame.build());
        assert_eq!(verdict, REDIRECT);
        let mut expected = frame.clone().ttl(frame.ttl - 1).build();
        expected[..6].copy_from_slice(&CLIENT_MAC);
        expected[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        assert_eq!(out, expected);
    }
    assert_eq!((f.count("into"), f.count("out")), (2, 2));
}

#[test]
fn what_is_not_for_the_strings_takes_the_plain_route() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("plain", true, false);
    f.use_strings(0b001);
    let to = |target: &str| Frame::new((address(CLIENT4), 1), (address(target), 80));
    let mut other_host = request(1).build();
    other_host[5] = 9;
    let mut arp = request(1).build();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    for (name, frame) in [
        ("for this edge", to("10.8.0.1").build()),
        ("for this edge, on a string", to("10.11.0.1").build()),
        ("among clients", to("10.8.0.7").build()),
        ("for nobody", to("192.0.2.1").build()),
        ("the last hop", request(1).ttl(1).build()),
        ("longer than the string takes", request(1).payload(1600).build()),
        ("for another host", other_host),
        ("ARP", arp),
    ] {
        assert_eq!(f.outside_sends(&frame), (PASS, frame.clone()), "{name}");
    }
    let from = |target: &str| Frame::new((address(SERVER4), 80), (address(target), 1));
    for (name, frame) in [
        ("a heartbeat", udp(from("10.11.0.1").build())),
        ("back into a string", from("10.7.0.1").build()),
        ("the last hop", reply(1).ttl(1).build()),
        ("a client that is not known yet", from("10.8.0.7").build()),
    ] {
        assert_eq!(f.string_sends(0, &frame), (PASS, frame.clone()), "{name}");
    }
    assert_eq!(f.count("into"), 0);
    // What the stack cuts or answers has a flow all the same.
    assert_eq!((f.count("new"), f.count("learned"), f.count("slow_path")), (1, 1, 3));
}

/// The plain route leads through string 0, which may be another one than the flow's, and narrower
/// or wider.
#[test]
fn what_is_too_long_for_its_string_takes_no_other_one() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("long", true, false);
    sh("ip link set n0 mtu 1480");
    f.use_strings(0b010);
    for frame in [request(1), request6(1)] {
        let fits = frame.clone().payload(1440).build();
        assert_eq!(f.string_of(&fits), 1, "longer than the plain route's string takes");
        let long = frame.payload(1500).build();
        let (verdict, out) = f.outside_sends(&long);
        assert_eq!(verdict, REDIRECT);
        assert_too_big(&out, &long, 1500);
    }
    let quoted = reply(1).payload(1600).build();
    let error = icmp_error(CLIENT4, SERVER4, &quoted, 1550);
    assert_eq!(f.outside_sends(&error).0, PASS, "an error is not answered by one");
    for offset in [(0x20, 0), (0, 8)] {
        let mut fragment = request(1).payload(1600).build();
        (fragment[20], fragment[21]) = offset;
        assert_eq!(f.outside_sends(&fragment).0, PASS, "the stack cuts fragments");
        let asked = Context { ifindex: ifindex("nc"), mark: TRACE_MARK, ..Context::default() };
        assert_eq!(f.lab.run(OUTSIDE, &fragment, asked).0, PASS, "and a question is told so");
    }
    assert_eq!((f.count("too_big"), f.count("slow_path")), (2, 3));
    // Where the plain route is the flow's string, the stack cuts the packet or answers.
    f.use_strings(0b001);
    let long = request(2).payload(1600).build();
    assert_eq!(f.outside_sends(&long), (PASS, long.clone()));
    assert_eq!((f.count("too_big"), f.count("slow_path")), (2, 4));
}

/// The kernel looks up the route of such a frame without its length.
#[test]
fn the_segments_of_a_large_frame_fit_where_they_leave() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("large", true, false);
    f.use_strings(0b001);
    sh("ip link set nc mtu 1300");
    let frame = reply(1).payload(3000).build();
    let leaves = |gso_size| {
        let context = Context { ifindex: ifindex("n0"), gso_size, ..Context::default() };
        f.lab.run(STRING, &frame, context).0
    };
    assert_eq!((leaves(1200), f.count("slow_path")), (REDIRECT, 0));
    assert_eq!((leaves(1400), f.count("slow_path")), (PASS, 1));
}

#[test]
fn only_the_flows_of_a_dead_string_move() {
    if !is_root() {
        return;
    }
    for (name, return_all) in [("move", false), ("moveall", true)] {
        let mut f = Fixture::new(name, true, return_all);
        f.use_both();
        let ports = 1..=8;
        let before: Vec<usize> =
            ports.clone().map(|port| f.string_of(&request(port).build())).collect();
        f.use_strings(0b010);
        for port in ports.clone() {
            assert_eq!(f.string_of(&request(port).build()), 1);
        }
        let moved = before.iter().filter(|string| **string == 0).count() as u64;
        assert!(moved > 0);
        assert_eq!((f.count("moved"), f.count("new")), (moved, 8));
        f.use_both();
        let after: Vec<usize> = ports.map(|port| f.string_of(&request(port).build())).collect();
        if return_all {
            assert_eq!(after, before);
        } else {
            assert_eq!(after, [1; 8]);
        }
        assert_eq!(f.count("returned"), if return_all { moved } else { 0 });
        f.use_strings(0);
        assert_eq!(f.outside_sends(&request(1).build()).0, STOLEN);
        assert_eq!(f.count("no_string"), 1);
        f.transit.detach().expect("detach");
    }
}

#[test]
fn one_edge_leads_and_the_other_follows() {
    if !is_root() {
        return;
    }
    for leads in [true, false] {
        let mut f = Fixture::new(if leads { "lead" } else { "follow" }, leads, false);
        f.use_slots(0b111, [0; TRANSIT_SLOTS]);
        // The other edge has put a flow on string 1.
        assert_eq!(f.string_sends(1, &reply(1).flags(SYN).build()).0, REDIRECT);
        assert_eq!(f.string_of(&request(1).flags(SYN | ACK).build()), 1);
        // The other edge moves the flow to string 2.
        f.string_sends(2, &reply(1).build());
        assert_eq!(f.string_of(&request(1).build()), if leads { 1 } else { 2 });
        assert_eq!(f.count("followed"), u64::from(!leads));
        // The leading edge follows, too, if its own string is dead.
        f.use_slots(0b100, [2; TRANSIT_SLOTS]);
        f.string_sends(2, &reply(1).build());
        assert_eq!(f.string_of(&request(1).build()), 2);
        assert_eq!((f.count("followed"), f.count("moved")), (1, 0));
        // What a dead string still delivers moves no flow, and begins none.
        f.string_sends(0, &reply(1).build());
        f.string_sends(0, &reply(2).build());
        assert_eq!(f.string_of(&request(1).build()), 2);
        assert_eq!((f.count("learned"), f.count("new")), (1, 0));
        f.transit.detach().expect("detach");
    }
}

#[test]
fn a_full_table_keeps_the_old_flows_and_hashes_the_new() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("full", true, false);
    f.use_both();
    let old: Vec<usize> = (1..=16).map(|port| f.string_of(&request(port).build())).collect();
    // These are both directions of flows without room, as the two edges see them.
    let there = |port| Frame::new((address("10.7.0.1"), port), (address(SERVER4), 80)).build();
    let back = |port| Frame::new((address(SERVER4), 80), (address("10.7.0.1"), port)).build();
    let new: Vec<usize> = (100..120).map(|port| f.string_of(&there(port))).collect();
    assert!(new.contains(&0) && new.contains(&1), "{new:?}");
    for (port, string) in (100..120).zip(&new) {
        assert_eq!((f.string_of(&there(port)), f.string_of(&back(port))), (*string, *string));
    }
    assert_eq!((f.count("new"), f.count("full")), (16, 60));
    for (port, string) in (1..=16).zip(old) {
        assert_eq!(f.string_of(&request(port).build()), string);
    }
    // Flows without room leave a dead string, too.
    f.use_strings(0b010);
    assert!((100..120).all(|port| f.string_of(&there(port)) == 1));
}

#[test]
fn fragments_and_what_has_no_ports_go_by_their_addresses() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("stateless", true, false);
    f.use_slots(0b111, std::array::from_fn(|slot| slot as u8 % 3));
    let pair = |port: u16, back: bool| {
        let (a, b) = ((address("10.7.0.1"), port), (address(SERVER4), 80));
        if back { Frame::new(b, a) } else { Frame::new(a, b) }
    };
    let fragment = |back| {
        let mut first = pair(1, back).payload(64).build();
        first[20] = 0x20;
        let mut second = pair(77, back).payload(64).build();
        (second[20], second[21]) = (0, 8);
        let (mut udp_first, mut udp_second) = (first.clone(), second.clone());
        (udp_first[23], udp_second[23]) = (17, 17);
        [first, second, udp_first, udp_second]
    };
    let mut echo = pair(1, false).build();
    echo[23] = 1;
    echo[34] = 8;
    let mut gre = pair(1, true).build();
    gre[23] = 47;
    let mut frames = vec![echo, gre];
    frames.extend(fragment(false));
    frames.extend(fragment(true));
    let strings: Vec<usize> = frames.iter().map(|frame| f.string_of(frame)).collect();
    assert_eq!(strings, vec![strings[0]; frames.len()]);
    assert_eq!((f.count("stateless"), f.count("new")), (frames.len() as u64, 0));
}

#[test]
fn icmp_errors_follow_the_flow_they_quote() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("icmp", true, false);
    f.use_slots(0b001, [0; TRANSIT_SLOTS]);
    let sent4 = reply(1).build();
    let sent6 = Frame::new((address(SERVER6), 80), (address(CLIENT6), 1)).payload(9).build();
    f.string_of(&request(1).build());
    f.string_of(&request6(1).build());
    // The flows stay on string 0, and packets without a flow go to 1 from now on.
    f.use_slots(0b011, [1; TRANSIT_SLOTS]);
    // The error comes from the client's own host, or from a router in front of it.
    for source in [CLIENT4, "10.8.0.9"] {
        for bytes in [28, 40] {
            assert_eq!(f.string_of(&icmp_error(source, SERVER4, &sent4, bytes)), 0, "{bytes}");
        }
        assert_eq!(f.string_of(&icmp_error(source, SERVER4, &sent4, 22)), 1, "a short quote");
        assert_eq!(f.string_of(&icmp_error(source, SERVER4, &reply(2).build(), 28)), 1, "no flow");
    }
    for source in [CLIENT6, "fd08::9"] {
        assert_eq!(f.string_of(&icmp_error(source, SERVER6, &sent6, 48)), 0);
        assert_eq!(f.string_of(&icmp_error(source, SERVER6, &sent6, 43)), 1, "a short quote");
    }
    assert_eq!((f.count("quoted"), f.count("new")), (6, 2));
}

/// Length of the shortest frame that the kernel accepts for a test run.
fn shortest(frame: &[u8]) -> usize {
    if frame[12] == 8 { 14 + 20 } else { 14 + 40 }
}

#[test]
fn truncated_and_hostile_frames_do_no_harm() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("hostile", true, false);
    f.use_both();
    let quote = icmp_error(CLIENT4, SERVER4, &reply(1).build(), 40);
    let quote6 = icmp_error(
        CLIENT6,
        SERVER6,
        &Frame::new((address(SERVER6), 80), (address(CLIENT6), 1)).build(),
        60,
    );
    let whole = [request(1).build(), udp(request(1).build()), request6(1).build(), quote, quote6];
    for frame in &whole {
        for len in shortest(frame)..=frame.len() {
            let verdict = f.outside_sends(&frame[..len]).0;
            assert!([PASS, REDIRECT, STOLEN].contains(&verdict), "{len} bytes: {verdict}");
            let verdict = f.string_sends(0, &frame[..len]).0;
            assert!([PASS, REDIRECT, STOLEN].contains(&verdict), "{len} bytes: {verdict}");
        }
        for at in 14..frame.len() {
            let mut changed = frame.clone();
            changed[at] ^= 0xff;
            f.outside_sends(&changed);
            f.string_sends(1, &changed);
        }
    }
    assert_eq!(f.string_of(&request(1).build()), f.string_of(&request(1).build()));
}

#[test]
fn a_question_is_answered_and_leaves_no_trace() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("trace", true, false);
    f.use_strings(0b010);
    let question = |port| Question {
        from: (address(CLIENT4), port).into(),
        to: (address(SERVER4), 80).into(),
        udp: false,
        syn: true,
        payload_bytes: 0,
    };
    f.string_of(&request(1).build());
    f.use_slots(0b111, [2; TRANSIT_SLOTS]);
    let before = (f.transit.counters(), f.transit.traffic());
    let ask = |question: &Question| f.transit.trace(question).expect("an answer");
    for (port, how, member) in [(1, How::Flow, 1), (2, How::New, 2)] {
        let answer = ask(&question(port));
        assert_eq!((answer.verdict, answer.how), (Verdict::Redirected, how));
        assert_eq!(answer.member, Some(member));
    }
    // The plain route would be another string.
    let long = Question { payload_bytes: 1600, ..question(1) };
    assert_eq!(ask(&long).verdict, Verdict::Dropped);
    let elsewhere = Question { to: (address("10.8.0.9"), 80).into(), ..question(1) };
    assert_eq!(ask(&elsewhere).verdict, Verdict::Plain);
    assert_eq!((f.transit.counters(), f.transit.traffic()), before);
    f.use_strings(0);
    assert_eq!(f.transit.trace(&question(1)).expect("an answer").verdict, Verdict::Dropped);
}

#[test]
fn table_and_flows_survive_the_daemon() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("survive", true, false);
    f.use_strings(0b001);
    assert_eq!(f.string_of(&request(1).build()), 0);
    f.use_slots(0b011, [1; TRANSIT_SLOTS]);
    let state = f.transit.state().expect("table");
    f.transit = Transit::attach(&f.config).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(f.transit.state().expect("table"), state);
    assert_eq!(f.string_of(&request(1).build()), 0);
    assert_eq!(f.string_of(&request(2).build()), 1);
    let closed = TransitState { usable: 0, is_closed: true, ..state.expect("set before") };
    f.transit.set_state(&closed).expect("table");
    f.transit = Transit::attach(&f.config).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(f.transit.state().expect("table"), Some(closed.clone()));
    f.transit.set_state(&TransitState { is_closed: false, ..closed }).expect("table");
    assert!(f.transit.state().expect("table").is_some_and(|state| !state.is_closed));
    let other = TransitConfig { flows_max: 32, ..f.config.clone() };
    assert!(Transit::attach(&other).is_err(), "maps of another size");
}
