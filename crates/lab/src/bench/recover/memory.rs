//! Memory of 10,000 flows in the cache (thesis §3.4: 15.78 MB), with the machine and the packet
//! store of the edge.

use anyhow::{Context as _, Result};
use holdfast_edge::{Direction, Passing, Recovery, RecoveryConfig, Slabs};
use holdfast_linux::process::resident_bytes;
use holdfast_wire::seq::SeqNo;
use serde::Serialize;

const FLOWS: u64 = 10_000;
/// Bytes of a SYN of IPv4 as Linux sends it, from the IP header on.
const SYN_BYTES: usize = 60;
const SEGMENT_BYTES: usize = 1500;

/// Memory of a cache: as the cache counts it, with its index at its largest, and as this process
/// has grown by, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Taken {
    pub counted_bytes: usize,
    pub resident_bytes: u64,
}

/// Memory of the cache under each policy.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    pub flows: u64,
    pub syn: Taken,
    pub head: Taken,
    pub head_tail: Taken,
}

/// Fills a cache under each policy.
///
/// # Errors
/// When /proc does not tell how large this process is.
pub fn measure() -> Result<Memory> {
    Ok(Memory {
        flows: FLOWS,
        syn: fill(&[SYN_BYTES])?,
        head: fill(&[SEGMENT_BYTES])?,
        head_tail: fill(&[SEGMENT_BYTES, SEGMENT_BYTES])?,
    })
}

fn resident() -> Result<u64> {
    resident_bytes(std::process::id()).context("/proc does not tell this process' memory")
}

fn fill(packets: &[usize]) -> Result<Taken> {
    let config = RecoveryConfig {
        segments_max: packets.len(),
        bytes_max: u64::MAX >> 1,
        ..RecoveryConfig::default()
    };
    let before = resident()?;
    let mut cache = Recovery::new(config, Slabs::new(1 << 30));
    let packet = [7; SEGMENT_BYTES];
    for flow in 0..FLOWS {
        for (number, bytes) in packets.iter().enumerate() {
            let seq = SeqNo(number as u32 * 10_000);
            let passing = Passing {
                direction: Direction::IntoCluster,
                seq,
                end: seq.plus(*bytes as u64),
                ack: None,
                is_syn: false,
                is_end: false,
                is_last: false,
                sack: None,
                bytes: *bytes as u32,
            };
            // The keys are spread as by a keyed hash.
            let key = flow.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            cache.handle_packet(0, key, &passing, |slabs| slabs.put(&packet[..*bytes], 0));
        }
    }
    let counted_bytes = cache.memory_bytes() + cache.shelf().memory_bytes();
    Ok(Taken { counted_bytes, resident_bytes: resident()?.saturating_sub(before) })
}

impl Memory {
    /// A few lines for people.
    pub fn print(&self) {
        for (name, taken) in [("SYN", self.syn), ("head", self.head), ("head+tail", self.head_tail)]
        {
            println!(
                "{} flows, {name}: {:.2} MB counted, {:.2} MB resident, {:.0} bytes per flow",
                self.flows,
                taken.counted_bytes as f64 / 1e6,
                taken.resident_bytes as f64 / 1e6,
                taken.counted_bytes as f64 / self.flows as f64
            );
        }
    }
}
