//! The rules of a description; restoring relies on them.

use super::{
    ATTRIBUTES_BYTES_MAX, Area, Attribute, Backing, Books, Description, Family, FileKind,
    GROUPS_MAX, Holds, ImageError, LOCKS_MAX, Limits, Member, ObjectKind, PAGE, PROT_ALL,
    REGISTERS, RESOURCES, SEGMENTS_MAX, SIGINFO, SIGNALS, STATE_RESERVED, Segment, SocketOption,
    State, StateEntry, StateKind, TIMERS_MAX, Thread, Timer, UNREAD_MAX,
};
use crate::group::{PROCESSES_MAX, THREAD_NUMBERS};
use crate::log::POSITION_MAX;
use crate::shm::{CONNS_MAX, LISTENERS_MAX, conn_state};
use std::collections::{BTreeMap, BTreeSet};

/// End of the addresses that a process may map on x86-64, with four levels of
/// page tables.
const ADDRESS_END: u64 = 0x7fff_ffff_f000;
/// Number of the first process of a pid namespace: of the image's first process, or else of
/// one that the loader adds.
const PID_FIRST: u32 = 1;
/// End of the pids: `PID_MAX_LIMIT` of a 64-bit kernel.
const PID_END: u32 = 1 << 22;
const XSTATE_MAX: usize = 16 << 10;
const SIGNALS_PENDING_MAX: usize = 1024;
const AUXV_MAX: usize = 128;
const VDSO_MAX: usize = 64 << 10;
const NAME_MAX: usize = 16;
const AFFINITY_MAX: usize = 1024;
const SOCKADDR_MAX: usize = 128;
const SOCKET_OPTIONS_MAX: usize = 64;
/// Largest socket option, in bytes.
const OPTION_MAX: usize = 16;
/// Most state folders of a group.
pub const STATE_FOLDERS_MAX: usize = 16;
const MODE_MAX: u32 = 0o777;
/// Longest name in a folder (`NAME_MAX`), in bytes.
const FILE_NAME_MAX: usize = 255;
/// Longest name and value of an extended attribute (`XATTR_NAME_MAX`, `XATTR_SIZE_MAX`), in bytes.
const ATTRIBUTE_NAME_MAX: usize = 255;
const ATTRIBUTE_MAX: usize = 64 << 10;
/// `PROT_WRITE`.
const PROT_WRITE: u8 = 2;
/// Types of sockets that come in pairs: `SOCK_STREAM`, `SOCK_DGRAM`, `SOCK_SEQPACKET`.
const PAIRS: [i32; 3] = [SOCK_STREAM, 2, 5];
const SOCK_STREAM: i32 = 1;
/// Most watches of an inotify descriptor, or of all epoll sets per descriptor.
const WATCHES_MAX: usize = 1 << 20;

type Checked = Result<(), ImageError>;

fn rule(holds: bool, broken: &'static str) -> Checked {
    if holds { Ok(()) } else { Err(ImageError::Malformed(broken)) }
}

fn limit(found: usize, most: usize, name: &'static str) -> Checked {
    if found <= most { Ok(()) } else { Err(ImageError::TooMuch(name)) }
}

pub(super) fn description(of: &Description, limits: &Limits) -> Checked {
    limit(of.members.len(), limits.members, "members")?;
    limit(of.objects.len(), limits.areas, "areas")?;
    limit(of.files.len(), limits.descriptors, "descriptors")?;
    family(of)?;
    of.members.iter().try_for_each(|it| member(of, it, limits))?;
    objects(of, limits)?;
    files(of, limits)?;
    pairs(of)?;
    state(&of.state, limits)?;
    of.books.as_ref().map_or(Ok(()), books)
}

/// Checks who belongs to whom, and that every number is one thread's.
fn family(of: &Description) -> Checked {
    let first = of.members.first().ok_or(ImageError::Malformed("there is no process"))?;
    let is_alone = of.members.len() == 1;
    rule(is_alone || of.is_namespace(), "the first of several processes has another number")?;
    rule(first.parent == 0, "the first process has a parent")?;
    let mut members = (0..).zip(&of.members).skip(1);
    rule(members.all(|(index, it)| it.parent < index), "a process comes before its parent")?;
    rule(of.misplaced().is_none(), "a process cannot have its session or its group")?;
    rule(of.last_pid < PID_END, "no process has been given that number")?;
    let all = of.members.iter().flat_map(|it| &it.threads).map(|thread| thread.tid);
    let mut tids: Vec<u32> = all.collect();
    tids.sort_unstable();
    rule(tids.windows(2).all(|pair| pair[0] != pair[1]), "two threads have one number")?;
    // Where the loader adds the namespace's first process, the number is not free.
    let lowest = if of.is_namespace() { PID_FIRST } else { PID_FIRST + 1 };
    rule(tids.iter().all(|tid| (lowest..PID_END).contains(tid)), "no thread has that number")
}

fn member(of: &Description, member: &Member, limits: &Limits) -> Checked {
    limit(member.threads.len(), limits.threads, "threads")?;
    limit(member.areas.len(), limits.areas, "areas")?;
    limit(member.descriptors.len(), limits.descriptors, "descriptors")?;
    limit(member.watches.len(), WATCHES_MAX, "watches")?;
    process(member, limits)?;
    threads(member)?;
    areas(of, member, limits)?;
    descriptors(of, member, limits)?;
    locks(member)
}

/// Checks the books; what the server itself could have written there is its own
/// affair.
fn books(of: &Books) -> Checked {
    limit(of.connections.len(), CONNS_MAX, "connections")?;
    limit(of.listeners.len(), LISTENERS_MAX, "listeners")?;
    rule(of.log_from < POSITION_MAX && of.log_from.is_multiple_of(8), "no log begins there")?;
    let places = of.connections.iter().map(|it| it.conn as usize % CONNS_MAX);
    rule(places.clone().is_sorted_by(|a, b| a < b), "connections are out of order")?;
    let known = of.connections.iter().all(|it| it.state <= conn_state::DONE);
    rule(known, "no connection is like that")?;
    of.family.as_ref().map_or(Ok(()), kin)
}

fn kin(of: &Family) -> Checked {
    limit(of.processes.len(), PROCESSES_MAX, "processes")?;
    limit(of.owners.len(), THREAD_NUMBERS, "threads")?;
    let places = of.processes.is_sorted_by(|a, b| a.place < b.place);
    let last = of.processes.last().map_or(0, |it| it.place as usize);
    rule(places && last < PROCESSES_MAX, "processes are out of order")?;
    rule(of.processes.iter().all(|it| it.pid > 0), "no process has that number")?;
    let owners = of.owners.iter().all(|(_, owner)| *owner as usize <= PROCESSES_MAX);
    rule(owners, "a thread is of no process")
}

fn name(name: &[u8], limits: &Limits) -> Checked {
    limit(name.len(), limits.name_bytes, "name_bytes")?;
    rule(!name.contains(&0), "a name contains a zero")
}

fn path(path: &[u8], limits: &Limits) -> Checked {
    name(path, limits)?;
    rule(path.first() == Some(&b'/'), "a path is not absolute")
}

fn pending(signals: &[Vec<u8>]) -> Checked {
    limit(signals.len(), SIGNALS_PENDING_MAX, "pending signals")?;
    rule(signals.iter().all(|info| info.len() == SIGINFO), "a signal has another size")
}

fn process(of: &Member, limits: &Limits) -> Checked {
    let process = &of.process;
    path(&process.executable, limits)?;
    path(&process.directory, limits)?;
    rule(process.actions.len() == SIGNALS, "there are not as many actions as signals")?;
    rule(process.limits.len() == RESOURCES, "there are not as many limits as resources")?;
    limit(process.auxv.len(), AUXV_MAX, "the auxiliary vector")?;
    limit(process.vdso.len(), VDSO_MAX, "the vDSO")?;
    limit(process.ids.further_groups.len(), GROUPS_MAX, "groups")?;
    timers(&process.timers)?;
    pending(&process.pending)
}

fn timers(all: &[Timer]) -> Checked {
    let in_order = all.is_sorted_by(|a, b| a.number < b.number);
    rule(in_order, "a timer is out of order")?;
    for timer in all {
        limit(timer.number as usize + 1, TIMERS_MAX as usize, "timers")?;
        rule(timer.notify <= 2 && timer.tid < PID_END, "no timer is like that")?;
    }
    Ok(())
}

fn threads(of: &Member) -> Checked {
    let first = of.threads.first().ok_or(ImageError::Malformed("there is no thread"))?;
    rule(first.tid == of.process.pid, "the first thread has not the process's number")?;
    of.threads.iter().try_for_each(thread)
}

fn thread(thread: &Thread) -> Checked {
    rule(thread.registers.len() == REGISTERS, "a thread has another number of registers")?;
    limit(thread.xstate.len(), XSTATE_MAX, "a thread's extended state")?;
    limit(thread.name.len(), NAME_MAX, "a thread's name")?;
    limit(thread.affinity.len(), AFFINITY_MAX, "a mask of processors")?;
    rule(!thread.name.contains(&0), "a thread's name contains a zero")?;
    pending(&thread.pending)
}

fn areas(of: &Description, member: &Member, limits: &Limits) -> Checked {
    let mut last = PAGE;
    for area in &member.areas {
        let aligned = area.start.is_multiple_of(PAGE) && area.end.is_multiple_of(PAGE);
        rule(aligned, "an area does not begin and end with a page")?;
        rule(area.start >= last, "an area is out of order")?;
        rule(area.start < area.end && area.end <= ADDRESS_END, "an area is out of range")?;
        rule(area.prot <= PROT_ALL, "an area has unknown protection")?;
        last = area.end;
        backing(of, area, limits)?;
    }
    Ok(())
}

fn backing(of: &Description, area: &Area, limits: &Limits) -> Checked {
    match &area.backing {
        Backing::Anonymous | Backing::Stack | Backing::Vdso | Backing::Vvar => Ok(()),
        Backing::Private { path: name, offset, .. }
        | Backing::Shared { path: name, offset, .. } => {
            path(name, limits)?;
            rule(offset.is_multiple_of(PAGE) && *offset < 1 << 62, "a mapping's offset")
        }
        Backing::Object { object, offset } => {
            let known = (*object as usize) < of.objects.len();
            rule(known, "an area shows no object that there is")?;
            rule(segment(of, *object).is_none(), "a segment is mapped like a file")?;
            rule(offset.is_multiple_of(PAGE) && *offset < 1 << 62, "a mapping's offset")
        }
        Backing::Attached { object, writable } => {
            let known = segment(of, *object);
            rule(known.is_some(), "an area shows no segment that there is")?;
            let size = of.objects[*object as usize].size.next_multiple_of(PAGE);
            rule(area.end - area.start == size, "a segment is attached in part")?;
            let is_written = area.prot & PROT_WRITE != 0;
            rule(!is_written || *writable, "what is attached for reading can be written")
        }
    }
}

/// The SysV segment with this number among all shared memory.
fn segment(of: &Description, object: u32) -> Option<&Segment> {
    match &of.objects.get(object as usize)?.kind {
        ObjectKind::Segment(segment) => Some(segment),
        _ => None,
    }
}

fn objects(of: &Description, limits: &Limits) -> Checked {
    let mut names = BTreeSet::new();
    for object in &of.objects {
        name(&object.name, limits)?;
        rule(object.size < 1 << 62, "an object's size")?;
        match object.kind {
            ObjectKind::Memory => limit(object.name.len(), 249, "a memory file's name")?,
            ObjectKind::Named { mode, .. } => {
                limit(object.name.len(), FILE_NAME_MAX, "a name in a folder")?;
                let plain = !matches!(&object.name[..], b"" | b"." | b"..");
                rule(plain && !object.name.contains(&b'/'), "shared memory has no such name")?;
                rule(names.insert(&object.name), "two objects have one name")?;
                rule(mode <= MODE_MAX, "an object's mode")?;
            }
            ObjectKind::Segment(_) => {
                rule(object.name.is_empty() && object.size > 0, "no segment is like that")?;
            }
        }
        let is_memory = object.kind == ObjectKind::Memory;
        rule(is_memory || object.seals == 0, "only memory files have seals")?;
        rule(is_memory || !object.is_external, "only memory files are here already")?;
    }
    segments(of)
}

/// Checks that all segments can be in one IPC namespace.
fn segments(of: &Description) -> Checked {
    let areas = || of.members.iter().flat_map(|it| &it.areas);
    let attached: BTreeSet<u32> = areas()
        .filter_map(|area| match area.backing {
            Backing::Attached { object, .. } => Some(object),
            _ => None,
        })
        .collect();
    let (mut ids, mut keys) = (BTreeSet::new(), BTreeSet::new());
    for number in 0..of.objects.len() as u32 {
        let Some(segment) = segment(of, number) else { continue };
        limit(ids.len() + 1, SEGMENTS_MAX, "segments")?;
        rule(segment.mode <= MODE_MAX, "a segment's mode")?;
        rule(i32::try_from(segment.id).is_ok(), "no segment has that number")?;
        rule(ids.insert(segment.id), "two segments have one number")?;
        rule(segment.key == 0 || keys.insert(segment.key), "two segments have one key")?;
        let is_held = segment.key == 0 && attached.contains(&number);
        rule(!segment.is_removed || is_held, "a segment that was removed is still there")?;
    }
    Ok(())
}

fn files(of: &Description, limits: &Limits) -> Checked {
    for file in &of.files {
        let known = file.signals == 0 || of.members.iter().any(|it| it.process.pid == file.signals);
        rule(known, "a file signals no process that there is")?;
        match &file.kind {
            FileKind::Path { path: name, position } => {
                path(name, limits)?;
                rule(*position < 1 << 62, "a file's position")?;
            }
            FileKind::Unlinked { folder, position, size, .. } => {
                path(folder, limits)?;
                rule(*position < 1 << 62 && *size < 1 << 62, "a file's size or position")?;
            }
            FileKind::Memory { object, position } => {
                rule((*object as usize) < of.objects.len(), "a file is no object that there is")?;
                rule(segment(of, *object).is_none(), "a file is a segment")?;
                rule(*position < 1 << 62, "a file's position")?;
            }
            FileKind::Inotify { watched } => {
                limit(watched.len(), WATCHES_MAX, "watches")?;
                watched.iter().try_for_each(|watch| path(&watch.path, limits))?;
            }
            FileKind::Socket(socket) => {
                limit(socket.local.len(), SOCKADDR_MAX, "a socket's address")?;
                options(&socket.options)?;
            }
            FileKind::Pair { kind, shut, unread, options: set, .. } => {
                rule(PAIRS.contains(kind) && *shut <= 3, "no pair of sockets is like that")?;
                rule(*kind == SOCK_STREAM || *unread == 0, "messages have no content")?;
                rule(*unread <= UNREAD_MAX, "a socket holds more than any")?;
                options(set)?;
            }
            FileKind::Pipe { .. }
            | FileKind::Event { .. }
            | FileKind::Epoll
            | FileKind::Timer { .. }
            | FileKind::Signals { .. }
            | FileKind::Given
            | FileKind::Userfault => {}
        }
    }
    Ok(())
}

fn options(of: &[SocketOption]) -> Checked {
    limit(of.len(), SOCKET_OPTIONS_MAX, "a socket's options")?;
    let short = of.iter().all(|it| it.value.len() <= OPTION_MAX);
    rule(short, "a socket's option is too long")
}

/// Checks that no pair has three ends, or ends of two kinds.
fn pairs(of: &Description) -> Checked {
    let mut ends: BTreeMap<u32, (i32, usize)> = BTreeMap::new();
    for file in &of.files {
        let FileKind::Pair { pair, kind, .. } = file.kind else { continue };
        let (known, count) = ends.entry(pair).or_insert((kind, 0));
        *count += 1;
        rule(*known == kind && *count <= 2, "a pair of sockets is none")?;
    }
    Ok(())
}

fn locks(of: &Member) -> Checked {
    limit(of.locks.len(), LOCKS_MAX, "locks")?;
    for lock in &of.locks {
        let known = of.descriptors.binary_search_by_key(&lock.number, |it| it.number).is_ok();
        rule(known, "a lock is on no descriptor that there is")?;
        let last = lock.last.unwrap_or(lock.start);
        rule(lock.start <= last && last < 1 << 62, "a lock's range")?;
    }
    Ok(())
}

fn descriptors(of: &Description, member: &Member, limits: &Limits) -> Checked {
    let mut next = 0;
    for descriptor in &member.descriptors {
        rule(descriptor.number >= next, "a descriptor is out of order")?;
        limit(descriptor.number as usize + 1, limits.descriptor_end as usize, "descriptor_end")?;
        let known = (descriptor.file as usize) < of.files.len();
        rule(known, "a descriptor is no file that there is")?;
        next = descriptor.number + 1;
    }
    let has = |number: u32| member.descriptors.binary_search_by_key(&number, |d| d.number).ok();
    for watch in &member.watches {
        let set = has(watch.set).map(|at| member.descriptors[at].file as usize);
        let is_set = set.is_some_and(|file| matches!(of.files[file].kind, FileKind::Epoll));
        rule(is_set, "an epoll set is none")?;
        rule(has(watch.target).is_some(), "an epoll set watches no descriptor that there is")?;
    }
    Ok(())
}

fn state(of: &State, limits: &Limits) -> Checked {
    limit(of.folders.len(), STATE_FOLDERS_MAX, "state folders")?;
    limit(of.entries.len(), limits.state_entries, "state_entries")?;
    of.folders.iter().try_for_each(|folder| path(folder, limits))?;
    let in_order = of.entries.is_sorted_by(|a, b| (a.folder, &a.path) < (b.folder, &b.path));
    rule(in_order, "state entries are out of order")?;
    let (mut most, mut attributes_bytes) = (0u64, 0);
    for entry in &of.entries {
        state_entry(of, entry, limits)?;
        attributes(&entry.attributes)?;
        attributes_bytes += entry.attributes.iter().map(Attribute::bytes).sum::<usize>();
        if let StateKind::File { size } = entry.kind {
            most = most.saturating_add(size);
        }
    }
    limit(attributes_bytes, ATTRIBUTES_BYTES_MAX, "extended attributes")?;
    rule(of.bytes <= most, "files hold more than they are long")
}

fn attributes(of: &[Attribute]) -> Checked {
    let in_order = of.is_sorted_by(|a, b| a.name < b.name);
    rule(in_order, "extended attributes are out of order")?;
    for attribute in of {
        limit(attribute.name.len(), ATTRIBUTE_NAME_MAX, "an extended attribute's name")?;
        limit(attribute.value.len(), ATTRIBUTE_MAX, "an extended attribute")?;
        let is_good = Attribute::may_go_over(&attribute.name) && !attribute.name.contains(&0);
        rule(is_good, "no extended attribute of that name goes over")?;
    }
    Ok(())
}

fn state_entry(of: &State, entry: &StateEntry, limits: &Limits) -> Checked {
    name(&entry.path, limits)?;
    rule((entry.folder as usize) < of.folders.len(), "an entry is in no state folder")?;
    let mut parts = entry.path.split(|byte| *byte == b'/');
    let plain = parts.all(|part| !matches!(part, b"" | b"." | b".."));
    rule(plain, "an entry leads out of its folder")?;
    rule(!entry.path.starts_with(STATE_RESERVED), "an entry's name is reserved")?;
    rule(entry.mode <= MODE_MAX, "an entry's mode")?;
    match &entry.kind {
        StateKind::Folder => Ok(()),
        StateKind::File { size } => rule(*size < 1 << 62, "a file's size"),
        StateKind::Link { to } => name(to, limits),
    }
}

/// Checks the order: files of state folders come first. `before` and `after` are the
/// byte counts without and with this chunk.
pub(super) fn turn(of: &Description, holds: Holds, before: u64, after: u64) -> Checked {
    match holds {
        Holds::State { .. } => rule(after <= of.state.bytes, "there is more state than was said"),
        _ => rule(before >= of.state.bytes, "there is less state than was said"),
    }
}

/// Checks that a chunk of `len` bytes may hold this.
pub(super) fn chunk(of: &Description, holds: Holds, len: u64) -> Checked {
    // Each chunk counts against the image's limits, so that there is an end to
    // them.
    rule(len > 0 || holds == Holds::End, "a chunk is empty")?;
    match holds {
        Holds::Pages { member, address } => {
            let Some(of) = of.members.get(member as usize) else {
                return rule(false, "pages of no process");
            };
            let aligned = address.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
            rule(aligned, "a chunk has no whole pages")?;
            let at = of.areas.partition_point(|area| area.end <= address);
            let within = of.areas.get(at).is_some_and(|area| {
                area.has_pages() && area.start <= address && len <= area.end - address
            });
            rule(within, "pages lie outside of the areas that have some")
        }
        Holds::File { file, offset } => {
            let most = match of.files.get(file as usize).map(|file| &file.kind) {
                Some(FileKind::Pipe { writes: false, capacity, .. }) => u64::from(*capacity),
                Some(FileKind::Unlinked { size, .. }) => *size,
                Some(FileKind::Pair { unread, .. }) => u64::from(*unread),
                _ => return rule(false, "content of a file that has none"),
            };
            let within = offset.checked_add(len).is_some_and(|end| end <= most);
            rule(within, "content beyond a file's end")
        }
        Holds::Object { object, offset } => {
            let object = of.objects.get(object as usize).filter(|object| !object.is_external);
            let size = object.ok_or(ImageError::Malformed("content of no object"))?.size;
            let within = offset.checked_add(len).is_some_and(|end| end <= size);
            rule(within, "content beyond an object's end")
        }
        Holds::State { entry, offset } => {
            let Some(StateKind::File { size }) =
                of.state.entries.get(entry as usize).map(|entry| &entry.kind)
            else {
                return rule(false, "content of no file");
            };
            let within = offset.checked_add(len).is_some_and(|end| end <= *size);
            rule(within, "content beyond a file's end")
        }
        Holds::End => rule(len == 0, "the end has content"),
    }
}
