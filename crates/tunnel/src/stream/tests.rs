use super::*;
use crate::item::Items;
use holdfast_chance::Rng;
use proptest::prelude::*;

fn limits(streams: usize) -> Limits {
    Limits { streams, stream_bytes: 300_000, streams_bytes: 900_000, ..Limits::default() }
}

/// Hands the items of a symbol over.
fn deliver(symbol: &[u8], to: &mut Streams) {
    for item in Items::new(symbol).flatten() {
        match item {
            Item::Data { stream, offset, end, bytes } => {
                to.data(Class::Bulk, stream, offset, end, bytes);
            }
            Item::Credit { stream, offset } => to.credit(Class::Bulk, stream, offset),
            Item::Reset { stream } => to.reset_by_peer(Class::Bulk, stream),
            _ => panic!("no item of a stream"),
        }
    }
}

struct Pair {
    ends: [Streams; 2],
    rng: Rng,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let ends = [(); 2].map(|()| Streams::new(&limits(4)));
        Self { ends, rng: Rng::new(seed, 0) }
    }

    /// Symbols of a round, out of order, some cut anew.
    fn exchange(&mut self) {
        for from in [0, 1] {
            let mut symbols = Vec::new();
            while self.ends[from].has_something(Class::Bulk) && symbols.len() < 100 {
                let (mut out, mut pieces) = (Vec::new(), Vec::new());
                let symbol_max = 40 + self.rng.below(1400) as usize;
                self.ends[from].fill(Class::Bulk, symbol_max, &mut out, &mut pieces);
                assert!(out.len() <= symbol_max);
                symbols.push((out, pieces));
            }
            while !symbols.is_empty() {
                let at = self.rng.below(symbols.len() as u64) as usize;
                let (out, pieces) = symbols.swap_remove(at);
                let is_lost = self.rng.one_in(10);
                if !is_lost {
                    deliver(&out, &mut self.ends[1 - from]);
                }
                for piece in pieces {
                    if is_lost {
                        self.ends[from].again(piece)
                    } else {
                        self.ends[from].arrived(piece)
                    }
                }
            }
        }
    }
}

fn run(seed: u64, len: usize) {
    let mut pair = Pair::new(seed);
    let data: Vec<u8> = (0..len).map(|_| pair.rng.draw() as u8).collect();
    let id = pair.ends[0].open(Class::Bulk).unwrap();
    let (mut written, mut read) = (0, Vec::new());
    let mut is_at_end = false;
    for _ in 0..10_000 {
        written += pair.ends[0].write(id, &data[written..]).unwrap_or(0);
        if written == data.len() {
            let _ = pair.ends[0].finish(id);
        }
        pair.exchange();
        let most = pair.rng.below(100_000) as usize;
        if !pair.ends[1].all.is_empty() && !is_at_end {
            is_at_end = pair.ends[1].read(StreamId(1), &mut read, most).unwrap().is_none();
            if is_at_end {
                pair.ends[1].finish(StreamId(1)).unwrap();
            }
        }
        if is_at_end && pair.ends[0].all.is_empty() {
            break;
        }
        if let Ok(None) = pair.ends[0].read(id, &mut Vec::new(), 10) {
            continue;
        }
    }
    assert!(read == data, "seed {seed}: {} of {} bytes", read.len(), data.len());
    assert!(pair.ends.iter().all(|end| end.all.is_empty()), "seed {seed}: a stream is left");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_byte_arrives_once_and_in_order(seed: u64, len in 0usize..700_000) {
        run(seed, len);
    }

    #[test]
    fn a_peer_that_breaks_the_rules_is_reset_and_memory_is_bounded(
        items in prop::collection::vec((0u64..12, 0u64..400_000, any::<bool>(), 0usize..2000), 1..300)
    ) {
        let mut streams = Streams::new(&limits(4));
        for (stream, offset, end, len) in items {
            streams.data(Class::Bulk, stream, offset, end, &vec![0; len]);
            prop_assert!(streams.all.len() <= 4);
            for stream in streams.all.values() {
                prop_assert!(stream.receiving.held_bytes <= 3 * 300_000);
            }
        }
    }
}

#[test]
fn a_reset_reaches_the_peer() {
    let mut pair = Pair::new(1);
    let id = pair.ends[0].open(Class::Bulk).unwrap();
    pair.ends[0].write(id, b"hello").unwrap();
    pair.exchange();
    pair.ends[0].reset(id).unwrap();
    while pair.ends[0].has_something(Class::Bulk) {
        pair.exchange();
    }
    let events: Vec<_> = std::iter::from_fn(|| pair.ends[1].poll()).collect();
    assert_eq!(events.last(), Some(&(StreamId(1), StreamEvent::Reset)));
    assert_eq!(pair.ends[0].write(id, b"x"), Err(StreamError::Unknown(0)));
}

#[test]
fn too_many_streams_are_refused() {
    let mut streams = Streams::new(&limits(2));
    assert!(streams.open(Class::Now).is_ok());
    assert!(streams.open(Class::Now).is_ok());
    assert_eq!(streams.open(Class::Now), Err(StreamError::TooMany(2)));
}
