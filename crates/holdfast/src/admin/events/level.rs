//! How loud an event is.

use serde::{Deserialize, Serialize};

/// Level of an event, in the log and for whoever asks for the worse ones only.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// What happens in a group with which nothing is wrong.
    #[default]
    Info,
    /// What was refused, mended, or lost of the protection.
    Warn,
    /// What clients have lost, or a person has to look at.
    Error,
}

/// All names of events with their levels. A state, the edge's `own part` and what a lease brings
/// have levels of their own; here is the least.
pub const LEVELS: [(&str, Level); 73] = {
    use Level::{Error, Info, Warn};
    [
        ("acts", Info),
        ("address", Warn),
        ("announced", Info),
        ("backup refused", Warn),
        ("bounds", Info),
        ("builds", Info),
        ("built", Info),
        ("cache", Info),
        ("cannot join", Warn),
        ("capacity", Info),
        ("channel", Info),
        ("clients", Warn),
        ("connection lost", Error),
        ("connections", Warn),
        ("declare", Warn),
        ("disk", Warn),
        ("drained", Info),
        ("epoch", Info),
        ("events", Warn),
        ("fell", Warn),
        ("fence", Info),
        ("fenced", Warn),
        ("gate", Warn),
        ("granted", Info),
        ("handed over", Info),
        ("handing over", Info),
        ("handshakes", Info),
        ("hook", Warn),
        ("image", Info),
        ("in step", Info),
        ("join failed", Warn),
        ("joined", Info),
        ("joins", Info),
        ("kept", Info),
        ("lease", Info),
        ("left", Warn),
        ("lingers", Warn),
        ("listener lost", Error),
        ("listens again", Info),
        ("mended", Warn),
        ("not kept", Warn),
        ("not rebuilt", Error),
        ("not renewed", Warn),
        ("older release", Info),
        ("out of step", Info),
        ("own part", Info),
        ("polling", Warn),
        ("promote", Warn),
        ("ready", Info),
        ("rebuild", Warn),
        ("refused", Warn),
        ("regulate", Info),
        ("reload", Info),
        ("removed", Info),
        ("renewed", Info),
        ("resend", Info),
        ("rests", Info),
        ("return", Info),
        ("signal", Info),
        ("silent", Warn),
        ("started", Info),
        ("state", Info),
        ("stopped", Info),
        ("suspect", Info),
        ("switch", Info),
        ("takeover", Warn),
        ("torn", Warn),
        ("trust", Info),
        ("trusted", Info),
        ("turned away", Warn),
        ("undrained", Info),
        ("unfenced", Info),
        ("withdrawn", Info),
    ]
};

impl Level {
    /// Level of an event with this name.
    #[must_use]
    pub fn of(what: &str) -> Self {
        let found = LEVELS.iter().find(|(name, _)| *name == what);
        found.map_or(Self::Info, |(_, level)| *level)
    }
}

impl From<tracing::Level> for Level {
    fn from(level: tracing::Level) -> Self {
        match level {
            tracing::Level::ERROR => Self::Error,
            tracing::Level::WARN => Self::Warn,
            _ => Self::Info,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Texts that a source gives to what notes events, as their names.
    fn named(source: &str, names: &mut BTreeSet<String>) {
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        for call in ["events.add(", "events.add_at(", ".note("] {
            for (at, _) in code.match_indices(call) {
                let rest = &code[at + call.len()..];
                let end = rest.find([';', ',']).unwrap_or(rest.len());
                let words = rest[..end].split('"').skip(1).step_by(2);
                names.extend(words.filter(|word| !word.contains(['{', ':'])).map(str::to_owned));
            }
        }
    }

    fn walk(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, names);
            } else if !path.ends_with("tests.rs") {
                named(&std::fs::read_to_string(&path).expect("text"), names);
            }
        }
    }

    #[test]
    fn every_event_has_its_level() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut names = BTreeSet::new();
        walk(&own.join("src/daemon"), &mut names);
        for file in [
            "edge.rs",
            "edge/grant.rs",
            "edge/watch.rs",
            "spread.rs",
            "spread/edges.rs",
            "transit.rs",
            "host_server.rs",
        ] {
            let path = own.join("../member/src").join(file);
            named(&std::fs::read_to_string(path).expect("a source"), &mut names);
        }
        assert!(names.len() > 40, "{names:?}");
        let known: Vec<&str> = LEVELS.iter().map(|(name, _)| *name).collect();
        let unknown: Vec<&String> =
            names.iter().filter(|name| !known.contains(&name.as_str())).collect();
        assert!(unknown.is_empty(), "without a level: {unknown:?}");
        assert!(known.is_sorted() && known.windows(2).all(|two| two[0] != two[1]), "in order");
    }

    #[test]
    fn levels_are_what_the_page_says() {
        let page = include_str!("../../../../../docs/STATUS.md");
        let (_, table) = page.split_once("\n| event | level |\n|---|---|\n").expect("the table");
        let rows = table.lines().take_while(|line| line.starts_with('|')).filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            Some((cells.next()?, cells.next()?))
        });
        let rows: Vec<(&str, &str)> = rows.collect();
        for (name, level) in LEVELS.iter().filter(|(_, level)| *level != Level::Info) {
            let wanted = if *level == Level::Error { "error" } else { "warning" };
            let is_told = rows.iter().any(|(names, told)| {
                names.split('`').skip(1).step_by(2).any(|it| it == *name)
                    && told.starts_with(wanted)
            });
            assert!(is_told, "{name} is a {wanted}");
        }
        for (names, _) in rows {
            for name in names.split('`').skip(1).step_by(2) {
                assert!(Level::of(name) != Level::Info, "{name} is told to be worse than it is");
            }
        }
    }
}
