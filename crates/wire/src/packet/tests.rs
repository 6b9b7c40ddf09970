use super::*;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

/// A SYN as recorded on a wire (client 10.0.0.2:40000 to 10.9.0.100:7000).
fn syn() -> Vec<u8> {
    let mut options = TcpOptions {
        mss: Some(1460),
        wscale: Some(7),
        sack_permitted: true,
        timestamps: Some((5, 0)),
        ..TcpOptions::default()
    };
    options.sack = SackBlocks::default();
    TcpSegment {
        key: key_v4(),
        to_client: false,
        seq: SeqNo(1),
        ack: SeqNo(0),
        flags: Flags::SYN,
        window: 64240,
        options,
        payload: &[],
    }
    .build()
    .unwrap()
}

fn key_v4() -> ConnKey {
    ConnKey {
        server: map_ipv4([10, 9, 0, 100]),
        client: map_ipv4([10, 0, 0, 2]),
        server_port: 7000,
        client_port: 40000,
    }
}

#[test]
fn a_syn_is_twenty_bytes_of_options() {
    let bytes = syn();
    assert_eq!(bytes.len(), 60);
    let packet = TcpPacket::parse(&bytes, Checksum::Verify).unwrap();
    assert_eq!(packet.client_to_server_key(), key_v4());
    assert_eq!(packet.options.mss, Some(1460));
    assert_eq!(packet.seq_end(), SeqNo(2));
}

#[test]
fn refusals() {
    let parse = |bytes: &[u8]| TcpPacket::parse(bytes, Checksum::Verify).unwrap_err();
    let changed = |at: usize, value: u8| {
        let mut bytes = syn();
        bytes[at] = value;
        parse(&bytes)
    };
    assert_eq!(parse(&[]), PacketError::Truncated);
    assert_eq!(parse(&syn()[..59]), PacketError::Truncated);
    assert_eq!(changed(0, 0x55), PacketError::Version);
    assert_eq!(changed(0, 0x44), PacketError::HeaderLength);
    assert_eq!(changed(6, 0x20), PacketError::Fragment);
    assert_eq!(changed(7, 1), PacketError::Fragment);
    assert_eq!(changed(9, 17), PacketError::Protocol(17));
    assert_eq!(changed(32, 0x40), PacketError::DataOffset);
    assert_eq!(changed(32, 0xf0), PacketError::DataOffset);
    assert_eq!(changed(33, 0x12), PacketError::Checksum);
    assert_eq!(changed(10, 0), PacketError::HeaderChecksum);
    // A total length of 0 means "too long to say" only where it could not be said.
    assert_eq!(changed(3, 0), PacketError::Truncated);

    let mut v6 = vec![0; 60];
    v6[0] = 0x60;
    v6[5] = 20;
    // A hop-by-hop header precedes the TCP header.
    assert_eq!(parse(&v6), PacketError::Protocol(0));
    v6[6] = 6;
    v6[8..24].copy_from_slice(&map_ipv4([1, 2, 3, 4]));
    assert_eq!(parse(&v6), PacketError::MappedAddress);
    v6[5] = 0;
    v6[8..24].fill(7);
    assert_eq!(parse(&v6), PacketError::Truncated);
}

#[test]
fn padding_is_ignored_and_a_length_of_zero_is_that_of_a_giant() {
    let mut bytes = syn();
    bytes.extend([9; 6]);
    assert!(TcpPacket::parse(&bytes, Checksum::Verify).unwrap().payload.is_empty());
    for (v6, headers) in [(false, 40), (true, 60)] {
        let end = |last: u8| if v6 { [last; 16] } else { map_ipv4([10, 0, 0, last]) };
        let mut giant = TcpSegment {
            key: ConnKey { server: end(1), client: end(2), ..key_v4() },
            to_client: false,
            seq: SeqNo(1),
            ack: SeqNo(2),
            flags: Flags::ACK,
            window: 9,
            options: TcpOptions::default(),
            payload: &[],
        }
        .build()
        .unwrap();
        giant.resize(70_000, 7);
        giant[if v6 { 4..6 } else { 2..4 }].fill(0);
        complete_header(&mut giant);
        let packet = TcpPacket::parse(&giant, Checksum::Partial).unwrap();
        assert_eq!(packet.payload.len(), 70_000 - headers);
        assert_eq!(complete_checksum(&mut giant), Err(PacketError::TooLong));
    }
}

/// Writes the correct checksum into an IPv4 header.
fn complete_header(bytes: &mut [u8]) {
    let len = bytes.first().map_or(0, |byte| usize::from(byte & 0x0f) * 4);
    if bytes.len() >= len && len >= IPV4_HEADER && bytes[0] >> 4 == 4 {
        bytes[10..12].fill(0);
        let sum = internet_checksum(&bytes[..len]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

#[test]
fn ipv4_options_are_skipped() {
    let mut bytes = syn();
    bytes[0] = 0x46;
    bytes[3] += 4;
    bytes.splice(20..20, [1, 1, 1, 0]);
    complete_checksum(&mut bytes).unwrap();
    let packet = TcpPacket::parse(&bytes, Checksum::Verify).unwrap();
    assert_eq!(packet.client_to_server_key(), key_v4());
}

#[test]
fn special_options_are_noticed() {
    let options = TcpOptions::parse(&[1, 30, 4, 0, 0, 34, 2, 19, 3, 0, 29, 4, 0, 0]);
    assert!(options.mptcp && options.fast_open && options.md5 && options.ao);
    assert!(TcpOptions::parse(&[254, 4, 0xf9, 0x89]).fast_open);
    assert!(!TcpOptions::parse(&[254, 4, 0, 0]).fast_open);
}

#[test]
fn the_blocks_of_a_sack_are_those_on_the_wire() {
    let block = |left: u8| [0, 0, 1, left, 0, 0, 2, left];
    let sack =
        |bytes: &[u8]| TcpOptions::parse(&[&[5, 2 + bytes.len() as u8], bytes].concat()).sack;
    let two = sack(&[block(1), block(9)].concat());
    assert_eq!(two.as_slice(), [(SeqNo(257), SeqNo(513)), (SeqNo(265), SeqNo(521))]);
    // An option whose length is no whole number of blocks is ignored.
    assert!(sack(&[&block(1)[..], &[0; 4]].concat()).as_slice().is_empty());
    let mut five = SackBlocks::default();
    (0..5).for_each(|n| five.push(SeqNo(n), SeqNo(n + 1)));
    assert_eq!((five.as_slice().len(), five.as_slice()[3]), (4, (SeqNo(3), SeqNo(4))));
}

#[test]
fn as_many_blocks_are_sent_as_fit_beside_the_timestamps() {
    let sent = |timestamps| {
        let mut sack = SackBlocks::default();
        (0..4).for_each(|n| sack.push(SeqNo(10 * n), SeqNo(10 * n + 5)));
        let mut bytes = Vec::new();
        TcpOptions { timestamps, sack, ..TcpOptions::default() }.emit(&mut bytes);
        assert!(bytes.len() <= 40 && bytes.len() % 4 == 0);
        TcpOptions::parse(&bytes).sack.as_slice().len()
    };
    assert_eq!((sent(None), sent(Some((1, 2)))), (4, 3));
}

#[test]
fn timestamps_of_another_length_are_none() {
    let stamps = |bytes: &[u8]| TcpOptions::parse(&[&[8, 2 + bytes.len() as u8], bytes].concat());
    assert_eq!(stamps(&[0, 0, 0, 1, 0, 0, 0, 2]).timestamps, Some((1, 2)));
    for other in [4, 7, 9, 12] {
        assert_eq!(stamps(&[1; 16][..other]).timestamps, None);
    }
}

/// A segment from the client with this payload and these flags.
fn segment(v6: bool, flags: Flags, payload: &[u8]) -> Result<Vec<u8>, PacketError> {
    let end = |last: u8| if v6 { [last; 16] } else { map_ipv4([10, 0, 0, last]) };
    let key = ConnKey { server: end(1), client: end(2), ..key_v4() };
    let (seq, ack, window) = (SeqNo(100), SeqNo(2), 9);
    let options = TcpOptions::default();
    TcpSegment { key, to_client: false, seq, ack, flags, window, options, payload }.build()
}

#[test]
fn syn_and_fin_take_a_number_each_beside_the_payload() {
    for (flags, payload, len) in [
        (Flags::ACK, &b""[..], 0),
        (Flags::ACK, b"four", 4),
        (Flags::SYN, b"", 1),
        (Flags::FIN | Flags::ACK, b"four", 5),
        (Flags::SYN | Flags::FIN, b"four", 6),
    ] {
        let bytes = segment(false, flags, payload).unwrap();
        let packet = TcpPacket::parse(&bytes, Checksum::Verify).unwrap();
        assert_eq!((packet.seq_len(), packet.seq_end()), (len, SeqNo(100 + len as u32)));
    }
    assert_eq!(Flags::ACK | Flags::FIN | Flags::ACK, Flags(0x11));
}

#[test]
fn the_longest_payload_fits_both_versions_and_no_longer_one() {
    let longest = vec![7; build::PAYLOAD_MAX + 1];
    for v6 in [false, true] {
        let bytes = segment(v6, Flags::ACK, &longest[1..]).unwrap();
        let packet = TcpPacket::parse(&bytes, Checksum::Verify).unwrap();
        assert_eq!(packet.payload, &longest[1..]);
        assert_eq!(segment(v6, Flags::ACK, &longest), Err(PacketError::TooLong));
    }
    // With all options it fills an IPv4 packet.
    assert_eq!(build::PAYLOAD_MAX + 20 + 20 + 40, 65_535);
}

#[test]
fn a_length_of_zero_is_a_giants_only_where_16_bits_cannot_say_it() {
    for (v6, headers) in [(false, 0), (true, 40)] {
        for (len, is_giant) in [(65_535, false), (65_536, true)] {
            let mut bytes = segment(v6, Flags::ACK, b"").unwrap();
            bytes.resize(headers + len, 7);
            bytes[if v6 { 4..6 } else { 2..4 }].fill(0);
            complete_header(&mut bytes);
            assert_eq!(TcpPacket::parse(&bytes, Checksum::Partial).is_ok(), is_giant, "{len}");
        }
    }
}

#[test]
fn what_is_shorter_than_a_header_has_no_checksum_to_complete() {
    for v6 in [false, true] {
        let whole = segment(v6, Flags::ACK, b"").unwrap();
        for missing in [1, 5, 20] {
            let mut bytes = whole[..whole.len() - missing].to_vec();
            let len = if v6 { bytes.len() - 40 } else { bytes.len() } as u16;
            bytes[if v6 { 4..6 } else { 2..4 }].copy_from_slice(&len.to_be_bytes());
            let before = bytes.clone();
            assert_eq!(complete_checksum(&mut bytes), Err(PacketError::Truncated));
            assert_eq!(bytes, before);
        }
    }
}

#[test]
fn impossible_option_lengths_end_the_reading() {
    for bytes in [&[2u8][..], &[2, 0], &[2, 1, 5, 5], &[2, 5, 1, 1], &[3, 255]] {
        let malformed = TcpOptions { malformed: true, ..TcpOptions::default() };
        assert_eq!(TcpOptions::parse(bytes), malformed);
    }
}

prop_compose! {
    fn key()(v6: bool, server: [u8; 16], client: [u8; 16], server_port: u16, client_port: u16)
        -> ConnKey {
        let address = |bytes: [u8; 16]| {
            if v6 {
                let mut address = bytes;
                address[0] |= 0x20;
                address
            } else {
                map_ipv4([bytes[0], bytes[1], bytes[2], bytes[3]])
            }
        };
        ConnKey { server: address(server), client: address(client), server_port, client_port }
    }
}

prop_compose! {
    /// Options that together fit into 40 bytes, as an established or opening stack sends them.
    fn options()(
        mss in proptest::option::of(any::<u16>()),
        wscale in proptest::option::of(0u8..=14),
        sack_permitted: bool,
        timestamps in proptest::option::of(any::<(u32, u32)>()),
        blocks in proptest::collection::vec(any::<(u32, u32)>(), 0..=1),
    ) -> TcpOptions {
        let mut sack = SackBlocks::default();
        for (left, right) in blocks {
            sack.push(SeqNo(left), SeqNo(right));
        }
        TcpOptions { mss, wscale, sack_permitted, timestamps, sack, ..TcpOptions::default() }
    }
}

proptest! {
    #[test]
    fn what_is_built_is_parsed_alike_here_and_by_etherparse_and_built_again(
        key in key(), to_client: bool, seq: u32, ack: u32, flags: u8, window: u16,
        options in options(), payload in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let segment = TcpSegment {
            key, to_client, seq: SeqNo(seq), ack: SeqNo(ack), flags: Flags(flags), window,
            options, payload: &payload,
        };
        let bytes = segment.build().unwrap();
        let packet = TcpPacket::parse(&bytes, Checksum::Verify).unwrap();
        let (source, destination) = ((packet.source, packet.source_port), (packet.destination, packet.destination_port));
        let (server, client) = if to_client { (source, destination) } else { (destination, source) };
        prop_assert_eq!((server, client), ((key.server, key.server_port), (key.client, key.client_port)));
        prop_assert_eq!(packet.seq.0, seq);
        prop_assert_eq!(packet.ack.0, ack);
        prop_assert_eq!(packet.flags.0, flags);
        prop_assert_eq!(packet.window, window);
        let mut expected = options;
        // Beside timestamps the 4 + 4 + 12 + 4 bytes leave room for only one block.
        if packet.options.sack.as_slice().is_empty() {
            expected.sack = SackBlocks::default();
        }
        prop_assert_eq!(packet.options, expected);
        prop_assert_eq!(packet.payload, &payload[..]);
        prop_assert_eq!(packet.raw, &bytes[..]);
        let TcpPacket { seq, ack, flags, window, options, payload, .. } = packet;
        let again = TcpSegment { key, to_client, seq, ack, flags, window, options, payload };
        prop_assert_eq!(again.build().unwrap(), bytes.clone());
        agrees_with_etherparse(&bytes, &packet);
    }

    #[test]
    fn completing_a_spoilt_checksum_restores_it(
        key in key(), payload in proptest::collection::vec(any::<u8>(), 0..300), spoilt: u16,
    ) {
        let segment = TcpSegment {
            key, to_client: true, seq: SeqNo(1), ack: SeqNo(2), flags: Flags::ACK, window: 3,
            options: TcpOptions::default(), payload: &payload,
        };
        let good = segment.build().unwrap();
        let mut bytes = good.clone();
        let at = if bytes[0] >> 4 == 4 { 36 } else { 56 };
        bytes[at..at + 2].copy_from_slice(&spoilt.to_be_bytes());
        complete_checksum(&mut bytes).unwrap();
        prop_assert_eq!(bytes, good);
    }

    #[test]
    fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = TcpPacket::parse(&bytes, Checksum::Verify);
        let _ = TcpPacket::parse(&bytes, Checksum::Partial);
        let _ = complete_checksum(&mut bytes);
    }

    /// Mutations of a correct packet reach more of the parser than random bytes do.
    #[test]
    fn no_mutation_makes_it_panic_or_differ_from_etherparse(
        changes in proptest::collection::vec((0usize..64, any::<u8>()), 1..6), cut in 0usize..70,
    ) {
        let mut bytes = syn();
        bytes.extend([0xaa; 4]);
        bytes[3] = 64;
        for (at, value) in changes {
            bytes[at] = value;
        }
        bytes.truncate(cut);
        complete_header(&mut bytes);
        if let Ok(packet) = TcpPacket::parse(&bytes, Checksum::Partial)
            && u16::from_be_bytes([bytes[2], bytes[3]]) != 0
            && bytes[0] >> 4 == 4
        {
            agrees_with_etherparse(&bytes, &packet);
        }
        let _ = complete_checksum(&mut bytes);
    }

    #[test]
    fn the_sum_does_not_depend_on_how_the_bytes_are_cut(
        bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..100,
    ) {
        let cut = (cut * 2).min(bytes.len() & !1);
        let (a, b) = bytes.split_at(cut);
        prop_assert_eq!(Sum::default().with(a).with(b).finish(), internet_checksum(&bytes));
    }
}

fn agrees_with_etherparse(bytes: &[u8], packet: &TcpPacket<'_>) {
    let sliced = SlicedPacket::from_ip(bytes).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("no TCP") };
    assert_eq!(tcp.source_port(), packet.source_port);
    assert_eq!(tcp.destination_port(), packet.destination_port);
    assert_eq!(tcp.sequence_number(), packet.seq.0);
    assert_eq!(tcp.acknowledgment_number(), packet.ack.0);
    assert_eq!(tcp.window_size(), packet.window);
    assert_eq!(tcp.syn(), packet.flags.has(Flags::SYN));
    assert_eq!(tcp.fin(), packet.flags.has(Flags::FIN));
    assert_eq!(tcp.rst(), packet.flags.has(Flags::RST));
    assert_eq!(tcp.payload(), packet.payload);
    let (sum, right) = match sliced.net.unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            assert_eq!(map_ipv4(header.source()), packet.source);
            (tcp.checksum(), tcp.calc_checksum_ipv4(header.source(), header.destination()))
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            assert_eq!(header.source(), packet.source);
            (tcp.checksum(), tcp.calc_checksum_ipv6(header.source(), header.destination()))
        }
        _ => panic!("no IP"),
    };
    let verified = TcpPacket::parse(bytes, Checksum::Verify).is_ok();
    assert_eq!(verified, right.is_ok_and(|right| right == sum));
}

#[test]
fn a_refusal_says_what_is_wrong() {
    for (error, words) in [
        (PacketError::Truncated, "shorter than its headers"),
        (PacketError::Version, "neither IPv4 nor IPv6"),
        (PacketError::HeaderLength, "below 20 bytes"),
        (PacketError::Fragment, "IP fragment"),
        (PacketError::Protocol(17), "IP protocol 17"),
        (PacketError::MappedAddress, "IPv4-mapped"),
        (PacketError::DataOffset, "data offset"),
        (PacketError::HeaderChecksum, "IPv4 header checksum"),
        (PacketError::Checksum, "TCP checksum"),
        (PacketError::TooLong, "payload longer"),
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn no_packet_has_ends_of_two_versions() {
    for swapped in [false, true] {
        let mut key = key_v4();
        key.client = [7; 16];
        if swapped {
            std::mem::swap(&mut key.client, &mut key.server);
        }
        let (seq, ack, options) = (SeqNo(1), SeqNo(2), TcpOptions::default());
        let segment = TcpSegment {
            key,
            to_client: true,
            seq,
            ack,
            flags: Flags::ACK,
            window: 50,
            options,
            payload: b"hello",
        };
        assert_eq!(segment.build(), Err(PacketError::Version));
    }
}

#[test]
fn nothing_is_read_behind_the_end_of_the_options() {
    let mss = [2, 4, 5, 220];
    let read = |before: &[u8]| TcpOptions::parse(&[before, &mss].concat());
    assert_eq!(read(&[1, 1]).mss, Some(1500), "padding");
    let ended = read(&[1, 0]);
    assert_eq!((ended.mss, ended.malformed), (None, false));
    // A kind without its length is no option.
    assert!(TcpOptions::parse(&[1, 2]).malformed);
}
