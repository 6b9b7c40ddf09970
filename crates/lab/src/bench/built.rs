//! Programs of other languages that a bench compiles for itself, where it finds
//! what they need.

use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A folder with a compiled program; removed when this is dropped.
#[derive(Debug)]
pub struct Built {
    folder: PathBuf,
}

impl Built {
    /// Writes `files` (name, text) into a folder of their own and runs `command` there. If that
    /// fails, returns the reason in one line.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn of(
        name: &str,
        files: &[(&str, &str)],
        command: &[impl AsRef<str>],
    ) -> Result<Result<Self, String>> {
        let name = format!("holdfast-{name}-{}", std::process::id());
        let built = Self { folder: std::env::temp_dir().join(name) };
        std::fs::create_dir_all(&built.folder)
            .with_context(|| format!("cannot create {}", built.folder.display()))?;
        for (name, text) in files {
            let path = built.file(name);
            std::fs::write(&path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(compile(command, &built.folder).map(|()| built))
    }

    /// Path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs the command that compiles the program; the error is one line.
fn compile(command: &[impl AsRef<str>], folder: &Path) -> Result<(), String> {
    let [compiler, args @ ..] = command else { return Err("nothing compiles it".to_owned()) };
    let compiler = compiler.as_ref();
    let output = Command::new(compiler)
        .args(args.iter().map(AsRef::as_ref))
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run {compiler}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().map(str::trim).find(|line| !line.is_empty());
    Err(line.map_or_else(|| format!("{compiler} failed"), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_compiled_says_why() {
        let here = Path::new(".");
        assert!(compile(&["no-such-compiler"], here).unwrap_err().contains("no-such-compiler"));
        let script = ["sh", "-c", "echo; echo ' no library' >&2; exit 1"];
        assert_eq!(compile(&script, here), Err("no library".to_owned()));
        assert_eq!(compile(&["true"], here), Ok(()));
    }
}
