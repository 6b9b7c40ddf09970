//! A filter of system calls (seccomp(2)): some answer with `EPERM`, all others are made.

use crate::sockopt::checked;
use libc::{c_int, c_long, sock_filter, sock_fprog};
use std::io;

/// Calls that no daemon without a server makes, and by which one that has CAP_SYS_ADMIN owns other
/// processes, the kernel, or the host.
pub const HARMFUL: [c_long; 39] = [
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_fspick,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_io_uring_setup,
    libc::SYS_mknodat,
    libc::SYS_fanotify_init,
];

/// Calls by which other programs are run, or the kernel runs this one's.
pub const RUNNING: [c_long; 3] = [libc::SYS_execve, libc::SYS_execveat, libc::SYS_bpf];

/// Calls by which a daemon makes the place where eBPF programs are pinned, and removes it.
pub const MOUNTS: [c_long; 2] = [libc::SYS_mount, libc::SYS_umount2];

/// The architecture that the kernel names in each call (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// First number of calls in another form of the same architecture (x32).
const OTHER_FORM: u32 = 0x4000_0000;
/// Offsets in `struct seccomp_data`, in bytes.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

/// Makes these calls answer with `EPERM`, in all threads.
pub(super) fn deny(calls: &[c_long]) -> io::Result<()> {
    if calls.is_empty() {
        return Ok(());
    }
    let mut code = program(calls);
    let len = u16::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = sock_fprog { len, filter: code.as_mut_ptr() };
    let (how, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
    // SAFETY: the kernel reads the program, and the instructions that it points to.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, how, flags, &raw const program) };
    match checked(set as c_int) {
        Ok(0) => Ok(()),
        // The number of a thread that has a filter of its own.
        Ok(_) => Err(io::Error::other("a thread keeps its own filter")),
        Err(error) => match error.raw_os_error() {
            // No filters here, as in some containers, or not for this user.
            Some(libc::EINVAL | libc::ENOSYS | libc::EACCES) => Ok(()),
            _ => Err(error),
        },
    }
}

fn program(calls: &[c_long]) -> Vec<sock_filter> {
    let load = |at| sock_filter {
        code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: at,
    };
    let answer = |k| sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k };
    // Where a comparison holds (or does not), the next instruction but one follows.
    let when = |how: u32, k: u32, holds: bool| sock_filter {
        code: (libc::BPF_JMP | how | libc::BPF_K) as u16,
        jt: u8::from(!holds),
        jf: u8::from(holds),
        k,
    };
    let no = answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let mut code = vec![load(ARCH), when(libc::BPF_JEQ, ARCHITECTURE, false), no, load(NUMBER)];
    code.extend([when(libc::BPF_JGE, OTHER_FORM, true), no]);
    for call in calls {
        code.extend([when(libc::BPF_JEQ, *call as u32, true), no]);
    }
    code.push(answer(libc::SECCOMP_RET_ALLOW));
    code
}
