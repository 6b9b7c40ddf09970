//! The verdict on one connection: where its socket must continue, or why it must
//! not.

use super::{Asked, Conn, Diverged, ManifestConn, Planned, Probe, PromotionOutput, RTT_UNKNOWN_MS};
use crate::Nanos;
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord, FlowBounds};
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeMap;
use std::fmt;

/// Why a connection is not restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Both directions had ended and were acknowledged.
    Finished,
    /// The client gave up before the server accepted.
    ClientReset,
    /// The replica's table does not have it.
    NotInManifest,
    /// The replica no longer has output that the client lacks.
    OutputNotRetained,
    /// Input that the client will not send again never arrived here.
    InputNotHeld,
    /// The client may hold more than the replica wrote, and nothing proves it:
    /// the client lies, or its stream cannot go on as it was.
    NeverWritten,
    /// It holds more than the replica wrote: the primary did not wait for its log (decision 32).
    BeyondLog,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Finished => "both directions had ended",
            Self::ClientReset => "its client gave up before the server accepted",
            Self::NotInManifest => "the server had no descriptor of it any more",
            Self::OutputNotRetained => {
                "its client lacks bytes that were sent before this member was there"
            }
            Self::InputNotHeld => "bytes that its client does not send again never came here",
            Self::NeverWritten => "its client acknowledges what was never sent",
            Self::BeyondLog => {
                "its client has more than the log, which the primary did not wait for"
            }
        })
    }
}

/// A connection that is not restored.
#[derive(Clone, Copy, Debug)]
pub struct Discarded {
    pub conn: ConnId,
    pub key: ConnKey,
    /// Accept number; `None` if the server never saw it.
    pub accept: Option<u32>,
    pub why: Why,
}

impl fmt::Display for Discarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.why)
    }
}

/// How far the connection's end has gone (decision 15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closing {
    /// Whether the client's FIN is held: inject it at `rcv_nxt` after the
    /// socket lives.
    pub client_fin: bool,
    /// Whether the server ended its sending side: `shutdown` after the output.
    /// The FIN takes the number it had, so that a client that has it just
    /// acknowledges.
    pub server_fin: bool,
    /// Whether the client has acknowledged that FIN already.
    pub server_fin_acked: bool,
    /// Whether the server holds no descriptor: close the socket once output is
    /// queued.
    pub orphan: bool,
}

/// When a client is sent an ACK of what has arrived from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// At once: something is under way, or was.
    Now,
    /// After all others: it lacks one only if the last that the primary sent was lost.
    Soon,
    /// Never: it would have sent again what it lacks an ACK of.
    Nothing,
}

/// Silence after which a client lacks no ACK: the least retransmission time-out (RFC 6298 §2.4).
const LACKS_NO_ACK: Nanos = Nanos::from_ms(1000);

/// Everything that a repaired socket needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore<'a> {
    pub conn: ConnId,
    pub record: &'a ConnRecord,
    /// Accept number; `None` if the replica's next `accept` is to return it
    /// (decision 14).
    pub accept: Option<u32>,
    /// The replica's descriptor; `None` in the accept queue or for an orphan.
    pub fd: Option<i32>,
    /// Start of the RECV queue: the first byte of `unread`.
    pub recv_start: SeqNo,
    /// Bytes that the client sent and the server has not read, in two pieces.
    pub unread: [&'a [u8]; 2],
    /// Sequence number after `unread`; the client's FIN, if held, has this
    /// number.
    pub rcv_nxt: SeqNo,
    /// First byte that the client lacks, and its stream offset.
    pub snd_una: SeqNo,
    pub snd_una_offset: u64,
    /// Output from `snd_una_offset` on that is too old for the replica to keep; the replica
    /// retains the rest.
    pub earlier: &'a [u8],
    /// End of the output that may be on its way, which begins at
    /// `snd_una_offset`: it goes into the repair SEND queue, so that an ACK of
    /// it is not above `snd_nxt`.
    pub in_flight_end: u64,
    /// End of the output `[in_flight_end, out_end)` that is sent live.
    pub out_end: u64,
    /// What the client can take, in bytes.
    pub peer_window_bytes: u32,
    /// Largest right edge promised (law L4), and the window that keeps it.
    pub right_edge: SeqNo,
    pub receive_window_bytes: u32,
    pub tsval: Option<u32>,
    /// The client's clock, so that older segments stay refused (RFC 7323 §5).
    pub client_tsval: Option<u32>,
    /// Round trip to the client: the time until its answer, or
    /// [`RTT_UNKNOWN_MS`](super::RTT_UNKNOWN_MS).
    pub rtt_ms: u32,
    pub closing: Closing,
    /// When the client is sent an ACK.
    pub tell: Tell,
    /// Set while there is no sign that the client got a SYN-ACK: the probe was
    /// one, and must be repeated whenever the client repeats its SYN.
    pub half_open: Option<Probe>,
    /// Raw packets beyond a hole, in the order of arrival.
    pub reinject: Vec<&'a [u8]>,
}

/// How far the client has the server's stream.
struct Sent {
    acked: u64,
    end: u64,
    /// Whether the client, or an edge that has not seen all, speaks of more than was
    /// written.
    too_far: bool,
}

impl Conn {
    pub(super) fn settle(
        &self,
        now: Nanos,
        manifest: &BTreeMap<u32, ManifestConn>,
        out: &mut impl PromotionOutput,
    ) -> Result<(), Diverged> {
        let (id, accept) = (self.planned.id, self.planned.accept);
        if self.is_over() {
            match accept {
                Some(accept) => out.reset(id, accept),
                None => out.discard(&self.discarded(Why::ClientReset), None),
            }
            return Ok(());
        }
        let replica = match accept {
            None => IN_ACCEPT_QUEUE,
            Some(accept) => match manifest.get(&accept) {
                Some(replica) => *replica,
                None => {
                    let why = if self.planned.closed { Why::Finished } else { Why::NotInManifest };
                    self.lose(now, why, out);
                    return Ok(());
                }
            },
        };
        let sent = match self.sent(&replica) {
            Err(_) if accept.is_none() => {
                // The server had let go of it before its log began: nobody is to accept it,
                // and it says nothing of the others.
                self.lose(now, Why::NotInManifest, out);
                return Ok(());
            }
            sent => sent?,
        };
        match self.refusal(&replica, &sent) {
            Some(why) => self.lose(now, why, out),
            None => out.restore(&self.restored(now, &replica, &sent)),
        }
        Ok(())
    }

    /// Its client hears that it is over.
    pub(super) fn lose(&self, now: Nanos, why: Why, out: &mut impl PromotionOutput) {
        out.discard(&self.discarded(why), self.farewell(now, why));
    }

    fn discarded(&self, why: Why) -> Discarded {
        let Planned { id, record, accept, .. } = &self.planned;
        Discarded { conn: *id, key: record.key, accept: *accept, why }
    }

    /// Is there any sign that the client got the SYN-ACK?
    fn is_established(&self) -> bool {
        let acked_syn = |ack: SeqNo| ack == self.planned.tap.snd_origin;
        self.has_answered()
            || !self.may_lack_syn_ack()
            || self.whole_bounds().is_some_and(|bounds| acked_syn(bounds.client_ack))
    }

    /// Compares what the client may hold with what the replica wrote, before
    /// anything is restored (law L5).
    fn sent(&self, replica: &ManifestConn) -> Result<Sent, Diverged> {
        let planned = &self.planned;
        let tap = &planned.tap;
        if replica.in_bytes != planned.in_bytes {
            return Err(Diverged::Input {
                conn: planned.id,
                logged: planned.in_bytes,
                read: replica.in_bytes,
            });
        }
        // The replica's word, as everything in its memory.
        let written = replica.out_bytes.saturating_add(u64::from(replica.has_ended()));
        let near = planned.snd_una;
        let offset = |seq: SeqNo| seq.offset_near(tap.snd_origin, near);
        let passed = |bounds: &FlowBounds| offset(bounds.seq_end).max(planned.snd_una);
        let bounds = self.whole_bounds();
        let seen = bounds.map(passed);
        // Only what edge and gate have seen pass is certain to be at the client. Its
        // own word must never count against the others' connections.
        let held = seen.unwrap_or(planned.snd_una);
        if held > written {
            return Err(Diverged::Output { conn: planned.id, held, written });
        }
        let answers = self.has_answered() || self.asked == Asked::Never;
        let answer = answers.then_some(tap.acked);
        let Some(seen) = seen else {
            // Any byte may be on its way: the rebuilt socket must not take an ACK of
            // it for one of data never sent (RFC 9293 §3.10.7.4).
            let acked = answer.unwrap_or(0).max(planned.snd_una);
            let told = self.bounds.as_ref().map_or(acked, passed).max(acked);
            return Ok(Sent { acked, end: written.max(acked), too_far: told > written });
        };
        // A client that acknowledges what was never sent harms only itself.
        let client_ack = bounds.map(|bounds| offset(bounds.client_ack));
        let acked =
            [answer, client_ack].into_iter().flatten().find(|ack| *ack <= seen).unwrap_or(0);
        Ok(Sent { acked: acked.max(planned.snd_una), end: seen, too_far: false })
    }

    /// Asks a client that still waits. The first probe has acknowledged everything
    /// held of its stream: the client may have nothing left to say.
    fn farewell(&self, now: Nanos, why: Why) -> Option<Probe> {
        (why != Why::Finished).then(|| self.probe(now))
    }

    fn refusal(&self, replica: &ManifestConn, sent: &Sent) -> Option<Why> {
        if sent.too_far {
            return Some(Why::NeverWritten);
        }
        let fin_acked = sent.acked > replica.out_bytes;
        if !replica.open && fin_acked && self.planned.tap.fin_held() {
            return Some(Why::Finished);
        }
        if !self.planned.tap.holds(self.planned.told) {
            return Some(Why::InputNotHeld);
        }
        let lacks = self.earlier(replica, sent.acked.min(replica.out_bytes)).is_none();
        lacks.then_some(Why::OutputNotRetained)
    }

    /// Output from `from` on that the client lacks and the replica does not
    /// keep.
    fn earlier(&self, replica: &ManifestConn, from: u64) -> Option<&[u8]> {
        self.planned.earlier.range(from, replica.keep_from)
    }

    /// Largest right edge that the client knows of, as an offset.
    pub(super) fn right_edge(&self) -> u64 {
        let tap = &self.planned.tap;
        let held = tap.stream.end();
        self.whole_bounds()
            .map_or(0, |bounds| bounds.right_edge.offset_near(tap.rcv_origin, held))
            .max(tap.right_edge())
            .max(held)
    }

    fn tell(&self, now: Nanos) -> Tell {
        let tap = &self.planned.tap;
        match self.asked == Asked::Never && tap.is_at_rest(self.planned.in_bytes) {
            true if tap.is_silent(now, LACKS_NO_ACK) => Tell::Nothing,
            true => Tell::Soon,
            false => Tell::Now,
        }
    }

    fn restored(&self, now: Nanos, replica: &ManifestConn, sent: &Sent) -> Restore<'_> {
        let planned = &self.planned;
        let tap = &planned.tap;
        let held = tap.stream.end();
        let unread_len = held.saturating_sub(planned.in_bytes) as usize;
        let right_edge = self.right_edge();
        let snd_una_offset = sent.acked.min(replica.out_bytes);
        let in_flight_end = sent.end.min(replica.out_bytes);
        assert!(snd_una_offset <= in_flight_end, "L5: what is acknowledged was sent");
        assert!(right_edge >= tap.right_edge(), "L4: the right edge moves left");
        Restore {
            conn: planned.id,
            record: &planned.record,
            accept: planned.accept,
            fd: (planned.accept.is_some() && replica.open).then_some(replica.fd),
            recv_start: tap.rcv_origin.plus(planned.in_bytes),
            unread: tap.stream.range(planned.in_bytes, unread_len).unwrap_or_default(),
            rcv_nxt: tap.rcv_origin.plus(held),
            snd_una: tap.snd_origin.plus(snd_una_offset),
            snd_una_offset,
            earlier: self.earlier(replica, snd_una_offset).unwrap_or_default(),
            in_flight_end,
            out_end: replica.out_bytes,
            peer_window_bytes: tap.peer_window,
            right_edge: tap.rcv_origin.plus(right_edge),
            receive_window_bytes: u32::try_from(right_edge - held).unwrap_or(u32::MAX),
            tsval: self.tsval(now),
            client_tsval: tap.client_tsval(now),
            rtt_ms: self.answered_ms.unwrap_or(RTT_UNKNOWN_MS),
            closing: Closing {
                client_fin: tap.fin_held(),
                server_fin: replica.has_ended(),
                server_fin_acked: sent.acked > replica.out_bytes,
                orphan: !replica.open,
            },
            tell: self.tell(now),
            half_open: (planned.accept.is_none() && !self.is_established())
                .then(|| self.probe(now)),
            reinject: tap.raws().collect(),
        }
    }
}

/// The replica's state of a connection that it has not accepted.
const IN_ACCEPT_QUEUE: ManifestConn = ManifestConn {
    accept: 0,
    open: true,
    fd: -1,
    in_bytes: 0,
    out_bytes: 0,
    keep_from: 0,
    shut: 0,
    eof: false,
};

impl ManifestConn {
    /// Whether the server has ended its sending side; its FIN then takes one
    /// number.
    pub(super) fn has_ended(&self) -> bool {
        !self.open || self.shut & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_named_with_the_reason() {
        let key = ConnKey { server: [1; 16], server_port: 80, client: [2; 16], client_port: 7 };
        for (why, words) in [
            (Why::Finished, "both directions had ended"),
            (Why::ClientReset, "gave up before"),
            (Why::NotInManifest, "no descriptor of it"),
            (Why::OutputNotRetained, "sent before this member was there"),
            (Why::InputNotHeld, "never came here"),
            (Why::NeverWritten, "what was never sent"),
            (Why::BeyondLog, "more than the log"),
        ] {
            let told = Discarded { conn: ConnId(1), key, accept: None, why }.to_string();
            assert!(told.starts_with(&format!("{key}: ")) && told.contains(words), "{told}");
        }
    }
}
