//! The backup's promotion: fence, drain the log, probe the clients, repair the
//! sockets, take the address, kick. The order is that of decisions 13 to 18;
//! `holdfast_replica::promotion` decides about each connection. A cold backup first
//! builds its replica from what it keeps, and asks the edge when that has run all of its
//! log: until then a primary that lives may go on alone (decision 30).

use super::{
    BackupHost, BackupMachine, Kept, Replica, Stage, empty_tap, is_of, say_builds, went_on,
};
use crate::host::{Fault, MemberEvent, Turn, ask_for};
use crate::nanos;
use crate::request::EpochRequest;
use crate::timing::backup::TAP_BATCH;
use crate::timing::takeover::{
    ASK_EVERY, BUILD_LOOK, BUILD_MAX, BUILD_PER_IMAGE_MB, BUILD_PER_LOG_MB, DRAIN_LOOK, GRANT_LOOK,
    IDLE_LOOK, NUDGE_LOOK, NUDGE_MAX, PARK_MAX, PROBE_LOOK, TAP_BATCHES,
};
use holdfast_cluster::Nanos;
use holdfast_replica::promotion::{
    Discarded, Diverged, Probe, Promotion, PromotionOutput, Restore, Why,
};
use holdfast_wire::message::ConnId;
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment};
use std::time::Duration;

/// Reason of a replica that does not park.
const UNPARKED: &str = "the replica did not come to the end of its log";

/// What made the backup promote itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The primary's daemon saw its server die.
    ServerDied,
    /// The channel was lost: the primary's daemon died, or its host reset it.
    ChannelLost,
    /// Three heartbeats are missing.
    Silent,
    /// Three heartbeats are missing at the edge: clients do not reach the
    /// primary.
    Unheard,
    /// The primary does not hear this member any more, while the edge does.
    Alone,
    /// This member's own server, which spoke alone, has fallen (decision 31).
    Fallen,
}

impl Cause {
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::ServerDied => "the primary's server died",
            Self::ChannelLost => "the channel to the primary was lost",
            Self::Silent => "the primary is silent",
            Self::Unheard => "the edge does not hear the primary",
            Self::Alone => "the primary does not hear this member",
            Self::Fallen => "the server has fallen",
        }
    }
}

/// Durations of the phases. Fence and drain go on at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// From the last sign of the primary, or the fall of this host's own server, to the beginning
    /// of the takeover.
    pub detect: Nanos,
    pub fence: Nanos,
    pub drain: Nanos,
    pub repair: Nanos,
    pub probe: Nanos,
    pub address: Nanos,
    pub kick: Nanos,
    /// From the beginning to the end; where a fallen server was rebuilt, from its fall: nobody
    /// else could have begun before.
    pub total: Nanos,
}

/// A takeover in progress; see the module.
#[derive(Debug)]
pub struct Takeover {
    cause: Cause,
    request: EpochRequest,
    begun: Nanos,
    /// When the edge was first asked; `None`: the server is being built, and runs its log.
    asked: Option<Nanos>,
    peer_lost: bool,
    /// Whether the replica is being built; and how long it may take to reach
    /// the log's end.
    builds: bool,
    drain_max: Nanos,
    /// How far the replica has come in its log, and when it was first seen there.
    executed: (u64, Nanos),
    drained: Option<Nanos>,
    fenced: Option<Nanos>,
    phases: Phases,
    /// Set once the log has ended; the promotion, and since when.
    settling: Option<(Promotion, Nanos)>,
    parked: bool,
    /// Segments that make clients of lost connections ask.
    farewells: Vec<Probe>,
    diverged: Option<String>,
}

/// The promotion's machine, acting on the host.
struct TakeoverOutput<'a, H> {
    host: &'a mut H,
    repair: &'a mut Nanos,
    farewells: &'a mut Vec<Probe>,
    diverged: &'a mut Option<String>,
}

impl<H: BackupHost> PromotionOutput for TakeoverOutput<'_, H> {
    fn restore(&mut self, restore: &Restore<'_>) {
        let begun = self.host.now();
        self.host.restore(restore);
        *self.repair = self.repair.plus(self.host.now().since(begun));
    }

    fn discard(&mut self, lost: &Discarded, tell: Option<Probe>) {
        if !matches!(lost.why, Why::Finished | Why::ClientReset) {
            self.host.lost(lost);
        }
        self.farewells.extend(tell);
    }

    fn reset(&mut self, _: ConnId, _: u32) {
        // The replica's socket was never connected: it answers with an error and
        // hangs up, which is what a reset looks like to the server.
    }

    fn diverged(&mut self, reason: &Diverged) {
        *self.diverged = Some(reason.to_string());
    }
}

/// The next step of a takeover.
enum Step {
    Wait(Nanos),
    /// Everybody may speak.
    Live,
}

/// The outcome of a takeover's turn.
type Verdict = Result<Step, (Fault, String)>;

/// How long a replica may stand at one place of its log before it has come to the end, if this
/// much of it is kept. While it goes on, nobody else could serve sooner.
fn drain_max(kept: Option<Kept>) -> Nanos {
    let max = nanos(PARK_MAX);
    let Some(Kept { image, log }) = kept else { return max };
    let of = |bytes: u64, per_mb: Duration| Nanos((bytes >> 20) * nanos(per_mb).0);
    let image = of(image, BUILD_PER_IMAGE_MB);
    max.plus(nanos(BUILD_MAX)).plus(image).plus(of(log, BUILD_PER_LOG_MB))
}

impl Takeover {
    fn new(cause: Cause, epoch: u64, heard_at: Nanos, kept: Option<Kept>, now: Nanos) -> Self {
        let detect = now.since(heard_at);
        Self {
            cause,
            request: EpochRequest::new(epoch, ASK_EVERY, true),
            begun: now,
            asked: None,
            peer_lost: cause != Cause::ServerDied,
            builds: kept.is_some(),
            drain_max: drain_max(kept),
            executed: (0, now),
            drained: None,
            fenced: None,
            phases: Phases { detect, ..Phases::default() },
            settling: None,
            parked: false,
            farewells: Vec::new(),
            diverged: None,
        }
    }

    fn since_begin(&self, now: Nanos) -> Nanos {
        now.since(self.begun)
    }

    /// Whether the replica stands still for too long.
    fn is_late(&mut self, host: &impl BackupHost) -> bool {
        let (now, (_, executed)) = (host.now(), host.progress());
        if self.executed.0 != executed {
            self.executed = (executed, now);
        }
        now.since(self.executed.1) > self.drain_max
    }

    /// Whether the edge is asked before the server is there: nothing has to be built, or it is
    /// this host's own server that has fallen, and nobody else could go on.
    fn asks_at_once(&self) -> bool {
        !self.builds || self.cause == Cause::Fallen
    }

    /// Asks the edge, unless clients could not reach this host: a primary that lives goes on then.
    /// Where this host's own server has fallen, nobody else could.
    fn ask(&mut self, host: &mut impl BackupHost) -> Result<(), (Fault, String)> {
        if self.cause != Cause::Fallen {
            host.find_interface().map_err(|reason| (Fault::Unreachable, reason))?;
        }
        self.asked.get_or_insert(host.now());
        ask_for(host, &mut self.request, false);
        Ok(())
    }

    /// Looks whether the replica that is being built is there, and what has become of it:
    /// a long log may show early that it will not be promoted.
    fn build(&mut self, host: &mut impl BackupHost) -> Result<(), (Fault, String)> {
        if let Some(made) = self.builds.then(|| host.copy_made()).flatten() {
            made.map_err(|reason| (Fault::Unkept, reason))?;
            self.builds = false;
            host.show(MemberEvent::Built { took: self.since_begin(host.now()) });
        }
        match host.replica() {
            Replica::Diverged(reason) => Err((Fault::Diverged, reason)),
            Replica::Unkept(reason) => Err((Fault::Unkept, reason)),
            Replica::Ended => {
                let reason = "the replica's process ended during the takeover";
                Err((Fault::Ended, reason.to_owned()))
            }
            Replica::Replays | Replica::Parked | Replica::Outgrown(_) => Ok(()),
        }
    }

    fn hear(&mut self, host: &mut impl BackupHost) {
        let (request, ours) = (&mut self.request, host.member().epoch);
        let mut told = false;
        let opened = host.turn_edge(&mut |message| {
            told |= is_of(ours, message);
            request.handle_message(message);
        });
        if let Some(reason) = request.take_waits() {
            host.show(MemberEvent::Waits { reason: &reason });
        }
        if self.asked.is_some() {
            ask_for(host, request, opened);
        } else if opened || told {
            say_builds(host);
        }
        let now = host.now();
        if self.request.granted().is_some() {
            self.fenced.get_or_insert(now);
        }
    }

    /// Hands answers, bounds and the replica's table to the promotion's
    /// machine.
    fn settle(&mut self, promotion: &mut Promotion, host: &mut impl BackupHost) {
        let now = host.now();
        let is_parked = host.replica() == Replica::Parked;
        let Self { parked, phases, farewells, diverged, request, .. } = self;
        let repair = &mut phases.repair;
        if is_parked && !std::mem::replace(parked, true) {
            let manifest = host.manifest(&promotion.accepts());
            let mut out = TakeoverOutput { host, repair, farewells, diverged };
            promotion.handle_manifest(now, &manifest, &mut out);
        }
        // All that has come: who has answered must not be taken for silent.
        empty_tap(host, TAP_BATCHES, &mut |host, segment| {
            let mut out = TakeoverOutput { host, repair, farewells, diverged };
            promotion.handle_segment(now, segment, &mut out);
        });
        let mut out = TakeoverOutput { host, repair, farewells, diverged };
        if let Some((flows, last)) = request.take_bounds() {
            promotion.handle_bounds(now, &flows, last, &mut out);
        }
        promotion.handle_timeout(now, &mut out);
        let begun = host.now();
        host.rebuild();
        phases.repair = phases.repair.plus(host.now().since(begun));
        for probe in promotion.further_probes(now) {
            host.send_segment(&probe_segment(&probe));
        }
    }
}

impl BackupMachine {
    pub(super) fn take_over(&mut self, cause: Cause, host: &mut impl BackupHost) -> (Stage, Turn) {
        self.drop_renewal(host);
        let kept = host.kept();
        host.begin_takeover();
        host.show(MemberEvent::Promotes { cause, stopped: self.stopped });
        let (epoch, now) = (host.member().epoch, host.now());
        let mut takeover = Box::new(Takeover::new(cause, epoch, self.heard_at, kept, now));
        self.builds = !takeover.asks_at_once();
        if self.builds {
            say_builds(host);
        } else if let Err((fault, reason)) = takeover.ask(host) {
            return self.give_up(fault, &reason, false, host);
        }
        self.begin_promotion(cause, takeover.peer_lost, host);
        if self.builds && takeover.peer_lost {
            // A primary that lives must not wait for what this member confirms no more.
            host.close_peer();
        }
        host.show(MemberEvent::TakesOver { cause, builds: self.builds });
        self.watch_tap(host);
        self.turn_takeover(takeover, false, host)
    }

    pub(super) fn turn_takeover(
        &mut self,
        mut takeover: Box<Takeover>,
        stop: bool,
        host: &mut impl BackupHost,
    ) -> (Stage, Turn) {
        let verdict = match takeover.settling.take() {
            None => self.drain(&mut takeover, stop, host),
            Some(settling) => settle(&mut takeover, settling, stop, host),
        };
        match verdict {
            Err((fault, reason)) => self.give_up(fault, &reason, stop, host),
            Ok(Step::Live) => self.survive(&takeover, host),
            Ok(Step::Wait(until)) => (Stage::TakingOver(takeover), Turn::Until(until)),
        }
    }

    /// Fence and drain, at the same time: the edge decides while the log comes to its
    /// end.
    fn drain(&mut self, t: &mut Takeover, stop: bool, host: &mut impl BackupHost) -> Verdict {
        self.work(true, host);
        if self.peer_gone && !std::mem::replace(&mut t.peer_lost, true) {
            self.peer_lost(host);
        }
        t.hear(host);
        let now = host.now();
        if let Some(reason) = self.effects.broken.take() {
            return Err((Fault::Diverged, reason));
        }
        if let Some(reason) = t.request.take_refused() {
            return Err((Fault::Fenced, format!("the edge refused: {reason}")));
        }
        if let Some(newer) = host.member().replaced_by().filter(|_| self.builds) {
            return Err((Fault::Fenced, went_on(&newer)));
        }
        t.build(host)?;
        // No record may follow the end of the log, and none that is kept may be left
        // out.
        if self.effects.log_ended && t.drained.is_none() && host.feed_copy() {
            host.end_log();
            t.drained = Some(now);
        }
        if self.builds && host.replica() == Replica::Parked {
            // Nothing that this host does alone can fail any more.
            t.ask(host)?;
            self.builds = false;
        }
        if stop {
            let reason = "the daemon was stopped during the takeover";
            return Err((Fault::Ended, reason.to_owned()));
        }
        let late = t.is_late(host);
        let look = match (t.drained, t.fenced) {
            (Some(drained), Some(fenced)) => {
                t.phases.fence = fenced.since(t.asked.unwrap_or(t.begun));
                t.phases.drain = t.since_begin(drained);
                return self.probe(t, host);
            }
            (None, _) if late => {
                let reason = "the replica did not take the rest of the log";
                return Err((Fault::Hung, reason.to_owned()));
            }
            _ if late && self.builds => return Err((Fault::Hung, UNPARKED.to_owned())),
            (None, _) if t.builds => BUILD_LOOK,
            _ if t.drained.is_none() || self.builds => DRAIN_LOOK,
            _ => GRANT_LOOK,
        };
        Ok(Step::Wait(now.plus(nanos(look))))
    }

    fn probe(&mut self, t: &mut Takeover, host: &mut impl BackupHost) -> Verdict {
        let now = host.now();
        let Some(promotion) = self.log.plan(now) else {
            return Err((Fault::Diverged, "the log did not end".to_owned()));
        };
        let mut promotion = promotion.after(host.member().buffering);
        for probe in promotion.probes(now) {
            host.send_segment(&probe_segment(&probe));
        }
        settle(t, (promotion, now), false, host)
    }

    /// Becomes the survivor: everybody may speak.
    fn survive(&mut self, takeover: &Takeover, host: &mut impl BackupHost) -> (Stage, Turn) {
        let (cause, phases) = (takeover.cause, &takeover.phases);
        host.end_takeover();
        let member = host.member();
        member.epoch += 1;
        assert_eq!(Some(member.epoch), takeover.request.granted(), "nobody speaks unasked");
        member.speaks = true;
        host.show(MemberEvent::TookOver { cause, stopped: self.stopped, phases });
        host.close_peer();
        let nudges_until = host.has_nudges().then(|| host.now().plus(nanos(NUDGE_MAX)));
        if nudges_until.is_none() {
            host.close_tap();
        }
        (Stage::Survivor { nudges_until }, Turn::Busy)
    }
}

/// Collects answers, bounds and the replica's table until every connection has its
/// verdict; sockets are repaired as verdicts come.
fn settle(
    t: &mut Takeover,
    (mut promotion, since): (Promotion, Nanos),
    stop: bool,
    host: &mut impl BackupHost,
) -> Verdict {
    t.hear(host);
    // Acknowledgements of clients whose connections the replica reaches only now.
    host.feed_copy();
    t.settle(&mut promotion, host);
    let now = host.now();
    if let Some(reason) = t.diverged.take() {
        return Err((Fault::Diverged, reason));
    }
    t.build(host)?;
    if stop {
        let reason = "the daemon was stopped during the takeover";
        return Err((Fault::Ended, reason.to_owned()));
    }
    if promotion.is_done() {
        t.phases.probe = now.since(since).since(t.phases.repair);
        return go_live(t, promotion, host);
    }
    // The edge may have been away for long, with the replica at the end of its log.
    if t.is_late(host) && now.since(since) > t.drain_max {
        return Err((Fault::Hung, UNPARKED.to_owned()));
    }
    let soon = now.plus(nanos(PROBE_LOOK));
    let deadline = promotion.next_deadline().map_or(soon, |at| at.min(soon));
    t.settling = Some((promotion, since));
    Ok(Step::Wait(deadline))
}

/// Goes live: listeners after the connections, then the address, then everybody
/// may speak.
fn go_live(t: &mut Takeover, mut promotion: Promotion, host: &mut impl BackupHost) -> Verdict {
    let begun = host.now();
    host.revive_listeners();
    host.take_address().map_err(|error| (Fault::Ended, error))?;
    host.show_clocks();
    host.hear_clients().map_err(|error| (Fault::Ended, error))?;
    let addressed = host.now();
    host.send_retained();
    host.set_live();
    for probe in t.farewells.drain(..) {
        host.send_segment(&probe_segment(&probe));
    }
    host.kick();
    reinject(&mut promotion, host);
    let now = host.now();
    t.phases.address = addressed.since(begun);
    t.phases.kick = now.since(addressed);
    t.phases.total = t.since_begin(now);
    if t.cause == Cause::Fallen {
        t.phases.total = t.phases.total.plus(t.phases.detect);
    }
    Ok(Step::Live)
}

/// Re-injects what came since each connection's verdict, in order; SYNs after
/// the listener lives (decision 17). What a thousand clients have sent in the
/// time that their sockets took is many batches.
fn reinject(promotion: &mut Promotion, host: &mut impl BackupHost) {
    let (mut repair, mut farewells, mut diverged) = (Nanos(0), Vec::new(), None);
    empty_tap(host, TAP_BATCHES, &mut |host, segment| {
        let now = host.now();
        let (repair, farewells) = (&mut repair, &mut farewells);
        let mut out = TakeoverOutput { host, repair, farewells, diverged: &mut diverged };
        promotion.handle_segment(now, segment, &mut out);
    });
    let late: Vec<Vec<u8>> = promotion.take_late().chain(promotion.take_syns()).collect();
    for raw in late {
        host.inject(raw);
    }
}

/// A survivor's turn: returns until when clients' ACKs drive the resending of what was
/// in flight, and when it is called again.
pub(super) fn nudges(until: Option<Nanos>, host: &mut impl BackupHost) -> (Option<Nanos>, Turn) {
    let Some(until) = until else { return (None, Turn::after(IDLE_LOOK, host.now())) };
    host.drain_tap(TAP_BATCH, &mut |host, segment| {
        if segment.is_ack() {
            host.nudge(&segment.client_to_server_key(), segment.ack);
        } else if segment.is_syn() {
            host.repeat_syn_ack(&segment.client_to_server_key());
        }
    });
    host.nudge_again();
    if host.now() > until || !host.has_nudges() {
        host.end_unanswered();
        host.close_tap();
        return (None, Turn::after(IDLE_LOOK, host.now()));
    }
    (Some(until), Turn::after(NUDGE_LOOK, host.now()))
}

/// A question to a client, or its connection's repeated SYN-ACK, as a segment.
#[must_use]
pub fn probe_segment(probe: &Probe) -> TcpSegment<'_> {
    let record = &probe.record;
    let timestamps = probe.tsval.filter(|_| record.tsval.is_some()).map(|value| (value, 0));
    let options = if probe.syn {
        TcpOptions {
            mss: Some(record.mss),
            wscale: (record.rcv_wscale <= 14).then_some(record.rcv_wscale),
            sack_permitted: record.sack,
            timestamps,
            ..TcpOptions::default()
        }
    } else {
        TcpOptions { timestamps, ..TcpOptions::default() }
    };
    TcpSegment {
        key: probe.key,
        to_client: true,
        seq: probe.seq,
        ack: probe.ack,
        flags: if probe.syn { Flags::SYN | Flags::ACK } else { Flags::ACK },
        window: probe.window,
        options,
        payload: probe.payload.as_slice(),
    }
}
