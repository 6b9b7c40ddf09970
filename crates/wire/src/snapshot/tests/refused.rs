//! What is refused at its boundary, and the words for it.

use super::*;
use crate::shm::conn_state;

#[test]
fn a_refusal_says_what_is_wrong() {
    let io = |kind: io::ErrorKind| ImageError::from(io::Error::from(kind));
    for (error, words) in [
        (io(io::ErrorKind::UnexpectedEof), "ends early"),
        (io(io::ErrorKind::BrokenPipe), "stream: broken pipe"),
        (ImageError::Foreign, "no image of a process"),
        (ImageError::Version(7), "of version 7"),
        (ImageError::Damaged { chunk: 3 }, "chunk 3"),
        (ImageError::TooMuch("threads"), "limit of threads"),
        (ImageError::Malformed("it is odd"), "no sense: it is odd"),
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn an_image_is_as_long_as_was_said_before_and_no_longer() {
    let limits = Limits { chunk_bytes: PAGE as usize, ..Limits::default() };
    let long = Description {
        objects: vec![Object { size: 4 * PAGE, ..small().objects.remove(0) }],
        state: State::default(),
        ..small()
    };
    // Where nothing is a whole page, each piece has one chunk more.
    for (bytes, slack) in [(2 * PAGE + 7, 0), (2 * PAGE, 1), (7, 0)] {
        let mut writer = Writer::begin(Vec::new(), &KEY, limits, &long).unwrap();
        let content = vec![1; bytes as usize];
        writer.chunk(Holds::Object { object: 0, offset: 0 }, &content).unwrap();
        let len = writer.end().unwrap().len();
        let most = bytes_max(&long, bytes, 1).unwrap();
        assert_eq!(most, (len + slack * size_of::<Header>()) as u64, "{bytes}");
    }
}

#[test]
fn a_description_is_not_written_beyond_its_limit() {
    let whole = encoded(&small()).unwrap().len();
    for (description_bytes, is_good) in [(whole, true), (whole - 1, false)] {
        let limits = Limits { description_bytes, ..Limits::default() };
        let found = Writer::begin(Vec::new(), &KEY, limits, &small()).map(|_| ());
        match found {
            Err(ImageError::TooMuch("description_bytes")) => assert!(!is_good),
            other => assert!(is_good && other.is_ok(), "{other:?}"),
        }
    }
}

#[test]
fn a_chunk_of_no_known_kind_is_refused() {
    let stateless = Description { state: State::default(), ..small() };
    let writer = Writer::begin(Vec::new(), &KEY, Limits::default(), &stateless).unwrap();
    let mut image = writer.out.clone();
    let mut header = Header { kind: 6, len: 1, index: 0, zero: 0, at: 0, hash: 0 };
    header.hash = hash_of(&Secrets::new(&KEY), 1, header.as_bytes(), &[7]);
    image.extend_from_slice(header.as_bytes());
    image.push(7);
    let found = read(&image, &KEY, Limits::default()).unwrap_err().to_string();
    assert!(found.contains("a chunk is of no known kind"), "{found}");
}

fn found(it: &Description) -> Result<Description, ImageError> {
    parse(&postcard::to_allocvec(it).unwrap(), &Limits::default())
}

#[test]
fn a_mapped_file_has_a_path_and_whole_pages() {
    for (path, offset, is_good) in [
        (&b"/lib/a"[..], 0, true),
        (b"/lib/a", (1 << 62) - PAGE, true),
        (b"/lib/a", 1 << 62, false),
        (b"/lib/a", 1, false),
        (b"lib/a", 0, false),
    ] {
        let (path, mut it) = (path.to_vec(), small());
        it.members[0].areas[0].backing = Backing::Private { path, offset, hash: 7 };
        assert_eq!(found(&it).is_ok(), is_good, "{offset}");
    }
}

#[test]
fn what_is_watched_has_a_path() {
    for (path, is_good) in [(&b"/srv"[..], true), (b"srv", false)] {
        let mut it = small();
        let watched = Watched { number: 1, mask: 2, path: path.to_vec() };
        it.files[2].kind = FileKind::Inotify { watched: vec![watched] };
        it.members[0].watches.clear();
        assert_eq!(found(&it).is_ok(), is_good);
    }
}

#[test]
fn an_unlinked_file_has_content_up_to_its_size() {
    let mut it = small();
    let folder = b"/srv".to_vec();
    it.files[2].kind = FileKind::Unlinked { folder, position: 0, size: 10, mode: 0o600 };
    for (offset, len, is_good) in [(0, 10, true), (9, 1, true), (9, 2, false), (10, 1, false)] {
        let found = check::chunk(&it, Holds::File { file: 2, offset }, len);
        assert_eq!(found.is_ok(), is_good, "{offset} {len}");
    }
}

#[test]
fn only_open_connections_with_a_descriptor_are_listed() {
    let mut books = books();
    let first = books.connections[0].clone();
    books.connections = [(conn_state::OPEN, 9), (conn_state::CLOSED, 9), (conn_state::OPEN, -1)]
        .map(|(state, fd)| Connection { state, fd, ..first.clone() })
        .to_vec();
    let open: Vec<(u32, i32)> = books.open().map(|(fd, it)| (fd, it.fd)).collect();
    assert_eq!(open, [(9, 9)]);
}

#[test]
fn attributes_are_in_order_and_give_no_rights() {
    let with = |names: &[&str], value: usize| {
        let mut it = small();
        let named = |name: &&str| Attribute { value: vec![0; value], ..attribute(name) };
        it.state.entries[0].attributes = names.iter().map(named).collect();
        found(&it).map(|_| ()).map_err(|error| error.to_string())
    };
    let long = format!("user.{}", "a".repeat(250));
    for names in [&["security.NTACL", "trusted.x", "user.a"][..], &["system.posix_acl_access"]] {
        assert_eq!(with(names, 0), Ok(()));
    }
    assert_eq!(with(&[&long], 64 << 10), Ok(()));
    for (names, value, words) in [
        (&["user.b", "user.a"][..], 1, "out of order"),
        (&["user.a", "user.a"], 1, "out of order"),
        (&["security.capability"], 1, "of that name"),
        (&["system.other"], 1, "of that name"),
        (&["user.a\0"], 1, "of that name"),
        (&[""], 1, "of that name"),
        (&[&format!("{long}a")], 1, "attribute's name"),
        (&["user.a"], (64 << 10) + 1, "limit of an extended attribute"),
    ] {
        let refused = with(names, value).unwrap_err();
        assert!(refused.contains(words), "{names:?}: {refused}");
    }
    // Of all entries together, as many as there may be.
    let names: Vec<String> = (0..256).map(|n| format!("user.{n:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let refused = with(&names, 64 << 10).unwrap_err();
    assert!(refused.contains("limit of extended attributes"), "{refused}");
}
