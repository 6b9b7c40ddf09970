//! Connections that are not where new ones with their hash would be: what an edge tells another.

use crate::common::redirector::{Fixture, HOSTS, outer, request, request6};
use crate::common::{ACK, FIN, SYN, is_root};
use holdfast_wire::message::EdgeFlow;

#[test]
fn they_are_found_when_the_table_changes_and_another_edge_follows_them() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("elsewhere");
    f.serve(&[0, 1]);
    for port in 40000..40006 {
        for frame in [request(port), request6(port)] {
            f.send(&frame.clone().flags(SYN).build());
            f.send(&frame.flags(ACK).payload(9).build());
        }
    }
    f.send(&request(40000).flags(FIN | ACK).build());
    assert_eq!(f.redirect.elsewhere().expect("a list"), [], "all are where their hash says");
    // The same two in another order: nobody is where it would be.
    f.serve(&[1, 0]);
    f.redirect.tick().expect("ticks");
    let all = f.redirect.elsewhere().expect("a list");
    assert_eq!(all.len(), 12);
    let told = |all: &[(u8, EdgeFlow)], port: u16, v4: bool| {
        let is_it = |(_, it): &&(u8, EdgeFlow)| {
            it.key.client_port == port && (it.key.client[..12] == v4_prefix()) == v4
        };
        *all.iter().find(is_it).expect("it is told")
    };
    let host = |f: &Fixture, port: u16| outer(&f.send(&request(port).build()).1).0.target;
    let (slot, flow) = told(&all, 40001, true);
    assert_eq!(host(&f, 40001), HOSTS[usize::from(slot)].0);
    assert_eq!((flow.age_s, flow.key.server_port), (1, 80));
    assert_ne!(told(&all, 40000, true).1.flags, flow.flags, "its client has closed it");

    // What comes from another edge is newer, or not.
    let (slot, flow) = told(&all, 40002, true);
    let other = 1 - slot;
    let adopt =
        |f: &mut Fixture, flow: EdgeFlow| f.redirect.adopt(other, &[flow]).expect("room") > 0;
    assert!(!adopt(&mut f, EdgeFlow { age_s: 1, ..flow }), "as old");
    assert_eq!(host(&f, 40002), HOSTS[usize::from(slot)].0);
    f.redirect.tick().expect("ticks");
    assert!(adopt(&mut f, EdgeFlow { age_s: 0, ..flow }));
    assert_eq!(host(&f, 40002), HOSTS[usize::from(other)].0);
    let (slot6, flow6) = told(&all, 40003, false);
    let mut new = flow6;
    new.key.client_port = 41000;
    assert_eq!(f.redirect.adopt(slot6, &[new]).expect("room"), 1);
    new.age_s = 1 << 20;
    new.key.client_port = 41001;
    assert_eq!(f.redirect.adopt(slot6, &[new]).expect("room"), 0, "it is over");
    let target = outer(&f.send(&request6(41000).build()).1).0.target;
    assert_eq!(target, HOSTS[usize::from(slot6)].1, "one that was never seen here");
    let mut mixed = flow;
    mixed.key.client = flow6.key.client;
    assert_eq!(f.redirect.adopt(0, &[mixed]).expect("no error"), 0, "of no family");
}

fn v4_prefix() -> [u8; 12] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
}
