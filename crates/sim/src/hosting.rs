//! A simulated host of a member's machines: it does what they ask for, with the simulated kernel,
//! server and channels, in virtual time.

mod backup;
mod keeper;
mod pairing;
mod primary;

pub use backup::RestoredSocket;

use crate::check::{Holder, Said};
use crate::member::Daemon;
use crate::packet::{NO_SCALING, Packet, Truth};
use crate::pipe::{Input, Kind, PipeId};
use crate::plan::{Mutation, Step, When};
use crate::server::Server;
use crate::world::{Host, NAMES, World};
use holdfast_member::backup::Cause;
use holdfast_member::host::{ConnState, Context, Fault, Hosted, Member, MemberEvent, MemberHost};
use holdfast_replica::Nanos;
use holdfast_wire::message::{ConnKey, Message};
use holdfast_wire::packet::TcpSegment;

/// A daemon, taken out of the world for a turn, and the world around it.
pub struct AtHost<'a> {
    pub world: &'a mut World,
    pub d: &'a mut Daemon,
}

impl AtHost<'_> {
    fn is(&self, mutation: Mutation) -> bool {
        self.world.plan.mutation == Some(mutation)
    }

    fn host(&self) -> &Host {
        &self.world.hosts[self.d.at]
    }

    fn host_mut(&mut self) -> &mut Host {
        &mut self.world.hosts[self.d.at]
    }

    fn server(&self) -> Option<&Server> {
        self.host().server.as_ref()
    }

    fn server_mut(&mut self) -> Option<&mut Server> {
        self.host_mut().server.as_mut()
    }

    /// From whose server its backup machine receives records and copies.
    fn holder(&self) -> Holder {
        if self.d.own { Holder::Itself(self.d.at) } else { Holder::Backup }
    }

    fn say(&mut self, words: impl FnOnce() -> String) {
        let name = NAMES[self.d.at];
        self.world.say(|| format!("{name}: {}", words()));
    }

    fn violation(&mut self, law: &'static str, what: String) {
        let now = self.world.now;
        self.world.check.violation(now, law, what);
    }

    /// Whether the plan has caused the reason that the primary gives for running alone.
    fn is_meant(&self, reason: &str) -> bool {
        self.world.plan.unattached || reason == primary::BROKEN
    }

    /// Whether a mutation keeps the member from receiving this message.
    fn is_deaf_to(&self, message: &Message<'_>) -> bool {
        let other = NAMES[1 - self.d.at];
        let replaced = matches!(message, Message::Epoch { current, .. } if *current == other);
        replaced && self.d.member.speaks && self.is(Mutation::NeverStandDown)
    }

    /// Whether a mutation keeps the member from sending this heartbeat to the other one.
    fn is_beat_unsent(&self, message: &Message<'_>) -> bool {
        matches!(message, Message::Beat { .. }) && self.is(Mutation::NoBeats)
    }

    /// Whether a mutation keeps the member from sending this message.
    fn is_mute_for(&self, message: &Message<'_>) -> bool {
        let takes_over = self.d.takes_over;
        match message {
            Message::Promote { .. } => takes_over && self.is(Mutation::NeverPromote),
            Message::InStep { yes, .. } => takes_over && *yes && self.is(Mutation::NotSaidAgain),
            _ => false,
        }
    }
}

impl Context for AtHost<'_> {
    fn now(&self) -> Nanos {
        Nanos(self.world.time_at(self.d.at))
    }

    fn member(&mut self) -> &mut Member {
        &mut self.d.member
    }

    fn turn_edge(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        for input in self.world.turn_link(self.d, Kind::Edge) {
            match input {
                Input::Opened(_) => self.d.member.standing.handle_opened(),
                Input::Message(_, bytes) => {
                    let Ok(message) = Message::decode(&bytes) else { continue };
                    if !self.is_deaf_to(&message) {
                        self.d.member.handle_edge(&message);
                        each(&message);
                    }
                }
                _ => {}
            }
        }
        if std::mem::take(&mut self.d.sent_away) {
            each(&Message::Refused { reason: "the primary goes on alone", again: false });
        }
        let asks = !self.is(Mutation::NobodyAsksAgain);
        let (world, edge) = (&mut *self.world, self.d.edge.pipe);
        let now = Nanos(world.time_at(self.d.at));
        let settled = self.d.member.settle(now, &mut |message| {
            if asks || !matches!(message, Message::Promote { .. }) {
                edge.map(|pipe| world.send(pipe, 0, message));
            }
        });
        settled.opened
    }

    fn is_edge_open(&self) -> bool {
        self.d.edge.pipe.is_some()
    }

    fn tell_edge(&mut self, message: &Message<'_>) {
        if let Some(pipe) = self.d.edge.pipe.filter(|_| !self.is_mute_for(message)) {
            self.world.send(pipe, 0, message);
        }
    }
}

impl<'a> Hosted for AtHost<'a> {
    type Context = AtHost<'a>;

    fn context(&self) -> &AtHost<'a> {
        self
    }

    fn context_mut(&mut self) -> &mut AtHost<'a> {
        self
    }
}

impl MemberHost for AtHost<'_> {
    fn has_server_ended(&mut self) -> bool {
        self.server().is_none_or(|server| !server.alive)
    }

    fn kill_server(&mut self) {
        self.world.kill_server(self.d.at);
    }

    fn states(&mut self, keys: &[ConnKey]) -> Option<Vec<ConnState>> {
        let sockets = &self.host().sockets;
        let state = |key| match sockets.get(key) {
            None => ConnState::Over,
            Some(socket) if socket.time_wait && socket.is_over() => ConnState::Over,
            Some(socket) if !socket.established => ConnState::SynReceived,
            Some(_) => ConnState::Living,
        };
        Some(keys.iter().map(state).collect())
    }

    fn send_segment(&mut self, segment: &TcpSegment<'_>) {
        let packet = Packet {
            key: segment.key,
            seq: segment.seq,
            ack: segment.ack,
            flags: segment.flags,
            window: segment.window,
            wscale: segment.options.wscale.unwrap_or(NO_SCALING),
            sack_permitted: segment.options.sack_permitted,
            sack: segment.options.sack,
            tsval: segment.options.timestamps.map_or(0, |(value, _)| value),
            ce: false,
            payload: segment.payload.into(),
            id: 0,
            truth: Truth::default(),
            fin_truth: Truth::default(),
            is_dsack: false,
        };
        if self.host().gate.as_ref().is_some_and(|gate| gate.solo)
            && self.d.member.speaks
            && self.is(Mutation::AcksKept)
        {
            return;
        }
        self.d.owed.retain(|(key, ack)| *key != packet.key || ack.after(packet.ack));
        self.world.host_sends(self.d.at, vec![packet]);
    }

    fn stand_by(&mut self) {
        for input in std::mem::take(&mut self.d.pair.inbox) {
            if let Input::Accepted(pipe) = input {
                self.refuse(pipe, "nobody can join it");
            }
        }
        if let Some(gate) = &mut self.host_mut().gate {
            gate.minded = true;
        }
    }

    fn show(&mut self, news: MemberEvent<'_>) {
        self.judge_news(&news);
        match &news {
            MemberEvent::Asks { reason } if !is_of_the_backup(reason) && !self.is_meant(reason) => {
                let now = self.world.now;
                self.world.check.broke(now, format!("primary: {reason}"));
            }
            MemberEvent::GaveUp { fault: Fault::Diverged, reason, .. } => {
                self.violation("L5", format!("the backup diverged: {reason}"));
            }
            MemberEvent::GaveUp { fault: Fault::Unkept, builds: true, .. } => {
                self.world.reached.unbuilt += 1;
                self.world.check.state_lost(self.d.at);
            }
            MemberEvent::Alone { .. } => {
                for (key, ack) in std::mem::take(&mut self.d.owed) {
                    let what = format!("nobody tells {key:?} of {ack:?}, which the kernel has");
                    self.violation("owed", what);
                }
            }
            MemberEvent::TookOver { .. } => self.world.check.took_over(self.world.now, self.d.at),
            MemberEvent::Joined { .. } => self.joined(),
            MemberEvent::Keeps { .. } => {
                self.d.keeps = true;
                self.world.reached.kept += 1;
                let (at, epoch) = (self.d.at, self.d.member.epoch);
                let server = self.server().map_or(0, |server| server.number);
                self.world.check.keeps(at, epoch, server);
            }
            MemberEvent::KeepsNot { .. } | MemberEvent::Joins { .. } => self.d.keeps = false,
            MemberEvent::NotRebuilt { .. } => {
                self.world.reached.not_rebuilt += 1;
                self.world.check.state_lost(self.d.at);
            }
            _ => {}
        }
        self.say(|| format!("{news:?}"));
    }
}

impl AtHost<'_> {
    /// Notes that this member has joined, or has heard that the other one has.
    fn joined(&mut self) {
        let (at, epoch) = (self.d.at, self.d.member.epoch);
        if self.d.member.speaks {
            return self.world.crosses(When::Join(Step::Joined));
        }
        let server = self.world.hosts[1 - at].server.as_ref().map_or(0, |server| server.number);
        self.world.reached.joins += 1;
        self.world.check.in_step(self.world.now, at, epoch, server);
        self.world.reached.left_out += self.world.check.left_out() as u64;
        self.world.crosses(When::Join(Step::InStep));
    }

    fn refuse(&mut self, pipe: PipeId, reason: &str) {
        self.world.send(pipe, 1, &Message::Refused { reason, again: true });
        self.world.close_pipe(pipe, 1);
    }

    /// Passes a member's event to the checkers.
    fn judge_news(&mut self, news: &MemberEvent<'_>) {
        let (now, at) = (self.world.now, self.d.at);
        let speaks = self.d.member.speaks;
        let check = &mut self.world.check;
        let (said, why) = match news {
            MemberEvent::Keeps { .. } => (Said::Alone, "all is kept"),
            MemberEvent::KeepsNot { reason } => (Said::Alone, *reason),
            MemberEvent::Promotes { cause: cause @ Cause::Fallen, .. } => {
                (Said::Waits, cause.text())
            }
            MemberEvent::Promotes { cause, .. } => {
                check.given_up(now, 1 - at, cause.text());
                (Said::Waits, cause.text())
            }
            MemberEvent::TakesOver { cause, .. } => (Said::Waits, cause.text()),
            MemberEvent::TookOver { cause, .. } => (Said::Alone, cause.text()),
            MemberEvent::Asks { reason } => {
                check.given_up(now, 1 - at, reason);
                (Said::Waits, *reason)
            }
            MemberEvent::GaveUp { reason, .. } => {
                check.given_up(now, at, reason);
                (Said::Waits, *reason)
            }
            MemberEvent::Waits { reason } => (Said::Waits, *reason),
            MemberEvent::Doubts { reason } => (Said::Waits, *reason),
            MemberEvent::Alone { reason } => {
                check.given_up(now, 1 - at, reason);
                (Said::Alone, *reason)
            }
            MemberEvent::JoinFailed { reason } => {
                if !speaks {
                    check.leaves(at);
                }
                (if speaks { Said::Alone } else { Said::Waits }, *reason)
            }
            MemberEvent::Joins { .. } | MemberEvent::Joined { .. } if speaks => {
                (Said::Alone, "somebody joins")
            }
            _ => (Said::Waits, "it is over"),
        };
        if why.is_empty() {
            check.violation(now, "status", format!("{} gives no reason: {news:?}", NAMES[at]));
        }
        // What it last reported about its log does not count any more.
        (self.d.connections, self.d.unconfirmed) = (0, 0);
        if self.world.plan.mutation != Some(Mutation::StaysProtected) {
            self.world.check.says(at, said);
        }
    }
}

/// Whether a primary's reason to run alone lies with its backup, and not in wrong messages.
fn is_of_the_backup(reason: &str) -> bool {
    let known =
        ["the channel to the backup was lost", "the backup does not answer", "the backup gave up"];
    known.iter().any(|known| reason.starts_with(known))
}
