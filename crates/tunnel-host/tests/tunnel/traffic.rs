//! What is sent through tunnels, and compared byte by byte.

use crate::bed::{A, B, Bed};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

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
        let mut waiting: Vec<Vec<u8>> = Vec::new();
        for (number, size) in sizes.iter().enumerate() {
            let datagram = pattern(*size, number as u64 + 10);
            socket.send(&datagram).expect("to send");
            waiting.push(datagram);
            take_answers(&socket, &mut waiting, Duration::from_millis(1));
        }
        take_answers(&socket, &mut waiting, Duration::from_secs(1));
        waiting.len()
    });
    client.join().expect("a client")
}

/// Takes answers off the list of those that are waited for, until none has come for `idle`.
fn take_answers(socket: &UdpSocket, waiting: &mut Vec<Vec<u8>>, idle: Duration) {
    socket.set_read_timeout(Some(idle)).expect("a time");
    let mut buffer = vec![0; 65_536];
    while !waiting.is_empty()
        && let Ok(length) = socket.recv(&mut buffer)
    {
        let place = waiting.iter().position(|it| *it == buffer[..length]);
        waiting.swap_remove(place.expect("it was sent so, and came back once"));
    }
}

/// Pings from A with so many bytes, 20 ms apart; how many of `count` were answered.
pub fn ping(bed: &Bed, address: &str, count: u16, bytes: usize) -> u16 {
    let address = SocketAddr::new(address.parse::<IpAddr>().expect("an address"), 0);
    let pinger = bed.inside(A, move || {
        let (domain, protocol) = match address {
            SocketAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            SocketAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let socket = Socket::new(domain, Type::RAW, Some(protocol)).expect("a raw socket");
        socket.connect(&address.into()).expect("a way");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a time");
        let mut answered = BTreeSet::new();
        // The answers to the last ones may be repaired first.
        for number in 0..count + 75 {
            if number < count {
                // What finds no room, or no way, is lost.
                let _ = socket.send(&echo_request(number, bytes, address.is_ipv4()));
            }
            let until = Instant::now() + Duration::from_millis(20);
            while Instant::now() < until && answered.len() < usize::from(count) {
                answered.extend(answer(&socket, bytes, address.is_ipv4()));
            }
        }
        answered.len()
    });
    u16::try_from(pinger.join().expect("a pinger")).expect("no more than asked")
}

/// RFC 792 and RFC 4443 §4.1; of ICMPv6 the kernel makes the checksum.
fn echo_request(number: u16, bytes: usize, is_v4: bool) -> Vec<u8> {
    let mut request = vec![if is_v4 { 8 } else { 128 }, 0, 0, 0, 0x48, 0x46];
    request.extend(number.to_be_bytes());
    request.extend(pattern(bytes, u64::from(number)));
    if is_v4 {
        let words =
            request.chunks(2).map(|it| u32::from(it[0]) << 8 | u32::from(*it.get(1).unwrap_or(&0)));
        let sum = words.sum::<u32>();
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = !((sum >> 16) + sum) as u16;
        request[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    request
}

/// The number of an answer that has come, whose bytes are right.
fn answer(socket: &Socket, bytes: usize, is_v4: bool) -> Option<u16> {
    let mut buffer = vec![0; 65_536];
    let mut reader = socket;
    let length = reader.read(&mut buffer).ok()?;
    // Raw sockets of IPv4 have the header, too.
    let message = buffer.get(if is_v4 { 20 } else { 0 }..length)?;
    let kind = if is_v4 { 0 } else { 129 };
    let (head, rest) = message.split_first_chunk::<8>()?;
    if head[0] != kind || head[4..6] != [0x48, 0x46] {
        return None;
    }
    let number = u16::from_be_bytes([head[6], head[7]]);
    assert!(rest == pattern(bytes, u64::from(number)), "what comes back is what was sent");
    Some(number)
}
