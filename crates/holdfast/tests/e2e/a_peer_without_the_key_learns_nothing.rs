//! Attackers who reach the daemons' ports and do not have the group's key, with another key, with
//! noise, and with a recording of a genuine conversation. The service goes on, protected, in the
//! same epoch.

use crate::wire::{Worker, is_ours};
use crate::world;
use holdfast::channel::{Channel, ChannelError, Identity, Kind};
use holdfast::key::{GroupKey, Keyring};
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use holdfast_wire::message::Message;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Port of the edge's daemon.
const EDGE_PORT: u16 = 7700;
/// Port at which the primary waits for its backup.
const PAIR_PORT: u16 = 7701;

/// Most bytes that a daemon may send to a stranger: magic and version.
const CLEAR_BYTES: usize = 8;

/// Time for which a stranger waits, longer than a handshake may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// What each side of each conversation sent: source and destination port, and the bytes by their
/// sequence number.
type Recording = BTreeMap<(u16, u16), BTreeMap<u32, Vec<u8>>>;

#[test]
fn a_peer_without_the_key_learns_nothing() {
    let _limit = world::limit(Duration::from_secs(120));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let recorder = record(&testbed);
    let recipe =
        Recipe::prepare(Program::Redis, testbed.host(Role::Primary), 0).expect("a directory");
    Recipe::prepare(Program::Redis, testbed.host(Role::Backup), 0).expect("a directory");
    let group =
        Group::start(&testbed, &recipe, &GroupOptions::default()).expect("the group protects");
    let before = group.status(Role::Primary).expect("the primary answers");
    let load = world::start(&testbed, &world::counting(4000, 0, None));
    let recorded = recorder.stop();
    let conversations: Vec<Vec<u8>> = recorded.iter().filter_map(said_by_initiator).collect();
    assert!(conversations.len() >= 3, "recorded only {} conversations", conversations.len());
    nothing_readable(&recorded);

    let ends: Vec<SocketAddr> = ["10.9.0.1:7700", "10.9.0.2:7701", "10.9.0.3:7701"]
        .map(|text| text.parse().expect("an address"))
        .to_vec();
    let stranger = Worker::start(testbed.host(Role::Edge), move |_| {
        let mut tried = 0;
        for end in ends {
            for kind in [Kind::Edge, Kind::Pair] {
                tried += u32::from(another_key(end, kind));
            }
            tried += u32::from(said(end, &noise(70_000)));
            tried += u32::from(said(end, b"GET / HTTP/1.1\r\n\r\n"));
            for conversation in &conversations {
                tried += u32::from(said(end, conversation));
            }
        }
        tried
    });
    let tried = stranger.stop();
    assert!(tried >= 10, "only {tried} attempts reached a daemon");
    world::finish(load, &group);
    let after = group.status(Role::Primary).expect("the primary answers");
    assert_eq!(after["state"], "protected", "{after}\n{}", group.log_tails());
    assert_eq!(after["epoch"], before["epoch"]);
    let edge = group.status(Role::Edge).expect("the edge answers");
    assert_eq!(edge["state"], "protected", "{edge}");
}

/// The daemon of a dead server lives on to report that; strangers must not fill its table.
#[test]
fn who_knocks_at_a_primary_whose_server_has_died_is_shown_out() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(
        Program::Redis,
        0,
        &Plan::default(),
        &GroupOptions::default(),
        |testbed, group| {
            group.signal_server(Role::Primary, Signal::KILL).expect("its end");
            world::wait_until("the takeover", || {
                let status = group.status(Role::Backup).unwrap_or_default();
                status["role"] == "primary"
            });
            let stranger = Worker::start(testbed.host(Role::Edge), move |_| {
                let end = SocketAddr::from(([10, 9, 0, 2], PAIR_PORT));
                let knock = |_| TcpStream::connect_timeout(&end, PATIENCE).expect("a daemon");
                let doors: Vec<TcpStream> = (0..20).map(knock).collect();
                let is_shown_out = |mut door: &TcpStream| {
                    door.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                    let mut bytes = Vec::new();
                    let end = door.read_to_end(&mut bytes);
                    end.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true)
                };
                doors.iter().filter(|door| is_shown_out(door)).count()
            });
            assert_eq!(stranger.stop(), 20);
        },
    );
}

/// Tries to be a member with a key of its own. Returns false if nobody listens.
fn another_key(end: SocketAddr, kind: Kind) -> bool {
    let identity = Identity {
        keyring: Keyring::shared(vec![GroupKey::generate().expect("a key")]),
        peers: Vec::new(),
        attempt: 0,
        group: "demo".to_owned(),
        me: "b".to_owned(),
        kind,
    };
    let mut channel = Channel::connect(end, &identity, Instant::now()).expect("a socket");
    // Waits for the handshake, which must never complete.
    channel.send(&Message::Promote { epoch: 99 }).expect("room");
    let until = Instant::now() + PATIENCE;
    loop {
        let turn = channel
            .flush()
            .and_then(|()| channel.recv(|message| panic!("{end} said {message:?}")))
            .and_then(|()| channel.tick(Instant::now()));
        assert!(!channel.is_open(), "{end} opened a channel without the key");
        match turn {
            Ok(()) => assert!(Instant::now() < until, "{end} neither answers nor closes"),
            Err(ChannelError::Io(error)) => {
                return error.kind() != std::io::ErrorKind::ConnectionRefused;
            }
            Err(_) => return true,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends bytes and listens. The daemon may say hello, and answer a replayed hello by one record
/// that proves nothing to anybody without the key. Returns false if nobody listens.
fn said(end: SocketAddr, bytes: &[u8]) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&end, PATIENCE) else { return false };
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    // The daemon may close before everything is sent.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    // The daemon may also leave the stranger waiting.
    let _ = stream.read_to_end(&mut answer);
    let record_max = 2 + 256;
    assert!(answer.len() <= CLEAR_BYTES + record_max, "{end} said {} bytes", answer.len());
    true
}

/// Bytes without any order, the same in every run.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Records the daemons' conversations as they pass the edge, from their first byte.
fn record(testbed: &Testbed) -> Worker<Recording> {
    Worker::start(testbed.host(Role::Edge), |wire| {
        let mut recording = Recording::new();
        while wire.should_go_on() {
            wire.next(|l3, packet| {
                let ports = [packet.source_port, packet.destination_port];
                let daemons = ports.iter().any(|port| [EDGE_PORT, PAIR_PORT].contains(port));
                if daemons && !packet.payload.is_empty() && !is_ours(l3) {
                    let conversation = recording.entry((ports[0], ports[1])).or_default();
                    conversation.entry(packet.seq.0).or_insert_with(|| packet.payload.to_vec());
                }
            });
        }
        recording
    })
}

/// All that one side sent, if it is the side that connected.
fn said_by_initiator((ports, pieces): (&(u16, u16), &BTreeMap<u32, Vec<u8>>)) -> Option<Vec<u8>> {
    if ![EDGE_PORT, PAIR_PORT].contains(&ports.1) {
        return None;
    }
    Some(pieces.values().flatten().copied().collect())
}

/// Checks that no file name or address can be read: the log contains many of them.
fn nothing_readable(recording: &Recording) {
    for pieces in recording.values() {
        let all: Vec<u8> = pieces.values().flatten().copied().collect();
        for word in ["redis", "/proc/", "/usr/lib", "10.9.0."] {
            let found = all.windows(word.len()).any(|window| window == word.as_bytes());
            assert!(!found, "{word} can be read on the wire");
        }
    }
}
