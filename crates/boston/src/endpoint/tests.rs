use super::*;
use crate::frame::AckEntry;
use proptest::prelude::*;

const NOW: Nanos = Nanos::from_ms(5);

/// All frames and events that an endpoint has now.
fn frames(endpoint: &mut Endpoint, now: Nanos) -> (Vec<Frame>, Vec<Event>) {
    let (mut frames, mut events) = (Vec::new(), Vec::new());
    loop {
        match endpoint.poll(now) {
            Poll::Transmit(frame) => frames.push(frame),
            Poll::Event(event) => events.push(event),
            Poll::Wait(_) => return (frames, events),
        }
    }
}

/// Exchanges what both endpoints send until they are silent; returns their events.
fn talk(ends: &mut [Endpoint; 2], now: Nanos) -> [Vec<Event>; 2] {
    let mut told = [Vec::new(), Vec::new()];
    loop {
        let mut is_silent = true;
        for from in 0..2 {
            let (frames, events) = frames(&mut ends[from], now);
            told[from].extend(events);
            for frame in frames {
                is_silent = false;
                ends[1 - from].handle_frame(now, &frame);
            }
        }
        if is_silent {
            return told;
        }
    }
}

fn connected() -> [Endpoint; 2] {
    let client = Endpoint::connect(NOW, Config::default(), 1).expect("a configuration");
    let server = Endpoint::listen(NOW, Config::paper_fec(), 2).expect("a configuration");
    let mut ends = [client, server];
    assert_eq!(talk(&mut ends, NOW), [vec![Event::Connected], vec![Event::Connected]]);
    ends
}

#[test]
fn both_streams_end_and_so_does_the_connection() {
    let mut ends = connected();
    assert_eq!(ends[0].write(&[7; 10_000]), 10_000);
    ends[0].close();
    assert_eq!(ends[0].write(b"more"), 0);
    assert_eq!(talk(&mut ends, NOW), [vec![], vec![Event::Readable, Event::Ended]]);
    let mut buffer = [0; 20_000];
    assert_eq!(ends[1].read(NOW, &mut buffer), 10_000);
    ends[1].close();
    let told = talk(&mut ends, NOW);
    assert_eq!(told, [vec![Event::Ended, Event::Closed], vec![Event::Closed]]);
}

#[test]
fn who_aborts_tells_the_other() {
    let mut ends = connected();
    ends[0].abort();
    let [here, there] = talk(&mut ends, NOW);
    assert_eq!(here, [Event::Failed(Failure::Aborted)]);
    assert_eq!(there, [Event::Failed(Failure::Reset)]);
}

#[test]
fn nobody_listens() {
    let mut ends = connected();
    ends[1].abort();
    let _ = frames(&mut ends[1], NOW);
    ends[0] = Endpoint::connect(NOW, Config::default(), 3).expect("a configuration");
    assert_eq!(talk(&mut ends, NOW)[0], [Event::Failed(Failure::Refused)]);
}

#[test]
fn a_peer_that_is_silent_is_asked_and_then_given_up() {
    let [mut client, _] = connected();
    let Config { ask_after, dead_after, .. } = Config::default();
    client.handle_timeout(NOW.plus(ask_after));
    assert!(matches!(frames(&mut client, NOW.plus(ask_after)).0[..], [Frame::Ping { .. }]));
    client.handle_timeout(NOW.plus(dead_after));
    let told = frames(&mut client, NOW.plus(dead_after)).1;
    assert_eq!(told, [Event::Failed(Failure::TimedOut)]);
}

#[test]
fn impossible_configurations_are_refused() {
    let shape = Shape { cells: 7, cell_len: 1 };
    let listen = |config| Endpoint::listen(NOW, config, 1).err();
    let config = Config::default();
    assert_eq!(listen(Config { shape, ..config }), Some(ConfigError::Shape(shape)));
    assert_eq!(listen(Config { window: 65, ..config }), Some(ConfigError::Window(65)));
}

/// Frames made by an attacker who knows the tag.
fn hostile(tag: u32) -> impl Strategy<Value = Frame> {
    let number = prop_oneof![0..40u32, any::<u32>()];
    let entries = prop::collection::vec(any::<[u8; 3]>(), 0..8).prop_map(|entries| {
        let entry = |[offset, pending, attempt]: [u8; 3]| AckEntry { offset, pending, attempt };
        entries.into_iter().map(entry).collect()
    });
    let numbers = [(); 5].map(|()| number.clone());
    let ack = (numbers, entries).prop_map(|([seen, received, next, limit, held_us], entries)| {
        Ack { seen, received, next, limit, held_us, entries }
    });
    let cell = (any::<[u8; 2]>(), 0..300usize, number.clone(), number, 0..60usize).prop_map(
        |([row, attempt], cells, segment, order, len)| Cell {
            cells,
            row,
            attempt,
            is_last: row % 2 == 0,
            segment,
            order,
            payload: vec![row; if len < 50 { 48 } else { len }],
        },
    );
    let shape = Shape { cells: 12, cell_len: 48 };
    let dispersal = Dispersal::Systematic;
    prop_oneof![
        4 => ack.prop_map(move |ack| Frame::Ack { to: tag, ack }),
        8 => cell.prop_map(move |cell| Frame::Cell { to: tag, cell }),
        1 => any::<u32>().prop_map(move |tag| Frame::Syn(Opening { tag, shape, dispersal, window: 3 })),
        1 => Just(Frame::Ping { to: tag }),
    ]
}

proptest! {
    #[test]
    fn no_frame_panics_and_what_is_said_stays_bounded(
        said in prop::collection::vec(hostile(tag_of(1)), 1..60),
        steps in prop::collection::vec(0..400u64, 60),
    ) {
        let [mut client, _] = connected();
        client.write(&[1; 30_000]);
        let mut now = NOW;
        for (frame, ms) in said.iter().zip(steps) {
            now = now.plus(Nanos::from_ms(ms));
            client.handle_timeout(now);
            client.handle_frame(now, frame);
            let (frames, _) = frames(&mut client, now);
            // The endpoint sends at most two full windows of the peer.
            prop_assert!(frames.len() <= 2 * 32 * 30 + CONTROL_FRAMES_MAX + 2);
            let _ = frames.iter().map(Frame::to_bytes).count();
            client.read(now, &mut [0; 500]);
        }
    }
}
