//! A balancing switch: deals flows out among parallel strings, and moves them
//! when one has failed.

use super::packet::{Kind, Packet};
use super::scenario::SwitchSpec;
use crate::Ns;
use holdfast_edge::{Direction, Loose, Passing, RateController, Recovery};
use holdfast_wire::seq::SeqNo;

/// Headers below IP, as the thesis counts cached packets (1514 for 1500).
const ETHERNET_BYTES: u32 = 14;
/// The smallest frame.
const FRAME_BYTES_MIN: u32 = 64;

pub(super) struct Switch {
    pub(super) spec: SwitchSpec,
    up: Vec<bool>,
    /// Flows dealt to each string, in units of its share.
    load: Vec<u64>,
    pub(super) recovery: Option<Recovery<u32, Loose<Packet>>>,
    pub(super) rate_control: Option<RateController<u32>>,
    /// When its machines want to be called, as far as that is scheduled.
    pub(super) armed: Option<Ns>,
}

impl Switch {
    pub(super) fn new(spec: &SwitchSpec) -> Self {
        Self {
            up: vec![true; spec.strings.len()],
            load: vec![0; spec.strings.len()],
            recovery: spec.recovery.map(|config| Recovery::new(config, Loose::default())),
            rate_control: spec.rate_control.map(RateController::new),
            armed: None,
            spec: spec.clone(),
        }
    }

    /// The string for a new flow: among those that are up, the one that is
    /// furthest below its share.
    pub(super) fn assign(&mut self, wish: Option<u32>) -> u32 {
        let wish = wish.filter(|it| self.up.get(*it as usize) == Some(&true));
        let fair = (0..self.load.len()).filter(|it| self.up[*it]).min_by_key(|it| self.load[*it]);
        let string = wish.map(|it| it as usize).or(fair).unwrap_or(0);
        if let Some(load) = self.load.get_mut(string) {
            // Weights are small; this many units divide evenly enough.
            *load += 720_720 / u64::from(self.spec.strings[string].weight.max(1));
        }
        string as u32
    }

    pub(super) fn set_up(&mut self, string: u32, up: bool) {
        if let Some(it) = self.up.get_mut(string as usize) {
            *it = up;
        }
    }

    /// A packet passes the edge's machines, which may reduce its window.
    pub(super) fn pass(&mut self, now: Ns, packet: &mut Packet, sack: bool, segment_bytes: u32) {
        if let Some(control) = &mut self.rate_control {
            if packet.is_forward() {
                control.handle_data(packet.flow, u32::from(packet.bytes));
            } else {
                // Windows are whole segments here, bytes there.
                let window = packet.window.saturating_mul(segment_bytes);
                let ack = SeqNo(packet.ack.wrapping_mul(segment_bytes));
                packet.window = control.handle_ack(packet.flow, ack, window) / segment_bytes;
            }
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.handle_packet(now, packet.flow, &passing(packet, sack), |_| Some(*packet));
        }
    }

    /// The flow has ended.
    pub(super) fn forget(&mut self, flow: u32) {
        if let Some(control) = &mut self.rate_control {
            control.forget(flow);
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.forget(flow);
        }
    }

    /// When its machines want to be called.
    pub(super) fn poll_timeout(&self) -> Option<Ns> {
        let control = self.rate_control.as_ref().and_then(RateController::poll_timeout);
        let recovery = self.recovery.as_ref().and_then(Recovery::poll_timeout);
        control.into_iter().chain(recovery).min()
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
