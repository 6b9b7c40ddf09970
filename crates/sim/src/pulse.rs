//! The datagrams beside the channels (`daemon/pulse.rs`): each daemon sends one to every
//! other in each period, of its own accord, and notes when it last heard one. Nothing
//! repeats them, and nothing holds them up. Some networks let none through.

use crate::Ns;
use crate::member::{Daemon, HEARTBEAT};
use crate::world::{EDGE, Event, World};
use holdfast_cluster::Nanos;
use holdfast_member::edge::EdgeMachine;

/// When each host last heard each other one, as its own clock shows it.
pub type Heard = [[Option<Ns>; 3]; 3];

impl World {
    pub fn pulses_start(&mut self) {
        let hosts = if self.plan.pulses { 3 } else { 0 };
        for host in 0..hosts {
            // Nobody began at the same time as another.
            self.schedule(HEARTBEAT * (host as Ns + 1) / 4, Event::Pulse(host));
        }
    }

    /// It is time for a host's daemon to say that it lives.
    pub fn pulse(&mut self, from: usize) {
        self.schedule(HEARTBEAT, Event::Pulse(from));
        if !self.has_daemon(from) {
            return;
        }
        for to in (0..3).filter(|to| *to != from) {
            if self.has_daemon(to) && !self.links.is_cut(from, to) {
                self.heard[to][from] = Some(self.time_at(to));
            }
        }
    }

    fn has_daemon(&self, host: usize) -> bool {
        let runs = match host {
            EDGE => self.edge.daemon.is_some(),
            member => self.hosts[member].daemon.is_some(),
        };
        let host = &self.hosts[host];
        runs && host.alive && host.frozen.is_none()
    }

    /// A new life of a daemon has heard nobody.
    pub fn pulses_forget(&mut self, host: usize) {
        self.heard[host] = [None; 3];
    }

    pub fn feel_pulses(&mut self, d: &mut Daemon) {
        let heard = &mut self.heard[d.at];
        if let Some(at) = heard[EDGE].take() {
            d.member.watch.handle_edge(Nanos(at));
        }
        if let Some(at) = heard[1 - d.at].take() {
            d.member.watch.handle_received(Nanos(at));
        }
    }

    pub fn edge_feels_pulses(&mut self, machine: &mut EdgeMachine) {
        for member in 0..2 {
            if let Some(at) = self.heard[EDGE][member].take() {
                machine.handle_pulse(member, Nanos(at));
            }
        }
    }
}
