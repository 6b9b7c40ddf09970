//! HAProxy on the edge's host, in front of servers: what Holdfast is compared with.

use super::host::Host;
use super::server::{PlainServer, Recipe};
use anyhow::{Context as _, Result};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Where Debian installs it.
const PROGRAM: &str = "/usr/sbin/haproxy";

/// An address that the proxy serves.
pub struct Front {
    /// The address, with its port.
    pub bind: String,
    /// What follows the word `server`: a name, an address with a port, and how it is watched.
    pub servers: Vec<String>,
}

/// Starts HAProxy on `host` and waits until it listens on `port`, which all of `fronts` have.
///
/// # Errors
/// When it is not installed or does not start.
pub fn start(host: &Host, port: u16, fronts: &[Front]) -> Result<PlainServer> {
    let outside = host.outside().join("haproxy.cfg");
    fs::write(&outside, config(fronts)?)?;
    let inside = host.inside().join("haproxy.cfg").display().to_string();
    let recipe = Recipe {
        program: PROGRAM.into(),
        port,
        has_ipv6: true,
        command: [PROGRAM, "-db", "-q", "-f", &inside].map(str::to_owned).to_vec(),
        directory: Path::new("/").into(),
        user: "nobody",
        env: Vec::new(),
        state_dirs: Vec::new(),
    };
    recipe.start_plain(host).context("haproxy is missing? run scripts/setup")
}

/// `redispatch 1`: whom one server refuses gets another one at once (HAProxy's Configuration
/// Manual, "option redispatch"). The limit of connections keeps it below the limit of open files.
fn config(fronts: &[Front]) -> Result<String> {
    let mut text =
        "global\n nbthread 2\n maxconn 4096\ndefaults\n mode tcp\n timeout connect 5s\n \
                    timeout client 60s\n timeout server 60s\n option splice-auto\n \
                    option redispatch 1\n"
            .to_owned();
    for (number, front) in fronts.iter().enumerate() {
        writeln!(text, "listen front{number}\n bind {}", front.bind)?;
        for server in &front.servers {
            writeln!(text, " server {server}")?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_has_its_servers() {
        let front = |bind: &str, server: &str| Front {
            bind: bind.to_owned(),
            servers: vec![server.to_owned()],
        };
        let text = config(&[front("10.0.0.1:80", "a 10.0.0.2:80"), front("[fd::1]:80", "b x")]);
        let text = text.expect("a string takes all");
        let fronts = "listen front0\n bind 10.0.0.1:80\n server a 10.0.0.2:80\n\
                      listen front1\n bind [fd::1]:80\n server b x\n";
        assert!(text.ends_with(fronts), "{text}");
    }
}
