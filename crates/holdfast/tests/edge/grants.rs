//! Which members are granted an epoch, which are refused, and what survives
//! kill -9.

use crate::bed::*;
use holdfast::config::Role;
use holdfast::status::State;
use holdfast_linux::frame::{FrameSender, Hop};
use holdfast_linux::link::Link;
use holdfast_wire::message::{ConnKey, Message};
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment, map_ipv4};
use holdfast_wire::seq::SeqNo;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_backup_in_step_is_granted_and_the_old_primary_learns_of_it() {
    in_bed("grant", |bed| {
        assert_eq!(bed.status().state, State::Waiting);
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        b.say(&Message::Promote { epoch: 1 });
        assert!(b.hear("Refused").contains("preferred"));
        a.promote(1);
        assert_eq!(b.hear("Epoch"), "Epoch { epoch: 1, current: \"a\" }");
        wait_for("unprotected", || {
            a.listen();
            b.listen();
            (bed.status().state == State::Unprotected).then_some(())
        });
        b.say(&Message::Promote { epoch: 2 });
        assert!(b.hear("Refused").contains("in step"));
        b.say(&Message::InStep { epoch: 1, yes: true });
        wait_for("protected", || {
            a.listen();
            b.listen();
            (bed.status().state == State::Protected).then_some(())
        });
        b.promote(2);
        assert_eq!(a.hear("Epoch"), "Epoch { epoch: 2, current: \"b\" }");
        let status = bed.status();
        assert_eq!((status.epoch, status.state), (2, State::Unprotected));
        eprintln!("grant took {} µs", status.counters["edge.last_grant_us"]);
    });
}

#[test]
fn a_killed_edge_comes_back_with_its_fence_and_epoch() {
    in_bed("kill", |bed| {
        let mut a = bed.member("a");
        a.promote(1);
        bed.kill();
        bed.start();
        let status = bed.status();
        assert_eq!((status.epoch, status.state), (1, State::Waiting));
        assert!(status.reason.starts_with("`a` is current"), "open for a: {}", status.reason);
        let mut a = bed.member("a");
        a.say(&Message::Ask);
        assert_eq!(a.hear("Epoch"), "Epoch { epoch: 1, current: \"a\" }");
        a.promote(1);
    });
}

#[test]
fn a_backup_that_does_not_answer_bars_nobody() {
    in_bed("silent", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.say(&Message::InStep { epoch: 1, yes: true });
        wait_for("protected", || {
            a.listen();
            b.listen();
            (bed.status().state == State::Protected).then_some(())
        });
        a.say(&Message::Promote { epoch: 2 });
        assert!(a.hear("Refused").contains("in step"));
        // From here on `b` answers nothing.
        wait_for("silence", || {
            a.listen();
            bed.status().reason.contains("does not hear `b`").then_some(())
        });
        a.promote(2);
        b.say(&Message::Promote { epoch: 2 });
        b.hear("Epoch");
        assert_eq!(b.hear("Alone"), "Alone { member: \"a\" }");
        b.hear("Epoch");
        assert!(b.hear("Refused").contains("not the next one"));
    });
}

#[test]
fn a_hand_that_closed_the_edge_is_not_overruled_by_a_member_or_a_restart() {
    in_bed("hand", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        assert_eq!(bed.ask("fence").unwrap()["epoch"], 1);
        for round in 0..3 {
            assert_eq!(bed.status().state, State::Fenced, "{round}");
            // The current member, the same member restarted, and a backup ask.
            assert!(a.ask(1).contains("closed by hand"));
            assert!(a.ask(2).contains("closed by hand"));
            assert!(b.ask(2).contains("closed by hand"));
            bed.kill();
            if round == 1 {
                bed.reboot();
            }
            bed.start();
            (a, b) = (bed.member_in("a", 1, true), bed.member_in("b", 1, false));
        }
        bed.ask("unfence").unwrap();
        a.promote(1);
        bed.kill();
        bed.start();
        assert_ne!(bed.status().state, State::Fenced, "opened for good");
    });
}

#[test]
fn a_fence_for_a_test_ends_with_the_takeover() {
    in_bed("held", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        let request = holdfast::admin::Request::Fence { until_takeover: true };
        holdfast::admin::ask(&bed.config.admin_socket(Role::Edge), request).unwrap();
        assert!(a.ask(1).contains("closed by hand"));
        assert_eq!(bed.status().state, State::Fenced);
        b.promote(2);
        assert_ne!(bed.status().state, State::Fenced);
    });
}

/// Packets of the service from `a`, whose port is `p0`, to a client behind `ec`.
struct Traffic {
    sender: FrameSender,
    hop: Hop,
    packet: Vec<u8>,
}

impl Traffic {
    fn new() -> Self {
        for command in [
            "ip address add 10.8.0.1/24 dev ec",
            "ip neighbour replace 10.8.0.9 lladdr 02:00:00:00:00:09 dev ec",
            "ip route replace 10.9.0.0/24 dev ep",
        ] {
            let mut words = command.split(' ');
            let mut ip = Command::new(words.next().unwrap());
            assert!(ip.args(words).status().unwrap().success(), "{command}");
        }
        let (port, edge) = (Link::by_name("p0").unwrap(), Link::by_name("ep").unwrap());
        let key = ConnKey {
            server: map_ipv4([10, 9, 0, 100]),
            client: map_ipv4([10, 8, 0, 9]),
            server_port: 6379,
            client_port: 4000,
        };
        let segment = TcpSegment {
            key,
            to_client: true,
            seq: SeqNo(1000),
            ack: SeqNo(2000),
            flags: Flags::ACK,
            window: 512,
            options: TcpOptions::default(),
            payload: b"",
        };
        let packet = segment.build().unwrap();
        let hop = Hop { ifindex: port.index, from: [2, 0, 0, 0, 0, 2], to: edge.mac };
        Self { sender: FrameSender::open().unwrap(), hop, packet }
    }

    fn send(&mut self) {
        self.sender.send(&self.hop, &self.packet).unwrap();
    }
}

/// A busy machine may be late, and lateness makes the edge more patient for a while, twice: so
/// three edges may try.
#[test]
fn packets_that_pass_buy_a_silent_primary_time_and_no_more_than_that() {
    let period = Duration::from_millis(HEARTBEAT_MS);
    let mut tries = (0..3).map(|_| {
        let (dead, passing) = times_of_death();
        assert!(dead >= 2 * period && passing > 5 * period, "{dead:?}, {passing:?}");
        (dead, passing)
    });
    let in_time =
        |(dead, passing): &(Duration, Duration)| *dead < 5 * period && *passing < 8 * period;
    assert!(tries.any(|took| in_time(&took)), "thrice too late");
}

/// Times until a primary that says nothing is declared dead, and one whose packets pass.
fn times_of_death() -> (Duration, Duration) {
    let (tell, told) = std::sync::mpsc::channel();
    in_bed("pass", move |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        let mut traffic = Traffic::new();
        let mut declared_after = |with_traffic: bool| {
            a.listen();
            let start = Instant::now();
            let before = bed.status().counters["edge.forwarded_out"];
            wait_for("the declaration", || {
                b.listen();
                if with_traffic {
                    traffic.send();
                }
                std::thread::sleep(Duration::from_millis(10));
                let gone = bed.event("declare").filter(|_| !bed_hears(bed));
                gone.map(|_| ())
            });
            let passed = bed.status().counters["edge.forwarded_out"] > before;
            assert_eq!(passed, with_traffic);
            let took = start.elapsed();
            wait_for("its return", || {
                a.listen();
                b.listen();
                bed_hears(bed).then_some(())
            });
            took
        };
        tell.send((declared_after(false), declared_after(true))).expect("who waits");
    });
    told.recv().expect("both times")
}

/// Whether the last event about `a` says that it is heard.
fn bed_hears(bed: &Bed) -> bool {
    let events = bed.ask("events").unwrap();
    let events = events["events"].as_array().unwrap();
    let about = |event: &&serde_json::Value| event["detail"] == "a";
    let last = events.iter().rev().filter(about).find_map(|event| event["what"].as_str());
    last != Some("declare")
}
