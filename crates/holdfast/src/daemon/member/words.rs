//! A member's own state, which it tells to the others, and its status, which combines that with
//! what the others report.

use super::{Lonely, MemberContext};
use crate::config::Arbiter;
use crate::daemon::advice;
use crate::daemon::front;
use crate::daemon::pulse;
use crate::daemon::said::listed;
use crate::daemon::said::{SAY_EVERY, Said, tell_takeover};
use crate::daemon::service_manager;
use crate::status::{Lag, Member as Listed, Peer, Role, State, Status, rfc3339};
use holdfast_cluster::Nanos;
use holdfast_linux::link::{self, Link};
use holdfast_linux::process;
use holdfast_wire::message::Message;
use std::borrow::Cow;
use std::time::{Duration, Instant, SystemTime};

/// Time without a channel to the edge that is not reported: a daemon that is restarted at once
/// is back within it.
const EDGE_PATIENCE: Duration = Duration::from_millis(250);

/// Age of the last heartbeat up to which another daemon counts as running.
const HEARD_LATELY: Duration = Duration::from_secs(1);

/// How many heartbeats of the edge may be missing, if they take longer than that.
const EDGE_BEATS: u32 = 4;

/// Remedy of a member that hears nobody.
pub(super) const LINKS: &str = "look at this host's links";

impl MemberContext<'_> {
    /// Sets this member's own state, and tells the edge.
    pub fn set_state(&mut self, role: Role, state: State, reason: &str, remedy: &str) {
        if matches!(state, State::Protected | State::Ended | State::Fenced) {
            self.status.rebuild.clear();
        }
        let own = Said::new(role, state, &self.edge.words(reason), &self.edge.words(remedy));
        let changed = own != self.own;
        self.own = own;
        self.show();
        if changed {
            self.say(Instant::now());
        }
    }

    /// Notes that this member does its part: the pair is protected if the others do theirs.
    pub fn judge_pair(&mut self) {
        self.set_state(self.status.role, State::Protected, "", "");
    }

    /// Notes that this member's server runs alone for `reason`: the other member can join.
    pub fn set_alone(&mut self, reason: &str) {
        let remedy = advice::alone(reason, &self.other.name);
        self.lonely = Lonely { reason: reason.to_owned(), unfit: None };
        self.set_state(Role::Primary, State::Unprotected, reason, &remedy);
    }

    /// Notes why the other member, which is there, cannot join the server that runs alone here. It
    /// tries again and again: what it is told each time is one event.
    pub fn set_unfit(&mut self, reason: &str, remedy: &str) {
        let other = &self.other.name;
        let told = format!("{other}: {reason}; remedy: {remedy}");
        if self.lonely.unfit.as_ref() != Some(&told) {
            self.events.add("cannot join", told.clone());
            self.lonely.unfit = Some(told);
        }
        // This member serves, even if the other one cannot join it.
        if self.own.state == State::Unprotected {
            let reason = format!("running alone; {other} cannot join: {reason}");
            self.set_state(Role::Primary, State::Unprotected, &reason, remedy);
        }
    }

    /// Takes back what [`set_unfit`](Self::set_unfit) has said of a member that is not there any
    /// more: it may come back with something else.
    pub fn forget_unfit(&mut self) {
        if self.lonely.unfit.is_some() && !self.hears_other() {
            let reason = self.lonely.reason.clone();
            self.set_alone(&reason);
        }
    }

    /// Whether the other member's daemon runs, as its heartbeats tell.
    fn hears_other(&self) -> bool {
        let heard = self.pulse.heard(pulse::OTHER).map(|at| self.nanos().saturating_sub(at.0));
        heard.is_some_and(|ago| ago < HEARD_LATELY.as_nanos() as u64)
    }

    /// The state of a member whose server runs alone because the other member's attempt to join
    /// has failed for `reason`; it tries again.
    #[must_use]
    pub fn unjoined(&self, reason: &str) -> Said {
        let other = &self.other.name;
        let reason = format!("running alone; {other} could not join: {reason}");
        let remedy = advice::unjoined(&reason, other);
        Said::new(Role::Primary, State::Unprotected, &reason, &remedy)
    }

    /// Sets this member's own state to `said`.
    pub fn set_said(&mut self, said: &Said) {
        self.set_state(said.role, said.state, &said.reason, &said.remedy);
    }

    /// Notes that this member looks for its primary, and that it waits for `reason`. What the
    /// primary has answered last stands until it answers something else.
    pub fn seek(&mut self, reason: &str, remedy: &str) {
        let said = Said::new(Role::Backup, State::Waiting, reason, remedy);
        let said = self.put_off.clone().unwrap_or(said);
        self.set_said(&said);
    }

    /// Notes that the primary has not answered. Its heartbeats tell whether its daemon runs.
    pub fn seek_primary(&mut self) {
        if self.hears_other() {
            return self.seek_prepared();
        }
        self.seek("the primary has not answered yet", advice::ASKS_AGAIN);
    }

    /// Notes that the other member's daemon runs and has not answered yet.
    pub fn seek_prepared(&mut self) {
        let reason = format!("{} is there and has not answered yet: it prepares", self.other.name);
        self.seek(&reason, advice::WAIT);
    }

    /// Notes why this member cannot join for now: the primary's answer, or a reason of its own.
    pub fn set_put_off(&mut self, reason: &str, remedy: &str) {
        self.set_answered(State::Waiting, reason, remedy);
    }

    /// Notes what the primary has answered, which leaves this member in `state` until it answers
    /// something else.
    pub fn set_answered(&mut self, state: State, reason: &str, remedy: &str) {
        let said = Said::new(Role::Backup, state, reason, remedy);
        self.set_said(&said);
        self.put_off = Some(said);
    }

    /// Notes that a join begins, with an image of `image_bytes` bytes.
    pub fn note_joins(&mut self, image_bytes: u64) {
        let what = format!("{}: an image of {image_bytes} bytes", self.other.name);
        self.events.add("joins", what);
    }

    /// Notes that the joining member has become the backup, after `took`.
    pub fn note_joined(&mut self, took: Nanos) {
        self.put_off = None;
        let what = format!("{} after {} ms", self.other.name, took.0 / 1_000_000);
        self.events.add("joined", what);
    }

    /// Notes that the server has ended by itself. If this member is fenced, another one has
    /// replaced it and this daemon has ended the server, so the state stays.
    pub fn set_ended(&mut self, role: Role, reason: &str, remedy: &str) {
        if self.own.state != State::Fenced {
            self.status.connections = 0;
            self.set_state(role, State::Ended, reason, remedy);
        }
    }

    /// Waits for the edge to let this member go on alone for `reason`.
    pub fn wait_for_edge(&mut self, reason: &str) {
        if self.hears_edge() {
            let remedy = "wait: the edge bars the backup first";
            return self.set_state(Role::Primary, State::Waiting, reason, remedy);
        }
        let reason = format!("{reason}, and the edge does not answer: the service waits");
        let remedy = "look at this host's links and whether the edge's daemon runs";
        self.set_state(Role::Primary, State::Waiting, &reason, remedy);
    }

    /// This member's own state.
    #[must_use]
    pub fn own(&self) -> &Said {
        &self.own
    }

    /// What the other member is told: without an edge also what keeps this host from doing its
    /// part, which nobody else sees.
    #[must_use]
    pub fn told(&self) -> Cow<'_, Said> {
        let finding = self.own.is_fine().then(|| self.edge.finding()).flatten();
        finding
            .map_or(Cow::Borrowed(&self.own), |it| Cow::Owned(Said { role: self.own.role, ..it }))
    }

    /// Tells this member's state to the edge.
    pub(super) fn say(&mut self, now: Instant) {
        let Self { edge, own, status, poll, .. } = self;
        let mut taken = false;
        own.tell(|message| taken = edge.send(message));
        if let Some(takeover) = &status.last_takeover {
            tell_takeover(takeover, |message| {
                edge.send(message);
            });
        }
        if taken {
            self.say_at = now + SAY_EVERY;
            edge.flush(now, poll);
        }
    }

    /// Reports the newest sign to the edge: its frames reach this member. What stands in its place
    /// is told of each frame of the other member.
    pub(super) fn hear_sign(&mut self) {
        let (signs, edge, mut newest) = (&self.signs, &mut self.edge, None);
        signs.drain(|payload| newest = edge.hear_frame(payload).or(newest));
        if let Some(sign) = newest.filter(|_| !self.signs_by_tap) {
            self.tell_sign(sign);
        }
    }

    /// Tells the edge that its sign `number` has arrived here.
    pub fn tell_sign(&mut self, number: u64) {
        // A switch that does not know an address sends the frame to all ports. So frames to
        // another address may arrive here, and the answer has this interface's own address.
        // One that somebody has renamed brings signs as before.
        let name = link::name_of(self.link_index).unwrap_or_else(|| self.me.interface.clone());
        if let Ok(Link { mac, .. }) = Link::by_name(&name) {
            self.edge.send(&Message::SignSeen { number, mac });
            self.edge.flush(Instant::now(), &self.poll);
        }
    }

    /// Notes that a handshake has failed, or (`None`) that one has succeeded.
    pub fn doubt(&mut self, distrust: Option<(String, &'static str)>) {
        if self.distrust != distrust {
            self.distrust = distrust;
            if let Some((reason, _)) = &self.distrust {
                self.events.add("refused", reason.clone());
            }
            self.show();
        }
    }

    /// Brings the status up to date; a change is an event.
    pub(super) fn show(&mut self) {
        let hears_nobody = self.member.watch.hears_nobody(Nanos(self.nanos()));
        if hears_nobody {
            // What the edge said before its silence may not be true afterwards: another
            // member may be current by then.
            self.edge_says = None;
        }
        self.look_at_link();
        let shown = self.for_lack(self.together());
        if !hears_nobody && self.member.watch.is_proven() {
            self.serves = matches!(shown.state, State::Protected | State::Unprotected);
        }
        let Said { role, state, reason, remedy } = shown;
        let status = &mut self.status;
        if state != State::Protected {
            // Only a pair can lag, and be taken over.
            (status.lag, status.at_risk) = (Lag::default(), 0);
        }
        (status.role, status.state, status.reason, status.remedy) = (role, state, reason, remedy);
        self.events.note_status(&self.status);
        let at = [self.edge_heard, self.other_heard].map(|at| self.instant(at.0));
        let says = self.edge_says.as_ref().filter(|_| self.hears_edge()).cloned();
        let [edge, other] = &mut self.last_words;
        edge.note(says.as_ref(), at[0]);
        other.note(self.other_says.as_ref(), at[1]);
    }

    /// The state in a line, brought up to date.
    pub(super) fn line(&mut self) -> String {
        self.show();
        service_manager::line(&self.status)
    }

    /// The status that is given as the answer.
    pub(super) fn answer(&self) -> Status {
        let peer = |name: &str, connected: bool, says: Option<&Said>| Peer {
            name: name.to_owned(),
            connected,
            note: says.map(ToString::to_string).unwrap_or_default(),
        };
        let (edge, other) = (self.edge_says.as_ref(), self.other_says.as_ref());
        let peers = vec![
            peer(self.edge.name(), self.edge.answers(), edge.filter(|_| self.hears_edge())),
            peer(&self.other.name, other.is_some(), other),
        ];
        let server_pid = self.server.filter(|pid| self.is_server(*pid)).unwrap_or(0);
        let at = rfc3339(SystemTime::now());
        Status { peers, server_pid, members: self.members(), at, ..self.status.clone() }
    }

    /// The daemons of the group: this one, and what the others last said of themselves.
    fn members(&self) -> Vec<Listed> {
        let [edge, other] = &self.last_words;
        let own = Some((self.shown(), Instant::now()));
        let mut members = vec![listed(&self.me.name, own.as_ref()), other.listed(&self.other.name)];
        match (&self.config.edge, self.config.arbiter.as_ref().and_then(Arbiter::witness)) {
            (Some(_), _) => members.push(edge.listed("edge")),
            (None, Some(_)) => {
                let says = if self.edge.answers() { "it answers" } else { "it does not answer" };
                members
                    .push(Listed { role: Some(Role::Witness), ..Listed::known("witness", says) });
            }
            (None, None) => {}
        }
        members
    }

    fn shown(&self) -> Said {
        let Status { role, state, reason, remedy, .. } = &self.status;
        Said::new(*role, *state, reason, remedy)
    }

    /// Whether the process is still this member's server: one that was given up, or that has ended,
    /// is gone, and its number may be another one's.
    fn is_server(&self, pid: u32) -> bool {
        let may_run =
            matches!(self.status.state, State::Protected | State::Unprotected | State::Waiting);
        may_run && self.status.role != Role::None && !process::is_over(pid)
    }

    /// The worse of this member's own state and of what it has heard from the others.
    fn together(&self) -> Said {
        let (own, front) = (&self.own, self.edge.speaker());
        let edge = self.edge_says.as_ref().filter(|edge| !edge.is_fine() && self.hears_edge());
        // The edge repeats to the other member what this one says of itself.
        let edge = edge.filter(|edge| !edge.is_of(&self.me.name));
        if let (State::Waiting, Some((reason, remedy))) = (own.state, &self.distrust) {
            let reason = format!("{}; {reason}", own.reason);
            return Said { reason, remedy: (*remedy).to_owned(), ..own.clone() };
        }
        match (own.state, edge) {
            (State::Protected, _) => {
                self.lacks().map_or_else(|| own.clone(), |lacks| Said { role: own.role, ..lacks })
            }
            // Both servers have ended, and nobody can be waited for.
            (State::Ended, Some(edge)) if edge.state == State::Ended => advice::nobody_serves(own),
            // The edge may know why the other member does not connect.
            (State::Waiting, Some(edge)) => Said {
                reason: format!("{}; {front}: {}", own.reason, edge.reason),
                remedy: edge.remedy.clone(),
                ..own.clone()
            },
            (State::Unprotected, Some(edge)) if edge.state != State::Unprotected => Said {
                state: State::Waiting,
                reason: format!("{front}: {}; {}", edge.reason, own.reason),
                remedy: edge.remedy.clone(),
                ..own.clone()
            },
            (State::Unprotected, Some(edge)) => Said {
                reason: format!("{}; {front}: {}", own.reason, edge.reason),
                remedy: edge.remedy.clone(),
                ..own.clone()
            },
            _ => own.clone(),
        }
    }

    /// Whether the edge's daemon runs: a channel to one that stands still stays open.
    fn hears_edge(&self) -> bool {
        let heartbeat = Duration::from_millis(self.config.group.heartbeat_ms);
        let patience = HEARD_LATELY.max(heartbeat * EDGE_BEATS);
        let silent = Duration::from_nanos(self.nanos().saturating_sub(self.edge_heard.0));
        let is_open = self.edge.is_open() || self.edge_at.elapsed() <= EDGE_PATIENCE;
        is_open && silent <= patience
    }

    /// The reason of a member that hears nobody: it does not know who serves.
    pub(super) fn cut_off(&self) -> Option<String> {
        let other = &self.other.name;
        let is_cut_off = self.member.watch.hears_nobody(Nanos(self.nanos()));
        // The other one may serve, where this member does not.
        let so = match self.own.role {
            Role::Primary => "the service waits",
            _ => "this member does not know who serves",
        };
        is_cut_off.then(|| format!("neither the edge nor {other} is heard: {so}"))
    }

    /// What keeps the pair from being protected, as seen from a member that does its part.
    fn lacks(&self) -> Option<Said> {
        let (role, other) = (self.own.role, self.other.name.as_str());
        let says = |state, reason: &str, remedy: &str| Some(Said::new(role, state, reason, remedy));
        if let Some(reason) = self.cut_off() {
            return says(State::Waiting, &reason, LINKS);
        }
        // What the edge and the other member reported may be older than that silence.
        if !self.member.watch.is_proven() {
            let reason = format!("{other} has not answered yet since nobody was heard for a while");
            return says(State::Waiting, &reason, "wait: who is current is about to be known");
        }
        if !self.hears_edge() {
            let reason = "the edge's daemon does not answer: nobody could take over";
            let remedy = "start the edge's daemon, or look at the way to it";
            return says(State::Unprotected, reason, remedy);
        }
        let Some(edge) = &self.edge_says else {
            let reason = "the edge has not said yet whether the service could be taken over";
            // A server that has served goes on serving while its edge reconnects.
            let state = if self.serves { State::Unprotected } else { State::Waiting };
            return says(state, reason, "look at the edge's status");
        };
        let Some(theirs) = &self.other_says else {
            let reason = format!("{other} has not said yet that it is ready");
            return says(State::Waiting, &reason, &format!("look at the status of {other}"));
        };
        if edge.state == State::Fenced {
            return Some(Said { state: State::Waiting, ..edge.clone() });
        }
        if !theirs.is_fine() {
            return Some(theirs.quoted(other));
        }
        if !edge.is_fine() {
            return Some(edge.quoted(self.edge.speaker()));
        }
        // The members are in step before anybody may take over.
        if !self.edge.names_backup() {
            return says(State::Unprotected, front::UNNAMED, advice::WAIT);
        }
        if !self.member.standing.other_reached() {
            let reason = format!("the {} does not hear {other}", self.edge.name());
            return says(State::Unprotected, &reason, "look at the link between them");
        }
        None
    }
}
