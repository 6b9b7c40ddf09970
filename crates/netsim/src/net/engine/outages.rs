//! Outages, and what the machines of a switch do about them.

use super::super::scenario::{Hop, Scenario};
use super::{Event, NEVER, Network};

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
            // The alert reaches the rate control at once (thesis §6.2).
            if let Some(control) = &mut switch.rate_control {
                control.handle_failure(self.now);
            }
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
            if let Some(recovery) = &mut self.switches[number].recovery {
                recovery.handle_restored(self.now);
            }
            self.resend(number);
        }
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
            if let Some(control) = &mut switch.rate_control {
                control.handle_repair();
            }
        }
    }

    fn move_flows(&mut self, switch: u32, string: u32) {
        for index in 0..self.flows.len() {
            if self.is_active_on(index, switch, string) {
                self.strings[index] = self.switches[switch as usize].assign(None);
            }
        }
    }

    /// Has the flow begun and not ended, and is it on this string of a switch?
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
        if let Some(control) = &mut switch.rate_control {
            control.handle_timeout(self.now);
        }
        self.resend(index as usize);
        self.arm_switches();
    }

    fn resend(&mut self, number: usize) {
        while let Some(recovery) = &mut self.switches[number].recovery {
            let Some(resend) = recovery.poll_resend(self.now) else {
                return;
            };
            // It was kept behind the edge's place on its path.
            let packet = resend.packet;
            self.send(&packet);
        }
    }

    fn arm_switches(&mut self) {
        for (number, switch) in self.switches.iter_mut().enumerate() {
            let Some(at) = switch.poll_timeout() else {
                continue;
            };
            // A controller that nobody needs any more must not keep the run alive.
            if at <= self.scenario.end_ns && switch.armed.is_none_or(|armed| at < armed) {
                switch.armed = Some(at.max(self.now));
                self.wheel.push(at, Event::SwitchTimer(number as u32));
            }
        }
    }
}

fn crosses(scenario: &Scenario, path: u32, switch: u32) -> bool {
    let through = |hop: &Hop| matches!(hop, Hop::String { switch: it, .. } if *it == switch);
    scenario.paths[path as usize].forward.iter().any(through)
}
