//! How much goes through a tunnel in a second, and what that costs. These measure, and fail only
//! where nothing goes through: run them alone, with `--ignored --nocapture`. Both ends, client and
//! server share the machine's processors, so that what a *core* carries is bytes by an end's own
//! processor time, not by the time that passes.

use crate::bed::{A, B, Bed, INSIDE, OUTSIDE, PORT, at};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time before anything is counted: the path's rate has to be found first.
const WARM_UP: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(4);
const LIMIT: Duration = Duration::from_secs(60);
const HERE: &str = "127.0.0.1:5400";
const THERE: &str = "127.0.0.1:5401";

/// What both ends have used and done so far.
#[derive(Clone, Copy, Default)]
struct Seen {
    at: Option<Instant>,
    cpu_ns: [u64; 2],
    datagrams: [u64; 2],
    calls: [u64; 2],
    /// Packets that A's own queue has dropped.
    dropped: u64,
}

fn look(bed: &Bed) -> Seen {
    let mut seen = Seen { at: Some(Instant::now()), ..Seen::default() };
    for end in [A, B] {
        let pid = bed.pid(end).as_raw_nonzero();
        let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("schedstat");
        seen.cpu_ns[end] = text.split(' ').next().and_then(|it| it.parse().ok()).expect("ns");
        let status = bed.status(end).expect("an answer");
        let number = |key: &str| status["outside"][key].as_u64().expect("a number");
        seen.datagrams[end] = number("sent") + number("received");
        seen.calls[end] = number("sent_calls") + number("received_calls");
        if end == A {
            seen.dropped = status["machine"]["sending"]["dropped"].as_u64().expect("a number");
        }
    }
    seen
}

/// Prints what `bytes` and `messages` in between have taken.
fn tell(name: &str, bytes: u64, messages: u64, from: &Seen, to: &Seen) {
    let took = match (from.at, to.at) {
        (Some(from), Some(to)) => to - from,
        _ => Duration::ZERO,
    };
    let bits = bytes as f64 * 8.0;
    println!(
        "{name}: {:.0} Mbit/s, {} packets dropped by A's queue",
        bits / took.as_secs_f64() / 1e6,
        to.dropped - from.dropped
    );
    for end in [A, B] {
        let cpu_ns = (to.cpu_ns[end] - from.cpu_ns[end]) as f64;
        let datagrams = (to.datagrams[end] - from.datagrams[end]) as f64;
        let calls = (to.calls[end] - from.calls[end]) as f64;
        println!(
            "    end {}: {:.2} of a core, {:.2} Gbit/s per core, {:.2} us per datagram of {:.1} in a call{}",
            ["A", "B"][end],
            cpu_ns / took.as_nanos() as f64,
            bits / cpu_ns,
            cpu_ns / datagrams / 1e3,
            datagrams / calls,
            match messages {
                0 => String::new(),
                _ => format!(", {:.2} us per message", cpu_ns / messages as f64 / 1e3),
            }
        );
    }
}

/// Sends over so many connections for a while; what arrived in between.
fn bulk(bed: &Bed, listen: &str, connect: &str, connections: usize) -> (u64, Seen, Seen) {
    let (listen, connect): (SocketAddr, SocketAddr) =
        (listen.parse().expect("an address"), connect.parse().expect("an address"));
    let (came, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (ready, is_ready) = std::sync::mpsc::channel();
    let count = Arc::clone(&came);
    let server = bed.inside(B, move || {
        let listener = TcpListener::bind(listen).expect("a port");
        ready.send(()).expect("somebody waits");
        let each: Vec<_> = (0..connections)
            .map(|_| {
                let (mut stream, _) = listener.accept().expect("a connection");
                let count = Arc::clone(&count);
                std::thread::spawn(move || {
                    stream.set_read_timeout(Some(LIMIT)).expect("a time");
                    let mut buffer = vec![0; 256 << 10];
                    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                        count.fetch_add(bytes as u64, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        each.into_iter().for_each(|it| it.join().expect("a connection that went well"));
    });
    is_ready.recv().expect("a server");
    let clients: Vec<_> = (0..connections)
        .map(|_| {
            let is_over = Arc::clone(&is_over);
            bed.inside(A, move || {
                let mut stream = TcpStream::connect_timeout(&connect, LIMIT).expect("a connection");
                stream.set_write_timeout(Some(LIMIT)).expect("a time");
                let bytes = vec![7; 256 << 10];
                while !is_over.load(Ordering::Relaxed) && stream.write_all(&bytes).is_ok() {}
            })
        })
        .collect();
    sleep(WARM_UP);
    let (from, bytes) = (look(bed), came.load(Ordering::Relaxed));
    sleep(MEASURED);
    let (bytes, to) = (came.load(Ordering::Relaxed) - bytes, look(bed));
    is_over.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|it| it.join().expect("a client"));
    server.join().expect("a server");
    assert!(bytes > 0, "something comes through");
    (bytes, from, to)
}

/// Round trips of lone datagrams of 64 bytes, a millisecond apart, sorted.
fn round_trips(bed: &Bed, listen: &str, count: usize) -> Vec<Duration> {
    let address: SocketAddr = format!("{listen}:7100").parse().expect("an address");
    let server = crate::traffic::echo(bed, B, address, Duration::from_millis(300));
    let client = bed.inside(A, move || {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
        socket.connect(address).expect("a way");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time");
        let mut rtts = Vec::new();
        for number in 0..count {
            let sent = Instant::now();
            let mut message = [1; 64];
            message[..8].copy_from_slice(&(number as u64).to_be_bytes());
            socket.send(&message).expect("to send");
            let mut answer = [0; 64];
            // The answer to an earlier one may come after all.
            while socket.recv(&mut answer).is_ok() {
                if answer == message {
                    rtts.push(sent.elapsed());
                    break;
                }
            }
            sleep(Duration::from_millis(1));
        }
        rtts
    });
    let mut rtts = client.join().expect("a client");
    server.join().expect("a server");
    rtts.sort_unstable();
    assert!(rtts.len() > count / 2, "{} of {count} came back", rtts.len());
    rtts
}

#[test]
#[ignore = "measures"]
fn bulk_through_an_interface() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    bed.start_both();
    for connections in [1, 4] {
        let address = format!("{}:7200", INSIDE[B]);
        let (bytes, from, to) = bulk(&bed, &address, &address, connections);
        tell(&format!("interface, {connections} TCP"), bytes, 0, &from, &to);
    }
}

#[test]
#[ignore = "measures"]
fn bulk_through_a_port() {
    let Some(mut bed) = Bed::new() else { return };
    let listen = |end: usize| format!("mode = \"forward\"\nlisten = \"{}:{PORT}\"\n", OUTSIDE[end]);
    let peer = |end: usize| format!("address = \"{}\"", at(OUTSIDE[1 - end]));
    let near = format!("forward = [\"tcp {HERE} -> {THERE}\"]\n");
    bed.write(A, &(listen(A) + &near), &peer(A));
    bed.write(B, &(listen(B) + &format!("allow = [\"tcp {THERE}\"]\n")), &peer(B));
    bed.start_both();
    for connections in [1, 4] {
        let (bytes, from, to) = bulk(&bed, THERE, HERE, connections);
        tell(&format!("port, {connections} TCP"), bytes, 0, &from, &to);
    }
}

#[test]
#[ignore = "measures"]
fn lone_messages_when_idle() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    bed.start_both();
    for name in ["first", "again"] {
        let plain = round_trips(&bed, OUTSIDE[B], 1500);
        let tunnel = round_trips(&bed, INSIDE[B], 1500);
        for share in [0.5, 0.99] {
            let at = |rtts: &[Duration]| rtts[(rtts.len() as f64 * share) as usize];
            let (plain, tunnel) = (at(&plain), at(&tunnel));
            println!(
                "{name}, p{:.0} of a round trip: {tunnel:?}, without the tunnel {plain:?}: {:.1} us more each way",
                share * 100.0,
                (tunnel.as_secs_f64() - plain.as_secs_f64()) / 2.0 * 1e6
            );
        }
    }
}

#[test]
#[ignore = "measures"]
fn small_messages_in_batches() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    bed.start_both();
    for per_burst in [16, 64] {
        let address: SocketAddr = format!("{}:7300", INSIDE[B]).parse().expect("an address");
        let (came, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, over) = (Arc::clone(&came), Arc::clone(&is_over));
        let server = bed.inside(B, move || {
            let socket = UdpSocket::bind(address).expect("a port");
            socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time");
            while !over.load(Ordering::Relaxed) {
                if socket.recv(&mut [0; 100]).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let over = Arc::clone(&is_over);
        let client = bed.inside(A, move || {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
            socket.connect(address).expect("a way");
            while !over.load(Ordering::Relaxed) {
                (0..per_burst).for_each(|_| drop(socket.send(&[1; 64])));
                sleep(Duration::from_millis(1));
            }
        });
        sleep(WARM_UP);
        let (from, messages) = (look(&bed), came.load(Ordering::Relaxed));
        sleep(MEASURED);
        let (messages, to) = (came.load(Ordering::Relaxed) - messages, look(&bed));
        is_over.store(true, Ordering::Relaxed);
        client.join().expect("a client");
        server.join().expect("a server");
        let name = format!("{messages} messages of 64 bytes, {per_burst} each ms");
        tell(&name, messages * 64, messages, &from, &to);
    }
}
