//! TCP headers from a pcap or pcapng file, one packet at a time, whatever the file's size. What is
//! unknown is skipped; what is damaged ends the reading with an error that says where.

use std::io::{self, Read};

/// Most bytes of one packet or block; a longer one counts as damaged.
pub const RECORD_BYTES_MAX: usize = 1 << 20;

/// Most interfaces of one pcapng section.
pub const INTERFACES_MAX: usize = 4096;

/// Link type of Ethernet in the registry.
const ETHERNET: u32 = 1;
/// Link types in the registry of packets that begin with the IP header.
const RAW: [u32; 3] = [12, 14, 101];
/// Link type of Linux' cooked captures in the registry.
const LINUX_COOKED: u32 = 113;

/// Why reading has ended before the file did.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file is not a capture.
    #[error("no pcap or pcapng file: it begins with {0:02x?}")]
    NotACapture([u8; 4]),
    /// A length is impossible.
    #[error("a length of {length} at byte {at} is impossible; the file is damaged there")]
    Length {
        /// Offset of the length in the file.
        at: u64,
        /// The length as read.
        length: u64,
    },
    /// The file ends within a packet.
    #[error("the file ends within a packet, at byte {at}; copy it again, or use what was read")]
    Truncated {
        /// Offset in the file.
        at: u64,
    },
    /// The file cannot be read.
    #[error("reading failed at byte {at}: {source}")]
    Io {
        /// Offset in the file.
        at: u64,
        /// The error of the read.
        source: io::Error,
    },
}

/// A TCP packet's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Source and destination: address and port.
    pub ends: [([u8; 16], u16); 2],
    pub seq: u32,
    pub ack: u32,
    /// Flags as on the wire.
    pub flags: u8,
    pub payload_bytes: u32,
    /// Bytes of the frame as it was on the wire.
    pub wire_bytes: u32,
    pub at_ns: u64,
}

#[derive(Clone, Copy)]
enum Format {
    Pcap { swapped: bool, nanos: bool, link: u32 },
    Pcapng { swapped: bool },
}

/// A capture that is being read.
pub struct Trace<R> {
    input: R,
    at: u64,
    format: Format,
    interfaces: Vec<(u32, u64)>,
    record: Vec<u8>,
}

impl<R: Read> Trace<R> {
    /// Opens a capture.
    ///
    /// # Errors
    /// When the input is no capture.
    pub fn new(input: R) -> Result<Self, TraceError> {
        let format = Format::Pcapng { swapped: false };
        let mut trace = Self { input, at: 0, format, interfaces: Vec::new(), record: Vec::new() };
        let mut magic = [0; 4];
        trace.exact(&mut magic)?;
        let (swapped, nanos) = match magic {
            [0xd4, 0xc3, 0xb2, 0xa1] => (false, false),
            [0xa1, 0xb2, 0xc3, 0xd4] => (true, false),
            [0x4d, 0x3c, 0xb2, 0xa1] => (false, true),
            [0xa1, 0xb2, 0x3c, 0x4d] => (true, true),
            [0x0a, 0x0d, 0x0d, 0x0a] => {
                trace.section()?;
                return Ok(trace);
            }
            other => return Err(TraceError::NotACapture(other)),
        };
        let mut rest = [0; 20];
        trace.exact(&mut rest)?;
        let link = number(&rest[16..20], swapped) & 0xffff;
        trace.format = Format::Pcap { swapped, nanos, link };
        Ok(trace)
    }

    /// The next TCP packet; `None` at the end of the file.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn next_packet(&mut self) -> Result<Option<Headers>, TraceError> {
        loop {
            let found = match self.format {
                Format::Pcap { swapped, nanos, link } => self.record(swapped, nanos, link)?,
                Format::Pcapng { swapped } => self.block(swapped)?,
            };
            match found {
                None => return Ok(None),
                Some(None) => {}
                Some(some) => return Ok(some),
            }
        }
    }

    fn record(
        &mut self,
        swapped: bool,
        nanos: bool,
        link: u32,
    ) -> Result<Option<Option<Headers>>, TraceError> {
        let mut head = [0; 16];
        if !self.exact_or_end(&mut head)? {
            return Ok(None);
        }
        let word = |at: usize| u64::from(number(&head[at..at + 4], swapped));
        let scale = if nanos { 1 } else { 1000 };
        let at_ns = word(0) * 1_000_000_000 + word(4) * scale;
        self.fill(word(8))?;
        Ok(Some(headers(&self.record, link, word(12) as u32, at_ns)))
    }

    fn block(&mut self, swapped: bool) -> Result<Option<Option<Headers>>, TraceError> {
        let mut kind = [0; 4];
        if !self.exact_or_end(&mut kind)? {
            return Ok(None);
        }
        if kind == [0x0a, 0x0d, 0x0d, 0x0a] {
            self.section()?;
            return Ok(Some(None));
        }
        let mut length = [0; 4];
        self.exact(&mut length)?;
        let length = u64::from(number(&length, swapped));
        if length < 12 || length % 4 != 0 {
            return Err(TraceError::Length { at: self.at, length });
        }
        self.fill(length - 8)?;
        let body = &self.record[..self.record.len() - 4];
        Ok(Some(match number(&kind, swapped) {
            1 => {
                self.interface(swapped);
                None
            }
            6 if body.len() >= 20 => self.enhanced(swapped),
            _ => None,
        }))
    }

    fn enhanced(&self, swapped: bool) -> Option<Headers> {
        let word = |at: usize| number(&self.record[at..at + 4], swapped);
        let (link, ticks_per_s) = *self.interfaces.get(word(0) as usize)?;
        let ticks = u128::from(word(4)) << 32 | u128::from(word(8));
        let at_ns = (ticks * 1_000_000_000 / u128::from(ticks_per_s.max(1))) as u64;
        let data = self.record.get(20..20 + word(12) as usize)?;
        headers(data, link, word(16), at_ns)
    }

    fn section(&mut self) -> Result<(), TraceError> {
        let mut head = [0; 8];
        self.exact(&mut head)?;
        let swapped = head[4..8] == [0x1a, 0x2b, 0x3c, 0x4d];
        let length = u64::from(number(&head[..4], swapped));
        if length < 28 || length % 4 != 0 {
            return Err(TraceError::Length { at: self.at, length });
        }
        self.fill(length - 12)?;
        self.format = Format::Pcapng { swapped };
        self.interfaces.clear();
        Ok(())
    }

    fn interface(&mut self, swapped: bool) {
        if self.record.len() < 8 || self.interfaces.len() >= INTERFACES_MAX {
            return;
        }
        let short = |at: usize| {
            let bytes = [self.record[at], self.record[at + 1]];
            if swapped { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
        };
        let link = u32::from(short(0));
        let mut ticks_per_s = 1_000_000u64;
        let mut at = 8;
        while at + 4 <= self.record.len() {
            let (code, length) = (short(at), usize::from(short(at + 2)));
            if code == 0 || at + 4 + length > self.record.len() {
                break;
            }
            // The option if_tsresol is a negative power of ten, or of two.
            if code == 9 && length == 1 {
                let exponent = self.record[at + 4];
                let power = u32::from(exponent & 0x7f);
                let base = if exponent & 0x80 == 0 { 10u64 } else { 2 };
                ticks_per_s = base.checked_pow(power).unwrap_or(u64::MAX);
            }
            at += 4 + length.next_multiple_of(4);
        }
        self.interfaces.push((link, ticks_per_s));
    }

    fn fill(&mut self, length: u64) -> Result<(), TraceError> {
        if length > RECORD_BYTES_MAX as u64 {
            return Err(TraceError::Length { at: self.at, length });
        }
        let mut record = std::mem::take(&mut self.record);
        record.resize(length as usize, 0);
        let result = self.exact(&mut record);
        self.record = record;
        result
    }

    fn exact(&mut self, bytes: &mut [u8]) -> Result<(), TraceError> {
        if self.exact_or_end(bytes)? || bytes.is_empty() {
            return Ok(());
        }
        Err(TraceError::Truncated { at: self.at })
    }

    /// Fills the buffer; returns false if the file ends right before it.
    fn exact_or_end(&mut self, bytes: &mut [u8]) -> Result<bool, TraceError> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.input.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(TraceError::Truncated { at: self.at }),
                Ok(count) => {
                    filled += count;
                    self.at += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(TraceError::Io { at: self.at, source }),
            }
        }
        Ok(true)
    }
}

fn number(bytes: &[u8], swapped: bool) -> u32 {
    let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
    if swapped { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}

/// The headers of a frame; the file may hold only its beginning.
fn headers(frame: &[u8], link: u32, wire_bytes: u32, at_ns: u64) -> Option<Headers> {
    let ip = match link {
        ETHERNET => ethernet(frame)?,
        LINUX_COOKED => frame.get(16..)?,
        raw if RAW.contains(&raw) => frame,
        _ => return None,
    };
    let (addresses, tcp, tcp_bytes) = match ip.first()? >> 4 {
        4 => ipv4(ip)?,
        6 => ipv6(ip)?,
        _ => return None,
    };
    let tcp_head = tcp.get(..14)?;
    let port = |at: usize| u16::from_be_bytes([tcp_head[at], tcp_head[at + 1]]);
    let word = |at: usize| number(&tcp_head[at..at + 4], true);
    let offset = u32::from(tcp_head[12] >> 4) * 4;
    Some(Headers {
        ends: [(addresses[0], port(0)), (addresses[1], port(2))],
        seq: word(4),
        ack: word(8),
        flags: tcp_head[13],
        payload_bytes: tcp_bytes.checked_sub(offset)?,
        wire_bytes,
        at_ns,
    })
}

fn ethernet(frame: &[u8]) -> Option<&[u8]> {
    let mut at = 12;
    // VLAN tags, at most two.
    for _ in 0..2 {
        if matches!(frame.get(at..at + 2)?, [0x81, 0] | [0x88, 0xa8]) {
            at += 4;
        }
    }
    frame.get(at + 2..)
}

/// Addresses, the TCP header, and bytes from there on.
type Transport<'a> = ([[u8; 16]; 2], &'a [u8], u32);

fn ipv4(ip: &[u8]) -> Option<Transport<'_>> {
    let head = ip.get(..20)?;
    let length = u32::from(head[0] & 15) * 4;
    let fragment = u16::from_be_bytes([head[6], head[7]]) & 0x1fff;
    if head[9] != 6 || fragment != 0 || length < 20 {
        return None;
    }
    let total = u32::from(u16::from_be_bytes([head[2], head[3]]));
    let address = |at: usize| {
        holdfast_wire::packet::map_ipv4([head[at], head[at + 1], head[at + 2], head[at + 3]])
    };
    Some(([address(12), address(16)], ip.get(length as usize..)?, total.checked_sub(length)?))
}

fn ipv6(ip: &[u8]) -> Option<Transport<'_>> {
    let head = ip.get(..40)?;
    if head[6] != 6 {
        return None;
    }
    let total = u32::from(u16::from_be_bytes([head[4], head[5]]));
    let address = |at: usize| <[u8; 16]>::try_from(&head[at..at + 16]).ok();
    Some(([address(8)?, address(24)?], ip.get(40..)?, total))
}
