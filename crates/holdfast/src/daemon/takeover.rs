//! The backup's promotion: fence, drain the log, probe the clients, repair the
//! sockets, take the address, kick. The order is that of decisions 13 to 18;
//! what it decides per connection is `holdfast_replica::promotion`'s.

mod sockets;

use super::advice;
use super::backup::{Follower, PIDFD, TAP, segment};
use super::member::{End, Node, RESTART_BOTH, mapped};
use super::survivor::Survivor;
use crate::channel::Listener;
use crate::status::{Phases, Role, State, Takeover, rfc3339};
use holdfast_linux::{listener, process};
use holdfast_member::request::EpochRequest;
use holdfast_member::timing::takeover::{ASK_EVERY, PARK_MAX};
use holdfast_replica::Nanos;
use holdfast_replica::promotion::{Probe, Promotion};
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment, complete_checksum};
use holdfast_wire::shm::mode;
use sockets::Mender;
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime};

/// How long after going live clients' ACKs still drive what was in flight.
const NUDGE_FOR: Duration = Duration::from_secs(20);
/// Real-time priority of the replica during a takeover, below the daemon's own.
const REPLICA_PRIORITY: i32 = 5;

/// What made the backup promote itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The primary's daemon saw its server die.
    ServerDied,
    /// The channel was closed: the primary's daemon died.
    ChannelLost,
    /// Three heartbeats are missing.
    Silent,
    /// They are missing at the edge: clients do not reach it.
    Unheard,
    /// The primary does not hear this member any more, while the edge does.
    Alone,
}

/// Whatever it was that told of it.
const STOPPED: &str = "the primary was stopped";

impl Cause {
    pub fn text(self) -> &'static str {
        match self {
            Self::ServerDied => "the primary's server died",
            Self::ChannelLost => "the primary's daemon died",
            Self::Silent => "the primary is silent",
            Self::Unheard => "the edge does not hear the primary",
            Self::Alone => "the primary does not hear this member",
        }
    }
}

/// Promotes the replica, then serves until the daemon is stopped.
///
/// # Errors
/// When the event loop or an interface fails.
pub fn run(f: &mut Follower, node: &mut Node<'_>, cause: Cause) -> anyhow::Result<End> {
    let begun = Instant::now();
    let why = if f.was_stopped() { STOPPED } else { cause.text() };
    node.events.add("promote", why);
    f.place.release();
    // The clients wait for what the replica has still to run. Without the
    // privilege it just takes its turn.
    let _ = process::set_process_realtime(f.replica.pid(), Some(REPLICA_PRIORITY));
    let mut request = EpochRequest::new(node.status.epoch, ASK_EVERY, true);
    let detect = begun.saturating_duration_since(f.heard_at).as_micros() as u64;
    let mut phases = Phases { detect, ..Phases::default() };
    node.ask_for(&mut request, false);
    if let Err((state, reason)) = drain(f, node, cause, &mut request, &mut phases, begun)? {
        return f.give_up(node, state, &reason);
    }
    let drained = Instant::now();
    let Some(mut promotion) = f.machine.plan(Nanos(node.nanos())) else {
        return f.give_up(node, State::Diverged, "the log did not end");
    };
    for probe in promotion.probes(Nanos(node.nanos())) {
        if let Some(packet) = probe_packet(&probe) {
            let _ = f.voice.raw.send(&packet);
        }
    }
    let mut mender = Mender::default();
    if let Err((state, reason)) = settle(f, node, &mut promotion, &mut request, &mut mender)? {
        return f.give_up(node, state, &reason);
    }
    let settled = Instant::now();
    phases.repair = mender.spent.as_micros() as u64;
    phases.probe = (settled - drained).saturating_sub(mender.spent).as_micros() as u64;
    go_live(f, node, &mut promotion, &mut mender, &mut phases)?;
    let _ = process::set_process_realtime(f.replica.pid(), None);
    node.other_says = None;
    node.status.epoch += 1;
    node.status.last_takeover = Some(Takeover {
        cause: why.into(),
        phases_us: phases,
        total_us: begun.elapsed().as_micros() as u64,
        connections: mender.sockets.len() as u64,
        at: rfc3339(SystemTime::now()),
    });
    for error in &mender.errors {
        node.events.add("connection lost", error.clone());
    }
    let reason = format!("took over from {}: {why}; there is no backup", node.other.name);
    node.set_state(Role::Primary, State::Unprotected, &reason, RESTART_BOTH);
    serve(f, node, &mut mender)
}

/// Until it is over, a takeover protects nobody, and without the edge it cannot
/// come about.
pub fn report(node: &mut Node<'_>, cause: Cause) {
    let (reason, remedy) = if node.edge.is_open() {
        (format!("takes over: {}", cause.text()), "")
    } else {
        let remedy = "start the edge's daemon, or look at the way to it: nobody else may decide";
        (format!("wants to take over: {}; the edge does not answer", cause.text()), remedy)
    };
    node.set_state(Role::Backup, State::Waiting, &reason, remedy);
}

fn hear(node: &mut Node<'_>, request: &mut EpochRequest) {
    let opened = node.turn_edge(|message| request.handle_message(message));
    if let Some(reason) = request.take_waits() {
        let reason = format!("the edge does not let this member take over yet: {reason}");
        node.set_state(Role::Backup, State::Waiting, &reason, "look at the edge's status");
    }
    node.ask_for(request, opened);
}

/// Fence and drain, at the same time: the edge decides while the log comes to
/// its end. The outer result is the daemon's, the inner one the promotion's.
fn drain(
    f: &mut Follower,
    node: &mut Node<'_>,
    cause: Cause,
    request: &mut EpochRequest,
    phases: &mut Phases,
    begun: Instant,
) -> anyhow::Result<Result<(), (State, String)>> {
    let mut peer_lost = cause != Cause::ServerDied;
    f.begin_promotion(Nanos(node.nanos()), cause, peer_lost);
    report(node, cause);
    f.watch_tap(node);
    let mut drain_done = None;
    loop {
        let now = Instant::now();
        f.peer_ready = true;
        let lost = matches!(f.turn(node, now), Some(Cause::ChannelLost | Cause::Silent));
        if lost && !peer_lost {
            peer_lost = true;
            f.peer_lost(Nanos(node.nanos()));
        }
        hear(node, request);
        if let Some(reason) = f.hands.broken.take() {
            return Ok(Err((State::Diverged, reason)));
        }
        if let Some(reason) = request.take_refused() {
            return Ok(Err((State::Fenced, format!("the edge refused: {reason}"))));
        }
        if request.granted().is_some() && phases.fence == 0 {
            phases.fence = begun.elapsed().as_micros().max(1) as u64;
        }
        if f.hands.log_ended && drain_done.is_none() {
            f.replica.memory.end_log();
            drain_done = Some(Instant::now());
            phases.drain = begun.elapsed().as_micros() as u64;
        }
        if request.granted().is_some() && drain_done.is_some() {
            return Ok(Ok(()));
        }
        if begun.elapsed() > PARK_MAX && drain_done.is_none() {
            return Ok(Err((State::Hung, "the replica did not take the rest of the log".into())));
        }
        let soon =
            Instant::now() + Duration::from_micros(if drain_done.is_some() { 5000 } else { 200 });
        let (stop, _) = node.wait(Some(soon))?;
        if stop {
            return Ok(Err((State::Ended, "the daemon was stopped during the takeover".into())));
        }
    }
}

/// Collects answers, bounds and the replica's table until every connection has
/// its verdict; sockets are repaired as verdicts come.
fn settle(
    f: &mut Follower,
    node: &mut Node<'_>,
    promotion: &mut Promotion,
    request: &mut EpochRequest,
    mender: &mut Mender,
) -> anyhow::Result<Result<(), (State, String)>> {
    let begun = Instant::now();
    let mut parked = false;
    while !promotion.is_done() {
        let nanos = Nanos(node.nanos());
        if !parked && f.replica.memory.mode() == mode::PARKED {
            parked = true;
            let manifest = sockets::manifest(&f.replica.memory);
            promotion.handle_manifest(nanos, &manifest, &mut mender.on(&f.replica));
        }
        let mut out = mender.on(&f.replica);
        let _ = f.tap.drain(256, |l3, checksum| {
            if let Some(s) = segment(l3, checksum) {
                promotion.handle_segment(nanos, &s, &mut out);
            }
        });
        hear(node, request);
        let mut out = mender.on(&f.replica);
        if let Some((flows, last)) = request.take_bounds() {
            promotion.handle_bounds(nanos, &flows, last, &mut out);
        }
        promotion.handle_timeout(nanos, &mut out);
        if let Some(reason) = mender.diverged.take() {
            return Ok(Err((State::Diverged, reason)));
        }
        if f.replica.memory.mode() == mode::DIVERGED {
            return Ok(Err((State::Diverged, f.replica.memory.reason())));
        }
        if begun.elapsed() > PARK_MAX {
            return Ok(Err((State::Hung, "the replica did not come to the end of its log".into())));
        }
        if promotion.is_done() {
            break;
        }
        let deadline = promotion.next_deadline().map(|d| node.instant(d.0));
        let soon = Instant::now() + Duration::from_millis(2);
        let (stop, tokens) = node.wait(Some(deadline.map_or(soon, |d| d.min(soon))))?;
        if stop || tokens.has(PIDFD) {
            return Ok(Err((
                State::Ended,
                "the replica's process ended during the takeover".into(),
            )));
        }
    }
    Ok(Ok(()))
}

fn probe_packet(probe: &Probe) -> Option<Vec<u8>> {
    let record = &probe.record;
    let timestamps = probe.tsval.filter(|_| record.tsval.is_some()).map(|v| (v, 0));
    let options = if probe.syn {
        TcpOptions {
            mss: Some(record.mss),
            wscale: (record.rcv_wscale <= 14).then_some(record.rcv_wscale),
            sack_permitted: record.sack,
            timestamps,
            ..TcpOptions::default()
        }
    } else {
        TcpOptions { timestamps, ..TcpOptions::default() }
    };
    let flags = if probe.syn { Flags::SYN | Flags::ACK } else { Flags::ACK };
    let byte = probe.payload.map(|b| [b]);
    TcpSegment {
        key: probe.key,
        to_client: true,
        seq: probe.seq,
        ack: probe.ack,
        flags,
        window: if probe.syn { record.window } else { 1000 },
        options,
        payload: byte.as_ref().map_or(&[], |b| b),
    }
    .build()
    .ok()
}

/// Listeners after the connections, then the address, then everybody may speak.
fn go_live(
    f: &mut Follower,
    node: &mut Node<'_>,
    promotion: &mut Promotion,
    mender: &mut Mender,
    phases: &mut Phases,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let as_root = node.config.server.user.is_none();
    for l in f.replica.memory.listeners() {
        let address = &l.addr[..(l.addr_len as usize).min(l.addr.len())];
        let revived = sockets::may_listen(address, &node.config.group.services, as_root)
            .and_then(|()| f.replica.take_fd(l.fd))
            .and_then(|fd| listener::revive(fd.as_fd(), address, l.backlog));
        if let Err(error) = revived {
            node.events.add("listener lost", format!("descriptor {}: {error}", l.fd));
        }
    }
    for ip in node.config.service_ips() {
        f.voice.addresses.add(f.voice.interface.index, &mapped(ip))?;
    }
    for ip in node.config.service_ips() {
        // Without its route the server still gets what clients send.
        if let Err(error) = f.voice.addresses.wait_local(&mapped(ip)) {
            node.events.add("address", format!("{ip}: {error}"));
        }
    }
    mender.show_clocks(&f.voice.raw);
    f.drop.set_live(true)?;
    for ip in node.config.service_ips() {
        let _ = f.voice.announcer.announce(&f.voice.interface, &mapped(ip));
    }
    let addressed = Instant::now();
    phases.address = (addressed - begun).as_micros() as u64;
    mender.send_retained(&f.replica);
    f.replica.memory.set_mode(mode::LIVE);
    mender.kick(&f.voice.raw);
    reinject(f, node, promotion);
    phases.kick = addressed.elapsed().as_micros() as u64;
    Ok(())
}

/// What came since a connection's verdict, in order; SYNs after the listener
/// lives (decision 17).
fn reinject(f: &mut Follower, node: &Node<'_>, promotion: &mut Promotion) {
    let mut nobody = Mender::default();
    let nanos = Nanos(node.nanos());
    let mut out = nobody.on(&f.replica);
    let _ = f.tap.drain(256, |l3, checksum| {
        if let Some(s) = segment(l3, checksum) {
            promotion.handle_segment(nanos, &s, &mut out);
        }
    });
    let late: Vec<_> = promotion.take_late().chain(promotion.take_syns()).collect();
    for mut packet in late {
        if complete_checksum(&mut packet).is_ok() {
            let _ = f.voice.raw.send(&packet);
        }
    }
}

/// The survivor: the server speaks for itself; the daemon watches it.
fn serve(f: &mut Follower, node: &mut Node<'_>, mender: &mut Mender) -> anyhow::Result<End> {
    node.signs_by_tap = false;
    let nudge_until = Instant::now() + NUDGE_FOR;
    f.link.close(Instant::now());
    let _ = node.poll.remove(&f.replica.wake());
    // Only to tell a member that comes back how things are.
    let mut listener = Listener::bind(node.me.address, node.pair_identity()).ok();
    let mut beside = Survivor::new(Instant::now());
    let mut watching = mender.has_nudges();
    if !watching {
        let _ = node.poll.remove(&f.tap.fd());
    }
    loop {
        let pause = if watching { Duration::from_millis(20) } else { Duration::from_millis(500) };
        let (stop, tokens) = node.wait(Some(Instant::now() + pause))?;
        if stop {
            f.replica.kill();
            return Ok(End::Stopped);
        }
        Survivor::let_loose(node, &mut f.replica);
        beside.turn(node, tokens, listener.as_mut());
        if let Some(newer) = node.replaced_by() {
            f.replica.kill();
            node.set_replaced(&newer);
            node.status.epoch = newer.epoch;
        }
        if watching && tokens.has(TAP) {
            let raw = &f.voice.raw;
            let _ = f.tap.drain(256, |l3, checksum| match segment(l3, checksum) {
                Some(s) if s.ack_flag => mender.nudge(raw, &s.key, s.ack),
                Some(s) if s.syn => mender.repeat_syn_ack(raw, &s.key),
                _ => {}
            });
        }
        if watching {
            mender.nudge_again(&f.voice.raw, Instant::now());
        }
        if watching && (Instant::now() > nudge_until || !mender.has_nudges()) {
            watching = false;
            let _ = node.poll.remove(&f.tap.fd());
        }
        if tokens.has(PIDFD) {
            let _ = node.poll.remove(&f.replica.pidfd());
            node.set_ended(Role::Primary, advice::ENDED, advice::AFTER_END);
        }
    }
}
