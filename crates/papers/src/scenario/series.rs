//! Results over time, in bins, as CSV: goodput and queues.

use holdfast_netsim::net::outcome::QUEUE_BIN_NS;
use holdfast_netsim::net::{Outcome, Scenario};
use std::fmt::Write as _;

/// Length of a bin, in ns.
pub const BIN_NS: u64 = 100_000_000;

/// Series of all runs, as rows.
pub struct Series {
    links: Vec<u32>,
    csv: String,
}

impl Series {
    /// Begins with no rows: a column for the total goodput, and one for the queue of each of
    /// `links`.
    pub fn new(links: &[u32]) -> Self {
        let mut csv = "point,seed,at_s,goodput_mbps,moved_mbps".to_owned();
        for link in links {
            // Writing to a string cannot fail, here and below.
            let _ = write!(csv, ",queue_{link}_packets");
        }
        csv.push('\n');
        Self { links: links.to_vec(), csv }
    }

    /// Makes a run record what the series need.
    pub fn watch(&self, scenario: &mut Scenario) {
        scenario.watch.bin_ns = Some(BIN_NS);
        scenario.watch.queues.clone_from(&self.links);
    }

    /// Adds the rows of a run.
    pub fn add(&mut self, point: usize, seed: u64, outcome: &Outcome) {
        let per_bin = (BIN_NS / QUEUE_BIN_NS) as usize;
        let queues: Vec<Vec<u32>> = outcome
            .queues
            .iter()
            .map(|queue| queue.bins.chunks(per_bin).map(longest).collect())
            .collect();
        let goodput = outcome.flows.iter().map(|flow| flow.bins.len());
        let bins = goodput.chain(queues.iter().map(Vec::len)).max().unwrap_or(0);
        let (mut all, mut moved) = (vec![0_u64; bins], vec![0_u64; bins]);
        for flow in &outcome.flows {
            for (bin, bytes) in flow.bins.iter().enumerate() {
                all[bin] += u64::from(*bytes);
                moved[bin] += if flow.moved { u64::from(*bytes) } else { 0 };
            }
        }
        // Bits per microsecond are equal to Mb/s.
        let mbps = |bytes: u64| (bytes * 8) as f64 / (BIN_NS as f64 / 1e3);
        for bin in 0..bins {
            let at_s = bin as f64 * BIN_NS as f64 / 1e9;
            let (all, moved) = (mbps(all[bin]), mbps(moved[bin]));
            let _ = write!(self.csv, "{point},{seed},{at_s:.1},{all:.3},{moved:.3}");
            for queue in &queues {
                let _ = write!(self.csv, ",{}", queue.get(bin).copied().unwrap_or(0));
            }
            self.csv.push('\n');
        }
    }

    /// All rows, below a line of names.
    pub fn csv(&self) -> &str {
        &self.csv
    }
}

/// The longest queue of some bins.
pub fn longest(bins: &[u32]) -> u32 {
    bins.iter().copied().max().unwrap_or(0)
}
