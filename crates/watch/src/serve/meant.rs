//! Whom a browser means by a name: a page of somebody else's, whose name was made to lead here
//! after it was loaded (DNS rebinding), must not read what is served to the people who look.

use hyper::header::{HOST, HeaderMap, USER_AGENT};
use std::net::{IpAddr, Ipv6Addr};

/// Whether a browser's request means this host: by an address, by `localhost`, or by a name without
/// dots, which nobody can own who is not of this network.
pub fn by_browser(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    host.is_none_or(is_own_name)
}

/// As [`by_browser`]; programs, as Prometheus, may use any name.
pub fn by_program(headers: &HeaderMap) -> bool {
    let agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    !agent.is_some_and(|agent| agent.starts_with("Mozilla/")) || by_browser(headers)
}

fn is_own_name(host: &str) -> bool {
    if let Some(inside) = host.strip_prefix('[') {
        return inside.split_once(']').is_some_and(|(ip, _)| ip.parse::<Ipv6Addr>().is_ok());
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _port)| name);
    let name = name.strip_suffix('.').unwrap_or(name);
    name.parse::<IpAddr>().is_ok() || !name.contains('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn headers(host: &str, agent: &str) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        HeaderMap::from_iter([(HOST, value(host)), (USER_AGENT, value(agent))])
    }

    #[test]
    fn addresses_and_names_of_this_network_are_meant() {
        let own = [
            "10.9.0.1:9465",
            "[fd09::1]:9465",
            "[::1]",
            "localhost:9465",
            "edge",
            "edge:1",
            "edge.:1",
        ];
        for host in own {
            assert!(by_browser(&headers(host, "Mozilla/5.0")), "{host}");
        }
        assert!(by_browser(&HeaderMap::new()), "HTTP/1.0");
        for host in ["evil.example:9465", "10.9.0.1.evil.example", "[evil.example]:1", "[::1"] {
            assert!(!by_browser(&headers(host, "Mozilla/5.0")), "{host}");
            assert!(!by_program(&headers(host, "Mozilla/5.0 (X11)")), "{host}");
            assert!(by_program(&headers(host, "Prometheus/3.0")), "{host}");
        }
    }
}
