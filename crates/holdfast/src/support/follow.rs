//! What a command becomes: the file that a name means, through scripts and their interpreters,
//! `env` and its like, up to the program that serves.

use super::elf;
use crate::config::Server;
use crate::fingerprint::{find_program, in_directory};
use std::path::{Path, PathBuf};

/// Most steps from a command to its program.
const STEPS_MAX: usize = 8;
/// Most bytes of a script that are read.
const SCRIPT_BYTES_MAX: usize = 1 << 20;
/// Shells, whose scripts may end as another program.
const SHELLS: [&str; 4] = ["sh", "bash", "dash", "ksh"];
/// Programs that become the one that their words name.
const LAUNCHERS: [&str; 7] = ["env", "nice", "ionice", "nohup", "setarch", "chrt", "taskset"];

/// Where a command leads.
#[derive(Debug)]
pub struct Way {
    /// Files on the way, the program last.
    pub files: Vec<PathBuf>,
    /// The command as the last program gets it, as far as that is known.
    pub server: Server,
    /// Content of the last file; empty if it cannot be read.
    pub bytes: Vec<u8>,
    /// Why the way ends before it reaches a program.
    pub lost: Option<Lost>,
}

/// Why no program is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// No program of that name is there.
    Nothing(String),
    Unreadable {
        path: PathBuf,
        error: String,
    },
    /// What is there is a folder, or may not be executed.
    NoProgram(PathBuf),
    /// A script starts what this variable of it holds.
    Unexpanded {
        script: PathBuf,
        word: String,
    },
    /// A script names an interpreter that is not there.
    NoInterpreter {
        script: PathBuf,
        interpreter: String,
    },
    /// A shell's script that does not end in `exec` of the server.
    NoExec(PathBuf),
    /// It goes round, or is longer than is followed.
    TooLong,
    /// Neither a program nor a script.
    Other(PathBuf),
}

/// Follows a server's command.
#[must_use]
pub fn follow(server: &Server) -> Way {
    let mut way = Way { files: Vec::new(), server: server.clone(), bytes: Vec::new(), lost: None };
    for _ in 0..STEPS_MAX {
        match step(&mut way) {
            Ok(Some(command)) => way.server.command = command,
            Ok(None) => return way,
            Err(lost) => {
                way.lost = Some(lost);
                return way;
            }
        }
    }
    way.lost = Some(Lost::TooLong);
    way
}

/// Looks at the next file. What it becomes, if it is not what serves.
fn step(way: &mut Way) -> Result<Option<Vec<String>>, Lost> {
    let words = way.server.command.clone();
    let name = words.first().map_or("", String::as_str);
    let path = find_program(&way.server).ok_or_else(|| nothing(way, name))?;
    way.files.push(path.clone());
    way.bytes = elf::bytes_of(&path)
        .map_err(|error| Lost::Unreadable { path: path.clone(), error: error.to_string() })?;
    if way.bytes.starts_with(b"#!") {
        let script = &way.bytes[..way.bytes.len().min(SCRIPT_BYTES_MAX)];
        return becomes(&path, &String::from_utf8_lossy(script), &words[1..]).map(Some);
    }
    if !way.bytes.starts_with(b"\x7fELF") {
        return Err(Lost::Other(path));
    }
    let base = name.rsplit('/').next().unwrap_or_default();
    Ok(if LAUNCHERS.contains(&base) { launched(&words[1..]) } else { None })
}

/// Why there is no program of that name.
fn nothing(way: &Way, name: &str) -> Lost {
    if let Some(script) = way.files.first().filter(|_| name.contains(['$', '`'])) {
        return Lost::Unexpanded { script: script.clone(), word: name.to_owned() };
    }
    let path = in_directory(&way.server, name);
    match name.contains('/') && path.exists() {
        true => Lost::NoProgram(path),
        false => Lost::Nothing(name.to_owned()),
    }
}

/// What a script with these arguments becomes.
fn becomes(script: &Path, text: &str, rest: &[String]) -> Result<Vec<String>, Lost> {
    let line = text.lines().next().unwrap_or_default().trim_start_matches("#!").trim();
    let (interpreter, option) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    if !Path::new(interpreter).is_file() {
        let (script, interpreter) = (script.to_owned(), interpreter.to_owned());
        return Err(Lost::NoInterpreter { script, interpreter });
    }
    if SHELLS.iter().any(|shell| interpreter.rsplit('/').next() == Some(*shell)) {
        let words = ending(text).ok_or_else(|| Lost::NoExec(script.to_owned()))?;
        return Ok(words.into_iter().flat_map(|word| expanded(word, rest)).collect());
    }
    // The kernel gives what follows the interpreter as one word.
    let words = [interpreter, option.trim()].into_iter().filter(|word| !word.is_empty());
    let words = words.map(str::to_owned).chain([script.display().to_string()]);
    Ok(words.chain(rest.iter().cloned()).collect())
}

/// What a word of a script becomes, as far as that is known: its own arguments are.
fn expanded(word: String, rest: &[String]) -> Vec<String> {
    if word == "$@" || word == "${@}" { rest.to_vec() } else { vec![word] }
}

/// The command that a shell's script ends as, by its last `exec`.
#[must_use]
pub fn ending(script: &str) -> Option<Vec<String>> {
    let last = script.lines().rev().find_map(|line| line.trim().strip_prefix("exec "))?;
    let words = last.split_whitespace().map(|word| word.trim_matches(['"', '\'']).to_owned());
    Some(words.collect())
}

/// The command in a launcher's words: from the first that is neither an option nor an assignment.
/// An option's value that is a word of its own is taken for it, which then leads to nothing.
fn launched(words: &[String]) -> Option<Vec<String>> {
    let is_program = |word: &String| {
        !word.starts_with('-') && !word.contains('=') && word.parse::<u64>().is_err()
    };
    let at = words.iter().position(is_program)?;
    Some(words[at..].to_vec())
}

impl Lost {
    /// What is wrong, and the remedy.
    #[must_use]
    pub fn told(&self) -> (String, String) {
        match self {
            Self::Nothing(name) => (
                format!("`{name}` is no program of this host"),
                "give its path, or install the same package on both members".to_owned(),
            ),
            Self::NoProgram(path) => {
                let why = if path.is_dir() { "it is a folder" } else { "it may not be executed" };
                let remedy = "give the program that serves, by its path or by its name in PATH";
                (format!("{} is no program: {why}", path.display()), remedy.to_owned())
            }
            Self::Unexpanded { script, word } => (
                format!(
                    "{} is a script that starts another program, `{word}`, which cannot be seen from \
                     here",
                    script.display()
                ),
                "give that program itself, with its arguments, in place of the script".to_owned(),
            ),
            Self::Unreadable { path, error } => (
                format!("{} cannot be read: {error}", path.display()),
                "ask as a user who may read it".to_owned(),
            ),
            Self::NoInterpreter { script, interpreter } => (
                format!(
                    "{} names {interpreter} as its interpreter, which is not there",
                    script.display()
                ),
                "install it, or name another in its first line".to_owned(),
            ),
            Self::NoExec(script) => (
                format!(
                    "{} is a script that does not end as the server (exec): the server is a child \
                     of the process that is started",
                    script.display()
                ),
                "write `exec` before the server's command in it".to_owned(),
            ),
            Self::TooLong => (
                format!("the command leads through more than {STEPS_MAX} scripts"),
                "give the program that serves".to_owned(),
            ),
            Self::Other(path) => (
                format!("{} is neither a program nor a script", path.display()),
                "give the program that serves; a script begins with #! and its interpreter"
                    .to_owned(),
            ),
        }
    }

    /// Whether a server that begins like this cannot be protected, as opposed to one of which
    /// nothing is known.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::Nothing(_) | Self::NoProgram(_) | Self::NoInterpreter { .. } | Self::Other(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn of(command: &str) -> Way {
        follow(&super::super::server_of(words(command)))
    }

    #[test]
    fn launchers_and_scripts_lead_to_their_programs() {
        let folder = std::env::temp_dir().join(format!("holdfast-follow-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let script = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path.display().to_string()
        };
        let last = |way: &Way| way.files.last().unwrap().file_name().unwrap().to_owned();
        let way = of("env -i A=b nice -n 5 sleep 1");
        assert_eq!((last(&way), way.lost), ("sleep".into(), None));
        assert_eq!(way.server.command, words("sleep 1"));
        let by_env = script("by-env", "#!/usr/bin/env sleep\n");
        let way = of(&by_env);
        assert_eq!((last(&way), way.files.len()), ("sleep".into(), 3));
        assert_eq!(way.server.command, ["sleep".to_owned(), by_env]);
        let way = of(&script("shell", "#!/bin/sh\nulimit -n 9\nexec 'sleep' 1\n"));
        assert_eq!((last(&way), way.server.command), ("sleep".into(), words("sleep 1")));
        for (text, lost) in [
            ("#!/bin/sh\nsleep 1\n", "does not end as the server"),
            ("#!/none/x\n", "/none/x as its interpreter"),
            ("sleep 1\n", "neither a program nor a script"),
            ("#!/bin/sh\nexec $LIB/$APP $FLAGS \"$@\"\n", "starts another program, `$LIB/$APP`"),
            ("#!/bin/sh\nexec nice \"$APP\"\n", "starts another program, `$APP`"),
        ] {
            let way = of(&script("lost", text));
            assert!(way.lost.as_ref().is_some_and(|it| it.told().0.contains(lost)), "{way:?}");
        }
        let way = of(&format!("{} sleep 7", script("arguments", "#!/bin/sh\nexec \"$@\"\n")));
        assert_eq!((last(&way), way.server.command), ("sleep".into(), words("sleep 7")));
        for (name, why) in [("/etc/passwd", "may not be executed"), ("/etc", "is a folder")] {
            let (found, remedy) = of(name).lost.expect("no program").told();
            assert!(found.contains("is no program") && found.contains(why), "{found}");
            assert!(!remedy.contains("package"), "{remedy}");
        }
        let round = folder.join("round").display().to_string();
        script("round", &format!("#!/bin/sh\nexec {round}\n"));
        assert_eq!(of(&round).lost, Some(Lost::TooLong));
        assert_eq!(of("none-such").lost, Some(Lost::Nothing("none-such".to_owned())));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
