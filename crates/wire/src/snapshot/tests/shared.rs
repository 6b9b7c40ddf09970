//! Memory that processes share by a name: what makes no sense is refused.

use super::super::*;
use super::{object, small};

fn segment(id: u32, key: u32) -> Segment {
    Segment { id, key, mode: 0o600, owner: (7, 7), is_removed: false }
}

/// With a file in /dev/shm, and two segments, of which one was removed.
pub fn shares() -> Description {
    let mut all = small();
    let removed = Segment { is_removed: true, ..segment(1, 0) };
    all.objects.extend([
        object(b"PostgreSQL.1", PAGE, ObjectKind::Named { mode: 0o600, owner: (7, 7) }),
        object(b"", 56, ObjectKind::Segment(segment(0, 0x1234))),
        object(b"", 2 * PAGE, ObjectKind::Segment(removed)),
    ]);
    let advice = Advice::default();
    let mut add = |start, end, prot, backing| {
        all.members[0].areas.push(Area { start, end, prot, advice, backing });
    };
    add(0x30000, 0x31000, 3, Backing::Object { object: 1, offset: 0 });
    add(0x40000, 0x41000, 1, Backing::Attached { object: 2, writable: false });
    add(0x50000, 0x52000, 3, Backing::Attached { object: 3, writable: true });
    all
}

/// As a reader does it.
fn parsed(of: &Description) -> Result<Description, String> {
    parse(&postcard::to_allocvec(of).unwrap(), &Limits::default()).map_err(|it| it.to_string())
}

#[test]
fn shared_memory_that_cannot_be_is_refused() {
    fn segment_of(d: &mut Description, object: usize) -> &mut Segment {
        match &mut d.objects[object].kind {
            ObjectKind::Segment(segment) => segment,
            other => panic!("{other:?}"),
        }
    }
    type Harm = fn(&mut Description);
    let harms: [(&str, Harm); 20] = [
        ("two segments have one number", |d| segment_of(d, 3).id = 0),
        ("no segment has that number", |d| segment_of(d, 2).id = 1 << 31),
        ("two segments have one key", |d| {
            segment_of(d, 3).is_removed = false;
            segment_of(d, 3).key = 0x1234;
        }),
        ("a segment that was removed is still there", |d| segment_of(d, 3).key = 5),
        ("a segment that was removed is still there", |d| drop(d.members[0].areas.pop())),
        ("a segment's mode", |d| segment_of(d, 2).mode = 0o1600),
        ("no segment is like that", |d| {
            d.objects[2].size = 0;
            d.members[0].areas.remove(3);
        }),
        ("no segment is like that", |d| d.objects[2].name = b"a".to_vec()),
        ("only memory files have seals", |d| d.objects[2].seals = 1),
        ("only memory files are here already", |d| d.objects[1].is_external = true),
        ("a segment is attached in part", |d| d.objects[2].size = PAGE + 1),
        ("what is attached for reading can be written", |d| d.members[0].areas[3].prot = 3),
        ("a segment is mapped like a file", |d| {
            d.members[0].areas[3].backing = Backing::Object { object: 2, offset: 0 };
        }),
        ("an area shows no segment that there is", |d| {
            d.members[0].areas[3].backing = Backing::Attached { object: 1, writable: true };
        }),
        ("an area shows no segment that there is", |d| {
            d.members[0].areas[3].backing = Backing::Attached { object: 4, writable: true };
        }),
        ("a file is a segment", |d| {
            d.files[0].kind = FileKind::Memory { object: 2, position: 0 };
        }),
        ("shared memory has no such name", |d| d.objects[1].name = b"a/b".to_vec()),
        ("shared memory has no such name", |d| d.objects[1].name = b"..".to_vec()),
        ("two objects have one name", |d| d.objects.push(d.objects[1].clone())),
        ("an object's mode", |d| {
            d.objects[1].kind = ObjectKind::Named { mode: 0o4600, owner: (7, 7) }
        }),
    ];
    assert_eq!(parsed(&shares()).unwrap(), shares());
    for (why, harm) in harms {
        let mut bad = shares();
        harm(&mut bad);
        let found = parsed(&bad).expect_err("it makes no sense");
        assert!(found.contains(why), "{why}: {found}");
    }
}

#[test]
fn shared_memory_has_limits() {
    let mut many = shares();
    let more = |id| object(b"", PAGE, ObjectKind::Segment(segment(id, 0)));
    many.objects.extend((2..=SEGMENTS_MAX as u32).map(more));
    assert!(parsed(&many).expect_err("too many").contains("segments"));
    let mut long = shares();
    long.objects[1].name = vec![b'a'; 256];
    assert!(parsed(&long).expect_err("too long").contains("a name in a folder"));
    assert!(check::chunk(&shares(), Holds::Object { object: 2, offset: 0 }, 56).is_ok());
    assert!(check::chunk(&shares(), Holds::Object { object: 2, offset: 0 }, 57).is_err());
}
