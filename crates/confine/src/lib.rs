//! What a program gives up that serves strangers beside the daemons, once all that it needs is open.
//!
//! What a kernel does not offer (a filter of system calls, in some containers) is left out: that there
//! are no capabilities is what must hold. Files and networks are each program's own (Landlock).
#![forbid(unsafe_code)]

use anyhow::{Context as _, Result};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Gives up all capabilities, and with them what others could read of this process' memory.
///
/// # Errors
/// If the kernel refuses: it would keep what it should not have.
pub fn give_up_capabilities() -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("no dumps")?;
    clear_ambient_capability_set().context("capabilities")?;
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, none).context("capabilities")
}

/// Allows these system calls, and memory that nobody can run as code. All others fail with `EPERM`.
/// The process has said before that it gains no privileges (`PR_SET_NO_NEW_PRIVS`).
///
/// # Errors
/// If there are filters and this one is refused.
pub fn allow_calls(allowed: impl IntoIterator<Item = i64>) -> Result<()> {
    let mut rules: Vec<(i64, Vec<SeccompRule>)> =
        allowed.into_iter().map(|call| (call, Vec::new())).collect();
    // Memory, but none that could be run.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let code = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
        let no_code = SeccompCondition::new(2, SeccompCmpArgLen::Dword, code, 0)?;
        rules.push((call, vec![SeccompRule::new(vec![no_code])?]));
    }
    let (other, listed) = (SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow);
    let processor = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules.into_iter().collect(), other, listed, processor)?;
    let program: BpfProgram = filter.try_into()?;
    match seccompiler::apply_filter(&program) {
        // A kernel without it, or a container that does not offer it.
        Err(seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error))
            if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) =>
        {
            Ok(())
        }
        applied => Ok(applied?),
    }
}
