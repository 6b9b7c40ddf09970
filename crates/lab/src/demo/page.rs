//! The demonstration as a page that needs nothing else: what happened, in large words and in
//! drawings, for a phone and for a screen, light and dark.

use super::death::Death;
use super::lanes::{CLASSES, COLOURS, View, svg, title};
use super::story::{self, Event};
use super::words::{self, Headline};
use holdfast_program::BUILD;
use holdfast_report::plot::escape;
use std::fmt::Write as _;

/// Rules of the page around its drawings.
const STYLE: &str = "*{box-sizing:border-box}body{margin:0 auto;max-width:920px;padding:1.2em 1em 3em;\
    background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,sans-serif;overflow-wrap:break-word}\
    h1{font-size:clamp(1.7em,6vw,2.5em);line-height:1.15;margin:.4em 0 .5em}h2{margin:2.2em 0 .3em;font-size:1.25em}\
    h3{margin:1em 0 .2em;font-size:1em}summary{cursor:pointer;padding:.35em 0}\
    :focus-visible{outline:3px solid var(--good);outline-offset:2px}\
    .counts{display:grid;grid-template-columns:1fr 1fr;gap:.8em;margin:1.4em 0}\
    .counts div{border:2px solid var(--grid);border-radius:.7em;padding:.8em 1em;line-height:1.35}\
    .counts b{display:block;font-size:clamp(1.5em,7vw,2.9em);line-height:1.15;white-space:nowrap}\
    .counts .w{border-color:var(--good)}.counts .w b{color:var(--good)}.counts .o{border-color:var(--bad)}\
    .counts .o b{color:var(--bad)}figure{margin:1em 0 .4em}svg{display:block;width:100%;height:auto}\
    .place text{stroke:none}svg.phone{display:none}.place{max-width:560px;margin:1em auto}\
    dl{display:grid;grid-template-columns:max-content 1fr;gap:.15em .9em;margin:.6em 0 0}dt{text-align:right;\
    font-variant-numeric:tabular-nums;color:var(--muted)}dd{margin:0}.key span{white-space:nowrap;margin-right:1.2em}\
    .key i{display:inline-block;width:1.3em;height:.8em;border-radius:2px;margin-right:.4em}\
    table{border-collapse:collapse;width:100%}td,th{padding:.3em .6em;border-bottom:1px solid var(--grid);\
    text-align:right}td:first-child,th:first-child{text-align:left}td.o,p.o{color:var(--bad)}td.w{color:var(--good)}\
    small,.key{color:var(--muted)}code{background:var(--lane);padding:.1em .35em;border-radius:.3em}\
    @media(max-width:640px){svg.screen{display:none}svg.phone{display:block}.counts{grid-template-columns:1fr}}";

/// The page of these deaths, with what happened on one time axis; `again` repeats them.
pub fn page(deaths: &[Death], events: &[Event], again: &str) -> String {
    let headline = Headline::of(deaths);
    let clients = headline.with.1;
    let mut out = format!(
        "<h1>A server dies. Its connections live.</h1>\n\
         <p>{clients} connections lead to a redis-server that nobody changed; on a second machine its backup \
         runs the same program in step, and an edge in front of both copies to it what clients send. \
         When the primary dies, the backup rebuilds every TCP connection exactly where its client \
         believes it to be, and goes on. No client is told, and each checks every byte that it gets.</p>\n"
    );
    counts(&mut out, &headline);
    let _ = writeln!(out, "<figure class=\"place\">{}</figure>", place());
    out.push_str(
        "<p class=\"key\"><span><i style=\"background:var(--good)\"></i>bytes come</span>\
         <span><i style=\"background:var(--pause)\"></i>the client's longest pause</span>\
         <span><i style=\"background:var(--bad)\"></i>it is cut off</span></p>\n",
    );
    out.push_str(&story::section(events));
    for (index, death) in deaths.iter().enumerate() {
        section(&mut out, index, death);
    }
    framed(&out, "links of 1 Gb/s", again)
}

/// A whole page around what it says; `links`: those between its machines.
pub fn framed(body: &str, links: &str, again: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>Holdfast: a server dies, its connections live</title>\n\
         <style>{COLOURS}{CLASSES}{STYLE}</style></head>\n<body><main>\n{body}\
         <p><small>All machines are network namespaces of one, with {links}; times are those of \
         this run. Again: <code>{}</code>. Version {BUILD}.</small></p>\n</main></body></html>\n",
        escape(again)
    )
}

/// The result, in large words.
pub fn counts(out: &mut String, it: &Headline) {
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        out,
        "<div class=\"counts\"><div class=\"w\">with Holdfast<b>{} of {}</b>{}</div>\
         <div class=\"o\">without<b>{} of {}</b>connections lived</div></div>",
        it.with.0,
        it.with.1,
        escape(&it.words),
        it.without.0,
        it.without.1
    );
}

/// A death with its drawing and its moments.
pub fn section(out: &mut String, index: usize, death: &Death) {
    let _ = writeln!(
        out,
        "<section><h2>{}</h2><p>{}</p>\n<figure>{}{}</figure>\n<dl>",
        escape(&title(index, death)),
        escape(&words::summary(death)),
        svg(death, View::WIDE, "screen"),
        svg(death, View::NARROW, "phone")
    );
    for (ms, moment) in &death.moments {
        let _ = writeln!(out, "<dt>{ms:.2} ms</dt><dd>{}</dd>", escape(words::moment(*moment).1));
    }
    out.push_str("</dl></section>\n");
}

/// Where everything is.
fn place() -> String {
    let host = |x, y, name, what, class| host((x, y, 92.0), name, what, class);
    [
        "<svg viewBox=\"0 0 360 132\" role=\"img\" aria-label=\"Clients reach the edge, which forwards to the primary and copies to the backup\">".to_owned(),
        wire((96.0, 66.0), (134.0, 66.0), ""),
        wire((226.0, 58.0), (264.0, 32.0), ""),
        wire((226.0, 74.0), (264.0, 100.0), ";stroke-dasharray:4 3"),
        wire((310.0, 48.0), (310.0, 84.0), ";stroke-dasharray:1 3"),
        host(4.0, 44.0, "clients", "14 of them", "line"),
        host(134.0, 44.0, "edge", "and copies", "line"),
        host(264.0, 4.0, "primary", "redis", "bad"),
        host(264.0, 84.0, "backup", "redis, in step", "good"),
        "<path d=\"M270 9l80 34M350 9l-80 34\" class=\"x\" opacity=\".4\"/></svg>".to_owned(),
    ]
    .concat()
}

/// A host in a drawing of where everything is: left, top and width of its box.
pub fn host((x, y, width): (f64, f64, f64), name: &str, what: &str, class: &str) -> String {
    format!(
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"44\" rx=\"8\" class=\"la\" style=\"stroke:var(--{class});stroke-width:1.5\"/>\
         <text x=\"{0}\" y=\"{1}\" text-anchor=\"middle\" class=\"h\">{name}</text>\
         <text x=\"{0}\" y=\"{2}\" text-anchor=\"middle\" class=\"mu\">{what}</text>",
        x + width / 2.0,
        y + 19.0,
        y + 35.0
    )
}

/// A wire in such a drawing; `extra`: more of its style.
pub fn wire((x1, y1): (f64, f64), (x2, y2): (f64, f64), extra: &str) -> String {
    format!(
        "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" style=\"stroke:var(--line);stroke-width:1.5{extra}\"/>"
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::demo::death::tests::death;
    use crate::demo::story::tests::events;
    use std::process::{Command, Output};

    #[test]
    fn the_page_fits_every_window_and_says_the_result_first() {
        let deaths = [death(false), death(true), death(true)];
        let page = page(&deaths, &events(), "holdfast demo --seed 7");
        assert!(page.contains("<meta name=\"viewport\" content=\"width=device-width"));
        assert!(page.contains("prefers-color-scheme:dark"));
        let counts = page.find("<b>14 of 14</b>").expect("what lived");
        assert!(counts < page.find("<section>").expect("a death"));
        assert!(page.contains("<b>0 of 14</b>"));
        // The story and each death have a drawing for a screen and one for a phone.
        let count = |what| page.matches(what).count();
        assert_eq!((count("class=\"screen\""), count("class=\"phone\"")), (4, 4));
        assert!(page.contains("holdfast demo --seed 7") && !page.contains("NaN"));
        for enum_name in ["IdleSubscriber", "Incr", "Pubsub", "FirstByte", "HandedOver"] {
            assert!(!page.contains(enum_name), "{enum_name}");
        }
    }

    /// First the socket, then its first byte, then the end.
    #[test]
    fn moments_stand_in_their_order() {
        let page = page(&[death(true)], &[], "");
        let at = |words: &str| page.rfind(words).expect("a sentence");
        assert!(at("stands again on the backup") < at("The first byte from the backup"));
        assert!(at("The first byte from the backup") < at("has been told to go on"));
    }

    /// What scripts/page-check says of a page; `None` where no Chromium is installed.
    pub fn checked(name: &str, page: &str) -> Option<Output> {
        let file =
            std::env::temp_dir().join(format!("holdfast-{name}-{}.html", std::process::id()));
        std::fs::write(&file, page).expect("a file");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/page-check");
        let said = Command::new(script).arg(&file).output().expect("python3 runs it");
        std::fs::remove_file(&file).expect("a file");
        if String::from_utf8_lossy(&said.stderr).contains("there is no Chromium") {
            eprintln!("NOT CHECKED in a browser: there is no Chromium");
            return None;
        }
        Some(said)
    }

    /// Contrast, headings, names, keyboard, sideways scrolling, labels that collide: in a browser, at
    /// 390 and 1280 px, light and dark.
    #[test]
    fn a_browser_finds_nothing_wrong_with_the_page() {
        let deaths = [death(false), death(true), death(true)];
        let page = page(&deaths, &events(), "holdfast demo --seed 7");
        let Some(said) = checked("good", &page) else { return };
        let told = [&said.stdout[..], &said.stderr].concat();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&told));
    }

    #[test]
    fn a_browser_finds_what_is_wrong_with_another_page() {
        let page = "<!doctype html><title></title><h2>a</h2><p style='color:#aaa;width:2000px'>pale</p>\
                    <style>:focus{outline:none}</style><button style='width:9px'></button>\
                    <svg height=20><text y=9>one</text><text y=9>two</text></svg>";
        let Some(said) = checked("bad", page) else { return };
        let told = String::from_utf8_lossy(&said.stdout);
        assert_eq!(said.status.code(), Some(1), "{told}");
        for wrong in [
            "has no lang",
            "no title",
            "no meta viewport",
            "one <main>",
            "follows level 0",
            "scrolls sideways",
            "contrast",
            "smaller than 24 px",
            "has no name",
            "lies on",
            "nothing shows the focus",
            "no Content-Security-Policy",
            "role=img",
        ] {
            assert!(told.contains(wrong), "{wrong}: {told}");
        }
    }
}
