//! What a daemon leaves of what it has done, and whom it tells: the events that are kept on disk
//! (`events_dir`, `events_max_kb` in `[group]`), and `[hooks]`.

use super::checks::number;
use super::error::Findings;
use serde::{Deserialize, Serialize, Serializer};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Bounds of `events_max_kb`.
pub const EVENTS_MAX_KB: RangeInclusive<u64> = 64..=65_536;
/// Bounds of `timeout_s` of a hook.
pub const HOOK_TIMEOUT_S: RangeInclusive<u64> = 1..=3600;

const EVENTS_MAX_KB_DEFAULT: u64 = 1024;
const HOOK_TIMEOUT_S_DEFAULT: u64 = 10;
const EVENTS_DIR_DEFAULT: &str = "/var/lib/holdfast";
/// The `events_dir` of a daemon that keeps none.
const NONE: &str = "none";

/// Where events are kept, in files `GROUP.ROLE.events` and `GROUP.ROLE.events.old`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptEvents {
    /// `None`: nowhere.
    #[serde(serialize_with = "none_or_path")]
    pub events_dir: Option<PathBuf>,
    /// Most that both files of a daemon take together, in KiB.
    pub events_max_kb: u64,
}

impl KeptEvents {
    /// Nothing is kept.
    #[cfg(test)]
    pub const NONE: Self = Self { events_dir: None, events_max_kb: 0 };
}

/// What is run when the state of this host's daemon changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hooks {
    /// A program and its arguments.
    pub on_state: Vec<String>,
    /// Time that it has, in seconds.
    pub timeout_s: u64,
    /// Who runs it; without it, the user who runs the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHooks {
    on_state: Spanned<Vec<String>>,
    timeout_s: Option<Spanned<u64>>,
    user: Option<Spanned<String>>,
}

fn none_or_path<S: Serializer>(dir: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    match dir {
        Some(dir) => dir.serialize(to),
        None => NONE.serialize(to),
    }
}

/// Checks where events are kept; a relative path is one of the file's folder.
pub(super) fn check_events(
    findings: &mut Findings,
    dir: Option<PathBuf>,
    max_kb: Option<Spanned<u64>>,
    folder: &Path,
) -> KeptEvents {
    let dir = dir.unwrap_or_else(|| EVENTS_DIR_DEFAULT.into());
    KeptEvents {
        events_dir: (dir != Path::new(NONE)).then(|| folder.join(dir)),
        events_max_kb: number(
            findings,
            "events_max_kb",
            max_kb,
            EVENTS_MAX_KB_DEFAULT,
            EVENTS_MAX_KB,
            "KiB",
        ),
    }
}

/// Checks `[hooks]`.
pub(super) fn check_hooks(findings: &mut Findings, raw: Option<RawHooks>) -> Option<Hooks> {
    let raw = raw?;
    let program = raw.on_state.get_ref().first().map_or("", String::as_str);
    if !program.starts_with('/') {
        findings.add(
            raw.on_state.span(),
            format!("on_state begins with \"{program}\", which is not the path of a program"),
            "write a list: the program's whole path, and then its arguments",
        );
    }
    if let Some(user) = raw.user.as_ref().filter(|user| user.get_ref().is_empty()) {
        findings.add(
            user.span(),
            "user is empty",
            "name a user of this host, for example \"nobody\", or leave the key out",
        );
    }
    let (default, bounds) = (HOOK_TIMEOUT_S_DEFAULT, HOOK_TIMEOUT_S);
    Some(Hooks {
        timeout_s: number(findings, "timeout_s", raw.timeout_s, default, bounds, "seconds"),
        on_state: raw.on_state.into_inner(),
        user: raw.user.map(Spanned::into_inner),
    })
}

#[cfg(test)]
mod tests {
    use super::super::GroupFile;
    use std::path::Path;

    const FILES: [&str; 2] = [
        include_str!("../../../../docs/example.toml"),
        include_str!("../../../../docs/example-spread.toml"),
    ];

    fn parse(text: &str) -> Result<GroupFile, String> {
        GroupFile::parse(Path::new("/etc/holdfast/x.toml"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn events_and_hooks_are_settings_of_every_kind_of_group() {
        for text in FILES {
            let plain = parse(text).unwrap();
            assert!(
                plain.effective().contains("events_dir = \"/var/lib/holdfast\""),
                "the default"
            );
            assert!(plain.effective().contains("events_max_kb = 1024"));
            let own = "[group]\nevents_dir = \"none\"\nevents_max_kb = 64\n";
            let hooks =
                "\n[hooks]\non_state = [\"/bin/true\", \"x\"]\ntimeout_s = 3\nuser = \"nobody\"\n";
            let text = text.replace("[group]\n", own) + hooks;
            let effective = parse(&text).unwrap().effective();
            for line in ["events_dir = \"none\"", "events_max_kb = 64", "timeout_s = 3"] {
                assert!(effective.contains(line), "{line} in {effective}");
            }
            let again = parse(&effective).unwrap();
            assert_eq!(again.effective(), effective, "what is shown can be read");
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_place() {
        let with = |group: &str, rest: &str| {
            let text = FILES[0].replace("[group]\n", &format!("[group]\n{group}\n"));
            parse(&(text + rest)).unwrap_err()
        };
        assert!(with("events_max_kb = 1", "").contains("events_max_kb = 1 is out of range"));
        let hook = |lines: &str| with("", &format!("\n[hooks]\n{lines}\n"));
        assert!(hook("on_state = []").contains("not the path of a program"));
        assert!(hook("on_state = [\"notify\"]").contains("begins with \"notify\""));
        assert!(
            hook("on_state = [\"/x\"]\ntimeout_s = 0").contains("timeout_s = 0 is out of range")
        );
        assert!(hook("on_state = [\"/x\"]\nuser = \"\"").contains("user is empty"));
        assert!(hook("on_sate = [\"/x\"]").contains("did you mean `on_state`?"));
    }
}
