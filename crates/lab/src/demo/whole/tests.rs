use super::*;
use crate::demo::death::tests::{death, report};
use crate::demo::page::tests::checked;
use crate::demo::story::Kind;
use crate::load::LaneNow;
use holdfast_report::layout::text_width;

const S: u64 = 1_000_000_000;

/// A run of twenty seconds whose clients pause once for a second.
fn whole() -> Whole {
    let names = names();
    let mut report = report(true);
    report.connections.resize(names.len(), report.connections[0].clone());
    let lane = |at_ns: u64| {
        let is_paused = (8 * S..9 * S).contains(&at_ns);
        let (gap_ns, gap_start_ns) =
            if is_paused { (at_ns - 8 * S, 8 * S) } else { (S / 100, at_ns - S / 100) };
        let at_ns = if is_paused { 8 * S } else { at_ns };
        let (replies, bytes_in) = (at_ns / 1_000_000, at_ns / 1_000);
        LaneNow { replies, bytes_in, pause_ns: 0, gap_ns, gap_start_ns, has_ended: false }
    };
    let snapshot = |tenth: u64| {
        let at_ns = tenth * S / 10;
        Snapshot { at_ns, fault_ns: None, lanes: vec![lane(at_ns); names.len()] }
    };
    let act = |number: u64, short| Act {
        title: "Act: a string is lost <in> it",
        short,
        span_ns: number * 4 * S..(number + 1) * 4 * S,
        pause_ms: 1_000.0,
        story: "It is & was.".to_owned(),
        rows: vec![("packets lost <in> the queue", "210".to_owned(), "0".to_owned())],
        failure: None,
    };
    let shorts = ["it dies", "outages", "a string lost", "it comes back", "the other dies"];
    let event = |at_s, kind, what: &str| Event { at_s, kind, what: what.to_owned() };
    Whole {
        acts: (0..).zip(shorts).map(|(number, short)| act(number, short)).collect(),
        seen: (1..200).map(snapshot).collect(),
        events: vec![
            event(3.0, Kind::Step, "The clients work"),
            event(8.0, Kind::Blow, "Both strings swallow <everything>"),
        ],
        started_ns: 0,
        report,
        names,
    }
}

#[test]
fn every_connection_is_a_lane_and_its_pause_is_drawn() {
    let (whole, bare) = (whole(), death(false));
    assert_eq!((whole.lived(), whole.names.len(), whole.failure()), (19, 19, None));
    let page = page(&whole, &bare, "holdfast demo --all --seed 7");
    let count = |what| page.matches(what).count();
    // The run and the death without Holdfast, each for a screen and for a phone.
    assert_eq!((count("class=\"screen\""), count("class=\"phone\"")), (2, 2));
    assert_eq!((count("class=\"pa\""), count("class=\"de\"")), (38, 4));
    assert!(page.contains("<b>19 of 19</b>") && page.contains("<b>0 of 14</b>"));
    assert!(page.contains(
        "<td>packets lost &lt;in&gt; the queue<td class=\"o\">210<td class=\"w\">0</tr>"
    ));
    assert!(page.contains("<dt>8.0 s</dt><dd>Both strings swallow &lt;everything&gt;</dd>"));
    assert!(page.contains("holdfast demo --all --seed 7") && !page.contains("NaN"));
    let svg = document(&whole);
    assert!(svg.starts_with("<svg xmlns") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
}

#[test]
fn a_browser_finds_nothing_wrong_with_the_page() {
    let page = page(&whole(), &death(false), "holdfast demo --all --seed 7");
    let Some(said) = checked("whole", &page) else { return };
    let told = [&said.stdout[..], &said.stderr].concat();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&told));
}

#[test]
fn names_fit_beside_their_lanes() {
    for name in names() {
        assert!(name.len() <= 24 && text_width(&name, 12.0) <= 192.0, "{name}");
    }
    assert!(names()[..DOWNLOADS].iter().all(|name| name.starts_with("downloads")));
}

#[test]
fn a_connection_that_was_made_twice_is_no_success() {
    let mut whole = whole();
    whole.report.connections[3].connects = 2;
    assert_eq!(whole.failure().as_deref(), Some("1 connections were made again"));
    whole.report.shared_error = Some("one is missing".to_owned());
    assert!(whole.summary().ends_with("WRONG: one is missing."), "{}", whole.summary());
}
