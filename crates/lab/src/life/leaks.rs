//! What the group holds. After every step descriptors, threads, memory, mounts, files and processes
//! are counted on each host; a count that exceeds its first value in the same role by more than its
//! margin is a leak.

use super::act::Truth;
use crate::testbed::addresses::{SERVICE_V4, SERVICE_V6};
use crate::testbed::ours::Group;
use crate::testbed::{Role, Testbed};
use anyhow::{Result, ensure};
use holdfast_linux::process::resident_bytes;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

const DESCRIPTORS: &str = "descriptors";

/// Margin of descriptors, which come and go with the channel's attempts.
const DESCRIPTORS_MARGIN: u64 = 16;

/// Time within which a daemon has disconnected strangers at its ports: eight of each address may
/// wait there, also behind a link that was cut meanwhile.
const STRANGERS_LIMIT: Duration = Duration::from_secs(8);

/// Margin of threads: one or two may be at work for a moment.
const THREADS_MARGIN: u64 = 4;

/// Margin of resident memory, in KiB: rings, retained bytes and what the allocator keeps.
const RESIDENT_MARGIN_KIB: u64 = 96 << 10;

/// Margin of mounts: what an earlier life left is replaced, not added to.
const MOUNTS_MARGIN: u64 = 2;

/// Margin of files in the run directory: sockets, locks, records.
const FILES_MARGIN: u64 = 4;

/// Margin of processes: a server, its daemon, and what is just starting or ending.
const PROCESSES_MARGIN: u64 = 3;

/// Margin of flows: those of connections that have just ended (four clients that connect again and
/// again end up to a hundred a second, and the edge keeps each for more than one), and of those
/// that were ending when a member died, about which the edge asks after a minute.
const FLOWS_MARGIN: u64 = 256;

/// Time within which the edge and the primary have forgotten every connection that is over.
const FLOWS_LIMIT: Duration = Duration::from_secs(8);

/// Margin of slots in the primary's gate and in its books, of connections that are just ending.
const SLOTS_MARGIN: u64 = 64;

/// Time after which an edge whose host was restarted knows which connections are over: it learns
/// them from their last packets, and then has to ask.
const LEARNT_LASTS: Duration = Duration::from_secs(75);

/// What a group is meant to hold.
#[derive(Clone, Copy, Debug)]
pub struct Living {
    /// Number of connections, including those whose clients have vanished.
    pub living: u64,
    /// Number of handshakes that nobody completes, which have slots and no flows.
    pub half_open: u64,
}

/// The first counts of each kind.
#[derive(Default)]
pub struct Leaks {
    first: BTreeMap<(&'static str, &'static str, bool, bool), u64>,
    /// Number of flows that the edge has learnt, and when it last changed.
    learnt: Option<(u64, Instant)>,
}

impl Leaks {
    /// Counts again, and returns what has grown. `down`: daemons that do not run.
    pub fn grown(
        &mut self,
        testbed: &Testbed,
        group: &Group<'_>,
        truth: Truth,
        down: &[Role],
        Living { living, half_open }: Living,
    ) -> Vec<String> {
        let mut grown = Vec::new();
        for role in [Role::Edge, Role::Primary, Role::Backup] {
            let speaks = truth.speaker() == Some(role);
            let pair = matches!(truth, Truth::Pair { .. });
            for (what, count, margin) in counts(testbed, group, role, down.contains(&role)) {
                let first = *self.first.entry((role.name(), what, speaks, pair)).or_insert(count);
                let count = match what {
                    DESCRIPTORS => settled(group, role, count, first + margin),
                    _ => count,
                };
                if count > first + margin {
                    let name = role.name();
                    grown.push(format!("{name}: {what} grew from {first} to {count}"));
                }
            }
        }
        if !down.contains(&Role::Edge) {
            grown.extend(self.flows_left(group, living));
        }
        if let Truth::Pair { current } = truth {
            grown.extend(slots_left(group, current, living + half_open));
        }
        grown
    }

    /// Flows that the edge keeps although their connections are over, as a complaint.
    fn flows_left(&mut self, group: &Group<'_>, living: u64) -> Option<String> {
        let start = Instant::now();
        loop {
            let shown = group.verb(Role::Edge, &["edge", "show", "--json"]).ok();
            let show = shown.and_then(|done| serde_json::from_slice::<Value>(&done.stdout).ok());
            let show = show.unwrap_or_default();
            let learnt = show["counters"]["learnt"].as_u64().unwrap_or(0);
            if self.learnt.is_none_or(|(known, _)| known != learnt) {
                self.learnt = Some((learnt, Instant::now()));
            }
            let fresh = self.learnt.filter(|(_, since)| since.elapsed() < LEARNT_LASTS);
            let allowed = living + FLOWS_MARGIN + fresh.map_or(0, |(learnt, _)| learnt);
            match show["flows"]["count"].as_u64() {
                Some(count) if count <= allowed => return None,
                Some(count) if start.elapsed() > FLOWS_LIMIT => {
                    return Some(format!("the edge keeps {count} flows of {living} connections"));
                }
                None if start.elapsed() > FLOWS_LIMIT => {
                    return Some("the edge does not tell its flows".to_owned());
                }
                _ => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

/// Connections that a primary protects although they are over, as a complaint. In a member that
/// runs alone they are the kernel's, which keeps closed ones for a minute.
fn slots_left(group: &Group<'_>, primary: Role, living: u64) -> Option<String> {
    let start = Instant::now();
    loop {
        let status = group.status(primary).unwrap_or_default();
        match status["connections"].as_u64() {
            Some(count) if count <= living + SLOTS_MARGIN => return None,
            count if start.elapsed() > FLOWS_LIMIT => {
                return Some(format!("the primary keeps {count:?} slots of {living} connections"));
            }
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn descriptors(pid: u32) -> Option<u64> {
    fs::read_dir(format!("/proc/{pid}/fd")).ok().map(|all| all.count() as u64)
}

/// Number of a daemon's descriptors after strangers are gone, if there were more than `most`.
fn settled(group: &Group<'_>, role: Role, count: u64, most: u64) -> u64 {
    let start = Instant::now();
    let mut count = count;
    while count > most && start.elapsed() < STRANGERS_LIMIT {
        std::thread::sleep(Duration::from_millis(200));
        count = group.daemon_pid(role).ok().and_then(descriptors).unwrap_or(count);
    }
    count
}

/// The counts on a host: name, number, and margin. What cannot be read is left out, since a 0 would
/// make the next count a leak.
fn counts(
    testbed: &Testbed,
    group: &Group<'_>,
    role: Role,
    is_down: bool,
) -> Vec<(&'static str, u64, u64)> {
    let host = testbed.host(role);
    let lines =
        |path: String| fs::read_to_string(path).ok().map(|text| text.lines().count() as u64);
    let entries = |path: String| fs::read_dir(path).ok().map(|all| all.count() as u64);
    let mut all = vec![
        ("mounts", lines(format!("/proc/{}/mounts", host.holder())), MOUNTS_MARGIN),
        ("files", entries(host.outside().join("run").display().to_string()), FILES_MARGIN),
        ("processes", host.processes().ok().map(|all| all.len() as u64), PROCESSES_MARGIN),
    ];
    if let Some(pid) = group.daemon_pid(role).ok().filter(|_| !is_down) {
        all.push((DESCRIPTORS, descriptors(pid), DESCRIPTORS_MARGIN));
        all.push(("threads", entries(format!("/proc/{pid}/task")), THREADS_MARGIN));
        let resident = resident_bytes(pid).map(|bytes| bytes >> 10);
        all.push(("resident KiB", resident, RESIDENT_MARGIN_KIB));
    }
    all.into_iter().filter_map(|(what, count, margin)| Some((what, count?, margin))).collect()
}

/// Checks that nothing of Holdfast is left on a host after `holdfast down`.
///
/// # Errors
/// When something is left, with its name.
pub fn ensure_clean(testbed: &Testbed, role: Role) -> Result<()> {
    let host = testbed.host(role);
    // Mounts that others had made before this host existed do not count.
    let run_dir = host.inside().join("run");
    let run_dir = run_dir.display();
    let look = format!(
        "ip -o addr | grep -F -e ' {SERVICE_V4}/' -e ' {SERVICE_V6}/'; \
         mount -t bpf | grep -F {run_dir}/; \
         for d in /sys/class/net/*; do for way in ingress egress; do \
         tc filter show dev ${{d##*/}} $way; done; done"
    );
    let done = host.command("sh").args(["-c", &look]).stdin(Stdio::null()).output()?;
    let left = String::from_utf8_lossy(&done.stdout).trim().replace('\n', "; ");
    ensure!(left.is_empty(), "left on the {}: {left}", role.name());
    let processes = host.processes()?;
    ensure!(processes.is_empty(), "processes left on the {}: {processes:?}", role.name());
    Ok(())
}
