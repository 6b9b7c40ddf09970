//! Three network namespaces for the tests of this crate: a client with one link to a primary and
//! one to a backup. The client's route determines which of the two has the service address.

pub mod takeover;

use holdfast_linux::netns;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub const PORT: u16 = 7000;

static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct World {
    tag: String,
    pub v6: bool,
}

impl World {
    pub fn new(v6: bool) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let world = Self { tag: format!("hflnx{}x{number}", std::process::id() % 10_000), v6 };
        for role in ["c", "p", "b"] {
            world.host(&["netns", "add", &world.netns(role)]);
            world.ip(role, "link set lo up");
            // IPv6 addresses work at once, including link-local ones.
            world.sysctl(role, "ipv6/conf/default/accept_dad", "0");
        }
        for (role, link) in [("p", "cp"), ("b", "cb")] {
            let peer = world.netns(role);
            world.ip("c", &format!("link add {link} type veth peer name m0 netns {peer}"));
            world.ip("c", &format!("link set {link} up"));
            // The address is on both links, since IPv6 answers for an address only where it is.
            world.ip("c", &format!("addr add {} dev {link} nodad", world.prefix(world.client())));
            world.ip(role, "link set m0 up");
            world.ip(role, &format!("addr add {} dev m0 nodad", world.prefix(world.member(role))));
            world.ip(role, &format!("route add {} dev m0", world.prefix(world.client())));
        }
        world.ip("c", &format!("addr add {} dev lo nodad", world.prefix(world.client())));
        world.ip("p", &format!("addr add {} dev m0 nodad", world.prefix(world.vip())));
        world.route_to("cp");
        world
    }

    /// Sets the client's route to the service address.
    pub fn route_to(&self, link: &str) {
        let (vip, client) = (self.prefix(self.vip()), self.client());
        self.ip("c", &format!("route replace {vip} dev {link} src {client}"));
    }

    pub fn vip(&self) -> IpAddr {
        if self.v6 { "fd09::100" } else { "10.9.0.100" }.parse().unwrap()
    }

    pub fn client(&self) -> IpAddr {
        if self.v6 { "fd08::2" } else { "10.8.0.2" }.parse().unwrap()
    }

    fn member(&self, role: &str) -> IpAddr {
        let last = if role == "p" { 2 } else { 3 };
        if self.v6 { format!("fd09::{last}") } else { format!("10.9.0.{last}") }.parse().unwrap()
    }

    pub fn service(&self) -> SocketAddr {
        SocketAddr::new(self.vip(), PORT)
    }

    fn prefix(&self, address: IpAddr) -> String {
        format!("{address}/{}", if self.v6 { 128 } else { 32 })
    }

    pub fn netns(&self, role: &str) -> String {
        format!("{}{role}", self.tag)
    }

    /// A connection of the client to the service.
    pub fn connect(&self) -> TcpStream {
        let service = self.service();
        let patience = Duration::from_secs(20);
        self.within("c", || TcpStream::connect_timeout(&service, patience).unwrap())
    }

    /// Runs `ip ARGUMENTS` in the namespace of `role`.
    pub fn ip(&self, role: &str, arguments: &str) -> String {
        let netns = self.netns(role);
        let mut all = vec!["-n", &netns];
        all.extend(arguments.split(' '));
        self.host(&all)
    }

    fn host(&self, arguments: &[&str]) -> String {
        let output = Command::new("ip").args(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn sysctl(&self, role: &str, name: &str, value: &str) {
        let (path, value) = (format!("/proc/sys/net/{name}"), value.to_owned());
        self.within(role, move || std::fs::write(path, value).unwrap());
    }

    /// Runs `work` in the namespace of `role`; sockets that it opens stay there.
    pub fn within<T: Send>(&self, role: &str, work: impl FnOnce() -> T + Send) -> T {
        let path = PathBuf::from("/run/netns").join(self.netns(role));
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                netns::enter(&path).unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for role in ["c", "p", "b"] {
            let _ = Command::new("ip").args(["netns", "del", &self.netns(role)]).status();
        }
    }
}

/// Byte `offset` of a stream that does not repeat within a few kilobytes.
pub fn pattern(offset: usize) -> u8 {
    let mixed = (offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8 ^ offset as u8
}

pub fn pattern_range(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(pattern).collect()
}
