//! The primary on this host: its gate, its server's log, its kernel, and the channel
//! to the backup. What is done with them is `holdfast_member::primary`'s.

mod host;
mod shown;
mod unread;

use super::drive::{Role, drive};
use super::member::{MemberContext, ROLE};
use super::pairing::wait_for_backup;
use super::placement::ServerCpu;
use super::said::{Repetition, Said};
use super::services::Services;
use super::survivor::Survivor;
use crate::channel::{Channel, Listener};
use crate::leavings::Own;
use crate::poll::Interest;
use crate::status::{self, State};
use anyhow::Context as _;
use holdfast_linux::bpf::{Gate, GateConfig};
use holdfast_linux::diag::DiagSocket;
use holdfast_linux::raw::RawSender;
use holdfast_linux::spawn::Server;
use holdfast_member::host::End;
use holdfast_member::primary::PrimaryMachine;
use holdfast_wire::message::{ConnId, ConnKey};
use holdfast_wire::packet::mapped;
use holdfast_wire::shm::mode;
pub use host::states;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::Instant;

const LISTENER: u64 = ROLE;
const PEER: u64 = ROLE + 1;
const GATE: u64 = ROLE + 2;
const WAKE: u64 = ROLE + 3;
const CONTROL: u64 = ROLE + 4;
const PIDFD: u64 = ROLE + 5;

/// Everything a primary holds.
struct PrimaryDaemon<'n, 'a> {
    node: &'n mut MemberContext<'a>,
    listener: Listener,
    gate: Gate,
    raw: RawSender,
    diag: DiagSocket,
    /// Shared with who reads the log, within a turn.
    server: Rc<Server>,
    /// `None` while it is being read.
    peer: Option<Channel>,
    /// The channel is of no use any more.
    is_peer_gone: bool,
    is_peer_ready: bool,
    /// SYN-ACKs that the gate holds back.
    held: BTreeMap<ConnId, Vec<u8>>,
    /// Who would be asked for by a connection to each service.
    service_keys: Vec<ConnKey>,
    /// What the backup says of itself.
    says: Option<Said>,
    repetition: Repetition,
    services: Services,
    /// The server has listened at every service.
    has_served: bool,
    watching_write: bool,
    /// Server and gate are not watched for what they say.
    apart: bool,
    ended: bool,
    place: ServerCpu,
    /// Once the server speaks alone, or another member.
    survivor: Option<Survivor>,
}

/// Waits for the backup, then serves until server, backup or daemon end.
///
/// # Errors
/// What keeps the role from starting: interfaces, addresses, programs.
pub fn run(node: &mut MemberContext<'_>) -> anyhow::Result<End> {
    node.member.speaks = true;
    let mut listener = Listener::bind(node.me.address, node.pair_identity())?;
    listener.prefer([node.other.address.ip()]);
    node.poll.add(&listener, LISTENER, Interest::Read)?;
    node.other_says = None;
    node.set_state(
        status::Role::Primary,
        State::Waiting,
        "the backup has not connected yet",
        "start the other member's daemon",
    );
    node.excuse_start();
    let gate = Gate::attach(&GateConfig {
        interface: node.me.interface.clone(),
        services: node.services(),
        slots: node.config.group.connections_max,
        pin_dir: node.pin_dir(),
    })?;
    node.clear_earlier_life(Own::Gate)?;
    // Programs first, they take a while: the backup counts heartbeats from now on.
    let Some(peer) = wait_for_backup(node, &mut listener, PEER)? else { return Ok(End::Stopped) };
    node.excuse_start();
    node.take_addresses()?;
    let server = node.start_server(mode::RECORD)?;
    node.poll.add(&gate.events_fd(), GATE, Interest::Read)?;
    node.poll.add(&server.wake(), WAKE, Interest::Rung)?;
    node.poll.add(&server.control(), CONTROL, Interest::Read)?;
    node.poll.add(&server.pidfd(), PIDFD, Interest::Read)?;
    let linger_max = node.config.group.connections_max as usize / 2;
    let mut this = PrimaryDaemon::new(node, listener, gate, server, peer)?;
    let mut machine = PrimaryMachine::new(linger_max, &mut this);
    let remedy = "look at the server's log";
    let reason = "the server has not started yet";
    this.node.set_state(status::Role::Primary, State::Waiting, reason, remedy);
    drive(&mut this, |stop, this| machine.turn(stop, this))
}

impl<'n, 'a> PrimaryDaemon<'n, 'a> {
    fn new(
        node: &'n mut MemberContext<'a>,
        listener: Listener,
        gate: Gate,
        server: Server,
        peer: Channel,
    ) -> anyhow::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            listener,
            gate,
            raw: RawSender::open(None)?,
            diag: DiagSocket::open()?,
            server: Rc::new(server),
            peer: Some(peer),
            is_peer_gone: false,
            // What came with the handshake is buffered: no readiness will tell.
            is_peer_ready: true,
            held: BTreeMap::new(),
            service_keys: service_keys(&node.services()),
            says: None,
            repetition: Repetition::new(now),
            services: Services::open(now).context("a netlink socket")?,
            has_served: false,
            watching_write: false,
            apart: false,
            ended: false,
            place: ServerCpu::new(node.config.group.share_cpu, now),
            survivor: None,
            node,
        })
    }

    /// The server, for what changes it: nobody reads its log meanwhile.
    fn with_server<T>(&mut self, act: impl FnOnce(&mut Server) -> T) -> Option<T> {
        Rc::get_mut(&mut self.server).map(act)
    }
}

/// A connection to each service, from nowhere.
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
        self.server.memory.awake();
        self.is_peer_ready = self.node.tokens.has(PEER);
        if self.node.tokens.has(LISTENER) && !self.apart {
            self.turn_away();
        }
    }
}
