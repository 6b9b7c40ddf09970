//! The segments of the service's connections that pass at the client, with their times, as in the
//! paper's client-side traces.

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

/// Bytes of the longest frame that offloading makes.
const FRAME_BYTES_MAX: usize = 65_536;

/// Most segments that are kept.
const SEEN_MAX: usize = 1 << 20;

/// A segment that passed at the client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) at: SystemTime,
    pub(super) from_client: bool,
    /// Port of the client.
    pub(super) port: u16,
    /// Bytes of payload.
    pub(super) len: usize,
    /// Sequence number behind the segment's last byte.
    pub(super) end: SeqNo,
    /// Acknowledgement number, which means nothing in a client's SYN.
    pub(super) ack: SeqNo,
    pub(super) syn: bool,
}

/// Records segments at the client.
pub(super) struct Trace {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Seen>>,
}

impl Trace {
    /// Begins to record the segments of a service at `port`.
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

    /// Ends the recording, and returns its segments.
    pub(super) fn finish(self) -> Result<Vec<Seen>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the trace's thread panicked"))
    }
}

/// The segment in a frame, if it is of a service at `port`.
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
