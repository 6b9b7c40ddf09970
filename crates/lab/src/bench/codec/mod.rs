//! `holdfast-lab bench codec`: time per packet to encode and to decode, beside
//! other libraries and a plain copy, turn by turn, so that whatever else the machine
//! does hits all of them.

mod outside;
mod peers;

use anyhow::{Result, ensure};
use clap::Args;
use holdfast_chance::Rng;
use holdfast_code::Kernel;
use holdfast_report::{Summary, progress};
use outside::Outside;
use peers::{Codec, Erasure, Memcpy, Ours, Packet, Rusty, Shape, Simd};
use serde::Serialize;
use std::time::Instant;

/// Bytes of the segments that take turns: with their redundant cells they stay in the second-level
/// cache.
const RING_BYTES: usize = 256 << 10;
/// Number of patterns of erasures that are drawn, so that caches of inverses are exercised.
const PATTERNS: usize = 4096;
/// Length in bytes up to which cells count as small.
const SMALL_LEN_MAX: usize = 64;
/// Names of the kernels for this kind of processor, whether this one has them or not.
const KERNELS: [&str; 4] = ["gfni-avx512", "gfni-avx2", "avx2", "portable"];

/// Shapes that are measured, with the times to encode and to decode, in ns, that the fastest kernel
/// has to reach on a quiet core.
const SHAPES: [(Shape, Option<[f64; 2]>); 6] = [
    (Shape { data: 30, extra: 3, len: 48 }, Some([60.0, 120.0])),
    (Shape { data: 30, extra: 3, len: 50 }, None),
    (Shape { data: 188, extra: 19, len: 48 }, Some([1500.0, 3000.0])),
    // The times are those of 30 and 28 GB/s.
    (Shape { data: 10, extra: 4, len: 1400 }, Some([14_000.0 / 30.0, 14_000.0 / 28.0])),
    (Shape { data: 10, extra: 4, len: 16 << 10 }, None),
    (Shape { data: 10, extra: 4, len: 64 << 10 }, None),
];

/// Options of the codec bench.
#[derive(Args, Clone, Debug)]
pub struct CodecArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// How often each codec has its turn.
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,
    /// How long a turn lasts, us; at least one packet.
    #[arg(long, default_value_t = 1500)]
    pub turn_us: u64,
    /// Draws the patterns of erasures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Results of one codec at one shape.
#[derive(Clone, Debug, Serialize)]
struct Entry {
    codec: String,
    is_ours: bool,
    /// `None`: not measured, because this machine or this build does not have it.
    times: Option<Times>,
}

/// Times per packet.
#[derive(Clone, Debug, Serialize)]
struct Times {
    encode_ns: Summary,
    decode_ns: Summary,
    /// GB/s of the segment's bytes, from the median time to encode.
    encode_gb_per_s: f64,
    decode_gb_per_s: f64,
}

/// Results of all codecs at one shape. Ratios are of medians, and above 1 where this project's
/// codec is faster.
#[derive(Clone, Debug, Serialize)]
struct ShapeReport {
    shape: String,
    is_small: bool,
    entries: Vec<Entry>,
    asked_ns: Option<[f64; 2]>,
    /// Time to copy the segment, in ns.
    memcpy_ns: Summary,
    /// Times of the fastest other library divided by this codec's: encode, decode.
    to_best_peer: [f64; 2],
    /// Time of the copy divided by this codec's times: encode, decode.
    to_memcpy: [f64; 2],
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct CodecReport {
    bench: &'static str,
    rounds: usize,
    /// The kernel that users get on this machine, for which the ratios are.
    kernel: &'static str,
    shapes: Vec<ShapeReport>,
    /// Other libraries that were not measured, with the reasons.
    not_measured: Vec<String>,
}

/// Runs the bench.
///
/// # Errors
/// When a codec refuses a shape or restores wrong bytes.
pub fn run(args: &CodecArgs) -> Result<CodecReport> {
    let progress = progress("codec", (SHAPES.len() * args.rounds) as u64);
    let (programs, not_measured) = outside::build_all()?;
    let mut shapes = Vec::new();
    for (shape, asked_ns) in SHAPES {
        let mut lanes = lanes(shape)?;
        for program in &programs {
            lanes.push(Lane::new(program.name, false, Worker::Outside(program.start(shape)?)));
        }
        shapes.push(measure_shape(args, shape, asked_ns, lanes, || progress.inc(1))?);
    }
    progress.finish_and_clear();
    Ok(CodecReport {
        bench: "codec",
        rounds: args.rounds,
        kernel: Kernel::best().name(),
        shapes,
        not_measured,
    })
}

/// What a turn measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Encode,
    Decode,
}

/// The codec that takes the turns.
enum Worker {
    Here { codec: Box<dyn Codec>, packets: Vec<Packet> },
    Outside(Outside),
}

/// A codec, and the times of its turns, in ns per packet.
struct Lane {
    name: String,
    is_ours: bool,
    worker: Worker,
    encode_ns: Vec<f64>,
    decode_ns: Vec<f64>,
}

fn lanes(shape: Shape) -> Result<Vec<Lane>> {
    let lane = |name: &str, is_ours, codec: Box<dyn Codec>| {
        Lane::new(name, is_ours, Worker::Here { codec, packets: packets(shape) })
    };
    let mut lanes = vec![lane("memcpy", false, Box::new(Memcpy(vec![0; shape.bytes()])))];
    for kernel in Kernel::available() {
        lanes.push(lane(kernel.name(), true, Box::new(Ours::new(shape, kernel)?)));
    }
    lanes.push(lane("reed-solomon-simd", false, Box::new(Simd::new(shape)?)));
    lanes.push(lane("reed-solomon-erasure", false, Box::new(Erasure::new(shape)?)));
    lanes.push(lane("rusty_erasure", false, Box::new(Rusty::new(shape)?)));
    Ok(lanes)
}

fn packets(shape: Shape) -> Vec<Packet> {
    let mut rng = Rng::of_state(shape.bytes() as u64);
    let count = (RING_BYTES / shape.bytes()).max(1);
    let packet = |_| Packet {
        segment: (0..shape.bytes()).map(|_| rng.draw() as u8).collect(),
        extra: vec![0; shape.extra * shape.len],
    };
    (0..count).map(packet).collect()
}

/// Cells to erase, pattern after pattern: in each as many, in order, as there are redundant ones.
fn patterns(shape: Shape, seed: u64) -> Vec<u8> {
    let mut rng = Rng::of_state(seed);
    let mut patterns = Vec::new();
    for _ in 0..PATTERNS {
        let mut missing = Vec::new();
        while missing.len() < shape.extra {
            let cell = rng.below(shape.data as u64) as u8;
            if !missing.contains(&cell) {
                missing.push(cell);
            }
        }
        missing.sort_unstable();
        patterns.extend(missing);
    }
    patterns
}

fn measure_shape(
    args: &CodecArgs,
    shape: Shape,
    asked_ns: Option<[f64; 2]>,
    mut lanes: Vec<Lane>,
    step: impl Fn(),
) -> Result<ShapeReport> {
    let patterns = patterns(shape, args.seed);
    for lane in &mut lanes {
        lane.check(shape, &patterns[..shape.extra])?;
    }
    let turn_ns = args.turn_us * 1000;
    for _ in 0..args.rounds {
        for lane in &mut lanes {
            lane.take_turn(turn_ns, patterns.chunks_exact(shape.extra))?;
        }
        step();
    }
    Ok(sum_up(shape, asked_ns, &lanes))
}

impl Lane {
    fn new(name: &str, is_ours: bool, worker: Worker) -> Self {
        let (encode_ns, decode_ns) = (Vec::new(), Vec::new());
        Self { name: name.to_owned(), is_ours, worker, encode_ns, decode_ns }
    }

    /// Encodes all packets, and restores each once from the cells that are left.
    fn check(&mut self, shape: Shape, missing: &[u8]) -> Result<()> {
        // A program outside has checked itself.
        let Worker::Here { codec, packets } = &mut self.worker else { return Ok(()) };
        for packet in packets {
            codec.encode(packet)?;
            if self.name == "memcpy" {
                continue;
            }
            let original = packet.segment.clone();
            for &cell in missing {
                packet.segment[usize::from(cell) * shape.len..][..shape.len].fill(0);
            }
            codec.decode(packet, missing)?;
            ensure!(packet.segment == original, "{} restores wrong bytes", self.name);
        }
        Ok(())
    }

    fn take_turn<'a>(
        &mut self,
        turn_ns: u64,
        patterns: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<()> {
        let (codec, packets) = match &mut self.worker {
            Worker::Here { codec, packets } => (codec, packets),
            Worker::Outside(program) => {
                self.encode_ns.push(program.take_turn(Side::Encode, turn_ns)?);
                self.decode_ns.push(program.take_turn(Side::Decode, turn_ns)?);
                return Ok(());
            }
        };
        let mut i = 0;
        let mut next = |count| {
            i = if i + 1 < count { i + 1 } else { 0 };
            i
        };
        self.encode_ns.push(time_per_call(turn_ns, || {
            let i = next(packets.len());
            codec.encode(&mut packets[i])
        })?);
        let mut patterns = patterns.cycle();
        self.decode_ns.push(time_per_call(turn_ns, || {
            let i = next(packets.len());
            codec.decode(&mut packets[i], patterns.next().unwrap_or_default())
        })?);
        Ok(())
    }
}

/// Calls until the time is over, and looks at the clock ever more rarely, so that the looks do not
/// count; returns ns per call.
fn time_per_call(turn_ns: u64, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    let (mut calls, mut until_look) = (0u64, 1u64);
    loop {
        for _ in 0..until_look {
            call()?;
        }
        calls += until_look;
        let passed = begun.elapsed().as_nanos() as u64;
        if passed >= turn_ns {
            return Ok(passed as f64 / calls as f64);
        }
        until_look = (calls / 2).max(1);
    }
}

fn sum_up(shape: Shape, asked_ns: Option<[f64; 2]>, lanes: &[Lane]) -> ShapeReport {
    let median =
        |lane: &Lane| [Summary::of(&lane.encode_ns).median, Summary::of(&lane.decode_ns).median];
    let best_kernel = Kernel::best().name();
    let ours = lanes.iter().find(|lane| lane.name == best_kernel).map_or([0.0; 2], median);
    let peers: Vec<[f64; 2]> =
        lanes.iter().skip(1).filter(|lane| !lane.is_ours).map(median).collect();
    let fastest = |side: usize| peers.iter().map(|times| times[side]).fold(f64::MAX, f64::min);
    let copy = Summary::of(&lanes[0].encode_ns);
    let absent = KERNELS.iter().filter(|name| !lanes.iter().any(|lane| lane.name == **name));
    let mut entries: Vec<Entry> = lanes.iter().skip(1).map(|lane| lane.entry(shape)).collect();
    entries.extend(absent.map(|name| Entry {
        codec: (*name).to_owned(),
        is_ours: true,
        times: None,
    }));
    ShapeReport {
        shape: format!("{}+{} x {} B", shape.data, shape.extra, shape.len),
        is_small: shape.len <= SMALL_LEN_MAX,
        entries,
        asked_ns,
        memcpy_ns: copy,
        to_best_peer: [0, 1].map(|side| fastest(side) / ours[side]),
        to_memcpy: [0, 1].map(|side| copy.median / ours[side]),
    }
}

impl Lane {
    fn entry(&self, shape: Shape) -> Entry {
        let (encode_ns, decode_ns) = (Summary::of(&self.encode_ns), Summary::of(&self.decode_ns));
        let bytes = shape.bytes() as f64;
        let times = Times {
            encode_gb_per_s: bytes / encode_ns.median,
            decode_gb_per_s: bytes / decode_ns.median,
            encode_ns,
            decode_ns,
        };
        Entry { codec: self.name.clone(), is_ours: self.is_ours, times: Some(times) }
    }
}

impl CodecReport {
    /// A table for people.
    pub fn print(&self) {
        for shape in &self.shapes {
            println!("{}, a copy takes {:.0} ns", shape.shape, shape.memcpy_ns.median);
            for entry in &shape.entries {
                let Some(times) = &entry.times else {
                    println!("  {:22} not measured: this processor does not have it", entry.codec);
                    continue;
                };
                println!(
                    "  {:22} encode {}  decode {}",
                    entry.codec,
                    side(&times.encode_ns, times.encode_gb_per_s),
                    side(&times.decode_ns, times.decode_gb_per_s),
                );
            }
            if let Some([encode, decode]) = shape.asked_ns {
                println!("  asked of gfni-avx512   encode {encode:.0} ns, decode {decode:.0} ns");
            }
            println!(
                "  {} is {:.2} and {:.2} times as fast as the best peer, {:.2} and {:.2} as a copy",
                self.kernel,
                shape.to_best_peer[0],
                shape.to_best_peer[1],
                shape.to_memcpy[0],
                shape.to_memcpy[1],
            );
        }
        for peer in &self.not_measured {
            println!("not measured: {peer}");
        }
    }
}

fn side(ns: &Summary, gb_per_s: f64) -> String {
    format!("{:9.1} ns ({:.1} to {:.1}) {gb_per_s:6.2} GB/s", ns.median, ns.min, ns.max)
}
