//! A server that is stopped by its shim's park word at a moment at which an image of it can be
//! taken. If it speaks alone, its log begins there: it goes on as its copy's primary. If it has a
//! log, that goes on, and its copy is one that has executed the log up to there.

use super::{FIRST_OWN, Process, Server, books};
use crate::process;
use crate::snapshot::error::{Doing, NEVER, refuse};
use crate::snapshot::quiet::{Quiescence, Resume, Standing};
use crate::snapshot::{External, Frozen, SnapshotError};
use crate::threads::Threads;
use crate::unacked;
use holdfast_wire::quiet::Stopped;
use holdfast_wire::seq::SeqNo;
use holdfast_wire::shm::mode;
use holdfast_wire::snapshot::{Books, Connection, Kin};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

/// Time between two looks at threads that are to stand still.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// Most bytes copied of what slow clients have not acknowledged: copying them takes four
/// milliseconds.
const UNACKED_MAX: usize = 16 << 20;

/// Prefixes of terminals' names.
const TERMINALS: [&[u8]; 3] = [b"/dev/pts/", b"/dev/tty", b"/dev/console"];

/// Longest time that threads which are to take turns have to come to a call, before they are copied
/// where they are: what they do up to their next call may differ then.
const TURNS_WAIT: Duration = Duration::from_millis(20);

impl Server {
    /// It was found running: this process is not told how it ends.
    #[must_use]
    pub fn is_found(&self) -> bool {
        matches!(self.process, Process::Found(_))
    }

    /// What an image of the server leaves out, because its copy gets its own.
    ///
    /// # Errors
    /// [`SnapshotError::Refused`] if it cannot be copied now, whatever it is.
    pub fn external(&self) -> Result<External, SnapshotError> {
        self.may_be_copied()?;
        let memory = format!("/proc/self/fd/{}", self.memory.fd().as_raw_fd());
        let file = fs::metadata(&memory).doing(memory)?;
        // The memory itself is known by its file.
        let [control, _, wake] = self.memory.header().handed.each_ref().map(|fd| fd.load(Relaxed));
        let direct = self.memory.header().direct.fd.load(Relaxed);
        let handed = [control, wake].into_iter().chain((direct >= FIRST_OWN).then_some(direct));
        let descriptors = handed.map(i32::cast_unsigned).chain(self.inherited()).collect();
        // The shim knows what its sets watch, and arms them at promotion.
        let memory = vec![(file.dev(), file.ino())];
        let open = books::read(&self.memory, 0).open().map(|(number, _)| number).collect();
        Ok(External { memory, descriptors, watches: true, alarms: true, connections: open })
    }

    /// Standard input, output and error that a daemon has handed on: the copy's daemon has its
    /// own, and need not have a file of the same name. An input that is a file is opened again.
    fn inherited(&self) -> impl Iterator<Item = u32> {
        let (pid, standard) = (self.pid(), self.standard.clone());
        let is_daemons = move |number: &u32| {
            let place = format!("/proc/{pid}/fd/{number}");
            let Ok(theirs) = fs::read_link(&place) else { return false };
            let is_terminal =
                TERMINALS.iter().any(|folder| theirs.as_os_str().as_bytes().starts_with(folder));
            let may_be = *number > 0 || !theirs.is_absolute() || is_terminal;
            // A file that was renamed meanwhile, as logs are, is still the same one.
            let own = format!("/proc/self/fd/{number}");
            let is_same = || identity(&place).is_some_and(|file| identity(&own) == Some(file));
            may_be && (Some(&theirs) == standard[*number as usize].as_ref() || is_same())
        };
        (0..FIRST_OWN.cast_unsigned()).filter(is_daemons)
    }

    fn may_be_copied(&self) -> Result<(), SnapshotError> {
        match self.memory.mode() {
            mode::SOLO if !self.memory.is_attached() => refuse("it runs without the shim"),
            mode::SOLO | mode::RECORD => Ok(()),
            mode::OFF | mode::BROKEN => {
                let reason = self.memory.reason();
                let reason = if reason.is_empty() { "its shim gives no reason" } else { &reason };
                refuse(format!("{NEVER}{reason}"))
            }
            _ => refuse("it speaks for nobody yet"),
        }
    }

    /// The server's processes as /proc has them, the first one first: those of a family that
    /// have not ended, else the server alone.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        match self.memory.is_family() {
            true => process::living_family(self.pid()),
            false => vec![self.pid()],
        }
    }

    /// A [`StandStill`] that makes the server stand still for an image, with all of its
    /// `processes`. If `takes_turns`, one of its threads runs at a time from there on (decision
    /// 34).
    #[must_use]
    pub fn stand_still(&self, processes: &[u32], takes_turns: bool) -> StandStill<'_> {
        let member = |pid: &u32| {
            let number = process::innermost_tid(*pid, *pid).unwrap_or(0).cast_signed();
            Member { pid: *pid, number, said: Threads::default() }
        };
        let (open, slow, unacked) = (BTreeMap::new(), Vec::new(), Vec::new());
        let has_log = self.memory.mode() == mode::RECORD;
        let mut still = StandStill {
            server: self,
            threads: BTreeMap::new(),
            members: processes.iter().map(member).collect(),
            is_between: false,
            open,
            slow,
            unacked,
            has_log,
            has_begun: false,
            takes_turns: takes_turns || self.memory.takes_turns(),
            asked_at: None,
        };
        still.number();
        // Memory that nobody has looked at yet takes long the first time.
        let _ = books::read(&self.memory, 0);
        still
    }
}

/// Asks a server's threads to stand still. If an image is taken of the server then,
/// its log begins, unless it has one.
pub struct StandStill<'a> {
    server: &'a Server,
    /// Threads by the daemon's numbers, with their own numbers.
    threads: BTreeMap<u32, u32>,
    /// The server's processes, the first one first.
    members: Vec<Member>,
    /// A process of a family is just being made, or becomes another program: nobody is
    /// copied then.
    is_between: bool,
    /// Connections that were open, by the process that holds them (0 if there is only one) and
    /// their descriptors there.
    open: BTreeMap<(i32, u32), u32>,
    /// In the order in which there is room for them.
    slow: Vec<u64>,
    unacked: Vec<Unacked>,
    /// Whether it had a log before, which goes on whatever becomes of the image.
    has_log: bool,
    has_begun: bool,
    takes_turns: bool,
    /// When the threads were first asked to stand still.
    asked_at: Option<Instant>,
}

/// One of the server's processes.
struct Member {
    pid: u32,
    /// Its own number.
    number: i32,
    /// What its shim said when all threads stood last.
    said: Threads,
}

/// Output that the kernel held for a client when the server stood still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unacked {
    /// Cookie of the kernel's socket.
    pub socket: u64,
    /// Sequence number of the first byte, which may be older than what the client
    /// lacks.
    pub from: SeqNo,
    pub bytes: Vec<u8>,
}

impl StandStill<'_> {
    /// Asks again; true if all threads look as if they stood still.
    pub fn is_quiet(&mut self) -> bool {
        self.server.memory.park();
        let looks_quiet = |it: &Member| self.read(it).is_ok_and(|said| said.look_quiet());
        self.members.iter().all(looks_quiet)
    }

    /// What a process's shim says of its threads.
    fn read(&self, member: &Member) -> io::Result<Threads> {
        let memory = &self.server.memory;
        if !memory.is_family() {
            return Threads::read(memory, member.pid);
        }
        let mut kin = books::kin(memory.group());
        let kin = kin.find(|it| it.pid == member.number);
        let kin = kin.ok_or_else(|| io::Error::other("one of its processes is about to end"))?;
        Threads::read_at(kin.control, member.pid)
    }

    /// Whether a process of a family is in the middle of what its shim says nothing of: its
    /// parent has the log until there is a child and a record of it.
    fn is_in_between(&self) -> bool {
        let group = self.server.memory.group();
        let unknown = |it: Kin| it.pid < 0 || it.control == 0;
        self.server.memory.is_family()
            && (group.lock.0.load(Acquire) != 0 || books::kin(group).any(unknown))
    }

    /// Whether a thread must first come to a call: what the threads do from there on is in the
    /// log's order, where they take turns. If they do so already, a copy must not begin within
    /// somebody's turn at all: nobody there would wait for its end.
    fn runs_free(&self, said: &Threads, tid: i32, call: &Stopped) -> bool {
        let is_early = self.has_log || self.asked_at.is_none_or(|at| at.elapsed() < TURNS_WAIT);
        self.takes_turns && is_early && call.orig_rax < 0 && said.is_outside(tid)
    }

    /// Has the unacknowledged output of these sockets copied when all threads
    /// stand.
    pub fn copy_unacked(&mut self, slow: impl IntoIterator<Item = u64>) {
        self.slow.extend(slow);
    }

    /// Nobody wants the image: a log that has begun with it ends.
    pub fn call_off(&mut self) {
        if std::mem::take(&mut self.has_begun) {
            self.server.memory.go_solo();
        }
    }

    /// The copied output, as far as there was room.
    pub fn take_unacked(&mut self) -> Vec<Unacked> {
        std::mem::take(&mut self.unacked)
    }

    fn look_at_slow(&mut self) {
        let mut room = UNACKED_MAX;
        self.unacked.clear();
        let cookie = |accept: &u32| self.server.memory.entry(*accept).socket.load(Relaxed);
        let accepts: BTreeMap<u64, u32> =
            self.open.values().map(|accept| (cookie(accept), *accept)).collect();
        for socket in &self.slow {
            let accept = accepts.get(socket);
            let Some(held) = accept.and_then(|it| self.server.borrow(*it, *socket)) else {
                continue;
            };
            // For a socket that cannot be looked at, the joiner waits for the
            // client's ACK.
            if let Ok(Some((from, bytes))) = unacked::look(held.as_fd(), room) {
                room = room.saturating_sub(bytes.len());
                self.unacked.push(Unacked { socket: *socket, from, bytes });
            }
        }
    }

    /// What the shim of the server's first process said when all threads stood last.
    #[must_use]
    pub fn said(&self) -> Option<&Threads> {
        self.members.first().map(|it| &it.said)
    }

    /// Learns the threads' own numbers: most are known before they stand.
    fn number(&mut self) {
        for pid in self.members.iter().map(|it| it.pid) {
            for tid in process::threads(pid).into_iter().flatten() {
                if !self.threads.contains_key(&tid)
                    && let Ok(own) = process::innermost_tid(pid, tid)
                {
                    self.threads.insert(tid, own);
                }
            }
        }
    }
}

impl Quiescence for StandStill<'_> {
    fn ask(&mut self, deadline: Instant) {
        self.asked_at.get_or_insert_with(Instant::now);
        while !self.is_quiet() && Instant::now() < deadline {
            // A daemon with real-time priority yields to nobody, and may be on the very
            // processor that the server is kept on.
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn stopped(&mut self) -> Result<(), SnapshotError> {
        self.is_between = self.is_in_between();
        if self.is_between {
            return Ok(());
        }
        if self.server.memory.is_family() {
            // Who has been killed is in the log when its parent has waited for it.
            let is_member = |kin: Kin| self.members.iter().any(|it| it.number == kin.pid);
            if !books::kin(self.server.memory.group()).all(is_member) {
                return refuse("one of its processes has ended, and nobody has waited for it");
            }
        }
        let said: io::Result<Vec<Threads>> = self.members.iter().map(|it| self.read(it)).collect();
        let said = said.doing("what the shim says of its threads")?;
        if said.iter().any(|said| said.lost > 0) {
            return refuse("it has more threads than its shim can tell of");
        }
        for (member, said) in self.members.iter_mut().zip(said) {
            member.said = said;
        }
        Ok(())
    }

    fn look(&mut self, thread: &Standing<'_>) -> Option<Resume> {
        if !self.threads.contains_key(&thread.tid) {
            self.number();
        }
        let tid = self.threads.get(&thread.tid)?.cast_signed();
        let call = thread.call();
        let said = &self.members.iter().find(|it| it.pid == thread.pid)?.said;
        let runs_on = self.is_between || self.runs_free(said, tid, &call);
        if runs_on { None } else { said.resume(tid, &call) }
    }

    fn reached(&mut self, _: &Frozen) -> Result<Option<Books>, SnapshotError> {
        self.server.may_be_copied()?;
        let memory = &self.server.memory;
        if self.has_log != (memory.mode() == mode::RECORD) {
            return refuse("its log has begun or ended meanwhile");
        }
        if self.takes_turns {
            memory.take_turns();
        }
        let log_from = match self.has_log {
            true => Some(memory.end_record()),
            false => memory.begin_log(),
        };
        let Some(log_from) = log_from else {
            return refuse("its log makes no sense");
        };
        self.has_begun = !self.has_log;
        let books = books::read(memory, log_from);
        let holder = |it: &Connection| if books.family.is_some() { it.pid } else { 0 };
        self.open = books.open().map(|(number, it)| ((holder(it), number), it.conn)).collect();
        self.look_at_slow();
        Ok(Some(books))
    }

    fn end(&mut self) {
        self.server.memory.unpark();
        self.asked_at = None;
    }

    fn lend(&mut self, pid: u32, number: u32, look: &mut dyn FnMut(BorrowedFd<'_>)) {
        let holder = if self.server.memory.is_family() { pid.cast_signed() } else { 0 };
        let accept = self.open.get(&(holder, number));
        if let Some(borrowed) = accept.and_then(|accept| self.server.borrow_any(*accept)) {
            look(borrowed.as_fd());
        }
    }

    fn failed(&mut self) {
        self.call_off();
    }
}

/// Which file this path leads to.
fn identity(path: &str) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}
