//! A member's host: what its kernel does with packets, and the steps of its server's process.

use crate::check::Holder;
use crate::kernel::Socket;
use crate::packet::{ACK, NO_SCALING, Packet, Truth};
use crate::plan::Mutation;
use crate::server::{Conn, Doing, Mode, RESET, Server};
use crate::world::{EDGE, Event, NAMES, World};
use holdfast_wire::buffering::Buffering;
use holdfast_wire::log::{AcceptInfo, LAZY, Op, TAPPED};
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::Flags;
use holdfast_wire::seq::SeqNo;
use zerocopy::IntoBytes;

/// Value of [`Truth::depends`] for what no server asked for.
const NEVER_ASKED: u64 = u64::MAX;
/// A pausing server pauses at one step in this many.
const PAUSE_ONE_IN: u64 = 100;

impl World {
    /// Delivers a packet to a member's interface. The edge's copy is addressed to the member, too,
    /// so both take the same path.
    pub fn at_member(&mut self, member: usize, packet: Packet, _copy: bool) {
        let host = &mut self.hosts[member];
        if !host.alive {
            return;
        }
        if let Some(tap) = &mut host.tap {
            if tap.len() < self.plan.limits.tap_packets {
                tap.push_back(packet.clone());
            } else {
                self.reached.tap_lost += 1;
            }
            self.tap_rings(member);
        }
        let host = &self.hosts[member];
        if host.address && host.tap_drop != Some(false) {
            self.kernel_receives(member, &packet);
        }
    }

    /// Gives a packet to the host's TCP, from the wire or injected by its daemon.
    pub fn kernel_receives(&mut self, member: usize, packet: &Packet) {
        let now = self.time_at(member);
        let host = &mut self.hosts[member];
        let aimed = host.gate.as_mut().and_then(|gate| gate.ingress(packet));
        let aimed = aimed.map(|seq| Packet { seq, ..packet.clone() });
        let packet = aimed.as_ref().unwrap_or(packet);
        if packet.is(Flags::SYN) && !packet.is(ACK) {
            return self.kernel_takes_syn(member, packet);
        }
        let meant = |socket: &&mut Socket| !socket.is_not_meant(packet);
        let Some(socket) = host.sockets.get_mut(&packet.key).filter(meant) else {
            if !packet.is(Flags::RST) {
                self.answer_reset(member, packet);
            }
            return;
        };
        let was_established = socket.established;
        let due = socket.receive(now, packet);
        if socket.established && !was_established {
            host.backlog.push_back(packet.key);
        }
        let mut out = Vec::new();
        socket.push(now, &mut out);
        if due && out.is_empty() {
            out.push(socket.ack(now));
        }
        let gone = (socket.is_over() && socket.orphan && !socket.time_wait)
            || (socket.reset && !socket.established)
            || (socket.reset && socket.orphan);
        if gone {
            host.sockets.remove(&packet.key);
        }
        self.host_sends(member, out);
        self.wake_server(member);
    }

    fn kernel_takes_syn(&mut self, member: usize, syn: &Packet) {
        let now = self.time_at(member);
        let (wscale, buffer) = (self.plan.wscale, self.plan.receive_buffer);
        let near_wrap = self.clients.iter().any(|c| c.owns(&syn.key) && c.plan.near_wrap);
        let iss = match self.last_iss.get(&syn.key) {
            // RFC 9293 §3.4.1: the ISN clock has moved on since the last connection.
            Some(last) => last.plus(1_000_000 + self.rng.below(1_000_000)),
            None if near_wrap => SeqNo((self.rng.below(3000) as u32).wrapping_neg()),
            None => SeqNo(self.rng.draw() as u32),
        };
        let host = &mut self.hosts[member];
        if let Some(socket) = host.sockets.get_mut(&syn.key) {
            if socket.irs == syn.seq {
                let packet = socket.syn_ack(now);
                return self.host_sends(member, vec![packet]);
            }
            if !socket.is_over() {
                // RFC 5961 §4: a SYN for a living connection is challenged.
                let packet = socket.ack(now);
                return self.host_sends(member, vec![packet]);
            }
        }
        if !host.listening {
            return self.answer_reset(member, syn);
        }
        if self.is_listener_full(member) {
            // It is dropped: SYN cookies are off, because they could not be replicated.
            self.reached.syns_dropped += 1;
            return;
        }
        let host = &mut self.hosts[member];
        self.last_iss.insert(syn.key, iss);
        let mut socket = Socket::new(syn, iss, wscale, buffer, now);
        let packet = socket.syn_ack(now);
        host.sockets.insert(syn.key, socket);
        self.host_sends(member, vec![packet]);
    }

    /// Whether the listener's queue of handshakes, or of connections to accept, is full.
    fn is_listener_full(&mut self, member: usize) -> bool {
        let (now, max) = (self.time_at(member), self.plan.limits.backlog);
        let host = &mut self.hosts[member];
        let half_open = host.sockets.values().filter(|socket| !socket.established).count();
        let crowded = half_open * 2 > max;
        let expired = host.sockets.extract_if(.., |_, socket| socket.is_expired(now, crowded));
        expired.for_each(|(key, _)| self.check.handshake_ended(key));
        self.is_queue_full(member)
    }

    pub fn is_queue_full(&self, member: usize) -> bool {
        let (host, max) = (&self.hosts[member], self.plan.limits.backlog);
        let half_open = host.sockets.values().filter(|socket| !socket.established).count();
        half_open >= max || host.backlog.len() > max
    }

    /// Answers a packet that belongs to no connection (RFC 9293 §3.10.7.1).
    fn answer_reset(&mut self, member: usize, packet: &Packet) {
        let (seq, flags) =
            if packet.is(ACK) { (packet.ack, Flags::RST) } else { (SeqNo(0), Flags::RST | ACK) };
        let truth = Truth::default();
        let ack = packet.seq_end();
        let payload = [].into();
        let wscale = NO_SCALING;
        let rst = Packet { seq, ack, flags, window: 0, wscale, payload, truth, ..packet.clone() };
        self.host_sends(member, vec![rst]);
    }

    /// Sends packets out through the gate, if there is one, towards the edge.
    pub fn host_sends(&mut self, member: usize, packets: Vec<Packet>) {
        for packet in packets {
            let host = &mut self.hosts[member];
            // In the kernel a handshake has no full socket yet (`track_snd_una`).
            let socket = host.sockets.get(&packet.key).filter(|socket| socket.established);
            let una = socket.map(Socket::snd_una_seq);
            let packet = match &mut host.gate {
                Some(gate) => gate.egress(packet, una, &mut self.reached.gates),
                None => Some(packet),
            };
            if host.gate.as_ref().is_some_and(|gate| !gate.events.is_empty()) {
                self.wake_daemon_soon(member);
            }
            let Some(packet) = packet else { continue };
            if !self.links.is_cut(member, EDGE) {
                self.schedule(30_000, Event::FromMember { member, packet });
            }
        }
        self.arm_kernel(member);
    }

    pub fn arm_kernel(&mut self, member: usize) {
        let host = &mut self.hosts[member];
        let Some(at) = host.sockets.values().filter_map(Socket::timer).min() else { return };
        if host.kernel_timer.is_none_or(|known| at < known) {
            host.kernel_timer = Some(at);
            let at = host.clock.when(at).max(self.now);
            self.queue.push(at, Event::KernelTimer(member));
        }
    }

    pub fn kernel_timer(&mut self, member: usize) {
        let now = self.time_at(member);
        let host = &mut self.hosts[member];
        let due = host.kernel_timer.take_if(|at| host.alive && *at <= now);
        if due.is_none() {
            // The timer was set by an earlier clock, or is not needed any more.
            return;
        }
        let mut out = Vec::new();
        for socket in host.sockets.values_mut() {
            let mut own = Vec::new();
            socket.on_timer(now, &mut own);
            out.extend(own);
        }
        self.host_sends(member, out);
    }

    /// Kills the process. Its kernel closes the connections, behind the gate if there still is one.
    pub fn kill_server(&mut self, member: usize) {
        let now = self.time_at(member);
        let host = &mut self.hosts[member];
        let Some(server) = host.server.as_mut().filter(|server| server.alive) else { return };
        server.alive = false;
        let is_replica = server.mode == Mode::Replay;
        if !is_replica {
            host.listening = false;
            host.backlog.clear();
            let ending = match server.doing {
                Doing::LetGo(accept, _) | Doing::EndSending(accept, _) => Some(accept),
                _ => None,
            };
            let asked = Truth { server: server.number, depends: server.records };
            let mut out = Vec::new();
            let mut gone = Vec::new();
            for (key, socket) in host.sockets.iter_mut().filter(|(_, s)| !s.orphan) {
                let never = Truth { server: server.number, depends: NEVER_ASKED };
                let truth = if ending.is_some() && socket.accept == ending { asked } else { never };
                socket.orphan = true;
                if !socket.established {
                    gone.push(*key);
                } else if socket.unread.is_empty() {
                    socket.shutdown(truth);
                    socket.push(now, &mut out);
                } else {
                    // RFC 2525 §2.17: with unread data, a reset is sent instead of a FIN.
                    let ack = socket.ack(now);
                    out.push(Packet { flags: Flags::RST | ACK, truth, ..ack });
                    gone.push(*key);
                }
            }
            gone.iter().for_each(|key| drop(host.sockets.remove(key)));
            self.host_sends(member, out);
        }
        self.say(|| format!("{}: the server's process is dead", NAMES[member]));
        self.wake_daemon_soon(member);
    }

    // The server's process.

    pub fn start_server(&mut self, member: usize, mode: Mode) {
        self.servers += 1;
        let mut server = Server::new(self.servers, mode, self.plan.ring_bytes);
        server.buffering = self.plan.buffering;
        server.twice = mode == Mode::Replay && self.plan.mutation == Some(Mutation::CountTwice);
        self.hosts[member].server = Some(server);
        if mode != Mode::Replay {
            self.hosts[member].listening = true;
        }
        self.wake_server(member);
    }

    /// Lets a copied server go on here, with the log; `is_new`: the checkers do not know it yet.
    pub fn copy_starts(&mut self, member: usize, mut server: Server, is_new: bool) {
        self.servers += 1;
        server.number = self.servers;
        if is_new {
            self.check.copy_made(Holder::Backup, server.records);
        }
        self.hosts[member].server = Some(server);
        self.wake_server(member);
    }

    pub fn wake_server(&mut self, member: usize) {
        let host = &mut self.hosts[member];
        let Some(number) = host.server.as_ref().filter(|s| s.alive).map(|s| s.number) else {
            return;
        };
        let pause = self.plan.server_pause.filter(|_| {
            let mode = host.server.as_ref().map(|server| server.mode);
            mode != Some(Mode::Replay)
        });
        if !std::mem::replace(&mut host.server_wakes, true) {
            let slow = host.slow;
            let mut delay = (1_000 + self.rng.below(20_000)) * slow;
            if let Some(longest) = pause.filter(|_| self.rng.one_in(PAUSE_ONE_IN)) {
                delay += self.rng.below(longest);
            }
            self.schedule(delay, Event::Server(member, number));
        }
    }

    pub fn server_wakes(&mut self, member: usize, number: u32) {
        let host = &mut self.hosts[member];
        host.server_wakes = false;
        let Some(server) = host.server.as_mut().filter(|s| s.alive) else { return };
        if server.number != number {
            return self.wake_server(member);
        }
        let again = if server.mode == Mode::Replay {
            let before = (server.parked, server.diverged.is_some());
            let again = server.replay_step();
            if before != (server.parked, server.diverged.is_some()) {
                self.wake_daemon_soon(member);
            }
            again
        } else {
            !server.hung && self.server_step(member)
        };
        if again {
            self.wake_server(member);
        }
    }

    fn server(&mut self, member: usize) -> Option<&mut Server> {
        self.hosts[member].server.as_mut().filter(|server| server.alive)
    }

    fn log(&mut self, member: usize, op: Op, accept: u32, flags: u8, ret: i64, payload: &[u8]) {
        let Some(server) = self.server(member) else { return };
        let before = server.records;
        server.append(op, accept, flags, ret, payload);
        let (number, records) = (server.number, server.records);
        if records > before {
            self.record_logged(number, records);
        }
    }

    /// Whether output that depends on everything so far may leave (decision 7).
    fn is_stable(&self, member: usize, pos: u64) -> bool {
        let skips = self.plan.mutation == Some(Mutation::NoCommit)
            || self.plan.buffering == Buffering::Immediate;
        let server = self.hosts[member].server.as_ref();
        server.is_some_and(|s| s.mode != Mode::Record || !s.commits || s.stable >= pos || skips)
    }

    fn truth(&self, member: usize, record: u64) -> Truth {
        let server = self.hosts[member].server.as_ref();
        server.map_or(Truth::default(), |s| match s.mode {
            Mode::Record => Truth { server: s.number, depends: record },
            _ => Truth::default(),
        })
    }

    /// Does one step; false if the process sleeps now.
    fn server_step(&mut self, member: usize) -> bool {
        let own = self.hosts[member].clock.both(self.now);
        let Some(server) = self.server(member) else { return false };
        if !server.has_room() {
            self.announces(member);
            return false;
        }
        let (tail, dirty) = (server.tail(), server.dirty);
        match server.doing {
            Doing::Idle => return self.server_chooses(member),
            Doing::Clock(accept) => {
                // A promoted server's clock continues from the log's (decision 18).
                let clocks = server.clocks(own);
                self.log(member, Op::Clock, 0, 0, 0, clocks.as_bytes());
                if let Some(server) = self.server(member) {
                    server.execute(accept, clocks);
                }
            }
            Doing::Intent(accept) => {
                let len = server.conns.get(&accept).map_or(0, |conn| conn.pending.len());
                self.log(member, Op::Intent, accept, LAZY, len as i64, &[]);
                self.set_doing(member, Doing::Write(accept));
            }
            Doing::Write(accept) => {
                if !self.is_stable(member, dirty.0) {
                    if !self.sends_direct(member) {
                        self.announces(member);
                    }
                    return false;
                }
                self.server_writes(member, accept, dirty.1);
            }
            Doing::Written(accept, n) => {
                let len = server.conns.get(&accept).map_or(0, |conn| conn.pending.len() as u64);
                let lazy = if n == len { LAZY } else { 0 };
                self.log(member, Op::Written, accept, lazy, n as i64, &[]);
                if let Some(server) = self.server(member) {
                    server.wrote(accept, n);
                }
            }
            Doing::Shutdown(accept) => {
                self.log(member, Op::Shutdown, accept, 0, 1, &[]);
                if let Some(server) = self.server(member) {
                    let tail = server.tail();
                    server.doing = Doing::EndSending(accept, tail);
                }
            }
            Doing::Close(accept) => {
                self.log(member, Op::Close, accept, 0, 0, &[]);
                if let Some(server) = self.server(member) {
                    let tail = server.tail();
                    server.doing = Doing::LetGo(accept, tail);
                }
            }
            Doing::EndSending(accept, pos) | Doing::LetGo(accept, pos) => {
                if !self.is_stable(member, pos) {
                    self.announces(member);
                    return false;
                }
                self.server_ends(member, accept);
            }
        }
        let Some(server) = self.server(member) else { return false };
        if server.tail() > tail && self.hosts[member].daemon.is_some() {
            // Nothing wakes the daemon: it finds this part of the log with its next tick.
            self.log_grew(member);
        }
        true
    }

    /// The server tells its daemon that there is log to send.
    fn announces(&mut self, member: usize) {
        if let Some(server) = self.server(member) {
            server.announced = server.tail();
        }
        self.wake_daemon_soon(member);
    }

    fn set_doing(&mut self, member: usize, doing: Doing) {
        if let Some(server) = self.server(member) {
            server.doing = doing;
        }
    }

    fn socket_of(&mut self, member: usize, accept: u32) -> Option<&mut Socket> {
        let host = &mut self.hosts[member];
        let key = host.server.as_ref()?.conns.get(&accept)?.key;
        host.sockets.get_mut(&key).filter(|socket| socket.accept == Some(accept))
    }

    fn server_writes(&mut self, member: usize, accept: u32, depends: u64) {
        let now = self.time_at(member);
        let truth = self.truth(member, depends);
        let Some(server) = self.server(member) else { return };
        let pending =
            server.conns.get(&accept).map(|conn| conn.pending.clone()).unwrap_or_default();
        let mut out = Vec::new();
        let mut taken = pending.len() as u64;
        if let Some(socket) = self.socket_of(member, accept).filter(|s| !s.reset) {
            taken = taken.min(socket.room());
            socket.write(&pending[..taken as usize], truth);
            socket.push(now, &mut out);
        }
        self.set_doing(member, Doing::Written(accept, taken));
        self.host_sends(member, out);
    }

    /// Ends the connection in the kernel: its sending side, or all of it.
    fn server_ends(&mut self, member: usize, accept: u32) {
        let now = self.time_at(member);
        let Some(server) = self.server(member) else { return };
        let lets_go = matches!(server.doing, Doing::LetGo(..));
        let commits = server.mode == Mode::Record && server.commits;
        let records = server.records;
        let truth = self.truth(member, records);
        let mut out = Vec::new();
        let mut over = None;
        if commits {
            self.judge_end(member, accept);
        }
        if let Some(socket) = self.socket_of(member, accept) {
            socket.orphan |= lets_go;
            if !socket.reset {
                socket.shutdown(truth);
                socket.push(now, &mut out);
            }
            if lets_go && socket.is_over() && (socket.reset || !socket.time_wait) {
                over = Some(socket.key);
            }
        }
        if let Some(key) = over {
            self.hosts[member].sockets.remove(&key);
        }
        if let Some(server) = self.server(member) {
            if lets_go {
                server.closed(accept);
            } else {
                server.shut(accept);
            }
        }
        self.host_sends(member, out);
    }

    /// Judges whether the gate lets a FIN pass before the server may end the connection.
    fn judge_end(&mut self, member: usize, accept: u32) {
        let now = self.now;
        let Some(socket) = self.socket_of(member, accept) else { return };
        let (key, iss) = (socket.key, socket.iss);
        let Some(gate) = &self.hosts[member].gate else { return };
        let slot = gate.conn_of(&key).and_then(|conn| gate.view(conn));
        if slot.is_some_and(|slot| slot.iss == iss) && !gate.may_end(&key) {
            let what = format!("accept {accept} ends before the gate lets it");
            self.check.violation(now, "L2", what);
        }
    }

    fn server_chooses(&mut self, member: usize) -> bool {
        let accepts = !self.accepts_nobody;
        if let Some(key) = self.hosts[member].backlog.pop_front_if(|_| accepts) {
            self.server_accepts(member, key);
            return true;
        }
        let host = &self.hosts[member];
        let Some(server) = &host.server else { return false };
        let of = |accept: &u32, conn: &Conn| {
            host.sockets.get(&conn.key).filter(|socket| socket.accept == Some(*accept))
        };
        let ready: Vec<(u32, bool)> = server
            .conns
            .iter()
            .filter(|(_, conn)| conn.open)
            .filter_map(|(accept, conn)| match of(accept, conn) {
                Some(s) if s.reset => {
                    (!conn.eof || !conn.pending.is_empty()).then_some((*accept, true))
                }
                Some(s) if !conn.pending.is_empty() => (s.room() > 0).then_some((*accept, false)),
                Some(s) => s.is_readable(conn.eof).then_some((*accept, true)),
                // The client has reset it before the takeover: the server reads one error.
                None => (!conn.eof).then_some((*accept, true)),
            })
            .collect();
        if ready.is_empty() {
            return false;
        }
        let (accept, reads) = ready[self.rng.below(ready.len() as u64) as usize];
        if reads {
            self.server_reads(member, accept);
        } else {
            // That the kernel takes output again is an input of the server, and logged.
            self.log(member, Op::Result, accept, 0, 1, &[]);
            self.set_doing(member, Doing::Intent(accept));
        }
        true
    }

    fn server_reads(&mut self, member: usize, accept: u32) {
        let share = 1 + self.rng.below(600) as usize;
        let (bytes, ret) = match self.socket_of(member, accept) {
            None => (Vec::new(), RESET),
            Some(socket) if socket.reset => (Vec::new(), RESET),
            Some(socket) => {
                let bytes = socket.take(share.min(socket.unread.len()));
                let len = bytes.len() as i64;
                (bytes, len)
            }
        };
        self.log(member, Op::Read, accept, TAPPED, ret, &bytes);
        if let Some(server) = self.server(member) {
            server.took(accept, &bytes, ret);
        }
    }

    fn server_accepts(&mut self, member: usize, key: ConnKey) {
        let Some(server) = self.server(member) else { return };
        let accept = server.accepts + 1;
        let Some(socket) = self.hosts[member].sockets.get_mut(&key) else { return };
        // It may be a later connection on the four-tuple than the one that was queued.
        if socket.accept.is_some() || !socket.established {
            return;
        }
        socket.accept = Some(accept);
        let info = AcceptInfo {
            conn_id: crate::kernel::cookie(socket.iss, socket.irs),
            local: key.server,
            peer: key.client,
            local_port: key.server_port,
            peer_port: key.client_port,
            ..AcceptInfo::default()
        };
        self.log(member, Op::Accept, accept, 0, i64::from(accept) + 10, info.as_bytes());
        if let Some(server) = self.server(member) {
            server.accepted(key, accept);
        }
    }
}
