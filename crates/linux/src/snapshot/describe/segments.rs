//! SysV segments as the kernel lists them, in the IPC namespace of the processes that have them
//! attached. A family under the shim has a namespace of its own: everything in it is the family's,
//! and what cannot be made again is refused. In a namespace that others share, what it has attached
//! must be its own.

use super::super::bounds::list;
use super::super::error::{Doing, Result};
use super::shared::Objects;
use super::{MODE, Refusals};
use crate::sockopt::checked;
use holdfast_wire::snapshot::{ObjectKind, Segment};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;

/// Bits of `shm_perm.mode`: the kernel tells of removed and of locked segments so.
const REMOVED: u32 = 0o1000;
const LOCKED: u32 = 0o2000;

/// What an IPC namespace has.
struct Listed {
    segments: Vec<Row>,
    has_semaphores: bool,
    has_queues: bool,
}

/// A line of /proc/sysvipc/shm.
struct Row {
    segment: Segment,
    is_locked: bool,
    attached: u64,
}

/// Completes the segments that were found attached, and refuses what there is besides; `pid` is one
/// of the processes.
pub(in super::super) fn complete(
    objects: &mut Objects,
    pid: u32,
    refusals: &mut Refusals,
) -> Result<()> {
    let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/ipc"));
    let what = "its IPC namespace";
    // Without the kernel's support nobody has anything of the kind.
    let (Ok(theirs), Ok(own)) = (of(&pid.to_string()), of("self")) else { return Ok(()) };
    let is_own = theirs != own;
    if !is_own && objects.segments.is_empty() {
        return Ok(());
    }
    let listed = look(pid).doing(what)?;
    for row in &listed.segments {
        let id = row.segment.id;
        match objects.segments.get(&id.into()) {
            Some((number, attached)) => {
                refusals.add_if(row.is_locked, "it has locked SysV shared memory (SHM_LOCK)");
                let shared = *attached != row.attached;
                refusals.add_if(shared, "others have its SysV shared memory attached, too");
                objects.objects[*number as usize].kind = ObjectKind::Segment(row.segment);
            }
            None if is_own => refusals.add(format!(
                "it has SysV shared memory that no process has attached (number {id})"
            )),
            None => {}
        }
    }
    let is_listed = |id: &u64| listed.segments.iter().any(|row| u64::from(row.segment.id) == *id);
    let is_whole = objects.segments.keys().all(is_listed);
    refusals.add_if(!is_whole, "its SysV shared memory is of another IPC namespace");
    refusals.add_if(is_own && listed.has_semaphores, "it has SysV semaphores (semget)");
    refusals.add_if(is_own && listed.has_queues, "it has SysV message queues (msgget)");
    Ok(())
}

/// Reads the lists; they are those of the thread that opens them.
fn look(pid: u32) -> io::Result<Listed> {
    let namespace = File::open(format!("/proc/{pid}/ns/ipc"))?;
    std::thread::scope(|scope| {
        let asks = std::thread::Builder::new().spawn_scoped(scope, || {
            // SAFETY: plain numbers.
            checked(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWIPC) })?;
            let lines = |name: &str| -> io::Result<Vec<String>> {
                let bytes = list(&format!("/proc/sysvipc/{name}"))?;
                let text = String::from_utf8_lossy(&bytes);
                // The first one names the columns.
                Ok(text.lines().skip(1).map(str::to_owned).collect())
            };
            let rows: Option<Vec<Row>> = lines("shm")?.iter().map(|line| row(line)).collect();
            Ok(Listed {
                segments: rows.ok_or(io::ErrorKind::InvalidData)?,
                has_semaphores: !lines("sem")?.is_empty(),
                has_queues: !lines("msg")?.is_empty(),
            })
        })?;
        asks.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    })
}

/// Columns: key, number, permissions in octal, size, two processes, attaches, user, group, and
/// more.
fn row(line: &str) -> Option<Row> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| words.get(at)?.parse::<u32>().ok();
    let mode = u32::from_str_radix(words.get(2)?, 8).ok()?;
    let segment = Segment {
        id: number(1)?,
        key: words.first()?.parse::<i32>().ok()?.cast_unsigned(),
        mode: mode & MODE,
        owner: (number(7)?, number(8)?),
        is_removed: mode & REMOVED != 0,
    };
    let attached = words.get(6)?.parse().ok()?;
    Some(Row { segment, is_locked: mode & LOCKED != 0, attached })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let line = "-559038737      32769  3600                   56    12     0      3   102   104   \
                    0     0 1795786029          0 1795786029         4096             0";
        let found = row(line).expect("a line");
        let known = Segment {
            id: 32769,
            key: 0xdead_beef,
            mode: 0o600,
            owner: (102, 104),
            is_removed: true,
        };
        assert_eq!((found.segment, found.attached, found.is_locked), (known, 3, true));
        assert!(row(&line[..40]).is_none() && row("").is_none());
    }
}
