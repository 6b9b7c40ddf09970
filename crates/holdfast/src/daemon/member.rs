//! A member: asks the edge who is current, then is the primary or the backup.
//! What both roles share lives here.

use super::edge_link::{EdgeLink, LinkEvent};
use super::{backup, primary};
use crate::admin::{AdminSocket, Events, Request, refusal};
use crate::channel::{Identity, Kind};
use crate::config::{Config, Member, admin_socket};
use crate::key::GroupKey;
use crate::poll::{Interest, Poll, Signals};
use crate::status::{Lag, Role, State, Status};
use crate::world;
use anyhow::Context as _;
use holdfast_cluster::Nanos;
use holdfast_cluster::detector::Detector;
use holdfast_linux::process;
use holdfast_linux::shm::Settings;
use holdfast_linux::spawn::{Server, ServerCommand};
use holdfast_linux::tap::Service;
use holdfast_wire::message::{self, Message, WorldPart};
use holdfast_wire::shm::option;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Tokens of the event loop.
pub const ADMIN: u64 = 1;
pub const SIGNALS: u64 = 2;
pub const EDGE: u64 = 3;
/// First token of the role's own descriptors.
pub const ROLE: u64 = 16;

/// The remedy while a member that was lost cannot come back.
pub const RESTART_BOTH: &str = "restart both members at a quiet moment to be protected again";

/// How often the edge is asked while nobody is current.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// An edge's daemon that is started again is back by then.
const EDGE_PATIENCE: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(10);
/// Real-time priority of the daemon: it only ever runs for microseconds, and a
/// late heartbeat looks like death.
const PRIORITY: i32 = 10;

/// What a member's loop works with.
pub struct Node<'a> {
    pub config: &'a Config,
    pub me: &'a Member,
    pub other: &'a Member,
    pub key: GroupKey,
    pub poll: Poll,
    pub signals: Signals,
    pub admin: AdminSocket,
    pub edge: EdgeLink,
    pub status: Status,
    pub events: Events,
    /// The last epoch that the edge told of.
    pub heard: Option<Heard>,
    /// Whether the edge hears the other member, as far as it has said.
    pub other_reached: bool,
    /// The other member is current and has lost this one, says the edge.
    pub other_alone: bool,
    /// When the edge was last there.
    edge_at: Instant,
    started: Instant,
}

/// Who is current, in the edge's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    pub epoch: u64,
    pub current: String,
}

/// Why a role's loop came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A signal asked for it.
    Stopped,
    /// Begin again by asking the edge.
    Again,
}

/// Runs the member's daemon until a signal ends it.
///
/// # Errors
/// Whatever keeps it from starting or ends it.
pub fn run(config: &Config, member: &Member) -> anyhow::Result<()> {
    let mut node = Node::new(config, member)?;
    loop {
        let Some((epoch, current)) = node.ask_edge()? else { return Ok(()) };
        node.status.epoch = epoch;
        node.events.add("epoch", format!("{epoch}, current member {current}"));
        let end = if current { primary::run(&mut node)? } else { backup::run(&mut node)? };
        if end == End::Stopped {
            return Ok(());
        }
    }
}

impl<'a> Node<'a> {
    fn new(config: &'a Config, me: &'a Member) -> anyhow::Result<Self> {
        let key = config.key()?;
        let identity = Identity {
            key: key.channel_key(),
            group: config.group.name.clone(),
            me: me.name.clone(),
            kind: Kind::Edge,
        };
        let now = Instant::now();
        let node = Self {
            config,
            me,
            other: config.other(me),
            key,
            poll: Poll::new()?,
            signals: Signals::block()?,
            admin: AdminSocket::bind(&admin_socket(&config.group.run_dir, &me.name))?,
            edge: EdgeLink::new(config.edge.listen, identity, EDGE, now),
            status: Status::new(&config.group.name, &me.name),
            events: Events::default(),
            heard: None,
            other_reached: true,
            other_alone: false,
            edge_at: now,
            started: now,
        };
        node.poll.add(&node.admin, ADMIN, Interest::Read)?;
        node.poll.add(&node.signals, SIGNALS, Interest::Read)?;
        if config.group.realtime {
            // Without the right to it the daemon works, only less punctually.
            let _ = process::set_realtime(PRIORITY);
        }
        Ok(node)
    }

    /// Every member starts silent and asks (decision 21). Returns the epoch and
    /// whether this member is current in it; `None`: asked to stop.
    fn ask_edge(&mut self) -> anyhow::Result<Option<(u64, bool)>> {
        let remedy = "check that the edge's daemon runs and is reachable, and that the preferred member is started";
        self.set_state(Role::None, State::Waiting, "the edge has not said who is current", remedy);
        let mut ask_at = Instant::now();
        loop {
            let now = Instant::now();
            if now >= ask_at && self.edge.is_open() {
                self.edge.send(&Message::Ask);
                self.edge.flush(now, &self.poll);
                ask_at = now + ASK_EVERY;
            }
            let deadline = self.edge.deadline().unwrap_or(ask_at).min(ask_at.max(now + RETRY));
            let (stop, _) = self.wait(Some(deadline))?;
            if stop {
                return Ok(None);
            }
            let mut told = None;
            let mut granted = None;
            self.turn_edge(|message| match message {
                Message::Epoch { epoch, current } => told = Some((*epoch, (*current).to_owned())),
                Message::Granted { epoch } => granted = Some(*epoch),
                _ => {}
            });
            if let Some(epoch) = granted {
                return Ok(Some((epoch, true)));
            }
            match told {
                Some((epoch, current)) if current == self.other.name => {
                    return Ok(Some((epoch, false)));
                }
                // A server that starts anew begins a new epoch: what it once
                // told its clients is gone.
                Some((epoch, current)) if current == self.me.name || self.is_preferred() => {
                    self.edge.send(&Message::Promote { epoch: epoch + 1 });
                    self.edge.flush(Instant::now(), &self.poll);
                }
                _ => {}
            }
        }
    }

    fn is_preferred(&self) -> bool {
        self.config.edge.first == self.me.name
    }

    /// Turns the link to the edge: says hello when it opens, notes a new epoch,
    /// and hands every message on. Returns whether the link has just opened.
    pub fn turn_edge(&mut self, mut each: impl FnMut(&Message<'_>)) -> bool {
        let (mut news, mut reach, mut beat, mut alone) = (None, None, None, false);
        let other = self.other.name.as_str();
        let event = self.edge.turn(Instant::now(), &self.poll, |message| {
            match message {
                Message::Epoch { epoch, current } => news = Some((epoch, current.to_owned())),
                Message::Reach { member, yes } if member == other => reach = Some(yes),
                Message::Alone { member } => alone |= member == other,
                Message::Beat { number, .. } => beat = Some(number),
                _ => {}
            }
            each(&message);
        });
        if let Some((epoch, current)) = news {
            self.heard = Some(Heard { epoch, current });
        }
        let opened = matches!(event, LinkEvent::Opened);
        if opened {
            self.other_reached = true;
            let (status, me) = (&self.status, self.me);
            self.edge.send(&hello(self.config, me, status.epoch, Vec::new()));
            if status.role == Role::Primary && status.state != State::Ended {
                // An edge that has restarted is closed until its member asks.
                self.edge.send(&Message::Promote { epoch: status.epoch });
            }
        }
        self.other_reached = reach.unwrap_or(self.other_reached);
        self.other_alone |= alone;
        if let Some(number) = beat {
            self.edge.send(&Message::Beat { number, echo: number, executed: 0 });
        }
        if opened || beat.is_some() {
            self.edge.flush(Instant::now(), &self.poll);
        }
        if self.edge.is_open() {
            self.edge_at = Instant::now();
        }
        opened
    }

    /// Another member speaks in a newer epoch than the one that is ours.
    #[must_use]
    pub fn replaced_by(&self) -> Option<Heard> {
        let newer = |h: &Heard| h.epoch > self.status.epoch && h.current != self.me.name;
        self.heard.clone().filter(newer)
    }

    /// Says so: this member is silent from now on.
    pub fn set_replaced(&mut self, newer: &Heard) {
        let reason = format!("{} is current in epoch {}", newer.current, newer.epoch);
        let remedy = "restart both members to be protected again";
        self.set_state(Role::None, State::Fenced, &reason, remedy);
    }

    /// A pair in step is protected only if the edge would let the backup speak.
    pub fn judge_pair(&mut self) {
        let other = &self.other.name;
        let (state, reason, remedy) = if self.edge_at.elapsed() > EDGE_PATIENCE {
            let reason = "the edge's daemon does not answer: nobody could take over".to_owned();
            (State::Unprotected, reason, "start the edge's daemon, or look at the way to it")
        } else if !self.other_reached {
            let reason = format!("the edge does not hear {other}");
            (State::Unprotected, reason, "look at the link between them")
        } else {
            (State::Protected, String::new(), "")
        };
        self.set_state(self.status.role, state, &reason, remedy);
    }

    /// Whether the link to the edge wants a turn.
    #[must_use]
    pub fn edge_due(&self, tokens: Tokens) -> bool {
        tokens.has(EDGE) || self.edge.deadline().is_some_and(|at| at <= Instant::now())
    }

    /// Waits for the role's descriptors; admin requests and signals are served
    /// here. Returns whether to stop, and the ready tokens of the role.
    ///
    /// # Errors
    /// When the event loop itself fails.
    pub fn wait(&mut self, deadline: Option<Instant>) -> anyhow::Result<(bool, Tokens)> {
        let mut tokens = Tokens::default();
        for ready in self.poll.wait(deadline)? {
            tokens.0 |= 1 << ready.token.min(63);
        }
        if tokens.has(ADMIN) {
            self.serve_admin()?;
        }
        let stop = tokens.has(SIGNALS) && self.signals.take().is_some();
        Ok((stop, tokens))
    }

    fn serve_admin(&mut self) -> anyhow::Result<()> {
        let (status, events) = (&self.status, &self.events);
        self.admin.serve(|request| match request {
            Request::Status => {
                serde_json::to_value(status).unwrap_or_else(|e| refusal(&e.to_string()))
            }
            Request::Events { since } => events.answer(since),
            _ => refusal("only the edge can do that; ask its socket"),
        })?;
        Ok(())
    }

    /// Says what the member is; a change is an event.
    pub fn set_state(&mut self, role: Role, state: State, reason: &str, remedy: &str) {
        let changed =
            self.status.role != role || self.status.state != state || self.status.reason != reason;
        self.status.role = role;
        self.status.state = state;
        if state != State::Protected {
            // Only a pair can lag.
            self.status.lag = Lag::default();
        }
        reason.clone_into(&mut self.status.reason);
        remedy.clone_into(&mut self.status.remedy);
        if changed {
            self.events.add("state", format!("{role}, {state}: {reason}"));
        }
    }

    /// Nanoseconds since this daemon started: the machines' time.
    #[must_use]
    pub fn nanos(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// A detector of the other member, whose channel has been open since now.
    #[must_use]
    pub fn detector(&self) -> Detector {
        let period = self.config.heartbeat().as_nanos() as u64;
        Detector::new(Nanos(self.nanos()), Nanos(period))
    }

    /// The instant of a machine's time.
    #[must_use]
    pub fn instant(&self, nanos: u64) -> Instant {
        self.started + std::time::Duration::from_nanos(nanos)
    }

    /// The identity for the channel between the members.
    #[must_use]
    pub fn pair_identity(&self) -> Identity {
        Identity {
            key: self.key.channel_key(),
            group: self.config.group.name.clone(),
            me: self.me.name.clone(),
            kind: Kind::Pair,
        }
    }

    /// Addresses and ports that clients use.
    #[must_use]
    pub fn services(&self) -> Vec<(IpAddr, u16)> {
        self.config.group.services.iter().map(|s| (s.ip(), s.port())).collect()
    }

    /// As [`Self::services`], for the tap.
    #[must_use]
    pub fn tap_services(&self) -> Vec<Service> {
        let of = |s: &std::net::SocketAddr| Service { address: mapped(s.ip()), port: s.port() };
        self.config.group.services.iter().map(of).collect()
    }

    /// Where this member pins its eBPF programs.
    #[must_use]
    pub fn pin_dir(&self) -> PathBuf {
        self.config.group.run_dir.join("bpf").join(&self.me.name)
    }

    /// Starts the server under the shim, recording or replaying.
    ///
    /// # Errors
    /// If the user is unknown or the program cannot be run.
    pub fn start_server(&self, mode: u32) -> anyhow::Result<Server> {
        let server = &self.config.server;
        let ids = server.user.as_deref().map(user_ids).transpose()?;
        let command = ServerCommand {
            argv: server.command.iter().map(Into::into).collect(),
            env: server.env.iter().map(|(k, v)| (k.into(), v.into())).collect(),
            directory: server.directory.clone(),
            ids,
            without: world::inherited_but_not_passed(),
            log: server.log.clone(),
            shim: world::shim_path()?,
        };
        let settings = Settings {
            ring_bytes: server.ring_bytes as usize,
            hash_key: self.key.hash_key(),
            ports: self.config.service_ports(),
            options: test_options(),
            mode,
        };
        Server::start(&command, &settings).with_context(|| format!("starting {:?}", server.command))
    }
}

/// The first message on any channel; only the other member is told the world.
#[must_use]
pub fn hello<'c>(
    config: &'c Config,
    me: &'c Member,
    epoch: u64,
    world: Vec<WorldPart<'c>>,
) -> Message<'c> {
    Message::Hello {
        version: message::VERSION,
        log_version: holdfast_wire::log::LOG_VERSION,
        group: &config.group.name,
        member: &me.name,
        epoch,
        world,
    }
}

/// Tokens that became ready.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens(u64);

impl Tokens {
    #[must_use]
    pub fn has(self, token: u64) -> bool {
        self.0 & (1 << token) != 0
    }
}

/// An address as the machines write it.
#[must_use]
pub fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Adds counters to a status under a common name.
pub fn count(into: &mut BTreeMap<String, u64>, prefix: &str, counters: &[(&'static str, u64)]) {
    for (name, n) in counters {
        into.insert(format!("{prefix}.{name}"), *n);
    }
}

/// The matrix proves with this that output commit matters: without it, it fails.
fn test_options() -> u32 {
    if std::env::var_os("HOLDFAST_TEST_NO_COMMIT").is_some() { option::NO_COMMIT } else { 0 }
}

/// User and group number of a name of /etc/passwd.
fn user_ids(name: &str) -> anyhow::Result<(u32, u32)> {
    let table = std::fs::read_to_string("/etc/passwd").context("reading /etc/passwd")?;
    let ids = table.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        let uid = fields.nth(1)?.parse().ok()?;
        Some((uid, fields.next()?.parse().ok()?))
    });
    ids.with_context(|| {
        format!("there is no user `{name}`; create it or change `user` in [server]")
    })
}
