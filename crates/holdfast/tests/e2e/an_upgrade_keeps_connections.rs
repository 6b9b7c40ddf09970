//! Daemons are replaced by another build, one after the other, and no connection is lost.

use crate::world::{self, limit};
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Puts another build into `folder`: the same programs, with other bytes at their ends, where
/// nobody reads.
fn other_build(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    for name in ["holdfast", "libholdfast_shim.so"] {
        let file = folder.join(name);
        fs::copy(world::binary().with_file_name(name), &file).expect("a program");
        let mut file = fs::File::options().append(true).open(file).expect("a file");
        file.write_all(b"an earlier build").expect("its end");
    }
}

#[test]
fn every_daemon_is_replaced_under_load() {
    let _limit = limit(Duration::from_secs(60));
    let folder = std::env::temp_dir().join(format!("holdfast-earlier-{}", std::process::id()));
    other_build(&folder);
    let mut bench = Command::new(world::lab());
    bench.args(["bench", "upgrade", "--json", "--connections", "20", "--from"]).arg(&folder);
    let done = bench.output().expect("it runs");
    let _nobody_needs_it = fs::remove_dir_all(&folder);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stdout));
    let report: Value = serde_json::from_slice(&done.stdout).expect("its answer");
    assert_eq!(report["fate"]["connections"], 20, "{report}");
    assert_eq!(report["fate"]["lost"], 0, "{report}");
}
