//! The edge's table of connections: what it learns, keeps, forgets and refuses.

use crate::common::edge::*;
use crate::common::{ACK, FIN, REDIRECT, RST, STOLEN};
use crate::common::{Capture, is_root};
use holdfast_wire::seq::SeqNo;
use std::time::{Duration, Instant};

#[test]
fn bounds_of_a_flow_follow_what_was_sent_and_plausibly_acknowledged() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("bounds", false, None);
    f.edge.set_current(1, Some(0)).expect("fence");
    assert_eq!(f.bounds(), None);
    f.member_sends(0, &syn_ack(40000).build());
    let start = f.bounds().expect("flow");
    assert_eq!(start.seq_end, SeqNo(SERVER_ISS + 1));
    assert_eq!(start.right_edge, SeqNo(CLIENT_ISS + 1 + 65160), "unscaled");
    assert_eq!(start.tsval, 1000);
    assert_eq!(start.client_ack, SeqNo(SERVER_ISS));
    let timestamps = [1, 1, 8, 10, 0, 0, 3, 0xf0, 0, 0, 0, 8];
    f.member_sends(0, &reply().payload(700).window(200).options(&timestamps).build());
    // Older packets move nothing back, and empty ones nothing forward.
    f.member_sends(0, &reply().seq(SERVER_ISS.wrapping_add(702)).window(1).build());
    f.member_sends(0, &reply().payload(10).window(1).build());
    let end = SERVER_ISS.wrapping_add(701);
    f.client_sends(&request().ack(SERVER_ISS.wrapping_add(301)).build());
    f.client_sends(&request().ack(SERVER_ISS.wrapping_add(201)).build());
    f.client_sends(&request().ack(end.wrapping_add(1)).build());
    let bounds = f.bounds().expect("flow");
    assert_eq!(bounds.seq_end, SeqNo(end));
    assert_eq!(bounds.right_edge, SeqNo(CLIENT_ISS + 1 + 200 * 512));
    assert_eq!(bounds.tsval, 0x3f0);
    assert_eq!(bounds.client_ack, SeqNo(SERVER_ISS.wrapping_add(301)));
    assert_eq!(f.edge.all_bounds().expect("flows"), [bounds]);
    // A FIN takes a sequence number, with payload in front of it or without.
    f.member_sends(0, &reply().seq(end).flags(FIN | ACK).build());
    assert_eq!(f.bounds().expect("flow").seq_end, SeqNo(end.wrapping_add(1)));
    f.member_sends(0, &reply().seq(end).payload(3).flags(FIN | ACK).build());
    assert_eq!(f.bounds().expect("flow").seq_end, SeqNo(end.wrapping_add(4)));
}

/// After a reboot of the edge's host the flows are older than the table. Their window scale is not
/// known, so what depends on it is not judged.
#[test]
fn a_flow_that_is_older_than_the_table_is_learnt() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("learnt", false, None);
    f.edge.set_current(1, Some(0)).expect("fence");
    f.edge.set_tap(1, true).expect("tap");
    let capture = Capture::new("m1");
    for flags in [RST, RST | ACK, FIN | ACK] {
        f.member_sends(0, &reply().flags(flags).build());
        assert_eq!(f.bounds(), None, "a flow that ends");
    }
    f.member_sends(0, &reply().payload(700).build());
    let bounds = f.bounds().expect("learnt");
    assert_eq!((bounds.iss, bounds.seq_end), (None, SeqNo(SERVER_ISS.wrapping_add(701))));
    f.member_sends(0, &reply().seq(bounds.seq_end.0).payload(9).build());
    assert_eq!(f.bounds().expect("flow").seq_end, SeqNo(SERVER_ISS.wrapping_add(710)));
    let far = request().payload(5).seq(CLIENT_ISS + 1_000_000).ack(SERVER_ISS.wrapping_add(5000));
    f.client_sends(&far.build());
    assert_eq!((capture.tcp_frames().len(), f.count("implausible")), (1, 0));
    f.member_sends(0, &syn_ack(40000).build());
    assert_eq!(f.bounds().expect("anew").iss, Some(SeqNo(SERVER_ISS)));
    assert_eq!((f.count("learnt"), f.count("untracked")), (1, 0));
}

#[test]
fn a_full_flow_table_refuses_new_flows_and_keeps_the_old() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("full", false, None);
    f.edge.set_current(1, Some(0)).expect("fence");
    let verdicts = [40000, 40001, 40002].map(|port| f.member_sends(0, &syn_ack(port).build()).0);
    assert_eq!(verdicts, [REDIRECT, REDIRECT, STOLEN]);
    assert_eq!(f.member_sends(0, &syn_ack(40000).build()).0, REDIRECT, "a repeat");
    // A flow that is missing in the table may be older than the table.
    let mut older = reply();
    older.target.1 = 40002;
    assert_eq!(f.member_sends(0, &older.build()).0, REDIRECT);
    assert_eq!((f.count("refused_flows"), f.count("untracked")), (1, 1));
}

/// The current member is asked about a client that vanishes silently; if it does not know the flow
/// either, that makes room.
#[test]
fn a_flow_that_nobody_knows_any_more_makes_room() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("vanished", false, None);
    f.edge.set_current(1, Some(0)).expect("fence");
    let speak = |f: &Fixture, port: u16| {
        f.member_sends(0, &syn_ack(port).build());
        let mut ack = request().ack(SERVER_ISS + 1);
        ack.source.1 = port;
        f.client_sends(&ack.build());
    };
    speak(&f, 40000);
    let (second, now) = (Duration::from_secs(1), Instant::now());
    let age =
        |f: &mut Fixture, after: Duration, ask| f.edge.age_flows(now + after, ask).expect("age");
    assert_eq!(age(&mut f, Duration::ZERO, true), []);
    assert_eq!(age(&mut f, 50 * second, true), [], "there is room");
    assert_eq!(age(&mut f, 61 * second, false), [], "nobody can answer");
    assert_eq!(age(&mut f, 61 * second, true), [key(40000)]);
    assert_eq!(age(&mut f, 62 * second, true), [], "asked already");
    speak(&f, 40001);
    assert_eq!(age(&mut f, 63 * second, true), []);
    assert_eq!(f.edge.flow_count(), 2);
    let asked = [key(40000), key(40001)];
    let mut together = age(&mut f, 95 * second, true);
    together.sort();
    assert_eq!(together, asked, "there is no room");
    // One of the clients speaks before the answer comes.
    std::thread::sleep(Duration::from_millis(30));
    f.member_sends(0, &reply().payload(5).build());
    assert_eq!(f.edge.forget_vanished(&asked).expect("forget"), 1);
    assert_eq!(f.edge.forget_vanished(&asked).expect("forget"), 0);
    assert!(f.bounds().is_some() && f.edge.bounds(&key(40001)).is_none());
    assert_eq!(f.member_sends(0, &syn_ack(40002).build()).0, REDIRECT);
}

#[test]
fn only_flows_that_are_over_age() {
    const TICK_MAX: Duration = Duration::from_millis(10);
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("age", false, None);
    f.edge.set_current(1, Some(0)).expect("fence");
    let ack = SERVER_ISS + 1;
    let age = |f: &mut Fixture| {
        let (second, now) = (Duration::from_secs(1), Instant::now());
        let mut at = |after: Duration| {
            assert_eq!(f.edge.age_flows(now + after, false).expect("age"), []);
            f.edge.flow_count()
        };
        let before = at(Duration::ZERO);
        assert_eq!(at(second), before, "not yet");
        let gone = before - at(2 * second);
        // The programs' clock moves with the timer's ticks, so what comes next must be later.
        std::thread::sleep(2 * TICK_MAX);
        gone
    };
    let begin = |f: &Fixture| f.member_sends(0, &syn_ack(40000).build());
    begin(&f);
    assert_eq!(age(&mut f), 1, "half open");
    begin(&f);
    f.client_sends(&request().ack(ack).build());
    assert_eq!(age(&mut f), 0, "established");
    f.client_sends(&request().ack(ack).seq(CLIENT_ISS + 5_000_000).flags(RST).build());
    assert_eq!(age(&mut f), 0, "a RST outside the window");
    f.client_sends(&request().ack(ack).seq(CLIENT_ISS + 2).flags(RST).build());
    assert_eq!(age(&mut f), 0, "a RST inside the window is challenged");
    f.client_sends(&request().ack(ack).flags(FIN | ACK).build());
    assert_eq!(age(&mut f), 0, "half closed");
    f.member_sends(0, &reply().flags(FIN | ACK).build());
    assert_eq!(age(&mut f), 1, "closed");
    begin(&f);
    f.client_sends(&request().ack(ack).build());
    f.client_sends(&request().ack(ack).flags(RST).build());
    assert_eq!(age(&mut f), 1, "reset");
}
