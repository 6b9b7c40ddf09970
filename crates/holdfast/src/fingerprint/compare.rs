//! Two fingerprints compared, as a text.

use super::path::{self, PATH};
use super::{KINDS, Kind, Part};
use std::collections::{BTreeMap, BTreeSet};

/// Most names told per kind; the rest is counted.
const NAMES_MAX: usize = 4;

/// What to do about `PATH`.
const SAME_PATH: &str = "start both daemons the same way, from a unit for instance, or write into the \
    file of both hosts env = { PATH = \"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\" } in \
    [server], and start both daemons again";

/// How two fingerprints differ, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What differs, by kind and name.
    pub what: String,
    pub remedy: String,
    /// Whether the server's `PATH` is one of them.
    pub of_path: bool,
}

/// `path`: what explains this host's `PATH`.
pub(super) fn difference(
    (ours, path): (&[Part], &[Part]),
    all_theirs: &[Part],
    us: &str,
    them: &str,
) -> Option<Difference> {
    let compared = |parts: &'_ [Part]| {
        parts.iter().filter(|part| !path::explains(part)).cloned().collect::<BTreeSet<Part>>()
    };
    let (ours, theirs) = (compared(ours), compared(all_theirs));
    let names = |parts: &BTreeSet<Part>, other: &BTreeSet<Part>| -> BTreeSet<(Kind, String)> {
        parts.difference(other).map(|p| (p.kind, p.name.clone())).collect()
    };
    let (here, there) = (names(&ours, &theirs), names(&theirs, &ours));
    let mut found: BTreeMap<Kind, Vec<String>> = BTreeMap::new();
    let mut of_path = false;
    for (kind, name) in here.union(&there) {
        let both = (*kind, name.clone());
        let told = match (here.contains(&both), there.contains(&both)) {
            (true, true) if *kind == Kind::Variable && name == PATH => {
                of_path = true;
                path::difference(path, all_theirs, us, them)
            }
            (true, true) => name.clone(),
            (true, false) => format!("{name} (only on {us})"),
            (false, _) => format!("{name} (only on {them})"),
        };
        found.entry(*kind).or_default().push(told);
    }
    let differing: Vec<Kind> = KINDS.into_iter().filter(|k| found.contains_key(k)).collect();
    if differing.is_empty() {
        return None;
    }
    let what: Vec<String> = differing.iter().map(|kind| line(*kind, &found[kind])).collect();
    Some(Difference { what: what.join("; "), remedy: remedy(&differing, of_path), of_path })
}

fn line(kind: Kind, names: &[String]) -> String {
    let told = &names[..names.len().min(NAMES_MAX)];
    let rest = match names.len() - told.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} {}{rest}", noun(kind, names.len()), told.join(", "))
}

fn remedy(kinds: &[Kind], of_path: bool) -> String {
    let mut steps: Vec<&str> = kinds
        .iter()
        .map(|kind| match kind {
            Kind::Program | Kind::Library => "install the same packages on both hosts",
            Kind::File => "copy the files from one host to the other",
            Kind::Argument | Kind::Setting => {
                "use the same group file on both hosts, and the shim at the same place, and start the \
                 daemon again that waits: with one whose server runs alone, its clients' connections \
                 would end"
            }
            Kind::Variable if of_path => SAME_PATH,
            Kind::Variable => {
                "start both daemons the same way, or set the variables in the group file's `env`"
            }
            Kind::CpuFeature => {
                "use the same processor model on both hosts, or mask the features in the hypervisor"
            }
        })
        .collect();
    steps.dedup();
    format!("{}; the members compare again every two seconds", steps.join("; "))
}

/// The noun for one or several of a kind.
pub(super) fn noun(kind: Kind, count: usize) -> &'static str {
    let (one, many) = match kind {
        Kind::Program => ("program", "programs"),
        Kind::Library => ("library", "libraries"),
        Kind::Argument => ("argument", "arguments"),
        Kind::Variable => ("environment variable", "environment variables"),
        Kind::File => ("config file", "config files"),
        Kind::Setting => ("setting", "settings"),
        Kind::CpuFeature => ("CPU feature", "CPU features"),
    };
    if count == 1 { one } else { many }
}
