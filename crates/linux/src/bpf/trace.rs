//! Asks a loaded program where a packet would go (`BPF_PROG_TEST_RUN`). By the packet's mark the
//! program recognises a question: it counts nothing, changes no map, and returns the answer in
//! the mark.

use super::error::BpfError;
use super::layout::{TRACE_BYTE, TRACE_MARK};
use aya::programs::SchedClassifier;
use aya::{TestRun, TestRunOptions};
use holdfast_wire::packet::{Sum, internet_checksum};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// Size of `struct __sk_buff` of Linux 6.6 in bytes, and below it the offsets of two fields.
const CONTEXT_BYTES: usize = 192;
const CONTEXT_MARK: usize = 8;
const CONTEXT_IFINDEX: usize = 40;
const ETHERNET: usize = 14;
const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const TTL: u8 = 64;
/// Verdicts of tc programs: `TC_ACT_UNSPEC` and `TC_ACT_REDIRECT`.
const UNSPEC: u32 = u32::MAX;
const REDIRECT: u32 = 7;

/// The packet that is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub from: SocketAddr,
    /// Destination, of the same family as `from`.
    pub to: SocketAddr,
    pub udp: bool,
    /// Whether it is the first segment of a connection.
    pub syn: bool,
    pub payload_bytes: u16,
}

/// What the program would do with the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    pub verdict: Verdict,
    pub how: How,
    /// The slot or index of the member that gets it.
    pub member: Option<u8>,
    /// The frame before and afterwards, from the Ethernet header on.
    pub before: Vec<u8>,
    pub after: Vec<u8>,
}

/// The program's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Left to the kernel's own forwarding.
    Plain,
    /// Sent by the program.
    Redirected,
    Dropped,
}

/// Why that member was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Unknown,
    /// The flow is in the table.
    Flow,
    /// Its SYN went there, and the handshake is not over.
    Embryo,
    /// A new flow would go there.
    New,
    /// It is no SYN, and its flow is not known.
    Stray,
}

impl Question {
    /// The frame, with complete checksums.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let l4 = self.transport();
        let protocol = if self.udp { UDP } else { TCP };
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let total = ((20 + l4.len()).min(65_535) as u16).to_be_bytes();
                let mut ip = vec![0x45, 0, total[0], total[1], 0, 0, 0x40, 0, TTL, protocol, 0, 0];
                ip.extend(from.octets());
                ip.extend(to.octets());
                let sum = internet_checksum(&ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                frame.extend([0x08, 0x00]);
                frame.extend(ip);
            }
            (from, to) => {
                let length = (l4.len().min(65_535) as u16).to_be_bytes();
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, length[0], length[1], protocol, TTL]);
                frame.extend(v6_octets(from));
                frame.extend(v6_octets(to));
            }
        }
        frame.extend(l4);
        frame
    }

    fn transport(&self) -> Vec<u8> {
        let payload = usize::from(self.payload_bytes);
        let mut l4 = Vec::new();
        l4.extend(self.from.port().to_be_bytes());
        l4.extend(self.to.port().to_be_bytes());
        let (at, protocol) = if self.udp {
            l4.extend(((8 + payload).min(65_535) as u16).to_be_bytes());
            l4.extend([0; 2]);
            (6, UDP)
        } else {
            l4.extend([0; 8]);
            l4.extend([5 << 4, if self.syn { SYN } else { ACK }, 0xff, 0xff, 0, 0, 0, 0]);
            (16, TCP)
        };
        l4.resize(l4.len() + payload, 0);
        let sum = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                Sum::default().with(&from.octets()).with(&to.octets())
            }
            (from, to) => Sum::default().with(&v6_octets(from)).with(&v6_octets(to)),
        };
        let sum = sum.with(&(l4.len() as u32).to_be_bytes()).with(&[0, 0, 0, protocol]).with(&l4);
        l4[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
        l4
    }
}

fn v6_octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Runs the pinned `program` on the packet, as if it came in at `ifindex`.
pub(super) fn ask(
    pin: &Path,
    program: &'static str,
    ifindex: u32,
    question: &Question,
) -> Result<Traced, BpfError> {
    let failed = |source| BpfError::Trace { program, source: Box::new(source) };
    let classifier = SchedClassifier::from_pin(pin).map_err(failed)?;
    let before = question.frame();
    let mut after = vec![0; before.len() + 256];
    let context = context(TRACE_MARK, ifindex);
    let mut context_after = [0; CONTEXT_BYTES];
    let mut options = TestRunOptions::new();
    options.data_in = Some(&before);
    options.data_out = Some(&mut after);
    options.ctx_in = Some(&context);
    options.ctx_out = Some(&mut context_after);
    let result = classifier.test_run(options).map_err(failed)?;
    after.truncate(result.data_size_out as usize);
    let mut mark = [0; 4];
    mark.copy_from_slice(&context_after[CONTEXT_MARK..CONTEXT_MARK + 4]);
    let (how, member) = answer(u32::from_ne_bytes(mark));
    let verdict = match result.return_value {
        UNSPEC => Verdict::Plain,
        REDIRECT => Verdict::Redirected,
        _ => Verdict::Dropped,
    };
    Ok(Traced { verdict, how, member, before, after })
}

/// The `struct __sk_buff` of a packet with this mark, from this interface.
pub(super) fn context(mark: u32, ifindex: u32) -> [u8; CONTEXT_BYTES] {
    let mut context = [0; CONTEXT_BYTES];
    context[CONTEXT_MARK..CONTEXT_MARK + 4].copy_from_slice(&mark.to_ne_bytes());
    context[CONTEXT_IFINDEX..CONTEXT_IFINDEX + 4].copy_from_slice(&ifindex.to_ne_bytes());
    context
}

/// The mean time of `repeat` runs of the pinned `program` on the packet. It is not marked as a
/// question, so it is counted and entered like any packet.
pub(super) fn time(
    pin: &Path,
    program: &'static str,
    question: &Question,
    repeat: u32,
) -> Result<Duration, BpfError> {
    let failed = |source| BpfError::Trace { program, source: Box::new(source) };
    let classifier = SchedClassifier::from_pin(pin).map_err(failed)?;
    let frame = question.frame();
    let mut options = TestRunOptions::new();
    options.data_in = Some(&frame);
    options.repeat = repeat;
    Ok(classifier.test_run(options).map_err(failed)?.duration)
}

/// The answer that the program wrote into the mark.
pub(super) fn answer(mark: u32) -> (How, Option<u8>) {
    if mark == TRACE_MARK || mark >> 24 != TRACE_BYTE {
        return (How::Unknown, None);
    }
    let how = match mark >> 8 & 0xff {
        1 => How::Flow,
        2 => How::Embryo,
        3 => How::New,
        4 => How::Stray,
        _ => How::Unknown,
    };
    let member = (mark & 0xff) as u8;
    (how, (member != u8::MAX).then_some(member))
}

impl Traced {
    /// The bytes from the IP header on.
    #[must_use]
    pub fn ip(&self) -> &[u8] {
        self.after.get(ETHERNET..).unwrap_or_default()
    }
}
