//! The edge's decisions, frame by frame: where packets go, who is fenced, and
//! which bounds are kept; and the backup's tap drop.

mod bpf_common;

use bpf_common::{ACK, Context, FIN, Frame, Lab, PASS, REDIRECT, RST, STOLEN, SYN};
use bpf_common::{Capture, counter, ifindex, is_root, sh, sums_are_right};
use holdfast_linux::bpf::{Edge, EdgeConfig, MemberPort, Question, TapDrop, Verdict};
use holdfast_wire::message::{ConnKey, FlowBounds};
use holdfast_wire::seq::SeqNo;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const CLIENT_IN: &str = "edge/edge_client";
const MEMBER_IN: &str = "edge/edge_member";
const PORT: u16 = 6379;
const VIP4: &str = "10.9.0.100";
const VIP6: &str = "fd00:9::100";
const CLIENT4: &str = "10.8.0.2";
const CLIENT6: &str = "fd00:8::2";
const MEMBER_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 9, 2], [2, 0, 0, 0, 9, 3]];
const PORT_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 8, 2];
const EDGE_CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 8, 1];
const SERVER_ISS: u32 = 0xffff_ff00;
const CLIENT_ISS: u32 = 5000;

/// MSS 1460, SACK permitted, timestamps 1000/7, NOP, scale 9.
const SYN_ACK_OPTIONS: [u8; 20] =
    [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 3, 0xe8, 0, 0, 0, 7, 1, 3, 3, 9];

struct Fixture {
    edge: Edge,
    config: EdgeConfig,
    ports: [u32; 2],
    lab: Lab,
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("address")
}

impl Fixture {
    /// Ports e0 and e1 with members behind them, ec with the client behind it.
    fn new(name: &str, bridge: bool, l3_interface: Option<&str>) -> Self {
        let lab = Lab::new(name);
        sh("ip link add ec address 02:00:00:00:08:01 type veth peer name cc");
        sh("ip link add e0 address 02:00:00:00:01:01 type veth peer name m0");
        sh("ip link add e1 address 02:00:00:00:01:02 type veth peer name m1");
        for link in ["ec", "cc", "e0", "m0", "e1", "m1"] {
            sh(&format!("ip link set {link} up"));
        }
        if bridge {
            sh("ip link add br0 type bridge");
            sh("ip link set br0 up");
            sh("ip link set e0 master br0");
            sh("ip link set e1 master br0");
        }
        sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        sh("ip addr add 10.8.0.1/24 dev ec");
        sh("ip addr add fd00:8::1/64 dev ec nodad");
        sh("ip neigh replace 10.8.0.2 lladdr 02:00:00:00:08:02 dev ec nud permanent");
        sh("ip neigh replace fd00:8::2 lladdr 02:00:00:00:08:02 dev ec nud permanent");
        let member =
            |index: usize| MemberPort { interface: format!("e{index}"), mac: MEMBER_MACS[index] };
        let config = EdgeConfig {
            client_interfaces: vec!["ec".into()],
            members: vec![member(0), member(1)],
            l3_interface: l3_interface.map(Into::into),
            services: vec![(address(VIP4), PORT), (address(VIP6), PORT)],
            pin_dir: lab.pin_dir.clone(),
            flows_max: 2,
        };
        let edge = Edge::attach(&config).unwrap_or_else(|error| panic!("{error}"));
        Self { edge, config, ports: [ifindex("e0"), ifindex("e1")], lab }
    }

    fn client_sends(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        let context = Context { ifindex: ifindex("ec"), ..Context::default() };
        self.lab.run(CLIENT_IN, frame, context)
    }

    fn member_sends(&self, member: usize, frame: &[u8]) -> (u32, Vec<u8>) {
        let context = Context { ifindex: self.ports[member], ..Context::default() };
        self.lab.run(MEMBER_IN, frame, context)
    }

    fn count(&self, name: &str) -> u64 {
        counter(&self.edge.counters(), name)
    }

    fn bounds(&self) -> Option<FlowBounds> {
        self.edge.bounds(&key(40000))
    }
}

fn key(client_port: u16) -> ConnKey {
    let mapped = |text: &str| match address(text) {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let (server, client) = (mapped(VIP4), mapped(CLIENT4));
    ConnKey { server, client, server_port: PORT, client_port }
}

fn request() -> Frame {
    Frame::new((address(CLIENT4), 40000), (address(VIP4), PORT)).seq(CLIENT_ISS + 1).window(500)
}

fn request6() -> Frame {
    Frame::new((address(CLIENT6), 40000), (address(VIP6), PORT)).seq(CLIENT_ISS + 1).window(500)
}

fn reply() -> Frame {
    Frame::new((address(VIP4), PORT), (address(CLIENT4), 40000))
        .seq(SERVER_ISS + 1)
        .ack(CLIENT_ISS + 1)
        .window(100)
}

fn reply6() -> Frame {
    Frame::new((address(VIP6), PORT), (address(CLIENT6), 40000))
        .seq(SERVER_ISS + 1)
        .ack(CLIENT_ISS + 1)
        .window(100)
}

fn syn_ack(client_port: u16) -> Frame {
    let mut frame =
        reply().seq(SERVER_ISS).flags(SYN | ACK).window(65160).options(&SYN_ACK_OPTIONS);
    frame.target.1 = client_port;
    frame
}

/// `frame` one hop later, between these Ethernet addresses.
fn hop(frame: &Frame, to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let mut bytes = frame.clone().ttl(frame.ttl - 1).build();
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    bytes
}

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

/// In both directions and in the copy: a kernel that saw the pointer would take
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

/// Only what the server's kernel could take is worth a copy; the kernel itself
/// gets everything.
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
        // Also where it begins with old bytes.
        (data().ack(end.wrapping_add(1)).seq(CLIENT_ISS - 20), 0),
        (data().seq(CLIENT_ISS - 20), 1),
        (data().seq(edge), 1),
        (data().seq(edge + 1), 0),
        (request().flags(RST).seq(edge + 1), 0),
        // A new life of the tuple knows nothing of the old numbers.
        (request().flags(SYN).seq(edge + 70_000), 1),
    ] {
        let (verdict, _) = f.client_sends(&frame.build());
        assert_eq!(verdict, REDIRECT);
        assert_eq!(capture.tcp_frames().len(), copies);
    }
    assert_eq!((f.count("implausible"), f.count("copied")), (4, 4));
}

/// What a server's kernel drops unseen, the backup must not get to see either.
#[test]
fn what_a_kernel_refuses_is_not_copied() {
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
    let options: [(&[u8], usize); 6] =
        [(&timestamps, 1), (&other_order, 1), (&md5, 0), (&signed, 0), (&endless, 0), (&[], 1)];
    for plain in [request().payload(50), request6().payload(50)] {
        for (options, copies) in options {
            let (verdict, _) = f.client_sends(&plain.clone().options(options).build());
            assert_eq!((verdict, capture.tcp_frames().len()), (REDIRECT, copies), "{options:?}");
        }
    }
    assert_eq!(f.count("malformed"), 6);
    let mut wrong_sum = request().payload(50).build();
    wrong_sum[24] ^= 1;
    assert_eq!((f.client_sends(&wrong_sum).0, capture.tcp_frames().len()), (REDIRECT, 0));
    // Lengths that lie: 0, and more than there is.
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
    assert_eq!((f.count("malformed"), f.count("odd")), (7, 4));
}

fn arp(sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 9, 9, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend([2, 0, 0, 0, 9, 9]);
    frame.extend(sender);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}

fn neighbour_discovery(kind: u8, source: &str, targets: &[&str]) -> Vec<u8> {
    let octets = |text: &str| match address(text) {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(_) => panic!("IPv6"),
    };
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 9, 9, 0x86, 0xdd];
    let length = 8 + 16 * targets.len() as u8;
    frame.extend([0x60, 0, 0, 0, 0, length, 58, 255]);
    frame.extend(octets(source));
    frame.extend(octets("ff02::1"));
    frame.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
    for target in targets {
        frame.extend(octets(target));
    }
    frame
}

/// The same behind a hop-by-hop header, which holds nothing but padding.
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
        // No neighbour yet, last hop, longer than the MTU: the stack's work.
        for frame in [unknown, reply().ttl(1), reply().payload(1600)] {
            assert_eq!(f.member_sends(1, &frame.build()), (PASS, frame.build()), "{name}");
        }
        f.edge.detach().expect("detach");
    }
}

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
    // Older packets move nothing back, empty ones nothing forward.
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
    assert_eq!(f.edge.all_bounds(), [bounds]);
    // A FIN takes a number, with and without payload before it.
    f.member_sends(0, &reply().seq(end).flags(FIN | ACK).build());
    assert_eq!(f.bounds().expect("flow").seq_end, SeqNo(end.wrapping_add(1)));
    f.member_sends(0, &reply().seq(end).payload(3).flags(FIN | ACK).build());
    assert_eq!(f.bounds().expect("flow").seq_end, SeqNo(end.wrapping_add(4)));
}

/// After the edge's host was started again its flows are older than the table.
/// How their windows scale is not known: what they may not say is not judged.
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
    // A flow that the table does not know may be older than the table.
    let mut older = reply();
    older.target.1 = 40002;
    assert_eq!(f.member_sends(0, &older.build()).0, REDIRECT);
    assert_eq!((f.count("refused_flows"), f.count("untracked")), (1, 1));
}

/// Who vanishes without a word is asked for, and makes room if nobody knows it.
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
    // One of them speaks before the answer comes.
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
        // The programs' clock moves with the timer's ticks: what comes next must be later.
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
    Edge::detach_stale(&["e0", "e1", "ec"], &f.lab.pin_dir).expect("detach");
    f.edge = Edge::attach(&f.config).expect("afresh");
    assert_eq!(f.edge.current().expect("fence"), (0, None));
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
    // Whoever stands there is another one: nobody speaks until he has asked.
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
