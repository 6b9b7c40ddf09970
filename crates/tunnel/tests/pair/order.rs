//! TCP packets come out in the order of their flow, UDP packets at once.

use crate::world::{World, independent, ms, us};
use holdfast_tunnel::Inside;
use std::time::Duration;

/// An IPv4 packet with a TCP segment.
fn segment(port: u16, seq: u32, len: usize) -> Vec<u8> {
    let total = (40 + len) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&total.to_be_bytes());
    packet.extend_from_slice(&[0, 9, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend_from_slice(&port.to_be_bytes());
    packet.extend_from_slice(&[0, 80]);
    packet.extend_from_slice(&seq.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    packet.resize(40 + len, seq as u8);
    packet
}

#[test]
fn segments_keep_their_order_over_a_path_that_loses_a_tenth() {
    const LEN: u32 = 1000;
    let mut world = World::new(&World::config(), independent(0.1), 31);
    let (mut expected, mut arrived, mut late) = ([0u32; 2], 0, 0);
    let mut longest = Duration::ZERO;
    for at in 0..8000u32 {
        let now = us(500 * u64::from(at));
        world.run_until(now, |_, _, inside, now| {
            let Inside::Packet(packet) = inside else { panic!("{inside:?}") };
            let flow = usize::from(packet[21]);
            let seq = u32::from_be_bytes(packet[24..28].try_into().unwrap());
            assert_eq!(packet, segment(flow as u16, seq, LEN as usize), "a wrong byte");
            late += u32::from(seq != expected[flow]);
            expected[flow] = expected[flow].max(seq + LEN);
            arrived += 1;
            longest = longest.max(now.saturating_sub(us(1000 * u64::from(seq / LEN))));
        });
        let packet = segment((at % 2) as u16, at / 2 * LEN, LEN as usize);
        world.ends[0].handle_packet(&packet, now).unwrap();
    }
    world.run_until(ms(6000), |_, _, _, _| arrived += 1);
    println!("{arrived} of 8000 segments, {late} not the next one, after at most {longest:?}");
    assert!(arrived >= 7990 && late <= 20);
}
