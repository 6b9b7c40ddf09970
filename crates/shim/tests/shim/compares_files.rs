//! Files that a server reads while it starts, and modules that it loads, must
//! be alike on both members: the replica names the one that is not.

use crate::harness::{Outcome, compiled, directories, observe_edited, wait_for};
use holdfast_wire::log::{Header, Op, read_header, record_len};
use holdfast_wire::shm::mode;
use std::fs::{self, File};
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;

/// Bytes of a file that the members compare, besides its length.
const COMPARED_BYTES: u64 = 64 << 20;

/// A library that any machine has, to be loaded as a module.
const LIBRARY: &str = "/lib/x86_64-linux-gnu/libm.so.6";

/// The member that a directory belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    Primary,
    Backup,
}

struct Case<'a> {
    name: &'a str,
    port: u16,
    /// What the program opens: HOW:PATH.
    words: &'a [&'a str],
    /// Where each file stood after it was opened, as the client is told.
    told: &'a str,
}

impl Case<'_> {
    /// Runs the program in a directory for each member that `fill` has filled.
    fn run(&self, fill: impl Fn(&Path, Member)) -> Option<Outcome> {
        self.run_edited(fill, |_| {})
    }

    fn run_edited(
        &self,
        fill: impl Fn(&Path, Member),
        edit: impl FnOnce(&mut [u8]),
    ) -> Option<Outcome> {
        let program = compiled("reads.c")?;
        for (dir, member) in directories(self.name).iter().zip([Member::Primary, Member::Backup]) {
            fill(dir, member);
        }
        let (path, port) = (program.display().to_string(), self.port.to_string());
        let argv: Vec<&str> =
            [&*path, &*port].into_iter().chain(self.words.iter().copied()).collect();
        let outcome = observe_edited(
            &argv,
            self.port,
            self.name,
            || {
                wait_for(self.port);
                let mut answer = String::new();
                let mut client = TcpStream::connect(("127.0.0.1", self.port)).expect("a server");
                client.read_to_string(&mut answer).expect("an answer");
                assert_eq!(answer.trim_end(), self.told);
            },
            edit,
        );
        let _ = fs::remove_file(program);
        Some(outcome)
    }

    /// The replica must find nothing.
    fn replays(&self, fill: impl Fn(&Path, Member)) {
        let Some(o) = self.run(fill) else { return };
        assert_eq!(o.primary, (mode::RECORD, String::new()), "{}", o.said);
        assert_eq!((o.replica.0, o.left), (mode::REPLAY, 0), "{}\n{}", o.replica.1, o.said);
    }

    /// The replica must say this.
    fn diverges(&self, reason: &str, fill: impl Fn(&Path, Member)) {
        let Some(o) = self.run(fill) else { return };
        assert_diverged(&o, reason);
    }
}

fn assert_diverged(o: &Outcome, reason: &str) {
    assert_eq!(o.primary, (mode::RECORD, String::new()), "{}", o.said);
    assert_eq!(o.replica, (mode::DIVERGED, reason.to_owned()), "{}", o.said);
}

/// The same file on both members, but for one word.
fn included(dir: &Path, name: &str, member: Member) {
    let word = if member == Member::Primary { "12s" } else { "13s" };
    fs::write(dir.join(name), format!("timeout {word};\n")).expect("a file");
}

/// A library that the backup may have with one byte more.
fn module(dir: &Path, name: &str, more: bool) {
    let mut library = fs::read(LIBRARY).expect("a library");
    library.extend_from_slice(if more { b"\n" } else { b"" });
    fs::write(dir.join(name), library).expect("a module");
}

#[test]
fn equal_files_and_modules_replay() {
    let words = ["open:a.conf", "r:a.conf", "rb:b.conf", "open:none", "r:none", "dlopen:./m.so"];
    let more = ["dlmopen:./m.so", "dlopen:./none.so", "dlopen:libm.so.6", "open:empty", "open:."];
    let words = [&words[..], &more[..]].concat();
    let told = "0 0 0 -1 -1 0 0 -1 0 0 0";
    Case { name: "reads-equal", port: 16430, words: &words, told }.replays(|dir, _| {
        included(dir, "a.conf", Member::Primary);
        fs::write(dir.join("b.conf"), "x".repeat(200_000)).expect("a file");
        fs::write(dir.join("empty"), "").expect("a file");
        module(dir, "m.so", false);
    });
}

#[test]
fn an_included_file_that_differs_is_named() {
    let ways = ["open:conf.d/a.conf", "r:conf.d/a.conf", "rbe:conf.d/a.conf"];
    for (port, way) in (16431..).zip(ways) {
        Case { name: &format!("reads-{port}"), port, words: &[way], told: "0" }.diverges(
            "the file conf.d/a.conf differs between the members: make it equal",
            |dir, member| {
                fs::create_dir_all(dir.join("conf.d")).expect("a directory");
                included(dir, "conf.d/a.conf", member);
            },
        );
    }
}

#[test]
fn a_file_on_one_member_only_is_named() {
    let case = Case { name: "reads-one", port: 16434, words: &["r:a.conf"], told: "0" };
    let Some(o) = case.run(|dir, member| {
        if member == Member::Primary {
            included(dir, "a.conf", member);
        }
    }) else {
        return;
    };
    assert_eq!(o.replica.0, mode::DIVERGED, "{}", o.said);
    let reason = o.replica.1;
    assert!(reason.starts_with("opening a.conf gave "), "{reason}");
    assert!(reason.ends_with(" on the primary and -2 here"), "{reason}");
}

#[test]
fn a_directory_in_place_of_a_file_is_named() {
    for (port, other, whose) in
        [(16435, Member::Backup, "primary"), (16436, Member::Primary, "backup")]
    {
        let reason =
            format!("the file a.conf is a regular file on the {whose} only: make it equal");
        Case { name: &format!("reads-{whose}"), port, words: &["open:a.conf"], told: "0" }
            .diverges(&reason, |dir, member| {
                if member == other {
                    fs::create_dir(dir.join("a.conf")).expect("a directory");
                } else {
                    included(dir, "a.conf", member);
                }
            });
    }
}

#[test]
fn a_long_name_leaves_room_for_the_remedy() {
    let name = "ä".repeat(120);
    let path = [&*name; 4].join("/");
    let case = Case { name: "reads-long", port: 16437, words: &[&format!("r:{path}")], told: "0" };
    let Some(o) = case.run(|dir, member| {
        let file = dir.join(&path);
        fs::create_dir_all(file.parent().expect("a directory")).expect("directories");
        included(&dir.join(""), &path, member);
    }) else {
        return;
    };
    assert_eq!(o.replica.0, mode::DIVERGED, "{}", o.said);
    let reason = o.replica.1;
    assert!(reason.starts_with("the file ...ä"), "{reason}");
    assert!(reason.ends_with("ä differs between the members: make it equal"), "{reason}");
}

#[test]
fn of_a_long_file_the_beginning_and_the_length_count() {
    let long = |length: u64| {
        move |dir: &Path, member| {
            let file = File::create(dir.join("data")).expect("a file");
            let more = u64::from(member == Member::Backup) * length;
            file.set_len(COMPARED_BYTES + 100 + more).expect("its length");
            // Behind what is compared.
            let text = if member == Member::Primary { b"ours" } else { b"them" };
            std::os::unix::fs::FileExt::write_all_at(&file, text, COMPARED_BYTES).expect("text");
        }
    };
    Case { name: "reads-tail", port: 16438, words: &["open:data"], told: "0" }.replays(long(0));
    Case { name: "reads-length", port: 16439, words: &["open:data"], told: "0" }
        .diverges("the file data differs between the members: make it equal", long(1));
}

#[test]
fn what_is_not_only_read_at_the_start_is_the_members_own() {
    let words =
        ["both:a", "r+:a", "a:a", "open:s.pid", "r:s.log", "open:/etc/hosts", "late-open:a"];
    let told = "0 0 13 0 0 0 0 0";
    let words = [&words[..], &["late-r:a"]].concat();
    Case { name: "reads-own", port: 16440, words: &words, told }.replays(|dir, member| {
        for name in ["a", "s.pid", "s.log"] {
            included(dir, name, member);
        }
    });
}

#[test]
fn a_module_that_differs_is_named() {
    let differs = "the module ./m.so differs between the members: make it equal";
    for (port, way) in (16441..).zip(["dlopen:./m.so", "dlmopen:./m.so", "late-dlopen:./m.so"]) {
        Case { name: &format!("reads-{port}"), port, words: &[way], told: "0" }
            .diverges(differs, |dir, member| module(dir, "m.so", member == Member::Backup));
    }
}

#[test]
fn a_module_on_one_member_only_is_named() {
    let case = Case { name: "reads-without", port: 16444, words: &["dlopen:./m.so"], told: "-1" };
    let reason = "the module ./m.so is a regular file on the backup only: make it equal";
    case.diverges(reason, |dir, member| {
        if member == Member::Backup {
            module(dir, "m.so", false);
        }
    });
}

#[test]
fn the_loader_sees_who_called() {
    // $ORIGIN is the directory of the program that calls, which is in this one.
    let name = format!("hf-origin-{}.so", std::process::id());
    let module = std::env::temp_dir().join(&name);
    fs::copy(LIBRARY, &module).expect("a module");
    let word = format!("dlopen:$ORIGIN/{name}");
    Case { name: "reads-origin", port: 16446, words: &[&word], told: "0" }.replays(|_, _| {});
    let _ = fs::remove_file(module);
}

/// Calls `f` with each record's operation and header.
fn for_each_record(log: &mut [u8], mut f: impl FnMut(Op, &mut [u8])) {
    let mut at = 0;
    while at < log.len() {
        let (header, op) = read_header(&log[at..]).expect("a record");
        f(op, &mut log[at..at + size_of::<Header>()]);
        at += record_len(header.payload_len as usize);
    }
}

#[test]
fn a_payload_of_another_length_is_refused() {
    let case = Case { name: "reads-payload", port: 16445, words: &["open:a.conf"], told: "0" };
    let fill = |dir: &Path, _| included(dir, "a.conf", Member::Primary);
    // Its length is the header's first word; 7 bytes take as much room as 8.
    let shorten = |op, header: &mut [u8]| {
        if op == Op::NewFd && header[0] == 8 {
            header[0] = 7;
        }
    };
    let Some(o) = case.run_edited(fill, |log| for_each_record(log, shorten)) else { return };
    let reason = "the file a.conf was logged by another release: run the same one on both members";
    assert_diverged(&o, reason);
}
