//! The packets of a simulated link as pcapng, with headers and checksums that
//! Wireshark accepts. Payload bytes are zeros.

use super::error::{FileError, Refused};
use anyhow::{Context as _, Result};
use holdfast_netsim::net::packet::{Kind, Packet};
use holdfast_netsim::net::{Network, Scenario, Tap};
use holdfast_netsim::tcp::Profile;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment, map_ipv4};
use holdfast_wire::pcapng::{self, LinkType, Record};
use holdfast_wire::seq::SeqNo;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

/// Window scale of the windows that are written.
const WINDOW_SCALE: u8 = 10;

/// Zeros that stand for payloads.
static PAYLOAD: [u8; 1 << 16] = [0; 1 << 16];

/// A link to capture, and the file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    link: u32,
    path: PathBuf,
}

/// Parses `4:file.pcapng`.
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
            let (number, count) = (self.link, scenario.links.len());
            return Err(Refused(FileError::Missing { what: "link", number, count }).into());
        }
        let shown = self.path.display();
        let file = File::create(&self.path).with_context(|| format!("cannot write {shown}"))?;
        let mut writer = Writer::new(BufWriter::new(file), self.link, scenario)?;
        let _ =
            Network::new(scenario).map_err(|it| Refused(it.into()))?.with_tap(&mut writer).run();
        writer.finish().with_context(|| format!("cannot write {shown}"))
    }
}

/// A tap that writes what enters the link.
pub struct Writer<'a, W: Write> {
    file: pcapng::Writer<W>,
    link: u32,
    scenario: &'a Scenario,
    packet: Vec<u8>,
    failed: Option<std::io::Error>,
}

impl<'a, W: Write> Writer<'a, W> {
    /// Begins a capture file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(out: W, link: u32, scenario: &'a Scenario) -> Result<Self> {
        let mut file = pcapng::Writer::new(out)?;
        file.interface("", LinkType::RawIp)?;
        Ok(Self { file, link, scenario, packet: Vec::new(), failed: None })
    }

    /// Ends the capture file.
    ///
    /// # Errors
    /// The first error of any write.
    pub fn finish(mut self) -> Result<()> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        Ok(self.file.flush()?)
    }
}

impl<W: Write> Tap for Writer<'_, W> {
    fn packet(&mut self, now: u64, link: u32, packet: &Packet, lost: bool) {
        if link != self.link || self.failed.is_some() {
            return;
        }
        let flow = &self.scenario.flows[packet.flow as usize];
        let profile = &self.scenario.profiles[flow.profile as usize];
        // A packet that cannot be built is not simulated either, since the profile's sizes were
        // checked.
        if segment(packet, profile).build_into(&mut self.packet).is_ok() {
            let record = Record {
                interface: 0,
                at_ns: now,
                wire_bytes: self.packet.len() as u32,
                bytes: &self.packet,
                comment: if lost { "lost on this link" } else { "" },
            };
            self.failed = self.file.packet(&record).err();
        }
    }
}

/// A packet as TCP has it: sequence numbers count bytes, and the SYN counts one.
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
        window: window(packet, profile),
        options,
        payload: if data { &PAYLOAD[..profile.mss_bytes as usize] } else { &[] },
    }
}

/// The window of a packet. The receiver's window is simulated where it matters, in acknowledgements
/// of data. Elsewhere it is the profile's initial one: nothing is sent to the simulated client, and
/// a window of 0 would say that it can take nothing.
fn window(packet: &Packet, profile: &Profile) -> u16 {
    let segments = if packet.kind == Kind::Ack { packet.window } else { profile.window_segments };
    let bytes = u64::from(segments) * u64::from(profile.mss_bytes);
    // The handshake's windows are not scaled (RFC 7323 §2.2).
    let is_scaled = !matches!(packet.kind, Kind::Syn | Kind::SynAck);
    (if is_scaled { bytes >> WINDOW_SCALE } else { bytes }).min(65_535) as u16
}
