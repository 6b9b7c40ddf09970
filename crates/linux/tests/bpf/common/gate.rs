//! A gate with its server and a client, and the frames that pass between them.

use super::{ACK, Context, Frame, Lab, PASS, STOLEN, SYN, counter, sh, sums_are_right};
use holdfast_linux::bpf::{Adopted, Gate, GateConfig};
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord};
use holdfast_wire::seq::SeqNo;
use std::net::IpAddr;

pub const EGRESS: &str = "gate/gate_egress";
const INGRESS: &str = "gate/gate_ingress";
pub const PORT: u16 = 6379;
pub const ISS: u32 = 0xffff_ff00; // wraps soon
pub const IRS: u32 = 0x7fff_fff0;
pub const SLOTS: u32 = 4;

/// Options of a SYN: MSS 1460, SACK permitted, timestamps 7/0, NOP, scale 7.
pub const SYN_OPTIONS: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 1, 3, 3, 7];
/// Options of a SYN-ACK: MSS 8960, SACK permitted, timestamps 1000/7, NOP, scale 9.
pub const SYN_ACK_OPTIONS: [u8; 20] =
    [2, 4, 0x23, 0, 4, 2, 8, 10, 0, 0, 3, 0xe8, 0, 0, 0, 7, 1, 3, 3, 9];

/// A gate at `p0`, its server and one client.
pub struct Fixture {
    pub lab: Lab,
    pub gate: Gate,
    pub server: (IpAddr, u16),
    pub client: (IpAddr, u16),
}

impl Fixture {
    pub fn new(name: &str, server: &str, client: &str) -> Self {
        Self::attached(name, server, client, false)
    }

    pub fn attached(name: &str, server: &str, client: &str, solo: bool) -> Self {
        Self::with(name, server, client, |config| config.solo = solo)
    }

    fn with(name: &str, server: &str, client: &str, change: impl FnOnce(&mut GateConfig)) -> Self {
        let lab = Lab::new(name);
        sh("ip link add p0 type veth peer name p1");
        let server = (server.parse().expect("address"), PORT);
        let mut config = config(&lab, server, false);
        change(&mut config);
        let gate = Gate::attach(&config);
        let gate = gate.unwrap_or_else(|error| panic!("{error}"));
        Self { lab, gate, server, client: (client.parse().expect("address"), 40000) }
    }
}

pub fn config(lab: &Lab, server: (IpAddr, u16), solo: bool) -> GateConfig {
    let (services, pin_dir) = (vec![server], lab.pin_dir.clone());
    GateConfig { interface: "p0".into(), services, slots: SLOTS, solo, deposable: false, pin_dir }
}

impl Fixture {
    pub fn v4(name: &str) -> Self {
        Self::new(name, "10.9.0.100", "10.8.0.2")
    }

    /// A gate whose server speaks alone from the start.
    pub fn alone(name: &str) -> Self {
        Self::attached(name, "10.9.0.100", "10.8.0.2", true)
    }

    /// A gate of a host that may be replaced without knowing it.
    pub fn deposable(name: &str) -> Self {
        Self::with(name, "10.9.0.100", "10.8.0.2", |config| config.deposable = true)
    }

    pub fn set_solo(&mut self, solo: bool) {
        self.gate.set_solo(solo).expect("flag");
    }

    pub fn passes(&self, frame: &Frame) {
        self.leaves_as(frame, frame);
    }

    /// A connection that began while the server speaks alone.
    pub fn begun_alone(&mut self, syn_ack: &Frame) -> ConnId {
        self.client_syn(IRS);
        self.passes(syn_ack);
        let mut events = Vec::new();
        self.gate.drain_events(|e| events.push((e.conn, e.passed)));
        let [(conn, true)] = events[..] else { panic!("{events:?}") };
        conn
    }

    pub fn key(&self) -> ConnKey {
        let address = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        ConnKey {
            server: address(self.server.0),
            client: address(self.client.0),
            server_port: self.server.1,
            client_port: self.client.1,
        }
    }

    /// A connection whose server has read 1000 bytes and written 500, of which 100 are
    /// unacknowledged.
    pub fn adopted(&self) -> Adopted {
        let record = ConnRecord {
            key: self.key(),
            iss: SeqNo(ISS),
            irs: SeqNo(IRS),
            mss: 8960,
            peer_mss: 1460,
            rcv_wscale: 9,
            snd_wscale: 7,
            sack: true,
            tsval: Some(1000),
            window: 65160,
        };
        Adopted {
            record,
            snd_una: SeqNo(seq(400)),
            snd_nxt: SeqNo(seq(500)),
            rcv_nxt: SeqNo(ack(1000)),
            right_edge: SeqNo(ack(80_000)),
            tsval: 5000,
            tsecr: 77,
            fin_allowed: false,
        }
    }

    pub fn out(&self) -> Frame {
        Frame::new(self.server, self.client)
    }

    pub fn egress(&self, frame: &Frame) -> (u32, Vec<u8>) {
        self.lab.run(EGRESS, &frame.build(), Context::default())
    }

    /// Asserts that the frame leaves as `expected`.
    pub fn leaves_as(&self, frame: &Frame, expected: &Frame) {
        let (verdict, out) = self.egress(frame);
        assert_eq!(verdict, PASS);
        assert!(sums_are_right(&out));
        assert_eq!(out, expected.build());
    }

    pub fn is_stolen(&self, frame: &Frame) {
        assert_eq!(self.egress(frame).0, STOLEN, "{frame:?}");
    }

    pub fn syn(&self, irs: u32) -> Frame {
        Frame::new(self.client, self.server).seq(irs).flags(SYN).window(64240).options(&SYN_OPTIONS)
    }

    pub fn syn_ack(&self, iss: u32, irs: u32) -> Frame {
        let ack = irs.wrapping_add(1);
        self.out().seq(iss).ack(ack).flags(SYN | ACK).window(65160).options(&SYN_ACK_OPTIONS)
    }

    pub fn client_syn(&self, irs: u32) {
        let (verdict, _) = self.lab.run(INGRESS, &self.syn(irs).build(), Context::default());
        assert_eq!(verdict, PASS);
    }

    pub fn events(&mut self) -> Vec<(ConnId, ConnRecord, Vec<u8>)> {
        let mut events = Vec::new();
        self.gate.drain_events(|e| events.push((e.conn, e.record, e.packet.to_vec())));
        events
    }

    /// A connection whose SYN-ACK is held.
    pub fn held(&mut self, iss: u32, irs: u32) -> ConnId {
        self.client_syn(irs);
        self.is_stolen(&self.syn_ack(iss, irs));
        let events = self.events();
        assert_eq!(events.len(), 1);
        events[0].0
    }

    pub fn opened(&mut self) -> ConnId {
        let conn = self.held(ISS, IRS);
        assert!(self.gate.open(conn));
        conn
    }

    pub fn count(&self, name: &str) -> u64 {
        counter(&self.gate.counters(), name)
    }
}

pub fn seq(offset: u32) -> u32 {
    ISS.wrapping_add(1).wrapping_add(offset)
}

pub fn ack(offset: u32) -> u32 {
    IRS.wrapping_add(1).wrapping_add(offset)
}

pub fn sack_option(blocks: &[(u32, u32)]) -> Vec<u8> {
    let mut option = vec![1, 1, 5, 2 + 8 * blocks.len() as u8];
    for (left, right) in blocks {
        option.extend(left.to_be_bytes());
        option.extend(right.to_be_bytes());
    }
    option
}
