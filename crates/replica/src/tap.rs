//! What the tap may accept of one connection: only what the primary's kernel
//! would (decision 2).
//!
//! The checks follow RFC 9293 §3.10.7.4 and Linux; where the backup knows less
//! than the primary's kernel they are lenient, because the hash of every read
//! finds wrongly accepted bytes, and a refused segment costs a round trip.

mod raws;

use crate::Nanos;
use crate::limits::Limits;
use crate::stream::{Inserted, Stream};
use holdfast_wire::message::{Adopted, ConnProgress, ConnRecord};
use holdfast_wire::packet::TcpPacket;
use holdfast_wire::seq::SeqNo;
use raws::Raws;

/// Farthest that an ACK may lie from what the server is known to have sent, in
/// bytes.
pub const ACK_SLACK_BYTES: u32 = 64 << 20;
/// Idle time after which a timestamp says nothing about age (RFC 7323 §5.5).
const PAWS_IDLE: Nanos = Nanos::from_ms(24 * 24 * 3600 * 1000);
/// `wscale` of a record without window scaling.
const NO_SCALING: u8 = 255;
/// Largest shift (RFC 7323 §2.3).
const WSCALE_MAX: u8 = 14;

/// The outcome of a tapped segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The held part of the stream is longer (bytes or FIN).
    Grown,
    /// The segment is kept beyond a hole.
    Kept,
    /// Acceptable, but nothing new.
    Nothing,
    /// Wholly before what is held: a repetition, whose ACK may be old too.
    Old,
    /// Refused at a memory limit.
    Full,
    /// The client reset the connection.
    Reset,
    /// An RST or SYN that the primary answers with a challenge ACK (RFC 5961).
    Challenge,
    /// Outside the window, too old, or with an impossible or missing ACK.
    Window,
    Paws,
    AckRange,
}

impl Verdict {
    /// Whether the primary's kernel would look at the segment's ACK and window.
    pub(crate) fn is_acceptable(self) -> bool {
        matches!(self, Self::Grown | Self::Kept | Self::Nothing | Self::Full)
    }
}

/// Where a segment's bytes may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Anywhere in the window.
    Anywhere,
    /// Not beyond a hole: all connections together have too many bytes there.
    InOrder,
}

/// The receiving half of one connection, as far as the tap shows it.
#[derive(Clone, Debug)]
pub(crate) struct Tap {
    /// Sequence number of stream offset 0, both directions.
    pub(crate) rcv_origin: SeqNo,
    pub(crate) snd_origin: SeqNo,
    pub(crate) stream: Stream,
    /// End of the bytes, or FIN, that the tap or the primary brought: nothing
    /// beyond is held (law L1).
    brought: u64,
    fin: Option<u64>,
    /// Whether the client reset the connection, by its own word.
    pub(crate) reset: bool,
    /// Whether the primary's kernel handed out other bytes than the tap had held.
    /// An honest client never says two things about one byte, so the kernel may
    /// as well have left one out: where the rest of the stream lies is not
    /// certain.
    contradicted: bool,
    /// How much the primary's kernel reported to have, its FIN counted.
    rcv_nxt: u64,
    right_edge: u64,
    window_max: u64,
    snd_shift: u8,
    timestamps: bool,
    ts_recent: Option<(u32, Nanos)>,
    /// When the client was last heard.
    heard_at: Option<Nanos>,
    /// Bytes that the server is known to have handed to its kernel.
    snd_nxt: u64,
    /// Highest acceptable ACK of the client, as an offset of the server's stream.
    pub(crate) acked: u64,
    pub(crate) peer_window: u32,
    raws: Raws,
    limits: Limits,
}

fn shift(wscale: u8) -> u8 {
    if wscale == NO_SCALING { 0 } else { wscale.min(WSCALE_MAX) }
}

impl Tap {
    pub(crate) fn new(record: &ConnRecord, limits: Limits) -> Self {
        let window_max = 65535 << shift(record.rcv_wscale);
        Self {
            rcv_origin: record.irs.plus(1),
            snd_origin: record.iss.plus(1),
            stream: Stream::new(limits),
            brought: 0,
            fin: None,
            reset: false,
            contradicted: false,
            rcv_nxt: 0,
            right_edge: u64::from(record.window),
            window_max,
            snd_shift: shift(record.snd_wscale),
            timestamps: record.tsval.is_some(),
            ts_recent: None,
            heard_at: None,
            snd_nxt: 0,
            acked: 0,
            // A SYN's window is not scaled; the client may always take this much.
            peer_window: u32::from(record.peer_mss.max(536)),
            raws: Raws::default(),
            limits,
        }
    }

    /// For a connection that is older than its tap.
    pub(crate) fn adopt(record: &ConnRecord, adopted: &Adopted, limits: Limits) -> Self {
        let Adopted { in_bytes, out_bytes, acked_bytes, eof, .. } = *adopted;
        Self {
            stream: Stream::from(in_bytes, limits),
            brought: in_bytes + u64::from(eof),
            fin: eof.then_some(in_bytes),
            rcv_nxt: in_bytes + u64::from(eof),
            right_edge: in_bytes.max(u64::from(record.window)),
            snd_nxt: out_bytes,
            acked: acked_bytes,
            ..Self::new(record, limits)
        }
    }

    /// Takes the client's SYN, if its copy was seen: the first timestamp, and
    /// the options that the record may lack.
    pub(crate) fn note_syn(&mut self, now: Nanos, syn: &TcpPacket<'_>, record: &mut ConnRecord) {
        if self.ts_recent.is_none() {
            self.ts_recent = syn.tsval().map(|tsval| (tsval, now));
        }
        if record.peer_mss == 0 {
            record.peer_mss = syn.options.mss.unwrap_or(0);
        }
        // A server only scales if the client offered to (RFC 7323 §2.2).
        if record.rcv_wscale != NO_SCALING && record.snd_wscale == NO_SCALING {
            record.snd_wscale = syn.options.wscale.unwrap_or(NO_SCALING);
            self.snd_shift = shift(record.snd_wscale);
        }
        self.peer_window = self.peer_window.max(u32::from(syn.window));
    }

    /// Takes the primary's kernel's state; `snd_una` is an offset.
    pub(crate) fn note_progress(&mut self, progress: &ConnProgress, snd_una: u64) {
        let edge = progress.right_edge.offset_near(self.rcv_origin, self.stream.end());
        self.right_edge = self.right_edge.max(edge);
        let has = progress.rcv_nxt.offset_near(self.rcv_origin, self.stream.end());
        self.rcv_nxt = self.rcv_nxt.max(has);
        let sent = progress.snd_nxt.offset_near(self.snd_origin, self.snd_nxt);
        self.snd_nxt = self.snd_nxt.max(sent).max(snd_una);
        self.acked = self.acked.max(snd_una);
    }

    /// The server's kernel took this many bytes in all.
    pub(crate) fn note_written(&mut self, total: u64) {
        self.snd_nxt = self.snd_nxt.max(total);
    }

    /// Whether the client's FIN is held, and every byte before it.
    pub(crate) fn fin_held(&self) -> bool {
        self.fin == Some(self.stream.end())
    }

    /// The sequence number up to which the client's stream, FIN included, is held.
    pub(crate) fn held(&self) -> SeqNo {
        self.rcv_origin.plus(self.held_offset())
    }

    pub(crate) fn held_offset(&self) -> u64 {
        let held = self.stream.end() + u64::from(self.fin_held());
        assert!(held <= self.brought, "L1: more is held than came");
        held
    }

    /// Whether the primary's kernel has more than is held here.
    pub(crate) fn is_behind(&self) -> bool {
        self.rcv_nxt > self.held_offset()
    }

    /// Stream offset up to which the primary's kernel has the stream, by its
    /// last report.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.rcv_nxt
    }

    /// Whether the stream is held up to `until`.
    pub(crate) fn holds(&self, until: u64) -> bool {
        self.held_offset() >= until
    }

    /// The first hole `[from, until)` before the end of what was tapped, or of
    /// what the primary's kernel has; a FIN counts as one byte.
    pub(crate) fn missing(&self) -> Option<(u64, u64)> {
        let end = self.fin.map_or(0, |fin| fin + 1).max(self.rcv_nxt);
        let until = self.stream.next_piece().unwrap_or(end);
        (until > self.held_offset()).then(|| (self.stream.end(), until))
    }

    /// Whether the client's stream goes on, the server has `read` all of it, nothing of it is known
    /// to be under way, and the client takes output.
    pub(crate) fn is_at_rest(&self, read: u64) -> bool {
        let has_read_all = self.stream.end() == read && self.missing().is_none();
        has_read_all && self.fin.is_none() && !self.reset && self.peer_window > 0
    }

    /// Whether nothing was heard of the client for so long.
    pub(crate) fn is_silent(&self, now: Nanos, span: Nanos) -> bool {
        self.heard_at.is_some_and(|at| now.since(at) >= span)
    }

    /// Takes `bytes` that the primary's kernel holds at `from`, followed by the
    /// client's FIN if they are the `last` ones. True if more is held now.
    pub(crate) fn note_unread(&mut self, from: u64, bytes: &[u8], last: bool) -> bool {
        let held = self.held_offset();
        let base = self.stream.base();
        let edge = self.right_edge.max(self.stream.end() + self.window_max).max(self.rcv_nxt);
        let until = from.saturating_add(bytes.len() as u64);
        let cut = until.min(edge).min(base + self.limits.stream_bytes_max as u64);
        if from > self.stream.end() || cut < base.max(from) || (bytes.is_empty() && !last) {
            return false;
        }
        // Bytes that the server has read since are consumed here.
        let start = from.max(base);
        self.overwrite(start, &bytes[(start - from) as usize..(cut - from) as usize]);
        if last && cut == until {
            self.fin = Some(until);
            self.brought = self.brought.max(until + 1);
        }
        self.prune();
        self.held_offset() > held
    }

    /// Takes bytes that the primary's kernel had at `from`, whatever the tap
    /// said.
    pub(crate) fn overwrite(&mut self, from: u64, bytes: &[u8]) {
        let until = from + bytes.len() as u64;
        self.contradicted |= !self.stream.overwrite(from, bytes);
        self.brought = self.brought.max(until);
        self.note_read(until);
    }

    /// Whether the primary contradicted the tap.
    pub(crate) fn is_contradicted(&self) -> bool {
        self.contradicted
    }

    /// Notes that the server read up to `offset`: no FIN can lie before it.
    fn note_read(&mut self, offset: u64) {
        if self.fin.is_some_and(|fin| fin < offset) {
            self.fin = None;
        }
        self.prune();
    }

    /// Largest right edge the primary advertised, as far as it is known.
    pub(crate) fn right_edge(&self) -> u64 {
        self.right_edge
    }

    /// The client's last timestamp, while it says anything about age.
    pub(crate) fn client_tsval(&self, now: Nanos) -> Option<u32> {
        let (recent, at) = self.ts_recent.filter(|_| self.timestamps)?;
        (now.since(at) < PAWS_IDLE).then_some(recent)
    }

    pub(crate) fn accept(&mut self, now: Nanos, segment: &TcpPacket<'_>) -> Verdict {
        self.accept_in(now, segment, Room::Anywhere)
    }

    pub(crate) fn accept_in(&mut self, now: Nanos, segment: &TcpPacket<'_>, room: Room) -> Verdict {
        self.heard_at = Some(now);
        let held = self.held_offset();
        // 64-bit positions; a segment may start before the stream does.
        let start = held as i64 + i64::from(segment.seq.since(self.rcv_origin.plus(held)));
        if segment.is_rst() {
            return self.accept_rst(start == held as i64);
        }
        if segment.is_syn() {
            return Verdict::Challenge;
        }
        if self.is_too_old(now, segment) {
            return Verdict::Paws;
        }
        let end = start + segment.payload.len() as i64 + i64::from(segment.is_fin());
        let edge = self.right_edge.max(self.stream.end() + self.window_max);
        // The lower bound is what the primary's kernel may still lack; a client
        // repeats older bytes, and they change nothing.
        if start > edge as i64 {
            return Verdict::Window;
        }
        if !segment.is_ack()
            || segment.ack.since(self.snd_origin.plus(self.snd_nxt)).unsigned_abs()
                > ACK_SLACK_BYTES
        {
            return Verdict::AckRange;
        }
        if end < held as i64 {
            return Verdict::Old;
        }
        self.note_header(now, segment, start, held);
        if room == Room::InOrder && start > self.stream.end() as i64 {
            return Verdict::Full;
        }
        self.accept_payload(segment, start)
    }

    /// RFC 5961 §3.2: only the exact next sequence number resets. Other RSTs
    /// are not remembered: the stream may reach their number later.
    fn accept_rst(&mut self, exact: bool) -> Verdict {
        self.reset |= exact;
        if exact { Verdict::Reset } else { Verdict::Challenge }
    }

    fn is_too_old(&self, now: Nanos, segment: &TcpPacket<'_>) -> bool {
        let (Some(recent), Some(tsval)) = (self.client_tsval(now), segment.tsval()) else {
            return false;
        };
        // One tick of tolerance, as Linux has it (TCP_PAWS_WINDOW).
        recent.wrapping_sub(tsval) as i32 > 1
    }

    /// Notes a timestamp of the client's that the primary's kernel has taken.
    pub(crate) fn note_clock(&mut self, tsval: u32, now: Nanos) {
        if self.ts_recent.is_none_or(|(recent, _)| tsval.wrapping_sub(recent) as i32 >= 0) {
            self.ts_recent = Some((tsval, now));
        }
    }

    fn note_header(&mut self, now: Nanos, segment: &TcpPacket<'_>, start: i64, held: u64) {
        if let Some(tsval) = segment.tsval().filter(|_| start <= held as i64) {
            self.note_clock(tsval, now);
        }
        let ack = segment.ack.offset_near(self.snd_origin, self.acked);
        if ack >= self.acked {
            self.acked = ack;
            self.peer_window = u32::from(segment.window) << self.snd_shift;
        }
    }

    fn accept_payload(&mut self, segment: &TcpPacket<'_>, start: i64) -> Verdict {
        let held = self.held_offset();
        let fin_at = start + segment.payload.len() as i64;
        let end = fin_at + i64::from(segment.is_fin());
        self.brought = self.brought.max(end.max(0) as u64);
        let ends = segment.is_fin() && self.fin.is_none() && fin_at >= self.stream.end() as i64;
        if ends {
            self.fin = Some(fin_at as u64);
        }
        let before_stream = usize::try_from(-start).unwrap_or(0).min(segment.payload.len());
        let start = start.max(0) as u64;
        let mut payload = &segment.payload[before_stream..];
        if let Some(fin) = self.fin {
            payload = &payload[..payload.len().min(fin.saturating_sub(start) as usize)];
        }
        let inserted =
            if payload.is_empty() { Inserted::Old } else { self.stream.insert(start, payload) };
        // A repeat brings nothing new, and is not kept again.
        if end > self.held_offset() as i64 && (ends || inserted == Inserted::Beyond) {
            self.raws.keep(start, end as u64, segment.raw, self.limits.raws_bytes_max);
        }
        if self.held_offset() > held {
            self.prune();
            return Verdict::Grown;
        }
        match inserted {
            Inserted::Beyond => Verdict::Kept,
            Inserted::Full => Verdict::Full,
            Inserted::Old | Inserted::Grown => Verdict::Nothing,
        }
    }

    /// Drops packets that the held part covers.
    fn prune(&mut self) {
        let held = self.held_offset();
        self.raws.prune(held);
    }

    /// Packets beyond a hole, in the order of the stream.
    pub(crate) fn raws(&self) -> impl Iterator<Item = &[u8]> {
        self.raws.packets()
    }

    /// Bytes in memory.
    pub(crate) fn usage(&self) -> Usage {
        let aside = self.stream.beyond_bytes() + self.raws.bytes();
        Usage { held: self.stream.held_bytes(), aside }
    }

    /// Most bytes that keeping `segment` beyond a hole would add.
    pub(crate) fn aside_cost(segment: &TcpPacket<'_>) -> usize {
        segment.payload.len() + Raws::cost(segment.raw)
    }
}

/// Bytes of one connection in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes of its stream.
    pub(crate) held: usize,
    /// Bytes beyond a hole, raw packets included.
    pub(crate) aside: usize,
}

#[cfg(test)]
mod tests;
