//! Whether a stopped thread may be copied where it stands, and how it goes on in
//! the image.

use super::SnapshotError;
use super::freeze::Frozen;
use crate::process;
use holdfast_wire::quiet::Stopped;
use holdfast_wire::snapshot::Books;
use libc::user_regs_struct;
use std::os::fd::BorrowedFd;
use std::time::Instant;

pub use holdfast_wire::quiet::Resume;

/// A stopped thread.
pub struct Standing<'a> {
    /// Its process, as numbered by the freezing process.
    pub pid: u32,
    pub tid: u32,
    pub registers: &'a user_regs_struct,
}

/// Bytes of the `syscall` instruction.
const SYSCALL_BYTES: u64 = 2;

impl Standing<'_> {
    /// What its registers say about a system call.
    #[must_use]
    pub fn call(&self) -> Stopped {
        let regs = self.registers;
        Stopped {
            rip: regs.rip,
            orig_rax: regs.orig_rax.cast_signed(),
            rax: regs.rax.cast_signed(),
            rdi: regs.rdi,
            rsi: regs.rsi,
        }
    }

    /// Reads memory of its process; fewer bytes where the mapping ends.
    #[must_use]
    pub fn read(&self, address: u64, into: &mut [u8]) -> usize {
        process::read_memory(self.pid, address, into).unwrap_or(0)
    }

    /// Its registers in the image.
    pub(super) fn resumed(&self, how: Resume) -> user_regs_struct {
        let (mut regs, call) = (*self.registers, self.call());
        match how {
            Resume::StartOver if call.has_not_happened() => {
                regs.rax = (-i64::from(libc::EINTR)).cast_unsigned();
            }
            Resume::TimeOut if call.has_not_happened() => {
                regs.rax = (-i64::from(libc::ETIMEDOUT)).cast_unsigned();
            }
            Resume::AsIs if call.starts_over() => {
                regs.rax = regs.orig_rax;
                regs.rip -= SYSCALL_BYTES;
            }
            _ => {}
        }
        regs.orig_rax = u64::MAX;
        regs
    }
}

/// Knows when a process is quiet: its shim's daemon, or nobody ([`Bare`]).
pub trait Quiescence {
    /// Threads are about to be stopped: asks them to be quiet, and waits as long as
    /// they look otherwise, up to `deadline`.
    fn ask(&mut self, _deadline: Instant) {}

    /// All threads stand, and are looked at next.
    ///
    /// # Errors
    /// There is no image then; the process runs on.
    fn stopped(&mut self) -> Result<(), SnapshotError> {
        Ok(())
    }

    /// How a stopped thread goes on in an image. `None`: it must run on for a moment.
    fn look(&mut self, thread: &Standing<'_>) -> Option<Resume>;

    /// All threads stand and are quiet: does what must happen exactly here, and returns
    /// the books for the image.
    ///
    /// # Errors
    /// There is no image then; the process runs on.
    fn reached(&mut self, _frozen: &Frozen) -> Result<Option<Books>, SnapshotError> {
        Ok(None)
    }

    /// The threads run again.
    fn end(&mut self) {}

    /// The processes run again: lends the descriptor of one of the books' connections for
    /// a moment, if it is still open. `pid` is the number of its process in that process's
    /// own pid namespace.
    fn lend(&mut self, _pid: u32, _number: u32, _look: &mut dyn FnMut(BorrowedFd<'_>)) {}

    /// There is no image of this stop. It may be asked again, at a better moment.
    fn failed(&mut self) {}
}

/// A process without the shim: a thread may be copied anywhere.
pub struct Bare;

impl Quiescence for Bare {
    fn look(&mut self, _: &Standing<'_>) -> Option<Resume> {
        Some(Resume::AsIs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regs(call: i64, result: i64) -> user_regs_struct {
        // SAFETY: the structure is plain numbers.
        let mut regs: user_regs_struct = unsafe { std::mem::zeroed() };
        regs.orig_rax = call.cast_unsigned();
        regs.rax = result.cast_unsigned();
        regs.rip = 0x1002;
        regs
    }

    #[test]
    fn an_interrupted_call_goes_on_as_it_is_told() {
        let cases = [
            // In turn: starts over; starts a block from its beginning; answers EINTR;
            // had happened.
            (-512, Resume::AsIs, 7, 0x1000),
            (-516, Resume::AsIs, 7, 0x1000),
            (-4, Resume::AsIs, -4, 0x1002),
            (3, Resume::AsIs, 3, 0x1002),
            (3, Resume::StartOver, 3, 0x1002),
            (-514, Resume::StartOver, -4, 0x1002),
            (-512, Resume::TimeOut, -110, 0x1002),
        ];
        for (result, how, rax, rip) in cases {
            let registers = regs(7, result);
            let after = Standing { pid: 1, tid: 1, registers: &registers }.resumed(how);
            assert_eq!((after.rax.cast_signed(), after.rip), (rax, rip), "{result} {how:?}");
            assert_eq!(after.orig_rax, u64::MAX);
        }
        // Outside of any call the number in rax means nothing.
        let registers = regs(-1, -512);
        let after = Standing { pid: 1, tid: 1, registers: &registers }.resumed(Resume::AsIs);
        assert_eq!((after.rax.cast_signed(), after.rip), (-512, 0x1002));
    }
}
