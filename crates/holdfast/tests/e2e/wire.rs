//! The means of an attacker or an observer on the wire: listening to all packets of a host, and
//! sending any.

use holdfast_lab::testbed::Host;
use holdfast_linux::frame::{FrameSender, Hop};
use holdfast_linux::netns;
use holdfast_linux::raw::RawSender;
use holdfast_wire::packet::{Checksum, Flags, TcpPacket};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// `ETH_P_ALL` of linux/if_ether.h.
const EVERY_PROTOCOL: u16 = 3;

/// Bytes of the largest packet, offloads included.
const PACKET_MAX: usize = 1 << 17;

/// Time to live of the test's own packets, so that they are not taken for a client's, whose kernel
/// starts with 64.
pub const OUR_TTL: u8 = 63;

/// A thread on a host's network that works until it is told to stop.
pub struct Worker<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts the thread; `work` ends when its argument's `should_go_on` says so.
    pub fn start(host: &Host, work: impl FnOnce(&Listener) -> T + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let namespace = PathBuf::from("/run/netns").join(host.namespace());
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            netns::enter(&namespace).expect("the namespace is there");
            let protocol = Protocol::from(i32::from(EVERY_PROTOCOL.to_be()));
            let socket =
                Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol)).expect("a packet socket");
            socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
            work(&Listener { socket, told, buffer: Mutex::new(vec![0; PACKET_MAX]) })
        });
        Self { stop, thread }
    }

    /// Ends the work and returns what it has found.
    pub fn stop(self) -> T {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the worker ends well")
    }
}

/// Listens to every packet of a network namespace, including those that leave.
pub struct Listener {
    socket: Socket,
    told: Arc<AtomicBool>,
    buffer: Mutex<Vec<u8>>,
}

impl Listener {
    /// Whether the work has not been told to stop.
    pub fn should_go_on(&self) -> bool {
        !self.told.load(Ordering::Relaxed)
    }

    /// The next UDP datagram to `port` with its IPv4 header, if the next packet is one and comes
    /// within 50 ms.
    pub fn next_datagram(&self, port: u16) -> Option<Vec<u8>> {
        let mut buffer = self.buffer.lock().expect("one reader");
        let length = (&self.socket).read(&mut buffer).ok()?;
        let l3 = &buffer[..length];
        let udp = l3.first() == Some(&0x45) && l3.get(9) == Some(&17);
        (udp && l3.get(22..24) == Some(&port.to_be_bytes())).then(|| l3.to_vec())
    }

    /// The next TCP packet, if one comes within 50 ms.
    pub fn next<T>(&self, take: impl FnOnce(&[u8], TcpPacket<'_>) -> T) -> Option<T> {
        let mut buffer = self.buffer.lock().expect("one reader");
        let length = (&self.socket).read(&mut buffer).ok()?;
        let l3 = &buffer[..length];
        // Packets that are offloaded have no complete checksum yet.
        let packet = TcpPacket::parse(l3, Checksum::Partial).ok()?;
        Some(take(l3, packet))
    }
}

/// Sends packets with the test's own time to live from a network namespace.
pub struct Forger {
    raw: RawSender,
    frames: FrameSender,
}

impl Forger {
    /// Opens a forger in the namespace of the calling thread; see [`RawSender::open`].
    pub fn open(mark: Option<u32>) -> Self {
        let raw = RawSender::open(mark).expect("raw sockets");
        Self { raw, frames: FrameSender::open().expect("packet sockets") }
    }

    /// Sends a packet as it is, including headers that no kernel would write.
    pub fn send_as_is(&mut self, hop: &Hop, l3: &[u8]) -> bool {
        self.frames.send(hop, l3).is_ok()
    }

    /// Sends a packet that begins with its IP header. Returns whether the kernel took it; it may
    /// refuse some nonsense.
    pub fn send(&self, mut l3: Vec<u8>) -> bool {
        match l3.first().map(|byte| byte >> 4) {
            Some(4) if l3.len() > 8 => l3[8] = OUR_TTL,
            Some(6) if l3.len() > 7 => l3[7] = OUR_TTL,
            _ => {}
        }
        self.raw.send(&l3).is_ok()
    }
}

/// Whether this test sent the packet.
pub fn is_ours(l3: &[u8]) -> bool {
    let ttl = if l3[0] >> 4 == 4 { l3[8] } else { l3[7] };
    ttl == OUR_TTL
}

/// Whether a packet carries data of a client to the service on `port`.
pub fn is_request(l3: &[u8], packet: &TcpPacket<'_>, port: u16) -> bool {
    packet.destination_port == port
        && !packet.payload.is_empty()
        && packet.flags.has(Flags::ACK)
        && !is_ours(l3)
}
