//! The demonstration: a real redis-server under load, three deaths of its
//! primary of three kinds at random moments, and every byte of every client
//! checked. It tells the story, draws it, and is successful only if all was
//! right.

use crate::bench::faults::{FaultKind, fault_steps};
use crate::bench::service::{Variant, address, with_service};
use crate::bench::takeover::{DAY_S, Outcome, PHASES, failure, second_of_day};
use crate::load::{ConnectionReport, Fault, Group, Run, Spec, Workload};
use crate::testbed::ours::GroupOptions;
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role, Shape};
use anyhow::{Context as _, Result};
use holdfast_chance::Rng;
use holdfast_program::DemoArgs;
use holdfast_report::plot::{Chart, Line, Moment, Span, escape, stacked};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Rate of the demonstration's links, bits per second.
const LINK_BITS_PER_SECOND: u64 = 1_000_000_000;

/// Earliest moment of a fault after all connections work, in µs.
const FAULT_EARLIEST_US: u64 = 700_000;

/// Span from which the moment of the fault is drawn, in µs.
const FAULT_SPAN_US: u64 = 1_500_000;

/// Span from which the next moment is drawn if no reply is outstanding, in µs.
const REDRAW_US: u64 = 5_000;

/// Time for which the load goes on after the fault, in ms.
const AFTER_FAULT_MS: u64 = 2_000;

/// Time that the plots show around the fault, in ms.
const PLOT_MS: (f64, f64) = (-100.0, 200.0);

/// Time within which every fault is detected, in ms; a longer one means that a clock was set.
const LATE_MS: f64 = 60_000.0;

/// Steps of the edge's switch-over that are shown.
const STEPS: [&str; 7] = ["suspect", "cache", "declare", "fence", "switch", "resend", "regulate"];

/// Number of columns of the story's timeline.
const TIMELINE_COLUMNS: f64 = 50.0;

/// One death and its story.
struct Chapter {
    title: &'static str,
    outcome: Outcome,
    plan: Vec<Group>,
    /// When the backup learnt of the fault, ms after it.
    detected_ms: Option<f64>,
    /// The edge's steps of the switch-over, with their times in ms after the fault.
    steps: Vec<(f64, String)>,
}

/// Runs the demonstration and tells its story on stdout.
///
/// # Errors
/// When a pair cannot be built or the plot not be written. A wrong byte is no
/// error but exit code 1.
pub fn run(args: &DemoArgs) -> Result<ExitCode> {
    try_out(&args.output)?;
    let drawn = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |it| it.subsec_nanos());
    let seed = args.seed.unwrap_or_else(|| u64::from(drawn()));
    println!("A redis-server that nobody changed runs on a primary and, in lockstep, on a backup.");
    println!("Clients count, echo, publish, download and wait. The primary dies three times.");
    println!("(seed {seed})\n");
    let kinds = [
        (FaultKind::Kill9, "kill -9 of the server"),
        (FaultKind::Kill9All, "kill -9 of the primary's daemon and server"),
        (FaultKind::LinkCut, "the primary's link is cut"),
    ];
    let mut chapters = Vec::new();
    for (index, (kind, title)) in kinds.into_iter().enumerate() {
        let chapter = one(kind, title, seed.wrapping_add(index as u64))?;
        print!("{}", story(index + 1, &chapter));
        chapters.push(chapter);
    }
    let charts: Vec<Chart> = chapters.iter().filter_map(chart).collect();
    let text = if args.output.extension().is_some_and(|it| it == "svg") {
        stacked(&charts)
    } else {
        page(&chapters, &charts)
    };
    std::fs::write(&args.output, text)
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    println!("Plot: {}", args.output.display());
    let good = chapters.iter().all(|chapter| failure(&chapter.outcome).is_none());
    println!(
        "{}",
        if good { "Every byte of every client was right." } else { "NOT every byte was right." }
    );
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Looks whether the plot could be written, before anybody waits for it. What is there stays.
fn try_out(plot: &Path) -> Result<()> {
    let is_there = plot.exists();
    let made = OpenOptions::new().append(true).create(true).open(plot);
    made.with_context(|| format!("cannot write {}", plot.display()))?;
    if !is_there {
        std::fs::remove_file(plot)?;
    }
    Ok(())
}

/// The demonstration's clients: the first is the long download, the second the idle subscriber,
/// which gets nothing until the very end.
fn clients() -> Vec<Group> {
    let port = Program::Redis.port();
    let usual = |workload, connections| Group::usual(workload, connections, port);
    vec![
        usual(Workload::Download, 1),
        usual(Workload::IdleSubscriber, 1),
        usual(Workload::Incr, 4),
        usual(Workload::Shared, 4),
        usual(Workload::Pubsub, 1),
        Group { interval_us: 2_000, ..usual(Workload::Upload, 1) },
        Group { interval_us: 1_000, ..usual(Workload::Churn, 1) },
    ]
}

fn one(kind: FaultKind, title: &'static str, seed: u64) -> Result<Chapter> {
    let shape = Shape::Tbf { bits_per_second: LINK_BITS_PER_SECOND };
    let plan = Plan { shape, ..Plan::default() };
    let options = GroupOptions::default();
    let outcome = with_service(Variant::Ours, Program::Redis, &plan, &options, 0, |service| {
        let testbed = service.testbed;
        let group = service.group()?;
        let after_us = FAULT_EARLIEST_US + Rng::of_state(seed).below(FAULT_SPAN_US);
        let steps = fault_steps(kind, testbed, group, seed)?;
        let spec = Spec {
            address: address(false)?,
            groups: clients(),
            duration_ms: AFTER_FAULT_MS,
            congestion: None,
            fault: Some(Fault { after_us, redraw_us: REDRAW_US, steps }),
            seed,
            points: vec![0],
        };
        let report = Run::start(testbed.host(Role::Client), &spec)?.finish();
        let report = report.with_context(|| group.log_tails())?;
        Ok(Outcome::of(report, Some(kind.survivor()), group))
    })?;
    let clock = FaultClock::of(&outcome);
    let detected_ms = clock.as_ref().and_then(|clock| detected_ms(&outcome, clock));
    let steps = clock.map(|clock| edge_steps(&outcome, &clock)).unwrap_or_default();
    Ok(Chapter { title, outcome, plan: clients(), detected_ms, steps })
}

/// The time of day of the fault, which the load knows by the monotonic clock.
struct FaultClock {
    second_of_day: f64,
}

impl FaultClock {
    fn of(outcome: &Outcome) -> Option<Self> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
        let since_ns = crate::monotonic_ns().checked_sub(outcome.report.fault_ns?)?;
        Some(Self { second_of_day: now_s - since_ns as f64 / 1e9 })
    }

    /// Time from the fault to a time of day, in ms; `None` if it was not soon after.
    fn ms(&self, second_of_day: f64) -> Option<f64> {
        let ms = (second_of_day - self.second_of_day).rem_euclid(DAY_S) * 1e3;
        Some(ms).filter(|ms| *ms < LATE_MS)
    }
}

/// The edge's steps from suspicion to resending.
fn edge_steps(outcome: &Outcome, clock: &FaultClock) -> Vec<(f64, String)> {
    let steps = outcome.edge_events.iter().filter(|(_, what)| STEPS.contains(&what.as_str()));
    steps.filter_map(|(at, what)| Some((clock.ms(second_of_day(at)?)?, what.clone()))).collect()
}

/// When the backup knew of the fault, in ms: the survivor says when its takeover was over and how
/// long it took.
fn detected_ms(outcome: &Outcome, clock: &FaultClock) -> Option<f64> {
    let takeover = outcome.takeover.as_ref()?;
    let over_s = second_of_day(takeover.get("at")?.as_str()?)?;
    clock.ms(over_s - takeover.get("total_us")?.as_f64()? / 1e6)
}

/// What happened when, in ms after the fault.
fn events(chapter: &Chapter) -> Vec<(f64, String)> {
    let mut events = vec![(0.0, chapter.title.to_owned())];
    // Later steps of the edge belong to the next death, or to none.
    let steps = chapter.steps.iter().filter(|(ms, _)| *ms < PLOT_MS.1);
    events.extend(steps.map(|(ms, what)| (*ms, format!("edge: {what}"))));
    let phases = chapter.outcome.takeover.as_ref().and_then(|it| it.get("phases_us"));
    if let Some(phases) = phases {
        let mut at_us = chapter.detected_ms.unwrap_or(0.0) * 1e3;
        events.push((at_us / 1e3, "detected".to_owned()));
        for name in PHASES.into_iter().filter(|name| *name != "detect") {
            at_us += phases.get(name).and_then(|value| value.as_f64()).unwrap_or(0.0);
            match name {
                "fence" => events.push((at_us / 1e3, "fenced".to_owned())),
                "repair" => {
                    let first = first_byte_ms(chapter, at_us / 1e3);
                    events.extend(first.map(|ms| (ms, "first byte of the download".to_owned())));
                }
                "kick" => events.push((at_us / 1e3, "promoted".to_owned())),
                _ => {}
            }
        }
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    events
}

/// When the download got its first byte from the backup, ms after the fault;
/// before `repaired_ms` the backup's sockets did not exist.
fn first_byte_ms(chapter: &Chapter, repaired_ms: f64) -> Option<f64> {
    let fault_ns = chapter.outcome.report.fault_ns?;
    let points = download(chapter)?.points.iter();
    let mut after_ms = points.map(|point| (point.0 as f64 - fault_ns as f64) / 1e6);
    after_ms.find(|ms| *ms >= repaired_ms)
}

fn download(chapter: &Chapter) -> Option<&ConnectionReport> {
    chapter.outcome.report.connections.first()
}

/// A chapter for a terminal.
fn story(number: usize, chapter: &Chapter) -> String {
    let (moment, load) = beginning(chapter);
    let mut out = format!("Death {number}: {moment}\n  {load}\n");
    let events = events(chapter);
    let last_ms = events.last().map_or(1.0, |event| event.0).max(0.001);
    for (ms, what) in &events {
        let column = (ms / last_ms * TIMELINE_COLUMNS) as usize;
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(out, "  {ms:>8.2} ms |{:>column$}* {what}", "");
    }
    let (checked, verdict) = end(chapter);
    let _ = writeln!(out, "  {checked}\n  {verdict}\n");
    out
}

/// What died when, and what it interrupted.
fn beginning(chapter: &Chapter) -> (String, String) {
    let report = &chapter.outcome.report;
    let fault_ns = report.fault_ns.unwrap_or(report.ready_ns);
    let into_load_s = fault_ns.saturating_sub(report.ready_ns) as f64 / 1e9;
    let (all, waiting) = (report.connections.len(), report.outstanding_at_fault);
    (
        format!("{}, {into_load_s:.3} s into the load.", chapter.title),
        format!("{all} connections, {waiting} of them waiting for bytes."),
    )
}

/// What was checked, and whether all was right.
fn end(chapter: &Chapter) -> (String, String) {
    let report = &chapter.outcome.report;
    let replies = report.total(|it| it.replies);
    let megabytes = report.total(|it| it.bytes_in) as f64 / 1e6;
    let stall_ms = report.stall_ns() as f64 / 1e6;
    let checked = format!(
        "{replies} replies and {megabytes:.0} MB checked; longest stall of any client {stall_ms:.2} ms"
    );
    let verdict = match failure(&chapter.outcome) {
        None => "every byte was right, no connection was lost".to_owned(),
        Some(failure) => format!("WRONG: {failure}"),
    };
    (checked, verdict)
}

/// Sequence offset of the download against time, as Fig. 4 of the FT-TCP paper.
fn chart(chapter: &Chapter) -> Option<Chart> {
    let fault_ns = chapter.outcome.report.fault_ns? as f64;
    let download = download(chapter)?;
    let ms = |ns: u64| (ns as f64 - fault_ns) / 1e6;
    let stall = (download.stall_start_ns, download.stall_start_ns + download.stall_ns);
    let base = download.points.iter().find(|point| ms(point.0) >= PLOT_MS.0)?.1;
    let offset = |bytes: u64| (bytes as f64 - base as f64) / 1e6;
    Some(Chart {
        title: format!("One download: {}", chapter.title),
        x_name: "time after the fault, ms".to_owned(),
        y_name: "sequence offset, MB".to_owned(),
        x_range: PLOT_MS,
        lines: vec![Line {
            name: "bytes the client has received and checked".to_owned(),
            points: download.points.iter().map(|point| (ms(point.0), offset(point.1))).collect(),
            ..Line::default()
        }],
        spans: vec![Span {
            name: format!("stall {:.2} ms", download.stall_ns as f64 / 1e6),
            from: ms(stall.0),
            to: ms(stall.1),
        }],
        moments: events(chapter).into_iter().map(|(at, name)| Moment { name, at }).collect(),
        ..Chart::default()
    })
}

/// Text wraps at any width; a chart that is wider than its place is moved in it by hand.
const STYLE: &str = "body{font-family:sans-serif;max-width:900px;margin:2em auto;padding:0 1em;\
    overflow-wrap:break-word}table{background:#f6f6f6;border-spacing:1em .2em;width:100%}\
    td{vertical-align:top}td:first-child{text-align:right;white-space:nowrap}\
    figure{margin:0;overflow-x:auto}figure svg{width:100%;min-width:640px;height:auto}";

fn page(chapters: &[Chapter], charts: &[Chart]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Holdfast: three deaths</title>\n<style>{STYLE}</style>\n\
         <h1>An unmodified redis-server dies three times</h1>\n",
    );
    for (index, chapter) in chapters.iter().enumerate() {
        let clients: Vec<String> = chapter
            .plan
            .iter()
            .map(|group| format!("{} {:?}", group.connections, group.workload))
            .collect();
        let (moment, load) = beginning(chapter);
        let _ = writeln!(
            out,
            "<h2>{}. {}</h2><p>Clients: {}</p><p>{} {}</p><table>",
            index + 1,
            escape(chapter.title),
            escape(&clients.join(", ")),
            escape(&moment),
            escape(&load)
        );
        for (ms, what) in events(chapter) {
            let _ = writeln!(out, "<tr><td>{ms:.2} ms</td><td>{}</td></tr>", escape(&what));
        }
        let (checked, verdict) = end(chapter);
        let _ = writeln!(out, "</table><p>{}: {}.</p>", escape(&checked), escape(&verdict));
        if let Some(chart) = charts.get(index) {
            let _ = writeln!(out, "<figure tabindex=\"0\">{}</figure>", chart.to_svg());
        }
    }
    out.push_str("</html>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Quantiles, Report};

    /// What is wider than a phone stands in a box of its own.
    #[test]
    fn the_page_is_as_wide_as_the_window() {
        let chart = Chart { x_range: PLOT_MS, ..Chart::default() };
        let report = Report {
            ready_ns: 1,
            stop_ns: 9,
            fault_ns: Some(5),
            redraws: 0,
            outstanding_at_fault: 0,
            connections: Vec::new(),
            shared_error: None,
            latency_ns: Quantiles::default(),
            connect_ns: Quantiles::default(),
            retransmits: 0,
            own_pause_ns: 0,
        };
        let outcome = Outcome {
            report,
            takeover: None,
            edge_events: Vec::new(),
            wrong_end: None,
            fenced_packets: 0,
            last_words: String::new(),
            may_be_heard: false,
            may_stop: false,
        };
        let chapter = Chapter {
            title: "kill -9",
            outcome,
            plan: clients(),
            detected_ms: Some(1.0),
            steps: vec![(1.5, "fence".to_owned())],
        };
        let page = page(&[chapter], &[chart]);
        assert!(page.contains("<meta name=\"viewport\" content=\"width=device-width\">"));
        assert!(page.contains("figure{margin:0;overflow-x:auto}"));
        assert_eq!(
            page.matches("<svg").count(),
            page.matches("<figure tabindex=\"0\"><svg").count()
        );
        assert!(!page.contains("<pre"), "its lines do not wrap");
        assert!(page.contains("<td>1.50 ms</td><td>edge: fence</td>"));
    }

    #[test]
    fn times_of_day_are_read() {
        assert_eq!(second_of_day("2026-11-21T01:02:03.500000Z"), Some(3723.5));
        for text in ["", "2026-11-21", "2026-11-21T01:02Z", "2026-11-21Tone:02:03Z"] {
            assert_eq!(second_of_day(text), None, "{text}");
        }
    }

    #[test]
    fn a_plot_that_could_not_be_written_is_refused_at_once() {
        let error = try_out(Path::new("/nosuch/x.html")).expect_err("there is no folder");
        assert_eq!(error.to_string(), "cannot write /nosuch/x.html");
        let plot = std::env::temp_dir().join(format!("holdfast-plot-{}.svg", std::process::id()));
        try_out(&plot).expect("it can be written");
        assert!(!plot.exists(), "nothing is left");
        std::fs::write(&plot, "old").expect("a file");
        try_out(&plot).expect("it can be written");
        assert_eq!(std::fs::read_to_string(&plot).expect("a file"), "old");
        std::fs::remove_file(plot).expect("a file");
    }
}
