//! Counters, page and a socket for those who only look: they tell the truth, what serves them has
//! no rights, and nobody there can harm or hold up a daemon.

use crate::client::in_namespace;
use crate::world::{self, wait_for_group, wait_until};
use holdfast_lab::testbed::config::ports;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role, Testbed, addresses};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Output;
use std::time::{Duration, Instant};

/// A group of users that every Debian has.
const WATCHERS: &str = "daemon";
const NOBODY: &str = "65534";
const HOSTS: [Role; 3] = [Role::Edge, Role::Primary, Role::Backup];
/// Connections of somebody who wants to keep the others out.
const HOSTILE: usize = 200;
/// Longest time for an answer of a daemon that nobody holds up, also on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(2);

#[test]
fn a_group_can_be_watched() {
    let _limit = world::limit(Duration::from_secs(60));
    let program = world::binary().with_file_name("holdfast-watch");
    assert!(program.is_file(), "{} is missing: build the workspace", program.display());
    let options = GroupOptions { watchers: Some(WATCHERS.to_owned()), ..GroupOptions::default() };
    world::with_server(Program::Redis, 0, &Plan::default(), &options, |testbed, group| {
        for role in HOSTS {
            wait_until("counters", || scrape(testbed, role).is_some());
            has_no_rights(testbed, role);
        }
        let says = |name, label| {
            let text = scrape(testbed, Role::Primary).expect("counters");
            value(&text, name, &[label]) == Some(1.0)
        };
        wait_until("the state", || says("holdfast_state", "state=\"protected\""));
        wait_until("the peer", || says("holdfast_peer_connected", "peer=\"b\""));
        is_protected(group, Role::Edge);
        shows_the_page(testbed);
        only_watchers_look(group, testbed);
        nobody_is_kept_out(group, testbed);
        comes_back(group, testbed);
        tells_of_a_takeover(group, testbed);
        ends_with_its_daemon(group, testbed);
    });
}

/// A busy machine may stand still for a moment, and whoever does protects nobody until it is over.
fn is_protected(group: &Group<'_>, role: Role) {
    wait_for_group(group, "protection", || {
        group.status(role).is_ok_and(|status| status["state"] == "protected")
    });
}

/// An answer of HTTP: its head, and its body.
fn get(testbed: &Testbed, role: Role, port: u16, path: &str) -> Option<(String, String)> {
    in_namespace(testbed.host(role).namespace(), || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200 ").then(|| (head.to_owned(), body.to_owned()))
    })
}

fn scrape(testbed: &Testbed, role: Role) -> Option<String> {
    let (head, body) = get(testbed, role, ports::METRICS, "/metrics")?;
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    body.contains("holdfast_up{").then_some(body)
}

/// The value of the sample of that family which has these labels.
fn value(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let is_it = |line: &&str| {
        line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label))
    };
    text.lines().find(is_it)?.rsplit(' ').next()?.parse().ok()
}

/// The processes that serve counters and page on a host.
fn viewers(testbed: &Testbed, role: Role) -> Vec<u32> {
    let is_viewer = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == "holdfast-watch" && !world::has_ended(*pid)
    };
    let all = testbed.host(role).processes().expect("its processes");
    all.into_iter().filter(is_viewer).collect()
}

fn has_no_rights(testbed: &Testbed, role: Role) {
    let [pid] = viewers(testbed, role)[..] else { panic!("one on the {}", role.name()) };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(field("Uid"), [NOBODY; 4], "{status}");
    assert_eq!(field("Gid"), [NOBODY; 4], "{status}");
    assert_eq!(field("Groups"), [""; 0], "{status}");
    for none in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(none), ["0000000000000000"], "{status}");
    }
    assert_eq!((field("NoNewPrivs"), field("Threads")), (vec!["1".into()], vec!["1".into()]));
    assert_eq!(field("Seccomp"), ["2"], "{status}");
    // It has no file of the daemon's: sockets, pipes, and what an event loop needs.
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its files").flatten() {
        let file = std::fs::read_link(entry.path()).unwrap_or_default().display().to_string();
        let is_own = ["socket:", "pipe:", "anon_inode:[event", "/dev/null"];
        assert!(is_own.iter().any(|own| file.starts_with(own)), "{file}");
    }
}

fn shows_the_page(testbed: &Testbed) {
    let (head, body) = get(testbed, Role::Edge, ports::PAGE, "/").expect("the page");
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'nonce-"));
    assert!(body.contains("<main>") && !head.to_lowercase().contains("set-cookie"), "{head}");
    let mut status = Value::Null;
    wait_until("protection on the page", || {
        let (_, text) = get(testbed, Role::Edge, ports::PAGE, "/status.json").expect("its data");
        status = serde_json::from_str(&text).expect("JSON");
        status["groups"][0]["status"]["state"] == "protected"
    });
    let group = &status["groups"][0];
    assert!(group["events"].as_array().is_some_and(|events| !events.is_empty()), "{group}");
    assert!(group["show"]["flows"]["max"].as_u64().is_some_and(|max| max > 0), "{group}");
    for (port, path) in [(ports::PAGE, "/metrics"), (ports::METRICS, "/status.json")] {
        assert_eq!(get(testbed, Role::Edge, port, path), None, "{path}");
    }
}

/// A verb, asked by somebody who is not root.
fn as_user(group: &Group<'_>, testbed: &Testbed, gid: &str, verb: &[&str]) -> Output {
    let host = testbed.host(Role::Edge);
    // The folder of the testbed, and the file in it, are root's: the file may be read anywhere.
    let open = "/tmp/holdfast-watched.toml";
    let mut command = host.command("sh");
    command.args(["-c", "cp \"$1\" \"$0\" && chmod 644 \"$0\" && shift && exec \"$@\"", open]);
    command.arg(group.config());
    command.args(["setpriv", "--reuid", NOBODY, "--regid", gid, "--clear-groups"]);
    command.arg(world::binary()).args(verb).args(["--config", open, "--role", "edge"]);
    command.output().expect("it runs")
}

fn only_watchers_look(group: &Group<'_>, testbed: &Testbed) {
    let said = |done: &Output| String::from_utf8_lossy(&done.stderr).into_owned();
    is_protected(group, Role::Edge);
    for (verb, codes) in
        [(&["status"][..], 0..=1), (&["events"], 0..=0), (&["edge", "show"], 0..=0)]
    {
        let done = as_user(group, testbed, WATCHERS, verb);
        // It may have lost its protection since: that is an answer, too.
        let is_answer = done.status.code().is_some_and(|code| codes.contains(&code));
        assert!(is_answer, "{verb:?}: {:?} {}", done.status, said(&done));
        assert!(!done.stdout.is_empty());
    }
    let fence = as_user(group, testbed, WATCHERS, &["edge", "fence"]);
    assert_eq!(fence.status.code(), Some(3), "{}", said(&fence));
    let stranger = as_user(group, testbed, NOBODY, &["status"]);
    assert_eq!(stranger.status.code(), Some(3), "{}", said(&stranger));
    assert!(said(&stranger).contains("be in the group `daemon`"), "{}", said(&stranger));
}

/// Half requests, garbage, and connections without end, from the client's host: the edge's
/// daemon answers as before, and its own host gets its counters.
fn nobody_is_kept_out(group: &Group<'_>, testbed: &Testbed) {
    let hostile: Vec<TcpStream> = in_namespace(testbed.host(Role::Client).namespace(), || {
        let edge =
            (addresses::EDGE.parse::<std::net::IpAddr>().expect("an address"), ports::METRICS);
        let connected = (0..HOSTILE).filter_map(|number| {
            let mut stream = TcpStream::connect_timeout(&edge.into(), AT_ONCE).ok()?;
            let words = match number % 3 {
                0 => b"GET /metrics HTTP/1.1\r\nHost: ".to_vec(),
                1 => b"\0\xff\r\n\r\n".repeat(5000),
                _ => Vec::new(),
            };
            let _closed = stream.write_all(&words);
            Some(stream)
        });
        connected.collect()
    });
    assert!(hostile.len() > 16, "{}", hostile.len());
    let answers = (0..3).map(|_| {
        let begun = Instant::now();
        group.status(Role::Edge).expect("an answer");
        assert!(scrape(testbed, Role::Edge).is_some(), "counters for its own host");
        begun.elapsed()
    });
    // Who is kept out is so each time, a machine that stands still is not.
    let fastest = answers.min().expect("three");
    assert!(fastest < AT_ONCE, "{fastest:?}");
    let [_] = viewers(testbed, Role::Edge)[..] else { panic!("it still runs") };
}

fn comes_back(group: &Group<'_>, testbed: &Testbed) {
    let [first] = viewers(testbed, Role::Primary)[..] else { panic!("one") };
    world::signal(first, "KILL");
    wait_until("another one", || {
        viewers(testbed, Role::Primary).iter().any(|pid| *pid != first)
            && scrape(testbed, Role::Primary).is_some()
    });
    is_protected(group, Role::Primary);
}

fn tells_of_a_takeover(group: &mut Group<'_>, testbed: &Testbed) {
    group.kill_member(Role::Primary).expect("it runs");
    wait_for_group(group, "the takeover among the counters", || {
        let Some(text) = scrape(testbed, Role::Backup) else { return false };
        let is = |state: &str| value(&text, "holdfast_state", &["role=\"primary\"", state]);
        is("state=\"unprotected\"") == Some(1.0)
            && is("state=\"protected\"") == Some(0.0)
            && value(&text, "holdfast_takeovers_total", &[]) == Some(1.0)
            && value(&text, "holdfast_last_takeover_duration_seconds", &["phase=\"repair\""])
                .is_some()
    });
    wait_until("its end with the daemon that was killed", || {
        viewers(testbed, Role::Primary).is_empty()
    });
}

fn ends_with_its_daemon(group: &Group<'_>, testbed: &Testbed) {
    let done = group.verb(Role::Edge, &["down", "--stop"]).expect("it runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(viewers(testbed, Role::Edge), [0_u32; 0]);
    let left = std::fs::read_dir(testbed.host(Role::Edge).outside().join("run"));
    let left = left.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let sockets: Vec<_> = left.filter(|name| name.to_string_lossy().ends_with(".watch")).collect();
    assert!(sockets.is_empty(), "{sockets:?}");
}
