//! The two ends, and what is between them.

use crate::secure::{
    Dropped, HEADER_BYTES, Heard, NoRandom, Random, SecretKey, Secure, Settings, Suites, ToSend,
};
use std::net::SocketAddr;
use std::time::Duration;

pub const A: usize = 0;
pub const B: usize = 1;

/// Time of day at the begin of each world.
const BEGUN: Duration = Duration::from_secs(1_800_000_000);
const ONE_WAY: Duration = Duration::from_millis(10);

/// Numbers drawn from a seed (xorshift64*, Vigna 2016).
#[derive(Clone)]
pub struct Seeded(u64);

/// An end, the number of its next datagram, and the life of its peer that its machine knows.
pub type Life = (Secure, u64, u64);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Random for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), NoRandom> {
        bytes.iter_mut().for_each(|byte| *byte = (self.next() >> 32) as u8);
        Ok(())
    }
}

struct Flying {
    at: Duration,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

pub struct World {
    pub now: Duration,
    pub ends: [Secure; 2],
    pub addresses: [SocketAddr; 2],
    pub loss: f64,
    pub jitter: Duration,
    pub udp_bytes_max: usize,
    /// Ends that neither hear nor speak.
    pub silent: [bool; 2],
    /// Datagrams that were sent by either.
    pub sent: usize,
    settings: [Settings; 2],
    chance: Seeded,
    flying: Vec<Flying>,
    heard: [Vec<Vec<u8>>; 2],
    dropped: [Option<Dropped>; 2],
    numbers: [u64; 2],
    lives: [u64; 2],
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, |_| {})
    }

    /// A world whose ends have other settings than usual.
    pub fn with(seed: u64, change: impl FnOnce(&mut [Settings; 2])) -> Self {
        let keys = [3, 4].map(|byte| SecretKey::from_random([byte; 32]));
        let addresses: [SocketAddr; 2] =
            ["192.0.2.1:51900", "[2001:db8::2]:51900"].map(|it| it.parse().unwrap());
        let settings = |own: usize, other: usize| Settings {
            key: keys[own].clone(),
            peer: keys[other].public(),
            peer_address: Some(addresses[other]),
            keepalive: None,
            suites: Suites::ALL,
        };
        let mut settings = [settings(A, B), settings(B, A)];
        change(&mut settings);
        let mut chance = Seeded::new(seed + 1);
        let ends = settings.clone().map(|settings| {
            Secure::new(settings, Box::new(Seeded::new(chance.next())), Duration::ZERO)
        });
        Self {
            now: Duration::ZERO,
            ends,
            addresses,
            loss: 0.0,
            jitter: Duration::ZERO,
            udp_bytes_max: 1472,
            silent: [false; 2],
            sent: 0,
            settings,
            chance,
            flying: Vec::new(),
            heard: Default::default(),
            dropped: [None; 2],
            numbers: [0; 2],
            lives: [0; 2],
        }
    }

    /// Another life of one end.
    pub fn restart(&mut self, end: usize) -> Life {
        let random = Box::new(Seeded::new(self.chance.next()));
        let fresh = Secure::new(self.settings[end].clone(), random, self.now);
        self.put_back(end, (fresh, 0, 0))
    }

    /// Another life of an end; the one that there was.
    pub fn put_back(&mut self, end: usize, life: Life) -> Life {
        let (secure, number, peer_life) = life;
        (
            std::mem::replace(&mut self.ends[end], secure),
            std::mem::replace(&mut self.numbers[end], number),
            std::mem::replace(&mut self.lives[end], peer_life),
        )
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.flush(A);
            self.flush(B);
            let arrival = self.flying.iter().map(|it| it.at).min();
            let awake = [A, B].into_iter().filter(|end| !self.silent[*end]);
            let wake = awake.filter_map(|end| self.ends[end].wake_at()).min();
            let next = arrival.into_iter().chain(wake).min().unwrap_or(until);
            assert!(next > self.now || arrival.is_some_and(|at| at <= self.now), "it never sleeps");
            if next > until {
                break;
            }
            self.now = self.now.max(next);
            self.arrive();
        }
        self.now = until;
    }

    fn arrive(&mut self) {
        let now = self.now;
        let due: Vec<Flying> = self.flying.extract_if(.., |it| it.at <= now).collect();
        for Flying { from, to, bytes, .. } in due {
            if let Some(end) = [A, B].into_iter().find(|end| self.addresses[*end] == to) {
                let _ = self.give(end, from, bytes);
            }
        }
    }

    /// Hands a datagram to an end.
    pub fn give(
        &mut self,
        end: usize,
        from: SocketAddr,
        mut bytes: Vec<u8>,
    ) -> Result<(), Dropped> {
        if self.silent[end] {
            return Ok(());
        }
        let heard = self.ends[end].handle_datagram(from, &mut bytes, self.now);
        let result = match heard {
            Ok(Heard::Data { plaintext, .. }) => {
                self.heard[end].push(plaintext.to_vec());
                Ok(())
            }
            Ok(Heard::Own) => Ok(()),
            Err(why) => {
                self.dropped[end] = Some(why);
                Err(why)
            }
        };
        // A machine whose peer is new counts anew.
        if self.ends[end].peer_life() != self.lives[end] {
            (self.lives[end], self.numbers[end]) = (self.ends[end].peer_life(), 0);
        }
        result
    }

    /// Puts on their way what an end has to say by itself.
    pub fn flush(&mut self, end: usize) {
        let is_silent = self.silent[end] && self.ends[end].wake_at() != Some(Duration::ZERO);
        while !is_silent
            && let Some(ToSend { to, bytes }) = self.ends[end].poll(self.now, BEGUN + self.now)
        {
            self.fly(end, to, bytes);
            if self.silent[end] {
                break;
            }
        }
    }

    /// Seals a datagram as an end's machine would.
    pub fn seal(&mut self, end: usize, text: &[u8]) -> Vec<u8> {
        let mut buffer = [&[0; HEADER_BYTES], text].concat();
        let number = self.numbers[end];
        self.numbers[end] += 1;
        let to = self.ends[end].seal(number, &mut buffer, 0, self.now);
        assert!(to.is_some(), "end {end} has no session");
        buffer
    }

    /// Has an end say something.
    pub fn say(&mut self, end: usize, text: &[u8]) {
        let Some(to) = self.ends[end].standing(self.now).peer_address else { return };
        if self.ends[end].is_ready(self.now) {
            let bytes = self.seal(end, text);
            self.fly(end, to, bytes);
        }
    }

    fn fly(&mut self, end: usize, to: SocketAddr, bytes: Vec<u8>) {
        self.sent += 1;
        if self.chance.share() >= self.loss && bytes.len() <= self.udp_bytes_max {
            let delay = ONE_WAY + self.jitter.mul_f64(self.chance.share());
            self.flying.push(Flying { at: self.now + delay, from: self.addresses[end], to, bytes });
        }
    }

    /// What an end has heard since the last question.
    pub fn heard(&mut self, end: usize) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.heard[end])
    }

    pub fn last_dropped(&self, end: usize) -> Option<Dropped> {
        self.dropped[end]
    }

    /// Both say something in turn, and the other hears it.
    pub fn chat(&mut self, times: u32) {
        for turn in 0..times {
            for (end, other) in [(A, B), (B, A)] {
                self.say(end, &turn.to_be_bytes());
                self.run(ONE_WAY + self.jitter + Duration::from_millis(1));
                assert_eq!(
                    self.heard(other),
                    [turn.to_be_bytes().to_vec()],
                    "turn {turn} of {end}"
                );
            }
        }
    }
}
