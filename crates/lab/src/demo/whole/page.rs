//! The whole run as a page: the result, one drawing of everything, and each act in words and numbers.

use super::lanes::{PAUSE_MS, svg};
use super::{Act, HEARTBEAT_MS, ROUND_TRIP_MS, STRING_MBIT, Whole};
use crate::demo::death::Death;
use crate::demo::lanes::View;
use crate::demo::page::{counts, framed, host, section, wire};
use crate::demo::story::Kind;
use crate::demo::words::pause;
use holdfast_report::plot::escape;
use std::fmt::Write as _;

/// The page of a run, and of the death without Holdfast before it; `again` repeats both.
pub fn page(whole: &Whole, bare: &Death, again: &str) -> String {
    let mut out = format!(
        "<h1>A server dies. Its connections live.</h1>\n\
         <p>{} clients of a redis-server that nobody changed reach it through two edges with two strings \
         between them, and through the edge of a pair of members that run it in step. In one run the \
         primary dies, both strings swallow everything, one of them is lost, the dead member comes back, and \
         the other one dies. The connections are the same from the first act to the last, and each client \
         checks every byte that it gets.</p>\n",
        whole.names.len()
    );
    counts(&mut out, &whole.headline(bare));
    let _ = writeln!(
        out,
        "<p>{}</p>\n<figure class=\"place\">{}</figure>",
        escape(&whole.summary()),
        place(whole.names.len())
    );
    out.push_str(&run(whole));
    whole.acts.iter().for_each(|act| told(&mut out, whole, act));
    let _ = writeln!(
        out,
        "<p>What it is not: the kill without Holdfast, below, has hosts and clients of its own, since nobody \
         would be left for the next act. While the strings fail, one member serves alone: the pair is whole \
         again in act 4. What acts 2 and 3 compare, without recovery or rate control and with it, is one \
         failure after the other in the same run; in between the edges were told so by a changed file and \
         <code>holdfast reload</code>.</p>"
    );
    section(&mut out, 0, bare);
    let links = format!(
        "strings of {STRING_MBIT} Mbit/s, a round trip of {ROUND_TRIP_MS} ms, and a heartbeat of {HEARTBEAT_MS} ms \
         between the strings' edges (without Holdfast: links of 1 Gb/s)"
    );
    framed(&out, &links, again)
}

/// The drawing of everything, and the longest wait of each act.
fn run(whole: &Whole) -> String {
    let mut out = format!(
        "<section><h2>The whole run, on one time axis</h2>\n\
         <p class=\"key\"><span><i style=\"background:var(--good)\"></i>bytes or replies come</span>\
         <span><i style=\"background:var(--pause)\"></i>{PAUSE_MS} ms or more without any</span>\
         <span><i style=\"background:var(--bad)\"></i>something breaks</span></p>\n\
         <p>The higher, the more: downloads by bytes, all by one measure, and the others by replies. A takeover \
         is hardly to be seen here; its longest wait is in the table.</p>\n\
         <figure>{}{}</figure>\n\
         <table><tr><th>act<th>seconds<th>longest wait of any connection</tr>\n",
        svg(whole, View::WIDE, "screen"),
        svg(whole, View::NARROW, "phone")
    );
    for act in &whole.acts {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "<tr><td>{}<td>{:.1} to {:.1}<td>{}</tr>",
            escape(act.title),
            whole.second(act.span_ns.start),
            whole.second(act.span_ns.end),
            pause(act.pause_ms)
        );
    }
    out.push_str("</table></section>\n");
    out
}

/// An act in words and numbers, with the second of everything that was done or broke.
fn told(out: &mut String, whole: &Whole, act: &Act) {
    let _ = writeln!(out, "<section><h2>{}</h2><p>{}</p>", escape(act.title), escape(&act.story));
    if let Some(failure) = &act.failure {
        let _ = writeln!(out, "<p class=\"o\">WRONG: {}</p>", escape(failure));
    }
    if !act.rows.is_empty() {
        out.push_str("<table><tr><th><th>without<th>with</tr>\n");
        for (what, without, with) in &act.rows {
            let (what, without, with) = (escape(what), escape(without), escape(with));
            let _ =
                writeln!(out, "<tr><td>{what}<td class=\"o\">{without}<td class=\"w\">{with}</tr>");
        }
        out.push_str("</table>\n");
    }
    let span = whole.second(act.span_ns.start)..=whole.second(act.span_ns.end);
    let is_told = |kind| matches!(kind, Kind::Step | Kind::Blow);
    out.push_str("<dl>\n");
    for event in whole.events.iter().filter(|it| is_told(it.kind) && span.contains(&it.at_s)) {
        let _ = writeln!(out, "<dt>{:.1} s</dt><dd>{}</dd>", event.at_s, escape(&event.what));
    }
    out.push_str("</dl></section>\n");
}

/// Where everything is.
fn place(clients: usize) -> String {
    let rate = format!("{STRING_MBIT} Mb/s");
    [
        "<svg viewBox=\"0 0 360 132\" role=\"img\" aria-label=\"Clients reach an edge, two strings, another edge, the \
         edge of the pair, and behind it primary and backup\">"
            .to_owned(),
        wire((52.0, 66.0), (60.0, 66.0), ""),
        wire((104.0, 58.0), (114.0, 26.0), ""),
        wire((104.0, 74.0), (114.0, 106.0), ""),
        wire((176.0, 26.0), (186.0, 58.0), ""),
        wire((176.0, 106.0), (186.0, 74.0), ""),
        wire((230.0, 66.0), (238.0, 66.0), ""),
        wire((286.0, 58.0), (296.0, 26.0), ""),
        wire((286.0, 74.0), (296.0, 106.0), ";stroke-dasharray:4 3"),
        wire((327.0, 48.0), (327.0, 84.0), ";stroke-dasharray:1 3"),
        host((1.0, 44.0, 51.0), "clients", &clients.to_string(), "line"),
        host((60.0, 44.0, 44.0), "edge", "keeps", "line"),
        host((114.0, 4.0, 62.0), "string 1", &rate, "line"),
        host((114.0, 84.0, 62.0), "string 2", &rate, "bad"),
        host((186.0, 44.0, 44.0), "edge", "keeps", "line"),
        host((238.0, 44.0, 48.0), "edge", "copies", "line"),
        host((296.0, 4.0, 62.0), "primary", "redis", "bad"),
        host((296.0, 84.0, 62.0), "backup", "redis", "good"),
        "</svg>".to_owned(),
    ]
    .concat()
}
