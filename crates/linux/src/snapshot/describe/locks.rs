//! Locks on files, as `/proc/PID/fdinfo` lists them.

use holdfast_wire::snapshot::{Lock, LockOwner};

/// The locks that can be taken by the descriptor with this number and these flags; `None` where
/// one is of a kind that nobody can take again (a lease). The process's own are listed with each
/// of its descriptors of a file: those that do not permit one are left out.
pub(super) fn of(info: &str, number: u32, flags: u32) -> Option<Vec<Lock>> {
    let lines = info.lines().filter_map(|line| line.strip_prefix("lock:"));
    let locks: Option<Vec<Lock>> = lines.map(|line| lock(line, number)).collect();
    let mode = flags.cast_signed() & libc::O_ACCMODE;
    let may = |lock: &Lock| {
        lock.owner == LockOwner::Whole
            || mode == libc::O_RDWR
            || mode == if lock.is_exclusive { libc::O_WRONLY } else { libc::O_RDONLY }
    };
    Some(locks?.into_iter().filter(may).collect())
}

/// `1: POSIX  ADVISORY  WRITE 123 08:01:4711 0 EOF`
fn lock(line: &str, number: u32) -> Option<Lock> {
    let mut words = line.split_whitespace().skip(1);
    let owner = match words.next()? {
        "POSIX" => LockOwner::Process,
        "OFDLCK" => LockOwner::File,
        "FLOCK" => LockOwner::Whole,
        _ => return None,
    };
    let is_exclusive = match words.nth(1)? {
        "WRITE" => true,
        "READ" => false,
        _ => return None,
    };
    let start = words.nth(2)?.parse().ok()?;
    let last = match words.next()? {
        "EOF" => None,
        last => Some(last.parse().ok()?),
    };
    Some(Lock { number, owner, is_exclusive, start, last })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let info = "pos:\t0\nflags:\t0100002\n\
                    lock:\t1: POSIX  ADVISORY  WRITE 1234 08:01:4711 0 EOF\n\
                    lock:\t2: OFDLCK ADVISORY  READ -1 08:01:4711 5 9\n\
                    lock:\t3: FLOCK  ADVISORY  WRITE 1234 08:01:4711 0 EOF\n";
        let lock =
            |owner, is_exclusive, start, last| Lock { number: 7, owner, is_exclusive, start, last };
        let all = [
            lock(LockOwner::Process, true, 0, None),
            lock(LockOwner::File, false, 5, Some(9)),
            lock(LockOwner::Whole, true, 0, None),
        ];
        assert_eq!(of(info, 7, libc::O_RDWR as u32), Some(all.to_vec()));
        assert_eq!(of(info, 7, libc::O_RDONLY as u32), Some(all[1..].to_vec()));
        assert_eq!(of("lock:\t1: LEASE  ACTIVE    READ 1 08:01:1 0 EOF\n", 7, 2), None);
        assert_eq!(of("pos:\t0\n", 7, 2), Some(Vec::new()));
    }
}
