//! The two ends of the tap, for one connection.

use super::{NOW, packet};
use crate::kernel::Socket;
use crate::packet::{Packet, Truth};
use holdfast_replica::Broken;
use holdfast_replica::backup::{Backup, BackupOutput};
use holdfast_wire::log::Header;
use holdfast_wire::message::{ConnId, ConnRecord, Message};
use holdfast_wire::packet::{TcpOptions, TcpSegment};
use holdfast_wire::seq::SeqNo;
use holdfast_wire::time::Nanos;

/// Window scale of the server.
const WSCALE: u8 = 7;
/// Size of the receive buffer, in bytes: a few units of the scaled window, so that segments
/// often lie beyond the window.
const BUFFER: u64 = 4_096;
const CONN: ConnId = ConnId(1);

/// A connection in a primary's kernel, whose server reads everything at once.
#[derive(Debug)]
pub struct KernelModel(Socket);

impl KernelModel {
    /// Opens the connection that a client's SYN asks for; `None` if `syn` is not a packet.
    #[must_use]
    pub fn accept(syn: &[u8], iss: SeqNo) -> Option<Self> {
        let syn = packet(syn, false, |_| None)?;
        Some(Self(Socket::new(&syn, iss, WSCALE, BUFFER, NOW)))
    }

    pub fn syn_ack(&mut self) -> Vec<u8> {
        let syn_ack = self.0.syn_ack(NOW);
        bytes_of(&syn_ack, Some(WSCALE))
    }

    /// Handles a packet; returns the kernel's acknowledgement.
    pub fn receive(&mut self, bytes: &[u8]) -> Vec<u8> {
        if let Some(packet) = packet(bytes, false, |_| None) {
            self.0.receive(NOW, &packet);
        }
        self.0.take(self.0.unread.len());
        bytes_of(&self.0.ack(NOW), None)
    }

    /// Writes for the server; returns the segments that the kernel then sends.
    pub fn write(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        self.0.write(bytes, Truth::default());
        self.0.push(NOW, &mut out);
        out.iter().map(|packet| bytes_of(packet, None)).collect()
    }

    /// The next sequence number expected from the client (rcv_nxt).
    #[must_use]
    pub fn rcv_nxt(&self) -> SeqNo {
        self.0.irs.plus(1 + self.0.received())
    }

    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.0.reset
    }

    /// The connection's record, as the gate passes it to the backup.
    #[must_use]
    pub fn record(&self, syn_ack_window: u16) -> ConnRecord {
        ConnRecord {
            key: self.0.key,
            iss: self.0.iss,
            irs: self.0.irs,
            mss: 1460,
            peer_mss: 1460,
            rcv_wscale: self.0.rcv_wscale,
            snd_wscale: self.0.rcv_wscale,
            sack: true,
            tsval: Some(0),
            window: syn_ack_window,
        }
    }
}

fn bytes_of(packet: &Packet, wscale: Option<u8>) -> Vec<u8> {
    let segment = TcpSegment {
        key: packet.key,
        to_client: true,
        seq: packet.seq,
        ack: packet.ack,
        flags: packet.flags,
        window: packet.window,
        options: TcpOptions {
            timestamps: Some((packet.tsval, 0)),
            wscale,
            ..TcpOptions::default()
        },
        payload: &packet.payload,
    };
    segment.build().unwrap_or_default()
}

/// The backup's side of the tap.
#[derive(Debug)]
pub struct TapModel {
    backup: Backup,
    said: Said,
}

#[derive(Debug)]
struct Said(SeqNo);

impl TapModel {
    /// The tap of a connection whose record has arrived.
    #[must_use]
    pub fn new(record: ConnRecord) -> Self {
        let said = Said(record.irs.plus(1));
        let mut tap = Self { backup: Backup::new([0; 8]), said };
        let message = Message::Conn { conn: CONN, record };
        tap.backup.handle_message(Nanos(NOW), &message, &mut tap.said);
        tap
    }

    /// Handles a copied packet.
    pub fn take(&mut self, bytes: &[u8]) {
        let Some(packet) = packet(bytes, false, |_| None) else { return };
        let Self { backup, said } = self;
        packet.with_view(|segment| backup.handle_segment(Nanos(NOW), segment, said));
        backup.flush(Nanos(NOW), said);
    }

    /// The sequence number up to which it has confirmed the client's stream.
    #[must_use]
    pub fn held(&self) -> SeqNo {
        self.said.0
    }
}

impl BackupOutput for Said {
    fn send(&mut self, message: &Message<'_>) {
        if let Message::Held { conns } = message
            && let Some((_, held)) = conns.last()
        {
            self.0 = *held;
        }
    }

    fn replay(&mut self, _: &Header, _: &[&[u8]]) -> bool {
        true
    }

    fn acked(&mut self, _: u32, _: u64) {}

    fn gone(&mut self, _: u32) {}

    fn server_died(&mut self) {}

    fn log_ended(&mut self) {}

    fn broken(&mut self, _: &Broken) {}
}
