//! A descriptor may be in an epoll set of each thread of a large server. What is beyond the
//! shim's limit is refused, and never lost.

use crate::harness::{ask, compiled, run_and_promote, wait_for};

const PORT: u16 = 16_452;
/// Each client is accepted through the next set, so these see all of them.
const CLIENTS: usize = 130;

fn ask_through_every_set() {
    let expected = format!("128 sets, errno {}, 1", libc::ENOSPC);
    for client in 0..CLIENTS {
        assert_eq!(ask(PORT, "x"), [expected.as_str()], "client {client}");
    }
}

#[test]
fn a_listener_in_many_epoll_sets_is_reported_by_each_before_and_after_a_takeover() {
    let Some(program) = compiled("sets.c") else { return };
    let path = program.display().to_string();
    let load = || {
        wait_for(PORT);
        ask_through_every_set();
    };
    run_and_promote(&[&path, &PORT.to_string()], PORT, "sets", load, ask_through_every_set);
    let _ = std::fs::remove_file(program);
}
