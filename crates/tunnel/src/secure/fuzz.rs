//! The layer of keys under hostile input: strangers who send what they like, and a peer that has the
//! keys and says in control what it likes.

use super::cookie::Macs;
use super::layout::{self, Index, MAC_BYTES};
use super::{HEADER_BYTES, Heard, NoRandom, Random, SecretKey, Secure, Settings, Suites};
use crate::fuzz::Draw;
use holdfast_chance::Rng;
use std::net::SocketAddr;
use std::time::Duration;

/// Time of day at the begin.
const BEGUN: Duration = Duration::from_secs(1_800_000_000);
/// Datagrams that an end may send for one that has come: what is asked, and what was due already.
const ANSWERS_MAX: usize = 64;

struct Seeded(Rng);

impl Random for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), NoRandom> {
        bytes.iter_mut().for_each(|byte| *byte = self.0.draw() as u8);
        Ok(())
    }
}

struct Run {
    ends: [Secure; 2],
    keys: [SecretKey; 2],
    now: Duration,
    numbers: [u64; 2],
    /// Datagrams that were overheard.
    kept: Vec<Vec<u8>>,
}

/// Two ends that know each other, and then what `bytes` say. Nothing is heard as data but what the other
/// end has said, each once, and strangers are answered by no more bytes than they have sent.
///
/// # Panics
/// If anything else is heard, or answers grow.
pub fn secure(bytes: &[u8]) {
    let mut draw = Draw(bytes);
    let mut run = Run::new();
    run.exchange();
    while let Some(deed) = draw.deed() {
        run.step(deed, &mut draw);
    }
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + end as u8], 51_900))
}

impl Run {
    fn new() -> Self {
        let keys = [3, 4].map(|byte| SecretKey::from_random([byte; 32]));
        let end = |own: usize| {
            let settings = Settings {
                key: keys[own].clone(),
                peer: keys[1 - own].public(),
                peer_address: Some(address(1 - own)),
                keepalive: None,
                suites: Suites::PORTABLE,
            };
            Secure::new(settings, Box::new(Seeded(Rng::new(own as u64, 1))), Duration::ZERO)
        };
        let ends = [end(0), end(1)];
        Self { ends, keys, now: Duration::ZERO, numbers: [0; 2], kept: Vec::new() }
    }

    /// Brings what each end has to say to the other one, until neither has more.
    fn exchange(&mut self) {
        for from in [0, 1, 0, 1, 0, 1] {
            for sent in 0.. {
                assert!(sent < ANSWERS_MAX, "end {from} does not stop");
                let Some(said) = self.ends[from].poll(self.now, BEGUN + self.now) else { break };
                let to = usize::from(said.to == address(1));
                self.kept.push(said.bytes.clone());
                self.kept.truncate(32);
                let mut bytes = said.bytes;
                let heard = self.ends[to].handle_datagram(address(from), &mut bytes, self.now);
                assert!(!matches!(heard, Ok(Heard::Data { .. })), "nobody said anything");
            }
        }
    }

    fn step(&mut self, deed: u8, draw: &mut Draw<'_>) {
        let end = usize::from(deed >> 7);
        let stranger = SocketAddr::from(([203, 0, 113, deed], u16::from(draw.byte())));
        match deed % 8 {
            0 => {
                let mut bytes = draw.body();
                if let Some(kind) = bytes.first_mut() {
                    *kind %= 8;
                }
                self.offer(end, stranger, bytes);
            }
            1 => self.offer_handshake(end, stranger, draw),
            2 => {
                // Overheard, and perhaps changed.
                let at = usize::from(draw.byte()) % self.kept.len().max(1);
                let Some(mut bytes) = self.kept.get(at).cloned() else { return };
                for _ in 0..deed % 3 {
                    let at = usize::from(draw.u16()) % bytes.len();
                    bytes[at] ^= draw.byte();
                }
                self.offer(end, stranger, bytes);
            }
            3 => {
                // What the peer itself says in control.
                let plaintext = draw.body();
                self.ends[end].say(&plaintext, self.now);
                self.exchange();
            }
            4 => self.speak(end, draw),
            5 => self.ends[end].probe(self.now),
            6 => self.now += Duration::from_millis(1 << (draw.byte() % 19)),
            _ => self.exchange(),
        }
    }

    /// A handshake message whose first MAC is right, for public keys are known.
    fn offer_handshake(&mut self, end: usize, from: SocketAddr, draw: &mut Draw<'_>) {
        let index = Index::from_random([draw.byte(), draw.byte(), draw.byte()]);
        let (mut message, len) = match draw.byte() % 3 {
            0 => (layout::initiation(index), layout::INITIATION_BYTES - 2 * MAC_BYTES),
            1 => (layout::answer(index, index), layout::ANSWER_BYTES - 2 * MAC_BYTES),
            _ => (layout::cookie_reply(index), layout::COOKIE_REPLY_BYTES),
        };
        message.extend_from_slice(draw.bytes(len - message.len()));
        message.resize(len, 0);
        if len != layout::COOKIE_REPLY_BYTES {
            Macs::of(&self.keys[end].public()).append(&mut message, None);
        }
        self.offer(end, from, message);
    }

    /// Something of a stranger.
    fn offer(&mut self, end: usize, from: SocketAddr, mut bytes: Vec<u8>) {
        let offered = bytes.len();
        let heard = self.ends[end].handle_datagram(from, &mut bytes, self.now);
        assert!(!matches!(heard, Ok(Heard::Data { .. })), "of a stranger");
        let mut answered = 0;
        for sent in 0.. {
            assert!(sent < ANSWERS_MAX, "end {end} does not stop");
            let Some(said) = self.ends[end].poll(self.now, BEGUN + self.now) else { break };
            if said.to == from {
                answered += said.bytes.len();
            }
            // The others are for the peer, and are lost.
        }
        assert!(answered <= offered, "{answered} bytes for {offered}");
    }

    /// The peer's machine says something, which is heard once.
    fn speak(&mut self, end: usize, draw: &mut Draw<'_>) {
        if !self.ends[end].is_ready(self.now) {
            return;
        }
        let text = draw.body();
        let mut datagram = [&[0; HEADER_BYTES], &text[..]].concat();
        let number = self.numbers[end].max(draw.near(self.numbers[end]));
        if self.ends[end].seal(number, &mut datagram, 0, self.now).is_none() {
            return;
        }
        self.numbers[end] = number.saturating_add(1);
        let mut copy = datagram.clone();
        let heard = self.ends[1 - end].handle_datagram(address(end), &mut datagram, self.now);
        if let Ok(heard) = heard {
            // Far leaps are taken for another number, and do not open.
            assert_eq!(heard, Heard::Data { number, plaintext: &text });
            let again = self.ends[1 - end].handle_datagram(address(end), &mut copy, self.now);
            assert!(again.is_err(), "once");
        }
    }
}
