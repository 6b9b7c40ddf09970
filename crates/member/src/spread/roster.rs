//! Who serves what: the announcements of the host servers, and their condition.
//! Knows no clock, no socket and no kernel; the machine carries out what it
//! says.

use super::Service;
use holdfast_edge::maglev::{self, Share};
use std::collections::{BTreeMap, BTreeSet};

/// Condition of a host server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Whether it is heard.
    pub alive: bool,
    /// Whether an operator wants it empty.
    pub draining: bool,
}

impl Condition {
    /// The condition in a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match (self.alive, self.draining) {
            (true, false) => "up",
            (true, true) => "draining",
            (false, _) => "dead",
        }
    }

    fn takes_new(self) -> bool {
        self.alive && !self.draining
    }
}

/// A host server's announcement about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Announcement {
    pub weight: u32,
    pub services: Vec<Service>,
    /// What determines its permutation: its tunnel addresses.
    pub identity: Vec<u8>,
}

#[derive(Debug, Default)]
struct Entry {
    condition: Condition,
    said: Announcement,
}

/// Announcements and conditions, by slot of the redirector.
#[derive(Debug, Default)]
pub struct Roster {
    hosts: BTreeMap<u8, Entry>,
    /// The shares from which each service's table was made.
    applied: BTreeMap<Service, Vec<(u8, u32)>>,
    /// Services whose tables an earlier life has made, from unknown shares.
    inherited: BTreeSet<Service>,
    /// Services that the redirector has refused, and why.
    refused: BTreeMap<Service, Refusal>,
}

#[derive(Debug)]
struct Refusal {
    why: String,
    /// Whether it may be tried again.
    again: bool,
}

/// A service that has to be redirected differently.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub service: Service,
    pub table: Vec<u8>,
    /// Slots that get new flows.
    pub members: Vec<u8>,
    shares: Vec<(u8, u32)>,
}

impl Roster {
    /// Notes an announcement; false if it says nothing new.
    pub(super) fn announce(&mut self, slot: u8, said: Announcement) -> bool {
        let entry = self.hosts.entry(slot).or_default();
        let news = entry.said != said || !entry.condition.alive;
        entry.said = said;
        entry.condition.alive = true;
        news
    }

    /// Notes whether a host server is heard; false if that is no news.
    pub(super) fn set_alive(&mut self, slot: u8, alive: bool) -> bool {
        let entry = self.hosts.entry(slot).or_default();
        std::mem::replace(&mut entry.condition.alive, alive) != alive
    }

    /// Notes whether a host server gets no new flows; false if that is no news.
    pub(super) fn set_draining(&mut self, slot: u8, draining: bool) -> bool {
        let entry = self.hosts.entry(slot).or_default();
        std::mem::replace(&mut entry.condition.draining, draining) != draining
    }

    /// Condition of the host server in this slot.
    #[must_use]
    pub fn condition(&self, slot: u8) -> Condition {
        self.hosts.get(&slot).map(|entry| entry.condition).unwrap_or_default()
    }

    /// Its share, as announced; 0 if it has announced nothing.
    #[must_use]
    pub fn weight(&self, slot: u8) -> u32 {
        self.hosts.get(&slot).map_or(0, |entry| entry.said.weight)
    }

    /// Notes a service that was redirected before this edge's daemon began.
    pub(super) fn inherit(&mut self, service: Service) {
        self.applied.entry(service).or_default();
        self.inherited.insert(service);
    }

    /// The known services, each with the slots that get its new flows.
    pub fn services(&self) -> impl Iterator<Item = (&Service, Vec<u8>)> {
        self.applied.iter().map(|(s, shares)| (s, shares.iter().map(|(slot, _)| *slot).collect()))
    }

    /// Changes to make in the kernel, listed until each is applied or refused. A
    /// service that nobody serves any more keeps an empty table, for its old
    /// flows.
    pub(super) fn changes(&mut self) -> Vec<Change> {
        let announced = self.hosts.values().flat_map(|entry| &entry.said.services);
        let known = self.applied.keys().chain(self.refused.keys());
        let mut services: Vec<Service> = announced.chain(known).copied().collect();
        services.sort_unstable();
        services.dedup();
        let mut changes = Vec::new();
        for service in services {
            let shares = self.shares(&service);
            let applied = self.applied.get(&service);
            // A service that was never redirected and that nobody serves needs
            // no table.
            let is_known = !self.inherited.contains(&service);
            if is_known && applied.map_or(shares.is_empty(), |applied| *applied == shares) {
                self.refused.remove(&service);
                continue;
            }
            if self.refused.get(&service).is_some_and(|refusal| !refusal.again) {
                continue;
            }
            let members = shares.iter().map(|(slot, _)| *slot).collect();
            changes.push(Change { service, table: self.table(&shares), members, shares });
        }
        changes
    }

    /// The kernel has made the change.
    pub(super) fn apply(&mut self, change: &Change) {
        self.refused.remove(&change.service);
        self.inherited.remove(&change.service);
        self.applied.insert(change.service, change.shares.clone());
    }

    /// The kernel has refused, and is not asked again before [`Roster::try_again`]; false
    /// if that is no news.
    pub(super) fn refuse(&mut self, service: Service, why: &str) -> bool {
        let refusal = Refusal { why: why.to_owned(), again: false };
        self.refused.insert(service, refusal).is_none_or(|before| before.why != why)
    }

    /// The kernel may have room by now for what it has refused.
    pub(super) fn try_again(&mut self) {
        self.refused.values_mut().for_each(|refusal| refusal.again = true);
    }

    /// A served service that is not redirected as it should be, and why.
    #[must_use]
    pub fn refused(&self) -> Option<(Service, &str)> {
        self.refused.iter().next().map(|(service, refusal)| (*service, refusal.why.as_str()))
    }

    /// Services that nobody serves, to be forgotten when their flows are.
    pub(super) fn unserved(&self) -> Vec<Service> {
        let empty = self.applied.iter().filter(|(_, shares)| shares.is_empty());
        empty.map(|(service, _)| *service).collect()
    }

    pub(super) fn forget(&mut self, service: &Service) {
        self.applied.remove(service);
        self.inherited.remove(service);
    }

    /// A host server that serves this, and gets no new flows only because an operator drains it.
    pub(super) fn drained(&self, service: &Service) -> Option<u8> {
        let mut hosts = self.hosts.iter();
        let is_drained = |condition: Condition| condition.alive && condition.draining;
        let (slot, _) = hosts.find(|(_, entry)| {
            is_drained(entry.condition) && entry.said.services.contains(service)
        })?;
        Some(*slot)
    }

    fn shares(&self, service: &Service) -> Vec<(u8, u32)> {
        let serving = self.hosts.iter().filter(|(_, entry)| {
            entry.condition.takes_new() && entry.said.services.contains(service)
        });
        serving.map(|(slot, entry)| (*slot, entry.said.weight)).collect()
    }

    fn table(&self, shares: &[(u8, u32)]) -> Vec<u8> {
        let share = |(slot, weight): &(u8, u32)| {
            let name = &self.hosts.get(slot)?.said.identity;
            Some(Share { number: *slot, name, weight: *weight })
        };
        maglev::table(&shares.iter().filter_map(share).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(port: u16) -> Service {
        Service { address: ([10, 9, 0, 100], port).into(), udp: false }
    }

    fn said(slot: u8, ports: &[u16]) -> Announcement {
        let services = ports.iter().map(|&port| service(port)).collect();
        Announcement { weight: 100, services, identity: vec![10, 9, 0, slot] }
    }

    fn members(roster: &mut Roster) -> Vec<(u16, Vec<u8>)> {
        let changes = roster.changes();
        changes.iter().for_each(|change| roster.apply(change));
        changes.into_iter().map(|c| (c.service.address.port(), c.members)).collect()
    }

    #[test]
    fn what_is_announced_is_served_and_what_is_withdrawn_is_not() {
        let mut roster = Roster::default();
        assert!(roster.announce(0, said(0, &[80])));
        assert!(!roster.announce(0, said(0, &[80])));
        assert_eq!(members(&mut roster), [(80, vec![0])]);
        assert_eq!(members(&mut roster), []);
        roster.announce(1, said(1, &[80, 443]));
        assert_eq!(members(&mut roster), [(80, vec![0, 1]), (443, vec![1])]);
        roster.announce(1, said(1, &[443]));
        assert_eq!(members(&mut roster), [(80, vec![0])]);
        roster.announce(0, said(0, &[]));
        assert_eq!(members(&mut roster), [(80, vec![])]);
        assert_eq!(roster.unserved(), [service(80)]);
        roster.forget(&service(80));
        assert_eq!(members(&mut roster), []);
    }

    #[test]
    fn the_dead_and_the_drained_get_nothing_new() {
        let mut roster = Roster::default();
        roster.announce(0, said(0, &[80]));
        roster.announce(1, said(1, &[80]));
        members(&mut roster);
        assert!(roster.set_alive(0, false));
        assert!(!roster.set_alive(0, false));
        assert_eq!(members(&mut roster), [(80, vec![1])]);
        assert_eq!((roster.condition(0).name(), roster.condition(1).name()), ("dead", "up"));
        assert!(roster.set_draining(1, true));
        assert_eq!(members(&mut roster), [(80, vec![])]);
        assert!(roster.announce(0, said(0, &[80])), "it is back");
        assert_eq!(members(&mut roster), [(80, vec![0])]);
        assert_eq!((roster.condition(0).name(), roster.condition(1).name()), ("up", "draining"));
    }

    #[test]
    fn a_table_has_only_those_who_serve() {
        let mut roster = Roster::default();
        roster.announce(3, said(3, &[80]));
        roster.announce(7, said(7, &[80]));
        let change = roster.changes().pop().unwrap();
        assert!(change.table.iter().all(|slot| [3, 7].contains(slot)));
        let of_three = change.table.iter().filter(|&&slot| slot == 3).count();
        assert!((32_000..33_600).contains(&of_three), "{of_three}");
    }

    #[test]
    fn what_is_refused_is_tried_again_and_not_taken_for_done() {
        let mut roster = Roster::default();
        roster.announce(0, said(0, &[80]));
        let change = roster.changes().pop().unwrap();
        assert!(roster.refuse(change.service, "full"));
        assert_eq!((roster.services().count(), roster.changes().len()), (0, 0));
        assert_eq!(roster.refused(), Some((service(80), "full")));
        roster.try_again();
        assert_eq!(roster.changes().len(), 1);
        assert!(!roster.refuse(change.service, "full"), "said once");
        roster.try_again();
        assert_eq!(members(&mut roster), [(80, vec![0])]);
        assert_eq!((roster.refused(), roster.services().count()), (None, 1));
        // Withdrawing a service does not leave it refused.
        assert!(roster.refuse(service(443), "full"));
        assert_eq!((members(&mut roster), roster.refused()), (vec![], None));
    }

    #[test]
    fn a_table_of_an_earlier_life_is_made_anew_even_if_nobody_serves_it() {
        let mut roster = Roster::default();
        roster.inherit(service(80));
        assert_eq!(members(&mut roster), [(80, vec![])]);
        assert_eq!(members(&mut roster), []);
    }
}
