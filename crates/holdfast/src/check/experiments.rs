//! What is tried out rather than read.

use super::Finding;
use holdfast_linux::bpf::{TapDrop, remove_pin_dir, remove_qdiscs};
use holdfast_linux::tap::TapSocket;
use holdfast_linux::{priority, probe, process};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

/// Mount point of the experiment's BPF file system, in its own mount namespace; the number of this
/// process is added, for who removes a folder takes what another one has mounted there with it.
const SCRATCH: &str = "/run/holdfast-check";
/// An address of TEST-NET-1 (RFC 5737) and a port, which belong to no service.
const NOBODY: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);
const TAP_BUFFER_BYTES: usize = 1 << 20;
/// The priority that the daemons ask for; the lowest one suffices.
const PRIORITY: i32 = 1;

pub(super) fn all() -> Vec<Finding> {
    let apart = probe::apart(|| vec![tcp_repair(), ebpf(), packet_socket()]);
    let mut findings = apart.unwrap_or_else(|error| {
        vec![Finding::fail(
            "namespaces",
            format!("no experiment is possible: {error}"),
            "run holdfast check as root, on the host itself (not in an unprivileged container)",
        )]
    });
    findings.push(scheduling());
    findings.push(descriptor_passing());
    findings
}

fn tcp_repair() -> Finding {
    match probe::tcp_repair() {
        Ok(()) => Finding::ok("TCP_REPAIR", "an established socket can be taken apart and rebuilt"),
        Err(error) => Finding::fail(
            "TCP_REPAIR",
            format!("refused: {error}"),
            "needs CAP_NET_ADMIN and a kernel with CONFIG_CHECKPOINT_RESTORE",
        ),
    }
}

/// Loads a real program, attaches it with clsact and pins it in a bpffs.
fn ebpf() -> Finding {
    let scratch = PathBuf::from(format!("{SCRATCH}-{}", std::process::id()));
    let tried = TapDrop::attach("lo", &[NOBODY], &scratch).and_then(TapDrop::detach);
    // The host must be left as it was.
    let _made = remove_qdiscs(&scratch);
    let _mounted = remove_pin_dir(&scratch);
    match tried {
        Ok(()) => Finding::ok("eBPF", "bpf(), bpffs and tc clsact work"),
        Err(error) => Finding::fail(
            "eBPF",
            error.to_string(),
            "needs CAP_BPF, CAP_NET_ADMIN, CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS; lockdown must be off",
        ),
    }
}

fn packet_socket() -> Finding {
    match TapSocket::open("lo", &[], TAP_BUFFER_BYTES) {
        Ok(_) => Finding::ok("AF_PACKET", "a packet socket can be opened"),
        Err(error) => {
            Finding::fail("AF_PACKET", error.to_string(), "needs CAP_NET_RAW and CONFIG_PACKET")
        }
    }
}

fn scheduling() -> Finding {
    // On a thread of its own: this one keeps its scheduling.
    match std::thread::spawn(|| priority::set_realtime(PRIORITY)).join() {
        Ok(Ok(())) => Finding::ok("scheduling", "real-time priority is granted"),
        Ok(Err(error)) => Finding::warn(
            "scheduling",
            format!("real-time priority is refused: {error}"),
            "grant CAP_SYS_NICE, or set group.realtime = false and expect longer stalls under load",
        ),
        Err(_) => Finding::warn("scheduling", "could not be tried", "run holdfast check again"),
    }
}

fn descriptor_passing() -> Finding {
    let own = process::pidfd_open(std::process::id());
    match own.and_then(|pidfd| process::pidfd_getfd(std::os::fd::AsFd::as_fd(&pidfd), 0)) {
        Ok(_) => Finding::ok("pidfd_getfd", "descriptors of another process can be taken"),
        Err(error) => Finding::fail(
            "pidfd_getfd",
            format!("refused: {error}"),
            "needs Linux 5.6 and, for other users' processes, CAP_SYS_PTRACE",
        ),
    }
}
