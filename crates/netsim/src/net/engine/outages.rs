//! Outages, and the reactions of a switch's machines.

use super::super::packet::Packet;
use super::super::scenario::{Alert, Hop, Scenario};
use super::{Event, NEVER, Network};
use crate::Ns;

/// Number of missing heartbeats at which an outage is suspected (HALR §3.3).
const SUSPECT_AFTER: Ns = 2;

impl Network<'_> {
    fn outage_links(&self, index: u32) -> Vec<u32> {
        let outage = &self.scenario.outages[index as usize];
        let mut links = outage.links.clone();
        if let Some((switch, string)) = outage.string {
            let string = &self.scenario.switches[switch as usize].strings[string as usize];
            links.extend(string.forward.iter().chain(&string.back));
        }
        links
    }

    pub(super) fn outage_begins(&mut self, index: u32) {
        let outage = &self.scenario.outages[index as usize];
        for link in self.outage_links(index) {
            self.links[link as usize].down += 1;
            self.cut[link as usize] = outage.cut;
        }
        for (number, switch) in self.switches.iter_mut().enumerate() {
            if let Some((_, string)) = outage.string.filter(|it| it.0 as usize == number) {
                switch.set_up(string, false);
            }
            switch.handle_failure(self.now);
        }
        if let Some((switch, string)) = outage.string {
            for index in 0..self.flows.len() {
                self.flows[index].moved |= self.is_active_on(index, switch, string);
            }
        }
        self.arm_switches();
    }

    pub(super) fn outage_ends(&mut self, index: u32) {
        let outage = &self.scenario.outages[index as usize];
        match outage.string {
            Some((switch, string)) if outage.moves_flows => self.move_flows(switch, string),
            _ => self.restore(index),
        }
        for number in 0..self.switches.len() {
            if self.switches[number].spec.alert == Alert::Told {
                let now = self.now;
                self.switches[number].handle_restored(now, |_| Some(now));
            }
            self.transmit(number);
        }
        self.arm_switches();
    }

    /// Schedules the times at which edges that hear heartbeats learn of the outages.
    pub(super) fn schedule_heartbeats(&mut self) {
        for doubt in 0..self.switches.len() * self.scenario.outages.len() {
            let (switch, outage) = self.doubt(doubt as u32);
            let Alert::Heartbeats(period) = self.switches[switch].spec.alert else { continue };
            let outage = &self.scenario.outages[outage];
            let suspects = outage.from_ns / period * period + SUSPECT_AFTER * period;
            // If flows are moved, the edge itself has ended the outage.
            let is_moved = outage.string.is_some() && outage.moves_flows;
            let heard = outage.until_ns.div_ceil(period) * period;
            let back = if is_moved { outage.until_ns } else { heard };
            // An outage that swallows no two heartbeats in a row is not noticed.
            if suspects < back {
                self.wheel.push(suspects, Event::Suspects(doubt as u32));
                self.wheel.push(back, Event::Restored(doubt as u32));
            }
        }
    }

    /// The switch and the outage of a doubt, by number.
    fn doubt(&self, doubt: u32) -> (usize, usize) {
        let outages = self.scenario.outages.len();
        (doubt as usize / outages, doubt as usize % outages)
    }

    pub(super) fn suspects(&mut self, doubt: u32) {
        let (switch, _) = self.doubt(doubt);
        self.switches[switch].handle_suspected(self.now);
        self.arm_switches();
    }

    pub(super) fn restored(&mut self, doubt: u32) {
        let (number, outage) = self.doubt(doubt);
        let outage = &self.scenario.outages[outage];
        let Alert::Heartbeats(period) = self.switches[number].spec.alert else { return };
        let sound = outage.from_ns / period * period;
        let Self { switches, flows, strings, now, .. } = self;
        let lost_since = |packet: &Packet| {
            let flow = packet.flow as usize;
            let is_lost =
                outage.string.is_none_or(|(_, it)| flows[flow].moved || strings[flow] == it);
            is_lost.then_some(sound)
        };
        switches[number].doubts -= 1;
        switches[number].handle_restored(*now, lost_since);
        self.transmit(number);
        self.arm_switches();
    }

    fn restore(&mut self, index: u32) {
        for link in self.outage_links(index) {
            self.links[link as usize].down -= 1;
        }
        if let Some((switch, string)) = self.scenario.outages[index as usize].string {
            self.switches[switch as usize].set_up(string, true);
        }
        for switch in &mut self.switches {
            switch.handle_repair();
        }
    }

    fn move_flows(&mut self, switch: u32, string: u32) {
        for index in 0..self.flows.len() {
            if self.is_active_on(index, switch, string) {
                self.strings[index] = self.switches[switch as usize].assign(None);
            }
        }
    }

    /// Whether the flow has begun and not ended, and uses this string of a switch.
    fn is_active_on(&self, index: usize, switch: u32, string: u32) -> bool {
        let flow = &self.flows[index];
        flow.start_ns <= self.now
            && self.sources[index].finished_ns == NEVER
            && self.strings[index] == string
            && crosses(self.scenario, flow.path, switch)
    }

    pub(super) fn switch_timer(&mut self, index: u32) {
        let switch = &mut self.switches[index as usize];
        if switch.armed != Some(self.now) {
            return;
        }
        switch.armed = None;
        switch.handle_timeout(self.now);
        self.transmit(index as usize);
        self.arm_switches();
    }

    /// Sends the packets that a switch's machine resends.
    pub(super) fn transmit(&mut self, number: usize) {
        while let Some(packet) = self.switches[number].poll_transmit() {
            self.send(&packet);
        }
    }

    pub(super) fn arm_switches(&mut self) {
        for (number, switch) in self.switches.iter_mut().enumerate() {
            let Some(at) = switch.poll_timeout().map(|at| at.max(self.now)) else {
                continue;
            };
            // A controller that is no longer needed must not keep the run alive.
            if at <= self.scenario.end_ns && switch.armed.is_none_or(|armed| at < armed) {
                switch.armed = Some(at);
                self.wheel.push(at, Event::SwitchTimer(number as u32));
            }
        }
    }
}

fn crosses(scenario: &Scenario, path: u32, switch: u32) -> bool {
    let through = |hop: &Hop| matches!(hop, Hop::String { switch: it, .. } if *it == switch);
    scenario.paths[path as usize].forward.iter().any(through)
}
