//! What an end does by itself: handshakes, questions, keepalives, the search for the path's size.

use super::super::handshake::{self, Hello, Life};
use super::super::layout::{self, Index, OVERHEAD_BYTES};
use super::super::mtu::Search;
use super::super::timing::{COOKIE_LASTS, DEAD_AFTER, RETRY_FIRST, RETRY_MAX};
use super::Secure;
use std::time::Duration;

/// Kinds of control: the first byte of its plaintext.
pub(super) const KEEPALIVE: u8 = 0;
pub(super) const PING: u8 = 1;
pub(super) const PONG: u8 = 2;
pub(super) const CLOSE: u8 = 3;
/// With a size of two bytes, and padding up to it.
pub(super) const PROBE: u8 = 4;
/// With that size.
pub(super) const PROBED: u8 = 5;
/// You are heard from another address: your path to me is another one, too.
pub(super) const MOVED: u8 = 6;

impl Secure {
    /// When [`Secure::poll`] has something to do without anything having come.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        if !self.outbox.is_empty() {
            return Some(Duration::ZERO);
        }
        let sessions = self.sessions.iter().map(super::Session::ends_at);
        let handshake = self.handshake_at().map(|at| at.max(self.retry_at));
        let asking = self.current.and(self.asking).map(|asking| asking.at);
        let keepalive = self.current.and(self.keepalive_at());
        let mtu = self.current.and(self.mtu.as_ref().map(Search::wake_at));
        sessions.chain(handshake).chain(asking).chain(keepalive).chain(mtu).min()
    }

    pub(super) fn do_due(&mut self, now: Duration, since_1970: Duration) {
        self.forget_old(now);
        if self.handshake_at().is_some_and(|at| now >= at.max(self.retry_at)) {
            self.initiate(now, since_1970);
        }
        if self.current.is_none() {
            return;
        }
        if self.asking.is_some_and(|asking| now >= asking.at) {
            self.say(&[PING], now);
            self.asked(now);
        }
        if self.keepalive_at().is_some_and(|at| now >= at) {
            self.say(&[KEEPALIVE], now);
            // Even if nothing could be said: it is not tried again at once.
            self.sent_at = now;
        }
        while let Some(size) = self.mtu.as_mut().and_then(|search| search.due(now)) {
            self.say(&probe(size), now);
        }
    }

    fn forget_old(&mut self, now: Duration) {
        self.sessions.retain(|session| !session.is_over(now));
        if self.current().is_none() {
            self.current = None;
        }
    }

    /// From when on a new session is wanted; `None` while the peer has to come.
    fn handshake_at(&self) -> Option<Duration> {
        self.peer_address?;
        let Some(current) = self.current() else { return Some(self.retry_at) };
        let silent = self.unanswered_since.map(|since| since + DEAD_AFTER);
        Some(silent.map_or(current.renew_at(), |at| at.min(current.renew_at())))
    }

    fn keepalive_at(&self) -> Option<Duration> {
        Some(self.sent_at + self.settings.keepalive?)
    }

    /// Sends a first message; one that is not answered is followed by another one later.
    fn initiate(&mut self, now: Duration, since_1970: Duration) {
        self.retry_at = now + self.retry_pause;
        self.retry_pause = (self.retry_pause * 2).min(RETRY_MAX);
        let Some(to) = self.peer_address else { return };
        let life = self.next_life.or_else(|| self.own_life());
        let (Some(life), Some(index)) = (life, self.new_index()) else { return };
        let stamp = handshake::stamp(since_1970);
        let hello = Hello { stamp, life, suites: self.settings.suites };
        let mut message = layout::initiation(index);
        let (own, peer) = (&self.settings.key, &self.settings.peer);
        let random = &mut *self.random;
        let begun = handshake::begin(own, peer, index, &hello, random, &mut message);
        let Ok(mut initiation) = begun else { return };
        let cookie = self.cookie.filter(|(_, came)| now < *came + COOKIE_LASTS);
        self.peer_macs.append(&mut message, cookie.as_ref().map(|(cookie, _)| cookie));
        initiation.first_mac =
            super::super::cookie::first_of(&message).map(<[u8]>::to_vec).unwrap_or_default();
        (self.initiation, self.initiated_at) = (Some(initiation), now);
        self.counters.initiations_sent += 1;
        self.send(to, message, now);
    }

    /// The next handshake is the first of its kind again.
    pub(super) fn calm(&mut self, now: Duration) {
        (self.initiation, self.retry_pause, self.retry_at) = (None, RETRY_FIRST, now);
    }

    /// The number of this life; `None` while there are no random bytes.
    pub(super) fn own_life(&mut self) -> Option<Life> {
        if self.life == 0 {
            self.life = self.draw_life()?;
        }
        Some(self.life)
    }

    pub(super) fn draw_life(&mut self) -> Option<Life> {
        let mut bytes = [0; 8];
        self.random.fill(&mut bytes).ok()?;
        Some(Life::from_be_bytes(bytes).max(1))
    }

    /// What a peer of this life is told of this end: a new life, if the machine has spoken with another
    /// one. What was said then this peer knows nothing of, or it is that one again after a stranger with
    /// its key, and has to begin anew as well.
    pub(super) fn life_for(&mut self, peer: Life) -> Option<Life> {
        if self.peer_life.is_none_or(|known| known == peer) {
            return self.own_life();
        }
        let before = self.answered.filter(|(asked, _)| *asked == peer);
        let (_, own) = before.or_else(|| Some((peer, self.draw_life()?)))?;
        self.answered = Some((peer, own));
        Some(own)
    }

    /// A number for a session, which no other one has.
    pub(super) fn new_index(&mut self) -> Option<Index> {
        loop {
            let mut bytes = [0; 3];
            self.random.fill(&mut bytes).ok()?;
            let index = Index::from_random(bytes);
            let is_asked = self.initiation.as_ref().is_some_and(|it| it.index == index);
            if !is_asked && self.sessions.iter().all(|it| it.index != index) {
                return Some(index);
            }
        }
    }
}

/// A question of so many bytes of UDP payload.
fn probe(size: usize) -> Vec<u8> {
    let mut plaintext = vec![0; size.saturating_sub(OVERHEAD_BYTES).max(3)];
    plaintext[0] = PROBE;
    plaintext[1..3].copy_from_slice(&(size as u16).to_be_bytes());
    plaintext
}
