//! `version`: which build this program is, and what it speaks with others.

use super::{Failure, print};
use crate::status::exit;
use holdfast_program::BUILD;
use holdfast_wire::{log, message, snapshot};
use serde_json::{Value, json};

/// Schema of `version --json`.
const SCHEMA: &str = "holdfast.version/1";

pub(super) fn run(in_json: bool) -> Result<u8, Failure> {
    let text = match in_json {
        true => format!("{}\n", object(BUILD)),
        false => text(BUILD),
    };
    print(&text).map(|_| exit::OK)
}

fn text(build: &str) -> String {
    let (oldest, newest) = (message::VERSION_OLDEST, message::VERSION);
    format!(
        "holdfast {build}\nmessages {oldest} to {newest}, log {}, image {}\n",
        log::LOG_VERSION,
        snapshot::VERSION
    )
}

fn object(build: &str) -> Value {
    let (version, commit) = parts(build);
    json!({
        "schema": SCHEMA, "build": build, "version": version, "commit": commit,
        "messages": message::VERSION, "messages_oldest": message::VERSION_OLDEST,
        "log": log::LOG_VERSION, "image": snapshot::VERSION,
    })
}

/// The release and the commit of a build; it has no commit if its source was an archive.
fn parts(build: &str) -> (&str, Option<&str>) {
    let found =
        build.split_once(" (").and_then(|(version, rest)| Some((version, rest.strip_suffix(')')?)));
    found.map_or((build, None), |(version, commit)| (version, Some(commit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_builds_of_a_release_are_told_apart_by_their_commits() {
        assert_eq!(parts("0.1.0 (222d7cb0d9f8)"), ("0.1.0", Some("222d7cb0d9f8")));
        assert_eq!(parts("0.1.0"), ("0.1.0", None));
        let told = object(BUILD);
        assert_eq!((&told["schema"], &told["build"]), (&SCHEMA.into(), &BUILD.into()));
        assert_eq!(told["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(told["messages"], message::VERSION);
        assert!(object("0.1.0")["commit"].is_null());
        let first = text(BUILD);
        assert!(first.starts_with(&format!("holdfast {BUILD}\n")), "{first}");
    }
}
