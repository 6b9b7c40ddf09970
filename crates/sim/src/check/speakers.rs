//! Law L3: in an epoch at most one member's packets pass the edge, and the epoch never goes back
//! to one of another member. (An edge whose disk was rolled back may use older numbers for the
//! same member.)

use crate::world::NAMES;
use std::collections::BTreeMap;

/// The speakers; see the module.
#[derive(Debug, Default)]
pub struct Speakers {
    speakers: BTreeMap<u64, usize>,
    epoch: u64,
}

impl Speakers {
    /// The newest epoch in which a member's packets have passed.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn passed(&mut self, member: usize, epoch: u64) -> Option<String> {
        if epoch < self.epoch && self.speakers.get(&self.epoch) != Some(&member) {
            return Some(format!("epoch {epoch} speaks after {}", self.epoch));
        }
        self.epoch = epoch.max(self.epoch);
        let speaker = *self.speakers.entry(epoch).or_insert(member);
        (speaker != member).then(|| {
            format!("{} and {} both speak in epoch {epoch}", NAMES[speaker], NAMES[member])
        })
    }
}
