//! The admin socket: one line of JSON asks, and one line answers.
//!
//! The daemon's side is one descriptor in its event loop and never blocks; the
//! other side is what the verbs use.

mod events;

pub use events::{EVENTS_MAX, Event, Events};

use crate::lock;
use crate::poll::{Epoll, Interest, Ready};
use crate::run_dir;
use holdfast_linux::bpf::mend_pins;
use holdfast_linux::epoll::Timer;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most clients at a time; one more is closed at once.
pub const CLIENTS_MAX: usize = 16;
/// Longest request line, in bytes.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// The schema of an answer to [`Request::Show`].
pub const EDGE_SCHEMA: &str = "holdfast.edge/1";
/// Longest answer that a verb accepts, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Longest time for which a verb waits for a daemon.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Time after which a host that is out of descriptors or memory is asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// Silence after which a client makes room for another one.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// Error of a second daemon.
const RUNS_ALREADY: &str = "a daemon with this role runs already\n  remedy: `holdfast status` shows it, and \
     `holdfast down --stop` ends it";
const LISTENER: u64 = u64::MAX;
const PAUSE_OVER: u64 = u64::MAX - 1;
const LOOK: u64 = u64::MAX - 2;
/// Time between a daemon's looks at whether verbs still find it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    Status,
    /// Events with a number of at least `since`.
    Events {
        #[serde(default)]
        since: u64,
    },
    /// Let no member speak (edge only), until [`Request::Unfence`].
    Fence {
        /// Whether it lasts only until a backup takes over, or the daemon ends.
        #[serde(default)]
        until_takeover: bool,
    },
    /// Undo `Fence`.
    Unfence,
    /// Makes the primary's backup take over, as planned, and the primary its backup (a
    /// protected primary only).
    Switchover {
        /// Whether the primary's daemon ends instead, once the other member has
        /// taken over.
        #[serde(default)]
        leaves: bool,
    },
    /// An operator says that the other member's host is off, and stays so (a member without an edge
    /// and without a third party only).
    Takeover,
    /// What the edge serves: one object of the schema [`EDGE_SCHEMA`].
    Show,
    /// Where a packet would go.
    Trace(TraceRequest),
    /// Gives the member no new connections, or (`end`) some again.
    Drain {
        name: String,
        #[serde(default)]
        end: bool,
    },
}

/// The packet that a [`Request::Trace`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub udp: bool,
    pub syn: bool,
    pub payload_bytes: u16,
}

/// The refusal of a switchover, or a takeover by hand, by anything but a member.
pub const NO_PRIMARY: &str = "only a primary hands over; ask on the primary's host";

/// An answer that says why there is none.
#[must_use]
pub fn refusal(reason: &str) -> Value {
    json!({ "error": reason })
}

/// The daemon's side of the socket.
#[derive(Debug)]
pub struct AdminSocket {
    listener: UnixListener,
    /// Held for as long as the daemon lives: its holder owns the socket's file.
    lock: File,
    /// Device and number of the socket's file.
    place: (u64, u64),
    epoll: Epoll,
    /// Rings when the listening socket is watched again.
    pause: Timer,
    /// Rings when it looks for its own files.
    look_timer: Timer,
    clients: [Option<Client>; CLIENTS_MAX],
    ready: Vec<Ready>,
    path: PathBuf,
    /// What this daemon has pinned lies there.
    pins: Option<PathBuf>,
}

/// What a daemon has found when it looked for its own files.
#[derive(Debug, Default)]
pub struct Look {
    /// Somebody had removed some, and they are there again.
    pub mended: bool,
    /// Why some are not.
    pub lost: Option<String>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// When it came, or was last served.
    served: Instant,
}

impl AdminSocket {
    /// Listens at `path`, for its owner only; a socket that a dead daemon left
    /// there is replaced.
    ///
    /// # Errors
    /// `AddrInUse` if a living daemon serves it; else as `mkdir` and `bind`.
    pub fn bind(path: &Path) -> io::Result<Self> {
        Self::bind_at(path).map_err(|error| {
            let remedy = match error.kind() {
                ErrorKind::PermissionDenied => "; a daemon runs as root",
                _ => "",
            };
            io::Error::new(error.kind(), format!("{}: {error}{remedy}", path.display()))
        })
    }

    fn bind_at(path: &Path) -> io::Result<Self> {
        make_folder(path)?;
        let in_use = || io::Error::new(ErrorKind::AddrInUse, RUNS_ALREADY);
        // Two daemons may start at once: without the lock, each could take the
        // other's socket for one that a dead daemon left.
        let lock = lock::exclusive(&path.with_extension("lock"))?.ok_or_else(in_use)?;
        if UnixStream::connect(path).is_ok() {
            return Err(in_use());
        }
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = listen(path)?;
        let (epoll, pause, look_timer) = (Epoll::new()?, Timer::new()?, Timer::new()?);
        epoll.add(&listener, LISTENER, Interest::Read)?;
        epoll.add(&pause, PAUSE_OVER, Interest::Rung)?;
        epoll.add(&look_timer, LOOK, Interest::Rung)?;
        look_timer.set(LOOK_EVERY)?;
        Ok(Self {
            listener,
            lock,
            place: lock::place(&std::fs::metadata(path)?),
            epoll,
            pause,
            look_timer,
            clients: Default::default(),
            ready: Vec::new(),
            path: path.to_owned(),
            pins: None,
        })
    }

    /// Looks for what this daemon pins below `pin_dir`, too.
    #[must_use]
    pub fn with_pins(mut self, pin_dir: PathBuf) -> Self {
        self.pins = Some(pin_dir);
        self
    }

    /// Listens at its path again, and locks it, if somebody has removed the files;
    /// true if so.
    ///
    /// # Errors
    /// `AddrInUse` if another daemon has taken the place; else as [`Self::bind`].
    fn mend(&mut self) -> io::Result<bool> {
        let lock_path = self.path.with_extension("lock");
        let is_locked = lock::is_at(&self.lock, &lock_path);
        let found = std::fs::symlink_metadata(&self.path).map(|found| lock::place(&found));
        if is_locked && found.is_ok_and(|place| place == self.place) {
            return Ok(false);
        }
        make_folder(&self.path)?;
        if !is_locked {
            self.lock = lock::exclusive(&lock_path)?.ok_or(ErrorKind::AddrInUse)?;
        }
        let _absent = std::fs::remove_file(&self.path);
        let listener = listen(&self.path)?;
        self.epoll.add(&listener, LISTENER, Interest::Read)?;
        self.place = lock::place(&std::fs::metadata(&self.path)?);
        self.listener = listener;
        Ok(true)
    }

    /// Does what can be done without waiting; call it when the descriptor is
    /// readable. `answer` turns each request into its answer. Whatever fails here
    /// ends a client, never the daemon. Now and then it looks for its own files, and puts
    /// back what somebody has removed.
    pub fn serve(&mut self, mut answer: impl FnMut(Request) -> Value) -> Option<Look> {
        self.ready.clear();
        if self.epoll.wait(&mut self.ready, Some(Duration::ZERO)).is_err() {
            return None;
        }
        let mut look = None;
        let ready = std::mem::take(&mut self.ready);
        for event in &ready {
            match event.token {
                LISTENER => self.accept(),
                PAUSE_OVER => {
                    let _ = self.epoll.modify(&self.listener, LISTENER, Interest::Read);
                }
                LOOK => {
                    let _ = self.look_timer.set(LOOK_EVERY);
                    look = Some(self.look());
                }
                token => self.serve_client(token, &mut answer),
            }
        }
        self.ready = ready;
        look
    }

    fn look(&mut self) -> Look {
        let mended = match self.mend() {
            Ok(mended) => mended,
            // Another daemon may have its place: what lies there is that one's.
            Err(error) => {
                let lost = Some(format!("{} is gone: {error}", self.path.display()));
                return Look { mended: false, lost };
            }
        };
        match self.pins.as_deref().map_or(Ok(false), mend_pins) {
            Ok(pinned) => Look { mended: mended || pinned, lost: None },
            Err(error) => Look { mended, lost: Some(error.to_string()) },
        }
    }

    fn serve_client(&mut self, token: u64, answer: &mut impl FnMut(Request) -> Value) {
        let slot = usize::try_from(token).ok().and_then(|i| self.clients.get_mut(i));
        let Some(slot) = slot else { return };
        let Some(client) = slot else { return };
        let served = client.serve(answer).and_then(|()| {
            let interest = if client.is_served() { Interest::Read } else { Interest::Write };
            self.epoll.modify(&client.stream, token, interest)
        });
        if served.is_err() {
            *slot = None;
        }
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => {
                    // Out of descriptors or memory: the client waits in the queue.
                    let _ = self.epoll.modify(&self.listener, LISTENER, Interest::Nothing);
                    let _ = self.pause.set(PAUSE);
                    return;
                }
            };
            let Some(free) = self.place_for_one_more() else { continue };
            let watched = stream
                .set_nonblocking(true)
                .and_then(|()| self.epoll.add(&stream, free as u64, Interest::Read));
            if watched.is_ok() {
                let (request, answer, served) = (Vec::new(), Vec::new(), Instant::now());
                self.clients[free] = Some(Client { stream, request, answer, served });
            }
        }
    }

    /// A free place, or that of the client that has been silent longest.
    fn place_for_one_more(&self) -> Option<usize> {
        let silent = |(index, client): (usize, &Option<Client>)| match client {
            None => Some((Duration::MAX, index)),
            Some(client) => Some((client.served.elapsed(), index)),
        };
        let longest = self.clients.iter().enumerate().filter_map(silent).max()?;
        (longest.0 > SILENT_MAX).then_some(longest.1)
    }
}

impl AsFd for AdminSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        // What goes on without this daemon is found by the next one.
        let _ = self.pins.as_deref().map(mend_pins);
    }
}

impl Client {
    /// Reads, answers once and writes; an error ends the client. A client that asks
    /// without reading the answers waits.
    fn serve(&mut self, answer: &mut impl FnMut(Request) -> Value) -> io::Result<()> {
        self.write()?;
        if self.is_served() {
            self.read()?;
        }
        let end = self.end_of_request().filter(|_| self.answer.is_empty());
        if let Some(end) = end {
            // A client that asks byte by byte keeps nobody else out.
            self.served = Instant::now();
            let value = match serde_json::from_slice(&self.request[..end]) {
                Ok(request) => answer(request),
                Err(error) => refusal(&format!("not a request: {error}")),
            };
            serde_json::to_writer(&mut self.answer, &value)?;
            self.answer.push(b'\n');
            self.request.drain(..=end);
        }
        self.write()
    }

    /// Whether nothing is left to answer or to write.
    fn is_served(&self) -> bool {
        self.answer.is_empty() && self.end_of_request().is_none()
    }

    fn end_of_request(&self) -> Option<usize> {
        self.request.iter().position(|&byte| byte == b'\n')
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; REQUEST_BYTES_MAX];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.request.extend_from_slice(&buffer[..count]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e),
        }
        let is_endless = self.end_of_request().is_none() && self.request.len() >= REQUEST_BYTES_MAX;
        if is_endless { Err(ErrorKind::InvalidData.into()) } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.answer.is_empty() {
            match self.stream.write(&self.answer) {
                Ok(count) => drop(self.answer.drain(..count)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    run_dir::make(folder)
}

/// Listens for the owner only.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Asks the daemon behind `path`.
///
/// # Errors
/// If nobody answers within two seconds or the answer is not JSON.
pub fn ask(path: &Path, request: Request) -> io::Result<Value> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    let mut line = serde_json::to_vec(&request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(name: &str) -> (AdminSocket, PathBuf) {
        let folder = std::env::temp_dir().join(format!("holdfast-{}", std::process::id()));
        let path = folder.join(format!("{name}.sock"));
        (AdminSocket::bind(&path).unwrap(), path)
    }

    /// Runs the daemon's side until `client` has its result.
    fn with_client<T: Send>(admin: &mut AdminSocket, client: impl FnOnce() -> T + Send) -> T {
        let mut events = Events::default();
        events.add("started", "for the test");
        std::thread::scope(|scope| {
            let thread = scope.spawn(client);
            while !thread.is_finished() {
                admin.serve(|request| match request {
                    Request::Events { since } => events.answer(since),
                    Request::Status => json!({ "long": "x".repeat(3 << 20) }),
                    _ => refusal("not here"),
                });
                std::thread::sleep(Duration::from_micros(100));
            }
            thread.join().unwrap()
        })
    }

    #[test]
    fn requests_are_answered_even_at_length() {
        let (mut admin, path) = socket("answers");
        let at = path.clone();
        let events =
            with_client(&mut admin, move || ask(&at, Request::Events { since: 0 }).unwrap());
        assert_eq!(events["events"][0]["what"], "started");
        let at = path.clone();
        let long = with_client(&mut admin, move || ask(&at, Request::Status).unwrap());
        assert_eq!(long["long"].as_str().map(str::len), Some(3 << 20));
        let at = path.clone();
        let refused = with_client(&mut admin, move || {
            ask(&at, Request::Fence { until_takeover: false }).unwrap()
        });
        assert_eq!(refused["error"], "not here");
        assert_eq!(AdminSocket::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(admin);
        assert!(ask(&path, Request::Status).is_err());
        AdminSocket::bind(&path).expect("the lock ends with its holder");
    }

    #[test]
    fn nonsense_is_refused_and_too_much_of_it_ends_the_client() {
        let (mut admin, path) = socket("nonsense");
        let at = path.clone();
        let answer = with_client(&mut admin, move || {
            let mut stream = UnixStream::connect(at).unwrap();
            stream.write_all(b"{\"cmd\":\"explode\"}\n").unwrap();
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).unwrap();
            line
        });
        assert!(answer.contains("not a request"), "{answer}");
        let answer = with_client(&mut admin, move || {
            let mut stream = UnixStream::connect(path).unwrap();
            let _ = stream.write_all(&[b'x'; 3 * REQUEST_BYTES_MAX]);
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            rest
        });
        assert!(answer.is_empty());
    }

    #[test]
    fn silent_clients_make_room_and_those_who_do_not_read_wait() {
        let (mut admin, path) = socket("room");
        let silent: Vec<UnixStream> =
            (0..CLIENTS_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let at = path.clone();
        let answer = with_client(&mut admin, move || {
            std::thread::sleep(SILENT_MAX + Duration::from_millis(100));
            ask(&at, Request::Events { since: 0 }).unwrap()
        });
        assert_eq!(answer["events"][0]["what"], "started");
        drop(silent);
        let asked = with_client(&mut admin, move || {
            let mut stream = UnixStream::connect(path).unwrap();
            stream.write_all(&b"{\"cmd\":\"events\"}\n".repeat(200)).unwrap();
            let lines = BufReader::new(stream).lines().take(200);
            lines.filter(|line| line.as_ref().unwrap().contains("started")).count()
        });
        assert_eq!(asked, 200);
    }

    #[test]
    fn files_that_were_removed_come_back() {
        let (mut admin, path) = socket("gone");
        for file in [path.clone(), path.with_extension("lock")] {
            std::fs::remove_file(file).unwrap();
            assert!(admin.mend().unwrap());
            assert!(!admin.mend().unwrap());
            assert_eq!(AdminSocket::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        }
        let at = path.clone();
        let answer =
            with_client(&mut admin, move || ask(&at, Request::Events { since: 0 }).unwrap());
        assert_eq!(answer["events"][0]["what"], "started");
    }

    #[test]
    fn events_are_numbered_and_limited() {
        let mut events = Events::default();
        for number in 0..EVENTS_MAX + 5 {
            // Events of one kind: so many of them would not be written.
            events.add(&format!("tick {}", number % 100), "");
        }
        assert_eq!(events.answer(0)["events"].as_array().map(Vec::len), Some(EVENTS_MAX));
        assert_eq!(
            events.answer(EVENTS_MAX as u64 + 5)["events"].as_array().map(Vec::len),
            Some(1)
        );
    }
}
