//! A server that falls while it has no backup is rebuilt on its own host, and no client hears
//! of it; one that falls at the same place again, or ends by itself, is not.

use crate::client::connected;
use crate::redis_files::{DIGEST, Plain, quiet, redis_cli};
use crate::world::{self, is_rebuilt};
use holdfast_lab::testbed::ours::{ColdOptions, Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

/// Longest time for a request, during which the server is built.
const PATIENCE: Duration = Duration::from_secs(60);
/// Server that answers whatever it is sent, writes it down, and has a bug.
const BUGGY: &str = r#"
import os, selectors, socket
asked = open("asked", "ab", buffering=0)
door = socket.create_server(("::", 6379), family=socket.AF_INET6, dualstack_ipv6=True)
ears = selectors.DefaultSelector()
ears.register(door, selectors.EVENT_READ)
while True:
    for key, _ in ears.select():
        if key.fileobj is door:
            ears.register(door.accept()[0], selectors.EVENT_READ)
            continue
        line = key.fileobj.recv(100)
        asked.write(line)
        if b"bug" in line:
            os.abort()
        if line:
            key.fileobj.sendall(b"+PONG\r\n")
        else:
            ears.unregister(key.fileobj)
            key.fileobj.close()
"#;

fn options(spool_max_mb: Option<u64>) -> GroupOptions {
    let cold =
        ColdOptions { spool_max_mb, snapshot_every_mb: spool_max_mb, ..ColdOptions::default() };
    GroupOptions {
        heartbeat_ms: Some(300),
        alone_after_s: Some(1),
        rebuild: true,
        cold: Some(cold),
        ..GroupOptions::default()
    }
}

/// Runs a server without a backup.
fn alone(
    spool_max_mb: Option<u64>,
    change: impl FnOnce(&mut Recipe),
    work: impl FnOnce(&Testbed, &mut Group<'_>),
) {
    let _limit = world::limit(Duration::from_secs(90));
    world::with_one(Role::Primary, &options(spool_max_mb), change, work);
}

/// Its folder is a state folder.
fn with_files(recipe: &mut Recipe) {
    recipe.state_dirs = vec![recipe.directory.clone()];
}

fn folder(testbed: &Testbed) -> PathBuf {
    testbed.host(Role::Primary).outside().join("server")
}

fn status(group: &Group<'_>) -> Value {
    group.status(Role::Primary).unwrap_or_default()
}

/// Asserts that `last_takeover` counts from the server's fall, in all and by phase.
fn counts_from_the_fall(group: &Group<'_>) {
    // All of it is over within a minute.
    let second = |at: &str| {
        let (_, seconds) = at.trim_end_matches('Z').rsplit_once(':').expect("a time");
        seconds.parse::<f64>().expect("seconds")
    };
    let takeover = &status(group)["last_takeover"];
    let over = second(takeover["at"].as_str().expect("a time"));
    let events = group.events(Role::Primary);
    let since = |what: &str| {
        let (at, _) = events.iter().rfind(|(_, it)| it == what).expect(what);
        (over - second(at)).rem_euclid(60.0) * 1e6
    };
    let (total, detect) = (takeover["total_us"].as_f64(), takeover["phases_us"]["detect"].as_f64());
    // What is noted after the fall, and the time of its end, are a moment later.
    let (fell, waited) = (since("fell"), since("fell") - since("rebuild"));
    assert!(total.is_some_and(|us| us + 20e3 >= fell), "{fell} us: {takeover}");
    assert!(detect.is_some_and(|us| us + 20e3 >= waited), "{waited} us: {takeover}");
}

/// A server is killed under load twice in a row; then a backup joins, and takes over.
#[test]
fn under_load_twice_in_a_row_and_a_backup_joins() {
    alone(
        None,
        |_| {},
        |testbed, group| {
            is_rebuilt(group, "yes");
            let mut old = connected(testbed, PATIENCE);
            assert_eq!(old.ask(&[b"SET", b"kept", b"0"]), "+OK");
            let load = world::start(testbed, &world::counting(7000, 0, None));
            std::thread::sleep(Duration::from_millis(500));
            for fall in 1..=2 {
                let text = group.verb(Role::Primary, &["status"]).expect("the verb runs").stdout;
                let text = String::from_utf8_lossy(&text).into_owned();
                assert!(
                    text.contains("UNPROTECTED") && text.contains("rebuilt in place: yes"),
                    "{text}"
                );
                group.signal_server(Role::Primary, Signal::KILL).expect("a server");
                assert_eq!(
                    old.ask(&[b"INCR", b"kept"]),
                    format!(":{fall}"),
                    "{}",
                    group.log_tails()
                );
                is_rebuilt(group, "yes");
                assert_eq!(
                    status(group)["counters"]["server.falls"],
                    fall,
                    "{}",
                    group.log_tails()
                );
                counts_from_the_fall(group);
            }
            group.start_daemon(Role::Backup).expect("a daemon");
            world::heals(group, "it joins");
            assert_eq!(status(group)["rebuild"], "", "it has a backup");
            group.kill_member(Role::Primary).expect("they die");
            assert_eq!(old.ask(&[b"INCR", b"kept"]), ":3", "{}", group.log_tails());
            world::finish(load, group);
        },
    );
}

/// A pair that began together: its backup is stopped, and the server falls.
#[test]
fn of_a_pair_whose_backup_was_stopped() {
    let _limit = world::limit(Duration::from_secs(90));
    let (plan, options) = (Plan::default(), options(None));
    world::with_server(Program::Redis, 0, &plan, &options, |testbed, group| {
        let mut old = connected(testbed, PATIENCE);
        assert_eq!(old.ask(&[b"SET", b"kept", b"0"]), "+OK");
        let primary = group.wait_primary().expect("a primary");
        assert_eq!(primary, Role::Primary, "{}", group.log_tails());
        group.stop_daemon(Role::Backup, Signal::TERM).expect("a daemon");
        for fall in 1..=2 {
            is_rebuilt(group, "yes");
            let backup = status(group)["peers"][1].clone();
            assert_eq!(backup["connected"], false, "{backup}");
            group.signal_server(Role::Primary, Signal::KILL).expect("a server");
            let counted = format!(":{fall}");
            assert_eq!(old.ask(&[b"INCR", b"kept"]), counted, "{}", group.log_tails());
        }
    });
}

/// It appends to files: they become older with it, and end as it says.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn with_the_files_that_it_writes() {
    let appends = |recipe: &mut Recipe| {
        recipe.command.extend(world::UNCOPIED.map(str::to_owned));
        with_files(recipe);
    };
    alone(None, appends, |testbed, group| {
        is_rebuilt(group, "yes");
        let mut old = connected(testbed, PATIENCE);
        assert_eq!(old.ask(&[b"SET", b"kept", b"0"]), "+OK");
        let load = world::start(testbed, &world::counting(7000, 0, None));
        for fall in 1..=2 {
            group.signal_server(Role::Primary, Signal::KILL).expect("a server");
            let counted = format!(":{fall}");
            assert_eq!(old.ask(&[b"INCR", b"kept"]), counted, "{}", group.log_tails());
            is_rebuilt(group, "yes");
        }
        world::finish(load, group);
        quiet(testbed);
        let digest = redis_cli(testbed, &["eval", DIGEST, "0"]);
        let left = fs::read_dir(folder(testbed))
            .expect("a folder")
            .map(|it| it.expect("an entry").file_name().into_string().expect("a name"));
        assert!(left.into_iter().all(|name| !name.starts_with(".holdfast-")));
        let plain = Plain::start(&folder(testbed), "yes");
        assert_eq!(plain.says(&["eval", DIGEST, "0"]), digest, "from its files");
    });
}

/// Bytes of one client make the server fall, and would do so again.
#[test]
fn but_not_where_it_falls_again_and_the_connection_is_named() {
    let buggy = |recipe: &mut Recipe| {
        recipe.command = ["/usr/bin/python3", "-c", BUGGY].map(str::to_owned).to_vec();
        with_files(recipe);
    };
    alone(None, buggy, |testbed, group| {
        is_rebuilt(group, "yes");
        let mut other = connected(testbed, PATIENCE);
        other.ping();
        let mut bad = connected(testbed, PATIENCE);
        let from = bad.local();
        let asked = || fs::metadata(folder(testbed).join("asked")).expect("a file").ino();
        let before = asked();
        bad.send(&[b"bug"]);
        world::wait_until("it is down", || status(group)["state"] == "ended");
        let reason = status(group)["reason"].as_str().unwrap_or_default().to_owned();
        assert!(reason.contains("by signal 6") && reason.contains(&from), "{reason}");
        assert_eq!(group.details(Role::Primary, "rebuild").len(), 1, "{}", group.log_tails());
        assert_eq!(group.details(Role::Primary, "not rebuilt").len(), 1);
        assert_eq!(asked(), before, "its files are those that it has left");
    });
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn nor_where_it_was_asked_to_end() {
    for ends in [&[b"SHUTDOWN".as_slice(), b"NOSAVE"][..], &[]] {
        alone(
            None,
            |_| {},
            |testbed, group| {
                is_rebuilt(group, "yes");
                let mut client = connected(testbed, PATIENCE);
                client.ping();
                match ends {
                    [] => group.signal_server(Role::Primary, Signal::TERM).expect("a server"),
                    words => client.send(words),
                }
                world::wait_until("it is down", || status(group)["state"] == "ended");
                assert!(group.details(Role::Primary, "fell").is_empty(), "{}", group.log_tails());
            },
        );
    }
}

/// Nothing is kept any more, and the service goes on as if nothing had been kept.
#[test]
fn nor_when_its_spool_is_full() {
    alone(
        Some(24),
        |_| {},
        |testbed, group| {
            is_rebuilt(group, "yes");
            let mut client = connected(testbed, PATIENCE);
            let value = vec![b'x'; 1 << 20];
            for part in 0..40 {
                assert_eq!(client.ask(&[b"SET", format!("part {part}").as_bytes(), &value]), "+OK");
            }
            is_rebuilt(group, "no: ");
            let reason = status(group)["rebuild"].as_str().unwrap_or_default().to_owned();
            assert!(reason.contains("spool_max_mb"), "{reason}");
            client.ping();
        },
    );
}

/// Its files would find no room beside those that it leaves.
#[test]
fn nor_when_its_folders_have_no_room() {
    let _limit = world::limit(Duration::from_secs(90));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    // The testbed's disks have 16 MB.
    let host = testbed.host(Role::Primary);
    let outside = testbed.disk(Role::Primary).join("state");
    fs::create_dir(&outside).expect("a folder");
    // The server is not root's.
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o777)).expect("a folder");
    let state = host.inside().join("disk/state");
    let mut recipe = Recipe::prepare(Program::Redis, host, 0).expect("a folder");
    let dir = ["--dir".to_owned(), state.display().to_string()];
    recipe.command.extend(world::UNCOPIED.map(str::to_owned).into_iter().chain(dir));
    recipe.state_dirs = vec![state];
    let mut group = Group::prepare(&testbed, &recipe, &options(None)).expect("folders");
    for role in [Role::Edge, Role::Primary] {
        group.start_daemon(role).expect("a daemon");
    }
    is_rebuilt(&group, "yes");
    let mut client = connected(&testbed, PATIENCE);
    let value = vec![b'x'; 1 << 20];
    for part in 0..8 {
        assert_eq!(client.ask(&[b"SET", format!("part {part}").as_bytes(), &value]), "+OK");
    }
    is_rebuilt(&group, "no: the file system of ");
    client.ping();
}
