//! All figures on one page that needs nothing else.

use super::run::headline;
use super::{Finding, Finished, Verdict};
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

/// Tables and charts that are wider than a phone are moved in boxes of their own.
const STYLE: &str = ":root{--paper:#fff;--ink:#222;--muted:#666;--grid:#ddd;--code:#f4f4f4;--equal:#00704f;\
    --same:#2a6f97;--differs:#b00020}@media(prefers-color-scheme:dark){:root{--paper:#12151c;--ink:#e8eaf0;\
    --muted:#9aa3b4;--grid:#333b48;--code:#1b202a;--equal:#35c58f;--same:#7fb8e6;--differs:#ff7b86}}\
    body{font:15px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:var(--ink);background:var(--paper)}\
    table{border-collapse:collapse;width:100%}a{color:var(--same)}\
    td,th{padding:.25em .6em;border-bottom:1px solid var(--grid);text-align:left;vertical-align:top}\
    td.n{text-align:right;white-space:nowrap}.equal{color:var(--equal)}.same{color:var(--same)}\
    .unsaid,small{color:var(--muted)}.differs{color:var(--differs);font-weight:bold}\
    figure{margin:.6em 0 1.6em;overflow-x:auto}svg{width:100%;min-width:640px;height:auto}\
    h2{margin-top:2em;border-top:2px solid var(--grid);padding-top:1em}nav{columns:2 18em}\
    code{background:var(--code);padding:0 .3em}";

/// HTML page of the figures.
#[must_use]
pub fn page(finished: &[Finished], seeds: Option<u64>) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Holdfast: papers, simulated</title>\n<style>{STYLE}</style>\n\
         <h1>HALR, PFRC and TCP Boston, simulated</h1>\n\
         <p>Local recovery and rate control at the edge of a cluster that fails over: the figures of \
         the thesis, simulated with the machines of <code>crates/edge</code> and the one-way TCPs of \
         ns-2; then TCP Boston's, simulated cell by cell. <b>{}.</b> \
         “Holds within” are the values with which what the paper says would still hold; “apart” says \
         how far the number is from the paper's. Version {}, {}.</p>\n{}<nav>",
        headline(finished),
        BUILD,
        match seeds {
            Some(1) => "1 seed".to_owned(),
            Some(seeds) => format!("{seeds} seeds"),
            None => "10 seeds where a scenario is a matter of chance, else 1".to_owned(),
        },
        differences(finished),
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

/// What differs from the papers, with the reasons.
fn differences(finished: &[Finished]) -> String {
    let mut html =
        "<h2>What differs</h2>\n<figure tabindex=\"0\"><table><tr><th>figure<th>number and reason\
                    <th>paper says<th>we get<th>apart<th>holds within</tr>\n"
            .to_owned();
    for it in finished {
        for finding in it.findings.iter().filter(|it| it.verdict == Verdict::Differs) {
            let _ = writeln!(
                html,
                "<tr><td><a href=\"#{0}\">{0}</a><td>{1}{2}",
                it.id,
                escape(&finding.what),
                numbers(finding)
            );
        }
    }
    html.push_str("</table></figure>\n");
    html
}

/// The cells of a finding after its name, which its reason follows.
fn numbers(finding: &Finding) -> String {
    let note = match finding.reason() {
        "" => String::new(),
        note => format!("<br><small>{}</small>", escape(note)),
    };
    format!(
        "{note}<td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}",
        escape(&finding.paper),
        finding.ours(),
        finding.apart(),
        finding.limits()
    )
}

fn section(html: &mut String, it: &Finished) {
    let (id, title) = (it.id, escape(it.title));
    let _ = writeln!(html, "<h2 id=\"{id}\">{id}: {title}</h2>");
    let _ = writeln!(html, "<figure tabindex=\"0\">{}</figure>", stacked(&it.drawn.charts));
    html.push_str(
        "<figure tabindex=\"0\"><table><tr><th><th>paper says<th>we get<th>apart<th>holds within<th>verdict</tr>\n",
    );
    for finding in &it.findings {
        let class = match finding.verdict {
            Verdict::Equal => "equal",
            Verdict::SameDirection => "same",
            Verdict::Differs => "differs",
            Verdict::NoNumber => "unsaid",
        };
        let _ = writeln!(
            html,
            "<tr><td>{}{}<td class=\"{class}\">{}</tr>",
            escape(&finding.what),
            numbers(finding),
            finding.verdict()
        );
    }
    let _ = writeln!(
        html,
        "</table></figure>\n<p><small>again: <code>holdfast-lab run {id}</code></small></p>"
    );
}
