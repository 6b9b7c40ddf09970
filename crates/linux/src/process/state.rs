//! What the threads of a process do at the moment (proc_pid_stat(5)).

use super::{stat_field, threads};

/// Whether a thread of the process runs, or waits for a processor or a disk (states R and D).
#[must_use]
pub fn is_busy(pid: u32) -> bool {
    states(pid).iter().any(|state| matches!(state.as_str(), "R" | "D"))
}

/// Whether a process stands still by somebody's hand: all of its threads are stopped, by a
/// signal or by who traces them (states T and t).
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    let all = states(pid);
    !all.is_empty() && all.iter().all(|state| matches!(state.as_str(), "T" | "t"))
}

fn states(pid: u32) -> Vec<String> {
    let stat = |tid| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok();
    let of = |tid| stat_field(&stat(tid)?, 0).map(str::to_owned);
    threads(pid).into_iter().flatten().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{pidfd_open, signal};
    use std::os::fd::AsFd as _;
    use std::process::Command;
    use std::time::{Duration, Instant};

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
