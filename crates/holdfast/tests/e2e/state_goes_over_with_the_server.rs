//! The folders in `state_dirs` are copied with a server that is joined: it finds its files as they
//! were, on the other host's own disk, and goes on writing them.

use crate::client::{Redis, connected};
use crate::redis_files::{DIGEST, Plain, quiet, redis_cli};
use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const HEARTBEAT_MS: u64 = 300;
/// Number of keys: more data than can be copied while the server stands still.
const KEYS: u32 = 4000;
const VALUE_BYTES: u32 = 8000;

/// Runs a redis that appends to files of its own, which are copied with it.
fn with_files(work: impl FnOnce(&Testbed, &mut Group<'_>)) {
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let prepare = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a folder");
    let [mut recipe, _] = [Role::Primary, Role::Backup].map(prepare);
    recipe.command.extend(world::UNCOPIED.map(str::to_owned));
    recipe.state_dirs = vec![recipe.directory.clone()];
    let options = GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() };
    let mut group = Group::start(&testbed, &recipe, &options).expect("the group protects");
    work(&testbed, &mut group);
}

fn folder(testbed: &Testbed, role: Role) -> PathBuf {
    testbed.host(role).outside().join("server")
}

/// Kills a member's daemon and server, and changes its files.
fn kill(testbed: &Testbed, group: &mut Group<'_>, role: Role) {
    let server = group.server_pid(role).expect("a server");
    group.kill_member(role).expect("they die");
    world::wait_until("the server's end", || world::has_ended(server));
    let own = folder(testbed, role);
    fs::remove_dir_all(own.join("appendonlydir")).expect("it wrote there");
    fs::write(own.join("dump.rdb"), "of another life").expect("its folder");
}

fn joins(group: &mut Group<'_>, role: Role) {
    group.start_daemon(role).expect("a daemon");
    world::heals(group, "it joins");
}

/// All files below a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for found in fs::read_dir(folder).expect("a folder") {
        let path = found.expect("a file").path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).expect("a file"));
        }
    }
    files.into_iter().map(|(path, bytes)| (strip(&path, folder), bytes)).collect()
}

fn strip(path: &Path, folder: &Path) -> PathBuf {
    path.strip_prefix(folder).unwrap_or(path).to_owned()
}

fn are_alike(testbed: &Testbed) {
    let [a, b] = [Role::Primary, Role::Backup].map(|role| folder(testbed, role));
    world::wait_until("files that are alike", || files(&a) == files(&b));
    assert!(files(&a).len() > 2, "{:?}", files(&a).keys());
}

fn fill(testbed: &Testbed) {
    let filling =
        format!("for i=1,{KEYS} do redis.call('SET','k'..i,string.rep('v',{VALUE_BYTES})..i) end");
    redis_cli(testbed, &["eval", &filling, "0"]);
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_server_that_appends_to_files_is_joined_with_them_again_and_again() {
    let _limit = world::limit(Duration::from_secs(120));
    with_files(|testbed, group| {
        let mut old = connected(testbed, world::WAIT_LIMIT);
        assert_eq!(old.ask(&[b"SET", b"kept", b"0"]), "+OK");
        fill(testbed);
        let load = world::start(testbed, &world::counting(12_000, 0, None));
        let primary = group.wait_primary().expect("a primary");
        kill(testbed, group, primary.other());
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":1");
        joins(group, primary.other());
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":2");
        redis_cli(testbed, &["bgrewriteaof"]);
        quiet(testbed);
        group.ensure_protected().expect("a pair");
        kill(testbed, group, primary);
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":3", "{}", group.log_tails());
        joins(group, primary);
        assert_eq!(old.ask(&[b"INCR", b"kept"]), ":4");
        world::finish(load, group);
        quiet(testbed);
        are_alike(testbed);
        let digest = redis_cli(testbed, &["eval", DIGEST, "0"]);
        for role in [Role::Primary, Role::Backup] {
            let plain = Plain::start(&folder(testbed, role), "yes");
            assert_eq!(plain.says(&["eval", DIGEST, "0"]), digest, "{role:?}: from its files");
        }
    });
}

/// The other member's files may differ from the start: it gets those of the current member.
#[test]
fn members_with_different_files_end_with_the_same() {
    let _limit = world::limit(Duration::from_secs(60));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let prepare = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a folder");
    let [mut recipe, _] = [Role::Primary, Role::Backup].map(prepare);
    recipe.command.extend(world::UNCOPIED.map(str::to_owned));
    recipe.state_dirs = vec![recipe.directory.clone()];
    for (role, count) in [(Role::Primary, 3), (Role::Backup, 5)] {
        let plain = Plain::start(&folder(&testbed, role), "yes");
        for _ in 0..count {
            plain.says(&["incr", "kept"]);
        }
        plain.keep_in(&folder(&testbed, role));
    }
    let options = GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() };
    let mut group = Group::launch(&testbed, &recipe, &options).expect("daemons");
    // It is a backup for a moment, until its server has read its own files.
    world::wait_until("a join", || !group.details(Role::Primary, "joined").is_empty());
    world::wait_until("protection", || group.ensure_protected().is_ok());
    let mut redis: Redis = connected(&testbed, world::WAIT_LIMIT);
    assert_eq!(redis.ask(&[b"GET", b"kept"]), "$1");
    assert_eq!(redis.line(), "3", "the first member's");
    are_alike(&testbed);
    let primary = group.wait_primary().expect("a primary");
    kill(&testbed, &mut group, primary);
    assert_eq!(redis.ask(&[b"INCR", b"kept"]), ":4", "{}", group.log_tails());
}

/// The files do not fit on the other host's disk: no member joins, the service goes on, and the
/// other host's files stay as they were. Once there is room, the member joins.
#[test]
fn a_full_disk_keeps_a_member_out_and_nothing_else() {
    let _limit = world::limit(Duration::from_secs(90));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let prepare = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a folder");
    let [mut recipe, _] = [Role::Primary, Role::Backup].map(prepare);
    let inside = testbed.host(Role::Primary).inside().join("disk/state");
    recipe.command.extend(world::UNCOPIED.map(str::to_owned));
    recipe.command.extend(["--dir".to_owned(), inside.display().to_string()]);
    recipe.state_dirs = vec![inside];
    let [a, b] = [Role::Primary, Role::Backup].map(|role| testbed.disk(role).join("state"));
    for state in [&a, &b] {
        fs::create_dir(state).expect("a disk");
        std::os::unix::fs::chown(state, Some(65534), Some(65534)).expect("root's");
    }
    let options = GroupOptions { heartbeat_ms: Some(HEARTBEAT_MS), ..GroupOptions::default() };
    let mut group = Group::start(&testbed, &recipe, &options).expect("the group protects");
    let mut redis = connected(&testbed, world::WAIT_LIMIT);
    let value = vec![b'v'; 4 << 20];
    assert_eq!(redis.ask(&[b"SET", b"large", &value]), "+OK");
    world::wait_until("files that are alike", || files(&a) == files(&b));
    let server = group.server_pid(Role::Backup).expect("a server");
    group.stop_daemon(Role::Backup, Signal::KILL).expect("a daemon");
    world::wait_until("the server's end", || world::has_ended(server));
    let ballast = b.parent().expect("a disk").join("ballast");
    fs::write(&ballast, vec![0; 8 << 20]).expect("room for that");
    fs::write(b.join("mine"), "of this host").expect("room for that");
    let before = files(&b);
    group.start_daemon(Role::Backup).expect("a daemon");
    world::wait_until("the reason", || {
        let said = group.status(Role::Primary).map(|it| it.to_string()).unwrap_or_default();
        said.contains("MB free")
    });
    assert_eq!(files(&b), before, "nothing of it was touched");
    assert_eq!(redis.ask(&[b"INCR", b"kept"]), ":1");
    fs::remove_file(ballast).expect("it is there");
    world::wait_until("protection", || group.ensure_protected().is_ok());
    assert!(!b.join("mine").exists() && files(&b).len() > 1);
    world::wait_until("files that are alike", || files(&a) == files(&b));
}

/// Something is mounted in a joiner's folder: it waits until that is gone, and joins then by
/// itself.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_folder_that_cannot_be_emptied_keeps_its_member_waiting() {
    let _limit = world::limit(Duration::from_secs(90));
    with_files(|testbed, group| {
        kill(testbed, group, Role::Backup);
        let host = testbed.host(Role::Backup);
        let place = host.inside().join("server/place");
        let place = place.to_str().expect("a plain path");
        let on_host = |words: &[&str]| {
            let done = host.command(words[0]).args(&words[1..]).status();
            assert!(done.is_ok_and(|done| done.success()), "{words:?}");
        };
        on_host(&["mkdir", place]);
        on_host(&["mount", "-t", "tmpfs", "none", place]);
        group.start_daemon(Role::Backup).expect("a daemon");
        let reason = |group: &Group<'_>| {
            let status = group.status(Role::Backup).unwrap_or_default();
            status["reason"].as_str().unwrap_or_default().to_owned()
        };
        world::wait_until("it to say what is in the way", || {
            let reason = reason(group);
            reason.contains("what is left in") && reason.contains("place")
        });
        on_host(&["umount", place]);
        on_host(&["rmdir", place]);
        world::heals(group, "it joins");
        are_alike(testbed);
    });
}
