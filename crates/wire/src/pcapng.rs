//! Packets as a pcapng file, with comments, for Wireshark and its kin
//! (draft-ietf-opsawg-pcapng). Written only: nothing here reads such files.

use std::io::{self, Write};

/// Block types.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Options: a comment on anything, an interface's name and its clock.
const COMMENT: u16 = 1;
const NAME: u16 = 2;
const CLOCK: u16 = 9;
/// Resolution of the clock for `CLOCK`: 10^-9 s.
const NANOSECONDS: u8 = 9;

/// What each packet begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    Ethernet = 1,
    /// The IP header.
    RawIp = 101,
}

/// A packet to write.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The interface's number, as [`Writer::interface`] returned it.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub at_ns: u64,
    /// Length of the whole packet; `bytes` may be only its beginning.
    pub wire_bytes: u32,
    pub bytes: &'a [u8],
    /// The comment, empty for none; at most 65,535 bytes are kept.
    pub comment: &'a str,
}

/// A file being written.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    interfaces: u32,
    body: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(out: W) -> io::Result<Self> {
        let mut writer = Self { out, interfaces: 0, body: Vec::new() };
        writer.body.extend(BYTE_ORDER.to_le_bytes());
        // Version 1.0; the section's length is not known yet.
        writer.body.extend([1, 0, 0, 0]);
        writer.body.extend(u64::MAX.to_le_bytes());
        writer.block(SECTION_HEADER)?;
        Ok(writer)
    }

    /// Describes an interface and gives it a number, from 0 on.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn interface(&mut self, name: &str, link: LinkType) -> io::Result<u32> {
        self.body.extend((link as u16).to_le_bytes());
        // Reserved, and no limit on the length of packets.
        self.body.extend([0; 6]);
        if !name.is_empty() {
            self.option(NAME, name.as_bytes());
        }
        self.option(CLOCK, &[NANOSECONDS]);
        self.option(0, &[]);
        self.block(INTERFACE)?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Writes a packet.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn packet(&mut self, record: &Record<'_>) -> io::Result<()> {
        let Record { interface, at_ns, wire_bytes, bytes, comment } = *record;
        let captured = bytes.len() as u32;
        let clock = [(at_ns >> 32) as u32, at_ns as u32];
        for word in [interface, clock[0], clock[1], captured, wire_bytes] {
            self.body.extend(word.to_le_bytes());
        }
        self.body.extend(bytes);
        self.pad();
        if !comment.is_empty() {
            let end = comment.len().min(usize::from(u16::MAX));
            self.option(COMMENT, &comment.as_bytes()[..end]);
            self.option(0, &[]);
        }
        self.block(ENHANCED_PACKET)
    }

    /// Flushes what was written to the reader.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn pad(&mut self) {
        self.body.resize(self.body.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.body.extend(code.to_le_bytes());
        self.body.extend((value.len() as u16).to_le_bytes());
        self.body.extend(value);
        self.pad();
    }

    /// Writes the block whose body has been put together.
    fn block(&mut self, kind: u32) -> io::Result<()> {
        self.pad();
        let length = (12 + self.body.len() as u32).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&length)?;
        self.out.write_all(&self.body)?;
        self.body.clear();
        self.out.write_all(&length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks of a file: type and body, their two lengths being equal.
    fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let mut found = Vec::new();
        while !file.is_empty() {
            let length = word(&file[4..]) as usize;
            assert_eq!(length % 4, 0);
            assert_eq!(word(&file[length - 4..]) as usize, length);
            found.push((word(file), file[8..length - 4].to_vec()));
            file = &file[length..];
        }
        found
    }

    #[test]
    fn blocks_are_whole_and_hold_what_was_said() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file).unwrap();
        assert_eq!(writer.interface("ec", LinkType::Ethernet).unwrap(), 0);
        assert_eq!(writer.interface("", LinkType::RawIp).unwrap(), 1);
        let at_ns = (7 << 32) + 5;
        let record =
            Record { interface: 1, at_ns, wire_bytes: 99, bytes: b"abcde", comment: "resent" };
        writer.packet(&record).unwrap();
        writer.packet(&Record { comment: "", ..record }).unwrap();
        let blocks = blocks(&file);
        let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [SECTION_HEADER, INTERFACE, INTERFACE, ENHANCED_PACKET, ENHANCED_PACKET]);
        let packet = &blocks[3].1;
        assert_eq!(packet[..4], [1, 0, 0, 0]);
        assert_eq!(packet[4..12], [7, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(packet[12..20], [5, 0, 0, 0, 99, 0, 0, 0]);
        assert_eq!(&packet[20..25], b"abcde");
        assert_eq!(&packet[28..38], b"\x01\x00\x06\x00resent");
        assert_eq!(blocks[4].1.len(), 28);
        // Link type, reserved, no limit; then the name, the clock, and the end.
        assert_eq!(blocks[1].1[8..16], [2, 0, 2, 0, b'e', b'c', 0, 0]);
        assert_eq!((blocks[1].1.len(), blocks[2].1.len()), (28, 20));
    }

    #[test]
    fn what_was_written_reaches_the_reader_when_it_is_flushed() {
        let mut writer = Writer::new(io::BufWriter::new(Vec::new())).unwrap();
        assert!(writer.out.get_ref().is_empty());
        writer.flush().unwrap();
        assert_eq!(blocks(writer.out.get_ref()).len(), 1);
    }
}
