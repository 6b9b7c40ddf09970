//! The server as a process under the shim: it records on the primary, replays on the
//! backup, and is live once it runs alone. A step appends or replays at most one record, so
//! that a crash can happen between any two. Models the shim's `base/log.rs`,
//! `base/park.rs`, `calls/input.rs` and `calls/output.rs`.

mod copy;

use crate::app::{Clocks, PerConn, Shared};
use holdfast_replica::promotion::ManifestConn;
use holdfast_wire::buffering::Buffering;
use holdfast_wire::hash::{HashKey, hash};
use holdfast_wire::log::{AcceptInfo, Header, LAZY, Op, TAPPED, record_len};
use holdfast_wire::message::ConnKey;
use holdfast_wire::time::added;
use std::collections::{BTreeMap, VecDeque};
use zerocopy::{FromBytes, IntoBytes};

/// The group's secret key, the same in all runs.
pub const KEY: HashKey = [11, 22, 33, 44, 55, 66, 77, 88];
/// `-ECONNRESET`.
pub const RESET: i64 = -104;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Record,
    Replay,
    /// The server runs alone: nothing is logged, and nothing waits.
    Live,
}

/// What the process does next. The first number is the connection's, in the order of
/// accept().
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Idle,
    Clock(u32),
    Intent(u32),
    Write(u32),
    Written(u32, u64),
    Shutdown(u32),
    /// Waits until the log is stable up to here, then tells the kernel.
    EndSending(u32, u64),
    Close(u32),
    LetGo(u32, u64),
}

/// One connection of the process.
#[derive(Clone, Debug)]
pub struct Conn {
    pub key: ConnKey,
    pub app: PerConn,
    /// Output that the kernel has not taken.
    pub pending: Vec<u8>,
    /// Whether the sending side is shut down once `pending` is written.
    pub end: bool,
    pub eof: bool,
    pub shut: bool,
    pub open: bool,
    pub in_bytes: u64,
    pub out_bytes: u64,
    /// A replica's output from `keep_from` on, which its client may lack.
    pub kept: VecDeque<u8>,
    /// Offset of `kept` in the output stream, in bytes.
    pub keep_from: u64,
    gone: bool,
}

/// The server; see the module.
#[derive(Clone, Debug)]
pub struct Server {
    /// Unique number of this process, from 1.
    pub number: u32,
    pub alive: bool,
    pub mode: Mode,
    pub shared: Shared,
    pub conns: BTreeMap<u32, Conn>,
    pub doing: Doing,
    pub accepts: u32,
    /// The last clocks in the log.
    last_clocks: Option<Clocks>,
    /// What a promoted server adds to its host's clocks, so that they never run backwards.
    added: Clocks,
    pub log: Vec<u8>,
    pub records: u64,
    /// End of the last record that output waits for, as a byte offset in the log; and the
    /// number of records up to the last one on which it depends. With output commit both
    /// name the same record.
    pub dirty: (u64, u64),
    pub stable: u64,
    /// End of the log when its daemon was last told of it.
    pub announced: u64,
    /// Whether output waits until the records on which it depends are stable: always, except
    /// during a join.
    pub commits: bool,
    /// Which records output waits for.
    pub buffering: Buffering,
    pub ring_bytes: u64,
    ring: VecDeque<(Header, Vec<u8>)>,
    pub appended: u64,
    pub executed: u64,
    /// Number of records that the replica's ring has taken.
    pub taken: u64,
    pub log_ended: bool,
    pub parked: bool,
    pub diverged: Option<String>,
    /// Whether it hangs forever, without an error.
    pub hung: bool,
    /// Whether its shim cannot continue recording.
    pub broken: bool,
    /// Whether it falls at the end of its log.
    pub falls_at_end: bool,
    /// A mutation: the replica executes a request twice.
    pub twice: bool,
}

impl Server {
    pub fn new(number: u32, mode: Mode, ring_bytes: u64) -> Self {
        Self {
            number,
            alive: true,
            mode,
            shared: Shared::default(),
            conns: BTreeMap::new(),
            doing: Doing::Idle,
            accepts: 0,
            last_clocks: None,
            added: [0; 2],
            log: Vec::new(),
            records: 0,
            dirty: (0, 0),
            stable: 0,
            announced: 0,
            commits: true,
            buffering: Buffering::Commit,
            ring_bytes,
            ring: VecDeque::new(),
            appended: 0,
            executed: 0,
            taken: 0,
            log_ended: false,
            parked: false,
            diverged: None,
            hung: false,
            broken: false,
            falls_at_end: false,
            twice: false,
        }
    }

    pub fn tail(&self) -> u64 {
        self.log.len() as u64
    }

    /// Whether the ring has room for another record (the shim's
    /// `wait_for_space`).
    pub fn has_room(&self) -> bool {
        self.mode != Mode::Record || self.tail() - self.stable + 4096 <= self.ring_bytes
    }

    /// Appends a record, while recording.
    pub fn append(&mut self, op: Op, accept: u32, flags: u8, ret: i64, payload: &[u8]) {
        if self.mode != Mode::Record {
            return;
        }
        let hashed = if op == Op::Intent {
            self.conns.get(&accept).map_or(0, |conn| hash(&KEY, &conn.pending))
        } else if flags & TAPPED != 0 && ret > 0 {
            hash(&KEY, payload)
        } else {
            0
        };
        let header = Header {
            payload_len: payload.len() as u32,
            op: op as u8,
            flags,
            tid: 0,
            fd: 0,
            conn: accept,
            ret,
            hash: hashed,
        };
        let at = self.log.len();
        self.log.extend_from_slice(header.as_bytes());
        self.log.extend_from_slice(payload);
        self.log.resize(at + record_len(payload.len()), 0);
        self.records += 1;
        if self.buffering.waits_for(op, flags) {
            self.dirty.0 = self.tail();
        }
        if flags & LAZY == 0 {
            self.dirty.1 = self.records;
        }
    }

    /// Adds a connection that the server has accepted.
    pub fn accepted(&mut self, key: ConnKey, accept: u32) {
        self.accepts = self.accepts.max(accept);
        let conn = Conn {
            key,
            app: PerConn::default(),
            pending: Vec::new(),
            end: false,
            eof: false,
            shut: false,
            open: true,
            in_bytes: 0,
            out_bytes: 0,
            kept: VecDeque::new(),
            keep_from: 0,
            gone: false,
        };
        self.conns.insert(accept, conn);
    }

    /// Handles a read of the server: bytes, the end of the stream (no bytes), or a reset
    /// (`ret` is [`RESET`]).
    pub fn took(&mut self, accept: u32, bytes: &[u8], ret: i64) {
        let Some(conn) = self.conns.get_mut(&accept) else { return };
        conn.in_bytes += bytes.len() as u64;
        if ret <= 0 {
            conn.eof = true;
            if ret < 0 {
                conn.pending.clear();
            }
            self.doing = if conn.pending.is_empty() { Doing::Close(accept) } else { Doing::Idle };
        } else if conn.app.read(bytes) {
            self.doing = Doing::Clock(accept);
        }
    }

    /// The clocks that the server sees when its host's are `own`.
    pub fn clocks(&self, own: Clocks) -> Clocks {
        [own[0] + self.added[0], own[1] + self.added[1]]
    }

    /// Promotes a replica (the shim's `continue_from_log`), when its host's clocks are
    /// `own`. The kernel already has the output that the replica has kept.
    pub fn goes_live(&mut self, own: Option<Clocks>) {
        self.mode = Mode::Live;
        self.conns.retain(|_, conn| conn.open);
        if let (Some(last), Some(own)) = (self.last_clocks, own) {
            self.added = [0, 1].map(|clock| added(last[clock], own[clock], clock == 1));
        }
    }

    /// Executes the complete requests, now that the time is known.
    pub fn execute(&mut self, accept: u32, clocks: Clocks) {
        let last = self.last_clocks.get_or_insert(clocks);
        *last = [0, 1].map(|clock| last[clock].max(clocks[clock]));
        let Some(conn) = self.conns.get_mut(&accept) else { return };
        if std::mem::take(&mut self.twice) {
            self.shared.counter += 1;
        }
        let (output, end) = conn.app.execute(&mut self.shared, clocks);
        conn.pending.extend(output);
        conn.end |= end;
        self.doing = Doing::Intent(accept);
    }

    /// Handles a write: the kernel has taken `n` of the pending bytes.
    pub fn wrote(&mut self, accept: u32, n: u64) {
        let Some(conn) = self.conns.get_mut(&accept) else { return };
        let n = (n as usize).min(conn.pending.len());
        let left = conn.pending.split_off(n);
        let bytes = std::mem::replace(&mut conn.pending, left);
        if self.mode == Mode::Replay && !conn.gone {
            conn.kept.extend(bytes);
        }
        conn.out_bytes += n as u64;
        self.doing = match conn {
            Conn { pending, .. } if !pending.is_empty() => Doing::Idle,
            Conn { end: true, shut: false, .. } => Doing::Shutdown(accept),
            Conn { eof: true, open: true, .. } => Doing::Close(accept),
            _ => Doing::Idle,
        };
    }

    /// Handles a shutdown of the sending side; sets the next step.
    pub fn shut(&mut self, accept: u32) {
        let conn = self.conns.get_mut(&accept);
        let close = conn.is_some_and(|conn| {
            conn.shut = true;
            conn.eof && conn.open
        });
        self.doing = if close { Doing::Close(accept) } else { Doing::Idle };
    }

    pub fn closed(&mut self, accept: u32) {
        self.doing = Doing::Idle;
        if let Some(conn) = self.conns.get_mut(&accept) {
            conn.open = false;
            if conn.gone || self.mode != Mode::Replay {
                self.conns.remove(&accept);
            }
        }
    }

    /// Adds a record to the replica's ring; false if the ring is full.
    pub fn replay(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        let payload = payload.concat();
        let len = record_len(payload.len()) as u64;
        if self.appended - self.executed + len > self.ring_bytes {
            return false;
        }
        self.appended += len;
        self.taken += 1;
        self.ring.push_back((*header, payload));
        true
    }

    /// Drops kept output: the client has acknowledged everything before offset `bytes`.
    pub fn acked(&mut self, accept: u32, bytes: u64) {
        let Some(conn) = self.conns.get_mut(&accept) else { return };
        let drop = bytes.saturating_sub(conn.keep_from).min(conn.kept.len() as u64);
        conn.kept.drain(..drop as usize);
        conn.keep_from += drop;
    }

    pub fn gone(&mut self, accept: u32) {
        let Some(conn) = self.conns.get_mut(&accept) else { return };
        conn.gone = true;
        if !conn.open {
            self.conns.remove(&accept);
        }
    }

    /// Executes one record; false if there is nothing to do now.
    pub fn replay_step(&mut self) -> bool {
        if self.diverged.is_some() || self.parked || self.hung {
            return false;
        }
        let Some((header, payload)) = self.ring.pop_front() else {
            self.alive &= !(self.log_ended && self.falls_at_end);
            return self.alive && self.log_ended && self.run_on();
        };
        self.executed += record_len(payload.len()) as u64;
        if let Err(reason) = self.replay_record(&header, &payload) {
            self.diverged = Some(reason);
        }
        true
    }

    fn replay_record(&mut self, header: &Header, payload: &[u8]) -> Result<(), String> {
        let accept = header.conn;
        let op = Op::from_u8(header.op).unwrap_or(Op::Pad);
        match (op, self.doing) {
            (Op::Accept, Doing::Idle) => {
                let Ok((info, _)) = AcceptInfo::read_from_prefix(payload) else {
                    return Err("an accept without an address".to_owned());
                };
                let key = ConnKey {
                    server: info.local,
                    client: info.peer,
                    server_port: info.local_port,
                    client_port: info.peer_port,
                };
                self.accepted(key, accept);
            }
            (Op::Read, Doing::Idle) => {
                if header.ret > 0 && hash(&KEY, payload) != header.hash {
                    return Err("a read with other bytes than the primary's".to_owned());
                }
                self.took(accept, payload, header.ret);
            }
            (Op::Clock, Doing::Clock(conn)) => {
                let Ok((clocks, _)) = <Clocks>::read_from_prefix(payload) else {
                    return Err("a clock without a time".to_owned());
                };
                self.execute(conn, clocks);
            }
            (Op::Result, Doing::Idle) => self.doing = Doing::Intent(accept),
            (Op::Intent, Doing::Intent(_)) => {
                let pending = self.conns.get(&accept).map_or(&[][..], |conn| &conn.pending);
                if hash(&KEY, pending) != header.hash {
                    return Err(format!("accept {accept} writes other bytes than the primary"));
                }
                self.doing = Doing::Write(accept);
            }
            (Op::Written, Doing::Write(_)) => self.wrote(accept, header.ret as u64),
            (Op::Shutdown, Doing::Shutdown(_)) => self.shut(accept),
            (Op::Close, Doing::Close(_)) => self.closed(accept),
            (op, doing) => return Err(format!("{op:?} in the log, the replica does {doing:?}")),
        }
        Ok(())
    }

    /// The log has ended: lets the replica run on, keeping its output, up to its first call
    /// whose result the log does not have; there it waits (the shim's `base/park.rs`).
    fn run_on(&mut self) -> bool {
        if let Doing::Intent(accept) | Doing::Write(accept) = self.doing {
            let pending = self.conns.get(&accept).map_or(0, |conn| conn.pending.len());
            self.wrote(accept, pending as u64);
        } else {
            self.parked = true;
        }
        true
    }

    /// Number of connections for which it has a descriptor, or (a replica) output that a
    /// client may lack.
    pub fn conns_held(&self) -> usize {
        let replays = self.mode == Mode::Replay;
        self.conns.values().filter(|conn| conn.open || replays).count()
    }

    /// The table that promotion reads (`daemon/backup/sockets.rs`: `manifest`).
    pub fn manifest(&self) -> Vec<ManifestConn> {
        let entry = |(accept, conn): (&u32, &Conn)| ManifestConn {
            accept: *accept,
            open: conn.open,
            fd: *accept as i32 + 10,
            in_bytes: conn.in_bytes,
            out_bytes: conn.out_bytes,
            keep_from: if conn.gone { u64::MAX } else { conn.keep_from },
            shut: u32::from(conn.shut),
            eof: conn.eof,
        };
        self.conns.iter().map(entry).collect()
    }

    /// The kept output in `[from, to)`, as offsets in the output stream.
    pub fn retained(&self, accept: u32, from: u64, to: u64) -> Vec<u8> {
        let Some(conn) = self.conns.get(&accept) else { return Vec::new() };
        let at = |offset: u64| (offset - conn.keep_from) as usize;
        conn.kept.range(at(from)..at(to)).copied().collect()
    }
}
