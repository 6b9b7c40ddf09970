//! The checkers ("judges"). They watch the packets that pass the edge, what reaches the backup,
//! what clients read, and when each host was broken. They never see the state of the machines
//! under test.

mod alive;
mod cause;
mod clock;
mod held;
mod rest;
mod shown;
mod speakers;
mod streams;
mod syns;
mod window;

use crate::Ns;
use crate::client::{Client, Ear, Notice};
use crate::packet::Packet;
use crate::plan::{ClientPlan, Fault, Manners, Plan};
use crate::world::NAMES;
use alive::Alive;
use cause::Causes;
use clock::Clocks;
use held::Held;
pub use held::Holder;
use holdfast_cluster::detector::FIRST_PATIENCE;
use holdfast_wire::log::Header;
use holdfast_wire::message::{Adopted, ConnId, ConnKey, ConnRecord};
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;
use shown::Shown;
pub use shown::{LOOK_EVERY, Said, Truth};
use speakers::Speakers;
use streams::Streams;
use syns::Syns;
use window::Windows;

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the law: `L1` to `L6`, `liveness`, `cause`, `status`, `rest`, `knock`,
    /// `one client`, or another name for anything else that went wrong.
    pub law: &'static str,
    pub at: Ns,
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {:.6} s: {}", self.law, self.at as f64 / 1e9, self.what)
    }
}

/// Most violations that are kept: only the first one matters.
const VIOLATIONS_MAX: usize = 20;

/// All judges.
#[derive(Debug)]
pub struct Checkers {
    violations: Vec<Violation>,
    /// What the backup holds of its primary's server, and each member of its own (decision 31).
    held: Held,
    own: [Held; 2],
    voice: Speakers,
    windows: Windows,
    streams: Streams,
    alive: Alive,
    clocks: Clocks,
    causes: Causes,
    shown: Shown,
    granted_at: Ns,
    syns: Syns,
    /// Which clients are themselves at fault.
    at_fault: Vec<bool>,
    /// Whether every client that is done has read all that it requested.
    all_read: bool,
    fenced: u64,
    unread: u64,
}

impl Checkers {
    pub fn new(plan: &Plan) -> Self {
        let mut causes = Causes::default();
        // Its spool may fill up at any time.
        let parts_by_itself = plan.cold.is_some_and(|cold| cold.log_max < u64::MAX);
        if plan.unattached || parts_by_itself {
            causes.parts_by_itself();
        }
        Self {
            violations: Vec::new(),
            held: Held::default(),
            own: Default::default(),
            voice: Speakers::default(),
            windows: Windows::default(),
            streams: Streams::new(plan.clients.len()),
            alive: Alive::default(),
            clocks: Clocks::default(),
            causes,
            shown: Shown::default(),
            granted_at: 0,
            syns: Syns::new(plan.copy_loss_permille > 0 || plan.limits.forget_syns()),
            at_fault: plan.clients.iter().map(ClientPlan::is_at_fault).collect(),
            all_read: plan.clients.iter().all(ClientPlan::reads_all),
            fenced: 0,
            unread: 0,
        }
    }

    pub fn violation(&mut self, at: Ns, law: &'static str, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { law, at, what });
        }
    }

    pub fn into_violations(self) -> Vec<Violation> {
        self.violations
    }

    // Events of the cluster.

    /// Notes that a primary begins to serve, with a backup.
    pub fn pair_begins(&mut self, member: usize, epoch: u64, server: u32) {
        self.held.pair_begins(member, epoch, server);
        self.alive.primary_begins(member);
        self.streams.server_begins();
        self.causes.pair_begins();
    }

    /// Notes that a primary begins to serve, without a backup.
    pub fn lone_begins(&mut self, member: usize) {
        self.alive.primary_begins(member);
        self.streams.server_begins();
    }

    /// Notes that a replica begins to follow.
    pub fn replica_begins(&mut self, member: usize) {
        self.held.replica_begins();
        self.alive.backup_begins(member);
    }

    /// Notes that a member joins a server that runs.
    pub fn joins(&mut self, member: usize) {
        self.held.joiner_begins();
        self.alive.joins(member);
    }

    fn held_by(&mut self, holder: Holder) -> &mut Held {
        match holder {
            Holder::Backup => &mut self.held,
            Holder::Itself(member) => &mut self.own[member],
        }
    }

    /// Notes that the copy of that server runs, or could run; the server had logged `records`
    /// records.
    pub fn copy_made(&mut self, holder: Holder, records: u64) {
        self.held_by(holder).copy_made(records);
    }

    /// Notes that a joining member has been told of a connection.
    pub fn adopted(&mut self, holder: Holder, adopted: &Adopted) {
        self.held_by(holder).adopted(adopted);
    }

    /// Notes that the joining member is told at which position it is complete.
    pub fn closes(&mut self, member: usize) {
        self.alive.closes(member);
    }

    /// Number of connections of which it lacks bytes that it could not get from anywhere.
    pub fn left_out(&self) -> usize {
        self.held.left_out().len()
    }

    /// Notes that a join has failed.
    pub fn leaves(&mut self, member: usize) {
        self.alive.leaves(member);
    }

    /// Notes that a member has become the backup of the other one, which runs this `server`.
    pub fn in_step(&mut self, at: Ns, member: usize, epoch: u64, server: u32) {
        self.held.pair_begins(1 - member, epoch, server);
        for key in self.held.left_out() {
            self.not_kept(key);
        }
        self.alive.backup_begins(member);
        self.causes.joined(at);
    }

    /// Notes, when output begins to wait for a joining member, up to which offset the stream of a
    /// client that is not accepted yet was acknowledged before.
    pub fn told(&mut self, holder: Holder, key: ConnKey, irs: SeqNo, until: u64) {
        self.held_by(holder).told_before(key, irs, until);
    }

    /// Notes that when a join ended its client had not yet acknowledged what it was sent before.
    pub fn not_kept(&mut self, key: ConnKey) {
        self.all_read = false;
        self.streams.not_kept(key);
    }

    /// Whether this connection may be lost in a takeover: it is one of those, or no client has it.
    pub fn may_be_lost(&mut self, holder: Holder, conn: ConnId, clients: &[Client]) -> bool {
        // It is not known what a hostile client has.
        let has = |client: &Client, key: &ConnKey, irs| {
            client.plan.manners() != Manners::Bad && client.has(key, irs)
        };
        self.held_by(holder).life_of(conn).is_some_and(|(key, irs)| {
            let living = clients.iter().any(|client| has(client, &key, irs));
            self.streams.may_be_lost(&key) || !living
        })
    }

    /// Notes that a server that runs alone is copied, so that it can be rebuilt on its own host.
    pub fn keeping_begins(&mut self, member: usize) {
        self.own[member].joiner_begins();
    }

    /// Notes that all is kept that the server can be rebuilt from, except bytes of clients'
    /// streams from before that could not be got from anywhere. Its output then waits as it would
    /// for a backup.
    pub fn keeps(&mut self, member: usize, epoch: u64, server: u32) {
        self.own[member].pair_begins(member, epoch, server);
        for key in self.own[member].left_out() {
            self.not_kept(key);
        }
    }

    /// Notes that output does not wait for what is kept any more.
    pub fn keeps_not(&mut self, member: usize) {
        self.own[member].pair_ends();
    }

    /// A fault has destroyed what the member held.
    pub fn state_lost(&mut self, member: usize) {
        self.alive.state_lost(member);
    }

    pub fn granted(&mut self, at: Ns, member: usize, epoch: u64) {
        self.syns.granted(at);
        self.granted_at = at;
        let is_new = epoch > self.alive.epoch().max(1);
        let is_new = is_new && self.alive.has_begun();
        if let Some(what) = self.causes.granted(at, member).filter(|_| is_new) {
            self.violation(at, "cause", what);
        }
        if self.alive.is_joining(member) && is_new {
            let what = format!("{} may speak, and is not in step", NAMES[member]);
            self.violation(at, "L5", what);
        }
        if self.alive.granted(member, epoch) {
            let what = format!("{} may speak, and lacks what the other has", NAMES[member]);
            self.violation(at, "L3", what);
        }
    }

    /// Notes that a handshake was ended to make room for others, or because its client did not
    /// answer.
    pub fn handshake_ended(&mut self, key: ConnKey) {
        self.streams.handshake_ended(key);
    }

    pub fn took_over(&mut self, at: Ns, member: usize) {
        self.syns.took_over(at);
        self.alive.took_over(member);
    }

    /// Notes that the edge's host was restarted, and has lost the right edges that clients were
    /// shown: a takeover then has only the primary's last report, which is some ms old.
    pub fn edge_forgot(&mut self) {
        self.windows.forget();
    }

    /// Notes that a machine has ended protection because its peer's messages made no sense.
    pub fn broke(&mut self, at: Ns, reason: String) {
        self.violation(at, "broken", reason);
    }

    // What reaches the backup.

    pub fn copy_taken(&mut self, holder: Holder, packet: &Packet) {
        self.held_by(holder).copy_taken(packet);
    }

    pub fn record_taken(&mut self, holder: Holder, header: &Header, payload: &[u8]) {
        self.held_by(holder).record_taken(header, payload);
    }

    pub fn conn_taken(&mut self, holder: Holder, conn: ConnId, record: &ConnRecord) {
        self.held_by(holder).conn_taken(conn, record);
    }

    /// Notes bytes that the primary's server had not read, with its client's
    /// FIN as one.
    pub fn unread_taken(&mut self, holder: Holder, conn: ConnId, offset: u64, len: u64) {
        self.unread += len;
        self.held_by(holder).unread_taken(conn, offset, len);
    }

    // Packets that pass the edge.

    pub fn client_said(&mut self, packet: &Packet) {
        let has_all = self.streams.has_all(packet);
        for held in std::iter::once(&mut self.held).chain(&mut self.own) {
            if packet.is(Flags::FIN) {
                held.client_ends(packet);
            }
            if let Some(iss) = has_all {
                held.client_has_all(packet.key, iss);
            }
        }
    }

    /// Notes that a client begins a connection.
    pub fn knocks(&mut self, at: Ns, key: ConnKey) {
        self.syns.comes(at, key);
    }

    pub fn answered(&mut self, key: &ConnKey) {
        self.syns.answered(key);
    }

    /// Judges whether all clients that connect during an outage are answered. `full`: a client was
    /// refused for lack of room; `lost`: copies were lost for lack of room.
    pub fn look_at_syns(&mut self, at: Ns, full: bool, lost: bool) {
        if full {
            self.syns.spoil();
        }
        if lost {
            self.syns.copy_lost();
        }
        if let Some(what) = self.syns.look(at) {
            self.violation(at, "knock", what);
        }
    }

    pub fn fenced(&mut self) {
        self.fenced += 1;
    }

    /// The ISS of the newest connection on the four-tuple of a member's packet.
    pub fn iss_of(&self, packet: &Packet) -> Option<SeqNo> {
        self.windows.iss_of(packet)
    }

    /// Judges a member's packet that has passed the edge, on its way to its client.
    pub fn passed(&mut self, at: Ns, packet: &Packet, member: usize, epoch: u64, ear: Ear) {
        let expected = match ear {
            Ear::Expects(next) => Some(next),
            Ear::Unknown | Ear::Elsewhere => None,
        };
        let mut found = Vec::new();
        found.extend(self.voice.passed(member, epoch).map(|what| ("L3", what)));
        let epoch = self.voice.epoch();
        let waits = |held: &&Held| held.is_protected(member, epoch);
        if let Some(held) = [&self.held, &self.own[member]].into_iter().find(waits) {
            let heard = ear != Ear::Elsewhere;
            found.extend(held.acknowledges(packet).filter(|_| heard).map(|what| ("L1", what)));
            found.extend(Held::misreports(packet).map(|what| ("L1", what)));
            found.extend(held.depends(packet).map(|what| ("L2", what)));
        }
        found.extend(self.windows.passed(packet, expected).map(|what| ("L4", what)));
        found.extend(self.streams.passed(packet, expected).map(|what| ("L5", what)));
        // A retransmission of an older connection on the same four-tuple has sequence numbers
        // before this connection's ISS.
        if self.iss_of(packet).is_none_or(|iss| !iss.after(packet.seq)) {
            found.extend(self.clocks.passed(packet, expected).map(|what| ("L5", what)));
        }
        for (law, what) in found {
            self.violation(at, law, format!("{what} ({packet})"));
        }
    }

    // What clients notice.

    pub fn noticed(&mut self, at: Ns, client: usize, manners: Manners, notice: &Notice) {
        let gone = self.alive.is_gone();
        if let Some(what) = self.streams.noticed(client, manners, gone, notice) {
            self.violation(at, self.law_of(client, "L5"), what);
        }
    }

    /// The broken law's name: `one client` if only another client is at fault.
    fn law_of(&self, client: usize, law: &'static str) -> &'static str {
        let mut others = self.at_fault.iter().enumerate();
        let other = others.any(|(n, at_fault)| n != client && *at_fault);
        let only = other && !self.at_fault[client] && self.causes.struck() == 0;
        if only { "one client" } else { law }
    }

    // Which members are given up, and what is shown.

    /// Notes that what a member knows of the other one's clock may be out of date.
    pub fn falls_behind(&mut self) {
        self.clocks.falls_behind();
    }

    /// Notes that a fault strikes; it is a cause to give up the members in `whom`.
    pub fn strikes(&mut self, at: Ns, fault: &Fault, whom: [bool; 2], speaker: Option<usize>) {
        self.syns.strikes(at, fault, speaker);
        if let Fault::SetsClock { by, .. } = *fault {
            self.streams.clock_set(by);
        }
        self.causes.strikes(at, fault, whom);
    }

    /// Notes that the edge misses a member.
    pub fn missed(&mut self, at: Ns, member: usize) {
        if let Some(what) = self.causes.missed(at, member) {
            self.violation(at, "cause", what);
        }
    }

    /// Notes that a member is given up, by itself or by the other one.
    pub fn given_up(&mut self, at: Ns, member: usize, why: &str) {
        if let Some(what) = self.causes.given_up(at, member, why) {
            self.violation(at, "cause", what);
        }
    }

    pub fn says(&mut self, member: usize, said: Said) {
        self.shown.says(member, said);
    }

    pub fn said(&self, member: usize) -> Said {
        self.shown.said(member)
    }

    /// Compares the status that a host shows with the truth.
    pub fn look(&mut self, at: Ns, who: usize, truth: Truth) {
        let late = self.causes.struck() > 1;
        // A member that has just become current may be silent for a while. If others hear nobody
        // else, they cannot know that something is wrong.
        let excused = late && at < self.granted_at + FIRST_PATIENCE.0;
        let truth = Truth { can_know: truth.can_know && !excused, ..truth };
        if let Some(what) = self.shown.look(at, who, truth, late) {
            self.violation(at, "status", what);
        }
    }

    // Tables, and the end of a run.

    /// Judges whether at rest no more than `most` of something are left over.
    pub fn at_rest(&mut self, at: Ns, what: &str, count: usize, most: usize) {
        if let Some(what) = rest::exceeds(what, count, most) {
            self.violation(at, "rest", what);
        }
    }

    pub fn table(&mut self, at: Ns, name: &str, used: usize, limit: usize) {
        if used > limit {
            self.violation(at, "L6", format!("{name}: {used} of {limit}"));
        }
    }

    /// Judges the run when all clients are done.
    pub fn all_done(&mut self, at: Ns) {
        let all_read = self.all_read && !self.alive.is_gone();
        if let Some(what) = self.streams.unread_counts().filter(|_| all_read) {
            self.violation(at, "L5", what);
        }
    }

    /// Reports that time is up, and this client is not done.
    pub fn hangs(&mut self, at: Ns, client: u8, session: u16, replies: usize) {
        if !self.alive.is_gone() {
            let holders = self.alive.holders();
            let what = format!(
                "client {client} hangs in session {session} after {replies} replies; {holders}"
            );
            self.violation(at, self.law_of(usize::from(client), "liveness"), what);
        }
    }

    /// Reports that time is up, and a member that was replaced still runs its server.
    pub fn still_runs(&mut self, at: Ns, member: usize) {
        let what = format!("{} was replaced, and its server still runs", NAMES[member]);
        self.violation(at, "L3", what);
    }

    pub fn unread(&self) -> u64 {
        self.unread
    }

    pub fn replies(&self) -> u64 {
        self.streams.replies()
    }

    pub fn takeovers(&self) -> u64 {
        self.alive.takeovers()
    }

    pub fn is_service_gone(&self) -> bool {
        self.alive.is_gone()
    }
}
