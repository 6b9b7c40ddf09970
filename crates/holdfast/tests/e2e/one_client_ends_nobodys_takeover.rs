//! A client that lies about its own connection harms only itself. It sends an RST that its server's
//! kernel must not believe (RFC 5961 §3.2), falls silent, and when the backup probes it,
//! acknowledges what nobody ever sent. All other connections survive the takeover with every byte
//! right.

use crate::client::{Redis, on_client, service};
use crate::wire::{Forger, Listener, Worker, is_ours};
use crate::world;
use holdfast_lab::load::{Action, Group, Spec, Workload};
use holdfast_lab::testbed::ours::GroupOptions;
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Host, Role};
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment};
use holdfast_wire::seq::SeqNo;
use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const LIAR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 8, 0, 2)), 21_001);
/// Bytes by which it acknowledges more than was sent.
const TOO_MUCH: u64 = 1000;
const LIE_EVERY: Duration = Duration::from_millis(2);
/// Time after which the edge has forgotten a flow that is over, which it does after a second of
/// silence.
const SILENCE: Duration = Duration::from_millis(1500);

fn own(key: ConnKey, seq: SeqNo, ack: SeqNo, flags: Flags) -> TcpSegment<'static> {
    let options = TcpOptions::default();
    TcpSegment { key, to_client: false, seq, ack, flags, window: 500, options, payload: &[] }
}

/// State of the liar's connection, from its own last packet.
fn last_ack(wire: &Listener) -> Option<(ConnKey, SeqNo, SeqNo)> {
    let seen = wire.next(|l3, packet| {
        let its = packet.source_port == LIAR.port() && packet.flags.has(Flags::ACK) && !is_ours(l3);
        its.then(|| (packet.client_to_server_key(), packet.seq_end(), packet.ack))
    });
    seen.flatten()
}

/// Acknowledges too much, so often that the backup's probe is answered at once.
fn lie(wire: &Listener, (key, seq, ack): (ConnKey, SeqNo, SeqNo)) -> u32 {
    let forger = Forger::open(None);
    let claim = own(key, seq, ack.plus(TOO_MUCH), Flags::ACK).build().expect("a packet");
    let mut lies = 0;
    while wire.should_go_on() {
        lies += u32::from(forger.send(claim.clone()));
        std::thread::sleep(LIE_EVERY);
    }
    lies
}

/// Keeps the client's own kernel from saying more about the liar's connection.
fn silence_kernel(host: &Host) {
    let port = LIAR.port().to_string();
    let words = ["rule", "add", "pref", "1", "ipproto", "tcp", "sport", &port, "blackhole"];
    let mut ip = Command::new("ip");
    let status = ip.args(["-n", host.namespace()]).args(words).status();
    assert!(status.expect("ip starts").success());
}

fn liars_connection() -> Redis {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&LIAR.into()).expect("the port is free");
    socket.connect(&service(Program::Redis.port()).into()).expect("a connection");
    let mut redis = Redis::of(TcpStream::from(socket)).expect("timeouts");
    redis.ping();
    redis
}

#[test]
fn one_client_ends_nobodys_takeover() {
    let _limit = world::limit(Duration::from_secs(60));
    let options = GroupOptions { heartbeat_ms: Some(150), ..GroupOptions::default() };
    world::with_redis_and(&options, |testbed, group| {
        let client = testbed.host(Role::Client);
        let is_seen = Arc::new(AtomicBool::new(false));
        let sees = Arc::clone(&is_seen);
        let numbers = Worker::start(client, move |wire| {
            let mut last = None;
            while wire.should_go_on() {
                last = last_ack(wire).or(last);
                sees.store(last.is_some(), Relaxed);
            }
            last
        });
        let mut liar = on_client(testbed, liars_connection);
        while !is_seen.load(Relaxed) {
            liar.ping();
        }
        std::thread::sleep(Duration::from_millis(300));
        let at = numbers.stop().expect("its packets were seen");
        silence_kernel(client);
        let (key, seq, ack) = at;
        let reset = own(key, seq.plus(1), ack, Flags::RST | Flags::ACK);
        on_client(testbed, || {
            assert!(Forger::open(None).send(reset.build().expect("a packet")));
        });
        std::thread::sleep(SILENCE);
        let known = group.status(Role::Edge).expect("the edge answers")["connections"].clone();
        assert_eq!(known, 1, "the edge has forgotten the flow");
        let liars = Worker::start(client, move |wire| lie(wire, at));
        let server = group.server_pid(Role::Primary).expect("a server");
        let counting = world::counting(1000, 500, Some(vec![(0, Action::Kill(server))]));
        let port = Program::Redis.port();
        let groups =
            vec![Group::usual(Workload::Incr, 10, port), Group::usual(Workload::Shared, 10, port)];
        let run = world::start(testbed, &Spec { groups, ..counting });
        world::finish(run, group);
        assert!(liars.stop() > 100, "too few lies to mean anything");
        let status = group.status(Role::Backup).expect("the survivor answers");
        assert!(status["last_takeover"].is_object(), "no takeover took place: {status}");
        drop(liar);
    });
}
