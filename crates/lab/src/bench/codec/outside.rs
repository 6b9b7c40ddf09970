//! Other libraries that are no Rust crates: a small program beside the bench is compiled against
//! each, if its compiler and the library are installed, and takes its turns.

use super::Side;
use super::peers::Shape;
use crate::bench::built::Built;
use anyhow::{Context as _, Result, ensure};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A library: its name, and how a program named [`BINARY`] is made of its files.
struct Peer {
    name: &'static str,
    folder: &'static str,
    files: &'static [(&'static str, &'static str)],
    command: &'static [&'static str],
    /// What to do if the program cannot be built.
    remedy: &'static str,
}

const BINARY: &str = "peer";

const PEERS: [Peer; 2] = [
    Peer {
        name: "ISA-L",
        folder: "isal",
        files: &[("isal.c", include_str!("isal.c"))],
        command: &["cc", "-O3", "-o", BINARY, "isal.c", "-lisal"],
        remedy: "apt-get install gcc libisal-dev",
    },
    // The versions of the library and of what it needs are pinned in these files.
    Peer {
        name: "klauspost/reedsolomon",
        folder: "klauspost",
        files: &[
            ("main.go", include_str!("klauspost/main.go")),
            ("go.mod", include_str!("klauspost/go.mod")),
            ("go.sum", include_str!("klauspost/go.sum")),
        ],
        command: &["go", "build", "-buildvcs=false", "-mod=readonly", "-o", BINARY, "."],
        remedy: "install Go 1.24 or later; its module must be downloaded once",
    },
];

/// The program of a library.
#[derive(Debug)]
pub struct Program {
    pub name: &'static str,
    built: Built,
}

/// Builds the program of each library; returns those that could be built, and why the others could
/// not.
///
/// # Errors
/// When a source cannot be written.
pub fn build_all() -> Result<(Vec<Program>, Vec<String>)> {
    let (mut built, mut missing) = (Vec::new(), Vec::new());
    for peer in PEERS {
        match Program::build(&peer)? {
            Ok(program) => built.push(program),
            Err(reason) => {
                missing.push(format!("{}: {reason} ({})", peer.name, peer.remedy));
            }
        }
    }
    Ok((built, missing))
}

impl Program {
    fn build(peer: &Peer) -> Result<Result<Self, String>> {
        let built = Built::of(peer.folder, peer.files, peer.command)?;
        Ok(built.map(|built| Self { name: peer.name, built }))
    }

    /// Starts the program for a shape; it checks itself first.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(&self, shape: Shape) -> Result<Outside> {
        let words = [shape.data, shape.extra, shape.len].map(|word| word.to_string());
        let mut child = Command::new(self.built.file(BINARY))
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the program of {}", self.name))?;
        let asks = child.stdin.take().context("it has a standard input")?;
        let answers = child.stdout.take().context("it has a standard output")?;
        Ok(Outside { name: self.name, child, asks: Some(asks), answers: BufReader::new(answers) })
    }
}

/// A running program of a library.
#[derive(Debug)]
pub struct Outside {
    name: &'static str,
    child: Child,
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Outside {
    /// Takes one turn; returns ns per packet.
    ///
    /// # Errors
    /// When it has ended, which it does if it restores wrong bytes.
    pub fn take_turn(&mut self, side: Side, turn_ns: u64) -> Result<f64> {
        let letter = if side == Side::Encode { 'e' } else { 'd' };
        let asks = self.asks.as_mut().context("it is asked until it is dropped")?;
        writeln!(asks, "{letter} {turn_ns}")
            .with_context(|| format!("the program of {} has ended", self.name))?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the program of {} has ended: wrong bytes?", self.name);
        line.trim().parse().with_context(|| format!("{line:?} is no time"))
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // The program ends when its input does.
        drop(self.asks.take());
        let _ = self.child.wait();
    }
}
