//! The shim's modules stand in layers: none reaches up, and within a layer none
//! reaches itself through others. So each can be read with what lies below it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the lowest. What is not in a folder is above them.
const FOLDERS: [&str; 2] = ["base", "calls"];

type Graph = BTreeMap<String, BTreeSet<String>>;

fn layer_of(module: &str) -> usize {
    let folder = module.split("::").next().unwrap_or_default();
    FOLDERS.iter().position(|it| *it == folder).unwrap_or(FOLDERS.len())
}

/// Modules that a line of imports names: `use crate::base::{a, b};` and
/// `use crate::base::a::{self, Item};`, as rustfmt writes them.
fn imported(line: &str) -> Vec<String> {
    let Some(path) = line.strip_prefix("use crate::").map(|it| it.trim_end_matches(';')) else {
        return Vec::new();
    };
    let (first, rest) = path.split_once("::").unwrap_or((path, ""));
    if !FOLDERS.contains(&first) {
        return vec![first.to_owned()];
    }
    let names = match rest.strip_prefix('{') {
        Some(list) => list.trim_end_matches('}').split(", ").collect(),
        None => vec![rest.split("::").next().unwrap_or_default()],
    };
    names.into_iter().map(|name| format!("{first}::{name}")).collect()
}

/// What each module imports.
fn graph() -> Graph {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = |folder: PathBuf| {
        let entries = fs::read_dir(folder).expect("sources").map(|it| it.expect("entry").path());
        entries.filter(|it| it.extension().is_some_and(|it| it == "rs")).collect::<Vec<_>>()
    };
    let mut graph = Graph::new();
    for (folder, prefix) in [("base", "base::"), ("calls", "calls::"), ("", "")] {
        for file in files(source.join(folder)) {
            let stem = file.file_stem().expect("a name").to_string_lossy();
            if ["lib", "testing", "base", "calls"].contains(&&*stem) {
                continue;
            }
            let text = fs::read_to_string(&file).expect("a source");
            // An import over several lines is one.
            let joined = text.replace(",\n    ", ", ").replace("{\n    ", "{").replace(",\n}", "}");
            let imports = joined.lines().flat_map(imported).collect();
            let other_way = |line: &&str| {
                line.contains("super::")
                    || line.contains("crate::")
                        && !line.contains("$crate::")
                        && !line.starts_with("use crate::")
            };
            let line = text.lines().find(other_way);
            assert_eq!(line, None, "{stem}: modules are named by imports from the root");
            graph.insert(format!("{prefix}{stem}"), imports);
        }
    }
    graph
}

#[test]
fn no_module_reaches_up() {
    let graph = graph();
    assert!(graph.len() > 40, "only {} modules found", graph.len());
    for (module, imports) in &graph {
        for other in imports {
            assert!(graph.contains_key(other), "{module} imports {other}, which is no module");
            assert!(layer_of(other) <= layer_of(module), "{module} reaches up to {other}");
        }
    }
}

#[test]
fn no_module_reaches_itself() {
    let graph = graph();
    // A file that imports nothing that is left is not in a circle.
    let mut left: BTreeSet<&String> = graph.keys().collect();
    loop {
        let free: Vec<&String> = left
            .iter()
            .copied()
            .filter(|it| graph[*it].iter().all(|o| !left.contains(o)))
            .collect();
        if free.is_empty() {
            break;
        }
        free.iter().for_each(|it| assert!(left.remove(*it)));
    }
    assert!(left.is_empty(), "circles among {left:?}");
}
