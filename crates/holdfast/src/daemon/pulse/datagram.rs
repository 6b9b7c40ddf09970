//! The datagrams of [`super`]: a state machine without sockets makes them, and decides which of
//! those that arrive count. The format is in `proven.rs`.
//!
//! Every start of a daemon draws a random session number, and every datagram is numbered within
//! its session. A datagram counts if its number is higher than any before in its sender's
//! session. A session is believed only after it has echoed a number of ours that no session of
//! that sender has echoed before. So datagrams recorded from an earlier session of either end
//! prove nothing, and do not change what a believed peer is told.

use crate::daemon::proven::{DATAGRAM_BYTES, Datagram, Echo};
use holdfast_cluster::hearing::UNHEARD_MAX;

/// How many of the latest heartbeats to a peer are looked at to count those that it has missed.
const LATEST: usize = UNHEARD_MAX as usize + 1;

/// Name and version of the format.
const MAGIC: [u8; 5] = *b"HFPU\x01";

/// Why a datagram does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// It was not made with a key of such a peer, by a peer of this host, for this host.
    Forged,
    /// It was, but it has arrived before, or belongs to an older session.
    Replayed,
    /// It belongs to a session of the peer at `index` that has not proven yet
    /// that it is current.
    Unproven { index: usize },
}

/// A datagram that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Index of the peer that sent it.
    pub index: usize,
    /// Time for which its sender's loop had not turned, in ms.
    pub stuck_ms: u32,
    /// How many of the latest [`LATEST`] heartbeats its sender had not received.
    pub unheard: u64,
}

/// The datagrams of one session of a host; see the module.
pub struct Datagrams {
    me: u8,
    session: u64,
    number: u64,
    peers: Vec<Peer>,
}

#[derive(Clone, Default)]
struct Peer {
    id: u8,
    /// Keys that this host and the peer have: datagrams are made with the first one, and taken if
    /// they were made with any.
    keys: Vec<[u8; 32]>,
    /// The session that is believed; 0: none.
    session: u64,
    /// Highest number in that session.
    number: u64,
    /// The last datagram that was received in that session, which is echoed to the peer.
    echo: Echo,
    /// The same for a session that is not believed yet, to which an answer is sent.
    asked: Echo,
    /// Highest number of ours that the peer has ever echoed.
    proven: u64,
    /// Numbers of the latest heartbeats to the peer (a ring), and the index of the next one.
    latest: [u64; LATEST],
    next: usize,
}

impl Datagrams {
    /// The datagrams of one session of host `me` to and from `peers`, who have no keys yet.
    /// `session` is random and not 0.
    #[must_use]
    pub fn new(me: u8, peers: &[u8], session: u64) -> Self {
        let peers = peers.iter().map(|&id| Peer { id, ..Peer::default() }).collect();
        Self { me, session, number: 0, peers }
    }

    /// Uses these keys with the peer at `index` from now on, and the first of them for what is
    /// sent.
    pub fn set_keys(&mut self, index: usize, keys: Vec<[u8; 32]>) {
        if let Some(peer) = self.peers.get_mut(index) {
            peer.keys = keys;
        }
    }

    /// The next heartbeat for the peer at `index`, from a host whose loop has not turned for
    /// `stuck_ms` ms. `None` if there is no such peer, or no key.
    pub fn send(&mut self, index: usize, stuck_ms: u32) -> Option<[u8; DATAGRAM_BYTES]> {
        let peer = self.peers.get_mut(index)?;
        self.number += 1;
        peer.latest[peer.next] = self.number;
        peer.next = (peer.next + 1) % LATEST;
        let echo = peer.echo;
        self.made(index, echo, stuck_ms)
    }

    /// The answer to a datagram that was [`Reject::Unproven`]. It does not count as a heartbeat.
    pub fn answer(&mut self, index: usize, stuck_ms: u32) -> Option<[u8; DATAGRAM_BYTES]> {
        let asked = self.peers.get(index)?.asked;
        self.number += 1;
        self.made(index, asked, stuck_ms)
    }

    fn made(&self, to: usize, echo: Echo, stuck_ms: u32) -> Option<[u8; DATAGRAM_BYTES]> {
        let peer = self.peers.get(to)?;
        let (head, number) = ([self.me, peer.id, 0], self.number);
        let pulse = Datagram { head, session: self.session, number, echo, word: stuck_ms };
        Some(pulse.encode(MAGIC, peer.keys.first()?))
    }

    /// The content of a datagram, and the index of the peer whose key has made it.
    fn opened(&self, datagram: &[u8]) -> Option<(usize, Datagram)> {
        let from = Datagram::claimed(datagram)?[0];
        let index = self.peers.iter().position(|peer| peer.id == from)?;
        let mut keys = self.peers[index].keys.iter();
        keys.find_map(|key| Datagram::decode(datagram, MAGIC, key)).map(|pulse| (index, pulse))
    }

    /// Takes a datagram that has arrived.
    ///
    /// # Errors
    /// [`Reject`]; then nothing has changed except what an answer echoes.
    pub fn receive(&mut self, datagram: &[u8]) -> Result<Received, Reject> {
        let (index, pulse) = self.opened(datagram).ok_or(Reject::Forged)?;
        if pulse.head[1] != self.me {
            return Err(Reject::Forged);
        }
        let peer = &mut self.peers[index];
        let proof = if pulse.echo.session == self.session { pulse.echo.number } else { 0 };
        // An echo cannot be of a datagram that was not sent yet.
        let proof = proof.min(self.number);
        let echo = Echo { session: pulse.session, number: pulse.number };
        if pulse.session != peer.session {
            if proof <= peer.proven {
                peer.asked = echo;
                return Err(Reject::Unproven { index });
            }
            peer.session = pulse.session;
        } else if pulse.number <= peer.number {
            return Err(Reject::Replayed);
        }
        peer.number = pulse.number;
        peer.echo = echo;
        peer.proven = peer.proven.max(proof);
        let unheard = peer.latest.iter().filter(|number| **number > peer.proven).count() as u64;
        Ok(Received { index, stuck_ms: pulse.word, unheard })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: [u8; 32] = [7; 32];
    const EDGE: u8 = 254;

    /// The expected result for a datagram of the peer `index`, whose loop was stuck for
    /// `stuck_ms` and which has missed none of ours.
    fn heard((index, stuck_ms): (usize, u32)) -> Result<Received, Reject> {
        Ok(Received { index, stuck_ms, unheard: 0 })
    }

    fn hosts() -> (Datagrams, Datagrams) {
        (host(KEY, 0, &[1, EDGE], 11), host(KEY, EDGE, &[0, 1], 22))
    }

    /// A host that has one key with all of its peers.
    fn host(key: [u8; 32], me: u8, peers: &[u8], session: u64) -> Datagrams {
        let mut host = Datagrams::new(me, peers, session);
        (0..peers.len()).for_each(|index| host.set_keys(index, vec![key]));
        host
    }

    #[test]
    fn another_key_takes_the_place_of_one_without_a_lost_heartbeat() {
        const NEW: [u8; 32] = [9; 32];
        let (mut member, mut edge) = acquainted();
        let steps = [vec![KEY, NEW], vec![NEW, KEY], vec![NEW]];
        for keys in steps {
            // The member is a step ahead, and then the edge has followed.
            member.set_keys(1, keys.clone());
            for _ in 0..2 {
                assert_eq!(edge.receive(&member.send(1, 0).unwrap()), heard((0, 0)));
                assert_eq!(member.receive(&edge.send(0, 0).unwrap()), heard((1, 0)));
                edge.set_keys(0, keys.clone());
            }
        }
        assert_eq!(
            edge.receive(&host(KEY, 0, &[1, EDGE], 12).send(1, 0).unwrap()),
            Err(Reject::Forged)
        );
    }

    #[test]
    fn who_has_a_key_of_its_own_is_nobody_else() {
        let mut edge = Datagrams::new(EDGE, &[0, 1], 22);
        (0..2).for_each(|index| edge.set_keys(index, vec![[index as u8; 32]]));
        let mut other = host([1; 32], 0, &[EDGE], 33);
        assert_eq!(edge.receive(&other.send(0, 0).unwrap()), Err(Reject::Forged));
        let mut itself = host([1; 32], 1, &[EDGE], 33);
        assert_eq!(edge.receive(&itself.send(0, 0).unwrap()), Err(Reject::Unproven { index: 1 }));
    }

    /// Two hosts that believe each other's session.
    fn acquainted() -> (Datagrams, Datagrams) {
        let (mut member, mut edge) = hosts();
        for _ in 0..3 {
            let _ = edge.receive(&member.send(1, 0).unwrap());
            let _ = member.receive(&edge.answer(0, 0).unwrap());
        }
        (member, edge)
    }

    #[test]
    fn a_session_counts_once_it_has_echoed() {
        let (mut member, mut edge) = hosts();
        let unproven = |index| Err(Reject::Unproven { index });
        // The member has received nothing from the edge yet; the edge's answer echoes the member.
        assert_eq!(edge.receive(&member.send(1, 5).unwrap()), unproven(0));
        assert_eq!(member.receive(&edge.answer(0, 5).unwrap()), heard((1, 5)));
        assert_eq!(edge.receive(&member.send(1, 5).unwrap()), heard((0, 5)));
        assert_eq!(member.receive(&edge.send(0, 6).unwrap()), heard((1, 6)));
    }

    #[test]
    fn who_hears_nothing_is_known_by_its_echo() {
        let (mut member, mut edge) = acquainted();
        let latest = LATEST as u64;
        for lost in 1..20 {
            // One heartbeat to each of two members.
            let _ = (edge.send(0, 0), edge.send(1, 0));
            let unheard = edge.receive(&member.send(1, 0).unwrap()).unwrap().unheard;
            assert_eq!(unheard, latest.min(lost));
        }
        assert!(member.receive(&edge.send(0, 0).unwrap()).is_ok());
        assert_eq!(edge.receive(&member.send(1, 0).unwrap()), heard((0, 0)));
    }

    /// Datagrams recorded in an earlier session, and replayed by the thousand.
    #[test]
    fn who_repeats_what_is_old_makes_nobody_deaf() {
        let (mut member, mut edge) = acquainted();
        let old = host(KEY, 0, &[1, EDGE], 44).send(1, 0).unwrap();
        for _ in 0..100 {
            for _ in 0..50 {
                assert_eq!(edge.receive(&old), Err(Reject::Unproven { index: 0 }));
                let _ = edge.answer(0, 0);
            }
            let _ = edge.send(1, 0);
            assert_eq!(member.receive(&edge.send(0, 0).unwrap()), heard((1, 0)));
            assert_eq!(edge.receive(&member.send(1, 0).unwrap()), heard((0, 0)));
        }
    }

    #[test]
    fn nothing_counts_twice_nor_for_another() {
        let (mut member, mut edge) = acquainted();
        let old = member.send(1, 0).unwrap();
        assert_eq!(edge.receive(&old), heard((0, 0)));
        assert_eq!(edge.receive(&old), Err(Reject::Replayed));
        // A datagram for the other member, and one from a host that is no
        // member.
        assert_eq!(edge.receive(&member.send(0, 0).unwrap()), Err(Reject::Forged));
        let mut other = host(KEY, 9, &[EDGE], 33);
        assert_eq!(edge.receive(&other.send(0, 0).unwrap()), Err(Reject::Forged));
        let mut stranger = host([8; 32], 0, &[EDGE], 11);
        assert_eq!(edge.receive(&stranger.send(0, 0).unwrap()), Err(Reject::Forged));
    }

    #[test]
    fn what_an_earlier_life_said_proves_nothing() {
        let (mut member, mut edge) = acquainted();
        let recorded: Vec<_> = (0..5).map(|_| member.send(1, 0).unwrap()).collect();
        let mut reborn = host(KEY, 0, &[1, EDGE], 44);
        for _ in 0..3 {
            let _ = edge.receive(&reborn.send(1, 0).unwrap());
            let _ = reborn.receive(&edge.answer(0, 0).unwrap());
        }
        assert_eq!(edge.receive(&reborn.send(1, 0).unwrap()), heard((0, 0)));
        for datagram in &recorded {
            assert_eq!(edge.receive(datagram), Err(Reject::Unproven { index: 0 }));
        }
        assert_eq!(edge.receive(&reborn.send(1, 0).unwrap()), heard((0, 0)));
        let mut newborn = host(KEY, EDGE, &[0, 1], 55);
        let _ = newborn.send(0, 0);
        for datagram in &recorded {
            assert_eq!(newborn.receive(datagram), Err(Reject::Unproven { index: 0 }));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..80), flip in 0..DATAGRAM_BYTES * 8) {
            let (mut member, mut edge) = acquainted();
            prop_assert_eq!(edge.receive(&bytes), Err(Reject::Forged));
            let mut pulse = member.send(1, 0).unwrap();
            pulse[flip / 8] ^= 1 << (flip % 8);
            prop_assert_eq!(edge.receive(&pulse), Err(Reject::Forged));
        }
    }
}
