//! What stands in front of the members: an edge (`[edge]`), or nothing but the segment of the
//! network that they share with their clients' router (`[segment]`), and then who decides between
//! them (`[arbiter]`).

use super::super::checks::{
    THROUGH_CLIENTS, check_address, check_interface, check_interfaces, number, unspecified,
};
use super::super::error::Findings;
use super::super::explain::{example, suggestion};
use super::super::keys::{RawKeys, check_keys};
use super::arbiter::{self, Arbiter, RawArbiter};
use super::{Edge, FLOWS_MAX, Mac, Member};
use holdfast_linux::bpf::EDGE_FLOWS_DEFAULT;
use holdfast_wire::segment::Mode as SegmentMode;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The table `[segment]` of a pair without an edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Segment {
    /// Hardware address of the service, which no host has.
    pub mac: Mac,
    /// How what goes there reaches both members.
    pub mode: SegmentMode,
    /// The member that is preferred at the very first start (decision 21).
    pub first: String,
}

/// The front as it was checked.
pub(super) struct Front {
    pub edge: Option<Edge>,
    pub segment: Option<Segment>,
    pub arbiter: Option<Arbiter>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEdge {
    listen: Spanned<String>,
    clients: Spanned<Vec<Spanned<String>>>,
    l3: Option<Spanned<String>>,
    state_file: Option<PathBuf>,
    first: Option<Spanned<String>>,
    flows_max: Option<Spanned<u64>>,
    public_keys: RawKeys,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSegment {
    mac: Option<Spanned<String>>,
    mode: Option<SegmentMode>,
    first: Option<Spanned<String>>,
}

/// The three tables as they are written.
pub(super) struct RawFront {
    pub edge: Option<RawEdge>,
    pub segment: Option<Spanned<RawSegment>>,
    pub arbiter: Option<Spanned<RawArbiter>>,
}

/// What an arbiter is for, where one is missing.
const NO_ARBITER: &str = "a group without an edge has nobody who decides which member goes on when \
    they do not hear each other";
pub(super) fn check(
    findings: &mut Findings,
    raw: RawFront,
    members: &[Member],
    group: &str,
    folder: &Path,
) -> Front {
    let RawFront { edge, segment, arbiter } = raw;
    match (&edge, &segment) {
        (None, None) => {
            let remedy = format!("{}, or [segment] for a pair without one", example("edge"));
            findings.add(0..0, "`edge` is missing", remedy);
        }
        (Some(_), Some(segment)) => findings.add(
            segment.span(),
            "a pair has an edge or a segment, not both",
            "remove [segment], or [edge]",
        ),
        (Some(_), None) => {
            if let Some(arbiter) = &arbiter {
                let remedy = "remove [arbiter]: the edge decides, and keeps it in its state_file";
                findings.add(arbiter.span(), "a group with an edge has no other arbiter", remedy);
            }
        }
        (None, Some(segment)) if arbiter.is_none() => {
            findings.add(segment.span(), NO_ARBITER, arbiter::CHOICES);
        }
        (None, Some(_)) => {}
    }
    let arbiter = arbiter.map(|raw| arbiter::check(findings, raw, members, folder));
    let edge = edge.map(|raw| check_edge(findings, raw, members, group, folder));
    let segment = segment.map(|raw| check_segment(findings, raw.into_inner(), members, group));
    Front { edge, segment, arbiter }
}

fn check_segment(
    findings: &mut Findings,
    raw: RawSegment,
    members: &[Member],
    group: &str,
) -> Segment {
    let written = raw.mac.filter(|mac| mac.get_ref() != "auto");
    let mac = written.map_or_else(
        || mac_of(group),
        |written| {
            written.get_ref().parse().unwrap_or_else(|remedy: &str| {
                let message = format!("mac = \"{}\" is not a hardware address", written.get_ref());
                findings.add(written.span(), message, remedy);
                mac_of(group)
            })
        },
    );
    let mode = raw.mode.unwrap_or_default();
    Segment { mac, mode, first: check_first(findings, raw.first, members) }
}

/// A locally administered address that this group has by its name (IEEE 802-2014 §8.2.2).
pub(in crate::config) fn mac_of(group: &str) -> Mac {
    // FNV-1a, which is the same on every host and in every release.
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let [a, b, c, _] = group.bytes().fold(0x811c_9dc5, mix).to_le_bytes();
    Mac([0x02, 0x68, 0x66, a, b, c])
}

fn check_first(
    findings: &mut Findings,
    first: Option<Spanned<String>>,
    members: &[Member],
) -> String {
    let names: Vec<&str> = members.iter().map(|m| m.name.as_str()).collect();
    if let Some(first) = first.as_ref().filter(|first| !names.contains(&first.get_ref().as_str())) {
        findings.add(
            first.span(),
            format!("first = \"{}\" is not a member", first.get_ref()),
            suggestion(first.get_ref(), &names)
                .unwrap_or_else(|| format!("one of: {}", names.join(", "))),
        );
    }
    let default = || names.first().map_or_else(String::new, |name| (*name).to_owned());
    first.map_or_else(default, Spanned::into_inner)
}

fn check_edge(
    findings: &mut Findings,
    raw: RawEdge,
    members: &[Member],
    group: &str,
    folder: &Path,
) -> Edge {
    let listen = check_address(findings, &raw.listen);
    let shares = |it: &&Member| listen.is_some_and(|listen| listen.ip() == it.address.ip());
    if let Some(member) = members.iter().find(shares) {
        findings.add(
            raw.listen.span(),
            format!("{} is the address of {}, too", member.address.ip(), member.name),
            "the edge is a host of its own, in front of the members",
        );
    }
    let client_spans: Vec<_> = raw.clients.get_ref().iter().map(Spanned::span).collect();
    let clients = check_interfaces(findings, "clients", raw.clients, THROUGH_CLIENTS);
    for (name, spanned) in clients.iter().zip(client_spans) {
        let leads = |it: &&Member| it.port.as_ref().is_some_and(|port| port.edge_port == *name);
        let member = members.iter().find(leads);
        let is_inner = raw.l3.as_ref().is_some_and(|l3| l3.get_ref() == name);
        if name == "lo" || member.is_some() || is_inner {
            let whose = match member {
                Some(member) => member.name.as_str(),
                None if is_inner => "the members (`l3`)",
                None => "itself",
            };
            findings.add(
                spanned,
                format!("clients do not come through {name}: it leads to {whose}"),
                format!("name the interfaces {THROUGH_CLIENTS}"),
            );
        }
    }
    if let Some(l3) = &raw.l3 {
        check_interface(findings, l3);
    }
    let default = u64::from(EDGE_FLOWS_DEFAULT);
    let flows_max = number(findings, "flows_max", raw.flows_max, default, FLOWS_MAX, "flows");
    let state_file =
        raw.state_file.unwrap_or_else(|| PathBuf::from(format!("/var/lib/holdfast/{group}.epoch")));
    Edge {
        listen: listen.unwrap_or_else(unspecified),
        clients,
        l3: raw.l3.map(Spanned::into_inner),
        state_file: folder.join(state_file),
        first: check_first(findings, raw.first, members),
        flows_max: flows_max as u32,
        public_keys: check_keys(findings, raw.public_keys),
    }
}

impl Front {
    /// Addresses of hosts that are no members, and their names.
    pub(super) fn hosts(&self) -> Vec<(IpAddr, &'static str)> {
        let edge = self.edge.iter().map(|edge| (edge.listen.ip(), "the edge"));
        let witness = self.arbiter.iter().filter_map(Arbiter::witness);
        edge.chain(witness.map(|at| (at.ip(), "the witness"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigErrors};
    use super::SegmentMode;
    use std::path::Path;

    const EXAMPLE: &str = include_str!("../../../../../docs/example-segment.toml");

    fn parse(text: &str) -> Result<Config, ConfigErrors> {
        Config::parse(Path::new("/etc/holdfast/demo.toml"), text)
    }

    #[test]
    fn a_pair_without_an_edge_has_its_defaults() {
        let config = parse(EXAMPLE).unwrap();
        assert_eq!((config.edge.is_none(), config.first()), (true, "a"));
        assert!(config.members.iter().all(|member| member.port.is_none()));
        let mac = config.segment.as_ref().unwrap().mac;
        assert_eq!(mac.to_string()[..9], *"02:68:66:");
        let other = parse(&EXAMPLE.replacen("\"demo\"", "\"web\"", 1)).unwrap();
        assert_ne!(other.segment.as_ref().unwrap().mac, mac, "two groups on one segment");
        let own = EXAMPLE.replacen("# mac = \"auto\"", "mac = \"02:00:00:00:00:77\"", 1);
        let own = parse(&own.replacen("# first = \"a\"", "first = \"b\"", 1)).unwrap();
        assert_eq!(own.segment.as_ref().unwrap().mac.to_string(), "02:00:00:00:00:77");
        assert_eq!(own.first(), "b");
        assert_eq!(own.segment.as_ref().unwrap().mode, SegmentMode::Flood);
        for mode in SegmentMode::ALL {
            let line = format!("mode = \"{}\"", mode.word());
            let of = parse(&EXAMPLE.replacen("# mode = \"flood\"", &line, 1)).unwrap();
            assert_eq!(of.segment.as_ref().unwrap().mode, mode);
        }
        let arbiter = config.arbiter.as_ref().unwrap();
        assert_eq!(arbiter.witness(), Some("10.9.0.9:7702".parse().unwrap()));
        assert_eq!(arbiter.state_dir, Path::new("/var/lib/holdfast/witness"));
    }

    #[test]
    fn what_does_not_go_with_a_segment_is_explained() {
        let edge = "[edge]\nlisten = \"10.9.0.1:7700\"\nclients = [\"ec\"]\n[segment]";
        let cases = [
            ("[segment]", edge, "a pair has an edge or a segment, not both"),
            ("[segment]", "", "`edge` is missing"),
            ("# mac = \"auto\"", "mac = \"03:00:00:00:00:0a\"", "is not a hardware address"),
            ("# first = \"a\"", "first = \"c\"", "is not a member"),
            ("# mode = \"flood\"", "mode = \"chian\"", "did you mean `chain`?"),
            ("# mode = \"flood\"", "mode = \"edge\"", "one of: flood, chain, clone"),
            ("10.9.0.9:7702", "10.9.0.3:7702", "10.9.0.3 is the address of b, too"),
            ("10.9.0.100:6379", "10.9.0.9:6379", "10.9.0.9 is the address of the witness"),
            (
                "# heartbeat_ms = 18 ",
                "heartbeat_ms = 101 ",
                "101 is out of range for a pair without an edge: 5 to 100",
            ),
            (
                "interface = \"b0\"",
                "interface = \"b0\"\nedge_port = \"eb\"",
                "edge_port means nothing where no edge",
            ),
            (
                "interface = \"b0\"",
                "interface = \"b0\"\nmac = \"02:00:00:00:00:0b\"",
                "mac means nothing where no edge",
            ),
            ("# heartbeat_ms = 18 ", "mode = \"cold\" ", "a group without an edge is hot"),
            ("# heartbeat_ms = 18 ", "rebuild = true ", "does not rebuild its server"),
            ("name = \"b\"", "name = \"witness\"", "cannot be called `witness`"),
        ];
        for (from, to, expected) in cases {
            assert!(EXAMPLE.contains(from), "{from}");
            let shown = parse(&EXAMPLE.replacen(from, to, 1)).expect_err(to).to_string();
            assert!(shown.contains(expected) && shown.contains("remedy: "), "{to}: {shown}");
        }
        let (before, after) = EXAMPLE.split_once("[arbiter]").unwrap();
        let without = format!("{before}{}", &after[after.find("[[member]]").unwrap()..]);
        let shown = parse(&without).unwrap_err().to_string();
        assert!(shown.contains("`holdfast witness` on any third host"), "{shown}");
    }
}
