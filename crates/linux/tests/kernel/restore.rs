//! A connection is taken from one host's socket and goes on, byte for byte, on a
//! socket of another host. Needs root.

use crate::world::takeover::{
    Backup, TCP_TIMESTAMP, dissect, fence, get, idle, info, listen, set, spec,
};
use crate::world::{World, pattern_range};
use holdfast_linux::diag::{DiagSocket, TcpState};
use holdfast_linux::repair::{self, ClientClock, ClosingState, RestoreSpec};
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Length of the upload of the full exchange, in bytes.
const UPLOAD: usize = 300_000;
/// Length of the download of the full exchange, in bytes.
const DOWNLOAD: usize = 400_000;
/// Bytes that the first server has read when it dies.
const READ_BEFORE: usize = 40_000;
/// Bytes that the first server has written when it dies.
const WRITTEN_BEFORE: usize = 60_000;

struct Case {
    v6: bool,
    /// Whether the listener (and with it the replica's socket) is a dual-stack one.
    dual_stack: bool,
    timestamps: bool,
    sack: bool,
    wscale: bool,
}

fn survives(case: &Case) {
    let world = World::new(case.v6);
    for (name, on) in [
        ("ipv4/tcp_timestamps", case.timestamps),
        ("ipv4/tcp_sack", case.sack),
        ("ipv4/tcp_window_scaling", case.wscale),
    ] {
        world.sysctl("c", name, if on { "1" } else { "0" });
    }
    let listener = listen(&world, case.dual_stack);
    let client = world.connect();
    let client_port = client.local_addr().unwrap().port();
    let (mut server, _) = listener.accept().unwrap();
    let family = if case.v6 || case.dual_stack { libc::AF_INET6 } else { libc::AF_INET };
    let mut backup = Backup::new(&world, family);

    let (mut reader, mut writer) = (client.try_clone().unwrap(), client);
    let download = std::thread::spawn(move || {
        let mut got = vec![0; DOWNLOAD];
        reader.read_exact(&mut got).unwrap();
        got
    });
    let upload = std::thread::spawn(move || {
        writer.write_all(&pattern_range(0, UPLOAD)).unwrap();
        writer
    });
    let mut got = vec![0; READ_BEFORE];
    server.read_exact(&mut got).unwrap();
    server.write_all(&pattern_range(0, WRITTEN_BEFORE)).unwrap();
    fence(&world);
    // What the dead host's kernel still accepts does not reach the client.
    let lost = 30_000;
    server.write_all(&pattern_range(WRITTEN_BEFORE, WRITTEN_BEFORE + lost)).unwrap();
    let written = WRITTEN_BEFORE + lost;
    std::thread::sleep(Duration::from_millis(20));

    let dead = dissect(&server, &world, client_port);
    assert_eq!(dead.record.tsval.is_some(), case.timestamps);
    assert_eq!(dead.record.sack, case.sack);
    assert_eq!(dead.record.snd_wscale != 255, case.wscale);
    let unread = pattern_range(READ_BEFORE, READ_BEFORE + dead.unread);
    let (a, b) = unread.split_at(unread.len() / 3);
    let acked = written - dead.in_flight - dead.unsent;
    let in_flight = pattern_range(acked, acked + dead.in_flight);
    let pieces = [a, b];
    let spec = spec(&dead, &pieces, &in_flight);
    repair::restore(backup.socket.as_fd(), &spec).unwrap();
    let [mss] = get(&backup.socket, libc::TCP_MAXSEG);
    assert!(mss >= 1400, "segment size {mss}");
    backup.take_address(&world);
    backup.kick(&spec);
    let unsent = pattern_range(written - dead.unsent, written);
    assert_eq!(repair::live_send(backup.socket.as_fd(), &unsent).unwrap(), unsent.len());

    let mut server = backup.into_stream();
    let mut output = server.try_clone().unwrap();
    let rest = std::thread::spawn(move || {
        output.write_all(&pattern_range(written, DOWNLOAD)).unwrap();
    });
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    got.resize(UPLOAD, 0);
    server.read_exact(&mut got[READ_BEFORE..]).unwrap();
    assert!(got == pattern_range(0, UPLOAD), "upload differs");
    assert!(download.join().unwrap() == pattern_range(0, DOWNLOAD), "download differs");
    rest.join().unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    let mut client = upload.join().unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    drop(client);
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn both_directions_go_on_ipv4() {
    survives(&Case { v6: false, dual_stack: false, timestamps: true, sack: true, wscale: true });
}

#[test]
fn both_directions_go_on_ipv6() {
    survives(&Case { v6: true, dual_stack: false, timestamps: true, sack: true, wscale: true });
}

#[test]
fn both_directions_go_on_ipv4_on_a_dual_stack_socket() {
    survives(&Case { v6: false, dual_stack: true, timestamps: true, sack: true, wscale: true });
}

#[test]
fn both_directions_go_on_without_timestamps() {
    survives(&Case { v6: false, dual_stack: false, timestamps: false, sack: true, wscale: true });
    survives(&Case { v6: true, dual_stack: false, timestamps: false, sack: true, wscale: true });
}

#[test]
fn both_directions_go_on_without_sack() {
    survives(&Case { v6: false, dual_stack: false, timestamps: true, sack: false, wscale: true });
}

#[test]
fn both_directions_go_on_without_window_scaling() {
    survives(&Case { v6: false, dual_stack: true, timestamps: true, sack: true, wscale: false });
}

#[test]
fn both_directions_go_on_without_any_option() {
    survives(&Case { v6: false, dual_stack: false, timestamps: false, sack: false, wscale: false });
}

/// The window that the kernel advertises stands in the header as it is: nobody has agreed on a
/// shift by which it could be divided.
#[test]
fn a_client_without_window_scaling_is_shown_the_whole_window() {
    for v6 in [false, true] {
        let world = World::new(v6);
        world.sysctl("c", "ipv4/tcp_window_scaling", "0");
        let (mut client, server, mut backup) = idle(&world);
        let shown_before = window_shown_to(&client);
        let dead = dissect(&server, &world, client.local_addr().unwrap().port());
        fence(&world);
        repair::restore(backup.socket.as_fd(), &spec(&dead, &[], &[])).unwrap();
        backup.take_address(&world);
        client.write_all(b"new").unwrap();
        let mut server = backup.into_stream();
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        server.read_exact(&mut [0; 3]).unwrap();
        let acked_by = Instant::now() + Duration::from_secs(20);
        while info(&client).tcpi_unacked > 0 {
            assert!(Instant::now() < acked_by, "no ACK came");
            std::thread::sleep(Duration::from_millis(1));
        }
        let shown = window_shown_to(&client);
        assert!(shown + 3 >= shown_before, "{shown} bytes instead of {shown_before}");
    }
}

fn window_shown_to(client: &TcpStream) -> u32 {
    set(client, libc::TCP_REPAIR, 1);
    let [_, window, ..] = get::<5>(client, libc::TCP_REPAIR_WINDOW);
    set(client, libc::TCP_REPAIR, -1);
    window
}

/// RFC 9293 §3.7.1: a client whose SYN has no such option takes 536 bytes, or 1220 by IPv6.
#[test]
fn a_client_that_announced_no_segment_size_gets_the_default_one() {
    for (v6, size) in [(false, 536), (true, 1220)] {
        let world = World::new(v6);
        let (client, server, backup) = idle(&world);
        let mut dead = dissect(&server, &world, client.local_addr().unwrap().port());
        fence(&world);
        dead.record.peer_mss = 0;
        repair::restore(backup.socket.as_fd(), &spec(&dead, &[], &[])).unwrap();
        let timestamps = 12;
        assert_eq!(get(&backup.socket, libc::TCP_MAXSEG), [size - timestamps]);
    }
}

fn state_becomes(diag: &mut DiagSocket, key: &ConnKey, wanted: TcpState) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let state = diag.state(key).unwrap();
        if state == Some(wanted) {
            return;
        }
        assert!(Instant::now() < deadline, "{state:?} instead of {wanted:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Rebuilds a connection in each closing state, and closes it.
fn half_closed(v6: bool, closing: ClosingState) {
    let world = World::new(v6);
    let (mut client, server, mut backup) = idle(&world);
    let port = client.local_addr().unwrap().port();
    let dead = dissect(&server, &world, port);
    let own_fin = !matches!(closing, ClosingState::CloseWait);
    let acked = matches!(closing, ClosingState::FinWait2 | ClosingState::TimeWait);
    let peer_fin = !matches!(closing, ClosingState::FinWait1 | ClosingState::FinWait2);
    if acked {
        server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        std::thread::sleep(Duration::from_millis(60));
    }
    fence(&world);
    if peer_fin {
        client.shutdown(Shutdown::Write).unwrap();
    }
    let mut spec = spec(&dead, &[], &[]);
    spec.closing = closing;
    spec.snd_una = dead.snd_una.plus(u64::from(acked));
    repair::restore(backup.socket.as_fd(), &spec).unwrap();
    backup.take_address(&world);
    let raw = &backup.raw;
    let client_tsval = spec.tsval.map(|_| get::<1>(&client, TCP_TIMESTAMP)[0] & !1);
    repair::finish_closing(backup.socket.as_fd(), &spec, client_tsval, &mut |packet| {
        raw.send(packet).map_err(std::io::Error::other)
    })
    .unwrap();

    let mut diag = world.within("b", || DiagSocket::open().unwrap());
    if closing == ClosingState::FinWait2 {
        state_becomes(&mut diag, &spec.key, TcpState::FinWait2);
    }
    if closing == ClosingState::CloseWait {
        state_becomes(&mut diag, &spec.key, TcpState::CloseWait);
    }
    let mut server = backup.into_stream();
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    if !own_fin {
        server.write_all(b"still here").unwrap();
        let mut got = [0; 10];
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"still here");
        server.shutdown(Shutdown::Write).unwrap();
    }
    if !peer_fin {
        client.write_all(b"me too").unwrap();
        let mut got = [0; 6];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"me too");
        client.shutdown(Shutdown::Write).unwrap();
    }
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "{closing:?}");
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0, "{closing:?}");
    drop((client, server));
    let deadline = Instant::now() + Duration::from_secs(20);
    while !matches!(diag.state(&spec.key).unwrap(), None | Some(TcpState::TimeWait)) {
        assert!(Instant::now() < deadline, "{closing:?}: {:?}", diag.state(&spec.key));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn half_closed_connections_end_properly() {
    for closing in [
        ClosingState::FinWait1,
        ClosingState::FinWait2,
        ClosingState::CloseWait,
        ClosingState::Closing,
        ClosingState::LastAck,
        ClosingState::TimeWait,
    ] {
        half_closed(false, closing);
        half_closed(true, closing);
    }
}

/// Shows the client's clock until the socket has seen it: an address that was just taken may not
/// receive at once.
fn shown_clock(backup: &Backup, spec: &RestoreSpec<'_>) -> libc::tcp_info {
    let until = Instant::now() + Duration::from_secs(20);
    let mut inject = |p: &[u8]| backup.raw.send(p).map_err(std::io::Error::other);
    while info(&backup.socket).tcpi_unacked > 0 {
        assert!(Instant::now() < until, "the marker is not acknowledged");
        repair::show_clock(spec, &mut inject).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    info(&backup.socket)
}

/// Without the client's clock the kernel would accept a segment of any age, and its timer would
/// know nothing of the round trip.
#[test]
fn a_rebuilt_connection_refuses_what_is_older_than_the_clients_last_word() {
    for v6 in [false, true] {
        let world = World::new(v6);
        let (mut client, mut server, mut backup) = idle(&world);
        server.write_all(b"hello").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        std::thread::sleep(Duration::from_millis(60));
        let dead = dissect(&server, &world, client.local_addr().unwrap().port());
        fence(&world);
        let now = get::<1>(&client, TCP_TIMESTAMP)[0] & !1;
        let client_clock = Some(ClientClock { tsval: now, rtt_ms: 60 });
        let spec = RestoreSpec { client_clock, ..spec(&dead, &[], &[]) };
        repair::restore(backup.socket.as_fd(), &spec).unwrap();
        backup.take_address(&world);
        let inject = |p: &[u8]| backup.raw.send(p).map_err(std::io::Error::other);
        let shown = shown_clock(&backup, &spec);
        assert!(shown.tcpi_rtt >= 60_000, "{} us", shown.tcpi_rtt);
        assert!(shown.tcpi_rto < 3_000_000, "{} us", shown.tcpi_rto);
        let timestamps = Some((now.wrapping_sub(1000), 0));
        let old = TcpSegment {
            key: spec.key,
            to_client: false,
            seq: spec.rcv_end(),
            ack: spec.snd_una,
            flags: Flags::ACK,
            window: 500,
            options: TcpOptions { timestamps, ..TcpOptions::default() },
            payload: b"old",
        };
        inject(&old.build().unwrap()).unwrap();
        client.write_all(b"new").unwrap();
        let mut server = backup.into_stream();
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut got = [0; 3];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"new");
    }
}

#[test]
fn errors_name_the_step_and_the_remedy() {
    let world = World::new(false);
    let (client, server, backup) = idle(&world);
    let dead = dissect(&server, &world, client.local_addr().unwrap().port());
    let mut bad = spec(&dead, &[], &[]);
    bad.congestion = Some("nosuch");
    let error = repair::restore(backup.socket.as_fd(), &bad).unwrap_err().to_string();
    assert!(error.contains("TCP_CONGESTION") && error.contains("available"), "{error}");
    let mut bad = spec(&dead, &[], b"x");
    bad.closing = ClosingState::FinWait2;
    assert!(repair::restore(backup.socket.as_fd(), &bad).is_err());
}

/// A listener can be bound beside rebuilt connections, which are found again.
#[test]
fn a_listener_binds_beside_a_rebuilt_connection() {
    let world = World::new(false);
    let (client, server, mut backup) = idle(&world);
    let dead = dissect(&server, &world, client.local_addr().unwrap().port());
    fence(&world);
    repair::restore(backup.socket.as_fd(), &spec(&dead, &[], &[])).unwrap();
    backup.take_address(&world);
    let service = world.service();
    let _listener = world.within("b", || TcpListener::bind(service).unwrap());
    drop(client);
}
