//! Tests of two ends over loopback, and of an attacker between them.

mod keys;

use super::*;
use holdfast_wire::message::{LogKey, VERSION, VERSION_OLDEST};
use std::net::TcpListener;
use std::thread::sleep;

/// The secret with this digit.
fn secret(digit: char) -> GroupKey {
    GroupKey::parse(&digit.to_string().repeat(64)).unwrap()
}

/// Of a group whose hosts share these secrets.
fn shared(digits: &str) -> Keyring {
    Keyring::shared(digits.chars().map(secret).collect())
}

fn identity(me: &str) -> Identity {
    Identity {
        keyring: shared("7"),
        peers: vec![if me == "a" { "b" } else { "a" }.to_owned()],
        attempt: 0,
        group: "demo".to_owned(),
        me: me.to_owned(),
        kind: Kind::Pair,
    }
}

/// Both ends of a loopback connection, before anything was sent.
fn ends(near: &Identity, far: &Identity) -> (Channel, Channel) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = Channel::connect(listener.local_addr().unwrap(), near, Instant::now()).unwrap();
    let far = Channel::accept(listener.accept().unwrap().0, far, Instant::now()).unwrap();
    (near, far)
}

/// As [`ends`], with the version that the first says, and the newest that each of them knows.
fn ends_of(says: u32, newest: (u32, u32)) -> (Channel, Channel) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, now) = (listener.local_addr().unwrap(), Instant::now());
    let mut near = Channel::connect_in(says, at, &identity("a"), now).unwrap();
    let responder = identity("b");
    let handshake = Handshake::new(&responder, Side::Responder, newest.1).unwrap();
    let stage = Stage::Handshaking(Box::new(handshake));
    let stream = listener.accept().unwrap().0;
    stream.set_nonblocking(true).unwrap();
    let mut far = Channel::new(stream, stage, (&responder, newest.1), now).unwrap();
    (near.newest, far.newest) = newest;
    (near, far)
}

/// Drives both ends until `done` holds or one fails; returns their results.
fn drive(
    near: &mut Channel,
    far: &mut Channel,
    mut done: impl FnMut(&Channel, &Channel) -> bool,
) -> (Result<(), ChannelError>, Result<(), ChannelError>) {
    for _ in 0..2000 {
        let a = near.flush().and_then(|()| near.handshake());
        let b = far.flush().and_then(|()| far.handshake());
        if a.is_err() || b.is_err() {
            // The other end may need a moment to learn of the failure.
            let mut results = (a, b);
            for _ in 0..3 {
                sleep(Duration::from_millis(5));
                results = (
                    results.0.and_then(|()| near.handshake()),
                    results.1.and_then(|()| far.handshake()),
                );
            }
            return results;
        }
        if done(near, far) {
            return (Ok(()), Ok(()));
        }
        sleep(Duration::from_micros(100));
    }
    panic!("neither open nor failed");
}

fn open_pair() -> (Channel, Channel) {
    let (mut near, mut far) = ends(&identity("a"), &identity("b"));
    let (a, b) = drive(&mut near, &mut far, |n, f| n.is_open() && f.is_open());
    a.unwrap();
    b.unwrap();
    (near, far)
}

/// Receives until `count` messages have arrived; returns them as text.
fn receive(channel: &mut Channel, count: usize) -> Result<Vec<String>, ChannelError> {
    let mut got = Vec::new();
    let start = Instant::now();
    while got.len() < count && start.elapsed() < Duration::from_secs(10) {
        channel.recv(|m| got.push(format!("{m:?}")))?;
    }
    Ok(got)
}

fn beat(number: u64) -> Message<'static> {
    Message::Beat { number, echo: 0, executed: 0 }
}

#[test]
fn messages_arrive_in_order_and_whole() {
    let (mut near, mut far) = open_pair();
    assert_eq!((near.peer(), far.peer()), ("b", "a"));
    for number in 0..100 {
        near.send(&beat(number)).unwrap();
    }
    near.flush().unwrap();
    let expected: Vec<String> = (0..100).map(|n| format!("{:?}", beat(n))).collect();
    assert_eq!(receive(&mut far, 100).unwrap(), expected);
    far.send(&Message::Ask).unwrap();
    far.flush().unwrap();
    assert_eq!(receive(&mut near, 1).unwrap(), ["Ask"]);
}

#[test]
fn a_message_longer_than_a_record_arrives() {
    let (mut near, mut far) = open_pair();
    let records: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
    near.send(&Message::Frame { number: 1, records: &records }).unwrap();
    let mut arrived = false;
    for _ in 0..10_000 {
        near.flush().unwrap();
        far.recv(|m| {
            assert_eq!(m, Message::Frame { number: 1, records: &records });
            arrived = true;
        })
        .unwrap();
        if arrived {
            return;
        }
    }
    panic!("never arrived");
}

#[test]
fn messages_wait_for_the_handshake() {
    let (mut near, mut far) = ends(&identity("a"), &identity("b"));
    near.send(&Message::Ask).unwrap();
    let (a, b) = drive(&mut near, &mut far, |n, f| n.is_open() && f.is_open());
    a.and(b).unwrap();
    near.flush().unwrap();
    assert_eq!(receive(&mut far, 1).unwrap(), ["Ask"]);
}

#[test]
fn what_was_sent_before_the_end_arrives_before_the_error() {
    let (mut near, mut far) = open_pair();
    near.send(&Message::Ask).unwrap();
    near.flush().unwrap();
    drop(near);
    sleep(Duration::from_millis(20));
    let mut got = Vec::new();
    let mut result = Ok(());
    for _ in 0..3 {
        result = result.and_then(|()| far.recv(|m| got.push(format!("{m:?}"))));
    }
    assert_eq!(got, ["Ask"]);
    assert!(matches!(result, Err(ChannelError::Closed)), "{result:?}");
    assert!(matches!(far.send(&Message::Ask), Err(ChannelError::Closed)));
}

#[test]
fn another_key_group_or_role_is_refused() {
    let others = [
        Identity { keyring: shared("8"), ..identity("b") },
        Identity { group: "other".to_owned(), ..identity("b") },
        Identity { kind: Kind::Edge, ..identity("b") },
    ];
    for other in others {
        let (mut near, mut far) = ends(&identity("a"), &other);
        let (a, b) = drive(&mut near, &mut far, |_, _| false);
        assert!(matches!(b, Err(ChannelError::WrongKey)), "{b:?}");
        assert!(a.is_err() && !near.is_open() && !far.is_open());
    }
}

/// The error and the bytes by which an accepting channel answers these bytes of a raw client.
fn answer_to(bytes: &[u8]) -> (ChannelError, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut raw = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    raw.write_all(bytes).unwrap();
    raw.shutdown(std::net::Shutdown::Write).unwrap();
    let mut far =
        Channel::accept(listener.accept().unwrap().0, &identity("b"), Instant::now()).unwrap();
    let error = (0..1000)
        .find_map(|_| {
            sleep(Duration::from_micros(100));
            far.recv(|_| panic!("nothing may be delivered")).err()
        })
        .expect("never refused");
    let mut reply = Vec::new();
    let _ = raw.read_to_end(&mut reply);
    (error, reply)
}

#[test]
fn another_program_or_version_is_named() {
    assert!(matches!(answer_to(b"GET / HTTP/1.1\r\n\r\n").0, ChannelError::OtherProgram));
    let (error, reply) = answer_to(b"HFCH\x63\0\0\0");
    assert!(matches!(error, ChannelError::OtherVersion { theirs: 0x63, .. }));
    assert_eq!(&reply[..4], b"HFCH", "the peer learns our version");
    assert!(matches!(answer_to(b"HF").0, ChannelError::Truncated));
    let garbage = [&b"HFCH"[..], &VERSION.to_le_bytes(), &[0xff, 0xff]].concat();
    assert!(matches!(answer_to(&garbage).0, ChannelError::WrongKey));
}

#[test]
fn a_silent_peer_is_given_up() {
    let (mut near, _far) = ends(&identity("a"), &identity("b"));
    assert!(near.tick(Instant::now()).is_ok());
    assert!(matches!(
        near.tick(Instant::now() + HANDSHAKE_LIMIT),
        Err(ChannelError::HandshakeTimeout)
    ));
}

#[test]
fn a_recorded_handshake_does_not_open_a_channel() {
    let mut recorded = Vec::new();
    Handshake::new(&identity("a"), Side::Initiator, VERSION).unwrap().begin(&mut recorded).unwrap();
    // The attacker also repeats the empty record that followed, which cannot have been made with
    // the keys of this connection.
    recorded.extend_from_slice(&[16, 0]);
    recorded.extend_from_slice(&[0x5a; 16]);
    assert!(matches!(answer_to(&recorded).0, ChannelError::Tampered));
}

/// Sends `count` beats as separate records, and lets `attack` change the bytes on their way.
fn attacked(count: u64, attack: impl FnOnce(&mut Vec<Vec<u8>>)) -> (Vec<String>, ChannelError) {
    let (mut near, mut far) = open_pair();
    let mut records = Vec::new();
    for number in 0..count {
        near.send(&beat(number)).unwrap();
        near.seal().unwrap();
        records.push(std::mem::take(&mut near.out));
    }
    attack(&mut records);
    near.out = records.concat();
    near.flush().unwrap();
    drop(near);
    let mut got = Vec::new();
    let error = (0..1000)
        .find_map(|_| {
            sleep(Duration::from_micros(100));
            far.recv(|m| got.push(format!("{m:?}"))).err()
        })
        .expect("never closed");
    (got, error)
}

#[test]
fn corrupt_reordered_and_repeated_records_close_the_channel() {
    let (got, error) = attacked(3, |records| records[1][5] ^= 1);
    assert!(got.len() == 1 && matches!(error, ChannelError::Tampered), "{error:?}");
    let (got, error) = attacked(3, |records| records.swap(1, 2));
    assert!(got.len() == 1 && matches!(error, ChannelError::Tampered), "{error:?}");
    let (got, error) = attacked(3, |records| records.push(records[2].clone()));
    assert!(got.len() == 3 && matches!(error, ChannelError::Tampered), "{error:?}");
    let (got, error) = attacked(3, |records| {
        records.remove(1);
    });
    assert!(got.len() == 1 && matches!(error, ChannelError::Tampered), "{error:?}");
    let (got, error) = attacked(3, |records| records[2].truncate(9));
    assert!(got.len() == 2 && matches!(error, ChannelError::Truncated), "{error:?}");
    let (got, error) = attacked(3, |_| {});
    assert!(got.len() == 3 && matches!(error, ChannelError::Closed), "{error:?}");
}

/// A stranger says that 64 KiB follow; what the peer says then would have to fill them.
#[test]
fn a_forged_length_holds_nothing_up_for_long() {
    let (mut near, mut far) = open_pair();
    near.out.extend_from_slice(&[0xff; 2]);
    let begun = Instant::now();
    let error = (0..).find_map(|number| {
        near.send(&beat(number)).unwrap();
        near.flush().unwrap();
        sleep(Duration::from_millis(20));
        assert!(begun.elapsed() < Duration::from_secs(20), "it waits for ever");
        far.recv(|message| panic!("{message:?}")).err()
    });
    assert!(matches!(error, Some(ChannelError::Unfinished)), "{error:?}");
}

#[test]
fn a_giant_or_malformed_message_closes_the_channel() {
    for (bytes, giant) in [(&[0xff; 8][..], true), (&[2, 0, 0, 0, 0xff, 0xff][..], false)] {
        let (mut near, mut far) = open_pair();
        near.plain.extend_from_slice(bytes);
        near.flush().unwrap();
        let error = receive(&mut far, 1).unwrap_err();
        match error {
            ChannelError::GiantMessage { .. } => assert!(giant),
            ChannelError::BadMessage(_) => assert!(!giant),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_message_over_the_limit_is_refused_and_harms_nothing() {
    let (mut near, mut far) = open_pair();
    let records = vec![0; MESSAGE_MAX + 1];
    let result = near.send(&Message::Frame { number: 1, records: &records });
    assert!(matches!(result, Err(ChannelError::MessageTooLong { .. })));
    near.send(&Message::Ask).unwrap();
    near.flush().unwrap();
    assert_eq!(receive(&mut far, 1).unwrap(), ["Ask"]);
}

#[test]
fn a_peer_that_does_not_read_meets_the_limit() {
    let (mut near, _far) = open_pair();
    near.out.resize(BACKLOG_BYTES_MAX, 0);
    assert!(matches!(near.send(&Message::Ask), Err(ChannelError::Backlog)));
    // There must be no gap: later messages would be taken for those that were dropped.
    assert!(matches!(near.send(&Message::Ask), Err(ChannelError::Closed)));
    assert!(near.recv(|_| ()).is_err());
}

#[test]
fn a_listener_hands_over_open_channels_only() {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap(), identity("b")).unwrap();
    let address = listener.local_addr().unwrap();
    let mut liar = TcpStream::connect(address).unwrap();
    liar.write_all(b"hello").unwrap();
    let mut near = Channel::connect(address, &identity("a"), Instant::now()).unwrap();
    near.send(&Message::Ask).unwrap();
    let mut taken = None;
    for _ in 0..2000 {
        let _ = near.handshake();
        near.flush().unwrap();
        if let Ok(Some(channel)) = listener.accept(Instant::now()) {
            taken = Some(channel);
            break;
        }
        sleep(Duration::from_micros(100));
    }
    let mut far = taken.expect("never opened");
    assert_eq!((far.peer(), listener.refused()), ("a", 1));
    near.flush().unwrap();
    assert_eq!(receive(&mut far, 1).unwrap(), ["Ask"]);
}

/// Silent connections to `listener`, from addresses of this host.
fn strangers(listener: &Listener, from: impl Iterator<Item = u8>) -> Vec<TcpStream> {
    let to = listener.local_addr().unwrap();
    let connect = |last: u8| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        let from: SocketAddr = format!("127.0.1.{last}:0").parse().unwrap();
        socket.bind(&from.into()).unwrap();
        socket.connect(&to.into()).unwrap();
        socket.into()
    };
    from.map(connect).collect()
}

/// Lets both take turns until the channel is open; returns the number of turns.
fn turns_until_open(listener: &mut Listener, near: &mut Channel) -> Option<usize> {
    (0..2000).find(|_| {
        let _ = near.flush().and_then(|()| near.handshake());
        sleep(Duration::from_micros(100));
        matches!(listener.accept(Instant::now()), Ok(Some(_)))
    })
}

#[test]
fn silent_strangers_keep_nobody_out() {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap(), identity("b")).unwrap();
    let address = listener.local_addr().unwrap();
    // Strangers come from one address, and from many.
    let mut all = strangers(&listener, std::iter::repeat_n(7, PENDING_PER_ADDRESS_MAX + 3));
    assert!(listener.accept(Instant::now()).unwrap().is_none());
    assert_eq!(listener.refused(), 3, "they push each other out");
    all.extend(strangers(&listener, (0..PENDING_MAX as u8 + 5).map(|i| 10 + i)));
    for round in 0..3 {
        let mut near = Channel::connect(address, &identity("a"), Instant::now()).unwrap();
        assert!(turns_until_open(&mut listener, &mut near).is_some(), "round {round}");
        all.extend(strangers(&listener, (0..PENDING_MAX as u8 + 5).map(|i| 10 + i)));
    }
}

#[test]
fn strangers_do_not_take_the_place_of_a_member() {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap(), identity("b")).unwrap();
    listener.prefer(["127.0.0.1".parse().unwrap()]);
    let address = listener.local_addr().unwrap();
    // The member's first bytes arrive slowly.
    let mut near = Channel::connect(address, &identity("a"), Instant::now()).unwrap();
    assert!(listener.accept(Instant::now()).unwrap().is_none());
    // The kernel's queue cannot hold all of them.
    let mut all = Vec::new();
    for first in (10..10 + 3 * PENDING_MAX as u8).step_by(32) {
        all.extend(strangers(&listener, first..first + 32));
        let until = all.len().saturating_sub(PENDING_MAX - 1) as u64;
        while listener.refused() < until {
            assert!(listener.accept(Instant::now()).unwrap().is_none());
        }
    }
    assert!(turns_until_open(&mut listener, &mut near).is_some());
}

#[test]
fn strangers_cost_a_line_a_second() {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap(), identity("b")).unwrap();
    let address = listener.local_addr().unwrap();
    let now = Instant::now();
    let mut lines = Vec::new();
    for round in 0..40 {
        let mut liar = TcpStream::connect(address).unwrap();
        liar.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        while listener.refused() <= round {
            // All rounds are in one second, and the last one in the next.
            let at = if round < 39 { now } else { now + Duration::from_secs(1) };
            lines.extend(listener.accept(at).err().map(|line| line.to_string()));
            sleep(Duration::from_micros(100));
        }
        let mut answer = Vec::new();
        let _ = liar.read_to_end(&mut answer);
        assert!(answer.is_empty(), "a stranger is told nothing");
    }
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("127.0.0.1") && lines[1].contains("38 more"), "{lines:?}");
}

#[test]
fn a_peer_without_the_key_is_told_by_its_own_end() {
    let (mut near, mut far) =
        ends(&identity("a"), &Identity { keyring: shared("8"), ..identity("b") });
    let (a, b) = drive(&mut near, &mut far, |_, _| false);
    assert!(matches!(b, Err(ChannelError::WrongKey)), "{b:?}");
    assert!(matches!(a, Err(ChannelError::NotWelcome)), "{a:?}");
}

#[test]
fn a_handshake_that_takes_too_long_is_given_up() {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap(), identity("b")).unwrap();
    let all = strangers(&listener, 10..20);
    let now = Instant::now();
    while listener.pending() < all.len() {
        assert!(listener.accept(now).unwrap().is_none());
    }
    assert!(listener.deadline().is_some());
    assert!(matches!(
        listener.accept(now + HANDSHAKE_LIMIT),
        Err(ChannelError::Refused { unsaid: 0, .. })
    ));
    assert_eq!((listener.refused() as usize, listener.pending()), (all.len(), 0));
}

#[test]
fn nobody_listening_is_an_error() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = match Channel::connect(free, &identity("a"), Instant::now()) {
        Err(error) => Some(error),
        Ok(mut near) => (0..1000).find_map(|_| {
            sleep(Duration::from_micros(100));
            near.flush().err()
        }),
    };
    assert!(matches!(refused, Some(ChannelError::Io(_))));
}

/// A hello with a key, as the other end gets it.
fn hello_between(near: &mut Channel, far: &mut Channel) -> String {
    let hello = Message::Hello {
        version: 0,
        log_version: 3,
        group: "demo",
        member: "a",
        epoch: 1,
        speaks: true,
        fingerprint: Vec::new(),
        hash_key: Some(LogKey([1; 8])),
    };
    near.send(&hello).unwrap();
    near.flush().unwrap();
    receive(far, 1).unwrap().remove(0)
}

/// Of two releases the older one's version is spoken, whoever connects.
#[test]
fn neighbouring_releases_speak_the_older_ones_version() {
    const OLD: u32 = VERSION_OLDEST;
    for (says, newest) in
        [(VERSION, (VERSION, VERSION)), (OLD, (OLD, VERSION)), (OLD, (VERSION, OLD))]
    {
        let (mut near, mut far) = ends_of(says, newest);
        let (a, b) = drive(&mut near, &mut far, |n, f| n.is_open() && f.is_open());
        a.and(b).unwrap();
        assert_eq!((near.version(), far.version()), (says, says));
        for said in [hello_between(&mut near, &mut far), hello_between(&mut far, &mut near)] {
            assert!(said.contains(&format!("version: {says},")), "{said}");
            assert!(said.contains("LogKey"), "{said}");
        }
    }
}

/// Who was told a version is told it by its own end, and so is who speaks one that is too old.
#[test]
fn other_versions_are_refused_with_the_own_one() {
    let theirs = |error: &ChannelError| match error {
        ChannelError::OtherVersion { ours, theirs } => (*ours, *theirs),
        other => panic!("{other:?}"),
    };
    for (says, newest) in [(VERSION, VERSION_OLDEST), (VERSION_OLDEST - 1, VERSION)] {
        let (mut near, mut far) = ends_of(says, (says, newest));
        let (a, b) = drive(&mut near, &mut far, |_, _| false);
        assert_eq!(theirs(&a.unwrap_err()), (says, newest));
        let refused = b.unwrap_err();
        assert_eq!(theirs(&refused), (newest, says));
        let (reason, _) = refused.distrust("b").expect("a reason");
        assert!(reason.contains(&format!("`b` speaks version {says}, this host {newest}")));
    }
}

/// Somebody on the way has answered in the place of a new release.
#[test]
fn two_new_ends_are_not_talked_down() {
    let (mut near, mut far) = ends_of(VERSION_OLDEST, (VERSION, VERSION));
    let refused = (0..2000).find_map(|_| {
        let _ = far.flush().and_then(|()| far.handshake());
        sleep(Duration::from_micros(100));
        near.flush().and_then(|()| near.recv(|m| panic!("{m:?}"))).err()
    });
    assert!(matches!(refused, Some(ChannelError::TalkedDown { version: VERSION_OLDEST })));
    assert!(matches!(near.send(&Message::Ask), Err(ChannelError::Closed)));
}

/// What would hide that one: the records are numbered.
#[test]
fn the_warning_cannot_be_taken_out() {
    let (mut near, mut far) = ends_of(VERSION_OLDEST, (VERSION, VERSION));
    let open =
        drive(&mut near, &mut far, |n, f| matches!(n.stage, Stage::Open { .. }) && f.is_open());
    open.0.and(open.1).unwrap();
    // It has come together with the answer; the attacker lets only the next one through.
    far.send(&Message::Ask).unwrap();
    far.flush().unwrap();
    sleep(Duration::from_millis(20));
    (near.raw_start, near.raw_end) = (0, 0);
    let refused = (0..1000).find_map(|_| {
        sleep(Duration::from_micros(100));
        near.recv(|m| panic!("{m:?}")).err()
    });
    assert!(matches!(refused, Some(ChannelError::Tampered)), "{refused:?}");
}

/// The first of two preambles is in clear. One that was changed on its way to the other end does
/// not open anything, since it is in the keys.
#[test]
fn a_preamble_that_was_changed_on_its_way_opens_nothing() {
    let mut first = Vec::new();
    Handshake::new(&identity("a"), Side::Initiator, VERSION).unwrap().begin(&mut first).unwrap();
    first[4] = VERSION_OLDEST as u8;
    assert!(matches!(answer_to(&first).0, ChannelError::WrongKey));
}
