//! What the tests of spread groups share: servers that name the host on which they run, and their
//! clients.

use crate::client::{in_namespace, on_client};
use holdfast_lab::testbed::{Host, Role, Testbed, addresses};
use holdfast_linux::netns;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Bytes of the length in front of a message.
const HEADER: usize = 4;

/// Address of the service on a port.
pub fn service(v6: bool, port: u16) -> SocketAddr {
    let address = if v6 { addresses::SERVICE_V6 } else { addresses::SERVICE_V4 };
    SocketAddr::new(address.parse().expect("an address"), port)
}

/// A server that answers each message (a length and that many bytes), and each datagram, with its
/// name and the sum of the bytes.
pub struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves `port` of both service addresses on a host that has them.
    pub fn start(testbed: &Testbed, role: Role, name: u8, port: u16) -> Self {
        Self::on(testbed.host(role), name, port)
    }

    /// As [`Server::start`], on a host of any testbed.
    pub fn on(host: &Host, name: u8, port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for v6 in [false, true] {
            let (tcp, udp) = sockets(host, service(v6, port));
            let stopped = Arc::clone(&stop);
            threads.push(thread::spawn(move || accept(&tcp, name, &stopped)));
            let stopped = Arc::clone(&stop);
            threads.push(thread::spawn(move || answer_datagrams(&udp, name, &stopped)));
        }
        Self { stop, threads }
    }

    /// Stops listening; connections go on until their clients end them.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("the server was well");
        }
    }
}

fn sockets(host: &Host, at: SocketAddr) -> (TcpListener, UdpSocket) {
    let namespace = Path::new("/run/netns").join(host.namespace());
    thread::spawn(move || {
        netns::enter(&namespace).expect("the namespace is there");
        let tcp = TcpListener::bind(at).expect("the service address is there");
        let udp = UdpSocket::bind(at).expect("the service address is there");
        tcp.set_nonblocking(true).expect("a socket");
        udp.set_read_timeout(Some(LOOK_EVERY)).expect("a socket");
        (tcp, udp)
    })
    .join()
    .expect("the service is bound")
}

fn accept(listener: &TcpListener, name: u8, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).expect("a socket");
                thread::spawn(move || serve(stream, name));
            }
            Err(_) => thread::sleep(LOOK_EVERY),
        }
    }
}

fn serve(mut stream: TcpStream, name: u8) {
    let mut header = [0; HEADER];
    while stream.read_exact(&mut header).is_ok() {
        let mut message = vec![0; u32::from_be_bytes(header) as usize];
        if stream.read_exact(&mut message).is_err() {
            return;
        }
        let answer = [&[name][..], &sum(&message).to_be_bytes()].concat();
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

fn answer_datagrams(socket: &UdpSocket, name: u8, stop: &AtomicBool) {
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        let answer = [&[name][..], &sum(&buffer[..length]).to_be_bytes()].concat();
        let _ = socket.send_to(&answer, from);
    }
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)))
}

/// A client's connection.
pub struct Client(TcpStream);

impl Client {
    /// Connects from the client's host.
    pub fn connect(testbed: &Testbed, to: SocketAddr) -> io::Result<Self> {
        Self::connect_from(testbed.host(Role::Client), to)
    }

    /// Connects from a host of any testbed.
    pub fn connect_from(host: &Host, to: SocketAddr) -> io::Result<Self> {
        let stream = in_namespace(host.namespace(), || TcpStream::connect_timeout(&to, PATIENCE))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    /// Sends `bytes` bytes in one call; returns the name of the server that answered, after
    /// checking the sum.
    pub fn ask(&mut self, bytes: usize) -> io::Result<u8> {
        let message: Vec<u8> = (0..bytes).map(|i| (i * 7) as u8).collect();
        self.0.write_all(&[&(bytes as u32).to_be_bytes()[..], &message].concat())?;
        let mut answer = [0; 5];
        self.0.read_exact(&mut answer)?;
        assert_eq!(answer[1..], sum(&message).to_be_bytes(), "every byte arrived");
        Ok(answer[0])
    }
}

/// Sends datagrams of this size until one is answered; returns the server's name. The first may
/// only teach the client the path's MTU.
pub fn ask_datagram(testbed: &Testbed, to: SocketAddr, bytes: usize) -> Option<u8> {
    on_client(testbed, || {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).expect("a socket");
        socket.connect(to).expect("a route");
        socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
        let message: Vec<u8> = (0..bytes).map(|i| (i * 7) as u8).collect();
        for _ in 0..5 {
            let _ = socket.send(&message);
            let mut answer = [0; 5];
            if let Ok(5) = socket.recv(&mut answer) {
                assert_eq!(answer[1..], sum(&message).to_be_bytes());
                return Some(answer[0]);
            }
        }
        None
    })
}
