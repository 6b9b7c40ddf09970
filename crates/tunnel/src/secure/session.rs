//! A session: what one handshake has agreed on, and which numbers have come in it.

use super::cipher::{Cipher, Suite};
use super::error::Dropped;
use super::handshake::{Agreed, Life};
use super::layout::{self, CONTROL, DATA, HEADER_BYTES, Index};
use super::number::{self, Window};
use super::timing::{
    AT_ONCE, CONFIRMED_WITHIN, REJECT_AFTER, REKEY_AFTER, REKEY_AFTER_OF_ANSWERER,
};
use std::time::Duration;

/// Keys, windows and age.
#[derive(Debug)]
pub(super) struct Session {
    /// How the peer calls it in what it sends.
    pub index: Index,
    /// How this end calls it.
    theirs: Index,
    pub suite: Suite,
    pub peer_life: Life,
    /// What the peer was told of this end.
    pub own_life: Life,
    pub begun: Duration,
    is_initiator: bool,
    /// Whether something has come in it, so that the peer has its keys, too.
    pub is_confirmed: bool,
    seal: Cipher,
    open: Cipher,
    data: Window,
    control: Window,
    control_sent: u64,
    /// The least number that data may be sealed with: no key sees one twice, whatever the caller does.
    data_next: u64,
    sealed: u64,
    forged: u64,
}

/// Who began it, and how both ends call it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    pub ours: Index,
    pub theirs: Index,
    pub is_initiator: bool,
    pub own_life: Life,
}

impl Session {
    /// `expected`: the number of the peer's next datagram, as far as is known.
    pub(super) fn new(names: Names, agreed: Agreed, expected: u64, now: Duration) -> Self {
        Self {
            index: names.ours,
            theirs: names.theirs,
            suite: agreed.suite,
            peer_life: agreed.peer_life,
            own_life: names.own_life,
            begun: now,
            is_initiator: names.is_initiator,
            is_confirmed: false,
            seal: agreed.seal,
            open: agreed.open,
            data: Window::new(expected),
            control: Window::new(0),
            control_sent: 0,
            data_next: 0,
            sealed: 0,
            forged: 0,
        }
    }

    /// The number of the peer's next datagram if none is lost.
    pub(super) fn expected(&self) -> u64 {
        self.data.expected()
    }

    /// Whether this end may seal with it: an answerer does not know before something has come that
    /// the peer has the keys.
    pub(super) fn may_seal(&self, now: Duration) -> bool {
        (self.is_initiator || self.is_confirmed)
            && !self.is_over(now)
            && self.sealed < self.suite.sealed_max().saturating_mul(2)
    }

    /// Whether this end has begun it, a moment ago.
    pub(super) fn is_begun_here_at_once(&self, now: Duration) -> bool {
        self.is_initiator && now < self.begun + AT_ONCE
    }

    /// When there should be a new one.
    pub(super) fn renew_at(&self) -> Duration {
        if self.sealed >= self.suite.sealed_max() {
            return self.begun;
        }
        let after = if self.is_initiator { REKEY_AFTER } else { REKEY_AFTER_OF_ANSWERER };
        self.begun + after
    }

    pub(super) fn ends_at(&self) -> Duration {
        let is_answered = !self.is_initiator && !self.is_confirmed;
        self.begun + if is_answered { CONFIRMED_WITHIN } else { REJECT_AFTER }
    }

    pub(super) fn is_over(&self, now: Duration) -> bool {
        now >= self.ends_at() || self.forged >= self.suite.forged_max()
    }

    /// Seals what lies in `buffer` behind `at` and the room for the header.
    pub(super) fn seal_data(&mut self, number: u64, buffer: &mut Vec<u8>, at: usize) -> bool {
        let Some(next) = number.checked_add(1).filter(|_| number >= self.data_next) else {
            return false;
        };
        self.data_next = next;
        self.seal_kind(DATA, number, buffer, at)
    }

    /// A whole datagram of control.
    pub(super) fn seal_control(&mut self, plaintext: &[u8]) -> Option<Vec<u8>> {
        let mut datagram = vec![0; HEADER_BYTES];
        datagram.extend(plaintext);
        let number = self.control_sent;
        self.control_sent += 1;
        self.seal_kind(CONTROL, number, &mut datagram, 0).then_some(datagram)
    }

    fn seal_kind(&mut self, kind: u8, number: u64, buffer: &mut Vec<u8>, at: usize) -> bool {
        let header = layout::header(kind, self.theirs, number);
        let Some(room) = buffer.get_mut(at..).filter(|room| room.len() >= HEADER_BYTES) else {
            return false;
        };
        let (head, plaintext) = room.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(&header);
        let Some(tag) = self.seal.seal(number, header, plaintext) else { return false };
        buffer.extend(tag);
        self.sealed += 1;
        true
    }

    /// Opens a datagram that [`layout::read`] has found to be sealed.
    pub(super) fn open<'a>(
        &mut self,
        kind: u8,
        lower: u32,
        datagram: &'a mut [u8],
    ) -> Result<Opened<'a>, Dropped> {
        let window = if kind == DATA { &mut self.data } else { &mut self.control };
        let number = number::recover(lower, window.expected());
        // What is old costs no decryption. Nothing is remembered of what does not open.
        if !window.is_new(number) {
            return Err(Dropped::Replayed);
        }
        let (header, sealed) = datagram.split_first_chunk_mut().ok_or(Dropped::Malformed)?;
        let Some(plaintext) = self.open.open(number, *header, sealed) else {
            self.forged += 1;
            return Err(Dropped::Forged);
        };
        let is_newest = window.take(number);
        Ok(Opened { number, is_newest, plaintext })
    }
}

/// What came in a datagram.
#[derive(Debug)]
pub(super) struct Opened<'a> {
    pub number: u64,
    /// Whether none of a higher number of its kind has come in this session.
    pub is_newest: bool,
    pub plaintext: &'a [u8],
}
