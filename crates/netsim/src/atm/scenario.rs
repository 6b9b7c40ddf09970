//! The scenario of a run, as data.

use super::{aal5, cell};
use crate::Ns;
use holdfast_boston::Redundancy;

/// What a switch does when a buffer is full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// Plain UBR: a cell that finds no room is dropped.
    Ubr,
    /// Selective Cell Discard (Armitage and Adams 1993): after a drop the rest of the packet is
    /// dropped too, except its end, which delimits the next packet.
    Scd,
    /// Early Packet Discard as Romanow and Floyd (1995) have it: a packet whose first cell finds
    /// more than this share of the buffer taken is not begun; other overflows are treated as by
    /// SCD.
    EpdThreshold(f64),
    /// Early Packet Discard as TCP Boston §1 describes it: after a drop the whole
    /// packet is dropped, including those of its cells that wait in the buffer.
    EpdPurge,
}

/// The algorithm that decides how many packets may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowControl {
    /// Reno as in ns-1: one fast retransmission per loss, half of the window.
    Reno,
    /// Vegas as in ns-1's module of Brakmo and Peterson's: alpha 1, beta 3, gamma 1.
    Vegas,
}

/// When Boston sends pending cells. TCP Boston §2.2 says that an acknowledgement reports them, but
/// not what the flow manager does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// When the flow manager retransmits: a report is a duplicate like any other, and only the
    /// content of a retransmission differs ("with a minor modification").
    WithRetransmission,
    /// As soon as cells are known to be lost, once for every loss.
    AtOnce,
}

/// What the cells carry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Protocol {
    /// Whole packets: one lost cell loses the packet.
    Tcp,
    /// Rows of a code: any m of a segment's cells are the segment.
    Boston {
        /// Cells beyond m in the first transmission, as a share of m, to the nearest cell.
        first: f64,
        /// Cells beyond the pending ones in a retransmission, as a share of m.
        retransmit: f64,
        /// Whether cells of segments that are sent together take turns (TCP Boston §3.2).
        interleaved: bool,
        repair: Repair,
    },
}

impl Protocol {
    /// Boston-BP: no redundancy.
    #[must_use]
    pub const fn boston_bp(repair: Repair) -> Self {
        Self::Boston { first: 0.0, retransmit: 0.0, interleaved: false, repair }
    }

    /// Boston-FEC with the shares of [`Redundancy::PAPER_FEC`], interleaved.
    #[must_use]
    pub const fn boston_fec(repair: Repair) -> Self {
        match Redundancy::PAPER_FEC {
            Redundancy::Fixed { first, retransmit } => {
                Self::Boston { first, retransmit, interleaved: true, repair }
            }
            _ => Self::boston_bp(repair),
        }
    }

    /// Whether the protocol is Boston.
    #[must_use]
    pub const fn is_boston(self) -> bool {
        matches!(self, Self::Boston { .. })
    }

    /// Whether the protocol repairs without the flow manager's order.
    #[must_use]
    pub const fn repairs_at_once(self) -> bool {
        matches!(self, Self::Boston { repair: Repair::AtOnce, .. })
    }
}

/// The scenario of a run. Begin with [`Scenario::PAPER`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    /// Seed that determines the starts of the sources.
    pub seed: u64,
    pub protocol: Protocol,
    pub flow_control: FlowControl,
    /// Number of connections; each has a source of its own.
    pub sources: u16,
    /// Number of switches in a row; sources are spread over them, and the sink is behind the last.
    pub switches: u16,
    /// Bytes of an IP packet, headers included. All of them count as delivered, as in ns.
    pub packet_bytes: u32,
    /// Bytes that the receiver can take; at least one packet fits.
    pub window_bytes: u32,
    /// Number of cells that can wait before a switch's output.
    pub buffer_cells: u32,
    pub policy: Policy,
    /// Bytes of every Boston cell that name its segment and row; AAL5 has no place
    /// for them, and the paper does not say where they are. 0 is ideal.
    pub cell_id_bytes: u32,
    /// Whether cells that the code made good for reduce the window (RFC 9265,
    /// recommendation 1).
    pub recovered_is_lost: bool,
    pub rate_bps: u64,
    /// Delay of each link, in ns.
    pub delay_ns: Ns,
    /// Tick of the retransmission timer in ns; 100 ms in the ns of 1995.
    pub tick_ns: Ns,
    /// Time in ns within which every source starts at random.
    pub jitter_ns: Ns,
    /// Whether sources wait before they send a packet, at random for up to its time on the wire:
    /// ns-1's `overhead`, against the phase effects of a drop-tail queue and equal clocks (Floyd
    /// and Jacobson 1991).
    pub is_delayed_at_random: bool,
    pub duration_ns: Ns,
    /// Time in ns after which a packet has missed its deadline.
    pub deadline_ns: Ns,
}

/// Why a scenario is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// There is no source or switch, or there are too many.
    #[error("1 to {SOURCES_MAX} sources and 1 to {SWITCHES_MAX} switches")]
    Size,
    /// A packet is empty, or a code of 256 rows cannot carry it.
    #[error("a packet is 1 to {PACKET_BYTES_MAX} bytes")]
    Packet,
    /// The window exceeds the records.
    #[error("a window is at most {WINDOW_PACKETS_MAX} packets")]
    Window,
    /// A buffer, rate, clock or payload is zero.
    #[error("buffer, rate and tick are more than 0, cell identification leaves a payload")]
    Zero,
}

const SOURCES_MAX: u16 = 256;
const SWITCHES_MAX: u16 = 64;
const PACKET_BYTES_MAX: u32 = 9180;
/// Most packets of a window: half of the records of a connection.
pub(super) const WINDOW_PACKETS_MAX: u32 = 128;
const CELL_ID_BYTES_MAX: u32 = 8;

impl Scenario {
    /// The scenario of TCP Boston §3.1, with 1,500-byte packets, 64 kB windows and 256 cells. What
    /// the paper leaves open is as in ns-1; when sources start, and that they are delayed at
    /// random, is the choice of this project (`holdfast-lab run boston-choices`).
    pub const PAPER: Self = Self {
        seed: 0,
        protocol: Protocol::Tcp,
        flow_control: FlowControl::Vegas,
        sources: 16,
        switches: 1,
        packet_bytes: 1500,
        window_bytes: 64 << 10,
        buffer_cells: 256,
        policy: Policy::Ubr,
        cell_id_bytes: 0,
        recovered_is_lost: true,
        rate_bps: 1_500_000,
        delay_ns: 10_000_000,
        tick_ns: 100_000_000,
        jitter_ns: 30_000_000_000,
        is_delayed_at_random: true,
        duration_ns: 700_000_000_000,
        deadline_ns: 700_000_000,
    };

    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        if !(1..=SOURCES_MAX).contains(&self.sources)
            || !(1..=SWITCHES_MAX).contains(&self.switches)
        {
            return Err(ScenarioError::Size);
        }
        if !(1..=PACKET_BYTES_MAX).contains(&self.packet_bytes) {
            return Err(ScenarioError::Packet);
        }
        if self.window_packets() > WINDOW_PACKETS_MAX {
            return Err(ScenarioError::Window);
        }
        let zero = self.buffer_cells == 0 || self.rate_bps == 0 || self.tick_ns == 0;
        if zero || self.cell_id_bytes > CELL_ID_BYTES_MAX {
            return Err(ScenarioError::Zero);
        }
        Ok(())
    }

    /// Number of packets in a window.
    #[must_use]
    pub fn window_packets(&self) -> u32 {
        (self.window_bytes / self.packet_bytes.max(1)).max(1)
    }

    /// Number of cells in a packet: m.
    #[must_use]
    pub fn cells_per_packet(&self) -> u16 {
        let id = if self.protocol.is_boston() { self.cell_id_bytes as usize } else { 0 };
        aal5::cells(self.packet_bytes as usize, cell::PAYLOAD_BYTES - id) as u16
    }

    /// When a slot begins.
    #[must_use]
    pub fn slot_ns(&self, slot: u64) -> Ns {
        let bits = 8 * cell::CELL_BYTES as u128;
        (u128::from(slot) * bits * 1_000_000_000 / u128::from(self.rate_bps)) as Ns
    }

    /// Number of slots that last `time_ns`, rounded up.
    #[must_use]
    pub fn slots(&self, time_ns: Ns) -> u64 {
        let bits = 8 * cell::CELL_BYTES as u128 * 1_000_000_000;
        (u128::from(time_ns) * u128::from(self.rate_bps)).div_ceil(bits) as u64
    }
}
