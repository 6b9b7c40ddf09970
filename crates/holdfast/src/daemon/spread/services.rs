//! What this host server serves: the services that the file names, or those that
//! its processes have bound of the group's addresses (HYDRANET's announcement of
//! a bind), as far as somebody listens.

use crate::config::spread::SpreadHost;
use holdfast_linux::listeners::{ListenerSocket, Waiting};
use holdfast_member::spread::Service;
use holdfast_wire::message::OFFERS_MAX;
use std::io;
use std::net::{IpAddr, SocketAddr};

pub(super) struct Finder {
    socket: ListenerSocket,
    addresses: Vec<IpAddr>,
    named: Option<Vec<Service>>,
}

impl Finder {
    pub fn new(host: &SpreadHost, addresses: &[IpAddr]) -> io::Result<Self> {
        Ok(Self {
            socket: ListenerSocket::open()?,
            addresses: addresses.to_vec(),
            named: host.services.clone(),
        })
    }

    /// Who listens now, sorted, at most [`OFFERS_MAX`].
    pub fn look(&mut self) -> io::Result<Vec<Service>> {
        let waiting = self.socket.waiting()?;
        let mut found = match &self.named {
            Some(named) => named_of(named, &waiting),
            None => bound_of(&self.addresses, &waiting),
        };
        found.sort_unstable();
        found.dedup();
        found.truncate(OFFERS_MAX);
        Ok(found)
    }
}

/// A named service may be served by a socket that is bound to all addresses.
fn named_of(named: &[Service], waiting: &[Waiting]) -> Vec<Service> {
    let serves = |service: &Service, socket: &Waiting| {
        socket.udp == service.udp
            && socket.port == service.address.port()
            && (socket.address == service.address.ip() || socket.address.is_unspecified())
    };
    let has_server = |service: &&Service| waiting.iter().any(|socket| serves(service, socket));
    named.iter().filter(has_server).copied().collect()
}

/// Only an address of the group tells that it is meant.
fn bound_of(addresses: &[IpAddr], waiting: &[Waiting]) -> Vec<Service> {
    let meant = waiting.iter().filter(|socket| addresses.contains(&socket.address));
    meant
        .map(|socket| Service {
            address: SocketAddr::new(socket.address, socket.port),
            udp: socket.udp,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(address: &str, port: u16) -> Waiting {
        Waiting { address: address.parse().unwrap(), port, udp: false }
    }

    #[test]
    fn a_bind_to_the_groups_address_is_an_announcement() {
        let sockets = [
            waiting("0.0.0.0", 22),
            waiting("10.9.0.100", 80),
            waiting("10.9.0.2", 8080),
            waiting("fd09::100", 80),
        ];
        let addresses = ["10.9.0.100".parse().unwrap(), "fd09::100".parse().unwrap()];
        let found: Vec<String> =
            bound_of(&addresses, &sockets).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.9.0.100:80", "[fd09::100]:80"]);
    }

    #[test]
    fn a_named_service_is_announced_while_somebody_listens() {
        let named: Vec<Service> =
            ["10.9.0.100:80", "10.9.0.100:81", "10.9.0.100:80/udp", "10.9.0.100:22"]
                .iter()
                .map(|text| text.parse().unwrap())
                .collect();
        let sockets = [waiting("0.0.0.0", 22), waiting("10.9.0.100", 80)];
        assert_eq!(named_of(&named, &sockets), [named[0], named[3]]);
    }
}
