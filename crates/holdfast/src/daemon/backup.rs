//! The backup on this host: its tap, its replica, the channel to the primary, and the
//! sockets of a takeover. `holdfast_member::backup` decides what is done with them.

mod cold;
mod copy;
mod host;
mod listeners;
mod rebuild;
mod shown;
pub(super) mod sockets;

use super::advice;
use super::dialer::Dialer;
use super::direct::Listening;
use super::drive::{Role, drive};
use super::heed;
use super::member::{MemberContext, ROLE};
use super::pairing::reach_primary;
use super::placement::PacketCpu;
use super::primary::Survivor;
use super::said::{Repetition, Said};
use super::services::Services;
use super::survivor::Alone;
use crate::channel::Listener;
use crate::leavings::Own;
use crate::poll::Interest;
use anyhow::Context as _;
pub use cold::Cold;
use copy::Incoming;
use holdfast_linux::address::AddressSocket;
use holdfast_linux::bpf::{Gate, TapDrop};
use holdfast_linux::link::Link;
use holdfast_linux::neighbour::Announcer;
use holdfast_linux::process::Ending;
use holdfast_linux::raw::RawSender;
use holdfast_linux::spawn::Server;
use holdfast_linux::tap::{BUFFER_DEFAULT_BYTES, TapSocket};
use holdfast_member::backup::BackupMachine;
use holdfast_member::host::End;
use holdfast_member::primary::Held;
use holdfast_replica::limits::Limits;
use holdfast_wire::packet::{Checksum, Flags, TcpOptions, TcpPacket};
use holdfast_wire::shm::mode;
pub use listeners::Barred;
pub use rebuild::{Fallen, rebuild};
use sockets::SocketRestorer;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Release;
use std::time::Instant;

const PEER: u64 = ROLE;
const TAP: u64 = ROLE + 1;
const WAKE: u64 = ROLE + 2;
const PIDFD: u64 = ROLE + 3;
const DIRECT: u64 = ROLE + 4;

/// Everything a backup holds.
struct BackupDaemon<'n, 'a> {
    node: &'n mut MemberContext<'a>,
    /// The replica; `None` until the image of a server that is joined has come.
    replica: Option<Server>,
    incoming: Option<Incoming>,
    /// A cold backup's spool, until the server that a takeover builds from it has executed
    /// all of it.
    cold: Option<Cold>,
    /// Bytes that clients have acknowledged of connections that the replica has not
    /// reached yet; `u64::MAX` for those that are over.
    unnoted: BTreeMap<u32, u64>,
    /// Accept numbers in `unnoted` of connections that were over when a new image was
    /// requested.
    over_before: Vec<u32>,
    /// When `unnoted` is looked at again.
    settle_at: Instant,
    /// The gate, which passes everything until this member is the primary of a
    /// backup.
    gate: Gate,
    /// Connections that a takeover has carried over, as the gate knows them.
    conns: Vec<Held>,
    /// `None` while it is being read.
    tap: Option<TapSocket>,
    drop: TapDrop,
    /// `None` while it is being read.
    link: Option<Dialer>,
    /// Hears what the primary's server sends itself; `None` while it is being read.
    direct: Option<Listening>,
    /// Messages that came together with the primary's hello.
    early: Vec<Vec<u8>>,
    is_peer_ready: bool,
    malformed: u64,
    sockets: TakeoverSockets,
    /// The primary's latest report of its own state.
    says: Option<Said>,
    /// Whether the primary has said that its server listens at every service, or
    /// the replica's does.
    has_served: bool,
    /// Whether the server is rebuilt on the host on which it has ended (decision 31).
    rebuilds: bool,
    /// The primary has said that it is stopped: it has not died.
    stopped: bool,
    /// Why the edge does not grant this member's request, which is repeated.
    refused: Option<String>,
    /// Checks whether the server's ports are free here.
    ports: Services,
    repetition: Repetition,
    place: PacketCpu,
    ended: bool,
    watches_replica: bool,
    /// How the replica ended, if it did so before this daemon killed it.
    own_end: Option<Ending>,
    restorer: SocketRestorer,
    barred: Barred,
    alone: Option<(Alone, Option<Listener>)>,
}

/// The sockets through which a takeover sends. They are opened beforehand, and not closed
/// during the takeover: closing a packet socket takes the kernel milliseconds.
struct TakeoverSockets {
    raw: RawSender,
    addresses: AddressSocket,
    announcer: Announcer,
    interface: Link,
}

impl TakeoverSockets {
    fn open(node: &MemberContext<'_>) -> anyhow::Result<Self> {
        Ok(Self {
            raw: RawSender::open(None)?,
            addresses: AddressSocket::open()?,
            announcer: Announcer::open()?,
            interface: Link::by_name(&node.me.interface)?,
        })
    }
}

/// How a backup ends.
pub enum Ended {
    Over(End),
    /// The backup has taken over.
    Survives(Box<Survivor>),
}

/// Attaches the programs that keep this host's kernel from answering clients, and opens the
/// tap. Loading the programs takes a while.
fn open_tap(node: &mut MemberContext<'_>) -> anyhow::Result<(TapDrop, Gate, TapSocket)> {
    let (interface, services, pins) = (&node.me.interface, node.services(), node.pin_dir());
    let drop = node.attend_until(|| TapDrop::attach(interface, &services, &pins))?;
    node.clear_earlier_life(Own::TapDrop)?;
    let gate = node.attach_gate(true)?;
    let tap = TapSocket::open(&node.me.interface, &node.tap_services(), BUFFER_DEFAULT_BYTES)?;
    Ok((drop, gate, tap))
}

/// Follows the primary until the primary dies, the replica diverges, or the daemon is stopped.
/// If the primary's server already runs, this member joins it with an image of that server.
///
/// # Errors
/// What keeps the role from starting: interfaces, programs.
pub fn run(node: &mut MemberContext<'_>) -> anyhow::Result<Ended> {
    node.member.speaks = false;
    // Those of an earlier role are the other member's now.
    (node.other_says, node.status.connections) = (None, 0);
    node.seek("this host loads its programs", advice::WAIT);
    node.excuse_start();
    let (drop, gate, tap) = open_tap(node)?;
    node.seek_primary();
    let mut link = Dialer::new(node.way_to_other(), node.pair_identity(), PEER, Instant::now());
    let Some((runs, early)) = reach_primary(node, &mut link)? else {
        return Ok(Ended::Over(End::Stopped));
    };
    node.excuse_start();
    node.poll.add(&tap.fd(), TAP, Interest::Read)?;
    let replica = if runs { None } else { Some(start_replica(node)?) };
    node.signs_by_tap = true;
    let hash_key = node.hash_key;
    let mut this = BackupDaemon {
        watches_replica: replica.is_some(),
        replica,
        incoming: None,
        cold: None,
        unnoted: BTreeMap::new(),
        over_before: Vec::new(),
        settle_at: Instant::now(),
        gate,
        conns: Vec::new(),
        tap: Some(tap),
        drop,
        link: Some(link),
        direct: None,
        early,
        is_peer_ready: true,
        malformed: 0,
        sockets: TakeoverSockets::open(node)?,
        says: None,
        has_served: false,
        rebuilds: false,
        stopped: false,
        refused: None,
        ports: Services::open(Instant::now())?,
        repetition: Repetition::new(Instant::now()),
        place: PacketCpu::new(node.config.group.share_cpu),
        ended: false,
        own_end: None,
        barred: Barred::default(),
        restorer: SocketRestorer::default(),
        alone: None,
        node,
    };
    let mut machine = match runs {
        false => BackupMachine::new(hash_key, &mut this),
        true => BackupMachine::joining(hash_key, Limits::DEFAULT, &mut this),
    };
    match drive(&mut this, |stop, this| machine.turn(stop, this))? {
        End::Survives => this.survive(),
        end => Ok(Ended::Over(end)),
    }
}

/// The server that executes the primary's log from its start.
fn start_replica(node: &mut MemberContext<'_>) -> anyhow::Result<Server> {
    let replica = node.start_server(mode::REPLAY)?;
    watch(node, &replica)?;
    Ok(replica)
}

/// Makes the replica's wake-ups, and its end, wake the loop.
fn watch(node: &MemberContext<'_>, replica: &Server) -> anyhow::Result<()> {
    node.poll.add(&replica.wake(), WAKE, Interest::Rung)?;
    node.poll.add(&replica.pidfd(), PIDFD, Interest::Read)?;
    // The shim signals only when it parks or diverges; that must wake us.
    replica.memory.header().daemon_waiting.0.store(1, Release);
    Ok(())
}

impl BackupDaemon<'_, '_> {
    /// Moves the tap to the member's interface if that was created again, with another index.
    fn follow_interface(&mut self) {
        if let Some(tap) = &mut self.tap {
            heed("the tap", tap.follow(self.node.link_index));
        }
    }

    /// Hands the promoted replica on as a server that runs alone.
    fn survive(self) -> anyhow::Result<Ended> {
        let server = self.replica.context("nobody takes over without a server")?;
        if !self.ended {
            heed("poll", self.node.poll.remove(&server.pidfd()));
        }
        let (alone, listener) = self.alone.unwrap_or_else(|| (Alone::of_takeover(), None));
        let (gate, conns, barred) = (self.gate, self.conns, self.barred);
        let survivor = Survivor { server, gate, conns, listener, alone, barred };
        Ok(Ended::Survives(Box::new(survivor)))
    }
}

impl<'a> Role<'a> for BackupDaemon<'_, 'a> {
    fn handle_ready(&mut self) {
        self.follow_interface();
        self.is_peer_ready = self.node.tokens.has(PEER);
        if let Some(replica) = self.replica.as_ref().filter(|_| self.node.tokens.has(WAKE)) {
            replica.memory.header().daemon_waiting.0.store(1, Release);
        }
    }
}

/// A client's packet as the machines take it; `None` if it is damaged or must be refused. A
/// living server's kernel without keys drops signed segments (TCP MD5, TCP-AO) and malformed
/// options, so they must not count after its death either.
pub fn segment(l3: &[u8], checksum: Checksum) -> Option<TcpPacket<'_>> {
    let refused = |o: &TcpOptions| o.md5 || o.ao || o.malformed;
    // An edge clears the urgent pointer before it copies, and refuses IPv4 options. Where there is
    // none, this host sees them as they came, and the primary is asked for those bytes.
    let is_plain = |packet: &TcpPacket<'_>| {
        let is_bare = l3.first().is_none_or(|first| first >> 4 != 4 || first & 0xf == 5);
        is_bare && !packet.flags.has(Flags::URG)
    };
    let packet = TcpPacket::parse(l3, checksum).ok();
    packet.filter(|packet| !refused(&packet.options) && is_plain(packet))
}
