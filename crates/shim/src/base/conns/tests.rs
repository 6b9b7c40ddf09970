use super::{entry, open};
use crate::base::state::Mode;
use crate::testing::attach;
use core::sync::atomic::{AtomicU32, Ordering::*};
use holdfast_wire::log::NO_CONN;
use holdfast_wire::shm::CONNS_MAX;

/// Number of looks at an entry that find a connection in it.
const LOOKS: u32 = 20_000;

#[test]
fn who_reads_an_entry_that_is_filled_meanwhile_sees_all_of_a_connection_or_none() {
    let _attached = attach(Mode::Record);
    let (e, looks, mut torn) = (entry(1), AtomicU32::new(0), 0);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut conn = 1_u32;
            while looks.load(Relaxed) < LOOKS {
                open(conn, conn as i32, u64::from(conn));
                conn = conn.wrapping_add(CONNS_MAX as u32);
            }
        });
        while looks.load(Relaxed) < LOOKS {
            let conn = e.conn.load(Acquire);
            let (socket, fd) = (e.socket.load(Acquire), e.fd.load(Acquire));
            if conn != NO_CONN && e.conn.load(Relaxed) == conn {
                torn += u32::from((socket, fd) != (u64::from(conn), conn as i32));
                looks.fetch_add(1, Relaxed);
            }
        }
    });
    assert_eq!(torn, 0);
}
