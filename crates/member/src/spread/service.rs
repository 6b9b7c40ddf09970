//! The services of a spread group, as people, messages and the file write them.

use holdfast_wire::message::Offer;
use holdfast_wire::packet::mapped;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// An address, a port and a protocol: `10.9.0.100:80` or `10.9.0.100:53/udp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service {
    pub address: SocketAddr,
    pub udp: bool,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address, if self.udp { "/udp" } else { "" })
    }
}

impl FromStr for Service {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, udp) = match text.split_once('/') {
            None => (text, false),
            Some((address, "tcp")) => (address, false),
            Some((address, "udp")) => (address, true),
            Some(_) => return Err(()),
        };
        let address: SocketAddr = address.parse().map_err(|_| ())?;
        if address.port() == 0 { Err(()) } else { Ok(Self { address, udp }) }
    }
}

impl From<&Offer> for Service {
    fn from(offer: &Offer) -> Self {
        let Offer { address, port, udp } = *offer;
        Self { address: SocketAddr::new(address_of(&address), port), udp }
    }
}

impl From<&Service> for Offer {
    fn from(service: &Service) -> Self {
        let Service { address, udp } = *service;
        Self { address: mapped(address.ip()), port: address.port(), udp }
    }
}

/// An address from a message, in which IPv4 is mapped into IPv6.
pub(super) fn address_of(octets: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*octets).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_written_as_it_is_read() {
        for text in ["10.9.0.100:80", "10.9.0.100:53/udp", "[fd09::100]:443"] {
            let service: Service = text.parse().unwrap();
            assert_eq!(Service::from(&Offer::from(&service)).to_string(), text);
        }
        assert_eq!("10.9.0.100:80/tcp".parse::<Service>().unwrap().to_string(), "10.9.0.100:80");
        for text in ["", "10.9.0.100", "10.9.0.100:0", "10.9.0.100:80/sctp", "web:80"] {
            assert!(text.parse::<Service>().is_err(), "{text}");
        }
    }
}
