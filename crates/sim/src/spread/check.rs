//! The checkers of a spread group. They see the packets and know when each host was
//! broken. They never see the machines' internal state; they compare what the machines show
//! with the truth.

mod truth;

pub use truth::{Cause, Truth};

use super::client::End;
use super::packet::Conn;
use super::plan::SERVICES;
use super::server::service_of;
use crate::Ns;
use crate::check::Violation;
use holdfast_edge::maglev::ENTRIES;
use holdfast_member::shown::Protection;
use std::collections::{BTreeMap, BTreeSet};

/// Most violations of one law that are kept.
const VIOLATIONS_MAX: usize = 5;
/// Largest difference between a server's share of a table and its weight, in permille of
/// the entries.
const SHARE_PERMILLE: i64 = 10;

/// The host server of a connection, as its packets have shown.
#[derive(Clone, Copy, Debug)]
struct Home {
    server: usize,
    boots: u32,
}

/// A client's first SYN at the edge, which waits for an answer.
#[derive(Clone, Copy, Debug)]
struct Knock {
    came: Ns,
    service: u8,
    /// Whether it may remain unanswered.
    excused: bool,
}

/// All checkers.
pub struct Checkers {
    pub violations: Vec<Violation>,
    pub truth: Truth,
    homes: BTreeMap<Conn, Home>,
    knocks: BTreeMap<Conn, Knock>,
    /// Connections that the edge does not know because of its limits.
    unknown: BTreeSet<Conn>,
    /// Time until which arriving packets may have left the edge before its last boot.
    sent_before: Ns,
    /// Whether the group has hostile clients, and no other fault.
    pub hostile: bool,
    pub struck: u64,
    pub moved_none: u64,
    pub knocks_kept: u64,
}

/// What the edge shows at one moment.
pub struct Look {
    pub protection: Protection,
    /// For each redirected service, the servers that get new connections by the
    /// machine, and by the redirector's table.
    pub services: Vec<(u8, Vec<usize>, Vec<usize>)>,
    /// For each server that has a slot, the word shown for its state.
    pub notes: Vec<(usize, &'static str)>,
}

impl Checkers {
    pub fn new(truth: Truth, hostile: bool) -> Self {
        Self {
            violations: Vec::new(),
            truth,
            homes: BTreeMap::new(),
            knocks: BTreeMap::new(),
            unknown: BTreeSet::new(),
            sent_before: 0,
            hostile,
            struck: 0,
            moved_none: 0,
            knocks_kept: 0,
        }
    }

    pub fn violation(&mut self, at: Ns, law: &'static str, what: String) {
        let law = if self.hostile && self.struck == 0 { "one client" } else { law };
        if self.violations.iter().filter(|it| it.law == law).count() < VIOLATIONS_MAX {
            self.violations.push(Violation { law, at, what });
        }
    }

    // Established connections.

    /// A packet of a connection reaches a host server that is up, and the edge has seen the
    /// connection established. `has`: whether that server has the connection.
    pub fn arrives(&mut self, at: Ns, conn: Conn, server: usize, boots: u32, has: bool) {
        let here = Home { server, boots };
        if self.unknown.contains(&conn) {
            return;
        }
        match self.homes.get(&conn) {
            None if has && at > self.sent_before => drop(self.homes.insert(conn, here)),
            Some(home) if home.server != server && self.truth.boots(home.server) == home.boots => {
                let what = format!(
                    "{conn:?} is at host server {}, which lives; its packet went to {server}",
                    home.server
                );
                self.violation(at, "moved", what);
            }
            Some(_) => self.moved_none += 1,
            None => {}
        }
    }

    /// The edge has lost its state. A connection then belongs to the server that its packets
    /// reach next, except for packets that arrive before `until`: they left the edge earlier.
    pub fn boots(&mut self, until: Ns) {
        self.homes.clear();
        self.sent_before = until;
    }

    /// Because of a limit, the edge has forgotten the connection or refuses to track it.
    pub fn unknown(&mut self, conn: Conn) {
        self.unknown.insert(conn);
        self.homes.remove(&conn);
    }

    pub fn is_known(&self, conn: Conn) -> bool {
        self.homes.contains_key(&conn)
    }

    /// The server's process or the client has ended the connection.
    pub fn over(&mut self, conn: Conn) {
        self.homes.remove(&conn);
        self.knocks.remove(&conn);
        self.unknown.remove(&conn);
    }

    /// A connection has ended at its client. A connection that was lost or reset must have
    /// been at a server that has died or that cannot be reached.
    pub fn ended(&mut self, at: Ns, conn: Conn, end: End, began: Ns) {
        if matches!(end, End::Reset | End::Lost)
            && let Some(home) = self.homes.get(&conn).copied()
            && self.truth.boots(home.server) == home.boots
            && self.truth.is_well_since(
                home.server,
                conn.tuple.service,
                began.max(at.saturating_sub(4_000_000_000)),
            )
        {
            let what =
                format!("{conn:?} ended ({end:?}), though host server {} is well", home.server);
            self.violation(at, "liveness", what);
        }
        self.over(conn);
    }

    // New connections.

    /// A SYN was given to a server, or to nobody.
    pub fn chosen(&mut self, at: Ns, conn: Conn, server: Option<usize>) {
        let service = conn.tuple.service;
        if let Some(server) = server {
            if let Some(why) = self.truth.is_out(at, server, service) {
                let what = format!("{conn:?} goes to host server {server}, which {why}");
                self.violation(at, "choice", what);
            }
        } else if let Some(well) = self.truth.is_served(at, service) {
            let what = format!("{conn:?} goes to nobody, and host server {well} serves it");
            self.violation(at, "choice", what);
        }
    }

    /// A client's first SYN arrives at the edge. `excused`: it may remain unanswered.
    pub fn knocks(&mut self, at: Ns, conn: Conn, excused: bool) {
        let knock = Knock { came: at, service: conn.tuple.service, excused };
        self.knocks.entry(conn).or_insert(knock);
    }

    /// The cache or the edge had no room for the SYN, so it may remain unanswered.
    pub fn excuse(&mut self, conn: Conn) {
        if let Some(knock) = self.knocks.get_mut(&conn) {
            knock.excused = true;
        }
    }

    /// A client has to retransmit its SYN. `excused`: because of what happened in between.
    pub fn repeats(&mut self, at: Ns, conn: Conn, excused: bool) {
        let Some(knock) = self.knocks.remove(&conn).filter(|knock| !knock.excused) else { return };
        if excused || !self.truth.would_answer(knock.came, at, knock.service) {
            return;
        }
        let what = format!(
            "{conn:?} came at {:.6} s, is not answered and has to be repeated",
            knock.came as f64 / 1e9
        );
        self.violation(at, "knock", what);
    }

    /// The SYN was answered; `late`: long after it first reached the edge.
    pub fn answered(&mut self, conn: Conn, late: bool) {
        if self.knocks.remove(&conn).is_some() && late {
            self.knocks_kept += 1;
        }
    }

    // Tables.

    /// Checks a service's new table. `shares`: for each server, its number, its weight and
    /// its number of entries.
    pub fn table(&mut self, at: Ns, service: u8, shares: &[(usize, u32, usize)]) {
        let weights: u64 = shares.iter().map(|(_, weight, _)| u64::from(*weight)).sum();
        for (server, weight, entries) in shares {
            let is = (*entries as u64 * 1000 / ENTRIES as u64) as i64;
            let wanted = (u64::from(*weight) * 1000 / weights.max(1)) as i64;
            if (is - wanted).abs() > SHARE_PERMILLE {
                let what = format!(
                    "host server {server} has {is} of 1000 entries of service {service}; its \
                     weight {weight} of {weights} is {wanted}"
                );
                self.violation(at, "shares", what);
            }
        }
    }

    /// Checks that `used` is at most `most`.
    pub fn limit(&mut self, at: Ns, name: &str, used: usize, most: usize) {
        if used > most {
            self.violation(at, "limit", format!("{name}: {used} of {most}"));
        }
    }

    /// A server's announcement has led to something that the edge's file does not allow.
    pub fn not_allowed(&mut self, at: Ns, what: String) {
        self.violation(at, "file", what);
    }

    // What is shown.

    pub fn look(&mut self, at: Ns, look: &Look) {
        for (service, said, redirected) in &look.services {
            if said != redirected {
                let what = format!(
                    "{} goes to {redirected:?}, and {said:?} are shown",
                    service_of(*service)
                );
                self.violation(at, "status", what);
            }
        }
        let few = |(service, _, redirected): &&(u8, Vec<usize>, Vec<usize>)| {
            let out = |server: &&usize| self.truth.is_out(at, **server, *service).is_none();
            redirected.iter().filter(out).count() < 2
        };
        let enough = |(service, ..): &(u8, Vec<usize>, Vec<usize>)| {
            self.truth.serving(at, *service).count() >= 2
        };
        let weak = look.services.iter().find(few).map(|it| it.0);
        // While the edge does not know an offered service yet, it need not show protection.
        let is_there = |service: &u8| look.services.iter().any(|it| it.0 == *service);
        let all = look.services.iter().all(enough)
            && (0..SERVICES).all(|it| is_there(&it) || !self.truth.is_offered(it))
            && !look.services.is_empty();
        match (look.protection, weak) {
            (Protection::Protected, Some(weak)) => {
                let what = format!("protected, and {} has less than two", service_of(weak));
                self.violation(at, "status", what);
            }
            (Protection::Protected, None) => {}
            (shown, _) if all => {
                let what = format!("{shown:?}, and every service has two host servers");
                self.violation(at, "status", what);
            }
            _ => {}
        }
        for (server, word) in &look.notes {
            if let Some(truth) = self.truth.contradicts(at, *server, word) {
                let what = format!("host server {server} is shown as {word}, and is {truth}");
                self.violation(at, "status", what);
            }
        }
    }
}
