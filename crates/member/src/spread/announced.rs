//! Checks what host servers announce against the edge's file: they share one
//! key, so one that was broken into could send all clients to itself. No host
//! server gets more than the file grants.

use super::service::address_of;
use super::{Said, Service, Setup};
use crate::words::counted;
use holdfast_wire::message::Offer;
use std::net::IpAddr;

/// What an edge knows when it begins.
pub(super) fn found(services: usize, hosts: usize) -> String {
    let services = counted(services as u64, "service");
    format!("{services} and {} found", counted(hosts as u64, "host server"))
}

/// Checks that the host server is in the file, and is what the file says. Its
/// weight may be less than its share, never more.
pub(super) fn check(setup: &Setup, name: &str, said: &Said) -> Result<(), String> {
    const REMEDY: &str = "write the same on both hosts, and say `holdfast reload` there";
    let Some(host) = setup.given(name) else {
        return Err(format!(
            "the edge's file names no host server `{name}`; add it there, and say `holdfast \
             reload`"
        ));
    };
    let tunnels: Vec<IpAddr> = said.tunnels.iter().map(address_of).collect();
    if tunnels.is_empty() {
        return Err("it announces no tunnel address; give it a `tunnel` or `tunnel6`".to_owned());
    }
    if let Some(other) = tunnels.iter().find(|tunnel| !host.tunnels.contains(tunnel)) {
        return Err(format!(
            "it announces the tunnel address {other}, the edge's file gives it {}; {REMEDY}",
            listed(&host.tunnels)
        ));
    }
    if !(1..=host.weight).contains(&said.weight) {
        return Err(format!(
            "it announces the weight {}, the edge's file gives it 1 to {}; {REMEDY}",
            said.weight, host.weight
        ));
    }
    if said.layer2 != host.layer2 {
        return Err(format!("its `method` is not that of the edge's file; {REMEDY}"));
    }
    Ok(())
}

/// The offers that the file allows it, and the others.
pub(super) fn allowed(setup: &Setup, name: &str, offers: &[Offer]) -> (Vec<Service>, Vec<Service>) {
    let named = setup.given(name).and_then(|host| host.services.as_ref());
    let may = |service: &Service| {
        setup.addresses.contains(&service.address.ip())
            && named.is_none_or(|named| named.contains(service))
    };
    offers.iter().map(Service::from).partition(may)
}

/// What is wrong with an announcement that was taken nevertheless.
pub(super) fn complaint(strange: &[Service]) -> String {
    if strange.is_empty() {
        return String::new();
    }
    let names: Vec<String> = strange.iter().map(ToString::to_string).collect();
    format!(
        "the edge's file does not give it {}; name them in its `services`, and the address in \
         `group.addresses`, and restart the edge's daemon",
        names.join(", ")
    )
}

fn listed(addresses: &[IpAddr]) -> String {
    let words: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    words.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spread::Given;
    use holdfast_cluster::Nanos;
    use holdfast_wire::packet::mapped;

    fn setup() -> Setup {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let given = |name: &str, tunnels: [&str; 2], weight| Given {
            name: name.to_owned(),
            tunnels: tunnels.map(ip).to_vec(),
            layer2: false,
            weight,
            services: None,
        };
        let named = Service { address: ([10, 9, 0, 100], 80).into(), udp: false };
        Setup {
            me: "edge".to_owned(),
            group: "web".to_owned(),
            addresses: vec![ip("10.9.0.100"), ip("fd09::100")],
            hosts: vec![
                given("a", ["10.9.0.2", "fd09::2"], 50),
                Given { services: Some(vec![named]), ..given("b", ["10.9.0.3", "fd09::33"], 100) },
            ],
            hosts_max: 250,
            period: Nanos::from_ms(100),
        }
    }

    fn octets(text: &str) -> [u8; 16] {
        mapped(text.parse().expect("an address"))
    }

    fn said(weight: u32, tunnels: &[&str]) -> Said {
        let tunnels = tunnels.iter().map(|text| octets(text)).collect();
        Said { weight, layer2: false, tunnels, services: Vec::new() }
    }

    #[test]
    fn nobody_gets_more_than_the_file_gives_it() {
        let setup = setup();
        let check = |name, said: Said| check(&setup, name, &said);
        for said in [said(50, &["10.9.0.2", "fd09::2"]), said(1, &["10.9.0.2"])] {
            assert_eq!(check("a", said), Ok(()));
        }
        let refused = [
            ("c", said(1, &["10.9.0.2"]), "names no host server `c`"),
            ("a", said(50, &[]), "no tunnel address"),
            // The first address belongs to another host server, the second to nobody.
            ("a", said(50, &["10.9.0.2", "10.9.0.3"]), "address 10.9.0.3"),
            ("b", said(100, &["10.9.0.66"]), "gives it 10.9.0.3"),
            ("b", said(100, &["fd09::3"]), "address fd09::3"),
            ("a", said(51, &["10.9.0.2"]), "weight 51, the edge's file gives it 1 to 50"),
            ("a", said(0, &["10.9.0.2"]), "weight 0"),
            ("a", said(u32::MAX, &["10.9.0.2"]), "weight 4294967295"),
            ("a", Said { layer2: true, ..said(50, &["10.9.0.2"]) }, "`method`"),
        ];
        for (name, said, why) in refused {
            let reason = check(name, said).expect_err(why);
            assert!(reason.contains(why), "{reason}");
        }
    }

    #[test]
    fn only_services_of_the_file_are_taken() {
        let setup = setup();
        let offer = |address: &str, port, udp| Offer { address: octets(address), port, udp };
        let offers = [
            offer("10.9.0.100", 80, false),
            offer("10.9.0.100", 80, true),
            offer("fd09::100", 443, false),
            offer("10.9.0.1", 22, false),
        ];
        let names = |list: Vec<Service>| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (taken, strange) = allowed(&setup, "a", &offers);
        assert_eq!(names(taken), ["10.9.0.100:80", "10.9.0.100:80/udp", "[fd09::100]:443"]);
        assert_eq!(names(strange), ["10.9.0.1:22"]);
        let (taken, strange) = allowed(&setup, "b", &offers);
        assert_eq!((names(taken), strange.len()), (vec!["10.9.0.100:80".to_owned()], 3));
    }
}
