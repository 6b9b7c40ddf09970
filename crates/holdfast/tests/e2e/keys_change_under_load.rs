//! The keys by which the hosts of a group know each other are changed in three steps while clients
//! are served: no channel is opened anew, nobody takes over, and the next takeover works. So a group
//! also goes from one key of all hosts to one of each, and back. A host whose public key is not the
//! one in another host's file is called so by both.

use crate::world::{self, holdfast, limit};
use holdfast_lab::load::Action;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use holdfast_wire::segment::Mode;
use serde_json::Value;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const HOSTS: [Role; 3] = [Role::Edge, Role::Primary, Role::Backup];

fn secret() -> String {
    let said = holdfast(&["key", "gen"]);
    String::from_utf8(said.stdout).expect("text")
}

/// What `key pub` says of a key file with this text.
fn public(text: &str) -> String {
    let mut verb = Command::new(world::binary());
    let verb = verb.args(["key", "pub"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = verb.spawn().expect("it starts");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let said = child.wait_with_output().expect("it ends");
    String::from_utf8(said.stdout).expect("text").trim().to_owned()
}

fn path(testbed: &Testbed, role: Role, name: &str) -> PathBuf {
    testbed.host(role).outside().join(name)
}

fn give_key(testbed: &Testbed, role: Role, text: &str) {
    let file = path(testbed, role, "group.key");
    std::fs::write(&file, text).expect("a key file");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("its mode");
}

/// Writes the public keys of edge or witness, `a` and `b` into a host's file, in place of those there.
fn list(testbed: &Testbed, role: Role, keys: [&[&str]; 3]) {
    let file = path(testbed, role, "holdfast.toml");
    let text = std::fs::read_to_string(&file).expect("a file");
    let mut text: String = text
        .lines()
        .filter(|line| !line.starts_with("public_keys"))
        .map(|it| format!("{it}\n"))
        .collect();
    let front = if text.contains("[edge]\n") { "[edge]\n" } else { "[arbiter]\n" };
    let heads = [front, "name = \"a\"\n", "name = \"b\"\n"];
    for (head, keys) in heads.into_iter().zip(keys).filter(|(_, keys)| !keys.is_empty()) {
        assert!(text.contains(head), "{text}");
        text = text.replacen(head, &format!("{head}public_keys = {keys:?}\n"), 1);
    }
    std::fs::write(&file, text).expect("it is written");
}

/// Whether a host takes over all that has changed.
fn reloads(group: &Group<'_>, role: Role) -> bool {
    let said = group.verb(role, &["reload", "--json"]).expect("the verb runs");
    let answer: Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"));
    let of = |key: &str| answer[key].as_array().map_or(0, Vec::len);
    assert!(of("applied") + of("pending") > 0, "{answer}");
    of("pending") == 0
}

/// How often the hosts have lost or opened a channel, as their events say.
fn meetings(group: &Group<'_>) -> usize {
    let of = |role: &Role| {
        let said = group.verb(*role, &["events"]).expect("it answers");
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let words = ["connected", "disconnected", "left", "joined", "lost", "refused", "suspected"];
        text.lines().filter(|line| words.iter().any(|word| line.contains(word))).count()
    };
    HOSTS.iter().map(of).sum()
}

/// The primary dies, and its backup goes on.
fn dies(testbed: &Testbed, group: &Group<'_>) {
    let server = group.server_pid(Role::Primary).expect("a server");
    let fault = Some(vec![(0, Action::Kill(server))]);
    world::finish(world::start(testbed, &world::counting(500, 200, fault)), group);
}

#[test]
fn one_key_of_all_hosts() {
    let _limit = limit(Duration::from_secs(60));
    world::with_redis_mut(|testbed, group| {
        let old = std::fs::read_to_string(path(testbed, Role::Edge, "group.key")).expect("a key");
        let new = secret();
        let before = meetings(group);
        let load = world::start(testbed, &world::counting(2500, 0, None));
        give_key(testbed, Role::Primary, &new);
        assert!(!reloads(group, Role::Primary), "the others do not have it");
        for step in [old.clone() + &new, new.clone() + &old, new.clone()] {
            for role in HOSTS {
                give_key(testbed, role, &step);
                assert!(reloads(group, role), "{}", group.log_tails());
            }
            group.ensure_protected().expect("it stays so");
        }
        world::finish(load, group);
        assert_eq!(meetings(group), before, "{}", group.log_tails());
        dies(testbed, group);
    });
}

#[test]
fn a_key_of_each_host() {
    let _limit = limit(Duration::from_secs(60));
    world::binary();
    let testbed = &Testbed::build(&Plan::default()).expect("the testbed stands");
    let recipe = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a folder");
    let [recipe, _] = [Role::Primary, Role::Backup].map(recipe);
    let mut group = Group::prepare(testbed, &recipe, &GroupOptions::default()).expect("folders");
    let secrets = [(); 3].map(|()| secret());
    let publics = secrets.each_ref().map(|it| public(it));
    let [edge, a, b] = publics.each_ref().map(|it| [it.as_str()]);
    // The edge takes another host for `b`.
    let wrong = public(&secret());
    for (role, own) in HOSTS.into_iter().zip(&secrets) {
        give_key(testbed, role, own);
        let b = if role == Role::Edge { [wrong.as_str()] } else { b };
        list(testbed, role, [&edge, &a, &b]);
        group.start_daemon(role).expect("a daemon");
    }
    for (role, peer) in [(Role::Edge, "`b`"), (Role::Backup, "`edge`")] {
        world::wait_for_group(&group, "the wrong key", || {
            let status = group.status(role).unwrap_or_default();
            let says = |of: &str| status[of].as_str().unwrap_or_default().to_owned();
            says("reason").contains(&format!("the public key of {peer}"))
                && says("remedy").contains("holdfast key pub")
        });
    }
    list(testbed, Role::Edge, [&edge, &a, &b]);
    assert!(reloads(&group, Role::Edge), "who was never heard is not lost");
    world::heals(&mut group, "all know each other");

    let (before, new) = (meetings(&group), secret());
    let (old, [_, _, was]) = (secrets[2].clone(), publics.each_ref().map(|it| it.as_str()));
    let public = public(&new);
    let load = world::start(testbed, &world::counting(2500, 0, None));
    let steps: [(String, &[&str]); 3] = [
        (old.clone() + &new, &[was, &public]),
        (new.clone() + &old, &[&public, was]),
        (new.clone(), &[&public]),
    ];
    for (secrets, publics) in steps {
        give_key(testbed, Role::Backup, &secrets);
        for role in HOSTS {
            list(testbed, role, [&edge, &a, publics]);
            assert!(reloads(&group, role), "{}", group.log_tails());
        }
        group.ensure_protected().expect("it stays so");
    }
    world::finish(load, &group);
    assert_eq!(meetings(&group), before, "{}", group.log_tails());
    dies(testbed, &group);
}

/// The keys of a group on the way from one for all hosts to one of each.
struct Keys {
    of_all: String,
    /// Of edge or witness, `a` and `b`.
    own: [String; 3],
}

impl Keys {
    /// Gives a host what it has after so many steps.
    fn give(&self, testbed: &Testbed, role: Role, step: usize) {
        let index = HOSTS.iter().position(|it| *it == role).expect("a host");
        let own = &self.own[index];
        let marked = format!("shared {}\n", self.of_all.lines().last().expect("a key"));
        let text = match step {
            0 => self.of_all.clone(),
            1 => format!("{marked}{own}"),
            2 => format!("{own}{marked}"),
            _ => own.clone(),
        };
        give_key(testbed, role, &text);
        let publics = self.own.each_ref().map(|it| public(it));
        let publics = publics.each_ref().map(|it| [it.as_str()]);
        let publics = publics.each_ref().map(|it| if step == 0 { &[] } else { &it[..] });
        list(testbed, role, publics);
    }
}

/// All hosts go a step further, one after the other, while clients are served.
fn go(testbed: &Testbed, group: &mut Group<'_>, keys: &Keys, steps: [usize; 3]) {
    let before = meetings(group);
    let load = world::start(testbed, &world::counting(2500, 0, None));
    for step in steps {
        for role in HOSTS {
            keys.give(testbed, role, step);
            assert!(reloads(group, role), "{step}: {}", group.log_tails());
        }
        group.ensure_protected().expect("it stays so");
    }
    world::finish(load, group);
    assert_eq!(meetings(group), before, "{}", group.log_tails());
}

fn from_one_key_of_all_to_one_of_each_and_back(testbed: &Testbed, group: &mut Group<'_>) {
    let of_all = std::fs::read_to_string(path(testbed, Role::Edge, "group.key")).expect("a key");
    let keys = Keys { of_all, own: [(); 3].map(|()| secret()) };
    for step in [3, 2] {
        keys.give(testbed, Role::Primary, step);
        let said = group.verb(Role::Primary, &["reload"]).expect("the verb runs");
        let told = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(told.contains("the one of all marked `shared`"), "the others have none: {told}");
    }
    go(testbed, group, &keys, [1, 2, 3]);
    // Whoever is met from now on has only keys of hosts.
    world::each_dies_and_joins(group);
    go(testbed, group, &keys, [2, 1, 0]);
    let current = group.wait_primary().expect("a primary");
    let server = group.server_pid(current).expect("a server");
    let fault = Some(vec![(0, Action::Kill(server))]);
    world::finish(world::start(testbed, &world::counting(500, 200, fault)), group);
}

#[test]
fn one_key_of_all_hosts_becomes_one_of_each() {
    let _limit = limit(Duration::from_secs(90));
    world::with_redis_mut(from_one_key_of_all_to_one_of_each_and_back);
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn one_key_of_all_hosts_becomes_one_of_each_beside_a_witness() {
    let _limit = limit(Duration::from_secs(90));
    let options = GroupOptions { segment: Some(Mode::Flood), ..GroupOptions::default() };
    let work = from_one_key_of_all_to_one_of_each_and_back;
    world::with_server(Program::Redis, 0, &Plan::default(), &options, work);
}
