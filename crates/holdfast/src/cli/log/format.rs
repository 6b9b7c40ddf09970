//! How a line of the log looks: for people, for machines, and for the journal, which is told how
//! loud each line is.

use crate::status::rfc3339;
use serde_json::json;
use std::fmt::{self, Write as _};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Names of the group and the role to which all lines belong, once they are known.
static OF: OnceLock<[String; 2]> = OnceLock::new();

/// Says to which group and role the lines belong from now on.
pub fn belong_to(group: &str, role: &str) {
    // There is one daemon in a process.
    let _known = OF.set([group.to_owned(), role.to_owned()]);
}

/// Writes lines.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lines {
    pub is_json: bool,
    /// Whether systemd's journal reads them: it knows the time, and wants levels (sd-daemon(3)).
    pub is_journal: bool,
}

/// Whether standard error is the journal's (systemd.exec(5), `$JOURNAL_STREAM`).
pub fn is_journal() -> bool {
    std::env::var("JOURNAL_STREAM").is_ok_and(|stream| is_stderr(&stream))
}

fn is_stderr(stream: &str) -> bool {
    let Some((device, inode)) = stream.split_once(':') else { return false };
    let stderr = io::stderr().as_fd().try_clone_to_owned().map(std::fs::File::from);
    let found = stderr.and_then(|stderr| stderr.metadata());
    found.is_ok_and(|it| device.parse() == Ok(it.dev()) && inode.parse() == Ok(it.ino()))
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut parts = Parts::default();
        event.record(&mut parts);
        let level = *event.metadata().level();
        let line = match self.is_json {
            true => parts.json(level),
            false => parts.text(),
        };
        match (self.is_journal, self.is_json) {
            // Each line of a text has its level, or has none.
            (true, _) => {
                let mark = priority(level);
                line.lines().try_for_each(|line| writeln!(to, "<{mark}>{line}"))
            }
            (false, true) => writeln!(to, "{line}"),
            (false, false) => {
                let (time, level) = stamp(level, to.has_ansi_escapes());
                writeln!(to, "{time} {level} {line}")
            }
        }
    }
}

/// Time and level before a line for people.
fn stamp(level: Level, is_coloured: bool) -> (String, String) {
    let (time, word) = (rfc3339(SystemTime::now()), format!("{level:>5}"));
    if !is_coloured {
        return (time, word);
    }
    let colour = match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        _ => 34,
    };
    (format!("\x1b[2m{time}\x1b[0m"), format!("\x1b[{colour}m{word}\x1b[0m"))
}

/// As syslog(3) counts.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// The fields of an event.
#[derive(Default)]
struct Parts {
    group: String,
    role: String,
    what: String,
    detail: String,
    /// All others, as `name=value`.
    more: String,
}

impl Parts {
    fn text(&self) -> String {
        let colon = if self.what.is_empty() { "" } else { ": " };
        format!("{}{colon}{}{}", self.what, self.detail, self.more)
    }

    fn json(&self, level: Level) -> String {
        let of = OF.get();
        let known = |own: &str, index: usize| match own {
            "" => of.map_or_else(String::new, |of| of[index].clone()),
            own => own.to_owned(),
        };
        json!({
            "time": rfc3339(SystemTime::now()),
            "level": level.as_str().to_lowercase(),
            "group": known(&self.group, 0),
            "role": known(&self.role, 1),
            "what": self.what,
            "detail": format!("{}{}", self.detail, self.more),
        })
        .to_string()
    }
}

impl Visit for Parts {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "group" => self.group = value.to_owned(),
            "role" => self.role = value.to_owned(),
            "what" => self.what = value.to_owned(),
            "message" => self.detail = value.to_owned(),
            name => {
                // Writing to a string cannot fail.
                let _ = write!(self.more, " {name}={value}");
            }
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// What is written when `log` logs.
    fn written(lines: Lines, log: impl FnOnce()) -> String {
        let text = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&text);
        let writer = move || To(Arc::clone(&to));
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(writer).event_format(lines);
        tracing::subscriber::with_default(subscriber.finish(), log);
        String::from_utf8(text.lock().unwrap().clone()).unwrap()
    }

    struct To(Arc<Mutex<Vec<u8>>>);

    impl io::Write for To {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log() {
        tracing::error!(group = "g", role = "a", what = "state", "backup, diverged:\n\"x\"");
        tracing::warn!(name = 7, "no priority");
    }

    #[test]
    fn people_see_what_happened_and_no_colours() {
        let text = written(Lines::default(), log);
        assert!(text.contains("Z ERROR state: backup, diverged:\n\"x\"\n"), "{text}");
        assert!(text.contains("Z  WARN no priority name=7\n") && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn machines_get_one_object_per_line() {
        let text = written(Lines { is_json: true, ..Lines::default() }, log);
        let all: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(all.len(), 2);
        for (key, value) in [
            ("level", "error"),
            ("group", "g"),
            ("role", "a"),
            ("what", "state"),
            ("detail", "backup, diverged:\n\"x\""),
        ] {
            assert_eq!(all[0][key], value, "{key}");
        }
        assert_eq!((&all[1]["level"], &all[1]["what"]), (&json!("warn"), &json!("")));
        assert!(all[1]["time"].as_str().is_some_and(|time| time.ends_with('Z')));
    }

    #[test]
    fn the_journal_is_told_the_level_of_every_line() {
        let text = written(Lines { is_json: false, is_journal: true }, log);
        assert_eq!(text, "<3>state: backup, diverged:\n<3>\"x\"\n<4>no priority name=7\n");
        let text = written(Lines { is_json: true, is_journal: true }, log);
        assert!(text.starts_with("<3>{") && text.contains("\n<4>{"), "{text}");
    }

    #[test]
    fn the_journal_is_known_by_its_file() {
        let stderr = std::fs::File::from(io::stderr().as_fd().try_clone_to_owned().unwrap());
        let found = stderr.metadata().unwrap();
        assert!(is_stderr(&format!("{}:{}", found.dev(), found.ino())));
        assert!(!is_stderr(&format!("{}:{}", found.dev(), found.ino() + 1)));
        assert!(!is_stderr("nonsense") && !is_stderr(""));
    }
}
