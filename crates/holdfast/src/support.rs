//! "Will my program work?": what can be told about a program before it runs under the shim. Its
//! file says whether a shim can be loaded into it, its symbols and those of its libraries which calls
//! it may make, the shim's table what becomes of them, and the table of servers what was tried.

mod elf;
mod follow;
mod imports;
mod obstacle;
mod shown;
mod table;
mod trial;
mod tried;

pub use follow::{Lost, Way, ending, follow};
pub use imports::Use;
pub use obstacle::obstacle;
pub use shown::Trial;
pub use table::{Level, PAGE, Row, row_of, rows};
pub use trial::try_out;
pub use tried::Tried;

use crate::check::{Finding, Verdict as Severity, program};
use crate::config::{Run, Server};
use imports::Imports;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Schema of `holdfast support --json` with a program.
pub const SCHEMA: &str = "holdfast.support/1";

/// What becomes of a server under Holdfast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Works,
    /// It does with the setting that the remedy names.
    WorksWithASetting,
    /// It would not be protected.
    Refused,
    /// It may work; what is against it is named.
    NotKnown,
}

impl Verdict {
    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::WorksWithASetting => "works with a setting",
            Self::Refused => "refused",
            Self::NotKnown => "not known",
        }
    }
}

/// Everything that can be told about a program.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    pub schema: &'static str,
    pub verdict: Verdict,
    /// The command as the program gets it.
    pub command: Vec<String>,
    /// Files that the command leads through, the program last.
    pub files: Vec<PathBuf>,
    /// What decides, the most important first.
    pub findings: Vec<Finding>,
    /// Rows of docs/SERVERS.md about it.
    pub tried: Vec<Tried>,
    /// Libraries that the loader would map into it, without libc's own.
    pub libraries: Vec<PathBuf>,
    /// Calls of the shim's table that it or its libraries may make, refused ones first.
    pub calls: Vec<Use>,
    /// What such a look does not see.
    pub unseen: Vec<String>,
}

/// A server of which only the command is known.
#[must_use]
pub fn server_of(command: Vec<String>) -> Server {
    Server {
        command,
        directory: None,
        user: None,
        log: None,
        state_dirs: Vec::new(),
        ring_bytes: holdfast_wire::shm::RING_BYTES as u64,
        aslr: false,
        trap_tsc: false,
        run: Run::Auto,
        env: BTreeMap::new(),
    }
}

/// Looks at a server's program. `known` is what its host says besides, such as that its user is
/// missing.
#[must_use]
pub fn answer(server: &Server, known: Vec<Finding>) -> Answer {
    let way = follow(server);
    let mut answer = Answer {
        schema: SCHEMA,
        verdict: Verdict::NotKnown,
        command: way.server.command.clone(),
        files: way.files.clone(),
        findings: known.into_iter().filter(|it| it.verdict != Severity::Ok).collect(),
        tried: Vec::new(),
        libraries: Vec::new(),
        calls: Vec::new(),
        unseen: Vec::new(),
    };
    let is_lacking = answer.findings.iter().any(|it| it.verdict == Severity::Fail);
    let verdict = judge(server, &way, &mut answer);
    answer.verdict = if is_lacking { Verdict::Refused } else { verdict };
    answer
}

/// The first of what decides: what hinders any program, then what is known of this one, then what
/// its calls tell.
fn judge(server: &Server, way: &Way, answer: &mut Answer) -> Verdict {
    let path = way.files.last();
    if let Some(lost) = &way.lost {
        let (found, remedy) = lost.told();
        // This host may have said so already.
        if !answer.findings.iter().any(|it| it.found == found) {
            answer.findings.push(Finding::fail("server", found, remedy));
        }
        return if lost.is_fatal() { Verdict::Refused } else { Verdict::NotKnown };
    }
    let hindered = path.and_then(|path| obstacle(path, &way.bytes));
    if let Some((found, remedy)) = hindered {
        answer.findings.push(Finding::fail("server", found, remedy));
        return Verdict::Refused;
    }
    let imports = match path.map(|path| imports::of(path, &way.bytes, &way.server)) {
        Some(Ok(imports)) => imports,
        Some(Err(error)) => {
            answer.findings.push(Finding::fail("libraries", error.to_string(), error.remedy()));
            return Verdict::Refused;
        }
        None => return Verdict::NotKnown,
    };
    // A script that was tried before its interpreter.
    let rows = way.files.iter().map(|file| tried::of(file));
    answer.tried = rows.into_iter().find(|rows| !rows.is_empty()).unwrap_or_default();
    let concerns = imports.concerns(server.run);
    answer.unseen = imports.unseen();
    let Imports { libraries, calls, .. } = imports;
    (answer.libraries, answer.calls) = (libraries, calls);
    // What the words say before what they lead to: a launcher's are those of its program.
    let mut known = program::by_command(server);
    if known.is_empty() {
        known = program::by_command(&way.server);
    }
    let of_words = known.iter().map(of_finding).next();
    answer.findings.extend(known);
    if let Some(verdict) = of_words {
        return verdict;
    }
    if let Some(verdict) =
        tried::verdict(&answer.tried, is_judged(server) || is_judged(&way.server))
    {
        return verdict;
    }
    let verdict = if concerns.is_empty() { Verdict::Works } else { Verdict::NotKnown };
    answer.findings.extend(concerns);
    verdict
}

/// Whether the words of this program are judged at all: alone they would be complained of.
fn is_judged(server: &Server) -> bool {
    let alone = server.command.iter().take(1).cloned().collect();
    !program::by_command(&server_of(alone)).is_empty()
}

/// What something known of a command means for it.
fn of_finding(finding: &Finding) -> Verdict {
    match (finding.verdict, finding.remedy == program::UNSUPPORTED) {
        (Severity::Fail, true) => Verdict::Refused,
        (Severity::Warn, true) => Verdict::NotKnown,
        _ => Verdict::WorksWithASetting,
    }
}

#[cfg(test)]
mod tests;
