//! What is said, and whether it is true.

use super::*;
use holdfast_tunnel::{Class, Config as Machine, Ecn, Endpoint};
use std::time::Duration;

/// A machine that has sent `messages` of 60 bytes, 1 ms apart, over a path that loses each tenth datagram
/// of this direction.
fn sender(messages: u32) -> Endpoint {
    let [mut one, mut other] =
        [1, 2].map(|seed| Endpoint::new(Machine::default(), seed, Duration::ZERO));
    let mut bytes = Vec::new();
    for at in 0..messages {
        let now = Duration::from_millis(at.into());
        one.handle_message(1, Class::Soon, &[7; 60], now).expect("room");
        while let Some(sent) = one.poll_datagram(now, &mut bytes) {
            if sent.number % 10 != 3 {
                other.handle_datagram(sent.number, &bytes, Ecn::NotCapable, now).expect("good");
            }
        }
        while other.poll_inside(now).is_some() {}
        while let Some(sent) = other.poll_datagram(now, &mut bytes) {
            one.handle_datagram(sent.number, &bytes, Ecn::NotCapable, now).expect("good");
        }
    }
    one
}

fn shown(machine: &Endpoint) -> String {
    let machine = serde_json::to_value(machine.report()).expect("JSON");
    Status { machine, ..Status::example() }.render()
}

/// The cap counts headers, and all classes; the share of a class does not.
#[test]
fn a_class_may_have_more_than_the_cap_which_is_kept() {
    let machine = sender(4000);
    let sending = machine.report().sending;
    let cap = Machine::default().overhead_max;
    let of_class = sending.classes[Class::Soon.index()].share;
    assert!(of_class > cap, "{of_class}: so it looks as if the cap were exceeded");
    let begun = 4096.0 / sending.data_bytes as f64;
    assert!(sending.overhead > 0.0 && sending.overhead <= cap + begun, "{sending:?}");
    let text = shown(&machine);
    let percent = of_class * 100.0;
    assert!(text.contains(&format!("{percent:.0} % of its own bytes more")), "{text}");
    let all = format!("cap      {:.1} % more for all classes together", sending.overhead * 100.0);
    assert!(text.contains(&all) && text.contains("at most 35 % (overhead_max)"), "{text}");
}

#[test]
fn a_rate_is_told_as_measured_only_when_it_is() {
    let (new, used) = (sender(0), sender(100));
    assert_eq!(new.rate_measured_at(), None);
    let text = shown(&new);
    assert!(text.contains("; rate not measured yet, it begins at "), "{text}");
    assert!(text.contains("path       round trip not measured yet\n"), "{text}");
    assert!(used.rate_measured_at().is_some_and(|at| at <= Duration::from_millis(500)));
    let machine = serde_json::to_value(used.report()).expect("JSON");
    let at = |s: f64| {
        let machine = machine.clone();
        Status { machine, rate_measured_s: Some(s), ..Status::example() }.render()
    };
    assert!(at(3600.0).contains("bit/s when last measured, 3600 s ago, "), "{}", at(3600.0));
    assert!(!at(0.2).contains("measured"), "{}", at(0.2));
}

#[test]
fn connections_are_not_called_datagrams() {
    let inside = inside::Counters {
        resets: 5,
        resets_unanswered: 3,
        targets_unreached: 2,
        not_allowed: 7,
        connections_not_allowed: 4,
        ..inside::Counters::default()
    };
    let text = Status { inside, ..Status::example() }.render();
    assert!(text.contains("5 reset; the peer wanted 3 datagrams and 4 connections to"), "{text}");
    assert!(text.contains("unanswered 3 connections from here"), "{text}");
    assert!(text.contains("unreached  2 connections of the peer"), "{text}");
}

#[test]
fn numbers_are_readable() {
    assert_eq!([bytes(7.0), bytes(1536.0), bytes(5e9)], ["7 B", "1.5 KiB", "4.7 GiB"]);
    assert_eq!([scaled(12.0), scaled(46.5e6)], ["12.0 ", "46.5 M"]);
}
