//! Addresses, neighbours, links, diagnosis, raw packets and the tap, each in network namespaces of
//! its own. Needs root.

use crate::world::{PORT, World};
use holdfast_linux::address::AddressSocket;
use holdfast_linux::clock::monotonic;
use holdfast_linux::diag::{DiagSocket, TcpState};
use holdfast_linux::link::Link;
use holdfast_linux::neighbour::Announcer;
use holdfast_linux::process;
use holdfast_linux::raw::RawSender;
use holdfast_linux::tap::{Service, TapSocket};
use holdfast_linux::unacked;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{
    Checksum, Flags, TcpOptions, TcpPacket, TcpSegment, complete_checksum, mapped,
};
use holdfast_wire::seq::SeqNo;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

fn key(world: &World, client_port: u16) -> ConnKey {
    let (server, client) = (mapped(world.vip()), mapped(world.client()));
    ConnKey { server, client, server_port: PORT, client_port }
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_address_comes_and_goes_and_neighbours_hear_of_it() {
    for v6 in [false, true] {
        let world = World::new(v6);
        let (mut address, announcer, link) = world.within("b", || {
            let link = Link::by_name("m0").unwrap();
            (AddressSocket::open().unwrap(), Announcer::open().unwrap(), link)
        });
        let vip = mapped(world.vip());
        let listed = |world: &World| {
            world.ip("b", "addr show dev m0").contains(&format!("{}/", world.vip()))
        };
        address.add(link.index, &vip).unwrap();
        address.wait_local(&vip).unwrap();
        address.add(link.index, &vip).unwrap();
        assert!(listed(&world));
        assert!(!world.ip("b", "addr show dev m0").contains("tentative noprefixroute"));

        // The announcement replaces a stale entry.
        let stale = format!("neigh replace {} lladdr 02:00:00:00:00:01 dev cb", world.vip());
        world.ip("c", &format!("{stale} nud reachable"));
        announcer.announce(&link, &vip).unwrap();
        let mac = link.mac.map(|byte| format!("{byte:02x}")).join(":");
        eventually("the client's neighbour entry", || {
            world
                .ip("c", "neigh show dev cb")
                .lines()
                .any(|line| line.contains(&world.vip().to_string()) && line.contains(&mac))
        });
        address.remove(link.index, &vip).unwrap();
        address.remove(link.index, &vip).unwrap();
        assert!(!listed(&world));
        // Waiting for something that does not come ends with an error.
        assert_eq!(address.wait_local(&vip).is_err(), v6);
    }
}

#[test]
fn connections_of_a_dead_server_are_ended_and_no_others() {
    for address in ["127.0.0.1", "::1"] {
        let ip: std::net::IpAddr = address.parse().unwrap();
        let pair = |listener: &TcpListener| {
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (client, listener.accept().unwrap().0)
        };
        let listeners = [0, 1].map(|_| TcpListener::bind((ip, 0)).unwrap());
        let port = listeners[0].local_addr().unwrap().port();
        let (mut client, server) = pair(&listeners[0]);
        // The owner of one connection has closed it while its peer holds it open.
        let (half, closed) = pair(&listeners[0]);
        drop(closed);
        let (mut other, mut others) = pair(&listeners[1]);

        let mut diag = DiagSocket::open().unwrap();
        let waiting = std::net::TcpStream::connect(listeners[0].local_addr().unwrap()).unwrap();
        let mut living = || {
            let found = diag.living(&[mapped(ip)], &[port], 1).unwrap();
            found.iter().map(|key| key.client_port).collect::<std::collections::BTreeSet<_>>()
        };
        let ports = [&client, &waiting].map(|it| it.local_addr().unwrap().port());
        eventually("its end's ACK", || living() == ports.into());
        drop(waiting);
        // The peer's end has come before this one's is sent; otherwise both would be kept for a
        // minute.
        let (mut waited, _) = listeners[0].accept().unwrap();
        assert_eq!(waited.read(&mut [0]).unwrap(), 0);
        drop(waited);
        let mut own = || diag.own_sockets(&[mapped(ip)], &[port]).unwrap().len();
        eventually("its end", || own() == 2);
        assert_eq!(diag.destroy_own(&[mapped("192.0.2.1".parse().unwrap())], &[port]).unwrap(), 0);
        assert_eq!(diag.destroy_own(&[mapped(ip)], &[port]).unwrap(), 2, "{address}");
        assert_eq!(diag.destroy_own(&[mapped(ip)], &[port]).unwrap(), 0, "{address}");
        assert!(client.read(&mut [0]).is_err(), "{address}: it was reset");
        others.write_all(b"x").unwrap();
        assert_eq!(other.read(&mut [0]).unwrap(), 1, "{address}: another server's lives");
        let _listens = pair(&listeners[0]);
        drop((server, half));
    }
}

#[test]
fn an_unknown_interface_is_named_in_the_error() {
    let error = Link::by_name("nosuchif").unwrap_err().to_string();
    assert!(error.contains("nosuchif"), "{error}");
}

#[test]
fn diagnosis_finds_exactly_the_connection_also_on_dual_stack_listeners() {
    for (v6, listen) in [(false, "0.0.0.0"), (true, "::"), (false, "::")] {
        let world = World::new(v6);
        let listen = SocketAddr::new(listen.parse().unwrap(), PORT);
        let listener = world.within("p", || TcpListener::bind(listen).unwrap());
        let client = world.connect();
        let (_server, _) = listener.accept().unwrap();
        let mut diag = world.within("p", || DiagSocket::open().unwrap());
        let port = client.local_addr().unwrap().port();
        let keys: Vec<_> = (0..100).map(|i| key(&world, port.wrapping_add(i * 2))).collect();
        let states = diag.states(&keys).unwrap();
        assert_eq!(states[0], Some(TcpState::Established));
        assert!(states[1..].iter().all(Option::is_none));
        // Nor is the listener, which the kernel finds for them, taken for a connection.
        assert!(diag.unacked(&keys).unwrap().iter().all(|unacked| unacked.bytes == 0));
        assert_eq!(diag.backlog(&keys[0]).unwrap(), None);
        assert!(diag.backlog(&keys[1]).unwrap() > Some(0));
        client.shutdown(std::net::Shutdown::Write).unwrap();
        eventually("CLOSE-WAIT", || {
            diag.state(&key(&world, port)).unwrap() == Some(TcpState::CloseWait)
        });
    }
}

#[test]
fn diagnosis_tells_whose_client_has_not_been_heard() {
    const TICKS: Duration = Duration::from_millis(60);
    for v6 in [false, true] {
        let world = World::new(v6);
        let listen = SocketAddr::new(if v6 { "::" } else { "0.0.0.0" }.parse().unwrap(), PORT);
        let listener = world.within("p", || TcpListener::bind(listen).unwrap());
        let mut client = world.connect();
        let (server, _) = listener.accept().unwrap();
        let mut diag = world.within("p", || DiagSocket::open().unwrap());
        let port = client.local_addr().unwrap().port();
        // More than one system call asks about; all but the first are the listener's.
        let keys: Vec<_> = (0..100).map(|i| key(&world, port.wrapping_add(i * 2))).collect();
        std::thread::sleep(TICKS);
        let since = monotonic();
        std::thread::sleep(TICKS);
        assert_eq!(diag.unheard(&keys, since).unwrap(), keys[..1]);
        client.write_all(b"x").unwrap();
        eventually("its segment", || diag.unheard(&keys, since).unwrap().is_empty());
        drop(server);
    }
}

#[test]
fn who_ends_a_connection_that_is_gone_does_not_end_its_listener() {
    for v6 in [false, true] {
        let world = World::new(v6);
        let listener = world.within("p", || TcpListener::bind(world.service()).unwrap());
        let mut client = world.connect();
        let _server = listener.accept().unwrap();
        let mut diag = world.within("p", || DiagSocket::open().unwrap());
        let port = client.local_addr().unwrap().port();
        let keys: Vec<_> = (0..100).map(|i| key(&world, port.wrapping_add(i * 2))).collect();
        diag.destroy(&keys[1..]).unwrap();
        assert_eq!(diag.state(&keys[0]).unwrap(), Some(TcpState::Established));
        diag.destroy(&keys).unwrap();
        assert_eq!(diag.state(&keys[0]).unwrap(), None);
        assert!(client.read(&mut [0]).is_err(), "it was reset");
        let _client = world.connect();
        listener.accept().unwrap();
    }
}

/// The owner goes on to write, and the client to read, as if nobody had looked.
#[test]
fn what_a_client_has_not_acknowledged_can_be_looked_at() {
    const MOST: usize = 8 << 20;
    for v6 in [false, true] {
        let world = World::new(v6);
        let listener = world.within("p", || TcpListener::bind(world.service()).unwrap());
        let mut client = world.connect();
        let (mut server, _) = listener.accept().unwrap();
        let bytes: Vec<u8> = (0..20_000_000_u32).map(|at| (at * 7 + at / 251) as u8).collect();
        server.set_nonblocking(true).unwrap();
        let mut written = 0;
        eventually("a closed window", || {
            written += server.write(&bytes[written..]).unwrap_or(0);
            let port = client.local_addr().unwrap().port();
            let mut diag = world.within("p", || DiagSocket::open().unwrap());
            diag.unacked(&[key(&world, port)]).unwrap()[0].window_closed
        });
        let (from, held) = unacked::look(server.as_fd(), MOST).unwrap().expect("there is some");
        assert!(!held.is_empty() && held == bytes[written - held.len()..written]);
        let (again, _) = unacked::look(server.as_fd(), MOST).unwrap().expect("it is there still");
        assert_eq!(again, from);
        assert_eq!(unacked::look(server.as_fd(), 1000).unwrap(), None, "too much");
        // Another listener may have the address, as before.
        drop(listener);
        let _listener = world.within("p", || TcpListener::bind(world.service()).unwrap());
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            client.read_to_end(&mut got).unwrap();
            got
        });
        server.set_nonblocking(false).unwrap();
        server.write_all(&bytes[written..]).unwrap();
        server.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(unacked::look(server.as_fd(), MOST).unwrap(), None, "it has said all");
        assert!(reader.join().unwrap() == bytes, "other bytes");
    }
}

/// A member that does not own the service address sends the client a probe.
#[test]
fn a_foreign_source_can_be_sent_and_the_tap_sees_the_answer() {
    for v6 in [false, true] {
        let world = World::new(v6);
        let listener = world.within("p", || TcpListener::bind(world.service()).unwrap());
        let mut client = world.connect();
        let (mut server, _) = listener.accept().unwrap();
        let vip = mapped(world.vip());
        let others = [
            Service { address: mapped("10.1.2.3".parse().unwrap()), port: PORT },
            Service { address: mapped("fd01::1".parse().unwrap()), port: PORT },
        ];
        let (raw, mut tap) = world.within("b", || {
            let mut services = others.to_vec();
            services.push(Service { address: vip, port: PORT });
            (RawSender::open(None).unwrap(), TapSocket::open("m0", &services, 4 << 20).unwrap())
        });
        world.route_to("cb");
        let mac = world.within("b", || Link::by_name("m0").unwrap());
        world.within("b", || Announcer::open().unwrap().announce(&mac, &vip).unwrap());
        world.ip(
            "c",
            &format!(
                "neigh replace {} lladdr {} dev cb",
                world.vip(),
                mac.mac.map(|byte| format!("{byte:02x}")).join(":")
            ),
        );
        let key = key(&world, client.local_addr().unwrap().port());
        let probe = TcpSegment {
            key,
            to_client: true,
            seq: SeqNo(1),
            ack: SeqNo(1),
            flags: Flags::ACK,
            window: 1000,
            options: TcpOptions::default(),
            payload: b"x",
        };
        // The client answers a sequence number outside its window by an ACK.
        raw.send(&probe.build().unwrap()).unwrap();
        let mut seen = 0;
        assert!(process::poll_in(tap.fd(), 3000).unwrap(), "no answer, IPv6 {v6}");
        tap.drain(1000, |l3, checksum| {
            let packet = TcpPacket::parse(l3, checksum).unwrap();
            assert_eq!(packet.client_to_server_key(), key);
            seen += 1;
        })
        .unwrap();
        assert!(seen > 0);

        // Packets of a client's bulk data come complete and in order, with unfinished checksums.
        let data = crate::world::pattern_range(0, 60_000);
        client.write_all(&data).unwrap();
        let mut stream: Vec<u8> = Vec::new();
        let mut partial = false;
        let mut begin = None;
        eventually("the bulk data on the tap", || {
            tap.drain(1000, |l3, checksum| {
                partial |= checksum == Checksum::Partial;
                let mut copy = l3.to_vec();
                complete_checksum(&mut copy).unwrap();
                let packet = TcpPacket::parse(&copy, Checksum::Verify).unwrap();
                if packet.payload.is_empty() {
                    return;
                }
                let begin = *begin.get_or_insert(packet.seq);
                if packet.seq == begin.plus(stream.len() as u64) {
                    stream.extend(packet.payload);
                }
            })
            .unwrap();
            // Nobody acknowledges, so only the initial window arrives.
            stream.len() >= 10 * 1000
        });
        assert!(partial);
        assert_eq!(stream, data[..stream.len()]);
        assert_eq!(tap.drops().unwrap(), holdfast_linux::tap::TapDrops::default());
        server.set_nonblocking(true).unwrap();
        assert!(server.read(&mut [0; 10]).is_err());
        drop(server.write(b"x"));
    }
}

/// Late packets of clients are delivered to this host's own stack.
#[test]
fn a_packet_of_the_client_is_delivered_to_the_own_stack_whatever_the_rp_filter() {
    for (v6, rp_filter) in [(false, "0"), (false, "1"), (false, "2"), (true, "0")] {
        let world = World::new(v6);
        world.sysctl("p", "ipv4/conf/all/rp_filter", rp_filter);
        world.sysctl("p", "ipv4/conf/lo/rp_filter", rp_filter);
        world.sysctl("p", "ipv4/conf/m0/rp_filter", rp_filter);
        let service = world.service();
        let (listener, raw, mut tap) = world.within("p", || {
            let services = [Service { address: mapped(service.ip()), port: PORT }];
            (
                TcpListener::bind(service).unwrap(),
                RawSender::open(Some(7)).unwrap(),
                TapSocket::open("m0", &services, 4 << 20).unwrap(),
            )
        });
        let mut client = world.connect();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"abc").unwrap();
        let mut last = Vec::new();
        eventually("the client's bytes on the tap", || {
            tap.drain(100, |l3, _| {
                if l3.ends_with(b"abc") {
                    last = l3.to_vec();
                }
            })
            .unwrap();
            !last.is_empty()
        });
        server.read_exact(&mut [0; 3]).unwrap();
        let packet = TcpPacket::parse(&last, Checksum::Partial).unwrap();
        let next = TcpSegment {
            key: packet.client_to_server_key(),
            to_client: false,
            seq: packet.seq_end(),
            ack: packet.ack,
            flags: Flags::ACK,
            window: packet.window,
            options: TcpOptions { timestamps: packet.options.timestamps, ..Default::default() },
            payload: b"def",
        };
        raw.send(&next.build().unwrap()).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut got = [0; 3];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"def", "IPv6 {v6}, rp_filter {rp_filter}");
    }
}

#[test]
fn descriptors_and_memory_of_another_process() {
    let mut pipe = [0; 2];
    // SAFETY: the array has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let own = process::pidfd_open(std::process::id()).unwrap();
    let twin = process::pidfd_getfd(own.as_fd(), pipe[1]).unwrap();
    assert_ne!(twin.as_raw_fd(), pipe[1]);
    assert!(process::pidfd_getfd(own.as_fd(), 9999).is_err());

    let secret = *b"sixteen bytes ok";
    let mut copy = [0; 16];
    let address = secret.as_ptr() as u64;
    assert_eq!(process::read_memory(std::process::id(), address, &mut copy).unwrap(), 16);
    assert_eq!(copy, secret);
    assert!(process::read_memory(std::process::id(), 0, &mut copy).is_err());

    let bell = process::EventFd::new().unwrap();
    assert!(!process::poll_in(bell.as_fd(), 0).unwrap());
    bell.ring();
    bell.ring();
    assert!(process::poll_in(bell.as_fd(), 0).unwrap());
    assert_eq!(bell.take(), 2);
    assert_eq!(bell.take(), 0);
}

/// How often this thread has waited.
fn waits() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The kernel lets who closes a packet socket wait until no processor looks at it any more: a thread
/// does that.
#[test]
fn nobody_waits_for_the_end_of_a_packet_socket() {
    const SOCKETS: u64 = 20;
    World::new(false).within("b", || {
        let waited = || {
            let taps: Vec<_> = (0..SOCKETS).map(|_| TapSocket::open("m0", &[], 1 << 16)).collect();
            assert!(taps.iter().all(Result::is_ok));
            let before = waits();
            drop(taps);
            waits() - before
        };
        // Who starts threads beside others that start and end waits for this process' memory at
        // times, up to 11 times here. For the sockets it would be once for each, every time.
        let rounds: Vec<u64> = (0..10).map(|_| waited()).collect();
        let least = rounds.iter().min().copied();
        assert!(least < Some(SOCKETS / 2), "{rounds:?} times for {SOCKETS} sockets each");
    });
}
