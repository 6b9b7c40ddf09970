//! Everything that reads bytes of others, or of hosts inside, without a state.

use super::Draw;
use crate::clamp_mss;
use crate::frame::Frames;
use crate::header::{Defined, Learned};
use crate::inner::{Inner, mark_congestion};
use crate::item::{Item, Items};
use crate::wire::VARINT_MAX;

/// Longest packet that is tried.
const PACKET_BYTES_MAX: usize = 255;

/// Frames, items and inner packets of any bytes. What was understood is written again and means the
/// same; an inner packet keeps its length.
///
/// # Panics
/// If a parser is wrong.
pub fn parsers(bytes: &[u8]) {
    let frames: Vec<_> = Frames::new(bytes).map_while(Result::ok).collect();
    let mut written = Vec::new();
    frames.iter().for_each(|frame| frame.put(&mut written, false));
    let again: Vec<_> = Frames::new(&written).map_while(Result::ok).collect();
    assert_eq!(frames, again);
    let items: Vec<_> = Items::new(bytes).map_while(Result::ok).collect();
    let mut written = Vec::new();
    for item in &items {
        let before = written.len();
        item.put(&mut written, false);
        assert_eq!(written.len() - before, item.len());
    }
    let again: Vec<_> = Items::new(&written).map_while(Result::ok).collect();
    assert_eq!(items, again);
    let mut packet = bytes.to_vec();
    let before = Inner::parse(&packet).map(|inner| inner.flow);
    mark_congestion(&mut packet);
    clamp_mss(&mut packet, bytes.len());
    assert_eq!(packet.len(), bytes.len());
    assert_eq!(Inner::parse(&packet).map(|inner| inner.flow), before, "it stays in its flow");
}

/// Headers that are not sent: packets of hosts inside come out as they went in, and a peer that defines
/// and uses numbers as it likes makes nothing grow.
///
/// # Panics
/// If a packet comes out otherwise.
pub fn headers(bytes: &[u8]) {
    let mut draw = Draw(bytes);
    let (mut defined, mut learned, mut lied_to) =
        (Defined::default(), Learned::default(), Learned::default());
    let mut number = 0;
    while let Some(deed) = draw.deed() {
        let len = usize::from(draw.byte());
        let mut packet = draw.bytes(len.min(PACKET_BYTES_MAX)).to_vec();
        if let Some(first) = packet.first_mut().filter(|_| deed & 3 != 0) {
            // What looks like a packet finds more.
            *first = if deed & 1 == 0 { 0x45 } else { 0x60 };
        }
        number = draw.near(number) & VARINT_MAX;
        if deed & 4 == 0 {
            lied_to.learn(number, &packet);
        }
        let id = (deed & 8 != 0).then_some(number as u16);
        let checksum = (deed & 16 != 0).then_some(number as u16);
        if let Some(restored) = lied_to.restore(number, id, checksum, &packet) {
            assert!(restored.len() <= packet.len() + 60);
        }
        let encoded = defined.encode(packet.clone());
        match encoded.item() {
            Item::Define { number, packet } if deed & 32 == 0 => {
                learned.learn(number, packet);
                defined.confirm(number);
            }
            Item::Short { number, id, checksum, rest } => {
                assert_eq!(learned.restore(number, id, checksum, rest), Some(packet));
            }
            _ => {}
        }
    }
    learned.check_limit();
    lied_to.check_limit();
}
