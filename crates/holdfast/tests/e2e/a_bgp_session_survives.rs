//! A BGP session outlives its router: the neighbor sees no flap, and routes are
//! exchanged afterwards as before.

use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role, Testbed, addresses};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Time longer than the hold time of 3 s, which a dead session does not outlive.
const SILENCE: Duration = Duration::from_secs(5);

/// BIRD reckons the time anew each time that it shows it, in seconds.
const CLOCKS_S: f64 = 0.1;

#[test]
fn a_bgp_session_survives() {
    let _limit = world::limit(Duration::from_secs(90));
    let options = GroupOptions::default();
    world::with_server(Program::Bird, 0, &Plan::default(), &options, |testbed, group| {
        let neighbor = Neighbor::start(testbed, "198.51.100.0/24");
        world::wait_until("a session", || neighbor.says("show protocols").contains("Established"));
        world::wait_until("a route", || neighbor.says("show route").contains("192.0.2.0/24"));
        let since = neighbor.session();
        world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
        world::wait_until("the takeover", || took_over(group));
        std::thread::sleep(SILENCE);
        neighbor.goes_on(since, group);
        // What the neighbor announces now is heard, and shown by the console.
        neighbor.configure("203.0.113.0/24");
        let survivor = Console::of(testbed, Role::Backup, "server/bird.ctl");
        world::wait_until("the new route", || {
            let routes = survivor.says("show route");
            routes.contains("203.0.113.0/24") && !routes.contains("198.51.100.0/24")
        });
        neighbor.goes_on(since, group);
    });
}

fn took_over(group: &Group<'_>) -> bool {
    group.status(Role::Backup).is_ok_and(|status| status["role"] == "primary")
}

/// Access to the console of a BIRD on one of the hosts.
struct Console<'a> {
    testbed: &'a Testbed,
    role: Role,
    socket: String,
}

impl<'a> Console<'a> {
    fn of(testbed: &'a Testbed, role: Role, socket: &str) -> Self {
        let socket = testbed.host(role).inside().join(socket).display().to_string();
        Self { testbed, role, socket }
    }

    fn says(&self, words: &str) -> String {
        let mut command = self.testbed.host(self.role).command("timeout");
        command.args(["5", "birdc", "-s", &self.socket]).args(words.split(' '));
        let done = command.stdin(Stdio::null()).output().expect("birdc starts");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }
}

/// A plain BIRD on the client's host.
struct Neighbor<'a> {
    console: Console<'a>,
    bird: Child,
}

impl<'a> Neighbor<'a> {
    fn start(testbed: &'a Testbed, route: &str) -> Self {
        let host = testbed.host(Role::Client);
        write(&host.outside().join("neighbor.conf"), route);
        let console = Console::of(testbed, Role::Client, "neighbor.ctl");
        let config = host.inside().join("neighbor.conf").display().to_string();
        let mut command = host.command("/usr/sbin/bird");
        let bird = command
            .args(["-f", "-c", &config, "-s", &console.socket])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("bird starts");
        Self { console, bird }
    }

    fn says(&self, words: &str) -> String {
        self.console.says(words)
    }

    fn configure(&self, route: &str) {
        let host = self.console.testbed.host(Role::Client);
        write(&host.outside().join("neighbor.conf"), route);
        let said = self.says("configure");
        assert!(said.contains("Reconfigured"), "{said}");
    }

    /// Asserts that the session which has begun then is still there.
    fn goes_on(&self, since: f64, group: &Group<'_>) {
        let now = self.session();
        assert!((now - since).abs() < CLOCKS_S, "{since} s, {now} s\n{}", group.log_tails());
    }

    /// When the session has begun, in seconds of that day.
    fn session(&self) -> f64 {
        let said = self.says("show protocols");
        let line = said.lines().find(|line| line.starts_with("service")).unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.get(5), Some(&"Established"), "{said}");
        let parts = words[4].split(':').map(|part| part.parse::<f64>().expect("a time"));
        parts.fold(0.0, |sum, part| sum * 60.0 + part)
    }
}

impl Drop for Neighbor<'_> {
    fn drop(&mut self) {
        let _ = self.bird.kill();
        let _ = self.bird.wait();
    }
}

fn write(config: &Path, route: &str) {
    let text = format!(
        "router id {client};\nprotocol device {{ }}\n\
         protocol static {{ ipv4; route {route} blackhole; }}\n\
         protocol bgp service {{\n  local {client} as 65001;\n\
         neighbor {} port {} as 65000;\n  multihop;\n  hold time 3;\n  keepalive time 1;\n\
         connect delay time 1;\n  ipv4 {{ import all; export all; }};\n}}\n",
        addresses::SERVICE_V4,
        Program::Bird.port(),
        client = addresses::CLIENT,
    );
    fs::write(config, text).expect("a config file");
}
