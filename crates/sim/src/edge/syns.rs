//! What the edge caches for an outage (HALR), by default of a pair: SYNs, from the time when its
//! current member is suspected. This is the host of the shipped machine; the programs that copy
//! (`bpf/recover.h`) go on without the daemon.

use super::EdgeDaemon;
use crate::packet::{ACK, Packet};
use crate::plan::Mutation;
use crate::world::World;
use holdfast_edge::{
    Direction, Halr, HalrConfig, HalrHost, HalrLimits, Inline, Intake, Keeps, Passing, Resend,
};
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::Flags;
use std::collections::VecDeque;
use std::convert::Infallible;

/// Most copies that wait for the daemon; further ones are lost.
const RING_MAX: usize = 1024;
/// Bytes that a cached SYN takes.
const PLACE: u32 = 128;

/// The programs, and what they have copied.
#[derive(Debug, Default)]
pub struct Copies {
    on: bool,
    ring: VecDeque<(Direction, Packet)>,
}

impl Copies {
    /// `recover_see`.
    pub fn see(&mut self, direction: Direction, packet: &Packet) {
        let wanted = packet.flags.0 & (Flags::SYN | Flags::RST).0 != 0;
        if self.on && wanted && self.ring.len() < RING_MAX {
            self.ring.push_back((direction, packet.clone()));
        }
    }

    /// Forgets everything: the host was started again.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

/// An empty cache for a daemon.
pub fn cache() -> Halr<World> {
    let config = HalrConfig::shipped(Keeps::Syns, false, &HalrLimits::STANDARD);
    Halr::new(config, Inline::default())
}

impl World {
    /// Lets the daemon's cache act upon the world, at the time of the edge's clock.
    pub fn at_cache<R>(
        &mut self,
        act: impl FnOnce(&mut Halr<Self>, u64, &mut Self) -> R,
    ) -> Option<R> {
        let now = self.edge_time().0;
        let mut cache = self.edge.daemon.as_mut()?.cache.take()?;
        let result = act(&mut cache, now, self);
        if let Some(daemon) = &mut self.edge.daemon {
            daemon.cache = Some(cache);
        }
        Some(result)
    }
}

impl EdgeDaemon {
    /// When the cache is due, by the edge's clock.
    pub fn cache_timeout(&self) -> Option<u64> {
        self.cache.as_ref()?.poll_timeout()
    }
}

impl HalrHost for World {
    type Key = ConnKey;
    /// A packet is stored as its number: every client's packet has one.
    type PacketStore = Inline<u64>;
    type Held = Infallible;
    type Error = Infallible;
    const DRAINS_MAX: usize = 1;

    fn set_copying(&mut self, on: bool) -> Result<(), Infallible> {
        self.edge.copies = Copies { on, ring: VecDeque::new() };
        Ok(())
    }

    fn drain(&mut self, now: u64, intake: &mut Intake<Self>) -> bool {
        for (direction, p) in std::mem::take(&mut self.edge.copies.ring) {
            let passing = Passing {
                direction,
                seq: p.seq,
                end: p.seq_end(),
                ack: p.is(ACK).then_some(p.ack),
                is_syn: p.is(Flags::SYN),
                is_end: p.is(Flags::RST),
                is_last: p.is(Flags::FIN),
                sack: None,
                bytes: PLACE,
            };
            intake.cache.handle_packet(now, p.key, &passing, |_| Some(p.id));
        }
        true
    }

    fn hold(&mut self, _: u64) -> bool {
        false
    }

    fn release(&mut self) {}

    fn forward(&mut self, held: Infallible) {
        match held {}
    }

    fn resend(&mut self, _: &Inline<u64>, resend: &Resend<u64>) {
        let to = self.edge.daemon.as_ref().and_then(|daemon| daemon.resends_to);
        let packet = self.packets[resend.packet as usize].clone();
        if let Some(member) = to.filter(|_| self.plan.mutation != Some(Mutation::NeverResend)) {
            self.reached.syns_resent += 1;
            self.towards_member(member, packet, false);
        }
    }
}
