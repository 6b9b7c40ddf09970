//! ISA-L, which has no Rust crate: a small C program beside the bench, compiled
//! against Debian's library when there is one, takes the turns.

use super::Side;
use super::peers::Shape;
use anyhow::{Context as _, Result, ensure};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SOURCE: &str = include_str!("isal.c");

/// The program, compiled; removed when this is dropped.
#[derive(Debug)]
pub struct Program(PathBuf);

impl Program {
    /// `None` where there is no compiler or no ISA-L.
    ///
    /// # Errors
    /// When its source cannot be written.
    pub fn build() -> Result<Option<Self>> {
        let folder = std::env::temp_dir().join(format!("holdfast-isal-{}", std::process::id()));
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let program = Self(folder);
        let source = program.0.join("isal.c");
        std::fs::write(&source, SOURCE)
            .with_context(|| format!("cannot write {}", source.display()))?;
        let built = Command::new("cc")
            .args(["-O3", "-o"])
            .arg(program.0.join("isal"))
            .arg(source)
            .arg("-lisal")
            .stderr(Stdio::null())
            .status();
        Ok(built.is_ok_and(|status| status.success()).then_some(program))
    }

    /// Starts it for a shape; it checks itself first.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(&self, shape: Shape) -> Result<Isal> {
        let words = [shape.data, shape.extra, shape.len].map(|word| word.to_string());
        let mut child = Command::new(self.0.join("isal"))
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the compiled ISA-L program")?;
        let asks = child.stdin.take().context("it has a standard input")?;
        let answers = child.stdout.take().context("it has a standard output")?;
        Ok(Isal { child, asks: Some(asks), answers: BufReader::new(answers) })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The running program.
#[derive(Debug)]
pub struct Isal {
    child: Child,
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Isal {
    /// One turn; ns per packet.
    ///
    /// # Errors
    /// When it has ended, which it does if it restores wrong bytes.
    pub fn take_turn(&mut self, side: Side, turn_ns: u64) -> Result<f64> {
        let letter = if side == Side::Encode { 'e' } else { 'd' };
        let asks = self.asks.as_mut().context("it is asked until it is dropped")?;
        writeln!(asks, "{letter} {turn_ns}").context("the ISA-L program has ended")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the ISA-L program has ended: it restores wrong bytes");
        line.trim().parse().with_context(|| format!("{line:?} is no time"))
    }
}

impl Drop for Isal {
    fn drop(&mut self) {
        // Without anybody to ask it, it ends.
        drop(self.asks.take());
        let _ = self.child.wait();
    }
}
