//! What the machine says about itself.

use crate::Class;
use serde::Serialize;

/// State of an endpoint, for people and for programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Towards the peer.
    pub sending: Sending,
    /// From the peer.
    pub receiving: Receiving,
    /// Shortest round trip of the last seconds, in ms; 0 before the first measurement.
    pub rtt_min_ms: f64,
    /// Smoothed round trip, in ms; 0 before the first measurement.
    pub rtt_ms: f64,
}

/// The direction to the peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sending {
    /// Share of datagrams that the peer has not seen.
    pub loss: f64,
    /// The part of it that does not vanish when less is sent.
    pub path_loss: f64,
    /// Datagrams lost in a row, on average.
    pub burst_packets: f64,
    /// How long such a run is, in ms.
    pub burst_ms: f64,
    /// What is done per class, and why.
    pub classes: Vec<Redundancy>,
    /// Redundancy as `Config::overhead_max` caps it: of all classes together, per byte that was sent for the
    /// first time, both with the headers around them.
    pub overhead: f64,
    /// Rate of the model, in bytes per second of datagrams.
    pub rate_bytes_per_s: f64,
    /// Bytes that wait for being sent.
    pub queue_bytes: usize,
    /// Datagrams sent.
    pub datagrams: u64,
    /// Bytes of plaintext in them.
    pub bytes: u64,
    /// Bytes of symbols that were sent for the first time.
    pub data_bytes: u64,
    /// Bytes of redundancy.
    pub redundant_bytes: u64,
    /// Bytes sent again because they were lost.
    pub retransmitted_bytes: u64,
    /// Bytes of acknowledgements.
    pub ack_bytes: u64,
    /// Symbols given up because their time was over.
    pub given_up: u64,
    /// Packets dropped by the own queue.
    pub dropped: u64,
    /// Packets marked by it instead (ECN).
    pub marked: u64,
    /// Datagrams that the path has marked instead of dropping them: each tells the rate to give way.
    pub congested: u64,
}

/// The redundancy of one class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Redundancy {
    /// The class.
    pub class: Class,
    /// Bytes of redundancy per byte of data of this class, both without the headers around them, since the
    /// begin. It may be above `Config::overhead_max`, which is about all classes and counts headers.
    pub share: f64,
    /// The reason, as a sentence.
    pub why: String,
}

/// The direction from the peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Receiving {
    /// Share of datagrams that did not arrive.
    pub loss: f64,
    /// Datagrams lost in a row, on average.
    pub burst_packets: f64,
    /// How long such a run is, in ms.
    pub burst_ms: f64,
    /// What the peer sends beyond its data per class, and the reason that this end gave it.
    pub classes: Vec<Redundancy>,
    /// Datagrams received.
    pub datagrams: u64,
    /// Bytes of plaintext in them.
    pub bytes: u64,
    /// Symbols that were lost and decoded from redundancy that was sent ahead.
    pub recovered_ahead: u64,
    /// Symbols that were lost and came by retransmission.
    pub recovered_behind: u64,
    /// Symbols that never came.
    pub missed: u64,
    /// Bytes of redundancy that told nothing new.
    pub wasted_bytes: u64,
    /// Datagrams that overtook others.
    pub reordered: u64,
    /// Packets that were handed on without an earlier one of their flow.
    pub skipped: u64,
    /// What was thrown away because a limit was reached.
    pub limited: u64,
}
