//! Strangers who know everything but the keys.

use super::network::{A, B, Seeded, World};
use super::{MS, SECOND};
use crate::secure::cookie::Macs;
use crate::secure::layout::{self, INITIATION_BYTES, Index, MAC_BYTES};
use crate::secure::{Dropped, Random as _, SecretKey};
use proptest::prelude::*;
use std::net::SocketAddr;

fn stranger(number: u16) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 9], number))
}

#[test]
fn what_was_changed_cut_or_sent_again_is_dropped_and_changes_nothing() {
    let mut world = World::new(20);
    world.run(SECOND);
    let datagram = world.seal(A, b"the original");
    let from = world.addresses[A];
    for at in 0..datagram.len() {
        for bit in [1, 0x80] {
            let mut changed = datagram.clone();
            changed[at] ^= bit;
            assert!(world.give(B, from, changed).is_err(), "byte {at}");
        }
        assert!(world.give(B, from, datagram[..at].to_vec()).is_err(), "{at} bytes of it");
    }
    assert!(world.heard(B).is_empty());
    assert_eq!(world.give(B, stranger(1), datagram.clone()), Ok(()), "the original is still new");
    assert_eq!(world.heard(B), [b"the original".to_vec()]);
    for _ in 0..3 {
        assert_eq!(world.give(B, from, datagram.clone()), Err(Dropped::Replayed));
    }
    world.chat(3);
}

#[test]
fn datagrams_may_come_in_any_order_within_the_window() {
    let mut world = World::new(21);
    world.run(SECOND);
    let from = world.addresses[A];
    let first = world.seal(A, b"first");
    let mut others: Vec<Vec<u8>> =
        (0..4095u32).map(|it| world.seal(A, &it.to_be_bytes())).collect();
    others.reverse();
    for datagram in others {
        assert_eq!(world.give(B, from, datagram), Ok(()));
    }
    assert_eq!(world.give(B, from, first), Ok(()), "the oldest that can be told");
    assert_eq!(world.heard(B).len(), 4096);
    let old = world.seal(A, b"old");
    for it in 0..4096u32 {
        let datagram = world.seal(A, &it.to_be_bytes());
        assert_eq!(world.give(B, from, datagram), Ok(()));
    }
    assert_eq!(world.give(B, from, old), Err(Dropped::Replayed), "too old to tell");
}

/// A first message that B must look at: its first MAC is right, for B's public key is known.
fn initiation_of_anybody(chance: &mut Seeded) -> Vec<u8> {
    let mut bytes = [0; INITIATION_BYTES - 2 * MAC_BYTES - 4];
    chance.fill(&mut bytes).unwrap();
    let mut message = layout::initiation(Index::from_random([1, 2, 3]));
    message.extend(bytes);
    Macs::of(&SecretKey::from_random([4; 32]).public()).append(&mut message, None);
    message
}

#[test]
fn a_flood_of_handshakes_costs_little_and_keeps_nobody_out() {
    let mut world = World::with(22, |settings| settings[B].peer_address = None);
    let mut chance = Seeded::new(5);
    let messages: Vec<Vec<u8>> = (0..16).map(|_| initiation_of_anybody(&mut chance)).collect();
    let mut answered = 0;
    // 20,000 a second, for two seconds; the peer calls in between.
    for ms in 0..2000u32 {
        for it in 0..20 {
            let message = messages[it % messages.len()].clone();
            let result = world.give(B, stranger((ms % 999) as u16), message);
            answered += u32::from(result != Err(Dropped::Flood));
        }
        world.run(MS);
    }
    assert!(answered <= 30, "{answered} were looked at");
    let counters = world.ends[B].counters();
    assert!(counters.cookies_sent <= 450, "{counters:?}");
    assert!(world.ends[B].is_ready(world.now), "the peer came with a cookie");
    world.chat(3);
}

#[test]
fn a_first_message_that_is_sent_again_brings_nobody_in() {
    let mut world = World::with(23, |settings| settings[B].peer_address = None);
    let first = world.ends[A].poll(world.now, SECOND).expect("it calls").bytes;
    assert_eq!(world.give(B, stranger(1), first.clone()), Ok(()), "anybody may bring it");
    assert_eq!(world.ends[B].standing(world.now).peer_address, None, "and is not believed");
    assert_eq!(world.give(B, stranger(2), first), Err(Dropped::Stale));
    world.run(2 * SECOND);
    assert!(world.ends[B].is_ready(world.now));
    world.chat(3);
}

#[test]
fn answers_and_cookies_that_nobody_waits_for_are_dropped() {
    let mut world = World::new(24);
    world.run(SECOND);
    let macs = Macs::of(&SecretKey::from_random([4; 32]).public());
    let mut answer = layout::answer(Index::from_random([1; 3]), Index::from_random([2; 3]));
    answer.extend([0; layout::ANSWER_BYTES - 8 - 2 * MAC_BYTES]);
    macs.append(&mut answer, None);
    assert_eq!(world.give(B, stranger(1), answer.clone()), Err(Dropped::NotAwaited));
    answer[9] ^= 1;
    assert_eq!(world.give(B, stranger(1), answer), Err(Dropped::WrongMac));
    let mut cookie = layout::cookie_reply(Index::from_random([1; 3]));
    cookie.extend([0; layout::COOKIE_REPLY_BYTES - 4]);
    assert_eq!(world.give(B, stranger(1), cookie), Err(Dropped::NotAwaited));
    world.chat(3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn nothing_that_comes_panics(
        datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..40),
    ) {
        let mut world = World::new(25);
        world.run(SECOND);
        for mut bytes in datagrams {
            if let Some(kind) = bytes.first_mut() {
                *kind %= 8;
            }
            let _ = world.give(B, stranger(1), bytes);
        }
        prop_assert!(world.heard(B).is_empty());
        world.chat(2);
    }

    /// The same with lengths that handshakes have.
    #[test]
    fn nothing_that_looks_like_a_handshake_panics(
        kind in 1u8..4,
        body in prop::collection::vec(any::<u8>(), 160),
    ) {
        let mut world = World::new(26);
        world.run(SECOND);
        let length = [INITIATION_BYTES, layout::ANSWER_BYTES, layout::COOKIE_REPLY_BYTES];
        let mut bytes = body[..length[usize::from(kind - 1)]].to_vec();
        bytes[0] = kind;
        prop_assert!(world.give(A, stranger(1), bytes).is_err());
        world.chat(1);
    }
}
