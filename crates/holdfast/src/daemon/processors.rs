//! Processors of this host that stand still: a hypervisor takes one away, or something of a higher
//! priority keeps it busy. What a peer has sent may wait there for its interrupt, while this
//! daemon runs on another processor and notices nothing. So a thread is bound to each processor
//! and wakes at short intervals; while one of them does not, no peer's silence means anything.

use super::pulse::PRIORITY;
use holdfast_cluster::Nanos;
use holdfast_cluster::detector::PATIENCE_MAX;
use holdfast_linux::affinity::{self, CpuSet};
use holdfast_linux::priority;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Most processors that are watched: each costs a few wake-ups per heartbeat.
const PROCESSORS_MAX: usize = 16;
/// Intervals per heartbeat.
const TICKS: u32 = 2;
/// Intervals without a wake-up after which a processor counts as standing still.
const LATE_TICKS: u64 = 2;
/// Longest time, in intervals, for which such a processor is believed to go on some day: one that
/// was switched off must not keep a dead peer alive.
const STALL_TICKS_MAX: u64 = PATIENCE_MAX * TICKS as u64;

/// The threads. Dropping it ends them.
pub struct Processors {
    shared: Arc<Shared>,
    started: Instant,
}

/// All times are in ns since `started`.
struct Shared {
    /// When each thread last woke; 0: it has not begun.
    woke: Vec<AtomicU64>,
    /// When the last processor that stood still went on.
    ended: AtomicU64,
    /// How often one did.
    stalls: AtomicU64,
    tick: Duration,
    stop: AtomicBool,
}

impl Processors {
    /// Watches this host's processors, if its threads may have real-time priority: without that
    /// they would be late for no other reason than work.
    #[must_use]
    pub fn watch(period: Duration, started: Instant, realtime: bool) -> Self {
        let allowed = affinity::of(0).ok().filter(|_| realtime);
        let has = |cpu: &usize| allowed.as_ref().is_some_and(|set| set.has(*cpu));
        let cpus: Vec<usize> =
            (0..libc::CPU_SETSIZE as usize).filter(has).take(PROCESSORS_MAX).collect();
        let shared = Arc::new(Shared {
            woke: cpus.iter().map(|_| AtomicU64::new(0)).collect(),
            ended: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            tick: period / TICKS,
            stop: AtomicBool::new(false),
        });
        for (index, cpu) in cpus.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            let name = std::thread::Builder::new().name(format!("watch-{cpu}"));
            let spawned = name.spawn(move || {
                let bound = affinity::set(0, &CpuSet::one(cpu));
                if bound.and_then(|()| priority::set_realtime(PRIORITY)).is_ok() {
                    shared.run(index, started);
                }
            });
            if let Err(error) = spawned {
                tracing::warn!("processor {cpu} is not watched: {error}");
            }
        }
        Self { shared, started }
    }

    /// The last moment until now, since `started`, at which a processor stood still.
    #[must_use]
    pub fn stood_still(&self) -> Option<Nanos> {
        let now = self.started.elapsed().as_nanos() as u64;
        let tick = self.shared.tick.as_nanos() as u64;
        let woke = self.shared.woke.iter().map(|woke| woke.load(Relaxed));
        let stands = woke.filter(|woke| *woke > 0).any(|woke| {
            let silent = now.saturating_sub(woke);
            silent > LATE_TICKS * tick && silent < STALL_TICKS_MAX * tick
        });
        let ended = self.shared.ended.load(Relaxed);
        let last = if stands { now } else { ended };
        (last > 0).then_some(Nanos(last))
    }

    /// How often a processor stood still.
    #[must_use]
    pub fn stalls(&self) -> u64 {
        self.shared.stalls.load(Relaxed)
    }
}

impl Drop for Processors {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
    }
}

impl Shared {
    fn run(&self, index: usize, started: Instant) {
        let now = || started.elapsed().as_nanos() as u64;
        let limit = LATE_TICKS * self.tick.as_nanos() as u64;
        self.woke[index].store(now(), Relaxed);
        while !self.stop.load(Relaxed) {
            std::thread::sleep(self.tick);
            let woke = now();
            let before = self.woke[index].swap(woke, Relaxed);
            if woke - before > limit {
                self.ended.fetch_max(woke, Relaxed);
                self.stalls.fetch_add(1, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(woke: &[u64], ended: u64) -> Processors {
        let shared = Shared {
            woke: woke.iter().map(|at| AtomicU64::new(*at)).collect(),
            ended: AtomicU64::new(ended),
            stalls: AtomicU64::new(0),
            tick: Duration::from_secs(1),
            stop: AtomicBool::new(false),
        };
        let started = Instant::now().checked_sub(Duration::from_secs(100)).expect("uptime");
        Processors { shared: Arc::new(shared), started }
    }

    #[test]
    fn a_processor_stands_still_from_its_second_missed_tick_on_but_not_for_ever() {
        let second = |at: u64| at * 1_000_000_000;
        let is_now = |woke: &[u64], ended| {
            let woke: Vec<u64> = woke.iter().map(|at| second(*at)).collect();
            with(&woke, second(ended)).stood_still().map(|at| at.0 >= second(100))
        };
        assert_eq!(is_now(&[99, 99], 0), None);
        assert_eq!(is_now(&[99, 97], 0), Some(true));
        assert_eq!(is_now(&[99, 97], 7), Some(true));
        assert_eq!(is_now(&[99, 51], 0), Some(true));
        assert_eq!(is_now(&[99, 49], 0), None, "it is gone");
        assert_eq!(is_now(&[99, 0], 0), None, "it has not begun");
        assert_eq!(with(&[second(99)], second(7)).stood_still(), Some(Nanos(second(7))));
    }

    #[test]
    fn its_threads_wake_and_end() {
        let started = Instant::now();
        let watched = Processors::watch(Duration::from_millis(20), started, true);
        std::thread::sleep(Duration::from_millis(100));
        let shared = Arc::clone(&watched.shared);
        assert!(shared.woke.iter().all(|woke| woke.load(Relaxed) > 0), "they run");
        drop(watched);
        let deadline = Instant::now() + Duration::from_secs(10);
        while Arc::strong_count(&shared) > 1 {
            assert!(Instant::now() < deadline, "they end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
