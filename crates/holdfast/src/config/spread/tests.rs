//! Tests of correct files of spread groups, and of the messages about incorrect ones.

use super::*;
use crate::config::GroupFile;

const GOOD: &str = include_str!("../../../../../docs/example-spread.toml");

fn parse(text: &str) -> Result<SpreadConfig, ConfigErrors> {
    SpreadConfig::parse(Path::new("/etc/holdfast/web.toml"), text)
}

#[test]
fn the_example_is_a_valid_file() {
    let config = parse(GOOD).unwrap();
    assert_eq!((config.group.name.as_str(), config.hosts.len()), ("web", 2));
    assert_eq!(config.group.flows_max, 262_144);
    assert_eq!(config.edges[0].outer4.to_string(), "172.16.0.0/16");
    assert_eq!((config.hosts[0].weight, config.hosts[0].method), (100, Method::IpInIp));
    assert_eq!(config.group.key_file, Path::new("/etc/holdfast/web.key"));
    assert_eq!(config.pin_dir("edge"), Path::new("/run/holdfast/web/bpf-edge"));
    let file = GroupFile::parse(Path::new("web.toml"), GOOD).unwrap();
    assert_eq!(file.summary(), "spreads 10.9.0.100, fd09::100 over 2 host servers");
    assert_eq!(file.role(Some("b")), Ok("b".to_owned()));
    assert!(file.role(Some("c")).unwrap_err().ends_with("edge, a, b"));
}

#[test]
fn the_effective_file_is_a_file_that_means_the_same() {
    let text = GOOD.replace("#services", "services").replace("#mtu", "mtu");
    let config = parse(&text).unwrap();
    assert_eq!(config.hosts[0].services.as_ref().map(Vec::len), Some(2));
    assert_eq!(parse(&config.effective()).unwrap().effective(), config.effective());
}

#[test]
fn values_are_checked_where_they_stand() {
    let cases = [
        ("\"10.9.0.100\", ", "\"10.9.0\", ", "is not the address of one host"),
        ("\"10.9.0.100\", \"fd09::100\"", "\"10.9.0.100\", \"10.9.0.100\"", "is listed twice"),
        ("\"10.9.0.100\", \"fd09::100\"", "\"fe80::100\"", "no meaning beyond one link"),
        ("tunnel6 = \"fd09::3\"", "tunnel6 = \"fe80::3\"", "no meaning beyond one link"),
        ("tunnel = \"10.9.0.3\"", "tunnel = \"10.9.0.2\"", "the same tunnel address"),
        ("tunnel = \"10.9.0.3\"", "tunnel = \"fd09::3\"", "tunnel is an IPv6 address"),
        ("tunnel6 = \"fd09::3\"", "", "host `b` has no tunnel6"),
        ("\"10.9.0.1:7700\"", "\"10.9.0.100:7700\"", "10.9.0.100 is an address of the group"),
        (
            "tunnel = \"10.9.0.3\"",
            "tunnel = \"10.9.0.100\"",
            "10.9.0.100 is an address of the group",
        ),
        (
            "tunnel6 = \"fd09::3\"",
            "tunnel6 = \"fd09::100\"",
            "fd09::100 is an address of the group",
        ),
        ("name = \"b\"", "name = \"a\"", "the same name"),
        ("name = \"b\"", "name = \"edge\"", "cannot be called `edge`"),
        ("#weight = 100", "weight = 0", "weight = 0 is out of range"),
        ("#mtu = 1500", "mtu = 576", "mtu = 576 is out of range"),
        ("#outer4 = \"172.16.0.0/16\"", "outer4 = \"fd00::/8\"", "is not a range"),
        ("#method = \"ip-in-ip\"", "method = \"gre\"", "`gre` is none of `ip-in-ip`"),
        (
            "#services = [\"10.9.0.100:80\"",
            "services = [\"10.9.0.9:80\"",
            "is not an address of the group",
        ),
        ("#services = [\"10.9.0.100:80\"", "services = [\"10.9.0.100\"", "is not a service"),
        ("#[recover]", "[recover]\npolicy = \"head\"", "keeps SYNs and nothing else"),
    ];
    for (from, to, expected) in cases {
        assert!(GOOD.contains(from), "{from}");
        let error = parse(&GOOD.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(error.contains(expected) && error.contains("remedy"), "{to}: {error}");
    }
}

#[test]
fn a_range_says_how_long_it_is() {
    for text in ["172.16.0.0", "172.16.0.0/33", "fd00::/129", "/8"] {
        assert!(text.parse::<Prefix>().is_err(), "{text}");
    }
}

/// The example with two edges, and what its file says of clients.
fn two_edges(clients: &str) -> String {
    let edge = |name: &str, last: u8| {
        format!(
            "[[edge]]\nname = \"{name}\"\nlisten = \"10.9.0.{last}:7700\"\nclients = [\"eth0\"]\n"
        )
    };
    let (start, rest) = GOOD.split_once("\n[edge]\n").expect("an edge");
    let (_, rest) = rest.split_once("#[recover]").expect("the next section");
    format!("{start}\n{}{}\n{clients}\n#[recover]{rest}", edge("e1", 1), edge("e2", 4))
}

#[test]
fn there_may_be_several_edges() {
    let clients = "[clients]\ngateway = [\"10.8.1.254\"]\nroutes_table = 200";
    let config = parse(&two_edges(clients)).unwrap();
    let names: Vec<&str> = config.edges.iter().map(|edge| edge.name.as_str()).collect();
    assert_eq!(names, ["e1", "e2"]);
    assert_eq!(config.edge("e2").unwrap().listen, "10.9.0.4:7700".parse().unwrap());
    assert_eq!(config.clients.routes_table, Some(200));
    assert_eq!(parse(&config.effective()).unwrap().effective(), config.effective());
    let file = GroupFile::parse(Path::new("web.toml"), &two_edges(clients)).unwrap();
    assert!(file.role(Some("c")).unwrap_err().ends_with("e1, e2, a, b"));
    assert!(parse(&two_edges("")).unwrap().clients.is_empty());
}

#[test]
fn several_edges_are_checked_together() {
    let clients = "[clients]\ngateway = [\"10.8.1.254\"]\nroutes_table = 200";
    let good = two_edges(clients);
    for (from, to, message) in [
        ("name = \"e2\"", "name = \"e1\"", "the same name"),
        ("name = \"e2\"\n", "", "an edge among several has no name"),
        ("name = \"e2\"", "name = \"a\"", "`a` is the name of an edge"),
        ("10.9.0.4:7700", "10.9.0.1:7700", "the same listen"),
        ("10.9.0.4:7700", "10.9.0.100:7700", "10.9.0.100 is an address of the group"),
        ("7700\"\nclients", "7700\"\nmtu = 1520\nclients", "differ in outer4, outer6 or mtu"),
        ("10.8.1.254", "10.9.0.100", "is an address of the group or of one edge"),
        ("\"10.8.1.254\"", "\"10.8.1.254\", \"10.8.1.253\"", "two addresses of one family"),
        ("clients = [\"eth0\"]", "clients = [\"eth0\", \"eth1\"]", "has 2 client interfaces"),
        ("routes_table = 200", "routes_table = 254", "routes this host's own packets"),
        ("routes_table = 200", "route_table = 200", "unknown key"),
        (
            "name = \"e1\"",
            "name = \"e1\"\npublic_keys = [\"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\"]",
            "several edges need the shared key",
        ),
    ] {
        assert!(good.contains(from), "{from}");
        let error = parse(&good.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(message), "{to}: {error}");
    }
}
