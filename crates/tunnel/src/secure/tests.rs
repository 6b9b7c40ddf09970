//! Two ends in virtual time, a network between them that does what networks do, and strangers.

mod hostile;
mod network;

use super::timing::{REJECT_AFTER, REKEY_AFTER};
use super::{Dropped, Suite, Suites};
use network::{A, B, World};
use std::net::SocketAddr;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn two_ends_agree_in_one_round_trip_and_understand_each_other() {
    let mut world = World::new(1);
    world.run(21 * MS);
    world.say(A, b"to b");
    world.run(11 * MS);
    assert_eq!(world.heard(B), [b"to b".to_vec()]);
    world.say(B, b"to a");
    world.run(11 * MS);
    assert_eq!(world.heard(A), [b"to a".to_vec()]);
    let standing = world.ends[A].standing(world.now);
    assert_eq!(standing.suite, Some(Suite::Aes256Gcm));
    assert!(standing.heard_age.is_some_and(|age| age < 40 * MS));
}

#[test]
fn no_number_is_sealed_twice() {
    let mut world = World::new(16);
    world.run(SECOND);
    let now = world.now;
    let mut seal = |number| world.ends[A].seal(number, &mut vec![0; 20], 0, now).is_some();
    let taken = [5, 5, 4, 6, u64::MAX, 7].map(&mut seal);
    assert_eq!(taken, [true, false, false, true, false, true]);
}

#[test]
fn an_end_without_the_instructions_makes_both_use_the_portable_cipher() {
    let mut world = World::with(2, |settings| settings[B].suites = Suites::PORTABLE);
    world.run(SECOND);
    for end in [A, B] {
        assert_eq!(world.ends[end].standing(world.now).suite, Some(Suite::Chacha20Poly1305));
    }
    world.chat(20);
}

#[test]
fn an_answerer_is_silent_until_the_peer_has_the_keys() {
    let mut world = World::with(3, |settings| settings[B].peer_address = None);
    world.run(15 * MS);
    assert!(!world.ends[B].is_ready(world.now), "it has answered, and heard nothing yet");
    assert_eq!(world.ends[B].peer_life(), 0);
    world.run(20 * MS);
    assert!(world.ends[B].is_ready(world.now));
    assert_eq!(world.ends[B].peer_life(), 1);
}

#[test]
fn handshakes_come_through_loss_and_reordering() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        (world.loss, world.jitter) = (0.3, 30 * MS);
        world.run(12 * SECOND);
        for end in [A, B] {
            assert!(world.ends[end].is_ready(world.now), "seed {seed}");
        }
        (world.loss, world.jitter) = (0.0, Duration::ZERO);
        world.run(SECOND);
        world.chat(10);
    }
}

#[test]
fn both_may_begin_at_once() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.jitter = 5 * MS;
        world.run(SECOND);
        world.chat(50);
        assert!(world.ends[A].counters().handshakes <= 2);
        world.run(100 * SECOND);
        world.chat(50);
    }
}

#[test]
fn keys_change_while_datagrams_are_on_their_way() {
    let mut world = World::new(5);
    world.jitter = 25 * MS;
    world.run(SECOND);
    let until = 3 * REKEY_AFTER;
    let mut said = 0u32;
    while world.now < until {
        for end in [A, B] {
            world.say(end, &said.to_be_bytes());
        }
        said += 1;
        world.run(50 * MS);
    }
    world.run(SECOND);
    for end in [A, B] {
        let mut heard = world.heard(end);
        heard.sort();
        assert_eq!(heard.len(), said as usize, "nothing is lost or doubled by a change of keys");
        let handshakes = world.ends[end].counters().handshakes;
        assert!((3..=6).contains(&handshakes), "{handshakes} in six minutes");
        let age = world.ends[end].standing(world.now).session_age.expect("a session");
        assert!(age < REJECT_AFTER);
    }
}

#[test]
fn a_peer_that_moves_is_followed_and_old_datagrams_do_not_lead_back() {
    let mut world = World::new(6);
    world.run(SECOND);
    let late = world.seal(A, b"late");
    world.addresses[A] = "198.51.100.7:4000".parse().unwrap();
    world.say(A, b"from elsewhere");
    world.run(20 * MS);
    assert_eq!(world.heard(B), [b"from elsewhere".to_vec()]);
    let old = "192.0.2.1:51900".parse().unwrap();
    assert!(world.give(B, old, late).is_ok(), "it is valid");
    assert_eq!(world.heard(B), [b"late".to_vec()]);
    let standing = world.ends[B].standing(world.now);
    assert_eq!(standing.peer_address, Some(world.addresses[A]), "and leads nowhere");
    world.chat(10);
    assert_eq!(world.ends[B].counters().roamed, 1);
    assert_eq!(
        [A, B].map(|end| world.ends[end].paths()),
        [1, 1],
        "both know that the path is another"
    );
    let other_port = SocketAddr::new(world.addresses[A].ip(), 4001);
    world.addresses[A] = other_port;
    world.chat(10);
    assert_eq!(world.ends[B].standing(world.now).peer_address, Some(other_port));
    assert_eq!([A, B].map(|end| world.ends[end].paths()), [1, 1], "it is a NAT's other name of it");
}

#[test]
fn a_peer_that_starts_again_is_another_life() {
    let mut world = World::new(7);
    world.run(SECOND);
    world.chat(10);
    assert_eq!(world.ends[B].peer_life(), 1);
    world.restart(A);
    world.run(SECOND);
    assert_eq!(world.ends[B].peer_life(), 2);
    assert_eq!(world.ends[B].counters().peer_restarts, 1);
    world.chat(10);
}

/// A copy of an end with its key speaks for a while, and goes: what the machines knew of each other is of
/// no use to either of the true ends, though neither was started again.
#[test]
fn a_copy_of_an_end_leaves_a_tunnel_that_works() {
    for caller in [A, B] {
        let mut world = World::with(9, |settings| settings[1 - caller].peer_address = None);
        world.run(SECOND);
        world.chat(10);
        let was = [A, B].map(|end| world.ends[end].peer_life());
        let true_one = world.restart(A);
        for _ in 0..100 {
            [A, B].into_iter().for_each(|end| world.say(end, b"who is there"));
            world.run(100 * MS);
        }
        world.put_back(A, true_one);
        for _ in 0..300 {
            [A, B].into_iter().for_each(|end| world.say(end, b"again"));
            world.run(100 * MS);
        }
        [A, B].into_iter().for_each(|end| drop(world.heard(end)));
        world.chat(10);
        let is = [A, B].map(|end| world.ends[end].peer_life());
        assert!(is[A] > was[A] && is[B] > was[B], "both machines begin anew: {was:?}, {is:?}");
        assert!(is[A] + is[B] <= was[A] + was[B] + 4, "and not for ever: {was:?}, {is:?}");
    }
}

#[test]
fn a_peer_that_waits_to_be_called_and_starts_again_is_called_soon() {
    let mut world = World::with(8, |settings| settings[B].peer_address = None);
    world.run(SECOND);
    world.restart(B);
    let begun = world.now;
    while world.ends[A].peer_life() < 2 {
        world.say(A, b"is anybody there");
        world.run(100 * MS);
        assert!(world.now < begun + 6 * SECOND, "nobody called");
    }
    world.heard(B);
    world.chat(10);
}

#[test]
fn a_peer_that_goes_says_so() {
    let mut world = World::new(9);
    world.run(SECOND);
    world.ends[A].close(world.now);
    world.silent[A] = true;
    world.flush(A);
    world.run(20 * MS);
    let standing = world.ends[B].standing(world.now);
    assert!(standing.is_closed_by_peer && standing.suite.is_none());
    let before = world.ends[B].counters().initiations_sent;
    world.run(60 * SECOND);
    let asked = world.ends[B].counters().initiations_sent - before;
    assert!((10..=18).contains(&asked), "{asked} in a minute");
}

#[test]
fn a_peer_that_falls_silent_shows_by_its_age() {
    let mut world = World::new(10);
    world.run(SECOND);
    world.silent[A] = true;
    world.run(5 * SECOND);
    world.ends[B].probe(world.now);
    world.run(SECOND);
    let age = world.ends[B].standing(world.now).heard_age.expect("it was heard once");
    assert!(age > 4 * SECOND);
    world.silent[A] = false;
    world.ends[B].probe(world.now);
    world.run(SECOND);
    let age = world.ends[B].standing(world.now).heard_age.expect("it was heard");
    assert!(age <= SECOND);
}

#[test]
fn an_idle_tunnel_is_quiet_unless_it_is_to_be_kept_open() {
    let mut world = World::new(11);
    world.run(30 * SECOND);
    world.sent = 0;
    world.run(60 * SECOND);
    assert!(world.sent <= 40, "only the path's size is verified: {}", world.sent);
    let mut world = World::with(12, |settings| settings[A].keepalive = Some(SECOND));
    world.run(30 * SECOND);
    world.sent = 0;
    world.run(60 * SECOND);
    assert!((55..=100).contains(&world.sent), "{}", world.sent);
}

#[test]
fn the_size_of_the_path_is_found() {
    let mut world = World::new(13);
    world.udp_bytes_max = 1400;
    world.run(20 * SECOND);
    // A sends by IPv6, B by IPv4: of an MTU of 1420 that leaves so much.
    assert_eq!(world.ends[A].standing(world.now).udp_bytes, 1420 - 48);
    assert_eq!(world.ends[A].datagram_bytes_max(), 1420 - 48 - 24);
    assert_eq!(world.ends[B].standing(world.now).udp_bytes, 1420 - 28);
    world.udp_bytes_max = 1300;
    world.run(40 * SECOND);
    assert!(world.ends[A].standing(world.now).udp_bytes <= 1300);
}

#[test]
fn an_end_whose_machine_slept_past_the_life_of_its_keys_begins_anew() {
    let mut world = World::new(14);
    world.run(SECOND);
    world.now += 3600 * SECOND;
    assert!(!world.ends[A].is_ready(world.now), "its keys are too old");
    world.run(SECOND);
    world.chat(5);
    assert_eq!(world.ends[A].peer_life(), 1, "it is the same life");
}

#[test]
fn who_has_another_key_gets_nowhere() {
    let mut world = World::with(15, |settings| {
        settings[A].peer = super::SecretKey::from_random([9; 32]).public();
    });
    world.run(20 * SECOND);
    assert!(!world.ends[A].is_ready(world.now) && !world.ends[B].is_ready(world.now));
    assert!(world.ends[B].counters().dropped_wrong_mac > 0, "of who called the wrong one");
    assert!(world.ends[A].counters().dropped_wrong_key > 0, "of a stranger");
    assert_eq!(world.last_dropped(A), Some(Dropped::WrongKey));
}
