mod refused;
mod shared;

use super::*;
use crate::shm::CONNS_MAX;
use proptest::prelude::*;

/// A key that is as good as random, which small numbers are not: see [`HashKey`].
const KEY: HashKey = include!("test_key.in");

fn thread() -> Thread {
    Thread {
        tid: 7,
        name: b"main".to_vec(),
        registers: vec![0; REGISTERS],
        xstate: vec![3; 64],
        signal_mask: 0,
        alt_stack: AltStack::default(),
        robust_list: (0, 0),
        clear_tid: 0,
        rseq: Rseq::default(),
        dispatch: Dispatch::default(),
        scheduling: (0, 0, 0),
        affinity: vec![1],
        timer_slack_ns: 50_000,
        pending: Vec::new(),
    }
}

fn process() -> Process {
    let ids = Ids {
        users: [0; 4],
        groups: [0; 4],
        further_groups: Vec::new(),
        capabilities: [0; 5],
        secure_bits: 0,
    };
    Process {
        pid: 7,
        executable: b"/bin/true".to_vec(),
        directory: b"/".to_vec(),
        umask: 0o22,
        session: 0,
        group: 0,
        dumpable: true,
        no_new_privs: false,
        thp_disabled: false,
        personality: 0,
        oom_score_adj: 0,
        ids,
        limits: vec![(1, 2); RESOURCES],
        actions: vec![Action::default(); SIGNALS],
        layout: Layout::default(),
        auxv: vec![0, 0],
        vdso: Vec::new(),
        pending: Vec::new(),
        timers: vec![timer(1), timer(4)],
    }
}

fn object(name: &[u8], size: u64, kind: ObjectKind) -> Object {
    Object { name: name.to_vec(), size, seals: 0, is_external: false, kind }
}

fn end(pair: u32, kind: i32, shut: u8, unread: u32) -> FileKind {
    let options = vec![SocketOption { level: 1, name: 20, value: vec![7; 16] }];
    FileKind::Pair { pair, kind, shut, unread, options }
}

fn long_option() -> FileKind {
    let mut end = end(1, 1, 0, 1);
    if let FileKind::Pair { options, .. } = &mut end {
        options[0].value.push(7);
    }
    end
}

fn small() -> Description {
    let area = |start, backing| {
        let advice = Advice::default();
        Area { start, end: start + 4 * PAGE, prot: 3, advice, backing }
    };
    let object = object(b"", PAGE, ObjectKind::Memory);
    let pipe = |writes| FileKind::Pipe { pipe: 0, writes, capacity: 65536 };
    let pair = |shut, unread| end(0, 1, shut, unread);
    let file = |kind| OpenFile { flags: 0, kind, signals: 7 };
    let descriptor = |number| Descriptor { number, close_on_exec: false, file: number };
    let lock =
        Lock { number: 3, owner: LockOwner::Process, is_exclusive: true, start: 4, last: Some(7) };
    let member = Member {
        parent: 0,
        process: process(),
        threads: vec![thread()],
        areas: vec![
            area(0x10000, Backing::Anonymous),
            area(0x20000, Backing::Object { object: 0, offset: 0 }),
        ],
        descriptors: (0..5).map(descriptor).collect(),
        watches: vec![Watch { set: 2, target: 0, events: 1, data: 9 }],
        locks: vec![lock],
    };
    Description {
        members: vec![member],
        objects: vec![object],
        files: vec![
            file(pipe(false)),
            file(pipe(true)),
            file(FileKind::Epoll),
            file(pair(0, 9)),
            file(pair(2, 0)),
        ],
        last_pid: 0,
        books: Some(books()),
        state: state(),
    }
}

/// The first process of a namespace, its child, and the child of that.
fn family() -> Description {
    let mut all = small();
    let mut add = |parent, pid, session, group| {
        let mut member = small().members.remove(0);
        (member.parent, member.threads[0].tid) = (parent, pid);
        let process = &mut member.process;
        (process.pid, process.session, process.group) = (pid, session, group);
        all.members.push(member);
    };
    add(0, 1, 0, 0);
    add(0, 5, 5, 5);
    add(1, 9, 5, 9);
    all.members.remove(0);
    all.files.iter_mut().for_each(|it| it.signals = 5);
    all.last_pid = 12;
    all
}

fn timer(number: u32) -> Timer {
    Timer { number, clock: -6, signal: 14, value: 0x1234, notify: 0, tid: 7 }
}

fn state() -> State {
    let entry = |path: &[u8], kind| {
        let (path, mode, user, group) = (path.to_vec(), 0o640, 7, 7);
        let attributes = vec![attribute("user.a"), attribute("user.b")];
        StateEntry { folder: 0, path, mode, user, group, written_ns: 5, kind, attributes }
    };
    State {
        folders: vec![b"/srv/state".to_vec()],
        entries: vec![
            entry(b"a", StateKind::Folder),
            entry(b"a/file", StateKind::File { size: 5000 }),
            entry(b"link", StateKind::Link { to: b"a/file".to_vec() }),
        ],
        bytes: 7,
    }
}

fn attribute(name: &str) -> Attribute {
    Attribute { name: name.as_bytes().to_vec(), value: vec![1, 0, 2] }
}

fn books() -> Books {
    let connection = |conn| Connection {
        conn,
        state: 1,
        fd: 9,
        shut: 0,
        in_bytes: 5,
        out_bytes: 7,
        keep_addr: 0x30000,
        keep_cap: PAGE,
        pid: 7,
        eof: 0,
        holders: [5, 0, 0, 1],
    };
    let kin = |place, pid| Kin { place, pid, first: 3, threads: 2, at_end: 1, control: 0x11000 };
    Books {
        log_from: 800,
        control: 0x11000,
        handed: [97, 98, 99],
        userfault: 100,
        logs: 1,
        forks: 0,
        takes_turns: true,
        connections: vec![connection(1), connection(CONNS_MAX as u32 + 2)],
        listeners: vec![Listening { fd: 6, backlog: 511, addr_len: 16, addr: [2; 32], pid: 7 }],
        family: Some(Family {
            last_conn: 9,
            last_thread: 8,
            processes: vec![kin(0, 7), kin(4, 9)],
            owners: vec![(0, 1), (8, 5)],
            ..Family::default()
        }),
    }
}

fn image() -> Vec<u8> {
    let mut writer = Writer::begin(Vec::new(), &KEY, Limits::default(), &small()).unwrap();
    writer.chunk(Holds::State { entry: 1, offset: 4000 }, b"a state").unwrap();
    writer.chunk(Holds::File { file: 0, offset: 0 }, b"in the pipe").unwrap();
    writer.chunk(Holds::Object { object: 0, offset: 0 }, &[1; 100]).unwrap();
    writer.chunk(Holds::Pages { member: 0, address: 0x11000 }, &[2; 2 * PAGE as usize]).unwrap();
    writer.end().unwrap()
}

/// Reads to the end and counts the chunks.
fn read(bytes: &[u8], key: &HashKey, limits: Limits) -> Result<usize, ImageError> {
    let mut reader = Reader::begin(bytes, key, limits)?;
    let mut chunks = 1;
    while reader.chunk()?.0 != Holds::End {
        chunks += 1;
    }
    Ok(chunks)
}

#[test]
fn an_image_is_read_as_it_was_written() {
    let image = image();
    let mut reader = Reader::begin(&image[..], &KEY, Limits::default()).unwrap();
    assert_eq!(*reader.description(), small());
    assert!(!reader.has_state());
    let (holds, bytes) = reader.chunk().unwrap();
    assert_eq!((holds, bytes), (Holds::State { entry: 1, offset: 4000 }, &b"a state"[..]));
    assert!(reader.has_state());
    let (holds, bytes) = reader.chunk().unwrap();
    assert_eq!((holds, bytes), (Holds::File { file: 0, offset: 0 }, &b"in the pipe"[..]));
    assert_eq!(reader.chunk().unwrap().1, [1; 100]);
    let (holds, bytes) = reader.chunk().unwrap();
    assert_eq!((holds, bytes.len()), (Holds::Pages { member: 0, address: 0x11000 }, 8192));
    assert_eq!(reader.chunk().unwrap().0, Holds::End);
    assert!(reader.chunk().is_err());
}

#[test]
fn every_byte_that_changes_and_every_cut_is_refused() {
    let image = image();
    for at in 0..image.len() {
        let mut bad = image.clone();
        bad[at] ^= 1 << (at % 8);
        assert!(read(&bad, &KEY, Limits::default()).is_err(), "byte {at}");
        assert!(read(&image[..at], &KEY, Limits::default()).is_err(), "cut at {at}");
    }
    assert!(read(&image, &KEY.map(|word| !word), Limits::default()).is_err(), "another group's");
}

#[test]
fn what_exceeds_a_limit_is_refused_by_its_name() {
    let image = image();
    let all = Limits::default();
    assert_eq!(read(&image, &KEY, all).unwrap(), 5);
    for (limits, name) in [
        (Limits { chunk_bytes: 4096, ..all }, "chunk_bytes"),
        (Limits { description_bytes: 10, ..all }, "description_bytes"),
        (Limits { memory_bytes: 5000, ..all }, "memory_bytes"),
        (Limits { members: 0, ..all }, "members"),
        (Limits { threads: 0, ..all }, "threads"),
        (Limits { areas: 1, ..all }, "areas"),
        (Limits { descriptors: 2, ..all }, "descriptors"),
        (Limits { descriptor_end: 2, ..all }, "descriptor_end"),
        (Limits { name_bytes: 5, ..all }, "name_bytes"),
        (Limits { state_entries: 2, ..all }, "state_entries"),
    ] {
        match read(&image, &KEY, limits) {
            Err(ImageError::TooMuch(found)) => assert_eq!(found, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_description_that_makes_no_sense_is_refused() {
    type Harm = fn(&mut Description);
    let harms: [Harm; 36] = [
        |d| d.members[0].threads.clear(),
        |d| d.members[0].threads[0].tid = 8,
        |d| d.members[0].threads.push(thread()),
        |d| d.members[0].areas[0].end += 1,
        |d| d.members[0].areas.swap(0, 1),
        |d| d.members[0].areas[1].end = 1 << 48,
        |d| d.members[0].areas[1].backing = Backing::Object { object: 1, offset: 0 },
        |d| d.members[0].process.directory = b"tmp".to_vec(),
        |d| d.members[0].process.executable = b"/a\0b".to_vec(),
        |d| d.members[0].descriptors[1].number = 0,
        |d| d.members[0].descriptors[1].file = 5,
        |d| d.members[0].watches[0].set = 1,
        |d| d.files.push(d.files[3].clone()),
        |d| d.files[4].kind = end(0, 2, 0, 0),
        |d| d.files[4].kind = end(1, 3, 0, 0),
        |d| d.files[4].kind = end(1, 5, 0, 1),
        |d| d.files[4].kind = end(1, 1, 4, 1),
        |d| d.files[4].kind = long_option(),
        |d| d.members[0].process.timers.swap(0, 1),
        |d| d.members[0].process.timers[0].notify = 3,
        |d| d.members[0].locks[0].number = 5,
        |d| d.members[0].locks[0].last = Some(3),
        |d| d.books.iter_mut().for_each(|it| it.log_from = 801),
        |d| d.books.iter_mut().for_each(|it| it.log_from = 1 << 63),
        |d| d.books.iter_mut().for_each(|it| it.connections[0].state = 4),
        |d| d.books.iter_mut().for_each(|it| it.connections.swap(0, 1)),
        |d| d.state.folders[0] = b"srv".to_vec(),
        |d| d.state.entries.swap(0, 1),
        |d| d.state.entries.push(d.state.entries[2].clone()),
        |d| d.state.entries[0].folder = 1,
        |d| d.state.entries[0].path = b"../etc/passwd".to_vec(),
        |d| d.state.entries[0].path = b"/etc/passwd".to_vec(),
        |d| d.state.entries[0].path = b".holdfast-arrived".to_vec(),
        |d| d.state.entries[0].mode = 0o4755,
        |d| d.state.entries[2].kind = StateKind::Link { to: b"/a\0b".to_vec() },
        |d| d.state.bytes = 5001,
    ];
    for (index, harm) in harms.iter().enumerate() {
        let mut bad = small();
        harm(&mut bad);
        let bytes = postcard::to_allocvec(&bad).unwrap();
        let found = parse(&bytes, &Limits::default());
        assert!(matches!(found, Err(ImageError::Malformed(_))), "{index}: {found:?}");
    }
    let refused = [
        (Holds::Pages { member: 0, address: 0x20000 }, PAGE),
        (Holds::Pages { member: 0, address: 0x13000 }, 2 * PAGE),
        (Holds::Pages { member: 0, address: u64::MAX - PAGE + 1 }, PAGE),
        (Holds::File { file: 1, offset: 0 }, 1),
        (Holds::File { file: 0, offset: u64::MAX }, 1),
        (Holds::File { file: 3, offset: 8 }, 2),
        (Holds::Object { object: 0, offset: PAGE }, 1),
        (Holds::Object { object: 1, offset: 0 }, 1),
        (Holds::State { entry: 0, offset: 0 }, 1),
        (Holds::State { entry: 1, offset: 4999 }, 2),
        (Holds::State { entry: 3, offset: 0 }, 1),
    ];
    for (holds, len) in refused {
        assert!(check::chunk(&small(), holds, len).is_err(), "{holds:?}");
    }
}

#[test]
fn a_family_is_read_as_it_was_written() {
    let pages = |member, address| Holds::Pages { member, address };
    let mut writer = Writer::begin(Vec::new(), &KEY, Limits::default(), &family()).unwrap();
    writer.chunk(Holds::State { entry: 1, offset: 4000 }, b"a state").unwrap();
    for (byte, member) in (0..3).map(|it| (it, u32::from(it))) {
        writer.chunk(pages(member, 0x11000), &[byte; PAGE as usize]).unwrap();
    }
    let image = writer.end().unwrap();
    let mut reader = Reader::begin(&image[..], &KEY, Limits::default()).unwrap();
    assert_eq!(*reader.description(), family());
    assert_eq!(reader.chunk().unwrap().1, b"a state");
    for (byte, member) in (0..3).map(|it| (it, u32::from(it))) {
        let (holds, bytes) = reader.chunk().unwrap();
        assert_eq!((holds, bytes), (pages(member, 0x11000), &[byte; PAGE as usize][..]));
    }
    assert_eq!(reader.chunk().unwrap().0, Holds::End);
    assert!(check::chunk(&family(), pages(3, 0x11000), PAGE).is_err());
}

#[test]
fn a_family_that_cannot_be_one_is_refused() {
    type Harm = fn(&mut Description);
    let number = |d: &mut Description, member: usize, pid| {
        let old = d.members[member].process.pid;
        d.files.iter_mut().filter(|it| it.signals == old).for_each(|it| it.signals = pid);
        (d.members[member].process.pid, d.members[member].process.group) = (pid, pid);
        d.members[member].threads[0].tid = pid;
    };
    let harms: [(&str, Harm); 11] = [
        ("a file signals no process", |d| d.files[0].signals = 4),
        ("the first process has a parent", |d| d.members[0].parent = 1),
        ("a process comes before its parent", |d| d.members[1].parent = 1),
        ("a process comes before its parent", |d| d.members[1].parent = 2),
        ("cannot have its session", |d| d.members[1].process.session = 4),
        ("cannot have its session", |d| d.members[1].process.group = 9),
        ("cannot have its session", |d| d.members[2].process.session = 0),
        ("cannot have its session", |d| d.members[2].process.group = 8),
        ("cannot have its session", |d| d.members[0].process.session = 5),
        ("no process has been given", |d| d.last_pid = 1 << 22),
        ("there is no process", |d| d.members.clear()),
    ];
    let found = |bad: &Description| {
        let bytes = postcard::to_allocvec(bad).unwrap();
        parse(&bytes, &Limits::default()).expect_err("it makes no sense").to_string()
    };
    for (why, harm) in harms {
        let mut bad = family();
        harm(&mut bad);
        assert!(found(&bad).contains(why), "{why}: {}", found(&bad));
    }
    for (member, pid, why) in [
        (0, 7, "the first of several processes has another number"),
        (2, 1, "two threads have one number"),
        (1, 0, "cannot have its session"),
    ] {
        let mut bad = family();
        number(&mut bad, member, pid);
        assert!(found(&bad).contains(why), "{pid}: {}", found(&bad));
    }
    let mut keeper = small();
    keeper.members[0].threads.push(Thread { tid: 1, ..thread() });
    assert!(found(&keeper).contains("no thread has that number"));
    number(&mut keeper, 0, 1);
    keeper.members[0].threads.truncate(1);
    assert!(check::description(&keeper, &Limits::default()).is_ok());
}

proptest! {
    /// A sender that has the key cannot make a reader panic either.
    #[test]
    fn any_bytes_have_an_answer(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..600),
        keep in 0usize..2000,
    ) {
        let _ = parse(&bytes, &Limits::default());
        let mut image = postcard::to_allocvec(&shared::shares()).unwrap();
        image.truncate(keep);
        image.append(&mut bytes);
        let _ = parse(&image, &Limits::default());
    }
}

#[test]
fn state_comes_first_and_all_of_it() {
    let begin = || Writer::begin(Vec::new(), &KEY, Limits::default(), &small()).unwrap();
    let (first, rest) = ([1; 4], [1; 3]);
    let put = |writer: &mut Writer<Vec<u8>>, bytes: &[u8]| {
        writer.chunk(Holds::State { entry: 1, offset: 0 }, bytes).unwrap();
    };
    for (chunks, more, is_good) in [
        (&[&first[..], &rest][..], false, true),
        (&[&first[..]], false, false),
        (&[&first[..], &rest, &rest], false, false),
        (&[&first[..], &rest], true, false),
    ] {
        let mut writer = begin();
        chunks.iter().for_each(|bytes| put(&mut writer, bytes));
        writer.chunk(Holds::Pages { member: 0, address: 0x11000 }, &[2; PAGE as usize]).unwrap();
        if more {
            put(&mut writer, &rest);
        }
        let found = read(&writer.end().unwrap(), &KEY, Limits::default());
        assert_eq!(found.is_ok(), is_good, "{} {more}: {found:?}", chunks.len());
    }
}

/// Pieces of what is long follow each other, whatever it is.
#[test]
fn what_is_longer_than_a_chunk_comes_in_pieces() {
    let limits = Limits { chunk_bytes: PAGE as usize, ..Limits::default() };
    let long = Description {
        objects: vec![Object { size: 4 * PAGE, ..small().objects.remove(0) }],
        ..small()
    };
    let mut writer = Writer::begin(Vec::new(), &KEY, limits, &long).unwrap();
    let bytes = [[1; PAGE as usize], [2; PAGE as usize]].concat();
    let (state, object) =
        (|offset| Holds::State { entry: 1, offset }, |offset| Holds::Object { object: 0, offset });
    writer.chunk(state(0), &bytes[PAGE as usize - 7..][..7]).unwrap();
    let pages = |offset| Holds::Pages { member: 0, address: 0x11000 + offset };
    writer.chunk(object(0), &bytes).unwrap();
    writer.chunk(pages(0), &bytes).unwrap();
    let image = writer.end().unwrap();
    let mut reader = Reader::begin(&image[..], &KEY, Limits::default()).unwrap();
    assert_eq!(reader.chunk().unwrap().0, state(0));
    for holds in [object(0), object(PAGE), pages(0), pages(PAGE)] {
        assert_eq!(reader.chunk().unwrap().0, holds);
    }
    let whole = State {
        entries: vec![StateEntry { kind: StateKind::File { size: 2 * PAGE }, ..state_file() }],
        bytes: 2 * PAGE,
        ..small().state
    };
    let long = Description { state: whole, ..small() };
    let mut writer = Writer::begin(Vec::new(), &KEY, limits, &long).unwrap();
    writer.chunk(Holds::State { entry: 0, offset: 0 }, &bytes).unwrap();
    let image = writer.end().unwrap();
    let mut reader = Reader::begin(&image[..], &KEY, Limits::default()).unwrap();
    for offset in [0, PAGE] {
        assert_eq!(reader.chunk().unwrap().0, Holds::State { entry: 0, offset });
    }
}

fn state_file() -> StateEntry {
    small().state.entries.remove(1)
}

#[test]
fn positions_in_files_may_be_anywhere_below_the_limit() {
    let files = |position| {
        let (path, folder) = (b"/srv/a".to_vec(), b"/srv".to_vec());
        [
            FileKind::Path { path, position },
            FileKind::Unlinked { folder, position, size: position, mode: 0o600 },
            FileKind::Memory { object: 0, position },
        ]
    };
    for (position, is_good) in [(0, true), ((1 << 62) - 1, true), (1 << 62, false)] {
        for kind in files(position) {
            let mut it = small();
            it.files[2].kind = kind;
            it.members[0].watches.clear();
            let bytes = postcard::to_allocvec(&it).unwrap();
            let found = parse(&bytes, &Limits::default());
            assert_eq!(found.is_ok(), is_good, "{:?}: {found:?}", it.files[2].kind);
        }
    }
}

#[test]
fn options_of_sockets_are_as_long_as_the_longest_that_there_is() {
    for (len, is_good) in [(0, true), (16, true), (17, false)] {
        let mut it = small();
        it.files[2].kind = FileKind::Socket(Socket {
            family: 2,
            kind: 1,
            protocol: 6,
            cookie: 7,
            is_listening: true,
            is_connected: false,
            options: vec![SocketOption { level: 1, name: 2, value: vec![1; len] }],
            local: vec![2; 16],
        });
        it.members[0].watches.clear();
        let bytes = postcard::to_allocvec(&it).unwrap();
        let found = parse(&bytes, &Limits::default());
        assert_eq!(found.is_ok(), is_good, "{len}: {found:?}");
    }
}

#[test]
fn an_image_ends_before_its_limit_and_is_not_written_beyond_it() {
    let limits = Limits { memory_bytes: 1 << 20, ..Limits::default() };
    let stateless = Description { state: State::default(), ..small() };
    let begin = || Writer::begin(Vec::new(), &KEY, Limits::default(), &stateless).unwrap();
    let mut empty = begin();
    empty.one(Holds::File { file: 0, offset: 0 }, &[]).unwrap();
    let found = read(&empty.end().unwrap(), &KEY, limits);
    assert!(matches!(found, Err(ImageError::Malformed("a chunk is empty"))), "{found:?}");
    let mut long = begin();
    for _ in 0..1000 {
        long.chunk(Holds::Pages { member: 0, address: 0x11000 }, &[2; PAGE as usize]).unwrap();
    }
    let found = read(&long.end().unwrap(), &KEY, limits);
    assert!(matches!(found, Err(ImageError::TooMuch("memory_bytes"))), "{found:?}");
    let mut writer = Writer::begin(Vec::new(), &KEY, limits, &stateless).unwrap();
    let page = |writer: &mut Writer<Vec<u8>>| {
        writer.chunk(Holds::Pages { member: 0, address: 0x11000 }, &[2; PAGE as usize])
    };
    (0..256).for_each(|_| page(&mut writer).unwrap());
    assert!(matches!(page(&mut writer), Err(ImageError::TooMuch("memory_bytes"))));
    let mut groups = small();
    groups.members[0].process.ids.further_groups = vec![7; GROUPS_MAX + 1];
    let found = Writer::begin(Vec::new(), &KEY, limits, &groups).err();
    assert!(matches!(found, Some(ImageError::TooMuch("groups"))), "{found:?}");
}
