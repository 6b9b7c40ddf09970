//! Messages on their way: who sends them when they are due, who hears them, and how long each took.
//! A message says its number and when it was due, so that a sender who was kept waiting is late,
//! too.

use super::bed::{A, B, Bed, bulk_at, messages_at};
use super::lane::{Carrier, Targets};
use super::work::Packet;
use anyhow::{Context as _, Result, bail};
use holdfast_linux::priority;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Number and due time.
const HEAD: usize = 12;
/// Of what only opens the way.
const NO_NUMBER: u32 = u32::MAX;
/// Below the wire's, above that of everything that is measured.
const PRIORITY: i32 = 5;
/// How long the way may take to open, over a path that loses packets.
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks of a thread that waits.
const LOOK: Duration = Duration::from_millis(20);
/// Between two tries to send what a connection did not take.
const AGAIN: Duration = Duration::from_micros(500);
/// A socket's buffer, so that a burst is not lost in it.
const BUFFER_BYTES: usize = 4 << 20;

/// A message that has not come.
pub const LOST: u64 = u64::MAX;

/// Both ends of an open way.
pub enum Talk {
    Udp([UdpSocket; 2]),
    Tcp([TcpStream; 2]),
}

/// What tells the threads of one direction how far it is.
#[derive(Default)]
pub struct Progress {
    /// Messages that were heard, each once.
    heard: AtomicUsize,
    is_over: AtomicBool,
}

impl Progress {
    /// Waits until so many were heard, but no longer than `until`; then nobody listens any more.
    pub fn finish(&self, count: usize, until: Instant) {
        while self.heard.load(Ordering::Relaxed) < count && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl Talk {
    /// Opens the way, and waits until something has come through.
    ///
    /// # Errors
    /// When nothing comes.
    pub fn open(bed: &Bed, targets: Targets, carrier: Carrier) -> Result<Self> {
        match carrier {
            Carrier::Udp => open_udp(bed, targets.messages).map(Self::Udp),
            Carrier::Tcp(control) => {
                let ends = connect(bed, targets.bulk, control)?;
                for end in &ends {
                    end.set_nodelay(true)?;
                }
                Ok(Self::Tcp(ends))
            }
        }
    }

    /// Sends a plan from one end from `begun_ns` on; late ones are given up at `until_ns`.
    pub fn send(&self, from: usize, plan: &[Packet], begun_ns: u64, until_ns: u64) {
        // Without the right to it, it is only less punctual.
        let _ = priority::set_realtime(PRIORITY);
        match self {
            Self::Udp(ends) => send_udp(&ends[from], plan, begun_ns),
            Self::Tcp(ends) => send_tcp(&ends[from], plan, begun_ns, until_ns),
        }
    }

    /// Hears at one end until it is over; the messages' delays, in ns.
    pub fn hear(&self, at: usize, count: usize, progress: &Progress) -> Vec<u64> {
        let _ = priority::set_realtime(PRIORITY);
        let mut heard = Heard { delays_ns: vec![LOST; count], progress };
        match self {
            Self::Udp(ends) => hear_udp(&ends[at], &mut heard),
            Self::Tcp(ends) => hear_tcp(&ends[at], &mut heard),
        }
        heard.delays_ns
    }
}

struct Heard<'a> {
    delays_ns: Vec<u64>,
    progress: &'a Progress,
}

impl Heard<'_> {
    fn take(&mut self, head: &[u8; HEAD]) {
        let (number, due) = (u32::from_be_bytes(std::array::from_fn(|i| head[i])), &head[4..]);
        let due_ns = u64::from_be_bytes(std::array::from_fn(|i| due[i]));
        if let Some(place) = self.delays_ns.get_mut(number as usize)
            && *place == LOST
        {
            *place = crate::monotonic_ns().saturating_sub(due_ns);
            self.progress.heard.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn head(number: u32, due_ns: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&number.to_be_bytes());
    head[4..].copy_from_slice(&due_ns.to_be_bytes());
    head
}

fn open_udp(bed: &Bed, target: SocketAddr) -> Result<[UdpSocket; 2]> {
    let make = |port: u16| {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        socket.set_recv_buffer_size(BUFFER_BYTES)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
        anyhow::Ok(UdpSocket::from(socket))
    };
    let near = bed.hosts[A].inside(|| {
        let socket = make(0)?;
        socket.connect(target)?;
        Ok(socket)
    })?;
    let far = bed.hosts[B].inside(|| make(messages_at(Ipv4Addr::UNSPECIFIED).port()))?;
    far.set_read_timeout(Some(LOOK))?;
    near.set_read_timeout(Some(LOOK))?;
    let until = Instant::now() + OPEN_LIMIT;
    let mut buffer = [0; 2048];
    loop {
        // A port that is not open yet answers with an error.
        let _ = near.send(&head(NO_NUMBER, 0));
        if let Ok((_, from)) = far.recv_from(&mut buffer) {
            bed.hosts[B].inside(|| Ok(far.connect(from)?))?;
            return Ok([near, far]);
        }
        if Instant::now() > until {
            bail!("nothing comes through: {}", bed.logs());
        }
    }
}

/// A connection from A to B with this congestion control; both ends of it.
///
/// # Errors
/// When there is none in time.
pub fn connect(bed: &Bed, target: SocketAddr, control: &str) -> Result<[TcpStream; 2]> {
    let listener = bed.hosts[B]
        .inside(|| Ok(TcpListener::bind(bulk_at(Ipv4Addr::UNSPECIFIED))?))
        .context("cannot listen")?;
    listener.set_nonblocking(true)?;
    let until = Instant::now() + OPEN_LIMIT;
    let near = loop {
        match bed.hosts[A].inside(|| connect_once(target, control)) {
            Ok(near) => break near,
            // A tunnel's port is not open yet.
            Err(error) if Instant::now() > until => {
                return Err(error).with_context(|| format!("cannot connect: {}", bed.logs()));
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    };
    loop {
        match listener.accept() {
            Ok((far, _)) => {
                far.set_nonblocking(false)?;
                far.set_read_timeout(Some(LOOK))?;
                return Ok([near, far]);
            }
            Err(_) if Instant::now() < until => std::thread::sleep(LOOK),
            Err(error) => {
                return Err(error).with_context(|| format!("nobody comes: {}", bed.logs()));
            }
        }
    }
}

fn connect_once(target: SocketAddr, control: &str) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_tcp_congestion(control.as_bytes())?;
    socket.connect_timeout(&target.into(), OPEN_LIMIT)?;
    Ok(socket.into())
}

fn sleep_until(due_ns: u64) {
    let wait = due_ns.saturating_sub(crate::monotonic_ns());
    if wait > 0 {
        std::thread::sleep(Duration::from_nanos(wait));
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn send_udp(socket: &UdpSocket, plan: &[Packet], begun_ns: u64) {
    let mut bytes = vec![0; usize::from(u16::MAX)];
    for (number, packet) in (0u32..).zip(plan) {
        let due_ns = begun_ns + nanos(packet.at);
        sleep_until(due_ns);
        bytes[..HEAD].copy_from_slice(&head(number, due_ns));
        // What finds no room is lost, as on any path.
        let _ = socket.send(&bytes[..packet.payload_bytes]);
    }
}

fn hear_udp(socket: &UdpSocket, heard: &mut Heard) {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    while !heard.progress.is_over() {
        if let Ok(length) = socket.recv(&mut buffer)
            && let Some(head) = buffer[..length].first_chunk()
        {
            heard.take(head);
        }
    }
}

/// Waits until there is something to read, or it is time to look around.
fn wait_readable(stream: &TcpStream) {
    let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    // Interrupted, it looks around earlier.
    let _ = poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&look));
}

/// On a connection a message is its length, its head, and what fills it up.
fn send_tcp(stream: &TcpStream, plan: &[Packet], begun_ns: u64, until_ns: u64) {
    if stream.set_nonblocking(true).is_err() {
        return;
    }
    let (mut waiting, mut next) = (Vec::new(), 0);
    while (next < plan.len() || !waiting.is_empty()) && crate::monotonic_ns() < until_ns {
        while let Some(packet) = plan.get(next)
            && begun_ns + nanos(packet.at) <= crate::monotonic_ns()
        {
            let length = packet.payload_bytes as u16;
            waiting.extend_from_slice(&length.to_be_bytes());
            waiting.extend_from_slice(&head(next as u32, begun_ns + nanos(packet.at)));
            waiting.resize(waiting.len() + packet.payload_bytes - HEAD, 0);
            next += 1;
        }
        match (&*stream).write(&waiting) {
            Ok(taken) => drop(waiting.drain(..taken)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
        let due_ns = plan.get(next).map_or(u64::MAX, |it| begun_ns + nanos(it.at));
        let again_ns = crate::monotonic_ns() + nanos(AGAIN);
        sleep_until(if waiting.is_empty() { due_ns.min(until_ns) } else { due_ns.min(again_ns) });
    }
}

fn hear_tcp(stream: &TcpStream, heard: &mut Heard) {
    let (mut buffer, mut kept) = (vec![0; 64 << 10], Vec::new());
    while !heard.progress.is_over() {
        // Who sends at this end has made the socket one that does not wait by itself.
        wait_readable(stream);
        let length = match (&*stream).read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => length,
            Err(_) => continue,
        };
        kept.extend_from_slice(&buffer[..length]);
        let mut read = 0;
        while let Some((bytes, rest)) = kept[read..].split_first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(*bytes));
            let Some(message) = rest.get(..length) else { break };
            let Some(head) = message.first_chunk() else { return };
            heard.take(head);
            read += 2 + length;
        }
        kept.drain(..read);
    }
}
