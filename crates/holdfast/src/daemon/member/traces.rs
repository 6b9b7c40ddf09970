//! What a member has put into its host: kept there while it is needed, and removed
//! when it is not.

use super::{End, Node};
use crate::leavings::{self, Own, Removed};
use holdfast_linux::bpf::{Gate, TapDrop};
use std::time::{Duration, Instant};

/// How often programs are looked for.
const MEND_EVERY: Duration = Duration::from_millis(500);

impl Node<'_> {
    /// Removes what an earlier life of this member left that its new role has no
    /// use for: a gate of a former primary would hold back every answer.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn clear_earlier_life(&mut self, own: Own) -> anyhow::Result<()> {
        let removed = leavings::remove_earlier_life(self.config, self.me, own)?;
        self.note_removed(&removed);
        Ok(())
    }

    /// Now and then: puts the role's programs back if somebody has removed them.
    /// Without them nothing is held back, or the kernel answers for another member.
    pub fn mend(&mut self, own: Own) {
        let now = Instant::now();
        if now < self.mend_at {
            return;
        }
        self.mend_at = now + MEND_EVERY;
        let (interface, pins) = (&self.me.interface, self.pin_dir());
        let mended = match own {
            Own::Gate => Gate::mend(interface, &pins),
            Own::TapDrop => TapDrop::mend(interface, &pins),
        };
        match mended {
            Ok(missing) => {
                self.torn = None;
                for one in missing {
                    self.events.add("mended", format!("tc filter {one} had been removed"));
                }
            }
            Err(error) => self.torn = Some(format!("a program is gone: {error}")),
        }
    }

    /// The orderly end: a plain server may use the service address here from now on.
    pub(super) fn leave(&mut self, end: End) -> anyhow::Result<()> {
        leavings::forget_server(&self.config.group.run_dir, &self.me.name);
        if end == End::Silent {
            let what =
                "nobody has taken over yet: gate and address stay; `holdfast down` removes them";
            self.events.add("stopped", what);
            return Ok(());
        }
        let removed = leavings::remove_member(self.config, self.me)?;
        self.note_removed(&removed);
        self.events.add("stopped", "nothing of it is left on this host");
        Ok(())
    }

    pub(super) fn note_removed(&mut self, removed: &[Removed]) {
        for one in removed {
            self.events.add("removed", one.to_string());
        }
    }
}
