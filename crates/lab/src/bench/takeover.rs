//! `holdfast-lab bench takeover`: the primary breaks under load, again and
//! again, and every byte that every client gets is checked.

use super::faults::{FaultKind, Survivor, both, fault_steps, unfenced};
use super::service::{Variant, address, program_for, with_service};
use crate::command::wait_for;
use crate::emu::EmuSpec;
use crate::load::{Action, Fault, Group as LoadGroup, Report, Run, Spec, Workload};
use crate::testbed::config::ArbiterKind;
use crate::testbed::ours::{Group, GroupOptions};
use crate::testbed::server::Program;
use crate::testbed::{LogLink, Overheard, Plan, Role, Testbed};
use anyhow::{Context as _, Result};
use clap::Args;
use holdfast_chance::Rng;
use holdfast_report::{Stalls, Summary, progress};
use holdfast_wire::buffering::Buffering;
use holdfast_wire::segment::Mode;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Earliest moment of a fault after all connections work, in µs.
const FAULT_EARLIEST_US: u64 = 200_000;

/// Span from which the moment of the fault is drawn, in µs.
const FAULT_SPAN_US: u64 = 500_000;

/// Span from which the next moment is drawn if no reply is outstanding, in µs.
const REDRAW_US: u64 = 5_000;

/// Time for which the load goes on after the fault, in ms.
const AFTER_FAULT_MS: u64 = 1_500;

/// Time for which the load goes on after the fault on a path of 50 ms, in ms.
const AFTER_FAULT_WAN_MS: u64 = 4_000;

/// Longest stay of a packet on the path of 50 ms, reordering included, in s.
const WAN_WAY_S: f64 = 0.1;

/// Bytes of a value on the path of 50 ms: larger ones would take longer than a run.
const WAN_VALUE_BYTES: u64 = 64 << 10;

/// Duration of a run without a fault, in ms.
const QUIET_MS: u64 = 500;

/// How long a survivor that waits for something may take to speak, once the load is over.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// Seconds of a day.
pub const DAY_S: f64 = 86_400.0;

/// The phases of a takeover, in their order.
pub const PHASES: [&str; 7] = ["detect", "fence", "drain", "probe", "repair", "address", "kick"];

/// The way between client and edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ClientPath {
    /// A wire.
    Clean,
    /// 50 ms there and back, 1 % loss, 2 % reordering.
    Wan,
}

/// Options of the takeover bench.
#[derive(Args, Clone, Debug, Serialize)]
pub struct TakeoverArgs {
    /// Print one JSON object.
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
    /// How many takeovers, each of a fresh pair.
    #[arg(long, default_value_t = 20)]
    pub runs: u64,
    /// What breaks.
    #[arg(long, value_enum, default_value = "kill9")]
    pub fault: FaultKind,
    /// What breaks besides, soon after.
    #[arg(long, value_enum)]
    pub second: Option<FaultKind>,
    /// How much later, ms.
    #[arg(long, default_value_t = 300, requires = "second")]
    pub second_after_ms: u64,
    /// What the connections do.
    #[arg(long, value_enum, default_value = "pingpong")]
    pub workload: Workload,
    /// How many connections.
    #[arg(long, default_value_t = 4)]
    pub connections: usize,
    /// Use IPv6.
    #[arg(long)]
    pub ipv6: bool,
    /// Determines every moment and every loss; run N is run 1 with a seed larger by N - 1.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The way between client and edge.
    #[arg(long, value_enum, default_value = "clean")]
    pub client_path: ClientPath,
    /// Share of the copies to the backup that is lost, such as 1%.
    #[arg(long)]
    pub tap_loss: Option<String>,
    /// Share of the clients' packets that only the primary never gets, such as 1%.
    #[arg(long)]
    pub primary_loss: Option<String>,
    /// Delay of the members' own wire, such as 20ms.
    #[arg(long)]
    pub slow_log: Option<String>,
    /// Share of the packets on the members' own wire that is lost, such as 5%.
    #[arg(long)]
    pub channel_loss: Option<String>,
    /// Let the members' channel go over a coded tunnel.
    #[arg(long)]
    pub coded: bool,
    /// Fence the primary this long before the fault, ms.
    #[arg(long)]
    pub fence_before_ms: Option<u64>,
    /// What output waits for: commit, or a mode that may lose some: prs, pr, immediate.
    #[arg(long, value_parser = buffering, default_value = Buffering::Commit.word())]
    pub buffering: Buffering,
    /// Without an edge: how clients' packets reach both members: flood, chain, clone. Only for
    /// flood does the switch flood anything.
    #[arg(long, value_parser = mode)]
    pub segment: Option<Mode>,
    /// Who decides between the members of a pair without an edge.
    #[arg(long, value_enum, default_value = "witness", requires = "segment")]
    pub arbiter: ArbiterKind,
    /// The primary's fence opens with the fault, for good: frames of two members reach the clients.
    #[arg(long, requires = "segment")]
    pub no_fence: bool,
    /// Which HTTP server or memcached.
    #[arg(long, value_enum)]
    pub server: Option<Program>,
    /// Congestion control of the client.
    #[arg(long)]
    pub congestion: Option<String>,
    /// Switch SACK off in the client.
    #[arg(long)]
    pub no_sack: bool,
    /// Switch timestamps off in the client.
    #[arg(long)]
    pub no_timestamps: bool,
    /// Switch window scaling off in the client.
    #[arg(long)]
    pub no_window_scaling: bool,
    /// Keep the daemons' logs of failed runs in this directory.
    #[arg(long)]
    pub keep_logs: Option<std::path::PathBuf>,
    /// With --keep-logs: those of successful runs too.
    #[arg(long, requires = "keep_logs")]
    pub keep_all_logs: bool,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct TakeoverReport {
    bench: &'static str,
    options: TakeoverArgs,
    /// Takeovers attempted.
    pub runs: u64,
    /// Runs in which every connection survived, or, of faults that may stop the service, in
    /// which none got a wrong byte.
    pub survived: u64,
    /// Number of connections over all runs.
    pub connections: u64,
    /// Number of connections that survived, over all runs.
    pub connections_survived: u64,
    /// Number of replies with a wrong byte.
    pub byte_errors: u64,
    /// Connections reset or ended by the service.
    pub resets: u64,
    /// Connections that waited for progress in vain.
    pub hangs: u64,
    /// Packets of a fenced member that reached a client.
    pub fenced_packets: u64,
    /// Longest interval without progress that overlaps the fault, for each connection, in ms.
    pub stall_ms: Stalls,
    /// Longest interval that began after the fault, in ms: what survivor or timers still owed.
    pub later_gap_ms: f64,
    /// Longest interval without progress in a run without a fault and without Holdfast, in ms.
    pub quiet_gap_ms: Summary,
    /// Longest delay of the load in waking up, in ms.
    pub own_pause_ms: f64,
    /// Number of segments that clients sent again in a run.
    pub retransmits: Summary,
    /// Times of the takeover's phases as the survivor measured them, in µs.
    pub phases_us: BTreeMap<&'static str, Summary>,
    /// What went wrong, with the command that repeats it.
    pub failures: Vec<String>,
}

/// Outcome of one takeover.
pub struct Outcome {
    /// What the clients saw.
    pub report: Report,
    /// `last_takeover` of the backup's status.
    pub takeover: Option<Value>,
    /// Events of the edge: the time of day, and the text.
    pub edge_events: Vec<(String, String)>,
    /// Why the wrong member speaks in the end, if it does.
    pub wrong_end: Option<String>,
    /// Packets of the primary that clients got after it was fenced, and whether they may.
    pub fenced_packets: u64,
    pub may_be_heard: bool,
    /// Whether both members were hit, so that the service may have stopped.
    pub may_stop: bool,
    /// What the daemons logged last, if something went wrong.
    pub last_words: String,
}

impl TakeoverArgs {
    /// Parses the words that follow `holdfast-lab bench takeover`.
    ///
    /// # Errors
    /// When the command would not accept them.
    pub fn of_words(words: &str) -> Result<Self, clap::Error> {
        #[derive(clap::Parser)]
        struct Words {
            #[command(flatten)]
            args: TakeoverArgs,
        }
        let words = ["takeover"].into_iter().chain(words.split_whitespace());
        <Words as clap::Parser>::try_parse_from(words).map(|words| words.args)
    }

    fn faults(&self) -> impl Iterator<Item = FaultKind> {
        [Some(self.fault), self.second].into_iter().flatten()
    }

    /// The member that must speak in the end; see [`FaultKind::survivor_with`]. On a wire that
    /// loses packets a member may be given up even before the fault.
    fn survivor(&self) -> Option<Survivor> {
        let lossy = self.channel_loss.is_some();
        let survivor = self.fault.survivor_with(self.second).filter(|_| !lossy)?;
        // memcached's threads read its clock without a lock, so a replica that is stopped again and
        // again may diverge, and its primary goes on alone.
        let slow = self.faults().any(|fault| fault == FaultKind::ReplicaSlow);
        let races = matches!(self.program(), Program::Memcached1 | Program::Memcached4);
        Some(if slow && races && survivor == Survivor::Pair { Survivor::Either } else { survivor })
    }

    fn program(&self) -> Program {
        program_for(self.workload, self.server)
    }

    fn plan(&self, seed: u64) -> Result<Plan> {
        let spec = |text: String| text.parse::<EmuSpec>().context("emulated path");
        let mut plan = Plan::default();
        if self.client_path == ClientPath::Wan {
            plan.client_path = Some(spec(format!("delay 25ms loss 1% reorder 2% seed {seed}"))?);
        }
        let service = address(self.ipv6)?;
        let lossy = |loss: &String| spec(format!("loss {loss} only to {service} seed {seed}"));
        plan.tap_path = self.tap_loss.as_ref().map(lossy).transpose()?;
        plan.primary_path = self.primary_loss.as_ref().map(lossy).transpose()?;
        if self.faults().any(FaultKind::needs_log_link) {
            plan.log = LogLink::Separate;
        }
        if self.slow_log.is_some() || self.channel_loss.is_some() {
            let (delay, loss) = (self.slow_log.as_deref(), self.channel_loss.as_deref());
            let (delay, loss) = (delay.unwrap_or("0ms"), loss.unwrap_or("0%"));
            plan.log = LogLink::Emulated(spec(format!("delay {delay} loss {loss} seed {seed}"))?);
        }
        let switches = [
            (self.no_sack, "net.ipv4.tcp_sack=0"),
            (self.no_timestamps, "net.ipv4.tcp_timestamps=0"),
            (self.no_window_scaling, "net.ipv4.tcp_window_scaling=0"),
        ];
        plan.client_sysctls =
            switches.iter().filter(|(off, _)| *off).map(|(_, text)| (*text).to_owned()).collect();
        Ok(plan)
    }

    fn load(&self, seed: u64, fault: Option<Fault>) -> Result<Spec> {
        let duration_ms = match (&fault, self.client_path) {
            (None, _) => QUIET_MS,
            (Some(_), ClientPath::Clean) => AFTER_FAULT_MS,
            (Some(_), ClientPath::Wan) => AFTER_FAULT_WAN_MS,
        };
        let mut group = LoadGroup::usual(self.workload, self.connections, self.program().port());
        if self.client_path == ClientPath::Wan && self.program() == Program::Redis {
            group.size_bytes = group.size_bytes.min(WAN_VALUE_BYTES);
        }
        let mut groups = vec![group];
        if matches!(self.workload, Workload::Idle | Workload::IdleSubscriber) {
            // A reply must be outstanding at the moment of the fault.
            groups.push(LoadGroup::usual(Workload::Pingpong, 1, self.program().port()));
        }
        Ok(Spec {
            address: address(self.ipv6)?,
            groups,
            duration_ms,
            congestion: self.congestion.clone(),
            fault,
            seed,
            points: Vec::new(),
        })
    }

    fn documents(&self) -> u64 {
        LoadGroup::usual(self.workload, 1, 0).size_bytes
    }
}

/// Runs one takeover of a fresh pair.
///
/// # Errors
/// When the pair cannot be built or the load cannot begin.
pub fn one_takeover(args: &TakeoverArgs, seed: u64) -> Result<Outcome> {
    let mut rng = Rng::of_state(seed);
    let (buffering, segment, arbiter) = (args.buffering, args.segment, args.arbiter);
    let coded = args.coded;
    let options = GroupOptions { buffering, segment, arbiter, coded, ..GroupOptions::default() };
    let (program, plan) = (args.program(), args.plan(seed)?);
    with_service(Variant::Ours, program, &plan, &options, args.documents(), |service| {
        let testbed = service.testbed;
        let lives = args.no_fence || args.faults().any(FaultKind::leaves_a_fenced_member);
        let overheard = lives.then(|| Overheard::start(testbed));
        let overheard = overheard.transpose()?;
        let group = service.group()?;
        let mut steps = fault_steps(args.fault, testbed, group, seed)?;
        if args.no_fence {
            steps = unfenced(steps, group)?;
        }
        if let Some(before_ms) = args.fence_before_ms {
            steps[0].0 = before_ms * 1000;
            steps.insert(0, (0, Action::Run(group.fence_words()?)));
        }
        if let Some(second) = args.second {
            let later = fault_steps(second, testbed, group, seed)?;
            steps = both(steps, later, args.second_after_ms * 1000);
        }
        let after_us = FAULT_EARLIEST_US + rng.below(FAULT_SPAN_US);
        let fault = Fault { after_us, redraw_us: REDRAW_US, steps };
        let load = args.load(seed, Some(fault))?;
        let run = Run::start(testbed.host(Role::Client), &load)?;
        if args.faults().any(|fault| fault == FaultKind::EdgeDaemonKill) {
            group.restart(Role::Edge).context("the edge's daemon, after its death")?;
        }
        let report = run.finish().with_context(|| group.log_tails())?;
        let survivor = args.survivor();
        let mut outcome = Outcome::of(report, survivor, group);
        outcome.may_be_heard = args.no_fence;
        if let Some(overheard) = overheard {
            let way_s = if args.client_path == ClientPath::Wan { WAN_WAY_S } else { 0.0 };
            outcome.count_fenced(&overheard.finish(), way_s);
        }
        let failed = failure(&outcome).is_some();
        if failed {
            outcome.last_words = group.log_tails();
        }
        if failed || args.keep_all_logs {
            keep_logs(args, testbed, seed)?;
        }
        Ok(outcome)
    })
}

impl Outcome {
    /// Collects what the clients and the daemons say when the load is over. `survivor`: who must
    /// speak then; `None`: at most one member.
    pub fn of(report: Report, survivor: Option<Survivor>, group: &mut Group<'_>) -> Self {
        // Waits for the takeover, where all clients have ended before it.
        let wrong_end = wrong_end(survivor, group);
        let status = group.status(Role::Backup).unwrap_or_default();
        let takeover = status.get("last_takeover").filter(|value| value.is_object()).cloned();
        Self {
            report,
            takeover,
            edge_events: group.events(Role::Edge),
            wrong_end,
            fenced_packets: 0,
            may_be_heard: false,
            last_words: String::new(),
            may_stop: survivor.is_none(),
        }
    }

    /// Counts packets of the primary that clients got after it had been fenced. The fence was
    /// closed at the latest when the edge's answer was back at the backup; until then the primary
    /// may speak, and what it said may be under way for `way_s`.
    fn count_fenced(&mut self, heard: &[SystemTime], way_s: f64) {
        let Some(takeover) = &self.takeover else { return };
        let number = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0);
        let over = takeover.get("at").and_then(Value::as_str).and_then(second_of_day);
        let took_us = number(takeover.get("total_us"));
        let fence_us = number(takeover.get("phases_us").and_then(|phases| phases.get("fence")));
        let Some(over_s) = over else { return };
        let fenced_s = over_s - (took_us - fence_us.min(took_us)) as f64 / 1e6 + way_s;
        let later = |at: &&SystemTime| {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            (since - fenced_s).rem_euclid(DAY_S) < DAY_S / 2.0
        };
        self.fenced_packets = heard.iter().filter(later).count() as u64;
    }
}

/// Why the wrong member speaks for the service after a fault, if it does. A survivor that waits
/// for something, as the edge's frames, has a while to get it.
fn wrong_end(survivor: Option<Survivor>, group: &mut Group<'_>) -> Option<String> {
    if survivor == Some(Survivor::Pair) {
        return group.wait_protected().err().map(|error| format!("{error:#}"));
    }
    let mut says = Vec::new();
    let settled = wait_for("who speaks", SETTLE_LIMIT, || {
        says.clear();
        let mut speaks = |role| speaks(role, group, &mut says);
        let (primary, backup) = (speaks(Role::Primary), speaks(Role::Backup));
        (primary || backup || survivor.is_none()).then_some((primary, backup))
    });
    let right = settled.is_ok_and(|(primary, backup)| match survivor {
        Some(Survivor::Backup) => backup && !primary,
        Some(Survivor::Primary) => primary && !backup,
        Some(Survivor::Either | Survivor::Pair) => primary != backup,
        None => !(primary && backup),
    });
    (!right).then(|| format!("the wrong member speaks: {}", says.join("; ")))
}

/// Whether a member says that it serves; what it says is added to `says`.
fn speaks(role: Role, group: &Group<'_>, says: &mut Vec<String>) -> bool {
    let status = group.status(role).unwrap_or_default();
    let word = |name| status.get(name).and_then(Value::as_str).unwrap_or("?").to_owned();
    let (part, state) = (word("role"), word("state"));
    says.push(format!("{} is {part}, {state}: {}", role.name(), word("reason")));
    part == "primary" && (state == "protected" || state == "unprotected")
}

fn keep_logs(args: &TakeoverArgs, testbed: &Testbed, seed: u64) -> Result<()> {
    let Some(directory) = &args.keep_logs else { return Ok(()) };
    fs::create_dir_all(directory)?;
    for role in [Role::Edge, Role::Primary, Role::Backup] {
        for log in ["daemon.log", "server.log"] {
            let from = testbed.host(role).outside().join(log);
            let to = directory.join(format!("{seed}-{}-{log}", role.name()));
            if from.exists() {
                fs::copy(from, to)?;
            }
        }
    }
    Ok(())
}

/// Runs the same load without a fault and without Holdfast.
fn one_quiet(args: &TakeoverArgs, seed: u64) -> Result<Report> {
    let (program, plan) = (args.program(), args.plan(seed)?);
    let options = GroupOptions::default();
    with_service(Variant::Clean, program, &plan, &options, args.documents(), |service| {
        Run::start(service.testbed.host(Role::Client), &args.load(seed, None)?)?.finish()
    })
}

fn buffering(word: &str) -> Result<Buffering, String> {
    by_word(word, &Buffering::ALL, Buffering::word)
}

/// How clients' frames reach both members of a pair without an edge, by its word.
///
/// # Errors
/// The words there are.
pub fn mode(word: &str) -> Result<Mode, String> {
    by_word(word, &Mode::ALL, Mode::word)
}

fn by_word<T: Copy>(word: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T, String> {
    let known: Vec<&str> = all.iter().map(|it| name(*it)).collect();
    let found = known.iter().position(|known| *known == word).map(|at| all[at]);
    found.ok_or_else(|| format!("there are {}", known.join(", ")))
}

/// Runs the bench.
///
/// # Errors
/// When a run cannot be set up at all; wrong bytes are results, not errors.
pub fn run(args: &TakeoverArgs) -> Result<TakeoverReport> {
    let progress = progress("takeover", args.runs);
    let (mut books, mut failures) = (Vec::new(), Vec::new());
    let mut quiet = Vec::new();
    for index in 0..args.runs {
        let seed = args.seed.wrapping_add(index);
        quiet.push(one_quiet(args, seed)?.stall_ns() as f64 / 1e6);
        let outcome =
            one_takeover(args, seed).with_context(|| format!("run with --seed {seed}"))?;
        if let Some(failure) = failure(&outcome) {
            failures.push(format!("--runs 1 --seed {seed}: {failure}"));
        }
        books.push(outcome);
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(sum_up(args, &books, &quiet, failures))
}

/// What is wrong with a run, if anything.
pub fn failure(outcome: &Outcome) -> Option<String> {
    let report = &outcome.report;
    let of_connection = report.connections.iter().enumerate().find_map(|(index, connection)| {
        if outcome.may_stop && connection.byte_errors == 0 {
            return None;
        }
        let error = connection.error.as_ref()?;
        Some(format!("connection {index} ({:?}): {error}", connection.workload))
    });
    let no_fault = || report.fault_ns.is_none().then(|| "the fault's moment never came".to_owned());
    let fenced = || match outcome.fenced_packets * u64::from(!outcome.may_be_heard) {
        0 => None,
        count => Some(format!("clients got {count} packets of a fenced member")),
    };
    let complaints = [report.shared_error.clone(), no_fault(), outcome.wrong_end.clone(), fenced()];
    of_connection.or_else(|| complaints.into_iter().flatten().next())
}

fn sum_up(
    args: &TakeoverArgs,
    books: &[Outcome],
    quiet: &[f64],
    failures: Vec<String>,
) -> TakeoverReport {
    let connections = || books.iter().flat_map(|outcome| &outcome.report.connections);
    // A connection that had nothing outstanding then cannot have stalled.
    let stalls: Vec<u64> =
        connections().map(|it| it.stall_ns).filter(|stall_ns| *stall_ns > 0).collect();
    let phase = |name: &str| {
        let values = books
            .iter()
            .filter_map(|outcome| outcome.takeover.as_ref()?.get("phases_us")?.get(name)?.as_f64());
        Summary::of(&values.collect::<Vec<_>>())
    };
    let retransmits: Vec<f64> =
        books.iter().map(|outcome| outcome.report.retransmits as f64).collect();
    TakeoverReport {
        bench: "takeover",
        options: args.clone(),
        runs: args.runs,
        survived: books.iter().filter(|outcome| failure(outcome).is_none()).count() as u64,
        connections: connections().count() as u64,
        connections_survived: connections().filter(|it| it.survived()).count() as u64,
        byte_errors: connections().map(|it| it.byte_errors).sum::<u64>()
            + books.iter().filter(|it| it.report.shared_error.is_some()).count() as u64,
        resets: connections().map(|it| it.resets).sum(),
        hangs: connections().filter(|it| it.hung).count() as u64,
        fenced_packets: books.iter().map(|outcome| outcome.fenced_packets).sum(),
        stall_ms: Stalls::of_ns(&stalls),
        later_gap_ms: connections().map(|it| it.later_gap_ns).max().unwrap_or(0) as f64 / 1e6,
        quiet_gap_ms: Summary::of(quiet),
        own_pause_ms: books.iter().map(|it| it.report.own_pause_ns).max().unwrap_or(0) as f64 / 1e6,
        retransmits: Summary::of(&retransmits),
        phases_us: PHASES.iter().map(|name| (*name, phase(name))).collect(),
        failures,
    }
}

impl TakeoverReport {
    /// Whether every run kept what is promised.
    pub fn is_good(&self) -> bool {
        self.survived == self.runs
    }

    /// A few lines for people.
    pub fn print(&self) {
        println!(
            "takeover: {} of {} runs kept what is promised, {} of {} connections survived; {} byte errors, {} resets, {} hangs, {} packets of a fenced member",
            self.survived,
            self.runs,
            self.connections_survived,
            self.connections,
            self.byte_errors,
            self.resets,
            self.hangs,
            self.fenced_packets
        );
        let Stalls { p50, p99, max, .. } = self.stall_ms;
        println!(
            "stall ms: p50 {p50:.2}, p99 {p99:.2}, max {max:.2}; later gaps up to {:.2}",
            self.later_gap_ms
        );
        println!(
            "without fault and without Holdfast: median {:.2} ms; the load's own pauses up to {:.2} ms",
            self.quiet_gap_ms.median, self.own_pause_ms
        );
        for name in PHASES {
            if let Some(summary) = self.phases_us.get(name) {
                println!(
                    "{name:>8} us: {:.0} ({:.0} to {:.0})",
                    summary.median, summary.min, summary.max
                );
            }
        }
        self.failures.iter().for_each(|failure| println!("{failure}"));
    }
}

/// The time of day in a UTC time of RFC 3339, in s.
pub fn second_of_day(text: &str) -> Option<f64> {
    let time = text.split_once('T')?.1.strip_suffix('Z')?;
    let mut parts = time.split(':').map(|part| part.parse::<f64>().ok());
    Some(parts.next()?? * 3600.0 + parts.next()?? * 60.0 + parts.next()??)
}
