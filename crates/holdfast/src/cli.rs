//! The verbs. Flags, help, man pages and completions come from the types in
//! [`args`]; data goes to standard output, everything else to standard error.

pub mod args;
mod beside;
mod capture;
mod check;
mod down;
mod edge;
mod events;
mod examples;
mod failure;
mod group;
mod hand_over;
mod init;
mod log;
mod man;
mod namespace;
mod reload;
mod report;
mod support;
mod version;
mod watch;
mod when;

pub use failure::Failure;
pub use group::load_of_daemon;

use crate::check::may_administer;
use crate::config::GroupFile;
use crate::daemon::witness;
use crate::key::GroupKey;
use crate::status::{Style, exit};
use args::{Cli, Colour, ConfigVerb, GroupArgs, KeyVerb, LogFormat, Verb, WitnessArgs};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, ValueEnum as _};
use examples::{EXAMPLE, EXAMPLE_SEGMENT, EXAMPLE_SPREAD, EXAMPLE_TRANSIT};
use group::load;
use log::format::{Lines, belong_to, is_journal};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Variable that says how daemons log, `text` or `json`, for units.
const LOG_FORMAT: &str = "HOLDFAST_LOG_FORMAT";

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    holdfast_program::abort_on_panic();
    let cli = Cli::try_parse().unwrap_or_else(|error| with_tip(error).exit());
    let lines = match lines(&cli.verb) {
        Ok(lines) => lines,
        Err(failure) => return tell(&failure),
    };
    let log = start_log(&cli, lines);
    let result = run(cli);
    if let (Err(failure), true) = (&result, lines.is_json || lines.is_journal) {
        tracing::error!("{failure}");
    }
    if let Some(log) = log {
        log.flush_all();
    }
    match result {
        Ok(code) => code,
        Err(failure) if lines.is_json || lines.is_journal => ExitCode::from(failure.code),
        Err(failure) => tell(&failure),
    }
}

/// Who names the group's file without its option is told how.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let file = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if word.ends_with(".toml") => word.clone(),
        _ => return error,
    };
    if matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand) {
        let tip = format!("the group's file is an option's value: --config {file}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

fn tell(failure: &Failure) -> ExitCode {
    let _nobody_reads = writeln!(io::stderr(), "holdfast: {failure}");
    ExitCode::from(failure.code)
}

/// How the log is written: that of a daemon as its option says, or its environment.
fn lines(verb: &Verb) -> Result<Lines, Failure> {
    let asked = match verb {
        Verb::Run(args) => args.log.log_format,
        Verb::Witness(args) => args.log.log_format,
        _ => return Ok(Lines::default()),
    };
    let named = std::env::var(LOG_FORMAT).ok().filter(|named| !named.is_empty() && asked.is_none());
    let named = named.map(|named| {
        LogFormat::from_str(&named, true)
            .map_err(|_| Failure::usage(format!("{LOG_FORMAT}={named}: write text or json")))
    });
    let format = asked.or(named.transpose()?).unwrap_or_default();
    Ok(Lines { is_json: format == LogFormat::Json, is_journal: is_journal() })
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let style = style(cli.color);
    let code = match cli.verb {
        Verb::Init(args) => init::init(args),
        Verb::Join(args) => init::join(args),
        Verb::Demo(args) => {
            must_be_root()?;
            match beside::demo(&args)? {}
        }
        Verb::Tunnel(args) => match beside::tunnel(args)? {},
        Verb::Lab { words } => Err(beside::moved(&words)),
        Verb::Run(args) => run_daemon(&args.group),
        Verb::Witness(args) => run_witness(&args),
        Verb::Top(args) => match beside::top(&args)? {},
        Verb::Status(args) => watch::status(&args, style),
        Verb::Events(args) => events::events(&args),
        Verb::History(args) => events::history(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Down(args) => down::run(&args),
        Verb::Switchover(args) => hand_over::switchover(&args),
        Verb::Takeover(args) => hand_over::take_over(&args),
        Verb::Reload(args) => reload::run(&args),
        Verb::Move(args) => hand_over::relocate(&args),
        Verb::Capture(args) => capture::run(&args),
        Verb::Key(KeyVerb::Gen) => say(&GroupKey::generate()?.to_text()),
        Verb::Key(KeyVerb::Pub { file }) => say(&public_keys(file.as_deref())?),
        Verb::Config(verb) => run_config(verb),
        Verb::Support(args) => support::run(&args),
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut script);
            say(&String::from_utf8_lossy(&script))
        }
        Verb::Man { directory } => man::write(&directory),
        Verb::Edge(verb) => edge::run(&verb),
        Verb::Version { json } => version::run(json),
    }?;
    Ok(ExitCode::from(code))
}

/// The public keys of a key file, or of what comes at standard input, a line each. What all hosts
/// have is no host's, and has none.
fn public_keys(file: Option<&Path>) -> Result<String, Failure> {
    let keys = match file {
        Some(path) => GroupKey::load(path).map_err(|error| {
            let (path, remedy) = (path.display(), error.remedy(path));
            Failure::usage(format!("{path}: {error}\n  remedy: {remedy}"))
        }),
        None => GroupKey::read(std::io::stdin())
            .map_err(|error| Failure::usage(format!("standard input: {error}"))),
    };
    let keys = keys?;
    let own = || keys.iter().filter(|line| !line.of_all);
    if own().next().is_none() {
        return Err(Failure::usage(
            "it holds no key of one host alone: all of its lines are marked `shared`\n  remedy: add one \
             as its second line: holdfast key gen >> FILE"
                .to_owned(),
        ));
    }
    Ok(own().map(|line| format!("{}\n", line.key.public())).collect())
}

/// Checks the user before anything is touched, with a better message than that of
/// the first call that fails.
fn must_be_root() -> Result<(), Failure> {
    if may_administer() {
        return Ok(());
    }
    let message = "CAP_NET_ADMIN is missing\n  remedy: do it as root; `holdfast check` names all \
                   that is needed";
    Err(Failure::not_permitted(message.to_owned()))
}

fn run_witness(args: &WitnessArgs) -> Result<u8, Failure> {
    let load = |path: &PathBuf| GroupFile::load(path)?.replicated().map_err(Failure::usage);
    let files = args.config.iter().map(load).collect::<Result<Vec<_>, _>>()?;
    // What is wrong with files is no failure to start.
    witness::shared(&files).map_err(|error| Failure::usage(format!("{error:#}")))?;
    witness::run(files)?;
    Ok(exit::OK)
}

fn run_daemon(group: &GroupArgs) -> Result<u8, Failure> {
    must_be_root()?;
    let (file, role) = load(group)?;
    belong_to(file.name(), &role);
    crate::daemon::run(&file, &role)?;
    Ok(exit::OK)
}

fn run_config(verb: ConfigVerb) -> Result<u8, Failure> {
    match verb {
        ConfigVerb::Check { file, json } => check::file(&file, json),
        ConfigVerb::Show { file, effective } => {
            let group = GroupFile::load(&file)?;
            let text = if effective { group.effective() } else { std::fs::read_to_string(file)? };
            say(&text)
        }
        ConfigVerb::Example { spread: true, .. } => say(EXAMPLE_SPREAD),
        ConfigVerb::Example { segment: true, .. } => say(EXAMPLE_SEGMENT),
        ConfigVerb::Example { transit: true, .. } => say(EXAMPLE_TRANSIT),
        ConfigVerb::Example { .. } => say(EXAMPLE),
    }
}

fn style(colour: Colour) -> Style {
    let wanted = match colour {
        Colour::Always => true,
        Colour::Never => false,
        // https://no-color.org
        Colour::Auto => {
            io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        }
    };
    if wanted { Style::Colour } else { Style::Plain }
}

/// Starts the log: daemons log from a thread; verbs, which end soon, log
/// directly.
fn start_log(cli: &Cli, lines: Lines) -> Option<log::Log> {
    let ansi =
        cli.color == Colour::Always || (cli.color == Colour::Auto && io::stderr().is_terminal());
    let ansi = ansi && !lines.is_json && !lines.is_journal;
    let is_daemon = match &cli.verb {
        Verb::Run(_) | Verb::Witness(_) => true,
        Verb::Init(args) => args.set_up.run,
        Verb::Join(args) => args.set_up.run,
        _ => false,
    };
    let log = is_daemon.then(|| log::Log::start(io::stderr()));
    let log = log.and_then(Result::ok);
    let to = log.clone();
    let writer = move || -> Box<dyn Write> {
        match &to {
            Some(log) => Box::new(log.clone()),
            None => Box::new(io::stderr()),
        }
    };
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(writer)
        .with_ansi(ansi)
        .event_format(lines)
        .finish()
        .with(loud(cli.verbose))
        .init();
    log
}

/// What is logged with so many `-v`. How an eBPF program is loaded concerns fewer people than
/// how a link fails.
fn loud(verbose: u8) -> Targets {
    let (own, loader) = match verbose {
        0 => (tracing::Level::INFO, tracing::Level::INFO),
        1 => (tracing::Level::DEBUG, tracing::Level::INFO),
        _ => (tracing::Level::TRACE, tracing::Level::DEBUG),
    };
    // `aya_obj`, too: it is the begin of a name.
    Targets::new().with_default(own).with_target("aya", loader)
}

/// Writes data to standard output; false if nobody reads any more.
fn print(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Does all that a verb does which only prints.
fn say(text: &str) -> Result<u8, Failure> {
    print(text).map(|_| exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_file_without_its_option_gets_a_tip() {
        for verb in ["status", "events", "run", "top"] {
            let error = Cli::try_parse_from(["holdfast", verb, "/etc/holdfast/demo.toml"]);
            let told = with_tip(error.expect_err("no such argument")).to_string();
            assert!(told.contains("--config /etc/holdfast/demo.toml"), "{told}");
        }
        let other = with_tip(Cli::try_parse_from(["holdfast", "status", "x"]).expect_err("none"));
        assert!(!other.to_string().contains("option's value"), "{other}");
    }

    #[test]
    fn the_loader_is_heard_only_with_two_v() {
        use tracing::Level;
        for (verbose, own, loader) in [(0, false, false), (1, true, false), (2, true, true)] {
            let loud = loud(verbose);
            assert_eq!(loud.would_enable("holdfast::channel", &Level::DEBUG), own, "{verbose}");
            for name in ["aya::bpf", "aya_obj::relocation"] {
                assert_eq!(loud.would_enable(name, &Level::DEBUG), loader, "{name} {verbose}");
                assert!(loud.would_enable(name, &Level::WARN));
            }
        }
    }
}
