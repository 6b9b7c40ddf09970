//! What output waits for: output commit, or one of FT-TCP's buffering modes.
//!
//! FT-TCP §5.2 measures three of them: *immediate*, where nobody waits for the backup;
//! *PR*, where packets and what reads returned are buffered there first; and *PRS*, where
//! results of system calls are, too. Packets wait by their acknowledgements (law L1), the
//! rest by the output that may depend on it (law L2).

use crate::log::{LAZY, Op, TAPPED};
use crate::shm::option::BUFFERING_SHIFT;

/// See the module. Each waits for what those behind it wait for, and for more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "std", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "std", serde(rename_all = "lowercase"))]
pub enum Buffering {
    /// Output commit: acknowledgements wait for packets, output for all that was logged.
    #[default]
    Commit,
    /// Output does not wait for the order in which threads took their locks, which is no
    /// system call and which FT-TCP does not have.
    Prs,
    /// Output waits for what the server has read of its clients, and for nothing else.
    Pr,
    /// Nothing waits.
    Immediate,
}

impl Buffering {
    /// All of them, the strictest first.
    pub const ALL: [Self; 4] = [Self::Commit, Self::Prs, Self::Pr, Self::Immediate];

    /// As the file says it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Prs => "prs",
            Self::Pr => "pr",
            Self::Immediate => "immediate",
        }
    }

    /// As the shim is told it.
    #[must_use]
    pub const fn option(self) -> u32 {
        (self as u32) << BUFFERING_SHIFT
    }

    /// What a shim with these options was told.
    #[must_use]
    pub const fn of_options(options: u32) -> Self {
        Self::ALL[(options >> BUFFERING_SHIFT) as usize % Self::ALL.len()]
    }

    /// Whether output waits until the backup holds such a record.
    #[must_use]
    pub const fn waits_for(self, op: Op, flags: u8) -> bool {
        match self {
            _ if flags & LAZY != 0 => false,
            Self::Commit => true,
            Self::Prs => !matches!(op, Op::Lock),
            Self::Pr => flags & TAPPED != 0,
            Self::Immediate => false,
        }
    }

    /// Whether acknowledgements wait until the backup holds the bytes.
    #[must_use]
    pub const fn holds_acks(self) -> bool {
        !matches!(self, Self::Immediate)
    }

    /// Whether clients may hold output of which the backup's log does not tell.
    #[must_use]
    pub const fn may_lose(self) -> bool {
        !matches!(self, Self::Commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_waits_for_what_the_next_one_does_and_for_more() {
        let records = [
            (Op::Read, TAPPED, [true, true, true, false]),
            (Op::Read, 0, [true, true, false, false]),
            (Op::Clock, 0, [true, true, false, false]),
            (Op::Accept, 0, [true, true, false, false]),
            (Op::Lock, 0, [true, false, false, false]),
            (Op::Intent, LAZY, [false; 4]),
        ];
        for (op, flags, waits) in records {
            let of = Buffering::ALL.map(|it| it.waits_for(op, flags));
            assert_eq!(of, waits, "{op:?}");
        }
        assert_eq!(Buffering::ALL.map(Buffering::holds_acks), [true, true, true, false]);
        assert_eq!(Buffering::ALL.map(Buffering::may_lose), [false, true, true, true]);
    }

    #[test]
    fn a_shim_understands_what_it_is_told() {
        for mode in Buffering::ALL {
            let others = crate::shm::option::TRAP_TSC;
            assert_eq!(Buffering::of_options(mode.option() | others), mode);
            assert_eq!(mode.option() & others, 0);
        }
        assert_eq!(
            Buffering::of_options(0),
            Buffering::Commit,
            "as it was before there were others"
        );
    }

    #[test]
    fn each_mode_has_its_word() {
        let words = ["commit", "prs", "pr", "immediate"];
        assert_eq!(Buffering::ALL.map(Buffering::word), words);
    }
}
