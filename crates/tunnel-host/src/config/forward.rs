//! Ports that lead through the tunnel: `forward` says what listens here and where it leads as the
//! other end sees it, `allow` says where the other end may be led from here.

use super::error::Findings;
use std::fmt;
use std::net::SocketAddr;
use toml::Spanned;

/// How a forward or a permission looks.
const FORWARD: &str = "write \"udp 127.0.0.1:5300 -> 10.0.0.5:53\": what listens here, and where the \
                       other end sends it; host names are not looked up";
const ALLOW: &str = "write \"udp 10.0.0.5:53\": host names are not looked up";

/// What is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// A port here that leads to an address of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    pub transport: Transport,
    pub listen: SocketAddr,
    pub target: SocketAddr,
}

/// An address here that the other end's forwards may lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allow {
    pub transport: Transport,
    pub target: SocketAddr,
}

/// All forwards of a file. `own` is where this end listens for its peer.
pub(super) fn check_forwards(
    findings: &mut Findings,
    texts: &[Spanned<String>],
    own: Option<SocketAddr>,
) -> Vec<Forward> {
    let mut forwards: Vec<Forward> = Vec::new();
    for text in texts {
        let Some(forward) = check_forward(findings, text) else { continue };
        let Forward { transport, listen, .. } = forward;
        let is_taken = |it: &&Forward| it.transport == transport && meet(it.listen, listen);
        if let Some(other) = forwards.iter().find(is_taken) {
            findings.add(
                text.span(),
                format!("another forward listens at {transport} {} already", other.listen),
                "each forward listens at a port of its own: choose another one, or remove one of both",
            );
        }
        if let Some(own) = own.filter(|own| transport == Transport::Udp && meet(*own, listen)) {
            findings.add(
                text.span(),
                format!("udp {listen} is where this end listens for its peer, listen = \"{own}\""),
                "choose another port for the forward",
            );
        }
        forwards.push(forward);
    }
    forwards
}

/// Whether a kernel lets only one of two sockets listen. Whether one of IPv6 takes IPv4 along is a
/// setting of the host, and shows there.
fn meet(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    let is_same_port = one.port() == other.port() && one.port() != 0;
    is_same_port && one.is_ipv4() == other.is_ipv4() && (is_any || one == other)
}

fn check_forward(findings: &mut Findings, text: &Spanned<String>) -> Option<Forward> {
    let parsed = read_forward(text.get_ref());
    if parsed.is_none() {
        findings.add(text.span(), format!("\"{}\" is no forward", text.get_ref()), FORWARD);
    }
    parsed
}

pub(super) fn check_allow(findings: &mut Findings, text: &Spanned<String>) -> Option<Allow> {
    let parsed = read_allow(text.get_ref());
    if parsed.is_none() {
        findings.add(text.span(), format!("\"{}\" is no target", text.get_ref()), ALLOW);
    }
    parsed
}

fn read_forward(text: &str) -> Option<Forward> {
    let (from, target) = text.split_once("->")?;
    let (transport, listen) = from.trim().split_once(char::is_whitespace)?;
    let (listen, target) = (listen.trim().parse().ok()?, of_host(target)?);
    Some(Forward { transport: transport_of(transport)?, listen, target })
}

fn read_allow(text: &str) -> Option<Allow> {
    let (transport, target) = text.trim().split_once(char::is_whitespace)?;
    Some(Allow { transport: transport_of(transport)?, target: of_host(target)? })
}

fn transport_of(word: &str) -> Option<Transport> {
    match word {
        "tcp" => Some(Transport::Tcp),
        "udp" => Some(Transport::Udp),
        _ => None,
    }
}

/// The address of one host and port.
fn of_host(text: &str) -> Option<SocketAddr> {
    let address: SocketAddr = text.trim().parse().ok()?;
    let ip = address.ip();
    (address.port() != 0 && !ip.is_unspecified() && !ip.is_multicast()).then_some(address)
}
