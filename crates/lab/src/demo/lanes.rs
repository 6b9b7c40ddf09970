//! A death as a drawing: a lane for each client, the milliseconds around the death along it, and
//! above the lanes what happened when.

use super::death::{Death, Moment};
use super::words;
use crate::load::ConnectionReport;
use holdfast_report::layout::{Label, Placed, place, text_width};
use holdfast_report::plot::{escape, number, ticks};
use std::fmt::Write as _;

/// Time that is shown before the death, and at least after it, in ms.
const BEFORE_MS: f64 = 5.0;
const AFTER_MS: [f64; 9] = [20.0, 30.0, 40.0, 60.0, 80.0, 100.0, 150.0, 200.0, 400.0];

/// Share of the time after the death that is to be left when all is over.
const SPARE: f64 = 0.12;

/// Longest time between two looks of the load at a connection that still counts as a flow, in ms.
const FLOW_MS: f64 = 0.6;

/// Size of the texts and height of their rows.
pub(super) const FONT: f64 = 12.0;
pub(super) const ROW: f64 = 16.0;
/// Distance between ticks of an axis, at least.
pub(super) const TICK: f64 = 60.0;

/// Colours for light and for dark, of drawings and of the page around them.
pub const COLOURS: &str = ":root{--paper:#fff;--ink:#1d2330;--muted:#5d6678;--grid:#e2e6ed;--lane:#f2f4f8;\
    --good:#0a7a55;--pause:#e08a00;--bad:#c62828;--line:#8a94a6}\
    @media(prefers-color-scheme:dark){:root{--paper:#12151c;--ink:#e8eaf0;--muted:#9aa3b4;--grid:#2a303c;\
    --lane:#1b202a;--good:#35c58f;--pause:#ffb547;--bad:#ff6f6f;--line:#667085}}";

/// Classes of the drawings.
pub const CLASSES: &str = "svg text{font:12px system-ui,sans-serif;fill:var(--ink);paint-order:stroke;stroke:var(--paper);stroke-width:3px}svg .mu{fill:var(--muted)}\
    svg .gr{stroke:var(--grid)}svg .la{fill:var(--lane)}svg .go{fill:var(--good)}svg .pa{fill:var(--pause)}\
    svg .ba{fill:var(--bad)}svg .st{stroke:var(--line);stroke-dasharray:2 3}svg .de{stroke:var(--bad);stroke-width:2}\
    svg .qu{stroke:var(--line);stroke-dasharray:1 5}svg .h{font-weight:600}svg .x{stroke:var(--bad);stroke-width:2.5}";

/// How wide a drawing is, and where its texts stand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    pub(super) width: f64,
    /// Where the lanes begin and end.
    pub(super) lanes: (f64, f64),
    pub(super) lane_height: f64,
    /// Height above a lane for its texts; 0: they stand beside it.
    pub(super) text_height: f64,
}

impl View {
    /// For a page or a screen.
    pub const WIDE: Self =
        Self { width: 880.0, lanes: (196.0, 770.0), lane_height: 15.0, text_height: 0.0 };
    /// For a phone.
    pub const NARROW: Self =
        Self { width: 360.0, lanes: (4.0, 356.0), lane_height: 10.0, text_height: 15.0 };

    pub(super) fn lane_step(self) -> f64 {
        self.lane_height + self.text_height + if self.text_height > 0.0 { 6.0 } else { 5.0 }
    }
}

/// Drawings on top of each other, as one SVG document that needs nothing else.
pub fn document(deaths: &[Death]) -> String {
    const TITLE: f64 = 34.0;
    let view = View::WIDE;
    let mut body = String::new();
    let mut top = 0.0;
    for (index, death) in deaths.iter().enumerate() {
        let (drawing, height) = draw(death, view);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            body,
            "<g transform=\"translate(0 {top:.1})\"><text x=\"4\" y=\"22\" class=\"h\">{}</text>\
             <g transform=\"translate(0 {TITLE})\">{drawing}</g></g>",
            escape(&title(index, death))
        );
        top += height + TITLE;
    }
    paper(&body, (view.width, top))
}

/// A drawing as an SVG document of its own.
pub(super) fn paper(body: &str, (width, height): (f64, f64)) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height:.0}\" width=\"{width}\" height=\"{height:.0}\">\n\
         <style>{COLOURS}{CLASSES}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"var(--paper)\"/>\n{body}</svg>\n"
    )
}

/// A drawing as a part of a page.
pub fn svg(death: &Death, view: View, class: &str) -> String {
    let (drawing, height) = draw(death, view);
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {} {height:.0}\" role=\"img\" aria-label=\"{}\">{drawing}</svg>",
        view.width,
        escape(&format!("A lane for each client: {}", words::summary(death)))
    )
}

/// What a death is called among the others.
pub fn title(index: usize, death: &Death) -> String {
    let with = if death.is_protected { "with Holdfast" } else { "without Holdfast" };
    format!("Death {index}, {with}: {}", death.title)
}

/// Time axis of a drawing.
#[derive(Clone, Copy, Debug)]
struct Axis {
    ms: (f64, f64),
    x: (f64, f64),
}

impl Axis {
    fn of(death: &Death, view: View) -> Self {
        let last = death.moments.last().map_or(0.0, |moment| moment.0);
        let pauses = death.report.connections.iter().filter_map(|it| pause_ms(death, it));
        // A pause that begins when all is over is not the death's.
        let ends = pauses.filter(|pause| pause.0 <= last).map(|pause| pause.1);
        let over = ends.fold(last, f64::max) * (1.0 + SPARE);
        let longest = AFTER_MS[AFTER_MS.len() - 1];
        let until = AFTER_MS.into_iter().find(|ms| *ms >= over).unwrap_or(longest);
        Self { ms: (-BEFORE_MS, until), x: view.lanes }
    }

    fn x(self, ms: f64) -> f64 {
        let share = (ms.clamp(self.ms.0, self.ms.1) - self.ms.0) / (self.ms.1 - self.ms.0);
        self.x.0 + share * (self.x.1 - self.x.0)
    }

    fn shows(self, ms: f64) -> bool {
        (self.ms.0..=self.ms.1).contains(&ms)
    }
}

/// The pause of a connection that lived, in ms after the death.
fn pause_ms(death: &Death, of: &ConnectionReport) -> Option<(f64, f64)> {
    let fault_ns = death.report.fault_ns? as f64;
    let from = (of.stall_start_ns as f64 - fault_ns) / 1e6;
    (of.stall_ns > 0 && of.survived()).then(|| (from, from + of.stall_ns as f64 / 1e6))
}

/// The names of moments, and their places above the lanes.
fn placed(death: &Death, axis: Axis, view: View) -> Vec<(f64, &'static str, Placed)> {
    let shown: Vec<(f64, &'static str)> = death
        .moments
        .iter()
        .filter(|moment| axis.shows(moment.0))
        .map(|(ms, moment)| (axis.x(*ms), words::moment(*moment).0))
        .collect();
    let label = |(at, name): &(f64, &str)| Label { at: *at, width: text_width(name, FONT) };
    let labels: Vec<Label> = shown.iter().map(label).collect();
    let places = place(&labels, (0.0, view.width), 4.0);
    shown.into_iter().zip(places).map(|((at, name), place)| (at, name, place)).collect()
}

/// The drawing, and its height.
fn draw(death: &Death, view: View) -> (String, f64) {
    let axis = Axis::of(death, view);
    let names = placed(death, axis, view);
    let rows = names.iter().map(|name| name.2.row + 1).max().unwrap_or(0) as f64;
    let top = rows * ROW + 8.0;
    let bottom = top + view.lane_step() * death.clients.len() as f64 + 4.0;
    // Texts lie above everything else.
    let (mut out, mut texts) = (String::new(), String::new());
    let ticks = ticks(axis.ms, (view.lanes.1 - view.lanes.0) / TICK);
    let ticks = ticks.into_iter().map(|tick| (axis.x(tick), tick));
    draw_axis(&mut out, ticks, view, (top, bottom), "milliseconds after the death");
    for (index, (name, connection)) in
        death.clients.iter().zip(&death.report.connections).enumerate()
    {
        let y = top + view.lane_step() * index as f64 + 4.0;
        draw_lane(&mut out, death, connection, axis, view, y);
        draw_lane_texts(&mut texts, name, connection, view, y);
    }
    for (at, name, place) in names {
        let from = place.row as f64 * ROW;
        let class = if name == words::moment(Moment::Death).0 { "de" } else { "st" };
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\" class=\"{class}\"/>",
            from + 2.0
        );
        let (left, line) = (place.left, from + FONT);
        let _ = writeln!(texts, "<text x=\"{left:.1}\" y=\"{line:.1}\">{name}</text>");
    }
    out.push_str(&texts);
    (out, bottom + 2.0 * ROW + 6.0)
}

/// An axis under the lanes, with ticks at these places, each with its number.
pub(super) fn draw_axis(
    out: &mut String,
    ticks: impl Iterator<Item = (f64, f64)>,
    view: View,
    (top, bottom): (f64, f64),
    unit: &str,
) {
    for (x, tick) in ticks {
        let anchor = match x {
            x if x < 12.0 => "start",
            x if x > view.width - 12.0 => "end",
            _ => "middle",
        };
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" class=\"gr\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" class=\"mu\">{}</text>",
            bottom + FONT + 2.0,
            number(tick)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" class=\"mu\">{unit}</text>",
        (view.lanes.0 + view.lanes.1) / 2.0,
        bottom + FONT + ROW + 2.0
    );
}

/// What the client got: green while bytes come, amber in its pause, a cross where it is cut off.
fn draw_lane(
    out: &mut String,
    death: &Death,
    connection: &ConnectionReport,
    axis: Axis,
    view: View,
    y: f64,
) {
    let (top, height) = (y + view.text_height, view.lane_height);
    let rect = |out: &mut String, from: f64, until: f64, class: &str| {
        let (from, until) = (axis.x(from), axis.x(until));
        let width = (until - from).max(1.4);
        let _ = write!(
            out,
            "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height}\" class=\"{class}\"/>"
        );
    };
    rect(out, axis.ms.0, axis.ms.1, "la");
    let fault_ns = death.report.fault_ns.unwrap_or_default() as f64;
    let ms = |ns: u64| (ns as f64 - fault_ns) / 1e6;
    let pause =
        pause_ms(death, connection).filter(|pause| pause.0 < axis.ms.1 && pause.1 > axis.ms.0);
    if let Some((from, until)) = pause {
        rect(out, from, until, "pa");
    }
    let seen = connection.points.iter().map(|point| ms(point.0)).filter(|at| axis.shows(*at));
    let flows = flows(seen, pause);
    for (from, until) in &flows {
        rect(out, *from, *until, "go");
    }
    let middle = top + height / 2.0;
    if flows.is_empty() {
        let _ = write!(
            out,
            "<line x1=\"{:.1}\" y1=\"{middle:.1}\" x2=\"{:.1}\" y2=\"{middle:.1}\" class=\"qu\"/>",
            axis.x.0, axis.x.1
        );
    }
    if let Some(failed_ms) = connection.failed_ns.map(ms).filter(|at| axis.shows(*at)) {
        let (x, arm) = (axis.x(failed_ms), height / 2.0 - 1.0);
        let (left, right, above, below) = (x - arm, x + arm, middle - arm, middle + arm);
        let _ = write!(
            out,
            "<line x1=\"{x:.1}\" y1=\"{middle:.1}\" x2=\"{:.1}\" y2=\"{middle:.1}\" class=\"x\" opacity=\".25\"/>\
             <path d=\"M{left:.1} {above:.1}L{right:.1} {below:.1}M{left:.1} {below:.1}L{right:.1} {above:.1}\" class=\"x\"/>",
            axis.x.1
        );
    }
    out.push('\n');
}

/// Times in which bytes came one soon after the other; none leads over the pause.
fn flows(seen: impl Iterator<Item = f64>, pause: Option<(f64, f64)>) -> Vec<(f64, f64)> {
    let mut flows: Vec<(f64, f64)> = Vec::new();
    for at in seen {
        let leads_over = |from: f64| pause.is_some_and(|pause| from <= pause.0 && pause.1 <= at);
        match flows.last_mut() {
            Some(flow) if at - flow.1 <= FLOW_MS && !leads_over(flow.1) => flow.1 = at,
            _ => flows.push((at, at)),
        }
    }
    flows
}

/// The name of a lane at its left, and what became of it at its right.
fn draw_lane_texts(
    out: &mut String,
    name: &str,
    connection: &ConnectionReport,
    view: View,
    y: f64,
) {
    let (class, fate) = if connection.survived() {
        let pause = words::pause(connection.stall_ns as f64 / 1e6);
        (
            "mu",
            if connection.stall_ns > 0 { format!("paused {pause}") } else { "no pause".to_owned() },
        )
    } else if connection.byte_errors > 0 {
        ("ba", "wrong byte".to_owned())
    } else if connection.hung {
        ("ba", "hangs".to_owned())
    } else {
        ("ba", "cut off".to_owned())
    };
    lane_texts(out, view, y, name, (class, &fate));
}

/// A name at the left of a lane, and at its right a text with its class.
pub(super) fn lane_texts(
    out: &mut String,
    view: View,
    y: f64,
    name: &str,
    (class, fate): (&str, &str),
) {
    let (left, right, line) = match view.text_height {
        0.0 => (4.0, view.width - 4.0, y + view.lane_height - 3.0),
        height => (view.lanes.0, view.lanes.1, y + height - 4.0),
    };
    let _ = writeln!(
        out,
        "<text x=\"{left:.1}\" y=\"{line:.1}\">{}</text>\
         <text x=\"{right:.1}\" y=\"{line:.1}\" text-anchor=\"end\" class=\"{class}\">{fate}</text>",
        escape(name)
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::death::tests::death;

    /// Everything that could lie on something else: boxes of names above the lanes, and of the texts
    /// beside or above each lane.
    #[test]
    fn no_text_lies_on_another_one() {
        let mut crowded = death(true);
        crowded.moments = vec![
            (0.0, Moment::Death),
            (0.1, Moment::Suspected),
            (0.15, Moment::Declared),
            (0.2, Moment::Known),
            (0.2, Moment::Barred),
            (0.9, Moment::Rebuilt),
            (0.9, Moment::FirstByte),
            (18.5, Moment::HandedOver),
            (19.9, Moment::Resent),
        ];
        for view in [View::WIDE, View::NARROW] {
            for death in [&crowded, &death(true), &death(false)] {
                let names = placed(death, Axis::of(death, view), view);
                assert_eq!(names.len(), death.moments.len());
                for (at, (_, name, place)) in names.iter().enumerate() {
                    let end = place.left + text_width(name, FONT);
                    assert!(place.left >= 0.0 && end <= view.width, "{name}: {place:?}");
                    for (_, other, next) in &names[at + 1..] {
                        let apart =
                            next.left >= end || next.left + text_width(other, FONT) <= place.left;
                        assert!(place.row != next.row || apart, "{name} lies on {other}");
                    }
                }
                let widest =
                    death.clients.iter().map(|it| text_width(it, FONT)).fold(0.0, f64::max);
                let room = if view.text_height == 0.0 { view.lanes.0 } else { view.width - 90.0 };
                assert!(widest + 4.0 <= room, "{widest} of {room}");
            }
            assert!(view.lane_step() >= view.lane_height + view.text_height);
        }
    }

    /// The drawing shows the milliseconds of the death, and the pause where it was.
    #[test]
    fn the_axis_is_that_of_the_death() {
        let axis = |death: &Death| Axis::of(death, View::WIDE).ms;
        assert_eq!(axis(&death(true)), (-5.0, 20.0));
        let mut slow = death(true);
        slow.moments.push((70.0, Moment::HandedOver));
        assert_eq!(axis(&slow), (-5.0, 80.0));
        // A pause that comes much later does not make the death look short.
        let mut later = death(true);
        let one = &mut later.report.connections[0];
        (one.stall_start_ns, one.stall_ns) = (1_054_000_000, 90_000_000);
        assert_eq!(axis(&later), (-5.0, 20.0));
    }

    #[test]
    fn what_flows_is_one_and_a_pause_is_a_gap() {
        let seen = [-1.0, -0.8, -0.6, 4.0, 4.2, 9.0];
        assert_eq!(flows(seen.into_iter(), None), [(-1.0, -0.6), (4.0, 4.2), (9.0, 9.0)]);
        assert_eq!(flows([0.0, 0.5].into_iter(), Some((0.0, 0.4))), [(0.0, 0.0), (0.5, 0.5)]);
    }

    #[test]
    fn the_document_is_whole_and_follows_the_colours_of_the_screen() {
        let svg = document(&[death(false), death(true)]);
        assert!(svg.starts_with("<svg xmlns") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
        assert!(svg.contains("prefers-color-scheme:dark"));
        assert_eq!(svg.matches("cut off").count(), 14);
        assert_eq!(svg.matches("class=\"pa\"").count(), 14);
    }
}
