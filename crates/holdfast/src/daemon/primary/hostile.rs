//! A server process that writes over the memory that it shares with its daemon, while that reads
//! its log: the log goes through both members' machines into a replica's memory that is written
//! over, too. Nothing may panic, be read outside of the memory, or be kept without a limit.
//!
//! `HOLDFAST_HOSTILE=N` plays N lives, `HOLDFAST_SEED=S` begins with seed S.

use crate::daemon::backup::sockets::manifest;
use holdfast_chance::Rng;
use holdfast_linux::shm::{Settings, SharedMemory};
use holdfast_replica::backup::{Backup, BackupOutput};
use holdfast_replica::limits::{Limits, PrimaryLimits};
use holdfast_replica::primary::{FRAMES_UNCONFIRMED_MAX, Peeked, Primary, PrimaryOutput, Wanted};
use holdfast_replica::{Broken, Nanos};
use holdfast_wire::log::{AcceptInfo, Header, Op, TAPPED};
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord, Message};
use holdfast_wire::seq::SeqNo;
use holdfast_wire::shm::{HEADER_BYTES, RING_OFFSET, TABLE_BYTES, mode};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes as _;

/// Lives of a server in the test, and turns of its daemon in each.
const LIVES: u64 = 400;
const TURNS: u64 = 40;
const RING_BYTES: usize = 1 << 20;
/// Longest turn of the two machines with a full ring of the smallest records, on a busy machine.
const TURN_MAX: Duration = Duration::from_secs(5);
/// Offsets of words in the header that decide where things lie: mode, tail, open_at, head, stable
/// and what follows, up to the reason.
const WORDS: std::ops::Range<u64> = 64..1024;

fn memory(mode: u32) -> SharedMemory {
    let (hash_key, ports, name) = ([1; 8], vec![80], String::new());
    let settings = Settings { ring_bytes: RING_BYTES, hash_key, ports, options: 0, mode, name };
    SharedMemory::create(&settings).expect("memory")
}

/// What a server process has of the memory: it writes anywhere.
struct Intruder {
    file: File,
    rng: Rng,
}

impl Intruder {
    fn new(memory: &SharedMemory, rng: Rng) -> Self {
        let fd = memory.fd().try_clone_to_owned().expect("a descriptor");
        Self { file: File::from(fd), rng }
    }

    /// Small numbers, extreme ones, and those that look like positions break bounds.
    fn number(&mut self) -> u64 {
        match self.rng.below(6) {
            0 => self.rng.below(64),
            1 => u64::MAX - self.rng.below(64),
            2 => (1 << self.rng.below(64)) - self.rng.below(2),
            3 => self.rng.below(2 * RING_BYTES as u64) & !7,
            _ => self.rng.draw(),
        }
    }

    fn write(&mut self, place: u64, word: u64) {
        self.file.write_all_at(&word.to_ne_bytes(), place & !7).expect("it is written");
    }

    /// Writes a word into the ring, the table of connections, or the header.
    fn scribble(&mut self) {
        let place = match self.rng.below(8) {
            0 => self.rng.range(WORDS.start, WORDS.end),
            1 => self.rng.below(HEADER_BYTES as u64),
            2 | 3 => HEADER_BYTES as u64 + self.rng.below(TABLE_BYTES as u64 / 64),
            // Where the next records are likely to be.
            4..=6 => RING_OFFSET as u64 + self.rng.below(4096),
            _ => RING_OFFSET as u64 + self.rng.below(RING_BYTES as u64),
        };
        let word = self.number();
        self.write(place, word);
    }

    /// A record as a shim would write it, of any content.
    fn record(&mut self) -> (Header, Vec<u8>) {
        let known = (0..u8::MAX).take_while(|number| Op::from_u8(*number).is_some()).count();
        let unknown = u64::from(self.rng.one_in(50));
        let conns = if self.rng.one_in(9) { 6 } else { 1 << 30 };
        let op = self.rng.below(known as u64 + unknown);
        let mut payload = vec![0; self.rng.below(200) as usize];
        let number = self.number();
        payload.iter_mut().for_each(|byte| *byte = number as u8);
        if op == Op::Accept as u64 {
            let port = 1 + self.rng.below(4) as u16;
            let info = AcceptInfo {
                local: [1; 16],
                peer: [2; 16],
                local_port: 80,
                peer_port: port,
                conn_id: u64::from(port),
                ..AcceptInfo::default()
            };
            payload = info.as_bytes().to_vec();
        }
        let header = Header {
            op: op as u8,
            flags: if self.rng.one_in(40) { TAPPED } else { self.rng.below(8) as u8 & !TAPPED },
            fd: self.number() as i32,
            conn: self.rng.below(conns) as u32,
            ret: if self.rng.one_in(2) { payload.len() as i64 } else { self.number() as i64 },
            ..Header::default()
        };
        (header, payload)
    }
}

/// Both members.
struct Pair {
    server: SharedMemory,
    replica: SharedMemory,
    /// Messages to the backup, and to the primary.
    down: Vec<Vec<u8>>,
    up: Vec<Vec<u8>>,
    broken: bool,
    frames: usize,
}

impl Pair {
    fn new() -> Self {
        Self {
            server: memory(mode::RECORD),
            replica: memory(mode::REPLAY),
            down: Vec::new(),
            up: Vec::new(),
            broken: false,
            frames: 0,
        }
    }

    fn say(message: &Message<'_>, to: &mut Vec<Vec<u8>>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        to.push(bytes);
    }
}

impl PrimaryOutput for Pair {
    fn send(&mut self, message: &Message<'_>) {
        self.frames += usize::from(matches!(message, Message::Frame { .. }));
        Self::say(message, &mut self.down);
    }
    fn open(&mut self, _: ConnId) {}
    fn refuse(&mut self, _: ConnId) {}
    fn advance(&mut self, _: ConnId, _: SeqNo) {}
    fn stable(&mut self, pos: u64) {
        self.server.set_stable(pos);
    }
    fn allow_fin(&mut self, _: ConnId) {}
    fn read_log(&mut self, pos: u64, len: usize, into: &mut Vec<u8>) -> bool {
        *into = self.server.copy(pos, len);
        into.len() == len
    }
    fn peek(&mut self, _: &Wanted, _: &mut Vec<u8>) -> Peeked {
        Peeked::Nothing
    }
    fn broken(&mut self, _: &Broken) {
        self.broken = true;
    }
}

impl BackupOutput for Pair {
    fn send(&mut self, message: &Message<'_>) {
        Self::say(message, &mut self.up);
    }
    fn replay(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        self.replica.append(header, payload)
    }
    fn acked(&mut self, _: u32, _: u64) {}
    fn gone(&mut self, _: u32) {}
    fn server_died(&mut self) {}
    fn log_ended(&mut self) {}
    fn broken(&mut self, _: &Broken) {
        self.broken = true;
    }
}

fn conn(port: u16) -> ConnRecord {
    ConnRecord {
        key: ConnKey { server: [1; 16], client: [2; 16], server_port: 80, client_port: port },
        iss: SeqNo(1),
        irs: SeqNo(u32::MAX),
        mss: 1460,
        peer_mss: 1460,
        rcv_wscale: 7,
        snd_wscale: 7,
        sack: true,
        tsval: None,
        window: 1,
    }
}

/// Plays one life: the server writes records, and over them; both daemons take their turns. Returns
/// how many frames the backup was sent.
fn life(seed: u64) -> usize {
    let mut pair = Pair::new();
    let own = Intruder::new(&pair.server, Rng::new(seed, 1));
    let theirs = Intruder::new(&pair.replica, Rng::new(seed, 2));
    let mut beside = Intruder::new(&pair.server, Rng::new(seed, 3));
    let is_wild = AtomicBool::new(seed.is_multiple_of(2));
    let mut primary = Primary::with_limits(0, PrimaryLimits::DEFAULT);
    let mut backup = Backup::with_limits([1; 8], Limits::default());
    for port in 1..5 {
        primary.handle_synack(Nanos(0), ConnId(port), port, conn(port as u16), &mut pair);
    }
    std::thread::scope(|scope| {
        let wild = &is_wild;
        scope.spawn(move || {
            while wild.load(Relaxed) {
                (0..64).for_each(|_| beside.scribble());
            }
        });
        take_turns((own, theirs), (&mut primary, &mut backup), &mut pair);
        is_wild.store(false, SeqCst);
    });
    let last = Nanos::from_ms(TURNS);
    primary.handle_server_died(last, &mut pair);
    exchange(last, (&mut primary, &mut backup), &mut pair);
    backup.handle_peer_lost(last, &mut pair);
    backup.handle_timeout(Nanos::from_ms(10_000), &mut pair);
    pair.frames
}

fn take_turns(
    (mut own, mut theirs): (Intruder, Intruder),
    (primary, backup): (&mut Primary, &mut Backup),
    pair: &mut Pair,
) {
    let mut at = 0;
    for turn in 0..TURNS {
        let (now, begun) = (Nanos::from_ms(turn), Instant::now());
        write(&mut own, &pair.server);
        (0..theirs.rng.below(4)).for_each(|_| theirs.scribble());
        let Some(tail) = pair.server.take_tail(at) else { break };
        let bytes = pair.server.copy(at, (tail - at) as usize);
        primary.handle_log(now, std::mem::replace(&mut at, tail), &bytes, pair);
        exchange(now, (primary, backup), pair);
        assert!(primary.frames_unconfirmed() <= FRAMES_UNCONFIRMED_MAX);
        assert!(begun.elapsed() < TURN_MAX, "a turn ends");
        look(pair);
        if pair.broken {
            break;
        }
    }
}

/// The server's turn: records as they should be, and now and then anything anywhere.
fn write(own: &mut Intruder, server: &SharedMemory) {
    for _ in 0..own.rng.below(20) {
        let (header, payload) = own.record();
        let _room = server.append(&header, &[&payload]);
    }
    let spoils = if own.rng.one_in(4) { own.rng.below(3) } else { 0 };
    (0..spoils).for_each(|_| own.scribble());
}

fn exchange(now: Nanos, (primary, backup): (&mut Primary, &mut Backup), pair: &mut Pair) {
    while !pair.down.is_empty() || !pair.up.is_empty() {
        for bytes in std::mem::take(&mut pair.down) {
            let message = Message::decode(&bytes).expect("what a member says can be read");
            backup.handle_message(now, &message, pair);
        }
        backup.handle_executed(now, pair.replica.tail(), pair.replica.head());
        backup.handle_timeout(now, pair);
        backup.flush(now, pair);
        for bytes in std::mem::take(&mut pair.up) {
            let message = Message::decode(&bytes).expect("what a member says can be read");
            primary.handle_message(now, &message, pair);
        }
    }
}

/// What daemons look at besides the log.
fn look(pair: &Pair) {
    for memory in [&pair.server, &pair.replica] {
        let _ = (memory.moved(), memory.sockets(), memory.mode(), memory.unconsumed());
        assert!(memory.reason().len() <= 2048 && memory.listeners().len() <= 16);
        assert!(manifest(memory, &[0, 1, 2, 3, u32::MAX]).len() <= 5);
    }
}

#[test]
fn a_server_that_writes_over_its_memory_harms_no_daemon() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("HOLDFAST_SEED").unwrap_or(1);
    let lives = number("HOLDFAST_HOSTILE").unwrap_or(LIVES);
    let frames: usize = (first..first + lives).map(life).sum();
    assert!(frames as u64 > lives, "logs are read before they break: {frames} frames");
}
