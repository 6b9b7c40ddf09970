//! A client that has a family fork without end (`run = "parallel"`) gets errors once there are as
//! many processes as a family may have. The others are served, also by who takes over in the
//! middle of it.

use crate::families::{PORT, await_takeover, connected, options};
use crate::more_families::with_server;
use crate::world;
use holdfast_lab::testbed::ours::{ColdOptions, GroupOptions};
use holdfast_lab::testbed::{Role, Testbed, addresses};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// For a second.
const BOMB: &str = "bomb 1";

/// A process for each client. `bomb` has that one and all of its children fork until a time.
const SERVER: &str = "
import os, socketserver, sys, time
def bomb(until):
    while time.time() < until:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)
    time.sleep(0.1)
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for number, line in enumerate(self.rfile):
            if line.startswith(b'bomb'):
                first = os.getpid()
                bomb(time.time() + float(line.split()[1]))
                if os.getpid() != first:
                    os._exit(0)
            self.wfile.write(b'%d %s' % (number, line))
class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True
    request_queue_size = 64
Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
";

/// A client who is told each line again, with its number.
struct Client {
    stream: BufReader<TcpStream>,
    said: usize,
}

impl Client {
    fn connect(testbed: &Testbed) -> Self {
        Self { stream: connected(testbed), said: 0 }
    }

    fn say(&mut self, line: &str) {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).expect("said");
        self.said += 1;
    }

    /// Hears what it has said last.
    fn hear(&mut self, line: &str) {
        let mut heard = String::new();
        self.stream.read_line(&mut heard).expect("an answer");
        assert_eq!(heard, format!("{} {line}\n", self.said - 1));
    }

    fn speak(&mut self) {
        self.say("hello");
        self.hear("hello");
    }
}

fn is_borne(options: &GroupOptions) {
    let command = ["/usr/bin/python3", "{}/server.py", addresses::SERVICE_V4, &PORT.to_string()];
    let prepare = |_: &Testbed, _: Role, folder: &Path| {
        std::fs::write(folder.join("server.py"), SERVER).expect("a program");
    };
    let program = ("/usr/bin/python3", PORT, "nobody");
    with_server(&command, program, options, prepare, |testbed, group| {
        let mut other = Client::connect(testbed);
        other.speak();
        let mut bomber = Client::connect(testbed);
        bomber.say(BOMB);
        for _ in 0..5 {
            other.speak();
            std::thread::sleep(Duration::from_millis(200));
        }
        group.kill_member(Role::Primary).expect("they die");
        await_takeover(group);
        other.speak();
        bomber.hear(BOMB);
        bomber.speak();
        Client::connect(testbed).speak();
        other.speak();
    });
}

#[test]
fn beside_a_hot_backup() {
    let _limit = world::limit(Duration::from_secs(120));
    is_borne(&options());
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn beside_a_cold_backup() {
    let _limit = world::limit(Duration::from_secs(120));
    is_borne(&GroupOptions { cold: Some(ColdOptions::default()), ..options() });
}
