//! A cold backup keeps an image and the log on its disk, and builds its server when the
//! primary dies: no connection and no byte is lost.

use crate::client::{Redis, connected};
use crate::world;
use holdfast_lab::load::{Group as LoadGroup, Workload};
use holdfast_lab::testbed::ours::{ColdOptions, Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed, interface};
use serde_json::Value;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

/// Time between two heartbeats in ms, so long that a busy machine causes no takeovers.
const HEARTBEAT_MS: u64 = 300;
/// Bytes of the documents that HTTP servers serve.
const DOCUMENTS: u64 = 1 << 20;
/// Longest time for a request, during which the server is built.
const PATIENCE: Duration = Duration::from_secs(60);

fn cold(cold: ColdOptions) -> GroupOptions {
    let (heartbeat_ms, cold) = (Some(HEARTBEAT_MS), Some(cold));
    GroupOptions { heartbeat_ms, cold, ..GroupOptions::default() }
}

/// A connection that has left data in the server.
fn connect(testbed: &Testbed) -> Redis {
    let mut redis = connected(testbed, PATIENCE);
    assert_eq!(redis.ask(&[b"SET", b"kept", b"0"]), "+OK");
    redis
}

/// Whether the server, or a process that becomes it, runs on a host.
fn runs(testbed: &Testbed, role: Role, program: Program) -> bool {
    // The program's path may be a link.
    let path = std::fs::canonicalize(program.path()).expect("a program");
    let of_program =
        |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|it| it == path);
    testbed.host(role).processes().expect("a list").iter().any(of_program)
}

fn counter(status: &Value, name: &str) -> u64 {
    status["counters"][name].as_u64().unwrap_or(0)
}

#[test]
fn both_members_say_so_and_no_replica_runs() {
    let _limit = world::limit(Duration::from_secs(60));
    let options = cold(ColdOptions { is_synced: true, ..ColdOptions::default() });
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        let mut redis = connect(testbed);
        assert_eq!(redis.ask(&[b"INCR", b"kept"]), ":1");
        for role in [Role::Edge, Role::Primary, Role::Backup] {
            let status = group.status(role).expect("a status");
            assert_eq!(status["mode"], "cold", "{status}");
            let text = group.verb(role, &["status"]).expect("the verb runs");
            let text = String::from_utf8_lossy(&text.stdout).into_owned();
            assert!(text.lines().next().is_some_and(|it| it.ends_with("cold")), "{text}");
        }
        assert!(runs(testbed, Role::Primary, Program::Redis));
        assert!(!runs(testbed, Role::Backup, Program::Redis), "nothing runs there");
        world::wait_until("the log is kept", || {
            let status = group.status(Role::Backup).expect("a status");
            let has = |name| counter(&status, name) > 0;
            status["state"] == "protected" && has("spool.image_bytes") && has("spool.log_bytes")
        });
        let spool = testbed.host(Role::Backup).outside().join("spool");
        let names = std::fs::read_dir(spool).expect("a folder").count();
        assert_eq!(names, 0, "its files have no names");
    });
}

/// Two takeovers under one load: `end` ends the primary, and `again` restarts what is left of it.
fn twice(end: impl Fn(&mut Group<'_>, Role), again: impl Fn(&mut Group<'_>, Role)) {
    let _limit = world::limit(Duration::from_secs(120));
    let options = cold(ColdOptions::default());
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        let mut old = connect(testbed);
        let load = world::start(testbed, &world::counting(12_000, 0, None));
        std::thread::sleep(Duration::from_millis(500));
        for takeover in 1..=2 {
            let primary = group.wait_primary().expect("a primary");
            end(group, primary);
            let is = old.ask(&[b"INCR", b"kept"]);
            assert_eq!(is, format!(":{takeover}"), "{}", group.log_tails());
            world::speaks(group, primary.other());
            let status = group.status(primary.other()).expect("a status");
            // On a slow machine the load may be over before the second takeover.
            let least = if takeover == 1 { 5 } else { 1 };
            assert!(status["last_takeover"]["connections"].as_u64() >= Some(least), "{status}");
            again(group, primary);
            world::heals(group, "the old primary is the cold backup");
            assert!(!runs(testbed, primary, Program::Redis), "nothing runs there");
        }
        world::finish(load, group);
    });
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn of_a_server_that_was_killed() {
    let end = |group: &mut Group<'_>, role| group.signal_server(role, Signal::KILL).expect("it");
    twice(end, |_, _| {});
}

#[test]
fn of_a_host_that_died() {
    let end = |group: &mut Group<'_>, role| group.kill_member(role).expect("they die");
    twice(end, |group, role| group.start_daemon(role).expect("a daemon"));
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn of_a_switchover() {
    let end = |group: &mut Group<'_>, role| {
        let swapped = group.verb(role, &["switchover"]).expect("the verb runs");
        assert!(swapped.status.success(), "{}", group.log_tails());
    };
    twice(end, |_, _| {});
}

/// Each member takes over twice from what it kept.
fn is_rebuilt(program: Program, workload: Workload, connections: usize) {
    let _limit = world::limit(Duration::from_secs(120));
    let options = cold(ColdOptions::default());
    world::with_server(program, DOCUMENTS, &Plan::default(), &options, |testbed, group| {
        let mut load = world::counting(10_000, 0, None);
        let mut clients = LoadGroup::usual(workload, connections, program.port());
        // The server limits the number of requests of one connection.
        clients.interval_us = 1000;
        load.groups = vec![clients];
        let load = world::start(testbed, &load);
        std::thread::sleep(Duration::from_millis(500));
        world::each_dies_and_joins(group);
        world::finish(load, group);
    });
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn of_memcached_with_four_workers() {
    is_rebuilt(Program::Memcached4, Workload::MemcachedShared, 8);
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn of_python_with_a_thread_for_each_connection() {
    is_rebuilt(Program::Python, Workload::HttpKeepalive, 3);
}

/// The files of its state folders are put in place when the server is built.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn of_a_server_that_appends_to_files() {
    let _limit = world::limit(Duration::from_secs(120));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let recipe = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a folder");
    let [mut recipe, _] = [Role::Primary, Role::Backup].map(recipe);
    recipe.command.extend(world::UNCOPIED.map(str::to_owned));
    recipe.state_dirs = vec![recipe.directory.clone()];
    let options = cold(ColdOptions::default());
    let mut group = Group::start(&testbed, &recipe, &options).expect("the group protects");
    let mut old = connect(&testbed);
    for takeover in 0..2 {
        let primary = group.wait_primary().expect("a primary");
        assert_eq!(old.ask(&[b"INCR", b"kept"]), format!(":{}", 2 * takeover + 1));
        group.kill_member(primary).expect("they die");
        let is = old.ask(&[b"INCR", b"kept"]);
        assert_eq!(is, format!(":{}", 2 * takeover + 2), "{}", group.log_tails());
        group.start_daemon(primary).expect("a daemon");
        world::heals(&mut group, "it joins");
    }
}

/// What the backup kept is gone with its daemon, so it joins anew and takes over.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn and_a_daemon_that_dies_with_its_spool_joins_anew() {
    let _limit = world::limit(Duration::from_secs(90));
    let options = cold(ColdOptions::default());
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        let mut old = connect(testbed);
        let load = world::start(testbed, &world::counting(8000, 0, None));
        let primary = group.wait_primary().expect("a primary");
        let backup = primary.other();
        std::thread::sleep(Duration::from_millis(500));
        group.stop_daemon(backup, Signal::KILL).expect("a daemon");
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":1", "served alone");
        group.start_daemon(backup).expect("a daemon");
        world::heals(group, "it joins");
        group.kill_member(primary).expect("they die");
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":2", "{}", group.log_tails());
        world::finish(load, group);
    });
}

/// Cuts the primary's only way to the others, or mends it.
fn set_primarys_way(testbed: &Testbed, state: &str) {
    let line = format!("link set {} {state}\n", interface::EDGE_PRIMARY);
    testbed.host(Role::Edge).ip(&line).expect("a port");
}

/// Overwrites a part of all files that a member's daemon keeps in its spool.
fn damage_spool(group: &Group<'_>, role: Role) {
    let files = format!("/proc/{}/fd", group.daemon_pid(role).expect("a daemon"));
    let mut damaged = 0;
    for entry in std::fs::read_dir(files).expect("a list") {
        let path = entry.expect("an entry").path();
        let is_of_spool = |to: PathBuf| to.to_string_lossy().contains("/spool/");
        if std::fs::read_link(&path).is_ok_and(is_of_spool) {
            let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a file");
            file.write_all_at(&[0x55; 64], 64).expect("it is writable");
            damaged += 1;
        }
    }
    assert_eq!(damaged, 2, "image and log");
}

/// Waits until the status of a host has `part` in its reason.
fn says(group: &Group<'_>, role: Role, part: &str) -> Value {
    let mut status = Value::Null;
    world::wait_until(part, || {
        status = group.status(role).expect("a status");
        status["reason"].as_str().is_some_and(|it| it.contains(part))
    });
    status
}

/// Runs a cold group under load, and damages what the backup keeps; the client was connected before.
fn with_damaged_spool(work: impl FnOnce(&Testbed, &mut Group<'_>, &mut Redis)) {
    let options = cold(ColdOptions::default());
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        let mut old = connect(testbed);
        let load = world::start(testbed, &world::counting(8000, 0, None));
        world::wait_until("the log is kept", || {
            counter(&group.status(Role::Backup).expect("a status"), "spool.log_bytes") > 1 << 20
        });
        damage_spool(group, Role::Backup);
        work(testbed, group, &mut old);
        world::finish(load, group);
    });
}

/// What it kept is damaged, and the primary was only cut off: that one goes on.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn and_leaves_the_service_to_a_primary_that_lives() {
    let _limit = world::limit(Duration::from_secs(90));
    with_damaged_spool(|testbed, group, old| {
        set_primarys_way(testbed, "down");
        let status = says(group, Role::Backup, "could not take over");
        let remedy = status["remedy"].as_str().unwrap_or_default();
        assert!(remedy.contains("goes on alone as soon as"), "{status}");
        let status = says(group, Role::Edge, "could not take over");
        assert_eq!(status["state"], "waiting", "{status}");
        set_primarys_way(testbed, "up");
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":1", "{}", group.log_tails());
        world::speaks(group, Role::Primary);
        world::heals(group, "the backup joins anew");
        group.kill_member(Role::Primary).expect("they die");
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":2", "{}", group.log_tails());
    });
}

/// A request that takes a server some hundredths of a second, and its replica as well.
const SPIN: &[u8] = b"local i = 0; while i < 2000000 do i = i + 1 end; return 1";
/// Number of these requests that are replayed for seconds.
const SPINS: usize = 100;

/// Nobody waits for the server to be built if the primary is back before.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn and_gives_way_to_a_primary_that_comes_back_first() {
    let _limit = world::limit(Duration::from_secs(90));
    let options = cold(ColdOptions::default());
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        let mut old = connect(testbed);
        for _ in 0..SPINS {
            assert_eq!(old.ask(&[b"EVAL", SPIN, b"0"]), ":1");
        }
        set_primarys_way(testbed, "down");
        let part = "builds the server to take over";
        for role in [Role::Backup, Role::Edge] {
            let status = says(group, role, part);
            assert_eq!(status["state"], "waiting", "{status}");
        }
        set_primarys_way(testbed, "up");
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":1", "{}", group.log_tails());
        world::speaks(group, Role::Primary);
        world::heals(group, "the backup joins anew");
    });
}

/// The members do not swap if the backup cannot build its server, and nobody loses anything.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_switchover_to_a_damaged_spool_is_taken_back() {
    let _limit = world::limit(Duration::from_secs(90));
    with_damaged_spool(|_, group, old| {
        let words = ["switchover", "--timeout", "3"];
        let swapped = group.verb(Role::Primary, &words).expect("the verb runs");
        assert!(!swapped.status.success(), "it has not happened");
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":1", "{}", group.log_tails());
        world::speaks(group, Role::Primary);
        world::heals(group, "the backup joins anew");
    });
}

/// Writes until a backup's log is longer than these tests allow.
fn lengthen(redis: &mut Redis) {
    let value = vec![b'x'; 1 << 20];
    for part in 0..10 {
        assert_eq!(redis.ask(&[b"SET", format!("part {part}").as_bytes(), &value]), "+OK");
    }
}

/// The log that a takeover would have to replay stays short, and the group protected.
#[test]
fn and_gets_a_new_image_when_its_log_is_long() {
    let _limit = world::limit(Duration::from_secs(90));
    let options = cold(ColdOptions { snapshot_every_mb: Some(8), ..ColdOptions::default() });
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        let mut old = connect(testbed);
        let load = world::start(testbed, &world::counting(9000, 0, None));
        let primary = group.wait_primary().expect("a primary");
        for renewals in 1..=3 {
            lengthen(&mut old);
            world::wait_until("there is a new image", || {
                for role in [Role::Edge, Role::Primary, Role::Backup] {
                    let status = group.status(role).expect("a status");
                    assert_eq!(status["state"], "protected", "{status}");
                }
                group.details(primary.other(), "renewed").len() >= renewals
            });
        }
        assert_eq!(group.details(primary, "joined").len(), 1, "nobody has joined anew");
        let status = group.status(primary.other()).expect("a status");
        assert!(counter(&status, "spool.log_bytes") < 8 << 20, "{status}");
        group.kill_member(primary).expect("they die");
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":1", "{}", group.log_tails());
        world::finish(load, group);
    });
}

/// Whoever dies while a new image is on its way.
#[test]
fn and_takes_over_in_the_middle_of_a_new_image() {
    let _limit = world::limit(Duration::from_secs(90));
    let options = cold(ColdOptions { snapshot_every_mb: Some(8), ..ColdOptions::default() });
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        let mut old = connect(testbed);
        for part in 0..64 {
            let value = vec![b'y'; 1 << 20];
            assert_eq!(old.ask(&[b"SET", format!("large {part}").as_bytes(), &value]), "+OK");
        }
        let load = world::start(testbed, &world::counting(6000, 0, None));
        let primary = group.wait_primary().expect("a primary");
        let backup = primary.other();
        let taken = |group: &Group<'_>| group.details(primary, "image").len();
        let before = taken(group);
        world::wait_until("an image is taken", || {
            lengthen(&mut old);
            taken(group) > before
        });
        let renewed = group.details(backup, "renewed").len();
        group.kill_member(primary).expect("they die");
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":1", "{}", group.log_tails());
        world::speaks(group, backup);
        println!("{renewed} images were whole");
        world::finish(load, group);
    });
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn of_a_server_with_threads_that_was_imaged_while_it_was_protected() {
    let _limit = world::limit(Duration::from_secs(90));
    let options = cold(ColdOptions { snapshot_every_mb: Some(8), ..ColdOptions::default() });
    world::with_server(Program::Memcached4, 0, &Plan::default(), &options, |testbed, group| {
        let mut load = world::counting(12_000, 0, None);
        load.groups =
            vec![LoadGroup::usual(Workload::MemcachedShared, 8, Program::Memcached4.port())];
        let load = world::start(testbed, &load);
        let primary = group.wait_primary().expect("a primary");
        world::wait_until("there is a new image", || {
            !group.details(primary.other(), "renewed").is_empty()
        });
        group.kill_member(primary).expect("they die");
        world::finish(load, group);
        world::speaks(group, primary.other());
    });
}

/// Protection ends with the reason, and the service goes on.
fn is_refused(options: ColdOptions, why: &str) {
    let _limit = world::limit(Duration::from_secs(90));
    let options = cold(options);
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        let mut old = connect(testbed);
        let primary = group.wait_primary().expect("a primary");
        let value = vec![b'x'; 1 << 20];
        for part in 0..40 {
            assert_eq!(old.ask(&[b"SET", format!("part {part}").as_bytes(), &value]), "+OK");
        }
        let [mut here, mut there] = [Value::Null, Value::Null];
        world::wait_until(why, || {
            here = group.status(primary).expect("a status");
            there = group.status(primary.other()).expect("a status");
            let says =
                |status: &Value| status["reason"].as_str().is_some_and(|it| it.contains(why));
            here["state"] == "unprotected" && says(&here) && says(&there)
        });
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":1", "served alone");
        world::speaks(group, primary);
    });
}

#[test]
fn but_not_with_a_full_spool() {
    let most = Some(24);
    let options =
        ColdOptions { spool_max_mb: most, snapshot_every_mb: most, ..ColdOptions::default() };
    is_refused(options, "is full: spool_max_mb = 24");
}

#[test]
fn but_not_with_a_full_disk() {
    is_refused(on_a_disk(), "No space left on device");
}

/// A spool on one of the testbed's disks, which have 16 MB.
fn on_a_disk() -> ColdOptions {
    let spool_dir = Some(PathBuf::from("disk/spool"));
    ColdOptions { spool_dir, snapshot_every_mb: Some(4), ..ColdOptions::default() }
}

/// A disk that somebody else has filled keeps the backup out, all hosts say so, and nobody calls
/// the group protected for a moment. Once there is room the backup joins.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn nor_with_one_that_somebody_else_has_filled() {
    let _limit = world::limit(Duration::from_secs(90));
    let options = cold(on_a_disk());
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        let primary = group.wait_primary().expect("a primary");
        let backup = primary.other();
        let mut old = connect(testbed);
        group.stop_daemon(backup, Signal::KILL).expect("a daemon");
        let ballast = testbed.disk(backup).join("ballast");
        std::fs::write(&ballast, vec![0; 12 << 20]).expect("room for that");
        world::wait_until("a primary that is alone", || {
            group.status(primary).is_ok_and(|status| status["state"] == "unprotected")
        });
        group.start_daemon(backup).expect("a daemon");
        let says = |role| {
            let status = group.status(role).unwrap_or_default();
            assert_ne!(status["state"], "protected", "{status}");
            status["reason"].as_str().is_some_and(|it| it.contains("MB free"))
        };
        world::wait_until("its reason on every host", || {
            [primary, backup, Role::Edge].into_iter().all(says)
        });
        // It tries again and again meanwhile.
        for _ in 0..100 {
            says(primary);
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":1", "served alone");
        std::fs::remove_file(ballast).expect("it is there");
        world::wait_until("protection", || group.ensure_protected().is_ok());
    });
}
