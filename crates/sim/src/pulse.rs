//! The heartbeats in datagrams (`daemon/pulse.rs`): each daemon sends one to every other
//! daemon in each period, and notes when it last received one. Nothing retransmits or
//! delays them. Datagrams of a host that hears nobody do not count. Some networks let none
//! through.

use crate::Ns;
use crate::member::{Daemon, HEARTBEAT};
use crate::world::{EDGE, Event, World};
use holdfast_cluster::Nanos;
use holdfast_cluster::hearing::UNHEARD_MAX;
use holdfast_member::edge::EdgeMachine;

/// Which host has heard which: the first index is the receiver.
#[derive(Debug, Default)]
pub struct Pulses {
    /// When the last datagram that counts arrived, by the receiver's clock.
    heard: [[Option<Ns>; 3]; 3],
    /// Number of periods in which each host has sent.
    sent: [u64; 3],
    /// The number of the last datagram received.
    had: [[u64; 3]; 3],
}

impl World {
    pub fn pulses_start(&mut self) {
        let hosts = if self.plan.pulses { 3 } else { 0 };
        for host in 0..hosts {
            // No two hosts send at the same time.
            self.schedule(HEARTBEAT * (host as Ns + 1) / 4, Event::Pulse(host));
        }
    }

    /// Sends the datagrams of a host's daemon, if it runs.
    pub fn pulse(&mut self, from: usize) {
        self.schedule(HEARTBEAT, Event::Pulse(from));
        if !self.has_daemon(from) {
            return;
        }
        self.pulses.sent[from] += 1;
        for to in (0..3).filter(|to| *to != from) {
            if !self.has_daemon(to) || self.links.is_cut(from, to) {
                continue;
            }
            let at = self.time_at(to);
            let Pulses { heard, sent, had } = &mut self.pulses;
            had[to][from] = sent[from];
            if sent[to] - had[from][to] <= UNHEARD_MAX {
                heard[to][from] = Some(at);
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

    /// A daemon that was started again has heard nobody.
    pub fn pulses_forget(&mut self, host: usize) {
        self.pulses.heard[host] = [None; 3];
        // Counting begins at the current numbers.
        self.pulses.had.iter_mut().for_each(|had| had[host] = self.pulses.sent[host]);
        self.pulses.had[host] = self.pulses.sent;
    }

    pub fn feel_pulses(&mut self, d: &mut Daemon) {
        let heard = &mut self.pulses.heard[d.at];
        if let Some(at) = heard[EDGE].take() {
            d.member.watch.handle_edge(Nanos(at));
        }
        if let Some(at) = heard[1 - d.at].take() {
            d.member.watch.handle_received(Nanos(at));
        }
    }

    pub fn edge_feels_pulses(&mut self, machine: &mut EdgeMachine) {
        for member in 0..2 {
            if let Some(at) = self.pulses.heard[EDGE][member].take() {
                machine.handle_pulse(member, Nanos(at));
            }
        }
    }
}
