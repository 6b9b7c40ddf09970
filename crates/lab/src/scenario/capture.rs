//! The packets of a simulated link as pcapng, with headers and checksums that
//! Wireshark accepts. Payload bytes are zeros.

use anyhow::{Context as _, Result, bail};
use holdfast_sim::net::packet::{Kind, Packet};
use holdfast_sim::net::{Network, Scenario, Tap};
use holdfast_sim::tcp::Profile;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment, map_ipv4};
use holdfast_wire::seq::SeqNo;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

/// Block types and the raw-IP link type of the pcapng specification.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const LINKTYPE_RAW: u16 = 101;

/// Shift of the windows that are written.
const WINDOW_SCALE: u8 = 10;

/// Zeros for payloads.
static PAYLOAD: [u8; 1 << 16] = [0; 1 << 16];

/// Which link, and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    link: u32,
    path: PathBuf,
}

/// From `4:file.pcapng`.
///
/// # Errors
/// When it is not of that form.
pub fn parse(text: &str) -> Result<Capture, String> {
    let split = text.split_once(':').and_then(|(link, path)| Some((link.parse().ok()?, path)));
    let (link, path) = split
        .ok_or_else(|| format!("{text:?} is no capture; write LINK:FILE, as in 0:r1.pcapng"))?;
    Ok(Capture { link, path: path.into() })
}

impl Capture {
    /// Runs a scenario and writes what enters the link.
    ///
    /// # Errors
    /// When there is no such link or the file cannot be written.
    pub fn write(&self, scenario: &Scenario) -> Result<()> {
        if self.link as usize >= scenario.links.len() {
            bail!("there is no link {}; there are {}", self.link, scenario.links.len());
        }
        let shown = self.path.display();
        let file = File::create(&self.path).with_context(|| format!("cannot write {shown}"))?;
        let mut writer = Writer::new(BufWriter::new(file), self.link, scenario)?;
        let _ = Network::new(scenario)?.with_tap(&mut writer).run();
        writer.finish().with_context(|| format!("cannot write {shown}"))
    }
}

/// A tap that writes.
pub struct Writer<'a, W: Write> {
    out: W,
    link: u32,
    scenario: &'a Scenario,
    packet: Vec<u8>,
    failed: Option<std::io::Error>,
}

impl<'a, W: Write> Writer<'a, W> {
    /// Begins a file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(out: W, link: u32, scenario: &'a Scenario) -> Result<Self> {
        let mut writer = Self { out, link, scenario, packet: Vec::new(), failed: None };
        let mut section = BYTE_ORDER.to_le_bytes().to_vec();
        section.extend([1, 0, 0, 0]);
        section.extend(u64::MAX.to_le_bytes());
        writer.block(SECTION_HEADER, &section)?;
        let mut interface = LINKTYPE_RAW.to_le_bytes().to_vec();
        interface.extend([0, 0, 0, 0, 0, 0]);
        // if_tsresol: nanoseconds; then the end of the options.
        interface.extend([9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        writer.block(INTERFACE, &interface)?;
        Ok(writer)
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> std::io::Result<()> {
        let padding = body.len().next_multiple_of(4) - body.len();
        let length = ((12 + body.len() + padding) as u32).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&length)?;
        self.out.write_all(body)?;
        self.out.write_all(&[0; 3][..padding])?;
        self.out.write_all(&length)
    }

    fn enhanced(&mut self, now: u64, comment: &[u8]) -> std::io::Result<()> {
        let length = self.packet.len() as u32;
        let mut body = Vec::with_capacity(self.packet.len() + 64);
        for word in [0, (now >> 32) as u32, now as u32, length, length] {
            body.extend(word.to_le_bytes());
        }
        body.extend(&self.packet);
        body.resize(body.len().next_multiple_of(4), 0);
        if !comment.is_empty() {
            // opt_comment, then the end of the options.
            body.extend(1u16.to_le_bytes());
            body.extend((comment.len() as u16).to_le_bytes());
            body.extend(comment);
            body.resize(body.len().next_multiple_of(4), 0);
            body.extend([0; 4]);
        }
        self.block(ENHANCED_PACKET, &body)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// The first that happened.
    pub fn finish(mut self) -> Result<()> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        Ok(self.out.flush()?)
    }
}

impl<W: Write> Tap for Writer<'_, W> {
    fn packet(&mut self, now: u64, link: u32, packet: &Packet, lost: bool) {
        if link != self.link || self.failed.is_some() {
            return;
        }
        let flow = &self.scenario.flows[packet.flow as usize];
        let profile = &self.scenario.profiles[flow.profile as usize];
        // A packet that cannot be built is not simulated either: the profile's
        // sizes were checked.
        if segment(packet, profile).build_into(&mut self.packet).is_ok() {
            let comment: &[u8] = if lost { b"lost on this link" } else { b"" };
            self.failed = self.enhanced(now, comment).err();
        }
    }
}

/// A packet as TCP has it: sequence numbers count bytes, the SYN is one.
fn segment<'a>(packet: &Packet, profile: &Profile) -> TcpSegment<'a> {
    let flow = packet.flow;
    let bytes = |segments: u32| match segments {
        0 => SeqNo(0),
        more => SeqNo(1).plus(u64::from(more - 1) * u64::from(profile.mss_bytes)),
    };
    let client = [10, (flow >> 16) as u8, (flow >> 8) as u8, flow as u8];
    let key = ConnKey {
        client: map_ipv4(client),
        server: map_ipv4([192, 0, 2, 1]),
        client_port: 49_152,
        server_port: 80,
    };
    let data = packet.kind == Kind::Data;
    let mut options = TcpOptions::default();
    if matches!(packet.kind, Kind::Syn | Kind::SynAck) {
        options.mss = Some(profile.mss_bytes as u16);
        options.wscale = Some(WINDOW_SCALE);
        options.sack_permitted = profile.sack;
    }
    if profile.timestamps {
        options.timestamps =
            Some(((packet.sent_at / 1_000_000) as u32, (packet.echo / 1_000_000) as u32));
    }
    for (first, end) in packet.sack.into_iter().filter(|it| it.1 > it.0) {
        options.sack.push(bytes(first), bytes(end));
    }
    let flags = match packet.kind {
        Kind::Syn => Flags::SYN,
        Kind::SynAck => Flags::SYN | Flags::ACK,
        Kind::Data if packet.push => Flags::ACK | Flags::PSH,
        Kind::Data | Kind::Ack => Flags::ACK,
    };
    let window = (u64::from(packet.window) * u64::from(profile.mss_bytes)) >> WINDOW_SCALE;
    TcpSegment {
        key,
        to_client: !packet.is_forward(),
        seq: match packet.kind {
            Kind::SynAck => SeqNo(0),
            Kind::Ack => SeqNo(1),
            Kind::Syn | Kind::Data => bytes(packet.seq),
        },
        ack: if packet.is_forward() { SeqNo(u32::from(data)) } else { bytes(packet.ack) },
        flags,
        window: window.min(65_535) as u16,
        options,
        payload: if data { &PAYLOAD[..profile.mss_bytes as usize] } else { &[] },
    }
}
