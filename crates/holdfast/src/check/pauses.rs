//! How long this host's processors stand still now and then: a hypervisor takes one away, or
//! something in the kernel keeps it. A lease, and the patience for heartbeats, must be longer than that.

use super::Finding;
use crate::config::{GroupFile, HEARTBEAT_MS, LEASED_MS_MAX};
use crate::daemon::{LEASE_MIN, PRIORITY};
use holdfast_linux::affinity::{self, CpuSet};
use holdfast_linux::priority;
use std::fmt::Write as _;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Name of its line.
const NAME: &str = "pauses";
/// Time between two looks at the clock.
const TICK: Duration = Duration::from_millis(1);
/// A look that is later than this counts as a pause.
const PAUSE: Duration = Duration::from_millis(5);
/// What a way there and back, and the wake-ups on it, take of a lease.
const MARGIN: Duration = Duration::from_millis(2);
/// Heartbeats to choose from, in ms.
const HEARTBEATS_MS: [u64; 10] = [20, 30, 40, 50, 75, 100, 150, 200, 500, 1000];
/// How much longer than the worst pause that was seen one may be that was not, in percent.
const RESERVE_PERCENT: u32 = 150;

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pauses {
    worst: Duration,
    /// Pauses longer than [`PAUSE`].
    count: u64,
    processors: usize,
    /// Whether it was measured as daemons run: with real-time priority.
    realtime: bool,
}

/// Measures for so long, and says which lease, or patience for heartbeats, this host bears;
/// `each_second` is told how much is left.
pub fn measure(
    file: Option<&GroupFile>,
    time: Duration,
    mut each_second: impl FnMut(Duration),
) -> Finding {
    let until = Instant::now() + time;
    let allowed = affinity::of(0).ok();
    let has = |cpu: &usize| allowed.as_ref().is_some_and(|set| set.has(*cpu));
    let cpus = (0..libc::CPU_SETSIZE as usize).filter(has);
    let watch = |cpu| std::thread::spawn(move || watch(cpu, until));
    let threads: Vec<JoinHandle<Pauses>> = cpus.map(watch).collect();
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        each_second(left);
        std::thread::sleep(left.min(Duration::from_secs(1)));
    }
    let mut all = Pauses { realtime: true, ..Pauses::default() };
    for found in threads.into_iter().filter_map(|thread| thread.join().ok()) {
        all.worst = all.worst.max(found.worst);
        all.count += found.count;
        all.processors += found.processors;
        all.realtime &= found.realtime;
    }
    judge(all, time, file.map(Pace::of).unwrap_or_default())
}

/// What the file says of heartbeats, and may say.
#[derive(Clone, Copy, Debug)]
struct Pace {
    own: Option<Duration>,
    max_ms: u64,
}

impl Pace {
    fn of(file: &GroupFile) -> Self {
        let is_leased = matches!(file, GroupFile::Replicated(config) if config.segment.is_some());
        let max_ms = if is_leased { LEASED_MS_MAX } else { *HEARTBEAT_MS.end() };
        Self { own: Some(file.heartbeat()), max_ms }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self { own: None, max_ms: *HEARTBEAT_MS.end() }
    }
}

fn watch(cpu: usize, until: Instant) -> Pauses {
    // Unbound it measures the same, of whatever processor it gets.
    let _unbound = affinity::set(0, &CpuSet::one(cpu));
    let realtime = priority::set_realtime(PRIORITY).is_ok();
    let mut found = Pauses { realtime, processors: 1, ..Pauses::default() };
    let mut before = Instant::now();
    while before < until {
        std::thread::sleep(TICK);
        let now = Instant::now();
        let late = now.duration_since(before).saturating_sub(TICK);
        found.worst = found.worst.max(late);
        found.count += u64::from(late > PAUSE);
        before = now;
    }
    found
}

/// The lease with this heartbeat, which is as long as the patience for heartbeats.
fn lease(heartbeat: Duration) -> Duration {
    LEASE_MIN.max(heartbeat * 3)
}

/// Whether a lease that is renewed with every heartbeat outlives this pause.
fn bears(heartbeat: Duration, pause: Duration) -> bool {
    pause + heartbeat + MARGIN <= lease(heartbeat)
}

fn judge(found: Pauses, time: Duration, Pace { own, max_ms }: Pace) -> Finding {
    let Pauses { worst, count, processors, realtime } = found;
    if processors == 0 {
        return Finding::warn(NAME, "no processor could be watched", "look at `taskset -p $$`");
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut text = format!(
        "the longest of {processors} processors in {} s was {:.1} ms ({count} above {} ms)",
        time.as_secs(),
        ms(worst),
        PAUSE.as_millis(),
    );
    if !realtime {
        let _ = write!(text, ", without real-time priority, which daemons have");
    }
    let wanted = worst * RESERVE_PERCENT / 100;
    let all = HEARTBEATS_MS.into_iter().filter(|ms| *ms <= max_ms).map(Duration::from_millis);
    let Some(choice) = all.into_iter().find(|it| bears(*it, wanted)) else {
        let remedy = format!(
            "no heartbeat_ms bears that, for {max_ms} is the largest here: give the host processors \
             of its own"
        );
        return Finding::warn(NAME, text, remedy);
    };
    let advice = |it: Duration| {
        format!("heartbeat_ms = {}, a lease of {:.0} ms", it.as_millis(), ms(lease(it)))
    };
    match own {
        Some(own) if !bears(own, worst) => {
            let _ =
                write!(text, ": the file's lease of {:.0} ms would have run out", ms(lease(own)));
            let remedy = format!(
                "write {}, the same on every host: it is the smallest of those that are tried here \
                 which bears {RESERVE_PERCENT} % of the longest pause; {max_ms} is the largest",
                advice(choice)
            );
            Finding::warn(NAME, text, remedy)
        }
        Some(own) => {
            let _ = write!(text, ": it bears the file's lease of {:.0} ms", ms(lease(own)));
            Finding::ok(NAME, text)
        }
        None => {
            let _ = write!(text, ": it bears {}", advice(choice));
            Finding::ok(NAME, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;

    const MINUTE: Duration = Duration::from_secs(60);

    fn of(worst_ms: u64, heartbeat_ms: Option<u64>) -> Finding {
        let own = heartbeat_ms.map(Duration::from_millis);
        by(worst_ms, Pace { own, ..Pace::default() })
    }

    fn by(worst_ms: u64, pace: Pace) -> Finding {
        let worst = Duration::from_millis(worst_ms);
        judge(Pauses { worst, count: 3, processors: 2, realtime: true }, MINUTE, pace)
    }

    #[test]
    fn the_shortest_heartbeat_that_bears_it_is_named() {
        for (worst, choice) in [(0, 20), (25, 20), (26, 30), (90, 75), (500, 500)] {
            let found = of(worst, None);
            let wanted = format!("heartbeat_ms = {choice},");
            assert_eq!(
                (found.verdict, found.found.contains(&wanted)),
                (Verdict::Ok, true),
                "{found:?}"
            );
        }
        let hopeless = of(2000, None);
        assert_eq!(hopeless.verdict, Verdict::Warn);
        assert!(hopeless.remedy.contains("processors of its own"));
    }

    #[test]
    fn the_files_own_lease_is_held_against_it() {
        assert_eq!(of(38, Some(20)).verdict, Verdict::Ok);
        let short = of(39, Some(20));
        assert_eq!(short.verdict, Verdict::Warn);
        assert!(short.found.ends_with("the file's lease of 60 ms would have run out"));
        let begin = "write heartbeat_ms = 40, a lease of 120 ms, the same on every host: it is the \
                     smallest";
        assert!(short.remedy.starts_with(begin), "{short:?}");
        assert!(short.remedy.ends_with("150 % of the longest pause; 1000 is the largest"));
    }

    /// What this advises is what the file may say.
    #[test]
    fn nothing_is_advised_that_the_file_may_not_say() {
        let (path, text) = (
            std::path::Path::new("/x.toml"),
            include_str!("../../../../docs/example-segment.toml"),
        );
        let pace = Pace::of(&GroupFile::parse(path, text).expect("an example"));
        assert_eq!((pace.own, pace.max_ms), (Some(Duration::from_millis(18)), LEASED_MS_MAX));
        assert!(by(100, pace).remedy.starts_with("write heartbeat_ms = 100, "));
        let hopeless = by(200, pace);
        assert_eq!(hopeless.verdict, Verdict::Warn);
        assert!(hopeless.remedy.contains("100 is the largest here"), "{hopeless:?}");
    }

    #[test]
    fn it_is_measured() {
        let mut told = 0;
        let found = measure(None, Duration::from_millis(50), |_| told += 1);
        assert!(found.found.contains("processors in 0 s"), "{found:?}");
        assert_eq!(told, 1);
    }
}
