//! A member's daemon: what both roles share (`daemon/member.rs`,
//! `daemon/dialer.rs`, `daemon/pairing.rs`). It runs in turns, as the real loop does:
//! each turn handles the input, does what is due, and says when the next one is due.

use crate::check::Said;
use crate::edge::GROUP;
use crate::hosting::AtHost;
use crate::hosting::RestoredSocket;
use crate::image::{Copy, Image};
use crate::kernel::cookie;
use crate::packet::Packet;
use crate::pipe::{Input, Kind, PipeId, Process, RETRY};
use crate::server::{KEY, Mode};
use crate::world::{Event, NAMES, World};
use crate::{Ns, ns};
use holdfast_cluster::Nanos;
use holdfast_member::backup::{BackupMachine, Cause};
use holdfast_member::host::{End, Member, Turn};
use holdfast_member::pairing::{Pairing, Side};
use holdfast_member::primary::{Book, Earlier, Held, Image as Taken, PrimaryMachine};
use holdfast_member::standing::{Ask, Place};
use holdfast_member::timing::HEARTBEAT_MS_DEFAULT;
use holdfast_member::timing::primary::TICK;
use holdfast_wire::message::{ConnId, ConnKey};
use holdfast_wire::seq::SeqNo;
use std::collections::{BTreeMap, VecDeque};

pub const HEARTBEAT: Ns = HEARTBEAT_MS_DEFAULT * 1_000_000;
/// Time for which a member waits for the other one: 1.5 s, short because runs are short.
const ALONE_AFTER: Nanos = Nanos::from_ms(1500);

/// A channel that this side opens and reopens, or (on the primary) the peer's.
#[derive(Debug, Default)]
pub struct Link {
    pub pipe: Option<PipeId>,
    connecting: bool,
    retry_at: Ns,
    pub inbox: VecDeque<Input>,
}

/// The role of a daemon.
pub enum Phase {
    Ask(Ask),
    /// A primary that waits for its backup, or a backup that looks for its primary.
    Pairing(Pairing),
    Primary(Box<PrimaryMachine>),
    Backup(Box<BackupMachine>),
    /// A placeholder, while the real phase is taken out for a turn.
    Away,
}

impl Phase {
    /// The initial phase; the first member is the preferred one.
    pub fn asks(at: usize, now: Ns) -> Self {
        Self::Ask(Ask::new(NAMES[at], NAMES[1 - at], at == 0, Nanos(now)))
    }
}

/// A member's process.
pub struct Daemon {
    pub life: u32,
    /// Number of its host.
    pub at: usize,
    pub member: Member,
    pub edge: Link,
    pub pair: Link,
    pub phase: Phase,
    /// SYN-ACKs that the gate holds.
    pub held: BTreeMap<ConnId, Packet>,
    /// ACKs that the gate had withheld when it was removed, and that are still to be sent.
    pub owed: Vec<(ConnKey, SeqNo)>,
    /// Sockets that a takeover has rebuilt.
    pub carried: Vec<RestoredSocket>,
    /// Whether the channel to the primary was lost, or is not used any more.
    pub lost: bool,
    pub takes_over: bool,
    /// Whether the takeover has asked its replica for its connections.
    pub settles: bool,
    /// Number of refusals in its machine's latest report.
    pub refused_full: u64,
    /// Whether a mutation makes it obey a primary that sends it away.
    pub sent_away: bool,
    /// Number of connections that its machine knows, by its latest report.
    pub connections: usize,
    /// Unconfirmed frames of the log (primary) or bytes of it (backup), by the latest report.
    pub unconfirmed: usize,
    /// When the image of its server is taken.
    pub image_due: Option<Nanos>,
    /// Outcome of the image, and when the daemon sees it.
    pub image_seen: Option<(Nanos, Result<Taken, String>)>,
    /// Number of connections that its server had accepted by the image.
    pub accepts: u32,
    /// Connections in the image that the server had already released.
    pub let_go: Vec<ConnKey>,
    /// The image that it sends.
    pub image: Option<Image>,
    /// Number of bytes of the image sent so far.
    pub image_at: u64,
    /// The image's connections.
    pub books: Vec<Book>,
    /// Number of bytes that each client had not acknowledged at the image.
    pub unacked: Vec<(ConnKey, u64)>,
    /// Cookies of the sockets whose earlier output goes with an image.
    pub slow: Vec<u64>,
    /// Their output.
    pub earlier: Vec<Earlier>,
    /// The server that it makes from an image.
    pub copy: Option<Copy>,
    /// Connections that it has taken over.
    pub survivors: Vec<Held>,
    /// Whether it keeps everything needed to rebuild its server.
    pub keeps: bool,
    /// Whether it is rebuilding its server.
    pub rebuilds: bool,
    /// Whether the input of its backup machine comes from its own server.
    pub own: bool,
    /// The key with which it hears the primary's server, and what has come from that.
    pub direct: Option<u64>,
    pub directs: VecDeque<(u64, Vec<u8>)>,
    /// The key that it has offered as a primary.
    pub offered: u64,
}

impl Daemon {
    /// Whether the socket for the other member is open.
    pub fn listens(&self) -> bool {
        matches!(self.phase, Phase::Pairing(_) | Phase::Primary(_)) && self.member.speaks
    }

    pub fn process(&self) -> Process {
        Process { host: self.at, life: self.life }
    }

    /// The resources that it holds for connections and channels: name and number of each.
    pub fn left(&self) -> [(&'static str, usize); 6] {
        let inbox = self.edge.inbox.len() + self.pair.inbox.len();
        let unmade = self.copy.as_ref().filter(|copy| !copy.is_kept());
        [
            ("connections of the machine", self.connections),
            ("frames or bytes of the log", self.unconfirmed),
            ("held SYN-ACKs", self.held.len()),
            ("messages not taken", inbox),
            ("images", usize::from(self.image.is_some() || self.image_due.is_some())),
            ("copies that are not made", usize::from(unmade.is_some())),
        ]
    }

    /// Whether a copy of a client's packet wakes it.
    pub fn watches_tap(&self) -> bool {
        let Phase::Backup(machine) = &self.phase else { return false };
        machine.watches_tap() || !machine.follows()
    }
}

impl World {
    pub fn daemon_starts(&mut self, member: usize) {
        let now = self.time_at(member);
        let host = &mut self.hosts[member];
        host.lives += 1;
        let (period, own) = (Nanos(HEARTBEAT), NAMES[member]);
        let daemon = Daemon {
            life: host.lives,
            at: member,
            member: Member {
                alone_after: ALONE_AFTER,
                is_cold: self.plan.cold.is_some(),
                buffering: self.plan.buffering,
                ..Member::new(GROUP, own, NAMES[1 - member], period, Nanos(now))
            },
            edge: Link::default(),
            pair: Link::default(),
            phase: Phase::asks(member, now),
            held: BTreeMap::new(),
            owed: Vec::new(),
            carried: Vec::new(),
            lost: false,
            takes_over: false,
            settles: false,
            refused_full: 0,
            sent_away: false,
            connections: 0,
            unconfirmed: 0,
            image_due: None,
            image_seen: None,
            accepts: 0,
            let_go: Vec::new(),
            image: None,
            image_at: 0,
            books: Vec::new(),
            unacked: Vec::new(),
            slow: Vec::new(),
            earlier: Vec::new(),
            copy: None,
            survivors: Vec::new(),
            keeps: false,
            rebuilds: false,
            own: false,
            direct: None,
            directs: VecDeque::new(),
            offered: 0,
        };
        host.daemon = Some(daemon);
        host.daemon_wakes = None;
        self.pulses_forget(member);
        self.check.says(member, Said::Waits);
        self.say(|| format!("{}: daemon starts", NAMES[member]));
        self.wake_daemon_soon(member);
    }

    /// Kills the daemon (SIGKILL). Its server dies with it (`PR_SET_PDEATHSIG`), unless the
    /// server runs alone (here: even without a log; the real one lives while it is joined).
    /// The gate and the tap's drop filter stay as they are.
    pub fn daemon_dies(&mut self, member: usize) {
        let is_loose = self.is_loose(member);
        let Some(daemon) = self.hosts[member].daemon.take() else { return };
        self.hosts[member].tap = None;
        // In reality the gate notices this only after a second, which changes nothing here.
        self.hosts[member].gate.iter_mut().for_each(|gate| gate.minded = false);
        self.say(|| format!("{}: daemon killed", NAMES[member]));
        if !is_loose {
            self.kill_server(member);
        }
        self.end_pipes_of(daemon.process());
    }

    /// Whether its server survives the death of the daemon.
    pub fn is_loose(&self, member: usize) -> bool {
        let host = &self.hosts[member];
        let alone = host.server.as_ref().is_some_and(|it| it.alive && it.mode == Mode::Live);
        let serves = host.daemon.as_ref().is_none_or(|it| matches!(it.phase, Phase::Primary(_)));
        host.alive
            && alone
            && serves
            && !self.plan.unattached
            && host.gate.as_ref().is_some_and(|it| it.solo)
    }

    pub fn wake_daemon_soon(&mut self, member: usize) {
        let delay = (3_000 + self.rng.below(20_000)) * self.hosts[member].slow;
        self.wake_daemon(member, self.now + delay);
    }

    /// Schedules the next turn at this time at the latest.
    pub fn wake_daemon(&mut self, member: usize, at: Ns) {
        let at = at.max(self.now + 1_000);
        let host = &mut self.hosts[member];
        let Some(daemon) = &host.daemon else { return };
        if host.daemon_wakes.is_none_or(|known| at < known) {
            host.daemon_wakes = Some(at);
            let process = daemon.process();
            self.queue.push(at, Event::Daemon(process));
        }
    }

    pub fn daemon_wakes(&mut self, process: Process) {
        let member = process.host;
        let due = self.hosts[member].daemon_wakes.is_some_and(|at| at <= self.now);
        if !self.is_alive(process) || !due {
            return;
        }
        self.hosts[member].daemon_wakes = None;
        let Some(mut daemon) = self.hosts[member].daemon.take() else { return };
        let phase = std::mem::replace(&mut daemon.phase, Phase::Away);
        daemon.phase = self.daemon_turn(&mut daemon, phase);
        if daemon.lost {
            // Input of a channel that is not used any more is not read.
            daemon.pair.inbox.clear();
        }
        // Inputs that arrive during this turn go to the same inboxes. Input on a closed
        // channel, and connections while nobody accepts, wait.
        let link = &daemon.pair;
        let pair = !link.inbox.is_empty() && link.pipe.is_some() && !daemon.lost;
        let again = !daemon.edge.inbox.is_empty() || pair;
        self.hosts[member].daemon = Some(daemon);
        if again {
            self.wake_daemon_soon(member);
        }
    }

    fn daemon_turn(&mut self, d: &mut Daemon, phase: Phase) -> Phase {
        self.feel_pulses(d);
        match phase {
            Phase::Ask(mut ask) => {
                d.pair.inbox.clear();
                let turn = ask.turn(false, &mut AtHost { world: self, d });
                self.after(d, turn, Phase::Ask(ask))
            }
            Phase::Pairing(mut pairing) => {
                let turn = pairing.turn(false, &mut AtHost { world: self, d });
                self.after(d, turn, Phase::Pairing(pairing))
            }
            Phase::Primary(mut machine) => {
                let turn = machine.turn(false, &mut AtHost { world: self, d });
                self.after(d, turn, Phase::Primary(machine))
            }
            Phase::Backup(mut machine) => {
                let turn = machine.turn(false, &mut AtHost { world: self, d });
                self.after(d, turn, Phase::Backup(machine))
            }
            Phase::Away => Phase::Away,
        }
    }

    /// Makes a backup believe, for no reason, that its primary is dead.
    pub fn mistakes(&mut self, d: &mut Daemon) {
        let phase = std::mem::replace(&mut d.phase, Phase::Away);
        d.phase = match phase {
            Phase::Backup(mut machine) if machine.follows() => {
                self.say(|| format!("{}: thinks the primary dead", NAMES[d.at]));
                let turn = machine.promote(Cause::Silent, &mut AtHost { world: self, d });
                self.after(d, turn, Phase::Backup(machine))
            }
            phase => phase,
        };
    }

    fn after(&mut self, d: &mut Daemon, turn: Turn, phase: Phase) -> Phase {
        match turn {
            Turn::Busy => self.sleep(d, self.now),
            Turn::Until(at) => self.sleep(d, self.hosts[d.at].clock.when(at.0)),
            Turn::End(End::Again) => {
                // What the gate held for the old role is lost with it.
                d.held.clear();
                d.owed.clear();
                self.check.says(d.at, Said::Waits);
                let phase = Phase::asks(d.at, self.time_at(d.at));
                (d.lost, d.copy) = (false, None);
                self.sleep(d, self.now);
                return phase;
            }
            Turn::End(End::Placed(place)) => return self.becomes(d, place),
            Turn::End(End::Met { .. }) if d.member.speaks => return self.primary_starts(d),
            Turn::End(End::Met { runs: true }) => return self.joiner_starts(d),
            Turn::End(End::Met { runs: false }) => return self.backup_starts(d),
            Turn::End(End::Unmet) => return self.lone_starts(d),
            Turn::End(End::Survives) => return self.survivor_serves(d),
            Turn::End(End::Fallen) => return self.rebuilds(d, phase),
            Turn::End(end) => {
                let what = format!("{} ends: {end:?}", NAMES[d.at]);
                self.check.violation(self.now, "ends", what);
            }
        }
        phase
    }

    /// `Dialer::turn`, for either link: connects when that is due; returns the input.
    pub fn turn_link(&mut self, d: &mut Daemon, kind: Kind) -> Vec<Input> {
        let (now, member, process) = (self.now, d.at, d.process());
        let link = if kind == Kind::Edge { &mut d.edge } else { &mut d.pair };
        let mut inputs = Vec::new();
        for input in std::mem::take(&mut link.inbox) {
            match &input {
                Input::Opened(pipe) => {
                    link.connecting = false;
                    link.pipe = Some(*pipe);
                }
                Input::Failed => {
                    link.connecting = false;
                    link.retry_at = now + RETRY;
                }
                Input::Lost(pipe) if link.pipe == Some(*pipe) => {
                    link.pipe = None;
                    link.retry_at = now + RETRY;
                }
                Input::Message(pipe, _) if link.pipe == Some(*pipe) => {}
                Input::Accepted(_) => {}
                Input::Lost(_) | Input::Message(..) => continue,
            }
            inputs.push(input);
        }
        if link.pipe.is_none() && !link.connecting {
            if now >= link.retry_at {
                link.connecting = true;
                self.connect(process, kind);
            } else {
                let at = link.retry_at;
                self.wake_taken(member, process, at);
            }
        }
        inputs
    }

    /// Like [`Self::wake_daemon`], while the daemon is taken out for a turn.
    fn wake_taken(&mut self, member: usize, process: Process, at: Ns) {
        let at = at.max(self.now + 1_000);
        let host = &mut self.hosts[member];
        if host.daemon_wakes.is_none_or(|known| at < known) {
            host.daemon_wakes = Some(at);
            self.queue.push(at, Event::Daemon(process));
        }
    }

    pub fn sleep(&mut self, d: &Daemon, at: Ns) {
        self.wake_taken(d.at, d.process(), at);
    }

    fn becomes(&mut self, d: &mut Daemon, place: Place) -> Phase {
        match place {
            Place::Primary { epoch } => {
                d.member.epoch = epoch;
                self.becomes_primary(d)
            }
            Place::Backup { epoch } => {
                d.member.epoch = epoch;
                self.becomes_backup(d)
            }
        }
    }

    fn becomes_primary(&mut self, d: &mut Daemon) -> Phase {
        let member = d.at;
        if self.hosts[member].daemon.is_none() && self.is_loose(member) {
            return self.takes_up(d);
        }
        self.say(|| {
            format!("{}: primary in epoch {}, waits for the backup", NAMES[member], d.member.epoch)
        });
        d.member.speaks = true;
        let gate = crate::gate::Gate::new(&self.plan.limits, self.plan.mutation);
        self.hosts[member].gate = Some(gate);
        // The host may have been the backup before.
        self.hosts[member].tap_drop = None;
        if self.plan.cold.is_some() {
            return self.lone_starts(d);
        }
        self.daemon_turn(d, Phase::Pairing(Pairing::new(Side::Primary)))
    }

    fn becomes_backup(&mut self, d: &mut Daemon) -> Phase {
        let member = d.at;
        self.say(|| {
            format!("{}: backup in epoch {}, seeks the primary", NAMES[member], d.member.epoch)
        });
        self.kill_server(member);
        self.hosts[member].tap_drop = Some(false);
        // The host may have been the primary before: sockets left in its kernel would send
        // again after a takeover, and collide with the rebuilt connections.
        self.hosts[member].sockets.clear();
        self.hosts[member].gate = None;
        self.hosts[member].tap = Some(VecDeque::new());
        self.daemon_turn(d, Phase::Pairing(Pairing::new(Side::Backup)))
    }

    /// Adds the service address and starts the server, because the backup has connected.
    fn primary_starts(&mut self, d: &mut Daemon) -> Phase {
        let at = d.at;
        self.hosts[at].address = true;
        // Without a shim in the server, nothing is logged.
        let mode = if self.plan.unattached { Mode::Live } else { Mode::Record };
        self.start_server(at, mode);
        self.check.pair_begins(at, d.member.epoch, self.servers);
        self.say(|| format!("{}: serves, protected", NAMES[at]));
        // As `linger_max`: half of the slots may linger.
        let linger_max = self.plan.limits.gate_slots / 2;
        let limits = self.plan.limits.primary;
        d.refused_full = 0;
        let host = &mut AtHost { world: self, d };
        let machine = PrimaryMachine::with_limits(linger_max, limits, host);
        self.daemon_turn(d, Phase::Primary(Box::new(machine)))
    }

    /// Starts to serve without a backup, because none has connected.
    fn lone_starts(&mut self, d: &mut Daemon) -> Phase {
        let at = d.at;
        self.hosts[at].address = true;
        if let Some(gate) = &mut self.hosts[at].gate {
            gate.solo = true;
        }
        self.start_server(at, Mode::Live);
        self.check.lone_begins(at);
        self.say(|| format!("{}: serves, without a backup", NAMES[at]));
        self.survivor_serves(d)
    }

    /// Takes over a server that has outlived an earlier daemon, with the connections that
    /// both the gate and the kernel still have (`daemon/survivor.rs`).
    fn takes_up(&mut self, d: &mut Daemon) -> Phase {
        self.say(|| format!("{}: takes its server up", NAMES[d.at]));
        d.member.speaks = true;
        self.reached.taken_up += 1;
        // The gate does not say how old the timestamps are that it has.
        self.check.falls_behind();
        let host = &mut self.hosts[d.at];
        if let Some(gate) = &mut host.gate {
            gate.events.clear();
            for (conn, record) in gate.known() {
                match host.sockets.contains_key(&record.key) {
                    true => {
                        let socket = cookie(record.iss, record.irs);
                        d.survivors.push(Held { conn, socket, record });
                    }
                    false => gate.free(conn),
                }
            }
        }
        self.survivor_serves(d)
    }

    /// Starts the replica, because the primary has answered.
    fn backup_starts(&mut self, d: &mut Daemon) -> Phase {
        let at = d.at;
        self.start_server(at, Mode::Replay);
        self.check.replica_begins(at);
        self.say(|| format!("{}: follows in epoch {}", NAMES[at], d.member.epoch));
        (d.lost, d.takes_over, d.settles) = (false, false, false);
        (d.rebuilds, d.own) = (false, false);
        let limits = self.plan.limits.backup;
        d.refused_full = 0;
        let machine = BackupMachine::with_limits(KEY, limits, &mut AtHost { world: self, d });
        self.daemon_turn(d, Phase::Backup(Box::new(machine)))
    }

    /// Joins a primary whose server already runs.
    fn joiner_starts(&mut self, d: &mut Daemon) -> Phase {
        self.say(|| format!("{}: joins in epoch {}", NAMES[d.at], d.member.epoch));
        (d.lost, d.takes_over, d.settles, d.copy) = (false, false, false, None);
        (d.rebuilds, d.own) = (false, false);
        self.hosts[d.at].server = None;
        d.refused_full = 0;
        let limits = self.plan.limits.backup;
        let machine = BackupMachine::joining(KEY, limits, &mut AtHost { world: self, d });
        self.check.joins(d.at);
        self.daemon_turn(d, Phase::Backup(Box::new(machine)))
    }

    /// Rebuilds its fallen server from the kept image and log (`daemon/backup/rebuild.rs`).
    fn rebuilds(&mut self, d: &mut Daemon, phase: Phase) -> Phase {
        let kept = match phase {
            Phase::Primary(mut machine) => machine.take_kept(),
            _ => None,
        };
        let mut machine = Box::new(kept.expect("who falls has kept something"));
        let host = &mut self.hosts[d.at];
        (host.server, host.tap_drop) = (None, Some(false));
        host.sockets.clear();
        host.backlog.clear();
        d.held.clear();
        d.owed.clear();
        // There is no primary on the other end.
        (d.lost, d.takes_over, d.settles) = (true, false, false);
        (d.keeps, d.rebuilds, d.refused_full) = (false, true, 0);
        self.reached.rebuilt += 1;
        let turn = machine.rebuild(&mut AtHost { world: self, d });
        self.after(d, turn, Phase::Backup(machine))
    }

    /// Continues as the primary of a server that runs alone.
    fn survivor_serves(&mut self, d: &mut Daemon) -> Phase {
        (d.lost, d.takes_over, d.settles) = (false, false, false);
        (d.rebuilds, d.own, d.refused_full) = (false, false, 0);
        // What an earlier daemon kept for a rebuild is lost.
        self.check.keeps_not(d.at);
        let (linger_max, limits) = (self.plan.limits.gate_slots / 2, self.plan.limits.primary);
        let conns = std::mem::take(&mut d.survivors);
        let host = &mut AtHost { world: self, d };
        let machine = PrimaryMachine::alone(linger_max, limits, conns, host);
        self.daemon_turn(d, Phase::Primary(Box::new(machine)))
    }

    /// The log has grown without a signal: the daemon sees it at its next tick.
    pub fn log_grew(&mut self, member: usize) {
        self.wake_daemon(member, self.now + ns(TICK));
    }

    /// A copied packet has arrived: wakes the member if it watches its tap.
    pub fn tap_rings(&mut self, member: usize) {
        let watches = |daemon: &Daemon| daemon.watches_tap() || daemon.listens();
        if self.hosts[member].daemon.as_ref().is_some_and(watches) {
            self.wake_daemon_soon(member);
        }
    }
}
