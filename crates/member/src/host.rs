//! What both roles of a member share: what it has heard, what it needs of the host
//! that it runs on, and how its turns end.

use crate::backup::{Cause, Phases};
use crate::nanos;
use crate::request::EpochRequest;
use crate::standing::{Heard, Place, Settled, Standing};
use crate::timing::primary::IDLE_LOOK;
use holdfast_cluster::Nanos;
use holdfast_cluster::watch::Watch;
use holdfast_wire::buffering::Buffering;
use holdfast_wire::message::{ConnKey, Message};
use holdfast_wire::packet::TcpSegment;
use std::time::Duration;

/// A member of a pair.
#[derive(Debug)]
pub struct Member {
    /// The epoch that it is in.
    pub epoch: u64,
    /// It is the primary of its epoch, as far as it knows, and its server lives.
    pub speaks: bool,
    /// What the edge has said.
    pub standing: Standing,
    /// Whether the other member lives.
    pub watch: Watch,
    /// The operator wants its backup to be the primary.
    pub hands_over: bool,
    /// How often it has given up as a backup since it last followed for a while, and how
    /// often it may.
    pub given_up: u32,
    pub rejoin_max: u32,
    /// What acknowledgements and output wait for (decision 31).
    pub buffering: Buffering,
    /// How long it waits for the other member before it serves without a backup.
    pub alone_after: Nanos,
}

impl Member {
    /// Nothing has been heard yet.
    #[must_use]
    pub fn new(group: &str, me: &str, other: &str, period: Nanos, now: Nanos) -> Self {
        Self {
            epoch: 0,
            speaks: false,
            standing: Standing::new(group, me, other),
            watch: Watch::new(now, period),
            hands_over: false,
            given_up: 0,
            rejoin_max: u32::MAX,
            buffering: Buffering::Commit,
            alone_after: Nanos(u64::MAX),
        }
    }

    /// The edge says something.
    pub fn handle_edge(&mut self, message: &Message<'_>) {
        self.standing.handle_message(message, self.epoch);
    }

    /// After all that the edge has said; see [`Standing::settle`].
    pub fn settle(&mut self, now: Nanos, say: &mut dyn FnMut(&Message<'_>)) -> Settled {
        self.standing.settle(now, (self.epoch, self.speaks), &mut self.watch, say)
    }

    /// Another member speaks in a newer epoch.
    #[must_use]
    pub fn replaced_by(&self) -> Option<Heard> {
        self.standing.replaced_by(self.epoch).cloned()
    }

    /// Another member is current, as far as this one knows.
    #[must_use]
    pub fn is_behind_another(&self) -> bool {
        self.standing.is_behind_another(self.epoch)
    }
}

/// What a kernel says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnState {
    /// Nothing, or only TIME-WAIT is left.
    Over,
    /// The client has not answered the SYN-ACK.
    SynReceived,
    Living,
}

/// Why a backup will not be promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The replica computes something else.
    Diverged,
    /// It makes no progress.
    Hung,
    /// Another member speaks.
    Fenced,
    /// Its process, or its daemon, has ended.
    Ended,
    /// What a cold backup keeps has no room, or is lost.
    Unkept,
    /// It has so much log that a new image is due.
    Outgrown,
}

impl Fault {
    /// The state's name, as the other member is told.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Diverged => "diverged",
            Self::Hung => "hung",
            Self::Fenced => "fenced",
            Self::Ended => "ended",
            Self::Unkept => "unkept",
            Self::Outgrown => "outgrown",
        }
    }
}

/// What people want to know of a member.
#[derive(Debug)]
pub enum News<'a> {
    /// The operator stops a primary: its backup is to go on.
    HandsOver,
    /// Its server stands still; the backup takes over.
    Stopped,
    /// The edge has let the other member speak, so long after the begin.
    HandedOver { newer: &'a Heard, took: Nanos },
    /// The server has ended, beside whom it may concern: the backup is `gone`, or
    /// somebody `newer` speaks.
    ServerEnded { gone: Option<&'a str>, newer: Option<&'a Heard> },
    /// The server of a member that speaks alone has ended.
    EndedAlone,
    /// Another member speaks; this one is silent.
    Replaced { newer: &'a Heard },
    /// The backup does not answer, and the edge is asked to bar it. It is followed by
    /// what comes of it, or by nothing: the backup was heard again.
    Doubts { reason: &'a str },
    /// The member would go on alone, if the edge lets it.
    Asks { reason: &'a str },
    /// It does.
    Alone { reason: &'a str },
    /// Somebody joins: an image of the server goes over.
    Joins { image_bytes: u64 },
    /// It does not, and comes again.
    JoinFailed { reason: &'a str },
    /// The joiner is a backup in step.
    Joined { took: Nanos },
    /// The backup begins to take over.
    Promotes { cause: Cause, stopped: bool },
    /// It still does.
    TakesOver { cause: Cause },
    /// The server of a cold backup is made of its image; its log follows.
    Built { took: Nanos },
    /// The edge does not let it, for now.
    Waits { reason: &'a str },
    /// It has.
    TookOver { cause: Cause, stopped: bool, phases: &'a Phases },
    /// It has given up too often: it will not join again by itself.
    GaveUpForGood,
    /// It does not any more.
    GaveUp { fault: Fault, reason: &'a str },
}

/// What is the same in every role: a clock, and the channel to the edge.
pub trait Context {
    /// The time, which goes on within a turn.
    fn now(&self) -> Nanos;
    fn member(&mut self) -> &mut Member;
    /// Takes what the edge has said, tells it to the member, and hands each message
    /// on. Whether the channel has just opened.
    fn turn_edge(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool;
    /// Whether the channel to the edge is open.
    fn is_edge_open(&self) -> bool;
    /// Says something to the edge, if the channel is open.
    fn tell_edge(&mut self, message: &Message<'_>);
}

/// What works in such a context.
pub trait Hosted {
    type Context: Context;
    fn context(&self) -> &Self::Context;
    fn context_mut(&mut self) -> &mut Self::Context;
    /// See [`Context::now`].
    fn now(&self) -> Nanos {
        self.context().now()
    }
    /// See [`Context::member`].
    fn member(&mut self) -> &mut Member {
        self.context_mut().member()
    }
    /// See [`Context::turn_edge`].
    fn turn_edge(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        self.context_mut().turn_edge(each)
    }
    /// See [`Context::is_edge_open`].
    fn is_edge_open(&self) -> bool {
        self.context().is_edge_open()
    }
    /// See [`Context::tell_edge`].
    fn tell_edge(&mut self, message: &Message<'_>) {
        self.context_mut().tell_edge(message);
    }
}

/// What every role beside a server needs of its host.
pub trait MemberHost: Hosted {
    /// The server's, or the replica's, process has ended.
    fn has_server_ended(&mut self) -> bool;
    /// Ends it, and waits until it is gone.
    fn kill_server(&mut self);
    /// What the kernel says of connections; `None`: it does not answer.
    fn states(&mut self, keys: &[ConnKey]) -> Option<Vec<ConnState>>;
    /// Out to a client, past everything that may hold it back.
    fn send_segment(&mut self, segment: &TcpSegment<'_>);
    /// What a member does beside a server that speaks alone: it tells others that
    /// they come too late.
    fn stand_by(&mut self);
    fn show(&mut self, news: News<'_>);
}

/// When a member is called again.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// At once: there is more.
    Busy,
    /// When something comes, or at this time.
    Until(Nanos),
    End(End),
}

impl Turn {
    /// After a pause at the latest.
    pub(crate) fn after(pause: Duration, now: Nanos) -> Self {
        Self::Until(now.plus(nanos(pause)))
    }
}

/// Why a role has come to its end.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to; the service needs nothing of this member any more.
    Stopped,
    /// It was asked to, and another member may yet carry the connections over: what
    /// keeps this one's kernel silent has to stay.
    Silent,
    /// Begin again by asking the edge.
    Again,
    /// It knows what this member is.
    Placed(Place),
    /// It has met the other member, whose server `runs` already: it joins.
    Met { runs: bool },
    /// Nobody has come that could be its backup: it serves without one.
    Unmet,
    /// It has taken over, and clients have all that was on its way: a primary that speaks
    /// alone.
    Survives,
    /// The host does not do what it must, in words.
    Failed(String),
}

/// Asks for an epoch, if it is time; at once if the channel has just `opened`.
pub(crate) fn ask_for(host: &mut impl MemberHost, request: &mut EpochRequest, opened: bool) {
    let channel = (host.is_edge_open(), opened);
    request.settle(host.now(), channel, &mut |message| host.tell_edge(message));
}

/// Tells the edge which of the connections that it asks about are over.
pub(crate) fn tell_vanished<H: MemberHost>(
    host: &mut H,
    is_alive: impl FnOnce(&mut H, &[ConnKey]) -> Option<Vec<bool>>,
) {
    let keys = host.member().standing.take_asked();
    if keys.is_empty() {
        return;
    }
    let Some(alive) = is_alive(host, &keys) else { return };
    let gone = keys.into_iter().zip(alive).filter(|(_, alive)| !alive);
    let keys: Vec<ConnKey> = gone.map(|(key, _)| key).collect();
    if !keys.is_empty() {
        let epoch = host.member().epoch;
        host.tell_edge(&Message::NotAlive { epoch, keys });
    }
}

/// A turn beside a server that speaks alone: no death of ours touches it
/// (decision 20). With a backup only the gate could answer the edge: the kernel of a
/// dying server would take away what the backup needs. `stop`: the operator ends this
/// member, and its server with it.
pub fn stand_alone<H: MemberHost>(stop: bool, host: &mut H) -> Option<End> {
    host.stand_by();
    speak_alone(stop, host)
}

/// As [`stand_alone`], where somebody may join.
pub(crate) fn speak_alone<H: MemberHost>(stop: bool, host: &mut H) -> Option<End> {
    host.turn_edge(&mut |_| {});
    tell_vanished(host, |host, keys| {
        let states = host.states(keys)?;
        Some(states.into_iter().map(|state| state != ConnState::Over).collect())
    });
    let member = host.member();
    if let Some(newer) = member.replaced_by().filter(|_| member.speaks) {
        (member.speaks, member.epoch) = (false, newer.epoch);
        host.kill_server();
        host.show(News::Replaced { newer: &newer });
    }
    if host.has_server_ended() {
        host.member().speaks = false;
        host.show(News::EndedAlone);
    }
    stop.then(|| {
        host.kill_server();
        End::Stopped
    })
}

/// A turn of a member whose server has outlived an earlier daemon of it.
pub fn turn_found(stop: bool, host: &mut impl MemberHost) -> Turn {
    stand_alone(stop, host).map_or_else(|| Turn::after(IDLE_LOOK, host.now()), Turn::End)
}
