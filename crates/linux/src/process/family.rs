//! A process and what descends from it.

use super::is_over;

/// Most threads whose children are looked for at once: a program may start new ones for as long as
/// somebody looks.
const LOOKED_AT_MAX: usize = 1 << 15;

/// A process and its descendants, itself first: all of them if they have no more than 32,768
/// threads.
#[must_use]
pub fn family(pid: u32) -> Vec<u32> {
    family_within(pid, LOOKED_AT_MAX)
}

/// Like [`family`], of those found within so many threads.
#[must_use]
pub fn family_within(pid: u32, threads: usize) -> Vec<u32> {
    let mut found = vec![pid];
    let (mut next, mut left) = (0, threads);
    while let Some(pid) = found.get(next).filter(|_| left > 0) {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        let lists = tasks.into_iter().flatten().flatten().take(left);
        let text: Vec<String> = lists
            .inspect(|_| left -= 1)
            .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
            .collect();
        found.extend(
            text.iter().flat_map(|t| t.split_whitespace()).filter_map(|w| w.parse::<u32>().ok()),
        );
        next += 1;
    }
    found
}

/// Like [`family`], without those that have ended, and for which nobody has waited yet.
#[must_use]
pub fn living_family(pid: u32) -> Vec<u32> {
    let mut found = family(pid);
    found.retain(|it| *it == pid || !is_over(*it));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn a_program_that_starts_others_is_looked_at_within_bounds() {
        let words = ["-c", "for n in 1 2 3 4 5 6; do sleep 60 & done; wait"];
        let mut shell = Command::new("sh").args(words).spawn().expect("a shell");
        let until = Instant::now() + Duration::from_secs(10);
        while family(shell.id()).len() < 7 {
            assert!(Instant::now() < until, "it starts them");
        }
        let all = family(shell.id());
        assert_eq!(family_within(shell.id(), 7), all);
        // The shell's one thread is looked at; whose children those are, nobody asks.
        assert_eq!(family_within(shell.id(), 1), all);
        assert_eq!(family_within(shell.id(), 0), [shell.id()]);
        super::super::kill_descendants(shell.id());
        shell.wait().expect("it ends with them");
    }
}
