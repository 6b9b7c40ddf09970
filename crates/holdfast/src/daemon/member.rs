//! A member: asks the edge who is current, and then is the primary or the
//! backup. What both roles share is here.

mod asked;
mod fallen;
mod lives;
mod traces;
mod way;
mod words;

use super::coded::Coded;
use super::dialer::{Dialer, LinkEvent};
use super::front::{self, Front, Own};
use super::intact::Trouble;
use super::kept::Kept;
use super::pulse::{self, Pulse};
use super::said::{LastWords, Said};
use super::viewer::Viewer;
use super::{Asked, heed};
use crate::admin::{AdminSocket, Events};
use crate::channel::{Identity, Kind};
use crate::config::{Config, Member, Run, Settings as _, pin_dir};
use crate::fingerprint;
use crate::key::Keyring;
use crate::leavings;
use crate::open_files;
use crate::poll::{Interest, Poll, Signals};
use crate::status::{Role, State, Status};
use anyhow::Context as _;
use holdfast_cluster::Nanos;
use holdfast_linux::bpf::Left;
use holdfast_linux::changes::Changes;
use holdfast_linux::link::Link;
use holdfast_linux::priority;
use holdfast_linux::process;
use holdfast_linux::shm::Settings;
use holdfast_linux::spawn::{Server, ServerCommand, Standard};
use holdfast_linux::tap::Service;
use holdfast_linux::way::SignSocket;
use holdfast_member::host::{Context, Member as MemberState};
use holdfast_member::standing::CurrentMember;
use holdfast_wire::hash::HashKey;
use holdfast_wire::message::Message;
use holdfast_wire::packet::mapped;
use holdfast_wire::shm::option;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Token of the admin socket in the event loop; the other tokens follow.
pub const ADMIN: u64 = 1;
pub const SIGNALS: u64 = 2;
pub const EDGE: u64 = 3;
const SIGNS: u64 = 8;
/// First token of the role's own descriptors.
pub const ROLE: u64 = 16;

pub use crate::status::{REJOINS, RESTART_BOTH};
pub use lives::run;

/// Longest time for loading programs and starting a server on the slowest machine; for so long
/// the loop is excused.
const START_MAX: Duration = Duration::from_secs(10);
/// Time between two turns of the links, the admin socket and the heartbeats while the member is
/// busy with long work.
const ATTEND_EVERY: Duration = Duration::from_millis(5);
/// Real-time priority of the daemon: it only ever runs for microseconds, and a
/// late heartbeat looks like death.
const PRIORITY: i32 = 10;

/// What is said of a server that runs alone.
#[derive(Default)]
struct Lonely {
    reason: String,
    /// Why the other member, which is there, could last not join, as it was told.
    unfit: Option<String>,
}

/// What the loops of all roles of a member share.
pub struct MemberContext<'a> {
    pub config: &'a Config,
    pub me: &'a Member,
    pub other: &'a Member,
    /// What it shares with the edge, the other member and the witness, now.
    pub key: Keyring,
    /// Keys the hashes in the log that this member's server writes or follows: derived of the key
    /// when a server is started, a backup has it of its primary, and a server that is found had
    /// it from its start.
    pub hash_key: HashKey,
    pub poll: Poll,
    pub signals: Signals,
    pub admin: AdminSocket,
    /// Whom it asks for its place.
    pub edge: Front,
    pub status: Status,
    pub events: Events,
    /// What the member has learnt from the edge and the other member.
    pub member: MemberState,
    pulse: Pulse,
    /// Receives the edge's test frames (signs), which prove that its path to this member works.
    signs: SignSocket,
    /// Index of the member's interface; an interface that was made anew has another one.
    pub link_index: u32,
    /// When the index is checked again.
    link_at: Instant,
    /// Why the interface carries nothing, with the remedy.
    link_lost: Option<(String, String)>,
    carries_at: Instant,
    /// Whether the tap receives the signs instead, as on a backup.
    pub signs_by_tap: bool,
    /// This member's own state; the status also tells what the others say.
    own: Said,
    /// The edge's own state, as it last reported it.
    edge_says: Option<Said>,
    /// What the edge and the other member last said.
    last_words: [LastWords; 2],
    /// Whether clients were being served when the edge or the other member was last heard.
    serves: bool,
    /// The other member's own state, as it last reported it.
    pub other_says: Option<Said>,
    /// Why the edge, or the other member, and this one do not trust each other:
    /// reason and remedy.
    distrust: Option<(String, &'static str)>,
    /// Why the primary has not let this member join (its last answer), and the remedy.
    pub put_off: Option<Said>,
    /// Whether the members' `PATH` differed when they last met: each tells its own then.
    pub path_differs: std::cell::Cell<bool>,
    lonely: Lonely,
    /// When this member's state is repeated to the edge; a change is told at once.
    say_at: Instant,
    /// When the channel to the edge was last open.
    edge_at: Instant,
    /// When the edge's daemon, and the other member's, last gave a sign of life.
    edge_heard: Nanos,
    other_heard: Nanos,
    mend_at: Instant,
    /// Why a program or address that was removed cannot be put back.
    torn: Option<String>,
    /// What of the file's names and addresses this host has no more, which only its own
    /// configuration can give back.
    lacking: Option<Trouble>,
    kept: Kept,
    /// What serves the counters and the page.
    viewer: Option<Viewer>,
    /// What carries the channel to the other member, if it is not TCP alone.
    coded: Option<Coded>,
    /// What this member's earlier life has left, as its pins told when this one began.
    left: Left,
    /// Reason and remedy if this host's answers do not reach clients.
    way_lost: Option<(String, String)>,
    /// Tells when programs and addresses must be checked.
    changes: Changes,
    /// The server's process id.
    pub server: Option<u32>,
    /// The standard input, output and error that the server was started with.
    pub standard: Standard,
    /// Whether the server outlives this daemon.
    pub loose: bool,
    /// Whether that is noted in `run_dir`, or is about to be.
    pub noted_loose: bool,
    /// Whether the daemon ends once the other member has taken over.
    leaves: bool,
    /// The version of messages that the other member spoke last; 0: none.
    pub older: u32,
    /// Who was turned away last, and why.
    pub turned_away: String,
    /// Tokens that were ready when the loop last waited.
    pub tokens: Tokens,
    started: Instant,
}

impl Context for MemberContext<'_> {
    fn now(&self) -> Nanos {
        Nanos(self.nanos())
    }

    fn member(&mut self) -> &mut MemberState {
        &mut self.member
    }

    fn turn_edge(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        let is_other_fine = self.other_says.as_ref().is_some_and(Said::is_fine);
        self.edge.note(self.member.speaks, is_other_fine);
        let due = self.edge.deadline().is_some_and(|at| at <= Instant::now());
        (due || self.tokens.has(EDGE)) && self.hear_edge(each)
    }

    fn is_edge_open(&self) -> bool {
        self.edge.is_open()
    }

    fn tell_edge(&mut self, message: &Message<'_>) {
        if self.edge.send(message) {
            self.edge.flush(Instant::now(), &self.poll);
        }
    }
}

impl<'a> MemberContext<'a> {
    fn new(config: &'a Config, me: &'a Member) -> anyhow::Result<Self> {
        let key = config.keyring(&me.name)?;
        let identity = Identity {
            keyring: key.clone(),
            peers: vec!["edge".to_owned()],
            attempt: 0,
            group: config.group.name.clone(),
            me: me.name.clone(),
            kind: Kind::Edge,
        };
        let now = Instant::now();
        let signals = Signals::block()?;
        let run_dir = &config.group.run_dir;
        let admin = AdminSocket::of_daemon(&config.common(), &me.name)?;
        let admin = admin.with_pins(pin_dir(run_dir, &me.name)).with_notes();
        let signs = SignSocket::open(&me.interface)
            .with_context(|| format!("a packet socket on {}", me.interface))?;
        let link_index = Link::by_name(&me.interface)?.index;
        let changes = Changes::open().context("a netlink socket")?;
        // The heartbeats would only warn about an address that cannot be used at
        // all.
        lives::may_listen(config, me)?;
        let index = config.members.iter().position(|m| m.name == me.name).unwrap_or(0);
        let pulse = Pulse::of_member(config, &key, index, now);
        let edge = match &config.edge {
            Some(edge) => Front::Edge(Box::new(Dialer::new(edge.listen, identity, EDGE, now))),
            None => Front::Own(Box::new(Own::begin(config, me, &key, now)?)),
        };
        let coded = Coded::start(config, me, &key)?;
        let node = Self {
            config,
            me,
            other: config.other(me),
            hash_key: key.with(&config.other(me).name).first().hash_key(),
            key,
            poll: Poll::new()?,
            signals,
            admin,
            status: Status {
                mode: config.group.mode.word().to_owned(),
                buffering: config.group.buffering.word().to_owned(),
                arbiter: edge.decides().to_owned(),
                ..Status::new(&config.group.name, &me.name)
            },
            edge,
            events: Events::begin(&config.common(), &me.name),
            member: lives::heard_of(config, me),
            pulse,
            signs,
            link_index,
            link_at: now,
            link_lost: None,
            carries_at: now,
            signs_by_tap: false,
            own: Said::default(),
            edge_says: None,
            last_words: Default::default(),
            serves: false,
            other_says: None,
            distrust: None,
            put_off: None,
            path_differs: Default::default(),
            lonely: Lonely::default(),
            say_at: now,
            edge_at: now,
            edge_heard: Nanos(0),
            other_heard: Nanos(0),
            mend_at: now,
            torn: None,
            lacking: None,
            kept: Kept::default(),
            viewer: Viewer::start(&[(config.common(), &me.name)]),
            coded,
            left: Left::default(),
            way_lost: None,
            changes,
            server: None,
            standard: Standard::default(),
            loose: false,
            noted_loose: false,
            leaves: false,
            older: 0,
            turned_away: String::new(),
            tokens: Tokens::default(),
            started: now,
        };
        node.poll.add(&node.admin, ADMIN, Interest::Read)?;
        node.poll.add(&node.signals, SIGNALS, Interest::Read)?;
        node.poll.add(&node.signs, SIGNS, Interest::Read)?;
        if let Front::Own(own) = &node.edge {
            node.poll.add(own.lease().bell(), EDGE, Interest::Read)?;
        }
        if config.group.realtime {
            // Without the privilege the daemon works, only less punctually.
            heed("real-time priority", priority::set_realtime(PRIORITY));
            heed("locking memory", process::lock_memory());
        }
        // Images of servers need large pieces of memory for a short time: they go back at once.
        process::keep_no_large_pieces();
        Ok(node)
    }

    /// Drives the channel to the edge: sends the hello when it opens, notes a new epoch, and
    /// passes every message to `each`. Returns whether the channel has just opened.
    pub fn hear_edge(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        let mut says = None;
        let at = Nanos(self.nanos());
        let Self { edge, member, poll, edge_heard, .. } = self;
        let event = edge.turn(Instant::now(), poll, |message| {
            member.handle_edge(&message);
            *edge_heard = at;
            if matches!(message, Message::Says { .. }) {
                says = Said::of(&message);
            }
            each(&message);
        });
        match &event {
            LinkEvent::Failed(error) | LinkEvent::Lost(error) => {
                self.doubt(error.distrust("edge"));
            }
            LinkEvent::Opened => {
                self.doubt(None);
                self.member.standing.handle_opened();
            }
            LinkEvent::Nothing => {}
        }
        let at = Nanos(self.nanos());
        let Self { edge, member, .. } = self;
        let new = member.settle(at, &mut |message| {
            edge.send(message);
        });
        let says = says.or_else(|| self.hear_own());
        if new.reach || says.is_some() {
            self.edge_says = says.or(self.edge_says.take());
            self.show();
        }
        let now = Instant::now();
        if new.opened || new.beat && now >= self.say_at {
            self.say(now);
        }
        if new.opened || new.beat {
            self.edge.flush(Instant::now(), &self.poll);
        }
        if self.edge.is_open() {
            self.edge_at = now;
        }
        new.opened
    }

    /// What this host's stand-in for an edge says, if that is new.
    fn hear_own(&mut self) -> Option<Said> {
        let Front::Own(own) = &mut self.edge else { return None };
        for (prefix, counters) in own.counters() {
            count(&mut self.status.counters, prefix, counters);
        }
        for note in own.take_notes() {
            self.events.add_at(front::level(note), "lease", note.words());
        }
        Some(own.said()).filter(|said| self.edge_says.as_ref() != Some(said))
    }

    /// Sets the epoch that this member is in.
    pub fn set_epoch(&mut self, epoch: u64) {
        (self.member.epoch, self.status.epoch) = (epoch, epoch);
    }

    /// Notes that another member has replaced this one, which sends nothing to clients from now
    /// on.
    pub fn set_replaced(&mut self, newer: &CurrentMember) {
        let reason = format!("{} is current in epoch {}", newer.current, newer.epoch);
        self.set_state(Role::None, State::Fenced, &reason, REJOINS);
        (self.status.connections, self.other_says) = (0, None);
    }

    /// Waits until a descriptor is ready, or until `deadline`. Admin requests and signals are
    /// served here; the tokens of the role's descriptors are kept in `tokens`. Returns whether to
    /// stop.
    ///
    /// # Errors
    /// When the event loop itself fails.
    pub fn wait(&mut self, deadline: Option<Instant>) -> anyhow::Result<bool> {
        let mut tokens = Tokens::default();
        for ready in self.poll.wait(deadline)? {
            tokens.0 |= 1 << ready.token.min(63);
        }
        self.tokens = tokens;
        self.feel_pulses();
        // A peer that has become silent says nothing.
        if self.events.is_due(Instant::now()) {
            self.show();
        }
        self.look_at_interface();
        if tokens.has(SIGNS) {
            self.hear_sign();
        }
        if tokens.has(ADMIN) {
            self.serve_admin();
        }
        match super::asked(&self.signals, tokens.has(SIGNALS)) {
            Some(Asked::End(signal)) => {
                self.events.add("signal", format!("{signal}: ending"));
                return Ok(true);
            }
            Some(Asked::Reload) => self.reload(),
            None => {}
        }
        Ok(false)
    }

    /// Turns the heartbeats, the channel to the edge, signs and the admin socket, for a role that
    /// is busy with something else. Signals wait.
    pub fn attend(&mut self) {
        self.feel_pulses();
        self.hear_sign();
        self.hear_edge(&mut |_| {});
        self.serve_admin();
    }

    /// Does long `work` in another thread, and calls [`Self::attend`] meanwhile. That thread does
    /// not have this one's real-time priority, which would keep a server on the same processor
    /// from running.
    pub fn attend_until<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        let attending = std::thread::current();
        std::thread::scope(|scope| {
            let working = scope.spawn(move || {
                let done = work();
                attending.unpark();
                done
            });
            while !working.is_finished() {
                self.attend();
                std::thread::park_timeout(ATTEND_EVERY);
            }
            working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Lets this member count as alive although its loop does not turn during a start: loading
    /// programs and starting servers takes seconds on a busy machine. No backup follows a member
    /// that has not begun, so nothing could be taken over from it.
    pub fn excuse_start(&self) {
        self.pulse.excuse(START_MAX);
    }

    /// Takes what the heartbeat thread has received, and tells it that this loop turns.
    fn feel_pulses(&mut self) {
        self.pulse.turned();
        super::service_manager::turn(|| self.line());
        if let Some(at) = self.pulse.heard(pulse::EDGE) {
            self.edge_heard = self.edge_heard.max(at);
            self.member.watch.handle_edge(at);
        }
        if let Some(at) = self.pulse.heard(pulse::OTHER) {
            self.other_heard = self.other_heard.max(at);
            self.member.watch.handle_received(at);
        }
    }

    /// Notes that a message of the other member has come.
    pub fn hear_other(&mut self) {
        self.other_heard = Nanos(self.nanos());
    }

    /// How late this process was, for the status.
    pub fn report_lateness(&mut self) {
        count(&mut self.status.counters, "pulse", &self.pulse.counters());
        let coded = self.coded.as_ref().map(Coded::counters).unwrap_or_default();
        count(&mut self.status.counters, "channel", &coded);
        let of = [
            ("overslept", self.member.watch.overslept()),
            ("deafened", self.member.watch.deafened()),
        ];
        count(&mut self.status.counters, "loop", &of);
    }

    /// Nanoseconds since this daemon started, which is the state machines' time.
    #[must_use]
    pub fn nanos(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Starts to watch the other member afresh, because its channel, or the reason to watch it,
    /// is new.
    pub fn renew_watch(&mut self) {
        self.member.watch.renew(Nanos(self.nanos()));
    }

    /// The instant of a machine's time.
    #[must_use]
    pub fn instant(&self, nanos: u64) -> Instant {
        self.started + std::time::Duration::from_nanos(nanos)
    }

    /// Addresses and ports that clients connect to.
    #[must_use]
    pub fn services(&self) -> Vec<(IpAddr, u16)> {
        self.config.served()
    }

    /// Like [`Self::services`], for the tap.
    #[must_use]
    pub fn tap_services(&self) -> Vec<Service> {
        let of = |s: &std::net::SocketAddr| Service { address: mapped(s.ip()), port: s.port() };
        self.config.group.services.iter().map(of).collect()
    }

    /// Folder where this member pins its eBPF programs.
    #[must_use]
    pub fn pin_dir(&self) -> PathBuf {
        pin_dir(&self.config.group.run_dir, &self.me.name)
    }

    /// Starts the server under the shim, recording or replaying.
    ///
    /// # Errors
    /// If the user is unknown or the program cannot be run.
    pub fn start_server(&mut self, mode: u32) -> anyhow::Result<Server> {
        let server = &self.config.server;
        let user = server.user.as_deref().map(fingerprint::user_of).transpose()?;
        let command = ServerCommand {
            argv: server.command.iter().map(Into::into).collect(),
            env: server.env.iter().map(|(k, v)| (k.into(), v.into())).collect(),
            directory: server.directory.clone(),
            user,
            without: fingerprint::inherited_but_not_passed(),
            log: server.log.clone(),
            shim: fingerprint::shim_path()?,
            open_files: open_files::of_server(mode)?,
            aslr: server.aslr,
            family: server.run.is_family(),
            file_bytes_max: None,
        };
        let settings = self.settings(mode)?;
        let started = Server::start(&command, &settings)
            .with_context(|| format!("starting {:?}", server.command))?;
        self.note_server(&started)?;
        Ok(started)
    }

    /// The settings of the memory that this daemon shares with its server.
    ///
    /// # Errors
    /// When `run_dir` is gone.
    pub fn settings(&self, mode: u32) -> anyhow::Result<Settings> {
        let server = &self.config.server;
        Ok(Settings {
            ring_bytes: server.ring_bytes as usize,
            hash_key: self.hash_key,
            ports: self.config.service_ports(),
            options: shim_options(self.config),
            mode,
            name: leavings::mark(&self.config.group.run_dir, &self.me.name)?,
        })
    }

    /// Notes which process is this member's server.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn note_server(&mut self, server: &Server) -> anyhow::Result<()> {
        leavings::note_server(
            &self.config.group.run_dir,
            &self.me.name,
            server.pid(),
            server.standard(),
        )?;
        (self.server, self.loose, self.noted_loose) = (Some(server.pid()), false, false);
        self.standard.clone_from(server.standard());
        Ok(())
    }
}

/// A set of tokens below 64, as bits: those that became ready.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens(u64);

impl Tokens {
    #[must_use]
    pub fn has(self, token: u64) -> bool {
        self.0 & (1 << token) != 0
    }
}

/// Puts counters into a status, each named `prefix.name`.
pub fn count(into: &mut BTreeMap<String, u64>, prefix: &str, counters: &[(&'static str, u64)]) {
    for (name, n) in counters {
        into.insert(format!("{prefix}.{name}"), *n);
    }
}

/// The shim's options, as bits of [`option`].
fn shim_options(config: &Config) -> u32 {
    let trap_tsc = if config.server.trap_tsc { option::TRAP_TSC } else { 0 };
    let run = match config.server.run {
        Run::Auto => 0,
        Run::Parallel => option::FAMILY,
        Run::OneAtATime => option::FAMILY | option::ONE_AT_A_TIME,
    };
    trap_tsc | run | config.group.buffering.option()
}
