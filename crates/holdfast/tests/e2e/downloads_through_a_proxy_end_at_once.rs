//! A proxy's connection to a server outside the group ends with the primary. Every download over it
//! must then end at once with an error: it must not hang, and the survivor must not spin over it,
//! but serve new requests.

use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::Program;
use holdfast_lab::testbed::{Plan, Role, Testbed, addresses};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Number of open downloads at the takeover.
const DOWNLOADS: usize = 6;
/// Longest time for a download to end after the takeover.
const END_LIMIT: Duration = Duration::from_secs(3);
/// Share of a processor in percent that a proxy uses which spins over one download.
const SPIN_PERCENT: u64 = 30;
const UPSTREAM_PORT: u16 = 9000;
/// Server that sends a little, ten times a second, for ever; or ends after the first word.
const UPSTREAM: &str = "
import http.server, time
class Drip(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(b'first'); self.wfile.flush()
        while self.path != '/short':
            time.sleep(0.1); self.wfile.write(b'x' * 1000); self.wfile.flush()
http.server.ThreadingHTTPServer(('0.0.0.0', 9000), Drip).serve_forever()
";

#[test]
fn downloads_through_a_proxy_end_at_once() {
    let _limit = world::limit(Duration::from_secs(90));
    let options = GroupOptions { heartbeat_ms: Some(200), ..GroupOptions::default() };
    world::with_server(Program::Tinyproxy, 0, &Plan::default(), &options, |testbed, group| {
        let mut python = testbed.host(Role::Client).command("/usr/bin/python3");
        python.args(["-c", UPSTREAM]).stdin(Stdio::null()).stderr(Stdio::null());
        let _upstream = Ends(python.spawn().expect("python starts"));
        world::wait_until("an answer", || fetched(testbed) == "first");
        let mut downloads: Vec<Ends> = (0..DOWNLOADS).map(|_| download(testbed)).collect();
        std::thread::sleep(Duration::from_millis(500));
        assert!(downloads.iter_mut().all(|d| d.0.try_wait().expect("asked").is_none()));
        group.ensure_protected().expect("a pair");
        world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
        world::wait_until("the takeover", || took_over(group));
        let survivor = group.server_pid(Role::Backup).expect("a survivor");
        let since = Instant::now();
        for download in &mut downloads {
            while download.0.try_wait().expect("asked").is_none() {
                assert!(since.elapsed() < END_LIMIT, "it hangs\n{}", group.log_tails());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        assert_eq!(fetched(testbed), "first", "{}", group.log_tails());
        let (before, second) = (ticks(survivor), Duration::from_secs(1));
        std::thread::sleep(second);
        // A tick is a hundredth of a second.
        let percent = ticks(survivor) - before;
        assert!(percent < SPIN_PERCENT, "the survivor uses {percent} % of a processor");
    });
}

fn took_over(group: &Group<'_>) -> bool {
    group.status(Role::Backup).is_ok_and(|status| status["role"] == "primary")
}

/// curl on the client's host, through the proxy.
fn curl(testbed: &Testbed, path: &str) -> Command {
    let proxy = format!("http://{}:{}", addresses::SERVICE_V4, Program::Tinyproxy.port());
    let mut curl = testbed.host(Role::Client).command("curl");
    curl.args(["-s", "--max-time", "20", "-x", &proxy]);
    curl.arg(format!("http://{}:{UPSTREAM_PORT}/{path}", addresses::CLIENT));
    curl.stdin(Stdio::null());
    curl
}

fn fetched(testbed: &Testbed) -> String {
    let done = curl(testbed, "short").output().expect("curl starts");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn download(testbed: &Testbed) -> Ends {
    Ends(curl(testbed, "long").stdout(Stdio::null()).spawn().expect("curl starts"))
}

/// Processor time that a process has used, in ticks.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let behind_name = stat.rsplit(") ").next().unwrap_or_default();
    behind_name.split(' ').skip(11).take(2).map(|n| n.parse::<u64>().unwrap_or(0)).sum()
}

/// A child process that is killed when this is dropped.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
