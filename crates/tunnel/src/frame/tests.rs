use super::*;
use proptest::prelude::*;

/// What an acknowledgement may count.
type Counts = (Option<LossCounts>, Option<MarkCounts>, Option<u32>);

/// A frame with bodies of its own.
#[derive(Clone, Debug)]
enum Owned {
    Data(usize, bool, u32, Vec<u8>),
    Rider(usize, u32, Vec<u8>),
    Repair(usize, bool, u32, u8, u8, Vec<u8>),
    Ack(u32, u64, u64, Counts, [Option<(u32, u8, Vec<u8>)>; LANES]),
    Floor(usize, u32),
    Ping(u32),
    Echo(u32),
    Close,
}

impl Owned {
    fn frame(&self) -> Frame<'_> {
        match self {
            Self::Data(lane, patient, seq, symbol) => {
                Frame::Data { lane: *lane, patient: *patient, seq: *seq, symbol }
            }
            Self::Rider(lane, seq, symbol) => Frame::Rider { lane: *lane, seq: *seq, symbol },
            Self::Repair(lane, patient, first, count, row, coded) => Frame::Repair {
                lane: *lane,
                patient: *patient,
                first: *first,
                count: *count,
                row: *row,
                coded,
            },
            Self::Ack(highest, unsettled, held_100us, (loss, marks, bytes), lanes) => {
                let lane = |of_lane: &'_ Option<(u32, u8, Vec<u8>)>| of_lane.is_some();
                let mut ack = Ack {
                    highest: *highest,
                    unsettled: *unsettled,
                    held_100us: *held_100us,
                    loss: *loss,
                    marks: *marks,
                    bytes: *bytes,
                    ..Ack::default()
                };
                for (to, from) in ack.lanes.iter_mut().zip(lanes).filter(|(_, from)| lane(from)) {
                    *to = from.as_ref().map(|(cumulative, rows, bitmap)| LaneAck {
                        cumulative: *cumulative,
                        rows: *rows,
                        bitmap,
                    });
                }
                Frame::Ack(ack)
            }
            Self::Floor(lane, seq) => Frame::Floor { lane: *lane, seq: *seq },
            Self::Ping(token) => Frame::Ping { token: *token },
            Self::Echo(token) => Frame::Echo { token: *token },
            Self::Close => Frame::Close,
        }
    }
}

fn u24() -> impl Strategy<Value = u32> {
    0u32..1 << 24
}

fn bytes(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), len)
}

fn an_ack() -> impl Strategy<Value = Owned> {
    let loss =
        (u24(), u24(), u24(), 0u64..100_000).prop_map(|(settled, lost, runs, burst_100us)| {
            LossCounts { settled, lost, runs, burst_100us }
        });
    let lane = || prop::option::of((u24(), any::<u8>(), bytes(0..BITMAP_BYTES_MAX + 1)));
    let lanes = (lane(), lane(), lane()).prop_map(|(a, b, c)| [a, b, c]);
    let head = (u24(), 0u64..10_000, 0u64..100_000);
    let marks = (u24(), u24()).prop_map(|(capable, congested)| MarkCounts { capable, congested });
    let counts = (prop::option::of(loss), prop::option::of(marks), prop::option::of(any::<u32>()));
    (head, counts, lanes).prop_map(|((highest, unsettled, held), counts, lanes)| {
        Owned::Ack(highest, unsettled, held, counts, lanes)
    })
}

fn a_frame() -> impl Strategy<Value = Owned> {
    let lane = 0..LANES;
    prop_oneof![
        (lane.clone(), any::<bool>(), u24(), bytes(1..300))
            .prop_map(|(lane, patient, seq, symbol)| Owned::Data(lane, patient, seq, symbol)),
        (lane.clone(), u24(), bytes(1..300))
            .prop_map(|(lane, seq, symbol)| Owned::Rider(lane, seq, symbol)),
        (lane.clone(), any::<bool>(), u24(), 1u8..=128, ROW_MIN..=255, bytes(3..300)).prop_map(
            |(lane, patient, first, count, row, coded)| {
                Owned::Repair(lane, patient, first, count, row, coded)
            }
        ),
        an_ack(),
        (lane, u24()).prop_map(|(lane, seq)| Owned::Floor(lane, seq)),
        any::<u32>().prop_map(Owned::Ping),
        any::<u32>().prop_map(Owned::Echo),
        Just(Owned::Close),
    ]
}

proptest! {
    #[test]
    fn frames_are_read_as_they_were_written(
        frames in prop::collection::vec(a_frame(), 1..6),
        is_last: bool,
    ) {
        let mut out = Vec::new();
        for (i, frame) in frames.iter().enumerate() {
            frame.frame().put(&mut out, is_last && i + 1 == frames.len());
        }
        let read: Vec<_> = Frames::new(&out).collect();
        let written: Vec<_> = frames.iter().map(|frame| Ok(frame.frame())).collect();
        prop_assert_eq!(read, written);
    }

    #[test]
    fn any_bytes_give_frames_or_one_fault_at_the_end(bytes in bytes(0..400)) {
        let read: Vec<_> = Frames::new(&bytes).collect();
        let faults = read.iter().filter(|frame| frame.is_err()).count();
        prop_assert!(faults <= 1);
        prop_assert!(faults == 0 || read.last().is_some_and(Result::is_err));
    }

    #[test]
    fn a_truncated_datagram_is_no_panic(frame in a_frame(), cut in 0usize..300) {
        let mut out = Vec::new();
        frame.frame().put(&mut out, false);
        out.truncate(cut);
        prop_assert!(Frames::new(&out).count() <= out.len());
    }
}

#[test]
fn padding_behind_a_probe_is_no_frame() {
    let mut out = Vec::new();
    Frame::Ping { token: 7 }.put(&mut out, false);
    Frame::Probe.put(&mut out, true);
    out.resize(1200, 0);
    let read: Vec<_> = Frames::new(&out).collect();
    assert_eq!(read, [Ok(Frame::Ping { token: 7 }), Ok(Frame::Probe)]);
}
