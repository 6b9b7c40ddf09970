//! Routers that mark instead of dropping (RFC 3168), and paths that make a mess of marks.

use crate::bulk::goodput_of;
use crate::world::{Remark, World, independent, ms};
use holdfast_tunnel::{Ecn, Inside};

/// 20 Mbit/s and 50 Mbit/s, in bytes per second.
const SLOW: f64 = 20e6 / 8.0;
const FAST: f64 = 50e6 / 8.0;

#[test]
fn a_marked_datagram_is_answered_before_anything_is_lost() {
    let mut world = World::new(&World::config(), independent(0.0), 31);
    // A queue of four round trips, and marks from half of one on.
    world.links[0].rate = Some((SLOW, 200_000));
    world.links[0].marks_from = Some(25_000);
    let (from, until) = (ms(4000), ms(14_000));
    let mut before = (0, 0);
    let bytes = goodput_of(&mut world, from, until, |world| {
        before = (world.links[0].lost, world.links[0].marked);
    });
    let share = bytes / (until - from).as_secs_f64() / SLOW;
    let report = world.ends[0].report();
    println!(
        "marks from 25 kB on at 20 Mbit/s: {share:.3} of the link, {} of {} marked, {} lost, round \
         trip {:.1} of {:.1} ms",
        report.sending.congested,
        world.links[0].sent,
        world.links[0].lost,
        report.rtt_ms,
        report.rtt_min_ms,
    );
    assert!(report.sending.congested > 10, "marks are told");
    assert_eq!(world.links[0].lost, 0, "the queue never overflows");
    assert!(share > 0.85, "{share}");
    assert!(report.rtt_ms < 45.0, "the queue stays near the place from where marks come");
}

#[test]
fn a_path_that_makes_a_mess_of_marks_is_used_without() {
    let messes: [(&str, Remark); 3] = [
        ("takes them off", |_| Some(Ecn::NotCapable)),
        ("marks everything", |_| Some(Ecn::Congested)),
        ("drops them", |ecn| (ecn == Ecn::NotCapable).then_some(ecn)),
    ];
    for (name, mess) in messes {
        let mut world = World::new(&World::config(), independent(0.0), 32);
        for link in &mut world.links {
            link.rate = Some((FAST, 250_000));
            link.remark = Some(mess);
        }
        let (from, until) = (ms(2000), ms(6000));
        let bytes = goodput_of(&mut world, from, until, |_| {});
        let share = bytes / (until - from).as_secs_f64() / FAST;
        println!("a path that {name}: {share:.3} of the link");
        assert!(share > 0.9, "{name}: {share}");
        assert_eq!(world.ends[0].report().sending.congested > 0, name == "marks everything");
    }
}

#[test]
fn a_path_that_begins_to_drop_marks_is_found_out() {
    let mut world = World::new(&World::config(), independent(0.0), 34);
    world.links[0].rate = Some((FAST, 250_000));
    let (from, until) = (ms(2000), ms(5000));
    let bytes = goodput_of(&mut world, from, until, |world| {
        for link in world.links.iter_mut().filter(|_| world.now == from) {
            link.remark = Some(|ecn| (ecn == Ecn::NotCapable).then_some(ecn));
        }
    });
    let share = bytes / (until - from).as_secs_f64() / FAST;
    println!("a path that begins to drop marks: {share:.3} of the link in the next three seconds");
    assert!(share > 0.75, "{share}");
}

#[test]
fn inner_marks_arrive_as_they_were_and_get_worse_where_the_path_is_congested() {
    // RFC 6040 §4.2: what the path marks is marked inside, too, where the inner sender understands it.
    for (outer, kept) in [(Ecn::NotCapable, true), (Ecn::Congested, false)] {
        let mut world = World::new(&World::config(), independent(0.0), 33);
        world.links[0].remark = Some(match outer {
            Ecn::Congested => |_| Some(Ecn::Congested),
            _ => |_| Some(Ecn::NotCapable),
        });
        let mut got = Vec::new();
        for step in 0..200u64 {
            let traffic_class = (step % 4) as u8;
            let packet = ipv6(traffic_class, step);
            world.ends[0].handle_packet(&packet, world.now).unwrap();
            world.run_until(ms(20 * (step + 1)), |_, end, inside, _| {
                if let (1, Inside::Packet(packet)) = (end, inside) {
                    got.push(packet);
                }
            });
        }
        assert_eq!(got.len(), 200);
        for packet in got {
            let step = u64::from_be_bytes(packet[48..56].try_into().unwrap());
            let sent = (step % 4) as u8;
            let came = packet[1] >> 4 & 3;
            let expected = if kept || sent == 0 { sent } else { 3 };
            assert_eq!(came, expected, "step {step}, outer {outer:?}");
        }
    }
}

/// An IPv6 and a UDP header, and a number.
fn ipv6(traffic_class: u8, number: u64) -> Vec<u8> {
    let mut packet = vec![0x60, traffic_class << 4, 0, 0, 0, 16, 17, 64];
    packet.extend([1; 32]);
    packet.extend([0x13, 0x88, 0x13, 0x89, 0, 16, 0xab, 0xcd]);
    packet.extend(number.to_be_bytes());
    packet
}
