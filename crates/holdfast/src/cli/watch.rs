//! The verbs that ask a running daemon.

use super::args::StatusArgs;
use super::group::{Daemon, load_of_daemon};
use super::{Failure, print};
use crate::admin::{self, Request};
use crate::config::GroupFile;
use crate::status::{State, Status, Style, exit, rfc3339};
use serde_json::Value;
use std::io::{self, ErrorKind, Write as _};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// Time between two looks of `--wait` and `--follow`.
pub(super) const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// Time for which a group must be shown as protected before `--wait protected` believes it. A fault
/// of a moment ago may not be noticed yet: within this time everything that `protected` says is
/// proved again, the slowest part of it (a frame of the edge that is missed) after 3 s.
const PROVEN_WITHIN: Duration = Duration::from_millis(3500);
/// The same for silence, in heartbeats: three are missed, and late ones waited for; between edges of
/// strings it is ten, which the longest ones also take with the time above.
const BEATS_MISSED: u32 = 7;
/// Time for which a group must be lost for good before `--wait protected` gives
/// up.
const LOST_LASTS: Duration = Duration::from_millis(500);
/// Sequence that erases the screen and goes to its corner.
const CLEAR: &str = "\x1b[2J\x1b[H";

pub(super) fn status(args: &StatusArgs, style: Style) -> Result<u8, Failure> {
    let (file, role) = load_of_daemon(&args.group)?;
    let daemon = Daemon::of(&file, &role);
    if args.watch {
        return watch(&daemon, args.json, style);
    }
    let until = Instant::now() + Duration::from_secs(args.timeout);
    let mut wait = args.wait.map(|wanted| Wait::new(wanted, proven_within(&file), until));
    let status = loop {
        let answer = fetch(&daemon);
        let told = answer.as_ref().ok();
        if wait.as_mut().is_none_or(|wait| wait.is_over(told, Instant::now())) {
            break answer?;
        }
        sleep(LOOK_PERIOD);
    };
    print(&show(&status, args.json, style)?)?;
    let Some(wanted) = args.wait.filter(|wanted| status.state != *wanted) else {
        return Ok(if args.wait.is_some() { exit::OK } else { status.exit_code() });
    };
    let why = match Instant::now() >= until {
        true => format!("not {wanted} after {} s", args.timeout),
        false => format!("it will not be {wanted} by itself"),
    };
    let _nobody_reads = writeln!(io::stderr(), "holdfast: {why}: see the state above");
    Ok(status.exit_code().max(exit::DEGRADED))
}

/// Within how long a fault of this moment is shown.
fn proven_within(file: &GroupFile) -> Duration {
    PROVEN_WITHIN + file.heartbeat() * BEATS_MISSED
}

/// A wait for a state.
struct Wait {
    wanted: State,
    /// How long the state must last to be believed.
    lasts: Duration,
    until: Instant,
    /// Since when the daemon has shown it.
    reached: Option<Instant>,
    /// Since when it can never be reached.
    lost: Option<Instant>,
}

impl Wait {
    fn new(wanted: State, proven_within: Duration, until: Instant) -> Self {
        // Any other state is a report of what was found: there is nothing to be proved.
        let lasts = if wanted == State::Protected { proven_within } else { Duration::ZERO };
        Self { wanted, lasts, until, reached: None, lost: None }
    }

    /// Takes the next answer (`None`: nobody answers); whether to wait no longer. A state that is
    /// reached in time may prove itself after that time.
    fn is_over(&mut self, answer: Option<&Status>, now: Instant) -> bool {
        let since = |holds: bool, before: Option<Instant>| holds.then(|| before.unwrap_or(now));
        self.reached = since(answer.is_some_and(|it| it.state == self.wanted), self.reached);
        if self.reached.is_none() {
            // What is shown after something else is news, and not what a daemon still says that has
            // not noticed a fault.
            self.lasts = Duration::ZERO;
        }
        let is_lost =
            self.wanted == State::Protected && answer.is_some_and(Status::is_lost_for_good);
        // A daemon that is just being restarted is not the one that is waited for.
        self.lost = since(is_lost, self.lost);
        let lasted = |since: Option<Instant>, long| since.is_some_and(|since| now - since >= long);
        lasted(self.reached, self.lasts)
            || lasted(self.lost, LOST_LASTS)
            || self.reached.is_none() && now >= self.until
    }
}

/// Shows the status again and again; ends only with the terminal or by a
/// signal.
fn watch(daemon: &Daemon, json: bool, style: Style) -> Result<u8, Failure> {
    let clear = if style == Style::Colour && !json { CLEAR } else { "" };
    loop {
        let text = match fetch(daemon) {
            Ok(status) => show(&status, json, style)?,
            // A daemon that is restarted is watched again.
            Err(failure) if failure.code == exit::UNREACHABLE => format!("{failure}\n"),
            Err(failure) => return Err(failure),
        };
        // If blocks follow each other, each says its time.
        let time = if clear.is_empty() && !json {
            rfc3339(SystemTime::now()) + "\n"
        } else {
            String::new()
        };
        if !print(&format!("{clear}{time}{text}"))? {
            return Ok(exit::OK);
        }
        sleep(WATCH_PERIOD);
    }
}

fn show(status: &Status, json: bool, style: Style) -> Result<String, Failure> {
    Ok(if json { serde_json::to_string(status)? + "\n" } else { status.render(style) })
}

pub(super) fn fetch(daemon: &Daemon) -> Result<Status, Failure> {
    Ok(serde_json::from_value(ask(daemon, Request::Status)?)?)
}

pub(super) fn ask(daemon: &Daemon, request: Request) -> Result<Value, Failure> {
    let path = daemon.socket.as_path();
    let looks = request.only_looks();
    let answer = match admin::ask(path, request.clone()) {
        // Who may not change anything may still look.
        Err(denied) if looks && denied.kind() == ErrorKind::PermissionDenied => {
            match admin::ask(&admin::watch_socket(path), request) {
                Err(absent) if absent.kind() == ErrorKind::NotFound => Err(denied),
                answer => answer,
            }
        }
        answer => answer,
    };
    let answer = answer.map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => Failure::not_permitted(format!(
            "{}: {error}\n  remedy: {}",
            path.display(),
            match looks {
                true => admin::who_may_look(path),
                false => "ask as root: the socket belongs to the daemon's user".to_owned(),
            }
        )),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::unreachable(format!(
            "the daemon at {} does not answer yet\n  remedy: ask again: it may be loading its programs, which takes seconds on a busy machine",
            path.display()
        )),
        _ => Failure::unreachable(format!(
            "no daemon answers at {}: {error}\n  remedy: start it with: holdfast run --config {}",
            path.display(),
            daemon.file.display()
        )),
    })?;
    match answer["error"].as_str() {
        Some(reason) => Err(Failure::degraded(reason.to_owned())),
        None => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a wait for `protected` is over after each of these answers, which come every second.
    fn over(timeout_s: u64, answers: &[Option<State>]) -> Vec<bool> {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let mut wait = Wait::new(State::Protected, 3 * second, begun + timeout_s as u32 * second);
        let status = |state| Status { state, ..Status::new("g", "a") };
        let each = answers.iter().zip(0..);
        each.map(|(state, at)| wait.is_over(state.map(status).as_ref(), begun + at * second))
            .collect()
    }

    #[test]
    fn who_starts_the_daemon_is_told_with_which_file() {
        let [socket, file] = ["/none/a.sock", "/none/demo.toml"].map(Into::into);
        let failure = fetch(&Daemon { socket, file }).expect_err("nobody is there").to_string();
        assert!(failure.ends_with("holdfast run --config /none/demo.toml"), "{failure}");
    }

    #[test]
    fn protected_is_believed_when_it_has_been_proved_again() {
        let (yes, no) = (Some(State::Protected), Some(State::Waiting));
        assert_eq!(over(9, &[yes, yes, yes, yes]), [false, false, false, true]);
        // The fault was there before the question, and is noticed after it; what follows is news.
        assert_eq!(over(9, &[yes, yes, no, yes]), [false, false, false, true]);
        assert_eq!(over(9, &[yes, yes, None, no]), [false; 4], "the daemon has ended");
        // Nobody who waits for a start waits longer than for that.
        assert_eq!(over(9, &[None, no, yes]), [false, false, true]);
        // What is shown in time may prove itself later, and fail to.
        assert_eq!(over(1, &[yes, yes, yes, yes]), [false, false, false, true]);
        assert_eq!(over(1, &[yes, yes, no]), [false, false, true]);
        assert_eq!(over(0, &[no]), [true]);
        let now = Instant::now();
        let mut other = Wait::new(State::Waiting, Duration::from_secs(3), now);
        assert!(other.is_over(Some(&Status::new("g", "a")), now), "there is nothing to prove");
    }
}
