use super::*;
use proptest::prelude::*;

fn openings() -> impl Strategy<Value = Opening> {
    (any::<u32>(), 8..=CELLS_MAX, 1..=300usize, 1..=WINDOW_SEGMENTS_MAX, any::<bool>()).prop_map(
        |(tag, cells, cell_len, window, is_rabin)| Opening {
            tag,
            shape: Shape { cells, cell_len },
            dispersal: if is_rabin { Dispersal::Rabin } else { Dispersal::Systematic },
            window,
        },
    )
}

fn cells() -> impl Strategy<Value = Cell> {
    let numbers = (1..=CELLS_MAX, any::<[u8; 2]>(), any::<bool>(), any::<[u32; 2]>());
    (numbers, prop::collection::vec(any::<u8>(), 1..60)).prop_map(
        |((cells, [row, attempt], is_last, [segment, order]), payload)| Cell {
            cells,
            row,
            attempt,
            is_last,
            segment,
            order,
            payload,
        },
    )
}

fn acks() -> impl Strategy<Value = Ack> {
    let entries = prop::collection::vec(any::<[u8; 3]>(), 0..=WINDOW_SEGMENTS_MAX);
    (any::<[u32; 5]>(), entries).prop_map(|([seen, received, next, limit, held_us], entries)| {
        let entry = |[offset, pending, attempt]: [u8; 3]| AckEntry { offset, pending, attempt };
        let entries = entries.into_iter().map(entry).collect();
        Ack { seen, received, next, limit, held_us, entries }
    })
}

fn frames() -> impl Strategy<Value = Frame> {
    prop_oneof![
        openings().prop_map(Frame::Syn),
        (any::<u32>(), openings()).prop_map(|(to, opening)| Frame::SynAck { to, opening }),
        (any::<u32>(), cells()).prop_map(|(to, cell)| Frame::Cell { to, cell }),
        (any::<u32>(), acks()).prop_map(|(to, ack)| Frame::Ack { to, ack }),
        any::<u32>().prop_map(|to| Frame::Ping { to }),
        (any::<u32>(), any::<bool>())
            .prop_map(|(tag, is_reflected)| Frame::Reset { tag, is_reflected }),
    ]
}

proptest! {
    #[test]
    fn frames_read_back(frame in frames()) {
        prop_assert_eq!(Frame::parse(&frame.to_bytes()), Ok(frame));
    }

    #[test]
    fn a_changed_frame_is_none_or_a_cell_with_another_payload(
        frame in frames(),
        at: prop::sample::Index,
        bit in 0..8u32,
    ) {
        let mut bytes = frame.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let parsed = Frame::parse(&bytes);
        match (frame, parsed) {
            (Frame::Cell { to, cell }, Ok(Frame::Cell { to: other_to, cell: other })) => {
                prop_assert_eq!((to, cell.payload.len()), (other_to, other.payload.len()));
                prop_assert_eq!(Cell { payload: Vec::new(), ..cell }, Cell { payload: Vec::new(), ..other });
            }
            (_, parsed) => prop_assert!(parsed.is_err()),
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), kind in 0..8u8) {
        let mut sealed = vec![kind];
        sealed.extend(&bytes);
        let check = crc32fast::hash(&sealed);
        sealed.extend(check.to_be_bytes());
        let _ = (Frame::parse(&bytes), Frame::parse(&sealed));
    }

    #[test]
    fn numbers_expand_to_the_closest(near in 0..1u64 << 40, ahead in -1000i64..1000) {
        if let Some(number) = near.checked_add_signed(ahead) {
            prop_assert_eq!(expand(number as u32, near), number);
        }
    }
}
