//! The primary without its backup: its server has ended, another member speaks, the
//! operator hands over, or it runs on alone because the edge says so.

use super::alone::Alone;
use super::join::Join;
use super::kept::{Keeping, stay_down};
use super::{LOST, PrimaryHost, PrimaryMachine};
use crate::host::{End, Fall, MemberEvent, Successor, Turn, ask_for, turn_found};
use crate::nanos;
use crate::request::EpochRequest;
use crate::standing::CurrentMember;
use crate::timing::primary::{
    ASK_EVERY, CONFIRM_LOOK, CONFIRM_MAX, GRANT_BUILD_MAX, GRANT_LOOK, GRANT_MAX, IDLE_LOOK,
    REPLACED_REST,
};
use holdfast_cluster::Nanos;
use holdfast_wire::message::Message;
use holdfast_wire::packet::TcpSegment;

/// How far a primary has come.
#[derive(Debug)]
pub(super) enum Stage {
    Serving,
    /// The operator stops this member, which waits until the backup holds all that was logged.
    Confirming {
        since: Nanos,
    },
    /// The stopped member waits until the edge lets the backup speak.
    Yielding {
        since: Nanos,
    },
    /// The server has ended.
    ServerEnded(After),
    /// Another member is current; this one may become its backup.
    Replaced {
        since: Nanos,
    },
    /// The edge is asked to bar the backup, for the given reason.
    Asking(Asked),
    /// The server speaks alone, and whoever comes may join.
    Alone(Box<Alone>),
    /// A member has come that may join, and an image of the server is being taken.
    Preparing(Box<Alone>),
    Joining(Box<Join>),
    /// The server speaks alone and what it can be rebuilt from is kept; output waits for that.
    Kept(Box<Alone>),
    /// The server has fallen, and the rest of its log is being kept.
    Falling {
        fall: Fall,
        since: Nanos,
    },
    /// The server has fallen, and is not rebuilt by this machine.
    Down,
    /// Nothing is left to do but answering questions.
    Idle,
}

/// What the edge is asked, to bar the backup, and why.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: Box<EpochRequest>,
    pub(super) reason: String,
    /// Since when the server stands still for a switchover whose backup is lost: it may have been
    /// granted the service before.
    pub(super) handing: Option<Nanos>,
}

/// What is known after the end of the server.
#[derive(Debug, Default)]
pub(super) struct After {
    /// A request that the edge had not answered before: what it grants holds (decision 20).
    asked: Option<Asked>,
    /// Why the backup is lost, if it is.
    gone: Option<String>,
    /// Since when another member speaks.
    replaced: Option<Nanos>,
}

impl After {
    /// The epoch in which the edge has barred the backup, and why it was asked to; once.
    fn take_granted(&mut self) -> Option<(u64, String)> {
        let epoch = self.asked.as_ref()?.request.granted()?;
        self.asked.take().map(|asked| (epoch, asked.reason))
    }
}

impl PrimaryMachine {
    pub(super) fn turn_apart(
        &mut self,
        stage: Stage,
        stop: bool,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        // Asked of a primary that could hand over: it means nothing to a later stage.
        host.member().hands_over = false;
        match stage {
            Stage::Confirming { since } => self.confirm(since, stop, host),
            Stage::Yielding { since } => self.wait_for_heir(since, stop, host),
            Stage::ServerEnded(after) => self.wait_for_backup(after, stop, host),
            Stage::Replaced { since } => rest_replaced(since, stop, host),
            Stage::Asking(asked) => self.ask(asked, stop, host),
            Stage::Alone(alone) => self.turn_alone(alone, stop, host),
            Stage::Preparing(alone) => self.prepare(*alone, stop, host),
            Stage::Joining(join) => self.turn_join(join, stop, host),
            Stage::Kept(alone) => self.turn_kept(alone, stop, host),
            Stage::Falling { fall, since } => self.end_kept((fall, since), stop, host),
            Stage::Down => stay_down(stop, host),
            Stage::Serving | Stage::Idle => self.idle(stop, host),
        }
    }

    /// The operator stops this member while its backup follows: a planned
    /// switchover. The server stands still while the backup gets all that it has
    /// logged, and is killed when the edge has let the backup speak.
    pub(super) fn hand_over(&mut self, host: &mut impl PrimaryHost) -> (Stage, Turn) {
        self.drop_renewal(host);
        host.show(MemberEvent::HandsOver);
        host.send(&Message::Stopping);
        host.pause_server();
        let since = host.now();
        self.confirm(since, false, host)
    }

    fn confirm(&mut self, since: Nanos, stop: bool, host: &mut impl PrimaryHost) -> (Stage, Turn) {
        host.turn_edge(&mut |_| {});
        self.take_held(host);
        self.take_log(host);
        let lost = stop || self.take_messages(host);
        self.settle(host);
        let has_all = self.log.frames_unconfirmed() == 0 && host.tail() == self.log_at;
        if !lost && !has_all && host.now().since(since) < nanos(CONFIRM_MAX) {
            return (Stage::Confirming { since }, Turn::after(CONFIRM_LOOK, host.now()));
        }
        self.announce_end(host);
        host.show(MemberEvent::Stopped);
        host.stop_watching();
        self.yield_to_backup(since, false, host)
    }

    /// Waits for the backup of a planned switchover. One that gives up, or that goes, leaves the
    /// service to this member, if that was to stay. A hot one may have gone because the edge has let
    /// it speak, so the server stands still until the edge says who goes on.
    fn wait_for_heir(
        &mut self,
        since: Nanos,
        stop: bool,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        let is_lost = self.answer_backup(host, &mut |_| {});
        let is_left = is_lost || self.tables.gave_up;
        if !is_left || !self.returns || stop || host.member().replaced_by().is_some() {
            return self.yield_to_backup(since, stop, host);
        }
        let handing = (!host.member().is_cold && !self.tables.gave_up).then_some(since);
        if handing.is_none() {
            resume(host);
        }
        let reason = self.tables.broken.take().unwrap_or_else(|| LOST.to_owned());
        self.lose_backup(host);
        host.drop_peer();
        self.begin_to_ask(reason, handing, host)
    }

    /// Waits until the edge lets the other member speak. Then nothing that this kernel still sends
    /// gets out, and the rest of the server may go.
    fn yield_to_backup(
        &mut self,
        since: Nanos,
        stop: bool,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        let (newer, took) = (host.member().replaced_by(), host.now().since(since));
        let max = if host.member().is_cold { GRANT_BUILD_MAX } else { GRANT_MAX };
        if newer.is_none() && took < nanos(max) && !stop {
            return (Stage::Yielding { since }, Turn::after(GRANT_LOOK, host.now()));
        }
        host.kill_server();
        let end = match newer {
            Some(newer) => {
                host.show(MemberEvent::HandedOver { newer: &newer, took });
                if self.returns && !stop {
                    host.drop_peer();
                    return rest_replaced(host.now(), false, host);
                }
                End::Stopped
            }
            None => End::Silent,
        };
        (Stage::Idle, Turn::End(end))
    }

    /// Handles the end of the server: everything it logged goes out, and nothing more is confirmed.
    /// The kernel's FINs and RSTs stay behind the gate. `asked`: see [`After`].
    pub(super) fn server_ended(
        &mut self,
        asked: Option<Asked>,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        self.drop_renewal(host);
        self.announce_end(host);
        // A server that only reports its end must not go on beside its replica.
        host.strike_server();
        host.stop_watching();
        self.wait_for_backup(After { asked, ..After::default() }, false, host)
    }

    /// Waits until it is known who goes on after the end of the server.
    fn wait_for_backup(
        &mut self,
        mut after: After,
        stop: bool,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        self.answer_backup(host, &mut |message| {
            if let Some(asked) = &mut after.asked {
                asked.request.handle_message(message);
            }
        });
        if stop {
            // The edge may be about to let the backup speak.
            let now = host.now();
            return self.yield_to_backup(now, false, host);
        }
        if let Some((epoch, reason)) = after.take_granted() {
            host.member().epoch = epoch;
            self.leave_backup(&reason, host);
            after.gone = Some(reason);
        }
        let gone = self.tables.broken.take().or(after.gone);
        let newer = host.member().replaced_by();
        let is_heard = host.member().standing.other_reached();
        host.show(MemberEvent::ServerEnded(match (&gone, &newer) {
            (Some(reason), _) => Successor::Nobody(reason),
            (None, Some(newer)) => Successor::Current(newer),
            (None, None) if !is_heard => Successor::Unheard,
            (None, None) => Successor::Backup,
        }));
        host.stand_by();
        let now = host.now();
        // A backup that gave up does not serve, whatever the edge has granted it.
        let speaks = newer.filter(|_| gone.is_none());
        let replaced = speaks.map(|_| after.replaced.unwrap_or(now));
        if replaced.is_some_and(|since| now.since(since) > nanos(REPLACED_REST)) {
            return (Stage::Idle, Turn::End(End::Again));
        }
        (Stage::ServerEnded(After { gone, replaced, ..after }), Turn::after(GRANT_LOOK, now))
    }

    /// Sends the rest of the log to the backup, and then word that nothing more comes.
    pub(super) fn announce_end(&mut self, host: &mut impl PrimaryHost) {
        host.member().speaks = false;
        host.set_server_dead();
        self.take_log(host);
        let now = host.now();
        self.act(host, |log, out| log.handle_server_died(now, out));
        host.flush();
    }

    /// Answers the backup, which may still ask for what its tap lacks, and hears the edge. True if
    /// the channel is lost.
    fn answer_backup(
        &mut self,
        host: &mut impl PrimaryHost,
        hear: &mut dyn FnMut(&Message<'_>),
    ) -> bool {
        host.turn_edge(hear);
        host.has_server_ended();
        let is_lost = self.take_messages(host) || !host.flush();
        if is_lost {
            host.drop_peer();
        }
        is_lost
    }

    /// Steps down because another member is current in a newer epoch: the server dies first
    /// (decision 21).
    pub(super) fn stand_down(
        &mut self,
        newer: &CurrentMember,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        self.drop_renewal(host);
        host.kill_server();
        host.member().speaks = false;
        host.show(MemberEvent::Replaced { newer });
        self.lose_backup(host);
        host.drop_peer();
        host.stop_watching();
        rest_replaced(host.now(), false, host)
    }

    /// The backup is lost, or cannot follow any more. The edge decides whether this
    /// member may run on alone: a backup that is in step takes over instead
    /// (decisions 19 and 20). Until then the service waits.
    pub(super) fn ask_to_go_alone(
        &mut self,
        reason: String,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        self.leave_backup(&reason, host);
        self.begin_to_ask(reason, None, host)
    }

    fn begin_to_ask(
        &mut self,
        reason: String,
        handing: Option<Nanos>,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        let request = EpochRequest::new(host.member().epoch, ASK_EVERY, false);
        self.ask(Asked { request: Box::new(request), reason, handing }, false, host)
    }

    fn ask(
        &mut self,
        Asked { mut request, reason, handing }: Asked,
        stop: bool,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        if stop {
            // The backup may be in step and take over, so this member must ask.
            let now = host.now();
            return self.yield_to_backup(now, false, host);
        }
        let opened = host.turn_edge(&mut |message| request.handle_message(message));
        if let Some(epoch) = request.granted() {
            if handing.is_some() {
                resume(host);
            }
            return self.serve_alone(epoch, &reason, host);
        }
        match (host.member().replaced_by(), handing) {
            (Some(_), Some(since)) => return self.yield_to_backup(since, false, host),
            (Some(newer), None) => return self.stand_down(&newer, host),
            (None, _) => {}
        }
        if host.has_server_ended() {
            return self.server_ended(Some(Asked { request, reason, handing }), host);
        }
        ask_for(host, &mut request, opened);
        host.show(MemberEvent::Asks { reason: &reason });
        (Stage::Asking(Asked { request, reason, handing }), Turn::after(ASK_EVERY, host.now()))
    }

    /// Goes on without a backup: from now on no death of this daemon touches the service.
    pub(super) fn serve_alone(
        &mut self,
        epoch: u64,
        reason: &str,
        host: &mut impl PrimaryHost,
    ) -> (Stage, Turn) {
        assert!(epoch > host.member().epoch, "epochs only grow (decision 21)");
        host.member().epoch = epoch;
        if let Err(error) = self.open_gate(host) {
            return (Stage::Idle, Turn::End(End::Failed(error)));
        }
        // Requests and grants of the time with the backup are void: another one may join in this
        // epoch.
        (self.closing, self.joins, self.doubt) = (None, None, None);
        self.keeping = Keeping::default();
        host.show(MemberEvent::Alone { reason });
        let now = host.now();
        // A backup that was only lost, or stopped by somebody, may come back at once.
        let gave_up = std::mem::take(&mut self.tables.gave_up);
        let has_failed = gave_up && !std::mem::take(&mut self.tables.was_stopped);
        let alone = Alone::after(self.tried.take().filter(|_| has_failed), now);
        (Stage::Alone(Box::new(alone)), Turn::after(IDLE_LOOK, now))
    }

    /// Opens the gate: nothing waits any more.
    pub(super) fn open_gate(&mut self, host: &mut impl PrimaryHost) -> Result<(), String> {
        // The ACKs are collected while the gate still knows them, and sent once it holds none back.
        let withheld = self.withheld(host);
        host.go_alone()?;
        withheld.iter().for_each(|ack| host.send_segment(ack));
        Ok(())
    }

    /// The ACKs that the gate has held back: the kernel believes they were sent, and a client that
    /// uploads would wait for its timer. ACKs of a tuple's earlier connection are left out.
    fn withheld(&self, host: &impl PrimaryHost) -> Vec<TcpSegment<'static>> {
        let slots = self.tables.conns.keys().filter_map(|conn| {
            host.slot(*conn).filter(|slot| host.conn_of(&slot.key) == Some(*conn))
        });
        let behind = slots.filter(|slot| slot.rcv_nxt.after(slot.last_ack));
        behind.map(|slot| slot.acknowledgement(slot.rcv_nxt)).collect()
    }

    fn idle(&mut self, stop: bool, host: &mut impl PrimaryHost) -> (Stage, Turn) {
        (Stage::Idle, turn_found(stop, host))
    }
}

/// Takes a handover back: the server goes on, and is this member's.
fn resume(host: &mut impl PrimaryHost) {
    host.resume_server();
    host.member().speaks = true;
}

/// Rests while another member is current; then this one begins again, and joins it.
pub(super) fn rest_replaced(
    since: Nanos,
    stop: bool,
    host: &mut impl PrimaryHost,
) -> (Stage, Turn) {
    host.turn_edge(&mut |_| {});
    host.has_server_ended();
    host.stand_by();
    let now = host.now();
    let turn = match now.since(since) > nanos(REPLACED_REST) {
        _ if stop => Turn::End(End::Stopped),
        true => Turn::End(End::Again),
        false => Turn::after(GRANT_LOOK, now),
    };
    (Stage::Replaced { since }, turn)
}
