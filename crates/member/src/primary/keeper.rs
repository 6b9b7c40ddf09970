//! What a server that speaks alone can be rebuilt of on its own host (decision 31): a cold
//! backup beside its primary, in the same daemon, which joins and follows as any other does.
//! What passes between the two is handed over, and no edge hears of it.

use crate::backup::{BackupMachine, FollowHost, Replica, Report};
use crate::host::{ConnState, Fall, Hosted, Member, MemberEvent, MemberHost, Secluded};
use holdfast_cluster::Nanos;
use holdfast_replica::limits::Limits;
use holdfast_wire::hash::HashKey;
use holdfast_wire::log::Header;
use holdfast_wire::message::{ConnKey, Message};
use holdfast_wire::packet::{TcpPacket, TcpSegment};
use std::collections::VecDeque;

/// Its heartbeats say nothing: it lives as long as who would hear them.
const NO_BEATS: Nanos = Nanos::from_ms(3_600_000);
/// Turns in a row in which both say something.
const TALKS_MAX: usize = 8;

/// What a primary needs of its host for it.
pub trait KeeperHost: Hosted + Sized {
    /// Whether a server that speaks alone is to be rebuilt if it falls, and what the group's
    /// hashes are made with; nothing of what was kept before is left.
    ///
    /// # Errors
    /// It is to be, and cannot, in words.
    fn begin_keeping(&mut self) -> Result<Option<(HashKey, Limits)>, String>;
    /// Nothing is kept any more.
    fn stop_keeping(&mut self);
    /// How the server has fallen. `None`: it was asked to end, or did so without a fault.
    fn fall(&mut self) -> Option<Fall>;
    /// Hands on at most so many segments that clients have sent to this host.
    fn drain_own_tap(&mut self, most: usize, each: &mut dyn FnMut(&TcpPacket<'_>));
    /// Whether every segment wakes this member.
    fn watch_own_tap(&mut self, yes: bool);
    /// What the keeper is told; of use to a host that judges what passes.
    fn handed(&mut self, _: &Message<'_>) {}
    /// Called now and then: what may be wrong with what is kept.
    fn look_at_kept(&mut self);
    /// Whether it can still be rebuilt; see [`FollowHost::replica`], and below.
    fn kept(&self) -> Replica;
    fn keep_record(&mut self, header: &Header, payload: &[&[u8]]) -> bool;
    /// See [`FollowHost::acked`]; `None`: [`FollowHost::gone`].
    fn keep_acked(&mut self, accept: u32, bytes: Option<u64>);
    /// Bytes of the log.
    fn log_kept(&self) -> u64;
    fn has_keeping_room(&self) -> bool;
    /// See [`FollowHost::begin_copy`].
    ///
    /// # Errors
    /// When there is no room for it, in words.
    fn begin_kept_image(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String>;
    fn keep_image(&mut self, bytes: &[u8]);
    fn image_written(&self) -> u64;
    fn end_kept_image(&mut self);
    /// All of it is kept, and was not before.
    fn is_image_kept(&mut self) -> bool;
}

/// See the module.
#[derive(Debug)]
pub(super) struct Keeper {
    machine: BackupMachine,
    desk: Desk,
    /// When it wants the next turn.
    due: Nanos,
}

/// Where both meet.
#[derive(Debug)]
struct Desk {
    /// The edge knows of no backup here.
    context: Secluded,
    /// Messages to it, and from it, encoded.
    inbox: VecDeque<Vec<u8>>,
    outbox: Vec<Vec<u8>>,
}

/// SharedHost its primary, whose host it uses.
struct SharedHost<'k, H> {
    host: &'k mut H,
    desk: &'k mut Desk,
}

/// A segment that outlives the tap's buffer.
struct Owned {
    head: TcpPacket<'static>,
    payload: Vec<u8>,
    raw: Vec<u8>,
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

impl Keeper {
    pub(super) fn new((key, limits): (HashKey, Limits), host: &mut impl KeeperHost) -> Self {
        let now = host.now();
        let context = Secluded { now, member: Member::new("", "", "", NO_BEATS, now) };
        let mut desk = Desk { context, inbox: VecDeque::new(), outbox: Vec::new() };
        let machine = {
            let mut beside = SharedHost { host, desk: &mut desk };
            BackupMachine::joining(key, limits, &mut beside)
        };
        Self { machine, desk, due: now }
    }

    /// The primary says something.
    pub(super) fn tell(&mut self, message: &Message<'_>) {
        self.desk.inbox.push_back(encoded(message));
    }

    /// It has been told something, or its time has come.
    pub(super) fn due(&self) -> Nanos {
        if self.desk.inbox.is_empty() { self.due } else { Nanos(0) }
    }

    /// What it says, encoded.
    ///
    /// # Errors
    /// Nothing is kept any more, in words.
    pub(super) fn turn(&mut self, host: &mut impl KeeperHost) -> Result<Vec<Vec<u8>>, String> {
        self.desk.context.now = host.now();
        let kept = self.machine.keep(&mut SharedHost { host, desk: &mut self.desk });
        let said = std::mem::take(&mut self.desk.outbox);
        let why = said.iter().find_map(|bytes| match Message::decode(bytes) {
            Ok(Message::GaveUp { reason, .. }) => Some(reason.to_owned()),
            _ => None,
        });
        self.due = kept.map_err(|unsaid| why.unwrap_or(unsaid))?;
        Ok(said)
    }

    /// Whether it has taken all that it was told of the log.
    pub(super) fn has_all(&self) -> bool {
        self.desk.inbox.is_empty() && self.machine.has_all()
    }

    /// Whose bytes the server was given last.
    pub(super) fn last_input(&self) -> Option<ConnKey> {
        self.machine.last_input()
    }

    /// The server has fallen, and is to be rebuilt: the outage counts from here.
    pub(super) fn note_fall(&mut self, at: Nanos) {
        self.machine.heard_at = at;
    }

    /// What the server is rebuilt of.
    pub(super) fn into_backup(self) -> BackupMachine {
        self.machine
    }

    /// As often as both may speak in one turn.
    pub(super) const fn talks() -> std::ops::Range<usize> {
        0..TALKS_MAX
    }
}

impl Owned {
    fn of(packet: &TcpPacket<'_>) -> Self {
        let (payload, raw) = (packet.payload.to_vec(), packet.raw.to_vec());
        let TcpPacket { source, destination, source_port, destination_port, seq, ack, .. } =
            *packet;
        let TcpPacket { flags, window, options, .. } = *packet;
        let head = TcpPacket {
            source,
            destination,
            source_port,
            destination_port,
            seq,
            ack,
            flags,
            window,
            options,
            payload: &[],
            raw: &[],
        };
        Self { head, payload, raw }
    }

    fn view(&self) -> TcpPacket<'_> {
        TcpPacket { payload: &self.payload, raw: &self.raw, ..self.head }
    }
}

impl<H> Hosted for SharedHost<'_, H> {
    type Context = Secluded;
    fn context(&self) -> &Secluded {
        &self.desk.context
    }
    fn context_mut(&mut self) -> &mut Secluded {
        &mut self.desk.context
    }
}

impl<H: KeeperHost> MemberHost for SharedHost<'_, H> {
    fn has_server_ended(&mut self) -> bool {
        false
    }
    fn kill_server(&mut self) {
        // None runs; its primary ends what is kept.
    }
    fn states(&mut self, _: &[ConnKey]) -> Option<Vec<ConnState>> {
        None
    }
    fn send_segment(&mut self, _: &TcpSegment<'_>) {
        // The server speaks for itself.
    }
    fn stand_by(&mut self) {}
    fn show(&mut self, _: MemberEvent<'_>) {
        // Its primary shows it.
    }
}

impl<H: KeeperHost> FollowHost for SharedHost<'_, H> {
    fn drain_tap(&mut self, most: usize, each: &mut dyn FnMut(&mut Self, &TcpPacket<'_>)) -> bool {
        let mut segments = Vec::new();
        self.host.drain_own_tap(most, &mut |packet| segments.push(Owned::of(packet)));
        segments.iter().for_each(|segment| each(self, &segment.view()));
        !segments.is_empty()
    }
    fn watch_tap(&mut self, yes: bool) {
        self.host.watch_own_tap(yes);
    }
    fn close_tap(&mut self) {
        // It is closed with the rest.
    }
    fn replica(&self) -> Replica {
        self.host.kept()
    }
    fn is_replica_busy(&self) -> bool {
        false
    }
    fn stopped_by_hand(&self) -> Option<u32> {
        None
    }
    fn replay(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        self.host.keep_record(header, payload)
    }
    fn acked(&mut self, accept: u32, bytes: u64) {
        self.host.keep_acked(accept, Some(bytes));
    }
    fn gone(&mut self, accept: u32) {
        self.host.keep_acked(accept, None);
    }
    fn progress(&self) -> (u64, u64) {
        let kept = self.host.log_kept();
        (kept, kept)
    }
    fn has_room(&self) -> bool {
        self.host.has_keeping_room()
    }
    fn wake_replica(&mut self) {
        // None runs.
    }
    fn begin_copy(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String> {
        self.host.begin_kept_image(log_from, image_bytes)
    }
    fn take_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.host.keep_image(bytes);
        Ok(())
    }
    fn image_kept(&self) -> u64 {
        self.host.image_written()
    }
    fn end_image(&mut self) {
        self.host.end_kept_image();
    }
    fn copy_made(&mut self) -> Option<Result<(), String>> {
        self.host.is_image_kept().then_some(Ok(()))
    }
    fn feed_copy(&mut self) -> bool {
        self.host.look_at_kept();
        // Nothing is fed before it is rebuilt.
        true
    }
    fn is_peer_ready(&self) -> bool {
        !self.desk.inbox.is_empty()
    }
    fn recv(&mut self, each: &mut dyn FnMut(&mut Self, &Message<'_>)) -> bool {
        while let Some(bytes) = self.desk.inbox.pop_front() {
            let message = Message::decode(&bytes).expect("it was encoded in this process");
            self.host.handed(&message);
            each(self, &message);
        }
        false
    }
    fn send(&mut self, message: &Message<'_>) {
        self.desk.outbox.push(encoded(message));
    }
    fn flush(&mut self) {}
    fn close_peer(&mut self) {}
    fn report(&mut self, _: &Report<'_>) {
        // Its primary reports.
    }
}
