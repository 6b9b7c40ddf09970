//! The host of the recovery's machine: copies packets at a switch, holds acknowledgements and
//! resends, as eBPF programs do on the wire.

use super::packet::{Kind, Packet};
use crate::Ns;
use holdfast_edge::{Direction, HalrHost, Inline, Intake, Passing, Resend};
use holdfast_wire::seq::SeqNo;
use std::collections::VecDeque;
use std::convert::Infallible;

/// Bytes of the headers below IP, as the thesis counts cached packets (1514 for 1500).
const ETHERNET_BYTES: u32 = 14;
/// Bytes of the smallest frame.
const FRAME_BYTES_MIN: u32 = 64;

/// The data path of a switch with local recovery.
#[derive(Default)]
pub(super) struct DataPath {
    copying: bool,
    /// The packet that passes now, which does not wait in a queue for the machine.
    passes: Option<Passes>,
    now: Ns,
    /// Time until which acknowledgements are held.
    held_until: Ns,
    sent: VecDeque<Packet>,
}

struct Passes {
    packet: Packet,
    sack: bool,
    is_held: bool,
}

impl DataPath {
    /// Lets a packet pass; returns whether it goes on.
    pub(super) fn pass(&mut self, now: Ns, packet: &Packet, sack: bool) -> bool {
        self.now = now;
        let is_held = now < self.held_until && packet.kind == Kind::Ack;
        if self.copying {
            self.passes = Some(Passes { packet: *packet, sack, is_held });
        }
        !(self.copying && is_held)
    }

    /// This data path at the time `now`.
    pub(super) fn at(&mut self, now: Ns) -> &mut Self {
        self.now = now;
        self
    }

    /// The next packet that is resent or released.
    pub(super) fn poll_transmit(&mut self) -> Option<Packet> {
        self.sent.pop_front()
    }
}

impl HalrHost for DataPath {
    type Key = u32;
    type PacketStore = Inline<Packet>;
    type Held = Packet;
    type Error = Infallible;
    const DRAINS_MAX: usize = 0;

    fn set_copying(&mut self, on: bool) -> Result<(), Infallible> {
        self.copying = on;
        Ok(())
    }

    fn drain(&mut self, now: Ns, intake: &mut Intake<Self>) -> bool {
        if let Some(Passes { packet, sack, is_held }) = self.passes.take() {
            if is_held {
                intake.hold(packet);
            }
            let passing = passing(&packet, sack);
            intake.cache.handle_packet(now, packet.flow, &passing, |_| Some(packet));
        }
        true
    }

    fn hold(&mut self, at_most_ns: Ns) -> bool {
        self.held_until = self.now + at_most_ns;
        true
    }

    fn release(&mut self) {
        self.held_until = 0;
    }

    fn forward(&mut self, packet: Packet) {
        self.sent.push_back(packet);
    }

    fn resend(&mut self, _: &Inline<Packet>, resend: &Resend<Packet>) {
        self.sent.push_back(resend.packet);
    }
}

/// A packet as the recovery machine sees it.
fn passing(packet: &Packet, sack: bool) -> Passing {
    let forward = packet.is_forward();
    let length = u64::from(forward);
    Passing {
        direction: if forward { Direction::IntoCluster } else { Direction::OutOfCluster },
        seq: SeqNo(packet.seq),
        end: SeqNo(packet.seq).plus(length),
        ack: (!forward).then_some(SeqNo(packet.ack)),
        is_syn: packet.kind == Kind::Syn,
        is_end: false,
        is_last: false,
        sack: Some(sack),
        bytes: (u32::from(packet.bytes) + ETHERNET_BYTES).max(FRAME_BYTES_MIN),
    }
}
