//! What passes at the client: each segment of the service's connections with its time, as the
//! paper's client-side traces have it.

use crate::testbed::{Role, Testbed, socket_at};
use anyhow::{Result, anyhow};
use holdfast_linux::arrival;
use holdfast_wire::packet::{Checksum, Flags, TcpPacket};
use holdfast_wire::seq::SeqNo;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::SystemTime;

/// The longest frame that offloading makes.
const FRAME_BYTES_MAX: usize = 65_536;

/// Segments that are kept at most.
const SEEN_MAX: usize = 1 << 20;

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) at: SystemTime,
    pub(super) from_client: bool,
    /// Of the client.
    pub(super) port: u16,
    /// Bytes of payload.
    pub(super) len: usize,
    /// Behind its last number.
    pub(super) end: SeqNo,
    /// Meaningless in a client's SYN.
    pub(super) ack: SeqNo,
    pub(super) syn: bool,
}

/// Listens at the client.
pub(super) struct Trace {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Seen>>,
}

impl Trace {
    /// Begins to listen to a service at `port`.
    pub(super) fn start(testbed: &Testbed, port: u16) -> Result<Self> {
        let mut socket = socket_at(testbed.host(Role::Client), None)?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut seen, mut frame) = (Vec::new(), vec![0; FRAME_BYTES_MAX]);
            while !told.load(Ordering::Relaxed) {
                let Ok(len) = socket.read(&mut frame) else { continue };
                let at = arrival::of_last(&socket).unwrap_or_else(|_| SystemTime::now());
                seen.extend(of_frame(at, &frame[..len], port).filter(|_| seen.len() < SEEN_MAX));
            }
            seen
        });
        Ok(Self { stop, thread })
    }

    /// All that has passed.
    pub(super) fn finish(self) -> Result<Vec<Seen>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the trace's thread panicked"))
    }
}

/// A segment of a service at `port`.
pub(super) fn of_frame(at: SystemTime, l3: &[u8], port: u16) -> Option<Seen> {
    let packet = TcpPacket::parse(l3, Checksum::Partial).ok()?;
    let from_client = packet.destination_port == port;
    if !from_client && packet.source_port != port {
        return None;
    }
    Some(Seen {
        at,
        from_client,
        port: if from_client { packet.source_port } else { packet.destination_port },
        len: packet.payload.len(),
        end: packet.seq_end(),
        ack: packet.ack,
        syn: packet.flags.has(Flags::SYN),
    })
}

/// Seconds from one time to another.
pub(super) fn seconds(from: SystemTime, to: SystemTime) -> f64 {
    match to.duration_since(from) {
        Ok(later) => later.as_secs_f64(),
        Err(earlier) => -earlier.duration().as_secs_f64(),
    }
}
