//! The redirector of one address family, packet by packet, for tests that compare it with
//! the program that it models (`bpf/redirect.bpf.c`). A service's table names only one host
//! server, because model and program use different hashes.

use super::packet::{Conn, Packet, Said, Tuple};
use super::plan::Limits;
use super::redirector::{Copied, Redirector};
use holdfast_edge::maglev::{ENTRIES, NOBODY};
use holdfast_member::spread::{Placed, Service};
use holdfast_wire::packet::{Checksum, Flags, TcpPacket};
use std::net::SocketAddr;

pub use holdfast_member::spread::State;

/// What the redirector remembers about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceWords {
    pub tick: u32,
    pub host: u8,
    pub client_fin: bool,
    pub reset: bool,
    pub established: bool,
    pub opened: bool,
    pub learnt: bool,
    pub lived: u16,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    Sent { slot: u8 },
    Plain,
    Refused,
}

/// What the cache is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    Syn { slot: u8 },
    Opened,
}

/// The model; see the module.
pub struct RedirectModel {
    redirector: Redirector,
    service: Service,
}

impl RedirectModel {
    /// A redirector for the service at `address` that tracks at most `flows_max` connections.
    #[must_use]
    pub fn new(address: SocketAddr, flows_max: usize) -> Self {
        let limits = Limits { flows_max, ..Limits::WIDE };
        let service = Service { address, udp: false };
        Self { redirector: Redirector::new(limits, 0), service }
    }

    pub fn set_host(&mut self, slot: u8, state: State) {
        let (name, tunnels) = (String::new(), Vec::new());
        let host = Placed { slot, name, tunnels, layer2: false, state };
        self.redirector.hosts.insert(slot, host);
    }

    /// Sets which slot gets new connections; `None`: nobody.
    ///
    /// # Panics
    /// Never: there is room for one service.
    pub fn serve(&mut self, slot: Option<u8>) {
        let table = [slot.unwrap_or(NOBODY); ENTRIES];
        self.redirector.set_service(&self.service, &table).expect("room for one");
    }

    pub fn remove_service(&mut self) {
        self.redirector.remove_service(&self.service);
    }

    pub fn tick(&mut self) {
        self.redirector.ticks();
    }

    pub fn age_flows(&mut self) {
        self.redirector.age_flows();
    }

    pub fn set_copying(&mut self, on: bool) {
        self.redirector.copying = on;
    }

    /// Handles a packet from a client, as bytes from its IP header on.
    ///
    /// # Panics
    /// If it is not a complete TCP segment.
    pub fn client_sends(&mut self, bytes: &[u8]) -> (Became, Option<Shown>) {
        let p = TcpPacket::parse(bytes, Checksum::Verify).expect("a segment");
        let said = match p.flags {
            flags if flags.has(Flags::SYN) && !flags.has(Flags::ACK) => Said::Syn,
            flags if flags.has(Flags::RST) => Said::Rst,
            flags if flags.has(Flags::FIN) => Said::Fin,
            _ if p.payload.is_empty() => Said::Ack,
            _ => Said::Data(0),
        };
        let conn = Conn { tuple: tuple(p.client_to_server_key().client_port), isn: p.seq.0 };
        let placing = self.redirector.handle(&Packet { conn, said }, &self.service);
        let became = match placing.slot {
            Some(slot) => Became::Sent { slot },
            None if placing.refused => Became::Refused,
            None => Became::Plain,
        };
        let shown = self.redirector.ring.pop_front().map(|copied| match copied {
            Copied::Syn { slot, .. } => Shown::Syn { slot },
            Copied::Opened(_) => Shown::Opened,
        });
        (became, shown)
    }

    /// What is remembered about the connection from this port: its flow, and its embryo.
    #[must_use]
    pub fn words(&self, port: u16) -> [Option<PlaceWords>; 2] {
        self.redirector.words(&tuple(port))
    }
}

fn tuple(port: u16) -> Tuple {
    Tuple { client: 0, port, service: 0 }
}
