//! FT-TCP Fig. 4 and §5.4: a takeover as the client's sequence numbers show it. The paper draws a
//! promotion of 2.5 s whose backup has not snooped, so that the client's next timeout decides when
//! data flows again. Holdfast's backup always snoops; drawn are a hot one and a cold one.

use super::sides::{Side, link};
use super::trace::{Seen, Trace, seconds};
use crate::bench::faults::{FaultKind, fault_steps};
use crate::bench::heal::cold::replayed_ms;
use crate::bench::service::{Service, address};
use crate::load::{Fault, Group, Run, Spec, Workload};
use crate::monotonic_ns;
use crate::testbed::Role;
use crate::testbed::server::Program;
use anyhow::{Context as _, Result, ensure};
use holdfast_papers::figures::{Check, Drawn, Effort, Measured, Table};
use holdfast_report::plot::{Chart, Line, Mark, Moment};
use holdfast_report::progress;
use holdfast_wire::buffering::Buffering;
use holdfast_wire::seq::SeqNo;
use serde_json::Value;
use std::time::{Duration, SystemTime};

pub(super) const FIGURE: Measured = Measured {
    id: "fttcp-fig4",
    title: "FT-TCP: sequence numbers of a client whose server dies",
    measure,
};

/// Time from the start of the load to the server's death, in ms.
const BEFORE_MS: u64 = 3_000;
/// Time from the start of the load to the server's death in a quick run, in ms.
const QUICK_BEFORE_MS: u64 = 800;
/// Time for which the load goes on after the server's death, in ms.
const AFTER_MS: u64 = 2_500;

/// Span from which the next moment is drawn if no reply is outstanding, in µs.
const REDRAW_US: u64 = 5_000;

/// Bytes of a value of the client's stream.
const VALUE_BYTES: u64 = 8 << 10;
/// Number of the stream's values that are under way.
const DEPTH: usize = 16;

/// Time that is drawn before the death, and after the client goes on, in s.
const AROUND_S: f64 = 0.25;

/// Time after the death until which a gap counts as the takeover's, in s.
const FAULT_WINDOW_S: f64 = 0.1;

const MB: f64 = 1e6;

/// A point of the figure: the time since the load began, in s, and the position, in bytes.
type Point = (f64, f64);

/// The client's stream in one takeover.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) sent: Vec<Point>,
    pub(super) acked: Vec<Point>,
    pub(super) died_s: f64,
    /// Time from the death until the backup knew of it, in ms.
    pub(super) detection_ms: f64,
    /// Time from then until the backup could speak, in ms.
    pub(super) promotion_ms: f64,
    /// Time from the death until data flowed again, in ms.
    pub(super) stall_ms: f64,
    /// Log that a cold backup had kept, in MB.
    pub(super) log_mb: f64,
    /// Time that a cold backup took to execute its log, in ms.
    pub(super) replay_ms: f64,
}

impl Found {
    /// Time from the moment when the backup was live until the client's stream went on, in ms.
    pub(super) fn gap_ms(&self) -> f64 {
        (self.stall_ms - self.detection_ms - self.promotion_ms).max(0.0)
    }
}

fn measure(effort: &Effort) -> Result<Drawn> {
    let progress = progress("fttcp-fig4", 2);
    let mut found = Vec::new();
    for side in [Side::hot(Buffering::Commit), Side::cold(Buffering::Commit)] {
        found.push(side.serve(link(), |service| takeover(service, effort))?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    let [hot, cold] = [found.remove(0), found.remove(0)];
    Ok(draw(&hot, &cold))
}

fn takeover(service: &mut Service<'_>, effort: &Effort) -> Result<Found> {
    let testbed = service.testbed;
    let group = service.group()?;
    let before_ms = if effort.quick { QUICK_BEFORE_MS } else { BEFORE_MS };
    let stream = Group {
        size_bytes: VALUE_BYTES,
        depth: DEPTH,
        ..Group::usual(Workload::Upload, 1, Program::Redis.port())
    };
    let steps = fault_steps(FaultKind::Kill9, testbed, group, effort.seed)?;
    let fault = Fault { after_us: before_ms * 1000, redraw_us: REDRAW_US, steps };
    let spec = Spec {
        address: address(false)?,
        groups: vec![stream],
        duration_ms: AFTER_MS,
        congestion: None,
        fault: Some(fault),
        seed: effort.seed,
        points: Vec::new(),
    };
    let trace = Trace::start(testbed, Program::Redis.port())?;
    let (now, now_ns) = (SystemTime::now(), monotonic_ns());
    let report = Run::start(testbed.host(Role::Client), &spec)?.finish()?;
    let seen = trace.finish()?;
    ensure!(report.all_survived(), "a connection did not survive: {:?}", report.connections[0]);
    let died_ns = report.fault_ns.context("the fault's moment never came")?;
    let died = now + Duration::from_nanos(died_ns.saturating_sub(now_ns));
    let status = group.status(Role::Backup)?;
    let found = of_trace(&seen, died)?;
    Ok(with_phases(found, &status))
}

/// The stream of the trace's only connection.
pub(super) fn of_trace(seen: &[Seen], died: SystemTime) -> Result<Found> {
    let mut of_client = seen.iter().filter(|it| it.from_client);
    let first = of_client.find(|it| it.syn).context("the trace has no SYN")?;
    let origin = first.end;
    let (mut found, mut begun) = (Found::default(), None);
    let (mut furthest, mut last) = (0.0, 0.0);
    let mut longest = 0.0;
    // Sequence numbers tell positions apart up to 2 GiB.
    let place = |seq: SeqNo| f64::from(seq.since(origin));
    for it in seen.iter().filter(|it| it.port == first.port) {
        let begun = *begun.get_or_insert(it.at);
        let at = seconds(begun, it.at);
        found.died_s = seconds(begun, died);
        if it.from_client {
            found.sent.push((at, place(it.end)));
            continue;
        }
        if place(it.ack) > furthest {
            // What was under way at the death still arrives; after that comes the longest gap.
            let is_of_death = at >= found.died_s && last <= found.died_s + FAULT_WINDOW_S;
            if is_of_death && at - last > longest {
                (longest, found.stall_ms) = (at - last, (at - found.died_s) * 1e3);
            }
            (furthest, last) = (place(it.ack), at);
        }
        found.acked.push((at, place(it.ack)));
    }
    ensure!(longest > 0.0, "nothing was acknowledged after the death");
    Ok(found)
}

fn with_phases(found: Found, status: &Value) -> Found {
    let takeover = &status["last_takeover"];
    let phase = |name: &str| takeover["phases_us"][name].as_f64().unwrap_or(0.0) / 1e3;
    let counter = |name: &str| status["counters"][name].as_f64().unwrap_or(0.0);
    let after = ["fence", "drain", "probe", "repair", "address", "kick"];
    let fed_ms = phase("drain") - counter("spool.built_us") / 1e3;
    Found {
        detection_ms: phase("detect"),
        promotion_ms: after.into_iter().map(phase).sum(),
        log_mb: counter("spool.log_bytes") / MB,
        replay_ms: replayed_ms(takeover, fed_ms),
        ..found
    }
}

pub(super) fn draw(hot: &Found, cold: &Found) -> Drawn {
    let mut table = Table::new(&["is_cold", "time_s", "client_sent_bytes", "server_acked_bytes"]);
    let cases = [(0.0, hot, "A hot backup takes over"), (1.0, cold, "A cold backup takes over")];
    for (is_cold, it, _) in cases {
        let sent = it.sent.iter().map(|(at, to)| vec![is_cold, *at, *to, f64::NAN]);
        let acked = it.acked.iter().map(|(at, to)| vec![is_cold, *at, f64::NAN, *to]);
        table.rows.extend(sent.chain(acked));
    }
    let charts = cases.map(|(_, it, title)| chart(it, title)).to_vec();
    Drawn { charts, table, checks: checks(hot, cold) }
}

fn chart(it: &Found, title: &str) -> Chart {
    let x_range = (it.died_s - AROUND_S, it.died_s + it.stall_ms / 1e3 + AROUND_S);
    let dots = |name: &str, points: &[Point]| Line {
        name: name.to_owned(),
        points: points.iter().map(|(at, to)| (*at, to / MB)).collect(),
        mark: Mark::Dots,
        ..Line::default()
    };
    let moment = |name: &str, ms: f64| Moment { name: name.to_owned(), at: it.died_s + ms / 1e3 };
    Chart {
        title: title.to_owned(),
        x_name: "time, s".to_owned(),
        y_name: "relative sequence numbers, millions".to_owned(),
        x_range,
        lines: vec![dots("client sent", &it.sent), dots("server acked", &it.acked)],
        moments: vec![
            moment("server dies", 0.0),
            moment("backup is live", it.detection_ms + it.promotion_ms),
        ],
        ..Chart::default()
    }
}

fn checks(hot: &Found, cold: &Found) -> Vec<Check> {
    let share = |part: f64, it: &Found| part / it.stall_ms;
    vec![
        Check::unsaid("hot: the stream stalls for, ms", "(not drawn)", hot.stall_ms),
        Check::unsaid("hot: detection, ms", "(not drawn)", hot.detection_ms),
        Check::unsaid("hot: promotion, ms", "(not drawn)", hot.promotion_ms),
        Check::new(
            "hot: detection and gap, of the stall",
            "dominate",
            share(hot.detection_ms + hot.gap_ms(), hot),
            (0.5, 1.0),
        )
        .because("a server's death is told by its kernel at once: detection is next to nothing"),
        Check::new(
            "hot: retransmission gap, ms",
            "until the client's next timeout, of 200 ms at least",
            hot.gap_ms(),
            (0.0, 200.0),
        )
        .because(
            "Fig. 4 is without snooping; the tap has what was sent, and the kick asks for more",
        ),
        Check::unsaid("cold: the stream stalls for, ms", "(2.5 s of promotion)", cold.stall_ms),
        Check::new(
            "cold: promotion, of the stall",
            "dominates",
            share(cold.promotion_ms, cold),
            (0.5, 1.0),
        ),
        Check::new(
            "cold: replay for each MB of buffered data, ms",
            "about 20",
            cold.replay_ms / cold.log_mb.max(1e-9),
            (0.0, 20.0),
        )
        .because("the paper replays all since the server's start, ours begins with an image"),
    ]
}
