//! The stub's own program. Where a process's new areas of memory lie the kernel decides when the
//! process starts a program, and a stub is forked from the daemon, whose place is random. So a
//! stub whose original has no random addresses starts a program, too: what it maps later lies
//! where it lies in the original.

use super::super::error::{Doing, Result, SnapshotError, refuse};
use super::remote::{CODE, PLACE_USED, Remote, poke};
use super::within;
use crate::sockopt::{checked, checked_fd};
use holdfast_wire::snapshot::{Area, Backing, Description, Layout, Member, PAGE};
use libc::c_long;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

/// What decides, besides the stack's limit, where the kernel places things.
const PLACING: u32 = (libc::ADDR_NO_RANDOMIZE | libc::ADDR_COMPAT_LAYOUT).cast_unsigned();

/// Offset of the program behind the stub's place, between what that uses and what is kept there.
const AT: u64 = 0x8000;
/// Sizes of an ELF file's headers: the code follows them.
const HEADER: u16 = 64;
const SEGMENT: u16 = 56;
const CODE_AT: u64 = (HEADER + SEGMENT) as u64;
/// Longest time for which the kernel runs no program because somebody may write it, in ms: a
/// process that another thread here has forked holds all files until it runs its own program.
const WRITTEN_MAX_MS: usize = 2000;

/// Where new areas lie: this far below the end of the addresses, and the stack's limit with the
/// gap below the stack between these bounds (`mmap_base` of the kernel).
const ADDRESS_END: u64 = 0x7fff_ffff_f000;
const GAP_MIN: u64 = 128 << 20;
const GAP_MAX: u64 = ADDRESS_END / 6 * 5;
const STACK_GUARD: u64 = 256 * PAGE;

/// Offset of the trap behind the system call in [`CODE`].
const TRAP: u64 = 2;

/// Has stubs start the program where that is of use, and gives their descriptors what is lost by
/// starting one: those that close then.
pub(super) fn start(stubs: &mut [Remote], of: &Description) -> Result<()> {
    let mut program = None;
    for (stub, member) in stubs.iter_mut().zip(&of.members) {
        if member.process.personality & PLACING != 0 {
            let program = match &program {
                Some(program) => program,
                None => program.insert(file(stub.place + AT).doing("the stub's program")?),
            };
            if let Some(program) = program {
                run(stub, member, program)?;
            }
        }
        close_on_exec(stub, member)?;
    }
    Ok(())
}

/// A memory file with the program, which nobody can write any more: the kernel runs no other.
/// `None` where this host runs none at all (`vm.memfd_noexec`): a copy is worth more than its place.
fn file(at: u64) -> io::Result<Option<File>> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_EXEC;
    // SAFETY: the kernel reads a C string.
    let fd = unsafe { libc::memfd_create(c"stub".as_ptr(), flags) };
    let mut whole = match checked_fd(c_long::from(fd)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        made => File::from(made?),
    };
    whole.write_all(&elf(at))?;
    super::super::names::again(whole.as_fd(), libc::O_RDONLY).map(|it| Some(File::from(it)))
}

/// A program of one page at a fixed address: it stops for its tracer, and makes system calls.
fn elf(at: u64) -> Vec<u8> {
    let (executable, x86_64, version, load, readable_code) = (2u16, 62u16, 1u32, 1u32, 5u32);
    let bytes = CODE_AT + CODE.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    elf.extend(executable.to_le_bytes());
    elf.extend(x86_64.to_le_bytes());
    elf.extend(version.to_le_bytes());
    // Where it begins, and where its segments and sections (none) are described; flags.
    for word in [at + CODE_AT + TRAP, HEADER.into(), 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(0u32.to_le_bytes());
    for size_or_count in [HEADER, SEGMENT, 1, 0, 0, 0] {
        elf.extend(size_or_count.to_le_bytes());
    }
    elf.extend(load.to_le_bytes());
    elf.extend(readable_code.to_le_bytes());
    for word in [0, at, at, bytes, bytes, PAGE] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(CODE);
    elf
}

fn run(stub: &mut Remote, member: &Member, program: &File) -> Result<()> {
    let what = "starting the stub's program";
    let (place, process) = (stub.place, &member.process);
    stub.call(what, libc::SYS_personality, &[(process.personality & PLACING).into()])?;
    limit_stack(stub.pid, member).doing(what)?;
    let mut name = within(program);
    name.push('\0');
    // The list of arguments: the name behind it, and its end, which is all of the environment.
    let mut arguments = [0; 2].map(u64::to_ne_bytes).concat();
    arguments.extend(name.as_bytes());
    let at = stub.argument(&arguments)?;
    arguments[..8].copy_from_slice(&(at + 16).to_ne_bytes());
    stub.argument(&arguments)?;
    while_written(|| stub.call(what, libc::SYS_execve, &[at + 16, at, at + 8]))?;
    // It stands in its program. A process whose program is mapped could not say that it runs
    // another one.
    stub.place = place + AT + CODE_AT;
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let arguments = [place, PLACE_USED, prot as u64, anonymous as u64, u64::MAX, 0];
    if stub.call(what, libc::SYS_mmap, &arguments)? != place {
        return refuse("the stub's place is taken");
    }
    stub.place = place;
    poke(stub.pid, place, &CODE).doing(what)?;
    stub.call(what, libc::SYS_munmap, &[place + AT, PAGE]).map(drop)
}

/// Starts a program that another process may still have open for writing; see [`WRITTEN_MAX_MS`].
fn while_written(mut start: impl FnMut() -> Result<u64>) -> Result<u64> {
    for _ in 0..WRITTEN_MAX_MS {
        match start() {
            Err(SnapshotError::Step { error, .. })
                if error.raw_os_error() == Some(libc::ETXTBSY) =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            started => return started,
        }
    }
    start()
}

/// New areas lie below what the stack may grow to.
fn limit_stack(pid: u32, of: &Member) -> io::Result<()> {
    let Some((soft, hard)) = of.process.limits.get(libc::RLIMIT_STACK as usize) else {
        return Ok(());
    };
    let soft = stack_at_start(of, *soft);
    let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: soft.max(*hard) };
    // SAFETY: the kernel only reads `limit`.
    checked(unsafe {
        let (pid, none) = (pid.cast_signed(), std::ptr::null_mut());
        libc::prlimit64(pid, libc::RLIMIT_STACK, &raw const limit, none)
    })
    .map(drop)
}

/// The stack's limit with which the process has started its program, as its areas tell: below the
/// stack the highest is one of the first that the kernel has placed, unless the program itself lies
/// above them all. The process may have set `now` since, which moves nothing.
fn stack_at_start(of: &Member, now: u64) -> u64 {
    let Layout { start_stack, brk, .. } = of.process.layout;
    let is_placed =
        |area: &&Area| !matches!(area.backing, Backing::Stack) && area.end <= start_stack;
    let highest = of.areas.iter().rev().find(is_placed).map_or(0, |area| area.end);
    let is_bottom_up = of.process.personality & libc::ADDR_COMPAT_LAYOUT.cast_unsigned() != 0;
    if is_bottom_up || highest <= brk.next_multiple_of(PAGE) {
        return now;
    }
    let gap_now = now.saturating_add(STACK_GUARD).clamp(GAP_MIN, GAP_MAX);
    let is_as_now = (ADDRESS_END - gap_now).next_multiple_of(PAGE) == highest;
    match ADDRESS_END.saturating_sub(highest) {
        gap if !is_as_now && gap >= GAP_MIN => gap - STACK_GUARD,
        _ => now,
    }
}

fn close_on_exec(stub: &mut Remote, member: &Member) -> Result<()> {
    // All that lie between two that stay open; a number without a file does not matter.
    for run in member.descriptors.chunk_by(|one, next| one.close_on_exec == next.close_on_exec) {
        if let (Some(first), Some(last)) = (run.first().filter(|it| it.close_on_exec), run.last()) {
            let flags = libc::CLOSE_RANGE_CLOEXEC.into();
            let arguments = [first.number.into(), last.number.into(), flags];
            let what = "descriptors that close with a program's start";
            stub.call(what, libc::SYS_close_range, &arguments)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_program_that_is_still_open_for_writing_is_started_later() {
        let left = Cell::new(3);
        let start = |errno| {
            left.set(left.get() - 1);
            if left.get() < 0 { Ok(7) } else { super::super::failed("a start", errno) }
        };
        assert_eq!(while_written(|| start(libc::ETXTBSY)).ok(), Some(7));
        assert_eq!(left.get(), -1);
        left.set(1);
        let Err(SnapshotError::Step { error, .. }) = while_written(|| start(libc::EACCES)) else {
            panic!("another error is one")
        };
        assert_eq!(error.raw_os_error(), Some(libc::EACCES));
        assert_eq!(left.get(), 0);
        left.set(i32::MAX);
        let Err(SnapshotError::Step { error, .. }) = while_written(|| start(libc::ETXTBSY)) else {
            panic!("there is an end to it")
        };
        assert_eq!(error.raw_os_error(), Some(libc::ETXTBSY));
    }
}
