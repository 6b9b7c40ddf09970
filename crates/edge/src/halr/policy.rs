//! What an edge keeps and how it resends: as shipped, by the names of the file's
//! policies, and as the thesis describes it.

use crate::Ns;
use crate::recovery::{Recovery, RecoveryConfig};
use crate::slabs::Slabs;

/// Most packets resent in one turn: the caller has other work between turns.
const RESENDS_PER_TURN: usize = 256;
/// Most segments of a flow under the policy `all`: a window of 400 KB.
const ALL_SEGMENTS: usize = 256;
/// Extra segments of a flow that the policy `head+tail` keeps while there is
/// room, so that the lowest one is among them after every acknowledgement.
const SPARE_SEGMENTS: usize = 254;
/// Most segments at a flow's end that are resent behind its head if they passed
/// in the outage: senders probe with one or two of them (RFC 8985 §7).
const RECENT_SEGMENTS: usize = 8;
/// Copies of the latest acknowledgement: as many as start a fast retransmit.
const ACK_COPIES: u32 = 3;
/// Time for which acknowledgements are held, in ns, so that the segments they ask
/// for overtake those they make the sender send.
const HOLD_NS: Ns = 2_000_000;
/// The same while heads and tails are being resent, in ns: enough for all of them,
/// but less than a sender's timer.
const HOLD_MAX_NS: Ns = 10_000_000;
/// Tries of a SYN: the new server may need some time until it listens.
const SYN_TRIES: u32 = 8;
/// Time between two tries of a SYN, in ns.
const SYN_RETRY_NS: Ns = 12_000_000;
/// Time after the last resend in which acknowledgements may ask for more, in ns:
/// longer than a round trip behind the edge.
const FOLLOW_NS: Ns = 200_000_000;
/// Time without an answer after which a flow's head and tail go out once more, in
/// ns: longer than a queue that has filled at once, and than its round trip.
const OVERDUE_NS: Ns = 20_000_000;
/// Size of the packets that fill the cache with the largest number of packets,
/// in bytes.
pub(super) const PACKET_BYTES_MIN: u64 = 64;

/// Which of the packets that pass are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// No packets.
    Nothing,
    /// SYNs.
    Syns,
    /// The lowest unacknowledged segment of every flow.
    Head,
    /// The lowest and the highest unacknowledged segment of every flow.
    HeadTail,
    /// As many segments as there is room for.
    All,
}

/// Limits on what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalrLimits {
    /// Most flows that are remembered.
    pub flows_max: usize,
    /// Most memory that the cache takes, in bytes.
    pub memory_bytes: u64,
    /// Age above which a packet is not resent.
    pub age_max_ns: Ns,
    /// Rate to which resends are spaced; 0: at once.
    pub pace_bytes_per_s: u64,
    /// Number of flows that are kept, those with the most bytes; 0: all.
    pub heaviest: usize,
}

/// Configuration of HALR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalrConfig {
    /// What is kept, and the order in which it is resent.
    pub cache: RecoveryConfig,
    /// Whether packets are kept always, not only while they may be lost.
    pub always: bool,
    /// Time for which acknowledgements are held when resending begins; 0: not at
    /// all.
    pub hold_ns: Ns,
    /// Longest such time, while heads and tails are being resent.
    pub hold_max_ns: Ns,
    /// Most packets resent in one turn.
    pub resends_per_turn: usize,
    /// Whether everything is forgotten when a packet was not copied: resending a packet
    /// that has been answered would do harm.
    pub forgets_at_loss: bool,
}

impl HalrConfig {
    /// As the thesis describes it (§3.3): packets are kept always, resent all in one
    /// turn, and no acknowledgement is held.
    #[must_use]
    pub fn printed(cache: RecoveryConfig) -> Self {
        Self {
            cache,
            always: true,
            hold_ns: 0,
            hold_max_ns: 0,
            resends_per_turn: usize::MAX,
            forgets_at_loss: false,
        }
    }

    /// The configuration as shipped.
    #[must_use]
    pub fn shipped(keeps: Keeps, always: bool, limits: &HalrLimits) -> Self {
        let (segments_max, ack_copies) = match keeps {
            Keeps::Nothing => (0, 0),
            Keeps::Syns => (1, 0),
            Keeps::Head => (1, ACK_COPIES),
            Keeps::HeadTail => (2, ACK_COPIES),
            Keeps::All => (ALL_SEGMENTS, ACK_COPIES),
        };
        let syn_only = keeps == Keeps::Syns;
        let unless_syns = |ns| if syn_only { 0 } else { ns };
        let (flows_max, bytes_max) = limits.share();
        let cache = RecoveryConfig {
            segments_max,
            syn_only,
            ack_copies,
            flows_max,
            bytes_max,
            age_max_ns: limits.age_max_ns,
            pace_bytes_per_s: limits.pace_bytes_per_s,
            recent_max: RECENT_SEGMENTS,
            segments_spare: if keeps == Keeps::HeadTail { SPARE_SEGMENTS } else { 0 },
            // Tails go before the senders' data: an acknowledgement of the head makes
            // senders send a whole window, and what the receiver waits for would queue
            // behind it.
            tail_delay_ns: 0,
            tries: if syn_only { SYN_TRIES } else { 1 },
            retry_ns: SYN_RETRY_NS,
            follow_ns: unless_syns(FOLLOW_NS),
            overdue_ns: unless_syns(OVERDUE_NS),
            heaviest: limits.heaviest,
            ..RecoveryConfig::default()
        };
        Self {
            cache,
            always,
            hold_ns: unless_syns(HOLD_NS),
            hold_max_ns: HOLD_MAX_NS,
            resends_per_turn: RESENDS_PER_TURN,
            forgets_at_loss: false,
        }
    }

    /// The configuration shipped in front of host servers: keeps SYNs, and none
    /// that may have been answered, because it would go to another host server than
    /// its connection.
    #[must_use]
    pub fn in_front_of_host_servers(keeps: Keeps, always: bool, limits: &HalrLimits) -> Self {
        Self { forgets_at_loss: true, ..Self::shipped(keeps, always, limits) }
    }

    /// Whether nothing is ever kept.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.cache.segments_max == 0 && self.cache.ack_copies == 0
    }

    /// Most bytes that packets in [`Slabs`] may take, so that the cache keeps within
    /// its memory even with its notes about the largest number of them.
    #[must_use]
    pub fn slabs_bytes(&self) -> u64 {
        let RecoveryConfig { segments_max, ack_copies, flows_max, bytes_max, .. } = self.cache;
        let per_packet = Recovery::<u64, Slabs>::packet_overhead_bytes() as u64;
        let packets = flows_max as u64 * (segments_max as u64 + u64::from(ack_copies > 0));
        bytes_max - packets.min(bytes_max / (PACKET_BYTES_MIN + per_packet)) * per_packet
    }
}

impl HalrLimits {
    /// Limits of a group whose file says nothing: flows for a second of new
    /// connections, and a head and a tail of 1500 bytes for each of them.
    pub const STANDARD: Self = Self {
        flows_max: 10_000,
        memory_bytes: 32 << 20,
        age_max_ns: 60_000_000_000,
        pace_bytes_per_s: 1_000_000_000 / 8,
        heaviest: 0,
    };

    /// The number of flows that leaves half of the memory for their packets, and
    /// the bytes left.
    fn share(&self) -> (usize, u64) {
        let per_flow = Recovery::<u64, Slabs>::flow_overhead_bytes() as u64;
        let flows = (self.flows_max as u64).min(self.memory_bytes / 2 / per_flow);
        (flows as usize, self.memory_bytes - flows * per_flow)
    }
}
