//! A connection of the primary's.

use holdfast_cluster::Nanos;
use holdfast_wire::message::{ConnKey, ConnProgress, ConnRecord};
use holdfast_wire::seq::SeqNo;

/// A connection as the gate and the kernel have it.
#[derive(Debug)]
pub(super) struct Conn {
    pub key: ConnKey,
    /// The cookie of the kernel's socket.
    pub socket: u64,
    pub record: ConnRecord,
    pub opened: Nanos,
    /// Whether the server has asked for its end.
    pub ending: bool,
    /// Since when the kernel has been done with it.
    pub over: Option<Nanos>,
    pub told: Option<ConnProgress>,
    /// Position up to which the client has acknowledged, as the kernel says; the gate sees that
    /// only when the server sends more.
    pub acked: Option<SeqNo>,
}

impl Conn {
    pub(super) fn new(socket: u64, record: ConnRecord, opened: Nanos) -> Self {
        let key = record.key;
        Self { key, socket, record, opened, ending: false, over: None, told: None, acked: None }
    }

    /// What the server's clock shows the client by now, if it was last `sent` this; `None`: the
    /// connection has no timestamps. One that says nothing has a clock that goes on: in ms, from
    /// what it was when the connection came here.
    pub(super) fn tsval(&self, sent: u32, now: Nanos) -> Option<u32> {
        let goes_on = self.record.tsval?.wrapping_add(now.since(self.opened).as_ms() as u32);
        Some(if SeqNo(goes_on).after(SeqNo(sent)) { goes_on } else { sent })
    }
}
