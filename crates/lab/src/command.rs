//! Other programs as functions: run one, feed it text, look at the process
//! tree. The lab drives `ip`, `tc`, `unshare` and `nsenter` this way, so that
//! everything it does to the machine can be repeated by hand.

use anyhow::{Context as _, Result, bail};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time between two looks of a waiting loop.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Runs `program` with `arguments` and returns what it wrote to stdout.
///
/// # Errors
/// When it cannot be started or its exit status is not 0; the error carries
/// what it wrote to stderr.
pub fn output(program: &str, arguments: &[&str]) -> Result<String> {
    finish(Command::new(program).args(arguments), None)
}

/// Runs a shell script from a string; stops at its first failing line.
///
/// # Errors
/// As [`output`].
pub fn shell(script: &str) -> Result<String> {
    finish(Command::new("sh").args(["-eu", "-c", script]), None)
}

/// Feeds `lines` to `ip -batch -`, which is many times faster than one `ip`
/// per line.
///
/// # Errors
/// As [`output`].
pub fn ip_batch(namespace: Option<&str>, lines: &str) -> Result<()> {
    let mut command = Command::new("ip");
    if let Some(namespace) = namespace {
        command.args(["-n", namespace]);
    }
    finish(command.args(["-batch", "-"]), Some(lines)).map(drop)
}

fn finish(command: &mut Command, input: Option<&str>) -> Result<String> {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {shown}"))?;
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(text.as_bytes())?;
    }
    let done = child.wait_with_output()?;
    if !done.status.success() {
        bail!("{shown}: {}: {}", done.status, String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Asks `ready` again and again until it answers with a value.
///
/// # Errors
/// When `limit` has passed without one; `what` names what was waited for.
pub fn wait_for<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return Ok(value);
        }
        if start.elapsed() > limit {
            bail!("{what}: not within {} ms", limit.as_millis());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The children of a process, by their numbers in this process's pid namespace.
pub fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for task in tasks.flatten() {
        let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
    }
    found
}

/// What each thread of `pid` and of its descendants waits for in the kernel, a line
/// each: for errors about processes that do not end.
pub fn waiting_places(pid: u32) -> String {
    let mut lines = String::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let stat = read("stat");
        let shown = stat.split_whitespace().take(4).collect::<Vec<_>>().join(" ");
        let stack = read("stack").replace("[<0>] ", "").replace('\n', " < ");
        lines.push_str(&format!("{shown}: {stack}\n"));
    }
    children(pid).into_iter().fold(lines, |lines, child| lines + &waiting_places(child))
}

/// Every descendant of `pid` that runs the program `file`, children before
/// their parents. Links are followed: some of Debian's servers are links.
pub fn descendants_running(pid: u32, file: &Path) -> Vec<u32> {
    let program = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    // A program whose file was replaced is shown so.
    let replaced = PathBuf::from(format!("{} (deleted)", program.display()));
    let mut found = Vec::new();
    collect_running(pid, &[program, replaced], &mut found);
    found
}

fn collect_running(pid: u32, programs: &[PathBuf], found: &mut Vec<u32>) {
    for child in children(pid) {
        collect_running(child, programs, found);
        if fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|link| programs.contains(&link)) {
            found.push(child);
        }
    }
}

/// User plus system time a process and its reaped children have used, seconds.
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command name may hold spaces; fields are counted after its closing bracket.
    let Some((_, fields)) = stat.rsplit_once(')') else {
        return 0.0;
    };
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Programs that use a core each until this is dropped.
pub struct Hogs(Vec<Killed>);

impl Hogs {
    /// Starts `count` programs. Each ends by itself when it has computed for `limit`, so that a lab
    /// that is killed leaves no busy machine behind.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn start(count: usize, limit: Duration) -> Result<Self> {
        let limit_s = limit.as_secs().max(1);
        let mut hogs = Self(Vec::new());
        for _ in 0..count {
            // There is no program in between that could end before it.
            let hog = Command::new("sh")
                .args(["-c", &format!("ulimit -t {limit_s}; while :; do :; done")])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            hogs.0.push(Killed(hog.context("cannot start a busy program")?));
        }
        Ok(hogs)
    }

    /// Whether all programs still run.
    pub fn all_run(&mut self) -> bool {
        self.0.iter_mut().all(|hog| matches!(hog.0.try_wait(), Ok(None)))
    }
}

/// A process that is killed when this is dropped.
pub(crate) struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // A process that has ended already is as good as killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hogs_end_when_they_are_dropped_and_by_themselves() {
        let mut hogs = Hogs::start(1, Duration::from_secs(60)).unwrap();
        assert!(hogs.all_run());
        let pid = hogs.0[0].0.id();
        drop(hogs);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());

        let mut hogs = Hogs::start(1, Duration::from_secs(1)).unwrap();
        let ended = || (!hogs.all_run()).then_some(());
        wait_for("the end of it", Duration::from_secs(60), ended).unwrap();
    }
}
