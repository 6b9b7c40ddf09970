//! While clients count, each of their requests is followed by a packet that nobody should send:
//! malformed, spoofed, stale and replayed ones go through edge, gate and tap. Then the server is
//! killed while they go on. Every reply must be right before and after. `HOLDFAST_FORGERY=N` sends
//! only the forgeries of one kind.
//!
//! No forgery is one that a plain server would accept if it came first: packets overtake each
//! other, and of two acceptable segments TCP takes the earlier. So overlaps with other content only
//! occur where the client has its reply.

use crate::client::in_namespace;
use crate::wire::{Forger, OUR_TTL, Worker, is_request};
use crate::world;
use holdfast_lab::load::Action;
use holdfast_lab::testbed::ours::GroupOptions;
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Role, Testbed, addresses, interface};
use holdfast_linux::frame::Hop;
use holdfast_linux::link::Link;
use holdfast_wire::packet::{Flags, TcpPacket, TcpSegment, complete_checksum};
use holdfast_wire::seq::SeqNo;
use std::process::Command;
use std::time::{Duration, Instant};

/// Distance in bytes that is outside of any window.
const FAR: u64 = 1 << 30;

/// Distance in bytes that is well inside the window, and neither the next byte nor the start of a
/// later request, since this one may be late.
const NEAR: u64 = 20_001;

/// Age by which a TSval is stale (RFC 7323 §5).
const STALE: u32 = 1_000_000;

/// Most SYNs of strangers, which are answered and then time out; a flood of them is another test.
const SYNS_MAX: u32 = 100;

/// Number of kinds of [`forgery`].
const KINDS: u32 = 23;

/// Kinds with a wrong IP header, which a raw socket would repair.
const BAD_HEADERS: std::ops::RangeInclusive<u32> = 20..=21;

/// Offset of the TCP header.
fn tcp_at(l3: &[u8]) -> usize {
    if l3[0] >> 4 == 4 { 20 } else { 40 }
}

fn segment<'a>(request: &TcpPacket<'a>) -> TcpSegment<'a> {
    TcpSegment {
        key: request.client_to_server_key(),
        to_client: false,
        seq: request.seq,
        ack: request.ack,
        flags: request.flags,
        window: request.window,
        options: request.options,
        payload: request.payload,
    }
}

/// A packet that no client would send after `request`.
fn forgery(kind: u32, number: u32, request: &TcpPacket<'_>) -> Option<Vec<u8>> {
    let own = segment(request);
    let next = request.seq_end();
    let other: Vec<u8> = request.payload.iter().map(|byte| byte ^ 0x15).collect();
    // The client has the reply to the bytes that end here, since it sends the next request only
    // then.
    let earlier = SeqNo(request.seq.0.wrapping_sub(other.len() as u32));
    let build = |segment: TcpSegment<'_>| segment.build().ok();
    let altered = |alter: &dyn Fn(&mut [u8], usize)| {
        let mut l3 = own.build().ok()?;
        let at = tcp_at(&l3);
        alter(&mut l3, at);
        Some(l3)
    };
    match kind {
        // These are malformed.
        0 => build(own).map(|l3| l3[..tcp_at(&l3) + 13].to_vec()),
        1 => altered(&|l3, at| l3[at + 12] = 0xf0).map(with_checksum),
        2 => altered(&|l3, at| l3[at + 12] = 0x10).map(with_checksum),
        3 => altered(&|l3, at| l3[at..].iter_mut().for_each(|byte| *byte = byte.rotate_left(3))),
        // The next bytes of the stream have a wrong checksum.
        4 => {
            let mut l3 = build(TcpSegment { seq: next, payload: &other, ..own })?;
            let at = tcp_at(&l3);
            l3[at + 16] ^= 0x40;
            Some(l3)
        }
        // These are outside of the window.
        5 => build(TcpSegment { seq: next.plus(FAR), payload: &other, ..own }),
        6 => build(TcpSegment {
            seq: SeqNo(next.0.wrapping_sub(FAR as u32)),
            payload: &other,
            ..own
        }),
        7 => build(TcpSegment { flags: Flags::RST, seq: next.plus(FAR), payload: &[], ..own }),
        8 => build(TcpSegment { flags: Flags::FIN | Flags::ACK, seq: next.plus(FAR), ..own }),
        // These are inside the window (RFC 5961 §3 and §4).
        9 => build(TcpSegment { flags: Flags::RST, seq: next.plus(NEAR), payload: &[], ..own }),
        10 => build(TcpSegment { flags: Flags::SYN, seq: next.plus(NEAR), payload: &[], ..own }),
        // The very next bytes have a timestamp from the past (PAWS).
        11 => {
            let (tsval, tsecr) = request.options.timestamps?;
            let mut options = request.options;
            options.timestamps = Some((tsval.wrapping_sub(STALE), tsecr));
            build(TcpSegment { seq: next, payload: &other, options, ..own })
        }
        // The very next bytes come with an ACK of what was never sent (RFC 5961 §5).
        12 => build(TcpSegment { seq: next, ack: request.ack.plus(FAR), payload: &other, ..own }),
        // Other content for what the server has read; and beyond it, as in a retransmission with
        // other boundaries.
        13 => build(TcpSegment { seq: earlier, payload: &other, ..own }),
        14 => {
            let longer = [&other[..], request.payload].concat();
            build(TcpSegment { seq: earlier, payload: &longer, ..own })
        }
        // A copy of the packet, and one as a fragment.
        15 => build(own),
        16 => altered(&|l3, at| {
            if at == 20 {
                l3[6] = 0x20;
            }
        }),
        // The very next bytes come with an ACK that is only a little too high.
        17 => build(TcpSegment { seq: next, ack: request.ack.plus(NEAR), payload: &other, ..own }),
        // The very next bytes are signed (RFC 2385), but no server here has a key; or they follow
        // an option that is longer than all options. Kernels without TCP-AO ignore its signatures
        // (RFC 5925), so those are not tested here.
        18 => with_option(build(TcpSegment { seq: next, payload: &other, ..own })?, &MD5),
        19 => with_option(build(TcpSegment { seq: next, payload: &other, ..own })?, &ENDLESS),
        // The very next bytes follow a header that no kernel accepts.
        20 | 21 => {
            let mut l3 = build(TcpSegment { seq: next, payload: &other, ..own })?;
            let is_ipv4 = tcp_at(&l3) == 20;
            l3[if is_ipv4 { 8 } else { 7 }] = OUR_TTL;
            complete_checksum(&mut l3).ok()?;
            match (kind, is_ipv4) {
                (20, true) => l3[2..4].fill(0),
                (20, false) => l3[4..6].fill(0),
                (_, true) => l3[10] ^= 0x40,
                (_, false) => l3[4] ^= 0x40,
            }
            Some(l3)
        }
        // A stranger's SYN.
        _ => {
            let mut key = own.key;
            key.client_port = 61_000 + (number % SYNS_MAX) as u16;
            let flags = if number < SYNS_MAX { Flags::SYN } else { Flags::ACK };
            build(TcpSegment { key, flags, payload: &[], ..own })
        }
    }
}

const MD5: [u8; 20] = [1, 1, 19, 18, 1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2];
const ENDLESS: [u8; 20] = [253, 99, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2];

/// Inserts an option of whole words in front of a packet's others.
fn with_option(mut l3: Vec<u8>, option: &[u8]) -> Option<Vec<u8>> {
    let at = tcp_at(&l3);
    l3.splice(at + 20..at + 20, option.iter().copied());
    l3[at + 12] += (option.len() as u8 / 4) << 4;
    let (place, length) = if at == 20 { (2, l3.len()) } else { (4, l3.len() - 40) };
    l3[place..place + 2].copy_from_slice(&(length as u16).to_be_bytes());
    complete_checksum(&mut l3).ok()?;
    Some(l3)
}

fn with_checksum(mut l3: Vec<u8>) -> Vec<u8> {
    // A packet whose checksum cannot be completed is malformed, too.
    let _ = complete_checksum(&mut l3);
    l3
}

/// Follows every request with a forgery; returns how many there were.
fn attack(testbed: &Testbed, port: u16) -> Worker<u32> {
    let edge = testbed.host(Role::Edge).namespace();
    let to = in_namespace(edge, || Link::by_name(interface::EDGE_CLIENT).expect("it is there").mac);
    Worker::start(testbed.host(Role::Client), move |wire| {
        let mut forger = Forger::open(None);
        let own = Link::by_name(interface::CLIENT).expect("it is there");
        let hop = Hop { ifindex: own.index, from: own.mac, to };
        let mut sent = 0;
        let mut number = 0;
        let only = std::env::var("HOLDFAST_FORGERY").ok().and_then(|text| text.parse().ok());
        while wire.should_go_on() {
            let kind = only.unwrap_or(number % KINDS);
            let forged = wire.next(|l3, packet| {
                let request = is_request(l3, &packet, port);
                request.then(|| forgery(kind, number / KINDS, &packet)).flatten()
            });
            if let Some(l3) = forged.flatten() {
                sent += u32::from(if BAD_HEADERS.contains(&kind) {
                    forger.send_as_is(&hop, &l3)
                } else {
                    forger.send(l3)
                });
                number += 1;
            }
        }
        sent
    })
}

/// Options with which a busy machine causes no takeover.
fn patient() -> GroupOptions {
    GroupOptions { heartbeat_ms: Some(150), ..GroupOptions::default() }
}

fn survives_under_fire(ipv6: bool) {
    let _limit = world::limit(Duration::from_secs(90));
    world::with_redis_and(&patient(), |testbed, group| {
        let server = group.server_pid(Role::Primary).expect("a server");
        let mut load = world::counting(1500, 1500, Some(vec![(0, Action::Kill(server))]));
        if ipv6 {
            load.address = addresses::SERVICE_V6.parse().expect("an address");
        }
        let attacker = attack(testbed, Program::Redis.port());
        let run = world::start(testbed, &load);
        world::finish(run, group);
        let sent = attacker.stop();
        assert!(sent > 500, "only {sent} packets were forged");
        let status = group.status(Role::Backup).expect("the survivor answers");
        assert!(status["last_takeover"].is_object(), "no takeover took place: {status}");
    });
}

#[test]
fn hostile_packets_change_nothing() {
    survives_under_fire(false);
}

#[test]
fn hostile_packets_change_nothing_over_ipv6() {
    survives_under_fire(true);
}

/// An attacker on the edge's wire sends only the backup other bytes than the primary got. What the
/// primary read is right. The false packets end before the fault: of bytes that the primary never
/// read, the backup knows only its own copy.
#[test]
fn a_lie_to_the_tap_is_found_out() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_and(&patient(), |testbed, group| {
        let edge = testbed.host(Role::Edge);
        for words in [
            format!("rule add fwmark {MARK} lookup {MARK}"),
            format!(
                "route add {}/32 via {} dev br0 table {MARK}",
                addresses::SERVICE_V4,
                addresses::BACKUP
            ),
        ] {
            let mut ip = Command::new("ip");
            ip.args(["-n", edge.namespace()]).args(words.split(' '));
            assert!(ip.status().expect("ip starts").success(), "ip {words}");
        }
        let liar = lie(testbed, Program::Redis.port());
        let server = group.server_pid(Role::Primary).expect("a server");
        let load = world::counting(1500, 2000, Some(vec![(0, Action::Kill(server))]));
        let run = world::start(testbed, &load);
        world::finish(run, group);
        assert!(liar.stop() > 20, "too few lies to mean anything");
        let status = group.status(Role::Backup).expect("the survivor answers");
        assert!(status["last_takeover"].is_object(), "no takeover took place: {status}");
    });
}

/// Time for which false packets are sent, from the first one on.
const LIES: Duration = Duration::from_secs(1);

/// Mark of packets that go to the backup, which is also the number of a routing table.
const MARK: u32 = 77;

/// Sends other bytes for every request before it comes, to the backup only.
fn lie(testbed: &Testbed, port: u16) -> Worker<u32> {
    Worker::start(testbed.host(Role::Edge), move |wire| {
        let forger = Forger::open(Some(MARK));
        let mut sent = 0;
        let mut since = None;
        while wire.should_go_on() && since.is_none_or(|at: Instant| at.elapsed() < LIES) {
            let forged = wire.next(|l3, packet| {
                let other: Vec<u8> = packet.payload.iter().map(|byte| byte ^ 0x15).collect();
                let next =
                    TcpSegment { seq: packet.seq_end(), payload: &other, ..segment(&packet) };
                is_request(l3, &packet, port).then(|| next.build().ok()).flatten()
            });
            if let Some(l3) = forged.flatten() {
                since.get_or_insert_with(Instant::now);
                sent += u32::from(forger.send(l3));
            }
        }
        sent
    })
}
