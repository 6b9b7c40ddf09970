//! A member whose server runs alone (it "speaks alone"): it serves clients without a backup, and
//! the daemon's own death does not disturb it (decision 20). A daemon that is started again finds
//! the server running and takes it up, or at least watches it and reports its state.

use super::backup::Barred;
use super::drive::{Role, drive};
use super::member::{MemberContext, RESTART_BOTH, ROLE};
use super::pairing::{no_rejoin, turn_away};
use super::primary::{Survivor, states};
use super::said::Said;
use super::services::{Services, Watched};
use super::standstill::Heir;
use super::{advice, heed, kept};
use crate::channel::Listener;
use crate::leavings;
use crate::poll::Interest;
use crate::status::{self, State};
use holdfast_linux::bpf::Gate;
use holdfast_linux::diag::DiagSocket;
use holdfast_linux::process;
use holdfast_linux::shm::SharedMemory;
use holdfast_linux::spawn::Server;
use holdfast_member::host::{ConnState, End, Hosted, MemberEvent, MemberHost, Turn, turn_found};
use holdfast_member::primary::Held;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::TcpSegment;
use holdfast_wire::packet::mapped;
use holdfast_wire::shm::mode;
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

const LISTENER: u64 = ROLE;
const PIDFD: u64 = ROLE + 1;
/// Time between two looks for members that connect.
const ANSWER_EVERY: Duration = Duration::from_millis(20);
/// Time between two counts of connections: with ten thousand of them a count takes milliseconds.
const COUNT_EVERY: Duration = Duration::from_secs(2);
/// Time for which a server that has just taken over works off what clients have asked meanwhile,
/// before the kernel is asked about each of its connections.
const CATCHES_UP: Duration = Duration::from_millis(250);

/// Most processes of such a server that are looked at in one turn.
const PROCESSES_MAX: usize = 16;

/// Remedy if the server does not listen everywhere after a takeover.
const LISTENS_NOT: &str = "stop who listens there (`ss -ltnp` names it): the server then listens again by itself, \
    within seconds; else restart both members when the open connections, which are served, are over";

/// Remedy if it has not listened yet since it was started.
const STARTS: &str = "wait while the server starts; if this stays, look at its log, and with `ss -ltnp` for who else \
    listens there";

/// What the daemon does while its server runs alone.
pub struct Alone {
    diag: Option<DiagSocket>,
    answer_at: Instant,
    count_at: Instant,
    /// Checks whether the server listens at its services, and whether it stands still.
    services: Option<Services>,
    /// This member's state from before its server was found to serve no new client.
    served: Option<Said>,
    /// Whether the server has ever listened at every service.
    pub has_served: bool,
}

impl Alone {
    #[must_use]
    pub fn new() -> Self {
        let now = Instant::now();
        let (diag, services) = (DiagSocket::open().ok(), Services::open(now).ok());
        let (served, has_served) = (None, true);
        Self { diag, answer_at: now, count_at: now, services, served, has_served }
    }

    /// For a server that has just taken over.
    #[must_use]
    pub fn of_takeover() -> Self {
        Self { count_at: Instant::now() + CATCHES_UP, ..Self::new() }
    }

    /// For a server that starts.
    #[must_use]
    pub fn of_start() -> Self {
        Self { has_served: false, ..Self::new() }
    }

    /// Says of a server that has just been started alone that it serves nobody yet, until it does.
    #[must_use]
    pub fn awaited(mut self, node: &mut MemberContext<'_>) -> Self {
        if self.services.is_some() {
            self.wait(node, "the server has not started yet", STARTS);
        }
        self
    }

    /// Says that the server serves no new client, and keeps what is said when it does.
    fn wait(&mut self, node: &mut MemberContext<'_>, reason: &str, remedy: &str) {
        let served = self.served.get_or_insert_with(|| node.own().clone());
        let reason = format!("{reason}; {}", served.reason);
        node.set_state(status::Role::Primary, State::Waiting, &reason, remedy);
    }

    /// If the server serves no new client now, keeps `said` until it does again; else gives it
    /// back, to be reported now.
    pub fn put_off(&mut self, said: Said) -> Option<Said> {
        if self.served.is_none() {
            return Some(said);
        }
        self.served = Some(said);
        None
    }

    /// Makes the server outlive this daemon.
    pub fn let_loose(node: &mut MemberContext<'_>, server: &mut Server) {
        if node.loose {
            return;
        }
        // Noted first: this daemon may die before it reaches the next line.
        if let Err(error) = Self::note_loose(node) {
            let what = format!("a daemon that is started again would end the server: {error:#}");
            node.events.add("disk", format!("{what}; {}", kept::REMEDY));
        }
        node.loose = server.let_loose();
    }

    /// Notes that the server outlives this daemon: the next one would end a server of which it does
    /// not know that. Where it fails it is tried again.
    fn note_loose(node: &mut MemberContext<'_>) -> anyhow::Result<()> {
        if !node.noted_loose {
            leavings::note_loose(&node.config.group.run_dir, &node.me.name)?;
            node.noted_loose = true;
        }
        Ok(())
    }

    /// The kernel's states of connections.
    pub fn states(&mut self, keys: &[ConnKey]) -> Option<Vec<ConnState>> {
        states(self.diag.as_mut()?, keys)
    }

    /// Does what is due: tells members that connect to `listener` why they cannot join, counts
    /// connections, and checks the server, with its `memory` to see whether it makes progress.
    pub fn turn(
        &mut self,
        node: &mut MemberContext<'_>,
        listener: Option<&mut Listener>,
        memory: Option<&SharedMemory>,
    ) {
        let now = Instant::now();
        // The loop may turn for every packet of a tap, which would be too often.
        if let Some(listener) = listener.filter(|_| now >= self.answer_at) {
            self.answer_at = now + ANSWER_EVERY;
            let reason = no_rejoin(node);
            turn_away(node, listener, &reason);
        }
        if let Some(diag) = self.diag.as_mut().filter(|_| now >= self.count_at) {
            self.count_at = now + COUNT_EVERY;
            if node.own().state == State::Unprotected {
                node.mend_alone();
                node.forget_unfit();
            }
            if node.loose {
                heed("noting the server", Self::note_loose(node));
            }
            let ips: Vec<_> = node.config.service_ips().into_iter().map(mapped).collect();
            if let Ok(count) = diag.count_own(&ips, &node.config.service_ports()) {
                node.status.connections = count as u64;
            }
            self.look_at_listeners(node, memory, now);
        }
    }

    /// Checks the listeners. A server serves no new client if it does not listen, if another
    /// process listens there, too, or if it stands still.
    fn look_at_listeners(
        &mut self,
        node: &mut MemberContext<'_>,
        memory: Option<&SharedMemory>,
        now: Instant,
    ) {
        // A report of missing listeners is taken back; one of the server's end
        // is not.
        let state = node.own().state;
        let serves =
            state == State::Unprotected || state == State::Waiting && self.served.is_some();
        let (Some(services), Some(pid)) = (self.services.as_mut().filter(|_| serves), node.server)
        else {
            return;
        };
        let moved = moved(pid, memory);
        let is_family = memory.is_some_and(SharedMemory::is_family);
        let watched = Watched { pid, is_family, moved };
        let missing = services.missing(&node.config.group.services, watched, now);
        let remedy = if self.has_served { LISTENS_NOT } else { STARTS };
        let missing = missing.map(|reason| (reason.to_owned(), remedy.to_owned()));
        let stands = services.stands().map(|stands| stands.words(pid, Heir::Nobody));
        match stands.or(missing) {
            Some(_) if services.is_searching() => {}
            Some((reason, remedy)) => self.wait(node, &reason, &remedy),
            None => {
                self.has_served = true;
                if let Some(said) = self.served.take() {
                    node.set_said(&said);
                }
            }
        }
    }
}

/// A number that changes whenever a server does anything that writes no log. There are the shim's
/// counters in the shared `memory`, and the number of times that the process went to sleep. Where
/// there is no shim any more (the server has replaced itself by exec), or none that this daemon
/// knows, only who does not even compute is said to stand still.
fn moved(pid: u32, memory: Option<&SharedMemory>) -> Option<u64> {
    let memory = memory.filter(|memory| memory.is_attached());
    if let Some(books) = memory.and_then(SharedMemory::moved) {
        return Some(books.wrapping_add(process::sleeps(pid)));
    }
    let all = process::family(pid);
    (all.len() <= PROCESSES_MAX).then(|| process::deeds(&all))
}

/// A server that has outlived its daemon, and that this daemon only watches.
struct Found<'n, 'a, 's> {
    node: &'n mut MemberContext<'a>,
    server: &'s OwnedFd,
    listener: Option<Listener>,
    alone: Alone,
    ended: bool,
    /// Set if the server does not end.
    failed: Option<String>,
}

/// Takes up a server that has outlived the daemon that started it: from then on it belongs to
/// this daemon, and another member can join it.
///
/// # Errors
/// When its gate or its shared memory cannot be used; then nothing has changed.
pub fn take_up(
    node: &mut MemberContext<'_>,
    found: &leavings::Survivor,
) -> anyhow::Result<Survivor> {
    let mut gate = Gate::reopen(&node.gate_config(true))?;
    let settings = node.settings(mode::SOLO)?;
    let process = (found.pid, found.process.as_fd());
    let server = Server::found(process, &settings, found.standard.clone())?;
    // The backup that it sent its log to went with its daemon.
    server.memory.end_direct();
    match server.memory.mode() {
        // A member that was joining, or a backup that the edge has barred, went with the daemon.
        mode::RECORD => server.memory.go_solo(),
        mode::SOLO | mode::OFF | mode::BROKEN => {}
        _ => anyhow::bail!("it speaks for nobody"),
    }
    gate.set_solo(true)?;
    // A server keeps the key that it was started with, whatever key_file has now: who joins it is
    // told.
    node.hash_key = server.memory.hash_key();
    let conns = known(node, &mut gate)?;
    (node.server, node.loose, node.noted_loose) = (Some(found.pid), true, true);
    node.standard.clone_from(&found.standard);
    node.member.speaks = true;
    node.set_alone(OUTLIVED);
    let (listener, alone, barred) = (None, Alone::new(), Barred::default());
    Ok(Survivor { server, gate, conns, listener, alone, barred })
}

/// Ends connections that an earlier daemon rebuilt from handshakes, and whose clients it would have
/// ended by now or soon: those from which nothing has come since.
pub fn end_unanswered(node: &mut MemberContext<'_>, found: &leavings::Survivor) {
    let mut noted: BTreeMap<Duration, Vec<ConnKey>> = BTreeMap::new();
    for (since, key) in &found.unanswered {
        noted.entry(*since).or_default().push(*key);
    }
    for (since, keys) in noted {
        match DiagSocket::open().and_then(|mut diag| diag.unheard(&keys, since)) {
            Ok(unheard) => end_handshakes(node, &unheard),
            Err(error) => tracing::warn!("handshakes of an earlier daemon stay: {error}"),
        }
    }
}

/// Ends connections that were rebuilt from handshakes, and says so.
pub fn end_handshakes(node: &mut MemberContext<'_>, keys: &[ConnKey]) {
    if keys.is_empty() {
        return;
    }
    let what = match DiagSocket::open().and_then(|mut diag| diag.destroy(keys)) {
        Ok(()) => format!("{}, as their clients have not answered", keys.len()),
        Err(error) => format!("{} stay, although their clients do not answer: {error}", keys.len()),
    };
    node.events.add("handshakes", what);
}

const OUTLIVED: &str = "the server has outlived an earlier daemon; running alone";

/// The connections that the server's gate knows and the kernel still has.
fn known(node: &MemberContext<'_>, gate: &mut Gate) -> anyhow::Result<Vec<Held>> {
    // Records of SYN-ACKs that passed while no daemon was there to take them.
    let mut fresh = BTreeMap::new();
    gate.drain_events(|event| {
        fresh.insert(event.conn, event.record);
    });
    let ips: Vec<_> = node.config.service_ips().into_iter().map(mapped).collect();
    let sockets = DiagSocket::open()?.own_sockets(&ips, &node.config.service_ports())?;
    let sockets: BTreeMap<ConnKey, u64> = sockets.into_iter().collect();
    let mut conns = Vec::new();
    for (conn, record) in gate.known() {
        match sockets.get(&record.key) {
            Some(socket) => {
                let record = fresh.remove(&conn).unwrap_or(record);
                conns.push(Held { conn, socket: *socket, record });
            }
            None => drop(gate.free(conn)?),
        }
    }
    Ok(conns)
}

/// Watches a server that has outlived the daemon that started it and cannot be taken up.
///
/// # Errors
/// When the event loop fails, or a server that must end does not.
pub fn run(
    node: &mut MemberContext<'_>,
    found: &leavings::Survivor,
    why: &anyhow::Error,
) -> anyhow::Result<End> {
    let server = &found.process;
    (node.server, node.loose, node.noted_loose) = (Some(found.pid), true, true);
    node.standard.clone_from(&found.standard);
    node.member.speaks = true;
    let mut listener = Listener::bind(node.me.address, node.pair_identity()).ok();
    if let Some(listener) = &mut listener {
        listener.prefer([node.comes_from()]);
        node.poll.add(&*listener, LISTENER, Interest::Read)?;
    }
    node.poll.add(server, PIDFD, Interest::Read)?;
    let reason = format!("{OUTLIVED}, and nobody can join it: {why:#}");
    let remedy = format!(
        "start this daemon with the file and the release that its server was started with; else \
         {RESTART_BOTH}"
    );
    node.set_state(status::Role::Primary, State::Unprotected, &reason, &remedy);
    let mut found =
        Found { node, server, listener, alone: Alone::new(), ended: false, failed: None };
    drive(&mut found, |stop, found| {
        let turn = turn_found(stop, found);
        found.failed.take().map_or(turn, |error| Turn::End(End::Failed(error)))
    })
}

impl<'a> Role<'a> for Found<'_, 'a, '_> {}

impl<'a> Hosted for Found<'_, 'a, '_> {
    type Context = MemberContext<'a>;

    fn context(&self) -> &MemberContext<'a> {
        self.node
    }

    fn context_mut(&mut self) -> &mut MemberContext<'a> {
        self.node
    }
}

impl MemberHost for Found<'_, '_, '_> {
    fn has_server_ended(&mut self) -> bool {
        if self.node.tokens.has(PIDFD) {
            self.ended = true;
            heed("poll", self.node.poll.remove(self.server));
        }
        self.ended
    }

    fn kill_server(&mut self) {
        let folder = &self.node.config.group.run_dir;
        let user = leavings::server_user(&self.node.config.server);
        if let Err(error) = leavings::orphan(folder, &self.node.me.name, user) {
            self.failed = Some(format!("the server must not go on: {error:#}"));
        }
    }

    fn states(&mut self, keys: &[ConnKey]) -> Option<Vec<ConnState>> {
        self.alone.states(keys)
    }

    fn send_segment(&mut self, _: &TcpSegment<'_>) {
        // Nothing to send: the server is not this daemon's.
    }

    fn stand_by(&mut self) {
        self.alone.turn(self.node, self.listener.as_mut(), None);
    }

    fn show(&mut self, news: MemberEvent<'_>) {
        self.node.status.epoch = self.node.member.epoch;
        match news {
            MemberEvent::Replaced { newer } => self.node.set_replaced(newer),
            MemberEvent::EndedAlone => {
                let role = status::Role::Primary;
                self.node.set_ended(role, advice::ENDED, advice::AFTER_END);
            }
            // The other events concern members that have started their server themselves.
            _ => {}
        }
    }
}
