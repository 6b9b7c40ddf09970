//! The host of these tests, which writes down what the machine does.

use super::*;
use crate::backup::Replica;
use holdfast_replica::limits::Limits;
use holdfast_wire::direct::KEY_BYTES;
use holdfast_wire::message::DirectKey;
use holdfast_wire::packet::TcpPacket;
use std::cell::Cell;
use std::time::Duration;

/// A test's host, which notes what the machine does.
pub(super) struct Book {
    pub(super) bench: Bench,
    pub(super) beats: u64,
    /// Number of the last heartbeat that was sent, and of the last one that it confirms.
    pub(super) beat: Option<(u64, u64)>,
    /// Whether the machine has what server and gate say wake it.
    pub(super) watches: bool,
    pub(super) is_silent: bool,
    pub(super) is_lost: bool,
    pub(super) held: Vec<Held>,
    pub(super) slots: BTreeMap<ConnId, SlotView>,
    pub(super) state: ConnState,
    pub(super) attached: bool,
    pub(super) ended: bool,
    pub(super) log: Vec<u8>,
    /// What the server logs, and does, while slots are being read.
    pub(super) late_log: Vec<u8>,
    /// Handshakes that the gate sees while the log is being read.
    pub(super) late_held: Vec<Held>,
    /// Handshakes that the gate sees while the image is looked at.
    pub(super) held_later: Vec<Held>,
    /// See [`Report::at_risk`].
    pub(super) at_risk: usize,
    pub(super) slots_read: Cell<bool>,
    /// Bytes of log that come after the machine has read it.
    pub(super) behind: u64,
    pub(super) backlog: Option<usize>,
    /// Position up to which the log is stable.
    pub(super) stable: u64,
    /// Whether a member comes to join.
    pub(super) knocks: bool,
    /// Time until which a lone server's limit holds.
    pub(super) minded_until: Option<Nanos>,
    /// The server's image as it would be taken.
    pub(super) image: Option<Image>,
    pub(super) books: Vec<join::Book>,
    pub(super) sockets: BTreeSet<u64>,
    pub(super) strangers: usize,
    pub(super) unacked: Unacked,
    /// How often the kernel was asked for that.
    pub(super) questions: u32,
    /// Sockets whose output is to go with the image.
    pub(super) slow: Vec<u64>,
    /// Unacknowledged output of the slow sockets.
    pub(super) earlier: Vec<Earlier>,
    pub(super) handed_over: Vec<(ConnId, u64, Vec<u8>)>,
    /// Bytes that the backup was last told clients have acknowledged, of any connection.
    pub(super) clients_have: Option<u32>,
    pub(super) is_log_full: bool,
    pub(super) cannot_clamp: bool,
    /// Longest piece that the host gives of its image.
    pub(super) piece: usize,
    /// Bytes of the image that the host has given.
    pub(super) sent: usize,
    /// Whether the next piece of the image is not there yet.
    pub(super) is_slow: bool,
    /// Whether the image will never be complete.
    pub(super) is_torn: bool,
    /// What a joiner was told of connections.
    pub(super) adopted: Vec<Adopted>,
    /// Whether a server that falls is to be rebuilt.
    pub(super) rebuilds: bool,
    /// Whether the server, once it has ended, has fallen.
    pub(super) falls: bool,
    pub(super) fall: Fall,
    /// Bytes of the image that the keeper has newly written.
    pub(super) written: u64,
    /// Whether the keeper has newly written the whole image.
    pub(super) is_whole: bool,
    /// Why nothing can be kept any more.
    pub(super) unkept: Option<String>,
    /// What the host cannot do.
    pub(super) bad: &'static str,
    /// Why something was asked of the edge, has failed, or is not rebuilt.
    pub(super) reason: String,
    /// Why members are turned away that come now, and why the last one was refused.
    pub(super) turns_away: String,
    pub(super) refused: String,
    /// Whether that one may come again.
    pub(super) may_come_again: Option<bool>,
    /// Whether more of the log could come unannounced.
    pub(super) stays_awake: bool,
    /// Whether the server could send its log itself, and what of it was announced.
    pub(super) offers: bool,
    pub(super) announced: u64,
    /// Whether the log has ended because the server ends.
    pub(super) is_log_over: bool,
    /// What a connection's socket holds unread.
    pub(super) unread: Option<&'static [u8]>,
    /// What clients send to a server that can be rebuilt, and whether it wakes the member.
    pub(super) own_tap: Vec<TcpPacket<'static>>,
    pub(super) is_own_tap_watched: bool,
    /// How often it was looked for what may be wrong with what is kept.
    pub(super) looks_at_kept: u32,
    /// Number of the records that were kept, and whether there is room for more.
    pub(super) kept_records: u32,
    pub(super) keeping_room: bool,
    /// What clients of a server that can be rebuilt have, by the number of their accept.
    pub(super) kept_acked: Vec<(u32, u64)>,
    /// How often it was looked after what goes on beside a lone server, after who comes to a host
    /// that serves nobody, and whether the server lives; how often a member was let in.
    pub(super) stood_beside: u32,
    pub(super) stood_by: u32,
    pub(super) server_looks: u32,
    pub(super) admitted: u32,
    /// How often the gate was told that slots are freed, the kernel was asked for the states of
    /// connections, and everything was taken from what wakes the machine.
    pub(super) minded: u32,
    pub(super) states_asked: u32,
    pub(super) unwatched: u32,
    /// Messages that were handed to who keeps what the server can be rebuilt from.
    pub(super) handed: u32,
    /// How often things were shown, and what was shown last.
    pub(super) reports: u32,
    pub(super) shown: Shown,
}

/// The parts of a [`Report`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) is_attached: bool,
    pub(super) is_in_doubt: bool,
    pub(super) connections: usize,
    pub(super) unexecuted: u64,
    pub(super) joins: Option<u8>,
    pub(super) keeps: bool,
    pub(super) handshakes_ended: u64,
}

/// Length of the pieces in which the host gives its image, in bytes.
pub(super) const IMAGE_BYTES: usize = 10;

impl Book {
    /// The host of a primary whose server runs with the shim in it.
    pub(super) fn new() -> Self {
        Self {
            bench: Bench::new("a", "b"),
            beats: 0,
            beat: None,
            watches: true,
            is_silent: false,
            is_lost: false,
            held: Vec::new(),
            slots: BTreeMap::new(),
            state: ConnState::Living,
            attached: true,
            ended: false,
            log: Vec::new(),
            late_log: Vec::new(),
            late_held: Vec::new(),
            held_later: Vec::new(),
            at_risk: 0,
            slots_read: Default::default(),
            behind: 0,
            backlog: None,
            stable: 0,
            knocks: false,
            image: None,
            books: Vec::new(),
            sockets: BTreeSet::new(),
            minded_until: None,
            strangers: 0,
            unacked: Unacked::default(),
            questions: 0,
            slow: Vec::new(),
            earlier: Vec::new(),
            handed_over: Vec::new(),
            clients_have: None,
            is_log_full: false,
            cannot_clamp: false,
            piece: IMAGE_BYTES,
            sent: 0,
            is_slow: false,
            is_torn: false,
            adopted: Vec::new(),
            rebuilds: false,
            falls: false,
            fall: Fall::Crashed,
            written: 0,
            is_whole: false,
            unkept: None,
            bad: "",
            reason: String::new(),
            turns_away: String::new(),
            refused: String::new(),
            may_come_again: None,
            stays_awake: false,
            offers: false,
            announced: u64::MAX,
            is_log_over: false,
            unread: None,
            own_tap: Vec::new(),
            is_own_tap_watched: true,
            looks_at_kept: 0,
            kept_records: 0,
            keeping_room: true,
            kept_acked: Vec::new(),
            stood_beside: 0,
            stood_by: 0,
            server_looks: 0,
            admitted: 0,
            minded: 0,
            states_asked: 0,
            unwatched: 0,
            handed: 0,
            reports: 0,
            shown: Shown::default(),
        }
    }

    fn good(&self, what: &str) -> Result<(), String> {
        if what == self.bad { Err(format!("cannot {what}")) } else { Ok(()) }
    }
}

impl MemberHost for Book {
    fn has_server_ended(&mut self) -> bool {
        self.server_looks += 1;
        self.ended
    }
    fn kill_server(&mut self) {
        self.note("kill");
    }
    fn states(&mut self, keys: &[ConnKey]) -> Option<Vec<ConnState>> {
        self.states_asked += 1;
        Some(vec![self.state; keys.len()])
    }
    fn send_segment(&mut self, segment: &TcpSegment<'_>) {
        self.note(format!("ack {}", segment.ack.0));
    }
    fn stand_by(&mut self) {
        self.stood_by += 1;
    }
    fn show(&mut self, event: MemberEvent<'_>) {
        let news = match &event {
            MemberEvent::ServerEnded(next) => format!("ServerEnded, {next:?}"),
            MemberEvent::NotRebuilt { input: Some(client), .. } => {
                format!("NotRebuilt, {}", client.client_port)
            }
            _ => name(&event),
        };
        match event {
            MemberEvent::Asks { reason }
            | MemberEvent::Alone { reason }
            | MemberEvent::JoinFailed { reason }
            | MemberEvent::KeepsNot { reason }
            | MemberEvent::NotRebuilt { reason, .. } => self.reason = reason.to_owned(),
            _ => {}
        }
        self.note(format!("shows {news}"));
    }
}

impl PairingHost for Book {
    fn turn_peer(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        let knocks = std::mem::take(&mut self.knocks);
        if knocks {
            each(&crate::standing::hello("demo", "b", (EPOCH, false), Vec::new()));
        }
        knocks
    }
    fn is_ready_to_greet(&mut self) -> bool {
        true
    }
    fn say_hello(&mut self, runs: bool) -> Result<bool, String> {
        self.good("hello")?;
        self.note(format!("hello, runs: {runs}"));
        Ok(true)
    }
    fn is_own_fingerprint(&self, _: &[holdfast_wire::message::FingerprintPart<'_>]) -> bool {
        true
    }
    fn learn_key(&mut self, _: Option<holdfast_wire::message::LogKey>) {}
    fn keep(&mut self, _: Vec<Vec<u8>>) {}
    fn hang_up(&mut self) {}
    fn show_apart(&mut self, _: &crate::pairing::Apart<'_>) {}
}

impl KeeperHost for Book {
    fn begin_keeping(&mut self) -> Result<Option<(HashKey, Limits)>, String> {
        self.good("keep")?;
        Ok(self.rebuilds.then_some((HASH_KEY, Limits::DEFAULT)))
    }
    fn stop_keeping(&mut self) {
        self.note("keeps nothing");
    }
    fn fall(&mut self) -> Option<Fall> {
        self.falls.then_some(self.fall)
    }
    fn drain_own_tap(&mut self, _: usize, each: &mut dyn FnMut(&TcpPacket<'_>)) {
        std::mem::take(&mut self.own_tap).iter().for_each(each);
    }
    fn watch_own_tap(&mut self, yes: bool) {
        self.is_own_tap_watched = yes;
    }
    fn handed(&mut self, _: &Message<'_>) {
        self.handed += 1;
    }
    fn look_at_kept(&mut self) {
        self.looks_at_kept += 1;
    }
    fn kept(&self) -> Replica {
        self.unkept.clone().map_or(Replica::Replays, Replica::Unkept)
    }
    fn keep_record(&mut self, _: &Header, _: &[&[u8]]) -> bool {
        self.kept_records += u32::from(self.keeping_room);
        self.keeping_room
    }
    fn keep_acked(&mut self, accept: u32, bytes: Option<u64>) {
        match bytes {
            Some(bytes) => self.kept_acked.push((accept, bytes)),
            None => self.note(format!("kept one {accept} is over")),
        }
    }
    fn log_kept(&self) -> u64 {
        self.log.len() as u64
    }
    fn has_keeping_room(&self) -> bool {
        self.keeping_room
    }
    fn begin_kept_image(&mut self, _: u64, _: u64) -> Result<(), String> {
        self.good("spool")
    }
    fn keep_image(&mut self, bytes: &[u8]) {
        self.written += bytes.len() as u64;
    }
    fn image_written(&self) -> u64 {
        self.written
    }
    fn end_kept_image(&mut self) {
        self.is_whole = true;
    }
    fn is_image_kept(&mut self) -> bool {
        std::mem::take(&mut self.is_whole)
    }
}

impl PrimaryHost for Book {
    type Bytes = Vec<u8>;
    fn held(&mut self) -> Vec<Held> {
        std::mem::take(&mut self.held)
    }
    fn conn_of(&self, key: &ConnKey) -> Option<ConnId> {
        self.slots.iter().rfind(|(_, slot)| slot.key == *key).map(|(id, _)| *id)
    }
    fn slot(&self, conn: ConnId) -> Option<SlotView> {
        self.slots_read.set(true);
        self.slots.get(&conn).copied()
    }
    fn open(&mut self, conn: ConnId) {
        self.note(format!("open {}", conn.0));
    }
    fn free(&mut self, conn: ConnId) {
        self.note(format!("free {}", conn.0));
    }
    fn set_stable(&mut self, conn: ConnId, stable: SeqNo) {
        self.note(format!("stable {} {}", conn.0, stable.0));
        if let Some(slot) = self.slots.get_mut(&conn) {
            slot.stable = stable;
        }
    }
    fn allow_fin(&mut self, conn: ConnId) {
        self.note(format!("fin {}", conn.0));
    }
    fn mind_slots(&mut self, lasts: Duration) {
        self.minded += 1;
        self.minded_until = Some(self.bench.now.plus(nanos(lasts)));
    }
    fn set_server_dead(&mut self) {
        self.note("dead");
    }
    fn is_attached(&self) -> bool {
        self.attached
    }
    fn tail(&self) -> u64 {
        self.log.len() as u64 + self.behind
    }
    fn take_tail(&mut self, _: u64) -> Option<u64> {
        self.good("tail").ok()?;
        if self.slots_read.get() {
            self.log.append(&mut self.late_log);
        }
        self.held.append(&mut self.late_held);
        Some(self.log.len() as u64)
    }
    fn bytes(&self, pos: u64, len: usize) -> Vec<u8> {
        self.log[pos as usize..pos as usize + len].to_vec()
    }
    fn is_log_over(&self) -> bool {
        self.is_log_over
    }
    fn may_sleep(&mut self, _: u64) -> bool {
        !self.stays_awake
    }
    fn announced(&self) -> u64 {
        self.announced
    }
    fn offer_direct(&mut self) -> Option<(u64, DirectKey, u16)> {
        self.offers.then_some((7, DirectKey([0; KEY_BYTES]), 40))
    }
    fn begin_direct(&mut self, port: u16) {
        self.note(format!("direct to {port}"));
    }
    fn end_direct(&mut self) {
        if self.offers {
            self.note("direct ends");
        }
    }
    fn set_log_stable(&mut self, pos: u64) {
        self.stable = pos;
    }
    fn log_fault(&self) -> Option<String> {
        self.good("record").err()
    }
    fn peek(&mut self, _: &Wanted, into: &mut Vec<u8>) -> Peeked {
        let Some(bytes) = self.unread else { return Peeked::Nothing };
        into.extend_from_slice(bytes);
        Peeked::Last
    }
    fn pause_server(&mut self) {
        self.note("pause");
    }
    fn resume_server(&mut self) {
        self.note("resume");
    }
    fn strike_server(&mut self) {
        self.note("strike");
    }
    fn go_alone(&mut self) -> Result<(), String> {
        self.note("alone");
        self.good("open")
    }
    fn backlog(&mut self) -> Option<usize> {
        self.backlog
    }
    fn destroy(&mut self, keys: &[ConnKey]) -> bool {
        let ports: Vec<u16> = keys.iter().map(|key| key.client_port).collect();
        if !ports.is_empty() {
            self.note(format!("destroy {ports:?}"));
        }
        self.good("destroy").is_ok()
    }
    fn stop_watching(&mut self) {
        self.watches = false;
        self.unwatched += 1;
    }
    fn recv(&mut self, each: &mut dyn FnMut(&mut Self, &Message<'_>)) -> bool {
        if !self.is_silent {
            self.beats += 1;
            each(self, &Message::Beat { number: self.beats, echo: 0, executed: 0 });
        }
        for message in std::mem::take(&mut self.peer) {
            each(self, &message);
        }
        self.is_lost
    }
    fn send(&mut self, message: &Message<'_>) {
        self.is_unsent = true;
        if let Message::Adopt { conns } = message {
            self.adopted.clone_from(conns);
        }
        if let Message::Earlier { conn, offset, bytes } = message {
            self.handed_over.push((*conn, *offset, bytes.to_vec()));
        }
        if let Message::Refused { reason, .. } | Message::ImageOff { reason } = message {
            self.refused = (*reason).to_owned();
        }
        if let Message::Refused { again, .. } = message {
            self.may_come_again = Some(*again);
        }
        match message {
            Message::Unread { bytes, last, .. } => {
                self.note(format!("unread {} {last}", String::from_utf8_lossy(bytes)));
            }
            Message::Beat { number, echo, .. } => self.beat = Some((*number, *echo)),
            Message::Progress { conns } => {
                for it in conns {
                    let ConnProgress { conn, snd_una, right_edge, .. } = it;
                    self.note(format!("progress {} edge {}", conn.0, right_edge.0));
                    self.clients_have = Some(snd_una.0);
                }
            }
            other => self.note(format!("send {}", name(other))),
        }
    }
    fn flush(&mut self) -> bool {
        self.is_unsent = false;
        self.good("flush").is_ok()
    }
    fn drop_peer(&mut self) {
        self.note("drop peer");
    }
    fn turn_away(&mut self, reason: &str) {
        self.turns_away = reason.to_owned();
        if std::mem::take(&mut self.knocks) {
            self.note("turn away");
        }
    }
    fn stand_beside(&mut self) {
        self.stood_beside += 1;
    }
    fn admit(&mut self) {
        self.admitted += 1;
    }
    fn strangers(&mut self) -> usize {
        self.strangers
    }
    fn take_image(&mut self, slow: &[u64], has_differed: bool) -> Result<(), String> {
        self.slow = slow.to_vec();
        self.note(if has_differed { "take image after a difference" } else { "take image" });
        self.sent = 0;
        self.good("take")
    }
    fn image_taken(&mut self) -> Option<Result<Image, String>> {
        if self.is_slow {
            return None;
        }
        self.held.append(&mut self.held_later);
        let image = self.image.ok_or_else(|| "it does not stand still".to_owned());
        self.note(format!("image {}", image.is_ok()));
        Some(image)
    }
    fn books(&mut self) -> Vec<join::Book> {
        std::mem::take(&mut self.books)
    }
    fn sockets(&mut self) -> BTreeSet<u64> {
        self.sockets.clone()
    }
    fn image(&mut self, most: usize) -> Result<Option<Vec<u8>>, String> {
        if self.is_torn {
            return Err("the image cannot be written".to_owned());
        }
        let all = self.image.map_or(0, |image| image.bytes as usize);
        let len = most.min(self.piece).min(all - self.sent);
        self.sent += len;
        Ok((!self.is_slow).then(|| vec![7; len]))
    }
    fn drop_image(&mut self) {
        self.note("drop image");
    }
    fn free_log(&mut self, pos: u64) {
        self.note(format!("free log {pos}"));
    }
    fn has_log_room(&self) -> bool {
        !self.is_log_full
    }
    fn end_log(&mut self) {
        self.note("end log");
    }
    fn commit(&mut self, pos: u64) {
        self.note(format!("commit {pos}"));
    }
    fn clamp(&mut self) -> Result<(), String> {
        self.note("clamp");
        if self.cannot_clamp { Err("the gate stays open".to_owned()) } else { Ok(()) }
    }
    fn earlier(&mut self) -> Vec<Earlier> {
        std::mem::take(&mut self.earlier)
    }

    fn unacked(&mut self, keys: &[ConnKey]) -> Option<Vec<Unacked>> {
        self.questions += 1;
        Some(vec![self.unacked; keys.len()])
    }
    fn report(&mut self, report: &Report<'_>) {
        self.at_risk = report.at_risk;
        self.reports += 1;
        self.shown = Shown {
            is_attached: report.is_attached,
            is_in_doubt: report.is_in_doubt,
            connections: report.connections,
            unexecuted: report.unexecuted,
            joins: report.joins,
            keeps: report.keeps,
            handshakes_ended: report.handshakes_ended,
        };
    }
}
