//! What host servers announce, held against the edge's file: one key is all that
//! they share, so one that was broken into could send everybody's clients to
//! itself. Nobody gets more than the file gives it.

use super::edge::{Placed, SpreadEdge, addresses};
use super::links::Said;
use super::report::service_name;
use super::roster::Announcement;
use crate::config::spread::{HOSTS_MAX, Method, Service, SpreadConfig};
use holdfast_linux::bpf::{Host, HostState, ServiceKey, Way};
use holdfast_wire::message::{Message, Offer};
use std::net::{IpAddr, Ipv6Addr};

impl SpreadEdge<'_> {
    /// A host server says what it is and serves. What the file does not give it is
    /// refused, and what it had announced before stays.
    pub fn hear_announcement(&mut self, index: usize, said: &Said) {
        let name = self.links[index].name.clone();
        let complaint = match self.announce(&name, said) {
            Ok(complaint) => complaint,
            Err(reason) => reason,
        };
        if complaint != self.links[index].complaint {
            if !complaint.is_empty() {
                self.links[index].send(&Message::Refused { reason: &complaint, again: false });
                self.events.add("refused", format!("{name}: {complaint}"));
            }
            self.links[index].complaint = complaint;
        }
    }

    /// What is wrong with it although it was taken; nothing, if that is empty.
    fn announce(&mut self, name: &str, said: &Said) -> Result<String, String> {
        check(self.config, name, said)?;
        let (services, strange) = allowed(self.config, name, &said.services);
        let mut host = Host { v4: None, v6: None, state: HostState::Up, layer2: said.layer2 };
        for address in said.tunnels.iter().map(address_of) {
            let way = Way { address, next_hop: address, ifindex: 0, mtu: 0 };
            match address {
                IpAddr::V4(_) => host.v4 = Some(way),
                IpAddr::V6(_) => host.v6 = Some(way),
            }
        }
        let slot = self.place(name, &host).ok_or("all slots are taken")?;
        let list: Vec<String> = services.iter().map(service_name).collect();
        let (weight, identity) = (said.weight, said.tunnels.concat());
        if self.roster.announce(slot, Announcement { weight, services, identity }) {
            let what = if list.is_empty() { "nothing".to_owned() } else { list.join(", ") };
            self.events.add("announced", format!("{name}: {what}, weight {weight}"));
        }
        let strange: Vec<String> = strange.iter().map(service_name).collect();
        Ok(if strange.is_empty() {
            String::new()
        } else {
            format!(
                "the edge's file does not give it {}; name them in its `services`, and the \
                 address in `group.addresses`, and restart the edge's daemon",
                strange.join(", ")
            )
        })
    }

    /// The slot whose tunnel addresses these are, or a free one: a flow knows its
    /// host server by the slot.
    fn place(&mut self, name: &str, host: &Host) -> Option<u8> {
        let same = |p: &&mut Placed| {
            addresses(&p.host).iter().any(|address| addresses(host).contains(address))
        };
        let slot = match self.placed.iter_mut().find(same) {
            Some(placed) => {
                name.clone_into(&mut placed.name);
                placed.host.v4 = keep_way(placed.host.v4, host.v4);
                placed.host.v6 = keep_way(placed.host.v6, host.v6);
                placed.host.layer2 = host.layer2;
                placed.slot
            }
            None => {
                let is_free = |slot: &u8| self.placed.iter().all(|p| p.slot != *slot);
                let slot = (0..HOSTS_MAX as u8).find(is_free)?;
                self.placed.push(Placed { slot, name: name.to_owned(), host: *host });
                slot
            }
        };
        self.find_ways();
        Some(slot)
    }
}

/// Is the host server in the file, and is it what the file says of it? The weight
/// may be less: a host server may ask for less than its share, never for more.
fn check(config: &SpreadConfig, name: &str, said: &Said) -> Result<(), String> {
    const REMEDY: &str = "write the same on both hosts and restart the edge's daemon";
    let Some(host) = config.host(name) else {
        return Err(format!(
            "the edge's file names no host server `{name}`; add it there and restart the edge's \
             daemon"
        ));
    };
    let tunnels: Vec<IpAddr> = said.tunnels.iter().map(address_of).collect();
    if tunnels.is_empty() {
        return Err("it announces no tunnel address; give it a `tunnel` or `tunnel6`".to_owned());
    }
    if let Some(other) = tunnels.iter().find(|tunnel| !host.tunnels().contains(tunnel)) {
        return Err(format!(
            "it announces the tunnel address {other}, the edge's file gives it {}; {REMEDY}",
            listed(&host.tunnels())
        ));
    }
    if !(1..=host.weight).contains(&said.weight) {
        return Err(format!(
            "it announces the weight {}, the edge's file gives it 1 to {}; {REMEDY}",
            said.weight, host.weight
        ));
    }
    if said.layer2 != (host.method == Method::Layer2) {
        return Err(format!("its `method` is not that of the edge's file; {REMEDY}"));
    }
    Ok(())
}

/// The offers that the file lets it make, and the others.
fn allowed(
    config: &SpreadConfig,
    name: &str,
    offers: &[Offer],
) -> (Vec<ServiceKey>, Vec<ServiceKey>) {
    let named = config.host(name).and_then(|host| host.services.as_ref());
    let may = |service: &ServiceKey| {
        config.group.addresses.contains(&service.address)
            && named.is_none_or(|named| named.iter().any(|known| key_of(known) == *service))
    };
    offers.iter().map(service_of).partition(may)
}

fn listed(addresses: &[IpAddr]) -> String {
    let words: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    words.join(" and ")
}

fn address_of(octets: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*octets).to_canonical()
}

fn service_of(offer: &Offer) -> ServiceKey {
    ServiceKey { address: address_of(&offer.address), port: offer.port, udp: offer.udp }
}

fn key_of(service: &Service) -> ServiceKey {
    let Service { address, udp } = service;
    ServiceKey { address: address.ip(), port: address.port(), udp: *udp }
}

/// What is known of the way to an address is kept while the address is.
fn keep_way(known: Option<Way>, said: Option<Way>) -> Option<Way> {
    known.filter(|known| said.is_some_and(|said| said.address == known.address)).or(said)
}

#[cfg(test)]
mod tests;
