//! What the edge's programs copy for local recovery, packet by packet.

use crate::common::{ACK, Context, FIN, Frame, Lab, RST, STOLEN, SYN, ifindex, is_root, sh};
use holdfast_linux::bpf::{
    Captures, Copied, Copies, CopyPolicy, Edge, EdgeConfig, MemberPort, What,
};
use holdfast_wire::packet::{Checksum, Headers, TcpPacket};
use std::net::IpAddr;
use std::time::Duration;

const CLIENT_IN: &str = "edge/edge_client";
const MEMBER_IN: &str = "edge/edge_member";
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
const PORT: u16 = 6379;
const ETHERNET: usize = 14;
/// Options of a SYN: MSS 1460, SACK permitted, timestamps 1000/7, NOP, scale 9.
const SYN_OPTIONS: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 3, 0xe8, 0, 0, 0, 0, 1, 3, 3, 9];
const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 3, 0xf0, 0, 0, 0, 8];

struct Fixture {
    _edge: Edge,
    copies: Copies,
    lab: Lab,
}

/// A copy of a packet, as the test keeps it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    into: bool,
    is_held: bool,
    headers: Vec<u8>,
    payload_bytes: u32,
    head: Vec<u8>,
    tail: Option<(u32, Vec<u8>)>,
    gso_bytes: u16,
}

impl Fixture {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        sh("ip link add ec address 02:00:00:00:08:01 type veth peer name cc");
        sh("ip link add e0 address 02:00:00:00:01:01 type veth peer name m0");
        for link in ["ec", "cc", "e0", "m0"] {
            sh(&format!("ip link set {link} up"));
        }
        let config = EdgeConfig {
            client_interfaces: vec!["ec".into()],
            members: vec![MemberPort { interface: "e0".into(), mac: [2, 0, 0, 0, 9, 2] }],
            l3_interface: None,
            services: vec![(ip("10.9.0.100"), PORT), (ip("fd00:9::100"), PORT)],
            pin_dir: lab.pin_dir.clone(),
            flows_max: 16,
        };
        let mut edge = Edge::attach(&config).unwrap_or_else(|error| panic!("{error}"));
        edge.set_current(1, Some(0)).expect("fence");
        let copies = edge.take_copies().expect("the first time");
        assert!(edge.take_copies().is_none());
        Self { _edge: edge, copies, lab }
    }

    /// Sends a frame from the client; returns what was copied of it.
    fn enters(&mut self, frame: &[u8], gso_size: u32) -> Option<Seen> {
        self.lab.run(
            CLIENT_IN,
            frame,
            Context { ifindex: ifindex("ec"), gso_size, ..Context::default() },
        );
        self.seen()
    }

    fn leaves(&mut self, frame: &[u8]) -> Option<Seen> {
        let context = Context { ifindex: ifindex("e0"), ..Context::default() };
        self.lab.run(MEMBER_IN, frame, context);
        self.seen()
    }

    fn seen(&mut self) -> Option<Seen> {
        let mut all = Vec::new();
        let is_all = self.copies.drain(|copied| {
            all.push(owned(&copied));
            true
        });
        assert!(is_all);
        assert!(all.len() <= 1, "{all:?}");
        all.pop()
    }
}

fn owned(copied: &Copied<'_>) -> Seen {
    Seen {
        into: copied.into,
        is_held: copied.is_held,
        headers: copied.headers.to_vec(),
        payload_bytes: copied.payload_bytes,
        head: copied.head.to_vec(),
        tail: copied.tail.map(|(at, bytes)| (at, bytes.to_vec())),
        gso_bytes: copied.gso_bytes,
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

fn request(v6: bool) -> Frame {
    let (client, server) =
        if v6 { ("fd00:8::2", "fd00:9::100") } else { ("10.8.0.2", "10.9.0.100") };
    Frame::new((ip(client), 40000), (ip(server), PORT)).seq(5001).ack(9001).window(500)
}

fn reply() -> Frame {
    Frame::new((ip("10.9.0.100"), PORT), (ip("10.8.0.2"), 40000)).seq(9001).ack(5001).window(100)
}

/// The whole packet as it leaves the edge, one hop later.
fn forwarded(frame: &Frame) -> Vec<u8> {
    frame.clone().ttl(frame.ttl - 1).build()[ETHERNET..].to_vec()
}

fn whole(seen: &Seen) -> Vec<u8> {
    [&seen.headers[..], &seen.head].concat()
}

#[test]
fn off_copies_nothing_and_syns_only_what_concerns_them() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("syns");
    let syn = |v6: bool| request(v6).flags(SYN).options(&SYN_OPTIONS);
    assert_eq!(f.enters(&syn(false).build(), 0), None, "off");
    f.copies.set(CopyPolicy::Syns).expect("on");
    for v6 in [false, true] {
        let seen = f.enters(&syn(v6).build(), 0).expect("a copy");
        assert_eq!(whole(&seen), forwarded(&syn(v6)));
        assert!(seen.into);
    }
    let data = syn(false).payload(200);
    assert_eq!(whole(&f.enters(&data.build(), 0).expect("Fast Open")), forwarded(&data));
    assert!(f.enters(&request(false).flags(RST).build(), 0).is_some());
    for frame in [request(false), request(false).payload(9), request(false).flags(FIN | ACK)] {
        assert_eq!(f.enters(&frame.build(), 0), None);
    }
    let answer =
        f.leaves(&reply().flags(SYN | ACK).options(&SYN_OPTIONS).build()).expect("SYN-ACK");
    assert_eq!((answer.into, answer.headers.len(), answer.head.len()), (false, 60, 0));
    assert!(f.leaves(&reply().flags(RST).build()).is_some());
    assert_eq!(f.leaves(&reply().payload(9).build()), None);
    assert_eq!(f.copies.counts(), (6, 0));
}

#[test]
fn segments_are_copied_whole_and_of_the_answers_the_headers() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("segments");
    // The longest packet is longer than most links carry.
    sh("ip link set e0 mtu 9000");
    f.copies.set(CopyPolicy::Segments).expect("on");
    for v6 in [false, true] {
        for payload in [1, 30, 52, 500, 1448, 1500, 2500] {
            let frame = request(v6).options(&TIMESTAMPS).payload(payload).flags(ACK | PSH);
            let seen = f.enters(&frame.build(), 0).expect("a copy");
            assert_eq!((whole(&seen), seen.tail.is_none()), (forwarded(&frame), true), "{payload}");
        }
    }
    assert!(f.enters(&request(false).flags(FIN | ACK).build(), 0).is_some());
    assert_eq!(f.enters(&request(false).build(), 0), None, "an acknowledgement goes the other way");
    f.leaves(&reply().flags(SYN | ACK).build());
    let seen = f.leaves(&reply().options(&TIMESTAMPS).payload(700).build()).expect("headers");
    assert_eq!((seen.headers.len(), seen.head.len(), seen.payload_bytes), (52, 0, 700));
    let headers = Headers::parse(&seen.headers).expect("headers");
    let mut ack = Vec::new();
    headers.bare_ack(seen.payload_bytes, &mut ack).expect("an acknowledgement");
    let parsed = TcpPacket::parse(&ack, Checksum::Verify).expect("a packet");
    assert_eq!((parsed.seq.0, parsed.ack.0), (9701, 5001));
}

#[test]
fn acknowledgements_are_held_for_as_long_as_was_asked() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("held");
    f.copies.set(CopyPolicy::Segments).expect("on");
    // The SYN makes the flow known.
    f.enters(&request(false).flags(SYN).build(), 0);
    f.leaves(&reply().flags(SYN | ACK).build());
    let held = |f: &mut Fixture, frame: &Frame| {
        let context = Context { ifindex: ifindex("e0"), ..Context::default() };
        let (verdict, _) = f.lab.run(MEMBER_IN, &frame.build(), context);
        let seen = f.seen().expect("a copy");
        assert_eq!(verdict == STOLEN, seen.is_held, "{frame:?}");
        seen.is_held
    };
    let ack = reply().options(&TIMESTAMPS);
    assert!(!held(&mut f, &ack));
    f.copies.hold(Duration::from_secs(60)).expect("held");
    assert!(held(&mut f, &ack) && held(&mut f, &ack));
    for frame in [ack.clone().payload(1), ack.clone().flags(FIN | ACK), ack.clone().flags(RST)] {
        assert!(!held(&mut f, &frame), "more than an acknowledgement");
    }
    assert!(!held(&mut f, &ack.clone().ttl(1)), "the stack answers");
    f.enters(&request(false).flags(SYN).build(), 0);
    f.leaves(&reply().flags(SYN | ACK).build());
    f.copies.release().expect("released");
    assert!(!held(&mut f, &ack));
    f.copies.hold(Duration::from_millis(20)).expect("held");
    assert!(held(&mut f, &ack));
    std::thread::sleep(Duration::from_millis(30));
    assert!(!held(&mut f, &ack), "whoever asked has died");
}

#[test]
fn of_an_offloaded_frame_the_first_and_the_last_segment_are_copied() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("gso");
    sh("ip link set e0 mtu 9000");
    f.copies.set(CopyPolicy::Segments).expect("on");
    for v6 in [false, true] {
        for (payload, segment) in
            [(3000, 1000), (3001, 1000), (2999, 1448), (2000, 1999), (900, 100)]
        {
            let frame =
                request(v6).options(&TIMESTAMPS).payload(payload).flags(ACK | PSH | FIN | CWR);
            let seen = f.enters(&frame.build(), segment).expect("a copy");
            let (at, tail) = seen.tail.clone().expect("a tail");
            let bytes: Vec<u8> = (0..payload).map(|byte| byte as u8).collect();
            assert_eq!(seen.head, bytes[..segment as usize]);
            assert_eq!(tail, bytes[at as usize..]);
            assert_eq!((at % segment, usize::from(seen.gso_bytes)), (0, segment as usize));
            let headers = Headers::parse(&seen.headers).expect("headers");
            let mut out = Vec::new();
            let whole = (seen.payload_bytes, seen.gso_bytes);
            for (at, piece, flags) in [(0, &seen.head, ACK | CWR), (at, &tail, ACK | PSH | FIN)] {
                headers.cut(at, piece, whole, &mut out).expect("a segment");
                let packet = TcpPacket::parse(&out, Checksum::Verify).expect("a packet");
                assert_eq!((packet.seq.0, packet.payload), (5001 + at, &piece[..]));
                assert_eq!(packet.flags.0, flags);
            }
        }
    }
    // A frame of one segment counts as a packet.
    let frame = request(false).payload(1000);
    let seen = f.enters(&frame.build(), 1000).expect("a copy");
    assert_eq!((whole(&seen), seen.gso_bytes), (forwarded(&frame), 0));
}

#[test]
fn what_is_cut_short_is_not_copied() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("short");
    f.copies.set(CopyPolicy::Segments).expect("on");
    let whole = request(false).payload(800).build();
    for length in [ETHERNET + 40, ETHERNET + 41, 500, whole.len() - 1] {
        assert_eq!(f.enters(&whole[..length], 0), None);
    }
    // The edge drops it: since no kernel would accept it, it must not be resent.
    assert_eq!(f.copies.counts(), (0, 0));
}

#[test]
fn a_full_ring_loses_the_newest_and_says_so() {
    if !is_root() {
        return;
    }
    let f = Fixture::new("full");
    let Fixture { mut copies, lab, _edge } = f;
    copies.set(CopyPolicy::Segments).expect("on");
    let frame = request(false).payload(1400).build();
    let context = Context { ifindex: ifindex("ec"), ..Context::default() };
    for _ in 0..3000 {
        lab.run(CLIENT_IN, &frame, context);
    }
    let (copied, lost) = copies.counts();
    assert!(lost > 0 && copied + lost == 3000, "{copied} {lost}");
    // The copies are taken in shares, as many as were made.
    let mut taken = 0;
    let is_all = copies.drain(|_| {
        taken += 1;
        taken < 10
    });
    assert!(!is_all && taken == 10);
    while !copies.drain(|_| {
        taken += 1;
        true
    }) {}
    assert_eq!(taken, copied);
    lab.run(CLIENT_IN, &frame, context);
    assert_eq!(copies.counts(), (copied + 1, lost));
}

#[test]
fn what_is_resent_is_shown_to_whoever_watches() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("resent");
    let mut watching = Captures::open(&f.lab.pin_dir).expect("maps").pop().expect("the edge's");
    let packets = [false, true].map(|v6| forwarded(&request(v6).payload(8000)));
    assert!(!f.copies.is_watched());
    f.copies.show_resent(ifindex("e0"), &packets[0]);
    watching.renew().expect("on");
    assert!(f.copies.is_watched());
    for packet in &packets {
        f.copies.show_resent(ifindex("e0"), packet);
    }
    let mut shown = Vec::new();
    watching.drain(|it| {
        assert_eq!((it.what, it.ifindex), (What::Resent, ifindex("e0")));
        shown.push((it.wire_bytes as usize, it.bytes.to_vec()));
    });
    assert_eq!(shown.len(), packets.len());
    for ((wire_bytes, bytes), packet) in shown.iter().zip(&packets) {
        assert_eq!(*wire_bytes, ETHERNET + packet.len());
        assert_eq!(bytes[ETHERNET..], packet[..bytes.len() - ETHERNET]);
        let ethertype = if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
        assert_eq!((bytes.len(), &bytes[12..ETHERNET]), (256, &ethertype[..]));
    }
}
