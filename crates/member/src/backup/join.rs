//! A member that joins a server which already runs: it takes over the server's connections
//! and its log at once, builds the server from the image when that is complete, and
//! announces that it is in step when it has executed everything from before output waits
//! for it.

use super::{BackupMachine, Cause, FollowHost, Replica, Stage, empty_tap, part, say_in_step};
use crate::host::{End, Fault, MemberEvent, STOPPED, Turn, hear_out_of_step};
use crate::timing::backup::{CLOSING_MAX, COPY_LOOK, LOOK_AFTER, STREAMS_MAX, UNACCEPTED_MAX};
use crate::timing::primary::JOINER_SILENT;
use crate::{nanos, percent};
use holdfast_cluster::Nanos;
use holdfast_replica::backup::Backup;
use holdfast_replica::limits::Limits;
use holdfast_wire::hash::HashKey;
use holdfast_wire::message::{ConnId, Message};
use std::collections::BTreeMap;

/// Most batches of packets that are discarded when a join begins: more come meanwhile.
const STALE_BATCHES: usize = 4096;

/// How far a joiner has come.
#[derive(Debug, Default)]
pub(super) struct Joining {
    /// Size limit of the image, how much of it has arrived, and whether that is
    /// all.
    image_bytes: Option<u64>,
    arrived: u64,
    is_whole: bool,
    /// Bytes of what has arrived that the primary was told of.
    told: u64,
    /// Whether the server built from it runs, and follows.
    runs: bool,
    /// Position of the log when the server began to run: up to there it is
    /// behind.
    behind_until: u64,
    caught_up: bool,
    closing: Option<Closing>,
}

impl Joining {
    /// Whether an image was announced and is not complete.
    const fn awaits_image(&self) -> bool {
        self.image_bytes.is_some() && !self.is_whole
    }

    /// The primary sends more of the image as this member has room for it.
    fn tell_kept(&mut self, host: &mut impl FollowHost) {
        let kept = host.image_kept().min(self.arrived);
        if kept > self.told {
            self.told = kept;
            host.send(&Message::ImageOk { bytes: kept });
        }
    }
}

/// What must have arrived until this member is in step.
#[derive(Debug)]
struct Closing {
    since: Nanos,
    /// Number of the frame up to which everything must be executed, and the log's position
    /// when all of it had gone to the replica.
    number: u64,
    executed_at: Option<u64>,
    /// Streams of which bytes are lacking here that the primary's kernel had
    /// acknowledged: up to which offset.
    streams: BTreeMap<ConnId, u64>,
}

/// Messages from the primary that only a joiner gets, or a backup that renews its image.
#[derive(Debug)]
pub(super) enum Said {
    Join { log_from: u64, image_bytes: u64 },
    Image(Vec<u8>),
    Closing(u64),
    Renewed { log_from: u64, image_bytes: u64 },
    ImageOff(String),
}

impl Said {
    pub(super) fn of(message: &Message<'_>) -> Option<Self> {
        Some(match *message {
            Message::Join { log_from, image_bytes } => Self::Join { log_from, image_bytes },
            Message::Image { bytes } => Self::Image(bytes.to_vec()),
            Message::Closing { number } => Self::Closing(number),
            Message::Renewed { log_from, image_bytes } => Self::Renewed { log_from, image_bytes },
            Message::ImageOff { reason } => Self::ImageOff(reason.to_owned()),
            _ => return None,
        })
    }
}

impl BackupMachine {
    /// The primary whose hello was heard has a server that runs: this member joins it.
    pub fn joining(key: HashKey, limits: Limits, host: &mut impl FollowHost) -> Self {
        let now = host.now();
        host.member().speaks = false;
        say_in_step(false, host);
        // Packets that came before the primary let this member in are older than any
        // image, and fill the tap.
        empty_tap(host, STALE_BATCHES, &mut |_, _| {});
        let log = Backup::joining(key, limits);
        Self { stage: Stage::Joining(Joining::default()), ..Self::of(log, now) }
    }

    pub(super) fn join(
        &mut self,
        mut joining: Joining,
        stop: bool,
        host: &mut impl FollowHost,
    ) -> (Stage, Turn) {
        if stop {
            return self.leave(STOPPED, End::Stopped, host);
        }
        hear_out_of_step(host, &mut |_| {});
        self.joins = Some(percent(joining.arrived, joining.image_bytes.unwrap_or(0)));
        let cause = self.work(host.is_peer_ready(), host);
        if let Err(reason) = self.take_said(&mut joining, host) {
            return self.leave(&reason, End::Again, host);
        }
        if let Some(reason) = self.why_not(&joining, cause, host) {
            let has_differed = matches!(host.replica(), Replica::Diverged(_));
            let fault = if has_differed { Fault::Diverged } else { Fault::Ended };
            return self.leave_for(fault, &reason, End::Again, host);
        }
        let now = host.now();
        if joining.runs && !joining.caught_up && self.has_caught_up(&joining, now, host) {
            joining.caught_up = true;
            host.send(&Message::CaughtUp);
            host.flush();
        }
        if self.has_closed(&mut joining, host) {
            return self.be_in_step(now, host);
        }
        let look = if joining.runs { LOOK_AFTER } else { COPY_LOOK };
        let until = self.deadline(host).min(now.plus(nanos(look)));
        (Stage::Joining(joining), Turn::Until(until))
    }

    /// Takes what the primary has said to a joiner.
    fn take_said(
        &mut self,
        joining: &mut Joining,
        host: &mut impl FollowHost,
    ) -> Result<(), String> {
        for said in std::mem::take(&mut self.said) {
            match said {
                Said::Join { log_from, image_bytes } if joining.image_bytes.is_none() => {
                    host.begin_copy(log_from, image_bytes)?;
                    joining.image_bytes = Some(image_bytes);
                    host.show(MemberEvent::Joins { image_bytes });
                }
                Said::Image(bytes) if bytes.is_empty() && joining.awaits_image() => {
                    joining.is_whole = true;
                    host.end_image();
                }
                Said::Image(bytes) if joining.awaits_image() => {
                    joining.arrived += bytes.len() as u64;
                    if joining.image_bytes.is_none_or(|all| joining.arrived > all) {
                        return Err("more of the image came than was announced".to_owned());
                    }
                    host.take_image(&bytes)?;
                    joining.tell_kept(host);
                }
                Said::Closing(number) if joining.caught_up && joining.closing.is_none() => {
                    let (since, streams) = (host.now(), self.log.behind());
                    let closing = Closing { since, number, executed_at: None, streams };
                    joining.closing = Some(closing);
                }
                _ => return Err("the primary speaks out of turn".to_owned()),
            }
        }
        joining.tell_kept(host);
        host.flush();
        let made = if joining.runs { None } else { host.copy_made() };
        if let Some(made) = made {
            made?;
            self.log.replica_begins(host.now());
            joining.runs = true;
            joining.behind_until = host.progress().0;
        }
        Ok(())
    }

    /// The reason why the join fails, if it does.
    fn why_not(
        &mut self,
        joining: &Joining,
        cause: Option<Cause>,
        host: &mut impl FollowHost,
    ) -> Option<String> {
        if let Some(reason) = self.effects.broken.take() {
            return Some(reason);
        }
        if let Some(reason) = self.refused.take() {
            return Some(reason);
        }
        if host.now().since(self.heard_at) > nanos(JOINER_SILENT) {
            return Some("the primary has said nothing for ten seconds".to_owned());
        }
        if let Some(newer) = host.member().replaced_by() {
            return Some(format!("{} speaks in epoch {}", newer.current, newer.epoch));
        }
        if let Some(cause) = cause.filter(|cause| *cause != Cause::Silent) {
            return Some(cause.text().to_owned());
        }
        let replica = host.replica();
        if let Replica::Unkept(reason) = replica {
            return Some(reason);
        }
        if !joining.runs {
            return None;
        }
        match replica {
            Replica::Diverged(reason) => return Some(reason),
            Replica::Ended => return Some("the replica's process has ended".to_owned()),
            _ => {}
        }
        let closing = joining.closing.as_ref();
        let late = closing.is_some_and(|it| host.now().since(it.since) > nanos(CLOSING_MAX));
        if late || self.log.is_hung(|| host.is_replica_busy()) {
            return Some("the replica does not come to the log's end".to_owned());
        }
        None
    }

    /// The replica is not behind, and nothing waits for what the tap lacks.
    fn has_caught_up(&self, joining: &Joining, now: Nanos, host: &impl FollowHost) -> bool {
        let (_, executed) = host.progress();
        executed >= joining.behind_until && !self.log.lags(now) && self.log.unresolved().0 == 0
    }

    /// Whether everything from before output waits has been executed, and everything that
    /// clients were told is held, or was waited for long enough: a connection that nobody
    /// accepts is no reason to protect none.
    fn has_closed(&mut self, joining: &mut Joining, host: &mut impl FollowHost) -> bool {
        let Some(closing) = &mut joining.closing else { return false };
        let (log, waited) = (&mut self.log, host.now().since(closing.since));
        closing.streams.retain(|id, until| {
            let most = if log.can_ask(*id) { STREAMS_MAX } else { UNACCEPTED_MAX };
            let (holds, is_late) = (log.holds(*id, *until), waited > nanos(most));
            if is_late && !holds {
                log.leave_out(*id, *until);
            }
            !holds && !is_late
        });
        if self.log.resolved() < closing.number || !closing.streams.is_empty() {
            return false;
        }
        let (appended, executed) = host.progress();
        executed >= *closing.executed_at.get_or_insert(appended)
    }

    /// IN STEP: from now on this member takes over, if it must.
    fn be_in_step(&mut self, now: Nanos, host: &mut impl FollowHost) -> (Stage, Turn) {
        self.log.joined();
        self.joins = None;
        // A silence that is over meant nothing.
        (self.armed, self.peer_gone) = (Some(now), false);
        host.send(&Message::Joined);
        host.flush();
        say_in_step(true, host);
        let took = now.since(std::mem::replace(&mut self.begun, now));
        host.show(MemberEvent::Joined { took });
        (Stage::Following, Turn::Busy)
    }

    /// This member is no backup, and never was.
    fn leave(&mut self, reason: &str, end: End, host: &mut impl FollowHost) -> (Stage, Turn) {
        self.leave_for(Fault::Ended, reason, end, host)
    }

    fn leave_for(
        &mut self,
        fault: Fault,
        reason: &str,
        end: End,
        host: &mut impl FollowHost,
    ) -> (Stage, Turn) {
        part(fault, reason, host);
        host.show(MemberEvent::JoinFailed { reason });
        (Stage::GaveUp { again_at: None }, Turn::End(end))
    }
}
