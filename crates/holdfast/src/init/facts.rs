//! What a host is, as far as a group's file says it: names, interfaces, networks, free ports.

use super::meeting::{Lack, MESSAGE_MAX};
use super::neighbours::Neighbours;
use crate::config::Mac;
use holdfast_linux::link::{Carries, Link, carries};
use holdfast_linux::listeners::ListenerSocket;
use holdfast_linux::networks;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;

/// Ports among which those of a group are chosen.
pub const PORTS: RangeInclusive<u16> = 7700..=7799;
/// Most interfaces that are told, and networks of each.
const LINKS_MAX: usize = 64;
const NETWORKS_MAX: usize = 64;
/// What a message has besides facts, in bytes, and room to spare.
const BESIDES: usize = 1 << 10;
/// Longest name, in bytes: of a host (hostname(7)), and of an interface.
const HOST_BYTES_MAX: usize = 253;
const LINK_BYTES_MAX: usize = 15;

/// What one host tells the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// As the host calls itself.
    pub host: String,
    /// Its end of the meeting's connection.
    pub address: IpAddr,
    /// Its interfaces with Ethernet addresses that are up.
    pub links: Vec<LinkFacts>,
    /// The one that shall carry the service, where a person has chosen it.
    pub chosen: Option<String>,
    /// Ports of [`PORTS`] that are in use or belong to another group. A guest that has not heard yet
    /// how its own is called counts that one, too, and says so again when it has.
    pub taken: BTreeSet<u16>,
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFacts {
    pub name: String,
    pub mac: [u8; 6],
    pub networks: Vec<Network>,
}

/// An address and the length of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    pub address: IpAddr,
    /// In bits.
    pub prefix: u8,
}

impl Facts {
    /// Looks at this host. `address`: its end of the connection; `folder`: where the files of other
    /// groups are, but for that called `own`.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn gather(
        address: IpAddr,
        chosen: Option<String>,
        folder: &Path,
        own: &str,
    ) -> io::Result<Self> {
        Ok(Self {
            host: host_name(),
            address: address.to_canonical(),
            links: links()?,
            chosen,
            taken: taken(&Neighbours::of(folder, own))?,
        })
    }

    /// The same, with so few networks of each interface that a message holds them. That of `address`
    /// is one of those that stay.
    #[must_use]
    pub fn for_a_message(mut self) -> Self {
        let bytes = |it: &Self| serde_json::to_vec(it).map_or(0, |text| text.len());
        for link in &mut self.links {
            link.networks.sort_by_key(|it| it.address != self.address);
        }
        for most in (1..NETWORKS_MAX).rev() {
            if bytes(&self) + BESIDES <= MESSAGE_MAX {
                break;
            }
            self.links.iter_mut().for_each(|link| link.networks.truncate(most));
        }
        self
    }

    /// Whether facts that another host has sent can be any: no program of ours sends others.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let is_text = |text: &str, max: usize| {
            text.len() <= max && !text.chars().any(|c| c.is_control() || c.is_whitespace())
        };
        let is_link = |it: &LinkFacts| {
            !it.name.is_empty()
                && is_text(&it.name, LINK_BYTES_MAX)
                && !it.name.contains(['/', ':'])
                && it.networks.len() <= NETWORKS_MAX
                && it.networks.iter().all(Network::is_possible)
        };
        let chosen = self.chosen.as_deref().unwrap_or_default();
        is_text(&self.host, HOST_BYTES_MAX)
            && is_text(chosen, LINK_BYTES_MAX)
            && self.links.len() <= LINKS_MAX
            && self.links.iter().all(is_link)
            && self.taken.iter().all(|port| PORTS.contains(port))
    }

    /// The interface with this address.
    #[must_use]
    pub fn link_with(&self, address: IpAddr) -> Option<&LinkFacts> {
        self.links.iter().find(|it| it.networks.iter().any(|net| net.address == address))
    }

    /// The interface that carries a service at `service` on this host: the one that was chosen, the
    /// only one in the network of the service, or that of the meeting.
    ///
    /// # Errors
    /// What does not fit.
    pub fn carrier(&self, service: IpAddr) -> Result<&LinkFacts, Lack> {
        let named = |name: &str| self.links.iter().find(|it| it.name == name);
        let choices =
            || self.links.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
        if let Some(chosen) = &self.chosen {
            return named(chosen).ok_or_else(|| {
                let what = format!("{} has no interface {chosen} that is up", self.host);
                Lack::new(what, format!("one of: {}", choices()))
            });
        }
        let meeting = self.link_with(self.address);
        let in_network: Vec<&LinkFacts> =
            self.links.iter().filter(|it| it.networks.iter().any(|n| n.has(service))).collect();
        match (&in_network[..], meeting) {
            ([only], _) => Ok(only),
            ([], Some(meeting)) => Ok(meeting),
            (several, Some(meeting)) if several.contains(&meeting) => Ok(meeting),
            ([], None) => Err(Lack::new(
                format!("no Ethernet interface of {} has the address {}", self.host, self.address),
                format!(
                    "name the one that carries the service: join --interface NAME ({})",
                    choices()
                ),
            )),
            (several, _) => {
                let names: Vec<&str> = several.iter().map(|it| it.name.as_str()).collect();
                Err(Lack::new(
                    format!(
                        "{} are all in the network of {service} on {}",
                        names.join(", "),
                        self.host
                    ),
                    "say which one carries the service: join --interface NAME",
                ))
            }
        }
    }

    /// A service whose address is in none of this host's networks by this interface: only what a
    /// router sends there by a route of its own comes to it.
    #[must_use]
    pub fn outside(&self, services: &[SocketAddr], link: Option<&LinkFacts>) -> Option<Lack> {
        let links = || self.links.iter().filter(|it| link.is_none_or(|link| link.name == it.name));
        let is_in = |address| links().any(|it| it.networks.iter().any(|net| net.has(address)));
        let address = services.iter().map(SocketAddr::ip).find(|it| !is_in(*it))?;
        let named = |it: &LinkFacts| format!("{} {}", it.name, it.networks_text());
        let networks: Vec<String> =
            links().filter(|it| !it.networks.is_empty()).map(named).collect();
        Some(Lack::new(
            format!("{address} is in no network of {} ({})", self.host, networks.join("; ")),
            "is it typed right? if so, the clients' router needs a route to it by that network",
        ))
    }

    /// Whether an address is one of this host's.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        self.address == address || self.link_with(address).is_some()
    }
}

impl Network {
    /// Whether an address is in this network.
    #[must_use]
    pub fn has(&self, other: IpAddr) -> bool {
        let differ = match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                u128::from(own.to_bits() ^ other.to_bits()) << 96
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => own.to_bits() ^ other.to_bits(),
            _ => return false,
        };
        // A network of length 0 would have everybody: it is a way, and no network.
        self.prefix > 0 && differ.leading_zeros() >= u32::from(self.prefix)
    }

    fn is_possible(&self) -> bool {
        self.prefix <= if self.address.is_ipv4() { 32 } else { 128 }
    }
}

impl LinkFacts {
    /// Whether both are in one network: one reaches the other without a router.
    #[must_use]
    pub fn is_beside(&self, other: &Self) -> bool {
        let reaches = |net: &Network| {
            other.networks.iter().any(|it| net.has(it.address) && it.has(net.address))
        };
        self.networks.iter().any(reaches)
    }

    /// Its networks, in words.
    #[must_use]
    pub fn networks_text(&self) -> String {
        let all: Vec<String> =
            self.networks.iter().map(|it| format!("{}/{}", it.address, it.prefix)).collect();
        if all.is_empty() { "no address".to_owned() } else { all.join(", ") }
    }

    /// Its hardware address, as files have it.
    #[must_use]
    pub fn mac_text(&self) -> String {
        Mac(self.mac).to_string()
    }
}

/// This host, as it calls itself.
#[must_use]
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().chars().take(HOST_BYTES_MAX).filter(|c| !c.is_whitespace()).collect()
}

/// A host's name as one of a group has to be; `others` have theirs.
#[must_use]
pub fn member_name(host: &str, others: &[String]) -> String {
    /// Longest name of a member, in characters, with room for a number that makes it another one.
    const CHARS_MAX: usize = 28;
    let first = host.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let good = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let name: String = first.chars().map(good).take(CHARS_MAX).collect();
    let name = name.trim_matches('-');
    let name = if name.is_empty() { "member" } else { name };
    let is_free = |it: &String| !others.contains(it) && !["edge", "witness"].contains(&it.as_str());
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    std::iter::once(name.to_owned()).chain(numbered).find(is_free).unwrap_or_default()
}

/// Interfaces that are up, with Ethernet addresses and their networks.
///
/// # Errors
/// When the kernel does not answer.
pub fn links() -> io::Result<Vec<LinkFacts>> {
    let own = networks::own()?;
    let is_of_one_link =
        |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let found = networks::interfaces().into_iter().filter_map(|name| {
        let mac = Link::by_name(&name).ok()?.mac;
        let is_up = carries(&name).is_ok_and(|it| it == Carries::Yes);
        let networks = own.iter().filter(|it| it.interface == name && !is_of_one_link(&it.address));
        let networks: Vec<Network> = networks
            .map(|it| Network { address: it.address, prefix: it.prefix })
            .take(NETWORKS_MAX)
            .collect();
        (is_up && mac != [0; 6]).then_some(LinkFacts { name, mac, networks })
    });
    // Those with addresses first: a host of containers has very many others.
    let (with, without): (Vec<_>, Vec<_>) = found.partition(|it| !it.networks.is_empty());
    Ok(with.into_iter().chain(without).take(LINKS_MAX).collect())
}

/// Ports of [`PORTS`] that are in use, or in the files of other groups.
///
/// # Errors
/// When the kernel does not answer.
pub fn taken(neighbours: &Neighbours) -> io::Result<BTreeSet<u16>> {
    let mut taken = listening()?;
    taken.extend(neighbours.ports());
    taken.retain(|port| PORTS.contains(port));
    Ok(taken)
}

/// Ports at which somebody listens, of TCP and UDP.
fn listening() -> io::Result<BTreeSet<u16>> {
    let mut kernel = ListenerSocket::open()?;
    let tcp = kernel.listening()?.into_iter().map(|it| it.port);
    let mut ports: BTreeSet<u16> = tcp.collect();
    ports.extend(kernel.bound_udp()?.into_iter().map(|it| it.port));
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::super::meeting::ToHost;
    use super::*;

    fn network(text: &str) -> Network {
        let (address, prefix) = text.split_once('/').unwrap();
        Network { address: address.parse().unwrap(), prefix: prefix.parse().unwrap() }
    }

    fn link(name: &str, networks: &[&str]) -> LinkFacts {
        let networks = networks.iter().map(|it| network(it)).collect();
        LinkFacts { name: name.to_owned(), mac: [2, 0, 0, 0, 0, 1], networks }
    }

    fn facts(links: Vec<LinkFacts>) -> Facts {
        let address = "10.1.0.2".parse().unwrap();
        Facts { host: "alpha".to_owned(), address, links, chosen: None, taken: BTreeSet::new() }
    }

    #[test]
    fn a_network_has_its_own_addresses_only() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(network("10.9.0.2/24").has(ip("10.9.0.100")));
        assert!(!network("10.9.0.2/24").has(ip("10.9.1.100")));
        assert!(
            !network("10.9.0.2/32").has(ip("10.9.0.3"))
                && !network("10.9.0.2/0").has(ip("1.1.1.1"))
        );
        assert!(
            network("fd09::2/64").has(ip("fd09::100"))
                && !network("fd09::2/64").has(ip("10.9.0.1"))
        );
        assert!(!network("fd09::2/64").has(ip("fd0a::100")));
        assert!(link("a", &["10.9.0.2/24"]).is_beside(&link("b", &["10.8.0.1/8", "10.9.0.3/24"])));
        assert!(!link("a", &["10.9.0.2/30"]).is_beside(&link("b", &["10.9.0.9/24"])));
    }

    #[test]
    fn the_service_is_where_its_network_is() {
        let service = "10.9.0.100".parse().unwrap();
        let name = |facts: &Facts| facts.carrier(service).map(|it| it.name.clone());
        let both = facts(vec![link("mgmt", &["10.1.0.2/24"]), link("lan", &["10.9.0.2/24"])]);
        assert_eq!(name(&both).unwrap(), "lan");
        let routed = facts(vec![link("mgmt", &["10.1.0.2/24"]), link("other", &[])]);
        assert_eq!(name(&routed).unwrap(), "mgmt");
        let two = facts(vec![link("x", &["10.9.0.2/24"]), link("y", &["10.9.0.3/16"])]);
        let error = name(&two).unwrap_err().to_string();
        assert!(error.contains("x, y") && error.contains("--interface"), "{error}");
        let chosen = Facts { chosen: Some("y".to_owned()), ..two };
        assert_eq!(name(&chosen).unwrap(), "y");
        let gone = Facts { chosen: Some("z".to_owned()), ..chosen };
        assert!(name(&gone).unwrap_err().remedy.contains("x, y"));
        assert!(name(&facts(vec![])).unwrap_err().remedy.contains("--interface"));
    }

    #[test]
    fn a_service_in_no_network_is_noticed() {
        let host = facts(vec![link("lan", &["10.9.0.2/24"]), link("up", &["10.1.0.2/24"])]);
        let services = |text: &str| [text.parse::<SocketAddr>().unwrap()];
        let lan = host.links.first();
        assert_eq!(host.outside(&services("10.9.0.100:80"), lan), None);
        assert_eq!(host.outside(&services("10.1.0.100:80"), None), None);
        let told = host.outside(&services("10.1.0.100:80"), lan).expect("another network");
        assert!(
            told.what.contains("10.1.0.100 is in no network of alpha (lan 10.9.0.2/24)"),
            "{told}"
        );
        assert!(host.outside(&services("[fd09::100]:80"), None).is_some());
    }

    #[test]
    fn names_are_made_valid_and_different() {
        let none: &[String] = &[];
        assert_eq!(member_name("Alpha.example.org", none), "alpha");
        assert_eq!(member_name("alpha", &["alpha".to_owned()]), "alpha-2");
        assert_eq!(member_name("edge", none), "edge-2");
        assert_eq!(member_name("", none), "member");
        assert_eq!(member_name("日本", none), "member");
        assert_eq!(member_name("-a b-", none), "a-b");
        assert_eq!(member_name(&"x".repeat(99), &["x".repeat(28)]).len(), 30);
    }

    #[test]
    fn this_host_is_possible() {
        let folder = Path::new("/nonexistent");
        let own = Facts::gather("127.0.0.1".parse().unwrap(), None, folder, "demo").unwrap();
        assert!(own.is_possible());
        assert!(own.link_with("127.0.0.1".parse().unwrap()).is_none(), "it is no Ethernet");
        let long = LinkFacts { name: "x".repeat(16), ..link("", &[]) };
        for bad in [
            Facts { host: "a\nb".to_owned(), ..own.clone() },
            Facts { links: vec![long], ..own.clone() },
            Facts { links: vec![link("x", &["10.0.0.1/33"])], ..own.clone() },
            Facts { links: vec![link("x", &[]); 65], ..own.clone() },
            Facts { taken: [22].into(), ..own },
        ] {
            assert!(!bad.is_possible(), "{bad:?}");
        }
    }

    /// Sixty-four interfaces with sixty-four addresses each are more than one message holds.
    #[test]
    fn a_host_of_very_many_addresses_tells_as_many_as_a_message_holds() {
        let address =
            |link: u16, at: u16| IpAddr::from([0xfd09, 1, 2, 3, 0xffff, 0xffff, link, at]);
        let of = |link: u16| LinkFacts {
            name: format!("interface-{link:05}"),
            mac: [255; 6],
            networks: (0..64)
                .map(|at| Network { address: address(link, at), prefix: 128 })
                .collect(),
        };
        let all = Facts {
            host: "h".repeat(HOST_BYTES_MAX),
            address: address(63, 63),
            links: (0..64).map(of).collect(),
            chosen: Some("interface-00063".to_owned()),
            taken: PORTS.collect(),
        };
        assert!(all.is_possible());
        let told = all.for_a_message();
        let hello = ToHost::Hello { build: "1".repeat(100), facts: told.clone() };
        assert!(serde_json::to_vec(&hello).unwrap().len() <= MESSAGE_MAX);
        assert_eq!(told.links.len(), 64);
        assert!(told.links.iter().all(|it| !it.networks.is_empty()));
        assert_eq!(told.link_with(told.address).map(|it| &*it.name), Some("interface-00063"));
        let lan = link("lan", &["10.9.0.2/24", "fd09::2/64"]);
        let few = facts(vec![link("mgmt", &["10.1.0.2/24"]), lan]);
        assert_eq!(few.clone().for_a_message(), few);
    }

    #[test]
    fn other_groups_keep_their_ports() {
        let folder = std::env::temp_dir().join(format!("holdfast-facts-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let example = include_str!("../../../../docs/example-segment.toml");
        std::fs::write(folder.join("demo.toml"), example).unwrap();
        let found = ["web", "demo"].map(|own| Neighbours::of(&folder, own).ports());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [[7701, 7702].into(), BTreeSet::new()]);
    }
}
