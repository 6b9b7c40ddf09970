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
    /// The server asked for its end.
    pub ending: bool,
    /// Since when the kernel has been done with it.
    pub over: Option<Nanos>,
    pub told: Option<ConnProgress>,
    /// The client has acknowledged up to here, as the kernel says; the gate hears of that
    /// only when the server sends something more.
    pub acked: Option<SeqNo>,
}

impl Conn {
    pub(super) fn new(socket: u64, record: ConnRecord, opened: Nanos) -> Self {
        let key = record.key;
        Self { key, socket, record, opened, ending: false, over: None, told: None, acked: None }
    }
}
