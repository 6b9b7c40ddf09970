use super::*;
use std::path::Path;

const FILE: &str = r#"
[group]
kind = "spread"
name = "web"
key_file = "web.key"
addresses = ["10.9.0.100", "fd09::100"]

[edge]
listen = "10.9.0.1:7700"
clients = ["eth0"]

[[host]]
name = "a"
tunnel = "10.9.0.2"
tunnel6 = "fd09::2"
interface = "eth0"
weight = 50

[[host]]
name = "b"
tunnel = "10.9.0.3"
tunnel6 = "fd09::33"
interface = "eth0"
services = ["10.9.0.100:80"]
"#;

fn config() -> SpreadConfig {
    SpreadConfig::parse(Path::new("web.toml"), FILE).expect("a valid file")
}

fn mapped(text: &str) -> [u8; 16] {
    holdfast_wire::packet::mapped(text.parse().expect("an address"))
}

fn said(weight: u32, tunnels: &[&str]) -> Said {
    let tunnels = tunnels.iter().map(|text| mapped(text)).collect();
    Said { weight, layer2: false, tunnels, services: Vec::new() }
}

#[test]
fn nobody_gets_more_than_the_file_gives_it() {
    let config = config();
    let check = |name, said: Said| check(&config, name, &said);
    for said in [said(50, &["10.9.0.2", "fd09::2"]), said(1, &["10.9.0.2"])] {
        assert_eq!(check("a", said), Ok(()));
    }
    let refused = [
        ("c", said(1, &["10.9.0.2"]), "names no host server `c`"),
        ("a", said(50, &[]), "no tunnel address"),
        // Another host server's, and one that nobody has.
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
    let config = config();
    let offer = |address: &str, port, udp| Offer { address: mapped(address), port, udp };
    let offers = [
        offer("10.9.0.100", 80, false),
        offer("10.9.0.100", 80, true),
        offer("fd09::100", 443, false),
        offer("10.9.0.1", 22, false),
    ];
    let names = |list: Vec<ServiceKey>| list.iter().map(service_name).collect::<Vec<_>>();
    let (taken, strange) = allowed(&config, "a", &offers);
    assert_eq!(names(taken), ["10.9.0.100:80", "10.9.0.100:80/udp", "[fd09::100]:443"]);
    assert_eq!(names(strange), ["10.9.0.1:22"]);
    let (taken, strange) = allowed(&config, "b", &offers);
    assert_eq!((names(taken), strange.len()), (vec!["10.9.0.100:80".to_owned()], 3));
}
