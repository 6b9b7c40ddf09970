//! `holdfast-lab bench regulate`: one of two strings fails under many bulk flows, with rate control
//! and without, in turns. Measured are how fairly the flows share the other string, and how short
//! its queue stays.

use super::recover::on_host;
use crate::command::wait_for;
use crate::emu::EmuSpec;
use crate::testbed::addresses;
use crate::testbed::strings::{Cut, Edge, Queue, StringPlan, Strings, StringsPlan, interface};
use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use holdfast_report::{Summary, jain, progress};
use serde::Serialize;
use socket2::{Domain, SockRef, Socket, Type};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PORT: u16 = 7000;
/// Time from the start of the first flow to the failure.
const WARM_UP: Duration = Duration::from_secs(5);
/// Time from the switch to the start of the measurement.
const AFTER: Duration = Duration::from_secs(1);
/// Longest time from the failure to the switch.
const SWITCH_MAX: Duration = Duration::from_secs(5);
/// Heartbeat of the edges in ms. Full queues lose heartbeats too, and several in a row where 100
/// flows begin at once or move to one string.
const HEARTBEAT_MS: u64 = 100;
const SAMPLE: Duration = Duration::from_millis(200);
const PIECE_BYTES: usize = 32 << 10;
/// Time between two looks of a stopped flow whether the run is over.
const LOOK: Duration = Duration::from_millis(100);
/// Index of the failing string; the other one is left.
const FAILS: usize = 1;
const LEFT: usize = 0;

/// Options of the regulate bench.
#[derive(Args, Clone, Debug, Serialize)]
pub struct RegulateArgs {
    /// Print one JSON object.
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
    /// Failures for each congestion control, with rate control and without: each of
    /// the two takes 10 s longer than what is measured.
    #[arg(long, default_value_t = 15)]
    pub pairs: usize,
    /// Flows from the client to the server.
    #[arg(long, default_value_t = 100)]
    pub flows: usize,
    /// How long is measured, s.
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
    /// Of each string, Mbit/s.
    #[arg(long, default_value_t = 100)]
    pub mbit: u64,
    /// Of each string's queue.
    #[arg(long, default_value_t = 750)]
    pub queue_packets: u32,
    /// The flows' round trip, ms.
    #[arg(long, default_value_t = 100)]
    pub round_trip_ms: u64,
    /// Receive buffer of each connection at the server, bytes; 0: as large as the
    /// kernel wants.
    #[arg(long, default_value_t = 0)]
    pub receive_buffer: u64,
    /// Share of the capacity that rate control aims at, %.
    #[arg(long, default_value_t = 98)]
    pub utilization_percent: u64,
    /// Congestion controls of the client.
    #[arg(long, value_delimiter = ',', default_value = "cubic,bbr")]
    pub congestion: Vec<String>,
}

/// Results of one failure.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Jain's index of the flows' shares.
    pub jain: f64,
    /// Packets that were dropped at the bottleneck.
    pub drops: u64,
    /// The same between the failure and the start of the measurement.
    pub drops_before: u64,
    /// The same in each second of the measurement.
    pub drops_each_s: Vec<u64>,
    /// Least and largest window that the near edge allowed, once a second; 0 without rate control.
    pub window_bytes: [u64; 2],
    pub queue_packets_max: u64,
    /// Share of the remaining string's capacity that was used.
    pub utilization: f64,
    pub goodput_mbit: f64,
    /// Number of flows that got nothing at all.
    pub starved: usize,
    /// How often the near edge has declared a string dead; more than once where
    /// full queues have swallowed three heartbeats in a row.
    pub declared: usize,
}

/// Results of all failures of one congestion control, with rate control or without.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    pub jain: Summary,
    pub drops: Summary,
    pub queue_packets_max: Summary,
    pub utilization: Summary,
    pub goodput_mbit: Summary,
    pub runs: Vec<Run>,
}

/// Results of one congestion control.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub congestion: String,
    pub alone: Side,
    pub regulated: Side,
    /// Ratio of the goodput with rate control to that without, for each pair.
    pub goodput_ratio: Summary,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct RegulateReport {
    bench: &'static str,
    options: RegulateArgs,
    pub rows: Vec<Row>,
}

/// Runs the bench.
///
/// # Errors
/// When a testbed cannot be built or a flow cannot begin.
pub fn run(args: &RegulateArgs) -> Result<RegulateReport> {
    let progress = progress("regulate", (args.pairs * args.congestion.len()) as u64);
    let mut rows = Vec::new();
    for congestion in &args.congestion {
        let (mut alone, mut regulated) = (Vec::new(), Vec::new());
        for number in 0..args.pairs {
            // The order alternates, since the first one would always have the advantage.
            for second in [false, true] {
                let is_on = second != (number % 2 == 1);
                let run = one(args, congestion, is_on)?;
                if is_on { &mut regulated } else { &mut alone }.push(run);
            }
            progress.inc(1);
        }
        let ratios: Vec<f64> = alone
            .iter()
            .zip(&regulated)
            .map(|(alone, on)| on.goodput_mbit / alone.goodput_mbit.max(f64::MIN_POSITIVE))
            .collect();
        rows.push(Row {
            congestion: congestion.clone(),
            alone: side(alone),
            regulated: side(regulated),
            goodput_ratio: Summary::of(&ratios),
        });
    }
    progress.finish_and_clear();
    Ok(RegulateReport { bench: "regulate", options: args.clone(), rows })
}

fn side(runs: Vec<Run>) -> Side {
    let of = |pick: fn(&Run) -> f64| Summary::of(&runs.iter().map(pick).collect::<Vec<_>>());
    Side {
        jain: of(|run| run.jain),
        drops: of(|run| run.drops as f64),
        queue_packets_max: of(|run| run.queue_packets_max as f64),
        utilization: of(|run| run.utilization),
        goodput_mbit: of(|run| run.goodput_mbit),
        runs,
    }
}

/// What all flows share.
struct Flows {
    /// Whether all flows are connected, and may send.
    go: AtomicBool,
    stop: AtomicBool,
    accepted: AtomicUsize,
    received: Vec<AtomicU64>,
}

/// Measures one failure on fresh hosts.
fn one(args: &RegulateArgs, congestion: &str, is_on: bool) -> Result<Run> {
    let string = StringPlan {
        bits_per_second: args.mbit * 1_000_000,
        limited: true,
        queue_packets: args.queue_packets,
    };
    let delay = format!("{}us", args.round_trip_ms * 500);
    let mut testbed = Strings::build(&StringsPlan {
        strings: vec![string; 2],
        client_path: Some(EmuSpec::parse(&["delay", &delay]).context("emulated path")?),
        group: format!("mode = \"active/active\"\nheartbeat_ms = {HEARTBEAT_MS}"),
        tables: format!(
            "[recover]\npolicy = \"off\"\n[regulate]\nenabled = {is_on}\nrtt_ms = {}\n\
             utilization_percent = {}\n",
            args.round_trip_ms.max(1),
            args.utilization_percent
        ),
        ..StringsPlan::default()
    })?;
    testbed.start_daemons()?;
    if args.receive_buffer > 0 {
        let buffer = format!("net.ipv4.tcp_rmem=4096 {0} {0}", args.receive_buffer);
        testbed.server().sysctl(&[&buffer])?;
    }
    let flows = Arc::new(Flows {
        go: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        accepted: AtomicUsize::new(0),
        received: (0..args.flows).map(|_| AtomicU64::new(0)).collect(),
    });
    let mut threads = vec![serve(&testbed, &flows)?];
    let (connected, are_connected) = std::sync::mpsc::channel();
    for _ in 0..args.flows {
        threads.push(send(&testbed, congestion, &flows, connected.clone())?);
    }
    drop(connected);
    let count = are_connected.iter().take(args.flows).count();
    anyhow::ensure!(count == args.flows, "{count} connections before the failure");
    flows.go.store(true, Ordering::Relaxed);
    thread::sleep(WARM_UP);
    let before = bottleneck(&testbed)?;
    testbed.cut(FAILS, Cut::Both)?;
    wait_for("the switch", SWITCH_MAX, || {
        let shown = testbed.show(Edge::Near).ok()?;
        (shown["members"][FAILS]["state"] == "dead").then_some(())
    })?;
    thread::sleep(AFTER);
    let run = measure(args, &testbed, &flows, before.dropped)?;
    let (shown, declared) = (testbed.show(Edge::Near)?, times_declared(&testbed)?);
    flows.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| anyhow!("a flow's thread has failed"))?;
    }
    anyhow::ensure!(
        shown["regulate"]["active"].as_bool() == Some(is_on),
        "rate control is not as it should be: {}",
        shown["regulate"]
    );
    Ok(Run { declared, ..run })
}

/// Number of times that the near edge has declared a string dead.
fn times_declared(testbed: &Strings) -> Result<usize> {
    let events = testbed.events(Edge::Near)?;
    Ok(events.iter().filter(|event| event["what"] == "declare").count())
}

/// The queue in front of the remaining string, towards the server.
fn bottleneck(testbed: &Strings) -> Result<Queue> {
    testbed.queue(LEFT, interface::STRING_FAR)
}

/// `dropped`: packets that had been dropped when the other string failed.
fn measure(args: &RegulateArgs, testbed: &Strings, flows: &Flows, dropped: u64) -> Result<Run> {
    let received = || -> Vec<u64> {
        flows.received.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect()
    };
    let (first, before, began) = (bottleneck(testbed)?, received(), Instant::now());
    let (mut longest, mut last) = (first.waiting, first);
    let (mut drops_each_s, mut windows) = (Vec::new(), Vec::new());
    for second in 1..=args.seconds {
        let second_began = last.dropped;
        while began.elapsed() < Duration::from_secs(second) {
            thread::sleep(SAMPLE);
            last = bottleneck(testbed)?;
            longest = longest.max(last.waiting);
        }
        drops_each_s.push(last.dropped - second_began);
        let shown = testbed.show(Edge::Near)?;
        windows.push(shown["regulate"]["window_bytes"].as_u64().unwrap_or(0));
    }
    let (after, seconds) = (received(), began.elapsed().as_secs_f64());
    let got: Vec<f64> = after.iter().zip(&before).map(|(a, b)| (a - b) as f64).collect();
    let capacity = args.mbit as f64 * 1e6 / 8.0 * seconds;
    let extreme = |it: Option<&u64>| it.copied().unwrap_or(0);
    Ok(Run {
        jain: jain(&got),
        drops: last.dropped - first.dropped,
        drops_before: first.dropped - dropped,
        drops_each_s,
        window_bytes: [extreme(windows.iter().min()), extreme(windows.iter().max())],
        queue_packets_max: longest,
        utilization: (last.sent_bytes - first.sent_bytes) as f64 / capacity,
        goodput_mbit: got.iter().sum::<f64>() * 8.0 / 1e6 / seconds,
        starved: got.iter().filter(|it| **it == 0.0).count(),
        declared: 0,
    })
}

fn address() -> Result<SocketAddr> {
    Ok(SocketAddr::new(addresses::SERVICE_V4.parse()?, PORT))
}

fn serve(testbed: &Strings, flows: &Arc<Flows>) -> Result<JoinHandle<()>> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (address, flows) = (address()?, Arc::clone(flows));
    let thread = on_host(testbed.server().namespace(), move || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        ready.send(()).context("nobody waits")?;
        let mut threads = Vec::new();
        while !flows.stop.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    let flows = Arc::clone(&flows);
                    threads.push(thread::spawn(move || receive(&stream, &flows)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK / 10),
                Err(error) => return Err(error.into()),
            }
        }
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a server's thread has failed"))?;
        }
        Ok(())
    });
    is_ready.recv().context("the server does not start")?;
    Ok(thread)
}

/// Counts what arrives until the run is over; the end of the sender is no error.
fn receive(mut stream: &TcpStream, flows: &Flows) {
    let number = flows.accepted.fetch_add(1, Ordering::Relaxed);
    let Some(received) = flows.received.get(number) else { return };
    let mut piece = vec![0; PIECE_BYTES];
    if stream.set_nonblocking(false).is_err() || stream.set_read_timeout(Some(LOOK)).is_err() {
        return;
    }
    while !flows.stop.load(Ordering::Relaxed) {
        match stream.read(&mut piece) {
            Ok(0) => return,
            Ok(count) => drop(received.fetch_add(count as u64, Ordering::Relaxed)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}

fn send(
    testbed: &Strings,
    congestion: &str,
    flows: &Arc<Flows>,
    connected: Sender<()>,
) -> Result<JoinHandle<()>> {
    let (address, flows) = (address()?, Arc::clone(flows));
    let congestion = congestion.to_owned();
    Ok(on_host(testbed.client().namespace(), move || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_tcp_congestion(congestion.as_bytes())?;
        socket.connect(&address.into())?;
        let mut stream: TcpStream = socket.into();
        connected.send(()).context("nobody waits")?;
        drop(connected);
        while !flows.go.load(Ordering::Relaxed) && !flows.stop.load(Ordering::Relaxed) {
            thread::sleep(LOOK / 10);
        }
        stream.set_write_timeout(Some(LOOK))?;
        let piece = vec![7; PIECE_BYTES];
        while !flows.stop.load(Ordering::Relaxed) {
            match stream.write(&piece) {
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        Ok(())
    }))
}

impl RegulateReport {
    /// A table for people.
    pub fn print(&self) {
        println!(
            "{:>8} {:>10} {:>7} {:>7} {:>10} {:>8} {:>14}",
            "", "", "Jain", "drops", "queue max", "utilized", "goodput Mbit/s"
        );
        for row in &self.rows {
            for (name, side) in [("alone", &row.alone), ("regulated", &row.regulated)] {
                println!(
                    "{:>8} {name:>10} {:>7.4} {:>7.0} {:>10.0} {:>8.3} {:>14.1}",
                    row.congestion,
                    side.jain.median,
                    side.drops.median,
                    side.queue_packets_max.median,
                    side.utilization.median,
                    side.goodput_mbit.median
                );
            }
            println!(
                "{:>8} goodput to that alone: {:.3}",
                row.congestion, row.goodput_ratio.median
            );
        }
    }
}
