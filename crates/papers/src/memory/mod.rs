//! `holdfast-lab memory FILE`: what local recovery would have to keep of a recorded trace (thesis
//! §3.4), computed by the machine that keeps it.

mod trace;

#[cfg(test)]
mod tests;

pub use trace::{Headers, Trace, TraceError};

use anyhow::{Context as _, Result};
use clap::Args;
use holdfast_edge::{Direction, Inline, Passing, Recovery, RecoveryConfig};
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Most flows that are distinguished, each in one direction; others are not counted.
const FLOWS_MAX: usize = 1 << 20;

/// Options of the verb.
#[derive(Args, Clone, Debug)]
pub struct MemoryArgs {
    /// A pcap or pcapng file of any size.
    pub file: PathBuf,
    /// Also keep packets of only so many flows, those with the most bytes.
    #[arg(long, default_value_t = 100)]
    pub heaviest: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A flow's direction: source and destination.
type Key = [([u8; 16], u16); 2];

/// What one policy keeps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyRow {
    pub policy: String,
    pub peak_bytes: u64,
    /// Mean over all moments of the bytes held for each flow of which something is held.
    pub mean_bytes_per_flow: f64,
    /// Number of packets that were copied.
    pub kept: u64,
}

/// What each policy keeps of a trace.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryReport {
    pub schema: &'static str,
    pub packets: u64,
    pub flows: usize,
    pub seconds: f64,
    /// Why reading ended early, if it did; the report covers what came before.
    pub error: Option<String>,
    pub policies: Vec<PolicyRow>,
}

struct Policy {
    name: String,
    cache: Recovery<Key, Inline<()>>,
    only: Option<BTreeSet<Key>>,
    share_sum: f64,
    samples: u64,
}

impl Policy {
    fn new(name: &str, config: RecoveryConfig) -> Self {
        let limits = RecoveryConfig { flows_max: FLOWS_MAX, bytes_max: u64::MAX >> 1, ..config };
        let cache = Recovery::new(limits, Inline::default());
        Self { name: name.to_owned(), cache, only: None, share_sum: 0.0, samples: 0 }
    }

    fn only(self, flows: BTreeSet<Key>) -> Self {
        Self { only: Some(flows), ..self }
    }

    /// Takes a packet, which is data of its own flow and may acknowledge the other direction.
    fn see(&mut self, headers: &Headers) {
        let key = headers.ends;
        let answered = [key[1], key[0]];
        let is_kept = |key: &Key| self.only.as_ref().is_none_or(|only| only.contains(key));
        let passing = passing(headers);
        if is_kept(&key) {
            self.cache.handle_packet(headers.at_ns, key, &passing, |_| Some(()));
        }
        if is_kept(&answered) && passing.ack.is_some() {
            let back = Passing { direction: Direction::OutOfCluster, ..passing };
            self.cache.handle_packet(headers.at_ns, answered, &back, |_| Some(()));
        }
        if self.cache.flows() > 0 {
            self.share_sum += self.cache.bytes() as f64 / self.cache.flows() as f64;
            self.samples += 1;
        }
    }

    fn row(&self) -> PolicyRow {
        PolicyRow {
            policy: self.name.clone(),
            peak_bytes: self.cache.counts().bytes_peak,
            mean_bytes_per_flow: self.share_sum / self.samples.max(1) as f64,
            kept: self.cache.counts().kept,
        }
    }
}

fn passing(headers: &Headers) -> Passing {
    let flags = Flags(headers.flags);
    let is_syn = flags.has(Flags::SYN);
    let length = u64::from(headers.payload_bytes) + u64::from(is_syn);
    Passing {
        direction: Direction::IntoCluster,
        seq: SeqNo(headers.seq),
        end: SeqNo(headers.seq).plus(length),
        ack: flags.has(Flags::ACK).then_some(SeqNo(headers.ack)),
        is_syn,
        is_end: flags.has(Flags::FIN) || flags.has(Flags::RST),
        is_last: false,
        sack: Some(false),
        bytes: headers.wire_bytes,
    }
}

/// Runs the verb.
///
/// # Errors
/// When the file cannot be opened or is no capture. A capture that is damaged later is reported as
/// far as it could be read, with the exit code 1.
pub fn run(args: &MemoryArgs) -> Result<ExitCode> {
    let report = measure(&args.file, args.heaviest)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(if report.error.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn open(path: &Path) -> Result<Trace<BufReader<File>>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Trace::new(BufReader::with_capacity(1 << 16, file)).with_context(|| path.display().to_string())
}

/// Reads the file twice: first to find the heaviest flows, then to see what each policy keeps.
fn measure(path: &Path, heaviest: usize) -> Result<MemoryReport> {
    let mut bytes: BTreeMap<Key, u64> = BTreeMap::new();
    let mut trace = open(path)?;
    while let Ok(Some(headers)) = trace.next_packet() {
        if bytes.len() < FLOWS_MAX || bytes.contains_key(&headers.ends) {
            *bytes.entry(headers.ends).or_default() += u64::from(headers.wire_bytes);
        }
    }
    let mut order: Vec<(u64, Key)> = bytes.iter().map(|(key, bytes)| (*bytes, *key)).collect();
    order.sort_unstable_by(|a, b| b.cmp(a));
    let top: BTreeSet<Key> = order.into_iter().take(heaviest).map(|it| it.1).collect();
    let base = RecoveryConfig::default();
    let mut policies = [
        Policy::new("SYNs only", RecoveryConfig { syn_only: true, ..base }),
        Policy::new("lowest segment", RecoveryConfig { ack_copies: 0, ..base }),
        Policy::new("lowest segment and acknowledgement", base),
        Policy::new(
            "lowest and highest segment",
            RecoveryConfig { segments_max: 2, ack_copies: 0, ..base },
        ),
        Policy::new("whole window (64 segments)", RecoveryConfig { segments_max: 64, ..base }),
        Policy::new(&format!("segment and acknowledgement, {heaviest} heaviest flows"), base)
            .only(top),
    ];
    let mut report = MemoryReport {
        schema: "holdfast.lab.memory/1",
        packets: 0,
        flows: bytes.len(),
        seconds: 0.0,
        error: None,
        policies: Vec::new(),
    };
    let mut trace = open(path)?;
    let mut times: Option<(u64, u64)> = None;
    loop {
        match trace.next_packet() {
            Ok(Some(headers)) => {
                policies.iter_mut().for_each(|policy| policy.see(&headers));
                let (first, last) = times.unwrap_or((headers.at_ns, headers.at_ns));
                times = Some((first.min(headers.at_ns), last.max(headers.at_ns)));
                report.packets += 1;
            }
            Ok(None) => break,
            Err(error) => {
                report.error = Some(error.to_string());
                break;
            }
        }
    }
    report.seconds = times.map_or(0.0, |(first, last)| (last - first) as f64 / 1e9);
    report.policies = policies.iter().map(Policy::row).collect();
    Ok(report)
}

impl MemoryReport {
    fn print(&self) {
        if let Some(error) = &self.error {
            eprintln!("holdfast-lab: {error}");
        }
        println!(
            "{} TCP packets of {} flows (one direction each) in {:.1} s",
            self.packets, self.flows, self.seconds
        );
        println!("{:<52} {:>12} {:>12} {:>10}", "policy", "peak bytes", "bytes/flow", "copies");
        for row in &self.policies {
            println!(
                "{:<52} {:>12} {:>12.0} {:>10}",
                row.policy, row.peak_bytes, row.mean_bytes_per_flow, row.kept
            );
        }
    }
}
