//! Output that counts as sent but never arrived: how soon a rebuilt connection sends it again, by
//! itself and when nudged. Needs root.
//! `cargo test -p holdfast-linux --test linux_nudge -- --nocapture` prints the numbers that the
//! documentation of `nudge` quotes.

use crate::world::takeover::{Backup, dissect, fence, idle, info, set, spec};
use crate::world::{PORT, World, pattern_range};
use holdfast_linux::process;
use holdfast_linux::repair::{self, Nudge, NudgeHeader, RestoreSpec};
use holdfast_linux::tap::{Service, TapSocket};
use holdfast_wire::packet::{TcpPacket, mapped};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Only the pure ACK that every promotion sends.
    Kick,
    /// As `Kick`, with the socket options that bound the timer (Linux 6.15).
    RtoOptions,
    Nudge,
    /// The bytes are written after the repair, and not restored as sent.
    LiveSend,
}

struct Measured {
    rto_ms: u32,
    first_ms: f64,
    all_ms: f64,
}

fn measure(way: Way, len: usize, sack: bool, timestamps: bool) -> Measured {
    measure_in(&World::new(false), way, len, sack, timestamps)
}

fn measure_in(world: &World, way: Way, len: usize, sack: bool, timestamps: bool) -> Measured {
    world.sysctl("c", "ipv4/tcp_sack", if sack { "1" } else { "0" });
    world.sysctl("c", "ipv4/tcp_timestamps", if timestamps { "1" } else { "0" });
    let (client, mut server, mut backup) = idle(world);
    fence(world);
    let output = pattern_range(0, len);
    server.write_all(&output).unwrap();
    let mut dead = dissect(&server, world, client.local_addr().unwrap().port());
    dead.in_flight = len;
    let in_flight: &[u8] = if way == Way::LiveSend { &[] } else { &output };
    let spec = spec(&dead, &[], in_flight);
    if way == Way::RtoOptions {
        const TCP_RTO_MAX_MS: i32 = 44;
        const TCP_RTO_MIN_US: i32 = 45;
        set(&backup.socket, TCP_RTO_MAX_MS, 1000);
        set(&backup.socket, TCP_RTO_MIN_US, 5000);
    }
    repair::restore(backup.socket.as_fd(), &spec).unwrap();
    let rto_ms = info(&backup.socket).tcpi_rto / 1000;
    backup.take_address(world);
    let services = [Service { address: mapped(world.vip()), port: PORT }];
    let mut tap = world.within("b", || TapSocket::open("m0", &services, 4 << 20).unwrap());
    let start = Instant::now();
    match way {
        Way::Kick | Way::RtoOptions => backup.kick(&spec),
        Way::LiveSend => {
            backup.kick(&spec);
            assert_eq!(repair::live_send(backup.socket.as_fd(), &output).unwrap(), len);
        }
        Way::Nudge => {}
    }
    let reader = std::thread::spawn(move || receive(client, len, start));
    if way == Way::Nudge {
        nudge(&mut tap, &backup, &spec);
    }
    let (got, first_ms, all_ms) = reader.join().unwrap();
    assert!(got == output);
    Measured { rto_ms, first_ms, all_ms }
}

fn receive(mut client: TcpStream, len: usize, start: Instant) -> (Vec<u8>, f64, f64) {
    client.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
    let mut got = vec![0; len];
    client.read_exact(&mut got[..1]).unwrap();
    let first_ms = start.elapsed().as_secs_f64() * 1e3;
    client.read_exact(&mut got[1..]).unwrap();
    let all_ms = start.elapsed().as_secs_f64() * 1e3;
    (got, first_ms, all_ms)
}

/// Nudges as a daemon does, whose tap shows every ACK of the client.
fn nudge(tap: &mut TapSocket, backup: &Backup, spec: &RestoreSpec<'_>) {
    let timestamps = spec.tsval.map(|value| (value, 0));
    let segment_bytes = repair::segment_bytes(backup.socket.as_fd()).unwrap();
    let header = NudgeHeader { ack: spec.rcv_end(), window: 1000, timestamps, segment_bytes };
    let mut nudge = Nudge::default();
    let mut acks = vec![spec.snd_una];
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        for ack in acks.drain(..) {
            for packet in nudge.packets(spec, ack, &header).unwrap() {
                backup.raw.send(&packet).unwrap();
            }
        }
        if nudge.is_done(spec) || Instant::now() > deadline {
            return;
        }
        process::poll_in(tap.fd(), 100).unwrap();
        tap.drain(1000, |l3, checksum| acks.push(TcpPacket::parse(l3, checksum).unwrap().ack))
            .unwrap();
    }
}

fn table(way: Way, len: usize, sack: bool, timestamps: bool) -> Measured {
    let measured = measure(way, len, sack, timestamps);
    println!(
        "{way:?} {len} bytes, SACK {sack}, timestamps {timestamps}: RTO {} ms, first byte {:.1} ms, all {:.1} ms",
        measured.rto_ms, measured.first_ms, measured.all_ms
    );
    measured
}

#[test]
fn lost_output_left_to_the_kernel_waits_for_its_initial_timer() {
    for len in [5_000, 60_000] {
        assert!(table(Way::Kick, len, true, true).first_ms > 900.0);
        assert!(table(Way::RtoOptions, len, true, true).first_ms > 900.0);
        assert!(table(Way::LiveSend, len, true, true).first_ms < 150.0);
    }
}

#[test]
fn nudged_output_arrives_at_once() {
    for len in [500, 14_000, 30_000, 60_000] {
        for (sack, timestamps) in [(true, true), (true, false), (false, true), (false, false)] {
            assert!(table(Way::Nudge, len, sack, timestamps).all_ms < 150.0);
        }
    }
}

/// A client that takes larger segments than this host's link does.
#[test]
fn nudged_output_fits_the_own_link() {
    for timestamps in [true, false] {
        let world = World::new(false);
        world.ip("b", "link set m0 mtu 1300");
        assert!(measure_in(&world, Way::Nudge, 14_000, true, timestamps).all_ms < 150.0);
    }
}
