//! The host server's end, frame by frame: what is taken out of the tunnel, and how large packets
//! clients are told to send.

use crate::common::sums_are_right;
use crate::common::{ACK, Context, Frame, Lab, PASS, STOLEN, SYN, counter, ifindex, is_root, sh};
use holdfast_linux::bpf::{HostEnd, HostEndConfig};
use holdfast_wire::packet::internet_checksum;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const VIP4: &str = "10.9.0.100";
const VIP6: &str = "fd00:9::100";
const TUNNEL4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const TUNNEL6: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 2);
const OUTER6: Ipv6Addr = Ipv6Addr::new(0xfd68, 0, 0, 0, 0, 0, 0, 9);

struct Fixture {
    end: HostEnd,
    config: HostEndConfig,
    lab: Lab,
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("address")
}

impl Fixture {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        sh("ip link add p0 type veth peer name ep");
        for link in ["p0", "ep"] {
            sh(&format!("ip link set {link} up"));
        }
        let config = HostEndConfig {
            group: "web".into(),
            interface: "p0".into(),
            tunnel4: Some(TUNNEL4),
            tunnel6: Some(TUNNEL6),
            outer4: (Ipv4Addr::new(172, 16, 0, 0), 16),
            outer6: (Ipv6Addr::new(0xfd68, 0, 0, 0, 0, 0, 0, 0), 64),
            addresses: vec![address(VIP4), address(VIP6)],
            mtu: 1500,
            pin_dir: lab.pin_dir.clone(),
        };
        let end = HostEnd::attach(&config).unwrap_or_else(|error| panic!("{error}"));
        Self { end, config, lab }
    }

    fn arrives(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        let context = Context { ifindex: ifindex("p0"), ..Context::default() };
        self.lab.run("host/host_ingress", frame, context)
    }

    fn leaves(&self, frame: &[u8]) -> Vec<u8> {
        let context = Context { ifindex: ifindex("p0"), ..Context::default() };
        let (verdict, out) = self.lab.run("host/host_egress", frame, context);
        assert_eq!(verdict, PASS);
        out
    }

    fn count(&self, name: &str) -> u64 {
        counter(&self.end.counters(), name)
    }
}

fn request4() -> Frame {
    Frame::new((address("10.8.0.2"), 40000), (address(VIP4), 80)).payload(33)
}

fn request6() -> Frame {
    Frame::new((address("fd00:8::2"), 40000), (address(VIP6), 80)).payload(33)
}

/// The frame in an outer header of IPv4.
fn wrap4(frame: &[u8], from: Ipv4Addr, tos: u8) -> Vec<u8> {
    let total = ((frame.len() - 14 + 20) as u16).to_be_bytes();
    let mut ip = vec![0x45, tos, total[0], total[1], 0, 0, 0x40, 0, 64, 4, 0, 0];
    ip.extend(from.octets());
    ip.extend(TUNNEL4.octets());
    let sum = internet_checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [&frame[..14], &ip, &frame[14..]].concat()
}

fn wrap6(frame: &[u8], from: Ipv6Addr, tos: u8) -> Vec<u8> {
    let length = ((frame.len() - 14) as u16).to_be_bytes();
    let mut ip = vec![0x60 | tos >> 4, tos << 4, 0, 0, length[0], length[1], 41, 64];
    ip.extend(from.octets());
    ip.extend(TUNNEL6.octets());
    [&frame[..14], &ip, &frame[14..]].concat()
}

#[test]
fn the_edges_packets_are_taken_out_and_nobody_elses() {
    if !is_root() {
        return;
    }
    let f = Fixture::new("decap");
    let (four, six) = (request4().build(), request6().build());
    let edge = Ipv4Addr::new(172, 16, 200, 7);
    assert_eq!(f.arrives(&wrap4(&four, edge, 0)), (PASS, four.clone()));
    assert_eq!(f.arrives(&wrap6(&six, OUTER6, 0)), (PASS, six.clone()));
    assert_eq!(f.count("decapsulated"), 2);

    assert_eq!(f.arrives(&wrap4(&four, Ipv4Addr::new(172, 17, 0, 7), 0)).0, STOLEN);
    let other = Ipv6Addr::new(0xfd68, 0, 0, 1, 0, 0, 0, 9);
    assert_eq!(f.arrives(&wrap6(&six, other, 0)).0, STOLEN);
    assert_eq!(f.count("strangers"), 2);

    // A packet to an address of no service could be an attempt to bypass a packet filter.
    let mut inner = request4();
    inner.target.0 = TUNNEL4.into();
    assert_eq!(f.arrives(&wrap4(&inner.build(), edge, 0)).0, STOLEN);
    assert_eq!(f.count("not_ours"), 1);

    // These are in tunnels of others, or in none.
    let mut elsewhere = wrap4(&four, edge, 0);
    elsewhere[33] = 77;
    for frame in [elsewhere, four.clone(), six] {
        assert_eq!(f.arrives(&frame), (PASS, frame));
    }
    for length in 35..54 {
        assert_eq!(f.arrives(&wrap4(&four, edge, 0)[..length]).0, STOLEN, "{length} bytes");
    }
}

/// Congestion that was marked on the outer header is marked on the inner one (RFC 6040 §4.2, figure
/// 4).
#[test]
fn congestion_that_was_marked_outside_is_told_inside() {
    if !is_root() {
        return;
    }
    const DROP: u8 = 0xff;
    let f = Fixture::new("ecn");
    let (none, one, zero, ce) = (0, 1, 2, 3);
    let table = [
        (none, [none, none, none, DROP]),
        (zero, [zero, one, zero, ce]),
        (one, [one, one, one, ce]),
        (ce, [ce, ce, ce, ce]),
    ];
    for (inner, outcomes) in table {
        for (outer, expected) in outcomes.into_iter().enumerate() {
            let outer = outer as u8;
            let mut four = request4().build();
            four[15] = 0x48 | inner;
            four[24..26].fill(0);
            let sum = internet_checksum(&four[14..34]);
            four[24..26].copy_from_slice(&sum.to_be_bytes());
            let (verdict, out) = f.arrives(&wrap4(&four, Ipv4Addr::new(172, 16, 0, 1), outer));
            let mut six = request6().build();
            six[14] = 0x64;
            six[15] = (0x8 | inner) << 4;
            let (verdict6, out6) = f.arrives(&wrap6(&six, OUTER6, outer));
            if expected == DROP {
                assert_eq!((verdict, verdict6), (STOLEN, STOLEN));
                continue;
            }
            assert_eq!((verdict, out[15]), (PASS, 0x48 | expected), "{inner} in {outer}");
            assert!(sums_are_right(&out));
            assert_eq!((verdict6, out6[14..16].to_vec()), (PASS, vec![0x64, (8 | expected) << 4]));
        }
    }
    assert_eq!(f.count("congested"), 2);
}

#[test]
fn a_syn_ack_says_what_fits_the_tunnel() {
    if !is_root() {
        return;
    }
    let f = Fixture::new("clamp");
    let mss = |value: u16| [&[2, 4][..], &value.to_be_bytes()].concat();
    let reply = |v6: bool, options: &[u8]| {
        let request = if v6 { request6() } else { request4() };
        Frame::new(request.target, request.source).flags(SYN | ACK).options(options)
    };
    for (v6, written, told) in [
        (false, 1460, 1440),
        (false, 8960, 1440),
        (false, 1440, 1440),
        (false, 536, 536),
        (true, 1440, 1400),
    ] {
        // The changed word is at an even place, and at an odd one.
        let places = [
            (mss(written), mss(told)),
            (
                [&[1][..], &mss(written), &[1, 1, 1]].concat(),
                [&[1][..], &mss(told), &[1, 1, 1]].concat(),
            ),
        ];
        for (before, after) in places {
            let out = f.leaves(&reply(v6, &before).build());
            assert_eq!(out, reply(v6, &after).build(), "{written}");
            assert!(sums_are_right(&out));
        }
    }
    assert_eq!(f.count("clamped"), 6);
    let mut other = reply(false, &mss(1460));
    other.source.0 = TUNNEL4.into();
    for frame in [
        other,
        reply(false, &mss(1460)).flags(ACK),
        reply(false, &[]),
        reply(false, &[2, 40, 1, 1]),
    ] {
        assert_eq!(f.leaves(&frame.build()), frame.build());
    }
}

/// Its filters have the same places: each group would put its own into the other's.
#[test]
fn an_interface_belongs_to_one_group() {
    if !is_root() {
        return;
    }
    let f = Fixture::new("groups");
    let (group, pin_dir) = ("mail".to_owned(), f.lab.pin_dir.with_extension("other"));
    let other = HostEndConfig { group, pin_dir, ..f.config.clone() };
    let refused = HostEnd::attach(&other).map(drop).expect_err("two groups").to_string();
    assert!(refused.starts_with("p0 belongs to another group, `web`: give each"), "{refused}");
    let removed = HostEnd::detach_stale("p0", &other.group, &other.pin_dir);
    assert_eq!(removed.expect("nothing of it"), []);
    HostEnd::attach(&f.config).expect("its own");
    let removed = HostEnd::detach_stale("p0", &f.config.group, &f.config.pin_dir);
    assert_eq!(removed.expect("its own").len(), 2);
    assert!(HostEnd::is_free("p0", &other.group, &other.pin_dir).is_ok());
}
