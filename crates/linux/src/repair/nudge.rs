//! Waking a rebuilt connection whose output counts as sent but was lost.
//!
//! Left alone, the kernel waits for its timer: a rebuilt socket reports an RTO of
//! 3 s, and lost output began to arrive after 4.1 s (Linux 6.18; 2.0 s with
//! `TCP_RTO_MAX_MS` 1000 and `TCP_RTO_MIN_US` 5000 together). Without timestamps
//! one ACK does not help either: the RTO stayed as long after part of the output
//! had been acknowledged. So the daemon sends the lost output itself, clocked by
//! the client's ACKs, which reach the rebuilt socket as well and empty its queue.
//! `tests/kernel/nudge.rs` measures all of this.
//!
//! Better still is to have nothing in flight: output that the fence has kept
//! from the client belongs in [`super::live_send`] and leaves at once.

use super::RestoreSpec;
use crate::sockopt;
use holdfast_wire::packet::{Flags, PacketError, TcpOptions, TcpSegment};
use holdfast_wire::seq::SeqNo;
use std::io;
use std::os::fd::BorrowedFd;

/// Segments a [`Nudge`] sends before the first ACK: the initial window of RFC 6928.
pub const NUDGE_SEGMENTS_FIRST: usize = 10;
/// Most segments that a [`Nudge`] has outstanding, however many were
/// acknowledged.
pub const NUDGE_SEGMENTS_MAX: usize = 256;

/// Bytes of TCP header that timestamps take from each segment.
const TIMESTAMP_BYTES: usize = 12;

/// Fields of a [`Nudge`]'s packets, beside the output.
#[derive(Clone, Copy, Debug)]
pub struct NudgeHeader {
    /// The number to acknowledge: [`RestoreSpec::rcv_end`] or later.
    pub ack: SeqNo,
    /// The window as it stands on the wire; its right edge must not exceed what
    /// the rebuilt socket advertises.
    pub window: u16,
    /// TSval, not below any value sent before, and TSecr.
    pub timestamps: Option<(u32, u32)>,
    /// Most payload of a packet: the client may take larger segments than the own link does,
    /// and a raw socket refuses these. See [`segment_bytes`].
    pub segment_bytes: usize,
}

/// Payload of the largest segment that the rebuilt socket sends, as its route and what the client
/// announced allow.
///
/// # Errors
/// As getsockopt(2).
pub fn segment_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let bytes: libc::c_int = sockopt::get(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG)?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Sends the output in flight of one connection again, in slow start (RFC 5681
/// §3.1). It retransmits nothing twice: if one of its packets is lost, the rest is
/// left to the kernel's timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nudge {
    /// Offset in [`RestoreSpec::in_flight`] of the first byte not yet sent again.
    sent: usize,
}

impl Nudge {
    /// The packets to send to the client now. Call it first with
    /// [`RestoreSpec::snd_una`], then with every ACK the client is seen to send.
    ///
    /// # Errors
    /// As [`TcpSegment::build`].
    pub fn packets(
        &mut self,
        spec: &RestoreSpec<'_>,
        client_ack: SeqNo,
        header: &NudgeHeader,
    ) -> Result<Vec<Vec<u8>>, PacketError> {
        let overhead = if header.timestamps.is_some() { TIMESTAMP_BYTES } else { 0 };
        let mss = usize::from(spec.mss()).saturating_sub(overhead).min(header.segment_bytes).max(1);
        let acked = usize::try_from(client_ack.since(spec.snd_una)).unwrap_or(0);
        // An ACK from before the repair may still arrive, or one beyond the output.
        let acked = acked.min(spec.in_flight.len());
        let segments = (NUDGE_SEGMENTS_FIRST + acked / mss).min(NUDGE_SEGMENTS_MAX);
        let window = (segments * mss).min(spec.peer_window_bytes as usize);
        let end = (acked + window).min(spec.in_flight.len());
        let start = self.sent.max(acked).min(end);
        self.sent = self.sent.max(end);
        let pieces = spec.in_flight[start..end].chunks(mss).enumerate();
        let build = |(index, payload)| {
            TcpSegment {
                key: spec.key,
                to_client: true,
                seq: spec.snd_una.plus((start + index * mss) as u64),
                ack: header.ack,
                flags: Flags::ACK | Flags::PSH,
                window: header.window,
                options: TcpOptions { timestamps: header.timestamps, ..TcpOptions::default() },
                payload,
            }
            .build()
        };
        pieces.map(build).collect()
    }

    /// Whether everything has been sent again once.
    #[must_use]
    pub fn is_done(&self, spec: &RestoreSpec<'_>) -> bool {
        self.sent >= spec.in_flight.len()
    }
}
