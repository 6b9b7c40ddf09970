//! A client's segment that outlives the packet it came in.

use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::TcpPacket;

/// An owned segment; see the module.
#[derive(Clone, Debug)]
pub(crate) struct OwnedSegment {
    fields: TcpPacket<'static>,
    payload: Vec<u8>,
    raw: Vec<u8>,
}

impl OwnedSegment {
    pub(crate) fn new(segment: &TcpPacket<'_>) -> Self {
        Self {
            fields: TcpPacket { payload: &[], raw: &[], ..*segment },
            payload: segment.payload.to_vec(),
            raw: segment.raw.to_vec(),
        }
    }

    pub(crate) fn view(&self) -> TcpPacket<'_> {
        TcpPacket { payload: &self.payload, raw: &self.raw, ..self.fields }
    }

    pub(crate) fn key(&self) -> ConnKey {
        self.fields.client_to_server_key()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.payload.len() + self.raw.len() + size_of::<Self>()
    }

    pub(crate) fn into_raw(self) -> Vec<u8> {
        self.raw
    }
}
