//! The parts of a report that this host gives: files of the kernel, and what its tools say.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longest time that a tool has.
const TOOL_MAX: Duration = Duration::from_secs(30);
/// Most of what a tool says, or a file holds, that is taken, in bytes.
const PART_BYTES_MAX: u64 = 4 << 20;

/// What the kernel is set to, below /proc/sys.
const SYSCTLS: [&str; 24] = [
    "fs/file-max",
    "fs/nr_open",
    "kernel/io_uring_disabled",
    "kernel/kptr_restrict",
    "kernel/osrelease",
    "kernel/randomize_va_space",
    "kernel/sched_rt_runtime_us",
    "kernel/unprivileged_bpf_disabled",
    "net/core/bpf_jit_enable",
    "net/core/rmem_max",
    "net/core/somaxconn",
    "net/core/wmem_max",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/default/rp_filter",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_nonlocal_bind",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_syncookies",
    "net/ipv4/tcp_timestamps",
    "net/ipv4/tcp_wmem",
    "net/ipv6/conf/all/forwarding",
    "vm/overcommit_memory",
];

/// What the tools are asked.
const TOOLS: [(&str, &str); 9] = [
    ("links.txt", "ip -d -s link"),
    ("addresses.txt", "ip address"),
    ("routes.txt", "ip route show table all"),
    ("routes6.txt", "ip -6 route show table all"),
    ("rules.txt", "ip rule"),
    ("neighbours.txt", "ip neighbour"),
    ("qdiscs.txt", "tc -s qdisc"),
    ("listeners.txt", "ss -ltnp"),
    ("sockets.txt", "ss -s"),
];

/// A file of the report, or why there is none.
pub(super) struct Part {
    pub name: String,
    pub content: Result<String, String>,
}

impl Part {
    pub fn new(name: impl Into<String>, content: Result<String, String>) -> Self {
        Self { name: name.into(), content }
    }
}

/// What is known of this host.
pub(super) fn host() -> Vec<Part> {
    let files = [
        ("kernel.txt", "/proc/version"),
        ("os-release.txt", "/etc/os-release"),
        ("memory.txt", "/proc/meminfo"),
        ("load.txt", "/proc/loadavg"),
        ("pressure-cpu.txt", "/proc/pressure/cpu"),
        ("net-snmp.txt", "/proc/net/snmp"),
        ("net-netstat.txt", "/proc/net/netstat"),
        ("mounts.txt", "/proc/self/mounts"),
    ];
    let named = |name: &str| format!("host/{name}");
    let mut parts: Vec<Part> =
        files.iter().map(|(name, path)| Part::new(named(name), file(Path::new(path)))).collect();
    parts.push(Part::new(named("sysctl.txt"), Ok(sysctls())));
    for (name, words) in TOOLS {
        let mut words = words.split(' ');
        let tool = words.next().unwrap_or_default();
        parts.push(Part::new(named(name), told_by(Path::new(tool), words.map(OsStr::new))));
    }
    parts.push(Part::new(named("filters.txt"), filters()));
    parts
}

fn sysctls() -> String {
    let value = |path: &&str| match file(&Path::new("/proc/sys").join(path)) {
        Ok(value) => format!("{path} = {}\n", value.trim()),
        Err(why) => format!("{path}: {why}\n"),
    };
    SYSCTLS.iter().map(value).collect()
}

/// The programs at all interfaces.
fn filters() -> Result<String, String> {
    let links = std::fs::read_dir("/sys/class/net").map_err(|error| error.to_string())?;
    let mut text = String::new();
    for link in links.flatten() {
        let name = link.file_name();
        for side in ["ingress", "egress"] {
            let words = ["filter", "show", "dev"].map(OsStr::new);
            let words = words.into_iter().chain([name.as_os_str(), side.as_ref()]);
            let told = told_by(Path::new("tc"), words).unwrap_or_else(|why| format!("{why}\n"));
            text += &format!("{} {side}:\n{told}", name.display());
        }
    }
    Ok(text)
}

/// A file's beginning.
pub(super) fn file(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(PART_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The end of a file that another user may write to: it must be a file, and not lead elsewhere.
pub(super) fn tail(path: &Path, bytes_max: u64) -> Result<String, String> {
    let read = || {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(std::io::Error::other("it is not a regular file"));
        }
        file.seek(SeekFrom::Start(found.len().saturating_sub(bytes_max)))?;
        let mut bytes = Vec::new();
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().map_err(|error| format!("{}: {error}", path.display()))
}

/// What a tool says, and says of errors.
pub(super) fn told_by<'a>(
    tool: &Path,
    words: impl IntoIterator<Item = &'a OsStr>,
) -> Result<String, String> {
    let named = |why: &dyn std::fmt::Display| format!("{}: {why}", tool.display());
    let (mut output, end) = std::io::pipe().map_err(|error| named(&error))?;
    let mut command = Command::new(tool);
    command.args(words).stdin(Stdio::null());
    let other = end.try_clone().map_err(|error| named(&error))?;
    let child = command.stdout(other).stderr(end).spawn();
    // It keeps the other end of the pipe.
    drop(command);
    let mut child = child.map_err(|error| named(&error))?;
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _cut = output.by_ref().take(PART_BYTES_MAX).read_to_end(&mut bytes);
        let _gone = tell.send(bytes);
    });
    let bytes = told.recv_timeout(TOOL_MAX);
    // One that has said all, or too much, or nothing for so long.
    let _ended = child.kill();
    let _reaped = child.wait();
    match bytes {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(_) => Err(named(&format!("no answer after {} s", TOOL_MAX.as_secs()))),
    }
}
