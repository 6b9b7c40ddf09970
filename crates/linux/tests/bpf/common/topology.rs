//! Four hosts as network namespaces: client, edge (a router with a bridge), primary and backup. The
//! primary has the service addresses.

use super::sh;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::thread::{self, JoinHandle};

pub const VIP4: &str = "10.9.0.100";
pub const VIP6: &str = "fd00:9::100";
pub const PRIMARY_MAC: [u8; 6] = [2, 0, 0, 0, 9, 2];
pub const BACKUP_MAC: [u8; 6] = [2, 0, 0, 0, 9, 3];

/// The namespaces, which are removed with everything in them when this is dropped.
pub struct Topology {
    prefix: String,
}

impl Topology {
    /// Builds the hosts. Interfaces: client c0, edge ec, ep, eb and br0, primary p0, backup b0.
    pub fn new(tag: &str) -> Self {
        let topology = Self { prefix: format!("hfbpf{}{tag}", std::process::id()) };
        for host in ["cli", "edge", "pri", "bak"] {
            sh(&format!("ip netns add {}", topology.name(host)));
            topology.ip(host, "link set lo up");
        }
        topology.link("cli", "c0", "02:00:00:00:08:02", "ec", "02:00:00:00:08:01");
        topology.link("pri", "p0", "02:00:00:00:09:02", "ep", "02:00:00:00:01:01");
        topology.link("bak", "b0", "02:00:00:00:09:03", "eb", "02:00:00:00:01:02");
        topology.ip("edge", "link add br0 address 02:00:00:00:09:01 type bridge");
        topology.ip("edge", "link set br0 up");
        topology.ip("edge", "link set ep master br0");
        topology.ip("edge", "link set eb master br0");
        sh(&format!(
            "ip netns exec {} sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
            topology.name("edge")
        ));
        for (host, link, v4, v6) in [
            ("cli", "c0", "10.8.0.2/24", "fd00:8::2/64"),
            ("edge", "ec", "10.8.0.1/24", "fd00:8::1/64"),
            ("edge", "br0", "10.9.0.1/24", "fd00:9::1/64"),
            ("pri", "p0", "10.9.0.2/24", "fd00:9::2/64"),
            ("bak", "b0", "10.9.0.3/24", "fd00:9::3/64"),
            ("pri", "p0", "10.9.0.100/32", "fd00:9::100/128"),
        ] {
            topology.ip(host, &format!("addr add {v4} dev {link}"));
            topology.ip(host, &format!("addr add {v6} dev {link} nodad"));
        }
        for (host, net) in [("cli", 8), ("pri", 9), ("bak", 9)] {
            topology.ip(host, &format!("route add default via 10.{net}.0.1"));
            topology.ip(host, &format!("-6 route add default via fd00:{net}::1"));
        }
        topology
    }

    fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    fn ip(&self, host: &str, line: &str) {
        sh(&format!("ip -n {} {line}", self.name(host)));
    }

    fn link(&self, host: &str, near: &str, near_mac: &str, far: &str, far_mac: &str) {
        let (host_name, edge) = (self.name(host), self.name("edge"));
        sh(&format!(
            "ip link add {near} netns {host_name} address {near_mac} type veth \
             peer name {far} netns {edge} address {far_mac}"
        ));
        self.ip(host, &format!("link set {near} up"));
        self.ip("edge", &format!("link set {far} up"));
    }

    /// Moves the calling thread to `host`.
    pub fn enter(&self, host: &str) {
        let path = format!("/run/netns/{}", self.name(host));
        let namespace = File::open(path).expect("namespace");
        // SAFETY: setns concerns this thread only and takes no pointers.
        let status = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(status, 0, "setns");
    }

    /// Runs `work` on a new thread on `host`.
    pub fn on<T: Send + 'static>(
        &self,
        host: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let there = Self { prefix: self.prefix.clone() };
        let host = host.to_owned();
        thread::spawn(move || {
            there.enter(&host);
            // Only the original must remove the namespaces.
            std::mem::forget(there);
            work()
        })
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        for host in ["cli", "edge", "pri", "bak"] {
            let name = self.name(host);
            let _absent = std::process::Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}
