//! What a tunnel may do once it is open: read and write what it has, and answer. Its user stays the
//! one that started it, so that it can remove its socket; what that user may do is taken from it.
//!
//! What a kernel does not offer (Landlock, or a filter of system calls in some containers) is left
//! out: that there are no capabilities is what must hold.

use crate::config::{Config, Mode};
use anyhow::{Context as _, Result};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, Scope,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::set_no_new_privs;

/// Gives up all that this process does not need any more.
///
/// # Errors
/// If it would keep rights that it should not have.
pub fn give_up(config: &Config) -> Result<()> {
    // Each connection is one, and the soft limit is one for programs of another kind.
    let files = getrlimit(Resource::Nofile);
    let most = Rlimit { current: files.maximum, ..files };
    // What it may not have it does without: a client for whom none is left is refused.
    let _as_it_was = setrlimit(Resource::Nofile, most);
    // Keys are in its memory.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).context("no dumps")?;
    holdfast_confine::give_up_capabilities()?;
    set_no_new_privs(true).context("no new privileges")?;
    forbid_places(config).context("Landlock")?;
    forbid_calls().context("the filter of system calls")
}

/// No file but those in its own folder, which it may remove; no signal to others; no connections of
/// TCP, unless it forwards.
fn forbid_places(config: &Config) -> Result<()> {
    let abi = ABI::V6;
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .scope(Scope::Signal)?;
    let rules = if config.mode == Mode::Forward {
        rules
    } else {
        rules.handle_access(AccessNet::from_all(abi))?
    };
    let folder = PathFd::new(&config.run_dir)?;
    rules.create()?.add_rule(PathBeneath::new(folder, AccessFs::RemoveFile))?.restrict_self()?;
    Ok(())
}

/// Only the system calls of one thread that reads and writes sockets. Others fail with `EPERM`.
fn forbid_calls() -> Result<()> {
    let allowed = [
        libc::SYS_accept4,
        libc::SYS_bind,
        libc::SYS_brk,
        libc::SYS_clock_gettime,
        libc::SYS_close,
        libc::SYS_connect,
        libc::SYS_epoll_ctl,
        libc::SYS_epoll_pwait,
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
        // Non-blocking mode of a socket, as the standard library sets it.
        libc::SYS_ioctl,
        libc::SYS_madvise,
        libc::SYS_mremap,
        libc::SYS_munmap,
        libc::SYS_ppoll,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_recvfrom,
        libc::SYS_recvmmsg,
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
        libc::SYS_socket,
        libc::SYS_tgkill,
        libc::SYS_unlinkat,
        libc::SYS_write,
        libc::SYS_writev,
    ];
    holdfast_confine::allow_calls(allowed.into_iter().chain(of_this_processor()))
}

/// Older forms of calls, which only this processor has.
#[cfg(target_arch = "x86_64")]
fn of_this_processor() -> Vec<i64> {
    vec![libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_unlink]
}

#[cfg(not(target_arch = "x86_64"))]
fn of_this_processor() -> Vec<i64> {
    Vec::new()
}
