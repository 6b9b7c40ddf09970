use super::*;
use crate::limits::{BEYOND_PIECES_MAX, STREAM_BYTES_MAX};
use proptest::prelude::*;

fn joined(stream: &Stream, from: u64, len: usize) -> Vec<u8> {
    stream.range(from, len).map(|pieces| pieces.concat()).unwrap_or_default()
}

#[test]
fn the_first_copy_of_a_byte_wins() {
    let mut stream = Stream::new(Limits::default());
    assert_eq!(stream.insert(4, b"EFGH"), Inserted::Beyond);
    assert_eq!(stream.insert(2, b"cdefghij"), Inserted::Beyond);
    assert_eq!(stream.insert(0, b"abX"), Inserted::Grown);
    assert_eq!(joined(&stream, 0, 10), b"abcdEFGHij".to_vec());
    assert_eq!(stream.insert(3, b"zz"), Inserted::Old);
}

#[test]
fn what_the_server_read_overrides_the_tap() {
    let mut stream = Stream::new(Limits::default());
    stream.insert(0, b"abcd");
    stream.insert(6, b"XYZ");
    stream.overwrite(2, b"CDEFx");
    assert_eq!(joined(&stream, 0, 9), b"abCDEFxYZ".to_vec());
    assert_eq!(stream.held_bytes(), 9);
}

#[test]
fn at_its_limit_a_stream_refuses_bytes_and_keeps_the_old_ones() {
    let mut stream = Stream::new(Limits::default());
    for i in 0..BEYOND_PIECES_MAX as u64 {
        assert_eq!(stream.insert(10 + 2 * i, b"x"), Inserted::Beyond);
    }
    assert_eq!(stream.insert(1 << 20, b"x"), Inserted::Full);
    // Bytes that join two pieces need no additional room.
    assert_eq!(stream.insert(13, b"y"), Inserted::Beyond);
    assert_eq!(stream.insert(1 << 20, b"x"), Inserted::Beyond);
    assert_eq!(stream.insert(12, b"zzz"), Inserted::Old);
    assert_eq!(
        stream.insert(0, b"0123456789"),
        Inserted::Grown,
        "the first hole can always be closed"
    );
    assert_eq!(stream.end(), 11);
    assert_eq!(stream.insert(STREAM_BYTES_MAX as u64, b"x"), Inserted::Full);
    let mut stream = Stream::new(Limits::default());
    let last = STREAM_BYTES_MAX as u64 - 1;
    assert_eq!(stream.insert(last, b"xy"), Inserted::Full, "a part of it was refused");
    assert_eq!(stream.insert(last, b"x"), Inserted::Old, "the other part is held");
    assert_eq!(stream.insert(last - 1, b"wx"), Inserted::Beyond);
}

proptest! {
    #[test]
    fn overlapping_reordered_segments_rebuild_the_stream(
        len in 1_usize..600,
        cuts in proptest::collection::vec((0_usize..600, 1_usize..80), 0..80),
        consume in proptest::collection::vec(0_u64..600, 0..80),
    ) {
        let truth: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut stream = Stream::new(Limits::default());
        for (i, (from, count)) in cuts.iter().enumerate() {
            let from = (*from).min(len);
            let until = (from + count).min(len);
            stream.insert(from as u64, &truth[from..until]);
            if let Some(to) = consume.get(i) {
                stream.consume_to(*to);
            }
            let held = (stream.end() - stream.base()) as usize;
            prop_assert_eq!(joined(&stream, stream.base(), held), truth[stream.base() as usize..stream.end() as usize].to_vec());
        }
        stream.insert(0, &truth);
        prop_assert_eq!(stream.end(), len as u64);
        prop_assert_eq!(stream.held_bytes() as u64, stream.end() - stream.base());
    }

    #[test]
    fn arbitrary_segments_keep_the_counts_right(
        ops in proptest::collection::vec((0_u64..300, proptest::collection::vec(any::<u8>(), 0..40), 0_u8..3), 0..120),
    ) {
        let mut stream = Stream::new(Limits::default());
        for (at, bytes, kind) in ops {
            match kind {
                0 => { stream.insert(at, &bytes); }
                1 => stream.consume_to(at),
                _ => { stream.overwrite(at, &bytes); }
            }
            stream.beyond.check();
            prop_assert!(stream.beyond.first().is_none_or(|start| start > stream.end()));
        }
    }
}
