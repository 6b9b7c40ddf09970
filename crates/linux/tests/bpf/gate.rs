//! The gate's rules, packet by packet: expected verdicts and expected frames.

use crate::common::gate::{EGRESS, Fixture, IRS, ISS, PORT, SLOTS, ack, sack_option, seq};
use crate::common::{ACK, Context, FIN, Frame, PASS, RST, STOLEN, is_root};
use holdfast_wire::seq::SeqNo;
use std::time::Instant;

#[test]
fn a_syn_ack_is_held_with_its_record_until_opened() {
    if !is_root() {
        return;
    }
    for (name, server, client) in
        [("hold4", "10.9.0.100", "10.8.0.2"), ("hold6", "fd00:9::100", "fd00:8::2")]
    {
        let mut f = Fixture::new(name, server, client);
        f.client_syn(IRS);
        let syn_ack = f.syn_ack(ISS, IRS);
        f.is_stolen(&syn_ack);
        f.is_stolen(&syn_ack);
        let events = f.events();
        let [(conn, record, packet)] = events.as_slice() else { panic!("one event") };
        assert_eq!(packet[..], syn_ack.build()[14..]);
        assert_eq!((record.iss, record.irs), (SeqNo(ISS), SeqNo(IRS)));
        assert_eq!((record.mss, record.peer_mss), (8960, 1460));
        assert_eq!((record.rcv_wscale, record.snd_wscale), (9, 7));
        assert!(record.sack);
        assert_eq!((record.tsval, record.window), (Some(1000), 65160));
        assert_eq!((record.key.server_port, record.key.client_port), (PORT, 40000));
        assert!(f.gate.slot(*conn).expect("slot").held_synack);
        assert!(f.gate.open(*conn));
        f.leaves_as(&syn_ack, &syn_ack);
        assert!(!f.gate.slot(*conn).expect("slot").held_synack);
        assert_eq!(f.count("held_repeats"), 1);
        f.gate.detach().expect("detach");
    }
}

#[test]
fn a_syn_ack_without_its_syn_or_with_foreign_options_or_a_slot_is_refused() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("refuse");
    f.is_stolen(&f.syn_ack(ISS, IRS));
    f.client_syn(IRS.wrapping_add(5));
    f.is_stolen(&f.syn_ack(ISS, IRS));
    assert_eq!(f.count("refused_unknown_syn"), 2);
    f.client_syn(IRS);
    let options: [&[u8]; 5] = [
        &[19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1],
        &[29, 4, 0, 0],
        &[30, 12, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        &[34, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1],
        &[2, 9, 0, 0],
    ];
    for option in options {
        f.is_stolen(&f.syn_ack(ISS, IRS).options(option));
    }
    assert_eq!(f.count("refused_options"), 5);
    for i in 0..=SLOTS {
        f.client.1 = 50000 + i as u16;
        f.client_syn(IRS);
        f.is_stolen(&f.syn_ack(ISS, IRS));
    }
    assert_eq!(f.events().len(), SLOTS as usize);
    assert_eq!(f.count("refused_slots"), 1);
}

#[test]
fn acks_are_clamped_to_stable_and_the_right_edge_stays() {
    if !is_root() {
        return;
    }
    for (name, server, client) in
        [("clamp4", "10.9.0.100", "10.8.0.2"), ("clamp6", "fd00:9::100", "fd00:8::2")]
    {
        let mut f = Fixture::new(name, server, client);
        let conn = f.opened();
        // The edge is 200 * 512 beyond 10000, which is 112400; from 0 that is 219.5 units.
        let data = f.out().seq(seq(0)).ack(ack(10_000)).window(200).payload(300);
        f.leaves_as(&data, &data.clone().ack(ack(0)).window(219));
        assert!(f.gate.set_stable(conn, SeqNo(ack(4_000))));
        f.leaves_as(&data, &data.clone().ack(ack(4_000)).window(211));
        assert!(f.gate.set_stable(conn, SeqNo(ack(10_000))));
        f.leaves_as(&data, &data);
        let view = f.gate.slot(conn).expect("slot");
        assert_eq!(view.snd_nxt, SeqNo(seq(300)));
        assert_eq!(view.right_edge, SeqNo(ack(112_400)));
        assert_eq!(view.last_edge, SeqNo(ack(112_400)));
        assert_eq!(view.last_ack, SeqNo(ack(10_000)));
        assert_eq!(view.snd_una, SeqNo(seq(0)));
        // Law L1 holds to the byte.
        let one_more = data.clone().ack(ack(10_001));
        f.leaves_as(&one_more, &data);
        f.gate.detach().expect("detach");
    }
}

#[test]
fn an_ack_is_owed_only_for_what_the_kernel_has_too() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("owed");
    let conn = f.opened();
    let owed = |f: &Fixture| f.gate.slot(conn).expect("slot").owed_ack();
    // The backup has the bytes that were lost on the way to this host.
    assert!(f.gate.set_stable(conn, SeqNo(ack(500))));
    assert_eq!(owed(&f), None);
    let held = f.out().seq(seq(0)).ack(ack(500)).window(200);
    f.leaves_as(&held, &held);
    assert_eq!(owed(&f), None);
    let more = f.out().seq(seq(0)).ack(ack(900)).window(200);
    f.is_stolen(&more.clone().window(199));
    assert!(f.gate.set_stable(conn, SeqNo(ack(700))));
    assert_eq!(owed(&f), Some(SeqNo(ack(700))));
    assert!(f.gate.set_stable(conn, SeqNo(ack(1500))));
    assert_eq!(owed(&f), Some(SeqNo(ack(900))));
    // A reset's number answers the packet that provoked it, whatever that is.
    f.is_stolen(&f.out().seq(seq(0)).ack(ack(1200)).flags(RST | ACK));
    assert_eq!(owed(&f), Some(SeqNo(ack(900))));
}

/// Law L4: whatever becomes stable, and however ACKs and windows move, the edge on the wire never
/// moves left by 2^wscale or more.
#[test]
fn the_right_edge_never_moves_left_by_a_unit() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("edge-law");
    let conn = f.opened();
    let (mut acked, mut stable, mut edge, mut shown) = (0u32, 0u32, 70_000u32, 0u32);
    let mut random = 12345u32;
    for _ in 0..400 {
        random = random.wrapping_mul(1_103_515_245).wrapping_add(12345);
        acked += random >> 20;
        stable += (random >> 8 & 0xfff).min(acked - stable);
        edge = edge.max(acked + (random >> 4 & 0xf_ffff));
        // Windows are whole units, rounded up, as in Linux, so that the kernel's own edge stays.
        let window = (edge - acked).div_ceil(512).min(65535) as u16;
        edge = acked + (u32::from(window) << 9);
        f.gate.set_stable(conn, SeqNo(ack(stable)));
        let (verdict, out) =
            f.egress(&f.out().seq(seq(0)).ack(ack(acked)).window(window).payload(1));
        assert_eq!(verdict, PASS);
        let wire_ack = u32::from_be_bytes(out[42..46].try_into().expect("4"));
        let wire_window = u16::from_be_bytes(out[48..50].try_into().expect("2"));
        assert_eq!(wire_ack, ack(stable.min(acked)));
        let now = wire_ack.wrapping_sub(ack(0)) + (u32::from(wire_window) << 9);
        assert!(now + 512 > shown, "edge went from {shown} to {now}");
        shown = shown.max(now);
    }
}

#[test]
fn a_clamped_pure_ack_leaves_once() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("repeat");
    let conn = f.opened();
    let pure = f.out().seq(seq(0)).ack(ack(1000)).window(100);
    // This repeats the SYN-ACK's ACK, with an edge smaller than 65160.
    f.is_stolen(&pure);
    let wider = pure.clone().window(200);
    f.leaves_as(&wider, &wider.clone().ack(ack(0)).window(201));
    f.is_stolen(&wider);
    for flags in [ACK | 0x40, ACK | 0x80] {
        let marked = wider.clone().flags(flags);
        f.leaves_as(&marked, &marked.clone().ack(ack(0)).window(201));
    }
    let sack = sack_option(&[(ack(2000), ack(3000))]);
    let sacked = wider.clone().options(&sack);
    f.leaves_as(&sacked, &sacked.clone().ack(ack(0)).window(201));
    // A repetition that is not clamped may replace a lost release, so it passes.
    f.gate.set_stable(conn, SeqNo(ack(1000)));
    f.leaves_as(&wider, &wider);
    f.leaves_as(&wider, &wider);
    assert_eq!(f.count("repeats"), 2);
}

#[test]
fn a_dsack_above_the_rewritten_ack_is_blanked() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("dsack");
    let conn = f.opened();
    let blocks = [(ack(500), ack(600)), (ack(5000), ack(6000))];
    let dsack = f.out().seq(seq(0)).ack(ack(1000)).window(300).options(&sack_option(&blocks));
    let blank = dsack.clone().options(&[1; 20]);
    f.leaves_as(&dsack, &blank.ack(ack(0)).window(301));
    // After an odd number of NOPs the bytes change their places in the sum.
    f.gate.set_stable(conn, SeqNo(ack(100)));
    let mut odd = sack_option(&blocks);
    odd.rotate_left(1);
    let odd = dsack.clone().payload(3).options(&odd);
    f.leaves_as(&odd, &odd.clone().options(&[1; 20]).ack(ack(100)).window(301));
    // Below the rewritten ACK it still is a D-SACK.
    f.gate.set_stable(conn, SeqNo(ack(700)));
    f.leaves_as(&dsack, &dsack.clone().ack(ack(700)).window(300));
    assert_eq!(f.count("dsacks"), 2);
}

#[test]
fn fin_and_rst_leave_only_when_the_server_asked() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("fin");
    let conn = f.opened();
    let fin = f.out().seq(seq(100)).ack(ack(0)).window(200).flags(FIN | ACK);
    let last = fin.clone().seq(seq(0)).payload(100);
    let rst = f.out().seq(seq(100)).flags(RST | ACK).ack(ack(0));
    f.is_stolen(&fin);
    f.is_stolen(&rst);
    f.is_stolen(&rst.clone().flags(RST));
    f.leaves_as(&last, &last.clone().flags(ACK));
    // Packets after a withheld FIN have its number in theirs.
    let behind = f.out().seq(seq(101)).ack(ack(0)).window(200);
    f.is_stolen(&behind);
    assert_eq!(f.gate.slot(conn).expect("slot").snd_nxt, SeqNo(seq(100)));
    assert!(f.gate.allow_fin(conn));
    f.leaves_as(&last, &last);
    f.leaves_as(&fin, &fin);
    assert_eq!(f.gate.slot(conn).expect("slot").snd_nxt, SeqNo(seq(101)));
    f.leaves_as(&rst, &rst);
    f.leaves_as(&behind, &behind);
    // What answers another life of the tuple, which another member may serve.
    for strange in [seq(103), seq(1 << 20), seq(0).wrapping_sub(1), 0] {
        f.is_stolen(&f.out().seq(strange).flags(RST));
    }
    assert_eq!((f.count("held_fins"), f.count("held_resets")), (2, 6));
    assert_eq!(f.count("cleared_fins"), 1);
}

#[test]
fn without_a_slot_only_a_reset_of_a_living_server_leaves() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("noslot");
    let rst = f.out().seq(5).flags(RST);
    f.leaves_as(&rst, &rst);
    f.is_stolen(&f.out().seq(0).ack(ack(0)).flags(RST | ACK));
    f.is_stolen(&f.out().seq(seq(0)).ack(ack(0)).payload(10));
    f.gate.set_server_dead(true).expect("flag");
    f.is_stolen(&rst);
    f.gate.set_server_dead(false).expect("flag");
    f.leaves_as(&rst, &rst);
    let other = Frame::new((f.server.0, 22), f.client).seq(1).ack(2).payload(9);
    f.leaves_as(&other, &other);
    assert_eq!(f.count("syn_resets"), 1);
    assert_eq!(f.count("stray"), 1);
    assert_eq!(f.count("dead_resets"), 1);
}

/// Its client asks again, and again: it is told once this host is known to have been the one that
/// spoke after the first time.
#[test]
fn where_another_may_speak_a_reset_without_a_slot_waits_for_a_grant() {
    if !is_root() {
        return;
    }
    let before = Instant::now();
    let mut f = Fixture::deposable("defer");
    let rst = f.out().seq(5).flags(RST);
    f.is_stolen(&rst);
    f.is_stolen(&rst);
    f.gate.note_grant(before).expect("word");
    f.is_stolen(&rst);
    f.gate.note_grant(Instant::now()).expect("word");
    f.leaves_as(&rst, &rst);
    f.client.1 += 1;
    let other = f.out().seq(5).flags(RST);
    f.is_stolen(&other);
    f.gate.note_grant(Instant::now()).expect("word");
    f.gate.set_server_dead(true).expect("flag");
    f.is_stolen(&other);
    f.gate.set_server_dead(false).expect("flag");
    f.leaves_as(&other, &other);
    assert_eq!((f.count("dead_resets"), f.count("late_resets")), (5, 2));
}

#[test]
fn a_recycled_slot_ignores_words_of_its_former_generation() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("recycle");
    let mut old = f.opened();
    // The queue hands out every other slot before this one comes again.
    for round in 1..=SLOTS {
        assert!(f.gate.free(old).expect("free"));
        assert!(!f.gate.free(old).expect("free"), "twice");
        f.client.1 = 40000 + round as u16;
        let next = f.held(ISS + round, IRS + round);
        if next.0 as u32 == old.0 as u32 {
            panic!("a slot was recycled at once");
        }
        for stale in [f.gate.open(old), f.gate.set_stable(old, SeqNo(9)), f.gate.allow_fin(old)] {
            assert!(!stale);
        }
        assert_eq!(f.gate.slot(old), None);
        f.is_stolen(&f.out().seq(ISS + round + 1).ack(IRS + round + 1).payload(4));
        assert!(f.gate.open(next));
        let fin = f.out().seq(ISS + round + 1).ack(IRS + round + 1).flags(FIN | ACK);
        f.is_stolen(&fin);
        old = next;
    }
    assert_eq!(old.0, 2 << 32, "slot 0 in its second generation");
}

/// A daemon that is late stores what the slot's previous connection may acknowledge.
#[test]
fn a_late_word_about_a_former_connection_releases_nothing() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("late");
    let conn = f.opened();
    let (index, generation) = (conn.0 as u32, (conn.0 >> 32) as u32);
    let data = f.out().seq(seq(0)).ack(ack(5_000)).window(300).payload(10);
    let held = data.clone().ack(ack(0)).window(309);
    for former in [0, generation.wrapping_sub(1), generation + 1] {
        f.lab.slots().set_stable(index, former, ack(5_000));
        f.leaves_as(&data, &held);
    }
    f.lab.slots().set_stable(index, generation, ack(5_000));
    f.leaves_as(&data, &data);
}

#[test]
fn a_tuple_used_again_gets_a_slot_of_its_own() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("reuse");
    let old = f.opened();
    let new = f.held(seq(999), IRS + 1000);
    assert_ne!(old, new);
    assert!(f.gate.free(old).expect("free"));
    assert!(f.gate.open(new));
    let data = f.out().seq(seq(1000)).ack(IRS + 1001).window(1).payload(4);
    f.leaves_as(&data, &data);
}

#[test]
fn a_gso_packet_is_clamped_whole() {
    // The kernel's test run accepts one page at most; longer frames are in bpf_live.rs.
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("gso");
    f.opened();
    let big = f.out().seq(seq(0)).ack(ack(512)).window(1000).payload(3_000);
    let context = Context { gso_size: 1448, ..Context::default() };
    let (verdict, out) = f.lab.run(EGRESS, &big.build(), context);
    assert_eq!(verdict, PASS);
    assert_eq!(out, big.ack(ack(0)).window(1001).build());
}

#[test]
fn fragments_and_ip_options_from_a_service_address_are_withheld() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("odd");
    f.opened();
    let mut fragment = f.out().seq(seq(0)).ack(ack(0)).payload(64).build();
    fragment[20] = 0x20;
    assert_eq!(f.lab.run(EGRESS, &fragment, Context::default()).0, STOLEN);
    let mut long_header = f.out().seq(seq(0)).ack(ack(0)).payload(64).build();
    long_header[14] = 0x46;
    assert_eq!(f.lab.run(EGRESS, &long_header, Context::default()).0, STOLEN);
    assert_eq!(f.count("odd"), 2);
}
