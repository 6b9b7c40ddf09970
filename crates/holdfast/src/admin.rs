//! The admin socket: one line of JSON asks, and one line answers.
//!
//! The daemon's side is one descriptor in its event loop and never blocks; the
//! other side is what the verbs use. Beside it is a second socket for those who only look: nobody
//! there changes anything, takes a place of the first one's clients, or causes more than so much
//! work.

mod door;
mod events;
mod watchers;

pub use events::{EVENTS_MAX, Event, Events, LEVELS, Level, Report};
pub(crate) use watchers::group_id;
pub use watchers::{watch_socket, who_may_look};

use crate::config::{Common, admin_socket};
use crate::leavings;
use crate::lock::{self, Lock};
use crate::poll::{Epoll, Interest, Ready};
use crate::run_dir;
use door::{Door, For, PERIOD};
use holdfast_linux::bpf::mend_pins;
use holdfast_linux::epoll::Timer;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
/// Silence after which a client makes room for another one.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// Error of a second daemon.
const RUNS_ALREADY: &str = "a daemon with this role runs already\n  remedy: `holdfast status` shows it, and \
     `holdfast down --stop` ends it";
const PAUSE_OVER: u64 = u64::MAX - 1;
const LOOK: u64 = u64::MAX - 2;
/// First token of the door for watchers; those of the owner's begin at 0.
const WATCHERS: u64 = Door::TOKENS;
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
    /// Read the file again, and take over what can be; or (`dry_run`) only say what that would do.
    Reload {
        #[serde(default)]
        dry_run: bool,
    },
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
    own: Door,
    /// For those who only look; there is none beside what only holds the daemon's place.
    watchers: Option<Door>,
    /// Held for as long as the daemon lives: its holder owns the socket's file.
    lock: Lock,
    epoll: Epoll,
    /// Rings when what had to wait is watched again.
    pause: Timer,
    /// Rings when it looks for its own files.
    look_timer: Timer,
    ready: Vec<Ready>,
    /// What this daemon has pinned lies there.
    pins: Option<PathBuf>,
    /// Whether a server is noted beside its socket.
    notes: bool,
}

/// What a daemon has found when it looked for its own files.
#[derive(Debug, Default)]
pub struct Look {
    /// Somebody had removed some, and they are there again.
    pub mended: bool,
    /// Why some are not.
    pub lost: Option<String>,
}

impl Request {
    /// Whether nothing changes by it.
    #[must_use]
    pub fn only_looks(&self) -> bool {
        match self {
            Self::Status | Self::Events { .. } | Self::Show => true,
            Self::Fence { .. }
            | Self::Unfence
            | Self::Switchover { .. }
            | Self::Takeover
            | Self::Trace(_)
            | Self::Reload { .. }
            | Self::Drain { .. } => false,
        }
    }
}

impl AdminSocket {
    /// The sockets of the daemon with this role: its own, and that of those whom the file allows
    /// to look.
    ///
    /// # Errors
    /// As [`Self::bind`]; `NotFound` if this host has no such group of users.
    pub fn of_daemon(common: &Common<'_>, role: &str) -> io::Result<Self> {
        let gid = common.watching.watchers.map(group_id).transpose()?;
        let mut admin = Self::bind(&admin_socket(common.run_dir, role))?;
        let path = watch_socket(admin.own.path());
        let door = Door::open(path.clone(), For::Watchers { gid }, WATCHERS, &admin.epoll);
        let door = door.map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        admin.watchers = Some(door);
        Ok(admin)
    }

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
        // A dead daemon's.
        let _absent = std::fs::remove_file(watch_socket(path));
        let (epoll, pause, look_timer) = (Epoll::new()?, Timer::new()?, Timer::new()?);
        epoll.add(&pause, PAUSE_OVER, Interest::Rung)?;
        epoll.add(&look_timer, LOOK, Interest::Rung)?;
        look_timer.set(LOOK_EVERY)?;
        let own = Door::open(path.to_owned(), For::Owner, 0, &epoll)?;
        let (ready, pins, watchers) = (Vec::new(), None, None);
        Ok(Self { own, watchers, lock, epoll, pause, look_timer, ready, pins, notes: false })
    }

    /// Looks for what this daemon pins below `pin_dir`, too.
    #[must_use]
    pub fn with_pins(mut self, pin_dir: PathBuf) -> Self {
        self.pins = Some(pin_dir);
        self
    }

    /// Looks for room for what is noted of a server beside its socket, too.
    #[must_use]
    pub fn with_notes(mut self) -> Self {
        self.notes = true;
        self
    }

    /// Listens at its path again, and locks it, if somebody has removed the files;
    /// true if so.
    ///
    /// # Errors
    /// `AddrInUse` if another daemon has taken the place; else as [`Self::bind`].
    fn mend(&mut self) -> io::Result<bool> {
        let lock_path = self.own.path().with_extension("lock");
        let is_locked = self.lock.is_at(&lock_path);
        let is_whole = self.watchers.as_ref().is_none_or(Door::is_in_place);
        if is_locked && is_whole && self.own.is_in_place() {
            return Ok(false);
        }
        make_folder(self.own.path())?;
        if !is_locked {
            self.lock = lock::exclusive(&lock_path)?.ok_or(ErrorKind::AddrInUse)?;
        }
        for door in [Some(&mut self.own), self.watchers.as_mut()].into_iter().flatten() {
            if !door.is_in_place() {
                door.mend(&self.epoll)?;
            }
        }
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
                PAUSE_OVER => {
                    let doors = [Some(&mut self.own), self.watchers.as_mut()];
                    doors.into_iter().flatten().for_each(|door| door.resume(&self.epoll));
                }
                LOOK => {
                    let _ = self.look_timer.set(LOOK_EVERY);
                    look = Some(self.look());
                }
                token => self.serve_door(token, &mut answer),
            }
        }
        self.ready = ready;
        look
    }

    fn serve_door(&mut self, token: u64, answer: &mut impl FnMut(Request) -> Value) {
        let door = if token < WATCHERS { Some(&mut self.own) } else { self.watchers.as_mut() };
        let is_much = door.is_some_and(|door| door.serve(token, &self.epoll, answer));
        if is_much {
            let _ = self.pause.set(PERIOD);
        }
    }

    fn look(&mut self) -> Look {
        let mended = match self.mend() {
            Ok(mended) => mended,
            // Another daemon may have its place: what lies there is that one's.
            Err(error) => {
                let lost = Some(format!("{} is gone: {error}", self.own.path().display()));
                return Look { mended: false, lost };
            }
        };
        match self.pins.as_deref().map_or(Ok(false), mend_pins) {
            Ok(pinned) => Look { mended: mended || pinned, lost: self.lacks_room() },
            Err(error) => Look { mended, lost: Some(error.to_string()) },
        }
    }

    /// Why what a daemon notes beside its socket cannot be noted: told before it is needed.
    fn lacks_room(&self) -> Option<String> {
        let path = self.notes.then(|| self.own.path())?;
        leavings::lacks_room(path.parent()?, path.file_stem()?.to_str()?)
    }
}

impl AsFd for AdminSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // What goes on without this daemon is found by the next one.
        let _ = self.pins.as_deref().map(mend_pins);
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    run_dir::make(folder)
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
    use crate::config::{KeptEvents, Watching};
    use std::os::unix::fs::MetadataExt as _;
    use std::time::Instant;

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

    /// Before it is needed: a daemon whose server goes on alone has to note that.
    #[test]
    fn a_folder_without_room_is_told() {
        let folder = std::env::temp_dir().join(format!("holdfast-{}-full", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let run = |words: &[&str]| {
            let done = std::process::Command::new(words[0]).args(&words[1..]).arg(&folder).status();
            assert!(done.is_ok_and(|done| done.success()), "{words:?}: it needs root");
        };
        run(&["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "none"]);
        let mut admin = AdminSocket::bind(&folder.join("a.sock")).unwrap().with_notes();
        let before = admin.look().lost;
        std::fs::write(folder.join("fill"), [0; 56 << 10]).unwrap();
        let full = admin.look().lost;
        std::fs::remove_file(folder.join("fill")).unwrap();
        let after = admin.look().lost;
        drop(admin);
        run(&["umount"]);
        std::fs::remove_dir(&folder).unwrap();
        let full = full.expect("16 KiB do not fit");
        assert!(full.contains("cannot write into") && full.contains("No space left"), "{full}");
        assert_eq!([before, after], [None, None]);
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

    /// A daemon's two sockets, in a folder of the test's own.
    fn daemon(name: &str) -> (AdminSocket, PathBuf) {
        let run_dir = std::env::temp_dir().join(format!("holdfast-{}-{name}", std::process::id()));
        let key_file = Path::new("/nowhere");
        let watching = Watching { watchers: Some("daemon"), ..Watching::default() };
        let (run, events) = (run_dir.as_path(), &KeptEvents::NONE);
        let common = Common {
            name: "demo",
            key_file,
            run_dir: run,
            heartbeat_ms: 20,
            events,
            hooks: None,
            watching,
        };
        let admin = AdminSocket::of_daemon(&common, "a").expect("two sockets");
        (admin, run_dir.join("a.sock"))
    }

    #[test]
    fn who_only_looks_is_shown_and_changes_nothing() {
        let (mut admin, path) = daemon("looks");
        let socket = watch_socket(&path);
        let found = std::fs::metadata(&socket).unwrap();
        assert_eq!((found.mode() & 0o777, found.gid()), (0o660, group_id("daemon").unwrap()));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let remedy = who_may_look(&path);
        assert!(remedy.contains("in the group `daemon`"), "{remedy}");
        for (request, is_shown) in [
            (Request::Status, true),
            (Request::Events { since: 0 }, true),
            (Request::Fence { until_takeover: false }, false),
            (Request::Unfence, false),
            (Request::Switchover { leaves: true }, false),
            (Request::Takeover, false),
            (Request::Drain { name: "x".to_owned(), end: false }, false),
        ] {
            let at = socket.clone();
            let asked = request.clone();
            let answer = with_client(&mut admin, move || ask(&at, asked).unwrap());
            let refused = answer["error"].as_str().unwrap_or_default().contains("only shows");
            assert_eq!(refused, !is_shown, "{request:?}: {}", answer["error"]);
        }
        drop(admin);
        assert!(!socket.exists() && !path.exists());
    }

    #[test]
    fn many_who_look_cost_no_more_than_so_much() {
        let (mut admin, path) = daemon("many");
        let socket = watch_socket(&path);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let answered = std::sync::atomic::AtomicUsize::new(0);
        let over = || stop.load(std::sync::atomic::Ordering::Relaxed);
        let took = std::thread::scope(|scope| {
            for _ in 0..2 * CLIENTS_MAX {
                scope.spawn(|| {
                    while !over() {
                        let Ok(mut stream) = UnixStream::connect(&socket) else { continue };
                        let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
                        let _ = stream.write_all(&b"{\"cmd\":\"events\"}\n".repeat(20));
                        let lines = BufReader::new(stream).lines().map_while(Result::ok);
                        answered.fetch_add(lines.count(), std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
            let at = path.clone();
            let took = with_client(&mut admin, move || {
                let begun = Instant::now();
                for _ in 0..10 {
                    ask(&at, Request::Events { since: 0 }).expect("its own clients are served");
                    std::thread::sleep(Duration::from_millis(50));
                }
                begun.elapsed()
            });
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            // Who still waits for an answer gives up.
            took
        });
        let answered = answered.into_inner();
        assert!(took < Duration::from_secs(5), "{took:?}");
        // Ten periods and a little, or as many more as a busy machine took. Such a crowd may keep
        // itself from every answer.
        let periods = took.as_millis() as usize / 100 + 2;
        assert!(answered <= periods * 32, "{answered} answers in {took:?}");
        let until = Instant::now() + Duration::from_secs(10);
        let is_served = with_client(&mut admin, move || {
            let asks = || ask(&socket, Request::Events { since: 0 }).is_ok();
            std::iter::repeat_with(asks).take_while(|_| Instant::now() < until).any(|it| it)
        });
        assert!(is_served, "who comes after the crowd is answered");
    }

    #[test]
    fn a_group_of_users_that_is_not_there_is_named() {
        let error = group_id("no-such-group").unwrap_err().to_string();
        assert!(error.contains("remedy: make it on this host (`groupadd --system"), "{error}");
        let nowhere = who_may_look(Path::new("/nonexistent/a.sock"));
        assert!(nowhere.contains("name a group of users as watchers"), "{nowhere}");
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
