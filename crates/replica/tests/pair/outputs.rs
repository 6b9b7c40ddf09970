//! The machines' outputs: collected, then applied by the world. And the model
//! replica, which executes what the backup's machine replays.

use crate::check::Checker;
use crate::kernel::Socket;
use crate::server::App;
use holdfast_replica::Broken;
use holdfast_replica::backup::BackupOutput;
use holdfast_replica::primary::{Peeked, PrimaryOutput, Wanted};
use holdfast_replica::promotion::ManifestConn;
use holdfast_wire::hash::hash;
use holdfast_wire::log::{AcceptInfo, Header, Op};
use holdfast_wire::message::{ConnId, ConnKey, Message};
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeMap;
use zerocopy::FromBytes;

pub const KEY: [u64; 8] = [11, 22, 33, 44, 55, 66, 77, 88];

pub enum PrimaryEffect {
    Send(Vec<u8>),
    Open(ConnId),
    Advance(ConnId, SeqNo),
    Stable(u64),
    AllowFin(ConnId),
    Failed(String),
}

pub struct PrimaryCollector<'a> {
    pub log: &'a [u8],
    pub sockets: &'a BTreeMap<ConnId, Socket>,
    pub effects: Vec<PrimaryEffect>,
}

fn encode(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

impl PrimaryOutput for PrimaryCollector<'_> {
    fn send(&mut self, message: &Message<'_>) {
        self.effects.push(PrimaryEffect::Send(encode(message)));
    }
    fn open(&mut self, conn: ConnId) {
        self.effects.push(PrimaryEffect::Open(conn));
    }
    fn refuse(&mut self, conn: ConnId) {
        self.effects.push(PrimaryEffect::Failed(format!("{conn:?} refused")));
    }
    fn advance(&mut self, conn: ConnId, stable: SeqNo) {
        self.effects.push(PrimaryEffect::Advance(conn, stable));
    }
    fn stable(&mut self, pos: u64) {
        self.effects.push(PrimaryEffect::Stable(pos));
    }
    fn allow_fin(&mut self, conn: ConnId) {
        self.effects.push(PrimaryEffect::AllowFin(conn));
    }
    fn read_log(&mut self, pos: u64, len: usize, into: &mut Vec<u8>) -> bool {
        into.clear();
        let bytes = self.log.get(pos as usize..pos as usize + len);
        into.extend_from_slice(bytes.unwrap_or_default());
        bytes.is_some()
    }
    fn peek(&mut self, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked {
        let socket = self.sockets.get(&wanted.conn);
        let Some(socket) = socket.filter(|socket| socket.accept == Some(wanted.accept)) else {
            return Peeked::Nothing;
        };
        socket.peek(wanted.from, wanted.until, into)
    }
    fn broken(&mut self, reason: &Broken) {
        self.effects.push(PrimaryEffect::Failed(reason.to_string()));
    }
}

/// One connection of the replica.
#[derive(Debug)]
pub struct ReplicaConn {
    pub key: ConnKey,
    pub in_bytes: u64,
    pub out: Vec<u8>,
    pub open: bool,
    pub eof: bool,
    pub acked: u64,
}

/// The same server as the primary's, fed by the log.
#[derive(Debug, Default)]
pub struct Replica {
    pub app: App,
    pub conns: BTreeMap<u32, ReplicaConn>,
    /// Requests read, whose clock is not in the log yet.
    pub pending: Option<(u32, Vec<Vec<u8>>)>,
    /// End of stream read, close not in the log yet.
    pub closing: Option<u32>,
    output: Vec<u8>,
    pub clock: u64,
    pub failures: Vec<String>,
}

impl Replica {
    fn take(&mut self, header: &Header, payload: &[u8]) {
        match Op::from_u8(header.op) {
            Some(Op::Accept) => {
                let (info, _) =
                    AcceptInfo::read_from_prefix(payload).expect("an accept has its address");
                let key = ConnKey {
                    server: info.local,
                    client: info.peer,
                    server_port: info.local_port,
                    client_port: info.peer_port,
                };
                let conn = ReplicaConn {
                    key,
                    in_bytes: 0,
                    out: Vec::new(),
                    open: true,
                    eof: false,
                    acked: 0,
                };
                self.conns.insert(header.conn, conn);
            }
            Some(Op::Read) => self.read(header, payload),
            Some(Op::Clock) => {
                self.clock = u64::from_le_bytes(payload[..8].try_into().expect("a clock"));
                if let Some((accept, requests)) = self.pending.take() {
                    self.output = self.app.execute(&requests, self.clock);
                    self.conns.get_mut(&accept).expect("accepted").out.extend(&self.output);
                }
            }
            Some(Op::Intent) if hash(&KEY, &self.output) != header.hash => {
                self.failures.push("the replica intends another write than the primary".to_owned());
            }
            Some(Op::Close) => {
                self.closing = None;
                self.conns.get_mut(&header.conn).expect("accepted").open = false;
            }
            _ => {}
        }
    }

    fn read(&mut self, header: &Header, payload: &[u8]) {
        let conn = self.conns.get_mut(&header.conn).expect("accepted");
        if header.ret == 0 {
            conn.eof = true;
            self.closing = Some(header.conn);
            return;
        }
        if payload.len() as i64 != header.ret || hash(&KEY, payload) != header.hash {
            self.failures.push("a read was replayed with other bytes".to_owned());
        }
        conn.in_bytes += payload.len() as u64;
        let requests = self.app.read(header.conn, payload);
        if !requests.is_empty() {
            self.pending = Some((header.conn, requests));
        }
    }

    pub fn manifest(&self) -> Vec<ManifestConn> {
        let entry = |(accept, conn): (&u32, &ReplicaConn)| ManifestConn {
            accept: *accept,
            open: conn.open,
            fd: *accept as i32 + 10,
            in_bytes: conn.in_bytes,
            out_bytes: conn.out.len() as u64,
            keep_from: conn.acked.min(conn.out.len() as u64),
            shut: 0,
            eof: conn.eof,
        };
        self.conns.iter().map(entry).collect()
    }
}

pub struct BackupCollector<'a> {
    pub replica: &'a mut Replica,
    pub checker: &'a mut Checker,
    /// The ring refuses the next record.
    pub full: bool,
    pub refused: bool,
    pub sent: Vec<Vec<u8>>,
    pub server_died: bool,
    pub log_ended: bool,
    pub failed: Option<String>,
}

impl BackupOutput for BackupCollector<'_> {
    fn send(&mut self, message: &Message<'_>) {
        self.sent.push(encode(message));
    }
    fn replay(&mut self, header: &Header, payload: &[&[u8]]) -> bool {
        if std::mem::take(&mut self.full) {
            self.refused = true;
            return false;
        }
        if self.refused {
            return false;
        }
        let payload = payload.concat();
        self.checker.replayed += 1;
        if let (Some(Op::Read), Some(conn)) =
            (Op::from_u8(header.op), self.replica.conns.get(&header.conn))
        {
            self.checker.arrives_at(&conn.key, conn.in_bytes, payload.len() as u64);
        }
        self.replica.take(header, &payload);
        true
    }
    fn acked(&mut self, accept: u32, bytes: u64) {
        let conn = self.replica.conns.get_mut(&accept);
        conn.expect("only accepted connections are acknowledged").acked = bytes;
    }
    fn gone(&mut self, accept: u32) {
        self.replica.conns.remove(&accept);
    }
    fn server_died(&mut self) {
        self.server_died = true;
    }
    fn log_ended(&mut self) {
        self.log_ended = true;
    }
    fn broken(&mut self, reason: &Broken) {
        self.failed = Some(reason.to_string());
    }
}
