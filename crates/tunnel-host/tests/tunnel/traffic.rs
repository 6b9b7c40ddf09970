//! What is sent through tunnels, and compared byte by byte.

use crate::bed::{A, B, Bed};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

/// How long anything may take at all.
const LIMIT: Duration = Duration::from_secs(60);

/// Bytes that are never the same twice in a row.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Sends so many bytes each way over one connection from A to B.
pub fn tcp(bed: &Bed, listen: &str, bytes: usize) {
    let address = SocketAddr::new(listen.parse::<IpAddr>().expect("an address"), 7000);
    let (ready, is_ready) = std::sync::mpsc::channel();
    let server = bed.inside(B, move || {
        let listener = TcpListener::bind(address).expect("a port");
        ready.send(()).expect("somebody waits");
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a time");
        let mut came = vec![0; bytes];
        stream.read_exact(&mut came).expect("all bytes");
        stream.write_all(&pattern(bytes, 2)).expect("an answer");
        stream.shutdown(std::net::Shutdown::Write).expect("an end");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("the end");
        assert!(rest.is_empty(), "more came than was sent");
        came
    });
    is_ready.recv().expect("a server");
    let client = bed.inside(A, move || {
        let mut stream = TcpStream::connect_timeout(&address, LIMIT).expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a time");
        stream.write_all(&pattern(bytes, 1)).expect("to send");
        let mut came = Vec::new();
        stream.read_to_end(&mut came).expect("an answer");
        came
    });
    let (there, back) = (client.join().expect("a client"), server.join().expect("a server"));
    assert!(there == pattern(bytes, 2), "B's bytes came to A as they were");
    assert!(back == pattern(bytes, 1), "A's bytes came to B as they were");
}

/// Sends datagrams of many sizes from A to a service of B at `listen`, which sends them back; how many
/// did not come back. What comes back is right, and comes once.
pub fn udp(bed: &Bed, listen: &str, sizes: &[usize]) -> usize {
    let address = SocketAddr::new(listen.parse::<IpAddr>().expect("an address"), 7001);
    let server = echo(bed, B, address, Duration::from_secs(3));
    let own = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let lost = ask_from(bed, A, own.parse().expect("an address"), address, sizes);
    server.join().expect("a server");
    lost
}

/// A service that sends back what comes, until nothing has come for `idle`.
pub fn echo(
    bed: &Bed,
    end: usize,
    listen: SocketAddr,
    idle: Duration,
) -> std::thread::JoinHandle<usize> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let server = bed.inside(end, move || {
        let socket = UdpSocket::bind(listen).expect("a port");
        socket.set_read_timeout(Some(idle)).expect("a time");
        ready.send(()).expect("somebody waits");
        let (mut buffer, mut count) = (vec![0; 65_536], 0);
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
            count += 1;
        }
        count
    });
    is_ready.recv().expect("a server");
    server
}

/// A client of such a service; how many datagrams did not come back.
pub fn ask_from(
    bed: &Bed,
    end: usize,
    own: SocketAddr,
    address: SocketAddr,
    sizes: &[usize],
) -> usize {
    let sizes = sizes.to_vec();
    let client = bed.inside(end, move || {
        let socket = UdpSocket::bind(own).expect("a port");
        socket.connect(address).expect("a way");
        socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a time");
        let mut waiting: Vec<Vec<u8>> = Vec::new();
        for (number, size) in sizes.iter().enumerate() {
            let datagram = pattern(*size, number as u64 + 10);
            socket.send(&datagram).expect("to send");
            waiting.push(datagram);
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut buffer = vec![0; 65_536];
        while !waiting.is_empty()
            && let Ok(length) = socket.recv(&mut buffer)
        {
            let place = waiting.iter().position(|it| *it == buffer[..length]);
            waiting.swap_remove(place.expect("it was sent so, and came back once"));
        }
        waiting.len()
    });
    client.join().expect("a client")
}

/// Pings from A; how many of `count` were answered.
pub fn ping(bed: &Bed, address: &str, count: u32, words: &[&str]) -> u32 {
    let mut ping = bed.command(A, "ping");
    ping.args(["-n", "-i", "0.02", "-W", "2", "-c", &count.to_string()]).args(words).arg(address);
    let said = ping.output().expect("ping");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let received = text.split(", ").find_map(|part| part.strip_suffix(" received"));
    received.and_then(|it| it.parse().ok()).unwrap_or_else(|| {
        panic!("ping said {text:?} and {:?}", String::from_utf8_lossy(&said.stderr))
    })
}
