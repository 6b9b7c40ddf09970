//! The backup: confirms what the tap and the log bring, feeds the replica, and takes
//! over when the primary is gone.

mod follow;
mod host;
mod join;
mod rebuild;
mod renewal;
mod takeover;

pub use host::{BackupHost, FollowHost, Kept, Replica, Report};
pub use rebuild::TWICE;
pub use takeover::{Cause, Phases, probe_segment};

use crate::host::{End, Fault, Member, MemberEvent, STOPPED, Turn, hear_out_of_step, stand_alone};
use crate::nanos;
use crate::standing::CurrentMember;
use crate::timing::backup::{
    PROVEN_AFTER, REJOIN_PAUSE, REJOIN_PAUSE_MAX, START_PATIENCE, TAP_BATCH,
};
use crate::timing::doubled;
use crate::timing::takeover::IDLE_LOOK;
use holdfast_cluster::Nanos;
use holdfast_cluster::watch::Ground;
use holdfast_replica::Broken;
use holdfast_replica::backup::{Backup, BackupOutput};
use holdfast_replica::limits::Limits;
use holdfast_wire::hash::HashKey;
use holdfast_wire::log::Header;
use holdfast_wire::message::{Message, clip};
use holdfast_wire::packet::TcpPacket;
use join::{Joining, Said};
use renewal::Renewals;
use takeover::{Takeover, nudges};

/// What the log's machine has asked for during a turn; the turn carries it out at its end.
#[derive(Debug, Default)]
struct Effects {
    /// Messages to the primary, encoded.
    outbox: Vec<Vec<u8>>,
    /// Whether there are new records that the replica has not been told of.
    fresh: bool,
    full: bool,
    server_died: bool,
    log_ended: bool,
    broken: Option<String>,
}

/// The log's machine at work on the host.
struct LogOutput<'a, H> {
    effects: &'a mut Effects,
    host: &'a mut H,
}

impl<H: FollowHost> BackupOutput for LogOutput<'_, H> {
    fn send(&mut self, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.effects.outbox.push(bytes);
    }

    fn replay(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        let taken = self.host.replay(header, payload);
        self.effects.full |= !taken;
        self.effects.fresh |= taken;
        taken
    }

    fn acked(&mut self, accept: u32, bytes: u64) {
        self.host.acked(accept, bytes);
    }

    fn gone(&mut self, accept: u32) {
        self.host.gone(accept);
    }

    fn server_died(&mut self) {
        self.effects.server_died = true;
    }

    fn log_ended(&mut self) {
        self.effects.log_ended = true;
    }

    fn broken(&mut self, reason: &Broken) {
        self.effects.broken = Some(reason.to_string());
    }
}

/// How far a backup has come.
#[derive(Debug)]
enum Stage {
    /// This member joins a server that already runs.
    Joining(Joining),
    Following,
    TakingOver(Box<Takeover>),
    /// The takeover is complete and the server serves; clients' ACKs drive the resending of what
    /// was in flight before it.
    Survivor {
        nudges_until: Option<Nanos>,
    },
    /// This backup will not be promoted; `again_at`: when it may join again, if it may.
    GaveUp {
        again_at: Option<Nanos>,
    },
}

/// Why a backup gives up whose channel to a living primary has broken in an outage.
const CUT: &str = "the channel to the primary did not outlive an outage of the network";

/// The machine of a backup: it confirms what the tap and the log bring, feeds the replica, and
/// takes over when the primary is gone.
///
/// # Contract
/// Call [`BackupMachine::turn`] when something has come, and at the time that it has
/// named.
#[derive(Debug)]
pub struct BackupMachine {
    stage: Stage,
    log: Backup,
    effects: Effects,
    /// Reason that the primary gave for going on without this backup.
    refused: Option<String>,
    wake_at: Option<Nanos>,
    report_at: Nanos,
    room_wanted: bool,
    /// When the primary began to serve. Before that its silence means nothing.
    armed: Option<Nanos>,
    /// The reason for which this member takes over. From then on the edge decides, whatever the
    /// primary says.
    promoting: Option<Cause>,
    /// Whether it builds the server to take over, and has not asked the edge yet.
    builds: bool,
    /// Whether the primary has said that it is being stopped.
    stopped: bool,
    /// Whether nothing more comes from the primary, whatever it said last.
    peer_gone: bool,
    /// Whether this backup has asked the primary to go on alone, so that it can
    /// join anew.
    wants_out: bool,
    /// When to look at the tap again; `None`: its readiness wakes this member.
    tap_at: Option<Nanos>,
    /// Bytes tapped since the last confirmation.
    held_bytes: usize,
    /// When to confirm the tapped bytes.
    held_at: Option<Nanos>,
    /// When the primary was last heard.
    pub(crate) heard_at: Nanos,
    /// See [`Report::joins`].
    joins: Option<u8>,
    /// What the primary has said to this joiner since the last turn, or of a new image.
    said: Vec<Said>,
    renewals: Renewals,
    /// Since when this member has followed as a backup, or has tried to.
    begun: Nanos,
}

impl BackupMachine {
    /// A backup whose replica has just been started, and which follows the primary whose
    /// hello was heard.
    pub fn new(key: HashKey, host: &mut impl BackupHost) -> Self {
        Self::with_limits(key, Limits::DEFAULT, host)
    }

    /// Like [`new`](Self::new), with the caller's own bounds.
    pub fn with_limits(key: HashKey, limits: Limits, host: &mut impl BackupHost) -> Self {
        let now = host.now();
        host.member().speaks = false;
        say_in_step(true, host);
        Self::of(Backup::with_limits(key, limits), now)
    }

    fn of(log: Backup, now: Nanos) -> Self {
        Self {
            stage: Stage::Following,
            log,
            effects: Effects::default(),
            refused: None,
            wake_at: None,
            report_at: now,
            room_wanted: false,
            armed: None,
            promoting: None,
            builds: false,
            stopped: false,
            peer_gone: false,
            wants_out: false,
            tap_at: None,
            held_bytes: 0,
            held_at: None,
            heard_at: now,
            joins: None,
            said: Vec::new(),
            renewals: Renewals::default(),
            begun: now,
        }
    }

    /// Whether the member has to be woken for every copy that the tap takes.
    #[must_use]
    pub fn watches_tap(&self) -> bool {
        self.tap_at.is_none()
    }

    /// Whether it follows, and has not asked to become current.
    #[must_use]
    pub fn follows(&self) -> bool {
        matches!(self.stage, Stage::Following)
    }

    /// Takes a turn; `stop`: the operator ends this member.
    pub fn turn(&mut self, stop: bool, host: &mut impl BackupHost) -> Turn {
        let stage = std::mem::replace(&mut self.stage, Stage::GaveUp { again_at: None });
        let (stage, turn) = match stage {
            Stage::Joining(joining) => self.join(joining, stop, host),
            Stage::Following => self.follow(stop, host),
            Stage::TakingOver(takeover) => self.turn_takeover(takeover, stop, host),
            Stage::Survivor { nudges_until } => survive(nudges_until, stop, host),
            Stage::GaveUp { again_at } => {
                hear_out_of_step(host, &mut |_| {});
                (Stage::GaveUp { again_at }, rest(again_at, stop, host))
            }
        };
        self.stage = stage;
        turn
    }

    /// Takes over, because of `cause`.
    pub fn promote(&mut self, cause: Cause, host: &mut impl BackupHost) -> Turn {
        let (stage, turn) = self.take_over(cause, host);
        self.stage = stage;
        turn
    }

    /// Stops confirming, and drains what is still under way.
    fn begin_promotion(&mut self, cause: Cause, peer_lost: bool, host: &mut impl BackupHost) {
        self.promoting = Some(cause);
        if peer_lost {
            self.peer_lost(host);
        }
        let now = host.now();
        self.log.begin_promotion(now, &mut LogOutput { effects: &mut self.effects, host });
    }

    /// Handles the loss of the primary: nothing more can come from it.
    fn peer_lost(&mut self, host: &mut impl BackupHost) {
        let now = host.now();
        self.log.handle_peer_lost(now, &mut LogOutput { effects: &mut self.effects, host });
    }

    fn follow(&mut self, stop: bool, host: &mut impl BackupHost) -> (Stage, Turn) {
        if stop {
            return self.give_up(Fault::Ended, STOPPED, true, host);
        }
        self.stay_in_step(host);
        match host.replica() {
            Replica::Diverged(reason) => {
                return self.give_up(Fault::Diverged, &reason, false, host);
            }
            Replica::Ended => {
                return self.give_up(Fault::Ended, "the replica's process has ended", false, host);
            }
            Replica::Unkept(reason) => return self.give_up(Fault::Unkept, &reason, false, host),
            Replica::Outgrown(reason) => self.wants_image(&reason, host),
            Replica::Replays | Replica::Parked => {}
        }
        let cause = self.work(host.is_peer_ready(), host);
        self.renew(host);
        if let Some(reason) = self.effects.broken.take() {
            return self.give_up(Fault::Diverged, &reason, false, host);
        }
        if let Some(reason) = self.refused.take() {
            let fault = if self.wants_out { Fault::Outgrown } else { Fault::Fenced };
            return self.give_up(fault, &reason, false, host);
        }
        let mut busy = false;
        let mut is_busy = || {
            busy = host.is_replica_busy();
            busy
        };
        if cause.is_none() && self.log.is_hung(&mut is_busy) {
            let slow = "the replica has not moved for ten seconds: look at its host's load";
            let asleep = "the replica has not moved for a second";
            let reason = match host.stopped_by_hand() {
                Some(pid) => format!(
                    "the replica's process {pid} is stopped (SIGSTOP, or a debugger), so that it \
                     could not follow"
                ),
                None => if busy { slow } else { asleep }.to_owned(),
            };
            return self.give_up(Fault::Hung, &reason, false, host);
        }
        if cause == Some(Cause::ChannelLost) && self.armed.is_none() {
            host.kill_server();
            host.close_tap();
            return (Stage::GaveUp { again_at: None }, Turn::End(End::Again));
        }
        if let Some(newer) = host.member().replaced_by() {
            return self.give_up(Fault::Fenced, &went_on(&newer), false, host);
        }
        if host.now().since(self.begun) > nanos(PROVEN_AFTER) {
            host.member().given_up = 0;
        }
        // A primary that goes on alone, as it was asked to, closes the channel, and its last
        // messages may be lost with that: the edge and heartbeats tell whether it lives.
        let cause =
            cause.filter(|it| *it != Cause::ChannelLost || !(self.wants_out || self.is_cut(host)));
        match cause.or_else(|| self.told_by_edge(host)) {
            Some(Cause::Alone) if self.wants_out => {
                self.give_up(Fault::Outgrown, "a new image is due", false, host)
            }
            Some(Cause::Alone) if self.is_cut(host) => self.give_up(Fault::Cut, CUT, false, host),
            Some(cause) => self.take_over(cause, host),
            None => (Stage::Following, Turn::Until(self.deadline(host))),
        }
    }

    /// Hears the edge. The edge is told of this backup when its channel opens, and when
    /// it announces an epoch: an edge that was started again with an older disk has
    /// just learnt that epoch from the primary, and what it was told before meant
    /// nothing.
    fn stay_in_step(&self, host: &mut impl BackupHost) {
        let ours = host.member().epoch;
        let mut told = false;
        let opened = host.turn_edge(&mut |message| told |= is_of(ours, message));
        if opened || told {
            say_in_step(true, host);
        }
    }

    /// Asks the primary to go on alone, so that this backup can join anew. It stays a backup until
    /// the primary does: if the primary dies before, this backup still takes over.
    fn wants_to_leave(&mut self, reason: &str, host: &mut impl BackupHost) {
        if !std::mem::replace(&mut self.wants_out, true) {
            let state = Fault::Outgrown.word();
            host.send(&Message::GaveUp { state, reason: clip(reason) });
        }
    }

    /// Whether a network that failed for everybody may have broken the channel: both ends give it
    /// up some time after. Then, too, the edge and heartbeats tell whether the primary lives.
    fn is_cut(&self, host: &mut impl BackupHost) -> bool {
        let now = host.now();
        host.member().watch.was_out_since(self.heard_at, now)
    }

    /// Reason for a takeover that the edge reports: the edge has lost the primary,
    /// and so have the clients; or the primary has lost this member, and the edge
    /// did not let it bar this member.
    fn told_by_edge(&self, host: &mut impl BackupHost) -> Option<Cause> {
        let now = host.now();
        let may = self.armed.is_some_and(|since| now.since(since) > nanos(START_PATIENCE));
        let cause = match host.member().watch.verdict(now)? {
            Ground::Alone => Cause::Alone,
            Ground::Unheard => Cause::Unheard,
            Ground::Silent => return None,
        };
        may.then_some(cause)
    }

    /// Announces that this member will not be promoted, and stays silent. Edge and
    /// primary hear it before the replica is gone, whose death may take seconds: the
    /// service waits for them, not for that.
    fn give_up(
        &mut self,
        fault: Fault,
        reason: &str,
        stop: bool,
        host: &mut impl BackupHost,
    ) -> (Stage, Turn) {
        if self.promoting == Some(Cause::Fallen) && fault != Fault::Fenced {
            return self.leave_fallen(reason, stop, host);
        }
        say_in_step(false, host);
        part(fault, reason, host);
        host.show(MemberEvent::GaveUp { fault, reason, builds: self.builds });
        let again_at = again_at(fault, host);
        if again_at.is_none() {
            host.show(MemberEvent::GaveUpForGood);
        }
        (Stage::GaveUp { again_at }, rest(again_at, stop, host))
    }
}

/// A turn of a member that has taken over and whose server serves.
fn survive(nudges_until: Option<Nanos>, stop: bool, host: &mut impl BackupHost) -> (Stage, Turn) {
    if let Some(end) = stand_alone(stop, host) {
        return (Stage::Survivor { nudges_until }, Turn::End(end));
    }
    let (nudges_until, turn) = nudges(nudges_until, host);
    let turn = match nudges_until {
        None if host.member().speaks => Turn::End(End::Survives),
        // Another member speaks.
        None if host.member().is_behind_another() => Turn::End(End::Again),
        _ => turn,
    };
    (Stage::Survivor { nudges_until }, turn)
}

/// Tells the primary why this backup gives up, and ends its replica.
fn part(fault: Fault, reason: &str, host: &mut impl FollowHost) {
    host.send(&Message::GaveUp { state: fault.word(), reason: clip(reason) });
    host.flush();
    host.close_peer();
    host.kill_server();
    host.close_tap();
}

/// When a backup that gives up may join again: later each time, and not forever.
fn again_at(fault: Fault, host: &mut impl BackupHost) -> Option<Nanos> {
    let now = host.now();
    if matches!(fault, Fault::Outgrown | Fault::Cut) {
        // A backup that only needs a new image, or another channel, had no fault.
        return Some(now);
    }
    let Member { given_up, rejoin_max, .. } = host.member();
    let pause = doubled(REJOIN_PAUSE, *given_up, REJOIN_PAUSE_MAX);
    *given_up = given_up.saturating_add(1);
    let may = *given_up <= *rejoin_max;
    may.then(|| now.plus(nanos(pause)))
}

/// A backup that gave up joins again once the other member speaks alone.
fn rest(again_at: Option<Nanos>, stop: bool, host: &mut impl BackupHost) -> Turn {
    let now = host.now();
    let alone = host.member().replaced_by().is_some();
    match again_at {
        _ if stop => Turn::End(End::Stopped),
        Some(at) if alone && now >= at => Turn::End(End::Again),
        _ => Turn::after(IDLE_LOOK, now),
    }
}

/// Why a backup gives up whose primary the edge has let go on alone.
fn went_on(newer: &CurrentMember) -> String {
    format!("{} went on alone in epoch {}", newer.current, newer.epoch)
}

/// Whether the edge tells of this epoch.
fn is_of(ours: u64, message: &Message<'_>) -> bool {
    matches!(message, Message::Epoch { epoch, .. } if *epoch == ours)
}

/// Tells the edge that this backup builds the server and will take over, in the epoch of the
/// primary that it followed.
fn say_builds(host: &mut impl FollowHost) {
    let epoch = host.member().epoch;
    host.tell_edge(&Message::Builds { epoch });
}

/// Tells the edge whether this backup could take over, in the epoch of the primary
/// that it follows.
fn say_in_step(yes: bool, host: &mut impl FollowHost) {
    let epoch = host.member().epoch;
    host.tell_edge(&Message::InStep { epoch, yes });
}

/// Takes what waits in the tap; of a flood, so many batches.
fn empty_tap<H: FollowHost>(
    host: &mut H,
    batches: usize,
    each: &mut dyn FnMut(&mut H, &TcpPacket<'_>),
) {
    for _ in 0..batches {
        if !host.drain_tap(TAP_BATCH, each) {
            break;
        }
    }
}

#[cfg(test)]
mod tests;
