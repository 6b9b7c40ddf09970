//! `holdfast check`: can this machine do what a member or an edge must do?
//!
//! Every line is a fact that was tried out or read, and where it is not as it
//! should be, what to do about it. Experiments run in namespaces of their own
//! and leave no trace.

mod experiments;
mod host;
pub mod program;
mod settings;
mod ways;

pub use settings::may_administer;

pub(crate) use ways::{no_way_back, not_forwarded};

use crate::config::{Config, Role};
use serde::Serialize;

/// Schema of `holdfast check --json`.
pub const SCHEMA: &str = "holdfast.check/1";

/// How a finding counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// It works, with the drawback that the line names.
    Warn,
    /// Holdfast cannot do its work.
    Fail,
}

/// One line.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub name: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// Empty when there is nothing to do.
    pub remedy: String,
}

/// All lines.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub schema: &'static str,
    pub role: String,
    pub findings: Vec<Finding>,
}

impl Finding {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), remedy: String::new() }
    }

    fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warn, found: found.into(), remedy: remedy.into() }
    }

    fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Fail, found: found.into(), remedy: remedy.into() }
    }
}

impl Report {
    /// The worst line.
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
        out
    }
}

/// Looks at this machine; with a configuration, also at what it says of the
/// host that has `role`.
#[must_use]
pub fn run(host: Option<(&Config, Role)>) -> Report {
    let mut findings = vec![settings::kernel(), settings::architecture()];
    findings.extend(settings::capabilities());
    findings.push(settings::btf());
    findings.push(settings::cgroup2());
    findings.extend(experiments::all());
    findings.extend(settings::all());
    let mut role_name = "any".to_owned();
    if let Some((config, role)) = host {
        config.role_name(role).clone_into(&mut role_name);
        findings.extend(host::findings(config, role));
    }
    Report { schema: SCHEMA, role: role_name, findings }
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
        assert_eq!(report.render().matches("remedy:").count(), {
            report.findings.iter().filter(|f| f.verdict != Verdict::Ok).count()
        });
    }
}
