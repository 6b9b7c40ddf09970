//! Bulk through the tunnel beside the kernel's own connections with CUBIC, on one queue: who gets
//! how much? The control is one more of those connections in the tunnel's place.

use super::TunnelArgs;
use super::bed::{Bed, OUTSIDE, bulk_at};
use super::bulk::Bulk;
use super::lane::{Peers, Way};
use crate::emu::EmuSpec;
use anyhow::{Context as _, Result};
use holdfast_report::{jain, progress};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The path: 20 Mbit/s and 20 ms have room for 33 packets.
const PATH: &str = "delay 10ms rate 20mbit";
/// Packets of queue, up to four times what the path has room for.
const QUEUES: [u32; 3] = [20, 33, 133];
/// Until slow start is over.
const WARM: Duration = Duration::from_secs(3);

/// Who got how much.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FairRow {
    queue_packets: u32,
    /// Whether the first one is ours; the control has CUBIC there, too.
    is_ours: bool,
    first_mbit_per_s: f64,
    others_mbit_per_s: Vec<f64>,
    /// The first one's part of a fair share.
    share: f64,
    /// Jain's index of all.
    jain: f64,
}

/// Measures all queues with all numbers of connections.
///
/// # Errors
/// When something does not come up.
pub fn run(args: &TunnelArgs, peers: &Peers) -> Result<Vec<FairRow>> {
    let length = Duration::from_secs(args.seconds);
    let mut rows = Vec::new();
    let progress =
        progress("fairness", args.rounds * (QUEUES.len() * args.beside.len() * 2) as u64);
    for queue in QUEUES {
        for &others in &args.beside {
            for _ in 0..args.rounds {
                for way in [Way::Splice, Way::Plain] {
                    rows.push(measure(queue, others, way, length, &args.path, peers)?);
                    progress.inc(1);
                }
            }
        }
    }
    progress.finish_and_clear();
    Ok(rows)
}

fn measure(
    queue: u32,
    others: usize,
    way: Way,
    length: Duration,
    more: &str,
    peers: &Peers,
) -> Result<FairRow> {
    let text = format!("{PATH} queue {queue} {more}");
    let mut bed = Bed::start(&text.parse::<EmuSpec>().with_context(|| text.clone())?)?;
    let first = way.start(&mut bed, peers)?.bulk;
    let mut flows = vec![Bulk::start(&bed, first, "cubic")?];
    for _ in 0..others {
        flows.push(Bulk::start(&bed, bulk_at(OUTSIDE[1]), "cubic")?);
    }
    std::thread::sleep(WARM);
    let (begun, before) = (Instant::now(), flows.iter().map(Bulk::bytes).collect::<Vec<_>>());
    std::thread::sleep(length);
    let seconds = begun.elapsed().as_secs_f64();
    let rate = |(flow, before): (&Bulk, u64)| (flow.bytes() - before) as f64 * 8.0 / seconds / 1e6;
    let rates: Vec<f64> = flows.iter().zip(before).map(rate).collect();
    bed.check()?;
    Ok(FairRow::of(queue, way == Way::Splice, &rates))
}

impl FairRow {
    fn of(queue_packets: u32, is_ours: bool, rates: &[f64]) -> Self {
        let sum: f64 = rates.iter().sum();
        Self {
            queue_packets,
            is_ours,
            first_mbit_per_s: rates[0],
            others_mbit_per_s: rates[1..].to_vec(),
            share: rates[0] * rates.len() as f64 / sum.max(f64::MIN_POSITIVE),
            jain: jain(rates),
        }
    }

    /// A line for people.
    pub fn line(&self) -> String {
        let others: Vec<String> =
            self.others_mbit_per_s.iter().map(|it| format!("{it:.2}")).collect();
        format!(
            "  queue {:>3}, {} CUBIC  {:<7} {:>6.2}  others {:<24} share {:.2}  Jain {:.2}",
            self.queue_packets,
            self.others_mbit_per_s.len(),
            if self.is_ours { "ours" } else { "control" },
            self.first_mbit_per_s,
            others.join(" "),
            self.share,
            self.jain
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_there_was() {
        let row = FairRow::of(20, true, &[5.0, 5.0, 5.0, 5.0]);
        assert_eq!((row.share, row.jain), (1.0, 1.0));
        let row = FairRow::of(20, true, &[9.0, 1.0]);
        assert!((row.share - 1.8).abs() < 1e-9 && (row.jain - 100.0 / 164.0).abs() < 1e-9);
        assert!(row.line().contains("share 1.80"), "{}", row.line());
    }
}
