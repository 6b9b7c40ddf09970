//! `holdfast-lab bench edges`: one of two edges in front of two host servers breaks under the load
//! of many connections, and every byte that every client gets is checked.

use super::service::{Variant, address, program_for};
use crate::load::{ConnectionReport, Fault, Group as LoadGroup, Report, Run, Spec, Workload};
use crate::testbed::edges::{EdgeFault, Edges, EdgesOptions, Node, Way};
use crate::testbed::server::{DOCUMENT_BYTES, PlainServer, Program, Recipe};
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use holdfast_chance::Rng;
use holdfast_report::{Stalls, Summary, progress};
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;

/// Earliest moment of a fault after all connections work, in µs: what so many handshakes have left
/// undone is done by then.
const FAULT_EARLIEST_US: u64 = 500_000;

/// Span from which the moment of the fault is drawn, in µs.
const FAULT_SPAN_US: u64 = 500_000;

/// Span from which the next moment is drawn if no reply is outstanding, in µs.
const REDRAW_US: u64 = 5_000;

/// Time for which the load goes on after the fault, in ms: some waits of a sender that doubles them.
const AFTER_FAULT_MS: u64 = 4_000;

/// The same where the edge comes back, which it does after 5 s.
const AFTER_FREEZE_MS: u64 = 10_000;

/// How long an edge is without the daemon that died.
const WITHOUT_DAEMON: Duration = Duration::from_secs(1);

/// Workloads of connections that must reach the same server.
const SHARED: [Workload; 5] = [
    Workload::Shared,
    Workload::MemcachedShared,
    Workload::Churn,
    Workload::Pubsub,
    Workload::Mqtt,
];

/// Options of the bench of two edges.
#[derive(Args, Clone, Debug, Serialize)]
pub struct EdgesArgs {
    /// Print one JSON object.
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
    /// How clients' packets find an edge.
    #[arg(long, value_enum, default_value = "mac")]
    pub by: Way,
    /// What breaks at the edge that carries them; with BGP, at one of the two.
    #[arg(long, value_enum, default_value = "kill")]
    pub fault: EdgeFault,
    /// With Holdfast, or with two routers that know one server: what leads packets to an edge by
    /// itself.
    #[arg(long, value_enum, default_value = "ours")]
    pub variant: Variant,
    /// How many faults, each of a fresh group.
    #[arg(long, default_value_t = 5)]
    pub runs: u64,
    /// What the connections do; the two servers share nothing.
    #[arg(long, value_enum, default_value = "pingpong")]
    pub workload: Workload,
    /// Drain a host server this long before the fault, at the edge that breaks, ms: its connections
    /// are not where new ones would be.
    #[arg(long)]
    pub drain_before_ms: Option<u64>,
    /// How many connections.
    #[arg(long, default_value_t = 1000)]
    pub connections: usize,
    /// Time between two requests of a connection, ms.
    #[arg(long, default_value_t = 100)]
    pub interval_ms: u64,
    /// Time between two heartbeats, ms; without it, Holdfast's default.
    #[arg(long)]
    pub heartbeat_ms: Option<u64>,
    /// Use IPv6.
    #[arg(long)]
    pub ipv6: bool,
    /// Determines every moment; run N of a bench is run 1 of a bench with a seed larger by N - 1.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What one fault did.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    seed: u64,
    /// The edge that was hit.
    edge: &'static str,
    /// The edges to which clients' packets went when the load was over.
    carriers: Vec<&'static str>,
    /// Connections whose every byte was right until the end.
    pub lived: u64,
    /// Connections that were not so lucky.
    pub lost: u64,
    /// Number of replies with a wrong byte.
    pub byte_errors: u64,
    /// Connections reset or ended by the service.
    pub resets: u64,
    /// Connections that waited for progress in vain.
    pub hangs: u64,
    /// Connections with an outstanding request at the moment of the fault.
    pub outstanding_at_fault: u64,
    /// Longest wait for a reply from the fault on, for each connection, in ms.
    pub gap_ms: Stalls,
    /// Segments that the client sent again.
    pub retransmits: u64,
    /// Longest delay of the load in waking up, in ms.
    pub own_pause_ms: f64,
    /// The first thing that went wrong.
    pub failure: Option<String>,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct EdgesReport {
    bench: &'static str,
    options: EdgesArgs,
    /// Connections of all runs that lived.
    pub lived: u64,
    /// Connections of all runs that did not.
    pub lost: u64,
    /// Replies with a wrong byte, of all runs.
    pub byte_errors: u64,
    /// Connections reset or ended by the service, of all runs.
    pub resets: u64,
    /// Median of a run's connections' longest waits, over the runs, in ms.
    pub gap_p50_ms: Summary,
    /// Their 99th percentile, over the runs, in ms.
    pub gap_p99_ms: Summary,
    /// The longest of them, over the runs, in ms.
    pub gap_max_ms: Summary,
    /// The runs.
    pub rows: Vec<Row>,
}

/// Runs the bench.
///
/// # Errors
/// When a run cannot be set up; what clients lose is a result, not an error.
pub fn run(args: &EdgesArgs) -> Result<EdgesReport> {
    let clean = args.variant == Variant::Clean;
    let needs_holdfast = args.by == Way::Mac || args.fault == EdgeFault::Daemon;
    let needs_holdfast = needs_holdfast || args.drain_before_ms.is_some();
    ensure!(!(clean && needs_holdfast), "there is no such thing without Holdfast");
    ensure!(!SHARED.contains(&args.workload), "this workload needs servers that share something");
    let progress = progress("edges", args.runs);
    let mut rows = Vec::new();
    for index in 0..args.runs {
        let seed = args.seed.wrapping_add(index);
        rows.push(one(args, seed).with_context(|| format!("run with --seed {seed}"))?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(sum_up(args, rows))
}

fn one(args: &EdgesArgs, seed: u64) -> Result<Row> {
    let mut bed = Edges::build(args.by)?;
    let _servers = match args.variant {
        Variant::Clean => {
            bed.start_clean()?;
            vec![serve(args, &bed, Node::A)?]
        }
        Variant::Haproxy | Variant::HaproxyEager => bail!("there are no two edges with HAProxy"),
        Variant::Ours => {
            bed.start(&Node::HOSTS, EdgesOptions { heartbeat_ms: args.heartbeat_ms })?;
            let servers = Node::HOSTS.map(|host| serve(args, &bed, host));
            let servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
            let service = SocketAddr::new(address(args.ipv6)?, args.program().port());
            bed.wait_members(&service.to_string(), &Node::HOSTS.map(Node::name))?;
            servers
        }
    };
    let edge = bed.wait_carried()?;
    let spec = load(args, &bed, edge, seed)?;
    let run = Run::start(bed.host(Node::Client), &spec)?;
    if args.fault == EdgeFault::Daemon {
        bed.after(args.fault, edge)?;
        std::thread::sleep(WITHOUT_DAEMON);
        bed.launch(edge)?;
    }
    let report = run.finish().with_context(|| bed.logs())?;
    if args.fault != EdgeFault::Daemon {
        bed.after(args.fault, edge)?;
    }
    let carriers = bed.carriers().into_iter().map(Node::name).collect();
    Ok(Row::of(seed, edge, carriers, &report))
}

impl EdgesArgs {
    fn program(&self) -> Program {
        program_for(self.workload, None)
    }

    fn group(&self) -> LoadGroup {
        let mut group = LoadGroup::usual(self.workload, self.connections, self.program().port());
        if self.workload == Workload::HttpClose {
            // It is about connections.
            group.size_bytes = DOCUMENT_BYTES[0];
        }
        LoadGroup { interval_us: self.interval_ms * 1000, ..group }
    }
}

fn serve(args: &EdgesArgs, bed: &Edges, host: Node) -> Result<PlainServer> {
    let documents = args.group().size_bytes;
    Recipe::prepare(args.program(), bed.host(host), documents)?.start_plain(bed.host(host))
}

fn load(args: &EdgesArgs, bed: &Edges, edge: Node, seed: u64) -> Result<Spec> {
    let after_us = FAULT_EARLIEST_US + Rng::of_state(seed).below(FAULT_SPAN_US);
    let mut steps = bed.fault_steps(args.fault, edge)?;
    if let Some(before_ms) = args.drain_before_ms {
        steps[0].0 = before_ms * 1000;
        steps.insert(0, (0, bed.drain_step(edge, Node::B)?));
    }
    let comes_back = matches!(args.fault, EdgeFault::Freeze | EdgeFault::Daemon);
    Ok(Spec {
        address: address(args.ipv6)?,
        groups: vec![args.group()],
        duration_ms: if comes_back { AFTER_FREEZE_MS } else { AFTER_FAULT_MS },
        congestion: None,
        fault: Some(Fault { after_us, redraw_us: REDRAW_US, steps }),
        seed,
        points: Vec::new(),
    })
}

impl Row {
    fn of(seed: u64, edge: Node, carriers: Vec<&'static str>, report: &Report) -> Self {
        let all = &report.connections;
        let count =
            |is: fn(&ConnectionReport) -> bool| all.iter().filter(|it| is(it)).count() as u64;
        let lived = count(ConnectionReport::survived);
        // A request that was sent while nobody carried it began its wait after the fault.
        let gaps: Vec<u64> = all.iter().map(|it| it.stall_ns.max(it.later_gap_ns)).collect();
        let no_fault =
            report.fault_ns.is_none().then(|| "the fault's moment never came".to_owned());
        Self {
            seed,
            edge: edge.name(),
            carriers,
            lived,
            lost: all.len() as u64 - lived,
            byte_errors: report.total(|it| it.byte_errors),
            resets: report.total(|it| it.resets),
            hangs: count(|it| it.hung),
            outstanding_at_fault: report.outstanding_at_fault,
            gap_ms: Stalls::of_ns(&gaps),
            retransmits: report.retransmits,
            own_pause_ms: report.own_pause_ns as f64 / 1e6,
            failure: no_fault.or_else(|| all.iter().find_map(|it| it.error.clone())),
        }
    }

    fn is_good(&self) -> bool {
        self.lost == 0 && self.failure.is_none()
    }

    fn print(&self) {
        println!(
            "seed {}: {} hit, then {:?}; {} lived, {} lost, {} byte errors, {} resets, {} hangs; \
             gap ms p50 {:.1}, p99 {:.1}, max {:.1}; {} retransmits, own pauses up to {:.1} ms",
            self.seed,
            self.edge,
            self.carriers,
            self.lived,
            self.lost,
            self.byte_errors,
            self.resets,
            self.hangs,
            self.gap_ms.p50,
            self.gap_ms.p99,
            self.gap_ms.max,
            self.retransmits,
            self.own_pause_ms
        );
        self.failure.iter().for_each(|failure| println!("  {failure}"));
    }
}

fn sum_up(args: &EdgesArgs, rows: Vec<Row>) -> EdgesReport {
    let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum();
    let over_runs = |of: fn(&Row) -> f64| Summary::of(&rows.iter().map(of).collect::<Vec<_>>());
    EdgesReport {
        bench: "edges",
        options: args.clone(),
        lived: sum(|row| row.lived),
        lost: sum(|row| row.lost),
        byte_errors: sum(|row| row.byte_errors),
        resets: sum(|row| row.resets),
        gap_p50_ms: over_runs(|row| row.gap_ms.p50),
        gap_p99_ms: over_runs(|row| row.gap_ms.p99),
        gap_max_ms: over_runs(|row| row.gap_ms.max),
        rows,
    }
}

impl EdgesReport {
    /// Whether every connection of every run lived.
    pub fn is_good(&self) -> bool {
        self.rows.iter().all(Row::is_good)
    }

    /// A line for each run, and one for all.
    pub fn print(&self) {
        self.rows.iter().for_each(Row::print);
        let shown = |it: &Summary| format!("{:.1} ({:.1} to {:.1})", it.median, it.min, it.max);
        println!(
            "edges, {:?}, {:?}, {} runs: {} lived, {} lost, {} byte errors, {} resets; gap ms p50 \
             {}, p99 {}, max {}",
            self.options.by,
            self.options.fault,
            self.rows.len(),
            self.lived,
            self.lost,
            self.byte_errors,
            self.resets,
            shown(&self.gap_p50_ms),
            shown(&self.gap_p99_ms),
            shown(&self.gap_max_ms)
        );
    }
}
