//! Tests of output that the server has written and the client has.

use super::*;
use crate::ACK_SLACK_BYTES;

/// The primary may report it later.
#[test]
fn a_client_may_acknowledge_all_that_the_server_has_written() {
    for is_written in [false, true] {
        let mut case = Case::accepted();
        let bytes = 2 * ACK_SLACK_BYTES;
        if is_written {
            case.frame(&record(Op::Written, 1, 0, i64::from(bytes), 0, b""));
        }
        case.take();
        let ack = conn_record().iss.plus(1 + u64::from(bytes));
        let segment = TcpPacket { ack, ..segment(0, b"abc") };
        case.backup.handle_segment(Nanos(0), &segment, &mut case.notes);
        case.flush();
        assert_eq!(case.take().contains(&held(3)), is_written);
    }
}
