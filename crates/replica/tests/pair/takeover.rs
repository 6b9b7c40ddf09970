//! The takeover: fence, promotion, and the promoted server, which runs on
//! rebuilt sockets without protection.

use crate::client::{Packet, Segment};
use crate::kernel::Socket;
use crate::world::World;
use holdfast_replica::promotion::{Diverged, Probe, Promotion, PromotionOutput, Restore, Why};
use holdfast_wire::message::ConnId;
use holdfast_wire::seq::SeqNo;

/// A verdict, copied out of the machine.
enum Verdict {
    Restore { socket: Socket, from: u64, fin: bool, reinject: Vec<u64> },
    Failed(String),
    Nothing,
}

#[derive(Default)]
struct Collector {
    verdicts: Vec<Verdict>,
}

fn segment_id(raw: &[u8]) -> u64 {
    raw.try_into().map_or(u64::MAX, u64::from_le_bytes)
}

impl PromotionOutput for Collector {
    fn restore(&mut self, restore: &Restore<'_>) {
        let socket = Socket {
            key: restore.record.key,
            iss: restore.record.iss,
            irs: restore.record.irs,
            accept: restore.accept,
            read: u64::from(restore.recv_start.since(restore.record.irs.plus(1)).unsigned_abs()),
            unread: restore.unread.concat(),
            client_fin: restore.closing.client_fin,
            clamp: None,
            established: true,
            snd_nxt: restore.out_end,
            snd_una: restore.snd_una_offset,
            sent: Vec::new(),
            sent_from: restore.snd_una_offset,
            fin_sent: false,
            eof_read: false,
            closed: restore.closing.orphan,
        };
        let consistent = restore.snd_una_offset <= restore.in_flight_end
            && restore.in_flight_end <= restore.out_end
            && restore.rcv_nxt == restore.recv_start.plus(socket.unread.len() as u64)
            && restore.tsval.is_some_and(|tsval| tsval >= 2000 && tsval & 1 == 0);
        if !consistent {
            self.verdicts.push(Verdict::Failed(format!("inconsistent {restore:?}")));
        }
        self.verdicts.push(Verdict::Restore {
            socket,
            from: restore.snd_una_offset,
            fin: restore.closing.server_fin,
            reinject: restore.reinject.iter().map(|raw| segment_id(raw)).collect(),
        });
    }
    fn discard(&mut self, conn: ConnId, _: Option<u32>, why: Why, _: Option<Probe>) {
        self.verdicts.push(match why {
            Why::Finished => Verdict::Nothing,
            why => Verdict::Failed(format!("{conn:?} discarded: {why:?}")),
        });
    }
    fn reset(&mut self, conn: ConnId, _: u32) {
        self.verdicts.push(Verdict::Failed(format!("{conn:?} reset")));
    }
    fn diverged(&mut self, reason: &Diverged) {
        self.verdicts.push(Verdict::Failed(reason.to_string()));
    }
}

impl World {
    pub fn promote(&mut self) {
        if !self.backup.alive || self.fenced {
            return;
        }
        self.fenced = true;
        let peer_lost = !self.primary.daemon_alive;
        self.with_backup(|machine, now, out| {
            if peer_lost {
                machine.handle_peer_lost(now, out);
            }
            machine.begin_promotion(now, out);
        });
        // The log may have ended before the edge had granted.
        self.log_ended();
    }

    /// The log is through: ask everybody at once.
    pub fn log_ended(&mut self) {
        if !self.fenced || self.backup.promotion.is_some() {
            return;
        }
        let Some(mut promotion) = self.backup.machine.plan(self.now) else { return };
        for probe in promotion.probes(self.now) {
            self.pass_edge(Packet {
                key: probe.key,
                seq: probe.seq,
                ack: probe.ack,
                syn: probe.syn,
                fin: false,
                rst: false,
                payload: probe.payload.into_iter().collect(),
                depends: 0,
            });
        }
        let deadline = promotion.next_deadline().map_or(0, |at| at.since(self.now).0);
        self.backup.promotion = Some(promotion);
        let delay = self.rng.below(2_000_000);
        self.schedule(delay, crate::world::Event::Bounds);
        // The deadline comes as a second call of the same event.
        self.schedule(deadline, crate::world::Event::Bounds);
        let manifest = self.backup.replica.manifest();
        self.with_promotion(|promotion, now, out| promotion.handle_manifest(now, &manifest, out));
    }

    pub fn bounds_arrive(&mut self) {
        let flows: Vec<_> = self.bounds.values().copied().collect();
        self.with_promotion(|promotion, now, out| {
            promotion.handle_bounds(now, &flows, true, out);
            promotion.handle_timeout(now, out);
        });
    }

    fn with_promotion(
        &mut self,
        f: impl FnOnce(&mut Promotion, holdfast_replica::Nanos, &mut Collector),
    ) {
        let Some(promotion) = &mut self.backup.promotion else { return };
        let mut out = Collector::default();
        f(promotion, self.now, &mut out);
        let done = promotion.is_done();
        for verdict in out.verdicts {
            self.apply_verdict(verdict);
        }
        if done && !self.backup.live {
            self.go_live();
        }
    }

    fn apply_verdict(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Nothing => {}
            Verdict::Failed(why) => self.failures.push(format!("promotion: {why}")),
            Verdict::Restore { mut socket, from, fin, reinject } => {
                let mut packets = vec![];
                if let Some(conn) =
                    socket.accept.and_then(|accept| self.backup.replica.conns.get(&accept))
                {
                    socket.eof_read = conn.eof;
                    socket.snd_nxt = from;
                    socket.write(&conn.out[from as usize..], 0, &mut packets);
                }
                if fin {
                    socket.send_fin(0, &mut packets);
                }
                for id in reinject {
                    if let Some(segment) = self.segments.get(id as usize) {
                        socket.receive(segment);
                    }
                }
                packets.push(socket.ack());
                self.backup.sockets.insert(socket.key, socket);
                packets.into_iter().for_each(|packet| self.pass_edge(packet));
            }
        }
    }

    fn go_live(&mut self) {
        self.backup.live = true;
        self.backup.accepts = self.primary_accepts();
        let Some(mut promotion) = self.backup.promotion.take() else { return };
        let raws: Vec<Vec<u8>> =
            promotion.take_late().chain(promotion.take_syns().collect::<Vec<_>>()).collect();
        self.backup.promotion = Some(promotion);
        for raw in raws {
            if let Some(segment) = self.segments.get(segment_id(&raw) as usize).cloned() {
                self.at_live_kernel(&segment);
            }
        }
        self.finish_pending();
        self.live_server();
    }

    fn primary_accepts(&self) -> u32 {
        self.backup.replica.conns.last_key_value().map_or(100, |(accept, _)| accept + 100)
    }

    /// What the replica was about to do when the log ended.
    fn finish_pending(&mut self) {
        if let Some((accept, requests)) = self.backup.replica.pending.take() {
            let output = self.backup.replica.app.execute(&requests, self.now.0);
            self.live_write(accept, &output);
        }
        if let Some(accept) = self.backup.replica.closing.take() {
            self.live_close(accept);
        }
    }

    /// The promoted kernel repeats what clients lack.
    pub fn live_timer(&mut self) {
        let mut packets = Vec::new();
        self.backup.sockets.values().for_each(|socket| socket.repeat(&mut packets));
        packets.into_iter().for_each(|packet| self.pass_edge(packet));
    }

    pub fn at_backup(&mut self, segment: &Segment) {
        if !self.backup.alive {
            return;
        }
        let len = segment.payload.len() as u64 + u64::from(segment.fin);
        self.checker.arrives(&segment.key, segment.seq, len);
        if self.backup.live {
            self.at_live_kernel(segment);
            self.live_server();
        } else if self.backup.promotion.is_some() {
            self.with_promotion(|promotion, now, out| {
                segment.with_view(|view| promotion.handle_segment(now, view, out))
            });
        } else {
            self.with_backup(|machine, now, out| {
                segment.with_view(|view| machine.handle_segment(now, view, out))
            });
        }
    }

    fn at_live_kernel(&mut self, segment: &Segment) {
        let iss = SeqNo(self.rng.next() as u32);
        if segment.syn {
            let socket = self
                .backup
                .sockets
                .entry(segment.key)
                .or_insert_with(|| Socket { clamp: None, ..Socket::new(segment, iss) });
            let packet = socket.syn_ack();
            self.bounds.remove(&segment.key);
            return self.pass_edge(packet);
        }
        let Some(socket) = self.backup.sockets.get_mut(&segment.key) else {
            let rst = Socket::new(segment, iss).ack();
            return self.pass_edge(Packet {
                rst: true,
                seq: segment.ack.unwrap_or_default(),
                ..rst
            });
        };
        if socket.receive(segment) {
            let ack = socket.ack();
            self.pass_edge(ack);
        }
    }

    /// The promoted server does all it can, unprotected.
    fn live_server(&mut self) {
        let keys: Vec<_> = self.backup.sockets.keys().copied().collect();
        for key in keys {
            let Some(socket) = self.backup.sockets.get_mut(&key) else { continue };
            if !socket.established {
                continue;
            }
            if socket.accept.is_none() {
                self.backup.accepts += 1;
                socket.accept = Some(self.backup.accepts);
            }
            let Some(accept) = socket.accept.filter(|_| !socket.closed) else { continue };
            let bytes = socket.take(socket.unread.len());
            let ended = socket.client_fin;
            let requests = self.backup.replica.app.read(accept, &bytes);
            if !requests.is_empty() {
                let output = self.backup.replica.app.execute(&requests, self.now.0);
                self.live_write(accept, &output);
            }
            if ended {
                self.live_close(accept);
            }
        }
    }

    fn live_write(&mut self, accept: u32, output: &[u8]) {
        let mut packets = Vec::new();
        if let Some(socket) =
            self.backup.sockets.values_mut().find(|socket| socket.accept == Some(accept))
        {
            socket.write(output, 0, &mut packets);
        }
        packets.into_iter().for_each(|packet| self.pass_edge(packet));
    }

    fn live_close(&mut self, accept: u32) {
        let mut packets = Vec::new();
        if let Some(socket) =
            self.backup.sockets.values_mut().find(|socket| socket.accept == Some(accept))
        {
            socket.closed = true;
            socket.send_fin(0, &mut packets);
        }
        packets.into_iter().for_each(|packet| self.pass_edge(packet));
    }
}
