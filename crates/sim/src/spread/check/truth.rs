//! The truth: which servers are up, reachable and serving, and since when; and how long
//! the edge may take to notice a change.

use crate::spread::plan::{MS, Plan};
use crate::{Ns, ns};
use holdfast_cluster::detector::{DECLARE_AFTER, FIRST_PATIENCE, PATIENCE_MAX};
use holdfast_member::timing::host_server::{ASK_EVERY, FAILURES_MAX, LOOK_EVERY};
use holdfast_member::timing::spread::GRACE;

/// Longest time until the edge finds a healthy server, in ns: channels are retried after a
/// handshake has failed for 2 s, and listeners are checked every second.
const FOUND_MAX: Ns = 4500 * MS;
/// Longest time for which a service stays announced after its listener has closed, in ns.
const WITHDRAWN_MAX: Ns = ns(LOOK_EVERY) + 400 * MS;
/// Longest time for which a service stays announced after its process has stopped accepting,
/// in ns, by a clock that may be slow.
const HANGS_MAX: Ns = (FAILURES_MAX as Ns + 1) * (ns(ASK_EVERY) + 2000 * MS) + WITHDRAWN_MAX;
/// Margin for the time between two turns and for the delay of the paths, in ns.
const MARGIN: Ns = 60 * MS;

/// Why a server is out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its machine is dead.
    Dead,
    Frozen,
    NoDaemon,
    ToServer,
    ToEdge,
}

const CAUSES: usize = 5;

/// A condition, and since when it has held or not held.
#[derive(Clone, Copy, Debug)]
struct Since {
    yes: bool,
    since: Ns,
}

impl Since {
    const NEVER: Self = Self { yes: false, since: 0 };

    fn set(&mut self, at: Ns, yes: bool) {
        if self.yes != yes {
            *self = Self { yes, since: at };
        }
    }

    /// Whether it has held for at least `long`.
    fn for_long(&self, at: Ns, long: Ns) -> bool {
        self.yes && at >= self.since + long
    }

    /// Whether it has not held for more than `long`, counted from `after` at the earliest.
    fn not_for_long(&self, at: Ns, after: Ns, long: Ns) -> bool {
        !self.yes && at > self.since.max(after) + long
    }
}

/// One host server.
#[derive(Clone, Debug)]
struct Server {
    causes: [u32; CAUSES],
    /// Whether the edge can hear it: the host, its daemon and the path work.
    heard: Since,
    /// Whether clients connected to it are answered.
    fit: Since,
    listens: Since,
    accepts: Since,
    services: Vec<u8>,
    /// Whether it sends invalid messages, so that its channel is closed again and again.
    nonsense: Since,
    /// Whether it is drained by hand.
    drained: Since,
    boots: u32,
    /// Number of silences so far.
    silences: u32,
    /// When the edge last got a message other than a heartbeat from it: a path that is cut in
    /// one direction still carries announcements in the other.
    said: Ns,
}

impl Server {
    /// Whether the edge may or may not hear it, because its messages are or were invalid.
    fn is_vague(&self, at: Ns) -> bool {
        self.nonsense.yes || (self.nonsense.since > 0 && at < self.nonsense.since + FOUND_MAX)
    }
}

/// The truth; see the module.
#[derive(Clone, Debug)]
pub struct Truth {
    servers: Vec<Server>,
    period: Ns,
    /// Whether the edge's daemon runs.
    sees: Since,
    /// Whether the edge's machine does not stand still.
    edge_runs: Since,
    /// Whether it was ever frozen: the edge may then have seen heartbeats late.
    edge_was_late: bool,
}

impl Truth {
    pub fn new(plan: &Plan) -> Self {
        let server = |plan: &crate::spread::plan::ServerPlan| Server {
            causes: [0; CAUSES],
            heard: Since::NEVER,
            fit: Since::NEVER,
            listens: Since::NEVER,
            accepts: Since { yes: true, since: 0 },
            services: plan.serves.clone(),
            nonsense: Since::NEVER,
            drained: Since::NEVER,
            boots: 0,
            silences: 0,
            said: 0,
        };
        let mut truth = Self {
            servers: plan.servers.iter().map(server).collect(),
            period: plan.period,
            sees: Since::NEVER,
            edge_runs: Since { yes: true, since: 0 },
            edge_was_late: false,
        };
        for server in &mut truth.servers {
            server.causes[Cause::NoDaemon as usize] = 1;
        }
        truth
    }

    // What happens.

    pub fn edge_daemon(&mut self, at: Ns, runs: bool) {
        self.sees.set(at, runs);
    }

    pub fn edge_freezes(&mut self, at: Ns, yes: bool) {
        self.edge_runs.set(at, !yes);
        self.edge_was_late = true;
        self.all(at);
    }

    /// A cause begins or ends.
    pub fn cause(&mut self, at: Ns, server: usize, cause: Cause, begins: bool) {
        let count = &mut self.servers[server].causes[cause as usize];
        *count = if begins { *count + 1 } else { count.saturating_sub(1) };
        self.renew(at, server);
    }

    pub fn says_nonsense(&mut self, at: Ns, server: usize, yes: bool) {
        self.servers[server].nonsense.set(at, yes);
    }

    pub fn rebooted(&mut self, server: usize) {
        self.servers[server].boots += 1;
    }

    pub fn listens(&mut self, at: Ns, server: usize, yes: bool) {
        self.servers[server].listens.set(at, yes);
        self.renew(at, server);
    }

    pub fn accepts(&mut self, at: Ns, server: usize, yes: bool) {
        self.servers[server].accepts.set(at, yes);
        self.renew(at, server);
    }

    pub fn drained(&mut self, at: Ns, server: usize, yes: bool) {
        self.servers[server].drained.set(at, yes);
    }

    fn all(&mut self, at: Ns) {
        (0..self.servers.len()).for_each(|server| self.renew(at, server));
    }

    fn renew(&mut self, at: Ns, number: usize) {
        let runs = self.edge_runs.yes;
        let server = &mut self.servers[number];
        let has = |cause: Cause| server.causes[cause as usize] > 0;
        let heard = server.causes.iter().all(|count| *count == 0);
        let fit = !has(Cause::Dead) && !has(Cause::Frozen) && !has(Cause::ToServer) && runs;
        server.silences += u32::from(server.heard.yes && !heard);
        server.heard.set(at, heard);
        server.fit.set(at, fit && server.listens.yes && server.accepts.yes);
    }

    // What is so.

    pub fn boots(&self, server: usize) -> u32 {
        self.servers[server].boots
    }

    /// Time from which the edge can act.
    fn acts(&self) -> Ns {
        // A restarted daemon first waits for the servers that it had before.
        let started = if self.sees.since > 0 { self.sees.since + ns(GRACE) } else { 0 };
        started.max(self.edge_runs.since)
    }

    fn is_blind(&self) -> bool {
        !self.sees.yes || !self.edge_runs.yes
    }

    /// Longest time for which a silent server may count as alive.
    fn silent_max(&self, server: &Server) -> Ns {
        let is_late = server.silences > 1 || self.edge_was_late;
        let periods = if is_late { PATIENCE_MAX } else { DECLARE_AFTER + 1 };
        let first = if is_late || server.heard.since < FIRST_PATIENCE.0 + 2000 * MS {
            FIRST_PATIENCE.0
        } else {
            0
        };
        periods * self.period + first + MARGIN
    }

    /// Why a server must not get a new connection to this service any more; `None` if it may.
    pub fn is_out(&self, at: Ns, number: usize, service: u8) -> Option<&'static str> {
        let (server, acts) = (&self.servers[number], self.acts());
        if !server.services.contains(&service) {
            return Some("does not serve it");
        }
        if server.drained.yes && at >= server.drained.since.max(acts) {
            return Some("is drained");
        }
        if self.is_blind() {
            return None;
        }
        let heard = server.heard.since;
        if server.heard.not_for_long(at, acts, self.silent_max(server)) {
            return Some("is silent");
        }
        if server.heard.yes
            && server.listens.not_for_long(at, acts.max(heard), WITHDRAWN_MAX + FOUND_MAX)
        {
            return Some("does not listen");
        }
        let hangs = server.accepts.not_for_long(at, acts.max(heard), HANGS_MAX);
        (server.heard.yes && hangs).then_some("accepts nobody")
    }

    /// The servers that must get new connections of this service by now.
    pub fn serving(&self, at: Ns, service: u8) -> impl Iterator<Item = usize> {
        let since = if self.is_blind() { Ns::MAX } else { self.acts() + FOUND_MAX };
        self.servers.iter().enumerate().filter_map(move |(number, server)| {
            let is_well = at >= since
                && server.services.contains(&service)
                && server.heard.for_long(at, FOUND_MAX)
                && server.listens.for_long(at, FOUND_MAX)
                && server.accepts.for_long(at, FOUND_MAX)
                && !server.is_vague(at)
                && !server.drained.yes
                && at >= server.drained.since + MARGIN;
            is_well.then_some(number)
        })
    }

    /// Whether any server listens for it.
    pub fn is_offered(&self, service: u8) -> bool {
        self.servers.iter().any(|it| it.listens.yes && it.services.contains(&service))
    }

    pub fn is_served(&self, at: Ns, service: u8) -> Option<usize> {
        self.serving(at, service).next()
    }

    /// Whether the server has answered its clients at least since then.
    pub fn is_well_since(&self, server: usize, service: u8, since: Ns) -> bool {
        let server = &self.servers[server];
        server.services.contains(&service) && server.fit.yes && server.fit.since <= since
    }

    /// Whether a SYN that arrived at `came` must have been answered by `at`: a server has
    /// served the service for long, and the edge has noticed by now every server that has
    /// become silent meanwhile.
    pub fn would_answer(&self, came: Ns, at: Ns, service: u8) -> bool {
        let is_sure = |server: &Server| {
            let recent = server.heard.since + 1000 * MS > came;
            let is_silent = !server.heard.yes || recent;
            let serves = server.services.contains(&service);
            // A server that has just started or stopped listening may refuse or drop it.
            let changes = server.heard.yes && server.listens.since + FOUND_MAX > came;
            !serves || ((!is_silent || self.silent_max(server) < 700 * MS) && !changes)
        };
        let since = self.edge_runs.since.max(self.sees.since);
        let since_long = !self.is_blind() && since + FOUND_MAX + ns(GRACE) < came.max(1);
        let is_first = self.sees.since == 0 && self.edge_runs.since == 0;
        at >= came
            && (since_long || is_first && !self.is_blind())
            && self.serving(came, service).any(|server| self.servers[server].heard.yes)
            && self.servers.iter().all(is_sure)
    }

    /// The edge gets a message other than a heartbeat from a server.
    pub fn says(&mut self, at: Ns, number: usize) {
        self.servers[number].said = at;
    }

    /// The true state of a server, if the edge shows another one.
    pub fn contradicts(&self, at: Ns, number: usize, word: &str) -> Option<&'static str> {
        let server = &self.servers[number];
        if self.is_blind() {
            return None;
        }
        let acts = self.acts();
        match word {
            "dead" => {
                let long = at >= acts + FOUND_MAX;
                let long = long && !server.is_vague(at);
                (server.heard.for_long(at, FOUND_MAX) && long).then_some("heard")
            }
            _ if server.heard.not_for_long(at, acts.max(server.said), self.silent_max(server)) => {
                Some("silent")
            }
            "up" if server.drained.yes => Some("drained"),
            "draining" if !server.drained.yes => Some("not drained"),
            _ => None,
        }
    }
}
