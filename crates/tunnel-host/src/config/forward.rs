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

pub(super) fn check_forward(findings: &mut Findings, text: &Spanned<String>) -> Option<Forward> {
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
