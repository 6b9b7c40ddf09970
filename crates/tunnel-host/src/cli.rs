//! The verbs. Data goes to standard output, everything else to standard error.

mod check;
mod file;
mod man;

use crate::config::{Config, ConfigErrors};
use crate::status::{self, State};
use crate::{control, keyfile, plan, test, up};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
pub use file::FileArgs;
use holdfast_program::exit;
use std::fmt;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

const EXIT_CODES: &str = "\
Exit codes:
  0  fine; for status: the tunnel is up, and the peer was heard
  1  it works, but not as it should: the peer is not there, or the tunnel could not start
     for a reason that may pass
  2  wrong usage or configuration
  3  not permitted: run it as root
  4  no tunnel answers";

const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// Sequence that erases the screen and goes to its corner.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// A tunnel over a path that loses packets: what is lost is there before it is missed.
///
/// Two hosts have a key each and a file each. In between goes any IP traffic, or chosen UDP ports.
/// docs/TUNNEL.md has both files to start from.
#[derive(Debug, Parser)]
#[command(name = "holdfast tunnel", bin_name = "holdfast tunnel", display_name = "holdfast-tunnel",
          version = holdfast_program::BUILD, after_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make keys, and tell public keys.
    #[command(subcommand)]
    Key(KeyVerb),
    /// Run this end of a tunnel until SIGTERM or Ctrl-C.
    Up(UpArgs),
    /// What would keep this end from starting: in its file, its key and on this host?
    ///
    /// The tunnel is named as for other verbs; the path of a file will do, too. On this host ports, the
    /// interface's name and the folder of the socket are tried as `up` does. Whether this user may make an
    /// interface is not: `up` may run as another one.
    Check(FileArgs),
    /// About the file itself.
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Is the peer there, what does the path lose, and what is done about it?
    Status(StatusArgs),
    /// Send messages and then bulk through a tunnel that runs, and tell how they fared.
    Test(test::TestArgs),
    /// What is possible on a path, before anything is installed: the redundancy that a deadline costs.
    Plan(plan::PlanArgs),
    /// Print a completion script for a shell.
    ///
    /// For example: holdfast-tunnel completions bash > /etc/bash_completion.d/holdfast-tunnel
    Completions { shell: clap_complete::Shell },
    /// Write the man pages into a directory.
    Man { directory: PathBuf },
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Read a tunnel's file and its key; every mistake comes with its place and a remedy.
    ///
    /// The tunnel is named as for other verbs; the path of a file will do, too.
    Check(FileArgs),
}

#[derive(Debug, Subcommand)]
enum KeyVerb {
    /// Make a new secret key in FILE, for its owner alone, and print its public key.
    ///
    /// A file that is there already is left alone.
    Gen { file: PathBuf },
    /// Print the public key of a key file, for [peer] in the other end's file.
    Pub {
        /// The key file; `-` is standard input.
        file: PathBuf,
    },
}

#[derive(Args, Debug)]
struct UpArgs {
    #[command(flatten)]
    file: FileArgs,
    /// End with this process, which has started it.
    #[arg(long, value_name = "PID", hide = true)]
    with_parent: Option<u32>,
}

#[derive(Args, Debug)]
struct StatusArgs {
    #[command(flatten)]
    file: FileArgs,
    /// One JSON object of the schema holdfast.tunnel-status/1 per answer.
    #[arg(long)]
    json: bool,
    /// Show it again every second until interrupted.
    #[arg(long)]
    watch: bool,
}

/// Why a verb failed.
#[derive(Debug)]
pub struct Failure {
    /// The exit code of the program.
    pub code: u8,
    message: String,
}

impl Failure {
    /// A failure with an exit code of [`exit`].
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::new(exit::USAGE, format!("the configuration is not usable\n{errors}"))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(exit::of(&error), error.to_string())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let code = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>().map(exit::of));
        Self::new(code.unwrap_or(exit::DEGRADED), format!("{error:#}"))
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Key(KeyVerb::Gen { file }) => generate(&file),
        Verb::Key(KeyVerb::Pub { file }) => tell_public(&file),
        Verb::Up(args) => args.file.path().and_then(|file| up::run(&file, args.with_parent)),
        Verb::Check(args) => args.path_or_file().and_then(|it| check::file_and_host(&it)),
        Verb::Config(ConfigVerb::Check(args)) => {
            args.path_or_file().and_then(|it| check::file(&it))
        }
        Verb::Status(args) => tell_status(&args),
        Verb::Test(args) => test::run(&args),
        Verb::Plan(args) => plan::run(&args),
        Verb::Completions { shell } => complete(shell),
        Verb::Man { directory } => man::write(&directory),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            let _nobody_reads = writeln!(io::stderr(), "holdfast tunnel: {failure}");
            ExitCode::from(failure.code)
        }
    }
}

/// Prints; whether anybody still reads.
pub fn say(text: &str) -> Result<bool, Failure> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn complete(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), holdfast_program::TUNNEL, &mut script);
    say(&String::from_utf8_lossy(&script))?;
    Ok(exit::OK)
}

fn generate(file: &std::path::Path) -> Result<u8, Failure> {
    let key = keyfile::generate(file).map_err(|error| of_key(file, &error))?;
    say(&format!("{}\n", key.public()))?;
    Ok(exit::OK)
}

fn tell_public(file: &std::path::Path) -> Result<u8, Failure> {
    let key = if file.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().take(4096).read_to_string(&mut text)?;
        holdfast_tunnel::secure::SecretKey::parse(&text)
            .map_err(|error| Failure::new(exit::USAGE, of_standard_input(&error)))?
    } else {
        keyfile::load(file).map_err(|error| of_key(file, &error))?
    };
    say(&format!("{}\n", key.public()))?;
    Ok(exit::OK)
}

fn of_standard_input(error: &holdfast_tunnel::secure::NotAKey) -> String {
    let remedy =
        "give it what `holdfast tunnel key gen FILE` has written: holdfast tunnel key pub - < FILE";
    format!("standard input {error}\n  remedy: {remedy}")
}

fn of_key(file: &std::path::Path, error: &keyfile::KeyFileError) -> Failure {
    let message = format!("{}: {error}\n  remedy: {}", file.display(), error.remedy(file));
    Failure::new(exit::USAGE, message)
}

fn tell_status(args: &StatusArgs) -> Result<u8, Failure> {
    let config = Config::load(&args.file.path()?)?;
    if !args.watch {
        let status = control::ask(&config)?;
        say(&shown(&status, args.json)?)?;
        return Ok(if status.state == State::Up { exit::OK } else { exit::DEGRADED });
    }
    let clear = if io::stdout().is_terminal() && !args.json { CLEAR } else { "" };
    loop {
        let text = match control::ask(&config) {
            Ok(status) => shown(&status, args.json)?,
            // A tunnel that is restarted is watched again.
            Err(failure) if failure.code == exit::UNREACHABLE => format!("{failure}\n"),
            Err(failure) => return Err(failure),
        };
        if !say(&format!("{clear}{text}"))? {
            return Ok(exit::OK);
        }
        sleep(WATCH_PERIOD);
    }
}

fn shown(status: &status::Status, json: bool) -> Result<String, Failure> {
    if !json {
        return Ok(status.render());
    }
    let text = serde_json::to_string(status).map_err(io::Error::from)?;
    Ok(text + "\n")
}
