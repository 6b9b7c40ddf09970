use super::*;
use proptest::prelude::*;

fn encoded(fingerprint: Vec<FingerprintPart<'_>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (version, group, member) = (VERSION, "demo", "a");
    let hash_key = None;
    let (log_version, epoch, speaks) = (1, 1, false);
    Message::Hello { version, log_version, group, member, epoch, speaks, fingerprint, hash_key }
        .encode(&mut bytes);
    bytes
}

fn part(name: &str) -> FingerprintPart<'_> {
    FingerprintPart { kind: FingerprintKind::Library, name, hash: u64::MAX }
}

#[test]
fn a_text_is_cut_between_two_letters() {
    let long = "é".repeat(SAID_BYTES_MAX);
    assert_eq!(clip(&long).len(), SAID_BYTES_MAX);
    assert_eq!(clip(&format!("x{long}")).len(), SAID_BYTES_MAX - 1);
    assert_eq!(clip("short"), "short");
}

#[test]
fn a_hello_carries_its_fingerprint_whole_or_not_at_all() {
    let bytes = encoded(vec![part("libc.so.6"), part("libssl.so.3")]);
    let Ok(Message::Hello { fingerprint, .. }) = Message::decode(&bytes) else {
        panic!("no hello")
    };
    assert_eq!(fingerprint, [part("libc.so.6"), part("libssl.so.3")]);
    for len in 0..bytes.len() {
        assert_eq!(Message::decode(&bytes[..len]), Err(BadMessage), "{len} bytes");
    }
    assert_eq!(Message::decode(&[&bytes[..], &[0]].concat()), Err(BadMessage));
}

#[test]
fn a_fingerprint_without_bounds_is_malformed() {
    let long = "x".repeat(FINGERPRINT_NAME_BYTES_MAX + 1);
    assert!(Message::decode(&encoded(vec![part(&long[1..])])).is_ok());
    assert_eq!(Message::decode(&encoded(vec![part(&long)])), Err(BadMessage));
    assert!(Message::decode(&encoded(vec![part("x"); FINGERPRINT_PARTS_MAX])).is_ok());
    assert_eq!(
        Message::decode(&encoded(vec![part("x"); FINGERPRINT_PARTS_MAX + 1])),
        Err(BadMessage)
    );
}

#[test]
fn unread_bytes_are_bounded() {
    let bytes = vec![7; UNREAD_BYTES_MAX + 1];
    let encoded = |bytes| {
        let mut out = Vec::new();
        Message::Unread { conn: ConnId(1), offset: 5, bytes, last: false }.encode(&mut out);
        out
    };
    assert!(Message::decode(&encoded(&bytes[1..])).is_ok());
    assert_eq!(Message::decode(&encoded(&bytes)), Err(BadMessage));
}

#[test]
fn what_a_daemon_says_is_bounded() {
    let text = "x".repeat(SAID_BYTES_MAX + 1);
    let encoded = |reason| {
        let mut out = Vec::new();
        Message::Says { role: "backup", state: "diverged", reason, remedy: "" }.encode(&mut out);
        out
    };
    assert!(Message::decode(&encoded(&text[1..])).is_ok());
    assert_eq!(Message::decode(&encoded(&text)), Err(BadMessage));
}

fn is_understood(message: &Message<'_>) -> bool {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    Message::decode(&bytes).is_ok_and(|decoded| decoded == *message)
}

#[test]
fn questions_about_flows_are_bounded() {
    let key = ConnKey { server: [1; 16], client: [2; 16], server_port: 3, client_port: 4 };
    for (count, good) in [(0, true), (KEYS_MAX, true), (KEYS_MAX + 1, false)] {
        let keys = vec![key; count];
        assert_eq!(is_understood(&Message::AreAlive { epoch: 1, keys: keys.clone() }), good);
        assert_eq!(is_understood(&Message::NotAlive { epoch: 1, keys }), good);
    }
}

#[test]
fn a_connection_is_read_as_it_is_written() {
    for text in ["10.0.0.1:4242>10.9.0.100:80", "[2001:db8::1]:1>[2001:db8::2]:65535"] {
        assert_eq!(text.parse::<ConnKey>().unwrap().to_string(), text);
    }
    for text in ["", ">", "10.0.0.1:4242", "10.0.0.1>10.9.0.100:80", "a:1>b:2"] {
        assert!(text.parse::<ConnKey>().is_err(), "{text}");
    }
}

#[test]
fn what_a_joiner_gets_is_bounded() {
    let adopted = Adopted {
        conn: None,
        accept: Some(7),
        in_bytes: 1,
        out_bytes: 2,
        acked_bytes: 2,
        eof: false,
        closed: true,
        client_tsval: Some(9),
    };
    for (count, good) in [(0, true), (ADOPTED_MAX, true), (ADOPTED_MAX + 1, false)] {
        assert_eq!(is_understood(&Message::Adopt { conns: vec![adopted; count] }), good);
    }
    let bytes = vec![7; IMAGE_BYTES_MAX + 1];
    assert!(is_understood(&Message::Image { bytes: &bytes[1..] }));
    assert!(!is_understood(&Message::Image { bytes: &bytes }));
}

#[test]
fn announcements_are_bounded() {
    let offer = Offer { address: [1; 16], port: 80, udp: true };
    let announce = |tunnels: usize, services: usize| {
        is_understood(&Message::Announce {
            weight: 1,
            layer2: false,
            tunnels: vec![[3; 16]; tunnels],
            services: vec![offer; services],
        })
    };
    assert!(announce(2, OFFERS_MAX) && announce(0, 0) && announce(1, 3));
    assert!(!announce(3, 1) && !announce(1, OFFERS_MAX + 1) && !announce(3, OFFERS_MAX + 1));
}

#[test]
fn the_story_of_a_takeover_is_bounded() {
    let (long, longest) = ("x".repeat(SAID_BYTES_MAX + 1), "x".repeat(SAID_BYTES_MAX));
    let gave_up = |state, reason| is_understood(&Message::GaveUp { state, reason });
    assert!(gave_up(&longest, &longest) && gave_up("", ""));
    assert!(!gave_up(&long, "") && !gave_up("", &long));
    let took_over = |cause, at| {
        is_understood(&Message::TookOver {
            cause,
            phases_us: [1; 7],
            total_us: 7,
            connections: 1,
            at,
        })
    };
    assert!(took_over(&longest, &longest) && took_over("", ""));
    assert!(!took_over(&long, "") && !took_over("", &long) && !took_over(&long, &long));
}

#[test]
fn what_edges_tell_each_other_is_bounded() {
    let key = ConnKey { server: [1; 16], client: [2; 16], server_port: 3, client_port: 4 };
    let flow = EdgeFlow { key, age_s: 5, lived_s: 6, flags: 7 };
    let flows = |count| Message::Flows { host: "a", flows: vec![flow; count], last: true };
    assert!(is_understood(&flows(FLOWS_MAX)));
    assert!(!is_understood(&flows(FLOWS_MAX + 1)));
    let long = "x".repeat(SAID_BYTES_MAX + 1);
    assert!(!is_understood(&Message::Flows { host: &long, flows: Vec::new(), last: false }));
    assert!(is_understood(&Message::Drains { host: "a", yes: true, stamp: 9 }));
    assert!(!is_understood(&Message::Drains { host: &long, yes: true, stamp: 9 }));
    assert!(is_understood(&Message::Duty { able: true, serves: false, seen: 1 << 40 }));
}

const SECRET: LogKey = LogKey([0xfeed_5eed_0bad_cafe, 0x05ec_2e70_5ec2, 3, 4, 5, 6, 7, 8]);

/// A hello with everything that one can have.
fn full(version: u32, hash_key: Option<LogKey>) -> Message<'static> {
    let fingerprint = vec![part("libc.so.6"), part("libssl.so.3")];
    let (log_version, group, member, epoch, speaks) = (3, "demo", "a", 7, true);
    Message::Hello { version, log_version, group, member, epoch, speaks, fingerprint, hash_key }
}

fn encoded_in(version: u32, message: &Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0xaa];
    message.encode_in(version, &mut bytes);
    assert_eq!(bytes.remove(0), 0xaa, "what was there stays");
    bytes
}

#[test]
fn each_version_of_a_hello_is_understood_in_its_own_conversation_only() {
    for version in [12, 13] {
        assert!(is_understood_version(version));
        // Whatever version its maker had in mind.
        let bytes = encoded_in(version, &full(VERSION, Some(SECRET)));
        assert_eq!(Message::decode_in(version, &bytes), Ok(full(version, Some(SECRET))));
        assert!(Message::decode_in(25 - version, &bytes).is_err(), "{version}");
        for len in 0..bytes.len() {
            assert!(Message::decode_in(version, &bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(Message::decode_in(version, &[&bytes[..], &[0]].concat()).is_err());
    }
    assert!(!is_understood_version(VERSION_OLDEST - 1) && !is_understood_version(VERSION + 1));
}

fn is_understood_version(version: u32) -> bool {
    super::is_understood(version)
}

/// The bytes that a build of version 12 sends and expects.
#[test]
fn version_12_has_not_changed() {
    let hello = [
        &[0, 12, 3][..],
        b"\x04demo\x01a\x07\x01\x02\x01\x09libc.so.6",
        &[0xff; 9],
        b"\x01\x01\x0blibssl.so.3",
        &[0xff; 9],
        b"\x01\x00",
    ]
    .concat();
    assert_eq!(encoded_in(12, &full(VERSION, None)), hello);
    assert_eq!(
        encoded_in(12, &Message::Beat { number: 1, echo: 2, executed: 300 }),
        [1, 1, 2, 0xac, 2]
    );
    assert_eq!(encoded_in(12, &Message::Ask), encoded_in(13, &Message::Ask));
}

#[test]
fn version_12_has_no_short_way() {
    let key = DirectKey([1; crate::direct::KEY_BYTES]);
    for message in [
        Message::Direct { id: 1, key, port: 2 },
        Message::DirectOk { id: 1, port: 2 },
        Message::LogAt { position: 3 },
        Message::FrameAt { number: 1, position: 3, records: b"record" },
        Message::LogHeld { position: 4 },
    ] {
        let bytes = encoded_in(VERSION, &message);
        assert_eq!(Message::decode_in(VERSION, &bytes), Ok(message.clone()));
        assert!(Message::decode_in(12, &bytes).is_err(), "{message:?}");
    }
    assert!(format!("{key:?}").contains("secret"));
}

#[test]
fn a_hello_says_the_version_of_its_conversation() {
    for version in [12, 13] {
        let mut bytes = encoded_in(version, &full(version, None));
        bytes[1] = 25 - bytes[1];
        assert!(Message::decode_in(version, &bytes).is_err());
    }
}

#[test]
fn the_key_of_a_log_is_never_shown() {
    let shown = format!("{:?} {:#?}", full(VERSION, Some(SECRET)), SECRET);
    assert!(shown.contains("secret"), "{shown}");
    for word in SECRET.0 {
        assert!(word < 10 || !shown.contains(&word.to_string()), "{shown}");
    }
}

proptest! {
    /// Whatever is understood is understood again, and the same, and never across a bound.
    #[test]
    fn decoding_is_total(
        kind in 0..60u8,
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        version in VERSION_OLDEST..=VERSION,
    ) {
        for bytes in [&noise[..], &[&[kind][..], &noise].concat()] {
            if let Ok(message) = Message::decode_in(version, bytes) {
                let again = encoded_in(version, &message);
                prop_assert_eq!(Message::decode_in(version, &again), Ok(message));
            }
        }
    }

    /// A hello that is damaged on its way.
    #[test]
    fn a_damaged_hello_is_no_trap(
        at in any::<proptest::sample::Index>(),
        to in any::<u8>(),
        version in VERSION_OLDEST..=VERSION,
        read_as in VERSION_OLDEST..=VERSION,
    ) {
        let mut bytes = encoded_in(version, &full(version, Some(SECRET)));
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(Message::Hello { version: said, .. }) = Message::decode_in(read_as, &bytes) {
            prop_assert_eq!(said, read_as);
        }
    }
}
