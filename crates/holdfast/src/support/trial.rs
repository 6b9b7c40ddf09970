//! A program tried under the shim: it serves its own client in an empty network, everything that it
//! learns is logged, and a second copy is given that log, as a backup would be. What differs there
//! would cost protection.

use super::shown::Trial;
use super::table::rows;
use crate::config::{Run, Server as Tried};
use crate::fingerprint::{self, lacks};
use crate::key::GroupKey;
use anyhow::{Context as _, bail};
use holdfast_linux::epoll::{Epoll, Interest};
use holdfast_linux::listeners::ListenerSocket;
use holdfast_linux::shm::Settings;
use holdfast_linux::spawn::{Server, ServerCommand};
use holdfast_linux::{probe, process};
use holdfast_wire::log::{Header, Op, read_header, record_len};
use holdfast_wire::shm::{mode, option};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Most bytes of log that are kept.
const LOG_BYTES_MAX: usize = 256 << 20;
/// Most ports whose connections are protected.
const PORTS_MAX: usize = 16;
/// Longest time until the server listens, and until its copy moves on.
const START_MAX: Duration = Duration::from_secs(10);
const STILL_MAX: Duration = Duration::from_secs(5);
/// Longest time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time in which what the client's end brings about is logged.
const REST: Duration = Duration::from_millis(200);
/// Most lines of the shim, and last lines of the server, that are shown.
const LINES_MAX: usize = 12;
/// Most bytes of its output that are looked at: so many at the begin, where the shim speaks, and as
/// many at the end. What it writes is nobody's choice but its own.
const SAID_BYTES: u64 = 64 << 10;
/// Most bytes of a file that it may write: more than a database begins with.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Accept numbers whose output counts as received.
const ACCEPTS: u32 = 4096;
/// Begin of the shim's own lines.
const SHIM_SAYS: &str = "holdfast-shim: ";

/// Tries a server with its client, for at most `time`, in a network and a folder of its own.
///
/// # Errors
/// If this process may not make them, or the server cannot be started.
pub fn try_out(server: &Tried, client: &[String], time: Duration) -> anyhow::Result<Trial> {
    if let Some(lack) = lacks(server).into_iter().next() {
        bail!("{}\n  remedy: {}", lack.what, lack.remedy);
    }
    let folder = Folder::new()?;
    let _strays = Strays::collect()?;
    let result = probe::apart(|| {
        Trying { server, folder: &folder.0, key: GroupKey::generate()? }.run(client, time)
    });
    result.context("no trial is possible in namespaces of its own")?
}

/// A folder that is gone with this.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        let name = format!("holdfast-try-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o711))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // One that stays harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the client left behind when it ended, which comes to this process as long as this lives,
/// and ends with it.
struct Strays;

impl Strays {
    fn collect() -> anyhow::Result<Self> {
        process::adopt_orphans(true).context("no trial can be cleaned up after")?;
        Ok(Self)
    }
}

impl Drop for Strays {
    fn drop(&mut self) {
        // Nothing else runs that this verb has started.
        process::kill_descendants(std::process::id());
        let _ = process::adopt_orphans(false);
    }
}

/// What one start of the server needs.
struct Trying<'a> {
    server: &'a Tried,
    folder: &'a Path,
    key: GroupKey,
}

/// A server that does not outlive its trial. It is the first process of a pid namespace, also where
/// it is no family: by its end, whoever brings that about, the kernel ends whatever it has started,
/// in the background and elsewhere; and it cannot signal other processes of its user.
struct Running(Server);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// Why a server does not run, and whether it has ended by itself.
type Failed = (String, bool);

impl Trying<'_> {
    fn run(&self, client: &[String], time: Duration) -> anyhow::Result<Trial> {
        let mut trial =
            Trial { user: self.server.user.clone().unwrap_or_default(), ..Trial::default() };
        let (ports, failed) = self.scout()?;
        trial.ports = ports;
        if let Some((why, has_ended)) = failed {
            (trial.primary, trial.has_ended) = (Some(why), has_ended);
        }
        // Without a listener no connection would be protected.
        if trial.primary.is_some() || trial.ports.is_empty() {
            trial.said = self.said("scout", true);
            trial.remedy = trial.next();
            return Ok(trial);
        }
        let log = self.record(client, time, &mut trial)?;
        trial.said = self.said("primary", trial.primary.is_some());
        count(&log, &mut trial.calls);
        if trial.primary.is_none() {
            trial.replica = self.replay(&log, &trial.ports)?;
            let ended = trial.replica.is_some();
            trial.said.extend(self.said("replica", ended));
        }
        // What decides has been told.
        let told: Vec<String> = trial.primary.iter().chain(&trial.replica).cloned().collect();
        trial.said.retain(|line| !told.iter().any(|why| line.contains(why)));
        trial.remedy = trial.next();
        Ok(trial)
    }

    /// Starts the server once to learn where it listens, for only connections to known ports are
    /// protected; or why it does not run, and whether it has ended by itself.
    fn scout(&self) -> anyhow::Result<(Vec<u16>, Option<Failed>)> {
        let mut running = self.start("scout", mode::RECORD, &[])?;
        let begun = Instant::now();
        let mut log = Recorder::new(&running.0)?;
        let mut ports = BTreeSet::new();
        while begun.elapsed() < START_MAX {
            log.take(&running.0);
            if let Some(why) = ended(&mut running.0) {
                return Ok((Vec::new(), Some((why, !running.0.is_in_background()))));
            }
            let before = ports.len();
            ports.extend(ListenerSocket::open()?.listening()?.iter().map(|it| it.port));
            // Who listens twice does so at once.
            if !ports.is_empty() && ports.len() == before {
                break;
            }
            let wait = if ports.is_empty() { LOOK_EVERY } else { REST };
            std::thread::sleep(wait);
        }
        if !running.0.memory.is_attached() {
            let why =
                "the shim was not loaded into it: it makes no call of libc, or drops LD_PRELOAD";
            return Ok((Vec::new(), Some((why.to_owned(), false))));
        }
        Ok((ports.into_iter().take(PORTS_MAX).collect(), None))
    }

    fn record(
        &self,
        client: &[String],
        time: Duration,
        trial: &mut Trial,
    ) -> anyhow::Result<Vec<u8>> {
        let mut running = self.start("primary", mode::RECORD, &trial.ports)?;
        let mut log = Recorder::new(&running.0)?;
        let (mut begun, mut is_up) = (Instant::now(), false);
        let mut asking: Option<Client> = None;
        let mut over_at = None;
        loop {
            log.take(&running.0);
            trial.primary = broken(&running.0);
            if trial.primary.is_none() {
                trial.primary = ended(&mut running.0);
                trial.has_ended = trial.primary.is_some() && !running.0.is_in_background();
            }
            if trial.primary.is_some() {
                break;
            }
            if !is_up && (self.listens(&trial.ports)? || begun.elapsed() > START_MAX) {
                (is_up, begun) = (true, Instant::now());
                asking = Client::start(client)?;
            }
            let is_late = is_up && begun.elapsed() > time;
            if let Some(client) = &mut asking {
                trial.client = client.ended(is_late)?;
                trial.has_client_failed = client.has_failed;
            }
            if over_at.is_none() && (is_late || trial.client.is_some()) {
                over_at = Some(Instant::now());
            }
            if over_at.is_some_and(|at| at.elapsed() > REST) || log.bytes.len() > LOG_BYTES_MAX {
                break;
            }
        }
        trial.forks = running.0.memory.forks();
        Ok(log.bytes)
    }

    fn listens(&self, ports: &[u16]) -> anyhow::Result<bool> {
        let all = ListenerSocket::open()?.listening()?;
        Ok(ports.iter().all(|port| all.iter().any(|it| it.port == *port)))
    }

    /// Feeds the log to a copy; why it did not follow.
    fn replay(&self, log: &[u8], ports: &[u16]) -> anyhow::Result<Option<String>> {
        let mut running = self.start("replica", mode::REPLAY, ports)?;
        let (mut at, mut head, mut moved) = (0, 0, Instant::now());
        loop {
            at += feed(&running.0, &log[at..]);
            let memory = &running.0.memory;
            for accept in 0..ACCEPTS {
                // Its client has taken all.
                let entry = memory.entry(accept);
                entry.acked_bytes.store(entry.out_bytes.load(SeqCst), SeqCst);
            }
            if memory.mode() == mode::DIVERGED {
                return Ok(Some(memory.reason()));
            }
            if at == log.len() && memory.head() >= memory.tail() {
                return Ok(None);
            }
            if memory.head() != head {
                (head, moved) = (memory.head(), Instant::now());
            }
            if let Some(why) = ended(&mut running.0) {
                return Ok(Some(why));
            }
            if moved.elapsed() > STILL_MAX {
                return Ok(Some(
                    "it has not moved for 5 s (threads that race, or locks of its own make)"
                        .to_owned(),
                ));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Starts the server in an empty folder.
    fn start(&self, name: &str, as_mode: u32, ports: &[u16]) -> anyhow::Result<Running> {
        let user = self.server.user.as_deref().map(fingerprint::user_of).transpose()?;
        let directory = self.folder.join("work");
        // Of the one before.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory)?;
        if let Some(user) = &user {
            chown(&directory, Some(user.uid), Some(user.gid))?;
        }
        let command = ServerCommand {
            argv: self.server.command.iter().map(Into::into).collect(),
            directory: Some(directory),
            user,
            without: fingerprint::inherited_but_not_passed(),
            log: Some(self.log_of(name)),
            shim: fingerprint::shim_path()?,
            family: true,
            file_bytes_max: Some(FILE_BYTES_MAX),
            ..ServerCommand::default()
        };
        let settings = Settings {
            ring_bytes: holdfast_wire::shm::RING_BYTES,
            hash_key: self.key.hash_key(),
            ports: ports.to_vec(),
            options: match self.server.run {
                Run::Auto => 0,
                Run::Parallel => option::FAMILY,
                Run::OneAtATime => option::FAMILY | option::ONE_AT_A_TIME,
            },
            mode: as_mode,
            name: format!("holdfast-try-{}", std::process::id()),
        };
        let started = Server::start(&command, &settings);
        started.map(Running).with_context(|| format!("starting {:?}", self.server.command))
    }

    fn log_of(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// What the shim has written to the server's output; with the server's own last words.
    fn said(&self, name: &str, with_own: bool) -> Vec<String> {
        let text = File::open(self.log_of(name)).and_then(|log| ends_of(&log));
        let text = text.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let of_shim = lines.iter().filter(|line| line.starts_with(SHIM_SAYS)).take(LINES_MAX);
        let own: Vec<&&str> = lines.iter().filter(|line| !line.starts_with(SHIM_SAYS)).collect();
        let last = &own[own.len().saturating_sub(if with_own { LINES_MAX } else { 0 })..];
        let all = of_shim.chain(last.iter().copied());
        all.map(|line| line.replace(char::is_control, " ")).collect()
    }
}

/// The begin and the end of a file; all of it, if it is short.
fn ends_of(mut file: &File) -> std::io::Result<Vec<u8>> {
    let mut ends = Vec::new();
    file.take(SAID_BYTES).read_to_end(&mut ends)?;
    let last = file.metadata()?.len().saturating_sub(SAID_BYTES);
    if last > SAID_BYTES {
        ends.push(b'\n');
    }
    // Of a growing one no more is read than was seen.
    file.seek(SeekFrom::Start(last.max(SAID_BYTES)))?;
    file.take(SAID_BYTES).read_to_end(&mut ends)?;
    Ok(ends)
}

/// Why a server has no protection any more.
fn broken(server: &Server) -> Option<String> {
    matches!(server.memory.mode(), mode::BROKEN | mode::OFF).then(|| server.memory.reason())
}

/// How a server has ended.
fn ended(server: &mut Server) -> Option<String> {
    let how = server.ending()?;
    let hint = if server.is_in_background() {
        ": it went into the background; start it in the foreground"
    } else {
        ""
    };
    Some(format!("it ended {how}{hint}"))
}

/// Takes what a primary logs, and confirms it at once.
struct Recorder {
    epoll: Epoll,
    bytes: Vec<u8>,
    at: u64,
}

impl Recorder {
    fn new(server: &Server) -> anyhow::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(&server.wake(), 0, Interest::Rung)?;
        Ok(Self { epoll, bytes: Vec::new(), at: 0 })
    }

    /// Takes what there is, or waits for a moment.
    fn take(&mut self, server: &Server) {
        server.note_deaths();
        let tail = server.memory.take_tail(self.at).unwrap_or(self.at);
        if tail > self.at {
            self.bytes.extend(server.memory.copy(self.at, (tail - self.at) as usize));
            server.memory.set_stable(tail);
            self.at = tail;
        } else if server.memory.may_sleep(tail) {
            // Whatever wakes it, the log is looked at.
            let _ = self.epoll.wait(&mut Vec::new(), Some(LOOK_EVERY));
            server.memory.awake();
        }
    }
}

/// The client of a trial.
struct Client {
    child: Child,
    has_failed: bool,
}

impl Client {
    fn start(words: &[String]) -> anyhow::Result<Option<Self>> {
        let Some(program) = words.first() else { return Ok(None) };
        // What it writes is no data of this verb.
        let mut command = Command::new(program);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(std::io::stderr());
        let child = command.spawn().with_context(|| format!("starting the client `{program}`"))?;
        Ok(Some(Self { child, has_failed: false }))
    }

    /// How it has ended; it is made to when its time is over.
    fn ended(&mut self, is_late: bool) -> anyhow::Result<Option<String>> {
        if let Some(status) = self.child.try_wait()? {
            self.has_failed = !status.success();
            return Ok(Some(format!("with {status}")));
        }
        Ok(is_late.then(|| {
            let _ = self.child.kill();
            let _ = self.child.wait();
            "because its time was over".to_owned()
        }))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Appends what there is room for of a log; how many bytes that was.
fn feed(server: &Server, log: &[u8]) -> usize {
    let mut at = 0;
    for (header, payload) in records(log) {
        if !server.memory.append(&header, &[payload]) {
            break;
        }
        at += record_len(payload.len());
    }
    server.memory.wake_shim();
    at
}

/// The records of a log, as far as it makes sense: it is the server's word.
fn records(log: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
    let mut rest = log;
    std::iter::from_fn(move || {
        let (header, _) = read_header(rest).ok()?;
        let payload = rest.get(size_of::<Header>()..)?.get(..header.payload_len as usize)?;
        rest = rest.get(record_len(payload.len())..)?;
        Some((header, payload))
    })
}

/// Counts records by the calls of the table.
fn count(log: &[u8], calls: &mut BTreeMap<String, u64>) {
    for (header, _) in records(log) {
        let Some(op) = Op::from_u8(header.op) else { continue };
        let name = match op {
            Op::Pad => continue,
            Op::Accept => "accept",
            Op::Read | Op::ReadMsg => "read",
            Op::Intent => "write",
            Op::Written => continue,
            Op::Close => "close",
            Op::Shutdown => "shutdown",
            Op::Signal => "sigaction",
            Op::Death => "wait",
            // The number of the call, in the table's order.
            _ => {
                let row = (header.hash as usize).checked_sub(1).and_then(|at| rows().get(at));
                row.map_or(op.name(), |row| row.call)
            }
        };
        *calls.entry(name.to_owned()).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_output_the_begin_and_the_end_are_read() {
        let path = std::env::temp_dir().join(format!("holdfast-said-{}", std::process::id()));
        let ends = |begin: &[u8], len: u64, end: &[u8]| {
            fs::write(&path, begin).unwrap();
            let file = File::options().append(true).open(&path).unwrap();
            file.set_len(len).unwrap();
            std::io::Write::write_all(&mut &file, end).unwrap();
            ends_of(&File::open(&path).unwrap()).unwrap()
        };
        assert_eq!(ends(b"all ", 4, b"of it"), b"all of it");
        let long = ends(b"begin", 512 << 20, b"end");
        let middle = ends(b"begin", SAID_BYTES + 5, b"end");
        fs::remove_file(&path).unwrap();
        assert!(long.len() as u64 <= 2 * SAID_BYTES + 1, "{}", long.len());
        assert!(long.starts_with(b"begin") && long.ends_with(b"end"));
        assert_eq!(middle.len() as u64, SAID_BYTES + 8);
    }
}
