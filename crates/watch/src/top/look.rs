//! What a daemon answers: one look at it, and a thread that looks again and again.

use super::clean;
use holdfast::admin::{self, Event, Request};
use holdfast::status::{Role, Status, exit};
use serde::Deserialize;
use serde_json::Value;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::thread::{Builder, sleep};
use std::time::Duration;

/// All that a daemon told at one moment.
#[derive(Clone, Debug)]
pub struct Seen {
    pub status: Status,
    /// Events that were not known before, oldest first.
    pub events: Vec<Event>,
    /// Whether they are the first ones of this life of the daemon.
    pub is_new_life: bool,
    /// What an edge serves.
    pub edge: Option<EdgeSeen>,
}

/// Why a daemon told nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    pub reason: String,
    pub remedy: String,
    /// The exit code of a verb that meets this.
    pub code: u8,
}

/// Of an edge's answer (`holdfast.edge/1`), what is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct EdgeSeen {
    #[serde(default)]
    pub services: Vec<Value>,
    #[serde(default)]
    pub members: Vec<EdgeMember>,
    #[serde(default)]
    pub flows: Flows,
}

/// A member, a host server or a string, as its edge sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct EdgeMember {
    pub name: String,
    #[serde(default)]
    pub weight: Option<u64>,
    #[serde(default)]
    pub flows: Option<u64>,
}

/// An edge's table of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Flows {
    #[serde(default)]
    pub count: u64,
    #[serde(default)]
    pub max: u64,
}

impl EdgeSeen {
    /// The addresses that are served, in words.
    #[must_use]
    pub fn services(&self) -> String {
        let of = |it: &Value| it.as_str().or_else(|| it["address"].as_str()).map(str::to_owned);
        self.services.iter().filter_map(of).collect::<Vec<_>>().join(", ")
    }
}

/// Looks at one daemon, and remembers which of its events are known.
#[derive(Debug, Default)]
pub struct Looker {
    socket: PathBuf,
    next_event: u64,
    /// The life of the daemon that numbers its events.
    life: Option<Value>,
}

impl Looker {
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), ..Self::default() }
    }

    /// Asks for all that is shown.
    ///
    /// # Errors
    /// Why there is no answer, with what to do about it.
    pub fn look(&mut self) -> Result<Seen, Away> {
        let status: Status = told(self.ask(Request::Status)?)?;
        let (events, is_new_life) = self.events()?;
        let is_edge = status.role == Role::Edge;
        // What an edge serves is worth less than that it answers.
        let edge = if is_edge { self.ask(Request::Show).and_then(told).ok() } else { None };
        Ok(Seen { status, events, is_new_life, edge })
    }

    fn events(&mut self) -> Result<(Vec<Event>, bool), Away> {
        let mut answer = self.ask(Request::Events { since: self.next_event })?;
        let life = answer["life"].take();
        let is_new_life = self.life.as_ref() != Some(&life);
        if is_new_life && self.next_event > 0 {
            // Another life counts its events anew.
            answer = self.ask(Request::Events { since: 0 })?;
        }
        self.life = Some(life);
        let events: Vec<Event> = told(answer["events"].take())?;
        let before = if is_new_life { 0 } else { self.next_event };
        self.next_event = events.last().map_or(before, |it| it.number.saturating_add(1));
        Ok((events, is_new_life))
    }

    fn ask(&self, request: Request) -> Result<Value, Away> {
        let path = self.socket.display();
        let away = |reason: String, remedy: &str, code| Away {
            reason: clean::text(&reason),
            remedy: remedy.to_owned(),
            code,
        };
        let answer = admin::ask(&self.socket, request).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => away(
                format!("{path}: {error}"),
                "ask as root: the socket belongs to the daemon's user",
                exit::NOT_PERMITTED,
            ),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => away(
                format!("the daemon at {path} does not answer yet"),
                "it is asked again; if that lasts, look at its log and at the host's load",
                exit::UNREACHABLE,
            ),
            _ => away(
                format!("no daemon answers at {path}: {error}"),
                "start it with: holdfast run --config FILE",
                exit::UNREACHABLE,
            ),
        })?;
        match answer["error"].as_str() {
            Some(refused) => Err(away(
                format!("the daemon refuses to tell: {refused}"),
                "use the program of its release",
                exit::DEGRADED,
            )),
            None => Ok(clean::value(answer)),
        }
    }
}

fn told<T: for<'de> Deserialize<'de>>(answer: Value) -> Result<T, Away> {
    serde_json::from_value(answer).map_err(|error| Away {
        reason: clean::text(&format!("the daemon's answer is not understood: {error}")),
        remedy: "use the program of its release".to_owned(),
        code: exit::DEGRADED,
    })
}

/// What a thread that looks has found, with the number of its daemon.
pub type News = (usize, Result<Seen, Away>);

/// Looks at a daemon every `interval` from a thread of its own, until nobody takes the news any
/// more: a daemon that does not answer for a while delays neither keys nor other groups.
///
/// # Errors
/// If there can be no thread.
pub fn keep_looking(
    number: usize,
    mut looker: Looker,
    interval: Duration,
    to: Sender<News>,
) -> std::io::Result<()> {
    let name = format!("look {number}");
    let thread = Builder::new().name(name).spawn(move || {
        while to.send((number, looker.look())).is_ok() {
            sleep(interval);
        }
    });
    thread.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast::admin::{AdminSocket, Events, refusal};
    use serde_json::json;

    /// Answers in a daemon's place while `work` asks.
    fn with_daemon<T: Send>(
        socket: &mut AdminSocket,
        events: &Events,
        status: &Value,
        work: impl FnOnce() -> T + Send,
    ) -> T {
        std::thread::scope(|scope| {
            let asks = scope.spawn(work);
            while !asks.is_finished() {
                socket.serve(|request| match request {
                    Request::Status => status.clone(),
                    Request::Events { since } => events.answer(since),
                    _ => refusal("not here"),
                });
                sleep(Duration::from_millis(1));
            }
            asks.join().expect("it asks")
        })
    }

    #[test]
    fn events_are_told_once_and_anew_by_another_life() {
        let folder = std::env::temp_dir().join(format!("holdfast-look-{}", std::process::id()));
        let path = folder.join("a.sock");
        let mut looker = Looker::new(&path);
        let away = looker.look().expect_err("nobody is there");
        assert_eq!((away.code, away.remedy.contains("holdfast run")), (exit::UNREACHABLE, true));
        let mut socket = AdminSocket::bind(&path).unwrap();
        let mut events = Events::default();
        events.add("started", "with \x1b[31mcolours");
        let status = serde_json::to_value(Status::new("g", "a")).unwrap();
        let seen = with_daemon(&mut socket, &events, &status, || looker.look()).unwrap();
        assert!(seen.is_new_life && seen.edge.is_none());
        assert_eq!(seen.events[0].detail, "with �[31mcolours");
        let seen = with_daemon(&mut socket, &events, &status, || looker.look()).unwrap();
        assert!(!seen.is_new_life && seen.events.is_empty());
        let mut second = Events::default();
        second.add("started", "again");
        let seen = with_daemon(&mut socket, &second, &status, || looker.look()).unwrap();
        assert!(seen.is_new_life);
        assert_eq!(seen.events.len(), 1);
        let strange = json!({ "schema": "holdfast.status/9" });
        let away = with_daemon(&mut socket, &second, &strange, || looker.look()).unwrap_err();
        assert!(away.reason.contains("not understood"), "{away:?}");
        drop(socket);
        let _ = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn services_of_all_kinds_of_edges_have_addresses() {
        let of = |services| EdgeSeen { services, ..EdgeSeen::default() }.services();
        assert_eq!(
            of(vec![json!("10.9.0.100:6379"), json!("[fd00::1]:80")]),
            "10.9.0.100:6379, [fd00::1]:80"
        );
        assert_eq!(of(vec![json!({ "address": "10.9.0.100:80", "members": [] })]), "10.9.0.100:80");
    }
}
