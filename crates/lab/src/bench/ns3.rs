//! ns-3 beside this project's simulator, if it is installed: the wheel `ns3` of PyPI has headers
//! and libraries, and `ns3.cpp` builds what a plan describes.

use super::beside::Seen;
use super::built::Built;
use super::plans::Plan;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCE: &str = include_str!("ns3.cpp");

const BINARY: &str = "scenarios";

/// Libraries that the scenarios are linked with.
const LIBRARIES: [&str; 7] =
    ["applications", "internet", "point-to-point", "traffic-control", "bridge", "network", "core"];

/// The scenarios, compiled against the ns-3 that was found.
pub struct Ns3 {
    built: Built,
    /// Version of ns-3.
    pub version: String,
}

impl Ns3 {
    /// Finds the package of `python3` and compiles the scenarios.
    ///
    /// # Errors
    /// When there is no such package, or it does not compile.
    pub fn find() -> Result<Self> {
        let ask =
            "import importlib.util as it; print(it.find_spec('ns3').submodule_search_locations[0])";
        let answer = Command::new("python3").args(["-c", ask]).output().context("no python3")?;
        ensure!(answer.status.success(), "python3 has no package ns3 (pip install ns3)");
        let package = PathBuf::from(String::from_utf8(answer.stdout)?.trim());
        let version = version(&package.join("lib64"))?;
        let built = Built::of("ns3", &[("scenarios.cpp", SOURCE)], &compiler(&package, &version))?;
        let built = built.map_err(|why| anyhow!("the scenarios do not compile: {why}"))?;
        Ok(Self { built, version })
    }

    /// Runs a scenario; CPU time includes its set-up.
    ///
    /// # Errors
    /// When it does not run.
    pub fn run(&self, plan: &Plan) -> Result<Seen> {
        let output = Command::new(self.built.file(BINARY))
            .args(plan.words())
            .stderr(Stdio::inherit())
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        read(&text).with_context(|| format!("ns-3 said {text:?}"))
    }
}

/// Reads the line that ns3.cpp prints.
fn read(text: &str) -> Option<Seen> {
    let numbers: Vec<f64> = text.split_whitespace().map_while(|it| it.parse().ok()).collect();
    let [
        cpu_seconds,
        memory_mb,
        events,
        last_s,
        bytes,
        passed,
        dropped,
        timeouts,
        finished,
        median_s,
        most_s,
    ] = numbers[..]
    else {
        return None;
    };
    Some(Seen {
        cpu_seconds,
        memory_mb,
        events: events as u64,
        last_s,
        bytes: bytes as u64,
        passed: passed as u64,
        dropped: dropped as u64,
        timeouts: timeouts as u64,
        finished: finished as u64,
        median_s,
        most_s,
    })
}

/// The command line that compiles the scenarios.
fn compiler(package: &Path, version: &str) -> Vec<String> {
    let (include, libraries) = (package.join("include"), package.join("lib64"));
    let words = ["g++", "-std=c++20", "-O3", "-march=native", "-o", BINARY, "scenarios.cpp"];
    let paths = [
        format!("-I{}", include.display()),
        format!("-L{}", libraries.display()),
        format!("-Wl,-rpath,{}", libraries.display()),
    ];
    let libraries = LIBRARIES.map(|it| format!("-lns{version}-{it}"));
    words.map(str::to_owned).into_iter().chain(paths).chain(libraries).collect()
}

/// Version of ns-3: the text between `libns` and `-core.so` in a library's name.
fn version(libraries: &Path) -> Result<String> {
    for entry in fs::read_dir(libraries).context("the package ns3 has no lib64")? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        let version = name.strip_prefix("libns").and_then(|it| it.strip_suffix("-core.so"));
        if let Some(version) = version {
            return Ok(version.to_owned());
        }
    }
    bail!("the package ns3 has no library of the core");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_ns3_is_read_whole_or_not_at_all() {
        let line = "33.2 95.6 6150625 39.7 438000000 300026 4742 68 100 20.7 33.2\n";
        let seen = read(line).expect("a result");
        assert_eq!((seen.bytes, seen.dropped, seen.timeouts), (438_000_000, 4742, 68));
        assert_eq!((seen.finished, seen.most_s), (100, 33.2));
        for broken in ["", "33.2 95.6", "33.2 x 1 2 3 4 5 6 7 8 9", &format!("{line} 7")] {
            assert!(read(broken).is_none(), "{broken}");
        }
    }
}
