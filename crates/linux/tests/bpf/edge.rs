//! The edge's decisions, frame by frame: where packets go, who is fenced, and which bounds are
//! kept; and the backup's tap drop.

use crate::common::claims::{arp, neighbour_discovery};
use crate::common::edge::*;
use crate::common::{ACK, Context, FIN, Frame, Lab, PASS, REDIRECT, RST, STOLEN, SYN};
use crate::common::{Capture, assert_too_big, counter, ifindex, is_root, sh, sums_are_right};
use holdfast_linux::bpf::{Edge, EdgeConfig, Question, TapDrop, Verdict};

#[test]
fn clients_reach_the_current_member_and_nobody_else() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("in", false, None);
    assert_eq!(f.edge.current().expect("fence"), (0, None));
    assert_eq!(f.client_sends(&request().build()).0, STOLEN);
    for (epoch, member) in [(1, 0), (2, 1), (3, 0)] {
        f.edge.set_current(epoch, Some(member)).expect("fence");
        assert_eq!(f.edge.current().expect("fence"), (epoch, Some(member)));
        for frame in [request().payload(9), request6().payload(9), request().flags(SYN)] {
            let (verdict, out) = f.client_sends(&frame.build());
            assert_eq!(verdict, REDIRECT);
            assert!(sums_are_right(&out));
            assert_eq!(out, hop(&frame, MEMBER_MACS[member], PORT_MACS[member]));
        }
    }
    let mut elsewhere = request();
    elsewhere.target.1 = 22;
    for frame in [request().ttl(1), request6().ttl(1), elsewhere] {
        assert_eq!(f.client_sends(&frame.build()), (PASS, frame.build()));
    }
    let mut fragment = request().payload(100).build();
    fragment[20] = 0x20;
    assert_eq!(f.client_sends(&fragment).0, STOLEN);
    f.edge.set_current(4, None).expect("fence");
    assert_eq!(f.client_sends(&request().build()).0, STOLEN);
    assert!(f.edge.set_current(5, Some(2)).is_err());
    assert_eq!((f.count("closed"), f.count("odd")), (2, 1));
    f.edge.detach().expect("detach");
}

#[test]
fn the_backup_gets_a_copy_of_what_carries_information() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("tap", false, None);
    f.edge.set_current(1, Some(0)).expect("fence");
    let capture = Capture::new("m1");
    f.client_sends(&request().payload(50).build());
    assert_eq!(capture.tcp_frames(), Vec::<Vec<u8>>::new());
    f.edge.set_tap(0, true).expect("tap");
    f.edge.set_tap(1, true).expect("tap");
    for frame in [
        request().payload(50),
        request6().payload(1),
        request().flags(SYN),
        request().flags(FIN | ACK),
        request().flags(RST),
    ] {
        let (_, out) = f.client_sends(&frame.build());
        assert_eq!(out, hop(&frame, MEMBER_MACS[0], PORT_MACS[0]));
        assert_eq!(capture.tcp_frames(), [hop(&frame, MEMBER_MACS[1], PORT_MACS[1])]);
    }
    f.client_sends(&request().build());
    assert_eq!(capture.tcp_frames(), Vec::<Vec<u8>>::new());
    assert_eq!(f.count("copied"), 5);
}

/// The members' links are part of the path: a packet that fits the primary's and not the backup's
/// would not be copied.
#[test]
fn a_packet_that_is_too_large_for_a_members_link_is_answered() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("mtu", false, None);
    f.edge.set_current(1, Some(0)).expect("fence");
    let frames = [request().payload(1300), request6().payload(1300)];
    let fits = |f: &Fixture| frames.clone().map(|frame| f.client_sends(&frame.build()).1);
    let forwarded = frames.clone().map(|frame| hop(&frame, MEMBER_MACS[0], PORT_MACS[0]));
    sh("ip link set e1 mtu 1290");
    assert_eq!(fits(&f), forwarded, "nothing goes to the other member yet");
    f.edge.set_tap(1, true).expect("tap");
    for (mtu, port) in [(1290, "e1"), (1280, "e0")] {
        sh(&format!("ip link set {port} mtu {mtu}"));
        for frame in &frames {
            let (verdict, out) = f.client_sends(&frame.build());
            assert_eq!(verdict, REDIRECT);
            assert_too_big(&out, &frame.build(), mtu);
        }
    }
    assert_eq!((f.count("too_big"), f.count("forwarded_in"), f.count("copied")), (4, 2, 0));
}

/// Urgent pointers are removed in both directions and in the copy: a kernel that saw one would take
/// the byte out of one member's stream.
#[test]
fn urgent_bytes_become_bytes_like_any_other() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("urgent", false, None);
    f.edge.set_current(1, Some(0)).expect("fence");
    f.edge.set_tap(1, true).expect("tap");
    let capture = Capture::new("m1");
    for frame in [request().payload(9), request6().payload(9), request().flags(FIN | ACK)] {
        let (verdict, out) = f.client_sends(&frame.clone().urgent(4).build());
        assert_eq!(verdict, REDIRECT);
        assert_eq!(out, hop(&frame, MEMBER_MACS[0], PORT_MACS[0]));
        assert_eq!(capture.tcp_frames(), [hop(&frame, MEMBER_MACS[1], PORT_MACS[1])]);
    }
    for frame in [reply().payload(70), reply6().payload(70)] {
        let (verdict, out) = f.member_sends(0, &frame.clone().urgent(1).build());
        assert_eq!(verdict, REDIRECT);
        assert_eq!(out, hop(&frame, CLIENT_MAC, EDGE_CLIENT_MAC));
    }
}

#[test]
fn a_trace_names_the_current_member_and_copies_nothing() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("trace", false, None);
    f.edge.set_current(1, Some(1)).expect("fence");
    f.edge.set_tap(0, true).expect("tap");
    let capture = Capture::new("m0");
    let before = f.edge.counters();
    let question = Question {
        from: format!("{CLIENT4}:40000").parse().expect("address"),
        to: format!("{VIP4}:{PORT}").parse().expect("address"),
        udp: false,
        syn: true,
        payload_bytes: 0,
    };
    let traced = f.edge.trace(&question).expect("asked");
    assert_eq!((traced.verdict, traced.member), (Verdict::Redirected, Some(1)));
    assert_eq!(traced.after[..6], MEMBER_MACS[1]);
    assert_eq!((f.edge.counters(), capture.tcp_frames().len()), (before, 0));
    let mut elsewhere = question;
    elsewhere.to.set_port(22);
    assert_eq!(f.edge.trace(&elsewhere).expect("asked").verdict, Verdict::Plain);
    f.edge.set_current(2, None).expect("fence");
    let traced = f.edge.trace(&question).expect("asked");
    assert_eq!((traced.verdict, traced.member), (Verdict::Dropped, None));
}

/// Only what the server's kernel could accept is copied; the kernel itself gets everything.
#[test]
fn what_no_client_can_have_sent_is_not_copied() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("forged", false, None);
    f.edge.set_current(1, Some(0)).expect("fence");
    f.edge.set_tap(1, true).expect("tap");
    let capture = Capture::new("m1");
    f.member_sends(0, &syn_ack(40000).build());
    f.member_sends(0, &reply().payload(700).build());
    let (end, edge) = (SERVER_ISS.wrapping_add(701), CLIENT_ISS + 1 + 65160);
    let data = || request().payload(50).ack(end);
    for (frame, copies) in [
        (data(), 1),
        (data().ack(end.wrapping_add(1)), 0),
        // The same holds for a packet that begins with old bytes.
        (data().ack(end.wrapping_add(1)).seq(CLIENT_ISS - 20), 0),
        (data().seq(CLIENT_ISS - 20), 1),
        (data().seq(edge), 1),
        (data().seq(edge + 1), 0),
        (request().flags(RST).seq(edge + 1), 0),
        // For a new connection of the tuple the old numbers mean nothing.
        (request().flags(SYN).seq(edge + 70_000), 1),
    ] {
        let (verdict, _) = f.client_sends(&frame.build());
        assert_eq!(verdict, REDIRECT);
        assert_eq!(capture.tcp_frames().len(), copies);
    }
    assert_eq!((f.count("implausible"), f.count("copied")), (4, 4));
}

/// What some kernels drop unseen and others accept goes to no member; all other packets are copied
/// as well as forwarded.
#[test]
fn what_a_kernel_may_refuse_reaches_nobody() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("malformed", false, None);
    f.edge.set_current(1, Some(0)).expect("fence");
    f.edge.set_tap(1, true).expect("tap");
    let capture = Capture::new("m1");
    let mut md5 = vec![1, 1, 19, 18];
    md5.resize(20, 0);
    let signed = [29, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let timestamps = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8];
    let other_order = [8, 10, 0, 0, 0, 9, 0, 0, 0, 8, 1, 1];
    let endless = [1, 1, 8, 200, 0, 0, 0, 9, 0, 0, 0, 8];
    let padded = [1; 40];
    let mut behind_padding = padded;
    behind_padding[22..].fill(0);
    behind_padding[22..24].copy_from_slice(&[19, 18]);
    let sound: [&[u8]; 4] = [&timestamps, &other_order, &padded, &[]];
    let refused: [&[u8]; 4] = [&md5, &signed, &endless, &behind_padding];
    let all = sound.map(|it| (it, REDIRECT, 1)).into_iter();
    let all = all.chain(refused.map(|it| (it, STOLEN, 0)));
    for (options, verdict, copies) in all {
        for plain in [request().payload(50), request6().payload(50)] {
            let (found, _) = f.client_sends(&plain.clone().options(options).build());
            assert_eq!((found, capture.tcp_frames().len()), (verdict, copies), "{options:?}");
        }
    }
    assert_eq!(f.count("malformed"), 8);
    let mut wrong_sum = request().payload(50).build();
    wrong_sum[24] ^= 1;
    assert_eq!((f.client_sends(&wrong_sum).0, capture.tcp_frames().len()), (STOLEN, 0));
    // These lengths are wrong: 0, and more than there is.
    let mut lies = Vec::new();
    for (frame, at) in [(request(), 16), (request6(), 18)] {
        for length in [[0, 0], [5, 0]] {
            let mut lie = frame.clone().payload(50).build();
            lie[at..at + 2].copy_from_slice(&length);
            lies.push(lie);
        }
    }
    for lie in &lies {
        assert_eq!((f.client_sends(lie).0, capture.tcp_frames().len()), (STOLEN, 0));
    }
    assert_eq!((f.count("malformed"), f.count("odd")), (9, 4));
}

/// Of two virtual machines on the edge's host one is off; the other one boots.
#[test]
fn an_absent_interface_costs_no_other_member_anything() {
    if !is_root() {
        return;
    }
    let Fixture { edge, config, ports, lab } = Fixture::new("absent", false, None);
    drop(edge);
    sh("ip link del e0");
    let mut edge = Edge::attach(&config).expect("it starts without one of them");
    assert!(edge.mend(&config).failed.is_some());
    edge.set_current(1, Some(1)).expect("fence");
    sh("ip link del e1");
    assert!(edge.mend(&config).moved);
    assert_eq!(edge.hop(1).expect("a row").ifindex, 0);
    sh("ip link add e1 address 02:00:00:00:01:02 type veth peer name m1");
    sh("ip link set e1 up");
    let mended = edge.mend(&config);
    assert!(mended.moved && mended.failed.is_some());
    assert_eq!(mended.missing.len(), 1, "{mended:?}");
    let (row, now) = (edge.hop(1).expect("a row"), ifindex("e1"));
    assert_eq!(row.ifindex, now);
    assert_ne!(now, ports[1]);
    assert!(!edge.mend(&config).moved, "once");
    let answer = reply().payload(9).build();
    let context = Context { ifindex: now, ..Context::default() };
    assert_eq!(lab.run(MEMBER_IN, &answer, context).0, REDIRECT, "it may speak");
    sh("ip link add e0 address 02:00:00:00:01:01 type veth peer name m0");
    let mended = edge.mend(&config);
    assert!(mended.moved && mended.failed.is_none(), "{mended:?}");
}

/// The frame with a hop-by-hop header that holds nothing but padding.
fn behind_options(mut frame: Vec<u8>) -> Vec<u8> {
    const PADDING: [u8; 8] = [58, 0, 1, 4, 0, 0, 0, 0];
    frame[19] += PADDING.len() as u8;
    frame[20] = 0;
    frame.splice(54..54, PADDING);
    frame
}

fn udp(source: &str) -> Vec<u8> {
    let mut frame = Frame::new((address(source), 53), (address(CLIENT4), 53)).payload(8).build();
    frame[23] = 17;
    frame
}

#[test]
fn only_the_current_member_speaks_for_a_service_address() {
    if !is_root() {
        return;
    }
    const HOST: &str = "fd00:9::3";
    let (vip, host, other) = ([10, 9, 0, 100], [10, 9, 0, 3], [10, 9, 0, 1]);
    let claims = [
        ("ARP request", arp(vip, other)),
        ("gratuitous ARP", arp(vip, vip)),
        ("NS from", neighbour_discovery(135, VIP6, &[HOST])),
        ("NS for (duplicate address detection)", neighbour_discovery(135, "::", &[VIP6])),
        ("NA", neighbour_discovery(136, HOST, &[VIP6])),
        ("NA from", neighbour_discovery(136, VIP6, &[HOST])),
        ("redirect", neighbour_discovery(137, HOST, &[HOST, VIP6])),
        ("NA behind options", behind_options(neighbour_discovery(136, HOST, &[VIP6]))),
        ("UDP", udp(VIP4)),
        ("TCP of another port", {
            let mut frame = reply();
            frame.source.1 = 22;
            frame.build()
        }),
    ];
    let harmless = [
        ("ARP for the address", arp(host, vip)),
        ("ARP", arp(host, other)),
        ("NA of its own", neighbour_discovery(136, HOST, &[HOST])),
        ("NA of its own behind options", behind_options(neighbour_discovery(136, HOST, &[HOST]))),
        ("UDP of its own", udp("10.9.0.3")),
        ("a short frame", arp(vip, vip)[..24].to_vec()),
    ];
    let mut f = Fixture::new("fence", true, Some("br0"));
    for (epoch, current) in [None, Some(0), Some(1)].into_iter().enumerate() {
        f.edge.set_current(epoch as u64, current).expect("fence");
        for member in [0, 1] {
            for (name, frame) in &claims {
                let expected = if current == Some(member) { PASS } else { STOLEN };
                assert_eq!(f.member_sends(member, frame).0, expected, "{name} of {member}");
            }
            for (name, frame) in &harmless {
                assert_eq!(f.member_sends(member, frame).0, PASS, "{name} of {member}");
            }
            let (verdict, _) = f.member_sends(member, &reply().payload(5).build());
            assert_eq!(verdict, if current == Some(member) { REDIRECT } else { STOLEN });
        }
    }
}

#[test]
fn replies_are_routed_to_the_client() {
    if !is_root() {
        return;
    }
    for (name, bridge, l3) in
        [("out", false, None), ("out-br", true, Some("br0")), ("out-port", true, None)]
    {
        let mut f = Fixture::new(name, bridge, l3);
        f.edge.set_current(1, Some(1)).expect("fence");
        for frame in [reply().payload(700), reply6().payload(700)] {
            let (verdict, out) = f.member_sends(1, &frame.build());
            assert_eq!(verdict, REDIRECT, "{name}");
            assert!(sums_are_right(&out));
            assert_eq!(out, hop(&frame, CLIENT_MAC, EDGE_CLIENT_MAC));
        }
        let mut unknown = reply();
        unknown.target.0 = address("10.8.0.77");
        // The stack has to handle a frame without a neighbour yet, in its last hop, or longer than
        // the MTU.
        for frame in [unknown, reply().ttl(1), reply().payload(1600)] {
            assert_eq!(f.member_sends(1, &frame.build()), (PASS, frame.build()), "{name}");
        }
        f.edge.detach().expect("detach");
    }
}

#[test]
fn a_restarted_edge_keeps_fence_flows_and_tap() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("restart", false, None);
    f.edge.set_current(7, Some(1)).expect("fence");
    f.edge.set_tap(0, true).expect("tap");
    f.member_sends(1, &syn_ack(40000).build());
    let before = f.bounds();
    f.edge = Edge::attach(&f.config).expect("again");
    assert_eq!(f.edge.current().expect("fence"), (7, Some(1)));
    assert_eq!(f.bounds(), before);
    f.client_sends(&request().payload(1).ack(SERVER_ISS + 1).build());
    assert_eq!(f.count("copied"), 1);
    f.config.flows_max = 3;
    assert!(Edge::attach(&f.config).is_err(), "maps of another size");
    Edge::detach_stale(&["e0", "e1", "ec"], &[], &f.lab.pin_dir).expect("detach");
    f.edge = Edge::attach(&f.config).expect("afresh");
    assert_eq!(f.edge.current().expect("fence"), (0, None));
}

/// The filters of both groups have the same places: each would remove the other's again and again.
#[test]
fn an_interface_belongs_to_one_group() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("groups", false, None);
    f.edge.set_current(1, Some(0)).expect("fence");
    let pin_dir = f.lab.pin_dir.with_extension("other");
    let services = vec![(address("10.9.0.101"), 80)];
    let other = EdgeConfig { services, pin_dir, ..f.config.clone() };
    let refused = Edge::attach(&other).map(drop).expect_err("two groups").to_string();
    let whose = format!("e0 belongs to another group, that of {VIP4}:{PORT}");
    assert!(refused.contains(&whose), "{refused}");
    let removed = Edge::detach_stale(&["e0", "e1", "ec"], &other.services, &other.pin_dir);
    assert_eq!(removed.expect("nothing of it"), []);
    Edge::undo(&other).expect("nothing is left of it");
    assert_eq!(f.client_sends(&request().build()).0, REDIRECT);
    // A group that lost its pins is known by its services.
    std::fs::remove_dir_all(f.lab.pin_dir.join("edge")).expect("the pins");
    f.edge = Edge::attach(&f.config).expect("its own");
    sh("tc filter del dev ec ingress");
    let mended = f.edge.mend(&f.config);
    assert!(mended.failed.is_none() && mended.missing.len() == 1);
    f.edge.detach().expect("detach");
    Edge::attach(&other).expect("nobody's").detach().expect("detach");
    Edge::undo(&other).expect("nothing is left of it");
}

#[test]
fn the_fence_follows_a_member_that_moved_in_the_file() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("edge-moved", false, None);
    f.edge.set_current(7, Some(1)).expect("fence");
    f.config.members.swap(0, 1);
    f.edge = Edge::attach(&f.config).expect("again");
    assert_eq!(f.edge.current().expect("the fence"), (7, Some(0)), "it is the same member");
    // Another member is at this address now, so nobody speaks until it has asked.
    f.config.members[0].mac = [2, 0, 0, 0, 9, 9];
    f.edge = Edge::attach(&f.config).expect("again");
    assert_eq!(f.edge.current().expect("the fence"), (7, None));
}

#[test]
fn tap_copies_do_not_reach_the_backups_stack_until_it_is_live() {
    if !is_root() {
        return;
    }
    let lab = Lab::new("tapdrop");
    sh("ip link add b0 type veth peer name b1");
    let services = [(address(VIP4), PORT), (address(VIP6), PORT)];
    let mut drop = TapDrop::attach("b0", &services, &lab.pin_dir).expect("attach");
    let run = |frame: &[u8]| lab.run("tapdrop/tapdrop", frame, Context::default()).0;
    let mut fragment = request().payload(64).build();
    fragment[20] = 0x20;
    let ours = [request().payload(3).build(), request6().flags(SYN).build(), fragment];
    let mut elsewhere = request();
    elsewhere.target.1 = 22;
    for (live, verdict) in [(false, STOLEN), (true, PASS), (false, STOLEN)] {
        drop.set_live(live).expect("live");
        for frame in &ours {
            assert_eq!(run(frame), verdict);
        }
        assert_eq!(run(&elsewhere.build()), PASS);
        assert_eq!(run(&arp([10, 9, 0, 1], [10, 9, 0, 100])), PASS);
    }
    assert_eq!(counter(&drop.counters(), "dropped"), 6);
    drop.detach().expect("detach");
}
