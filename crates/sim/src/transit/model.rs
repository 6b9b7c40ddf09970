//! The data path of one edge, packet by packet, for tests that compare it with the program
//! that it models (`bpf/transit.bpf.c`). All slots of a table name one string, because model
//! and program use different hashes. No acknowledgement is held, and no window is capped.

use super::packet::{Packet, Tuple};
use super::path::{DataPath, NO_STRING};
use super::plan::{Limits, Plan};
use holdfast_edge::strings::{SLOTS, Table};
use holdfast_wire::packet::{Checksum, Flags, TcpPacket};

/// What the data path remembers about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StringWords {
    pub string: usize,
    /// The flow's first string.
    pub home: usize,
}

/// What the cache is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StringShown {
    pub into: bool,
    /// `None`: every string is dead.
    pub string: Option<usize>,
}

/// The model; see the module.
pub struct TransitModel(DataPath);

impl TransitModel {
    /// An edge with this many strings, all the same, that tracks at most `flows_max` flows.
    /// `leads`: it is the near edge; `return_all`: flows return to their first strings.
    #[must_use]
    pub fn new(strings: usize, flows_max: usize, leads: bool, return_all: bool) -> Self {
        let mut plan = Plan {
            return_all,
            limits: Limits { flows_max, ..Limits::WIDE },
            regulate: None,
            mutation: None,
            ..Plan::draw(0)
        };
        let string = plan.strings[0];
        plan.strings.resize(strings, string);
        Self(DataPath::new(&plan, leads))
    }

    pub fn set_table(&mut self, usable: u32, string: u8) {
        self.0.table = Some(Table { usable, slots: [string; SLOTS] });
    }

    pub fn set_copying(&mut self, on: bool) {
        self.0.copies.copying = on;
    }

    /// Handles a packet from outside; returns the string that it goes into, and what the
    /// cache is shown.
    pub fn goes_in(&mut self, bytes: &[u8]) -> (Option<usize>, Option<StringShown>) {
        let string = self.0.goes_in(0, &packet(bytes, true));
        (string, self.shown())
    }

    /// Handles a packet out of a string; returns what the cache is shown.
    ///
    /// # Panics
    /// If it is held: the model holds no packets.
    pub fn comes_out(&mut self, bytes: &[u8], string: usize) -> Option<StringShown> {
        let went_on = self.0.comes_out(0, &packet(bytes, false), string);
        assert!(went_on.is_some(), "nothing is held");
        self.shown()
    }

    fn shown(&mut self) -> Option<StringShown> {
        let (into, way) = self.0.copies.take_shown()?;
        Some(StringShown { into, string: (way != NO_STRING).then_some(way.into()) })
    }

    /// What is remembered about the flow of this client's port.
    #[must_use]
    pub fn words(&self, port: u16) -> Option<StringWords> {
        self.0.words(&tuple(port))
    }

    /// Number of packets that came out of a string.
    #[must_use]
    pub fn traffic(&self, string: usize) -> u64 {
        self.0.traffic[string]
    }

    /// Number of flows that were moved to another string, or back to their first one.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.0.moved
    }
}

fn tuple(port: u16) -> Tuple {
    Tuple { sender: 0, port }
}

fn packet(bytes: &[u8], is_data: bool) -> Packet {
    let p = TcpPacket::parse(bytes, Checksum::Verify).expect("a segment");
    let key = p.client_to_server_key();
    Packet {
        tuple: tuple(if is_data { key.client_port } else { key.server_port }),
        is_data,
        syn: p.flags.has(Flags::SYN),
        fin: p.flags.has(Flags::FIN),
        seq: p.seq,
        len: p.payload.len() as u16,
        ack: p.ack,
        window: p.window.into(),
        sum: 0,
    }
}
