//! Gate, tap drop and edge at work on real TCP connections: a client reaches the primary's server
//! through the edge, while this test plays both daemons.

use crate::common::topology::{BACKUP_MAC, PRIMARY_MAC, Topology, VIP4, VIP6};
use crate::common::{ACK, Capture, Frame, Lab, counter, is_root, sh};
use holdfast_linux::bpf::{Edge, EdgeConfig, Gate, GateConfig, MemberPort, SlotView, TapDrop};
use holdfast_wire::message::{ConnId, ConnRecord, FlowBounds};
use holdfast_wire::seq::SeqNo;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PORT: u16 = 6379;
const UPLOAD_BYTES: usize = 24 << 20;
const CLIENT_PATIENCE: Duration = Duration::from_secs(20);

/// What the threads of the test share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    let_fins_go: AtomicBool,
    /// Offset up to which ACKs have ever been allowed.
    stable: AtomicU64,
}

struct Played {
    gate: Gate,
    conns: HashMap<u16, (ConnId, ConnRecord)>,
    last: Option<SlotView>,
}

fn services() -> Vec<(IpAddr, u16)> {
    [VIP4, VIP6].iter().map(|text| (text.parse().expect("address"), PORT)).collect()
}

fn edge(topology: &Topology, pin_dir: PathBuf) -> Edge {
    let member = |interface: &str, mac| MemberPort { interface: interface.into(), mac };
    let config = EdgeConfig {
        client_interfaces: vec!["ec".into()],
        members: vec![member("ep", PRIMARY_MAC), member("eb", BACKUP_MAC)],
        l3_interface: Some("br0".into()),
        services: services(),
        pin_dir,
        flows_max: 100,
    };
    let attached = topology.on("edge", move || {
        let mut edge = Edge::attach(&config)?;
        edge.set_current(1, Some(0))?;
        edge.set_tap(1, true)?;
        Ok::<_, holdfast_linux::bpf::BpfError>(edge)
    });
    attached.join().expect("thread").unwrap_or_else(|error| panic!("{error}"))
}

/// Sends IP packets as they are; the gate sees them like those of the stack.
struct Raw {
    v4: OwnedFd,
    v6: OwnedFd,
}

impl Raw {
    fn new() -> Self {
        let open = |family| {
            // SAFETY: socket() takes no pointers.
            let fd = unsafe { libc::socket(family, libc::SOCK_RAW, libc::IPPROTO_RAW) };
            assert!(fd >= 0, "raw socket");
            // SAFETY: `fd` is a new descriptor that nobody else owns.
            unsafe { OwnedFd::from_raw_fd(fd) }
        };
        Self { v4: open(libc::AF_INET), v6: open(libc::AF_INET6) }
    }

    fn send(&self, packet: &[u8]) {
        // SAFETY: all-zero socket addresses are valid values.
        let (mut v4, mut v6): (libc::sockaddr_in, libc::sockaddr_in6) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let (socket, address, size) = if packet[0] >> 4 == 4 {
            v4.sin_family = libc::AF_INET as u16;
            let target: [u8; 4] = packet[16..20].try_into().expect("4");
            v4.sin_addr.s_addr = u32::from_ne_bytes(target);
            (&self.v4, (&raw const v4).cast::<libc::sockaddr>(), size_of_val(&v4))
        } else {
            v6.sin6_family = libc::AF_INET6 as u16;
            v6.sin6_addr.s6_addr = packet[24..40].try_into().expect("16");
            (&self.v6, (&raw const v6).cast::<libc::sockaddr>(), size_of_val(&v6))
        };
        let data = packet.as_ptr().cast();
        // SAFETY: packet and address are as long as said and outlive the call.
        let sent = unsafe {
            libc::sendto(socket.as_raw_fd(), data, packet.len(), 0, address, size as u32)
        };
        assert_eq!(sent, packet.len() as isize, "{}", std::io::Error::last_os_error());
    }
}

/// The part of a stream that the backup holds; copies come in any order.
struct Held {
    end: SeqNo,
    later: Vec<(SeqNo, SeqNo)>,
}

impl Held {
    /// Takes a copy; returns whether the stream has grown.
    fn take(&mut self, from: SeqNo, to: SeqNo) -> bool {
        let before = self.end;
        self.later.push((from, to));
        while let Some(next) = self.later.iter().position(|(from, _)| !from.after(self.end)) {
            let (_, to) = self.later.swap_remove(next);
            if to.after(self.end) {
                self.end = to;
            }
        }
        self.end.after(before)
    }
}

/// Plays both members' daemons: records SYN-ACKs, follows the tap, and releases what the backup
/// holds.
fn play_daemons(mut gate: Gate, tap: &Capture, shared: &Shared) -> Played {
    let raw = Raw::new();
    let mut conns: HashMap<u16, (ConnId, ConnRecord)> = HashMap::new();
    let mut held: HashMap<u16, Held> = HashMap::new();
    let mut last = None;
    while !shared.stop.load(Ordering::Acquire) {
        gate.drain_events(|event| {
            let port = event.record.key.client_port;
            conns.insert(port, (event.conn, event.record));
            held.insert(port, Held { end: event.record.irs.plus(1), later: Vec::new() });
        });
        for (conn, record) in conns.values() {
            if gate.slot(*conn).is_some_and(|slot| slot.held_synack) {
                assert!(gate.open(*conn));
                raw.send(&syn_ack_of(record));
            }
        }
        for frame in tap.tcp_frames() {
            let segment = Segment::of(&frame);
            if segment.target_port != PORT || segment.syn {
                continue;
            }
            let Some(held) = held.get_mut(&segment.source_port) else { continue };
            if held.take(segment.seq, segment.seq.plus(segment.length)) {
                release(&gate, &raw, conns[&segment.source_port], held.end, shared);
            }
        }
        for (conn, _) in conns.values() {
            if shared.let_fins_go.load(Ordering::Acquire) {
                gate.allow_fin(*conn);
            }
            last = gate.slot(*conn).or(last);
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    Played { gate, conns, last }
}

fn release(gate: &Gate, raw: &Raw, conn: (ConnId, ConnRecord), stable: SeqNo, shared: &Shared) {
    let offset = stable.since(conn.1.irs) as u64;
    shared.stable.fetch_max(offset, Ordering::SeqCst);
    assert!(gate.set_stable(conn.0, stable));
    let slot = gate.slot(conn.0).expect("slot");
    if !stable.after(slot.last_ack) {
        return;
    }
    let window = (slot.right_edge.since(stable).max(0) >> slot.rcv_wscale).min(65535);
    let mut options = vec![1, 1, 8, 10];
    options.extend(slot.tsval.to_be_bytes());
    options.extend(slot.tsecr.to_be_bytes());
    let (server, client) = endpoints(&conn.1);
    let kick = Frame::new(server, client).seq(slot.snd_nxt.0).ack(stable.0).flags(ACK);
    raw.send(&kick.window(window as u16).options(&options).build()[14..]);
}

/// The SYN-ACK made from the record alone, as a backup would have to.
fn syn_ack_of(record: &ConnRecord) -> Vec<u8> {
    let (server, client) = endpoints(record);
    let mss = record.mss.to_be_bytes();
    let mut options = vec![2, 4, mss[0], mss[1], 4, 2, 8, 10];
    options.extend(record.tsval.expect("timestamps").to_be_bytes());
    options.extend([0; 4]);
    options.extend([1, 3, 3, record.rcv_wscale]);
    let frame = Frame::new(server, client).seq(record.iss.0).ack(record.irs.plus(1).0);
    frame.flags(0x12).window(record.window).options(&options).build()[14..].to_vec()
}

fn endpoints(record: &ConnRecord) -> ((IpAddr, u16), (IpAddr, u16)) {
    let ip = |bytes: [u8; 16]| IpAddr::from(bytes).to_canonical();
    let key = record.key;
    ((ip(key.server), key.server_port), (ip(key.client), key.client_port))
}

struct Segment {
    source_port: u16,
    target_port: u16,
    seq: SeqNo,
    ack: SeqNo,
    syn: bool,
    /// Length of the stream, including the FIN.
    length: u64,
}

impl Segment {
    fn of(frame: &[u8]) -> Self {
        let (tcp, ip_len) = if frame[12..14] == [0x08, 0x00] {
            (34, usize::from(u16::from_be_bytes([frame[16], frame[17]])))
        } else {
            (54, 40 + usize::from(u16::from_be_bytes([frame[18], frame[19]])))
        };
        let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let seq = |at: usize| SeqNo(u32::from_be_bytes(frame[at..at + 4].try_into().expect("4")));
        let header = usize::from(frame[tcp + 12] >> 4) * 4;
        let fin = u64::from(frame[tcp + 13] & 1);
        Self {
            source_port: port(tcp),
            target_port: port(tcp + 2),
            seq: seq(tcp + 4),
            ack: seq(tcp + 8),
            syn: frame[tcp + 13] & 2 != 0,
            length: (14 + ip_len - tcp - header) as u64 + fin,
        }
    }
}

/// Reads until the client's end, sends everything back, then one byte, and closes.
fn serve(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().expect("accept");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("read");
    stream.write_all(&bytes).expect("write");
    // The byte leaves when everything before it is acknowledged, and so shows snd_una.
    std::thread::sleep(Duration::from_millis(300));
    stream.write_all(&[42]).expect("write");
}

fn talk(server: SocketAddr, shared: &Shared) {
    let sent: Vec<u8> = (0..UPLOAD_BYTES).map(|i| (i / 7) as u8).collect();
    let mut stream = TcpStream::connect_timeout(&server, CLIENT_PATIENCE).expect("connect");
    stream.set_read_timeout(Some(CLIENT_PATIENCE)).expect("timeout");
    stream.set_write_timeout(Some(CLIENT_PATIENCE)).expect("timeout");
    stream.write_all(&sent).expect("upload");
    stream.shutdown(Shutdown::Write).expect("shutdown");
    let mut received = vec![0; UPLOAD_BYTES + 1];
    stream.read_exact(&mut received).expect("download");
    assert!(received[..UPLOAD_BYTES] == sent && received[UPLOAD_BYTES] == 42);
    stream.set_read_timeout(Some(Duration::from_millis(300))).expect("timeout");
    let early = stream.read(&mut received).expect_err("the FIN is withheld");
    assert!(matches!(early.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    shared.let_fins_go.store(true, Ordering::Release);
    stream.set_read_timeout(Some(CLIENT_PATIENCE)).expect("timeout");
    assert_eq!(stream.read(&mut received).expect("end"), 0);
}

/// Checks every ACK that reaches the client while the test runs.
fn watch_acks(capture: &Capture, shared: &Shared) -> usize {
    let (mut irs, mut seen) = (None, 0);
    while !shared.stop.load(Ordering::Acquire) {
        for frame in capture.tcp_frames() {
            let segment = Segment::of(&frame);
            if segment.syn && segment.target_port == PORT {
                irs = Some(segment.seq);
            }
            let (PORT, Some(irs)) = (segment.source_port, irs) else { continue };
            let acked = segment.ack.since(irs) as u64;
            let stable = shared.stable.load(Ordering::SeqCst).max(1);
            assert!(acked <= stable, "ACK {acked} > stable {stable}");
            seen += 1;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    seen
}

struct Outcome {
    played: Played,
    acks_seen: usize,
    bounds: Option<FlowBounds>,
    edge: Edge,
    tapdrop: TapDrop,
}

fn run(topology: &Topology, lab: &Lab, vip: &str) -> Outcome {
    let shared = Arc::new(Shared::default());
    let server: SocketAddr = (vip.parse::<IpAddr>().expect("address"), PORT).into();
    let edge = edge(topology, lab.pin_dir.clone());
    let pins = lab.pin_dir.clone();
    let backup = topology.on("bak", move || {
        let tapdrop = TapDrop::attach("b0", &services(), &pins).expect("tap drop");
        (tapdrop, Capture::new("b0"))
    });
    let (tapdrop, tap) = backup.join().expect("backup");
    let (config, inner) = (gate_config(lab), shared.clone());
    let (ready, listening) = std::sync::mpsc::channel();
    let daemons = topology.on("pri", move || {
        let gate = Gate::attach(&config).unwrap_or_else(|error| panic!("{error}"));
        let listener = TcpListener::bind(server).expect("listen");
        ready.send(()).expect("the test waits");
        let serving = std::thread::spawn(move || serve(&listener));
        let played = play_daemons(gate, &tap, &inner);
        serving.join().expect("server");
        played
    });
    let inner = shared.clone();
    let watcher = topology.on("cli", move || watch_acks(&Capture::new("c0"), &inner));
    let inner = shared.clone();
    listening.recv().expect("the server listens");
    let talked = topology.on("cli", move || talk(server, &inner)).join();
    shared.stop.store(true, Ordering::Release);
    // The client's result is checked first: the server of a client that gave up waits for ever.
    talked.expect("client");
    let played = daemons.join().expect("daemons");
    let acks_seen = watcher.join().expect("no ACK beyond stable");
    let bounds = played.last.as_ref().and_then(|slot| edge.bounds(&slot.key));
    Outcome { played, acks_seen, bounds, edge, tapdrop }
}

fn gate_config(lab: &Lab) -> GateConfig {
    GateConfig {
        interface: "p0".into(),
        services: services(),
        slots: 64,
        solo: false,
        deposable: false,
        pin_dir: lab.pin_dir.clone(),
    }
}

#[test]
fn no_ack_beyond_stable_reaches_the_client_and_all_data_flows() {
    if !is_root() {
        return;
    }
    for (tag, vip) in [("a", VIP4), ("b", VIP6)] {
        let (topology, lab) = (Topology::new(tag), Lab::pins_only(&format!("live-{tag}")));
        let outcome = run(&topology, &lab, vip);
        let gate = outcome.played.gate.counters();
        let edge = outcome.edge.counters();
        println!("gate {gate:?}\nedge {edge:?}\nACKs seen {}", outcome.acks_seen);
        assert!(outcome.acks_seen > 100);
        assert!(counter(&gate, "clamped") > 0);
        assert_eq!(counter(&gate, "held_syn_acks"), 1);
        assert!(counter(&gate, "held_fins") + counter(&gate, "cleared_fins") > 0);
        assert_eq!(counter(&gate, "odd") + counter(&edge, "odd"), 0);
        assert!(counter(&outcome.tapdrop.counters(), "dropped") > 0);
        assert_eq!(counter(&edge, "fenced"), 0, "the backup's stack is silent");
        let slot = outcome.played.last.expect("slot");
        let everything = slot.iss.plus(1 + UPLOAD_BYTES as u64);
        assert!(slot.snd_una.since(everything) >= 0, "snd_una from the kernel: {slot:?}");
        assert!(!slot.snd_una.after(slot.snd_nxt));
        let bounds = outcome.bounds.expect("flow");
        assert!(bounds.seq_end.since(everything) >= 1);
        assert!(bounds.client_ack.since(everything) >= 0);
        assert!(!slot.last_edge.after(bounds.right_edge) || slot.last_edge == bounds.right_edge);
        let mut gate = outcome.played.gate;
        for (conn, _) in outcome.played.conns.values() {
            assert!(gate.free(*conn).expect("free"));
        }
    }
}

/// If a socket reports as acknowledged what the slot has not seen leave, it is another connection:
/// the backup would discard output that its client lacks.
#[test]
fn nothing_is_acknowledged_that_has_not_left() {
    if !is_root() {
        return;
    }
    let (topology, lab) = (Topology::new("d"), Lab::pins_only("live-d"));
    let server: SocketAddr = (VIP4.parse::<IpAddr>().expect("address"), PORT).into();
    let _edge = edge(&topology, lab.pin_dir.clone());
    let config = gate_config(&lab);
    let (ready, listening) = std::sync::mpsc::channel();
    let served = topology.on("pri", move || {
        let mut gate = Gate::attach(&config).expect("gate");
        let listener = TcpListener::bind(server).expect("listen");
        ready.send(()).expect("the test waits");
        let conn = opened(&mut gate);
        let (mut stream, _) = listener.accept().expect("accept");
        stream.write_all(&[7; 100]).expect("write");
        (gate, conn, stream)
    });
    listening.recv().expect("the server listens");
    let client = topology.on("cli", move || {
        let mut stream = TcpStream::connect_timeout(&server, CLIENT_PATIENCE).expect("connect");
        stream.read_exact(&mut [0; 100]).expect("download");
        stream
    });
    let (gate, conn, _stream) = served.join().expect("server");
    let mut client = client.join().expect("client");
    // The ACK has arrived by then.
    std::thread::sleep(Duration::from_millis(100));
    let slot = gate.slot(conn).expect("slot");
    assert_eq!(slot.snd_nxt, slot.iss.plus(101));
    let index = conn.0 as u32;
    let mut slots = lab.slots();
    slots.set_snd_nxt(index, slot.iss.plus(51).0);
    // An ACK that repeats what the client knows changes nothing else.
    slots.set_last_edge(index, slot.last_edge.plus(1 << 29).0);
    client.write_all(&[1]).expect("write");
    let repeats = || counter(&gate.counters(), "repeats");
    let until = Instant::now() + CLIENT_PATIENCE;
    while repeats() == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(repeats() > 0, "no ACK was repeated");
    assert_eq!(gate.slot(conn).expect("slot").snd_una, slot.iss.plus(1));
}

/// Lets the next connection begin.
fn opened(gate: &mut Gate) -> ConnId {
    loop {
        let mut begun = None;
        gate.drain_events(|event| begun = Some((event.conn, event.record)));
        if let Some((conn, record)) = begun {
            assert!(gate.open(conn));
            Raw::new().send(&syn_ack_of(&record));
            return conn;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Linux puts a hop-by-hop header into an IPv6 frame that is longer than 65,535 bytes.
#[test]
fn frames_longer_than_their_length_field_are_let_through() {
    if !is_root() {
        return;
    }
    let (topology, lab) = (Topology::new("g"), Lab::pins_only("live-g"));
    let server: SocketAddr = (VIP6.parse::<IpAddr>().expect("address"), PORT).into();
    let edge = edge(&topology, lab.pin_dir.clone());
    let config = gate_config(&lab);
    let (ready, listening) = std::sync::mpsc::channel();
    let served = topology.on("pri", move || {
        sh("ip link set dev p0 gso_max_size 180000");
        let mut gate = Gate::attach(&config).expect("gate");
        let listener = TcpListener::bind(server).expect("listen");
        ready.send(()).expect("the test waits");
        opened(&mut gate);
        let (mut stream, _) = listener.accept().expect("accept");
        stream.write_all(&vec![7; UPLOAD_BYTES]).expect("write");
        (gate, stream)
    });
    listening.recv().expect("the server listens");
    let client = topology.on("cli", move || {
        let mut stream = TcpStream::connect_timeout(&server, CLIENT_PATIENCE).expect("connect");
        stream.set_read_timeout(Some(CLIENT_PATIENCE)).expect("timeout");
        stream.read_exact(&mut vec![0; UPLOAD_BYTES]).expect("download");
    });
    client.join().expect("client");
    let (gate, _stream) = served.join().expect("server");
    assert_eq!(counter(&gate.counters(), "odd") + counter(&edge.counters(), "odd"), 0);
    assert_eq!(counter(&edge.counters(), "slow_path"), 0);
}

/// Two kernels communicate through a gate whose server speaks alone at first.
#[test]
fn a_connection_that_begins_alone_lives_on_when_a_backup_has_joined() {
    if !is_root() {
        return;
    }
    let (topology, lab) = (Topology::new("e"), Lab::pins_only("live-e"));
    let server: SocketAddr = (VIP4.parse::<IpAddr>().expect("address"), PORT).into();
    let _edge = edge(&topology, lab.pin_dir.clone());
    let config = GateConfig { solo: true, ..gate_config(&lab) };
    let (ready, listening) = std::sync::mpsc::channel();
    let (closed, is_closed) = std::sync::mpsc::channel();
    let (clamped, is_clamped) = std::sync::mpsc::channel();
    let (seen, is_seen) = std::sync::mpsc::channel();
    let served = topology.on("pri", move || {
        let mut gate = Gate::attach(&config).expect("gate");
        let listener = TcpListener::bind(server).expect("listen");
        ready.send(()).expect("the test waits");
        let (mut stream, _) = listener.accept().expect("accept");
        echo(&mut stream, 100);
        let mut conn = None;
        gate.drain_events(|event| conn = event.passed.then_some(event.conn));
        let conn = conn.expect("it has passed");
        let last_ack = gate.slot(conn).expect("slot").last_ack;
        assert!(gate.set_stable(conn, last_ack));
        gate.set_solo(false).expect("flag");
        clamped.send(()).expect("the client waits");
        stream.read_exact(&mut [0; 1000]).expect("upload");
        stream.write_all(&[8; 1000]).expect("write");
        let held = gate.slot(conn).expect("slot");
        assert_eq!((held.last_ack, held.rcv_nxt), (last_ack, last_ack.plus(1000)));
        assert!(gate.set_stable(conn, held.rcv_nxt));
        echo(&mut stream, 1000);
        assert!(gate.set_stable(conn, held.rcv_nxt.plus(1000)));
        drop(stream);
        closed.send(()).expect("the client waits");
        is_seen.recv().expect("the client looks");
        assert!(counter(&gate.counters(), "held_fins") > 0, "{:?}", gate.counters());
        assert!(gate.allow_fin(conn));
        gate
    });
    listening.recv().expect("the server listens");
    let client = topology.on("cli", move || {
        let mut stream = TcpStream::connect_timeout(&server, CLIENT_PATIENCE).expect("connect");
        stream.set_read_timeout(Some(CLIENT_PATIENCE)).expect("timeout");
        for bytes in [100, 1000, 1000] {
            stream.write_all(&vec![1; bytes]).expect("write");
            stream.read_exact(&mut vec![0; bytes]).expect("download");
            if bytes == 100 {
                is_clamped.recv().expect("the gate holds back");
            }
        }
        is_closed.recv().expect("the server closes");
        stream.set_read_timeout(Some(Duration::from_millis(300))).expect("timeout");
        assert!(stream.read(&mut [0]).is_err(), "its FIN is held");
        seen.send(()).expect("the server waits");
        stream.set_read_timeout(Some(CLIENT_PATIENCE)).expect("timeout");
        assert_eq!(stream.read(&mut [0]).expect("an end"), 0);
    });
    client.join().expect("client");
    drop(served.join().expect("server"));
}

fn echo(stream: &mut TcpStream, bytes: usize) {
    let mut buffer = vec![0; bytes];
    stream.read_exact(&mut buffer).expect("upload");
    stream.write_all(&buffer).expect("write");
}

#[test]
fn gate_and_fence_outlive_their_daemons() {
    if !is_root() {
        return;
    }
    let (topology, lab) = (Topology::new("c"), Lab::pins_only("live-c"));
    let server: SocketAddr = (VIP4.parse::<IpAddr>().expect("address"), PORT).into();
    let mut edge = edge(&topology, lab.pin_dir.clone());
    let config = gate_config(&lab);
    let listener = topology.on("pri", move || {
        drop(Gate::attach(&config).expect("gate"));
        TcpListener::bind(server).expect("listen")
    });
    let _listener = listener.join().expect("primary");
    let connects = || {
        let patience = Duration::from_millis(400);
        let attempt = move || TcpStream::connect_timeout(&server, patience).is_ok();
        topology.on("cli", attempt).join().expect("client")
    };
    assert!(!connects(), "the gate still holds the SYN-ACK");
    let pins = lab.pin_dir.clone();
    topology
        .on("pri", move || Gate::detach_stale("p0", &[], &pins))
        .join()
        .expect("p")
        .expect("detach");
    assert!(connects(), "and is gone when it is detached");
    edge.set_current(2, None).expect("fence");
    drop(edge);
    assert!(!connects(), "the edge is still closed");
    let pins = lab.pin_dir.clone();
    let detach = topology.on("edge", move || Edge::detach_stale(&["ep", "eb", "ec"], &[], &pins));
    detach.join().expect("edge").expect("detach");
    assert!(connects(), "and plain routing when it is detached");
}
