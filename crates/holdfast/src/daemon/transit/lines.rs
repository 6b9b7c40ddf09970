//! The sockets, one per string, and what each of them makes the edge believe.

use super::beat::{Beats, Fresh, Reject};
use crate::config::transit::{Side, StringEnd, TransitConfig};
use crate::daemon::proven::DATAGRAM_BYTES;
use anyhow::{Context, Result};
use holdfast_cluster::Nanos;
use holdfast_cluster::detector::{Detector, Peer, Verdicts};
use holdfast_edge::QueueDelay;
use holdfast_edge::strings::Strings;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// Datagrams taken from one string before the others have their turn: whoever
/// floods a string delays no other, and not for long.
const DATAGRAMS_PER_TURN: usize = 64;
/// Class selector 6, network control (RFC 4594 §3.1).
const TRAFFIC_CLASS: u32 = 0xc0;

/// Datagrams that did not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rejected {
    pub forged: u64,
    pub replayed: u64,
    pub unproven: u64,
}

struct Line {
    socket: UdpSocket,
    peer: SocketAddr,
    detector: Detector,
    delay: QueueDelay,
    /// When the last heartbeat was sent that has certainly arrived.
    sound: Nanos,
    /// Packets of flows that have come through it, and when they were counted.
    traffic: u64,
    counted: Nanos,
}

/// See the module.
pub(super) struct Lines {
    lines: Vec<Line>,
    beats: Beats,
    period: Nanos,
    rejected: Rejected,
}

impl Lines {
    pub(super) fn open(config: &TransitConfig, side: Side, key: [u8; 32]) -> Result<Self> {
        let period = Nanos::from_ms(config.group.heartbeat_ms);
        let line = |string: &crate::config::transit::TransitString| -> Result<Line> {
            let end = string.end(side);
            let socket = socket(end).with_context(|| {
                format!(
                    "cannot send heartbeats from {} through {}: the address must be this host's",
                    end.address, end.interface
                )
            })?;
            let peer = string.end(side.other()).address;
            let detector = Detector::new(Nanos(0), period);
            Ok(Line {
                socket,
                peer,
                detector,
                delay: QueueDelay::default(),
                sound: Nanos(0),
                traffic: 0,
                counted: Nanos(0),
            })
        };
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(std::io::Error::other)?;
        let session = u64::from_le_bytes(random).max(1);
        Ok(Self {
            lines: config.strings.iter().map(line).collect::<Result<_>>()?,
            beats: Beats::new(key, side, session),
            period,
            rejected: Rejected::default(),
        })
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &UdpSocket> {
        self.lines.iter().map(|line| &line.socket)
    }

    pub(super) fn rejected(&self) -> Rejected {
        self.rejected
    }

    /// One heartbeat through every string. What cannot be sent is as good as lost.
    pub(super) fn send(&mut self, now: Nanos, lost: u32) {
        for (string, line) in self.lines.iter().enumerate() {
            let beat = self.beats.send(now.0, string, lost);
            let _lost = line.socket.send_to(&beat, line.peer);
        }
    }

    /// Takes what has come through the strings.
    pub(super) fn receive(&mut self, now: Nanos, machine: &mut Strings) {
        // The other edge counts on with every string.
        let round = self.lines.len() as u64;
        for (string, line) in self.lines.iter_mut().enumerate() {
            // One byte more, so that a longer datagram is not taken for a whole one.
            let mut bytes = [0; DATAGRAM_BYTES + 1];
            for _ in 0..DATAGRAMS_PER_TURN {
                let Ok((len, from)) = line.socket.recv_from(&mut bytes) else { break };
                if from != line.peer {
                    self.rejected.forged += 1;
                    continue;
                }
                match self.beats.receive(now.0, string, &bytes[..len]) {
                    Ok(Fresh { peer_lost, step, round_trip_ns, echoed_ns }) => {
                        line.sound = line.sound.max(Nanos(echoed_ns.unwrap_or(0)));
                        if let Some(round_trip) = round_trip_ns {
                            line.delay.handle_round_trip(now.0, round_trip);
                        }
                        if line.detector.peer() == Peer::Dead {
                            line.detector = Detector::new(now, self.period);
                        }
                        line.detector.handle_received(now, &mut Verdicts::default());
                        machine.handle_beat(string, peer_lost, step > round);
                    }
                    Err(Reject::Forged) => self.rejected.forged += 1,
                    Err(Reject::Replayed) => self.rejected.replayed += 1,
                    Err(Reject::Unproven) => self.rejected.unproven += 1,
                }
            }
        }
    }

    /// How long packets wait in front of a string, there or back, since this was
    /// asked last.
    pub(super) fn queue_delay(&mut self, string: usize) -> Option<Duration> {
        self.lines.get_mut(string)?.delay.take().map(Duration::from_nanos)
    }

    /// The last moment at which packets are known to have got through a string.
    pub(super) fn sound(&self, string: usize) -> Nanos {
        self.lines.get(string).map_or(Nanos(0), |line| line.sound)
    }

    /// So many packets of flows have come through each string. One that carries
    /// them is not dead, even if its full queue has swallowed some heartbeats in a
    /// row; they prove no more than that, for nobody has signed them.
    pub(super) fn count(
        &mut self,
        now: Nanos,
        traffic: impl Iterator<Item = u64>,
        machine: &mut Strings,
    ) {
        for (string, (line, packets)) in self.lines.iter_mut().zip(traffic).enumerate() {
            let (before, since) = (line.traffic, line.counted);
            (line.traffic, line.counted) = (packets, now);
            if packets > before && line.detector.peer() != Peer::Dead {
                // They came at any time since then.
                line.detector.handle_received(since, &mut Verdicts::default());
                machine.handle_traffic(string);
            }
        }
    }

    /// Tells the machine who is silent.
    pub(super) fn judge(&mut self, now: Nanos, machine: &mut Strings) {
        let mut silent = 0u32;
        for (string, line) in self.lines.iter_mut().enumerate() {
            if line.detector.next_deadline().is_none_or(|due| due > now) {
                continue;
            }
            // Heartbeats have a timer of their own, because dead strings get them too.
            let mut verdict = Verdicts::default();
            line.detector.handle_timeout(now, &mut verdict);
            if verdict.suspected {
                machine.handle_suspected(string);
            }
            silent |= u32::from(verdict.declared) << string;
        }
        // All doubts first: what is doubted too makes no other string a dead one.
        for string in (0..self.lines.len()).filter(|string| silent >> string & 1 == 1) {
            machine.handle_silent(string);
        }
    }

    /// When [`Lines::judge`] is due.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.lines.iter().filter_map(|line| line.detector.next_deadline()).min()
    }

    /// Judges a string anew.
    pub(super) fn renew(&mut self, string: usize, now: Nanos) {
        if let Some(line) = self.lines.get_mut(string) {
            line.detector = Detector::new(now, self.period);
        }
    }
}

/// A socket that sends and receives through this string and no other way.
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
