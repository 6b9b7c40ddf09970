//! ns-3 beside our simulator, if it is installed: the wheel `ns3` of PyPI has
//! headers and libraries, and `ns3.cpp` has the scenarios.

use anyhow::{Context as _, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

const SOURCE: &str = include_str!("ns3.cpp");

/// The libraries of the scenarios, as the linker must see them.
const LIBRARIES: [&str; 7] =
    ["applications", "internet", "point-to-point", "traffic-control", "bridge", "network", "core"];

/// The scenarios, compiled against the ns-3 that was found.
pub struct Ns3 {
    program: PathBuf,
    /// Of ns-3.
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
        let libraries = package.join("lib64");
        let version = version(&libraries)?;
        let folder = env::temp_dir().join(format!("holdfast-ns3-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let ns3 = Self { program: folder.join("scenarios"), version };
        ns3.compile(&package, &libraries)?;
        Ok(ns3)
    }

    fn compile(&self, package: &Path, libraries: &Path) -> Result<()> {
        let source = self.program.with_extension("cpp");
        fs::write(&source, SOURCE)?;
        let mut command = Command::new("g++");
        command.args(["-std=c++20", "-O3", "-march=native", "-I"]).arg(package.join("include"));
        command.arg(&source).arg("-o").arg(&self.program).arg("-L").arg(libraries);
        command.arg(format!("-Wl,-rpath,{}", libraries.display()));
        command.args(LIBRARIES.map(|it| format!("-lns{}-{it}", self.version)));
        let output = command.output().context("no g++")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let first = errors.lines().next().unwrap_or_default();
        ensure!(output.status.success(), "the scenarios do not compile: {first}");
        Ok(())
    }

    /// CPU seconds of one run of a scenario, its set-up included.
    ///
    /// # Errors
    /// When it does not run.
    pub fn run(&self, scenario: &str) -> Result<f64> {
        let output = Command::new(&self.program).arg(scenario).stderr(Stdio::inherit()).output()?;
        let text = String::from_utf8(output.stdout)?;
        let seconds = text.split_whitespace().next().and_then(|it| it.parse().ok());
        seconds.with_context(|| format!("ns-3 said {text:?}"))
    }
}

impl Drop for Ns3 {
    fn drop(&mut self) {
        if let Some(folder) = self.program.parent() {
            // What stays behind is one small program in the folder for such.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// What stands between `libns` and `-core.so`.
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
