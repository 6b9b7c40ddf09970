//! The primary's server as a process: one step at a time, at most one record per
//! step, so that a crash can be placed between any two.

use crate::outputs::KEY;
use crate::profile::At;
use crate::world::{Event, World};
use holdfast_replica::Nanos;
use holdfast_wire::hash::hash;
use holdfast_wire::log::{AcceptInfo, Header, LAZY, Op, TAPPED, record_len};
use holdfast_wire::message::ConnId;
use zerocopy::IntoBytes;

/// Once in so many steps the server does nothing for up to this long.
const PAUSE_ONE_IN: u64 = 12;
const PAUSE_MAX_NS: u64 = 25_000_000;

/// What the model server does next; at most one record per step.
pub enum Doing {
    Idle,
    Clock(u32, Vec<Vec<u8>>),
    Intent(u32, Vec<u8>),
    Write(u32, Vec<u8>, u64),
    Written(u32, usize),
    Close(u32),
    Fin(u32, u64),
}

impl World {
    /// Appends a record; false if the victim died at this boundary.
    fn log(&mut self, op: Op, accept: u32, flags: u8, ret: i64, hash: u64, payload: &[u8]) -> bool {
        let header = Header {
            payload_len: payload.len() as u32,
            op: op as u8,
            flags,
            tid: 0,
            fd: 0,
            conn: accept,
            ret,
            hash,
        };
        let at = self.primary.log.len();
        self.primary.log.extend_from_slice(header.as_bytes());
        self.primary.log.extend_from_slice(payload);
        self.primary.log.resize(at + record_len(payload.len()), 0);
        self.primary.records += 1;
        let delay = self.rng.below(30_000);
        self.schedule(delay, Event::Daemon);
        self.crash_if(At::Record(self.primary.records));
        self.primary.server_alive
    }

    fn is_stable(&self, pos: u64) -> bool {
        !self.profile.commit || self.primary.stable >= pos
    }

    pub fn server_step(&mut self) {
        if !self.primary.server_alive || self.now < self.primary.busy_until {
            return;
        }
        if self.rng.one_in(PAUSE_ONE_IN) {
            let pause = self.rng.below(PAUSE_MAX_NS);
            self.primary.busy_until = self.now.plus(Nanos(pause));
            return self.schedule(pause, Event::Server);
        }
        let tail = self.primary.log.len() as u64;
        let next = match std::mem::replace(&mut self.primary.doing, Doing::Idle) {
            Doing::Idle => self.server_choose(),
            Doing::Clock(accept, requests) => {
                let clock = self.now.0;
                self.log(Op::Clock, 0, 0, 0, 0, &clock.to_le_bytes());
                Doing::Intent(accept, self.primary.app.execute(&requests, clock))
            }
            Doing::Intent(accept, output) => {
                self.log(Op::Intent, accept, 0, output.len() as i64, hash(&KEY, &output), &[]);
                Doing::Write(accept, output, self.primary.log.len() as u64)
            }
            Doing::Write(accept, output, pos) if self.is_stable(pos) => {
                self.server_write(accept, &output)
            }
            Doing::Written(accept, len) => {
                self.log(Op::Written, accept, LAZY, len as i64, 0, &[]);
                Doing::Idle
            }
            Doing::Close(accept) => {
                self.log(Op::Close, accept, 0, 0, 0, &[]);
                Doing::Fin(accept, self.primary.log.len() as u64)
            }
            Doing::Fin(accept, pos) if self.is_stable(pos) => self.server_fin(accept),
            waiting => {
                self.primary.doing = waiting;
                return;
            }
        };
        let idle = matches!(next, Doing::Idle) && tail == self.primary.log.len() as u64;
        self.primary.doing = next;
        if !idle && self.primary.server_alive {
            let delay = 1_000 + self.rng.below(20_000);
            self.schedule(delay, Event::Server);
        }
    }

    fn server_write(&mut self, accept: u32, output: &[u8]) -> Doing {
        let id = self.primary.accepts[&accept];
        let mut packets = Vec::new();
        let depends = self.primary.records;
        if let Some(socket) = self.primary.sockets.get_mut(&id) {
            socket.write(output, depends, &mut packets);
        }
        self.send_from_primary(packets);
        Doing::Written(accept, output.len())
    }

    fn server_fin(&mut self, accept: u32) -> Doing {
        let id = self.primary.accepts[&accept];
        let mut packets = Vec::new();
        let depends = self.primary.records;
        if let Some(socket) = self.primary.sockets.get_mut(&id) {
            socket.closed = true;
            if self.primary.fin_allowed.contains(&id) || !self.profile.commit {
                socket.send_fin(depends, &mut packets);
            } else {
                self.failures.push("stable before the FIN was allowed".to_owned());
            }
        }
        self.send_from_primary(packets);
        Doing::Idle
    }

    fn server_choose(&mut self) -> Doing {
        if let Some(id) = self.primary.queue.pop_front() {
            self.server_accept(id);
            return Doing::Idle;
        }
        let ready: Vec<(u32, ConnId)> = self
            .primary
            .accepts
            .iter()
            .map(|(a, id)| (*a, *id))
            .filter(|(_, id)| self.primary.sockets[id].is_readable())
            .collect();
        if ready.is_empty() {
            return Doing::Idle;
        }
        let (accept, id) = ready[self.rng.below(ready.len() as u64) as usize];
        let Some(socket) = self.primary.sockets.get_mut(&id) else { return Doing::Idle };
        if socket.unread.is_empty() {
            socket.eof_read = true;
            self.log(Op::Read, accept, TAPPED, 0, 0, &[]);
            return Doing::Close(accept);
        }
        let len = 1 + self.rng.below(socket.unread.len() as u64) as usize;
        let bytes = socket.take(len);
        self.log(Op::Read, accept, TAPPED, len as i64, hash(&KEY, &bytes), &bytes);
        let requests = self.primary.app.read(accept, &bytes);
        if requests.is_empty() { Doing::Idle } else { Doing::Clock(accept, requests) }
    }

    fn server_accept(&mut self, id: ConnId) {
        let accept = self.primary.accepts.len() as u32 + 1;
        let Some(socket) = self.primary.sockets.get_mut(&id) else { return };
        socket.accept = Some(accept);
        let info = AcceptInfo {
            local: socket.key.server,
            peer: socket.key.client,
            local_port: socket.key.server_port,
            peer_port: socket.key.client_port,
            conn_id: id.0,
            ..AcceptInfo::default()
        };
        self.primary.accepts.insert(accept, id);
        self.log(Op::Accept, accept, 0, i64::from(accept) + 10, 0, info.as_bytes());
    }
}
