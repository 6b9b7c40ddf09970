//! Servers whose processes serve a client each, or become other programs: established
//! connections survive the death of all of them and of the daemon at once.

use crate::families::{await_takeover, options};
use crate::{client, world};
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::Recipe;
use holdfast_lab::testbed::{Plan, Role, Testbed, addresses};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const MEMBERS: [Role; 2] = [Role::Primary, Role::Backup];
const HTTP_PORT: u16 = 8080;
const SSH_PORT: u16 = 2222;
/// Parts of an answer that takes seconds, and their size in bytes.
const PARTS: usize = 400;
const PART_BYTES: usize = 1024;

/// Answers part by part, and says which processes do.
const APPLICATION: &str = "
import os, time
def application(environment, start):
    parts, size = (int(word) for word in environment['PATH_INFO'][1:].split('/'))
    start('200 OK', [('Content-Length', str(parts * size)), ('X-Who', f'{os.getpid()} below {os.getppid()}')])
    for part in range(parts):
        time.sleep(0.01)
        yield bytes((part * 7 + at) % 251 for at in range(size))
";

/// A server whose folder `prepare` fills, alike on both members.
pub fn with_server(
    command: &[&str],
    (program, port, user): (&str, u16, &'static str),
    options: &GroupOptions,
    prepare: impl Fn(&Testbed, Role, &Path),
    work: impl FnOnce(&Testbed, &mut Group<'_>),
) {
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    for role in MEMBERS {
        let folder = testbed.host(role).outside().join("server");
        std::fs::create_dir_all(&folder).expect("a folder");
        prepare(&testbed, role, &folder);
        let done = Command::new("chown").args(["-R", user]).arg(&folder).status();
        assert!(done.expect("chown").success());
    }
    let directory = testbed.host(Role::Primary).inside().join("server");
    let own = directory.display().to_string();
    let recipe = Recipe {
        program: program.replace("{}", &own).into(),
        port,
        has_ipv6: false,
        command: command.iter().map(|word| word.replace("{}", &own)).collect(),
        directory,
        user,
        env: Vec::new(),
        state_dirs: Vec::new(),
    };
    let mut group = Group::start(&testbed, &recipe, options).expect("the group protects");
    work(&testbed, &mut group);
}

/// An answer that comes bit by bit.
struct Answer {
    stream: BufReader<TcpStream>,
    who: String,
    part: usize,
}

impl Answer {
    fn ask(testbed: &Testbed, parts: usize) -> Self {
        let stream = client::on_client(testbed, || {
            TcpStream::connect(client::service(HTTP_PORT)).expect("a connection")
        });
        stream.set_read_timeout(Some(world::WAIT_LIMIT)).expect("a limit");
        let mut this = Self { stream: BufReader::new(stream), who: String::new(), part: 0 };
        let ask = format!("GET /{parts}/{PART_BYTES} HTTP/1.1\r\nHost: x\r\n\r\n");
        this.stream.get_mut().write_all(ask.as_bytes()).expect("asked");
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            this.stream.read_line(&mut line).expect("an answer");
            assert!(!line.is_empty(), "the connection has ended");
            if let Some(who) = line.strip_prefix("X-Who: ") {
                this.who = who.trim_end().to_owned();
            }
        }
        this
    }

    /// Reads more of it, and compares every byte.
    fn take(&mut self, parts: usize) {
        let mut bytes = vec![0; PART_BYTES];
        for part in self.part..self.part + parts {
            self.stream.read_exact(&mut bytes).expect("a part");
            let is_right = |(at, byte): (usize, &u8)| usize::from(*byte) == (part * 7 + at) % 251;
            assert!(bytes.iter().enumerate().all(is_right), "part {part} is wrong");
        }
        self.part += parts;
    }
}

#[test]
fn answers_of_gunicorn_go_on() {
    let _limit = world::limit(Duration::from_secs(120));
    let at = format!("{}:{HTTP_PORT}", addresses::SERVICE_V4);
    let command = ["/usr/bin/gunicorn", "-w", "2", "-b", &at, "answers:application"];
    let prepare = |_: &Testbed, _: Role, folder: &Path| {
        std::fs::write(folder.join("answers.py"), APPLICATION).expect("a program");
    };
    let program = ("/usr/bin/python3", HTTP_PORT, "nobody");
    with_server(&command, program, &options(), prepare, |testbed, group| {
        // Each worker has one.
        let mut answers: Vec<_> = (0..2).map(|_| Answer::ask(testbed, PARTS)).collect();
        answers.iter_mut().for_each(|it| it.take(PARTS / 4));
        assert_ne!(answers[0].who, answers[1].who);
        group.ensure_protected().expect("a pair under load");
        group.kill_member(Role::Primary).expect("they die");
        await_takeover(group);
        answers.iter_mut().for_each(|it| it.take(PARTS - PARTS / 4));
        // The same workers serve on: to them their parent is who it was.
        for _ in 0..8 {
            let mut fresh = Answer::ask(testbed, 1);
            fresh.take(1);
            assert!(answers.iter().any(|it| it.who == fresh.who), "{}", fresh.who);
        }
    });
}

/// A session of ssh in which `cat` says what it is told.
struct Session {
    ssh: Child,
    lines: BufReader<ChildStdout>,
    said: usize,
}

impl Session {
    fn open(testbed: &Testbed) -> Self {
        let key = testbed.host(Role::Primary).outside().join("server/client");
        let mut command = testbed.host(Role::Client).network_command("ssh");
        command.args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]);
        command.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-i"]);
        command.arg(key).args(["-p", &SSH_PORT.to_string()]);
        command.arg(format!("root@{}", addresses::SERVICE_V4)).arg("cat");
        let mut ssh =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ssh starts");
        let lines = BufReader::new(ssh.stdout.take().expect("piped"));
        Self { ssh, lines, said: 0 }
    }

    /// Says a line and hears it.
    fn speak(&mut self) {
        self.said += 1;
        let line = format!("line {} {}\n", self.said, "x".repeat(self.said * 13 % 997));
        let stdin = self.ssh.stdin.as_mut().expect("piped");
        stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).expect("said");
        let mut heard = String::new();
        self.lines.read_line(&mut heard).expect("heard");
        assert_eq!(heard, line);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.ssh.kill();
        let _ = self.ssh.wait();
    }
}

/// Keys of the server and of a client, who is let in as root; that one's home is the
/// member's own.
fn prepare_dropbear(testbed: &Testbed, role: Role, folder: &Path) {
    let first = testbed.host(Role::Primary).outside().join("server");
    if role == Role::Primary {
        let make = "ssh-keygen -q -t ed25519 -N '' -f client && \
                    dropbearkey -t ed25519 -f host.key >/dev/null && mkdir -p home/.ssh && \
                    cp client.pub home/.ssh/authorized_keys && chmod -R go= home";
        let done = Command::new("sh").args(["-ec", make]).current_dir(folder).status();
        assert!(done.expect("sh").success());
    } else {
        let done = Command::new("cp").arg("-a").arg(first.join(".")).arg(folder).status();
        assert!(done.expect("cp").success());
    }
    let home = testbed.host(role).inside().join("server/home");
    let done = testbed.host(role).command("mount").arg("--bind").arg(home).arg("/root").status();
    assert!(done.expect("mount").success());
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder, mode).expect("a mode");
}

#[test]
fn sessions_of_dropbear_go_on_in_their_programs() {
    let _limit = world::limit(Duration::from_secs(120));
    let at = format!("{}:{SSH_PORT}", addresses::SERVICE_V4);
    let dropbear = "/usr/sbin/dropbear";
    let command = [dropbear, "-F", "-E", "-r", "{}/host.key", "-P", "{}/dropbear.pid", "-p", &at];
    let program = (dropbear, SSH_PORT, "root");
    with_server(&command, program, &options(), prepare_dropbear, |testbed, group| {
        let mut sessions: Vec<_> = (0..3).map(|_| Session::open(testbed)).collect();
        for _ in 0..5 {
            sessions.iter_mut().for_each(Session::speak);
        }
        group.ensure_protected().expect("a pair under load");
        group.kill_member(Role::Primary).expect("they die");
        await_takeover(group);
        for _ in 0..5 {
            sessions.iter_mut().for_each(Session::speak);
        }
        let mut fresh = Session::open(testbed);
        fresh.speak();
    });
}
