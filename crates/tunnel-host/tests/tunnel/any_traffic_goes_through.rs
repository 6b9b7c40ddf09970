//! Pings, connections and datagrams of both families go through a tunnel of either family, and are the
//! same at the other end.

use crate::bed::{B, Bed, INSIDE, INSIDE_V6, OUTSIDE, OUTSIDE_V6};
use crate::traffic::{ping, tcp, udp};

const MIB: usize = 1 << 20;

#[test]
fn over_ipv4() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    bed.start_both();
    everything(&bed);
}

#[test]
fn over_ipv6() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE_V6);
    bed.start_both();
    everything(&bed);
}

fn everything(bed: &Bed) {
    for address in [INSIDE[B], INSIDE_V6[B]] {
        assert_eq!(ping(bed, address, 20, 56), 20, "{address}");
        // In one piece.
        assert_eq!(ping(bed, address, 5, 1372), 5, "{address}");
        // In pieces of the kernel's.
        assert_eq!(ping(bed, address, 5, 8000), 5, "{address}");
        tcp(bed, address, 8 * MIB);
        let sizes: Vec<usize> = (0..200).map(|number| number * 7 % 1370).collect();
        assert_eq!(udp(bed, address, &sizes), 0, "{address}");
    }
    let status = bed.status(B).expect("an answer");
    let calls = status["outside"]["received_calls"].as_u64().expect("a number");
    let datagrams = status["outside"]["received"].as_u64().expect("a number");
    assert!(datagrams > 2 * calls, "many datagrams come per call: {datagrams} in {calls}");
    assert_eq!(status["malformed"], 0);
}

#[test]
fn an_interface_may_have_larger_packets_than_the_path() {
    let Some(mut bed) = Bed::new() else { return };
    for end in [crate::bed::A, B] {
        let peer = format!("address = \"{}\"", crate::bed::at(OUTSIDE[1 - end]));
        bed.write(end, &bed.tun(end, "inner_mtu = 9000"), &peer);
    }
    bed.start_both();
    assert_eq!(ping(&bed, INSIDE[B], 10, 8972), 10);
    tcp(&bed, INSIDE[B], 8 * MIB);
}

/// B's interface has larger packets than A's: what hosts at B announce in their SYNs and SYN-ACKs is
/// lowered at A to what goes through it, and the other way round nothing has to be.
#[test]
fn a_syn_announces_what_goes_through_the_other_interface() {
    let Some(mut bed) = Bed::new() else { return };
    for (end, mtu) in [(crate::bed::A, 1300), (B, 9000)] {
        let peer = format!("address = \"{}\"", crate::bed::at(OUTSIDE[1 - end]));
        bed.write(end, &bed.tun(end, &format!("inner_mtu = {mtu}")), &peer);
    }
    bed.start_both();
    for address in [INSIDE[B], INSIDE_V6[B]] {
        tcp(&bed, address, MIB);
    }
    let clamped = |end: usize| bed.status(end).expect("an answer")["inside"]["clamped"].clone();
    assert!(clamped(crate::bed::A).as_u64().is_some_and(|it| it >= 2), "one of each connection");
    assert_eq!(clamped(B), 0);
}
