//! Acknowledgements that do not wait for the backup: FT-TCP's `immediate` (§5.2,
//! decision 32).

use super::{LogOutput, PrimaryHost};
use holdfast_wire::message::ConnId;
use holdfast_wire::seq::SeqNo;

/// Bytes by which the gate may acknowledge ahead of the backup: the largest window there is (RFC
/// 7323 §2.3), and less than half of the sequence numbers.
const ACKS_AHEAD: u64 = 1 << 30;

impl<H: PrimaryHost> LogOutput<'_, H> {
    /// Tells the gate that the backup holds what lies before `held`. Where ACKs do not wait for
    /// that, the gate is told of more than any client can have sent.
    pub(super) fn acknowledge(&mut self, conn: ConnId, held: SeqNo) {
        match self.host.member().buffering.holds_acks() {
            true => self.host.set_stable(conn, held),
            false => self.host.set_stable(conn, held.plus(ACKS_AHEAD)),
        }
    }

    /// Lets ACKs of a new connection go ahead, too; where they wait, the gate knows by itself that
    /// nothing is held yet.
    pub(super) fn begin_acknowledging(&mut self, conn: ConnId) {
        if !self.host.member().buffering.holds_acks()
            && let Some(slot) = self.host.slot(conn)
        {
            self.acknowledge(conn, slot.irs.plus(1));
        }
    }
}
