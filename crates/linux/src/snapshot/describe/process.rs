//! What all threads of a process share, as /proc has it.

use super::super::bounds::list;
use super::super::error::{Doing, Result};
use super::super::insides::Inside;
use super::super::seize::THREADS_MAX;
use super::super::thread::pending;
use super::{Refusals, timers};
use holdfast_wire::snapshot::{GROUPS_MAX, Ids, Layout, Process, RESOURCES};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;

/// `/proc/PID/status`.
pub(in super::super) struct Status(String);

impl Status {
    pub fn read(pid: u32) -> Result<Self> {
        Self::at(format!("/proc/{pid}/status"))
    }

    fn of_thread(pid: u32, tid: u32) -> Result<Self> {
        Self::at(format!("/proc/{pid}/task/{tid}/status"))
    }

    fn at(path: String) -> Result<Self> {
        // A name need not be text.
        let bytes = list(&path).doing(path)?;
        Ok(Self(String::from_utf8_lossy(&bytes).into_owned()))
    }

    pub fn text(&self, name: &str) -> &str {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim()
    }

    /// The last number of a line: the one of the innermost namespace, if there are
    /// several.
    pub fn number(&self, name: &str) -> u64 {
        let last = self.text(name).split_whitespace().rfind(|word| *word != "kB");
        last.and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// Users or groups; an entry that is not understood is not taken for root.
    fn ids(&self, name: &str) -> Result<[u32; 4]> {
        let words = self.text(name).split_whitespace().map(|word| word.parse().ok());
        let ids: Option<Vec<u32>> = words.collect();
        let ids = ids.and_then(|ids| ids.try_into().ok());
        ids.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData)).doing("its ids")
    }

    /// Users, groups and capabilities; `secure_bits` are not in /proc.
    pub fn all_ids(&self, secure_bits: u32) -> Result<Ids> {
        let groups = self.text("Groups").split_whitespace();
        Ok(Ids {
            users: self.ids("Uid")?,
            groups: self.ids("Gid")?,
            further_groups: groups.filter_map(|group| group.parse().ok()).collect(),
            capabilities: ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
                .map(|name| self.mask(name)),
            secure_bits,
        })
    }

    fn mask(&self, name: &str) -> u64 {
        u64::from_str_radix(self.text(name), 16).unwrap_or(0)
    }

    /// What the process may do: a set-uid program and a user namespace give
    /// other rights.
    pub fn rights(&self) -> Vec<String> {
        let names = ["Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
        names.map(|name| self.text(name).to_owned()).to_vec()
    }

    /// The user that owns the files it makes.
    pub fn file_user(&self) -> Result<u32> {
        self.ids("Uid").map(|users| users[3])
    }

    /// Pages that are the process's own, in memory or not.
    pub fn own_pages(&self) -> u64 {
        (self.number("RssAnon") + self.number("VmSwap")) / 4
    }
}

/// What /proc says against an image of a running process; nothing has been touched.
pub(in super::super) fn refusals(
    pid: u32,
    status: &Status,
    family: &[u32],
    refusals: &mut Refusals,
) {
    if status.text("State").starts_with('Z') {
        // /proc says nothing more about it.
        let is_whole = status.number("Threads") < 2 && family.first() != Some(&pid);
        return refusals.add(match is_whole {
            true => format!("its process {pid} has ended, and nobody has waited for it"),
            false => "its first thread has ended".to_owned(),
        });
    }
    let is_stopped = status.text("State").starts_with('T');
    refusals.add_if(is_stopped, "it is stopped by a signal");
    refusals.add_if(status.number("TracerPid") != 0, "somebody else traces it");
    lasting(pid, status, family, refusals);
}

/// Like [`refusals`], for a process that may be stopped. It ran after the first look:
/// what it has done since then (a user namespace gives all rights, there) must not get
/// into an image.
pub(in super::super) fn lasting(
    pid: u32,
    status: &Status,
    family: &[u32],
    refusals: &mut Refusals,
) {
    let say = |refusals: &mut Refusals, holds, reason: &str| refusals.add_if(holds, reason);
    say(refusals, status.number("Seccomp") != 0, "it has seccomp filters");
    threads(pid, refusals);
    say(refusals, status.text("x86_Thread_features").contains("shstk"), "it has a shadow stack");
    say(refusals, status.number("VmLck") != 0, "it has locked memory (mlock)");
    say(refusals, status.number("HugetlbPages") != 0, "it has huge pages (hugetlbfs)");
    // A breakpoint trap that is ignored would end with the image's first step.
    let trap = 1u64 << (libc::SIGTRAP - 1);
    say(refusals, status.mask("SigIgn") & trap != 0, "it ignores SIGTRAP");
    let threads = status.number("Threads") > THREADS_MAX as u64;
    say(refusals, threads, &format!("it has more than {THREADS_MAX} threads"));
    let groups = status.text("Groups").split_whitespace().count() > GROUPS_MAX;
    say(refusals, groups, &format!("it is in more than {GROUPS_MAX} groups"));
    say(refusals, has_children(pid, family), "it has child processes");
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).ok();
    let own = |name: &str| fs::read_link(format!("/proc/self/{name}")).ok();
    say(refusals, link("root") != own("root"), "its root folder is not the daemon's (chroot)");
    for (namespace, what) in [("mnt", "mount"), ("user", "user"), ("time", "time")] {
        let name = format!("ns/{namespace}");
        let other = link(&name) != own(&name);
        say(refusals, other, &format!("it has a {what} namespace of its own"));
    }
    // All of them are rebuilt in the namespaces of who restores them.
    let first = family.first().copied().unwrap_or(pid);
    for namespace in ["pid", "net", "ipc", "uts", "cgroup"] {
        let of = |pid| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).ok();
        let other = first != pid && of(pid) != of(first);
        say(refusals, other, &format!("its processes are in several {namespace} namespaces"));
    }
}

/// Refuses threads that have of their own what an image has once for all of them. The threads run:
/// what is seen once may have been changed for all of them between two looks.
fn threads(pid: u32, refusals: &mut Refusals) {
    const LOOKS: usize = 3;
    for tid in crate::process::threads(pid).into_iter().flatten().filter(|tid| *tid != pid) {
        let mut found = own_of(pid, tid);
        for _ in 1..LOOKS {
            let again = own_of(pid, tid);
            found.retain(|what| again.contains(what));
        }
        for what in found {
            refusals.add_if(true, &format!("its threads differ: one has {what} of its own"));
        }
    }
}

/// What a thread has at this moment that the first one has not. One that ends has nothing.
fn own_of(pid: u32, tid: u32) -> Vec<&'static str> {
    let folder = |tid| fs::read_link(format!("/proc/{pid}/task/{tid}/cwd")).ok();
    let (Ok(status), Ok(first)) = (Status::of_thread(pid, tid), Status::read(pid)) else {
        return Vec::new();
    };
    let own = |name| status.text(name) != first.text(name);
    let there = folder(tid);
    let lies_elsewhere = there.is_some() && there != folder(pid);
    [
        (status.rights() != first.rights(), "users, groups or capabilities"),
        (own("NoNewPrivs") || own("Seccomp"), "a filter of system calls (seccomp)"),
        (own("Umask") && !status.text("Umask").is_empty(), "a umask"),
        (lies_elsewhere, "a working folder"),
    ]
    .into_iter()
    .filter_map(|(holds, what)| holds.then_some(what))
    .collect()
}

/// Whether a process has children that are not in `family`, and that have not ended.
fn has_children(pid: u32, family: &[u32]) -> bool {
    let of = |tid| fs::read(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    let is_known = |child: u32| family.contains(&child) || crate::process::is_over(child);
    let is_other = |child: &str| !child.parse().is_ok_and(is_known);
    let others = |tid| String::from_utf8_lossy(&of(tid)).split_whitespace().any(is_other);
    crate::process::threads(pid).into_iter().flatten().any(others)
}

/// All of it, for a stopped process. Its session and its group may be another's only `in_family`.
pub(in super::super) fn read(
    pid: u32,
    insides: &[Inside],
    vdso: Vec<u8>,
    in_family: bool,
) -> Result<Process> {
    let status = Status::read(pid)?;
    let inside = insides.iter().find(|inside| inside.tid == pid);
    let inside = inside.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    let inside = inside.doing("its first thread in the kernel's list")?;
    let link = |name: &str| -> Result<Vec<u8>> {
        let path = format!("/proc/{pid}/{name}");
        let target = fs::read_link(&path).doing(path)?;
        Ok(target.into_os_string().into_vec())
    };
    let text = |name: &str| -> Result<String> {
        let path = format!("/proc/{pid}/{name}");
        let bytes = fs::read(&path).doing(path)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let auxv = fs::read(format!("/proc/{pid}/auxv")).doing("its auxiliary vector")?;
    let number = status.number("NSpid") as u32;
    let of_namespace = |name| match status.number(name) as u32 {
        led if in_family || led == number => led,
        _ => 0,
    };
    let owner = fs::metadata(format!("/proc/{pid}")).doing("its owner")?.uid();
    let users = status.ids("Uid")?;
    Ok(Process {
        pid: number,
        executable: link("exe")?,
        directory: link("cwd")?,
        umask: u32::from_str_radix(status.text("Umask"), 8).unwrap_or(0o22),
        session: of_namespace("NSsid"),
        group: of_namespace("NSpgid"),
        // The kernel gives root the folder of a process that is not dumpable.
        dumpable: owner == users[1],
        no_new_privs: status.number("NoNewPrivs") != 0,
        thp_disabled: status.text("THP_enabled") == "0",
        personality: u32::from_str_radix(text("personality")?.trim(), 16).unwrap_or(0),
        oom_score_adj: text("oom_score_adj")?.trim().parse().unwrap_or(0),
        ids: status.all_ids(inside.secure_bits)?,
        limits: limits(pid).doing("its limits")?,
        actions: inside.actions.clone(),
        layout: layout(&text("stat")?, inside.brk).doing("its layout in /proc/PID/stat")?,
        auxv: auxv.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect(),
        vdso,
        pending: pending(pid, true).doing("its signals")?,
        timers: timers::of(pid)?,
    })
}

/// Limits by number, as `/proc/PID/limits` lists them: prlimit(2) on another
/// user's process needs `CAP_SYS_RESOURCE`.
fn limits(pid: u32) -> io::Result<Vec<(u64, u64)>> {
    const SOFT: std::ops::Range<usize> = 26..47;
    const HARD: std::ops::Range<usize> = 47..68;
    let text = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let number = |line: &str, column| match line.get(column).map(str::trim) {
        Some("unlimited") => Some(libc::RLIM_INFINITY),
        found => found?.parse().ok(),
    };
    let lines = text.lines().skip(1).take(RESOURCES);
    let limits: Option<Vec<(u64, u64)>> =
        lines.map(|line| Some((number(line, SOFT)?, number(line, HARD)?))).collect();
    limits.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The places of a process's memory, as `/proc/PID/stat` tells them.
pub(in crate::snapshot) fn layout(stat: &str, brk: u64) -> io::Result<Layout> {
    // Fields are counted from 1; the third comes behind the name's bracket.
    let fields: Vec<u64> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect())
        .unwrap_or_default();
    let field = |number: usize| {
        let found = fields.get(number - 3).copied();
        found.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    };
    Ok(Layout {
        start_code: field(26)?,
        end_code: field(27)?,
        start_stack: field(28)?,
        start_data: field(45)?,
        end_data: field(46)?,
        start_brk: field(47)?,
        brk,
        arg_start: field(48)?,
        arg_end: field(49)?,
        env_start: field(50)?,
        env_end: field(51)?,
    })
}
