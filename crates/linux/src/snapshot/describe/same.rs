//! What processes share: the kernel compares it, in an order of its own (kcmp(2)).

use std::cmp::Ordering;

/// Types of the comparison.
const KCMP_FILE: u32 = 0;
const KCMP_VM: u32 = 1;

fn compare(kind: u32, (a, of_a): (u32, u32), (b, of_b): (u32, u32)) -> Ordering {
    // SAFETY: plain numbers.
    match unsafe { libc::syscall(libc::SYS_kcmp, a, b, kind, of_a, of_b) } {
        0 => Ordering::Equal,
        1 => Ordering::Less,
        _ => Ordering::Greater,
    }
}

/// Whether two of these processes have the same memory, as after vfork(2).
pub(in super::super) fn memory_is_shared(pids: &[u32]) -> bool {
    let mut pids = pids.to_vec();
    let by_memory = |a: &u32, b: &u32| compare(KCMP_VM, (*a, 0), (*b, 0));
    pids.sort_unstable_by(by_memory);
    pids.windows(2).any(|pair| by_memory(&pair[0], &pair[1]) == Ordering::Equal)
}

/// An open file in the kernel's order, so that one among millions is found in a few
/// steps.
pub(in super::super) struct Open {
    pub pid: u32,
    pub number: u32,
}

impl Ord for Open {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(KCMP_FILE, (self.pid, self.number), (other.pid, other.number))
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Open {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Open {}
