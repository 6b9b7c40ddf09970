//! The whole run as a drawing: a lane for each connection over the seconds of the run, above them
//! the acts, and across them what broke.

use super::{Act, DOWNLOADS, Whole};
use crate::demo::lanes::{FONT, ROW, TICK, View, draw_axis, lane_texts, paper};
use crate::demo::story::Kind;
use crate::demo::words::pause;
use crate::load::{LaneNow, Snapshot};
use holdfast_report::layout::{Label, Placed, place, text_width};
use holdfast_report::plot::{escape, ticks};
use std::fmt::Write as _;

/// Snapshots that a step of a lane covers.
const STEP: usize = 2;

/// Shortest pause that is drawn, in ms: on this axis a shorter one is a hair.
pub(super) const PAUSE_MS: u64 = 100;

/// The drawing as an SVG document that needs nothing else.
pub fn document(whole: &Whole) -> String {
    let (drawing, height) = draw(whole, View::WIDE);
    paper(&drawing, (View::WIDE.width, height))
}

/// The drawing as a part of a page.
pub(super) fn svg(whole: &Whole, view: View, class: &str) -> String {
    let (drawing, height) = draw(whole, view);
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {} {height:.0}\" role=\"img\" aria-label=\"{}\">{drawing}</svg>",
        view.width,
        escape(&format!("A lane for each connection, over all acts: {}", whole.summary()))
    )
}

/// Seconds since the demonstration's start, and where they are.
#[derive(Clone, Copy)]
struct Axis {
    seconds: (f64, f64),
    x: (f64, f64),
}

impl Axis {
    fn of(whole: &Whole, view: View) -> Self {
        let of =
            |act: Option<&Act>, pick: fn(&Act) -> u64| act.map_or(0.0, |it| whole.second(pick(it)));
        let from = of(whole.acts.first(), |it| it.span_ns.start);
        let until = of(whole.acts.last(), |it| it.span_ns.end);
        Self { seconds: (from, until.max(from + 1.0)), x: view.lanes }
    }

    fn x(self, second: f64) -> f64 {
        let (from, until) = self.seconds;
        let share = (second.clamp(from, until) - from) / (until - from);
        self.x.0 + share * (self.x.1 - self.x.0)
    }
}

/// The acts' numbers and short names, and their places above the lanes.
pub(super) fn labels(whole: &Whole, view: View) -> Vec<(f64, String, Placed)> {
    let axis = Axis::of(whole, view);
    let name = |(index, act): (usize, &Act)| {
        (axis.x(whole.second(act.span_ns.start)), format!("{}: {}", index + 1, act.short))
    };
    let names: Vec<(f64, String)> = whole.acts.iter().enumerate().map(name).collect();
    let label = |(at, name): &(f64, String)| Label { at: *at, width: text_width(name, FONT) };
    let labels: Vec<Label> = names.iter().map(label).collect();
    let places = place(&labels, (0.0, view.width), 4.0);
    names.into_iter().zip(places).map(|((at, name), place)| (at, name, place)).collect()
}

/// The drawing, and its height.
fn draw(whole: &Whole, view: View) -> (String, f64) {
    let axis = Axis::of(whole, view);
    let labels = labels(whole, view);
    let rows = labels.iter().map(|label| label.2.row + 1).max().unwrap_or(0) as f64;
    let top = rows * ROW + 8.0;
    let bottom = top + view.lane_step() * whole.names.len() as f64 + 4.0;
    let (mut out, mut texts) = (String::new(), String::new());
    let ticks = ticks(axis.seconds, (view.lanes.1 - view.lanes.0) / TICK);
    let ticks = ticks.into_iter().map(|tick| (axis.x(tick), tick));
    draw_axis(&mut out, ticks, view, (top, bottom), "seconds after the demonstration's start");
    let largest = most(whole, 0..DOWNLOADS.min(whole.names.len()), |it| it.bytes_in);
    for (index, name) in whole.names.iter().enumerate() {
        let y = top + view.lane_step() * index as f64 + 4.0;
        let lane_top = y + view.text_height;
        draw_lane(&mut out, whole, index, axis, (lane_top, view.lane_height), largest);
        let connection = &whole.report.connections[index];
        let longest = whole.seen.iter().map(|it| it.lanes[index].gap_ns).max().unwrap_or(0);
        let fate = match connection.survived() {
            true => ("mu", format!("paused {}", pause(longest as f64 / 1e6))),
            false => ("ba", "lost".to_owned()),
        };
        lane_texts(&mut texts, view, y, name, (fate.0, &fate.1));
    }
    for event in whole.events.iter().filter(|it| it.kind == Kind::Blow) {
        let at = axis.x(event.at_s);
        if event.at_s >= axis.seconds.0 {
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(
                out,
                "<line x1=\"{at:.1}\" y1=\"{top:.1}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\" class=\"de\"/>"
            );
        }
    }
    for (at, name, place) in labels {
        let from = place.row as f64 * ROW;
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\" class=\"st\"/>",
            from + 2.0
        );
        let (left, line) = (place.left, from + FONT);
        let _ = writeln!(texts, "<text x=\"{left:.1}\" y=\"{line:.1}\">{}</text>", escape(&name));
    }
    out.push_str(&texts);
    (out, bottom + 2.0 * ROW + 6.0)
}

/// What a connection got from step to step: the second at its end, and how much.
fn steps(whole: &Whole, index: usize, of: fn(&LaneNow) -> u64) -> Vec<(f64, u64)> {
    let every: Vec<&Snapshot> = whole.seen.iter().step_by(STEP).collect();
    let step = |pair: &[&Snapshot]| {
        let (before, now) = (of(&pair[0].lanes[index]), of(&pair[1].lanes[index]));
        (whole.second(pair[1].at_ns), now.saturating_sub(before))
    };
    every.windows(2).map(step).collect()
}

/// The most that one of these connections got in a step.
fn most(whole: &Whole, lanes: std::ops::Range<usize>, of: fn(&LaneNow) -> u64) -> u64 {
    let begin = whole.acts.first().map_or(0.0, |it| whole.second(it.span_ns.start));
    let all = lanes.flat_map(|index| steps(whole, index, of));
    all.filter(|step| step.0 > begin).map(|step| step.1).max().unwrap_or(0)
}

/// What a connection got, as high as it was much, and its pauses. Downloads are as high as
/// their bytes, all by one measure; the others as their replies, each by its own.
fn draw_lane(
    out: &mut String,
    whole: &Whole,
    index: usize,
    axis: Axis,
    (top, height): (f64, f64),
    largest: u64,
) {
    let (left, right) = axis.x;
    let _ = write!(
        out,
        "<rect x=\"{left}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height}\" class=\"la\"/>",
        right - left
    );
    // What the first act has not seen begin is of the connections' making.
    for (from, until) in pauses(whole, index).into_iter().filter(|it| it.0 >= axis.seconds.0) {
        let (from, until) = (axis.x(from), axis.x(until));
        let _ = write!(
            out,
            "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height}\" class=\"pa\"/>",
            (until - from).max(1.4)
        );
    }
    let (of, largest): (fn(&LaneNow) -> u64, u64) = match index < DOWNLOADS {
        true => (|it| it.bytes_in, largest),
        false => (|it| it.replies, most(whole, index..index + 1, |it| it.replies)),
    };
    let (floor, middle) = (top + height, top + height / 2.0);
    if largest == 0 {
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" y1=\"{middle:.1}\" x2=\"{right}\" y2=\"{middle:.1}\" class=\"qu\"/>"
        );
        return;
    }
    let mut path = format!("M{left} {floor:.1}");
    for (second, step) in steps(whole, index, of) {
        if second > axis.seconds.0 {
            let share = (step as f64 / largest as f64).min(1.0);
            let _ = write!(path, "V{:.1}H{:.1}", floor - share * height, axis.x(second));
        }
    }
    let _ = writeln!(out, "<path d=\"{path}V{floor:.1}Z\" class=\"go\"/>");
}

/// The pauses of a connection that are long enough to be drawn, in seconds. One that goes on is in
/// several snapshots.
fn pauses(whole: &Whole, index: usize) -> Vec<(f64, f64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for lane in whole.seen.iter().map(|it| &it.lanes[index]) {
        if lane.gap_ns < PAUSE_MS * 1_000_000 {
            continue;
        }
        let (from, until) = (lane.gap_start_ns, lane.gap_start_ns + lane.gap_ns);
        match found.last_mut() {
            Some(last) if last.0 == from => last.1 = until,
            _ => found.push((from, until)),
        }
    }
    found.into_iter().map(|(from, until)| (whole.second(from), whole.second(until))).collect()
}
