//! Programs that a daemon runs for others, and that have nothing to do with its server.

use super::{FIRST_OWN, User, forget_signals};
use crate::process;
use crate::sockopt::checked;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Has the program start without what is the daemon's: its descriptors, its blocked signals, its
/// real-time priority, its capabilities, and its user, if another one is given. It leads a process
/// group of its own, which [`kill_group`] ends.
pub fn without_ours(command: &mut Command, user: Option<User>) {
    let prepare = move || {
        user.as_ref().map_or(Ok(()), User::enter)?;
        process::close_at_exec(FIRST_OWN)?;
        process::give_up_ambient()?;
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the kernel only reads `parameters`.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
        forget_signals()
    };
    command.process_group(0);
    // SAFETY: between fork and exec only plain system calls are made.
    unsafe { command.pre_exec(prepare) };
}

/// Kills all processes of the group that the process `leader` leads.
///
/// # Errors
/// `ESRCH` if there is none any more, `EINVAL` for a number that is no group's.
pub fn kill_group(leader: u32) -> io::Result<()> {
    let group = i32::try_from(leader).ok().filter(|group| *group > 1);
    let group = group.ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: plain numbers.
    checked(unsafe { libc::kill(-group, libc::SIGKILL) }).map(drop)
}
