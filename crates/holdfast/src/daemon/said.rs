//! The state that a daemon reports to the others. Each reports only what it knows by itself, so
//! that two daemons cannot wait for each other forever, and shows in its status the worst of its
//! own state and of those that it has heard.

use crate::status::{Member, Phases, Role, State, Takeover, TakeoverKind};
use holdfast_member::backup::Cause;
use holdfast_wire::message::{Message, clip};
use std::time::{Duration, Instant};

/// Time between two reports of an unchanged state.
pub const SAY_EVERY: Duration = Duration::from_secs(1);

/// Cause of a takeover that was planned.
pub const STOPPED: &str = "the primary was stopped";

/// Commands in remedies that help only on the host whose daemon names them. A group file or another
/// member's name in a remedy means the same everywhere.
const TYPED: [&str; 10] = [
    "kill ",
    "sysctl ",
    "ip route ",
    "ip -6 ",
    "ip link ",
    "ip addr",
    "`ss ",
    "systemctl ",
    "ulimit ",
    "chown ",
];

/// A state with its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub role: Role,
    pub state: State,
    /// The reason; empty only if protected.
    pub reason: String,
    pub remedy: String,
}

impl Said {
    #[must_use]
    pub fn new(role: Role, state: State, reason: &str, remedy: &str) -> Self {
        Self { role, state, reason: reason.to_owned(), remedy: remedy.to_owned() }
    }

    /// The state of a daemon with which nothing is wrong.
    #[must_use]
    pub fn fine(role: Role) -> Self {
        Self { role, state: State::Protected, ..Self::default() }
    }

    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.state == State::Protected
    }

    /// The state in a peer's message; `None` for any other message, and for states that only a
    /// later release knows.
    #[must_use]
    pub fn of(message: &Message<'_>) -> Option<Self> {
        let Message::Says { role, state, reason, remedy } = message else { return None };
        Some(Self::new(role.parse().ok()?, state.parse().ok()?, reason, remedy))
    }

    /// Sends this state in a message; long texts are cut.
    pub fn tell(&self, send: impl FnOnce(&Message<'_>)) {
        let (role, state) = (self.role.to_string(), self.state.to_string());
        let (reason, remedy) = (clip(&self.reason), clip(&self.remedy));
        send(&Message::Says { role: &role, state: &state, reason, remedy });
    }

    /// Whether the reporting daemon repeats what `name` says, in [`quoted`](Self::quoted) words.
    #[must_use]
    pub fn is_of(&self, name: &str) -> bool {
        self.reason
            .strip_prefix('`')
            .and_then(|it| it.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with("`: "))
    }

    /// The same state, with what is wrong on this host itself before the reason, which may follow
    /// from that: `trouble` is its reason and its remedy.
    #[must_use]
    pub fn behind(self, (found, remedy): (&str, &str)) -> Self {
        let may_follow = matches!(self.state, State::Unprotected | State::Waiting);
        if !may_follow || self.reason.contains(found) {
            return self;
        }
        let reason = format!("{found}; {}", self.reason);
        Self { reason, remedy: remedy.to_owned(), ..self }
    }

    /// The same state, with what is wrong on this host and keeps nobody from being served: behind
    /// why somebody is not.
    #[must_use]
    pub fn beside(self, (found, remedy): (&str, &str)) -> Self {
        match self.state {
            State::Waiting if !self.reason.contains(found) => {
                let reason = format!("{}; {found}", self.reason);
                Self { reason, ..self }
            }
            State::Waiting => self,
            _ => self.behind((found, remedy)),
        }
    }

    /// The same state, with the reporting daemon's `name` before the reason, and before a remedy
    /// that is to be typed on its host.
    #[must_use]
    pub fn quoted(&self, name: &str) -> Self {
        let is_typed = TYPED.iter().any(|command| self.remedy.contains(command));
        let is_placed = self.remedy.starts_with("on ");
        let remedy = match is_typed && !is_placed {
            true => format!("on {name}: {}", self.remedy),
            false => self.remedy.clone(),
        };
        Self { reason: format!("{name}: {}", self.reason), remedy, ..self.clone() }
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let colon = if self.reason.is_empty() { "" } else { ": " };
        write!(f, "{}{colon}{}", self.state, self.reason)
    }
}

/// When a daemon reports its state: at every change, and every [`SAY_EVERY`].
#[derive(Debug)]
pub struct Repetition {
    told: Option<Said>,
    again_at: Instant,
}

impl Repetition {
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { told: None, again_at: now }
    }

    /// Whether `own` differs from what was reported last.
    #[must_use]
    pub fn is_news(&self, own: &Said) -> bool {
        self.told.as_ref() != Some(own)
    }

    /// Whether to report `own` now; it then counts as reported.
    pub fn is_due(&mut self, own: &Said, now: Instant) -> bool {
        let is_due = self.is_news(own) || now >= self.again_at;
        if is_due {
            self.told = Some(own.clone());
            self.again_at = now + SAY_EVERY;
        }
        is_due
    }

    /// Makes the next report due at once, because a new peer has not heard any.
    pub fn hurry(&mut self, now: Instant) {
        self.again_at = now;
    }
}

/// What another daemon last said of itself, and when it was last heard while that held.
#[derive(Debug, Default)]
pub struct LastWords(Option<(Said, Instant)>);

impl LastWords {
    /// Notes what it says now, if its words still count: a channel to one that is not heard any more
    /// stays open for seconds. `heard` is when the last sign of life of it came.
    pub fn note(&mut self, says: Option<&Said>, heard: Instant) {
        if let Some(says) = says {
            self.0 = Some((says.clone(), heard));
        }
    }

    /// The daemon in the list of a status.
    #[must_use]
    pub fn listed(&self, name: &str) -> Member {
        listed(name, self.0.as_ref())
    }
}

/// A daemon in the list of a status, with what it last said of itself, and when it was last heard.
#[must_use]
pub fn listed(name: &str, heard: Option<&(Said, Instant)>) -> Member {
    let Some((said, at)) = heard else { return Member::known(name, "it has not been heard yet") };
    Member {
        name: name.to_owned(),
        role: Some(said.role),
        state: Some(said.state),
        reason: said.reason.clone(),
        // 0 is the daemon that answers.
        heard_ms_ago: Some((at.elapsed().as_millis() as u64).max(1)),
    }
}

/// Sends the report of a takeover.
pub fn tell_takeover(takeover: &Takeover, send: impl FnOnce(&Message<'_>)) {
    send(&Message::TookOver {
        cause: clip(&takeover.cause),
        phases_us: takeover.phases_us.named().map(|(_, us)| us),
        total_us: takeover.total_us,
        connections: takeover.connections,
        at: clip(&takeover.at),
    });
}

/// What kind of takeover has this cause.
#[must_use]
pub fn kind_of(cause: &str) -> TakeoverKind {
    match cause {
        STOPPED => TakeoverKind::Switchover,
        _ if cause == Cause::Fallen.text() => TakeoverKind::Rebuild,
        _ => TakeoverKind::Takeover,
    }
}

/// The takeover in a peer's message; `None` for any other message.
#[must_use]
pub fn takeover_of(message: &Message<'_>) -> Option<Takeover> {
    let Message::TookOver { cause, phases_us, total_us, connections, at } = message else {
        return None;
    };
    let [detect, fence, drain, probe, repair, address, kick] = *phases_us;
    Some(Takeover {
        cause: (*cause).to_owned(),
        phases_us: Phases { detect, fence, drain, probe, repair, address, kick },
        total_us: *total_us,
        connections: *connections,
        at: (*at).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_says_on_which_host_it_helps() {
        let stopped =
            Said::new(Role::Primary, State::Unprotected, "it is stopped", "`kill -CONT 8`");
        let quoted = stopped.quoted("`b`");
        assert_eq!(quoted.reason, "`b`: it is stopped");
        assert_eq!(quoted.remedy, "on `b`: `kill -CONT 8`");
        assert_eq!(quoted.quoted("`a`").remedy, quoted.remedy, "it is b's host still");
        let waits = Said::new(Role::Primary, State::Unprotected, "no backup", "start both members");
        assert_eq!(waits.quoted("`b`").remedy, waits.remedy);
    }

    #[test]
    fn what_is_wrong_here_stands_first() {
        let link = ("p0 is down", "ip link set p0 up");
        let cut = Said::new(Role::Primary, State::Waiting, "b is not heard", "look at the links");
        let shown = cut.clone().behind(link);
        assert_eq!(shown.reason, "p0 is down; b is not heard");
        assert_eq!((shown.state, shown.remedy.as_str()), (State::Waiting, "ip link set p0 up"));
        assert_eq!(shown.clone().behind(link), shown, "once");
        for state in [State::Protected, State::Fenced, State::Ended] {
            let other = Said { state, ..cut.clone() };
            assert_eq!(other.clone().behind(link), other, "that does not follow from it");
        }
    }

    #[test]
    fn what_keeps_nobody_from_being_served_takes_no_remedy_away() {
        let full = ("no room", "make room");
        let hangs = Said::new(Role::Primary, State::Waiting, "the server hangs", "end it");
        let shown = hangs.clone().beside(full);
        assert_eq!(
            (shown.reason.as_str(), &shown.remedy),
            ("the server hangs; no room", &hangs.remedy)
        );
        assert_eq!(shown.clone().beside(full), shown, "once");
        let alone = Said { state: State::Unprotected, ..hangs };
        assert_eq!(alone.clone().beside(full), alone.behind(full));
    }

    /// Its words count until its channel is lost; it is not heard for that long.
    #[test]
    fn a_daemon_is_heard_no_longer_than_it_gives_signs_of_life() {
        let heard = Instant::now().checked_sub(Duration::from_secs(3)).expect("a time");
        let mut words = LastWords::default();
        assert_eq!(words.listed("b").heard_ms_ago, None);
        words.note(Some(&Said::fine(Role::Backup)), heard);
        assert!(words.listed("b").heard_ms_ago >= Some(3000));
        words.note(None, Instant::now());
        assert!(words.listed("b").heard_ms_ago >= Some(3000), "it said nothing");
        assert_eq!(words.listed("b").state, Some(State::Protected));
    }

    #[test]
    fn what_is_said_is_heard() {
        let said = Said::new(Role::None, State::Unprotected, "no backup", "start it");
        let mut heard = None;
        said.tell(|message| heard = Said::of(message));
        assert_eq!(heard, Some(said));
        let odd = Message::Says { role: "backup", state: "odd", reason: "", remedy: "" };
        assert_eq!(Said::of(&odd), None);
    }

    #[test]
    fn news_are_said_at_once_and_the_rest_again() {
        let now = Instant::now();
        let (mut repetition, fine) = (Repetition::new(now), Said::fine(Role::Backup));
        assert!(repetition.is_due(&fine, now));
        assert!(!repetition.is_due(&fine, now));
        assert!(repetition.is_due(&Said::default(), now));
        assert!(!repetition.is_due(&Said::default(), now + SAY_EVERY / 2));
        assert!(repetition.is_due(&Said::default(), now + SAY_EVERY));
        repetition.hurry(now);
        assert!(repetition.is_due(&Said::default(), now));
    }

    #[test]
    fn a_takeover_is_told_whole() {
        let phases_us =
            Phases { detect: 1, fence: 2, drain: 3, probe: 4, repair: 5, address: 6, kick: 7 };
        let cause = "the primary's server died".to_owned();
        let took =
            Takeover { cause, phases_us, total_us: 28, connections: 9, at: "now".to_owned() };
        let mut heard = None;
        tell_takeover(&took, |message| heard = takeover_of(message));
        assert_eq!(heard, Some(took));
    }
}
