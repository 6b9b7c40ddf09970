//! What a group has done outlives its daemons, whoever wants to be told is told, and a report of it
//! all gives no secret away.

use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const HOSTS: [Role; 3] = [Role::Edge, Role::Primary, Role::Backup];
/// A value of the server's environment, and an argument of the hook.
const SECRETS: [&str; 2] = ["env-secret-77", "hook-secret-88"];
/// Longest wait for something that comes at once, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(20);
/// Most that a daemon's end may take while its hook hangs.
const END_MAX: Duration = Duration::from_secs(4);

/// Writes the files of a group that keeps its events, and whose hooks tell what they were told; that
/// of the edge hangs.
fn prepare(testbed: &Testbed) -> Group<'_> {
    world::binary();
    let recipe = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a folder");
    let [mut recipe, _] = [Role::Primary, Role::Backup].map(recipe);
    recipe.env.push(("SOME_TOKEN".to_owned(), SECRETS[0].to_owned()));
    let group = Group::prepare(testbed, &recipe, &GroupOptions::default()).expect("files");
    let inside = testbed.host(Role::Primary).inside().display().to_string();
    let events = format!("events_dir = \"{inside}/kept\"");
    let hooks = format!(
        "\n[hooks]\non_state = [\"/bin/sh\", \"{inside}/hook\", \"{}\"]\ntimeout_s = 30\n",
        SECRETS[1]
    );
    for role in HOSTS {
        let outside = testbed.host(role).outside();
        let file = outside.join("holdfast.toml");
        let text = std::fs::read_to_string(&file).expect("the file");
        let text = text.replace("events_dir = \"none\"", &events) + &hooks;
        std::fs::write(&file, text).expect("the file");
        let hangs = if role == Role::Edge { "exec sleep 20" } else { "" };
        let script = format!(
            "cat >> {inside}/told.json; echo \"$HOLDFAST_GROUP $HOLDFAST_MEMBER $HOLDFAST_ROLE \
             $HOLDFAST_OLD $HOLDFAST_NEW\" >> {inside}/told; {hangs}\n"
        );
        std::fs::write(outside.join("hook"), script).expect("the hook");
    }
    group
}

fn lines(group: &Group<'_>, role: Role, words: &[&str]) -> Vec<Value> {
    let done = group.verb(role, words).expect("the verb runs");
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Waits until a host's hook has written a line that begins and ends like this; returns all.
fn told(testbed: &Testbed, role: Role, begin: &str, end: &str) -> Vec<String> {
    let path: PathBuf = testbed.host(role).outside().join("told");
    let until = Instant::now() + AT_ONCE;
    loop {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.iter().any(|line| line.starts_with(begin) && line.ends_with(end)) {
            return lines;
        }
        assert!(Instant::now() < until, "no `{begin}..{end}` on {role:?}: {lines:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn by_the_survivor_the_edge_and_the_dead() {
    let _limit = world::limit(Duration::from_secs(60));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut group = prepare(&testbed);
    for role in HOSTS {
        group.start_daemon(role).expect("a daemon");
    }
    group.wait_protected().expect("the group protects");
    told(&testbed, Role::Backup, "demo b backup ", " protected");
    group.kill_member(Role::Primary).expect("it is killed");
    told(&testbed, Role::Backup, "demo b primary ", " unprotected");
    let json = std::fs::read_to_string(testbed.host(Role::Backup).outside().join("told.json"));
    let json = json.expect("what came on standard input");
    let changes: Vec<Value> =
        json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let is_survivor = |it: &Value| {
        it["role"] == "primary"
            && it["new"] == "unprotected"
            && it["reason"].as_str().is_some_and(|why| why.starts_with("took over from a: "))
            && it["epoch"] == 2
    };
    assert!(changes.iter().any(is_survivor), "{json}");

    // The dead daemon's events are there, and say what it was.
    let dead = lines(&group, Role::Primary, &["events", "--json", "--what", "state"]);
    let is_protected = |it: &Value| it["detail"] == "primary, protected";
    assert!(dead.iter().any(is_protected), "{dead:?}");
    remembers_takeover(&group);
    group.start_daemon(Role::Primary).expect("it starts again");
    let until = Instant::now() + AT_ONCE;
    let lives = loop {
        let all = lines(&group, Role::Primary, &["events", "--json"]);
        let mut lives: Vec<String> = all.iter().map(|it| it["life"].to_string()).collect();
        lives.dedup();
        if lives.len() > 1 || Instant::now() > until {
            break lives;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(lives.len(), 2, "one life after the other");
    let listed = group.status(Role::Backup).expect("it answers")["members"].clone();
    let names: Vec<&str> =
        listed.as_array().expect("a list").iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["b", "a", "edge"], "{listed}");
    gives_no_secret_away(&testbed, &group);
    // The hook of the edge has hung since its start.
    let begun = Instant::now();
    group.stop_daemon(Role::Edge, Signal::TERM).expect("it ends");
    assert!(begun.elapsed() < END_MAX, "its end took {:?}", begun.elapsed());
}

fn remembers_takeover(group: &Group<'_>) {
    for role in [Role::Backup, Role::Edge] {
        let all = lines(group, role, &["history", "--json"]);
        assert_eq!(all.len(), 1, "{all:?}");
        let one = &all[0];
        assert_eq!(
            (&one["kind"], &one["from"], &one["to"]),
            (&"takeover".into(), &"a".into(), &"b".into())
        );
        assert!(one["total_us"].as_u64().is_some_and(|us| us > 0 && us < 5_000_000), "{one}");
        assert_eq!(one["connections"], 0, "{one}");
    }
    let worse = lines(group, Role::Backup, &["events", "--json", "--level", "warn"]);
    assert!(worse.iter().any(|it| it["what"] == "takeover" && it["level"] == "warn"), "{worse:?}");
    assert!(worse.iter().all(|it| it["level"] != "info"), "{worse:?}");
}

fn gives_no_secret_away(testbed: &Testbed, group: &Group<'_>) {
    let host = testbed.host(Role::Backup);
    let name = host.inside().join("report.tar").display().to_string();
    let done = group.verb(Role::Backup, &["report", "--with-server-log", "-o", &name]);
    let done = done.expect("the verb runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let bytes = std::fs::read(host.outside().join("report.tar")).expect("the report");
    let text = String::from_utf8_lossy(&bytes);
    for part in [
        "b/status.json",
        "b/events.jsonl",
        "b/history.jsonl",
        "config.toml",
        "b/check.json",
        "b/server.limits",
        "b/server.log",
        "host/filters.txt",
        "host/addresses.txt",
    ] {
        assert!(text.contains(&format!("holdfast-report/{part}\0")), "{part} is not in it");
    }
    let key = std::fs::read_to_string(host.outside().join("group.key")).expect("a key");
    for secret in SECRETS.into_iter().chain([key.trim()]) {
        assert!(!text.contains(secret), "{secret} is in it");
    }
    assert!(text.contains("SOME_TOKEN = \"***\""), "the variable is named");
}
