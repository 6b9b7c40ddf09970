//! What came of the trials: a table for people, JSON, and the page of the documentation.

use super::row::Row;
use holdfast_program::BUILD;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// What became of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict", content = "what")]
pub enum Verdict {
    /// As Debian's default starts it.
    Works,
    /// With this setting.
    WorksWith(String),
    /// The group has said why it does not protect it, and clients were served.
    Refused(String),
    /// Anything else.
    Failed(String),
    /// These programs are missing.
    NotInstalled(String),
}

impl Verdict {
    /// In words.
    pub fn told(&self) -> String {
        match self {
            Self::Works => "works".to_owned(),
            Self::WorksWith(setting) => format!("works with {setting}"),
            Self::Refused(reason) => format!("refused: {reason}"),
            Self::Failed(what) => format!("FAILED: {what}"),
            Self::NotInstalled(missing) => format!("not installed: {missing}"),
        }
    }
}

/// What was found about a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    pub name: String,
    /// Debian's package and its version.
    pub version: String,
    #[serde(flatten)]
    pub verdict: Verdict,
    /// From the start of all daemons until the group was protected, ms.
    pub start_ms: u64,
    /// How often the primary was to die.
    pub asked: u64,
    /// How often it died and every client lived.
    pub takeovers: u64,
    /// How often the other member joined again.
    pub joins: u64,
    /// Why it could not.
    pub join_refused: Option<String>,
    /// Whether its first replica has differed, and its threads run one at a time since.
    #[serde(default)]
    pub takes_turns: bool,
    /// The longest time that a client waited for an answer around each takeover, ms.
    pub stalls_ms: Vec<u64>,
    /// Turns of a proxy's clients that ended with the proxy's own connection.
    pub lost: u64,
    /// Turns per second of the same clients, without Holdfast and with it.
    pub clean_per_s: Option<f64>,
    pub ours_per_s: Option<f64>,
}

impl Found {
    /// Nothing yet.
    pub fn of(row: &Row, asked: u64) -> Self {
        Self {
            name: row.name.to_owned(),
            version: row.packages.first().map_or_else(String::new, |package| version(package)),
            verdict: Verdict::Works,
            start_ms: 0,
            asked,
            takeovers: 0,
            joins: 0,
            join_refused: None,
            takes_turns: false,
            stalls_ms: Vec::new(),
            lost: 0,
            clean_per_s: None,
            ours_per_s: None,
        }
    }

    /// The share of the throughput that is kept.
    pub fn kept(&self) -> Option<f64> {
        Some(self.ours_per_s? / self.clean_per_s?)
    }

    fn kept_told(&self) -> String {
        self.kept().map_or_else(|| "-".to_owned(), |kept| format!("{kept:.2}"))
    }

    fn stall_told(&self) -> String {
        self.stalls_ms.iter().max().map_or_else(|| "-".to_owned(), u64::to_string)
    }
}

/// What came of all.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub bench: String,
    /// Of Holdfast.
    pub build: String,
    pub debian: String,
    pub kernel: String,
    pub seed: u64,
    /// How often the primary of each was to die.
    pub takeovers: u64,
    pub servers: Vec<Found>,
}

impl Report {
    /// A report of this machine.
    pub fn new(seed: u64, takeovers: u64) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        Self {
            bench: "servers".to_owned(),
            build: BUILD.to_owned(),
            debian: read("/etc/debian_version"),
            kernel: read("/proc/sys/kernel/osrelease"),
            seed,
            takeovers,
            servers: Vec::new(),
        }
    }

    /// Adds what was found, in place of what was known of that server.
    pub fn add(&mut self, found: Found) {
        match self.servers.iter_mut().find(|it| it.name == found.name) {
            Some(old) => *old = found,
            None => self.servers.push(found),
        }
    }

    /// Whether nothing has failed.
    pub fn is_good(&self) -> bool {
        !self.servers.iter().any(|found| matches!(found.verdict, Verdict::Failed(_)))
    }

    /// The page of the documentation.
    pub fn markdown(&self, rows: &[Row]) -> String {
        let Self { build, debian, kernel, .. } = self;
        let mut page = format!(
            "# Servers\n\n\
             What becomes of servers under Holdfast, each as Debian ships it. Made by\n\
             `holdfast-lab servers --results FILE` and `holdfast-lab servers --results FILE --markdown`\n\
             ({build}, Debian {debian}, Linux {kernel}); do not edit.\n\n{PREFACE}\n\n\
             | server | package | | takeovers, joins | stall, ms | kept |\n|---|---|---|---|---|---|\n"
        );
        for row in rows {
            let found = self.servers.iter().find(|found| found.name == row.name);
            // Writing to a string cannot fail.
            let _ = match found {
                None => writeln!(
                    page,
                    "| {} | {} | not tried | | | |",
                    row.name,
                    row.packages.join(", ")
                ),
                Some(found) => writeln!(
                    page,
                    "| {} | {} | {} | {} | {} | {} |",
                    row.name,
                    found.version,
                    cell(found),
                    format_args!("{} of {}, {}", found.takeovers, found.asked, found.joins),
                    found.stall_told(),
                    found.kept_told()
                ),
            };
        }
        page
    }
}

pub const HEADER: &str = "server             takeovers joins stall ms  kept  verdict";

/// What the columns of the page mean.
const PREFACE: &str = "\
Each server is started by itself and under Holdfast, with Debian's configuration as far as a folder\n\
of its own and the service's addresses allow. Its own client asks it, and sessions stay, over IPv4\n\
and IPv6 where it listens to both; every byte is compared. Then its primary dies under these sessions\n\
again and again, the server alone (kill -9) and with its daemon in turn, and the other member joins.\n\
**works**: every session and every new client has heard what is right, each time. **works with**: so it\n\
is, with that setting. **refused**: `status` said so, in these words, and clients were served as without\n\
Holdfast. **FAILED**: anything else; where protection was lost, `status` said that, and clients were served.\n\
*stall*: the longest time that a session waited for an answer around a takeover. *kept*: turns per second\n\
of the same sessions, with Holdfast by without, everything on this machine's two cores.";

/// One line of the table for people.
pub fn line(found: &Found) -> String {
    format!(
        "{:<19} {:>8} {:>5} {:>8} {:>5}  {}",
        found.name,
        found.takeovers,
        found.joins,
        found.stall_told(),
        found.kept_told(),
        told(found)
    )
}

/// The verdict, and what else there is to say.
fn told(found: &Found) -> String {
    let mut told = found.verdict.told();
    if let Some(reason) = &found.join_refused {
        told += &format!("; cannot be joined: {reason}");
    }
    if found.takes_turns {
        told += "; its first replica differed, and its threads run one at a time since";
    }
    if found.lost > 0 {
        told += &format!("; {} open transfers ended with the proxy's own connections", found.lost);
    }
    // The place of this run's hosts says nothing to anybody.
    let mut parts = told.split(TESTBEDS);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |told, part| {
        told + "…" + part.find(HOST).map_or(part, |at| &part[at + HOST.len()..])
    })
}

/// Where the hosts' folders are, and how their path ends.
const TESTBEDS: &str = "/run/holdfast-lab/";
const HOST: &str = "/host";

/// The same as a cell of a table.
fn cell(found: &Found) -> String {
    told(found).replace('|', "\\|").replace('\n', " ")
}

/// Debian's version of a package.
fn version(package: &str) -> String {
    let words = ["-W", "-f", "${Package} ${Version}", package];
    crate::command::output("dpkg-query", &words).unwrap_or_else(|_| package.to_owned())
}
