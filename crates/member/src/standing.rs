//! A member and its edge: who is current in which epoch, whether the edge hears the
//! other member, and what the edge wants to know.

use crate::host::{End, Hosted, Turn, hear_out_of_step};
use crate::nanos;
use crate::timing::member::{ASK_EVERY, ASK_RETRY};
use holdfast_cluster::Nanos;
use holdfast_cluster::watch::Watch;
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{ConnKey, FingerprintKind, FingerprintPart, LogKey, Message, VERSION};

/// The current member, in the edge's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentMember {
    pub epoch: u64,
    pub current: String,
}

/// What a member knows from its edge: who is current in which epoch, and whether the edge hears the
/// other member.
///
/// # Contract
/// Hand over messages and the opening of the channel as they come; after
/// everything that came at one time, [`Standing::settle`] acts upon them.
#[derive(Clone, Debug)]
pub struct Standing {
    group: String,
    me: String,
    other: String,
    /// Settings that the edge's file must share, one line each.
    file: Vec<String>,
    heard: Option<CurrentMember>,
    /// Whether the edge hears the other member, by its last report.
    other_reached: bool,
    asked: Vec<ConnKey>,
    // Keys that came since the last `settle`.
    asked_now: Vec<ConnKey>,
    opened: bool,
    any: bool,
    beat: Option<u64>,
    reach: Option<bool>,
    alone: bool,
}

impl Standing {
    /// A standing before anything was heard.
    #[must_use]
    pub fn new(group: &str, me: &str, other: &str) -> Self {
        Self {
            group: group.to_owned(),
            me: me.to_owned(),
            other: other.to_owned(),
            file: Vec::new(),
            heard: None,
            other_reached: true,
            asked: Vec::new(),
            asked_now: Vec::new(),
            opened: false,
            any: false,
            beat: None,
            reach: None,
            alone: false,
        }
    }

    /// Sets what this member's file says that the edge's must say, too: every hello
    /// tells it.
    pub fn tell_file(&mut self, lines: Vec<String>) {
        self.file = lines;
    }

    /// The channel to the edge has opened.
    pub fn handle_opened(&mut self) {
        self.opened = true;
    }

    /// Takes a message from the edge; `ours` is this member's epoch.
    pub fn handle_message(&mut self, message: &Message<'_>, ours: u64) {
        self.any = true;
        match message {
            Message::Epoch { epoch, current } => {
                self.heard = Some(CurrentMember { epoch: *epoch, current: (*current).to_owned() });
            }
            Message::Reach { member, yes } if *member == self.other => self.reach = Some(*yes),
            Message::Alone { member } => self.alone |= *member == self.other,
            Message::Beat { number, .. } => self.beat = Some(*number),
            Message::AreAlive { epoch, keys } if *epoch == ours => self.asked_now.clone_from(keys),
            _ => {}
        }
    }

    /// Tells the watch what has come, and answers the edge. `epoch` is this member's
    /// epoch, and `speaks` whether it is its primary and its server lives. Returns
    /// what was new.
    pub fn settle(
        &mut self,
        now: Nanos,
        (epoch, speaks): (u64, bool),
        watch: &mut Watch,
        say: &mut dyn FnMut(&Message<'_>),
    ) -> Settled {
        let new = Settled {
            opened: std::mem::take(&mut self.opened),
            beat: self.beat.is_some(),
            reach: self.reach.is_some(),
        };
        // Questions that nobody has answered by now were not for this role.
        self.asked = std::mem::take(&mut self.asked_now);
        if new.opened {
            self.other_reached = true;
            let setting =
                |line| FingerprintPart { kind: FingerprintKind::Setting, name: line, hash: 0 };
            let file = self.file.iter().map(|line| setting(line)).collect();
            say(&hello(&self.group, &self.me, (epoch, speaks), file));
            if speaks {
                // An edge that has restarted is closed until its member asks.
                say(&Message::Promote { epoch });
            }
        }
        self.other_reached = self.reach.take().unwrap_or(self.other_reached);
        watch.handle_reach(now, self.other_reached);
        if std::mem::take(&mut self.any) {
            watch.handle_edge(now);
        }
        if std::mem::take(&mut self.alone) {
            watch.handle_alone(now);
        }
        if let Some(number) = self.beat.take() {
            say(&Message::Beat { number, echo: number, executed: 0 });
        }
        new
    }

    /// The other member, if it speaks in a newer epoch than `ours`.
    #[must_use]
    pub fn replaced_by(&self, ours: u64) -> Option<&CurrentMember> {
        self.heard.as_ref().filter(|heard| heard.epoch > ours && heard.current != self.me)
    }

    /// Whether another member is current, by the edge's last report, in `ours` or a newer
    /// epoch; an older epoch's current member does not count.
    #[must_use]
    pub fn is_behind_another(&self, ours: u64) -> bool {
        let other = |heard: &CurrentMember| heard.current == self.other && heard.epoch >= ours;
        self.heard.as_ref().is_some_and(other)
    }

    /// Whether the edge hears the other member, by its last report.
    #[must_use]
    pub fn other_reached(&self) -> bool {
        self.other_reached
    }

    /// Connections of this epoch that the edge asked about, until the next turn.
    #[must_use]
    pub fn asked(&self) -> &[ConnKey] {
        &self.asked
    }

    /// Like [`Standing::asked`], but takes them.
    pub fn take_asked(&mut self) -> Vec<ConnKey> {
        std::mem::take(&mut self.asked)
    }
}

/// What was new in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    pub opened: bool,
    pub beat: bool,
    pub reach: bool,
}

/// The first message on any channel; only the edge is told who speaks. `fingerprint` is what
/// the receiver shall compare with its own.
#[must_use]
pub fn hello<'m>(
    group: &'m str,
    member: &'m str,
    (epoch, speaks): (u64, bool),
    fingerprint: Vec<FingerprintPart<'m>>,
) -> Message<'m> {
    keyed_hello((group, member), (epoch, speaks), fingerprint, None)
}

/// As [`hello`], from one member to the other: a primary also tells the key of the hashes in its
/// log.
#[must_use]
pub fn keyed_hello<'m>(
    (group, member): (&'m str, &'m str),
    (epoch, speaks): (u64, bool),
    fingerprint: Vec<FingerprintPart<'m>>,
    hash_key: Option<LogKey>,
) -> Message<'m> {
    Message::Hello {
        version: VERSION,
        log_version: LOG_VERSION,
        group,
        member,
        epoch,
        speaks,
        fingerprint,
        hash_key,
    }
}

/// What a member becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Primary { epoch: u64 },
    Backup { epoch: u64 },
}

/// The question that every silent member starts with (decision 21).
#[derive(Clone, Debug)]
pub struct Ask {
    me: String,
    other: String,
    /// Whether this member is the one that serves before any other did.
    preferred: bool,
    /// When it began to wait.
    begun: Nanos,
    ask_at: Nanos,
    asked: Option<u64>,
    // What came since the last `settle`.
    told: Option<CurrentMember>,
    granted: Option<u64>,
    refused: Option<String>,
}

impl Ask {
    #[must_use]
    pub fn new(me: &str, other: &str, preferred: bool, now: Nanos) -> Self {
        Self {
            me: me.to_owned(),
            other: other.to_owned(),
            preferred,
            begun: now,
            ask_at: now,
            asked: None,
            told: None,
            granted: None,
            refused: None,
        }
    }

    /// Hears the edge, and asks when it is time, until this member's place is
    /// known. `stop`: the operator ends it.
    pub fn turn(&mut self, stop: bool, host: &mut impl Hosted) -> Turn {
        if stop {
            return Turn::End(End::Stopped);
        }
        hear_out_of_step(host, &mut |message| self.handle_message(message));
        let now = host.now();
        // The preferred member does not come.
        let may_begin = self.preferred || now.since(self.begun) >= host.member().alone_after;
        if let Some(place) = self.settle(may_begin, &mut |message| host.tell_edge(message)) {
            return Turn::End(End::Placed(place));
        }
        let is_open = host.is_edge_open();
        self.handle_timeout(now, is_open, &mut |message| host.tell_edge(message));
        Turn::Until(self.ask_at.max(now.plus(nanos(ASK_RETRY))))
    }

    /// Asks when it is time, if there is a channel.
    fn handle_timeout(&mut self, now: Nanos, is_open: bool, say: &mut dyn FnMut(&Message<'_>)) {
        if now >= self.ask_at && is_open {
            say(&Message::Ask);
            self.ask_at = now.plus(nanos(ASK_EVERY));
        }
    }

    /// Takes a message from the edge.
    fn handle_message(&mut self, message: &Message<'_>) {
        match message {
            Message::Epoch { epoch, current } => {
                self.told = Some(CurrentMember { epoch: *epoch, current: (*current).to_owned() });
            }
            Message::Granted { epoch } => self.granted = Some(*epoch),
            Message::Refused { reason, .. } => self.refused = Some((*reason).to_owned()),
            _ => {}
        }
    }

    /// Why the edge refused, since the last time.
    pub fn take_refused(&mut self) -> Option<String> {
        self.refused.take()
    }

    /// This member's place, once that is known; otherwise it asks for what it may: to be
    /// the first of all, too, if it `may_begin`.
    fn settle(&mut self, may_begin: bool, say: &mut dyn FnMut(&Message<'_>)) -> Option<Place> {
        let granted = self.granted.take().filter(|epoch| self.asked == Some(*epoch));
        if let Some(epoch) = granted {
            return Some(Place::Primary { epoch });
        }
        let CurrentMember { epoch, current } = self.told.take()?;
        if current == self.other {
            return Some(Place::Backup { epoch });
        }
        // A server that starts anew begins a new epoch: what it once told its clients
        // is lost.
        if current == self.me || may_begin {
            self.asked = Some(epoch + 1);
            say(&Message::Promote { epoch: epoch + 1 });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Lone;

    const PERIOD: Nanos = Nanos::from_ms(10);

    fn said(standing: &mut Standing, speaks: bool) -> Vec<String> {
        let mut watch = Watch::new(Nanos(0), PERIOD);
        let mut lines = Vec::new();
        standing.settle(Nanos(0), (3, speaks), &mut watch, &mut |message| {
            lines.push(format!("{message:?}"));
        });
        lines
    }

    #[test]
    fn who_speaks_asks_an_edge_that_comes_back() {
        for speaks in [true, false] {
            let mut standing = Standing::new("demo", "a", "b");
            standing.handle_opened();
            let lines = said(&mut standing, speaks);
            assert!(lines[0].starts_with("Hello"), "{lines:?}");
            assert!(lines[0].contains(&format!("speaks: {speaks}")), "{lines:?}");
            assert_eq!(lines[1..], ["Promote { epoch: 3 }"][..usize::from(speaks)]);
            assert!(said(&mut standing, speaks).is_empty(), "once");
        }
    }

    #[test]
    fn who_has_heard_nothing_has_nothing_to_go_by() {
        let new = Standing::new("demo", "a", "b");
        assert!(!new.opened && !new.any && !new.alone && new.other_reached);
        let lone = Lone::new("a", "b");
        assert!(!lone.bench.member.speaks && !lone.bench.member.hands_over);
    }

    #[test]
    fn every_hello_tells_what_the_file_says() {
        let mut standing = Standing::new("demo", "a", "b");
        standing.tell_file(vec!["heartbeat_ms = 18".to_owned()]);
        for _ in 0..2 {
            standing.handle_opened();
            assert!(said(&mut standing, false)[0].contains("heartbeat_ms = 18"));
        }
    }

    #[test]
    fn heartbeats_are_answered_and_vanished_clients_only_of_this_epoch() {
        let mut standing = Standing::new("demo", "a", "b");
        let key = ConnKey { server: [1; 16], client: [2; 16], server_port: 1, client_port: 2 };
        for number in [7, 8] {
            standing.handle_message(&Message::Beat { number, echo: 0, executed: 0 }, 3);
        }
        assert_eq!(said(&mut standing, true), ["Beat { number: 8, echo: 8, executed: 0 }"]);
        for (epoch, asked) in [(2, vec![]), (3, vec![key])] {
            standing.handle_message(&Message::AreAlive { epoch, keys: vec![key] }, 3);
            said(&mut standing, true);
            assert_eq!(standing.asked(), asked, "{epoch}");
        }
        assert_eq!((standing.take_asked(), standing.take_asked()), (vec![key], vec![]));
    }

    #[test]
    fn only_a_newer_epoch_of_another_replaces() {
        let mut standing = Standing::new("demo", "a", "b");
        for (epoch, current, replaced) in [(4, "b", true), (3, "b", false), (4, "a", false)] {
            standing.handle_message(&Message::Epoch { epoch, current }, 3);
            assert_eq!(standing.replaced_by(3).is_some(), replaced, "{epoch} {current}");
        }
    }

    #[test]
    fn a_channel_that_opens_anew_knows_nothing_ill_of_the_other() {
        let mut standing = Standing::new("demo", "a", "b");
        standing.handle_message(&Message::Reach { member: "b", yes: false }, 3);
        said(&mut standing, false);
        assert!(!standing.other_reached());
        standing.handle_message(&Message::Reach { member: "c", yes: true }, 3);
        said(&mut standing, false);
        assert!(!standing.other_reached(), "it was not about the other one");
        standing.handle_opened();
        said(&mut standing, false);
        assert!(standing.other_reached());
        standing.handle_opened();
        standing.handle_message(&Message::Reach { member: "b", yes: false }, 3);
        said(&mut standing, false);
        assert!(!standing.other_reached(), "what the new channel says counts");
    }

    fn asks(ask: &mut Ask) -> (Option<Place>, Vec<String>) {
        let mut lines = Vec::new();
        let may_begin = ask.preferred;
        let place = ask.settle(may_begin, &mut |message| lines.push(format!("{message:?}")));
        (place, lines)
    }

    #[test]
    fn who_has_waited_for_the_preferred_one_may_be_the_first() {
        let mut ask = Ask::new("b", "a", false, Nanos(0));
        for current in ["", "a"] {
            ask.handle_message(&Message::Epoch { epoch: 0, current });
            let mut asked = false;
            let place = ask.settle(true, &mut |_| asked = true);
            let is_first = current.is_empty();
            assert_eq!((place.is_none(), asked), (is_first, is_first), "`{current}` is current");
        }
    }

    #[test]
    fn a_member_becomes_what_the_edge_says() {
        let mut ask = Ask::new("b", "a", false, Nanos(0));
        ask.handle_message(&Message::Epoch { epoch: 0, current: "" });
        assert_eq!(asks(&mut ask), (None, vec![]), "another is preferred");
        ask.handle_message(&Message::Granted { epoch: 1 });
        assert_eq!(asks(&mut ask), (None, vec![]), "it has not asked");
        ask.handle_message(&Message::Epoch { epoch: 1, current: "a" });
        assert_eq!(asks(&mut ask).0, Some(Place::Backup { epoch: 1 }));
        ask.handle_message(&Message::Epoch { epoch: 2, current: "b" });
        assert_eq!(asks(&mut ask), (None, vec!["Promote { epoch: 3 }".to_owned()]));
        ask.handle_message(&Message::Granted { epoch: 2 });
        assert_eq!(asks(&mut ask).0, None, "an older grant");
        ask.handle_message(&Message::Granted { epoch: 3 });
        assert_eq!(asks(&mut ask).0, Some(Place::Primary { epoch: 3 }));
        let mut first = Ask::new("a", "b", true, Nanos(0));
        first.handle_message(&Message::Epoch { epoch: 0, current: "" });
        assert_eq!(asks(&mut first).1, ["Promote { epoch: 1 }"]);
    }

    #[test]
    fn questions_have_a_pause() {
        let mut ask = Ask::new("a", "b", true, Nanos(0));
        let mut count = 0;
        for ms in 0..1000 {
            ask.handle_timeout(Nanos::from_ms(ms), ms > 50, &mut |_| count += 1);
        }
        assert_eq!(count, 10);
    }

    /// A member `b` that has just begun to ask, and what it is asked on: it may be the first after
    /// a second.
    fn begun(preferred: bool) -> (Ask, Lone) {
        let mut host = Lone::new("b", "a");
        host.bench.member.alone_after = Nanos::from_ms(1000);
        (Ask::new("b", "a", preferred, host.bench.now), host)
    }

    /// Takes a turn at `ms`, in which the edge says this; tells what was said to it, too.
    fn turn_at(
        (ask, host): &mut (Ask, Lone),
        ms: u64,
        says: Message<'static>,
    ) -> (Turn, Vec<String>) {
        host.bench.now = Nanos::from_ms(ms);
        host.bench.edge.push(says);
        (ask.turn(false, host), host.bench.take())
    }

    #[test]
    fn a_member_goes_on_asking_until_it_has_its_place() {
        let mut asks = begun(false);
        let until = |ms: u64| Turn::Until(Nanos::from_ms(ms));
        let asked = vec!["to the edge: Ask".to_owned()];
        let nobody = Message::Epoch { epoch: 4, current: "" };
        assert_eq!(turn_at(&mut asks, 1, Message::Ask), (until(101), asked.clone()));
        assert_eq!(turn_at(&mut asks, 50, Message::Ask), (until(101), vec![]), "too soon");
        assert_eq!(turn_at(&mut asks, 96, Message::Ask), (until(106), vec![]), "no busy waiting");
        assert_eq!(turn_at(&mut asks, 101, Message::Ask), (until(201), asked.clone()));
        assert_eq!(turn_at(&mut asks, 1000, nobody.clone()), (until(1100), asked));
        let may = vec!["to the edge: Promote { epoch: 5 }".to_owned()];
        assert_eq!(turn_at(&mut asks, 1001, nobody), (until(1100), may), "it has waited enough");
        let place = Turn::End(End::Placed(Place::Primary { epoch: 5 }));
        let granted = Message::Granted { epoch: 5 };
        assert_eq!(turn_at(&mut asks, 1100, granted), (place, vec![]), "and asks no more");
        assert_eq!(asks.0.turn(true, &mut asks.1), Turn::End(End::Stopped));
    }

    #[test]
    fn the_preferred_member_waits_for_nobody() {
        let mut asks = begun(true);
        let (_, said) = turn_at(&mut asks, 1, Message::Epoch { epoch: 0, current: "" });
        assert_eq!(said, ["to the edge: Promote { epoch: 1 }", "to the edge: Ask"]);
    }

    #[test]
    fn who_has_no_channel_looks_for_one_soon() {
        let mut asks = begun(false);
        asks.1.bench.is_cut = true;
        let soon = Turn::Until(Nanos::from_ms(60));
        assert_eq!(turn_at(&mut asks, 50, Message::Ask), (soon, vec![]));
        asks.1.bench.is_cut = false;
        let (_, said) = turn_at(&mut asks, 60, Message::Ask);
        assert_eq!(said, ["to the edge: Ask"], "the first time that it can");
    }

    #[test]
    fn a_refusal_is_told_once() {
        let mut asks = begun(true);
        turn_at(&mut asks, 1, Message::Refused { reason: "a is in step", again: true });
        assert_eq!(asks.0.take_refused().as_deref(), Some("a is in step"));
        assert_eq!(asks.0.take_refused(), None);
    }
}
