//! Facts that are read from `/proc` and `/sys`.

use super::Finding;
use std::fs::DirEntry;
use std::path::Path;

/// The oldest kernel whose verifier and hooks the programs are written for.
const KERNEL_MIN: (u32, u32) = (6, 6);
/// Release of Linux that first drops what lies beyond a retracted window.
const KERNEL_STRICT_WINDOW: (u32, u32) = (6, 17);

pub(super) fn kernel() -> Finding {
    let release = read("/proc/sys/kernel/osrelease");
    judge_kernel(&release)
}

fn judge_kernel(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) else {
        return Finding::warn(
            "kernel",
            format!("`{release}` is no release I can read"),
            "use Linux 6.6 or newer",
        );
    };
    let remedy = "install a kernel of at least 6.6 (Debian 12: linux-image-amd64 from backports)";
    if (major, minor) < KERNEL_MIN {
        return Finding::fail("kernel", format!("{release} is older than 6.6"), remedy);
    }
    let note = if (major, minor) >= KERNEL_STRICT_WINDOW {
        "; drops data beyond a retracted window, which Holdfast never retracts"
    } else {
        ""
    };
    Finding::ok("kernel", format!("{release}{note}"))
}

pub(super) fn architecture() -> Finding {
    match std::env::consts::ARCH {
        "x86_64" => Finding::ok("architecture", "x86_64"),
        other => {
            Finding::fail("architecture", other, "the shim is built and tested for x86_64 only")
        }
    }
}

/// Bit, name and purpose of each capability.
const CAPABILITIES: [(u32, &str, &str); 10] = [
    (2, "CAP_DAC_READ_SEARCH", "to see the descriptors of another user's server"),
    (6, "CAP_SETGID", "to start the server as another user"),
    (7, "CAP_SETUID", "to start the server as another user"),
    (CAP_NET_ADMIN, "CAP_NET_ADMIN", "for TCP_REPAIR, tc and addresses"),
    (13, "CAP_NET_RAW", "for the tap and for probes"),
    (19, "CAP_SYS_PTRACE", "to take the replica's sockets"),
    (21, "CAP_SYS_ADMIN", "to mount a BPF file system"),
    (23, "CAP_SYS_NICE", "for real-time priority"),
    (38, "CAP_PERFMON", "for eBPF programs that read packets"),
    (39, "CAP_BPF", "for eBPF"),
];

const CAP_SYS_RESOURCE: u32 = 24;

/// Whether this process may have more than its hard limits say.
pub(super) fn may_raise_limits() -> bool {
    held() & 1 << CAP_SYS_RESOURCE != 0
}

const CAP_NET_ADMIN: u32 = 12;

/// Whether this process may touch the host's network at all.
#[must_use]
pub fn may_administer() -> bool {
    held() & 1 << CAP_NET_ADMIN != 0
}

/// Mask of the capabilities that are in effect.
fn held() -> u64 {
    let status = read("/proc/self/status");
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok()).unwrap_or(0)
}

/// Capabilities needed to start and follow a server, which only members of a pair do.
const OF_MEMBERS: [u32; 4] = [2, 6, 7, 19];

pub(super) fn capabilities(is_pair: bool) -> Vec<Finding> {
    let held = held();
    let is_needed = |bit: &u32| is_pair || !OF_MEMBERS.contains(bit);
    let needed = CAPABILITIES.iter().filter(|(bit, ..)| is_needed(bit));
    let missing: Vec<_> = needed.filter(|(bit, ..)| held & 1 << bit == 0).collect();
    if missing.is_empty() {
        return vec![Finding::ok("capabilities", "all that a daemon needs")];
    }
    missing
        .into_iter()
        .map(|(_, name, why)| {
            Finding::fail(
                "capabilities",
                format!("{name} is missing, {why}"),
                "run as root, or add it to the service unit",
            )
        })
        .collect()
}

pub(super) fn btf() -> Finding {
    let path = "/sys/kernel/btf/vmlinux";
    if Path::new(path).exists() {
        return Finding::ok("BTF", path);
    }
    Finding::fail(
        "BTF",
        format!("{path} is missing"),
        "use a kernel with CONFIG_DEBUG_INFO_BTF=y (all of Debian's have it)",
    )
}

pub(super) fn cgroup2() -> Finding {
    let mounts = read("/proc/self/mounts");
    let mut fields = mounts.lines().map(|l| l.split(' ').skip(1).take(2).collect::<Vec<_>>());
    match fields.find(|f| f.get(1) == Some(&"cgroup2")) {
        Some(found) => Finding::ok("cgroup v2", found[0]),
        None => Finding::warn(
            "cgroup v2",
            "is not mounted; the first retransmission after a takeover may wait 1 s",
            "mount -t cgroup2 none /sys/fs/cgroup",
        ),
    }
}

pub(super) fn all() -> Vec<Finding> {
    vec![syncookies(), fast_open(), rp_filter(), conntrack(), clocks(), processors()]
}

fn syncookies() -> Finding {
    match read("/proc/sys/net/ipv4/tcp_syncookies").as_str() {
        "2" => Finding::fail(
            "SYN cookies",
            "every connection uses them, and none of those can be protected",
            "sysctl -w net.ipv4.tcp_syncookies=0 on both members",
        ),
        "1" => Finding::warn(
            "SYN cookies",
            "used when a listener's queue overflows; such connections are refused",
            "sysctl -w net.ipv4.tcp_syncookies=0 on both members, and a long backlog",
        ),
        _ => Finding::ok("SYN cookies", "off"),
    }
}

fn fast_open() -> Finding {
    const SERVER: u32 = 2;
    let flags = read("/proc/sys/net/ipv4/tcp_fastopen").parse::<u32>().unwrap_or(0);
    if flags & SERVER == 0 {
        return Finding::ok("TCP Fast Open", "off for servers");
    }
    Finding::warn(
        "TCP Fast Open",
        "on for servers; data in a SYN is not protected",
        "sysctl -w net.ipv4.tcp_fastopen=1 on both members",
    )
}

fn rp_filter() -> Finding {
    let folder = std::fs::read_dir("/proc/sys/net/ipv4/conf").into_iter().flatten().flatten();
    let of = |entry: DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, read(entry.path().join("rp_filter")))
    };
    judge_rp_filter(&folder.map(of).collect::<Vec<_>>())
}

/// Judges the names of interfaces, of which one is `all`, with their settings.
fn judge_rp_filter(found: &[(String, String)]) -> Finding {
    const STRICT: &str = "1";
    const LOOSE: &str = "2";
    // The kernel takes the greater one of an interface's value and that of `all`.
    if found.iter().any(|(name, value)| name == "all" && value == LOOSE) {
        return Finding::ok("rp_filter", "loose everywhere");
    }
    let strict = found.iter().filter(|(_, value)| value == STRICT);
    let strict: Vec<&str> = strict.map(|(name, _)| name.as_str()).collect();
    if strict.is_empty() {
        return Finding::ok("rp_filter", "not strict");
    }
    Finding::warn(
        "rp_filter",
        format!(
            "strict on {}: packets that come another way than answers go are dropped",
            strict.join(", ")
        ),
        "sysctl -w net.ipv4.conf.all.rp_filter=2, unless all traffic of clients comes through the edge",
    )
}

fn conntrack() -> Finding {
    let count = read("/proc/sys/net/netfilter/nf_conntrack_count");
    if count.is_empty() || count == "0" {
        return Finding::ok("conntrack", "tracks nothing here");
    }
    let all = if count == "1" { "1 connection".to_owned() } else { format!("{count} connections") };
    if read("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal") == "1" {
        return Finding::ok("conntrack", format!("tracks {all}, liberally"));
    }
    Finding::warn(
        "conntrack",
        format!("tracks {all} and may call a promoted connection's packets invalid"),
        "sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1, or a notrack rule for the service addresses",
    )
}

fn clocks() -> Finding {
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    match source.as_str() {
        "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" => Finding::ok("clock source", source),
        "" => Finding::ok("clock source", "not shown here"),
        slow => Finding::warn(
            "clock source",
            format!("{slow}: reading the time is a system call"),
            "boot with clocksource=tsc if the hardware allows it",
        ),
    }
}

fn processors() -> Finding {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    if count > 1 {
        return Finding::ok("processors", format!("{count}"));
    }
    Finding::warn(
        "processors",
        "one: server and daemon take turns",
        "give the host a second processor",
    )
}

pub(super) fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn what_is_loose_for_all_is_strict_nowhere() {
        let judge = |values: &[(&str, &str)]| {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            judge_rp_filter(&values.iter().map(owned).collect::<Vec<_>>())
        };
        assert_eq!(judge(&[("all", "2"), ("default", "1"), ("eth0", "1")]).verdict, Verdict::Ok);
        assert_eq!(judge(&[("all", "0"), ("eth0", "2")]).verdict, Verdict::Ok);
        let strict = judge(&[("all", "0"), ("eth0", "1"), ("eth1", "0")]);
        assert_eq!(strict.verdict, Verdict::Warn);
        assert!(strict.found.starts_with("strict on eth0:"), "{strict:?}");
        assert_eq!(judge(&[("all", "1"), ("eth0", "0")]).verdict, Verdict::Warn);
    }

    #[test]
    fn kernels_are_judged_by_their_release() {
        for (release, verdict) in [
            ("6.18.44", Verdict::Ok),
            ("7.0.0-rc1", Verdict::Ok),
            ("6.6.1-amd64", Verdict::Ok),
            ("6.1.0-41-amd64", Verdict::Fail),
            ("4.19", Verdict::Fail),
            ("banana", Verdict::Warn),
        ] {
            assert_eq!(judge_kernel(release).verdict, verdict, "{release}");
        }
    }
}
