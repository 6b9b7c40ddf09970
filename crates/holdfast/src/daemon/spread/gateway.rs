//! The address that several edges share, with a hardware address that no host has: the switch
//! floods frames to it, and all edges see them. The program in front of the redirector gives them
//! to that of one edge. The others keep copies of the last ones, for they may have to act on what
//! a dead one did not.

use crate::admin::Events;
use crate::config::spread::{SpreadConfig, SpreadEdge};
use crate::daemon::intact::Trouble;
use crate::status::State;
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
/// How long the kernel of an edge acts whose daemon has died while another edge is there.
const OUTLIVES: Duration = Duration::from_secs(3);
/// Time between two looks whether one is.
const RENEW: Duration = Duration::from_millis(500);
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
    acts: bool,
    renewed_at: Option<Instant>,
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
            acts,
            renewed_at: None,
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

    /// Puts back what somebody has removed, or an interface has lost that was made anew or was down.
    /// Returns why that fails.
    pub fn mend(
        &mut self,
        config: &SpreadConfig,
        me: &SpreadEdge,
        events: &mut Events,
    ) -> Option<Trouble> {
        match self.put_back(config, me) {
            Ok(mended) => {
                mended.into_iter().for_each(|what| events.add("mended", what));
                None
            }
            Err(error) => {
                let reason = format!("the shared gateway is not complete here: {error:#}");
                let remedy = format!(
                    "look at `ip addr show {}`; then start this daemon again",
                    self.interface
                );
                Some(Trouble::new(State::Waiting, reason, &remedy))
            }
        }
    }

    fn put_back(&mut self, config: &SpreadConfig, me: &SpreadEdge) -> Result<Vec<String>> {
        let pins = config.pin_dir(&me.name);
        let programs = Speak::mend_at_edge(&self.interface, &pins)?;
        let mut mended: Vec<String> =
            programs.iter().map(|it| format!("{it} had been removed")).collect();
        let link = Link::by_name(&self.interface)?;
        filter::take_frames(link.index, self.mac)?;
        let mut addresses = AddressSocket::open()?;
        for ip in &config.clients.gateway {
            if addresses.restore(link.index, &mapped(*ip))? {
                mended.push(format!("address {ip} of {} had been removed", self.interface));
            }
        }
        match &mut self.tap {
            Some(tap) => tap.follow(link.index)?,
            None if !self.acts => self.watch()?,
            None => {}
        }
        Ok(mended)
    }

    /// Keeps what has come, and forgets what is old.
    pub fn turn(&mut self, now: Instant) {
        let Some(mut tap) = self.tap.take() else { return };
        // An interface that is gone or down gives nothing; it is looked after by `mend`.
        let _unread = tap.drain(TURN_MAX, |l3, checksum| self.keep(l3, checksum, now));
        self.tap = Some(tap);
        let is_old = |(at, _): &(Instant, Vec<u8>)| now.duration_since(*at) > KEEP;
        while self.kept.front().is_some_and(is_old) {
            self.forget_oldest();
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
        while self.kept_bytes > KEEP_BYTES {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, copy)) = self.kept.pop_front() {
            self.kept_bytes -= copy.len();
        }
    }

    /// Acts on clients' frames from now on, and on those that came since another edge was last
    /// heard.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn serve(&mut self, since: Option<Instant>) -> Result<()> {
        self.deadline.set(Until::Told)?;
        (self.acts, self.renewed_at) = (true, None);
        self.turn(Instant::now());
        self.tap = None;
        let from = since.and_then(|at| at.checked_sub(MARGIN));
        let is_due = |at: &Instant| from.is_none_or(|from| *at >= from);
        let copies = std::mem::take(&mut self.kept);
        self.kept_bytes = 0;
        for (_, copy) in copies.iter().filter(|(at, _)| is_due(at)) {
            // Its sender repeats what does not come in.
            let _missed = self.inlet.put(copy);
        }
        Ok(())
    }

    /// Acts for good only while no other edge could: a daemon that dies leaves its kernel acting, by
    /// tables that grow old, beside the edge that takes its place.
    pub fn renew(&mut self, has_company: bool, now: Instant) {
        let is_due = self.renewed_at.is_none_or(|at| now.duration_since(at) >= RENEW);
        if !self.acts || !is_due {
            return;
        }
        self.renewed_at = Some(now);
        let until = if has_company { Until::At(now + OUTLIVES) } else { Until::Told };
        if let Err(error) = self.deadline.set(until) {
            tracing::error!("the gateway: {error}");
        }
    }

    /// Leaves clients' frames to another edge.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn rest(&mut self) -> Result<()> {
        self.deadline.set(Until::Silent)?;
        self.acts = false;
        self.watch()
    }

    /// How many frames to the shared addresses have reached this host.
    pub fn seen(&self) -> u64 {
        let of_clients = |(name, count): &(&'static str, u64)| match *name {
            "taken" | "left" | "odd" | "malformed" => *count,
            _ => 0,
        };
        self.speak.counters().iter().map(of_clients).sum()
    }

    /// Counts of its programs.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.speak.counters()
    }
}

/// Attaches the programs, for what the file says now. They act on if an earlier life has left them
/// so.
fn begin(programs: &SpeakConfig) -> Result<(Speak, Deadline, bool)> {
    let before = Deadline::pinned(&programs.pin_dir).and_then(|deadline| deadline.is_told());
    let acts = before.unwrap_or(false);
    let speak = Speak::attach(programs)?;
    let mut deadline = speak.deadline()?;
    if acts {
        deadline.set(Until::Told)?;
    }
    Ok((speak, deadline, acts))
}
