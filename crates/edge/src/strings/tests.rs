//! Failures and returns of one string and of many, as seen by one edge or by both.

use super::*;
use proptest::prelude::*;

const MBIT: u64 = 125_000;

fn machine(mode: Mode, capacities: &[u64]) -> Strings {
    let config = StringsConfig { mode, capacities_bytes_per_s: capacities.to_vec() };
    let mut strings = Strings::new(config, all(capacities.len()));
    assert!(matches!(drain(&mut strings)[..], [StringsEvent::Table(_)]));
    strings
}

fn drain(strings: &mut Strings) -> Vec<StringsEvent> {
    std::iter::from_fn(|| strings.poll_event()).collect()
}

fn parts(table: &Table) -> [usize; STRINGS_MAX] {
    let mut counts = [0; STRINGS_MAX];
    for slot in table.slots {
        counts[usize::from(slot)] += 1;
    }
    counts
}

#[test]
fn a_dead_string_is_replaced_in_order() {
    let mut strings = machine(Mode::ActiveBackup, &[100 * MBIT, 50 * MBIT]);
    assert_eq!(parts(&strings.table())[0], SLOTS);
    strings.handle_suspected(0);
    assert_eq!(drain(&mut strings), [StringsEvent::Suspected(0)]);
    assert!(strings.is_in_doubt());
    strings.handle_silent(0);
    let events = drain(&mut strings);
    let table = strings.table();
    assert_eq!((table.usable, parts(&table)[1]), (0b10, SLOTS));
    assert_eq!(
        events,
        [
            StringsEvent::Declared { string: 0, by_peer: false },
            StringsEvent::Table(Box::new(table)),
            StringsEvent::Restored { strings: 0b01 },
            StringsEvent::Capacity { bytes_per_s: 50 * MBIT, full_bytes_per_s: 100 * MBIT },
        ]
    );
    assert!(!strings.is_in_doubt());
    assert_eq!(strings.lost(), 0b01);
}

#[test]
fn a_string_that_carries_packets_is_not_behind_the_others() {
    let mut strings = machine(Mode::ActiveBackup, &[MBIT, MBIT]);
    for _ in 0..AHEAD_BEATS {
        strings.handle_beat(1, 0, false);
    }
    // The string's queue has swallowed its heartbeats.
    strings.handle_traffic(0);
    strings.handle_silent(0);
    assert_eq!((drain(&mut strings), strings.lost()), (vec![], 0));
    for _ in 0..AHEAD_BEATS {
        strings.handle_beat(1, 0, false);
    }
    assert_eq!(strings.lost(), 0b01, "and nothing came since");
}

#[test]
fn a_string_returns_after_some_heartbeats_in_a_row() {
    let mut strings = machine(Mode::ActiveBackup, &[MBIT, MBIT]);
    strings.handle_silent(0);
    drain(&mut strings);
    for _ in 1..RETURN_BEATS {
        strings.handle_beat(0, 0, false);
    }
    strings.handle_silent(0);
    for _ in 1..RETURN_BEATS {
        strings.handle_beat(0, 0, false);
    }
    assert_eq!(drain(&mut strings), []);
    strings.handle_beat(0, 0, false);
    let table = strings.table();
    assert_eq!(parts(&table)[0], SLOTS);
    assert_eq!(
        drain(&mut strings),
        [StringsEvent::Returned(0), StringsEvent::Table(Box::new(table))]
    );
}

#[test]
fn what_the_other_edge_does_not_hear_is_dead_here_too() {
    let mut strings = machine(Mode::ActiveActive, &[MBIT, MBIT, MBIT]);
    strings.handle_beat(2, 0b010, false);
    let events = drain(&mut strings);
    assert_eq!(events[0], StringsEvent::Declared { string: 1, by_peer: true });
    assert_eq!((strings.usable(), strings.lost()), (0b101, 0));
    assert_eq!(strings.word(1), "unheard");
    strings.handle_beat(0, 0, false);
    assert_eq!(drain(&mut strings)[0], StringsEvent::Returned(1));
    // One direction of one string fails, and the other direction of the other, so that no string
    // works.
    let mut strings = machine(Mode::ActiveActive, &[MBIT, MBIT]);
    strings.handle_silent(0);
    strings.handle_beat(1, 0b10, false);
    assert_eq!(strings.usable(), 0);
    assert!(strings.is_in_doubt());
    drain(&mut strings);
    strings.handle_beat(1, 0, false);
    let events = drain(&mut strings);
    assert!(events.contains(&StringsEvent::Restored { strings: 0b11 }), "{events:?}");
}

#[test]
fn silence_on_all_strings_kills_none() {
    let mut strings = machine(Mode::ActiveActive, &[MBIT, MBIT]);
    for string in [0, 1] {
        strings.handle_suspected(string);
    }
    drain(&mut strings);
    strings.handle_silent(0);
    assert_eq!(drain(&mut strings), []);
    strings.handle_silent(1);
    assert_eq!(drain(&mut strings), [StringsEvent::AllSilent]);
    assert_eq!(strings.usable(), 0b11);
    assert!(strings.is_in_doubt());
    strings.handle_beat(1, 0, false);
    // Packets that went into the other string are not resent before it is heard again.
    let restored = |strings| StringsEvent::Restored { strings };
    assert_eq!(drain(&mut strings), [StringsEvent::Renew(0), restored(0b10)]);
    assert!(strings.is_in_doubt());
    assert_eq!(strings.word(0), "silent");
    strings.handle_beat(0, 0, false);
    assert_eq!(drain(&mut strings), [restored(0b01)]);
    assert!(!strings.is_in_doubt());
}

/// Two strings, on both of which there is silence.
fn silent() -> Strings {
    let mut strings = machine(Mode::ActiveBackup, &[MBIT, MBIT]);
    for string in [0, 1] {
        strings.handle_suspected(string);
    }
    for string in [0, 1] {
        strings.handle_silent(string);
    }
    assert!(strings.is_all_silent());
    drain(&mut strings);
    strings
}

#[test]
fn whoever_stays_silent_when_others_are_back_is_dead() {
    let mut strings = silent();
    for _ in 0..AHEAD_BEATS {
        strings.handle_beat(1, 0, false);
    }
    drain(&mut strings);
    strings.handle_suspected(0);
    strings.handle_silent(0);
    let events = drain(&mut strings);
    assert_eq!(events[0], StringsEvent::Declared { string: 0, by_peer: false });
    assert_eq!(events[2], StringsEvent::Restored { strings: 0b01 });
    assert_eq!((strings.usable(), strings.heir()), (0b10, Some(1)));
}

#[test]
fn nothing_is_resent_into_a_string_that_is_not_heard_yet() {
    let mut strings = silent();
    // The other edge has heard one more heartbeat through string 1 than through 0.
    strings.handle_beat(0, 0b01, false);
    assert_eq!(strings.usable(), 0b10);
    let is_restored = |event: &StringsEvent| matches!(event, StringsEvent::Restored { .. });
    assert!(!drain(&mut strings).iter().any(is_restored));
    strings.handle_beat(1, 0b01, false);
    let mut events = drain(&mut strings);
    events.retain(is_restored);
    assert_eq!(events, [StringsEvent::Restored { strings: 0b11 }]);
}

#[test]
fn a_short_outage_is_over_without_a_verdict() {
    for missed in [false, true] {
        let mut strings = machine(Mode::ActiveBackup, &[MBIT, MBIT]);
        strings.handle_suspected(0);
        strings.handle_beat(0, 0, missed);
        let restored = StringsEvent::Restored { strings: 0b01 };
        // A heartbeat that was only late does not mean that anything was lost.
        assert_eq!(drain(&mut strings).contains(&restored), missed);
    }
}

#[test]
fn a_string_is_not_dead_for_one_heartbeat_that_another_is_ahead() {
    let mut strings = machine(Mode::ActiveActive, &[MBIT, MBIT]);
    for string in [1, 0] {
        strings.handle_beat(string, 0, false);
    }
    // The other edge's daemon dies in the middle of its round.
    strings.handle_silent(1);
    assert_eq!(drain(&mut strings), []);
    strings.handle_suspected(0);
    strings.handle_silent(0);
    assert_eq!(drain(&mut strings), [StringsEvent::Suspected(0), StringsEvent::AllSilent]);
    // Here the other edge's daemon lives, and only string 1 is silent.
    let mut strings = machine(Mode::ActiveActive, &[MBIT, MBIT]);
    for string in [1, 0, 0] {
        strings.handle_beat(string, 0, false);
    }
    strings.handle_silent(1);
    assert_eq!(strings.usable(), 0b01);
}

#[test]
fn the_last_string_is_not_given_up_for_a_silent_daemon() {
    let mut strings = machine(Mode::ActiveBackup, &[MBIT, MBIT]);
    strings.handle_silent(0);
    strings.handle_suspected(1);
    strings.handle_silent(1);
    assert_eq!((strings.usable(), strings.is_all_silent()), (0b10, true));
    // A restarted daemon keeps what the kernel has.
    let config =
        StringsConfig { mode: Mode::ActiveBackup, capacities_bytes_per_s: vec![MBIT, MBIT] };
    let mut strings = Strings::new(config, 0b10);
    assert_eq!((strings.usable(), strings.lost()), (0b10, 0b01));
    for _ in 0..RETURN_BEATS {
        strings.handle_beat(0, 0, false);
        strings.handle_beat(1, 0, false);
    }
    assert_eq!(strings.usable(), 0b11);
}

/// Flows share what is left from the first moment on.
#[test]
fn who_begins_with_strings_that_are_out_tells_how_much_is_left() {
    for (usable, expected) in [(0b11, None), (0b10, Some(50 * MBIT))] {
        let capacities_bytes_per_s = vec![100 * MBIT, 50 * MBIT];
        let config = StringsConfig { mode: Mode::ActiveBackup, capacities_bytes_per_s };
        let mut strings = Strings::new(config, usable);
        let told = expected.map(|bytes_per_s| StringsEvent::Capacity {
            bytes_per_s,
            full_bytes_per_s: 100 * MBIT,
        });
        assert_eq!(drain(&mut strings)[1..], told.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn parts_are_in_proportion_and_only_those_of_the_dead_move() {
    let mut strings = machine(Mode::ActiveActive, &[100 * MBIT, 50 * MBIT, 50 * MBIT]);
    let before = strings.table();
    assert_eq!(parts(&before)[..3], [128, 64, 64]);
    strings.handle_silent(0);
    let after = strings.table();
    assert_eq!(parts(&after)[..3], [0, 128, 128]);
    for (old, new) in before.slots.iter().zip(after.slots) {
        assert!(*old == 0 || *old == new);
    }
}

proptest! {
    #[test]
    fn nothing_goes_to_a_string_that_may_not_be_used(
        weights in proptest::collection::vec(1_u64..1_000_000_000_000, 2..=STRINGS_MAX),
        steps in proptest::collection::vec((0_usize..STRINGS_MAX, 0_u8..3, 0_u32..256), 0..60),
        backup: bool,
    ) {
        let mode = if backup { Mode::ActiveBackup } else { Mode::ActiveActive };
        let mut strings = machine(mode, &weights);
        let mut in_force = strings.table();
        for (string, what, mask) in steps {
            let string = string % weights.len();
            match what {
                0 => strings.handle_suspected(string),
                1 => strings.handle_silent(string),
                _ => strings.handle_beat(string, if mask < 200 { 0 } else { mask }, mask % 2 == 1),
            }
            for event in drain(&mut strings) {
                if let StringsEvent::Table(table) = event {
                    in_force = *table;
                }
            }
            prop_assert_eq!(&in_force, &strings.table());
            prop_assert_eq!(in_force.usable, strings.usable());
            if in_force.usable != 0 {
                prop_assert!(in_force.slots.iter().all(|slot| in_force.usable >> slot & 1 == 1));
            }
            // Silence alone never closes the group.
            prop_assert!(strings.lost() != all(weights.len()));
        }
    }
}

#[test]
fn a_string_is_called_by_what_is_known_of_it() {
    let mut strings = machine(Mode::ActiveActive, &[MBIT; 3]);
    let words = |strings: &Strings| [0, 1, 2].map(|string| strings.word(string));
    assert_eq!(words(&strings), ["alive"; 3]);
    strings.handle_suspected(0);
    strings.handle_beat(1, 0b100, false);
    assert_eq!(words(&strings), ["suspected", "alive", "unheard"]);
    // What is dead here is so whatever the other edge hears.
    let mut strings = machine(Mode::ActiveBackup, &[MBIT, MBIT]);
    strings.handle_silent(0);
    strings.handle_suspected(1);
    strings.handle_silent(1);
    assert_eq!([0, 1].map(|string| strings.word(string)), ["dead", "silent"]);
}
