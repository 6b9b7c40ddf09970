//! Connections of one kind across one outage, and how long after its end each of them makes
//! progress again.

use anyhow::{Context as _, Result, anyhow};
use holdfast_linux::netns;
use socket2::{Domain, SockRef, Socket, Type};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Number of connections that are opened during an outage, spread over it.
const CONNECTS: u32 = 25;
/// Number of connections that send requests.
const ASKERS: usize = 20;
/// Time between two requests of a connection.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
const REQUEST_BYTES: usize = 64;
const REPLY_BYTES: usize = 1024;
/// Number of connections that send as much as they can.
const SENDERS: usize = 4;
/// Time from the start of the last connection to the outage.
const SETTLE: Duration = Duration::from_millis(800);
/// Longest wait for a connection after an outage.
const STALL_MAX: Duration = Duration::from_secs(12);
const POLL: Duration = Duration::from_millis(2);
const PIECE_BYTES: usize = 64 << 10;

/// What the connections do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// They are opened during the outage.
    Connect,
    /// 64 bytes ask for a kilobyte, each 100 ms.
    Request,
    /// They send as much as they can, with CUBIC.
    Cubic,
    /// The same with BBR.
    Bbr,
}

/// The two hosts.
#[derive(Clone, Debug)]
pub struct Ends {
    pub client: String,
    pub server: String,
    pub address: SocketAddr,
}

/// What all connections share; times are in ns since `origin`.
struct Shared {
    origin: Instant,
    stop: AtomicBool,
    /// When the outage ended, or 0 before that.
    end: AtomicU64,
    stalls: Mutex<Vec<u64>>,
}

impl Shared {
    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn end(&self) -> Option<u64> {
        Some(self.end.load(Ordering::Acquire)).filter(|end| *end != 0)
    }

    fn stalled(&self, ns: u64) {
        if let Ok(mut stalls) = self.stalls.lock() {
            stalls.push(ns);
        }
    }
}

/// Moments at which something arrived, kept until the end of the outage is known and the first
/// moment after it was found. Old ones are dropped.
#[derive(Default)]
struct Moments {
    came: Vec<(u64, u64)>,
    is_found: bool,
}

impl Moments {
    /// Most moments that are kept: more than come while the end of an outage is being noted.
    const KEPT: usize = 64;

    /// Notes that a reply arrived at `came` to what was asked at `asked`.
    fn note(&mut self, shared: &Shared, asked: u64, came: u64) {
        if self.is_found {
            return;
        }
        if self.came.len() == Self::KEPT {
            self.came.remove(0);
        }
        self.came.push((asked, came));
        self.look(shared);
    }

    /// Finds the stall if the end of the outage is known now.
    fn look(&mut self, shared: &Shared) {
        let Some(end) = shared.end().filter(|_| !self.is_found) else { return };
        let first = self.came.iter().find(|(asked, came)| *asked < end && *came >= end);
        if let Some((_, came)) = first {
            shared.stalled(came - end);
            self.is_found = true;
        } else if self.came.iter().any(|(asked, _)| *asked >= end) {
            // Nothing was outstanding when the outage ended: the reply arrived just then.
            shared.stalled(0);
            self.is_found = true;
        }
    }
}

/// Runs one outage under one kind of load: `cut` begins it, `mend` ends it and calls its argument
/// with the moment. Returns the stalls beyond the outage's end, in seconds; a connection that did
/// not come back counts with the longest wait.
///
/// # Errors
/// When a connection cannot be made at all, or `cut` or `mend` fail.
pub fn stalls(
    ends: &Ends,
    kind: Kind,
    outage: Duration,
    cut: impl FnOnce() -> Result<()>,
    mend: impl FnOnce(&dyn Fn(Instant)) -> Result<()>,
) -> Result<Vec<f64>> {
    let shared = Arc::new(Shared {
        origin: Instant::now(),
        stop: AtomicBool::new(false),
        end: AtomicU64::new(0),
        stalls: Mutex::new(Vec::new()),
    });
    let server = serve(ends, kind, &shared)?;
    let mut clients = Vec::new();
    if kind != Kind::Connect {
        let count = if kind == Kind::Request { ASKERS } else { SENDERS };
        for number in 0..count {
            clients.push(client(ends, kind, number, &shared)?);
        }
        thread::sleep(SETTLE);
    }
    cut()?;
    let began = Instant::now();
    if kind == Kind::Connect {
        for number in 0..CONNECTS {
            let at = began + outage * number / CONNECTS;
            thread::sleep(at.saturating_duration_since(Instant::now()));
            clients.push(connector(ends, &shared));
        }
    }
    thread::sleep((began + outage).saturating_duration_since(Instant::now()));
    mend(&|end| {
        let end_ns = (end - shared.origin).as_nanos() as u64;
        shared.end.store(end_ns, Ordering::Release);
    })?;
    let end = Instant::now();
    let expected = clients.len();
    let count = || shared.stalls.lock().map_or(0, |stalls| stalls.len());
    while count() < expected && end.elapsed() < STALL_MAX {
        thread::sleep(POLL);
    }
    shared.stop.store(true, Ordering::Relaxed);
    for thread in clients.into_iter().chain([server]) {
        thread.join().map_err(|_| anyhow!("a connection's thread has failed"))?;
    }
    let mut stalls: Vec<f64> = match shared.stalls.lock() {
        Ok(stalls) => stalls.iter().take(expected).map(|ns| *ns as f64 / 1e9).collect(),
        Err(_) => Vec::new(),
    };
    stalls.resize(expected, STALL_MAX.as_secs_f64());
    Ok(stalls)
}

/// Runs `work` in a network namespace of `ip netns`, and reports what went wrong.
pub fn on_host(
    namespace: &str,
    work: impl FnOnce() -> Result<()> + Send + 'static,
) -> JoinHandle<()> {
    let path = Path::new("/run/netns").join(namespace);
    thread::spawn(move || {
        let result = netns::enter(&path).map_err(anyhow::Error::from).and_then(|()| work());
        if let Err(error) = result
            && !is_farewell(&error)
        {
            eprintln!("{error:#}");
        }
    })
}

/// Whether the error says that the other end has closed, by which a bulk sender learns that the run
/// is over. A connection that was lost before has the longest stall in the result.
fn is_farewell(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset))
}

/// Accepts connections until the run is over, and serves each.
fn serve(ends: &Ends, kind: Kind, shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (address, shared) = (ends.address, Arc::clone(shared));
    let thread = on_host(&ends.server, move || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        let listener: TcpListener = socket.into();
        listener.set_nonblocking(true)?;
        ready.send(()).context("nobody waits")?;
        let mut threads = Vec::new();
        while !shared.is_over() {
            match listener.accept() {
                Ok((stream, _)) => {
                    let shared = Arc::clone(&shared);
                    stream.set_nonblocking(false)?;
                    threads.push(thread::spawn(move || serve_one(kind, &stream, &shared)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(POLL),
                Err(error) => return Err(error.into()),
            }
        }
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a server's thread has failed"))?;
        }
        Ok(())
    });
    is_ready.recv().context("the server does not start")?;
    Ok(thread)
}

/// Serves a connection. Its end is no error, since its client has stopped.
fn serve_one(kind: Kind, mut stream: &TcpStream, shared: &Shared) {
    let mut piece = vec![0; PIECE_BYTES];
    // A read must return now and then, to look whether the run is over.
    if stream.set_read_timeout(Some(Duration::from_millis(50))).is_err() {
        return;
    }
    let is_bulk = matches!(kind, Kind::Cubic | Kind::Bbr);
    let mut moments = Moments::default();
    let mut asked = 0;
    while !shared.is_over() {
        moments.look(shared);
        let count = match stream.read(&mut piece) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(_) => return,
        };
        if is_bulk {
            moments.note(shared, 0, shared.now());
        }
        asked += count;
        while kind == Kind::Request && asked >= REQUEST_BYTES {
            asked -= REQUEST_BYTES;
            if stream.write_all(&piece[..REPLY_BYTES]).is_err() {
                return;
            }
        }
    }
}

fn connector(ends: &Ends, shared: &Arc<Shared>) -> JoinHandle<()> {
    let (address, shared) = (ends.address, Arc::clone(shared));
    on_host(&ends.client, move || {
        let stream = TcpStream::connect_timeout(&address, STALL_MAX * 2);
        let at = shared.now();
        while stream.is_ok() && !shared.is_over() {
            if let Some(end) = shared.end() {
                // A connection that was opened before the outage's end was noted has not stalled.
                shared.stalled(at.saturating_sub(end));
                break;
            }
            thread::sleep(POLL);
        }
        Ok(())
    })
}

/// Starts a connection that sends requests or data until the run is over.
fn client(ends: &Ends, kind: Kind, number: usize, shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (address, shared) = (ends.address, Arc::clone(shared));
    let thread = on_host(&ends.client, move || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        match kind {
            Kind::Cubic => socket.set_tcp_congestion(b"cubic")?,
            Kind::Bbr => socket.set_tcp_congestion(b"bbr")?,
            Kind::Connect | Kind::Request => {}
        }
        socket.connect(&address.into())?;
        let mut stream: TcpStream = socket.into();
        ready.send(()).context("nobody waits")?;
        if kind != Kind::Request {
            return send(&mut stream, &shared);
        }
        thread::sleep(ASK_INTERVAL * number as u32 / ASKERS as u32);
        ask(&mut stream, &shared)
    });
    is_ready.recv().context("no connection before the outage")?;
    Ok(thread)
}

fn send(stream: &mut TcpStream, shared: &Shared) -> Result<()> {
    stream.set_write_timeout(Some(Duration::from_millis(50)))?;
    let piece = vec![7; PIECE_BYTES];
    while !shared.is_over() {
        match stream.write(&piece) {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // Queued data must not delay the next outage.
    SockRef::from(&*stream).set_linger(Some(Duration::ZERO))?;
    Ok(())
}

fn ask(stream: &mut TcpStream, shared: &Shared) -> Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut reply = [0; REPLY_BYTES];
    let mut moments = Moments::default();
    while !shared.is_over() {
        let sent = shared.now();
        stream.write_all(&[7; REQUEST_BYTES])?;
        let mut have = 0;
        while have < REPLY_BYTES && !shared.is_over() {
            match stream.read(&mut reply[have..]) {
                Ok(0) => return Err(anyhow!("the server has closed")),
                Ok(count) => have += count,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Only a request that was outstanding at the end has stalled.
        if have == REPLY_BYTES {
            moments.note(shared, sent, shared.now());
        }
        let next = Duration::from_nanos(sent) + ASK_INTERVAL;
        thread::sleep(next.saturating_sub(shared.origin.elapsed()));
    }
    Ok(())
}
