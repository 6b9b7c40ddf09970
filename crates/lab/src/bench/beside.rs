//! The same scenarios in ns-3 and in this project's simulator, in turn on one machine, and the part
//! of `docs/NS3.md` that says what came out.

use super::ns3::Ns3;
use super::plans::{PACKET_BYTES, PLANS, Plan, RATE_BPS};
use anyhow::{Context as _, Result};
use holdfast_netsim::net::dumbbell::Dumbbell;
use holdfast_netsim::net::run as simulate;
use holdfast_program::BUILD;
use holdfast_report::Summary;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Lines of the page between which the results are.
const BEGIN: &str = "<!-- results: written by the command above -->";
const END: &str = "<!-- end of the results -->";

/// What a simulator says of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Seen {
    /// CPU seconds of the run, the median where it was run more often.
    pub cpu_seconds: f64,
    /// Peak memory of the process, in MB.
    pub memory_mb: f64,
    pub events: u64,
    /// When the last byte arrived, in s.
    pub last_s: f64,
    /// Bytes that arrived in order, without headers.
    pub bytes: u64,
    /// Packets of data that came through the first links of the strings.
    pub passed: u64,
    /// Packets that found a queue full.
    pub dropped: u64,
    /// Expiries of retransmission timers after the handshake.
    pub timeouts: u64,
    /// Flows of which everything arrived.
    pub finished: u64,
    /// Time from a flow's start to its last byte's arrival, in s: the median, and the longest.
    pub median_s: f64,
    pub most_s: f64,
}

/// One scenario in both simulators.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    pub scenario: &'static str,
    /// How often each was run; their results are the same each time.
    pub runs: u64,
    pub here: Seen,
    pub ns3: Seen,
}

/// All scenarios in both simulators.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Version of ns-3.
    pub version: String,
    pub rows: Vec<Beside>,
}

impl Seen {
    /// Runs a scenario here.
    ///
    /// # Errors
    /// When the scenario is wrong.
    pub fn of(plan: &Plan) -> Result<Self> {
        let scenario = plan.scenario();
        // 5: the peak begins anew. Where that is not allowed, it is the process' peak so far.
        let _not_allowed = fs::write("/proc/self/clear_refs", "5");
        let begun = cpu_seconds();
        let outcome = simulate(&scenario)?;
        let cpu_seconds = cpu_seconds() - begun;
        let arrivals = || outcome.flows.iter().filter_map(|flow| flow.received_s());
        let last_ns = outcome.flows.iter().filter_map(|flow| flow.received_ns).max();
        let times: Vec<f64> = arrivals().collect();
        let first = (0..plan.strings).map(|it| &outcome.links[Dumbbell::bottleneck(it) as usize]);
        let passed: u64 = first.map(|link| link.passed).sum();
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        Ok(Self {
            cpu_seconds,
            memory_mb: peak_memory_mb(),
            events: outcome.events,
            last_s: last_ns.unwrap_or_default() as f64 / 1e9,
            bytes: outcome.flows.iter().flat_map(|it| &it.bins).map(|it| u64::from(*it)).sum(),
            // One SYN of each flow came through, too.
            passed: passed.saturating_sub(u64::from(plan.flows)),
            dropped: outcome.links.iter().map(|it| it.overflowed).sum(),
            timeouts: outcome.flows.iter().map(|it| u64::from(it.counts.timeouts)).sum(),
            finished: times.len() as u64,
            median_s: sorted.get(times.len() / 2).copied().unwrap_or_default(),
            most_s: sorted.last().copied().unwrap_or_default(),
        })
    }

    /// Goodput of all flows together until the last byte, in Mbit/s.
    fn goodput_mbit(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e6 / self.last_s.max(1e-9)
    }

    /// Share of the strings' capacity that was used until the last byte, in percent.
    fn utilisation_percent(&self, plan: &Plan) -> f64 {
        let capacity = RATE_BPS as f64 * f64::from(plan.strings) * self.last_s.max(1e-9);
        (self.passed * PACKET_BYTES * 8) as f64 / capacity * 100.0
    }

    /// What can be compared, and is the same in every run: name, number, and digits after the point.
    fn measures(&self, plan: &Plan) -> [(&'static str, f64, usize); 7] {
        [
            ("goodput, Mbit/s", self.goodput_mbit(), 2),
            ("utilisation of the strings, %", self.utilisation_percent(plan), 2),
            ("completion time, median, s", self.median_s, 3),
            ("completion time, longest, s", self.most_s, 3),
            ("flows that finished", self.finished as f64, 0),
            ("packets dropped by full queues", self.dropped as f64, 0),
            ("timeouts", self.timeouts as f64, 0),
        ]
    }

    /// What differs from run to run and from machine to machine.
    fn costs(&self) -> [(&'static str, f64, usize); 3] {
        [
            ("events", self.events as f64, 0),
            ("CPU, s", self.cpu_seconds, 2),
            ("memory at most, MB", self.memory_mb, 1),
        ]
    }
}

/// Runs all scenarios here and in ns-3 in turn, each `runs` times, so that both see the same
/// machine.
///
/// # Errors
/// When there is no ns-3, or a scenario does not run.
pub fn compare(runs: u64) -> Result<Comparison> {
    let ns3 = Ns3::find()?;
    eprintln!("ns-{} runs the same scenarios, which takes minutes", ns3.version);
    let mut rows = Vec::new();
    for plan in &PLANS {
        let mut seen = [Vec::new(), Vec::new()];
        for _ in 0..runs {
            seen[0].push(Seen::of(plan)?);
            seen[1].push(ns3.run(plan)?);
        }
        let [here, ns3] = seen.map(|seen| {
            let times: Vec<f64> = seen.iter().map(|it| it.cpu_seconds).collect();
            Seen { cpu_seconds: Summary::of(&times).median, ..seen[0] }
        });
        rows.push(Beside { scenario: plan.name, runs, here, ns3 });
    }
    Ok(Comparison { version: ns3.version, rows })
}

/// CPU seconds of this process.
pub fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Peak memory of this process as the kernel counts it, in MB.
pub fn peak_memory_mb() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|it| it.split_whitespace().next()).and_then(|it| it.parse().ok());
    kib.unwrap_or(0.0) * 1024.0 / 1e6
}

impl Comparison {
    /// Prints what costs how much.
    pub fn print(&self) {
        for row in &self.rows {
            println!(
                "{:<28} {:>8.3} CPU s here, {:>8.3} in ns-{} on this machine, in turn; goodput {:.2} and {:.2} Mbit/s",
                row.scenario,
                row.here.cpu_seconds,
                row.ns3.cpu_seconds,
                self.version,
                row.here.goodput_mbit(),
                row.ns3.goodput_mbit()
            );
        }
    }

    /// Writes the results into the page, in the place of those that it has.
    ///
    /// # Errors
    /// When it cannot be read or written, or has no place for them.
    pub fn write(&self, page: &Path) -> Result<()> {
        let shown = page.display();
        let text = fs::read_to_string(page).with_context(|| format!("cannot read {shown}"))?;
        let (before, rest) =
            text.split_once(BEGIN).with_context(|| format!("{shown} has no line {BEGIN}"))?;
        let (_, after) =
            rest.split_once(END).with_context(|| format!("{shown} has no line {END}"))?;
        let text = format!("{before}{BEGIN}\n\n{}\n{END}{after}", self.results());
        fs::write(page, text).with_context(|| format!("cannot write {shown}"))
    }

    /// The results as Markdown.
    fn results(&self) -> String {
        let mut out = format!(
            "ns-{} (the wheel of PyPI; the scenario is compiled with `-O3 -march=native`) and this \
             simulator, {BUILD}, in turn on {}, {}. Results are the same in every run; CPU time is \
             the median of the runs.\n",
            self.version,
            machine(),
            today()
        );
        for (plan, row) in PLANS.iter().zip(&self.rows) {
            out.push_str(&table(plan, row));
        }
        out
    }
}

/// One scenario as a table.
fn table(plan: &Plan, row: &Beside) -> String {
    let runs = if row.runs == 1 { "One run.".to_owned() } else { format!("{} runs.", row.runs) };
    let (head, about) = (heading(plan), plan.about());
    let mut out =
        format!("\n{head}\n\n{about} {runs}\n\n| | here | ns-3 | here/ns-3 |\n|---|---|---|---|\n");
    let here = row.here.measures(plan).into_iter().chain(row.here.costs());
    let theirs = row.ns3.measures(plan).into_iter().chain(row.ns3.costs());
    for ((name, own, digits), (_, other, _)) in here.zip(theirs) {
        let ratio = if other == 0.0 { "–".to_owned() } else { format!("{:.3}", own / other) };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {name} | {own:.digits$} | {other:.digits$} | {ratio} |");
    }
    out
}

fn heading(plan: &Plan) -> String {
    let mut letters = plan.name.chars();
    let first = letters.next().map(|it| it.to_uppercase().collect::<String>()).unwrap_or_default();
    format!("### {first}{}", letters.as_str())
}

/// The machine in words.
fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of =
        |line: &str| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned());
    let model = info.lines().find_map(of).unwrap_or_else(|| "an unknown processor".to_owned());
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{count} threads of {model}, Linux {}", kernel.trim())
}

/// The date (UTC).
fn today() -> String {
    let date = Command::new("date").args(["-u", "+%F"]).output();
    let date = date.ok().and_then(|it| String::from_utf8(it.stdout).ok());
    date.map_or_else(|| "on an unknown day".to_owned(), |it| it.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of a scenario's table: name, here, ns-3.
    fn rows_of<'a>(page: &'a str, plan: &Plan) -> Vec<(&'a str, f64, f64)> {
        let head = heading(plan);
        let part = page.split_once(&format!("{head}\n")).expect("the scenario is in the page").1;
        assert!(part.contains(&plan.about()), "{} is described otherwise", plan.name);
        let part = part.split("\n#").next().expect("a part");
        let row = |line: &'a str| {
            let mut cells = line.strip_prefix("| ")?.split('|').map(str::trim);
            Some((cells.next()?, cells.next()?.parse().ok()?, cells.next()?.parse().ok()?))
        };
        part.lines().filter_map(row).collect()
    }

    /// Needs no ns-3: what it said is in the page.
    #[test]
    fn the_page_says_what_the_simulator_says_and_ns3_is_near() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/NS3.md");
        let page = fs::read_to_string(page).expect("the page");
        for plan in PLANS {
            let rows = rows_of(&page, &plan);
            assert_eq!(rows.len(), 10, "{rows:?}");
            // Where queues overflow, single drops decide how long the last flow takes. Timeouts are
            // not judged: the page says why.
            let is_near = |name: &str, own: f64, other: f64| match name {
                "timeouts" => true,
                "packets dropped by full queues" => (own - other).abs() <= 0.2 * other + 1.0,
                "goodput, Mbit/s" | "utilisation of the strings, %" => {
                    (own / other - 1.0).abs() <= 0.1
                }
                _ => (own / other - 1.0).abs() <= 0.05,
            };
            for (name, own, other) in &rows[..7] {
                assert!(is_near(name, *own, *other), "{}: {name} {own} {other}", plan.name);
            }
            let seen = Seen::of(&plan).expect("a run");
            for ((name, number, digits), (of, written, _)) in seen.measures(&plan).iter().zip(rows)
            {
                assert_eq!(*name, of);
                let now = format!("{number:.digits$}");
                assert_eq!(now, format!("{written:.digits$}"), "{}: {name}", plan.name);
            }
        }
    }

    #[test]
    fn the_results_take_the_place_of_those_before() {
        let path = std::env::temp_dir().join(format!("holdfast-ns3-{}.md", std::process::id()));
        let row = Beside {
            scenario: PLANS[0].name,
            runs: 1,
            here: Seen::default(),
            ns3: Seen::default(),
        };
        let found = Comparison { version: "3.0".to_owned(), rows: vec![row] };
        fs::write(&path, format!("before\n{BEGIN}\nold\n{END}\nafter\n")).expect("a file");
        found.write(&path).expect("it has a place");
        let text = fs::read_to_string(&path).expect("a file");
        assert!(
            text.starts_with("before\n") && text.ends_with(&format!("{END}\nafter\n")),
            "{text}"
        );
        assert!(!text.contains("old\n") && text.contains("| timeouts | 0 | 0 | – |"), "{text}");
        fs::write(&path, "no place").expect("a file");
        assert!(found.write(&path).is_err());
        fs::remove_file(&path).expect("a file");
    }
}
