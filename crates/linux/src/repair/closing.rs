//! Half-closed connections: a FIN is part of a queue, but no socket option puts
//! one there.
//!
//! Our own FIN comes from shutdown(). In repair mode with the send queue chosen
//! it counts as already sent (the way of CRIU's libsoccr), which is needed if the
//! client has acknowledged it; that ACK is then played to the local stack. A FIN
//! that the client has not acknowledged is simply sent again. The client's FIN is
//! always played to the local stack.

use super::{KERNEL_TOO_OLD, RepairError, RestoreSpec, TCP_SEND_QUEUE, select_queue, step};
use crate::sockopt::checked;
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment};
use holdfast_wire::seq::SeqNo;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// How far both directions had been closed, by the names of RFC 9293 §3.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ClosingState {
    #[default]
    Established,
    /// Own FIN sent, not acknowledged.
    FinWait1,
    /// Own FIN acknowledged: [`RestoreSpec::snd_una`] is the number behind it.
    FinWait2,
    /// The client's FIN arrived: it is the number [`RestoreSpec::rcv_end`].
    CloseWait,
    /// Own FIN sent, then the client's FIN arrived, none acknowledged.
    Closing,
    /// The client's FIN arrived, then the own FIN was sent.
    LastAck,
    /// Both FINs acknowledged; only the process may not know yet.
    TimeWait,
}

impl ClosingState {
    pub(super) fn own_fin_acked(self) -> bool {
        matches!(self, Self::FinWait2 | Self::TimeWait)
    }

    pub(super) fn peer_fin(self) -> bool {
        matches!(self, Self::CloseWait | Self::Closing | Self::LastAck | Self::TimeWait)
    }

    /// Where the send queue starts relative to `snd_una`: an acknowledged FIN is
    /// queued once more, so that its ACK can be played. Modulo 2^32.
    pub(super) fn sent_fin_offset(self) -> u64 {
        if self.own_fin_acked() { u64::from(u32::MAX) } else { 0 }
    }
}

/// shutdown() while the send queue is under repair: the FIN counts as sent.
pub(super) fn queue_sent_fin(fd: BorrowedFd<'_>) -> Result<(), RepairError> {
    select_queue(fd, TCP_SEND_QUEUE)?;
    shutdown(fd).map_err(step("shutdown in repair mode", KERNEL_TOO_OLD))
}

/// Brings a socket that [`super::restore`] has rebuilt into `spec.closing`. The
/// service address must be local by now, and all output must have been written.
/// `inject` delivers a whole packet to the local stack (see
/// [`crate::raw::RawSender`]); `tsval` is a current timestamp of the *client*
/// (TSval of its last packet), if the connection uses them.
///
/// # Errors
/// [`RepairError::Step`] if shutdown() or `inject` fails.
pub fn finish_closing(
    fd: BorrowedFd<'_>,
    spec: &RestoreSpec<'_>,
    tsval: Option<u32>,
    inject: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), RepairError> {
    let timestamps = tsval.map(|value| (value, spec.tsval.unwrap_or(0)));
    let mut play = |flags: Flags, ack: SeqNo| play(spec, flags, ack, timestamps, inject);
    let fin = Flags::FIN | Flags::ACK;
    let own_fin =
        || shutdown(fd).map_err(step("shutdown", "the socket must have been rebuilt just before"));
    match spec.closing {
        ClosingState::Established => Ok(()),
        ClosingState::FinWait1 => own_fin(),
        ClosingState::FinWait2 => play(Flags::ACK, spec.snd_una),
        ClosingState::CloseWait => play(fin, spec.snd_una),
        ClosingState::Closing => {
            own_fin()?;
            play(fin, spec.snd_una)
        }
        ClosingState::LastAck => {
            play(fin, spec.snd_una)?;
            own_fin()
        }
        ClosingState::TimeWait => {
            play(Flags::ACK, spec.snd_una)?;
            play(fin, spec.snd_una)
        }
    }
}

/// Shows the client's clock ([`RestoreSpec::client_clock`]) to a socket that
/// [`super::restore`] has rebuilt: no socket option sets it, and until the kernel
/// has seen one timestamp it takes a segment of any age (PAWS, RFC 7323 §5), and
/// until it has a round-trip sample (RFC 7323 §4) its timer stands at 3 s. Call it
/// when the service address is local, before any client is heard. Does nothing
/// if the clock is not known.
///
/// # Errors
/// [`RepairError::Step`] if `inject` fails.
pub fn show_clock(
    spec: &RestoreSpec<'_>,
    inject: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), RepairError> {
    let (Some(clock), Some(own)) = (spec.client_clock, spec.tsval) else { return Ok(()) };
    let una = spec.snd_una.plus(spec.closing.sent_fin_offset());
    let timestamps = (clock.tsval, own.wrapping_sub(clock.rtt_ms));
    play(spec, Flags::ACK, una, Some(timestamps), inject)
}

/// Delivers an empty segment of the client to the local stack.
fn play(
    spec: &RestoreSpec<'_>,
    flags: Flags,
    ack: SeqNo,
    timestamps: Option<(u32, u32)>,
    inject: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), RepairError> {
    let options = TcpOptions { timestamps, ..TcpOptions::default() };
    let shift = if spec.record.snd_wscale > 14 { 0 } else { spec.record.snd_wscale };
    let window = (spec.peer_window_bytes >> shift).try_into().unwrap_or(u16::MAX);
    let segment = TcpSegment {
        key: spec.key,
        to_client: false,
        seq: spec.rcv_end(),
        ack,
        flags,
        window,
        options,
        payload: &[],
    };
    segment.build().map_err(io::Error::other).and_then(|packet| inject(&packet)).map_err(step(
        "playing a packet of the client to the own stack",
        "the service address must be local and the raw socket open",
    ))
}

fn shutdown(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: shutdown() touches no memory of ours.
    checked(unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) })?;
    Ok(())
}
