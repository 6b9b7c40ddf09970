//! The primary on this host: its gate, its server's log, its kernel, and the channel
//! to the backup. `holdfast_member::primary` decides what is done with them.

mod host;
#[cfg(test)]
mod hostile;
mod image;
mod joiner;
mod kept;
mod shown;
mod unread;

use super::backup::{self, Barred, Ended, Fallen};
use super::direct::Offered;
use super::drive::{Role, drive};
use super::heed;
use super::member::{MemberContext, ROLE};
use super::pairing::{Came, Doorway, wait_for_backup};
use super::placement::ServerCpu;
use super::said::{Repetition, Said};
use super::services::Services;
use super::survivor::Alone;
use crate::channel::{Channel, Listener};
use crate::config::Mode;
use crate::leavings::Own;
use crate::poll::Interest;
use crate::status::{self, State};
use anyhow::Context as _;
use holdfast_linux::bpf::{Gate, TapDrop};
use holdfast_linux::diag::DiagSocket;
use holdfast_linux::raw::RawSender;
use holdfast_linux::spawn::Server;
use holdfast_member::host::{End, MemberHost as _};
use holdfast_member::primary::{Held, PrimaryMachine};
use holdfast_replica::limits::PrimaryLimits;
use holdfast_wire::message::{ConnId, ConnKey, VERSION_SPARES_HASHES};
use holdfast_wire::packet::mapped;
use holdfast_wire::shm::mode;
pub use host::states;
use image::Outgoing;
pub use kept::Kept;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

const LISTENER: u64 = ROLE;
const PEER: u64 = ROLE + 1;
const GATE: u64 = ROLE + 2;
const WAKE: u64 = ROLE + 3;
const CONTROL: u64 = ROLE + 4;
const PIDFD: u64 = ROLE + 5;
const TAP: u64 = ROLE + 6;

/// Everything a primary holds.
struct PrimaryDaemon<'n, 'a> {
    node: &'n mut MemberContext<'a>,
    listener: Listener,
    gate: Gate,
    raw: RawSender,
    diag: DiagSocket,
    /// The server, shared within a turn with the reader of the log.
    server: Arc<Server>,
    /// The channel to the backup; `None` while it is being read, and while
    /// nobody has come.
    peer: Option<Channel>,
    /// Accepts a joining member, while the server runs alone.
    door: Doorway,
    image: Option<Outgoing>,
    /// Whether the channel is of no use any more.
    is_peer_gone: bool,
    is_peer_ready: bool,
    /// SYN-ACKs that the gate holds back until the backup has their record.
    held: BTreeMap<ConnId, Vec<u8>>,
    /// A key for each service, to ask who would get a connection to it.
    service_keys: Vec<ConnKey>,
    /// The backup's own state, as it last reported it.
    says: Option<Said>,
    /// Percentage of the server that a joining member has, until that member reports that it
    /// could take over.
    joins: Option<u8>,
    /// When it had joined, until it has said how it is.
    joined_at: Option<Instant>,
    repetition: Repetition,
    services: Services,
    /// Whether the server has listened at every service.
    has_served: bool,
    watching_write: bool,
    /// Whether server, gate and listener no longer wake the loop.
    apart: bool,
    /// Whether the server's socket wakes the loop.
    hears_control: bool,
    ended: bool,
    place: ServerCpu,
    /// Set while the server runs alone.
    alone: Option<Alone>,
    /// Whether the operator has asked this member to hand over, after which it comes back.
    comes_back: bool,
    /// After a takeover: listeners whose port somebody else holds.
    barred: Barred,
    /// What the server can be rebuilt from while it runs alone.
    kept: Option<Kept>,
    /// What the backup was offered of the log's short way.
    direct: Option<Offered>,
    /// Whether it was offered to this backup, whatever came of it; and whether the server has it.
    was_direct_offered: bool,
    is_direct: bool,
}

/// Waits for the backup, then serves until server, backup or daemon end.
///
/// # Errors
/// What keeps the role from starting: interfaces, addresses, programs.
pub fn run(node: &mut MemberContext<'_>) -> anyhow::Result<End> {
    node.member.speaks = true;
    let mut listener = Listener::bind(node.me.address, node.pair_identity())?;
    listener.prefer([node.comes_from()]);
    node.poll.add(&listener, LISTENER, Interest::Read)?;
    node.other_says = None;
    let alone_after_s = node.config.group.alone_after_s;
    let remedy = format!(
        "start the other member's daemon; after {alone_after_s} s (alone_after_s) this one serves \
         without a backup"
    );
    let reason = "the backup has not connected yet";
    node.set_state(status::Role::Primary, State::Waiting, reason, &remedy);
    node.excuse_start();
    let gate = node.attach_gate(false)?;
    node.clear_earlier_life(Own::Gate)?;
    if node.config.group.mode == Mode::Cold {
        // A cold backup has no replica that could start together with it, so it joins.
        return start_alone(node, listener, gate);
    }
    // The programs first, because they take a while: the backup counts heartbeats
    // from now on.
    let peer = match wait_for_backup(node, &mut listener, PEER)? {
        Came::Stop => return Ok(End::Stopped),
        Came::Nobody => return start_alone(node, listener, gate),
        Came::Backup(peer) => *peer,
    };
    node.excuse_start();
    node.take_addresses()?;
    let server = node.start_server(mode::RECORD)?;
    node.poll.add(&gate.events_fd(), GATE, Interest::Read)?;
    node.poll.add(&server.wake(), WAKE, Interest::Rung)?;
    node.poll.add(&server.pidfd(), PIDFD, Interest::Read)?;
    let linger_max = node.config.group.connections_max as usize / 2;
    let mut this = PrimaryDaemon::new(node, listener, gate, server, Some(peer))?;
    this.heed_release();
    this.hear_control()?;
    let mut machine = PrimaryMachine::new(linger_max, &mut this);
    let remedy = "look at the server's log";
    let reason = "the server has not started yet";
    this.node.set_state(status::Role::Primary, State::Waiting, reason, remedy);
    let end = drive(&mut this, |stop, this| machine.turn(stop, this))?;
    let lone = this.over(end, machine);
    rebuild_while_it_falls(node, lone)
}

/// Starts without a backup: the server serves alone, and a member that comes
/// joins it.
fn start_alone(
    node: &mut MemberContext<'_>,
    listener: Listener,
    mut gate: Gate,
) -> anyhow::Result<End> {
    node.excuse_start();
    node.take_addresses()?;
    gate.set_solo(true).context("the gate")?;
    let server = node.start_server(mode::SOLO)?;
    node.set_alone("no backup has come; running alone");
    node.poll.remove(&listener)?;
    let (conns, barred) = (Vec::new(), Barred::default());
    let (listener, alone) = (Some(listener), Alone::of_start().awaited(node));
    run_alone(node, Survivor { server, gate, conns, listener, alone, barred })
}

/// A member whose server runs alone: it has taken over, or no backup has come.
pub struct Survivor {
    pub server: Server,
    pub gate: Gate,
    /// Connections that the takeover has carried over, as the gate knows them.
    pub conns: Vec<Held>,
    /// The listener for joining members, if it is open already.
    pub listener: Option<Listener>,
    pub alone: Alone,
    /// Listeners whose port somebody else holds.
    pub barred: Barred,
}

/// Serves alone until a member joins, and then as a primary like any other. A server that
/// crashes while it is alone is rebuilt if the configuration says so.
///
/// # Errors
/// When the event loop fails, or this member cannot listen for one that joins.
pub fn run_alone(node: &mut MemberContext<'_>, survivor: Survivor) -> anyhow::Result<End> {
    let lone = run_once(node, survivor)?;
    rebuild_while_it_falls(node, lone)
}

/// Rebuilds a server that has crashed, as often as it does.
fn rebuild_while_it_falls(node: &mut MemberContext<'_>, mut lone: Lone) -> anyhow::Result<End> {
    loop {
        let fallen = match lone {
            Lone::Over(end) => return Ok(end),
            Lone::Fell(fallen) => fallen,
        };
        lone = match backup::rebuild(node, *fallen)? {
            Ended::Over(end) => return Ok(end),
            Ended::Survives(again) => run_once(node, *again)?,
        };
    }
}

/// How the role of a member that was primary ends.
enum Lone {
    Over(End),
    /// Its server has crashed, and is to be rebuilt.
    Fell(Box<Fallen>),
}

fn run_once(node: &mut MemberContext<'_>, survivor: Survivor) -> anyhow::Result<Lone> {
    let Survivor { server, gate, conns, listener, alone, barred } = survivor;
    let mut listener = match listener {
        Some(listener) => listener,
        None => Listener::bind(node.me.address, node.pair_identity())?,
    };
    listener.prefer([node.comes_from()]);
    // The lock of all network namespaces may be held by others for seconds.
    let (interface, services, pins) = (&node.me.interface, node.config.served(), node.pin_dir());
    let detached = node.attend_until(|| TapDrop::detach_stale(interface, &services, &pins));
    heed("the earlier role's program", detached);
    let linger_max = node.config.group.connections_max as usize / 2;
    let mut this = PrimaryDaemon::new(node, listener, gate, server, None)?;
    this.node.poll.add(&this.server.pidfd(), PIDFD, Interest::Read)?;
    this.watch()?;
    (this.alone, this.barred) = (Some(alone), barred);
    this.node.begin_alone();
    let limits = PrimaryLimits::DEFAULT;
    let mut machine = PrimaryMachine::alone(linger_max, limits, conns, &mut this);
    let end = drive(&mut this, |stop, this| machine.turn(stop, this))?;
    Ok(this.over(end, machine))
}

impl<'n, 'a> PrimaryDaemon<'n, 'a> {
    /// How this role ends: its server may have crashed alone, and is to be rebuilt.
    fn over(mut self, end: End, mut machine: PrimaryMachine) -> Lone {
        match (end, machine.take_kept(), self.kept.take()) {
            (End::Fallen, Some(machine), Some(kept)) => {
                // Processes that the server had started end with it.
                self.kill_server();
                heed("poll", self.node.poll.remove(&kept.tap.fd()));
                Lone::Fell(Box::new(Fallen { machine, kept, gate: self.gate }))
            }
            (end, _, _) => Lone::Over(end),
        }
    }

    fn new(
        node: &'n mut MemberContext<'a>,
        listener: Listener,
        gate: Gate,
        server: Server,
        peer: Option<Channel>,
    ) -> anyhow::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            listener,
            gate,
            raw: RawSender::open(None)?,
            diag: DiagSocket::open()?,
            server: Arc::new(server),
            peer,
            door: Doorway::default(),
            image: None,
            is_peer_gone: false,
            // What arrived together with the handshake is in the channel's buffer, and epoll
            // will not report it.
            is_peer_ready: true,
            held: BTreeMap::new(),
            service_keys: service_keys(&node.services()),
            says: None,
            joins: None,
            joined_at: None,
            repetition: Repetition::new(now),
            services: Services::open(now).context("a netlink socket")?,
            has_served: false,
            watching_write: false,
            apart: false,
            hears_control: false,
            ended: false,
            place: ServerCpu::new(node.config.group.share_cpu, now),
            alone: None,
            comes_back: false,
            barred: Barred::default(),
            kept: None,
            direct: None,
            was_direct_offered: false,
            is_direct: false,
            node,
        })
    }

    /// Lets the server log nothing that the backup's release does not know. An image of the server
    /// knows what the server does.
    fn heed_release(&self) {
        let is_new = self.peer.as_ref().is_none_or(|peer| peer.version() >= VERSION_SPARES_HASHES);
        self.server.memory.set_spares_hashes(is_new);
    }

    /// Makes server, gate and a joining member wake the loop.
    fn watch(&mut self) -> anyhow::Result<()> {
        self.apart = false;
        let poll = &self.node.poll;
        poll.add(&self.server.wake(), WAKE, Interest::Rung)?;
        poll.add(&self.gate.events_fd(), GATE, Interest::Read)?;
        poll.add(&self.listener, LISTENER, Interest::Read)?;
        Ok(())
    }

    /// Makes the server's control socket wake the loop: a server that closes it is about to end.
    fn hear_control(&mut self) -> anyhow::Result<()> {
        if !self.hears_control {
            let Some(control) = self.server.control() else { return Ok(()) };
            self.node.poll.add(&control, CONTROL, Interest::Read)?;
            self.hears_control = true;
        }
        Ok(())
    }

    fn ignore_control(&mut self) {
        if std::mem::take(&mut self.hears_control) {
            heed("poll", self.server.control().map_or(Ok(()), |it| self.node.poll.remove(&it)));
        }
    }

    /// Gives the server to `act`, which changes it. `None` if somebody still reads its log.
    fn with_server<T>(&mut self, act: impl FnOnce(&mut Server) -> T) -> Option<T> {
        // A thread that takes an image holds the server.
        self.image = None;
        Arc::get_mut(&mut self.server).map(act)
    }
}

/// A connection key for each service, with an unspecified client.
fn service_keys(services: &[(IpAddr, u16)]) -> Vec<ConnKey> {
    let nowhere = |ip: IpAddr| match ip {
        IpAddr::V4(_) => mapped(Ipv4Addr::UNSPECIFIED.into()),
        IpAddr::V6(_) => mapped(Ipv6Addr::UNSPECIFIED.into()),
    };
    let key = |&(ip, server_port): &(IpAddr, u16)| ConnKey {
        server: mapped(ip),
        client: nowhere(ip),
        server_port,
        client_port: 0,
    };
    services.iter().map(key).collect()
}

impl<'a> Role<'a> for PrimaryDaemon<'_, 'a> {
    fn handle_ready(&mut self) {
        if let Some(kept) = &mut self.kept {
            heed("the tap", kept.tap.follow(self.node.link_index));
        }
        self.server.memory.awake();
        self.is_peer_ready = self.node.tokens.has(PEER);
        if self.node.tokens.has(LISTENER) && !self.apart && self.alone.is_none() {
            self.turn_away();
        }
    }
}
