//! Whether a stopped thread may be photographed where it stands, and how it goes on
//! in the image.

use super::SnapshotError;
use super::freeze::Frozen;
use crate::process;
use libc::user_regs_struct;

/// In the image; in the original a thread goes on as it would have. `AsIs`: an
/// interrupted system call is made again if the kernel would start it over by itself
/// (with its full time, if it has one), else it answers `EINTR`.
pub use holdfast_wire::quiet::Resume;

/// What was found of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Quiet(Resume),
    /// It is to run on for a moment.
    Busy,
}

/// A thread that stands.
pub struct Standing<'a> {
    /// As whoever froze it numbers it.
    pub pid: u32,
    pub tid: u32,
    pub registers: &'a user_regs_struct,
}

/// Numbers of the kernel's own, from -512 on: a call that starts over by itself.
const RESTARTS: std::ops::RangeInclusive<i64> = -514..=-512;
/// One that has a restart block, which an image has not.
const RESTARTS_BY_BLOCK: i64 = -516;
/// Bytes of the `syscall` instruction.
const SYSCALL_BYTES: u64 = 2;

impl Standing<'_> {
    /// The system call that it was interrupted in before anything happened.
    #[must_use]
    pub fn sleeps_in(&self) -> Option<i64> {
        let (call, result) = (self.registers.orig_rax.cast_signed(), self.result());
        let undone = RESTARTS.contains(&result)
            || result == RESTARTS_BY_BLOCK
            || result == -i64::from(libc::EINTR);
        (call >= 0 && undone).then_some(call)
    }

    fn result(&self) -> i64 {
        self.registers.rax.cast_signed()
    }

    /// Memory of its process; fewer bytes where it ends.
    #[must_use]
    pub fn read(&self, address: u64, into: &mut [u8]) -> usize {
        process::read_memory(self.pid, address, into).unwrap_or(0)
    }

    /// Its registers in the image.
    pub(super) fn resumed(&self, how: Resume) -> user_regs_struct {
        let mut regs = *self.registers;
        if self.sleeps_in().is_some() {
            match how {
                Resume::StartOver => regs.rax = (-i64::from(libc::EINTR)).cast_unsigned(),
                Resume::TimeOut => regs.rax = (-i64::from(libc::ETIMEDOUT)).cast_unsigned(),
                Resume::AsIs => {
                    if self.result() != -i64::from(libc::EINTR) {
                        regs.rax = regs.orig_rax;
                        regs.rip -= SYSCALL_BYTES;
                    }
                }
            }
        }
        regs.orig_rax = u64::MAX;
        regs
    }
}

/// Who knows when a process is quiet: the shim's side, or nobody ([`Bare`]).
pub trait Quiescence {
    /// The threads are about to be stopped.
    fn begin(&mut self) {}
    /// Looks at a thread that stands.
    fn look(&mut self, thread: &Standing<'_>) -> Look;
    /// All stand and are quiet: what must happen exactly here.
    ///
    /// # Errors
    /// There is no image then; the process runs on.
    fn reached(&mut self, _frozen: &Frozen) -> Result<(), SnapshotError> {
        Ok(())
    }
    /// The threads run again.
    fn end(&mut self) {}
}

/// A process without the shim: a thread may be photographed anywhere.
pub struct Bare;

impl Quiescence for Bare {
    fn look(&mut self, _: &Standing<'_>) -> Look {
        Look::Quiet(Resume::AsIs)
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
            // Starts over; by a block, from its beginning; answers EINTR; had happened.
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
