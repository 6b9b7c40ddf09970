//! What the threads of a process do at the moment (proc_pid_stat(5)).

use super::{stat_field, threads};

/// Whether a thread of the process runs, or waits for a processor or a disk (states R and D).
#[must_use]
pub fn is_busy(pid: u32) -> bool {
    states(pid).any(|state| matches!(state.as_str(), "R" | "D"))
}

/// Whether a process stands still by somebody's hand: all of its threads are stopped, by a
/// signal or by who traces them (states T and t).
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    let mut all = states(pid).peekable();
    all.peek().is_some() && all.all(|state| matches!(state.as_str(), "T" | "t"))
}

/// Whether nothing of a process runs any more, although somebody may still have to wait for it
/// (states Z and X).
#[must_use]
pub fn is_over(pid: u32) -> bool {
    states(pid).all(|state| matches!(state.as_str(), "Z" | "X"))
}

/// How often threads of the process have gone to sleep by themselves, which who computes
/// without end never does, nor who waits for ever (`voluntary_ctxt_switches` in
/// proc_pid_status(5)).
#[must_use]
pub fn sleeps(pid: u32) -> u64 {
    let status = |tid| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok();
    let of = |tid: u32| -> Option<u64> {
        let status = status(tid)?;
        let line = status.lines().find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse().ok()
    };
    threads(pid).into_iter().flatten().filter_map(of).sum()
}

/// A number that changes whenever one of these processes does anything: goes to sleep by itself, or
/// computes (`utime` and `stime`, in ticks of 10 ms). One that has become another one counts anew.
#[must_use]
pub fn deeds(pids: &[u32]) -> u64 {
    const UTIME: usize = 11;
    const STIME: usize = 12;
    let computed = |pid: u32| -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let ticks = |number| stat_field(&stat, number)?.parse::<u64>().ok();
        Some(ticks(UTIME)? + ticks(STIME)?)
    };
    let of = |pid: &u32| sleeps(*pid).wrapping_add(computed(*pid).unwrap_or(0));
    pids.iter().map(of).fold(pids.len() as u64, u64::wrapping_add)
}

/// The state of one thread after the other; each is read when it is asked for.
fn states(pid: u32) -> impl Iterator<Item = String> {
    let stat = move |tid| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok();
    let of = move |tid| stat_field(&stat(tid)?, 0).map(str::to_owned);
    threads(pid).into_iter().flatten().filter_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{pidfd_open, signal};
    use std::os::fd::AsFd as _;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn who_sleeps_now_and_then_is_told_from_who_waits_for_ever() {
        let said = |script: &str| Command::new("sh").args(["-c", script]).spawn().unwrap();
        let (mut wakes, mut waits) = (said("while :; do sleep 0.01; done"), said("exec sleep 60"));
        let until = Instant::now() + Duration::from_secs(10);
        let first = sleeps(wakes.id());
        while sleeps(wakes.id()) == first {
            assert!(Instant::now() < until, "it sleeps again and again");
        }
        while states(waits.id()).collect::<Vec<_>>() != ["S"] {
            assert!(Instant::now() < until, "it waits");
        }
        let asleep = sleeps(waits.id());
        let more = sleeps(wakes.id());
        while sleeps(wakes.id()) == more {
            assert!(Instant::now() < until, "it sleeps again and again");
        }
        assert_eq!(sleeps(waits.id()), asleep);
        for child in [&mut wakes, &mut waits] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn who_computes_is_told_from_who_waits_for_ever() {
        let said = |script: &str| Command::new("sh").args(["-c", script]).spawn().unwrap();
        let (mut computes, mut waits) = (said("while :; do :; done"), said("exec sleep 60"));
        let until = Instant::now() + Duration::from_secs(10);
        while states(waits.id()).collect::<Vec<_>>() != ["S"] {
            assert!(Instant::now() < until, "it waits");
        }
        let (asleep, first) = (deeds(&[waits.id()]), deeds(&[computes.id()]));
        while deeds(&[computes.id()]) == first {
            assert!(Instant::now() < until, "it computes");
        }
        assert_eq!(deeds(&[waits.id()]), asleep);
        assert_ne!(deeds(&[waits.id(), computes.id()]), asleep);
        for child in [&mut computes, &mut waits] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_process_that_somebody_has_stopped_is_told_from_one_that_sleeps() {
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = sleeper.id();
        let process = pidfd_open(pid).unwrap();
        let becomes = |stopped: bool| {
            let until = Instant::now() + Duration::from_secs(10);
            while is_stopped(pid) != stopped {
                assert!(Instant::now() < until, "stopped: {}", !stopped);
            }
        };
        becomes(false);
        for (number, stopped) in [(libc::SIGSTOP, true), (libc::SIGCONT, false)] {
            signal(process.as_fd(), number).unwrap();
            becomes(stopped);
        }
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(!is_stopped(pid), "it is gone");
    }
}
