//! A member of a pair without an edge, frame by frame: what reaches its stack and what leaves,
//! while it may speak and while it may not.

use crate::common::claims::{arp, neighbour_discovery};
use crate::common::edge::{CLIENT4, PORT, VIP4, VIP6, address, reply, reply6, request, request6};
use crate::common::{
    Capture, Context, Frame, Lab, PASS, REDIRECT, STOLEN, counter, icmp6_is_right, ifindex,
    is_root, sh, sum_icmp6, sums_are_right,
};
use holdfast_linux::bpf::{Deadline, Relay, Speak, SpeakConfig, Until};
use std::time::{Duration, Instant};

const SERVICE_MAC: [u8; 6] = [2, 0x68, 0x66, 1, 2, 3];
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 9, 9];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 9, 8];
const HOST4: [u8; 4] = [10, 9, 0, 3];
const HOST6: &str = "fd00:9::3";
const VIP4_BYTES: [u8; 4] = [10, 9, 0, 100];
const IN: &str = "speak/speak_ingress";
const OUT: &str = "speak/speak_egress";

struct Fixture {
    speak: Speak,
    deadline: Deadline,
    lab: Lab,
}

impl Fixture {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        sh("ip link add m0 address 02:00:00:00:09:09 type veth peer name s0");
        sh("ip link set m0 up");
        sh("ip link set s0 up");
        let config = SpeakConfig {
            interface: "m0".into(),
            services: vec![(address(VIP4), PORT), (address(VIP6), PORT)],
            service_mac: SERVICE_MAC,
            own_mac: OWN_MAC,
            is_edge: false,
            pin_dir: lab.pin_dir.clone(),
        };
        let speak = Speak::attach(&config).unwrap_or_else(|error| panic!("{error}"));
        let deadline = speak.deadline().expect("pinned");
        Self { speak, deadline, lab }
    }

    fn set(&mut self, until: Until) {
        self.deadline.set(until).expect("the map");
    }

    fn run(&self, program: &str, frame: &[u8]) -> (u32, Vec<u8>) {
        let context = Context { ifindex: ifindex("m0"), ..Context::default() };
        self.lab.run(program, frame, context)
    }

    fn count(&self, name: &str) -> u64 {
        counter(&self.speak.counters(), name)
    }
}

/// The frame, sent to this hardware address.
fn to(mac: [u8; 6], mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].copy_from_slice(&mac);
    frame
}

/// The message with an option of the sender's hardware address, and with a checksum.
fn with_link(mut frame: Vec<u8>, option: u8) -> Vec<u8> {
    frame.extend([option, 1]);
    frame.extend(OWN_MAC);
    frame[19] += 8;
    sum_icmp6(&mut frame);
    frame
}

#[test]
fn who_may_not_speak_hears_and_says_nothing_of_the_service() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("speak-silent");
    for until in [Until::Silent, Until::At(Instant::now() - Duration::from_millis(1))] {
        f.set(until);
        for frame in [request().build(), request6().build(), arp([10, 9, 0, 1], VIP4_BYTES)] {
            assert_eq!(f.run(IN, &to(SERVICE_MAC, frame)).0, STOLEN, "{until:?}");
        }
        assert_eq!(f.run(IN, &to(OWN_MAC, request().build())).0, STOLEN, "by a stale neighbour");
        for frame in [
            reply().build(),
            reply6().build(),
            arp(VIP4_BYTES, [10, 9, 0, 1]),
            with_link(neighbour_discovery(136, HOST6, &[VIP6]), 2),
            with_link(neighbour_discovery(135, VIP6, &[HOST6]), 1),
            neighbour_discovery(135, "::", &[VIP6]),
        ] {
            assert_eq!(f.run(OUT, &frame).0, STOLEN, "{until:?} {frame:02x?}");
        }
        assert_eq!((f.count("taken"), f.count("sent")), (0, 0));
    }
    assert_eq!((f.count("left"), f.count("silenced")), (8, 12));
}

#[test]
fn what_is_not_the_services_passes_unchanged() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("speak-others");
    let other = Frame::new((address(CLIENT4), 40000), (address("10.9.0.3"), PORT)).build();
    let reply = Frame::new((address("10.9.0.3"), 22), (address(CLIENT4), 40000)).build();
    for until in [Until::Silent, Until::Told] {
        f.set(until);
        for (program, frame) in [
            (IN, to(OWN_MAC, other.clone())),
            (IN, arp([10, 9, 0, 1], VIP4_BYTES)),
            (OUT, reply.clone()),
            (OUT, arp(HOST4, VIP4_BYTES)),
            (OUT, with_link(neighbour_discovery(135, HOST6, &[VIP6]), 1)),
            (OUT, with_link(neighbour_discovery(136, HOST6, &[HOST6]), 2)),
        ] {
            let (verdict, after) = f.run(program, &frame);
            assert_eq!((verdict, after), (PASS, frame), "{until:?} {program}");
        }
    }
    assert!(f.speak.counters().iter().all(|(_, count)| *count == 0), "{:?}", f.speak.counters());
}

#[test]
fn who_may_speak_gets_clients_frames_and_shows_the_services_hardware_address() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("speak-speaks");
    for until in [Until::Told, Until::At(Instant::now() + Duration::from_secs(60))] {
        f.set(until);
        for frame in [request().payload(9).build(), request6().payload(9).build()] {
            let (verdict, after) = f.run(IN, &to(SERVICE_MAC, frame.clone()));
            assert_eq!((verdict, after), (PASS, to(OWN_MAC, frame)), "{until:?}");
        }
        let asked = to(SERVICE_MAC, arp([10, 9, 0, 1], VIP4_BYTES));
        assert_eq!(
            f.run(IN, &asked),
            (PASS, to(OWN_MAC, asked.clone())),
            "a router that asks again"
        );
        for frame in [reply().payload(9).build(), reply6().build()] {
            assert_eq!(f.run(OUT, &frame), (PASS, frame.clone()));
        }
        let mut shown = arp(VIP4_BYTES, [10, 9, 0, 1]);
        let after = f.run(OUT, &shown);
        shown[22..28].copy_from_slice(&SERVICE_MAC);
        assert_eq!(after, (PASS, shown), "the frame itself comes from this host's own address");
        for (kind, source, target, option) in [(136, HOST6, VIP6, 2), (135, VIP6, HOST6, 1)] {
            let frame = with_link(neighbour_discovery(kind, source, &[target]), option);
            let (verdict, after) = f.run(OUT, &frame);
            assert_eq!((verdict, &after[80..86]), (PASS, &SERVICE_MAC[..]));
            assert!(icmp6_is_right(&after));
            assert_eq!((&after[..56], &after[58..80]), (&frame[..56], &frame[58..80]));
        }
    }
}

/// Nobody has to do anything for it: the daemon may stand still.
#[test]
fn the_time_to_speak_ends_by_itself() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("speak-ends");
    let end = Instant::now() + Duration::from_millis(300);
    f.set(Until::At(end));
    assert_eq!(f.run(OUT, &reply().build()).0, PASS);
    std::thread::sleep(end - Instant::now());
    assert_eq!(f.run(OUT, &reply().build()).0, STOLEN);
    assert_eq!(f.run(IN, &to(SERVICE_MAC, request().build())).0, STOLEN);
}

#[test]
fn what_kernels_take_differently_reaches_none() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("speak-sound");
    f.set(Until::Told);
    let mut wrong = request().build();
    wrong[24] ^= 1;
    let signed = request().options(&[19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
    for frame in [wrong, signed.build()] {
        assert_eq!(f.run(IN, &to(SERVICE_MAC, frame)).0, STOLEN);
    }
    assert_eq!(f.count("malformed"), 2);
    let mut fragment = request().build();
    fragment[20] |= 0x20;
    assert_eq!(f.run(IN, &to(SERVICE_MAC, fragment)).0, STOLEN);
    assert_eq!(f.count("odd"), 1);
    for (program, frame) in [(IN, request()), (OUT, reply())] {
        let (verdict, after) = f.run(program, &frame.payload(4).urgent(2).build());
        assert_eq!((verdict, after[47] & 0x20, &after[52..54]), (PASS, 0, &[0, 0][..]));
        assert!(sums_are_right(&after));
    }
}

#[test]
fn a_daemon_that_comes_back_finds_its_server_speaking() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("speak-reopen");
    f.set(Until::Told);
    let config = SpeakConfig {
        interface: "m0".into(),
        services: vec![(address(VIP4), PORT), (address(VIP6), PORT)],
        service_mac: SERVICE_MAC,
        own_mac: OWN_MAC,
        is_edge: false,
        pin_dir: f.lab.pin_dir.clone(),
    };
    let again = Speak::reopen(&config).expect("pinned");
    assert!(again.deadline().expect("pinned").is_told().expect("a word"));
    assert_eq!(f.run(OUT, &reply().build()).0, PASS);
    again.deadline().expect("pinned").set(Until::Silent).expect("the map");
    assert_eq!(f.run(OUT, &reply().build()).0, STOLEN);
    assert!(!again.deadline().expect("pinned").is_told().expect("a word"));
    sh("tc qdisc del dev m0 clsact");
    let mended = Speak::mend("m0", &config.pin_dir).expect("attached again");
    assert_eq!(mended.len(), 2, "{mended:?}");
    again.detach().expect("detached");
    assert!(Speak::reopen(&config).is_err());
}

/// The frame as this member sends it on to the other one.
fn sent_on(frame: &[u8]) -> Vec<u8> {
    [&PEER_MAC, &OWN_MAC, &frame[12..]].concat()
}

/// A frame of the members about their segment.
fn sign() -> Vec<u8> {
    [&SERVICE_MAC[..], &[2, 0, 0, 0, 9, 7, 0x88, 0xb5], &[0; 46]].concat()
}

#[test]
fn a_silent_member_hands_on_what_goes_to_the_shared_address_alone() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("speak-chain");
    f.speak.set_relay(Relay::HandOn(PEER_MAC)).expect("the map");
    for until in [Until::Silent, Until::At(Instant::now() - Duration::from_millis(1))] {
        f.set(until);
        // A router that asks again whether the address is still there is answered by who speaks.
        for frame in
            [request().payload(9).build(), request6().build(), arp([10, 9, 0, 1], VIP4_BYTES)]
        {
            let frame = to(SERVICE_MAC, frame);
            assert_eq!(f.run(IN, &frame), (REDIRECT, sent_on(&frame)), "{until:?}");
        }
        let for_me = to(OWN_MAC, request().build());
        assert_eq!(f.run(IN, &for_me), (STOLEN, for_me.clone()), "handed on to this one");
        let passed = arp([10, 9, 0, 1], VIP4_BYTES);
        assert_eq!(f.run(IN, &passed), (PASS, passed.clone()), "everybody has it");
    }
    assert_eq!((f.count("handed_on"), f.count("left")), (6, 2));
    f.set(Until::Told);
    let frame = to(SERVICE_MAC, request().build());
    assert_eq!(f.run(IN, &frame), (PASS, to(OWN_MAC, frame.clone())), "it speaks now");
    f.set(Until::Silent);
    f.speak.set_relay(Relay::Nothing).expect("the map");
    assert_eq!(f.run(IN, &frame).0, STOLEN);
}

#[test]
fn a_speaking_member_copies_what_it_takes_of_the_service() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("speak-clone");
    f.speak.set_relay(Relay::Copy(PEER_MAC)).expect("the map");
    let capture = Capture::new("s0");
    f.set(Until::Silent);
    let frame = to(SERVICE_MAC, request().payload(9).build());
    assert_eq!((f.run(IN, &frame).0, capture.tcp_frames().len()), (STOLEN, 0));
    f.set(Until::Told);
    for frame in [frame, to(SERVICE_MAC, request6().payload(70).build())] {
        assert_eq!(f.run(IN, &frame), (PASS, to(OWN_MAC, frame.clone())));
        assert_eq!(capture.tcp_frames(), [sent_on(&frame)]);
    }
    let mut wrong = to(SERVICE_MAC, request().build());
    wrong[24] ^= 1;
    assert_eq!(f.run(IN, &wrong).0, STOLEN);
    let copied = to(OWN_MAC, request().build());
    assert_eq!(f.run(IN, &copied).0, PASS);
    assert_eq!(capture.tcp_frames().len(), 0, "nothing wrong, and nothing twice");
    let urgent = to(SERVICE_MAC, request().payload(4).urgent(2).build());
    let after = f.run(IN, &urgent).1;
    assert_eq!(capture.tcp_frames(), [sent_on(&after)], "both get the same");
    assert_eq!((f.count("cloned"), f.count("uncloned")), (3, 0));
}

/// Members see by them whether clients' frames arrive, so they go the same way.
#[test]
fn a_members_sign_goes_where_clients_frames_go() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("speak-sign");
    for (until, relay, copies) in [
        (Until::Silent, Relay::Nothing, 0),
        (Until::Silent, Relay::Copy(PEER_MAC), 0),
        (Until::Silent, Relay::HandOn(PEER_MAC), 1),
        (Until::Told, Relay::HandOn(PEER_MAC), 0),
        (Until::Told, Relay::Copy(PEER_MAC), 1),
    ] {
        f.set(until);
        f.speak.set_relay(relay).expect("the map");
        let before = f.count("cloned");
        assert_eq!(f.run(IN, &sign()), (PASS, sign()), "it is seen here");
        assert_eq!(f.count("cloned") - before, copies, "{until:?} {relay:?}");
        let own = to(OWN_MAC, sign());
        assert_eq!(f.run(IN, &own), (PASS, own.clone()));
    }
}
