//! The demonstration in plain words: what its clients do, and what happens in a death.

use super::death::{Death, Moment};
use crate::load::{Group, Workload};

/// What the connections of a group do, in the order in which the load makes them.
pub fn clients(group: &Group) -> Vec<String> {
    let &Group { workload, connections, size_bytes, .. } = group;
    let numbered = |what: &str| {
        let name = |number| format!("{what} {number}");
        (1..=connections).map(name).collect()
    };
    let only = |what: &str| vec![what.to_owned(); connections];
    match workload {
        Workload::Download if connections > 1 => numbered("downloads"),
        Workload::Download => only("downloads 1 MB values"),
        Workload::IdleSubscriber => only("waits, and says nothing"),
        Workload::Incr => numbered("counts for itself"),
        Workload::Shared => numbered("counts with others"),
        Workload::Pubsub => {
            let pair = ["hears every message", "publishes messages"].map(str::to_owned);
            std::iter::repeat_n(pair, connections).flatten().collect()
        }
        Workload::Upload => only(&format!("uploads {} kB values", size_bytes >> 10)),
        Workload::Churn => only("connects anew each time"),
        other => only(&format!("{other:?}").to_lowercase()),
    }
}

/// What happens at a moment, for the drawing, and the same in a sentence.
pub fn moment(moment: Moment) -> (&'static str, &'static str) {
    match moment {
        Moment::Death => ("it dies", "The primary dies."),
        Moment::AllEnded => {
            ("all connections are gone", "The last connection has ended: nobody continues them.")
        }
        Moment::Suspected => (
            "the edge misses it",
            "The edge misses heartbeats, and keeps what clients send from now on.",
        ),
        Moment::Declared => {
            ("the edge gives it up", "The edge has missed too many, and gives the primary up.")
        }
        Moment::Known => ("the backup knows", "The backup knows that the primary is dead."),
        Moment::Barred => (
            "the dead one is barred",
            "The edge bars the primary: if it is not dead after all, nobody hears it.",
        ),
        Moment::Rebuilt => (
            "sockets are rebuilt",
            "Every connection stands again on the backup, where its client believes it to be.",
        ),
        Moment::FirstByte => {
            ("first byte", "The first byte from the backup is at a client, and is the right one.")
        }
        Moment::HandedOver => ("all are told to go on", "Every client has been told to go on."),
        Moment::Resent => {
            ("the edge resends", "The edge has sent again what came in the meantime.")
        }
    }
}

/// A death in one sentence.
pub fn summary(death: &Death) -> String {
    let (lived, all) = (death.lived(), death.report.connections.len());
    let (waiting, replies) =
        (death.report.outstanding_at_fault, death.report.total(|it| it.replies));
    let megabytes = death.report.total(|it| it.bytes_in) as f64 / 1e6;
    let at = format!("When it died, {waiting} of {all} clients were waiting for bytes");
    if !death.is_protected {
        return format!("{at}. {lived} of {all} connections lived.");
    }
    let checked = format!("{replies} replies and {megabytes:.0} MB were checked");
    match &death.failure {
        None => format!(
            "{at}. {lived} of {all} connections lived, and the longest pause of any was {}: {checked}, every byte was right.",
            pause(death.pause_ms())
        ),
        Some(failure) => {
            format!("{at}. {lived} of {all} connections lived; WRONG: {failure} ({checked}).")
        }
    }
}

/// A pause as people read it.
pub fn pause(ms: f64) -> String {
    match ms {
        0.0 => "none".to_owned(),
        ms if ms < 9.95 => format!("{ms:.1} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms => format!("{:.2} s", ms / 1e3),
    }
}

/// The result of all deaths: with Holdfast, and without.
pub struct Headline {
    /// Connections that lived, and all, in the death that fewest survived.
    pub with: (usize, usize),
    /// What is said of them after the counts.
    pub words: String,
    /// Connections that lived, and all, without Holdfast.
    pub without: (usize, usize),
}

impl Headline {
    /// The result of these deaths.
    pub fn of(deaths: &[Death]) -> Self {
        let counts = |death: &Death| (death.lived(), death.report.connections.len());
        let (with, without): (Vec<&Death>, Vec<&Death>) =
            deaths.iter().partition(|death| death.is_protected);
        let each = match with.len() {
            1 => String::new(),
            count => format!(" in each of {count} deaths"),
        };
        let pause_ms = with.iter().map(|it| it.pause_ms()).fold(0.0, f64::max);
        Self {
            with: with.iter().map(|it| counts(it)).min().unwrap_or_default(),
            words: format!("connections lived{each}; worst pause {}", pause(pause_ms)),
            without: without.iter().map(|it| counts(it)).min().unwrap_or_default(),
        }
    }
}
