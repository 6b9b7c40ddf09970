//! `holdfast capture`: shows what the programs did to packets, for Wireshark.

use super::args::CaptureArgs;
use super::group::load;
use super::{Failure, must_be_root, namespace};
use crate::poll::{Interest, Poll, Signals};
use crate::status::exit;
use anyhow::Context as _;
use holdfast_linux::bpf::{Captured, Captures, What};
use holdfast_linux::link;
use holdfast_wire::pcapng::{LinkType, Record, Writer};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal as _, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SIGNALS: u64 = 0;
/// Time between two requests for more packets from the programs.
const RENEW_PERIOD: Duration = Duration::from_secs(1);

pub(super) fn run(args: &CaptureArgs) -> Result<u8, Failure> {
    must_be_root()?;
    let (file, role) = load(&args.group)?;
    // Blocked before the first signal: it then finds somebody who cleans up.
    let signals = Signals::block()?;
    let mut captures = Captures::open(&file.pin_dir(&role)).map_err(anyhow::Error::from)?;
    if captures.is_empty() {
        let socket = file.admin_socket(&role);
        if let Some(why) = namespace::why_unseen(&socket) {
            let message = format!("there is nothing to capture here for `{role}`: {why}");
            return Err(Failure::unreachable(message));
        }
        return Err(Failure::unreachable(format!(
            "there is nothing to capture on the host of `{role}`: the programs of an edge can be watched, those of a member cannot\n  remedy: capture on the edge, whose daemon must have been started"
        )));
    }
    let mut pcap = Pcap::new(output(&args.output)?)?;
    let end = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let ended = follow(&mut captures, &signals, &mut pcap, end, args.packets);
    match ended {
        // The reader has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(exit::OK),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(exit::OK),
    }
}

/// A file, or standard output for `-`.
fn output(path: &Path) -> Result<Box<dyn Write>, Failure> {
    if path != Path::new("-") {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        return Ok(Box::new(BufWriter::new(file)));
    }
    if io::stdout().is_terminal() {
        return Err(Failure::usage(
            "a capture is not for a terminal\n  remedy: holdfast capture … -o FILE, or … | tshark -r -".to_owned(),
        ));
    }
    Ok(Box::new(BufWriter::new(io::stdout())))
}

/// Writes what is shown until a signal or a limit ends it.
fn follow(
    captures: &mut [Captures],
    signals: &Signals,
    file: &mut Pcap,
    end: Option<Instant>,
    packets_max: Option<u64>,
) -> io::Result<()> {
    let mut poll = Poll::new()?;
    poll.add(signals, SIGNALS, Interest::Read)?;
    for captures in &*captures {
        poll.add(captures, SIGNALS + 1, Interest::Read)?;
    }
    let mut renew_at = Instant::now();
    loop {
        let now = Instant::now();
        if now >= renew_at {
            for captures in &mut *captures {
                captures.renew().map_err(io::Error::other)?;
            }
            renew_at = now + RENEW_PERIOD;
        }
        let until = end.map_or(renew_at, |end| end.min(renew_at));
        let stop = poll.wait(Some(until))?.iter().any(|ready| ready.token == SIGNALS);
        for captures in &mut *captures {
            captures.drain(|packet| file.add(&packet, packets_max));
        }
        file.flush()?;
        if stop || file.is_full(packets_max) || end.is_some_and(|end| Instant::now() >= end) {
            return Ok(());
        }
    }
}

/// The file, with one interface for each that packets came in by.
struct Pcap {
    writer: Writer<Box<dyn Write>>,
    interfaces: BTreeMap<u32, u32>,
    /// Offset from the kernel's stamps to the time of day: the first packet counts
    /// as arrived when it is read.
    boot_at_ns: Option<u64>,
    packets: u64,
    failed: Option<io::Error>,
}

impl Pcap {
    fn new(out: Box<dyn Write>) -> io::Result<Self> {
        let mut pcap = Self {
            writer: Writer::new(out)?,
            interfaces: BTreeMap::new(),
            boot_at_ns: None,
            packets: 0,
            failed: None,
        };
        // A reader sees at once that it is a capture file.
        pcap.flush()?;
        Ok(pcap)
    }

    fn is_full(&self, packets_max: Option<u64>) -> bool {
        packets_max.is_some_and(|max| self.packets >= max)
    }

    fn add(&mut self, packet: &Captured<'_>, packets_max: Option<u64>) {
        if self.failed.is_none() && !self.is_full(packets_max) {
            self.packets += 1;
            self.failed = self.write(packet).err();
        }
    }

    fn write(&mut self, packet: &Captured<'_>) -> io::Result<()> {
        let interface = match self.interfaces.get(&packet.ifindex) {
            Some(known) => *known,
            None => {
                let name = link::name_of(packet.ifindex).unwrap_or_default();
                let number = self.writer.interface(&name, LinkType::Ethernet)?;
                self.interfaces.insert(packet.ifindex, number);
                number
            }
        };
        let boot_at_ns = *self.boot_at_ns.get_or_insert_with(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            (now.as_nanos() as u64).saturating_sub(packet.at_ns)
        });
        self.writer.packet(&Record {
            interface,
            at_ns: boot_at_ns + packet.at_ns,
            wire_bytes: packet.wire_bytes,
            bytes: packet.bytes,
            comment: comment(packet.what),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.writer.flush(),
        }
    }
}

fn comment(what: What) -> &'static str {
    match what {
        What::Redirected => "holdfast: redirected",
        What::Clamped => "holdfast: clamped",
        What::Dropped => "holdfast: dropped",
        What::Answered => "holdfast: answered with an ICMP error",
        What::Resent => "holdfast: resent",
        What::Other(_) => "holdfast: shown by a newer release",
    }
}
