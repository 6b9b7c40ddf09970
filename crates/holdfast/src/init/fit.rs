//! Do three hosts fit together? Everything that can be said of facts alone.

use super::draft::{HostRole, Wish};
use super::facts::{Facts, LinkFacts};
use super::meeting::Lack;
use crate::key::PublicKey;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// A guest that is to be a member.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Number of its connection.
    pub id: u64,
    /// Its name in the file.
    pub name: String,
    pub facts: Facts,
    /// The host's end of its connection.
    pub local: IpAddr,
    /// How an edge reaches it.
    pub way: Option<Way>,
    /// The public half of the key that its host has made, once it has told it.
    pub public: Option<PublicKey>,
}

/// How an edge reaches a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    pub edge_port: String,
    /// The bridge that the port belongs to.
    pub l3: Option<String>,
}

/// Whether the host with these facts can be a member besides those who have a seat. `from` is its
/// address as this host sees it, `own` are this host's facts.
///
/// # Errors
/// What does not fit, in plain words.
pub fn judge(
    wish: &Wish,
    own: &Facts,
    new: &Facts,
    from: IpAddr,
    seats: &[Seat],
) -> Result<(), Lack> {
    let host = &new.host;
    if own.has(from) {
        return Err(Lack::new(
            format!("this is the host where init runs, which is the {}", wish.host.name()),
            "say join on the two other hosts",
        ));
    }
    if from != new.address {
        return Err(Lack::new(
            format!(
                "{host} connects from {}, and here it is seen as {from}: something between translates addresses",
                new.address
            ),
            "let the three hosts reach each other by their own addresses",
        ));
    }
    let carrier = carrier(wish, new)?;
    seats.iter().try_for_each(|seat| judge_pair(wish, new, carrier, seat))
}

/// The interface of a host that carries the services.
///
/// # Errors
/// What does not fit.
pub fn carrier<'a>(wish: &Wish, facts: &'a Facts) -> Result<&'a LinkFacts, Lack> {
    let service = wish.services.first().map_or(facts.address, |it| it.ip());
    facts.carrier(service)
}

fn judge_pair(wish: &Wish, new: &Facts, carrier: &LinkFacts, seat: &Seat) -> Result<(), Lack> {
    let other = self::carrier(wish, &seat.facts)?;
    let (one, two) = (&seat.facts.host, &new.host);
    if new.address == seat.facts.address {
        return Err(Lack::new(
            format!("{one} ({}) has joined already", new.address),
            "say join on another host, the third one of the group",
        ));
    }
    if carrier.mac == other.mac {
        return Err(Lack::new(
            format!(
                "{} of {two} and {} of {one} have the same hardware address {}",
                carrier.name,
                other.name,
                carrier.mac_text()
            ),
            format!(
                "give one another (`ip link set {} address 02:...`): copies of a virtual machine need their own",
                carrier.name
            ),
        ));
    }
    if wish.host == HostRole::Witness && !carrier.is_beside(other) {
        return Err(Lack::new(
            format!(
                "{} of {two} ({}) and {} of {one} ({}) are not in one network",
                carrier.name,
                carrier.networks_text(),
                other.name,
                other.networks_text()
            ),
            "without an edge both members are on one segment, with their clients' router: name the \
             right interface (join --interface NAME), or say init --edge on a host in front of both",
        ));
    }
    Ok(())
}

/// The lowest free port from `first` on: `width` in a row that nobody has taken.
#[must_use]
pub fn free_port(first: u16, width: u16, taken: &[&BTreeSet<u16>]) -> u16 {
    let is_free = |port: &u16| {
        (*port..port.saturating_add(width)).all(|it| taken.iter().all(|set| !set.contains(&it)))
    };
    // Who has taken all of them is told so by `check`.
    (first..=*super::facts::PORTS.end()).find(is_free).unwrap_or(first)
}

/// The interfaces of an edge that face clients: those that were named, that of the default route,
/// or the only one that leads to no member.
///
/// # Errors
/// The choices, and how to make one.
pub fn clients(
    wish: &Wish,
    links: &[LinkFacts],
    inner: &[&str],
    default_route: Option<&str>,
) -> Result<Vec<String>, Lack> {
    let known = |name: &str| links.iter().any(|it| it.name == name);
    let outer: Vec<&str> = links
        .iter()
        .filter(|it| !it.networks.is_empty())
        .map(|it| it.name.as_str())
        .filter(|it| !inner.contains(it))
        .collect();
    if let Some(bad) =
        wish.clients.iter().find(|it| !known(it.as_str()) || inner.contains(&it.as_str()))
    {
        let what = format!("clients do not come through {bad}: it leads to a member, or is not up");
        return Err(Lack::new(what, format!("--clients with one of: {}", outer.join(", "))));
    }
    if !wish.clients.is_empty() {
        return Ok(wish.clients.clone());
    }
    match (default_route.filter(|it| outer.contains(it)), &outer[..]) {
        (Some(name), _) => Ok(vec![name.to_owned()]),
        (None, [name]) => Ok(vec![(*name).to_owned()]),
        (None, []) => Err(Lack::new(
            "this host has no interface with an address besides those that lead to the members",
            "an edge stands between the clients and the members: name the one that faces the clients \
             (--clients NAME), or leave --edge out",
        )),
        (None, several) => Err(Lack::new(
            format!("clients could come through {}", several.join(", ")),
            "say through which: init --edge --clients NAME, more than once for several",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::draft::Keys;
    use super::super::facts::Network;
    use super::*;
    use crate::config::Run;

    fn wish(host: HostRole) -> Wish {
        Wish {
            name: "demo".to_owned(),
            services: vec!["10.9.0.100:6379".parse().unwrap()],
            command: vec!["/bin/true".to_owned()],
            user: None,
            state_dirs: Vec::new(),
            run: Run::Auto,
            host,
            clients: Vec::new(),
            keys: Keys::default(),
        }
    }

    fn link(name: &str, mac: u8, address: &str) -> LinkFacts {
        let network = Network { address: address.parse().unwrap(), prefix: 24 };
        LinkFacts { name: name.to_owned(), mac: [2, 0, 0, 0, 0, mac], networks: vec![network] }
    }

    fn facts(host: &str, mac: u8, address: &str) -> Facts {
        Facts {
            host: host.to_owned(),
            address: address.parse().unwrap(),
            links: vec![link("eth0", mac, address)],
            chosen: None,
            taken: BTreeSet::new(),
        }
    }

    fn seat(facts: Facts) -> Seat {
        let local = "10.9.0.1".parse().unwrap();
        Seat { id: 1, name: facts.host.clone(), facts, local, way: None, public: None }
    }

    #[test]
    fn hosts_that_fit_are_taken_and_others_are_told_why() {
        let own = facts("gamma", 1, "10.9.0.1");
        let alpha = seat(facts("alpha", 2, "10.9.0.2"));
        let told = |kind, new: &Facts, from: &str| {
            let result =
                judge(&wish(kind), &own, new, from.parse().unwrap(), std::slice::from_ref(&alpha));
            result.err().map(|it| it.to_string()).unwrap_or_default()
        };
        let witness = HostRole::Witness;
        let beta = facts("beta", 3, "10.9.0.3");
        assert_eq!(told(witness, &beta, "10.9.0.3"), "");
        assert!(told(witness, &beta, "10.9.0.1").contains("where init runs"));
        assert!(told(witness, &beta, "10.9.0.77").contains("translates addresses"));
        assert!(told(witness, &facts("beta", 2, "10.9.0.3"), "10.9.0.3").contains("same hardware"));
        assert!(
            told(witness, &facts("beta", 3, "10.9.0.2"), "10.9.0.2").contains("joined already")
        );
        let far = facts("beta", 3, "10.7.0.3");
        assert!(
            told(witness, &far, "10.7.0.3")
                .contains("10.7.0.3/24) and eth0 of alpha (10.9.0.2/24) are not in one network")
        );
        assert_eq!(told(HostRole::Edge, &far, "10.7.0.3"), "", "an edge routes");
    }

    #[test]
    fn ports_that_are_taken_are_left_out() {
        let taken = [7701, 7704].into();
        assert_eq!(free_port(7701, 2, &[]), 7701);
        assert_eq!(free_port(7701, 1, &[&taken]), 7702);
        assert_eq!(free_port(7701, 2, &[&taken]), 7702);
        assert_eq!(free_port(7701, 2, &[&taken, &[7703].into()]), 7705);
    }

    #[test]
    fn clients_come_by_the_default_route_or_what_is_left() {
        let links =
            [link("ec", 1, "10.8.0.1"), link("br0", 2, "10.9.0.1"), link("mgmt", 3, "10.7.0.1")];
        let inner = ["br0", "ep"];
        let of = |wish: &Wish, count: usize, route| clients(wish, &links[..count], &inner, route);
        let edge = wish(HostRole::Edge);
        assert_eq!(of(&edge, 2, None).unwrap(), ["ec"]);
        assert_eq!(of(&edge, 3, Some("mgmt")).unwrap(), ["mgmt"]);
        let told = of(&edge, 3, None).unwrap_err().to_string();
        assert!(told.contains("ec, mgmt") && told.contains("--clients"), "{told}");
        assert!(of(&edge, 3, Some("br0")).is_err(), "that leads to the members");
        let named = Wish { clients: vec!["mgmt".to_owned(), "ec".to_owned()], ..edge.clone() };
        assert_eq!(of(&named, 3, None).unwrap(), ["mgmt", "ec"]);
        let wrong = Wish { clients: vec!["br0".to_owned()], ..edge.clone() };
        assert!(of(&wrong, 3, None).unwrap_err().remedy.contains("ec, mgmt"));
        let none = clients(&edge, &links[1..2], &inner, None).unwrap_err();
        assert!(none.what.contains("no interface"), "{none}");
    }
}
