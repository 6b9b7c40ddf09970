//! What a seed draws: two configurations, a path, and what breaks.

use crate::rng::Rng;
use holdfast_boston::{Config, FlowControl, Nanos, Redundancy, Shape};
use holdfast_code::Dispersal;

/// What one direction of the path does to frames.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub delay: Nanos,
    /// Largest additional delay, by which frames overtake each other.
    pub jitter: Nanos,
    pub loss: f64,
    /// Mean number of frames lost in a row.
    pub burst: f64,
    /// Share of frames that take another path, and arrive seconds later.
    pub stray: f64,
    pub duplicate: f64,
    pub corrupt: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct Side {
    pub config: Config,
    /// The path of the frames that the side sends.
    pub path: Path,
    /// Approximate number of bytes in each of its streams.
    pub bytes: u64,
    /// Time between two reads; 0: it reads whenever there is something.
    pub reads_every: Nanos,
    /// When the side dies, and after how long it comes back.
    pub restart: Option<(Nanos, Nanos)>,
}

#[derive(Clone, Debug)]
pub struct Profile {
    pub seed: u64,
    /// The sides: client and server.
    pub sides: [Side; 2],
    /// Times from which nothing passes, with their durations.
    pub blackouts: Vec<(Nanos, Nanos)>,
}

impl Profile {
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let delay = Nanos(rng.range(100_000, 100_000_000));
        let kinds = rng.draw();
        let mut sides = [(); 2].map(|()| Side::draw(&mut rng, delay, kinds));
        if kinds & 0x70 == 0 {
            let victim = rng.range(0, 2) as usize;
            let at = Nanos(rng.range(0, 5_000_000_000));
            sides[victim].restart = Some((at, Nanos(rng.range(0, 30_000_000_000))));
        }
        let count = if kinds & 0x180 == 0 { rng.range(1, 4) } else { 0 };
        let blackout = |rng: &mut Rng| {
            let at = rng.range(0, 20_000_000_000);
            (Nanos(at), Nanos(rng.range(1_000_000_000, 30_000_000_000)))
        };
        let blackouts = (0..count).map(|_| blackout(&mut rng)).collect();
        Self { seed, sides, blackouts }
    }

    /// A long stream to the server, on a path that only loses frames.
    pub fn lossy(seed: u64, config: Config, bytes: u64, loss: f64) -> Self {
        let path = Path {
            delay: Nanos::from_ms(20),
            jitter: Nanos(0),
            loss,
            burst: 1.0,
            stray: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
        };
        let side = Side { config, path, bytes, reads_every: Nanos(0), restart: None };
        let back = Path { loss: 0.0, ..path };
        let server = Side { path: back, bytes: 8, ..side };
        Self { seed, sides: [side, server], blackouts: Vec::new() }
    }

    pub fn has_restart(&self) -> bool {
        self.sides.iter().any(|side| side.restart.is_some())
    }
}

impl Side {
    /// Draws a path; the bits of `kinds` say what may be wrong with it.
    fn draw(rng: &mut Rng, delay: Nanos, kinds: u64) -> Self {
        let mut some = |bit: u32, most: f64| {
            let share = most * rng.range(0, 1000) as f64 / 1000.0;
            if kinds >> bit & 1 == 1 { share } else { 0.0 }
        };
        let (loss, duplicate, corrupt) = (some(0, 0.6), some(1, 0.1), some(2, 0.01));
        let (jitter, stray) = (some(3, 1.0), some(9, 0.1));
        let burst = if rng.chance(0.3) { rng.range(2, 10) as f64 } else { 1.0 };
        let jitter = Nanos((delay.0 as f64 * jitter) as u64);
        let path = Path { delay, jitter, loss, burst, stray, duplicate, corrupt };
        let config = draw_config(rng);
        let segments = rng.range(0, 20);
        let capacity = (config.shape.cells * config.shape.cell_len) as u64;
        let reads_every = Nanos(if rng.chance(0.1) { rng.range(1, 3_000_000_000) } else { 0 });
        Self { config, path, bytes: 8 + segments * capacity, reads_every, restart: None }
    }
}

fn draw_config(rng: &mut Rng) -> Config {
    let shape = Shape {
        cells: rng.pick(&[1, 2, 5, 12, 30, 32, 40]),
        cell_len: rng.pick(&[8, 16, 46, 48, 64, 1400]),
    };
    let shape = if shape.cell_len > 64 { Shape { cells: 10, ..shape } } else { shape };
    let redundancy = rng.pick(&[
        Redundancy::BandwidthPreserving,
        Redundancy::PAPER_FEC,
        Redundancy::Planned { within_rounds: 2, late_max: 0.05 },
    ]);
    // A run has no more time for a plan, which takes milliseconds.
    let redundancy = match redundancy {
        Redundancy::Planned { .. } if rng.chance(0.9) => Redundancy::PAPER_FEC,
        other => other,
    };
    let mut config = Config::default();
    (config.shape, config.redundancy) = (shape, redundancy);
    config.window = rng.pick(&[1, 2, 8, 32, 64]);
    config.flow = rng.pick(&[FlowControl::Tahoe, FlowControl::Reno, FlowControl::Vegas]);
    config.is_interleaved = rng.chance(0.5);
    config.dispersal = if rng.chance(0.1) { Dispersal::Rabin } else { Dispersal::Systematic };
    // No blackout of these tests may end a connection.
    config.dead_after = Nanos::from_ms(600_000);
    // Bursts are counted in frames instead of time: on a path that is nearly idle they outlive
    // the usual linger.
    config.linger = Nanos::from_ms(400_000);
    config
}
