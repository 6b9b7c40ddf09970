//! `holdfast check`: can this machine do what a member or an edge must do?
//!
//! Every line is a fact that was tried out or read, with a remedy if it is not
//! as it should be. Experiments run in namespaces of their own and leave no
//! trace.

mod arbiter;
mod experiments;
mod host;
mod others;
mod pauses;
mod ports;
pub mod program;
mod settings;
mod ways;

pub use pauses::measure as measure_pauses;
pub use settings::may_administer;

pub(crate) use host::to_start;
pub(crate) use ports::{daemon_heard_at, why_taken, why_taken_udp};
pub(crate) use ways::{link_trouble, no_way_back, not_forwarded};

use crate::admin::watch_socket;
use crate::config::GroupFile;
use crate::daemon::rights::Rights;
use crate::daemon::watchers_missing;
use crate::mounts;
use holdfast_linux::process;
use serde::Serialize;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Schema of `holdfast check --json`.
pub const SCHEMA: &str = "holdfast.check/1";

/// Longest path of a socket, in bytes (unix(7)).
const SOCKET_BYTES_MAX: usize = 107;

/// How severe a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// It works, with the drawback that the line names.
    Warn,
    /// Holdfast cannot do its work.
    Fail,
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub name: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// The remedy; empty when there is nothing to do.
    pub remedy: String,
}

/// All lines of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub schema: &'static str,
    pub role: String,
    pub findings: Vec<Finding>,
    /// What the daemon of this role will keep of root's rights, as `status` shows what it has kept;
    /// absent without a role, and where it gives up nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rights: Option<Rights>,
    /// What this host alone cannot tell, or what is not looked at.
    pub not_checked: &'static [&'static str],
}

/// Names of lines that only the members of a pair need, and the one that its edge needs, too.
const OF_MEMBERS: [&str; 4] = ["TCP_REPAIR", "pidfd_getfd", "SYN cookies", "TCP Fast Open"];
const OF_PAIRS: &str = "conntrack";
/// Name of the line that concerns hosts which packets of clients pass.
const OF_WAYS: &str = "rp_filter";

const PAIR_NOT_CHECKED: [&str; 3] = [
    "the other hosts: whether they have the same file and key, and are reached (their daemons say so)",
    "whether the server behaves the same on both members: `holdfast support` lists what is replayed",
    "packet filters, on this host and between the hosts",
];
const SPREAD_NOT_CHECKED: [&str; 4] = [
    "the other hosts: whether they have the same file and key, and are reached (their daemons say so)",
    "whether answers of the host servers find their way to clients",
    "whether the network between them carries IP-in-IP packets of that length",
    "packet filters, on this host and between the hosts",
];
const TRANSIT_NOT_CHECKED: [&str; 4] = [
    "the other edge: whether it has the same file and key, and is reached (its daemon says so)",
    "the strings: whether their middleboxes pass packets, and at which rate",
    "routing rules that depend on more than the destination",
    "packet filters, on this host and between the hosts",
];

impl Finding {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), remedy: String::new() }
    }

    pub(crate) fn warn(
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { name, verdict: Verdict::Warn, found: found.into(), remedy: remedy.into() }
    }

    pub(crate) fn fail(
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { name, verdict: Verdict::Fail, found: found.into(), remedy: remedy.into() }
    }
}

impl Report {
    /// What was found in a file, for the given role or for any.
    pub(crate) fn of(role: Option<&str>, findings: Vec<Finding>) -> Self {
        let role = role.unwrap_or("any").to_owned();
        Self { schema: SCHEMA, role, findings, rights: None, not_checked: &[] }
    }

    /// Verdict of the worst line.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.findings.iter().map(|f| f.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// The report as text.
    #[must_use]
    pub fn render(&self) -> String {
        let width = self.findings.iter().map(|f| f.name.len()).max().unwrap_or(0);
        let mut out = String::new();
        for Finding { name, verdict, found, remedy } in &self.findings {
            let mark = match verdict {
                Verdict::Ok => "ok  ",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            out += &format!("{mark}  {name:width$}  {found}\n");
            if !remedy.is_empty() {
                out += &format!("      {:width$}  remedy: {remedy}\n", "");
            }
        }
        for what in self.not_checked {
            out += &format!("  -   {:width$}  {what}\n", "not checked");
        }
        out
    }
}

/// Looks at this machine; with a file, also at what it says about the host that has
/// the role.
#[must_use]
pub fn run(host: Option<(&GroupFile, &str)>) -> Report {
    let is_pair = host.is_none_or(|(file, _)| matches!(file, GroupFile::Replicated(_)));
    let mut findings = vec![settings::kernel(), settings::architecture()];
    findings.extend(settings::capabilities(is_pair));
    findings.push(settings::btf());
    findings.push(settings::cgroup2());
    findings.extend(experiments::all());
    findings.extend(settings::all());
    // No packet of a client passes a witness, and no server runs there.
    let is_witness = is_pair && host.is_some_and(|(_, role)| role == "witness");
    let is_member = is_pair && !is_witness && host.is_none_or(|(_, role)| role != "edge");
    findings.retain(|finding| is_member || !OF_MEMBERS.contains(&finding.name));
    findings.retain(|finding| is_pair && !is_witness || finding.name != OF_PAIRS);
    findings.retain(|finding| !is_witness || finding.name != OF_WAYS);
    let role = host.map_or("any", |(_, role)| role).to_owned();
    let rights = host.and_then(|(file, role)| Rights::planned(file, role));
    let mut not_checked: &[&str] = &[];
    if let Some((file, role)) = host {
        let (more, rest) = of_host(file, role);
        findings.extend(more);
        findings.extend(socket(&file.admin_socket(role)));
        findings.push(mounts(&file.admin_socket(role)));
        findings.extend(watchers(file));
        findings.push(kept(rights.as_ref()));
        not_checked = rest;
    }
    Report { schema: SCHEMA, role, findings, rights, not_checked }
}

/// Checks the place of the daemon's socket.
fn socket(path: &Path) -> Option<Finding> {
    // The longer one of its two sockets.
    let path = watch_socket(path);
    let over = path.as_os_str().len().checked_sub(SOCKET_BYTES_MAX + 1)?;
    let found = format!("{} is too long for the path of a socket", path.display());
    let remedy = format!("choose a run_dir that is at least {} characters shorter", over + 1);
    Some(Finding::fail("run_dir", found, remedy))
}

/// Says what the daemon will keep of root's rights.
fn kept(rights: Option<&Rights>) -> Finding {
    // A member's server, and one that is made of another member's image, has its rights from it.
    let all =
        || "a member keeps all that it is given: its server gets its rights from it".to_owned();
    Finding::ok("rights", rights.map_or_else(all, Rights::words))
}

/// Checks that this host has the group of users that may look.
fn watchers(file: &GroupFile) -> Option<Finding> {
    let trouble = watchers_missing(&file.common())?;
    let (found, remedy) = trouble.split_once("\n  remedy: ")?;
    Some(Finding::fail("watchers", found.to_owned(), remedy.to_owned()))
}

/// Checks that what the daemon pins outlives it: of the one that runs, or of one that were started
/// as this process was.
fn mounts(socket: &Path) -> Finding {
    let daemon = UnixStream::connect(socket).and_then(|daemon| process::peer(daemon.as_fd()));
    match mounts::why_lost(daemon.unwrap_or(std::process::id())) {
        None => Finding::ok("mounts", "what a daemon pins outlives it"),
        Some(found) => Finding::warn("mounts", found, mounts::REMEDY),
    }
}

/// Checks what the file says about the host with this role; returns also what
/// stays unknown.
fn of_host(file: &GroupFile, role: &str) -> (Vec<Finding>, &'static [&'static str]) {
    let no_role = |error: String| vec![Finding::fail("role", error, "choose one with --role")];
    match file {
        GroupFile::Replicated(config) => {
            let found = config.role(role).map(|role| host::findings(config, role));
            (found.unwrap_or_else(no_role), &PAIR_NOT_CHECKED)
        }
        GroupFile::Spread(config) => (others::spread(config, role), &SPREAD_NOT_CHECKED),
        GroupFile::Transit(config) => {
            let side = config.side(role).ok_or_else(|| format!("there is no role `{role}`"));
            let found = side.map(|side| others::transit(config, side));
            (found.unwrap_or_else(no_role), &TRANSIT_NOT_CHECKED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_that_is_not_fine_has_a_remedy() {
        let report = run(None);
        assert!(report.findings.len() > 10);
        for finding in &report.findings {
            assert!(!finding.found.is_empty(), "{finding:?}");
            assert_eq!(finding.verdict == Verdict::Ok, finding.remedy.is_empty(), "{finding:?}");
        }
        assert!(report.not_checked.is_empty());
        assert_eq!(report.render().matches("remedy:").count(), {
            report.findings.iter().filter(|f| f.verdict != Verdict::Ok).count()
        });
    }

    #[test]
    fn a_socket_has_a_short_path() {
        // Beside it is one whose path is longer by a letter.
        let path = |len: usize| format!("/{}.sock", "r".repeat(len - 6));
        assert!(socket(Path::new(&path(106))).is_none());
        let remedy = socket(Path::new(&path(108))).map(|found| found.remedy);
        assert!(remedy.is_some_and(|remedy| remedy.contains("2 characters shorter")));
    }

    /// The examples name other hosts than this one: much fails, and the
    /// findings say how.
    #[test]
    fn each_kind_of_group_is_checked_and_the_rest_is_named() {
        let spread = include_str!("../../../docs/example-spread.toml");
        let transit = include_str!("../../../docs/example-transit.toml");
        let pair = include_str!("../../../docs/example.toml");
        let usual = ["key", "run_dir", "mounts", "rights"];
        let segment = include_str!("../../../docs/example-segment.toml");
        let cases: [(&str, &str, &[&str]); 7] = [
            (
                spread,
                "edge",
                &["interface", "edge.listen", "port", "way to host", "forwarding", "tun"],
            ),
            (spread, "a", &["interface", "tunnel", "way to the edge", "binds"]),
            (
                transit,
                "near",
                &["outside", "string", "address", "next_hop", "heartbeats", "forwarding"],
            ),
            (transit, "far", &["outside", "string"]),
            (pair, "a", &["interface", "address", "port", "TCP_REPAIR"]),
            (pair, "edge", &["conntrack"]),
            (segment, "witness", &["arbiter.witness", "port"]),
        ];
        for (text, role, names) in cases {
            let file = GroupFile::parse(std::path::Path::new("/nowhere/x.toml"), text);
            let report = run(Some((&file.expect("an example"), role)));
            for name in usual.iter().chain(names) {
                assert!(report.findings.iter().any(|it| it.name == *name), "{role}: {name}");
            }
            let is_member = text == pair && role != "edge";
            assert_eq!(report.rights.is_none(), is_member, "{role}");
            assert_eq!(report.findings.iter().any(|it| OF_MEMBERS.contains(&it.name)), is_member);
            assert_eq!(report.findings.iter().any(|it| it.name == OF_PAIRS), text == pair);
            assert_eq!(report.findings.iter().any(|it| it.name == OF_WAYS), role != "witness");
            for finding in &report.findings {
                let has_remedy = !finding.remedy.is_empty();
                assert_eq!(finding.verdict != Verdict::Ok, has_remedy, "{finding:?}");
            }
            assert_eq!(report.role, role);
            let shown = report.render();
            assert_eq!(shown.matches("not checked").count(), report.not_checked.len());
            assert!(report.not_checked.len() > 2);
        }
    }
}
