//! The gate while the server speaks alone, and after a backup has joined: nothing is withheld or
//! changed, slots are kept up to date, and connections older than the gate are adopted.

use crate::common::gate::{
    self, EGRESS, Fixture, IRS, ISS, SLOTS, SYN_ACK_OPTIONS, ack, sack_option, seq,
};
use crate::common::{ACK, Context, FIN, PASS, RST, is_root};
use holdfast_linux::bpf::{Adopted, BpfError, Gate};
use holdfast_wire::message::{ConnId, ConnRecord};
use holdfast_wire::seq::SeqNo;
use std::time::Duration;

#[test]
fn a_connection_that_begins_alone_is_followed_and_clamped_when_a_backup_has_joined() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::alone("alone");
    let conn = f.begun_alone(&f.syn_ack(ISS, IRS));
    let data = f.out().seq(seq(0)).ack(ack(10_000)).window(200).payload(300);
    f.passes(&data);
    f.passes(&data.clone().payload(0).options(&sack_option(&[(ack(500), ack(600))])));
    let view = f.gate.slot(conn).expect("slot");
    assert!(!view.held_synack);
    assert_eq!((view.snd_nxt, view.stable), (SeqNo(seq(300)), SeqNo(ack(0))));
    assert_eq!((view.rcv_nxt, view.last_ack), (SeqNo(ack(10_000)), SeqNo(ack(10_000))));
    assert_eq!((view.right_edge, view.last_edge), (SeqNo(ack(112_400)), SeqNo(ack(112_400))));
    f.set_solo(false);
    // What the client was told stays valid, whatever is stable; it is told no more than that.
    let more = f.out().seq(seq(300)).ack(ack(12_000)).window(200).payload(300);
    f.leaves_as(&more, &more.clone().ack(ack(10_000)).window(203));
    assert!(f.gate.set_stable(conn, SeqNo(ack(11_000))));
    f.leaves_as(&more, &more.clone().ack(ack(11_000)).window(201));
    assert!(f.gate.set_stable(conn, SeqNo(ack(12_000))));
    assert_eq!(f.gate.slot(conn).expect("slot").owed_ack(), Some(SeqNo(ack(12_000))));
    f.passes(&more);
    let fin = f.out().seq(seq(600)).ack(ack(12_000)).window(200).flags(FIN | ACK);
    f.is_stolen(&fin);
    assert!(f.gate.allow_fin(conn));
    f.passes(&fin);
}

/// Law L4 where no window reaches from what is stable to the edge that the client was shown.
#[test]
fn a_right_edge_that_was_shown_alone_stays() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::alone("alone-edge");
    let conn = f.begun_alone(&f.syn_ack(ISS, IRS).options(&SYN_ACK_OPTIONS[..16]));
    let data = f.out().seq(seq(0)).ack(ack(50_000)).window(65_535).payload(10);
    f.passes(&data);
    assert!(f.gate.set_stable(conn, SeqNo(ack(20_000))));
    f.set_solo(false);
    let next = f.out().seq(seq(10)).ack(ack(50_700)).window(65_000).payload(5);
    f.leaves_as(&next, &next.clone().ack(ack(50_000)).window(65_535));
    f.is_stolen(&next.clone().payload(0));
    // No byte of the client is lost where the server speaks alone again.
    f.set_solo(true);
    f.passes(&next);
}

#[test]
fn what_has_passed_alone_is_not_called_back() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("alone-past");
    let conn = f.held(ISS, IRS);
    let data = f.out().seq(seq(0)).ack(ack(0)).window(200).payload(50);
    f.is_stolen(&data);
    f.set_solo(true);
    f.passes(&f.syn_ack(ISS, IRS));
    f.passes(&data);
    f.passes(&f.out().seq(seq(50)).ack(ack(700)).flags(RST | ACK));
    // A reset's number answers a packet, and need not be the stack's own.
    assert_eq!(f.gate.slot(conn).expect("slot").last_ack, SeqNo(ack(0)));
    f.set_solo(false);
    f.passes(&data);
    let fin = f.out().seq(seq(50)).ack(ack(0)).window(200).flags(FIN | ACK);
    f.is_stolen(&fin);
    f.set_solo(true);
    f.passes(&fin);
    f.set_solo(false);
    f.passes(&fin);
    assert_eq!(f.gate.slot(conn).expect("slot").snd_nxt, SeqNo(seq(51)));
}

#[test]
fn alone_what_has_no_slot_passes() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::alone("alone-noslot");
    f.gate.set_server_dead(true).expect("flag");
    let stray = f.out().seq(seq(0)).ack(ack(0)).payload(10);
    let all = [
        f.out().seq(5).flags(RST),
        f.out().seq(0).ack(ack(0)).flags(RST | ACK),
        f.out().seq(9).ack(ack(0)).flags(FIN | ACK),
        // The SYN of this connection came before the gate was attached.
        f.syn_ack(ISS, IRS),
        stray.clone(),
    ];
    all.iter().for_each(|frame| f.passes(frame));
    let mut fragment = stray.build();
    fragment[20] = 0x20;
    assert_eq!(f.lab.run(EGRESS, &fragment, Context::default()), (PASS, fragment));
    f.client_syn(IRS);
    f.passes(&f.syn_ack(ISS, IRS).options(&[34, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]));
    assert_eq!(f.count("unknown_alone"), 2);
    assert_eq!((f.gate.conn(&f.key()), f.events().len()), (None, 0));
    f.set_solo(false);
    f.is_stolen(&stray);
}

/// Begins as many connections alone as there are slots.
fn fill(f: &mut Fixture) -> Vec<ConnId> {
    let begun = (0..SLOTS).map(|i| {
        f.client.1 = 50000 + i as u16;
        f.begun_alone(&f.syn_ack(ISS, IRS))
    });
    begun.collect()
}

/// Whoever had no slot would end when a backup joins.
#[test]
fn a_full_table_refuses_new_connections_alone_while_somebody_minds_it() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::alone("alone-minded");
    f.gate.mind_slots(Duration::from_secs(3600)).expect("flag");
    let conns = fill(&mut f);
    f.client.1 = 40000;
    f.client_syn(IRS);
    f.is_stolen(&f.syn_ack(ISS, IRS));
    assert_eq!((f.count("refused_slots"), f.count("unknown_alone")), (1, 0));
    // Who is there already, with a slot or without, goes on.
    f.passes(&f.out().seq(seq(0)).ack(ack(99)).payload(10));
    f.client.1 = 50000;
    f.passes(&f.out().seq(seq(0)).ack(ack(0)).payload(10));
    // The kernel repeats it when there is room.
    assert!(f.gate.free(conns[0]).expect("free"));
    f.client.1 = 40000;
    let next = f.begun_alone(&f.syn_ack(ISS, IRS));
    assert_eq!(f.gate.conn(&f.key()), Some(next));
    f.client.1 = 50000;
    f.client_syn(IRS + 9);
    f.is_stolen(&f.syn_ack(seq(900), IRS + 9));
    // Nobody minds it any more.
    f.gate.mind_slots(Duration::ZERO).expect("flag");
    f.passes(&f.syn_ack(seq(900), IRS + 9));
}

#[test]
fn a_full_table_that_nobody_minds_refuses_nobody_alone() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::alone("alone-full");
    let conns = fill(&mut f);
    f.client.1 = 40000;
    f.client_syn(IRS);
    f.passes(&f.syn_ack(ISS, IRS));
    f.passes(&f.out().seq(seq(0)).ack(ack(99)).payload(10));
    assert_eq!((f.count("unknown_alone"), f.gate.conn(&f.key())), (1, None));
    // The tuple's next connection does not use the slot of the former one.
    f.client.1 = 50000;
    assert_eq!(f.gate.conn(&f.key()), Some(conns[0]));
    f.client_syn(IRS + 9);
    f.passes(&f.syn_ack(seq(900), IRS + 9));
    f.passes(&f.out().seq(seq(901)).ack(ack(9)).payload(10));
    assert_eq!((f.count("unknown_alone"), f.gate.conn(&f.key())), (2, None));
    assert_eq!(f.gate.slot(conns[0]).expect("slot").snd_nxt, SeqNo(seq(0)));
    assert!(f.gate.free(conns[0]).expect("free"));
    let next = f.begun_alone(&f.syn_ack(ISS, IRS));
    assert_eq!(f.gate.conn(&f.key()), Some(next));
}

#[test]
fn an_adopted_connection_is_clamped_released_and_ended_as_any_other() {
    if !is_root() {
        return;
    }
    for (name, server, client, solo) in
        [("adopt4", "10.9.0.100", "10.8.0.2", true), ("adopt6", "fd00:9::100", "fd00:8::2", false)]
    {
        let mut f = Fixture::attached(name, server, client, solo);
        let adopted = f.adopted();
        let conn = f.gate.adopt(&adopted).expect("a slot");
        assert_eq!(f.gate.conn(&f.key()), Some(conn));
        let view = f.gate.slot(conn).expect("slot");
        assert_eq!((view.key, view.iss, view.irs), (f.key(), SeqNo(ISS), SeqNo(IRS)));
        assert_eq!((view.snd_una, view.snd_nxt), (adopted.snd_una, adopted.snd_nxt));
        assert_eq!([view.stable, view.rcv_nxt, view.last_ack], [adopted.rcv_nxt; 3]);
        assert_eq!([view.right_edge, view.last_edge], [adopted.right_edge; 2]);
        assert_eq!((view.tsval, view.tsecr, view.has_ts), (5000, 77, true));
        assert_eq!((view.rcv_wscale, view.held_synack), (9, false));
        f.set_solo(false);
        let data = f.out().seq(seq(500)).ack(ack(3_000)).window(200).payload(300);
        f.leaves_as(&data, &data.clone().ack(ack(1_000)).window(203));
        assert!(f.gate.set_stable(conn, SeqNo(ack(3_000))));
        f.passes(&data);
        let fin = f.out().seq(seq(800)).ack(ack(3_000)).window(200).flags(FIN | ACK);
        f.is_stolen(&fin);
        assert!(f.gate.allow_fin(conn));
        f.passes(&fin);
        f.gate.detach().expect("detach");
    }
}

#[test]
fn who_adopts_a_tuple_again_gives_its_former_slot_back() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::v4("adopt-again");
    let mut last = f.opened();
    for _ in 0..3 * SLOTS {
        let next = f.gate.adopt(&Adopted { fin_allowed: true, ..f.adopted() }).expect("a slot");
        assert_eq!((f.gate.slot(last), f.gate.conn(&f.key())), (None, Some(next)));
        last = next;
    }
    f.passes(&f.out().seq(seq(500)).ack(ack(1_000)).window(200).flags(FIN | ACK));
    for i in 1..SLOTS {
        f.client.1 = 50000 + i as u16;
        f.gate.adopt(&f.adopted()).expect("a slot");
    }
    // The full table has room for connections that it contains already.
    f.gate.adopt(&f.adopted()).expect("its own slot");
    f.client.1 = 50000;
    assert!(matches!(f.gate.adopt(&f.adopted()), Err(BpfError::NoSlot)));
    assert_eq!(f.gate.conn(&f.key()), None);
}

/// Another daemon takes up what an earlier one has left: programs, slots, and what passed while
/// there was no daemon.
#[test]
fn a_gate_is_taken_up_with_all_that_it_knows() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::alone("taken-up");
    let wanted = gate::config(&f.lab, f.server, true);
    let adopted = f.adopted();
    let conn = f.gate.adopt(&adopted).expect("a slot");
    // A daemon's descriptors are closed with it, but the gate stays.
    f.gate = Gate::reopen(&wanted).expect("an earlier life's");
    let known = f.gate.known();
    let last = ConnRecord { tsval: Some(adopted.tsval), ..adopted.record };
    assert_eq!(known, [(conn, last)]);
    assert_eq!(f.gate.conn(&f.key()), Some(conn));
    let data = f.out().seq(seq(500)).ack(ack(3_000)).window(200).payload(300);
    f.passes(&data);
    assert_eq!(f.gate.slot(conn).expect("slot").snd_nxt, SeqNo(seq(800)));
    f.set_solo(false);
    f.leaves_as(&data, &data.clone().ack(ack(3_000)));
    assert!(f.gate.free(conn).expect("a map"));
    assert_eq!(f.gate.known(), []);
    f.set_solo(true);
    f.client_syn(IRS);
    f.passes(&f.syn_ack(ISS, IRS));
    f.gate = Gate::reopen(&wanted).expect("an earlier life's");
    assert_eq!((f.events().len(), f.gate.known().len()), (1, 1), "its SYN-ACK waited");
    let other = gate::config(&f.lab, (f.server.0, 1), true);
    assert!(matches!(Gate::reopen(&other), Err(BpfError::OtherGate)));
    f.gate.detach().expect("detach");
    assert!(matches!(Gate::reopen(&wanted), Err(BpfError::Map { .. })));
}
