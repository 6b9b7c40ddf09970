//! `test`: asks a running tunnel for a trial, and shows what it found.

use crate::cli::{Failure, FileArgs, say};
use crate::config::Config;
use crate::control;
use crate::status::{State, Status};
use crate::trial::{Found, SECONDS_MAX};
use clap::Args;
use holdfast_program::exit;
use holdfast_report::plot::{Chart, Line};
use rustix::fs::{Access, access};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `test`.
#[derive(Args, Debug)]
pub struct TestArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Seconds of messages, and as many of bulk.
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(SECONDS_MAX)))]
    seconds: u32,
    /// Where the distribution of the round trips is drawn; without it, nowhere.
    #[arg(long, value_name = "FILE.svg")]
    output: Option<PathBuf>,
    /// One JSON object of the schema holdfast.tunnel-test/1.
    #[arg(long)]
    json: bool,
}

/// Runs a trial and prints what it found.
///
/// # Errors
/// If no tunnel answers, its peer is not there, or the file cannot be written.
pub fn run(args: &TestArgs) -> Result<u8, Failure> {
    let config = Config::load(&args.file.path()?)?;
    if let Some(path) = &args.output {
        may_be_written(path)?;
    }
    if let Some(silent) = silent(&control::ask(&config)?) {
        return Err(silent);
    }
    let takes = Duration::from_secs(2 * u64::from(args.seconds) + 10);
    let found: Found = control::talk(&config, &format!("test {}\n", args.seconds), takes)?;
    finish(&found, args.json, args.output.as_deref(), &mut say)
}

/// Says what was found, and draws it then: what cannot be written shall not cost what was measured.
fn finish(
    found: &Found,
    json: bool,
    output: Option<&Path>,
    say: &mut dyn FnMut(&str) -> Result<bool, Failure>,
) -> Result<u8, Failure> {
    let text = if json {
        serde_json::to_string(found).map_err(io::Error::from)? + "\n"
    } else {
        render(found)
    };
    say(&text)?;
    if let Some(path) = output {
        std::fs::write(path, draw(found)).map_err(|error| unwritten(path, &error))?;
    }
    if found.messages_answered > 0 {
        return Ok(exit::OK);
    }
    let message = "the peer was there at the begin, and answered no message\n  remedy: see \
                   `holdfast tunnel status`, which says whether it is there again";
    Err(Failure::new(exit::DEGRADED, message))
}

/// Why nothing is measured where the peer is not heard: all of it would be about nobody.
fn silent(status: &Status) -> Option<Failure> {
    let word = |it: &Option<String>, other: &str| it.clone().unwrap_or_else(|| other.to_owned());
    let reason = word(&status.reason, "nothing of it was heard");
    let remedy = word(&status.remedy, "see `holdfast tunnel status`");
    let message =
        format!("the peer is not there, so nothing was sent: {reason}\n  remedy: {remedy}");
    (status.state != State::Up).then(|| Failure::new(exit::DEGRADED, message))
}

/// Whether a file may be made, which is looked at before anything is measured.
fn may_be_written(path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    let (shown, of) = (path.display(), folder.display());
    if !folder.is_dir() {
        let remedy = format!("make it first, mkdir -p {of}, or name another file by --output");
        let message = format!("{shown}: {of} is no folder\n  remedy: {remedy}");
        return Err(Failure::new(exit::USAGE, message));
    }
    if path.is_dir() {
        let message = format!("{shown} is a folder\n  remedy: --output {shown}/tunnel.svg");
        return Err(Failure::new(exit::USAGE, message));
    }
    let place = if path.exists() { path } else { folder };
    access(place, Access::WRITE_OK).map_err(|error| unwritten(path, &error.into()))
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let remedy = "name by --output a file that this user may write, on a disk that has room";
    let message = format!("{}: {error}\n  remedy: {remedy}", path.display());
    Failure::new(exit::of(error), message)
}

fn render(found: &Found) -> String {
    let ms = |it: f64| if it < 0.0 { "lost".to_owned() } else { format!("{it:.1} ms") };
    let lost = found.messages_sent - found.messages_answered.min(found.messages_sent);
    let bulk = match found.bulk_bytes_per_byte > 0.0 {
        true => format!(
            "{:.1} Mbit/s; {:.2} bytes sent for each",
            found.bulk_bits_per_s / 1e6,
            found.bulk_bytes_per_byte
        ),
        false => "not known: the peer has not said how much of it came".to_owned(),
    };
    let path = match found.loss_sending < 0.0 {
        true => "not known: nothing was answered".to_owned(),
        false => format!(
            "{:.1} % lost there, {:.1} % back",
            found.loss_sending * 100.0,
            found.loss_receiving * 100.0
        ),
    };
    format!(
        "messages   {} sent, {lost} not answered; round trip p50 {}, p99 {}, p99.9 {}; {:.2} bytes sent \
         for each\n\
         bulk       {bulk}\n\
         path       {path}\n",
        found.messages_sent,
        ms(found.rtt_p50_ms),
        ms(found.rtt_p99_ms),
        ms(found.rtt_p999_ms),
        found.messages_bytes_per_byte,
    )
}

fn draw(found: &Found) -> String {
    let count = found.rtt_ms.len().max(1) as f64;
    let answered = found.messages_answered as f64 / (found.messages_sent.max(1) as f64) * 100.0;
    let points = found.rtt_ms.iter().zip(1..);
    let points = points.map(|(ms, number)| (f64::from(number) / count * answered, *ms)).collect();
    Chart {
        title: format!("{} messages through the tunnel", found.messages_sent),
        x_name: "share of the messages, %".to_owned(),
        y_name: "answered within, ms".to_owned(),
        x_range: (0.0, 100.0),
        lines: vec![Line { name: "round trip".to_owned(), points, ..Line::default() }],
        ..Chart::default()
    }
    .to_svg()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(found: &Found, output: Option<&str>) -> (String, Result<u8, Failure>) {
        let mut said = String::new();
        let done = finish(found, false, output.map(Path::new), &mut |text| {
            said += text;
            Ok(true)
        });
        (said, done)
    }

    fn answered() -> Found {
        Found {
            messages_sent: 200,
            messages_answered: 190,
            bulk_bits_per_s: 2e6,
            bulk_bytes_per_byte: 1.5,
            loss_sending: 0.1,
            ..Found::default()
        }
    }

    #[test]
    fn a_picture_without_a_place_is_refused_before_anything_is_measured() {
        let folder = std::env::temp_dir().join(format!("hf-test-{}", std::process::id()));
        let refused = |path: &Path| may_be_written(path).expect_err("no place").to_string();
        let shown = folder.display();
        let told = refused(&folder.join("x.svg"));
        assert!(told.contains(&format!("{shown} is no folder")), "{told}");
        assert!(told.contains(&format!("remedy: make it first, mkdir -p {shown}, or")), "{told}");
        std::fs::create_dir_all(&folder).expect("a folder");
        assert!(refused(&folder).contains("is a folder\n  remedy: --output "));
        may_be_written(&folder.join("x.svg")).expect("a place");
        may_be_written(Path::new("x.svg")).expect("the folder where it is called");
        std::fs::remove_dir_all(folder).expect("a folder");
    }

    #[test]
    fn what_was_measured_is_said_although_it_cannot_be_drawn() {
        let (said, done) = finished(&answered(), Some("/dev/full"));
        assert!(said.contains("200 sent, 10 not answered"), "{said}");
        assert!(said.contains("2.0 Mbit/s") && said.contains("10.0 % lost there"), "{said}");
        let told = done.expect_err("there is no room").to_string();
        assert!(told.starts_with("/dev/full: ") && told.contains("remedy: "), "{told}");
        assert_eq!(finished(&answered(), None).1.expect("it is said"), exit::OK);
    }

    #[test]
    fn of_a_peer_that_is_not_there_nothing_false_is_said() {
        let found = Found { messages_sent: 200, loss_sending: -1.0, ..Found::default() };
        let (said, done) = finished(&found, None);
        assert!(said.contains("200 sent, 200 not answered"), "{said}");
        assert!(!said.contains("% lost") && !said.contains("Mbit/s"), "{said}");
        let told = done.expect_err("nobody answers").to_string();
        assert!(told.contains("answered no message") && told.contains("remedy: "), "{told}");

        let up = Status::example();
        assert!(silent(&up).is_none());
        let waiting = Status {
            state: State::Waiting,
            reason: Some("192.0.2.1:5 does not answer".to_owned()),
            remedy: Some("look there".to_owned()),
            ..up
        };
        let told = silent(&waiting).expect("the peer is not there");
        assert_eq!(told.code, exit::DEGRADED);
        let told = told.to_string();
        assert!(told.contains("192.0.2.1:5 does not answer\n  remedy: look there"), "{told}");
    }
}
