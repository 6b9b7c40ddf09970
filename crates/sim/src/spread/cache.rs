//! The host of HALR's machine in front of host servers: copies of SYNs from the
//! redirector, and an interface by which they are re-injected.

use super::packet::{Packet, Tuple};
use super::redirector::Copied;
use crate::Ns;
use holdfast_edge::{
    Direction, Halr, HalrConfig, HalrHost, HalrLimits, Intake, Keeps, Passing, Recovery, Resend,
    Slabs, Slot,
};
use holdfast_wire::seq::SeqNo;
use std::collections::VecDeque;
use std::convert::Infallible;

/// Most copies that are handled in one call.
const SHARE: usize = 64;

/// The machine's host: its requests to the redirector, and the redirector's copies.
#[derive(Default)]
pub struct Copies {
    pub copying: bool,
    pub ring: VecDeque<Copied>,
    pub lost: u64,
    /// Packets to be re-injected.
    pub inlet: Vec<Packet>,
}

impl HalrHost for Copies {
    type Key = Tuple;
    type PacketStore = Slabs;
    type Held = ();
    type Error = Infallible;
    const DRAINS_MAX: usize = 64;

    fn set_copying(&mut self, on: bool) -> Result<(), Infallible> {
        self.copying = on;
        if !on {
            self.ring.clear();
        }
        Ok(())
    }

    fn drain(&mut self, now: Ns, intake: &mut Intake<Self>) -> bool {
        for _ in 0..SHARE {
            match self.ring.pop_front() {
                None => return true,
                Some(Copied::Opened(conn)) => intake.cache.forget(conn.tuple),
                Some(Copied::Syn { packet, slot }) => {
                    let bytes = packet.encode();
                    let place = Slabs::footprint(bytes.len()).unwrap_or(bytes.len());
                    let passing = passing(&packet, place);
                    let key = packet.conn.tuple;
                    intake.cache.handle_packet(now, key, &passing, |slabs| {
                        slabs.put(&bytes, u16::from(slot))
                    });
                }
            }
        }
        self.ring.is_empty()
    }

    fn hold(&mut self, _at_most_ns: Ns) -> bool {
        false
    }

    fn lost(&mut self) -> u64 {
        self.lost
    }

    fn release(&mut self) {}

    fn forward(&mut self, (): ()) {}

    fn resend(&mut self, shelf: &Slabs, resend: &Resend<Slot>) {
        self.inlet.push(Packet::decode(shelf.get(resend.packet)));
    }
}

fn passing(packet: &Packet, place: usize) -> Passing {
    let seq = SeqNo(packet.conn.isn);
    Passing {
        direction: Direction::IntoCluster,
        seq,
        end: seq.plus(1),
        ack: None,
        is_syn: true,
        is_end: false,
        is_last: false,
        sack: None,
        bytes: (place + Recovery::<Tuple, Slabs>::packet_overhead_bytes()) as u32,
    }
}

/// The cache as shipped in front of host servers.
pub fn shipped(limits: &HalrLimits, always: bool) -> Halr<Copies> {
    let config = HalrConfig::in_front_of_host_servers(Keeps::Syns, always, limits);
    Halr::new(config, Slabs::new(config.slabs_bytes()))
}
