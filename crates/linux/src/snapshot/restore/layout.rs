//! The image's addresses: areas mapped where they were, protected last.

use super::super::describe::areas::hash_of_part;
use super::super::error::{Doing, Result, refuse};
use super::super::maps::{self, Mapping};
use super::super::thread;
use super::files::Made;
use super::remote::{Remote, poke};
use crate::process;
use holdfast_wire::hash::HashKey;
use holdfast_wire::snapshot::{Advice, Area, Backing, Description};
use std::io;

/// Room for the code, its arguments, and what the kernel maps into every process.
const PLACE_BYTES: u64 = 1 << 20;
/// Where in it the kernel's own areas wait.
const ASIDE: u64 = 0x10000;
const ADDRESS_END: u64 = 0x7fff_ffff_f000;

/// Files that the image relies on must be here what they were there.
pub(super) fn check_files(description: &Description, key: &HashKey) -> Result<()> {
    for area in &description.areas {
        if let Backing::Private { path, offset, hash } = &area.backing {
            let name = String::from_utf8_lossy(path);
            let found = hash_of_part(path, *offset, area.end - area.start, key);
            if found.doing(format!("the file {name}"))? != *hash {
                return refuse(format!("the file {name} is another one here"));
            }
        }
    }
    Ok(())
}

/// Addresses that neither the image nor this process uses.
pub(super) fn free_place(description: &Description) -> Result<u64> {
    let own = maps::read(std::process::id())?;
    let free = |place: &u64| {
        let end = place + PLACE_BYTES;
        own.iter().all(|m| m.end <= *place || m.start >= end)
            && description.areas.iter().all(|a| a.end <= *place || a.start >= end)
    };
    let place = (0x10000..ADDRESS_END).step_by(PLACE_BYTES as usize).find(free);
    place.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory)).doing("a free address")
}

/// Replaces all that the stub has by the image's areas, which are all writable yet.
pub(super) fn map(stub: &mut Remote, description: &Description, made: &Made) -> Result<()> {
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
    put_back(stub, description, &kernels)?;
    for area in &description.areas {
        map_area(stub, area, made)?;
        advise(stub, area)?;
    }
    Ok(())
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
    let mut kernels = maps::read(stub.pid)?;
    kernels.retain(is_kernels);
    let mut to = stub.place + ASIDE;
    for mapping in &mut kernels {
        remap(stub, mapping, to)?;
        to = mapping.end;
    }
    Ok(kernels)
}

/// To where the image has them, if they are the same; else the image's vDSO becomes
/// plain code that makes system calls.
fn put_back(stub: &mut Remote, description: &Description, kernels: &[Mapping]) -> Result<()> {
    let wanted: Vec<&Area> = description
        .areas
        .iter()
        .filter(|area| matches!(area.backing, Backing::Vdso | Backing::Vvar))
        .collect();
    let mut ours = Vec::new();
    if let Some(vdso) = kernels.iter().find(|mapping| mapping.name == b"[vdso]") {
        ours.resize((vdso.end - vdso.start) as usize, 0);
        process::read_memory(stub.pid, vdso.start, &mut ours).doing("reading the vDSO")?;
    }
    let sizes = |area: &Area| area.end - area.start;
    let same = ours == description.process.vdso
        && kernels.iter().map(|m| m.end - m.start).eq(wanted.iter().map(|a| sizes(a)));
    if same {
        for (mapping, area) in kernels.iter().zip(wanted) {
            remap(stub, &mut mapping.clone(), area.start)?;
        }
        return Ok(());
    }
    for mapping in kernels {
        let arguments = [mapping.start, mapping.end - mapping.start];
        stub.call("removing the vDSO", libc::SYS_munmap, &arguments)?;
    }
    if wanted.is_empty() {
        return Ok(());
    }
    refuse("this host's kernel is another one (its vDSO differs)")
}

fn map_area(stub: &mut Remote, area: &Area, made: &Made) -> Result<()> {
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let write = libc::PROT_WRITE as u64;
    let prot = u64::from(area.prot);
    let none = u64::MAX;
    let (prot, flags, file, offset) = match &area.backing {
        Backing::Vdso | Backing::Vvar => return Ok(()),
        Backing::Anonymous => (prot | write, anonymous, none, 0),
        Backing::Stack => {
            (prot | write, anonymous | libc::MAP_GROWSDOWN | libc::MAP_STACK, none, 0)
        }
        Backing::Private { path, offset, .. } => {
            let file = stub.open(path, libc::O_RDONLY)?;
            (prot | write, libc::MAP_PRIVATE | libc::MAP_NORESERVE, file, *offset)
        }
        Backing::Shared { path, offset, writable } => {
            let flags = if *writable { libc::O_RDWR } else { libc::O_RDONLY };
            (prot, libc::MAP_SHARED, stub.open(path, flags)?, *offset)
        }
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
pub(super) fn protect(stub: &mut Remote, description: &Description) -> Result<()> {
    for area in description.areas.iter().filter(|area| area.has_pages()) {
        if area.prot & libc::PROT_WRITE as u8 == 0 {
            let arguments = [area.start, area.end - area.start, area.prot.into()];
            stub.call("protecting its memory", libc::SYS_mprotect, &arguments)?;
        }
    }
    let process = &description.process;
    let executable = stub.open(&process.executable, libc::O_RDONLY)?;
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
    let mut folder = process.directory.clone();
    folder.push(0);
    let folder = stub.argument(&folder)?;
    stub.call("its working folder", libc::SYS_chdir, &[folder])?;
    stub.call("its umask", libc::SYS_umask, &[process.umask.into()])?;
    Ok(())
}
