//! The constants of a TCP. They are data, and determine which TCP is simulated.

use crate::Ns;

const MS: Ns = 1_000_000;
const S: Ns = 1_000_000_000;

/// The machine that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// The one-way agents of ns-2.34: a SYN that carries no data, cumulative
    /// acknowledgements of whole segments, timers in coarse ticks.
    OneWay,
    /// A TCP after RFC 9293, 6298 and 6675.
    TwoWay,
}

/// The rule by which the congestion window changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// RFC 5681: a partial acknowledgement ends fast recovery.
    Reno,
    /// RFC 6582: a partial acknowledgement retransmits the next hole.
    NewReno,
    /// RFC 2018 and 6675: SACK blocks say which segments are missing.
    Sack,
    /// Brakmo and Peterson 1995: backs off when round trips get longer.
    Vegas,
    /// RFC 9438: the window grows as a cubic function of time.
    Cubic,
}

/// All constants of a TCP. A scenario begins with [`Profile::NS2`],
/// [`Profile::NS3`] or [`Profile::MODERN`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    pub stack: Stack,
    pub congestion: Congestion,
    /// Payload of a segment, in bytes.
    pub mss_bytes: u32,
    /// Headers of a segment with options, in bytes.
    pub header_bytes: u32,
    /// Number of segments that the receiver can take.
    pub window_segments: u32,
    pub initial_window_segments: u32,
    /// The initial window after a SYN was lost.
    pub syn_loss_window_segments: u32,
    /// Timeout in ns before the first round trip is measured.
    pub syn_timeout_ns: Ns,
    /// Number of SYNs that are repeated without doubling the time between them.
    pub syn_linear_timeouts: u32,
    pub rto_min_ns: Ns,
    pub rto_max_ns: Ns,
    /// Granularity of the clock in ns; round trips are measured in it.
    pub tick_ns: Ns,
    pub delack_ns: Ns,
    /// Number of unacknowledged segments at which an acknowledgement is sent at once.
    pub delack_segments: u32,
    /// Whether the acknowledgement of the SYN is delayed, too, as in ns-2's sink.
    pub delack_syn: bool,
    /// Number of segments after the handshake that are acknowledged at once.
    pub quick_acks: u32,
    /// Whether the last segment that the application asked for is acknowledged at once. The papers'
    /// times of short flows (0.6 s, and 4.0 s and 9.9 s after one and two lost SYNs) together
    /// follow from no other rule.
    pub ack_push: bool,
    /// Number of duplicate acknowledgements that mean a loss.
    pub dup_acks: u32,
    /// One-way only: whether partial acknowledgements after the first leave the timer running, so
    /// that many holes end in a timeout and slow start ("impatient", RFC 6582 §4; ns-2
    /// `newreno_changes1_`).
    pub impatient: bool,
    /// Whether the first duplicates allow new segments to be sent (RFC 3042).
    pub limited_transmit: bool,
    /// One-way only: whether a repeated SYN adds a segment to the transfer (ns-2 `curseq_ += 1` in
    /// `output()`).
    pub syn_adds_segment: bool,
    /// Two-way only: whether the lower bound of the timeout applies to the variation, as in Linux,
    /// instead of the whole timeout.
    pub rto_floor_of_variation: bool,
    /// Two-way only: whether a repeated timeout reduces the threshold once more, which RFC 5681
    /// §3.1 forbids and ns-3 does.
    pub reduces_again: bool,
    /// Two-way only: whether recovery is as in ns-3.48, see `tcp/twoway/ns3.rs`; `prr` is ignored
    /// then.
    pub ns3_recovery: bool,
    /// Two-way only: whether the window grows by what was acknowledged (RFC 3465) instead of by one
    /// for each acknowledgement.
    pub counts_segments: bool,
    /// Two-way only: whether CUBIC leaves slow start by HyStart.
    pub hystart: bool,
    /// Whether timestamps (RFC 7323) are used, for round trips and for undoing spurious timeouts.
    pub timestamps: bool,
    /// Whether SACK (RFC 2018) is used; without it a [`Stack::TwoWay`] counts duplicates.
    pub sack: bool,
    /// Whether the window in recovery follows what was delivered (RFC 6937).
    pub prr: bool,
    /// Whether a segment counts as lost when a later one was delivered (RFC 8985 §6).
    pub rack: bool,
    /// Whether a probe is sent before the timeout (RFC 8985 §7).
    pub tlp: bool,
}

impl Profile {
    /// The defaults of ns-2.34, with the tick of 0.5 s and the window of 64 that the HALR thesis
    /// must have used (its numbers follow from no others).
    pub const NS2: Self = Self {
        stack: Stack::OneWay,
        congestion: Congestion::NewReno,
        mss_bytes: 1460,
        header_bytes: 40,
        window_segments: 64,
        initial_window_segments: 2,
        syn_loss_window_segments: 1,
        syn_timeout_ns: 3 * S,
        syn_linear_timeouts: 0,
        rto_min_ns: 200 * MS,
        rto_max_ns: 60 * S,
        tick_ns: 500 * MS,
        delack_ns: 100 * MS,
        delack_segments: 2,
        delack_syn: true,
        quick_acks: 0,
        ack_push: true,
        dup_acks: 3,
        impatient: true,
        limited_transmit: true,
        syn_adds_segment: true,
        rto_floor_of_variation: false,
        reduces_again: false,
        ns3_recovery: false,
        counts_segments: false,
        hystart: false,
        timestamps: false,
        sack: false,
        prr: false,
        rack: false,
        tlp: false,
    };

    /// ns-3.48's TcpNewReno as in the reference runs.
    pub const NS3: Self = Self {
        stack: Stack::TwoWay,
        congestion: Congestion::NewReno,
        // Two of the header's bytes are those of the point-to-point link.
        header_bytes: 42,
        window_segments: 5700,
        initial_window_segments: 1,
        syn_loss_window_segments: 1,
        rto_min_ns: S,
        tick_ns: MS,
        delack_ns: 200 * MS,
        delack_syn: false,
        // From ns-3: "Always respond to first data packet to speed up the connection."
        quick_acks: 1,
        sack: true,
        prr: true,
        syn_adds_segment: false,
        ack_push: false,
        reduces_again: true,
        ns3_recovery: true,
        ..Self::NS2
    };

    /// Linux 6: initial window 10 (RFC 6928), RTO of at least 200 ms, four SYNs a second apart
    /// before the time doubles, RACK and TLP, CUBIC.
    pub const MODERN: Self = Self {
        congestion: Congestion::Cubic,
        mss_bytes: 1448,
        header_bytes: 52,
        window_segments: 4096,
        initial_window_segments: 10,
        syn_timeout_ns: S,
        syn_linear_timeouts: 4,
        rto_min_ns: 200 * MS,
        rto_max_ns: 120 * S,
        delack_ns: 40 * MS,
        quick_acks: 16,
        rto_floor_of_variation: true,
        reduces_again: false,
        ns3_recovery: false,
        counts_segments: true,
        hystart: true,
        timestamps: true,
        rack: true,
        tlp: true,
        ..Self::NS3
    };

    /// This profile with another congestion control.
    #[must_use]
    pub fn with(self, congestion: Congestion) -> Self {
        Self { congestion, ..self }
    }
}
