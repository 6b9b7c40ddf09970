//! The socket at which a running tunnel answers, and who asks there. A question is a line, the answer
//! a JSON object. Before it answers, the tunnel asks its peer whether it is there.

use crate::cli::Failure;
use crate::config::Config;
use crate::status::Status;
use anyhow::{Context as _, Result};
use holdfast_program::exit;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest question.
const QUESTION_BYTES_MAX: usize = 32;
/// Most clients at once; further ones wait.
const CLIENTS_MAX: usize = 16;
/// How long the answer waits for the peer's.
pub const PROBED_WITHIN: Duration = Duration::from_millis(1200);
/// How long a client may take for its question.
const ASKED_WITHIN: Duration = Duration::from_secs(2);
/// Most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The listening socket with its clients.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    clients: Vec<Client>,
}

struct Client {
    stream: UnixStream,
    came: Duration,
    question: Vec<u8>,
    asks: Option<Question>,
}

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    Status,
    /// A trial with so many seconds of each kind.
    Test(u32),
}

impl Question {
    fn read(line: &[u8]) -> Option<Self> {
        match std::str::from_utf8(line).ok()?.split_once(' ') {
            None => (line == b"status").then_some(Self::Status),
            Some(("test", seconds)) => seconds.parse().ok().map(Self::Test),
            Some(_) => None,
        }
    }
}

impl Control {
    /// Listens, in the place of what an earlier life left there: the caller has the lock.
    ///
    /// # Errors
    /// If it cannot.
    pub fn open(config: &Config) -> Result<Self> {
        let path = config.socket();
        let unusable = || {
            let shown = path.display();
            format!(
                "the socket {shown} cannot be made (remedy: choose another run_dir in [tunnel])"
            )
        };
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(unusable);
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).with_context(unusable)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path, clients: Vec::new() })
    }

    /// What is to be watched.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = (self.clients.len() < CLIENTS_MAX).then(|| self.listener.as_fd());
        let waiting = self.clients.iter().filter(|client| !client.has_asked());
        listener.into_iter().chain(waiting.map(|client| client.stream.as_fd()))
    }

    /// Takes new clients and questions; those that have come.
    pub fn take(&mut self, now: Duration) -> Vec<Question> {
        while self.clients.len() < CLIENTS_MAX
            && let Ok((stream, _)) = self.listener.accept()
        {
            if stream.set_nonblocking(true).is_ok() {
                self.clients.push(Client { stream, came: now, question: Vec::new(), asks: None });
            }
        }
        let mut questions = Vec::new();
        self.clients.retain_mut(|client| {
            let had = client.has_asked();
            let stays = client.read() && (client.has_asked() || now < client.came + ASKED_WITHIN);
            questions.extend(client.asks.filter(|_| !had));
            stays
        });
        questions
    }

    /// Whether somebody waits for the state.
    pub fn is_asked_for_status(&self) -> bool {
        self.clients.iter().any(|client| client.asks == Some(Question::Status))
    }

    /// When somebody has waited long enough.
    pub fn wake_at(&self) -> Option<Duration> {
        let until = |client: &Client| match client.asks {
            Some(Question::Status) => Some(client.came + PROBED_WITHIN),
            Some(Question::Test(_)) => None,
            None => Some(client.came + ASKED_WITHIN),
        };
        self.clients.iter().filter_map(until).min()
    }

    /// Answers whoever has waited for the state long enough, or whose question the peer has answered
    /// since.
    pub fn answer(&mut self, heard_at: Option<Duration>, now: Duration, answer: &str) {
        self.answer_those(answer, |client| {
            let is_heard = heard_at.is_some_and(|it| it >= client.came);
            client.asks == Some(Question::Status)
                && (is_heard || now >= client.came + PROBED_WITHIN)
        });
    }

    /// Answers all who wait for a trial.
    pub fn answer_tests(&mut self, answer: &str) {
        self.answer_those(answer, |client| matches!(client.asks, Some(Question::Test(_))));
    }

    fn answer_those(&mut self, answer: &str, is_due: impl Fn(&Client) -> bool) {
        self.clients.retain_mut(|client| {
            if is_due(client) {
                // It fits the socket's buffer; who reads too slowly asks again.
                let _ = client.stream.write_all(answer.as_bytes());
                return false;
            }
            true
        });
    }

    /// Removes the socket's file.
    pub fn close(&self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

impl Client {
    fn has_asked(&self) -> bool {
        self.asks.is_some()
    }

    /// Reads its question; whether it still can be one.
    fn read(&mut self) -> bool {
        if self.has_asked() {
            return true;
        }
        let mut bytes = [0; QUESTION_BYTES_MAX];
        let room = bytes.len() - self.question.len();
        match self.stream.read(&mut bytes[..room]) {
            Ok(0) => false,
            Ok(length) => {
                self.question.extend_from_slice(&bytes[..length]);
                let Some(line) = self.question.strip_suffix(b"\n") else {
                    return self.question.len() < QUESTION_BYTES_MAX;
                };
                self.asks = Question::read(line);
                self.has_asked()
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

/// Whether the tunnel of a file runs, or may: only its user may ask.
pub fn is_running(config: &Config) -> bool {
    let asked = UnixStream::connect(config.socket());
    asked.map_or_else(|error| error.kind() == io::ErrorKind::PermissionDenied, |_| true)
}

/// Asks the running tunnel of a file for its state.
///
/// # Errors
/// If none answers, with the remedy.
pub fn ask(config: &Config) -> Result<Status, Failure> {
    talk(config, "status\n", PROBED_WITHIN + Duration::from_secs(3))
}

/// Asks the running tunnel of a file something.
///
/// # Errors
/// If none answers, with the remedy.
pub fn talk<T: DeserializeOwned>(
    config: &Config,
    question: &str,
    takes: Duration,
) -> Result<T, Failure> {
    let path = config.socket();
    let shown = path.display();
    let answer = exchange(&path, question, takes).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => Failure::new(
            exit::NOT_PERMITTED,
            format!("{shown}: {error}\n  remedy: ask as the tunnel's user, probably root"),
        ),
        _ => Failure::new(
            exit::UNREACHABLE,
            format!(
                "no tunnel answers at {shown}: {error}\n  remedy: start it with: holdfast tunnel up \
                 --config {}",
                config.path.display()
            ),
        ),
    })?;
    serde_json::from_str(&answer).map_err(|error| {
        let message = format!(
            "the tunnel at {shown} is of another release: {error}\n  remedy: end it, and start it with \
             this release: holdfast tunnel up --config {}",
            config.path.display()
        );
        Failure::new(exit::DEGRADED, message)
    })
}

fn exchange(path: &Path, question: &str, takes: Duration) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(takes))?;
    stream.write_all(question.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    if answer.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_tunnel::secure::SecretKey;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_line_is_a_question_or_none(line in prop::collection::vec(any::<u8>(), 0..40)) {
            let _none = Question::read(&line);
            prop_assert_eq!(Question::read(&[b"status", &line[..]].concat()).is_some(), line.is_empty());
        }
    }

    fn listen() -> (Control, PathBuf) {
        let folder = std::env::temp_dir().join(format!("hf-control-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let peer = SecretKey::from_random([5; 32]).public();
        let text = format!(
            "[tunnel]\nkey = \"a\"\nmode = \"udp\"\nforward = [\"udp 127.0.0.1:53 -> 10.0.0.5:53\"]\n\
             run_dir = \"{}\"\n[peer]\nkey = \"{peer}\"\naddress = \"192.0.2.1:5\"\n",
            folder.display()
        );
        let config =
            Config::parse(Path::new("/etc/holdfast/tunnel/x.toml"), &text).expect("a file");
        (Control::open(&config).expect("a socket"), folder)
    }

    /// Clients that say nothing, nonsense, too much, or half of a question: they are forgotten, there
    /// are never more than may be, and who asks properly is answered.
    #[test]
    fn clients_that_do_not_ask_properly_keep_nobody_waiting() {
        let (mut control, folder) = listen();
        let place = control.path.clone();
        let connect = || UnixStream::connect(&place).expect("a connection");
        let silent: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| connect()).collect();
        assert!(control.take(Duration::ZERO).is_empty());
        let mut good = connect();
        good.write_all(b"status\n").expect("to ask");
        assert!(control.take(Duration::ZERO).is_empty(), "there is no room");
        assert_eq!(control.clients.len(), CLIENTS_MAX);
        // Those that have said nothing are gone, and the next one is taken in.
        let later = ASKED_WITHIN;
        assert_eq!(control.wake_at(), Some(later));
        control.take(later);
        for nonsense in [&b"\xff\n"[..], &[b'x'; 100], b"test x\n", b"test -1\n", b"stat"] {
            connect().write_all(nonsense).expect("to say it");
        }
        assert_eq!(control.take(later), [Question::Status]);
        control.take(later);
        assert_eq!(control.clients.len(), 1, "who hung up, or asked nonsense, is gone");
        control.answer(Some(later), later, "{}");
        let mut answer = String::new();
        good.read_to_string(&mut answer).expect("an answer");
        assert_eq!((answer.as_str(), silent.len()), ("{}", CLIENTS_MAX));
        std::fs::remove_dir_all(folder).expect("a folder");
    }
}
