//! A redirector whose table of flows is nearly full.

mod bpf_common;

use bpf_common::redirector::{Fixture, request};
use bpf_common::{ACK, FIN, SYN, is_root};

/// Anybody can send a SYN and another packet in the name of clients that there are not.
#[test]
fn flows_of_two_packets_are_forgotten_soon_where_the_table_is_nearly_full() {
    if !is_root() {
        return;
    }
    for (flows, is_crowded) in [(12, false), (13, true)] {
        let mut f = Fixture::new("crowded");
        f.serve(&[0]);
        for port in 40000..40000 + flows {
            f.send(&request(port).flags(SYN).build());
            f.send(&request(port).build());
        }
        f.send(&request(40000).payload(5).build());
        f.send(&request(40001).flags(FIN | ACK).build());
        let forgotten_after = |f: &mut Fixture, seconds: u32| {
            (0..seconds).for_each(|_| f.redirect.tick().expect("ticks"));
            f.redirect.age_flows().expect("ages")
        };
        assert_eq!(forgotten_after(&mut f, 30), 0);
        // Those that have said more stay.
        let young = usize::from(flows) - 2;
        assert_eq!(forgotten_after(&mut f, 1), if is_crowded { young } else { 0 }, "{flows}");
        f.redirect.detach().expect("detach");
    }
}
