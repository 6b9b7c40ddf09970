//! The edge's daemon in a namespace of its own, with real eBPF on real
//! interfaces: who is granted, who is refused, and what survives kill -9.

use holdfast::channel::{Channel, ChannelError, Identity, Kind};
use holdfast::config::{Config, Role};
use holdfast::key::GroupKey;
use holdfast::status::{State, Status};
use holdfast_cluster::state::{EdgeState, StateBlock};
use holdfast_linux::netns;
use holdfast_linux::way::SignSocket;
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{Message, VERSION};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(10);

/// Members here answer heartbeats only while they listen, and are silent after
/// three of these without an answer.
const HEARTBEAT_MS: u64 = 500;

/// A disk whose moods stand in the file that HF_DISK names.
const DISK_C: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
static char mood(void) {
    char c = 'w';
    int fd = open(getenv("HF_DISK"), O_RDONLY | O_CLOEXEC);
    if (fd >= 0) { if (read(fd, &c, 1) != 1) c = 'w'; close(fd); }
    return c;
}
int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    while (mood() == 'h') usleep(1000);
    if (mood() == 'f') { errno = EIO; return -1; }
    return real(fd);
}
"#;

struct Bed {
    name: String,
    folder: PathBuf,
    file: PathBuf,
    config: Config,
    daemon: Option<Child>,
    /// Loaded into the daemon: a disk that fails or hangs.
    preload: Option<PathBuf>,
}

impl Bed {
    fn new(name: &str) -> Self {
        let name = format!("hft-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&folder).unwrap();
        for command in [
            format!("ip netns add {name}"),
            format!("ip -n {name} link set lo up"),
            format!("ip -n {name} link add ec type veth peer name c0"),
            format!("ip -n {name} link add ep type veth peer name p0"),
            format!("ip -n {name} link add eb type veth peer name b0"),
            format!("ip -n {name} link set ec up"),
            format!("ip -n {name} link set ep up"),
            format!("ip -n {name} link set eb up"),
            format!("ip -n {name} link set p0 up"),
            format!("ip -n {name} link set b0 up"),
        ] {
            let words: Vec<&str> = command.split(' ').collect();
            assert!(
                Command::new(words[0]).args(&words[1..]).status().unwrap().success(),
                "{command}"
            );
        }
        let key = folder.join("demo.key");
        std::fs::write(&key, GroupKey::generate().unwrap().to_text()).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let file = folder.join("demo.toml");
        std::fs::write(&file, text(&folder)).unwrap();
        let config = Config::load(&file).unwrap();
        Self { name, folder, file, config, daemon: None, preload: None }
    }

    fn start(&mut self) {
        self.spawn();
        wait_for("the daemon", || self.ask("status").ok());
    }

    fn spawn(&mut self) {
        self.daemon = Some(self.daemon(Stdio::null()));
    }

    fn daemon(&self, log: Stdio) -> Child {
        // Not `ip netns exec`: it makes a mount namespace, which would take the
        // pinned maps with it.
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.name))
            .arg(env!("CARGO_BIN_EXE_holdfast"))
            .args(["run", "--role", "edge", "--config"])
            .arg(&self.file)
            .stderr(log);
        if let Some(preload) = &self.preload {
            command.env("LD_PRELOAD", preload).env("HF_DISK", self.folder.join("disk"));
        }
        command.spawn().unwrap()
    }

    /// Lets `fdatasync` in the daemon fail, or hang, from now on; or work again.
    fn disk(&self, how: &str) {
        std::fs::write(self.folder.join("disk"), how).unwrap();
    }

    /// Builds what [`Bed::disk`] needs; daemons started from now on have it.
    fn with_a_disk_of_our_own(&mut self) {
        let (source, object) = (self.folder.join("disk.c"), self.folder.join("disk.so"));
        std::fs::write(&source, DISK_C).unwrap();
        self.disk("works");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&object).arg(&source);
        assert!(cc.status().expect("a C compiler").success());
        self.preload = Some(object);
        self.kill();
        self.start();
    }

    /// Both blocks of the state file.
    fn blocks(&self) -> [Option<StateBlock>; 2] {
        let bytes = std::fs::read(&self.config.edge.state_file).unwrap();
        [0, 4096].map(|at| {
            let text = bytes[at..].split(|byte| *byte == b'\n').take(6);
            let text: Vec<u8> = text.flat_map(|line| [line, b"\n"].concat()).collect();
            StateBlock::parse(&text).ok()
        })
    }

    /// Writes the state file as if a daemon had, and as another one it did not.
    fn write_state(&self, epoch: u64, current: Option<&str>) {
        let newest = self.blocks().into_iter().flatten().map(|b| b.number).max().unwrap_or(0);
        let current = current.map(str::to_owned);
        let state = EdgeState { epoch, current, fenced: false };
        let mut bytes = Vec::new();
        for number in [newest + 1, newest + 2] {
            let mut block = StateBlock { number, state: state.clone() }.to_string().into_bytes();
            block.resize(4096, b'\n');
            bytes.extend(block);
        }
        std::fs::write(&self.config.edge.state_file, bytes).unwrap();
    }

    /// The host is started again: what the kernel held is gone.
    fn reboot(&self) {
        for device in ["ec", "ep", "eb"] {
            let mut tc = Command::new("tc");
            let _ =
                tc.args(["qdisc", "del", "dev", device, "clsact"]).stderr(Stdio::null()).status();
        }
        let pins = self.config.pin_dir(Role::Edge);
        assert!(Command::new("umount").arg(pins).status().unwrap().success());
    }

    fn event(&self, what: &str) -> Option<String> {
        let answer = self.ask("events").ok()?;
        let events = answer["events"].as_array()?.iter().rev();
        let mut those = events.filter(|event| event["what"] == what);
        Some(those.next()?["detail"].as_str()?.to_owned())
    }

    /// kill -9.
    fn kill(&mut self) {
        if let Some(mut child) = self.daemon.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn ask(&self, what: &str) -> std::io::Result<Value> {
        let request = serde_json::from_str(&format!("{{\"cmd\":\"{what}\"}}")).unwrap();
        holdfast::admin::ask(&self.config.admin_socket(Role::Edge), request)
    }

    fn status(&self) -> Status {
        serde_json::from_value(self.ask("status").unwrap()).unwrap()
    }

    fn member(&self, name: &str) -> Member {
        self.member_in(name, 0, false)
    }

    /// A member that lives in an epoch, perhaps as its primary.
    fn member_in(&self, name: &str, epoch: u64, speaks: bool) -> Member {
        let mut member = self.connect(name);
        member.say(&Message::Hello {
            epoch,
            speaks,
            version: VERSION,
            log_version: LOG_VERSION,
            group: "demo",
            member: name,
            world: Vec::new(),
        });
        member.hear("Hello");
        member.hear("Epoch");
        // It does its part, whatever it is.
        let (role, state) = ("primary", "protected");
        member.say(&Message::Says { role, state, reason: "", remedy: "" });
        member
    }

    fn connect(&self, name: &str) -> Member {
        let identity = Identity {
            key: self.config.key().unwrap().channel_key(),
            group: "demo".to_owned(),
            me: name.to_owned(),
            kind: Kind::Edge,
        };
        let mut channel =
            Channel::connect(self.config.edge.listen, &identity, Instant::now()).unwrap();
        wait_for("the handshake", || {
            channel.flush().and_then(|()| channel.handshake()).unwrap();
            channel.is_open().then_some(())
        });
        let (port, mac) = if name == "b" { ("b0", 3) } else { ("p0", 2) };
        let signs = SignSocket::open(port).expect("a packet socket");
        Member { channel, heard: Vec::new(), signs, mac: [2, 0, 0, 0, 0, mac] }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.kill();
        let _ = Command::new("umount").arg(self.config.pin_dir(Role::Edge)).status();
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct Member {
    channel: Channel,
    heard: Vec<String>,
    signs: SignSocket,
    mac: [u8; 6],
}

impl Member {
    fn say(&mut self, message: &Message<'_>) {
        self.channel.send(message).unwrap();
        self.channel.flush().unwrap();
    }

    /// The next message that is not about who lives; it must start with `start`.
    fn hear(&mut self, start: &str) -> String {
        let heard = wait_for(start, || {
            self.listen();
            (!self.heard.is_empty()).then(|| self.heard.remove(0))
        });
        assert!(heard.starts_with(start), "{heard} instead of {start}");
        heard
    }

    /// Takes what has come and answers every heartbeat.
    fn listen(&mut self) {
        let Self { channel, heard, .. } = self;
        let mut beats = Vec::new();
        channel
            .recv(|message| match message {
                Message::Beat { number, .. } => beats.push(number),
                Message::Reach { .. } | Message::Says { .. } => {}
                _ => heard.push(format!("{message:?}")),
            })
            .unwrap();
        for number in beats {
            self.say(&Message::Beat { number, echo: number, executed: 0 });
        }
        if let Some(number) = self.signs.newest() {
            self.say(&Message::SignSeen { number, mac: self.mac });
        }
    }

    /// Asks until the edge has settled, and is granted.
    fn promote(&mut self, epoch: u64) {
        let refused = |heard: &str| heard.starts_with("Refused") && heard.contains("just started");
        let mut answer = self.ask(epoch);
        while refused(&answer) {
            std::thread::sleep(Duration::from_millis(20));
            answer = self.ask(epoch);
        }
        assert_eq!(answer, format!("Granted {{ epoch: {epoch} }}"));
        self.hear("Bounds");
    }

    fn ask(&mut self, epoch: u64) -> String {
        self.say(&Message::Promote { epoch });
        self.hear("")
    }

    fn granted(&mut self, epoch: u64) {
        assert_eq!(self.hear("Granted"), format!("Granted {{ epoch: {epoch} }}"));
        self.hear("Bounds");
    }
}

fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < LIMIT, "{what} did not come");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn connect_from(address: [u8; 4], to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((address, 0)).into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// nsenter becomes the daemon.
fn daemon_pid(bed: &Bed) -> u32 {
    bed.daemon.as_ref().expect("a daemon").id()
}

fn limit_descriptors(pid: u32, soft: usize) {
    let limit = format!("--nofile={soft}:");
    let done = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status();
    assert!(done.unwrap().success());
}

/// Processor time that a process has used, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn text(folder: &Path) -> String {
    let member = |name: &str, port: &str, last: u8| {
        format!(
            "[[member]]\nname = \"{name}\"\naddress = \"127.0.0.{last}:7701\"\ninterface = \"x\"\n\
             edge_port = \"{port}\"\nmac = \"02:00:00:00:00:0{last}\"\n"
        )
    };
    let folder = folder.display();
    format!(
        "[group]\nname = \"demo\"\nkey_file = \"demo.key\"\nservices = [\"10.9.0.100:6379\"]\n\
         run_dir = \"{folder}/run\"\nrealtime = false\nheartbeat_ms = {HEARTBEAT_MS}\n\
         [edge]\nlisten = \"127.0.0.1:7700\"\nclients = [\"ec\"]\nstate_file = \"{folder}/epoch\"\n{}{}\
         [server]\ncommand = [\"true\"]\n",
        member("a", "ep", 2),
        member("b", "eb", 3)
    )
}

/// Runs a test on a thread inside the namespace: threads of the harness are shared.
fn in_bed(name: &str, test: impl FnOnce(&mut Bed) + Send) {
    let mut bed = Bed::new(name);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            netns::enter(&Path::new("/run/netns").join(&bed.name)).unwrap();
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            bed.start();
            test(&mut bed);
        });
        assert!(thread.join().is_ok(), "see above");
    });
}

#[test]
fn a_backup_in_step_is_granted_and_the_old_primary_learns_of_it() {
    in_bed("grant", |bed| {
        assert_eq!(bed.status().state, State::Waiting);
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        b.say(&Message::Promote { epoch: 1 });
        assert!(b.hear("Refused").contains("preferred"));
        a.promote(1);
        assert_eq!(b.hear("Epoch"), "Epoch { epoch: 1, current: \"a\" }");
        wait_for("unprotected", || {
            a.listen();
            b.listen();
            (bed.status().state == State::Unprotected).then_some(())
        });
        b.say(&Message::Promote { epoch: 2 });
        assert!(b.hear("Refused").contains("in step"));
        b.say(&Message::InStep { epoch: 1, yes: true });
        wait_for("protected", || {
            a.listen();
            b.listen();
            (bed.status().state == State::Protected).then_some(())
        });
        b.promote(2);
        assert_eq!(a.hear("Epoch"), "Epoch { epoch: 2, current: \"b\" }");
        let status = bed.status();
        assert_eq!((status.epoch, status.state), (2, State::Unprotected));
        eprintln!("grant took {} µs", status.counters["edge.last_grant_us"]);
    });
}

#[test]
fn a_killed_edge_comes_back_with_its_fence_and_epoch() {
    in_bed("kill", |bed| {
        let mut a = bed.member("a");
        a.promote(1);
        bed.kill();
        bed.start();
        let status = bed.status();
        assert_eq!((status.epoch, status.state), (1, State::Unprotected), "still open for a");
        let mut a = bed.member("a");
        a.say(&Message::Ask);
        assert_eq!(a.hear("Epoch"), "Epoch { epoch: 1, current: \"a\" }");
        a.promote(1);
    });
}

#[test]
fn a_backup_that_does_not_answer_bars_nobody() {
    in_bed("silent", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.say(&Message::InStep { epoch: 1, yes: true });
        wait_for("protected", || {
            a.listen();
            b.listen();
            (bed.status().state == State::Protected).then_some(())
        });
        a.say(&Message::Promote { epoch: 2 });
        assert!(a.hear("Refused").contains("in step"));
        // `b` answers nothing from here on.
        wait_for("silence", || {
            a.listen();
            (bed.status().state == State::Unprotected).then_some(())
        });
        a.promote(2);
        b.say(&Message::Promote { epoch: 2 });
        b.hear("Epoch");
        assert_eq!(b.hear("Alone"), "Alone { member: \"a\" }");
        b.hear("Epoch");
        assert!(b.hear("Refused").contains("not the next one"));
    });
}

#[test]
fn a_hand_that_closed_the_edge_is_not_overruled_by_a_member_or_a_restart() {
    in_bed("hand", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        assert_eq!(bed.ask("fence").unwrap()["epoch"], 1);
        for round in 0..3 {
            assert_eq!(bed.status().state, State::Fenced, "{round}");
            // The current one, the same one started anew, a backup.
            assert!(a.ask(1).contains("closed by hand"));
            assert!(a.ask(2).contains("closed by hand"));
            assert!(b.ask(2).contains("closed by hand"));
            bed.kill();
            if round == 1 {
                bed.reboot();
            }
            bed.start();
            (a, b) = (bed.member_in("a", 1, true), bed.member_in("b", 1, false));
        }
        bed.ask("unfence").unwrap();
        a.promote(1);
        bed.kill();
        bed.start();
        assert_ne!(bed.status().state, State::Fenced, "opened for good");
    });
}

#[test]
fn a_fence_for_a_test_ends_with_the_takeover() {
    in_bed("held", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        let request = holdfast::admin::Request::Fence { until_takeover: true };
        holdfast::admin::ask(&bed.config.admin_socket(Role::Edge), request).unwrap();
        assert!(a.ask(1).contains("closed by hand"));
        assert_eq!(bed.status().state, State::Fenced);
        b.promote(2);
        assert_ne!(bed.status().state, State::Fenced);
    });
}

#[test]
fn a_disk_that_fails_ends_no_promotion_and_is_said_at_once() {
    in_bed("disk", |bed| {
        bed.with_a_disk_of_our_own();
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        wait_for("protected", || {
            a.listen();
            b.listen();
            (bed.status().state == State::Protected).then_some(())
        });
        bed.disk("fails");
        // Nobody has asked for anything.
        let status = wait_for("unprotected", || {
            a.listen();
            b.listen();
            Some(bed.status()).filter(|status| status.state == State::Unprotected)
        });
        assert!(status.reason.contains("Input/output error"), "{}", status.reason);
        let refused = b.ask(2);
        assert!(refused.contains("again: true") && refused.contains("error"), "{refused}");
        assert_eq!(bed.status().epoch, 1);
        bed.disk("works");
        let granted = wait_for("a grant", || Some(b.ask(2)).filter(|it| it.starts_with("Granted")));
        assert_eq!(granted, "Granted { epoch: 2 }");
        let newest = bed.blocks().into_iter().flatten().max_by_key(|block| block.number).unwrap();
        assert_eq!((newest.state.epoch, newest.state.current.as_deref()), (2, Some("b")));
    });
}

#[test]
fn a_grant_waits_for_the_disk_and_nothing_else_does() {
    in_bed("hang", |bed| {
        bed.with_a_disk_of_our_own();
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        bed.disk("hangs");
        b.say(&Message::Promote { epoch: 2 });
        // The daemon lives, and says what is wrong, while its disk does not answer.
        let status = wait_for("unprotected", || {
            a.listen();
            b.listen();
            Some(bed.status()).filter(|status| status.reason.contains("does not answer"))
        });
        assert_eq!((status.epoch, status.state), (1, State::Unprotected));
        assert!(b.ask(2).contains("another grant is being written"));
        assert!(a.heard.is_empty() && b.heard.is_empty(), "{:?} {:?}", a.heard, b.heard);
        bed.disk("works");
        b.granted(2);
    });
}

#[test]
fn writes_take_turns_between_the_blocks() {
    in_bed("turns", |bed| {
        let mut a = bed.member("a");
        let _b = bed.member("b");
        for epoch in 1..5 {
            a.promote(epoch);
            let whole = bed.blocks().map(|block| block.expect("a whole block"));
            let newest = whole.iter().map(|block| (block.number, block.state.epoch)).max();
            let oldest = whole.iter().map(|block| block.number).min();
            let (number, newest) = newest.unwrap();
            assert_eq!((oldest, newest), (Some(number - 1), epoch), "{whole:?}");
        }
    });
}

#[test]
fn a_fence_that_is_older_than_the_disk_is_closed() {
    in_bed("agree", |bed| {
        let (mut a, _b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        // As if it had died between the disk and the fence.
        bed.kill();
        bed.write_state(2, Some("b"));
        bed.start();
        let status = bed.status();
        assert_eq!((status.epoch, status.state), (2, State::Waiting), "{}", status.reason);
        let (mut a, mut b) = (bed.member_in("a", 1, true), bed.member("b"));
        assert!(a.ask(1).contains("not the next one"));
        b.promote(2);
    });
}

#[test]
fn a_fence_that_is_newer_than_the_disk_wins() {
    in_bed("newer", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        b.promote(2);
        for lost in [true, false] {
            bed.kill();
            if lost {
                std::fs::remove_file(&bed.config.edge.state_file).unwrap();
            } else {
                bed.write_state(1, Some("a"));
            }
            bed.start();
            let status = bed.status();
            assert_eq!((status.epoch, status.state), (2, State::Unprotected), "{}", status.reason);
            assert!(bed.event("disk").is_some());
            (a, b) = (bed.member("a"), bed.member_in("b", 2, true));
            assert!(a.ask(1).contains("not the next one"), "an empty server beside the living one");
            assert!(a.ask(2).contains("not the next one"));
            b.promote(2);
            wait_for("the disk", || {
                let newest = bed.blocks().into_iter().flatten().max_by_key(|block| block.number);
                newest.filter(|it| {
                    it.state == EdgeState { epoch: 2, current: Some("b".into()), fenced: false }
                })
            });
        }
    });
}

#[test]
fn after_a_reboot_with_a_lost_disk_the_living_primary_goes_on() {
    in_bed("lost", |bed| {
        let (mut a, mut b) = (bed.member("a"), bed.member("b"));
        a.promote(1);
        b.hear("Epoch");
        b.say(&Message::InStep { epoch: 1, yes: true });
        b.promote(2);
        bed.kill();
        bed.reboot();
        std::fs::remove_file(&bed.config.edge.state_file).unwrap();
        bed.start();
        // The empty server is first.
        let mut a = bed.member("a");
        assert!(a.ask(1).contains("just started"));
        let mut b = bed.member_in("b", 2, true);
        b.granted(2);
        assert_eq!(a.hear("Epoch"), "Epoch { epoch: 2, current: \"b\" }");
        assert!(a.ask(1).contains("not the next one"));
        assert_eq!(bed.status().epoch, 2);
        // It is remembered as well.
        bed.kill();
        bed.reboot();
        bed.start();
        assert_eq!(bed.status().epoch, 2);
    });
}

#[test]
fn two_daemons_of_one_role_never_run_at_once() {
    in_bed("twice", |bed| {
        for round in 0..10 {
            bed.kill();
            let mut two = [bed.daemon(Stdio::piped()), bed.daemon(Stdio::piped())];
            let loser = wait_for("one to give way", || {
                two.iter_mut().position(|it| it.try_wait().unwrap().is_some())
            });
            wait_for("the other one", || bed.ask("status").ok());
            let [mut first, mut second] = two;
            let (lost, kept) =
                if loser == 0 { (&mut first, &mut second) } else { (&mut second, &mut first) };
            let mut said = String::new();
            lost.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert!(said.contains("runs already"), "{round}: {said}");
            assert!(kept.try_wait().unwrap().is_none(), "round {round}");
            bed.daemon = Some(if loser == 0 { second } else { first });
            // A third one neither, and it takes nothing with it.
            let third = bed.daemon(Stdio::null()).wait().unwrap();
            assert!(!third.success() && bed.ask("status").is_ok());
        }
    });
}

#[test]
fn a_second_host_of_one_name_is_refused_while_the_first_answers() {
    in_bed("double", |bed| {
        let mut a = bed.member("a");
        let mut b = bed.member("b");
        a.promote(1);
        for _ in 0..3 {
            let mut double = bed.connect("a");
            let refused = double.hear("Refused");
            assert!(refused.contains("another host is connected as `a`"), "{refused}");
            let gone = wait_for("the end", || double.channel.recv(|_| {}).err());
            assert!(matches!(gone, ChannelError::Closed | ChannelError::Io(_)), "{gone:?}");
            a.listen();
        }
        a.promote(1);
        let peers = bed.status().peers;
        assert!(peers.iter().any(|peer| peer.note.contains("two hosts")), "{peers:?}");
        assert!(bed.event("refused").is_some_and(|it| it.contains("another host")));
        // A first one that does not answer any more gives way.
        wait_for("the other one to be taken", || {
            // An edge that hears nobody would accuse nobody.
            for _ in 0..60 {
                b.listen();
                std::thread::sleep(Duration::from_millis(10));
            }
            let mut double = bed.connect("a");
            double.hear("").starts_with("Hello").then_some(())
        });
    });
}

#[test]
fn silent_strangers_keep_no_member_out_of_an_edge_that_starts_again() {
    in_bed("silent-strangers", |bed| {
        let mut a = bed.member("a");
        let _b = bed.member("b");
        a.promote(1);
        bed.kill();
        let to = bed.config.edge.listen;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut all: Vec<TcpStream> = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    if all.len() < 200 {
                        let last = 1 + all.len() as u8;
                        all.extend(connect_from([127, 0, 1, last], to));
                    }
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            bed.start();
            std::thread::sleep(Duration::from_millis(100));
            let begun = Instant::now();
            let (a, b) = (bed.member_in("a", 1, true), bed.member_in("b", 1, false));
            let took = begun.elapsed();
            stop.store(true, Ordering::Relaxed);
            drop((a, b));
            assert!(took < Duration::from_secs(1), "{took:?}");
        });
    });
}

#[test]
fn an_edge_without_descriptors_neither_spins_nor_ends() {
    in_bed("descriptors", |bed| {
        let mut a = bed.member("a");
        let _b = bed.member("b");
        a.promote(1);
        let pid = daemon_pid(bed);
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        limit_descriptors(pid, open + 1);
        let to = bed.config.edge.listen;
        let strangers: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(to).unwrap()).collect();
        let asking: Vec<_> = (0..3)
            .map(|_| UnixStream::connect(bed.config.admin_socket(Role::Edge)).unwrap())
            .collect();
        let before = ticks(pid);
        for _ in 0..100 {
            a.listen();
            std::thread::sleep(Duration::from_millis(10));
        }
        let used = ticks(pid) - before;
        assert!(used < 30, "{used} of 100 ticks");
        limit_descriptors(pid, 1024);
        drop((strangers, asking));
        wait_for("the daemon", || bed.ask("status").ok());
        a.promote(1);
    });
}

#[test]
fn a_reader_of_the_log_that_hangs_does_not_stop_the_edge() {
    in_bed("log", |bed| {
        bed.kill();
        // Nobody reads the pipe.
        bed.daemon = Some(bed.daemon(Stdio::piped()));
        wait_for("the daemon", || bed.ask("status").ok());
        let mut a = bed.member("a");
        let _b = bed.member("b");
        a.promote(1);
        // Each of these is an event, and so a line: more than a pipe holds.
        for _ in 0..2500 {
            let request = holdfast::admin::Request::Fence { until_takeover: true };
            holdfast::admin::ask(&bed.config.admin_socket(Role::Edge), request).unwrap();
        }
        bed.ask("unfence").unwrap();
        a.promote(1);
    });
}

#[test]
fn a_stranger_and_a_member_out_of_turn_are_shown_the_door() {
    in_bed("stranger", |bed| {
        let mut a = bed.member("a");
        a.say(&Message::FrameOk { number: 1 });
        assert!(a.hear("Refused").contains("only a member"));
        let gone = wait_for("the end", || a.channel.recv(|_| {}).err());
        assert!(matches!(gone, ChannelError::Closed | ChannelError::Io(_)), "{gone:?}");
    });
}
