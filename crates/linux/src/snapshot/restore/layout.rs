//! The image's addresses: areas mapped where they were, protected last.

use super::super::error::{Doing, Result, refuse};
use super::super::maps::{self, Mapping};
use super::super::memory::merged;
use super::super::thread;
use super::files::Made;
use super::mapped::Mapped;
use super::remote::{Remote, poke};
use crate::process;
use holdfast_wire::snapshot::{Advice, Area, Backing, Description, Member, PAGE};

/// Room for the code, its arguments, and what the kernel maps into every process,
/// in bytes.
const PLACE_BYTES: u64 = 1 << 20;
/// Lowest address that a process may map by default (`vm.mmap_min_addr`).
const PLACE_MIN: u64 = 0x10000;
/// Offset of the place where the kernel's own areas wait.
const ASIDE: u64 = 0x10000;
const ADDRESS_END: u64 = 0x7fff_ffff_f000;

/// Finds addresses that neither a process of the image nor this one uses.
pub(super) fn free_place(description: &Description) -> Result<u64> {
    let own = maps::read(std::process::id())?;
    let own = own.iter().map(|mapping| (mapping.start, mapping.end));
    let areas = description.members.iter().flat_map(|member| &member.areas);
    let used = own.chain(areas.map(|area| (area.start, area.end)));
    match gap(merged(used.collect())) {
        Some(place) => Ok(place),
        None => refuse("its addresses leave no room: it maps nearly all that there are"),
    }
}

/// The first gap that is large enough, between areas that are in order.
fn gap(used: Vec<(u64, u64)>) -> Option<u64> {
    let mut at = PLACE_MIN;
    for (start, end) in used {
        if start >= at + PLACE_BYTES {
            break;
        }
        at = at.max(end.next_multiple_of(PAGE));
    }
    (at + PLACE_BYTES <= ADDRESS_END).then_some(at)
}

/// Replaces everything that a stub has by its process's areas, which are all still
/// writable.
pub(super) fn map(stub: &mut Remote, member: &Member, made: &Made, mapped: &Mapped) -> Result<()> {
    let rseq = thread::rseq(stub.pid);
    if rseq.address != 0 {
        let (size, signature) = (u64::from(rseq.size), u64::from(rseq.signature));
        let arguments = [rseq.address, size, 1, signature];
        stub.call("ending the stub's rseq", libc::SYS_rseq, &arguments)?;
    }
    stub.call("forgetting the robust list", libc::SYS_set_robust_list, &[0, 24])?;
    let kernels = set_aside(stub)?;
    let place = stub.place;
    let behind = place + PLACE_BYTES;
    stub.call("clearing its memory", libc::SYS_munmap, &[0, place])?;
    stub.call("clearing its memory", libc::SYS_munmap, &[behind, ADDRESS_END - behind])?;
    put_back(stub, member, &kernels)?;
    for area in &member.areas {
        map_area(stub, area, made, mapped)?;
        advise(stub, area)?;
    }
    Ok(())
}

/// Refuses an image of a server that ran on another kernel: it has the vDSO of that one in its
/// memory, and libc knows its functions by their addresses. Changes nothing.
pub(super) fn same_kernel(description: &Description) -> Result<()> {
    let kernels = kernels(std::process::id())?;
    let ours = own_vdso()?;
    for member in &description.members {
        let sizes = |of: &[Mapping]| of.iter().map(|it| it.end - it.start).collect::<Vec<_>>();
        let theirs: Vec<u64> = wanted(member).map(|area| area.end - area.start).collect();
        let is_same = member.process.vdso == ours && theirs == sizes(&kernels);
        if !theirs.is_empty() && !is_same {
            return refuse("this host's kernel is another one (its vDSO differs)");
        }
    }
    Ok(())
}

/// The image's areas that are the kernel's.
fn wanted(member: &Member) -> impl Iterator<Item = &Area> {
    let is_kernels = |area: &&Area| matches!(area.backing, Backing::Vdso | Backing::Vvar);
    member.areas.iter().filter(is_kernels)
}

/// The code that this kernel gives every process (its vDSO): an image is only of use where it is
/// the same.
///
/// # Errors
/// If this process's memory cannot be listed or read.
pub fn own_vdso() -> Result<Vec<u8>> {
    let pid = std::process::id();
    let kernels = kernels(pid)?;
    let Some(vdso) = kernels.iter().find(|mapping| mapping.name == b"[vdso]") else {
        return Ok(Vec::new());
    };
    let mut bytes = vec![0; (vdso.end - vdso.start) as usize];
    process::read_memory(pid, vdso.start, &mut bytes).doing("reading the vDSO")?;
    Ok(bytes)
}

fn kernels(pid: u32) -> Result<Vec<Mapping>> {
    let mut kernels = maps::read(pid)?;
    kernels.retain(is_kernels);
    Ok(kernels)
}

fn is_kernels(mapping: &Mapping) -> bool {
    mapping.name == b"[vdso]" || mapping.name.starts_with(b"[vvar")
}

fn remap(stub: &mut Remote, mapping: &mut Mapping, to: u64) -> Result<()> {
    let len = mapping.end - mapping.start;
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    let arguments = [mapping.start, len, len, flags, to];
    stub.call("moving the vDSO", libc::SYS_mremap, &arguments)?;
    (mapping.start, mapping.end) = (to, to + len);
    Ok(())
}

/// Moves the kernel's own areas out of the image's way.
fn set_aside(stub: &mut Remote) -> Result<Vec<Mapping>> {
    let mut kernels = kernels(stub.pid)?;
    let mut to = stub.place + ASIDE;
    for mapping in &mut kernels {
        remap(stub, mapping, to)?;
        to = mapping.end;
    }
    Ok(kernels)
}

/// Moves the kernel's areas to where the image has them, which are the same ones
/// ([`same_kernel`]); from a process that has none they are removed.
fn put_back(stub: &mut Remote, member: &Member, kernels: &[Mapping]) -> Result<()> {
    if wanted(member).next().is_none() {
        for mapping in kernels {
            let arguments = [mapping.start, mapping.end - mapping.start];
            stub.call("removing the vDSO", libc::SYS_munmap, &arguments)?;
        }
    }
    for (mapping, area) in kernels.iter().zip(wanted(member)) {
        remap(stub, &mut mapping.clone(), area.start)?;
    }
    Ok(())
}

/// Attaches a segment, and gives the area its protection: it is filled as a file.
fn attach(stub: &mut Remote, area: &Area, id: u32, writable: bool) -> Result<()> {
    let (flags, prot) = match writable {
        true => (0, libc::PROT_READ | libc::PROT_WRITE),
        false => (libc::SHM_RDONLY, libc::PROT_READ),
    };
    let what = format!("attaching SysV shared memory {id} at {:#x}", area.start);
    stub.call(&what, libc::SYS_shmat, &[id.into(), area.start, flags as u64])?;
    if prot != i32::from(area.prot) {
        let arguments = [area.start, area.end - area.start, area.prot.into()];
        stub.call(&what, libc::SYS_mprotect, &arguments)?;
    }
    Ok(())
}

fn map_area(stub: &mut Remote, area: &Area, made: &Made, mapped: &Mapped) -> Result<()> {
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let write = libc::PROT_WRITE as u64;
    let prot = u64::from(area.prot);
    let none = u64::MAX;
    let file = match mapped.path(area) {
        Some((path, flags)) => stub.open(path.as_bytes(), flags)?,
        None => none,
    };
    let (prot, flags, file, offset) = match &area.backing {
        Backing::Vdso | Backing::Vvar => return Ok(()),
        Backing::Attached { object, writable } => {
            return attach(stub, area, made.segment(*object), *writable);
        }
        Backing::Anonymous => (prot | write, anonymous, none, 0),
        Backing::Stack => {
            (prot | write, anonymous | libc::MAP_GROWSDOWN | libc::MAP_STACK, none, 0)
        }
        Backing::Private { offset, .. } => {
            (prot | write, libc::MAP_PRIVATE | libc::MAP_NORESERVE, file, *offset)
        }
        Backing::Shared { offset, .. } => (prot, libc::MAP_SHARED, file, *offset),
        Backing::Object { object, offset } => {
            let path = made.object_path(*object);
            (prot, libc::MAP_SHARED, stub.open(path.as_bytes(), libc::O_RDWR)?, *offset)
        }
    };
    let flags = (flags | libc::MAP_FIXED) as u64;
    let arguments = [area.start, area.end - area.start, prot, flags, file, offset];
    let what = format!("mapping {:#x}", area.start);
    stub.call(&what, libc::SYS_mmap, &arguments)?;
    if file == none { Ok(()) } else { stub.close(file) }
}

fn advise(stub: &mut Remote, area: &Area) -> Result<()> {
    let Advice { huge, never_huge, not_forked, not_dumped, wiped_on_fork, no_reserve: _ } =
        area.advice;
    for (wanted, advice) in [
        (huge, libc::MADV_HUGEPAGE),
        (never_huge, libc::MADV_NOHUGEPAGE),
        (not_forked, libc::MADV_DONTFORK),
        (not_dumped, libc::MADV_DONTDUMP),
        (wiped_on_fork, libc::MADV_WIPEONFORK),
    ] {
        if wanted && !matches!(area.backing, Backing::Vdso | Backing::Vvar) {
            let arguments = [area.start, area.end - area.start, advice as u64];
            stub.call("advising the kernel", libc::SYS_madvise, &arguments)?;
        }
    }
    Ok(())
}

/// Gives areas their protection, and tells the kernel where things are.
pub(super) fn protect(stub: &mut Remote, member: &Member, mapped: &Mapped) -> Result<()> {
    for area in member.areas.iter().filter(|area| area.has_pages()) {
        if area.prot & libc::PROT_WRITE as u8 == 0 {
            let arguments = [area.start, area.end - area.start, area.prot.into()];
            stub.call("protecting its memory", libc::SYS_mprotect, &arguments)?;
        }
    }
    let process = &member.process;
    let executable = stub.open(mapped.executable().as_bytes(), libc::O_RDONLY)?;
    let auxv: Vec<u8> = process.auxv.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let auxv_at = stub.place + 0x1000;
    poke(stub.pid, auxv_at, &auxv).doing("its auxiliary vector")?;
    let l = &process.layout;
    let numbers = [
        l.start_code,
        l.end_code,
        l.start_data,
        l.end_data,
        l.start_brk,
        l.brk,
        l.start_stack,
        l.arg_start,
        l.arg_end,
        l.env_start,
        l.env_end,
        auxv_at,
        auxv.len() as u64 | executable << 32,
    ];
    let map = stub.numbers(&numbers)?;
    let size = size_of_val(&numbers) as u64;
    let (option, map_option) = (libc::PR_SET_MM as u64, libc::PR_SET_MM_MAP as u64);
    let what = "telling the kernel where its memory is";
    stub.call(what, libc::SYS_prctl, &[option, map_option, map, size])?;
    stub.close(executable)?;
    let folder = stub.argument(format!("{}\0", mapped.directory()).as_bytes())?;
    stub.call("its working folder", libc::SYS_chdir, &[folder])?;
    stub.call("its umask", libc::SYS_umask, &[process.umask.into()])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_found_or_known_to_be_missing_at_once() {
        assert_eq!(gap(Vec::new()), Some(PLACE_MIN));
        let low = PLACE_MIN + PLACE_BYTES - PAGE;
        assert_eq!(gap(vec![(low, low + PAGE)]), Some(low + PAGE));
        assert_eq!(gap(vec![(0, PLACE_MIN), (1 << 40, 1 << 41)]), Some(PLACE_MIN));
        // As many areas as a process may have, without room between any two.
        let step = ADDRESS_END / 65536 / PAGE * PAGE;
        let crowded = |gap: u64| (0..65537).map(move |at| (at * step, (at + 1) * step - gap));
        assert_eq!(gap(crowded(PLACE_BYTES - PAGE).collect()), None);
        assert_eq!(gap(crowded(PLACE_BYTES).collect()), Some(step - PLACE_BYTES));
    }
}
