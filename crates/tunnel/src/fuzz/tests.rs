//! The same on any toolchain: bytes at random, and bytes that tend to be small, which are the ones
//! that mean something.

use super::{decoder, headers, machine, parsers, secure};
use holdfast_chance::Rng;

/// Runs a target `times` with inputs of up to `len` bytes; how often it found what it looks for.
fn drive(times: u64, len: u64, mut target: impl FnMut(&[u8]) -> bool) -> u64 {
    let mut found = 0;
    for seed in 0..times {
        let mut rng = Rng::new(seed, 6);
        let span = [256, 256, 64, 8][seed as usize % 4];
        let bytes: Vec<u8> = (0..rng.below(len)).map(|_| rng.below(span) as u8).collect();
        found += u64::from(target(&bytes));
    }
    found
}

#[test]
fn what_was_understood_means_the_same_when_it_is_written_again() {
    drive(20_000, 200, |bytes| {
        parsers(bytes);
        true
    });
}

#[test]
fn packets_come_out_as_they_went_in_and_numbers_that_lie_make_nothing_grow() {
    drive(3000, 3000, |bytes| {
        headers(bytes);
        true
    });
}

#[test]
fn no_row_makes_a_wrong_byte_and_none_passes_a_limit() {
    let solved = drive(6000, 800, decoder);
    assert!(solved > 500, "only {solved} runs solved something");
}

#[test]
fn a_machine_survives_whatever_its_peer_says() {
    let given = drive(3000, 1500, |bytes| machine(bytes) > 0);
    assert!(given > 1500, "only {given} runs gave something inside");
}

#[test]
fn strangers_are_not_heard_and_get_no_more_than_they_give() {
    drive(1500, 400, |bytes| {
        secure(bytes);
        true
    });
}
