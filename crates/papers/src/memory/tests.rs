use super::*;

/// A classic capture of raw IPv4: three flows of one SYN and ten segments.
fn capture() -> Vec<u8> {
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    file.extend([0; 8]);
    file.extend(65_535u32.to_le_bytes());
    file.extend(101u32.to_le_bytes());
    for number in 0..33u32 {
        let (flow, step) = (number % 3, number / 3);
        let payload = if step == 0 { 0 } else { 100u16 };
        let mut packet = vec![0x45, 0];
        packet.extend((40 + payload).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, flow as u8, 10, 0, 0, 9]);
        packet.extend([0x10, flow as u8, 0, 80]);
        packet.extend((if step == 0 { 0 } else { 1 + 100 * (step - 1) }).to_be_bytes());
        packet.extend([0; 4]);
        packet.extend([0x50, if step == 0 { 2 } else { 0 }, 0, 0, 0, 0, 0, 0]);
        let wire = packet.len() as u32 + u32::from(payload);
        for word in [number, 0, packet.len() as u32, wire] {
            file.extend(word.to_le_bytes());
        }
        file.extend(&packet);
    }
    file
}

fn read(bytes: &[u8]) -> (Vec<Headers>, Option<TraceError>) {
    let mut found = Vec::new();
    let mut trace = match Trace::new(bytes) {
        Ok(trace) => trace,
        Err(error) => return (found, Some(error)),
    };
    loop {
        match trace.next_packet() {
            Ok(Some(headers)) => found.push(headers),
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error)),
        }
    }
}

#[test]
fn headers_are_read_of_packets_that_were_cut() {
    let (found, error) = read(&capture());
    assert!(error.is_none(), "{error:?}");
    assert_eq!(found.len(), 33);
    let last = found[32];
    assert_eq!((last.seq, last.payload_bytes, last.wire_bytes), (901, 100, 140));
    assert_eq!(last.at_ns, 32_000_000_000);
}

#[test]
fn each_policy_takes_what_it_says() {
    let path = std::env::temp_dir().join(format!("holdfast-memory-{}.pcap", std::process::id()));
    std::fs::write(&path, capture()).unwrap();
    let report = measure(&path, 1).unwrap();
    std::fs::remove_file(&path).unwrap();
    let peaks: Vec<u64> = report.policies.iter().map(|it| it.peak_bytes).collect();
    // Nothing is acknowledged: the lowest packet is the SYN, and the window has all eleven.
    assert_eq!(peaks, [120, 120, 120, 540, 4320, 40]);
    assert_eq!((report.packets, report.flows, report.error), (33, 3, None));
}

#[test]
fn a_broken_file_gives_what_was_read_and_where_it_broke() {
    let whole = capture();
    let (found, error) = read(&whole[..whole.len() - 7]);
    assert_eq!(found.len(), 32);
    assert!(matches!(error, Some(TraceError::Truncated { .. })), "{error:?}");
    let mut long = whole.clone();
    long[24 + 8..24 + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(read(&long).1, Some(TraceError::Length { at: 40, .. })));
    assert!(matches!(read(b"GIF89a..").1, Some(TraceError::NotACapture(_))));
}

proptest::proptest! {
    /// No input makes the reader panic.
    #[test]
    fn any_bytes_end(mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400), start in 0..3usize) {
        let magic: &[u8] = [&[0xd4, 0xc3, 0xb2, 0xa1][..], &[0x0a, 0x0d, 0x0d, 0x0a], &[]][start];
        bytes.splice(0..0, magic.iter().copied());
        let _ = read(&bytes);
    }

    /// A damaged capture does not make the reader panic.
    #[test]
    fn any_damage_ends(at in 0..1000usize, with in proptest::prelude::any::<u8>()) {
        let mut bytes = capture();
        bytes[at] = with;
        let _ = read(&bytes);
    }
}
