//! However many sockets and listeners a server has, it listens at its service after a takeover.

use crate::harness::{ask, compiled, observe, run_and_promote, wait_for};
use holdfast_wire::shm::mode;

const PORT: u16 = 16_470;
const MANY_PORT: u16 = 16_490;

#[test]
fn a_service_is_listened_at_after_a_takeover_though_it_came_last() {
    let Some(program) = compiled("places.c") else { return };
    let path = program.display().to_string();
    let load = || {
        wait_for(PORT);
        for _ in 0..40 {
            assert_eq!(ask(PORT, "x"), ["17 others"]);
        }
    };
    run_and_promote(&[&path, &PORT.to_string()], PORT, "places", load, || {
        wait_for(PORT);
        assert_eq!(ask(PORT, "x"), ["17 others"]);
    });
    let _ = std::fs::remove_file(program);
}

#[test]
fn a_service_with_more_addresses_than_could_be_taken_over_is_not_protected() {
    let Some(program) = compiled("places.c") else { return };
    let path = program.display().to_string();
    let outcome = observe(&[&path, "many", &MANY_PORT.to_string()], MANY_PORT, 0, "many", || {
        wait_for(MANY_PORT);
        assert_eq!(ask(MANY_PORT, "x"), ["17 others"]);
    });
    let (mode, reason) = outcome.primary;
    assert_eq!(mode, mode::BROKEN, "{}", outcome.said);
    assert!(reason.contains("more addresses of its service than 16"), "{reason}");
    let _ = std::fs::remove_file(program);
}
