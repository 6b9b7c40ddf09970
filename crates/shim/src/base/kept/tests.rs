use crate::base::conns::{drop_ref, entry, keep, open, wrote};
use crate::base::state::Mode;
use crate::testing::attach;
use core::sync::atomic::Ordering::*;
use holdfast_wire::shm::ConnEntry;

const BYTES: u64 = 100_000;
const NO_FD: i32 = -1;

fn served(conn: u32) -> &'static ConnEntry {
    open(conn, NO_FD, 0);
    keep(conn, &[7; BYTES as usize]);
    entry(conn)
}

fn keeps(e: &ConnEntry) -> bool {
    e.keep_addr.load(Relaxed) != 0
}

#[test]
fn what_the_client_has_is_not_kept_for_a_closed_connection() {
    let _attached = attach(Mode::Replay);
    let acknowledged = served(1);
    acknowledged.acked_bytes.store(BYTES, Release);
    drop_ref(1, NO_FD);
    assert!(!keeps(acknowledged));
}

#[test]
fn what_a_client_does_not_take_is_kept_and_holds_up_no_other() {
    let _attached = attach(Mode::Replay);
    let never = served(1);
    drop_ref(1, NO_FD);
    let late: Vec<_> = (2..200).map(served).collect();
    for conn in 2..200 {
        drop_ref(conn, NO_FD);
    }
    assert!(late.iter().all(|e| keeps(e)), "no client has anything");
    for e in &late {
        e.acked_bytes.store(BYTES, Release);
    }
    for conn in 200..400 {
        served(conn).acked_bytes.store(BYTES, Release);
        drop_ref(conn, NO_FD);
    }
    assert!(!late.iter().any(|e| keeps(e)));
    assert!(keeps(never), "its client may ask for it still");
}

#[test]
fn a_replica_that_is_the_server_now_keeps_nothing() {
    let attached = attach(Mode::Replay);
    let (open, closed) = (served(1), served(2));
    drop_ref(2, NO_FD);
    assert!(keeps(open) && keeps(closed));
    attached.become_mode(Mode::Record);
    wrote(1, 5);
    drop_ref(1, NO_FD);
    served(3);
    drop_ref(3, NO_FD);
    assert!(!keeps(open) && !keeps(closed));
}

#[test]
fn the_kept_lies_where_the_servers_maps_do_not() {
    let _attached = attach(Mode::Replay);
    let address = served(1).keep_addr.load(Relaxed) as usize;
    let region = super::REGION..super::REGION + super::REGION_BYTES;
    assert!(region.contains(&address), "{address:#x}");
    drop_ref(1, NO_FD);
}
