//! A redirector whose table of flows is nearly full.

use crate::common::redirector::{Fixture, request};
use crate::common::{ACK, FIN, SYN, is_root};

/// Lets time pass, and returns how many flows are forgotten then.
fn forgotten_after(f: &mut Fixture, seconds: u32) -> usize {
    (0..seconds).for_each(|_| f.redirect.tick().expect("ticks"));
    f.redirect.age_flows().expect("ages")
}

/// Anybody can send a SYN and other packets in the name of clients that there are not.
#[test]
fn flows_of_few_packets_are_forgotten_soon_where_the_table_is_nearly_full() {
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
        // Neither proves that there is a client.
        f.send(&request(40001).flags(FIN | ACK).build());
        f.send(&request(40002).build());
        assert_eq!(forgotten_after(&mut f, 30), 0);
        // That which has said something stays.
        let young = usize::from(flows) - 1;
        assert_eq!(forgotten_after(&mut f, 1), if is_crowded { young } else { 0 }, "{flows}");
        f.redirect.detach().expect("detach");
    }
}

/// A packet with a byte is as easily forged, but one that goes on for long costs more.
#[test]
fn a_flow_may_be_silent_as_long_as_it_has_lived_where_the_table_is_nearly_full() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("lived");
    f.serve(&[0]);
    let say = |f: &Fixture, flags, payload| {
        for port in 40000..40013 {
            f.send(&request(port).flags(flags).payload(payload).build());
        }
    };
    let begin = |f: &Fixture| [SYN, ACK].iter().for_each(|flags| say(f, *flags, 0));
    begin(&f);
    say(&f, ACK, 5);
    assert_eq!(forgotten_after(&mut f, 600), 0, "at least ten minutes");
    say(&f, ACK, 5);
    assert_eq!(forgotten_after(&mut f, 400), 0);
    say(&f, ACK, 5);
    assert_eq!(forgotten_after(&mut f, 1000), 0);
    assert_eq!(forgotten_after(&mut f, 1), 13);
    // Without a byte, after half a minute.
    begin(&f);
    assert_eq!(forgotten_after(&mut f, 30), 0);
    say(&f, ACK, 0);
    assert_eq!(forgotten_after(&mut f, 600), 0);
    assert_eq!(forgotten_after(&mut f, 1), 13);
    f.redirect.detach().expect("detach");
}
