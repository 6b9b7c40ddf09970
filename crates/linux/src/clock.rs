//! The kernel's clock that neither jumps nor counts while the machine sleeps, as BPF programs and
//! the times of TCP connections have it. A time namespace may show processes another one.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time since the machine was started, to a tick of the kernel's. It means the same to every
/// process.
#[must_use]
pub fn monotonic() -> Duration {
    let now = read(libc::CLOCK_MONOTONIC_COARSE);
    Duration::from_nanos(u64::try_from(now - ahead()).unwrap_or(0))
}

/// The kernel's time of an instant, in ns.
#[must_use]
pub fn kernel_ns(at: Instant) -> u64 {
    let (before, now) = (read(libc::CLOCK_MONOTONIC), Instant::now());
    let left = match at.checked_duration_since(now) {
        Some(left) => left.as_nanos() as i128,
        None => -(now.duration_since(at).as_nanos() as i128),
    };
    // The instant is never later than it was meant.
    u64::try_from(before - ahead() + left).unwrap_or(0)
}

fn read(clock: libc::clockid_t) -> i128 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    let read = unsafe { libc::clock_gettime(clock, &raw mut now) };
    assert_eq!(read, 0, "every kernel has this clock");
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

/// How far this process' clock is ahead of the kernel's, in ns: a process cannot leave its time
/// namespace.
fn ahead() -> i128 {
    static AHEAD: OnceLock<i128> = OnceLock::new();
    *AHEAD.get_or_init(|| {
        let told = std::fs::read_to_string("/proc/self/timens_offsets");
        // A kernel without time namespaces has no such file.
        told.ok().and_then(|text| offset_in(&text)).unwrap_or(0)
    })
}

/// The offset of the monotonic clock, in ns, as time_namespaces(7) describes the file.
fn offset_in(text: &str) -> Option<i128> {
    let line = text.lines().find_map(|line| line.strip_prefix("monotonic"))?;
    let mut words = line.split_whitespace().map(str::parse::<i128>);
    let (seconds, ns) = (words.next()?.ok()?, words.next()?.ok()?);
    Some(seconds * 1_000_000_000 + ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn an_offset_is_found_in_its_line() {
        let text = "monotonic      100000         7\nboottime            0         0\n";
        assert_eq!(offset_in(text), Some(100_000_000_000_007));
        assert_eq!(offset_in("monotonic -3 0\n"), Some(-3_000_000_000));
        for odd in ["", "boottime 1 1\n", "monotonic\n", "monotonic 1\n", "monotonic x 0\n"] {
            assert_eq!(offset_in(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn an_instant_has_the_kernels_time() {
        let at = Instant::now() + Duration::from_millis(50);
        let by = |ms: u64| u128::from(ms) * 1_000_000;
        let now = monotonic().as_nanos();
        let then = u128::from(kernel_ns(at));
        assert!(then > now + by(20) && then < now + by(80), "{then} after {now}");
        assert!(u128::from(kernel_ns(Instant::now())) >= now);
    }

    /// Name of the variable in which this test tells its child that it is that.
    const INSIDE: &str = "HOLDFAST_TEST_TIME_NAMESPACE";

    #[test]
    fn a_time_namespace_changes_nothing() {
        if std::env::var_os(INSIDE).is_some() {
            println!("it is {}", monotonic().as_secs());
            return;
        }
        let own = std::env::current_exe().unwrap();
        let mut child = Command::new("unshare");
        child.args(["--time", "--monotonic", "500000", "--fork"]).arg(own).env(INSIDE, "1");
        child.args(["--nocapture", "clock::tests::a_time_namespace_changes_nothing"]);
        let said = String::from_utf8(child.output().unwrap().stdout).unwrap();
        let found = said.split("it is ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let seconds: u64 =
            found.unwrap_or_else(|| panic!("it needs root: {said}")).parse().unwrap();
        assert!(seconds.abs_diff(monotonic().as_secs()) < 60, "{seconds}");
    }
}
