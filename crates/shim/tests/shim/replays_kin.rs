//! Families that processes leave in every way, and in which they become other programs:
//! the copy has the same processes, which do the same, and go on as the server.

use crate::harness::{
    ask, compiled, eventually, run_and_promote_family, run_and_promote_family_anew, wait_for,
};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

/// Each test has a port of its own: they run side by side.
const PORT: u16 = 16_390;

/// How often all places of a family are asked for.
const TRIES_MAX: usize = 60;

/// What is answered: a word and a number, for each question.
fn words(port: u16, questions: &str) -> Vec<(String, i32)> {
    let word = |line: &String| {
        let mut words = line.split(' ');
        let what = words.next().unwrap_or_default().to_owned();
        (what, words.next().and_then(|number| number.parse().ok()).unwrap_or(0))
    };
    ask(port, questions).iter().map(word).collect()
}

fn names(port: u16, questions: &str) -> Vec<String> {
    words(port, questions).into_iter().map(|(word, _)| word).collect()
}

/// Records a server of `kin.c` under `work`, follows its log with a copy, promotes that,
/// and does the same work there.
fn follow(port: u16, name: &str, more: &[&str], work: impl Fn() + Send + Sync) {
    let Some(program) = compiled("kin.c") else { return };
    let (path, at) = (program.display().to_string(), port.to_string());
    let argv = [&[path.as_str(), &at], more].concat();
    let load = || {
        wait_for(port);
        work();
    };
    run_and_promote_family(&argv, port, name, load, &work);
    let _ = std::fs::remove_file(program);
}

/// Several clients at once, so that the log has their processes mixed.
fn several(port: u16) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(ask(port, "nnn").len(), 3);
                }
            });
        }
    });
}

#[test]
fn a_process_becomes_another_program_with_its_client() {
    follow(PORT, "kin-exec", &[], || {
        several(PORT);
        assert_eq!(names(PORT, "nenen"), ["number", "again", "number", "again", "number"]);
        several(PORT);
    });
}

#[test]
fn a_shell_is_in_the_log() {
    follow(PORT + 1, "kin-shell", &[], || {
        for _ in 0..3 {
            let answers = words(PORT + 1, "ncn");
            assert!(answers.len() == 3 && answers[1].1 > 0, "{answers:?}");
        }
        several(PORT + 1);
    });
}

#[test]
fn signals_are_read_from_a_descriptor() {
    follow(PORT + 2, "kin-signals", &[], || {
        let user = ("signal".to_owned(), libc::SIGUSR1);
        assert_eq!(words(PORT + 2, "ss"), [user.clone(), user]);
        several(PORT + 2);
    });
}

#[test]
fn deaths_that_no_parent_asks_for_are_in_the_log() {
    follow(PORT + 3, "kin-deaths", &[], || {
        for _ in 0..5 {
            assert_eq!(names(PORT + 3, "nkn"), ["number", "dies"]);
            several(PORT + 3);
        }
    });
}

#[test]
fn a_child_outlives_its_parent() {
    follow(PORT + 4, "kin-orphans", &[], || {
        let lines = ask(PORT + 4, "non");
        assert!(lines.len() == 3 && lines[1].contains("below 1 "), "{lines:?}");
        several(PORT + 4);
    });
}

#[test]
fn a_fork_bomb_is_refused_at_the_limit() {
    follow(PORT + 5, "kin-bomb", &[], || {
        let mut other = TcpStream::connect(("127.0.0.1", PORT + 5)).expect("connected");
        // Places of those who have just ended are free a moment later. A try takes what is free
        // by then, and so is not made at once: tries without pause found a few places each, for
        // as long as anybody cared to try.
        let tries = (0..TRIES_MAX).map(|nth| {
            std::thread::sleep(Duration::from_millis(if nth == 0 { 0 } else { 300 }));
            let answers = words(PORT + 5, "bn");
            let count = answers.first().map_or(0, |answer| answer.1);
            assert!(count < 256, "{answers:?}");
            (answers.len(), count)
        });
        let mut seen = Vec::new();
        let all = tries.inspect(|it| seen.push(*it)).any(|(len, count)| len == 2 && count > 200);
        assert!(all, "there were never more than 200 places: {seen:?}");
        // Nobody else is any the worse for it.
        other.write_all(b"n").expect("asked");
        let mut line = String::new();
        BufReader::new(other).read_line(&mut line).expect("answered");
        assert!(line.starts_with("number"), "{line}");
        eventually("there is room again", || ask(PORT + 5, "nn").len() == 2);
    });
}

#[test]
fn another_process_than_the_first_one_listens() {
    follow(PORT + 6, "kin-apart", &["apart"], || {
        several(PORT + 6);
        assert_eq!(names(PORT + 6, "nkn"), ["number", "dies"]);
        several(PORT + 6);
    });
}

#[test]
fn messages_to_paths_arrive_in_both_members() {
    follow(PORT + 7, "kin-messages", &[], || {
        let numbers: Vec<i32> = words(PORT + 7, "mmnmm").iter().map(|it| it.1).collect();
        assert_eq!((numbers[0], numbers[1], numbers[3], numbers[4]), (1, 2, 3, 4));
        several(PORT + 7);
    });
}

/// The child has a socket of its own where its parent has the listener.
#[test]
fn a_number_that_was_a_listeners_is_none_in_a_child_that_uses_it_anew() {
    let port = PORT + 8;
    let Some(program) = compiled("kin.c") else { return };
    let (path, at) = (program.display().to_string(), port.to_string());
    let mut stays = None;
    let load = || {
        wait_for(port);
        let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        client.write_all(b"m").expect("asked");
        let mut line = String::new();
        BufReader::new(&client).read_line(&mut line).expect("answered");
        assert!(line.starts_with("message 1 "), "{line}");
        stays = Some(client);
        several(port);
    };
    run_and_promote_family(&[path.as_str(), &at], port, "kin-number", load, || several(port));
    let _ = std::fs::remove_file(program);
}

/// A file system in memory gives the names in the order in which files were made.
#[test]
fn names_of_a_folder_come_in_one_order_whatever_the_file_systems_is() {
    const FOLDER: &str = "/dev/shm/hf-kin-names";
    let port = PORT + 9;
    let Some(program) = compiled("kin.c") else { return };
    let (path, at) = (program.display().to_string(), port.to_string());
    let make = |names: [&str; 4]| {
        let _ = std::fs::remove_dir_all(FOLDER);
        std::fs::create_dir(FOLDER).expect("a folder");
        for name in names {
            std::fs::write(format!("{FOLDER}/{name}"), "").expect("a file");
        }
    };
    let is_sorted = || {
        let wanted = "names . .. four one three two again four one three two .";
        assert_eq!(ask(port, "dd"), [wanted, wanted]);
    };
    make(["one", "two", "three", "four"]);
    let load = || {
        wait_for(port);
        is_sorted();
        several(port);
    };
    let anew = || make(["three", "four", "two", "one"]);
    let argv = [path.as_str(), &at];
    run_and_promote_family_anew(&argv, port, "kin-names", load, anew, is_sorted);
    std::fs::remove_dir_all(FOLDER).expect("its folder");
    let _ = std::fs::remove_file(program);
}

/// More than are sorted at once: the rest come as their file system gives them.
#[test]
fn every_name_comes_once_however_many_folders_are_read_at_once() {
    const FOLDER: &str = "/dev/shm/hf-kin-many";
    std::fs::create_dir(FOLDER).expect("a folder");
    for name in ["one", "two", "three", "four"] {
        std::fs::write(format!("{FOLDER}/{name}"), "").expect("a file");
    }
    follow(PORT + 10, "kin-many", &[], || {
        assert_eq!(words(PORT + 10, "f"), [("many".to_owned(), 70 * 6)]);
        several(PORT + 10);
    });
    std::fs::remove_dir_all(FOLDER).expect("its folder");
}

/// The members share the file here, so the replica finds what the primary has made of it.
#[test]
fn attributes_are_what_the_primary_has_read() {
    const FILE: &str = "/tmp/hf-kin-attribute";
    let _ = std::fs::remove_file(FILE);
    let (port, next) = (PORT + 30, AtomicI32::new(1));
    follow(port, "kin-attribute", &[], || {
        let first = next.fetch_add(4, Relaxed);
        for number in [first, first + 2] {
            let numbers: Vec<i32> = words(port, "ana").iter().map(|it| it.1).collect();
            assert_eq!((numbers[0], numbers[2]), (number, number + 1));
            several(port);
        }
    });
    std::fs::remove_file(FILE).expect("its file");
}
