//! Takeovers as events remember them, and what is known of the group's other daemons.

use super::{Role, State, Takeover, counted, human_us};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A takeover that is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastTakeover {
    pub kind: Kind,
    /// Who had served before.
    pub from: String,
    /// Who has served since.
    pub to: String,
    pub epoch: u64,
    /// Connections that could not be carried over; `None` where that is not known.
    pub lost: Option<u64>,
    #[serde(flatten)]
    pub takeover: Takeover,
}

/// What made it necessary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A primary was dead, or silent.
    #[default]
    Takeover,
    /// It was stopped, or an operator wished it.
    Switchover,
    /// A server without a backup fell, and was rebuilt on its host.
    Rebuild,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Takeover => "takeover",
            Self::Switchover => "switchover",
            Self::Rebuild => "rebuild",
        })
    }
}

impl fmt::Display for PastTakeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, from, to, lost, takeover, .. } = self;
        let Takeover { cause, total_us, connections, .. } = takeover;
        write!(f, "{kind} from {from} to {to} in {}: {cause}; ", human_us(*total_us))?;
        write!(f, "{} carried over", counted(*connections, "connection"))?;
        lost.map_or(Ok(()), |lost| write!(f, ", {lost} lost"))
    }
}

/// A daemon of the group, as this one last heard it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub name: String,
    /// `None` where it is not known, or daemons do not tell each other.
    pub role: Option<Role>,
    pub state: Option<State>,
    pub reason: String,
    /// How long ago that was, in ms; 0 of the daemon that answers. `None`: it was never heard, or
    /// nobody keeps the time.
    pub heard_ms_ago: Option<u64>,
}

impl Member {
    /// One of whom only this is known.
    #[must_use]
    pub fn known(name: &str, reason: &str) -> Self {
        Self { name: name.to_owned(), reason: reason.to_owned(), ..Self::default() }
    }
}

/// The members as the lines of a table.
pub(super) fn table(members: &[Member]) -> Vec<String> {
    let rows: Vec<[String; 4]> = members.iter().map(cells).collect();
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let line = |(row, member): (&[String; 4], &Member)| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("   ");
        format!("  member {line}   {}", member.reason).trim_end().to_owned()
    };
    rows.iter().zip(members).map(line).collect()
}

fn cells(member: &Member) -> [String; 4] {
    let ago = match member.heard_ms_ago {
        None => String::new(),
        Some(0) => "here".to_owned(),
        Some(ms @ 1..2000) => format!("{ms} ms ago"),
        Some(ms) => format!("{} s ago", ms / 1000),
    };
    let state = member.state.map_or_else(|| "?".to_owned(), |state| state.to_string());
    let role = member.role.map_or_else(|| "?".to_owned(), |role| role.to_string());
    [member.name.clone(), role, state, ago]
}
