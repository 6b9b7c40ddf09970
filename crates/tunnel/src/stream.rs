//! Reliable byte streams, for TCP connections that end at both ends of the tunnel.
//!
//! Streams have no retransmission of their own: their bytes ride in symbols, whose repair is the
//! lane's business and which are never given up. A piece comes back here only when its symbol does
//! not fit into the path's datagrams any more; then it is cut anew.
//!
//! A number is even where the stream was opened and odd at the peer, so that the two ends need not
//! agree on who is who.

use crate::item::Item;
use crate::outbound::{Piece, PieceKind};
use crate::wire::varint_len;
use crate::{Class, Limits, StreamError, StreamEvent, StreamId};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Bytes that may be sent before the peer has said how many it takes.
const CREDIT_INITIAL: u64 = 256 << 10;
/// Bytes of a piece below which it is not worth beginning a new one in a symbol's rest.
const PIECE_BYTES_MIN: usize = 16;
/// Bytes by which what may be sent has to grow before the peer is told.
const CREDIT_STEP: u64 = CREDIT_INITIAL / 2;
/// A receiver that holds so many times its credit was sent the same bytes over and over.
const HELD_PER_CREDIT: usize = 2;
/// What a held piece costs beside its bytes: pieces of one byte must not cost more than they count.
const HELD_AROUND: usize = 64;

#[derive(Clone, Debug)]
struct Stream {
    class: Class,
    sending: Sending,
    receiving: Receiving,
}

#[derive(Clone, Debug)]
struct Sending {
    /// Bytes from `base` on.
    buffer: VecDeque<u8>,
    /// All bytes before it arrived.
    base: u64,
    /// The first byte that was never sent.
    next: u64,
    /// Sent, and to be cut anew: offsets and ends.
    again: VecDeque<(u64, u64)>,
    /// Ranges beyond `base` that arrived.
    arrived: BTreeMap<u64, u64>,
    credit: u64,
    is_finished: bool,
    end_sent: bool,
    end_arrived: bool,
    wants_room: bool,
}

#[derive(Clone, Debug)]
struct Receiving {
    ready: VecDeque<u8>,
    /// The offset behind the ready bytes.
    next: u64,
    held: BTreeMap<u64, Vec<u8>>,
    held_bytes: usize,
    end: Option<u64>,
    end_read: bool,
    /// The first byte that the peer must not send.
    granted: u64,
}

impl Stream {
    fn new(class: Class) -> Self {
        Self {
            class,
            sending: Sending {
                buffer: VecDeque::new(),
                base: 0,
                next: 0,
                again: VecDeque::new(),
                arrived: BTreeMap::new(),
                credit: CREDIT_INITIAL,
                is_finished: false,
                end_sent: false,
                end_arrived: false,
                wants_room: false,
            },
            receiving: Receiving {
                ready: VecDeque::new(),
                next: 0,
                held: BTreeMap::new(),
                held_bytes: 0,
                end: None,
                end_read: false,
                granted: CREDIT_INITIAL,
            },
        }
    }

    fn is_over(&self) -> bool {
        self.sending.end_arrived && self.receiving.end_read
    }
}

impl Sending {
    fn end(&self) -> u64 {
        self.base + self.buffer.len() as u64
    }

    fn has_something(&self) -> bool {
        let has_new = self.next < self.end().min(self.credit);
        let is_end = self.is_finished && !self.end_sent && self.next == self.end();
        !self.again.is_empty() || has_new || is_end
    }

    /// The next range to send, at most `len_max` bytes: offset and end.
    fn take(&mut self, len_max: u64) -> (u64, u64) {
        if let Some((offset, end)) = self.again.pop_front() {
            let offset = offset.max(self.base);
            let cut = end.min(offset + len_max);
            if cut < end {
                self.again.push_front((cut, end));
            }
            return (offset, cut.max(offset));
        }
        let offset = self.next;
        self.next = self.end().min(self.credit).min(offset + len_max).max(offset);
        (offset, self.next)
    }

    fn arrives(&mut self, offset: u64, end: u64) {
        let known = self.arrived.entry(offset).or_insert(end);
        *known = end.max(*known);
        while let Some((&start, &end)) =
            self.arrived.first_key_value().filter(|it| *it.0 <= self.base)
        {
            self.arrived.remove(&start);
            let count = end.saturating_sub(self.base).min(self.buffer.len() as u64);
            self.buffer.drain(..count as usize);
            self.base += count;
        }
    }
}

impl Receiving {
    /// Takes bytes; false if the peer does not keep to the rules.
    fn takes(&mut self, offset: u64, bytes: &[u8], ends: bool) -> bool {
        let Some(end) = offset.checked_add(bytes.len() as u64) else { return false };
        let is_beyond = self.end.is_some_and(|known| end > known || ends && end != known);
        let has_more = || {
            let held = self.held.last_key_value();
            end < self.next || held.is_some_and(|(at, bytes)| at + bytes.len() as u64 > end)
        };
        if end > self.granted || is_beyond || ends && has_more() {
            return false;
        }
        if ends {
            self.end = Some(end);
        }
        if offset <= self.next {
            let skipped = ((self.next - offset) as usize).min(bytes.len());
            self.ready.extend(&bytes[skipped..]);
            self.next += (bytes.len() - skipped) as u64;
        } else if self.held.get(&offset).is_none_or(|held| held.len() < bytes.len()) {
            self.held_bytes += bytes.len() + HELD_AROUND;
            let before = self.held.insert(offset, bytes.to_vec());
            self.held_bytes -= before.map_or(0, |before| before.len() + HELD_AROUND);
        }
        while let Some(first) = self.held.first_entry().filter(|it| *it.key() <= self.next) {
            let (offset, bytes) = first.remove_entry();
            self.held_bytes -= bytes.len() + HELD_AROUND;
            let skipped = ((self.next - offset) as usize).min(bytes.len());
            self.ready.extend(&bytes[skipped..]);
            self.next += (bytes.len() - skipped) as u64;
        }
        self.held_bytes
            <= HELD_PER_CREDIT * (self.granted - self.next) as usize + CREDIT_INITIAL as usize
    }

    fn is_at_end(&self) -> bool {
        self.end == Some(self.next) && self.ready.is_empty()
    }

    /// The first byte that was not read.
    fn read(&self) -> u64 {
        self.next - self.ready.len() as u64
    }

    /// Bytes that wait for being read, or may come.
    fn promised(&self) -> u64 {
        self.granted - self.read()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Streams {
    all: HashMap<u64, Stream>,
    next_own: u64,
    next_peer: u64,
    /// Streams with something to send, per class, in turn.
    turns: [VecDeque<u64>; Class::ALL.len()],
    control: [VecDeque<Piece>; Class::ALL.len()],
    events: VecDeque<(StreamId, StreamEvent)>,
    streams_max: usize,
    stream_bytes: usize,
    streams_bytes: usize,
}

/// The number that the peer has for a stream: that of the wire.
fn flipped(id: u64) -> u64 {
    id ^ 1
}

impl Streams {
    pub fn new(limits: &Limits) -> Self {
        Self {
            all: HashMap::new(),
            next_own: 0,
            next_peer: 1,
            turns: Default::default(),
            control: Default::default(),
            events: VecDeque::new(),
            streams_max: limits.streams,
            stream_bytes: limits.stream_bytes.max(CREDIT_INITIAL as usize),
            streams_bytes: limits.streams_bytes,
        }
    }

    pub fn poll(&mut self) -> Option<(StreamId, StreamEvent)> {
        self.events.pop_front()
    }

    pub fn open(&mut self, class: Class) -> Result<StreamId, StreamError> {
        if self.all.len() >= self.streams_max || !self.may_say_more() {
            return Err(StreamError::TooMany(self.all.len()));
        }
        let id = self.next_own;
        self.next_own += 2;
        self.begin(id, class);
        Ok(StreamId(id))
    }

    fn begin(&mut self, id: u64, class: Class) {
        self.all.insert(id, Stream::new(class));
        self.grant(id);
    }

    /// Whether there is room for another word about a stream: one for each that is open, and as many
    /// for those that are not any more. A peer that acknowledges nothing, and opens what is reset at
    /// once, would make them without end.
    fn may_say_more(&self) -> bool {
        self.control.iter().map(VecDeque::len).sum::<usize>() < 2 * self.streams_max
    }

    /// Lets the peer send as much as the limits allow beyond what was read, if that is worth a
    /// message.
    fn grant(&mut self, id: u64) {
        let Some(receiving) = self.all.get(&id).map(|stream| &stream.receiving) else { return };
        let is_worth = |granted: u64| granted >= receiving.granted + CREDIT_STEP;
        if receiving.end.is_some() || !is_worth(receiving.read() + self.stream_bytes as u64) {
            return;
        }
        let others = self.all.iter().filter(|(other, _)| **other != id);
        let promised: u64 = others.map(|(_, stream)| stream.receiving.promised()).sum();
        let room = (self.streams_bytes as u64).saturating_sub(promised).max(CREDIT_INITIAL);
        let granted = receiving.read() + room.min(self.stream_bytes as u64);
        if is_worth(granted)
            && let Some(stream) = self.all.get_mut(&id)
        {
            stream.receiving.granted = granted;
            let piece = Piece { stream: id, kind: PieceKind::Credit };
            let control = &mut self.control[stream.class.index()];
            if !control.contains(&piece) {
                control.push_back(piece);
            }
        }
    }

    fn get_mut(&mut self, id: StreamId) -> Result<&mut Stream, StreamError> {
        self.all.get_mut(&id.0).ok_or(StreamError::Unknown(id.0))
    }

    fn get(&self, id: StreamId) -> Result<&Stream, StreamError> {
        self.all.get(&id.0).ok_or(StreamError::Unknown(id.0))
    }

    fn take_turn(&mut self, id: u64) {
        let Some(stream) = self.all.get(&id) else { return };
        let turns = &mut self.turns[stream.class.index()];
        if stream.sending.has_something() && !turns.contains(&id) {
            turns.push_back(id);
        }
    }

    pub fn write(&mut self, id: StreamId, bytes: &[u8]) -> Result<usize, StreamError> {
        let most = self.may_wait(self.get(id)?.sending.buffer.len() + bytes.len());
        let sending = &mut self.get_mut(id)?.sending;
        if sending.is_finished {
            return Err(StreamError::Finished(id.0));
        }
        let taken = bytes.len().min(most.saturating_sub(sending.buffer.len()));
        sending.buffer.extend(&bytes[..taken]);
        sending.wants_room |= taken < bytes.len();
        self.take_turn(id.0);
        Ok(taken)
    }

    /// Bytes of one stream that may wait for being sent, if it wants to have `wanted`.
    fn may_wait(&self, wanted: usize) -> usize {
        let least = CREDIT_INITIAL as usize;
        let waiting = || self.all.values().map(|it| it.sending.buffer.len()).sum::<usize>();
        if wanted > least && waiting() > self.streams_bytes { least } else { self.stream_bytes }
    }

    pub fn finish(&mut self, id: StreamId) -> Result<(), StreamError> {
        self.get_mut(id)?.sending.is_finished = true;
        self.take_turn(id.0);
        Ok(())
    }

    pub fn reset(&mut self, id: StreamId) -> Result<(), StreamError> {
        let class = self.get(id)?.class;
        self.all.remove(&id.0);
        self.control[class.index()].push_back(Piece { stream: id.0, kind: PieceKind::Reset });
        Ok(())
    }

    pub fn read(
        &mut self,
        id: StreamId,
        out: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<Option<usize>, StreamError> {
        let stream = self.get_mut(id)?;
        let receiving = &mut stream.receiving;
        if receiving.is_at_end() {
            receiving.end_read = true;
            if stream.is_over() {
                self.all.remove(&id.0);
            }
            return Ok(None);
        }
        let count = receiving.ready.len().min(bytes_max);
        let (front, back) = receiving.ready.as_slices();
        let of_front = count.min(front.len());
        out.extend_from_slice(&front[..of_front]);
        out.extend_from_slice(&back[..count - of_front]);
        receiving.ready.drain(..count);
        self.grant(id.0);
        Ok(Some(count))
    }

    /// Whether anything of this class waits for being sent.
    pub fn has_something(&self, class: Class) -> bool {
        !self.turns[class.index()].is_empty() || !self.control[class.index()].is_empty()
    }

    /// Fills the rest of a symbol that may have `symbol_max` bytes with pieces.
    pub fn fill(
        &mut self,
        class: Class,
        symbol_max: usize,
        out: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) {
        while let Some(piece) = self.control[class.index()].front().copied() {
            let item = match piece.kind {
                PieceKind::Credit => {
                    let granted = self.all.get(&piece.stream).map_or(0, |it| it.receiving.granted);
                    Item::Credit { stream: flipped(piece.stream), offset: granted }
                }
                _ => Item::Reset { stream: flipped(piece.stream) },
            };
            if out.len() + item.len() > symbol_max {
                return;
            }
            item.put(out, false);
            pieces.push(piece);
            self.control[class.index()].pop_front();
        }
        while let Some(id) = self.turns[class.index()].pop_front() {
            let Some(stream) = self.all.get_mut(&id) else { continue };
            let sending = &mut stream.sending;
            let offset = sending.again.front().map_or(sending.next, |range| range.0);
            let around = 1 + varint_len(flipped(id)) + varint_len(offset);
            let room = symbol_max.saturating_sub(out.len() + around);
            if room < PIECE_BYTES_MIN {
                self.turns[class.index()].push_front(id);
                return;
            }
            // Without room for a length the piece must be the last one.
            let (offset, end) = sending.take(room as u64);
            let len = (end - offset) as usize;
            let is_last = len + varint_len(len as u64) > room;
            let ends = sending.is_finished && end == sending.end();
            sending.end_sent |= ends;
            out.reserve(around + len + varint_len(len as u64));
            put_piece(sending, flipped(id), (offset, end), ends, is_last, out);
            pieces.push(Piece { stream: id, kind: PieceKind::Data { offset, len, end: ends } });
            self.take_turn(id);
            if is_last {
                return;
            }
        }
    }

    /// A piece has arrived at the peer.
    pub fn arrived(&mut self, piece: Piece) {
        let PieceKind::Data { offset, len, end } = piece.kind else { return };
        let Some(stream) = self.all.get_mut(&piece.stream) else { return };
        let (sending, most) = (&mut stream.sending, self.stream_bytes);
        sending.arrives(offset, offset + len as u64);
        sending.end_arrived |= end;
        let has_room = sending.buffer.len() < most / 2 || sending.buffer.is_empty();
        if sending.wants_room && has_room {
            sending.wants_room = false;
            self.events.push_back((StreamId(piece.stream), StreamEvent::Writable));
        }
        if stream.is_over() {
            self.all.remove(&piece.stream);
        }
    }

    /// A piece must be sent anew.
    pub fn again(&mut self, piece: Piece) {
        if piece.kind == PieceKind::Header {
            return;
        }
        let Some(stream) = self.all.get_mut(&piece.stream) else {
            if piece.kind == PieceKind::Reset {
                self.control[Class::Bulk.index()].push_back(piece);
            }
            return;
        };
        match piece.kind {
            PieceKind::Data { offset, len, end } => {
                let sending = &mut stream.sending;
                sending.end_sent &= !end;
                if len > 0 {
                    sending.again.push_back((offset, offset + len as u64));
                }
                self.take_turn(piece.stream);
            }
            PieceKind::Credit | PieceKind::Reset => {
                self.control[stream.class.index()].push_back(piece);
            }
            PieceKind::Header => {}
        }
    }

    /// The stream that the peer means; opens it, and those before it, if it is new.
    fn of_peer(&mut self, id: u64, class: Class) -> Option<u64> {
        if id & 1 == 1 && id >= self.next_peer {
            let count = (id - self.next_peer) / 2 + 1;
            let is_full = self.all.len() as u64 + count > self.streams_max as u64;
            if is_full || !self.may_say_more() {
                let refusal = Piece { stream: id, kind: PieceKind::Reset };
                let control = &self.control[class.index()];
                if !control.contains(&refusal) && self.may_say_more() {
                    self.control[class.index()].push_back(refusal);
                }
                return None;
            }
            while self.next_peer <= id {
                let new = self.next_peer;
                self.next_peer += 2;
                self.begin(new, class);
                self.events.push_back((StreamId(new), StreamEvent::Opened));
            }
        }
        self.all.contains_key(&id).then_some(id)
    }

    pub fn data(&mut self, class: Class, id: u64, offset: u64, end: bool, bytes: &[u8]) {
        let Some(id) = self.of_peer(id, class) else { return };
        let Some(stream) = self.all.get_mut(&id) else { return };
        let receiving = &mut stream.receiving;
        let before = (receiving.next, receiving.is_at_end());
        let was_empty = receiving.ready.is_empty();
        if !receiving.takes(offset, bytes, end) {
            self.break_off(id, class);
            return;
        }
        let has_news = was_empty && receiving.next > before.0;
        if has_news || receiving.is_at_end() && !before.1 {
            self.events.push_back((StreamId(id), StreamEvent::Readable));
        }
    }

    pub fn credit(&mut self, class: Class, id: u64, offset: u64) {
        let Some(id) = self.of_peer(id, class) else { return };
        if let Some(stream) = self.all.get_mut(&id) {
            stream.sending.credit = stream.sending.credit.max(offset);
            self.take_turn(id);
        }
    }

    /// Bytes of some stream of this class are lost for good.
    pub fn reset_all(&mut self, class: Class) {
        let of_class = self.all.iter().filter(|(_, stream)| stream.class == class);
        let mut ids: Vec<u64> = of_class.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        for id in ids {
            self.break_off(id, class);
        }
    }

    /// Resets a stream at both ends.
    fn break_off(&mut self, id: u64, class: Class) {
        self.all.remove(&id);
        self.control[class.index()].push_back(Piece { stream: id, kind: PieceKind::Reset });
        self.events.push_back((StreamId(id), StreamEvent::Reset));
    }

    pub fn reset_by_peer(&mut self, class: Class, id: u64) {
        let Some(id) = self.of_peer(id, class) else { return };
        if self.all.remove(&id).is_some() {
            self.events.push_back((StreamId(id), StreamEvent::Reset));
        }
    }
}

fn put_piece(
    sending: &Sending,
    stream: u64,
    (offset, end): (u64, u64),
    ends: bool,
    is_last: bool,
    out: &mut Vec<u8>,
) {
    let (from, until) = ((offset - sending.base) as usize, (end - sending.base) as usize);
    let (front, back) = sending.buffer.as_slices();
    if until <= front.len() || from >= front.len() {
        let part = if until <= front.len() {
            &front[from..until]
        } else {
            &back[from - front.len()..until - front.len()]
        };
        Item::Data { stream, offset, end: ends, bytes: part }.put(out, is_last);
        return;
    }
    let joined: Vec<u8> = sending.buffer.range(from..until).copied().collect();
    Item::Data { stream, offset, end: ends, bytes: &joined }.put(out, is_last);
}

#[cfg(test)]
mod tests;
