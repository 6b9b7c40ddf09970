//! A client's TCP segment as the machines take it: the meaning of one packet,
//! parsed and checksum-checked by the caller.

use holdfast_wire::message::ConnKey;
use holdfast_wire::seq::SeqNo;

/// One segment from a client, borrowed from the capture ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapSegment<'a> {
    pub key: ConnKey,
    pub seq: SeqNo,
    /// Only meaningful with `ack_flag`.
    pub ack: SeqNo,
    pub syn: bool,
    pub ack_flag: bool,
    pub fin: bool,
    pub rst: bool,
    /// Window field as sent, not yet shifted.
    pub window: u16,
    pub tsval: Option<u32>,
    /// Options of a SYN.
    pub mss: Option<u16>,
    pub wscale: Option<u8>,
    pub sack_permitted: bool,
    pub payload: &'a [u8],
    /// The whole L3 packet with a complete checksum, kept for re-injection.
    pub raw: &'a [u8],
}

/// A segment that outlives the packet it came in.
#[derive(Clone, Debug)]
pub(crate) struct OwnedSegment {
    fields: TapSegment<'static>,
    payload: Vec<u8>,
    raw: Vec<u8>,
}

impl OwnedSegment {
    pub(crate) fn new(segment: &TapSegment<'_>) -> Self {
        Self {
            fields: TapSegment { payload: &[], raw: &[], ..*segment },
            payload: segment.payload.to_vec(),
            raw: segment.raw.to_vec(),
        }
    }

    pub(crate) fn view(&self) -> TapSegment<'_> {
        TapSegment { payload: &self.payload, raw: &self.raw, ..self.fields }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.payload.len() + self.raw.len() + size_of::<Self>()
    }

    pub(crate) fn into_raw(self) -> Vec<u8> {
        self.raw
    }
}
