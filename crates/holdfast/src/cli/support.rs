//! `support`: the table of calls for people, and what becomes of one program.

use super::args::SupportArgs;
use super::{Failure, print, say};
use crate::check::{Finding, Verdict as Severity, to_start};
use crate::config::{Config, GroupFile, Server};
use crate::init;
use crate::status::exit;
use crate::support::{self, Answer, Level, PAGE, Row, Trial, Verdict};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// Columns that a line has at most.
const COLUMNS: usize = 80;
/// Schema of `holdfast support --json` without a program.
const TABLE_SCHEMA: &str = "holdfast.support-table/1";
/// What stands between a server's words and its client's.
const BETWEEN: &str = "--";

pub(super) fn run(args: &SupportArgs) -> Result<u8, Failure> {
    let (words, client) = split(&args.command);
    let Some((server, known)) = asked(args, words)? else { return table(args) };
    let mut answer = support::answer(&server, known);
    let time = Duration::from_secs(args.seconds.into());
    let is_tried = args.try_it && answer.verdict != Verdict::Refused;
    let trial = is_tried.then(|| support::try_out(&server, client, time)).transpose()?;
    if let Some(trial) = &trial {
        answer.verdict = trial.verdict(answer.verdict);
    }
    let text = match args.json {
        true => serde_json::to_string(&Told { answer: &answer, trial: trial.as_ref() })? + "\n",
        false => rendered(&answer, trial.as_ref(), args.try_it),
    };
    print(&text)?;
    let has_failed = trial.is_some_and(|trial| !trial.has_passed());
    let is_refused = answer.verdict == Verdict::Refused;
    Ok(if is_refused || has_failed { exit::DEGRADED } else { exit::OK })
}

/// The server that is asked for, and what this host says of it; `None` if all calls are.
fn asked(args: &SupportArgs, words: &[String]) -> Result<Option<(Server, Vec<Finding>)>, Failure> {
    if let Some(path) = &args.config {
        if !words.is_empty() {
            let text =
                "the file names a program already\n  remedy: give either --config or a program";
            return Err(Failure::usage(text.to_owned()));
        }
        let config: Config = GroupFile::load(path)?.replicated().map_err(Failure::usage)?;
        let known = to_start(&config);
        return Ok(Some((config.server.clone(), known)));
    }
    if words.is_empty() {
        return Ok(None);
    }
    let mut server = support::server_of(words.to_vec());
    server.run = args.run.unwrap_or_default();
    server.user = args.try_it.then(|| args.user.clone());
    Ok(Some((server, Vec::new())))
}

#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    answer: &'a Answer,
    #[serde(skip_serializing_if = "Option::is_none")]
    trial: Option<&'a Trial>,
}

/// The words of the program, and those of its client behind `--`.
fn split(words: &[String]) -> (&[String], &[String]) {
    match words.iter().position(|word| word == BETWEEN) {
        Some(at) => (&words[..at], &words[at + 1..]),
        None => (words, &[]),
    }
}

fn table(args: &SupportArgs) -> Result<u8, Failure> {
    if args.try_it {
        let text = "there is nothing to try\n  remedy: holdfast support --try PROGRAM [ARGS...]";
        return Err(Failure::usage(text.to_owned()));
    }
    if args.markdown {
        return say(PAGE);
    }
    if args.json {
        let all = serde_json::json!({ "schema": TABLE_SCHEMA, "calls": support::rows() });
        return say(&(all.to_string() + "\n"));
    }
    say(&rendered_table())
}

fn rendered_table() -> String {
    let mut out = wrapped(
        0,
        "What the shim does with each call of a server: replayed (made on the primary, answered from \
         the log on the backup), passed (made on both members), or refused (fails with ENOSYS, and is \
         reported). `holdfast support PROGRAM` says which of them a program may make.",
    );
    let mut section = "";
    let width = support::rows().iter().map(|row| row.call.len()).max().unwrap_or(0);
    for row in support::rows() {
        if row.section != section {
            section = row.section;
            let _ = write!(out, "\n{section}\n");
        }
        out += &line(row, width, "");
    }
    out += "\n";
    out + &wrapped(0, "What escapes the shim, and what was tried: holdfast support --markdown")
}

/// A call, its level and what must be known of it, in columns.
fn line(row: &Row, width: usize, more: &str) -> String {
    let head = format!("  {:width$}  {:8}  ", row.call, row.level.word());
    let note = row.note.replace('`', "");
    let text =
        if more.is_empty() || note.is_empty() { note + more } else { format!("{more}; {note}") };
    let body = wrapped(head.len(), &text);
    format!("{head}{}", body.trim_start()).trim_end().to_owned() + "\n"
}

/// A text in lines that begin at a column.
fn wrapped(indent: usize, text: &str) -> String {
    let (mut out, mut line) = (String::new(), String::new());
    for word in text.split_whitespace() {
        if !line.is_empty() && indent + line.chars().count() + 1 + word.chars().count() > COLUMNS {
            let _ = writeln!(out, "{:indent$}{line}", "");
            line.clear();
        }
        line += if line.is_empty() { "" } else { " " };
        line += word;
    }
    let _ = writeln!(out, "{:indent$}{line}", "");
    out
}

fn rendered(answer: &Answer, trial: Option<&Trial>, was_asked: bool) -> String {
    let mut out = format!("{}: {}\n", answer.verdict.words(), init::line(&answer.command));
    for finding in &answer.findings {
        out += &told(finding);
    }
    if answer.findings.is_empty() && answer.tried.is_empty() && answer.verdict == Verdict::Works {
        out += &wrapped(
            2,
            "as far as its calls tell: nothing stands against it, and nobody has tried it",
        );
    }
    match trial {
        Some(trial) => out += &of_trial(trial),
        None if was_asked => out += &field("trial", "not tried: it is refused"),
        None => {}
    }
    for tried in &answer.tried {
        out += &field("tried", &format!("{} ({}): {}", tried.name, tried.package, tried.said));
    }
    let mut files = answer.files.iter().rev().map(|file| file.display().to_string());
    out += &files.next().map(|file| field("program", &file)).unwrap_or_default();
    let mut through: Vec<String> = files.collect();
    through.reverse();
    if !through.is_empty() {
        out += &field("through", &through.join(", "));
    }
    if !answer.calls.is_empty() {
        out += &calls(answer);
    }
    for what in &answer.unseen {
        out += &field("not seen", what);
    }
    out
}

fn told(finding: &Finding) -> String {
    let mark = if finding.verdict == Severity::Fail { "" } else { "perhaps: " };
    let mut out = wrapped(2, &format!("{mark}{}", finding.found));
    if !finding.remedy.is_empty() {
        out += &wrapped(4, &format!("remedy: {}", finding.remedy));
    }
    out
}

fn field(name: &str, text: &str) -> String {
    const INDENT: usize = 11;
    let body = wrapped(INDENT, text);
    format!("{name:INDENT$}{}", body.trim_start())
}

/// The calls that it may make: of those that are replayed the names are enough.
fn calls(answer: &Answer) -> String {
    let of = |level| answer.calls.iter().filter(move |it| it.row.level == level);
    let names: Vec<&str> = of(Level::Replayed).map(|it| it.row.call).collect();
    let whose = format!("in it and in {} libraries", answer.libraries.len());
    let mut out = field("calls", &format!("{whose}; replayed: {}", names.join(", ")));
    let others = || of(Level::Refused).chain(of(Level::Passed));
    let width = others().map(|it| it.row.call.len()).max().unwrap_or(0);
    for used in others() {
        let by = match used.by.len() {
            0..=2 => used.by.join(", "),
            more => format!("{} and {} more", used.by[0], more - 1),
        };
        out += &line(&used.row, width, &by);
    }
    out
}

fn of_trial(trial: &Trial) -> String {
    let mut out = field("trial", &trial.summary());
    for what in &trial.said {
        out += &wrapped(11, what);
    }
    if let Some(remedy) = trial.remedy {
        out += &wrapped(11, &format!("remedy: {remedy}"));
    }
    if trial.calls.is_empty() {
        return out;
    }
    let mut counted: Vec<(&String, &u64)> = trial.calls.iter().collect();
    counted.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), (*name).clone()));
    let list: Vec<String> = counted.iter().map(|(name, count)| format!("{name} {count}")).collect();
    out += &field("logged", &list.join(", "));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_a_terminal_and_has_every_call() {
        let shown = rendered_table();
        assert!(shown.lines().all(|line| line.chars().count() <= COLUMNS), "{shown}");
        for row in support::rows() {
            assert!(shown.contains(&format!("  {} ", row.call)), "{}", row.call);
        }
        assert!(!shown.contains("do not edit") && !shown.contains("| "), "{shown}");
    }

    #[test]
    fn a_client_stands_behind_two_dashes() {
        let words = ["a", "-b", "--", "c", "--"].map(str::to_owned);
        let (program, client) = split(&words);
        assert_eq!((program, client), (&words[..2], &words[3..]));
        assert_eq!(split(&words[..2]), (&words[..2], &[][..]));
    }

    #[test]
    fn words_that_are_too_long_have_a_line_of_their_own() {
        let long = "x".repeat(100);
        assert_eq!(wrapped(2, &format!("a {long} b")), format!("  a\n  {long}\n  b\n"));
        assert_eq!(wrapped(0, ""), "\n");
    }
}
