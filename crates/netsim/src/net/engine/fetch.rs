//! Prefetching for large simulations. They do not fit into a processor's cache, and each hop would
//! wait for memory several times. But the wheel knows which events come next, so what they touch is
//! fetched while others are handled.

use super::super::route::Step;
use super::{Event, Network};
use crate::Ns;
use prefetch_index::prefetch_index;

/// Number of events between two steps of fetching.
const APART: usize = 6;

/// Time in ns to a link's next exit below which the packet behind is prefetched, too.
const SOON: Ns = 1 << 16;

/// Number of events that must be known ahead.
pub(super) const AHEAD: usize = 4 * APART;

impl Network<'_> {
    /// Prefetches what the next events will touch, step by step: each step reads what the step
    /// before has fetched some events earlier.
    #[inline]
    pub(super) fn fetch(&self) {
        match self.wheel.peek(AHEAD) {
            Some(Event::Exit(link)) => prefetch_index(&self.links, link as usize),
            Some(Event::SenderTimer(flow)) => prefetch_index(&self.sources, flow as usize),
            Some(Event::ReceiverTimer(flow)) => prefetch_index(&self.sinks, flow as usize),
            _ => {}
        }
        if let Some(Event::Exit(link)) = self.wheel.peek(3 * APART) {
            self.packets.prefetch(self.links[link as usize].first());
        }
        if let Some(Event::Exit(link)) = self.wheel.peek(2 * APART) {
            self.fetch_target(self.links[link as usize].first());
        }
        if let Some(Event::Exit(link)) = self.wheel.peek(APART) {
            self.fetch_source(self.links[link as usize].first());
        }
    }

    /// Prefetches the packet that comes out of a link next, after `wait`: it may be too near to be
    /// fetched in steps.
    #[inline]
    pub(super) fn fetch_first(&self, link: u32, wait: Ns) {
        let first = self.links[link as usize].first();
        self.packets.prefetch(first);
        if wait < SOON {
            self.packets.prefetch(self.packets.behind(first).0);
            self.fetch_target(first);
        }
    }

    /// Prefetches the rest of the source that a packet goes to.
    #[inline]
    fn fetch_source(&self, packet: u32) {
        let is_last = self.packets.place(packet).1 == Step::END;
        if is_last && !self.packets.is_forward(packet) {
            self.sources[self.packets.flow(packet) as usize].sender.fetch();
        }
    }

    /// Prefetches what a packet's next step touches.
    #[inline]
    fn fetch_target(&self, packet: u32) {
        let step = self.packets.place(packet).1;
        if step != Step::END {
            // Strings and edges are few, so their data is in the cache anyway.
            prefetch_index(&self.links, step.number() as usize);
        } else {
            let flow = self.packets.flow(packet) as usize;
            let [data, answers] = self.departures[flow];
            if self.packets.is_forward(packet) {
                prefetch_index(&self.sinks, flow);
                prefetch_index(&self.links, answers.number() as usize);
            } else {
                prefetch_index(&self.sources, flow);
                prefetch_index(&self.links, data.number() as usize);
            }
        }
    }
}
