//! Whatever happens, `holdfast status` says the same on the edge and on both members: what keeps
//! the service from being protected, as the host that knows puts it and the others repeat it, with
//! an exit code that fits.

use crate::client::connected;
use crate::redis_files::redis_cli;
use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed, addresses};
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const HOSTS: [Role; 3] = [Role::Edge, Role::Primary, Role::Backup];

/// Options with heartbeats so slow that a busy machine does not miss them.
pub fn patient() -> GroupOptions {
    GroupOptions { heartbeat_ms: Some(200), ..GroupOptions::default() }
}

/// What a host is expected to report: its state, and a part of its reason.
pub type Expected<'a> = (Role, &'a str, &'a str);

fn text<'s>(status: &'s Value, name: &str) -> &'s str {
    status[name].as_str().unwrap_or_default()
}

/// Waits until all hosts report what is expected.
fn expect(group: &Group<'_>, all: &[Expected<'_>]) {
    let until = Instant::now() + world::WAIT_LIMIT;
    loop {
        let wrong = all.iter().find_map(|(role, state, reason)| {
            let status = group.status(*role).unwrap_or_default();
            let is = text(&status, "state") == *state && text(&status, "reason").contains(reason);
            (!is).then(|| format!("{role:?} should be {state}: {reason}; it says {status}"))
        });
        let Some(wrong) = wrong else { return };
        assert!(Instant::now() < until, "{wrong}\n{}", group.log_tails());
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn remedy(group: &Group<'_>, role: Role) -> String {
    text(&group.status(role).unwrap_or_default(), "remedy").to_owned()
}

#[test]
fn a_loss_of_protection_is_explained() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_and(&patient(), |testbed, group| {
        expect(group, &HOSTS.map(|role| (role, "protected", "")));
        let replica = group.server_pid(Role::Backup).expect("a replica");
        world::signal(replica, "STOP");
        // Without log to execute, a replica may stand still.
        world::finish(world::start(testbed, &world::counting(3000, 0, None)), group);
        let told = |role| group.events(role).iter().any(|(_, what)| what == "joined");
        world::wait_until("both to tell of the join", || told(Role::Primary) && told(Role::Backup));
        world::wait_until("a hung replica to be joined anew", || {
            group.status(Role::Primary).is_ok_and(|status| status["state"] == "protected")
        });
        let server = group.server_pid(Role::Primary).expect("a server");
        world::signal(server, "STOP");
        expect(group, &HOSTS.map(|role| (role, "waiting", "the server is stopped")));
        // The pid is that in the host's own pid namespace.
        let told = remedy(group, Role::Edge);
        assert!(told.starts_with("on `a`: kill -CONT "), "{told}");
        world::signal(server, "CONT");
        expect(group, &HOSTS.map(|role| (role, "protected", "")));
        let link = |to: &str| {
            let mut ip = testbed.host(Role::Edge).command("ip");
            assert!(ip.args(["link", "set", "ec", to]).status().expect("ip starts").success());
        };
        link("down");
        expect(
            group,
            &HOSTS.map(|role| (role, "waiting", "no clients' interface of the edge is up")),
        );
        link("up");
        expect(group, &HOSTS.map(|role| (role, "protected", "")));
    });
}

/// The edge remembers what a member said last: nobody has to look at a host where nothing runs.
#[test]
fn an_edge_tells_that_the_members_were_stopped() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &patient(), |_, group| {
        let members = [Role::Backup, Role::Primary];
        for role in members {
            let stopped = group.verb(role, &["down", "--stop"]).expect("a verb");
            assert!(stopped.status.success(), "{stopped:?}");
        }
        let told = "is current, and its daemon does not answer; its daemon was stopped";
        expect(group, &[(Role::Edge, "waiting", told)]);
        assert!(remedy(group, Role::Edge).contains("holdfast run"));
        for role in members {
            group.restart(role).expect("a member starts again");
        }
        expect(group, &HOSTS.map(|role| (role, "protected", "")));
    });
}

/// Without a backup no log tells that it does nothing.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_lone_server_that_hangs_is_named() {
    let _limit = world::limit(Duration::from_secs(90));
    world::with_server(Program::Redis, 0, &Plan::default(), &patient(), |testbed, group| {
        group.kill_member(Role::Backup).expect("they die");
        let hosts = [Role::Edge, Role::Primary];
        expect(group, &hosts.map(|role| (role, "unprotected", "running alone")));
        let server = group.server_pid(Role::Primary).expect("a server");
        world::signal(server, "STOP");
        expect(group, &hosts.map(|role| (role, "waiting", "the server is stopped")));
        world::signal(server, "CONT");
        expect(group, &hosts.map(|role| (role, "unprotected", "running alone")));
        let mut redis = connected(testbed, world::WAIT_LIMIT);
        assert_eq!(redis.ask(&[b"CONFIG", b"SET", b"lua-time-limit", b"0"]), "+OK");
        redis.send(&[b"EVAL", b"while true do end", b"0"]);
        let _waits = connected(testbed, world::WAIT_LIMIT);
        let hangs = "the server does nothing: 1 of its clients waits to be accepted";
        expect(group, &hosts.map(|role| (role, "waiting", hangs)));
        assert!(remedy(group, Role::Edge).contains("ends its connections with it"));
        let told = group.details(Role::Primary, "state");
        assert!(told.iter().any(|detail| detail.contains(hangs)), "{told:?}");
    });
}

/// Both members die at once: the edge still believes in the backup when it is asked to bar that, and
/// the server has ended before the primary could ask again.
#[test]
fn nobody_promises_the_takeover_of_a_dead_backup() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &patient(), |_, group| {
        let edge = group.daemon_pid(Role::Edge).expect("the edge's daemon");
        world::signal(edge, "STOP");
        group.kill_member(Role::Backup).expect("they die");
        std::thread::sleep(Duration::from_millis(50));
        let server = group.server_pid(Role::Primary).expect("a server");
        world::signal(server, "KILL");
        std::thread::sleep(Duration::from_millis(50));
        world::signal(edge, "CONT");
        let both = "the server's process has ended, by signal 9; the edge does not hear b";
        expect(group, &[Role::Primary, Role::Edge].map(|role| (role, "ended", both)));
        let told = remedy(group, Role::Edge);
        assert!(told.contains("start both members again"), "{told}");
    });
}

/// Its channels stay open, for its kernel answers for it.
#[test]
fn an_edge_that_stands_still_protects_nobody() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &patient(), |_, group| {
        let edge = group.daemon_pid(Role::Edge).expect("the edge's daemon");
        world::signal(edge, "STOP");
        let lost = "the edge's daemon does not answer";
        let members = [Role::Primary, Role::Backup];
        expect(group, &members.map(|role| (role, "unprotected", lost)));
        world::signal(edge, "CONT");
        expect(group, &members.map(|role| (role, "protected", "")));
    });
}

#[test]
fn a_takeover_that_waits_for_the_edge_says_so() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &patient(), |_, group| {
        let edge = group.daemon_pid(Role::Edge).expect("the edge's daemon");
        world::signal(edge, "KILL");
        let lost = "the edge's daemon does not answer";
        let members = [Role::Primary, Role::Backup];
        expect(group, &members.map(|role| (role, "unprotected", lost)));
        let server = group.server_pid(Role::Primary).expect("a server");
        world::signal(server, "KILL");
        let wants = "wants to take over: the primary's server died; the edge does not answer";
        expect(group, &[(Role::Backup, "waiting", wants), (Role::Primary, "ended", "has ended")]);
        assert!(remedy(group, Role::Backup).contains("start the edge's daemon"));
        let peers = group.status(Role::Backup).expect("it answers")["peers"].clone();
        assert!(!peers.to_string().contains("protected"), "a has ended: {peers}");

        group.restart(Role::Edge).expect("the edge's daemon starts again");
        let alone = "took over from a: the primary's server died";
        expect(group, &[(Role::Backup, "unprotected", alone), (Role::Edge, "unprotected", alone)]);
        let [survivor, edge] = [Role::Backup, Role::Edge].map(|role| group.status(role).unwrap());
        assert_eq!(survivor["last_takeover"]["cause"], "the primary's server died");
        assert_eq!(survivor["last_takeover"], edge["last_takeover"]);
        assert!(!remedy(group, Role::Edge).contains("start holdfast on"), "a runs");
    });
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn servers_that_have_ended_are_not_called_unprotected() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_and(&patient(), |testbed, group| {
        // It connects again when the server has gone, and waits for an answer that does not come.
        let mut quit = testbed.host(Role::Client).command("timeout");
        quit.args(["10", "redis-cli", "-h", addresses::SERVICE_V4, "shutdown", "nosave"]);
        quit.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("redis-cli starts");
        expect(group, &HOSTS.map(|role| (role, "ended", "ended")));
        for role in HOSTS {
            assert!(!remedy(group, role).contains("start holdfast on"), "{role:?}");
        }
        world::wait_until("nobody to be waited for", || {
            HOSTS.iter().all(|role| !remedy(group, *role).contains("joins again"))
        });
    });
}

#[test]
fn members_that_differ_are_waiting_on_every_host() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let [recipe, _] = [Role::Primary, Role::Backup].map(|role| {
        Recipe::prepare(Program::Mosquitto, testbed.host(role), 0).expect("a directory")
    });
    let theirs = testbed.host(Role::Backup).outside().join("server/server.conf");
    let right = std::fs::read_to_string(&theirs).expect("a config");
    std::fs::write(&theirs, right + "max_keepalive 60\n").expect("another config");
    let group = Group::launch(&testbed, &recipe, &patient()).expect("the daemons start");
    expect(&group, &HOSTS.map(|role| (role, "waiting", "server.conf")));
    assert!(remedy(&group, Role::Edge).contains("copy the files from one host to the other"));
}

/// As [`expect`], and checks the exit codes of `holdfast status`, too.
pub fn expect_with_code(testbed: &Testbed, group: &Group<'_>, all: &[Expected<'_>], code: i32) {
    expect(group, all);
    for (role, ..) in all {
        let mut status = testbed.host(*role).command(world::binary());
        let name = ["edge", "a", "b"][HOSTS.iter().position(|it| it == role).unwrap_or(0)];
        status.arg("status").arg("--config").arg(group.config()).args(["--role", name]);
        let done = status.output().expect("holdfast starts");
        assert_eq!(done.status.code(), Some(code), "{role:?}");
    }
}

/// Restarts the edge's daemon with a text replaced in its file.
pub fn edit_edge(testbed: &Testbed, group: &mut Group<'_>, from: &str, to: &str) {
    rewrite_edge(testbed, group, |text| text.replace(from, to));
}

/// As [`edit_edge`], with any change of the file.
pub fn rewrite_edge(testbed: &Testbed, group: &mut Group<'_>, change: impl FnOnce(&str) -> String) {
    let file = testbed.host(Role::Edge).outside().join("holdfast.toml");
    let text = std::fs::read_to_string(&file).expect("a file");
    let changed = change(&text);
    assert_ne!(changed, text);
    std::fs::write(&file, changed).expect("another file");
    let daemon = group.daemon_pid(Role::Edge).expect("the edge's daemon");
    world::signal(daemon, "KILL");
    group.restart(Role::Edge).expect("the edge's daemon starts again");
}

#[test]
fn a_wrong_hardware_address_is_named() {
    const WRONG: &str = "02:68:66:00:00:99";
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &patient(), |testbed, group| {
        let members =
            [(addresses::BACKUP_MAC, "b", "unprotected"), (addresses::PRIMARY_MAC, "a", "waiting")];
        for (right, name, state) in members {
            edit_edge(testbed, group, right, WRONG);
            let reason = format!("frames go to {WRONG}, but `{name}` has the address {right}");
            expect_with_code(testbed, group, &HOSTS.map(|role| (role, state, &*reason)), 1);
            assert!(remedy(group, Role::Edge).contains("`mac`"));
            edit_edge(testbed, group, WRONG, right);
            expect_with_code(testbed, group, &HOSTS.map(|role| (role, "protected", "")), 0);
        }
    });
}

/// Expects all hosts to say that the backup's key differs, and the edge and the primary to be in
/// this state.
fn key_is_named(testbed: &Testbed, group: &Group<'_>, state: &str) {
    let theirs = "handshake failed: the key of `b` differs";
    let ours = "handshake failed: the key of `edge` differs";
    let all = [
        (Role::Edge, state, theirs),
        (Role::Primary, state, theirs),
        (Role::Backup, "waiting", ours),
    ];
    expect_with_code(testbed, group, &all, 1);
    for role in HOSTS {
        let is_told = || remedy(group, role).contains("copy key_file");
        world::wait_until("the remedy", is_told);
    }
}

#[test]
fn a_key_that_differs_is_named() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_server(Program::Redis, 0, &Plan::default(), &patient(), |testbed, group| {
        let key = world::holdfast(&["key", "gen"]).stdout;
        std::fs::write(testbed.host(Role::Backup).outside().join("group.key"), key).expect("a key");
        // Of a backup that stays away, while the primary serves alone.
        world::signal(group.daemon_pid(Role::Backup).expect("a daemon"), "KILL");
        group.restart(Role::Backup).expect("a member starts again");
        key_is_named(testbed, group, "unprotected");
        // Nobody serves once both are started again. The backup is stopped first, so that it does
        // not take over.
        world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
        let members = [Role::Backup, Role::Primary];
        for role in members {
            world::signal(group.daemon_pid(role).expect("a daemon"), "KILL");
        }
        for role in members {
            group.restart(role).expect("a member starts again");
        }
        key_is_named(testbed, group, "waiting");
    });
}

#[test]
fn a_host_that_does_not_forward_protects_nobody() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_and(&patient(), |testbed, group| {
        let off = HOSTS.map(|role| (role, "waiting", "IPv4 is not forwarded"));
        let edge = testbed.host(Role::Edge);
        edge.sysctl(&["net.ipv4.ip_forward=0"]).expect("a setting");
        expect_with_code(testbed, group, &off, 1);
        assert!(remedy(group, Role::Backup).contains("sysctl -w net.ipv4.ip_forward=1"));
        edge.sysctl(&["net.ipv4.ip_forward=1"]).expect("a setting");
        // On some kernels the setting of IPv4 switches that of IPv6 off and on as well.
        edge.sysctl(&["net.ipv6.conf.all.forwarding=1"]).expect("a setting");
        expect_with_code(testbed, group, &HOSTS.map(|role| (role, "protected", "")), 0);
        // One interface is enough: the one through which the members' answers arrive.
        edge.sysctl(&["net.ipv4.conf.br0.forwarding=0"]).expect("a setting");
        let one = "IPv4 that comes in through br0 is not forwarded";
        expect_with_code(testbed, group, &HOSTS.map(|role| (role, "waiting", one)), 1);
        edge.sysctl(&["net.ipv4.conf.br0.forwarding=1"]).expect("a setting");
        expect_with_code(testbed, group, &HOSTS.map(|role| (role, "protected", "")), 0);
    });
}

#[test]
fn a_member_whose_answers_find_no_way_to_clients_protects_nobody() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_and(&patient(), |testbed, group| {
        let lost = "answers find no way to clients: there is no IPv4 route to them";
        for (member, state) in [(Role::Backup, "unprotected"), (Role::Primary, "waiting")] {
            let host = testbed.host(member);
            host.ip("route del default\n").expect("no route");
            expect_with_code(testbed, group, &HOSTS.map(|role| (role, state, lost)), 1);
            assert!(remedy(group, Role::Edge).contains("ip route add default via 10.9.0.1"));
            // A route to some clients may be all that it needs.
            host.ip("route add 10.8.0.0/24 via 10.9.0.1\n").expect("a route");
            expect_with_code(testbed, group, &HOSTS.map(|role| (role, "protected", "")), 0);
            host.ip("route add default via 10.9.0.1\n").expect("a route");
        }
    });
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_port_that_a_stranger_holds_on_the_backups_host_is_named() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_and(&patient(), |testbed, group| {
        let mut stranger = listen(testbed, Role::Backup, "");
        let taken = "another process of this host listens at 0.0.0.0:6379";
        expect_with_code(testbed, group, &HOSTS.map(|role| (role, "unprotected", taken)), 1);
        let server = group.server_pid(Role::Primary).expect("a server");
        world::signal(server, "KILL");
        let served = "another process than the protected server listens at";
        let survivors = [Role::Edge, Role::Backup];
        expect(group, &survivors.map(|role| (role, "waiting", served)));
        assert!(remedy(group, Role::Backup).contains("listens again by itself"));
        drop(stranger.stdin.take());
        stranger.wait().expect("its end");
        // The other member joins meanwhile, before that or after.
        let serves = |role| {
            let status = group.status(role).unwrap_or_default();
            matches!(text(&status, "state"), "unprotected" | "protected")
        };
        world::wait_until("survivors to say so", || survivors.iter().all(|role| serves(*role)));
        assert!(group.events(Role::Backup).iter().any(|(_, what)| what == "listens again"));
        let mut ask = testbed.host(Role::Client).command("redis-cli");
        ask.args(["-h", addresses::SERVICE_V4, "ping"]);
        let answer = ask.output().expect("redis-cli starts").stdout;
        assert_eq!(String::from_utf8_lossy(&answer), "PONG\n");
    });
}

/// Nothing else may listen at any address that the server binds.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_port_of_another_address_that_a_wildcard_server_needs_is_named() {
    let _limit = world::limit(Duration::from_secs(60));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let group = launch_redis(&testbed, |recipe| {
        for (own, all) in [(addresses::SERVICE_V4, "*"), (addresses::SERVICE_V6, "-::*")] {
            recipe.command.iter_mut().filter(|word| *word == own).for_each(|word| {
                all.clone_into(word);
            });
        }
    });
    let protected = HOSTS.map(|role| (role, "protected", ""));
    expect_with_code(&testbed, &group, &protected, 0);
    let mut stranger = listen(&testbed, Role::Backup, "127.0.0.1");
    let taken = "another process of this host listens at 127.0.0.1:6379";
    expect_with_code(&testbed, &group, &HOSTS.map(|role| (role, "unprotected", taken)), 1);
    assert!(remedy(&group, Role::Primary).contains("stop that process"));
    drop(stranger.stdin.take());
    stranger.wait().expect("its end");
    expect_with_code(&testbed, &group, &protected, 0);
}

/// Starts a process that holds the server's port until its input ends.
fn listen(testbed: &Testbed, role: Role, address: &str) -> Child {
    let script = format!(
        "import socket, sys\ns = socket.create_server(('{address}', 6379))\nsys.stdin.read()"
    );
    let mut stranger = testbed.host(role).command("python3");
    stranger.args(["-c", &script]).stdin(Stdio::piped()).spawn().expect("python3 starts")
}

/// Starts a group of redis-servers with a changed recipe, on both hosts.
pub fn launch_redis<'t>(testbed: &'t Testbed, change: impl Fn(&mut Recipe)) -> Group<'t> {
    world::binary();
    let [mut recipe, _] = [Role::Primary, Role::Backup]
        .map(|role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a directory"));
    change(&mut recipe);
    Group::launch(testbed, &recipe, &patient()).expect("the daemons start")
}

#[test]
fn a_port_that_nobody_listens_at_is_named() {
    let _limit = world::limit(Duration::from_secs(60));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let group = launch_redis(&testbed, |recipe| {
        recipe.command.iter_mut().filter(|word| *word == "6379").for_each(|word| {
            "6380".clone_into(word);
        });
    });
    let reason = "does not listen at 10.9.0.100:6379 yet";
    expect_with_code(&testbed, &group, &HOSTS.map(|role| (role, "waiting", reason)), 1);
}

/// A server that serves no new client is called so while another member joins it, too.
#[test]
fn a_server_that_listens_no_more_is_not_called_served_by_a_join() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis_mut(|testbed, group| {
        group.kill_member(Role::Backup).expect("they die");
        let closed = redis_cli(testbed, &["config", "set", "port", "0"]);
        assert_eq!(closed.trim(), "OK");
        let told = |group: &Group<'_>| group.status(Role::Primary).unwrap_or_default();
        world::wait_until("it to be noticed", || text(&told(group), "state") == "waiting");
        group.start_daemon(Role::Backup).expect("a daemon");
        let joins = |group: &Group<'_>| !group.details(Role::Primary, "joins").is_empty();
        let until = Instant::now() + world::WAIT_LIMIT;
        let mut after = None;
        while after.is_none_or(|after: Instant| after.elapsed() < Duration::from_secs(1)) {
            assert!(Instant::now() < until, "nobody joins: {}", group.log_tails());
            let said = told(group);
            assert_eq!(text(&said, "state"), "waiting", "{said}\n{}", group.log_tails());
            if after.is_none() && joins(group) {
                after = Some(Instant::now());
            }
        }
    });
}

/// From its start on, no host calls a statically linked program protected.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_static_program_is_never_protected() {
    let _limit = world::limit(Duration::from_secs(60));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let program = testbed.host(Role::Primary).inside().join("server/static");
    let group = launch_redis(&testbed, |recipe| {
        for role in [Role::Primary, Role::Backup] {
            let folder = testbed.host(role).outside().join("server");
            std::fs::write(folder.join("static.c"), STATIC).expect("a source");
            let mut cc = Command::new("cc");
            cc.current_dir(&folder).args(["-static", "-o", "static", "static.c"]);
            assert!(cc.status().expect("cc starts").success());
        }
        recipe.command = vec![program.display().to_string()];
    });
    let until = Instant::now() + world::WAIT_LIMIT;
    loop {
        let states = HOSTS.map(|role| group.status(role).unwrap_or_default());
        let shown = || format!("{states:?}\n{}", group.log_tails());
        assert!(states.iter().all(|status| text(status, "state") != "protected"), "{}", shown());
        // The primary waits until the edge has barred the backup.
        let told = |status: &Value| {
            let is_alone = text(status, "state") == "unprotected";
            is_alone && text(status, "reason").contains("without the shim")
        };
        let [edge, primary, _] = &states;
        if told(edge) && told(primary) {
            break;
        }
        assert!(Instant::now() < until, "{}", shown());
    }
}

/// Statically linked server that listens at once, and into which no shim is loaded.
const STATIC: &str = r#"
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
    int s = socket(AF_INET6, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in6 all = {.sin6_family = AF_INET6, .sin6_port = htons(6379)};
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bind(s, (struct sockaddr *)&all, sizeof all);
    listen(s, 10);
    for (;;) pause();
}
"#;
