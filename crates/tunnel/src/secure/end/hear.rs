//! What an end does with what comes.

use super::super::error::{Dropped, NoRandom};
use super::super::handshake::{self, Agreed, Life};
use super::super::layout::{self, DATA, Datagram, Index};
use super::super::mtu::Search;
use super::super::session::{Names, Session};
use super::super::timing::RETRY_FIRST;
use super::due::{CLOSE, MOVED, PING, PONG, PROBE, PROBED};
use super::{Heard, SESSIONS_MAX, Secure};
use std::net::SocketAddr;
use std::time::Duration;

impl Secure {
    pub(super) fn hear<'a>(
        &mut self,
        from: SocketAddr,
        datagram: &'a mut [u8],
        now: Duration,
    ) -> Result<Heard<'a>, Dropped> {
        match layout::read(datagram).ok_or(Dropped::Malformed)? {
            Datagram::Sealed { kind, receiver, number } => {
                self.hear_sealed(from, (kind, receiver, number), datagram, now)
            }
            Datagram::Initiation { sender, noise } => {
                self.hear_initiation(from, sender, noise, datagram, now).map(|()| Heard::Own)
            }
            Datagram::Answer { receiver, sender, noise } => {
                self.hear_answer(from, receiver, sender, noise, datagram, now)?;
                Ok(Heard::Own)
            }
            Datagram::Cookie { receiver, nonce, sealed } => {
                self.hear_cookie(receiver, nonce, sealed, now).map(|()| Heard::Own)
            }
        }
    }

    /// A first message. What costs nothing is looked at first, and what proves nothing changes
    /// nothing: the session that is answered counts only when something has come in it.
    fn hear_initiation(
        &mut self,
        from: SocketAddr,
        sender: Index,
        noise: &[u8],
        datagram: &[u8],
        now: Duration,
    ) -> Result<(), Dropped> {
        if !self.own_macs.is_first_right(datagram) {
            return Err(Dropped::WrongMac);
        }
        let is_proven = self.oven.knows(datagram, from, now);
        let rate = if is_proven { &mut self.rates.proven } else { &mut self.rates.handshakes };
        if !rate.take(now) {
            if !is_proven && self.rates.cookies.take(now) {
                self.reply_with_cookie(from, sender, datagram, now)
                    .map_err(|NoRandom| Dropped::NoRandom)?;
            }
            return Err(Dropped::Flood);
        }
        let (key, peer) = (&self.settings.key, &self.settings.peer);
        let question = handshake::read(key, peer, noise, &mut *self.random)?;
        if question.hello.stamp <= self.newest_stamp {
            return Err(Dropped::Stale);
        }
        self.newest_stamp = question.hello.stamp;
        if self.comes_first(question.hello.life, now) {
            return Err(Dropped::NotAwaited);
        }
        let suite = self.settings.suites.choose(question.hello.suites).ok_or(Dropped::NoCipher)?;
        let life = self.life_for(question.hello.life).ok_or(Dropped::NoRandom)?;
        let index = self.new_index().ok_or(Dropped::NoRandom)?;
        let mut message = layout::answer(sender, index);
        let agreed = question.answer(life, suite, &mut message)?;
        self.peer_macs.append(&mut message, None);
        // There is one answered session at a time: the newest.
        self.sessions.retain(|it| it.is_confirmed || Some(it.index) == self.current);
        self.add(
            Names { ours: index, theirs: sender, is_initiator: false, own_life: life },
            agreed,
            now,
        );
        self.send(from, message, now);
        Ok(())
    }

    fn reply_with_cookie(
        &mut self,
        from: SocketAddr,
        sender: Index,
        datagram: &[u8],
        now: Duration,
    ) -> Result<(), NoRandom> {
        let cookie = self.oven.bake(from, now, &mut *self.random)?;
        let reply = self.own_macs.reply(sender, datagram, cookie, &mut *self.random)?;
        if let Some(reply) = reply {
            self.counters.cookies_sent += 1;
            self.send(from, reply, now);
        }
        Ok(())
    }

    fn hear_answer(
        &mut self,
        from: SocketAddr,
        receiver: Index,
        sender: Index,
        noise: &[u8],
        datagram: &[u8],
        now: Duration,
    ) -> Result<(), Dropped> {
        if !self.own_macs.is_first_right(datagram) {
            return Err(Dropped::WrongMac);
        }
        let initiation = self.initiation.as_mut().filter(|it| it.index == receiver);
        let initiation = initiation.ok_or(Dropped::NotAwaited)?;
        let (agreed, own_life) = (initiation.finish(noise)?, initiation.own_life);
        if self.settings.suites.bits() & agreed.suite.bit() == 0 {
            return Err(Dropped::NoCipher);
        }
        let is_other = self.peer_life.is_some_and(|known| known != agreed.peer_life);
        if is_other && own_life == self.life {
            // It may have known this life of this end, whose machine begins anew now: so must the peer's.
            self.calm(now);
            self.next_life = self.draw_life();
            return Ok(());
        }
        let names = Names { ours: receiver, theirs: sender, is_initiator: true, own_life };
        self.add(names, agreed, now);
        self.take_up(receiver, from, now);
        // The answerer may seal only when it has heard something.
        self.ask_from(now);
        Ok(())
    }

    fn hear_cookie(
        &mut self,
        receiver: Index,
        nonce: &[u8],
        sealed: &[u8],
        now: Duration,
    ) -> Result<(), Dropped> {
        let initiation = self.initiation.as_ref().filter(|it| it.index == receiver);
        let first_mac = &initiation.ok_or(Dropped::NotAwaited)?.first_mac;
        let cookie = self.peer_macs.open(first_mac, nonce, sealed).ok_or(Dropped::Forged)?;
        // Once for each cookie: a peer that only ever sends cookies does not make this end talk more.
        if self.cookie.is_none_or(|(had, _)| had != cookie) {
            self.retry_at = now;
        }
        self.cookie = Some((cookie, now));
        Ok(())
    }

    fn hear_sealed<'a>(
        &mut self,
        from: SocketAddr,
        (kind, receiver, number): (u8, Index, u32),
        datagram: &'a mut [u8],
        now: Duration,
    ) -> Result<Heard<'a>, Dropped> {
        let bytes = datagram.len();
        let session = self.sessions.iter_mut().find(|it| it.index == receiver && !it.is_over(now));
        let session = session.ok_or(Dropped::UnknownSession)?;
        let opened = session.open(kind, number, datagram)?;
        let is_first = !session.is_confirmed;
        session.is_confirmed = true;
        let peer_life = session.peer_life;
        if is_first && self.current != Some(receiver) && !self.keeps_current(peer_life, now) {
            self.take_up(receiver, from, now);
        }
        self.heard_at = Some(now);
        self.unanswered_since = None;
        self.asking = None;
        if opened.is_newest && self.current == Some(receiver) {
            self.follow(from, now);
        }
        if kind == DATA {
            return Ok(Heard::Data { number: opened.number, plaintext: opened.plaintext });
        }
        self.hear_control(opened.plaintext, bytes, now)?;
        Ok(Heard::Own)
    }

    fn hear_control(
        &mut self,
        plaintext: &[u8],
        bytes: usize,
        now: Duration,
    ) -> Result<(), Dropped> {
        let (kind, rest) = plaintext.split_first().ok_or(Dropped::Malformed)?;
        match *kind {
            PING => self.say(&[PONG], now),
            PROBE => {
                let [a, b] = (bytes as u16).to_be_bytes();
                self.say(&[PROBED, a, b], now);
            }
            PROBED => {
                let [a, b] = rest.try_into().map_err(|_| Dropped::Malformed)?;
                if let Some(search) = &mut self.mtu {
                    search.answered(usize::from(u16::from_be_bytes([a, b])), now);
                }
            }
            MOVED => {
                self.paths += 1;
                if let Some(search) = &mut self.mtu {
                    search.begin_again(now);
                }
            }
            CLOSE => {
                self.sessions.clear();
                self.calm(now);
                (self.current, self.is_closed_by_peer) = (None, true);
            }
            // A keepalive, an answer, or what a newer version says: something was heard.
            _ => {}
        }
        Ok(())
    }

    /// Adds a session; the oldest one that is not sent with makes room.
    fn add(&mut self, names: Names, agreed: Agreed, now: Duration) {
        let lives = (agreed.peer_life, names.own_life);
        let of_this_life = self.sessions.iter().filter(|it| (it.peer_life, it.own_life) == lives);
        let expected = of_this_life.map(Session::expected).max().unwrap_or(0);
        self.sessions.push(Session::new(names, agreed, expected, now));
        if self.sessions.len() > SESSIONS_MAX {
            let oldest = self.sessions.iter().position(|it| Some(it.index) != self.current);
            oldest.map(|at| self.sessions.remove(at));
        }
    }

    /// Of two handshakes at once that of the end with the greater key counts.
    fn has_greater_key(&self) -> bool {
        self.settings.key.public() > self.settings.peer
    }

    /// Whether the session that is sent with is kept although another one was proved: both ends have
    /// begun at once, and both take that of the end with the greater key. Else both would go on to
    /// begin all later ones, too.
    fn keeps_current(&self, peer_life: Life, now: Duration) -> bool {
        self.current().is_some_and(|current| {
            self.has_greater_key()
                && current.is_begun_here_at_once(now)
                && current.peer_life == peer_life
        })
    }

    /// Whether a question of another life of the peer is left unanswered, for this end has just asked itself:
    /// two handshakes at once, each with new lives, would leave each end with another one.
    fn comes_first(&self, peer_life: Life, now: Duration) -> bool {
        let has_asked = self.initiation.is_some() && now < self.initiated_at + RETRY_FIRST;
        let is_other = self.peer_life.is_some_and(|known| known != peer_life);
        self.has_greater_key() && has_asked && is_other
    }

    /// A session is proved: it is sent with from now on. Older ones still open what comes late, but
    /// for those of an earlier life of the peer.
    fn take_up(&mut self, index: Index, from: SocketAddr, now: Duration) {
        let Some(session) = self.sessions.iter().find(|it| it.index == index) else { return };
        let (life, own_life) = (session.peer_life, session.own_life);
        if self.peer_life != Some(life) || self.life != own_life {
            self.counters.peer_restarts += u64::from(self.peer_life.is_some());
            (self.peer_life, self.life) = (Some(life), own_life);
            self.peer_lives += 1;
            self.sessions.retain(|it| (it.peer_life, it.own_life) == (life, own_life));
            (self.next_life, self.answered) = (None, None);
        }
        self.counters.handshakes += 1;
        self.current = Some(index);
        self.is_closed_by_peer = false;
        self.heard_at = Some(now);
        self.unanswered_since = None;
        self.calm(now);
        self.follow(from, now);
    }

    /// The peer is where its newest datagram came from.
    fn follow(&mut self, from: SocketAddr, now: Duration) {
        if self.peer_address != Some(from) {
            self.counters.roamed += u64::from(self.peer_address.is_some());
            let before = self.peer_address.replace(from);
            self.mtu = None;
            // Another port is another name that a NAT gives to the same path.
            if before.is_some_and(|before| before.ip() != from.ip()) {
                self.paths += 1;
                self.say(&[MOVED], now);
            }
        }
        if self.mtu.is_none() {
            self.mtu = Some(Search::new(from, now));
        }
    }
}
