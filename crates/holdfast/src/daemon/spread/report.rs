//! What a spread group's edge says of itself and of packets.

use super::edge::SpreadEdge;
use crate::admin::{EDGE_SCHEMA, TraceRequest};
use crate::config::Kind;
use crate::status::{Peer, Role, State, Status};
use holdfast_linux::bpf::{How, Question, ServiceKey, Traced, Verdict};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// As the file writes it.
pub(super) fn service_name(service: &ServiceKey) -> String {
    let address = SocketAddr::new(service.address, service.port);
    format!("{address}{}", if service.udp { "/udp" } else { "" })
}

impl SpreadEdge<'_> {
    /// The answer to `edge show`.
    pub(super) fn show(&self) -> Value {
        let flows = self.bpf.flows();
        let services = self.roster.services().map(|(service, slots)| {
            let members: Vec<&str> = slots.iter().map(|&slot| self.name_of(slot)).collect();
            json!({ "address": service_name(service), "members": members })
        });
        let members = self.placed.iter().map(|placed| {
            let ways = placed.host.v4.iter().chain(&placed.host.v6);
            let tunnels: Vec<IpAddr> = ways.clone().map(|way| way.address).collect();
            json!({
                "name": placed.name,
                "state": self.roster.condition(placed.slot).name(),
                "weight": self.roster.weight(placed.slot),
                "flows": flows.per_host.get(usize::from(placed.slot)),
                "tunnels": tunnels,
                "method": if placed.host.layer2 { "layer-2" } else { "ip-in-ip" },
                "mtu": ways.filter(|way| way.ifindex != 0).map(|way| way.mtu).min(),
            })
        });
        let counters: BTreeMap<&str, u64> = self.bpf.counters().into_iter().collect();
        json!({
            "schema": EDGE_SCHEMA,
            "group": self.config.group.name,
            "kind": Kind::Spread,
            "services": services.collect::<Vec<_>>(),
            "members": members.collect::<Vec<_>>(),
            "flows": { "count": flows.count, "max": flows.max },
            "cache": null,
            "regulate": null,
            "counters": counters,
        })
    }

    pub(super) fn status(&self) -> Status {
        let mut status = Status::new(&self.config.group.name, "edge");
        status.role = Role::Edge;
        (status.state, status.reason, status.remedy) = self.judge();
        status.connections = self.bpf.flows().count as u64;
        status.peers =
            self.placed.iter().map(|placed| self.peer(&placed.name, placed.slot)).collect();
        let counters = self.bpf.counters().into_iter();
        status.counters = counters.map(|(name, count)| (format!("edge.{name}"), count)).collect();
        let refused = self.listener.refused();
        status.counters.insert("edge.channels_refused".to_owned(), refused);
        status
    }

    fn peer(&self, name: &str, slot: u8) -> Peer {
        let connected = self.links.iter().any(|l| l.name == name && l.is_connected());
        let note = self.roster.condition(slot).name().to_owned();
        Peer { name: name.to_owned(), connected, note }
    }

    /// A spread group is protected if every service has two host servers.
    fn judge(&self) -> (State, String, String) {
        let weakest = self.roster.services().min_by_key(|(_, slots)| slots.len());
        let Some((service, slots)) = weakest else {
            let remedy = "start holdfast on the host servers, and their servers";
            return (State::Waiting, "nothing is announced".to_owned(), remedy.to_owned());
        };
        let name = service_name(service);
        match slots[..] {
            [] => {
                let remedy = "look at `holdfast edge show`, and start a server on a host server";
                (State::Waiting, format!("nobody serves {name}"), remedy.to_owned())
            }
            [only] => {
                let reason = format!("only {} serves {name}", self.name_of(only));
                (State::Unprotected, reason, "start its server on another host".to_owned())
            }
            _ => (State::Protected, String::new(), String::new()),
        }
    }
}

pub(in super::super) fn question_of(request: &TraceRequest) -> Question {
    let TraceRequest { from, to, udp, syn, payload_bytes } = *request;
    Question { from, to, udp, syn, payload_bytes }
}

/// The answer to `edge trace`.
pub(in super::super) fn traced<'a>(
    request: &TraceRequest,
    traced: &Traced,
    name: impl Fn(u8) -> &'a str,
) -> Value {
    let answered = traced.verdict == Verdict::Redirected && is_icmp(traced.ip());
    let verdict = match traced.verdict {
        Verdict::Plain => "plain: the stack forwards it",
        Verdict::Redirected if answered => "answered: it does not fit",
        Verdict::Redirected => "redirected",
        Verdict::Dropped => "dropped",
    };
    let why = match traced.how {
        How::Unknown => None,
        How::Flow => Some("its flow is there"),
        How::Embryo => Some("its SYN went there"),
        How::New => Some("a new flow would go there"),
        How::Stray => Some("its flow is not known; by the table"),
    };
    let mut rewritten = Vec::new();
    if traced.verdict == Verdict::Redirected {
        rewritten = rewrites(traced);
    }
    json!({
        "verdict": verdict,
        "flow": format!("{} > {}", request.from, request.to),
        "member": traced.member.filter(|_| !answered).map(name),
        "why": why,
        "rewritten": rewritten,
    })
}

fn is_icmp(ip: &[u8]) -> bool {
    match ip.first().map(|byte| byte >> 4) {
        Some(4) => ip.get(9) == Some(&1),
        _ => ip.get(6) == Some(&58),
    }
}

/// What is different in the frame that leaves.
fn rewrites(traced: &Traced) -> Vec<String> {
    let mut lines = Vec::new();
    let (before, after) = (traced.before.get(14..).unwrap_or_default(), traced.ip());
    if let Some((source, target, header)) = ends(after) {
        let grown = after.len().saturating_sub(before.len());
        if is_icmp(after) {
            let mtu = after.get(header + 6..header + 8).unwrap_or(&[0, 0]);
            let mtu6 = after.get(header + 4..header + 8).unwrap_or(&[0; 4]);
            let mtu = if source.is_ipv4() {
                u32::from(mtu[0]) << 8 | u32::from(mtu[1])
            } else {
                mtu6.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
            };
            lines.push(format!("ICMP error from {source} to {target}: at most {mtu} bytes"));
        } else if grown == header {
            lines.push(format!("outer header {source} > {target}, {grown} bytes"));
        }
    }
    if let Some(ttl) = inner_ttl(before, after) {
        lines.push(format!("TTL {} > {}", ttl.0, ttl.1));
    }
    if traced.before.get(..12) != traced.after.get(..12) {
        lines.push(format!(
            "hardware addresses {} > {}",
            mac(traced.after.get(6..12)),
            mac(traced.after.get(..6))
        ));
    }
    lines
}

/// Source, target and length of the IP header.
fn ends(ip: &[u8]) -> Option<(IpAddr, IpAddr, usize)> {
    if ip.first()? >> 4 == 4 {
        let at = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
        return Some((at(12)?, at(16)?, 20));
    }
    let at = |at: usize| {
        let octets: [u8; 16] = ip.get(at..at + 16)?.try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    Some((at(8)?, at(24)?, 40))
}

/// The hops left before and afterwards, where the packet is the same otherwise.
fn inner_ttl(before: &[u8], after: &[u8]) -> Option<(u8, u8)> {
    let at = if before.first()? >> 4 == 4 { 8 } else { 7 };
    let inner = after.get(after.len().checked_sub(before.len())?..)?;
    let (old, new) = (*before.get(at)?, *inner.get(at)?);
    (old != new && new.checked_add(1) == Some(old)).then_some((old, new))
}

fn mac(bytes: Option<&[u8]>) -> String {
    let pairs = bytes.unwrap_or_default().iter().map(|byte| format!("{byte:02x}"));
    pairs.collect::<Vec<_>>().join(":")
}
