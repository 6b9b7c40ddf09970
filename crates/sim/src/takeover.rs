//! The backup's promotion (`daemon/takeover.rs`) around the real `Promotion`
//! machine: fence, drain, probe, repair, address, kick.

use crate::backup::Follower;
use crate::kernel::Socket;
use crate::member::{Daemon, Phase};
use crate::packet::{ACK, NO_SCALING, Packet, Truth};
use crate::plan::Mutation;
use crate::server::{Mode, Server};
use crate::world::{NAMES, World};
use crate::{Ns, ns};
use holdfast_member::request::EpochRequest;
use holdfast_member::timing::takeover as timing;
use holdfast_replica::Nanos;
use holdfast_replica::promotion::{Diverged, Probe, Promotion, PromotionOutput, Restore, Why};
use holdfast_wire::message::ConnId;
use holdfast_wire::packet::Flags;

const MS: Ns = 1_000_000;

/// What made the backup promote itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    ServerDied,
    ChannelLost,
    Silent,
    Unheard,
    Alone,
}

/// A socket that was rebuilt, and what is to be played into it.
struct Carried {
    socket: Socket,
    reinject: Vec<u64>,
    queued: bool,
}

/// See the module.
pub struct Takeover {
    follower: Follower,
    request: EpochRequest,
    begun: Ns,
    peer_lost: bool,
    drained: Option<Ns>,
    promotion: Option<Promotion>,
    settling_since: Ns,
    parked: bool,
    carried: Vec<Carried>,
    /// Make clients of lost connections ask.
    farewells: Vec<Packet>,
}

/// Carries out verdicts, as `Mender` does.
struct Mending<'a> {
    server: &'a Server,
    buffer: u64,
    now: Ns,
    carried: Vec<Carried>,
    lost: Vec<String>,
    farewells: Vec<Packet>,
    diverged: Option<String>,
}

fn raw_id(raw: &[u8]) -> u64 {
    raw.try_into().map_or(u64::MAX, u64::from_le_bytes)
}

impl PromotionOutput for Mending<'_> {
    fn restore(&mut self, r: &Restore<'_>) {
        let kept = match r.accept {
            Some(accept) => self.server.retained(accept, r.snd_una_offset, r.out_end),
            None => Vec::new(),
        };
        self.carried.push(Carried {
            socket: Socket::restore(r, &kept, Truth::default(), self.buffer, self.now),
            reinject: r.reinject.iter().map(|raw| raw_id(raw)).collect(),
            queued: r.accept.is_none(),
        });
    }
    fn discard(&mut self, conn: ConnId, accept: Option<u32>, why: Why, tell: Option<Probe>) {
        self.farewells.extend(tell.as_ref().map(probe_packet));
        if !matches!(why, Why::Finished | Why::ClientReset) {
            self.lost.push(format!("connection {conn:?}, accept {accept:?}: {why:?}"));
        }
    }
    fn reset(&mut self, _: ConnId, _: u32) {}
    fn diverged(&mut self, reason: &Diverged) {
        self.diverged = Some(reason.to_string());
    }
}

impl World {
    pub fn takeover_begins(&mut self, d: &mut Daemon, f: Box<Follower>, cause: Cause) -> Phase {
        let (now, member) = (self.now, d.member);
        self.say(|| format!("{}: promotes itself: {cause:?}", NAMES[member]));
        let says = self.plan.mutation != Some(Mutation::NotSaidAgain);
        let mut takeover = Takeover {
            follower: *f,
            request: EpochRequest::new(d.epoch, timing::ASK_EVERY, says),
            begun: now,
            peer_lost: cause != Cause::ServerDied,
            drained: None,
            promotion: None,
            settling_since: now,
            parked: false,
            carried: Vec::new(),
            farewells: Vec::new(),
        };
        self.ask_for(d, &mut takeover.request, false);
        let peer_lost = takeover.peer_lost;
        self.begin_promotion(member, &mut takeover.follower, peer_lost);
        takeover.follower.tap_at = None;
        self.turn_takeover(d, Box::new(takeover))
    }

    fn hear(&mut self, d: &mut Daemon, request: &mut EpochRequest) {
        let opened = self.turn_edge_with(d, |message| request.handle_message(message));
        self.ask_for(d, request, opened);
    }

    pub fn turn_takeover(&mut self, d: &mut Daemon, mut t: Box<Takeover>) -> Phase {
        if t.promotion.is_none() {
            self.turn_drain(d, t)
        } else {
            self.hear(d, &mut t.request);
            self.turn_settle(d, t)
        }
    }

    /// Fence and drain, at the same time.
    fn turn_drain(&mut self, d: &mut Daemon, mut t: Box<Takeover>) -> Phase {
        let (now, member) = (self.now, d.member);
        t.follower.peer_ready = true;
        let cause = self.follower_turn(d, &mut t.follower);
        let lost = matches!(cause, Some(Cause::ChannelLost | Cause::Silent));
        if lost && !t.peer_lost {
            t.peer_lost = true;
            self.peer_lost(member, &mut t.follower);
        }
        self.hear(d, &mut t.request);
        if let Some(reason) = t.follower.hands.broken.take() {
            return self.give_up(d, &reason);
        }
        if let Some(reason) = t.request.take_refused() {
            return self.give_up(d, &format!("the edge refused: {reason}"));
        }
        if t.follower.hands.log_ended && t.drained.is_none() {
            t.drained = Some(now);
            if let Some(server) = &mut self.hosts[member].server {
                server.log_ended = true;
            }
            self.wake_server(member);
        }
        if t.request.granted().is_some() && t.drained.is_some() {
            return self.probe(d, t);
        }
        if now - t.begun > ns(timing::PARK_MAX) && t.drained.is_none() {
            return self.give_up(d, "the replica did not take the rest of the log");
        }
        self.sleep(d, now + if t.drained.is_some() { 5 * MS } else { MS / 5 });
        Phase::Takeover(t)
    }

    fn probe(&mut self, d: &mut Daemon, mut t: Box<Takeover>) -> Phase {
        let at = Nanos(self.now);
        let Some(mut promotion) = t.follower.machine.plan(at) else {
            return self.give_up(d, "the log did not end");
        };
        let probes: Vec<Packet> = promotion.probes(at).iter().map(probe_packet).collect();
        self.host_sends(d.member, probes);
        t.promotion = Some(promotion);
        t.settling_since = self.now;
        self.turn_settle(d, t)
    }

    /// Answers, bounds and the replica's table, until every connection has its
    /// verdict.
    fn turn_settle(&mut self, d: &mut Daemon, mut t: Box<Takeover>) -> Phase {
        let (now, member) = (self.now, d.member);
        let Some(mut promotion) = t.promotion.take() else { return Phase::Takeover(t) };
        let lost = self.settle_now(member, &mut t, &mut promotion);
        if let Err(reason) = lost {
            self.check.violation(now, "L5", format!("promotion: {reason}"));
            return self.give_up(d, &reason);
        }
        let server = self.hosts[member].server.as_ref();
        if let Some(reason) = server.and_then(|server| server.diverged.clone()) {
            self.check.violation(now, "L5", format!("the replica diverged: {reason}"));
            return self.give_up(d, &reason);
        }
        if server.is_none_or(|server| !server.alive) {
            return self.give_up(d, "the replica's process ended during the takeover");
        }
        if promotion.is_done() {
            self.go_live(d, t, promotion);
            d.speaks = true;
            return Phase::Survivor;
        }
        if now - t.settling_since > ns(timing::PARK_MAX) {
            return self.give_up(d, "the replica did not come to the end of its log");
        }
        let deadline = promotion.next_deadline().map_or(now + 2 * MS, |at| at.0);
        self.sleep(d, deadline.min(now + 2 * MS));
        t.promotion = Some(promotion);
        Phase::Takeover(t)
    }

    fn settle_now(
        &mut self,
        member: usize,
        t: &mut Takeover,
        promotion: &mut Promotion,
    ) -> Result<(), String> {
        let (now, at) = (self.now, Nanos(self.now));
        let copies: Vec<Packet> =
            self.hosts[member].tap.as_mut().map(|tap| tap.drain(..).collect()).unwrap_or_default();
        let Some(server) = &self.hosts[member].server else { return Ok(()) };
        let mut out = Mending {
            server,
            buffer: self.plan.receive_buffer,
            now,
            carried: Vec::new(),
            lost: Vec::new(),
            farewells: Vec::new(),
            diverged: None,
        };
        if !t.parked && server.parked {
            t.parked = true;
            promotion.handle_manifest(at, &server.manifest(), &mut out);
        }
        for packet in &copies {
            packet.with_view(|view| promotion.handle_segment(at, view, &mut out));
        }
        if let Some((flows, last)) = t.request.take_bounds() {
            promotion.handle_bounds(at, &flows, last, &mut out);
        }
        promotion.handle_timeout(at, &mut out);
        t.carried.append(&mut out.carried);
        t.farewells.append(&mut out.farewells);
        let (lost, diverged) = (out.lost, out.diverged);
        for what in lost {
            self.check.violation(now, "L5", format!("a connection was lost: {what}"));
        }
        diverged.map_or(Ok(()), Err)
    }

    /// Sockets, listeners, address, clocks, retained output, kick.
    fn go_live(&mut self, d: &mut Daemon, t: Box<Takeover>, mut promotion: Promotion) {
        let (now, member) = (self.now, d.member);
        d.epoch += 1;
        if let Some(pipe) = d.pair.pipe.take() {
            self.close_pipe(pipe, 0);
        }
        let host = &mut self.hosts[member];
        host.tap = None;
        host.address = true;
        host.listening = true;
        host.tap_drop = Some(true);
        let mut out = t.farewells;
        let mut inject: Vec<u64> = Vec::new();
        let count = t.carried.len();
        for Carried { mut socket, reinject, queued } in t.carried {
            if queued {
                host.backlog.push_back(socket.key);
            }
            let mut own = Vec::new();
            socket.push(now, &mut own);
            if own.is_empty() {
                own.push(socket.ack(now));
            }
            out.extend(own);
            inject.extend(reinject);
            let over = socket.is_over() && socket.orphan;
            if !over {
                host.sockets.insert(socket.key, socket);
            }
        }
        if let Some(server) = &mut host.server {
            server.mode = Mode::Live;
        }
        self.check.took_over(member);
        self.say(|| format!("{}: took over {count} connections, epoch {}", NAMES[member], d.epoch));
        self.host_sends(member, out);
        inject.extend(promotion.take_late().map(|raw| raw_id(&raw)));
        inject.extend(promotion.take_syns().map(|raw| raw_id(&raw)));
        for id in inject {
            if let Some(packet) = self.packets.get(id as usize).cloned() {
                self.kernel_receives(member, &packet);
            }
        }
        self.wake_server(member);
    }

    /// `takeover::serve`.
    pub fn turn_survivor(&mut self, d: &mut Daemon) {
        self.turn_edge(d);
    }
}

/// `probe_packet`.
fn probe_packet(probe: &Probe) -> Packet {
    let payload: Vec<u8> = probe.payload.into_iter().collect();
    Packet {
        key: probe.key,
        seq: probe.seq,
        ack: probe.ack,
        flags: if probe.syn { Flags::SYN | ACK } else { ACK },
        window: if probe.syn { probe.record.window } else { 1000 },
        wscale: if probe.syn { probe.record.rcv_wscale } else { NO_SCALING },
        tsval: probe.tsval.unwrap_or(0),
        payload: payload.into(),
        id: 0,
        truth: Truth::default(),
    }
}
