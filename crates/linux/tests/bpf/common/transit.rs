//! An edge of a transit group with three strings, and frames that go through it.

use super::{Context, Frame, Lab, REDIRECT, counter, ifindex, sh};
use holdfast_linux::bpf::{StringPort, TRANSIT_SLOTS, Transit, TransitConfig, TransitState};
use std::net::IpAddr;

/// Its name.
pub const GROUP: &str = "web";
pub const OUTSIDE: &str = "transit/transit_outside";
pub const STRING: &str = "transit/transit_string";
pub const CLIENT4: &str = "10.8.0.2";
pub const SERVER4: &str = "10.9.0.100";
pub const CLIENT6: &str = "fd08::2";
pub const SERVER6: &str = "fd09::100";
pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 8, 2];
/// Ethernet address to which [`Frame`] sends.
pub const OWN_MAC: &str = "02:00:00:00:00:01";
pub const STRINGS: usize = 3;
pub const FLOWS_MAX: u32 = 16;

pub struct Fixture {
    pub transit: Transit,
    pub config: TransitConfig,
    epoch: u32,
    pub lab: Lab,
}

pub fn address(text: &str) -> IpAddr {
    text.parse().expect("address")
}

impl Fixture {
    /// An edge with clients behind `nc`, and strings 0 to 2 behind `n0` to `n2`.
    pub fn new(name: &str, leads: bool, return_all: bool) -> Self {
        let lab = Lab::new(name);
        sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        link("nc", "10.8.0.1/24", "fd08::1/64");
        sh("ip neigh replace 10.8.0.2 lladdr 02:00:00:00:08:02 dev nc nud permanent");
        sh("ip neigh replace fd08::2 lladdr 02:00:00:00:08:02 dev nc nud permanent");
        for n in 0..STRINGS {
            link(&format!("n{n}"), &format!("10.11.{n}.1/24"), &format!("fd11:{n}::1/64"));
            for net in ["10.9.0.0/24", "10.7.0.0/24"] {
                sh(&format!("ip route add {net} via 10.11.{n}.2 metric {}", n + 1));
            }
            sh(&format!("ip route add fd09::/64 via fd11:{n}::2 metric {}", n + 1));
        }
        let port = |n: usize| StringPort {
            interface: format!("n{n}"),
            next_hop4: Some([10, 11, n as u8, 2].into()),
            next_hop6: Some(format!("fd11:{n}::2").parse().expect("address")),
        };
        let config = TransitConfig {
            group: GROUP.into(),
            outside: vec!["nc".into()],
            strings: (0..STRINGS).map(port).collect(),
            leads,
            return_all,
            seed: 7,
            pin_dir: lab.pin_dir.clone(),
            flows_max: FLOWS_MAX,
        };
        let transit = Transit::attach(&config).unwrap_or_else(|error| panic!("{error}"));
        Self { transit, config, epoch: 0, lab }
    }

    /// Allows only these strings, and gives all slots to the first of them.
    pub fn use_strings(&mut self, usable: u32) {
        self.use_slots(usable, [usable.trailing_zeros() as u8; TRANSIT_SLOTS]);
    }

    /// Gives the slots to strings 0 and 1 in turns.
    pub fn use_both(&mut self) {
        self.use_slots(0b11, std::array::from_fn(|slot| slot as u8 % 2));
    }

    pub fn use_slots(&mut self, usable: u32, slots: [u8; TRANSIT_SLOTS]) {
        self.epoch += 1;
        let state = TransitState { epoch: self.epoch, usable, slots, is_closed: false };
        self.transit.set_state(&state).expect("table");
        assert_eq!(self.transit.state().expect("table"), Some(state));
    }

    pub fn outside_sends(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        self.lab.run(OUTSIDE, frame, Context { ifindex: ifindex("nc"), ..Context::default() })
    }

    pub fn string_sends(&self, string: usize, frame: &[u8]) -> (u32, Vec<u8>) {
        let ifindex = ifindex(&format!("n{string}"));
        self.lab.run(STRING, frame, Context { ifindex, ..Context::default() })
    }

    /// The string into which a frame from outside goes.
    pub fn string_of(&self, frame: &[u8]) -> usize {
        let before = self.transit.traffic();
        let (verdict, out) = self.outside_sends(frame);
        assert_eq!(verdict, REDIRECT);
        assert_eq!(out[..14], frame[..14], "the kernel addresses the frame");
        let after = self.transit.traffic();
        let went = |n: &usize| after[*n].0.packets > before[*n].0.packets;
        let taken: Vec<usize> = (0..STRINGS).filter(went).collect();
        assert_eq!(taken.len(), 1, "one string");
        taken[0]
    }

    pub fn count(&self, name: &str) -> u64 {
        counter(&self.transit.counters(), name)
    }
}

pub fn link(name: &str, v4: &str, v6: &str) {
    sh(&format!("ip link add {name} address {OWN_MAC} type veth peer name p{name}"));
    sh(&format!("ip link set {name} up"));
    sh(&format!("ip link set p{name} up"));
    sh(&format!("ip addr add {v4} dev {name}"));
    sh(&format!("ip addr add {v6} dev {name} nodad"));
}

pub fn request(port: u16) -> Frame {
    Frame::new((address(CLIENT4), port), (address(SERVER4), 80)).seq(1).payload(20)
}

pub fn reply(port: u16) -> Frame {
    Frame::new((address(SERVER4), 80), (address(CLIENT4), port)).seq(1).payload(20)
}

pub fn request6(port: u16) -> Frame {
    Frame::new((address(CLIENT6), port), (address(SERVER6), 80)).seq(1).payload(20)
}
