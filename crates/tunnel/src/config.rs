//! What a user may set, and every limit of the machine.

use std::time::Duration;

/// How soon a packet must be at the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// With the path's own delay and [`Budgets::now`] more: there is no time for a
    /// retransmission, so redundancy goes ahead of the loss.
    Now,
    /// Within one retransmission: a round trip and a half, and [`Budgets::soon`] more.
    Soon,
    /// As many per second as possible.
    Bulk,
}

impl Class {
    /// All classes, the most urgent first.
    pub const ALL: [Self; 3] = [Self::Now, Self::Soon, Self::Bulk];

    /// Its place in [`Class::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What a loss on the path is taken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathLoss {
    /// Loss that stays when less is sent belongs to the path; the rest is
    /// congestion, and the tunnel gives way. Fair to others.
    #[default]
    Measure,
    /// All loss belongs to the path. Only for a path that nobody else uses.
    Assume,
}

/// Time beyond what physics takes, per class, and how often it may be missed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budgets {
    /// Beyond the path's one-way delay, for [`Class::Now`].
    pub now: Duration,
    /// Beyond one and a half round trips, for [`Class::Soon`].
    pub soon: Duration,
    /// Share of the packets of [`Class::Now`] that may be later.
    pub late_max: f64,
}

impl Default for Budgets {
    fn default() -> Self {
        Self { now: Duration::from_millis(2), soon: Duration::from_millis(2), late_max: 0.01 }
    }
}

/// Puts packets into a class. A field that is `None` fits every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// IP protocol number: 6 is TCP, 17 UDP.
    pub protocol: Option<u8>,
    /// Port of either side, of TCP or UDP.
    pub port: Option<u16>,
    /// Differentiated services code point, 0 to 63.
    pub dscp: Option<u8>,
    /// The class of what fits.
    pub class: Class,
}

/// Limits on memory and work. No peer can make the machine exceed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Symbols of one class that may be unacknowledged, and that a receiver keeps
    /// for decoding. If a receiver has less than its peer, streams may be reset.
    pub window_symbols: usize,
    /// Bytes of symbols and rows that a receiver keeps per class.
    pub window_bytes: usize,
    /// Rows of one class that may wait for others before they can be solved.
    pub rows_waiting: usize,
    /// Bytes that wait for being sent, all classes together.
    pub queue_bytes: usize,
    /// Packets that wait for being sent, however short.
    pub queue_packets: usize,
    /// Flows with queues of their own; more share the last.
    pub flows: usize,
    /// Bytes of packets that wait for earlier packets of their flow.
    pub resequence_bytes: usize,
    /// Bytes of packets whose cells are not complete.
    pub assembly_bytes: usize,
    /// Streams that may be open at once.
    pub streams: usize,
    /// Bytes of one stream that may be unacknowledged, and that a receiver keeps.
    pub stream_bytes: usize,
    /// The same for all streams together, each way. Beyond it a stream has 256 KiB, the least that
    /// all of them are promised.
    pub streams_bytes: usize,
    /// Bytes that wait for [`crate::Endpoint::poll_inside`].
    pub inside_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window_symbols: 4096,
            window_bytes: 8 << 20,
            rows_waiting: 64,
            queue_bytes: 4 << 20,
            queue_packets: 65_536,
            flows: 1024,
            resequence_bytes: 4 << 20,
            assembly_bytes: 1 << 20,
            streams: 1024,
            stream_bytes: 4 << 20,
            streams_bytes: 64 << 20,
            inside_bytes: 16 << 20,
        }
    }
}

/// All of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Most bytes of redundancy per byte that is sent for the first time, both with
    /// the headers around them, all classes together: 0.35 is 35 %. What is not used
    /// is saved, up to 64 KiB, and a new tunnel has 4 KiB. Retransmissions of what was
    /// lost do not count, what is sent beyond them does.
    pub overhead_max: f64,
    /// What a loss is taken for.
    pub path_loss: PathLoss,
    /// Most bytes of plaintext in a datagram, at least [`DATAGRAM_BYTES_MIN`].
    pub datagram_bytes_max: usize,
    /// Longest packet that [`crate::Endpoint::handle_packet`] takes, in bytes.
    pub inner_mtu: usize,
    /// Deadlines.
    pub budgets: Budgets,
    /// The first one that fits decides a packet's class; what none fits is put
    /// into a class by its DSCP, else by its behaviour.
    pub rules: Vec<Rule>,
    /// Limits.
    pub limits: Limits,
}

/// Least plaintext of a datagram, in bytes: what IPv6's smallest MTU of 1280 leaves
/// behind 48 bytes of IPv6 and UDP and 24 of the sealing, rounded down.
pub const DATAGRAM_BYTES_MIN: usize = 1200;
/// Most plaintext of a datagram, in bytes.
pub const DATAGRAM_BYTES_MAX: usize = 16 << 10;
/// Longest inner packet, in bytes.
pub const INNER_MTU_MAX: usize = 65_535;

impl Default for Config {
    fn default() -> Self {
        Self {
            overhead_max: 0.35,
            path_loss: PathLoss::Measure,
            datagram_bytes_max: DATAGRAM_BYTES_MIN,
            inner_mtu: INNER_MTU_MAX,
            budgets: Budgets::default(),
            rules: Vec::new(),
            limits: Limits::default(),
        }
    }
}
