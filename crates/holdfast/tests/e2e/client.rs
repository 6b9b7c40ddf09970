//! Clients that do unusual things, on the client's host.

use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Role, Testbed, addresses};
use holdfast_linux::netns;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Time after which a client that still waits has been forgotten.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `work` on a thread that uses the network of the client's host.
pub fn on_client<T: Send>(testbed: &Testbed, work: impl FnOnce() -> T + Send) -> T {
    in_namespace(testbed.host(Role::Client).namespace(), work)
}

/// A connection of the client to the service, with an answer within `limit`.
///
/// # Panics
/// When there is none.
pub fn connected(testbed: &Testbed, limit: Duration) -> Redis {
    on_client(testbed, || {
        let redis = Redis::try_connect(service(Program::Redis.port()), limit);
        let mut redis = redis.expect("a connection");
        redis.give_up_after(limit);
        redis
    })
}

/// Runs `work` on a thread in a network namespace of `ip netns`.
///
/// # Panics
/// When `work` panics.
pub fn in_namespace<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            netns::enter(&Path::new("/run/netns").join(name)).expect("the namespace is there");
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A counter of the client's kernel, by its name in `nstat` without `TcpExt`.
pub fn tcp_counter(testbed: &Testbed, name: &str) -> u64 {
    let text = on_client(testbed, || std::fs::read_to_string("/proc/thread-self/net/netstat"));
    let text = text.expect("it is there");
    let lines: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("TcpExt:"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let at = lines[0].iter().position(|known| *known == name).expect("a counter");
    lines[1][at].parse().expect("a number")
}

/// Address of the service on a port, over IPv4.
pub fn service(port: u16) -> SocketAddr {
    SocketAddr::new(addresses::SERVICE_V4.parse().expect("an address"), port)
}

/// A connection to redis-server.
pub struct Redis(BufReader<TcpStream>);

impl Redis {
    /// Connects, and expects an answer to PING.
    pub fn connect(at: SocketAddr) -> Self {
        let mut this = Self::try_connect(at, PATIENCE).expect("a connection");
        this.ping();
        this
    }

    /// Connects, or fails after `limit`.
    pub fn try_connect(at: SocketAddr, limit: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&at, limit)?;
        Self::of(stream)
    }

    /// A client over a connected stream.
    pub fn of(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::with_capacity(1 << 20, stream)))
    }

    /// Gives up on answers that take longer than `limit`.
    pub fn give_up_after(&mut self, limit: Duration) {
        self.0.get_mut().set_read_timeout(Some(limit)).expect("a timeout");
    }

    /// Local address of the connection.
    pub fn local(&self) -> String {
        self.0.get_ref().local_addr().expect("an address").to_string()
    }

    /// Sends a command, and does not wait.
    pub fn send(&mut self, words: &[&[u8]]) {
        let mut out = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            out.extend(format!("${}\r\n", word.len()).bytes());
            out.extend_from_slice(word);
            out.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&out).expect("the server takes it");
    }

    /// The next line of an answer.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    /// The next value of an answer.
    pub fn value(&mut self) -> Vec<u8> {
        let line = self.line();
        let size: usize = line.strip_prefix('$').and_then(|n| n.parse().ok()).expect("a value");
        let mut value = self.bytes(size + 2);
        value.truncate(size);
        value
    }

    /// The next `len` bytes of an answer.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("all of it");
        bytes
    }

    /// Sends a command whose answer is one line.
    pub fn ask(&mut self, words: &[&[u8]]) -> String {
        self.send(words);
        self.line()
    }

    /// Checks that the server answers.
    pub fn ping(&mut self) {
        assert_eq!(self.ask(&[b"PING"]), "+PONG");
    }
}

/// Asks for a document, and closes the sending direction, since no other request follows.
pub fn ask_and_shut(at: SocketAddr, file: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let request = format!("GET /{file} HTTP/1.0\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the server takes it");
    stream.shutdown(Shutdown::Write).expect("half of it closes");
    stream
}

/// The part of an HTTP response after its header.
pub fn body(response: &[u8]) -> &[u8] {
    let end = response.windows(4).position(|four| four == b"\r\n\r\n").expect("a header");
    &response[end + 4..]
}
