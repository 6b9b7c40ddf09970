//! What this host server serves: the services that the file names, or those that
//! its processes have bound to the group's addresses (HYDRANET's announcement of
//! a bind), as far as somebody listens.

use crate::spread::Service;
use holdfast_wire::message::OFFERS_MAX;
use std::net::{IpAddr, SocketAddr};

/// A socket that waits for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub address: IpAddr,
    pub port: u16,
    pub udp: bool,
}

/// The services that may be announced for the sockets that wait, sorted, at most
/// [`OFFERS_MAX`].
pub(super) fn offered(
    addresses: &[IpAddr],
    named: Option<&[Service]>,
    waiting: &[Waiting],
) -> Vec<Service> {
    let mut found = match named {
        Some(named) => named_of(named, waiting),
        None => bound_of(addresses, waiting),
    };
    found.sort_unstable();
    found.dedup();
    found.truncate(OFFERS_MAX);
    found
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

/// Only a socket bound to an address of the group announces a service; one bound to all addresses
/// may be meant for others.
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
            waiting("10.9.0.100", 80),
        ];
        let addresses = ["10.9.0.100".parse().unwrap(), "fd09::100".parse().unwrap()];
        let found: Vec<String> =
            offered(&addresses, None, &sockets).iter().map(ToString::to_string).collect();
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
        assert_eq!(offered(&[], Some(&named), &sockets), [named[3], named[0]]);
    }

    #[test]
    fn no_more_is_announced_than_a_message_may_say() {
        let sockets: Vec<Waiting> = (1..100).map(|port| waiting("10.9.0.100", port)).collect();
        let found = offered(&["10.9.0.100".parse().unwrap()], None, &sockets);
        assert_eq!(found.len(), OFFERS_MAX);
    }
}
