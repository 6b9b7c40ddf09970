//! All figures on one page that needs nothing else.

use super::run::headline;
use super::{Finished, Verdict};
use clap::Args;
use holdfast_program::BUILD;
use holdfast_report::plot::{escape, stacked};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Options of `holdfast-lab report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// The page.
    #[arg(long, default_value = "holdfast-lab.html")]
    pub output: PathBuf,
    /// How many seeds; more than one gives 95 % confidence intervals. Without it one,
    /// or ten where the scenario itself is a matter of chance.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub seeds: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse;margin:.6em 0 1.6em;width:100%}\
    td,th{padding:.25em .6em;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}\
    td.n{text-align:right;white-space:nowrap}.equal{color:#00704f}.same{color:#2a6f97}.unsaid{color:#888}.differs{color:#b00020;font-weight:bold}\
    small{color:#666}svg{max-width:100%;height:auto}h2{margin-top:2em;border-top:2px solid #eee;padding-top:1em}\
    nav{columns:2}code{background:#f4f4f4;padding:0 .3em}";

/// HTML page of the figures.
#[must_use]
pub fn page(finished: &[Finished], seeds: Option<u64>) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Holdfast: papers, simulated</title>\n<style>{STYLE}</style>\n\
         <h1>HALR, PFRC and TCP Boston, simulated</h1>\n\
         <p>Local recovery and rate control at the edge of a cluster that fails over: the figures of \
         the thesis, simulated with the machines of <code>crates/edge</code> and the one-way TCPs of \
         ns-2; then TCP Boston's, simulated cell by cell. <b>{}.</b> \
         “Same way” are the values with which what the paper says would still hold; where a number is \
         not equal, “apart” says by how much. Version {}, {}.</p>\n<nav>",
        headline(finished),
        BUILD,
        match seeds {
            Some(1) => "1 seed".to_owned(),
            Some(seeds) => format!("{seeds} seeds"),
            None => "10 seeds where a scenario is a matter of chance, else 1".to_owned(),
        },
    );
    for it in finished {
        let differ = it.findings.iter().filter(|it| it.verdict == Verdict::Differs).count();
        let note = if differ > 0 {
            format!(" <span class=\"differs\">({differ})</span>")
        } else {
            String::new()
        };
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(html, "<a href=\"#{0}\">{0}</a> {1}{note}<br>", it.id, escape(it.title));
    }
    html.push_str("</nav>\n");
    finished.iter().for_each(|it| section(&mut html, it));
    html.push_str("</html>\n");
    html
}

fn section(html: &mut String, it: &Finished) {
    let (id, title) = (it.id, escape(it.title));
    let _ = writeln!(html, "<h2 id=\"{id}\">{id}: {title}</h2>");
    html.push_str(&stacked(&it.drawn.charts));
    html.push_str("<table><tr><th><th>paper says<th>we get<th>apart<th>same way<th>verdict</tr>\n");
    for finding in &it.findings {
        let class = match finding.verdict {
            Verdict::Equal => "equal",
            Verdict::SameDirection => "same",
            Verdict::Differs => "differs",
            Verdict::NoNumber => "unsaid",
        };
        let note = match finding.note.as_str() {
            "" => String::new(),
            note => format!("<br><small>{}</small>", escape(note)),
        };
        let _ = writeln!(
            html,
            "<tr><td>{}{note}<td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}\
             <td class=\"{class}\">{}</tr>",
            escape(&finding.what),
            escape(&finding.paper),
            finding.ours(),
            finding.apart(),
            finding.limits(),
            finding.verdict()
        );
    }
    let _ =
        writeln!(html, "</table>\n<p><small>again: <code>holdfast-lab run {id}</code></small></p>");
}
