//! A redirector with two host servers, and frames that go through it.

use super::{Capture, Context, Frame, Lab, counter, ifindex, sh};
use holdfast_linux::bpf::{
    BpfError, Host, HostState, MAGLEV_ENTRIES, Redirect, RedirectConfig, ServiceKey, Way,
};
use holdfast_wire::packet::{Sum, internet_checksum};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Its name.
pub const GROUP: &str = "web";
pub const VIP4: &str = "10.9.0.100";
pub const VIP6: &str = "fd00:9::100";
pub const CLIENT4: &str = "10.8.0.2";
pub const CLIENT6: &str = "fd00:8::2";
pub const PORT: u16 = 80;
/// Tunnel endpoints of the host servers.
pub const HOSTS: [(IpAddr, IpAddr); 2] = [
    (
        IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)),
        IpAddr::V6(Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 2)),
    ),
    (
        IpAddr::V4(Ipv4Addr::new(10, 9, 0, 3)),
        IpAddr::V6(Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 3)),
    ),
];
pub const FLOWS_MAX: u32 = 16;
/// Longest time for redirected copies to arrive.
const PATIENCE: Duration = Duration::from_secs(5);

pub struct Fixture {
    pub redirect: Redirect,
    pub config: RedirectConfig,
    /// Receives what leaves towards the host servers.
    capture: Capture,
    pub lab: Lab,
}

/// Addresses of an outer header.
#[derive(Debug, PartialEq, Eq)]
pub struct Outer {
    pub source: IpAddr,
    pub target: IpAddr,
}

impl Fixture {
    /// A redirector with the client behind ec, and the host servers behind eh, whose other end is
    /// hh.
    pub fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        sh("ip link add ec address 02:00:00:00:08:01 type veth peer name cc");
        sh("ip link add eh address 02:00:00:00:09:01 type veth peer name hh");
        for link in ["ec", "cc", "eh", "hh"] {
            sh(&format!("ip link set {link} up"));
        }
        sh("ip addr add 10.9.0.1/24 dev eh");
        sh("ip addr add fd00:9::1/64 dev eh nodad");
        sh("ip neigh replace 10.9.0.2 lladdr 02:00:00:00:09:02 dev eh nud permanent");
        let config = RedirectConfig {
            group: GROUP.into(),
            client_interfaces: vec!["ec".into()],
            pin_dir: lab.pin_dir.clone(),
            flows_max: FLOWS_MAX,
            seed: 7,
            outer4: (Ipv4Addr::new(172, 16, 0, 0), 16),
            outer6: (Ipv6Addr::new(0xfd68, 0, 0, 0, 0, 0, 0, 0), 64),
        };
        let redirect = Redirect::attach(&config).unwrap_or_else(|error| panic!("{error}"));
        let mut fixture = Self { redirect, config, capture: Capture::new("hh"), lab };
        for slot in [0, 1] {
            fixture.redirect.set_host(slot, &host(slot)).expect("host");
        }
        fixture
    }

    pub fn attach_again(&mut self) {
        let redirect = self.try_attach(FLOWS_MAX);
        self.redirect = redirect.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Attaches as a daemon would whose file allows `flows_max` flows.
    pub fn try_attach(&self, flows_max: u32) -> Result<Redirect, BpfError> {
        Redirect::attach(&RedirectConfig { flows_max, ..self.config.clone() })
    }

    /// Directory of the redirector's pins.
    pub fn pins(&self) -> PathBuf {
        self.lab.pin_dir.join("redirect")
    }

    pub fn set_host(&mut self, slot: u8, change: impl FnOnce(&mut Host)) {
        let hosts = self.redirect.hosts();
        let mut host = hosts.iter().find(|(s, _)| *s == slot).expect("a host").1;
        change(&mut host);
        self.redirect.set_host(slot, &host).expect("host");
    }

    /// Lets `slots` serve every service in turn.
    pub fn serve(&mut self, slots: &[u8]) {
        let table: Vec<u8> = slots.iter().copied().cycle().take(MAGLEV_ENTRIES).collect();
        for (address, udp) in [(VIP4, false), (VIP6, false), (VIP4, true)] {
            let address = address.parse().expect("address");
            let service = ServiceKey { address, port: PORT, udp };
            self.redirect.set_service(&service, &table).expect("service");
        }
    }

    pub fn send(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        let context = Context { ifindex: ifindex("ec"), ..Context::default() };
        self.lab.run("redirect/redirect", frame, context)
    }

    pub fn send_gso(&self, frame: &[u8], gso_size: u32) -> (u32, Vec<u8>) {
        let context = Context { ifindex: ifindex("ec"), gso_size, ..Context::default() };
        self.lab.run("redirect/redirect", frame, context)
    }

    pub fn count(&self, name: &str) -> u64 {
        counter(&self.redirect.counters(), name)
    }

    pub fn is_outer(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => v4.octets()[..2] == [172, 16],
            IpAddr::V6(v6) => v6.octets()[..8] == self.config.outer6.0.octets()[..8],
        }
    }

    /// A UDP datagram that may be cut.
    pub fn datagram(&self, port: u16, payload: usize) -> Vec<u8> {
        let mut frame = Frame::new((client4(), port), (vip4(), PORT)).payload(payload).build();
        // The UDP header replaces the TCP header.
        frame.drain(34..54);
        let udp_len = (8 + payload) as u16;
        let mut udp = Vec::new();
        udp.extend(port.to_be_bytes());
        udp.extend(PORT.to_be_bytes());
        udp.extend(udp_len.to_be_bytes());
        udp.extend([0, 0]);
        frame.splice(34..34, udp);
        frame[16..18].copy_from_slice(&(20 + udp_len).to_be_bytes());
        frame[20..22].fill(0);
        frame[23] = 17;
        frame[24..26].fill(0);
        let sum = internet_checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    /// Encapsulated frames that left for the host servers since the last call.
    pub fn captured(&self) -> Vec<Vec<u8>> {
        self.capture.frames(|protocol| protocol == 4)
    }

    pub fn wait_for(&self, count: usize) -> Vec<Vec<u8>> {
        let until = Instant::now() + PATIENCE;
        let mut all = self.captured();
        while all.len() < count && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            all.extend(self.captured());
        }
        assert_eq!(all.len(), count, "frames");
        all
    }
}

fn host(slot: u8) -> Host {
    let (v4, v6) = HOSTS[usize::from(slot)];
    let way = |address| Way { address, next_hop: address, ifindex: ifindex("eh"), mtu: 1500 };
    Host { v4: Some(way(v4)), v6: Some(way(v6)), state: HostState::Up, layer2: false }
}

fn client4() -> IpAddr {
    CLIENT4.parse().expect("address")
}

fn vip4() -> IpAddr {
    VIP4.parse().expect("address")
}

pub fn request(port: u16) -> Frame {
    Frame::new((client4(), port), (vip4(), PORT)).seq(5001).window(500)
}

pub fn request6(port: u16) -> Frame {
    let address = |text: &str| text.parse().expect("address");
    Frame::new((address(CLIENT6), port), (address(VIP6), PORT)).seq(5001).window(500)
}

/// The addresses of the outer header, and the inner packet.
pub fn outer(frame: &[u8]) -> (Outer, Vec<u8>) {
    let ip = &frame[14..];
    if ip[0] >> 4 == 4 {
        assert_eq!((ip[0], ip[9]), (0x45, 4), "IPv4 in IPv4");
        assert_eq!(internet_checksum(&ip[..20]), 0);
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
        let address = |at: usize| IpAddr::from([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
        (Outer { source: address(12), target: address(16) }, ip[20..].to_vec())
    } else {
        assert_eq!(ip[6], 41, "IPv6 in IPv6");
        assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), ip.len() - 40);
        let address = |at: usize| {
            let octets: [u8; 16] = ip[at..at + 16].try_into().expect("16");
            IpAddr::from(octets)
        };
        (Outer { source: address(8), target: address(24) }, ip[40..].to_vec())
    }
}

/// A router's ICMP error about a reply to `request`, with its IP header and `quoted` bytes of its
/// transport header.
pub fn icmp_error(request: &Frame, quoted: usize) -> Vec<u8> {
    let mut reply = request.clone();
    (reply.source, reply.target) = (request.target, request.source);
    let reply = reply.payload(100).build();
    let v4 = request.source.0.is_ipv4();
    let header = if v4 { 20 } else { 40 };
    let quote = &reply[14..14 + header + quoted];
    // Like all ICMP errors, port unreachable has 4 bytes of header and 4 of its own.
    let mut icmp = vec![if v4 { 3 } else { 1 }, if v4 { 4 } else { 0 }, 0, 0, 0, 0, 5, 0];
    icmp.extend(quote);
    let router: (&str, &str) = ("10.8.0.1", "fd00:8::1");
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if v4 {
        let router: Ipv4Addr = router.0.parse().expect("address");
        let total = (20 + icmp.len() as u16).to_be_bytes();
        let sum = internet_checksum(&icmp);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut ip = vec![0x45, 0, total[0], total[1], 0, 9, 0, 0, 64, 1, 0, 0];
        ip.extend(router.octets());
        ip.extend(&reply[26..30]);
        let sum = internet_checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend([0x08, 0x00]);
        frame.extend(ip);
    } else {
        let router: Ipv6Addr = router.1.parse().expect("address");
        let length = icmp.len() as u16;
        let sum = Sum::default()
            .with(&router.octets())
            .with(&reply[22..38])
            .with(&u32::from(length).to_be_bytes())
            .with(&[0, 0, 0, 58])
            .with(&icmp);
        icmp[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([58, 64]);
        frame.extend(router.octets());
        frame.extend(&reply[22..38]);
    }
    frame.extend(icmp);
    frame
}
