//! A balancing switch: distributes flows over parallel strings, and moves them when a string has
//! failed.

use super::data_path::DataPath;
use super::packet::Packet;
use super::scenario::SwitchSpec;
use crate::Ns;
use holdfast_edge::{
    Flows, Halr, HalrConfig, Inline, Pfrc, PfrcConfig, PfrcCounts, RecoveryCounts,
};
use holdfast_wire::seq::SeqNo;

pub(super) struct Switch {
    pub(super) spec: SwitchSpec,
    up: Vec<bool>,
    /// Flows assigned to each string, in units of its share.
    load: Vec<u64>,
    recovery: Option<Recoverer>,
    rate_control: Option<Regulator>,
    /// Number of outages that the switch suspects now.
    pub(super) doubts: u32,
    /// Time for which a call of its machines is scheduled, if one is.
    pub(super) armed: Option<Ns>,
}

/// The machine of local recovery, and its host.
struct Recoverer {
    machine: Halr<DataPath>,
    path: DataPath,
}

/// The machine of rate control, and its host.
struct Regulator {
    machine: Pfrc,
    flows: Flows<u32>,
    capacity_bytes_per_s: u64,
}

impl Switch {
    pub(super) fn new(spec: &SwitchSpec) -> Self {
        Self {
            up: vec![true; spec.strings.len()],
            load: vec![0; spec.strings.len()],
            recovery: spec.recovery.map(Recoverer::new),
            rate_control: spec.rate_control.as_ref().map(Regulator::new),
            doubts: 0,
            armed: None,
            spec: spec.clone(),
        }
    }

    /// The string for a new flow: of those that are up, the one furthest below its share.
    pub(super) fn assign(&mut self, wish: Option<u32>) -> u32 {
        let wish = wish.filter(|it| self.up.get(*it as usize) == Some(&true));
        let fair = (0..self.load.len()).filter(|it| self.up[*it]).min_by_key(|it| self.load[*it]);
        let string = wish.map(|it| it as usize).or(fair).unwrap_or(0);
        if let Some(load) = self.load.get_mut(string) {
            // This many units can be divided evenly by small weights.
            *load += 720_720 / u64::from(self.spec.strings[string].weight.max(1));
        }
        string as u32
    }

    pub(super) fn set_up(&mut self, string: u32, up: bool) {
        if let Some(it) = self.up.get_mut(string as usize) {
            *it = up;
        }
    }

    /// Lets a packet pass the edge's machines, which may reduce its window; returns whether it goes
    /// on now.
    pub(super) fn pass(
        &mut self,
        now: Ns,
        packet: &mut Packet,
        sack: bool,
        segment_bytes: u32,
    ) -> bool {
        if let Some(Regulator { flows, .. }) = &mut self.rate_control {
            if packet.is_forward() {
                flows.handle_data(packet.flow, u32::from(packet.bytes));
            } else {
                // Windows are in segments here, and in bytes in the machine.
                let window = packet.window.saturating_mul(segment_bytes);
                let ack = SeqNo(packet.ack.wrapping_mul(segment_bytes));
                packet.window = flows.handle_ack(packet.flow, ack, window) / segment_bytes;
            }
        }
        let Some(Recoverer { machine, path }) = &mut self.recovery else { return true };
        let goes_on = path.pass(now, packet, sack);
        machine.handle_copies(now, path);
        goes_on
    }

    /// Forgets a flow that has ended.
    pub(super) fn forget(&mut self, flow: u32) {
        if let Some(Regulator { flows, .. }) = &mut self.rate_control {
            flows.forget(flow);
        }
        if let Some(Recoverer { machine, .. }) = &mut self.recovery {
            machine.forget(flow);
        }
    }

    /// Notes that capacity is lost. The alert reaches the rate control at once
    /// (thesis §6.2).
    pub(super) fn handle_failure(&mut self, now: Ns) {
        if let Some(Regulator { machine, flows, capacity_bytes_per_s }) = &mut self.rate_control
            && !machine.is_on()
        {
            let Ok(()) = machine.handle_failure(now, *capacity_bytes_per_s, flows.len(), flows);
        }
    }

    /// Notes that capacity is back.
    pub(super) fn handle_repair(&mut self) {
        if let Some(Regulator { machine, flows, .. }) = &mut self.rate_control {
            let Ok(_was_on) = machine.handle_repair(flows);
        }
    }

    /// Notes that an outage is suspected: packets that pass may be lost.
    pub(super) fn handle_suspected(&mut self, now: Ns) {
        self.doubts += 1;
        if let Some(Recoverer { machine, path }) = &mut self.recovery {
            let Ok(_began) = machine.handle_suspected(now, path.at(now));
        }
    }

    /// Notes that there is a path again for packets of flows that were lost since the time that
    /// `lost_since` gives.
    pub(super) fn handle_restored(&mut self, now: Ns, lost_since: impl Fn(&Packet) -> Option<Ns>) {
        if let Some(Recoverer { machine, path }) = &mut self.recovery {
            machine.handle_restored(now, lost_since, path.at(now));
        }
    }

    /// Calls its machines if they are due.
    pub(super) fn handle_timeout(&mut self, now: Ns) {
        if let Some(Regulator { machine, flows, .. }) = &mut self.rate_control {
            let Ok(()) = machine.handle_timeout(now, flows);
        }
        if let Some(Recoverer { machine, path }) = &mut self.recovery {
            machine.handle_timeout(now, path.at(now));
            if self.doubts == 0 {
                let Ok(_ended) = machine.handle_trusted(path);
            }
        }
    }

    /// The next packet that its local recovery sends, with its place behind the edge on its path.
    pub(super) fn poll_transmit(&mut self) -> Option<Packet> {
        self.recovery.as_mut()?.path.poll_transmit()
    }

    /// Whether a packet that passes may make its machines due sooner.
    pub(super) fn is_resending(&self) -> bool {
        self.recovery.as_ref().is_some_and(|it| it.machine.is_resending())
    }

    /// When its machines are due.
    pub(super) fn poll_timeout(&self) -> Option<Ns> {
        let control = self.rate_control.as_ref().and_then(|it| it.machine.poll_timeout());
        let recovery = self.recovery.as_ref().and_then(|it| it.machine.poll_timeout());
        control.into_iter().chain(recovery).min()
    }

    /// Counts of its local recovery, if it has it.
    pub(super) fn recovered(&self) -> Option<RecoveryCounts> {
        self.recovery.as_ref().map(|it| it.machine.cache().counts())
    }

    /// Counts of its rate control, if it has it.
    pub(super) fn regulated(&self) -> Option<PfrcCounts> {
        self.rate_control.as_ref().map(|it| it.flows.counts())
    }
}

impl Recoverer {
    fn new(config: HalrConfig) -> Self {
        let mut path = DataPath::default();
        let mut machine = Halr::new(config, Inline::default());
        let Ok(()) = machine.handle_start(0, &mut path);
        Self { machine, path }
    }
}

impl Regulator {
    fn new(config: &PfrcConfig) -> Self {
        let capacity_bytes_per_s = config.capacity_bytes_per_s;
        Self { machine: Pfrc::new(*config), flows: Flows::new(config), capacity_bytes_per_s }
    }
}
