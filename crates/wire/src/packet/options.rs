//! TCP options: what the handshake agreed on, timestamps and SACK blocks.

use super::be32;
use crate::seq::SeqNo;

/// Most SACK blocks in 40 bytes of options (RFC 2018 §3).
pub const SACK_BLOCKS_MAX: usize = 4;
/// Most bytes of options in one header (a data offset of 60 bytes, RFC 9293
/// §3.1).
pub(crate) const OPTIONS_MAX: usize = 40;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const MD5: u8 = 19;
const AUTHENTICATION: u8 = 29;
const MULTIPATH: u8 = 30;
const FAST_OPEN: u8 = 34;
/// RFC 6994's shared experimental number, under which old stacks did Fast Open.
const EXPERIMENT: u8 = 254;
const EXPERIMENT_FAST_OPEN: [u8; 2] = [0xf9, 0x89];
/// Largest shift of the window scale; a larger one is used as 14 (RFC 7323
/// §2.3).
const WINDOW_SCALE_MAX: u8 = 14;

/// SACK blocks in the order of the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(SeqNo, SeqNo); SACK_BLOCKS_MAX],
    len: usize,
}

impl SackBlocks {
    /// Appends the block `[left, right)`; the fifth and later ones are dropped.
    pub fn push(&mut self, left: SeqNo, right: SeqNo) {
        if let Some(place) = self.blocks.get_mut(self.len) {
            *place = (left, right);
            self.len += 1;
        }
    }

    /// The blocks as `(left, right)`, right edge exclusive.
    #[must_use]
    pub fn as_slice(&self) -> &[(SeqNo, SeqNo)] {
        &self.blocks[..self.len]
    }
}

/// The options of one segment. Unknown ones are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    pub mss: Option<u16>,
    /// The shift count, at most 14 (RFC 7323 §2.3).
    pub wscale: Option<u8>,
    pub sack_permitted: bool,
    /// TSval and TSecr (RFC 7323 §3.2).
    pub timestamps: Option<(u32, u32)>,
    pub sack: SackBlocks,
    /// TCP-MD5 (RFC 2385): such a connection cannot be protected.
    pub md5: bool,
    /// TCP-AO (RFC 5925): such a connection cannot be protected either.
    pub ao: bool,
    /// TCP Fast Open (RFC 7413), also in its experimental form.
    pub fast_open: bool,
    /// Multipath TCP (RFC 8684).
    pub mptcp: bool,
    /// An option has an impossible length; what lies behind it was not read.
    pub malformed: bool,
}

impl TcpOptions {
    /// Reads the bytes between the fixed header and the payload. It stops at the
    /// first option whose length is impossible and keeps what it has read; a known
    /// option of the wrong length is skipped.
    #[must_use]
    pub fn parse(mut bytes: &[u8]) -> Self {
        let mut options = Self::default();
        while let [kind, rest @ ..] = bytes {
            match (*kind, rest) {
                (END, _) => break,
                (NO_OPERATION, _) => bytes = rest,
                (kind, [length, ..]) => {
                    let Some(value) = bytes.get(2..usize::from(*length)) else {
                        options.malformed = true;
                        break;
                    };
                    options.one(kind, value);
                    bytes = &bytes[usize::from(*length)..];
                }
                (_, []) => {
                    options.malformed = true;
                    break;
                }
            }
        }
        options
    }

    fn one(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[shift]) => self.wscale = Some(shift.min(WINDOW_SCALE_MAX)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (SACK, blocks) if blocks.len() % 8 == 0 => {
                for block in blocks.chunks_exact(8) {
                    self.sack.push(SeqNo(be32(block)), SeqNo(be32(&block[4..])));
                }
            }
            (TIMESTAMPS, stamps) if stamps.len() == 8 => {
                self.timestamps = Some((be32(stamps), be32(&stamps[4..])));
            }
            (MD5, _) => self.md5 = true,
            (AUTHENTICATION, _) => self.ao = true,
            (MULTIPATH, _) => self.mptcp = true,
            (FAST_OPEN, _) => self.fast_open = true,
            (EXPERIMENT, value) if value.starts_with(&EXPERIMENT_FAST_OPEN) => {
                self.fast_open = true;
            }
            _ => {}
        }
    }

    /// Appends MSS, SACK-permitted, timestamps, window scale and as many SACK
    /// blocks as still fit, aligned with no-operations as common stacks do. The
    /// options this crate never sends (MD5, AO, Fast Open, MPTCP) are left out.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        if let Some(mss) = self.mss {
            out.extend([MSS, 4]);
            out.extend(mss.to_be_bytes());
        }
        match (self.sack_permitted, self.timestamps.is_some()) {
            (true, true) => out.extend([SACK_PERMITTED, 2]),
            (true, false) => out.extend([NO_OPERATION, NO_OPERATION, SACK_PERMITTED, 2]),
            (false, true) => out.extend([NO_OPERATION, NO_OPERATION]),
            (false, false) => {}
        }
        if let Some((value, echo)) = self.timestamps {
            out.extend([TIMESTAMPS, 10]);
            out.extend(value.to_be_bytes());
            out.extend(echo.to_be_bytes());
        }
        if let Some(shift) = self.wscale {
            out.extend([NO_OPERATION, WINDOW_SCALE, 3, shift]);
        }
        let room = OPTIONS_MAX.saturating_sub(out.len() - start + 4) / 8;
        let blocks = &self.sack.as_slice()[..self.sack.len.min(room)];
        if !blocks.is_empty() {
            out.extend([NO_OPERATION, NO_OPERATION, SACK, 2 + 8 * blocks.len() as u8]);
            for (left, right) in blocks {
                out.extend(left.0.to_be_bytes());
                out.extend(right.0.to_be_bytes());
            }
        }
    }
}
