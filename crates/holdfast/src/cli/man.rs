//! The man pages: what clap knows of the verbs, with the files, exit codes and other pages that
//! belong to each, and one about the file.

use super::Failure;
use super::args::{Cli, EXIT_CODES};
use super::examples;
use crate::status::exit;
use clap::{Command, CommandFactory as _};
use holdfast_program::pages;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Name of the page about the file.
const OF_FILE: &str = "holdfast.toml.5";
/// Places of the daemons, with what is there. `NAME` is the group's.
const FILES: [(&str, &str); 6] = [
    (
        "/etc/holdfast/NAME.toml",
        "The group's file, the same on all of its hosts; any other place will do. See holdfast.toml(5).",
    ),
    ("/etc/holdfast/NAME.key", "The group's key (key_file), readable by its owner only."),
    ("/run/holdfast/NAME/", "Admin sockets, and pinned programs and maps (run_dir)."),
    ("/var/lib/holdfast/NAME.epoch", "What an edge must not forget (state_file)."),
    (
        "/var/lib/holdfast/witness/",
        "What a witness has granted, and members have seen of it (state_dir).",
    ),
    ("/var/lib/holdfast/NAME.spool/", "What a cold backup builds the server of (spool_dir)."),
];
/// Verbs that have to do with no host's daemon.
const WITHOUT_FILES: [&str; 7] = [
    "holdfast-support",
    "holdfast-completions",
    "holdfast-man",
    "holdfast-demo",
    "holdfast-tunnel",
    "holdfast-key",
    "holdfast-key-gen",
];

pub(super) fn write(directory: &Path) -> Result<u8, Failure> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let names = names(&program);
    pages::write(&program, directory, &|name| sections(name, &names).into_bytes())?;
    fs::write(directory.join(OF_FILE), of_file())?;
    Ok(exit::OK)
}

/// Names of the pages of a command and of those in it.
fn names(command: &Command) -> Vec<String> {
    let own = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    [own].into_iter().chain(shown.flat_map(names)).collect()
}

/// The sections that clap does not know.
fn sections(name: &str, names: &[String]) -> String {
    let mut text = String::from("\n.SH \"EXIT STATUS\"\n");
    let codes = EXIT_CODES.lines().skip(1).collect::<Vec<_>>().join("\n");
    let _ = write!(text, ".nf\n{}\n.fi\n", verbatim(&codes));
    if !WITHOUT_FILES.contains(&name) {
        text += ".SH FILES\n";
        for (place, what) in FILES {
            let _ = write!(text, ".TP\n.I {}\n{}\n", verbatim(place), verbatim(what));
        }
    }
    let parent = name.rsplit_once('-').map(|(parent, _)| parent);
    let is_near = |other: &&String| {
        let is_child = other.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
        let other = other.as_str();
        other != name && (is_child || parent == Some(other) || other == "holdfast")
    };
    let near = names.iter().filter(is_near).map(|other| format!("{other}(1)"));
    let all: Vec<String> = near.chain(["holdfast.toml(5)".to_owned()]).collect();
    let _ = write!(text, ".SH \"SEE ALSO\"\n{}\n", verbatim(&all.join(", ")));
    text
}

/// The page about the file, made of the examples: every setting stands in them, with its default.
fn of_file() -> String {
    let mut text = ".TH holdfast.toml 5\n.SH NAME\nholdfast.toml \\- the file of a group\n\
        .SH DESCRIPTION\nOne TOML file says what a group is; all of its hosts have the same, and each \
        finds its role by its addresses. Paths that are not absolute begin at the file's folder. \
        Nothing in it is guessed: an unknown key, a value out of range or an undefined name is an \
        error with its line and a remedy, which\n.B holdfast config check\ntells, and\n\
        .B holdfast config show --effective\nprints every default. What stands behind # below is a \
        setting with its default, or with one that is possible.\n"
        .to_owned();
    for (what, example) in examples::ALL {
        let _ = write!(text, ".SH \"{}\"\n.nf\n{}.fi\n", what.to_uppercase(), verbatim(example));
    }
    text + ".SH \"SEE ALSO\"\nholdfast(1), holdfast\\-config(1), holdfast\\-check(1)\n"
}

/// A text as troff(1) prints it unchanged.
fn verbatim(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        // A dot or a quote at the begin of a line would be a request.
        let begin = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        let _ = writeln!(out, "{begin}{line}");
    }
    out.truncate(out.len() - usize::from(!text.ends_with('\n') && !out.is_empty()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_page_and_a_purpose() {
        let mut command = Cli::command();
        command.build();
        for verb in command.get_subcommands() {
            assert!(verb.get_about().is_some(), "{} says nothing", verb.get_name());
        }
        let folder = std::env::temp_dir().join(format!("holdfast-man-{}", std::process::id()));
        write(&folder).unwrap();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        for page in fs::read_dir(&folder).unwrap() {
            let name = page.unwrap().file_name().into_string().unwrap();
            let text = read(&name);
            assert!(text.contains("SEE ALSO") && !text.contains(".SH EXTRA"), "{name}");
            assert_eq!(text.contains("EXIT STATUS"), name != OF_FILE, "{name}");
            assert_eq!(text.matches("fenced: this member").count(), usize::from(name != OF_FILE));
        }
        let status = read("holdfast-status.1");
        assert!(status.contains("/run/holdfast/NAME/") && status.contains(".SH FILES"), "{status}");
        let edge = read("holdfast-edge.1");
        assert!(edge.contains("holdfast\\-edge\\-show(1), "), "{edge}");
        assert!(read(OF_FILE).contains("heartbeat_ms = 18"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_troff_would_understand_is_written_so_that_it_does_not() {
        assert_eq!(verbatim(".x\n-a\\\n"), "\\&.x\n\\-a\\e\n");
        assert_eq!(verbatim("a"), "a");
    }
}
