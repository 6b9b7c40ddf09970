//! What the gate on a primary's interface knows of a connection.

use crate::message::{ConnKey, ConnRecord};
use crate::packet::{Flags, TcpOptions, TcpSegment};
use crate::seq::SeqNo;

/// One protected connection as the gate sees it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    pub key: ConnKey,
    pub iss: SeqNo,
    pub irs: SeqNo,
    /// Oldest unacknowledged byte, from the kernel's own state; may lag.
    pub snd_una: SeqNo,
    /// End of what the gate has let out so far.
    pub snd_nxt: SeqNo,
    /// Sequence number up to which bytes may be acknowledged, as the daemon
    /// last stored it.
    pub stable: SeqNo,
    /// Largest right edge that the stack wanted to advertise.
    pub right_edge: SeqNo,
    /// Highest ACK that the stack wanted to send: what the server's kernel
    /// holds.
    pub rcv_nxt: SeqNo,
    /// Highest ACK that went out on the wire, and the highest right edge.
    pub last_ack: SeqNo,
    pub last_edge: SeqNo,
    /// Shift of windows the server sends; 255 = no scaling.
    pub rcv_wscale: u8,
    /// The last timestamps sent; meaningless unless `has_ts`.
    pub tsval: u32,
    pub tsecr: u32,
    pub has_ts: bool,
    /// The SYN-ACK is still withheld.
    pub held_synack: bool,
}

/// A connection older than its gate: a promoted replica knows it from its repair,
/// and its SYN-ACK will never pass the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    pub record: ConnRecord,
    /// Oldest byte that the client has not acknowledged, next byte to send.
    pub snd_una: SeqNo,
    pub snd_nxt: SeqNo,
    /// Next byte of the client's stream; what lies before it is acknowledged, and so
    /// stable.
    pub rcv_nxt: SeqNo,
    /// Largest right edge told to the client.
    pub right_edge: SeqNo,
    /// The last timestamps sent; meaningless unless the record has one.
    pub tsval: u32,
    pub tsecr: u32,
    /// Whether the server has closed: its FIN may leave, or has left.
    pub fin_allowed: bool,
}

impl SlotView {
    /// The ACK that is owed to the client because the gate held it back, or
    /// `None`. The backup may hold what the server's kernel lacks (a packet lost
    /// between the edge and this host): that must not be acknowledged, for the
    /// client would never send it again.
    #[must_use]
    pub fn owed_ack(&self) -> Option<SeqNo> {
        let both = if self.stable.after(self.rcv_nxt) { self.rcv_nxt } else { self.stable };
        both.after(self.last_ack).then_some(both)
    }

    /// The segment that sends the owed ACK: `ack`, with the right edge
    /// unchanged.
    #[must_use]
    pub fn acknowledgement(&self, ack: SeqNo) -> TcpSegment<'static> {
        let shift = if self.rcv_wscale > 14 { 0 } else { self.rcv_wscale };
        let window = self.right_edge.since(ack).max(0) as u32 >> shift;
        TcpSegment {
            key: self.key,
            to_client: true,
            seq: self.snd_nxt,
            ack,
            flags: Flags::ACK,
            window: window.min(65535) as u16,
            options: TcpOptions {
                timestamps: self.has_ts.then_some((self.tsval, self.tsecr)),
                ..TcpOptions::default()
            },
            payload: &[],
        }
    }
}
