//! Acknowledgements that do not wait for the backup: FT-TCP's `immediate` (§5.2,
//! decision 32).

use super::{LogOutput, PrimaryHost};
use holdfast_wire::message::ConnId;
use holdfast_wire::seq::SeqNo;

/// They are ahead of what the backup holds by less: the largest window there is (RFC 7323
/// §2.3), and less than half of all sequence numbers.
const ACKS_AHEAD: u64 = 1 << 30;

impl<H: PrimaryHost> LogOutput<'_, H> {
    /// The backup holds what lies before `held`. Where nobody waits for that, the gate is
    /// told of more than any client can be ahead.
    pub(super) fn acknowledge(&mut self, conn: ConnId, held: SeqNo) {
        match self.host.member().buffering.holds_acks() {
            true => self.host.set_stable(conn, held),
            false => self.host.set_stable(conn, held.plus(ACKS_AHEAD)),
        }
    }

    /// A gate knows by itself that nothing is held of a connection that begins.
    pub(super) fn begin_acknowledging(&mut self, conn: ConnId) {
        if !self.host.member().buffering.holds_acks()
            && let Some(slot) = self.host.slot(conn)
        {
            self.acknowledge(conn, slot.irs.plus(1));
        }
    }
}
