//! What this program may do once it listens: read and write what is open, accept, and nothing else.
//!
//! What a kernel does not offer (Landlock, or a filter of system calls in some containers) is left
//! out: the user without rights is what must hold.

use anyhow::{Context as _, Result, ensure};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    Scope,
};
use rustix::process::{
    Resource, Rlimit, Signal, getuid, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    Gid, Uid, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// The user who owns nothing, and its group.
const NOBODY: u32 = 65_534;
/// Most open files: its clients, and a few of its own.
const FILES_MAX: u64 = 256;
/// Most memory, in bytes.
const MEMORY_MAX: u64 = 256 << 20;

/// Gives up all that this process does not need any more. `parent` is the daemon, with whose end
/// this process is to end.
///
/// # Errors
/// If it would keep rights of a user that it should not be.
pub fn give_up_rights(parent: u32) -> Result<()> {
    let limits = [(Resource::Nofile, FILES_MAX), (Resource::Data, MEMORY_MAX), (Resource::Core, 0)];
    for (resource, most) in limits {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit).context("a limit")?;
    }
    if getuid().is_root() {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        set_thread_groups(&[]).context("groups")?;
        set_thread_res_gid(group, group, group).context("the group")?;
        set_thread_res_uid(user, user, user).context("the user")?;
        ensure!(!getuid().is_root(), "this is still root");
    }
    // Another user may have been given some.
    holdfast_confine::give_up_capabilities()?;
    // The change of the user has undone this.
    set_parent_process_death_signal(Some(Signal::KILL)).context("the end with the daemon")?;
    ensure!(std::os::unix::process::parent_id() == parent, "the daemon has ended");
    set_no_new_privs(true).context("no new privileges")?;
    forbid_places().context("Landlock")?;
    forbid_calls().context("the filter of system calls")
}

/// No file, no new connection or listener, no signal to others, as far as the kernel can.
fn forbid_places() -> Result<()> {
    let abi = ABI::V6;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .restrict_self()?;
    Ok(())
}

/// Only the system calls of one thread that serves sockets. Others fail with `EPERM`.
fn forbid_calls() -> Result<()> {
    let allowed = [
        libc::SYS_accept4,
        libc::SYS_brk,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_close,
        libc::SYS_epoll_ctl,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_wait,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_fcntl,
        libc::SYS_futex,
        libc::SYS_getpeername,
        libc::SYS_getpid,
        libc::SYS_getrandom,
        libc::SYS_getsockname,
        libc::SYS_getsockopt,
        libc::SYS_gettid,
        libc::SYS_madvise,
        libc::SYS_mremap,
        libc::SYS_munmap,
        libc::SYS_nanosleep,
        libc::SYS_poll,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_restart_syscall,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_yield,
        libc::SYS_sendmsg,
        libc::SYS_sendto,
        libc::SYS_setsockopt,
        libc::SYS_shutdown,
        libc::SYS_sigaltstack,
        libc::SYS_tgkill,
        libc::SYS_write,
        libc::SYS_writev,
    ];
    holdfast_confine::allow_calls(allowed)
}
