//! A plan as a paragraph.

use super::{MS, Plan};
use crate::sweep::Uneven;
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {} clients, {:?}", self.seed, self.clients.len(), self.path)?;
        for (number, client) in self.clients.iter().enumerate() {
            writeln!(f, "client {number}: {client:?}")?;
        }
        writeln!(
            f,
            "unattached {}, copies lost {} ‰, server pauses up to {:?} ns, {:?}, \
             {:?}, ring {} bytes, receive buffer {}, scale {}, load until {} ms",
            self.unattached,
            self.copy_loss_permille,
            self.server_pause,
            self.disk,
            self.limits,
            self.ring_bytes,
            self.receive_buffer,
            self.wscale,
            self.load_until / MS
        )?;
        writeln!(f, "{:?}, {:?}, {:?}, {:?}", self.clocks, self.joins, self.cold, self.rebuild)?;
        writeln!(f, "{:?}", self.buffering)?;
        if self.uneven != Uneven::default() {
            writeln!(f, "{:?}", self.uneven)?;
        }
        for (when, fault) in &self.faults {
            writeln!(f, "fault: {fault:?}, {when:?}")?;
        }
        Ok(())
    }
}
