//! Connections whose handshakes the redirector has not seen, as after a boot of the edge.

use crate::common::redirector::{Fixture, HOSTS, outer, request, request6};
use crate::common::{ACK, REDIRECT, RST, SYN, is_root};
use holdfast_linux::bpf::HostState;

#[test]
fn a_flow_whose_handshake_was_not_seen_is_learnt_and_stays() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("learnt");
    f.serve(&[0]);
    let host = |f: &Fixture, port: u16, flags| {
        outer(&f.send(&request(port).flags(flags).build()).1).0.target
    };
    let host6 = |f: &Fixture| outer(&f.send(&request6(40000).build()).1).0.target;
    for _ in 0..2 {
        assert_eq!(host(&f, 40000, ACK), HOSTS[0].0);
        assert_eq!(host6(&f), HOSTS[0].1);
    }
    assert_eq!(host(&f, 40001, ACK), HOSTS[0].0);
    for _ in 0..2 {
        host(&f, 40002, RST);
    }
    assert_eq!(f.redirect.flows().count(), 2, "by their second packets");
    f.serve(&[1]);
    f.set_host(0, |host| host.state = HostState::Draining);
    assert_eq!((host(&f, 40000, ACK), host6(&f)), (HOSTS[0].0, HOSTS[0].1));
    assert_eq!(host(&f, 40001, ACK), HOSTS[0].0, "the first is remembered, too");
    assert_eq!(host(&f, 40002, ACK), HOSTS[1].0, "what resets is no flow");
    assert_eq!(["stray", "learnt", "established"].map(|name| f.count(name)), [6, 3, 0]);
    // A connection begins anew, but not at a host server that gets no new ones.
    assert_eq!(host(&f, 40002, ACK), HOSTS[1].0);
    f.serve(&[0]);
    assert_eq!(host(&f, 40003, ACK), HOSTS[0].0);
    f.serve(&[1]);
    assert_eq!(host(&f, 40003, SYN), HOSTS[1].0);
}

/// A flood of ACKs displaces only its like, and where there is no room, a connection that goes by
/// its hash stays where it is.
#[test]
fn a_flood_of_acknowledgements_fills_nothing_and_harms_nobody() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("acks");
    f.serve(&[0, 1]);
    for port in 1024..3024 {
        assert_eq!(f.send(&request(port).build()).0, REDIRECT);
    }
    assert_eq!(f.redirect.flows().count(), 0);
    for port in 1024..3024 {
        assert_eq!(f.send(&request(port).build()).0, REDIRECT);
    }
    assert_eq!(f.redirect.flows().count(), 16, "as many as the table holds");
    assert_eq!(f.count("refused_flows"), 0);
    // Connections that were silent since then are forgotten after ten minutes.
    for _ in 0..601 {
        f.redirect.tick().expect("ticks");
    }
    assert_eq!(f.redirect.age_flows().expect("ages"), 16);
}
