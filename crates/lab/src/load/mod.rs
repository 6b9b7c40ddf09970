//! The load: one process that runs many connections against a real server, checks every byte that
//! it gets, notes when each connection made progress, and causes the fault itself, at a moment when
//! bytes are outstanding. It must not pause by itself: one thread, epoll, and buffers that are
//! allocated beforehand.

mod connection;
mod engine;
mod expect;
mod fault;
pub mod pattern;
mod talk;

pub(crate) use talk::{http_file, http_salt};

use crate::testbed::Host;
use anyhow::{Context as _, Result, ensure};
use holdfast_linux::limits::raise_open_files;
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};

/// Command by which the binary runs the load.
pub(crate) const LOAD_COMMAND: &str = "load-run";

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// redis: one lone outstanding ECHO.
    Pingpong,
    /// redis: INCR of the connection's own counter; each reply is the last + 1.
    Incr,
    /// redis: INCR of one counter by all; together the replies are 1..=N.
    Shared,
    /// redis: pipelined ECHO of large values.
    Echo,
    /// redis: SET of large values, checked by STRLEN and GETRANGE.
    Upload,
    /// redis: GET of a large value.
    Download,
    /// redis: PING, silence, and PING at the very end.
    Idle,
    /// redis: SUBSCRIBE, silence, and PING at the very end.
    IdleSubscriber,
    /// redis: connect, INCR, close, again.
    Churn,
    /// redis: a publisher and its subscriber.
    Pubsub,
    /// http: a response that ends with the connection, then a new connection.
    HttpClose,
    /// http: a large file.
    HttpDownload,
    /// http: small requests on one connection.
    HttpKeepalive,
    /// MQTT: a publisher and its subscriber, QoS 1.
    Mqtt,
    /// memcached: incr of the connection's own counter, and a value that is set
    /// and read back.
    Memcached,
    /// memcached: incr of one counter by all; together the replies are 1..=N.
    MemcachedShared,
}

/// Connections of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Group {
    /// What the connections do.
    pub workload: Workload,
    /// Number of connections; publishers and subscribers come in pairs.
    pub connections: usize,
    /// The server's port.
    pub port: u16,
    /// Bytes of a value, a body or a message.
    pub size_bytes: u64,
    /// Most requests that may be outstanding.
    pub depth: usize,
    /// Time between two requests in µs; 0: as fast as they are answered.
    pub interval_us: u64,
}

impl Group {
    /// A group with the usual size and depth of its workload.
    pub fn usual(workload: Workload, connections: usize, port: u16) -> Self {
        let (size_bytes, depth, interval_us) = match workload {
            Workload::Pingpong => (64, 1, 0),
            Workload::Echo => (16 << 10, 4, 0),
            Workload::Upload => (256 << 10, 1, 0),
            Workload::Download => (1 << 20, 1, 0),
            Workload::HttpDownload => (64 << 20, 1, 0),
            Workload::HttpClose => (256 << 10, 1, 0),
            Workload::HttpKeepalive => (1 << 10, 1, 0),
            Workload::Pubsub | Workload::Mqtt => (64, 1, 500),
            Workload::Memcached => (1 << 10, 1, 0),
            Workload::Incr
            | Workload::Shared
            | Workload::MemcachedShared
            | Workload::Idle
            | Workload::IdleSubscriber
            | Workload::Churn => (0, 1, 0),
        };
        Self { workload, connections, port, size_bytes, depth, interval_us }
    }
}

/// Something that breaks, or that prepares a break.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Action {
    /// `kill -9` of a process.
    Kill(u32),
    /// SIGSTOP of processes.
    Stop(Vec<u32>),
    /// SIGCONT of processes.
    Continue(Vec<u32>),
    /// Text written to a file, such as an interface's flags.
    Write(PathBuf, String),
    /// A program to run.
    Run(Vec<String>),
}

/// When and how the service breaks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// Time from the moment when all connections work to the fault, in µs. If no byte is
    /// outstanding then, a new moment within the next `redraw_us` is drawn.
    pub after_us: u64,
    /// Span from which the next moment is drawn if no byte is outstanding, in µs.
    pub redraw_us: u64,
    /// What happens, with the time since the step before, in µs.
    pub steps: Vec<(u64, Action)>,
}

/// What the load is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Address of the service.
    pub address: IpAddr,
    /// The connections, by kind.
    pub groups: Vec<Group>,
    /// Time for which the load runs after all connections work or, if there is a fault, after the
    /// fault, in ms. 0: until [`Run::finish`] ends it or a connection fails.
    pub duration_ms: u64,
    /// TCP congestion control of the client's sockets.
    pub congestion: Option<String>,
    /// The fault, if there is one.
    pub fault: Option<Fault>,
    /// Determines all random decisions and the names of keys.
    pub seed: u64,
    /// Indices of the connections whose bytes over time are reported.
    pub points: Vec<usize>,
}

/// Quantiles of a time, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Number of measured values.
    pub count: u64,
    /// Median, in ns.
    pub p50: u64,
    /// 99th percentile, in ns.
    pub p99: u64,
    /// Largest value, in ns.
    pub max: u64,
}

/// What a connection saw.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// What the connection did.
    pub workload: Workload,
    /// Number of correct replies between ready and stop.
    pub replies: u64,
    /// Application bytes received and checked, between ready and stop.
    pub bytes_in: u64,
    /// Application bytes sent, between ready and stop.
    pub bytes_out: u64,
    /// Number of times that it connected.
    pub connects: u64,
    /// Whether it was open, or being opened, when the fault came.
    pub open_at_fault: bool,
    /// Longest time without progress while something was outstanding, in ns: the longest that
    /// overlaps the fault or, without a fault, of all.
    pub stall_ns: u64,
    /// When the longest time without progress began, by CLOCK_MONOTONIC, in ns.
    pub stall_start_ns: u64,
    /// Longest time without progress that began after the fault was over, in ns.
    pub later_gap_ns: u64,
    /// Number of replies with a wrong byte.
    pub byte_errors: u64,
    /// Number of connections that the server ended without being asked to.
    pub resets: u64,
    /// Whether the connection waited for progress until the load gave up.
    pub hung: bool,
    /// The first mistake, in words.
    pub error: Option<String>,
    /// When it was made, by CLOCK_MONOTONIC, in ns: nothing has happened since.
    pub failed_ns: Option<u64>,
    /// Bytes received over time: (CLOCK_MONOTONIC ns, total bytes).
    pub points: Vec<(u64, u64)>,
}

impl ConnectionReport {
    /// Whether every byte was right and nothing broke.
    pub fn survived(&self) -> bool {
        self.byte_errors == 0 && self.resets == 0 && !self.hung && self.error.is_none()
    }
}

/// What the load has seen so far, as [`Run::follow`] hands it on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// When it was taken, by CLOCK_MONOTONIC, in ns.
    pub at_ns: u64,
    /// When the fault happened, if it has.
    pub fault_ns: Option<u64>,
    /// Every connection.
    pub lanes: Vec<LaneNow>,
}

/// What a connection has seen so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneNow {
    /// Number of replies.
    pub replies: u64,
    /// Application bytes received and checked.
    pub bytes_in: u64,
    /// Longest time without progress that overlaps the fault, in ns, the present one included.
    pub pause_ns: u64,
    /// Longest time without progress while something was outstanding, of those that ended since the
    /// last snapshot or have not ended, in ns.
    pub gap_ns: u64,
    /// When that began, by CLOCK_MONOTONIC, in ns.
    pub gap_start_ns: u64,
    /// Whether it has failed.
    pub has_ended: bool,
}

/// What the load saw.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// When all connections worked, by CLOCK_MONOTONIC, in ns.
    pub ready_ns: u64,
    /// When the load stopped sending requests, by CLOCK_MONOTONIC, in ns.
    pub stop_ns: u64,
    /// When the fault happened, by CLOCK_MONOTONIC, in ns.
    pub fault_ns: Option<u64>,
    /// How often the moment of the fault was drawn again.
    pub redraws: u64,
    /// Number of connections with outstanding bytes when the fault happened.
    pub outstanding_at_fault: u64,
    /// Results of every connection.
    pub connections: Vec<ConnectionReport>,
    /// What is wrong with the values of the shared counters together, if anything.
    pub shared_error: Option<String>,
    /// Round-trip times of requests, in ns.
    pub latency_ns: Quantiles,
    /// Times from connect to connected, in ns.
    pub connect_ns: Quantiles,
    /// Number of segments that the client's kernel sent again.
    pub retransmits: u64,
    /// Longest delay of the load in waking up, in ns: shorter stalls prove nothing.
    pub own_pause_ns: u64,
}

impl Report {
    /// Whether every connection survived and the shared counters add up.
    pub fn all_survived(&self) -> bool {
        self.shared_error.is_none() && self.connections.iter().all(ConnectionReport::survived)
    }

    /// The longest stall of any connection, ns.
    pub fn stall_ns(&self) -> u64 {
        self.connections.iter().map(|connection| connection.stall_ns).max().unwrap_or(0)
    }

    /// Time between ready and stop, in seconds.
    pub fn seconds(&self) -> f64 {
        (self.stop_ns.saturating_sub(self.ready_ns)) as f64 / 1e9
    }

    /// Sum of a number over all connections.
    pub fn total(&self, of: impl Fn(&ConnectionReport) -> u64) -> u64 {
        self.connections.iter().map(of).sum()
    }
}

/// A load that runs in a process of its own on a host.
pub struct Run(Child);

impl Run {
    /// Starts the load on `host`; it shares only the network with it.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(host: &Host, spec: &Spec) -> Result<Self> {
        Self::spawn(host, spec, &[])
    }

    /// Like [`Self::start`], with a load that says ten times a second what it sees, for
    /// [`Self::follow`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_told(host: &Host, spec: &Spec) -> Result<Self> {
        Self::spawn(host, spec, &["--told"])
    }

    fn spawn(host: &Host, spec: &Spec, options: &[&str]) -> Result<Self> {
        let child = host
            .network_command(crate::own_binary()?)
            .args([LOAD_COMMAND, &serde_json::to_string(spec)?])
            .args(options)
            // The end of its input tells a load without a duration to stop.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the load")?;
        Ok(Self(child))
    }

    /// Waits until the load has finished.
    ///
    /// # Errors
    /// When the load could not begin its work, for example because the server
    /// refused its first connection.
    pub fn finish(self) -> Result<Report> {
        self.follow(|_| ())
    }

    /// The end of its input ends a load without a duration: until whoever takes it drops it, the
    /// load goes on.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.0.stdin.take()
    }

    /// Like [`Self::finish`], and hands on what the load says meanwhile.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn follow(mut self, mut seen: impl FnMut(&Snapshot)) -> Result<Report> {
        drop(self.0.stdin.take());
        let stdout = self.0.stdout.take().context("the load's output is taken")?;
        let mut text = String::new();
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            match serde_json::from_str(&line) {
                Ok(snapshot) => seen(&snapshot),
                // The report is no snapshot.
                Err(_) => text = line,
            }
        }
        // What it says before it ends is a line, which no pipe is too small for.
        let stderr = self.0.stderr.take().context("the load's messages are taken")?;
        let said = std::io::read_to_string(stderr)?;
        let status = self.0.wait()?;
        ensure!(status.success(), "the load ended with {status}: {}", said.trim_end());
        serde_json::from_str(&text).context("the load's report is not a report")
    }

    /// Whether it has stopped by itself.
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }

    /// The pid of the load.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A process that has ended already is as good as killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Performs the steps of a fault now, without a load.
pub(crate) fn perform(steps: Vec<(u64, Action)>) {
    steps.into_iter().for_each(fault::perform);
}

/// Runs the load in this process and prints its report, if `is_told` after what it sees meanwhile.
pub(crate) fn run_here(spec: &str, is_told: bool) -> Result<()> {
    crate::die_with_parent()?;
    // Timer slack would round the moment of a fault to that of the next reply.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let spec: Spec = serde_json::from_str(spec).context("this is not a load")?;
    let connections: usize = spec.groups.iter().map(|group| group.connections).sum();
    // Besides connections the load needs some descriptors of its own.
    raise_open_files(connections as u64 + 64).context("the limit of open files")?;
    let report = engine::Engine::new(&spec, is_told)?.run()?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
