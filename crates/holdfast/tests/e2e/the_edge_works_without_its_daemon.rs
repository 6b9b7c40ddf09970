//! After kill -9 of the edge's daemon, clients' packets, their copies and the fence go on, since
//! they are in eBPF.

use crate::wire::{Forger, Worker};
use crate::world;
use holdfast_lab::load::Action;
use holdfast_lab::testbed::{Role, Testbed, addresses};
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment, map_ipv4};
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Source port of the marker packets: one of the service's that nothing else uses here.
const MARKER_PORT: u16 = 6379;

/// Destination port, of a client that does not exist, that marks packets of the fenced member.
const FROM_FENCED: u16 = 9001;
/// Destination port, of a client that does not exist, that marks packets of the current member.
const FROM_CURRENT: u16 = 9002;

#[test]
fn connections_go_on_and_new_ones_are_served() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis(|testbed, group| {
        let edge = group.daemon_pid(Role::Edge).expect("the edge's daemon");
        let load = world::counting(1500, 300, Some(vec![(0, Action::Kill(edge))]));
        let report = world::finish(world::start(testbed, &load), group);
        assert!(report.total(|it| it.replies) > 0);
        // A second load connects after nobody has been connected for long.
        world::finish(world::start(testbed, &world::counting(300, 0, None)), group);
        assert!(group.status(Role::Edge).is_err(), "the edge's daemon still answers");
        let status = group.status(Role::Backup).expect("the backup answers");
        assert!(status["last_takeover"].is_null(), "somebody took over: {status}");
    });
}

/// The second daemon has other files, so that no lock keeps it from starting; but its address is
/// taken.
#[test]
fn a_second_one_that_is_refused_touches_nothing() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis(|testbed, group| {
        let host = testbed.host(Role::Edge);
        let text = std::fs::read_to_string(host.outside().join("holdfast.toml")).expect("a file");
        let own = |line: &str| match line.split(" = ").next() {
            Some("run_dir") => format!("run_dir = \"{}/second\"\n", host.inside().display()),
            Some("state_file") => format!("state_file = \"{}/2.epoch\"\n", host.inside().display()),
            _ => format!("{line}\n"),
        };
        let second: String = text.lines().map(own).collect();
        assert_ne!(second, text);
        std::fs::write(host.outside().join("second.toml"), second).expect("another file");
        let load = world::start(testbed, &world::counting(1500, 0, None));
        let config = host.inside().join("second.toml");
        let mut command = host.command(holdfast_lab::holdfast_binary().expect("a program"));
        let refused = command.args(["run", "--role", "edge", "--config"]).arg(config).output();
        let refused = refused.expect("it runs");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("cannot listen"), "{said}");
        world::finish(load, group);
        assert!(group.stands().expect("a status"), "{:?}", group.events(Role::Edge));
    });
}

#[test]
fn a_fenced_member_stays_silent() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis(|testbed, group| {
        let server = group.server_pid(Role::Primary).expect("a server");
        let load = world::counting(500, 300, Some(vec![(0, Action::Kill(server))]));
        world::finish(world::start(testbed, &load), group);
        let edge = group.daemon_pid(Role::Edge).expect("the edge's daemon");
        world::signal(edge, "KILL");
        world::wait_until("the edge's daemon to end", || group.status(Role::Edge).is_err());

        let heard = Worker::start(testbed.host(Role::Client), |wire| {
            let mut heard = BTreeSet::new();
            while wire.should_go_on() {
                heard.extend(wire.next(|_, packet| packet.destination_port));
            }
            heard
        });
        speak(testbed, Role::Primary, FROM_FENCED);
        speak(testbed, Role::Backup, FROM_CURRENT);
        world::finish(world::start(testbed, &world::counting(300, 0, None)), group);
        let heard = heard.stop();
        assert!(heard.contains(&FROM_CURRENT), "the current member was not heard: {heard:?}");
        assert!(!heard.contains(&FROM_FENCED), "the fenced member was heard");
    });
}

/// Sends a packet from a member, with the service's address, to a client's port.
fn speak(testbed: &Testbed, role: Role, client_port: u16) {
    let address = |text: &str| map_ipv4(text.parse::<Ipv4Addr>().expect("an address").octets());
    let key = ConnKey {
        server: address(addresses::SERVICE_V4),
        client: address("10.8.0.2"),
        server_port: MARKER_PORT,
        client_port,
    };
    let packet = TcpSegment {
        key,
        to_client: true,
        seq: SeqNo(1),
        ack: SeqNo(1),
        flags: Flags::ACK,
        window: 0,
        options: TcpOptions::default(),
        payload: b"from beyond",
    };
    let l3 = packet.build().expect("a packet");
    let speaker = Worker::start(testbed.host(role), move |_| {
        let forger = Forger::open(None);
        (0..10).filter(|_| forger.send(l3.clone())).count()
    });
    assert_eq!(speaker.stop(), 10, "the {} could not send", role.name());
}
