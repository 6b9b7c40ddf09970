//! The address that several edges share, with a hardware address that no host has: the switch
//! floods frames to it, and all edges see them. The program in front of the redirector gives them
//! to that of one edge. The others keep copies of the last ones, for they may have to act on what
//! a dead one did not.

use crate::config::spread::{SpreadConfig, SpreadEdge};
use anyhow::{Context as _, Result};
use holdfast_linux::address::AddressSocket;
use holdfast_linux::bpf::{Deadline, Speak, SpeakConfig, Until};
use holdfast_linux::filter;
use holdfast_linux::inlet::Inlet;
use holdfast_linux::link::Link;
use holdfast_linux::route;
use holdfast_linux::tap::TapSocket;
use holdfast_wire::packet::{Checksum, Headers, TcpPacket, complete_checksum, mapped};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a copy is kept: beyond, its sender has repeated it.
const KEEP: Duration = Duration::from_millis(200);
/// Bytes of copies that are kept; beyond, the oldest go.
const KEEP_BYTES: usize = 8 << 20;
/// Bytes of them that wait in the kernel between two turns.
const WAITING_BYTES: usize = 16 << 20;
/// Most packets taken in one turn.
const TURN_MAX: usize = 4096;
/// An edge may have seen a packet, and died before it acted on it.
const MARGIN: Duration = Duration::from_millis(2);
/// Longest headers of a packet in the tunnel, and around it.
const HEADERS: u32 = 40 + 20 + 60;

/// The shared address, at one edge.
pub(super) struct Gateway {
    interface: String,
    mac: [u8; 6],
    speak: Speak,
    deadline: Deadline,
    /// Where copies come from; none while this edge acts on the frames themselves.
    tap: Option<TapSocket>,
    /// Where copies come in when this edge begins to act.
    inlet: Inlet,
    kept: VecDeque<(Instant, Vec<u8>)>,
    kept_bytes: usize,
    /// Most payload of a copy; longer ones are several packets that nobody has cut yet.
    segment: usize,
}

impl Gateway {
    /// Has this host take part, without acting, or acting still if an earlier daemon has left it
    /// so: the second result. Copies come in by `inlet`, where the redirector is attached.
    ///
    /// # Errors
    /// When the interface is missing, or the kernel refuses.
    pub fn open(config: &SpreadConfig, me: &SpreadEdge, inlet: Inlet) -> Result<(Self, bool)> {
        let interface = me.clients.first().context("an edge has an interface to clients")?;
        let link = Link::by_name(interface)?;
        let mac = config.gateway_mac().0;
        let programs = SpeakConfig {
            interface: interface.clone(),
            services: config.clients.gateway.iter().map(|ip| (*ip, 0)).collect(),
            service_mac: mac,
            own_mac: link.mac,
            is_edge: true,
            pin_dir: config.pin_dir(&me.name),
        };
        filter::take_frames(link.index, mac)
            .with_context(|| format!("{interface} cannot take frames to the shared address"))?;
        let (speak, deadline, acts) = begin(&programs)?;
        // Only behind the programs: this host must not answer for it before it is its turn.
        let mut addresses = AddressSocket::open()?;
        for ip in &config.clients.gateway {
            addresses.restore(link.index, &mapped(*ip))?;
        }
        let mtu = route::mtu(interface)?;
        let mut gateway = Self {
            interface: interface.clone(),
            mac,
            speak,
            deadline,
            tap: None,
            inlet,
            kept: VecDeque::new(),
            kept_bytes: 0,
            segment: mtu.saturating_sub(HEADERS).max(1) as usize,
        };
        if !acts {
            gateway.watch()?;
        }
        Ok((gateway, acts))
    }

    fn watch(&mut self) -> Result<()> {
        let tap = TapSocket::open_for_address(&self.interface, self.mac, WAITING_BYTES)?;
        self.tap = Some(tap);
        Ok(())
    }

    /// Keeps what has come, and forgets what is old.
    pub fn turn(&mut self, now: Instant) {
        let Some(mut tap) = self.tap.take() else { return };
        let taken = tap.drain(TURN_MAX, |l3, checksum| self.keep(l3, checksum, now));
        match taken {
            Ok(_) => self.tap = Some(tap),
            // The interface may be back later.
            Err(error) => {
                tracing::warn!("copies of clients' frames: {error}");
                self.tap =
                    TapSocket::open_for_address(&self.interface, self.mac, WAITING_BYTES).ok();
            }
        }
        let is_old = |(at, _): &(Instant, Vec<u8>)| now.duration_since(*at) > KEEP;
        while self.kept.front().is_some_and(is_old) || self.kept_bytes > KEEP_BYTES {
            let Some((_, copy)) = self.kept.pop_front() else { break };
            self.kept_bytes -= copy.len();
        }
    }

    /// Keeps a packet, cut where nobody has cut it yet. What is damaged, or no TCP, is not kept.
    fn keep(&mut self, l3: &[u8], checksum: Checksum, now: Instant) {
        let Ok(packet) = TcpPacket::parse(l3, checksum) else { return };
        let whole = packet.payload.len();
        if whole <= self.segment {
            let mut copy = l3.to_vec();
            if complete_checksum(&mut copy).is_ok() {
                self.push(copy, now);
            }
            return;
        }
        let payload = packet.payload;
        let Some(headers) = l3.len().checked_sub(whole).and_then(|end| l3.get(..end)) else {
            return;
        };
        let Ok(headers) = Headers::parse(headers) else { return };
        let cut = (whole as u32, self.segment as u16);
        for (number, part) in payload.chunks(self.segment).enumerate() {
            let mut copy = Vec::new();
            if headers.cut((number * self.segment) as u32, part, cut, &mut copy).is_ok() {
                self.push(copy, now);
            }
        }
    }

    fn push(&mut self, copy: Vec<u8>, now: Instant) {
        self.kept_bytes += copy.len();
        self.kept.push_back((now, copy));
    }

    /// Acts on clients' frames from now on, and on those that came since another edge was last
    /// heard. Returns their number.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn serve(&mut self, since: Option<Instant>) -> Result<usize> {
        self.deadline.set(Until::Told)?;
        self.turn(Instant::now());
        self.tap = None;
        let from = since.and_then(|at| at.checked_sub(MARGIN));
        let is_due = |at: &Instant| from.is_none_or(|from| *at >= from);
        let copies = std::mem::take(&mut self.kept);
        self.kept_bytes = 0;
        let mut count = 0;
        for (_, copy) in copies.iter().filter(|(at, _)| is_due(at)) {
            count += usize::from(self.inlet.put(copy).is_ok());
        }
        Ok(count)
    }

    /// Leaves clients' frames to another edge.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn rest(&mut self) -> Result<()> {
        self.deadline.set(Until::Silent)?;
        self.watch()
    }

    /// Counts of its programs.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.speak.counters()
    }
}

fn begin(programs: &SpeakConfig) -> Result<(Speak, Deadline, bool)> {
    if let Ok(speak) = Speak::reopen(programs)
        && let Ok(deadline) = speak.deadline()
        && deadline.is_told()?
    {
        Speak::mend_at_edge(&programs.interface, &programs.pin_dir)?;
        return Ok((speak, deadline, true));
    }
    let speak = Speak::attach(programs)?;
    let deadline = speak.deadline()?;
    Ok((speak, deadline, false))
}
