//! The whole demonstration on one time axis: what happened how long after its start, act after act,
//! as a drawing and as words.

use holdfast_report::layout::text_width;
use holdfast_report::plot::{escape, number, ticks};
use std::fmt::Write as _;

/// Size of the texts, height of a bar, and the distances between rows.
const FONT: f64 = 12.0;
const BAR: f64 = 12.0;
const LINE: f64 = 16.0;
const GAP: f64 = 8.0;

/// What an event of the story is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An act begins.
    Act,
    /// Something is done.
    Step,
    /// Something breaks.
    Blow,
    /// The act is over.
    Over,
}

/// An event, in s after the demonstration's start.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub at_s: f64,
    pub kind: Kind,
    pub what: String,
}

/// An act with what happened in it.
struct Act<'a> {
    title: &'a str,
    from_s: f64,
    until_s: f64,
    events: Vec<&'a Event>,
}

/// The events of each act; an act lasts until it is over, or until the next event that is not its.
fn acts(events: &[Event]) -> Vec<Act<'_>> {
    let mut acts: Vec<Act<'_>> = Vec::new();
    for event in events {
        if event.kind == Kind::Act {
            let (title, from_s) = (event.what.as_str(), event.at_s);
            acts.push(Act { title, from_s, until_s: from_s, events: Vec::new() });
            continue;
        }
        let Some(act) = acts.last_mut() else { continue };
        act.until_s = event.at_s;
        if event.kind != Kind::Over {
            act.events.push(event);
        }
    }
    acts
}

/// The story as a part of a page: a drawing for a screen, one for a phone, and the events in words.
pub fn section(events: &[Event]) -> String {
    let acts = acts(events);
    let end_s = acts.last().map_or(0.0, |act| act.until_s);
    let mut out = format!(
        "<section><h2>The whole story, {end_s:.0} seconds</h2><p>All that follows, on one time axis that \
         begins with the demonstration. Each act has hosts of its own, whose building is a part of it. Red is \
         where something breaks.</p>\n<figure>{}{}</figure>\n\
         <details><summary>Everything with its second</summary>\n",
        svg(&acts, end_s, 880.0, "screen"),
        svg(&acts, end_s, 360.0, "phone")
    );
    for act in &acts {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(out, "<h3>{}</h3><dl>", escape(act.title));
        for event in &act.events {
            let _ = writeln!(out, "<dt>{:.1} s</dt><dd>{}</dd>", event.at_s, escape(&event.what));
        }
        out.push_str("</dl>\n");
    }
    out.push_str("</details></section>\n");
    out
}

/// A title in lines that are not wider than the drawing.
fn lines(title: &str, width: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in title.split(' ') {
        let last = lines.len() - 1;
        let longer = if lines[last].is_empty() {
            word.to_owned()
        } else {
            format!("{} {word}", lines[last])
        };
        if lines[last].is_empty() || text_width(&longer, FONT) <= width {
            lines[last] = longer;
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

fn svg(acts: &[Act<'_>], end_s: f64, width: f64, class: &str) -> String {
    let (left, right) = (6.0, width - 6.0);
    let x = |at_s: f64| left + at_s / end_s.max(1e-9) * (right - left);
    let mut rows = String::new();
    let mut y = 0.0;
    for act in acts {
        for line in lines(act.title, right - left) {
            y += LINE;
            let _ =
                writeln!(rows, "<text x=\"{left}\" y=\"{:.1}\">{}</text>", y - 4.0, escape(&line));
        }
        let (from, until) = (x(act.from_s), x(act.until_s));
        let _ = writeln!(
            rows,
            "<rect x=\"{left}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" class=\"la\"/>\
             <rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" class=\"go\"/>",
            right - left,
            (until - from).max(2.0)
        );
        for event in act.events.iter().filter(|it| it.kind == Kind::Blow) {
            let at = x(event.at_s);
            let _ = writeln!(
                rows,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"3\" height=\"{:.1}\" class=\"ba\"/>",
                at - 1.5,
                y - 2.0,
                BAR + 4.0
            );
        }
        y += BAR + GAP;
    }
    let mut axis = String::new();
    for tick in ticks((0.0, end_s), (right - left) / 70.0) {
        let at = x(tick);
        let anchor = match at {
            at if at < 12.0 => "start",
            at if at > width - 18.0 => "end",
            _ => "middle",
        };
        let _ = writeln!(
            axis,
            "<line x1=\"{at:.1}\" y1=\"0\" x2=\"{at:.1}\" y2=\"{y:.1}\" class=\"gr\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" class=\"mu\">{} s</text>",
            y + FONT + 2.0,
            number(tick)
        );
    }
    let height = y + FONT + 8.0;
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {width} {height:.0}\" role=\"img\" aria-label=\"{} acts on one time \
         axis of {end_s:.0} seconds\">{axis}{rows}</svg>",
        acts.len()
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A story of two acts.
    pub fn events() -> Vec<Event> {
        let event = |at_s: f64, kind, what: &str| Event { at_s, kind, what: what.to_owned() };
        vec![
            event(0.0, Kind::Step, "before all acts"),
            event(
                0.1,
                Kind::Act,
                "Death 2, with Holdfast: kill -9 of the server and of Holdfast beside it",
            ),
            event(0.2, Kind::Step, "Four machines start"),
            event(3.5, Kind::Blow, "It is <DEAD>"),
            event(6.0, Kind::Over, ""),
            event(6.1, Kind::Act, "a string is lost, and flows share what is left"),
            event(9.0, Kind::Blow, "Half of the paths' capacity is lost"),
            event(13.0, Kind::Over, ""),
        ]
    }

    #[test]
    fn acts_follow_each_other_on_one_axis() {
        let events = events();
        let acts = acts(&events);
        let times: Vec<(f64, f64)> = acts.iter().map(|act| (act.from_s, act.until_s)).collect();
        assert_eq!(times, [(0.1, 6.0), (6.1, 13.0)]);
        assert_eq!(acts[0].events.len(), 2);
        let page = section(&events);
        assert!(page.contains("The whole story, 13 seconds") && !page.contains("NaN"), "{page}");
        assert!(page.contains("<dt>3.5 s</dt><dd>It is &lt;DEAD&gt;</dd>"), "{page}");
        // A mark for each blow, in the drawing for a screen and in that for a phone.
        assert_eq!(page.matches("class=\"ba\"").count(), 4);
        assert!(!section(&[]).contains("NaN"));
    }

    #[test]
    fn titles_fit_into_the_drawing() {
        for event in events() {
            for line in lines(&event.what, 348.0) {
                assert!(text_width(&line, FONT) <= 348.0, "{line}");
            }
        }
    }
}
