//! The host of these tests, which writes down what the machine does.

use super::*;
use crate::host::{ConnState, MemberHost};
use holdfast_replica::promotion::{Discarded, ManifestConn, Restore, Why};
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::TcpSegment;

/// Notes what the machine does.
pub(super) struct Book {
    pub(super) bench: Bench,
    pub(super) beats: Option<u64>,
    pub(super) is_lost: bool,
    /// What the primary was told last that has become of this member.
    pub(super) said_state: String,
    pub(super) replica: Replica,
    pub(super) tap: Vec<TcpPacket<'static>>,
    /// What the tap brings once clients' packets reach this host.
    pub(super) tap_later: Vec<TcpPacket<'static>>,
    pub(super) progress: (u64, u64),
    /// What clients have of the replica's output, by the number of their accept.
    pub(super) acked: Vec<(u32, u64)>,
    pub(super) is_replica_busy: bool,
    pub(super) stopped_by_hand: Option<u32>,
    pub(super) nudges: bool,
    /// How often it has looked after clients that make no progress.
    pub(super) looks_at_nudges: u32,
    /// Whether the replica has accepted its first connection.
    pub(super) manifest: bool,
    /// The part of a copy that fails.
    pub(super) bad: &'static str,
    /// Whether the copy has no room yet for what was kept.
    pub(super) keeps: bool,
    /// Whether the image that came is complete; the server built from it takes
    /// its time.
    pub(super) is_whole: bool,
    pub(super) is_slow: bool,
    /// Bytes of the image that came, and how many of them have no room yet.
    pub(super) image: u64,
    pub(super) unwritten: u64,
    pub(super) kept: Option<Kept>,
    /// Whether all that has come of a new image is on the disk.
    pub(super) is_renewed: bool,
    /// Why the backup gave up, or an attempt of it has failed.
    pub(super) reason: String,
    /// Whether it gave up, or began to take over, while it was to build the server first.
    pub(super) builds: bool,
    /// How long the phases of a takeover took.
    pub(super) phases: Phases,
    /// How long it took to join, to build the server or to get a new image.
    pub(super) took: Option<Nanos>,
    /// Whether every copy that the tap takes wakes the member.
    pub(super) is_tap_watched: bool,
    /// Whether anything may have come from the primary.
    pub(super) is_peer_ready: bool,
    /// Whether the replica's log is full, and whether half of it is free.
    pub(super) is_full: bool,
    pub(super) has_room: bool,
    /// Numbers of the records that were replayed, and of the times that the replica was woken.
    pub(super) replayed: u32,
    pub(super) woken: u32,
    /// Connections that the replica was told are over.
    pub(super) gone: Vec<u32>,
    /// Why connections were not carried over.
    pub(super) losses: Vec<Why>,
    /// Time that each step of a takeover takes which goes to the kernel.
    pub(super) step: Nanos,
    /// Whether the process of the server has ended.
    pub(super) ended: bool,
    /// Number of heartbeats to the primary, and how far the last one says that the replica is.
    pub(super) beats_sent: (u32, u64),
    /// How often it has reported, and of the last report why it takes over, whether it builds the
    /// server for that, and how much of the image has come.
    pub(super) reports: u32,
    pub(super) reported: (Option<Cause>, bool, Option<u8>),
    /// Whether it says that it takes over from a primary that was stopped.
    pub(super) stopped: bool,
    /// How often the tap was looked at, the replica's table was read, and kept records were given to
    /// who runs them.
    pub(super) drains: u32,
    pub(super) manifests: u32,
    /// Connections that are taken over and not rebuilt.
    taken: u32,
    pub(super) feeds: u32,
    /// Whether a takeover has begun that is not over.
    pub(super) takes_over: bool,
}

impl Book {
    /// The host of a backup with whose replica and channel all is well.
    pub(super) fn new() -> Self {
        Self {
            bench: Bench::new("b", "a"),
            beats: None,
            is_lost: false,
            said_state: String::new(),
            replica: Replica::Replays,
            tap: Vec::new(),
            tap_later: Vec::new(),
            progress: (0, 0),
            acked: Vec::new(),
            is_replica_busy: false,
            stopped_by_hand: None,
            nudges: false,
            looks_at_nudges: 0,
            manifest: false,
            bad: "",
            keeps: false,
            is_whole: false,
            is_slow: false,
            image: 0,
            unwritten: 0,
            kept: None,
            is_renewed: false,
            reason: String::new(),
            builds: false,
            phases: Phases::default(),
            took: None,
            is_tap_watched: true,
            is_peer_ready: true,
            is_full: false,
            has_room: true,
            replayed: 0,
            woken: 0,
            gone: Vec::new(),
            losses: Vec::new(),
            step: Nanos(0),
            ended: false,
            beats_sent: (0, 0),
            reports: 0,
            reported: (None, false, None),
            stopped: false,
            drains: 0,
            manifests: 0,
            taken: 0,
            feeds: 0,
            takes_over: false,
        }
    }

    fn takes_time(&mut self) {
        self.bench.now = self.bench.now.plus(self.step);
    }

    fn good(&self, what: &str) -> Result<(), String> {
        if what == self.bad { Err(format!("cannot {what}")) } else { Ok(()) }
    }
}

impl MemberHost for Book {
    fn has_server_ended(&mut self) -> bool {
        self.ended
    }
    fn kill_server(&mut self) {
        self.note("kill");
    }
    fn states(&mut self, keys: &[ConnKey]) -> Option<Vec<ConnState>> {
        Some(vec![ConnState::Living; keys.len()])
    }
    fn send_segment(&mut self, segment: &TcpSegment<'_>) {
        self.note(format!("segment {}", segment.ack.0));
    }
    fn stand_by(&mut self) {}
    fn show(&mut self, news: MemberEvent<'_>) {
        let words = match news {
            MemberEvent::GaveUp { fault, builds, .. } => {
                self.builds = builds;
                format!("gave up: {fault:?}")
            }
            MemberEvent::Promotes { cause, .. } => format!("promotes: {cause:?}"),
            MemberEvent::NotRebuilt { input: Some(client), .. } => {
                format!("NotRebuilt, {}", client.client_port)
            }
            ref other => name(other),
        };
        match news {
            MemberEvent::GaveUp { reason, .. }
            | MemberEvent::JoinFailed { reason }
            | MemberEvent::RenewedNot { reason }
            | MemberEvent::NotRebuilt { reason, .. } => self.reason = reason.to_owned(),
            MemberEvent::Promotes { stopped, .. } => self.stopped = stopped,
            MemberEvent::TakesOver { builds, .. } => self.builds = builds,
            MemberEvent::TookOver { phases, .. } => self.phases = *phases,
            MemberEvent::Joined { took }
            | MemberEvent::Built { took }
            | MemberEvent::Renewed { took } => self.took = Some(took),
            _ => {}
        }
        if words != "TakesOver" {
            self.note(words);
        }
    }
}

impl FollowHost for Book {
    fn drain_tap(&mut self, most: usize, each: &mut dyn FnMut(&mut Self, &TcpPacket<'_>)) -> bool {
        self.drains += 1;
        let all: Vec<_> = self.tap.drain(..most.min(self.tap.len())).collect();
        all.iter().for_each(|segment| each(self, segment));
        !all.is_empty()
    }
    fn watch_tap(&mut self, yes: bool) {
        self.is_tap_watched = yes;
    }
    fn close_tap(&mut self) {
        self.note("close tap");
    }
    fn replica(&self) -> Replica {
        self.replica.clone()
    }
    fn stopped_by_hand(&self) -> Option<u32> {
        self.stopped_by_hand
    }
    fn is_replica_busy(&self) -> bool {
        self.is_replica_busy
    }
    fn replay(&mut self, _: &Header, _: &[&[u8]]) -> bool {
        self.replayed += u32::from(!self.is_full);
        !self.is_full
    }
    fn acked(&mut self, accept: u32, bytes: u64) {
        self.acked.push((accept, bytes));
    }
    fn gone(&mut self, accept: u32) {
        self.gone.push(accept);
    }
    fn progress(&self) -> (u64, u64) {
        self.progress
    }
    fn has_room(&self) -> bool {
        self.has_room
    }
    fn wake_replica(&mut self) {
        self.woken += 1;
    }
    fn begin_copy(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String> {
        self.note(format!("copy of {image_bytes} from {log_from}"));
        self.good("begin")
    }
    fn take_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.note(format!("takes {}", bytes.len()));
        self.image += bytes.len() as u64;
        self.good("take")
    }
    fn image_kept(&self) -> u64 {
        self.image - self.unwritten
    }
    fn feed_copy(&mut self) -> bool {
        self.feeds += 1;
        !self.keeps
    }
    fn end_image(&mut self) {
        self.note("whole");
        self.is_whole = true;
    }
    fn copy_made(&mut self) -> Option<Result<(), String>> {
        if !self.is_whole || self.is_slow {
            return None;
        }
        self.note("makes");
        Some(self.good("make"))
    }
    fn is_peer_ready(&self) -> bool {
        self.is_peer_ready
    }
    fn recv(&mut self, each: &mut dyn FnMut(&mut Self, &Message<'_>)) -> bool {
        if let Some(number) = &mut self.beats {
            *number += 1;
            let number = *number;
            each(self, &Message::Beat { number, echo: 0, executed: 0 });
        }
        for message in std::mem::take(&mut self.peer) {
            each(self, &message);
        }
        std::mem::take(&mut self.is_lost)
    }
    fn send(&mut self, message: &Message<'_>) {
        self.is_unsent = true;
        if let Message::GaveUp { state, .. } = message {
            self.said_state = (*state).to_owned();
        }
        if let Message::Beat { executed, .. } = message {
            self.beats_sent = (self.beats_sent.0 + 1, *executed);
        }
        if !matches!(message, Message::Beat { .. } | Message::ConnOk { .. }) {
            self.note(format!("send {}", name(message)));
        }
    }
    fn flush(&mut self) {
        self.is_unsent = false;
    }
    fn close_peer(&mut self) {
        assert!(!self.is_unsent, "what was said last leaves first");
        self.note("close peer");
    }
    fn report(&mut self, report: &Report<'_>) {
        self.reports += 1;
        self.reported = (report.promoting, report.builds, report.joins);
    }
}

impl BackupHost for Book {
    fn begin_renewal(&mut self) -> Result<(), String> {
        self.note("keeps twice");
        self.good("renew")
    }
    fn begin_new_image(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String> {
        self.image = 0;
        self.note(format!("image of {image_bytes} at {log_from}"));
        self.good("begin")
    }
    fn is_renewal_kept(&mut self) -> Result<bool, String> {
        self.good("keep").map(|()| self.is_renewed)
    }
    fn end_renewal(&mut self, replaces: bool) {
        self.note(format!("replaces: {replaces}"));
    }
    fn end_log(&mut self) {
        self.note("end log");
    }
    fn kept(&self) -> Option<Kept> {
        self.kept
    }
    fn begin_takeover(&mut self) {
        self.takes_over = true;
    }
    fn find_interface(&mut self) -> Result<(), String> {
        self.good("interface")
    }
    fn manifest(&mut self, accepts: &[u32]) -> Vec<ManifestConn> {
        self.manifests += 1;
        // The server has accepted one connection, and neither read nor written.
        let conn = ManifestConn {
            accept: 1,
            open: true,
            fd: 7,
            in_bytes: 0,
            out_bytes: 0,
            keep_from: 0,
            shut: 0,
            eof: false,
        };
        if self.manifest && accepts.contains(&conn.accept) { vec![conn] } else { Vec::new() }
    }
    fn restore(&mut self, restore: &Restore<'_>) {
        self.note(format!("restore {}", restore.record.key.client_port));
        self.taken += 1;
        self.takes_time();
    }
    fn rebuild(&mut self) {
        self.taken = 0;
    }
    fn lost(&mut self, lost: &Discarded) {
        self.losses.push(lost.why);
        self.note("lost");
    }
    fn revive_listeners(&mut self) {
        assert_eq!(self.taken, 0, "a listener on their port would forbid them their place");
        self.note("listeners");
    }
    fn take_address(&mut self) -> Result<(), String> {
        self.note("address");
        self.takes_time();
        self.good("address")
    }
    fn show_clocks(&mut self) {
        self.note("clocks");
    }
    fn hear_clients(&mut self) -> Result<(), String> {
        self.note("hear");
        self.tap = std::mem::take(&mut self.tap_later);
        self.good("hear")
    }
    fn send_retained(&mut self) {
        self.note("retained");
    }
    fn set_live(&mut self) {
        self.note("live");
    }
    fn kick(&mut self) {
        self.note("kick");
        self.takes_time();
    }
    fn inject(&mut self, raw: Vec<u8>) {
        self.note(format!("inject {}", String::from_utf8_lossy(&raw)));
    }
    fn end_takeover(&mut self) {
        self.takes_over = false;
    }
    fn has_nudges(&self) -> bool {
        self.nudges
    }
    fn nudge(&mut self, _: &ConnKey, ack: SeqNo) {
        self.note(format!("nudge {}", ack.0));
    }
    fn repeat_syn_ack(&mut self, _: &ConnKey) {
        self.note("SYN-ACK");
    }
    fn nudge_again(&mut self) {
        self.looks_at_nudges += 1;
    }
    fn end_unanswered(&mut self) {
        self.note("end unanswered");
    }
}
