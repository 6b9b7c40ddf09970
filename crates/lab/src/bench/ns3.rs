//! ns-3 beside this project's simulator, if it is installed: the wheel `ns3` of PyPI has headers
//! and libraries, and `ns3.cpp` has the scenarios.

use super::built::Built;
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

    /// CPU seconds of one run of a scenario, its set-up included.
    ///
    /// # Errors
    /// When it does not run.
    pub fn run(&self, scenario: &str) -> Result<f64> {
        let output = Command::new(self.built.file(BINARY))
            .arg(scenario)
            .stderr(Stdio::inherit())
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        let seconds = text.split_whitespace().next().and_then(|it| it.parse().ok());
        seconds.with_context(|| format!("ns-3 said {text:?}"))
    }
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
