//! The answer to `edge trace`: what the loaded program would do with a packet.

use crate::admin::TraceRequest;
use holdfast_linux::bpf::{How, Question, Traced, Verdict};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv6Addr};

/// The packet that the kernel is asked about.
pub(super) fn question_of(request: &TraceRequest) -> Question {
    let TraceRequest { from, to, udp, syn, payload_bytes } = *request;
    Question { from, to, udp, syn, payload_bytes }
}

/// The answer to `edge trace`.
pub(super) fn answer<'a>(
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
        How::Embryo => Some("its SYN, or its first packet that was seen, went there"),
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

/// The differences between the packet that arrives and the frame that leaves, one a line.
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

/// Source, destination and header length in bytes of an IP packet.
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

/// TTL (or hop limit) of the packet before, and of the inner packet afterwards, if it was
/// decremented by one.
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
