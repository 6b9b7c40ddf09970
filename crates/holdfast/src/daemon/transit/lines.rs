//! The UDP sockets, one per string, and the heartbeats that go through them.

use super::beat;
use crate::config::transit::{Side, StringEnd, TransitConfig};
use crate::daemon::proven::DATAGRAM_BYTES;
use crate::key::{GroupKey, Keyring};
use anyhow::{Context, Result};
use holdfast_cluster::Nanos;
use holdfast_linux::link::Link;
use holdfast_member::transit::TransitMachine;
use holdfast_member::transit::beat::{Beats, Reject};
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{SocketAddr, UdpSocket};

/// Most datagrams taken from one string in one turn, so that a flood on one string does not delay
/// the others.
const DATAGRAMS_PER_TURN: usize = 64;
/// Traffic class of heartbeats: DSCP CS6, network control (RFC 4594 §3.1).
const TRAFFIC_CLASS: u32 = 0xc0;

/// Counters of datagrams that were not accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rejected {
    pub forged: u64,
    pub replayed: u64,
    pub unproven: u64,
}

struct Line {
    socket: UdpSocket,
    /// The interface that the socket is bound to.
    ifindex: u32,
    peer: SocketAddr,
}

/// The sockets; see the module.
pub(super) struct Lines {
    lines: Vec<Line>,
    beats: Beats,
    keyring: Keyring,
    /// The other edge's role.
    other: &'static str,
    rejected: Rejected,
}

impl Lines {
    pub(super) fn open(config: &TransitConfig, side: Side, key: &Keyring) -> Result<Self> {
        let line = |string: &crate::config::transit::TransitString| -> Result<Line> {
            let end = string.end(side);
            let ifindex = Link::by_name(&end.interface)?.index;
            let peer = string.end(side.other()).address;
            Ok(Line { socket: open(end)?, ifindex, peer })
        };
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(std::io::Error::other)?;
        let session = u64::from_le_bytes(random).max(1);
        Ok(Self {
            lines: config.strings.iter().map(line).collect::<Result<_>>()?,
            beats: Beats::new([side, side.other()].map(|side| side as u8), session),
            keyring: key.clone(),
            other: side.other().name(),
            rejected: Rejected::default(),
        })
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &UdpSocket> {
        self.lines.iter().map(|line| &line.socket)
    }

    /// Whether the string's heartbeats go through the interface with this number.
    pub(super) fn is_at(&self, string: usize, ifindex: u32) -> bool {
        self.lines[string].ifindex == ifindex
    }

    /// Sends and receives through the string's interface that was made anew: what is bound to the
    /// old one hears nothing any more. Returns the new socket.
    ///
    /// # Errors
    /// When the interface has not its address yet; try again then.
    pub(super) fn follow(
        &mut self,
        string: usize,
        end: &StringEnd,
        ifindex: u32,
    ) -> Result<&UdpSocket> {
        let line = &mut self.lines[string];
        (line.socket, line.ifindex) = (open(end)?, ifindex);
        Ok(&line.socket)
    }

    pub(super) fn rejected(&self) -> Rejected {
        self.rejected
    }

    /// Sends one heartbeat through every string. One that cannot be sent counts as lost.
    pub(super) fn send(&mut self, now: Nanos, lost: u32) {
        let key = self.keyring.with(self.other).first().strings_key();
        for (string, line) in self.lines.iter().enumerate() {
            let beat = self.beats.send(now.0, string, lost);
            let _lost = line.socket.send_to(&beat::encode(&beat, &key), line.peer);
        }
    }

    /// Takes the heartbeats that have arrived through the strings.
    pub(super) fn receive(&mut self, now: Nanos, machine: &mut TransitMachine) {
        let secrets = self.keyring.with(self.other);
        let keys: Vec<[u8; 32]> = secrets.iter().map(GroupKey::strings_key).collect();
        for (string, line) in self.lines.iter_mut().enumerate() {
            // One byte more than a datagram has, to notice those that are too long.
            let mut bytes = [0; DATAGRAM_BYTES + 1];
            for _ in 0..DATAGRAMS_PER_TURN {
                let Ok((len, from)) = line.socket.recv_from(&mut bytes) else { break };
                if from != line.peer {
                    self.rejected.forged += 1;
                    continue;
                }
                let decoded = keys.iter().find_map(|key| beat::decode(&bytes[..len], key));
                let Some(beat) = decoded else {
                    self.rejected.forged += 1;
                    if beat::has_form(&bytes[..len]) {
                        machine.handle_foreign_beat();
                    }
                    continue;
                };
                secrets.proven().note();
                match self.beats.receive(now.0, string, &beat) {
                    Ok(fresh) => machine.handle_beat(string, &fresh, now),
                    Err(Reject::Misdirected) => self.rejected.forged += 1,
                    Err(Reject::Replayed) => self.rejected.replayed += 1,
                    Err(Reject::Unproven) => self.rejected.unproven += 1,
                }
            }
        }
    }
}

fn open(end: &StringEnd) -> Result<UdpSocket> {
    socket(end).with_context(|| {
        format!(
            "cannot send heartbeats from {} through {}: the address must be this host's",
            end.address, end.interface
        )
    })
}

/// A socket that sends and receives only through this string's interface.
fn socket(end: &StringEnd) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(end.address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.bind_device(Some(end.interface.as_bytes()))?;
    socket.bind(&end.address.into())?;
    match end.address {
        SocketAddr::V4(_) => socket.set_tos_v4(TRAFFIC_CLASS)?,
        SocketAddr::V6(_) => socket.set_tclass_v6(TRAFFIC_CLASS)?,
    }
    Ok(socket.into())
}
