//! An edge between one client and two members, and the packets of these.

use super::{ACK, Context, Frame, Lab, SYN, counter, ifindex, sh};
use holdfast_linux::bpf::{Edge, EdgeConfig, MemberPort};
use holdfast_wire::message::{ConnKey, FlowBounds};
use std::net::IpAddr;

pub const CLIENT_IN: &str = "edge/edge_client";
pub const MEMBER_IN: &str = "edge/edge_member";
pub const PORT: u16 = 6379;
pub const VIP4: &str = "10.9.0.100";
pub const VIP6: &str = "fd00:9::100";
pub const CLIENT4: &str = "10.8.0.2";
pub const CLIENT6: &str = "fd00:8::2";
pub const MEMBER_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 9, 2], [2, 0, 0, 0, 9, 3]];
pub const PORT_MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];
pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 8, 2];
pub const EDGE_CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 8, 1];
pub const SERVER_ISS: u32 = 0xffff_ff00;
pub const CLIENT_ISS: u32 = 5000;

/// Options of a SYN-ACK: MSS 1460, SACK permitted, timestamps 1000/7, NOP, scale 9.
pub const SYN_ACK_OPTIONS: [u8; 20] =
    [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 3, 0xe8, 0, 0, 0, 7, 1, 3, 3, 9];

pub struct Fixture {
    pub edge: Edge,
    pub config: EdgeConfig,
    pub ports: [u32; 2],
    pub lab: Lab,
}

pub fn address(text: &str) -> IpAddr {
    text.parse().expect("address")
}

impl Fixture {
    /// An edge with ports e0 and e1, behind which are the members, and ec, behind which is the
    /// client.
    pub fn new(name: &str, bridge: bool, l3_interface: Option<&str>) -> Self {
        Self::of(name, bridge, l3_interface, 2)
    }

    /// An edge with room for `flows_max` flows.
    pub fn with_flows(name: &str, flows_max: u32) -> Self {
        Self::of(name, false, None, flows_max)
    }

    fn of(name: &str, bridge: bool, l3_interface: Option<&str>, flows_max: u32) -> Self {
        let lab = Lab::new(name);
        sh("ip link add ec address 02:00:00:00:08:01 type veth peer name cc");
        sh("ip link add e0 address 02:00:00:00:01:01 type veth peer name m0");
        sh("ip link add e1 address 02:00:00:00:01:02 type veth peer name m1");
        for link in ["ec", "cc", "e0", "m0", "e1", "m1"] {
            sh(&format!("ip link set {link} up"));
        }
        if bridge {
            sh("ip link add br0 type bridge");
            sh("ip link set br0 up");
            sh("ip link set e0 master br0");
            sh("ip link set e1 master br0");
        }
        sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        sh("ip addr add 10.8.0.1/24 dev ec");
        sh("ip addr add fd00:8::1/64 dev ec nodad");
        sh("ip neigh replace 10.8.0.2 lladdr 02:00:00:00:08:02 dev ec nud permanent");
        sh("ip neigh replace fd00:8::2 lladdr 02:00:00:00:08:02 dev ec nud permanent");
        let member =
            |index: usize| MemberPort { interface: format!("e{index}"), mac: MEMBER_MACS[index] };
        let config = EdgeConfig {
            client_interfaces: vec!["ec".into()],
            members: vec![member(0), member(1)],
            l3_interface: l3_interface.map(Into::into),
            services: vec![(address(VIP4), PORT), (address(VIP6), PORT)],
            pin_dir: lab.pin_dir.clone(),
            flows_max,
        };
        let edge = Edge::attach(&config).unwrap_or_else(|error| panic!("{error}"));
        Self { edge, config, ports: [ifindex("e0"), ifindex("e1")], lab }
    }

    pub fn client_sends(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        let context = Context { ifindex: ifindex("ec"), ..Context::default() };
        self.lab.run(CLIENT_IN, frame, context)
    }

    pub fn member_sends(&self, member: usize, frame: &[u8]) -> (u32, Vec<u8>) {
        let context = Context { ifindex: self.ports[member], ..Context::default() };
        self.lab.run(MEMBER_IN, frame, context)
    }

    pub fn count(&self, name: &str) -> u64 {
        counter(&self.edge.counters(), name)
    }

    pub fn bounds(&self) -> Option<FlowBounds> {
        self.edge.bounds(&key(40000))
    }
}

pub fn key(client_port: u16) -> ConnKey {
    let mapped = |text: &str| match address(text) {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let (server, client) = (mapped(VIP4), mapped(CLIENT4));
    ConnKey { server, client, server_port: PORT, client_port }
}

pub fn request() -> Frame {
    Frame::new((address(CLIENT4), 40000), (address(VIP4), PORT)).seq(CLIENT_ISS + 1).window(500)
}

pub fn request6() -> Frame {
    Frame::new((address(CLIENT6), 40000), (address(VIP6), PORT)).seq(CLIENT_ISS + 1).window(500)
}

pub fn reply() -> Frame {
    Frame::new((address(VIP4), PORT), (address(CLIENT4), 40000))
        .seq(SERVER_ISS + 1)
        .ack(CLIENT_ISS + 1)
        .window(100)
}

pub fn reply6() -> Frame {
    Frame::new((address(VIP6), PORT), (address(CLIENT6), 40000))
        .seq(SERVER_ISS + 1)
        .ack(CLIENT_ISS + 1)
        .window(100)
}

pub fn syn_ack(client_port: u16) -> Frame {
    let mut frame =
        reply().seq(SERVER_ISS).flags(SYN | ACK).window(65160).options(&SYN_ACK_OPTIONS);
    frame.target.1 = client_port;
    frame
}

/// The frame `frame` one hop later, between these Ethernet addresses.
pub fn hop(frame: &Frame, to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let mut bytes = frame.clone().ttl(frame.ttl - 1).build();
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    bytes
}
