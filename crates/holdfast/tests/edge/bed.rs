//! The edge's daemon in a network namespace of its own, members that a test plays, and ways to
//! disturb both.

use holdfast::channel::Channel;
use holdfast::channel::Identity;
use holdfast::channel::Kind;
use holdfast::config::Role;
use holdfast::config::{Config, GroupFile};
use holdfast::key::GroupKey;
use holdfast::status::Status;
use holdfast_cluster::state::EdgeState;
use holdfast_cluster::state::StateBlock;
use holdfast_linux::netns;
use holdfast_linux::way::{self, SignSocket};
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::Message;
use holdfast_wire::message::VERSION;
use serde_json::Value;
use socket2::Domain;
use socket2::Socket;
use socket2::Type;
use std::net::SocketAddr;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

pub const LIMIT: Duration = Duration::from_secs(30);

/// Time between two heartbeats in ms. The members of these tests answer only while they listen, and
/// count as silent after three without an answer.
pub const HEARTBEAT_MS: u64 = 500;

/// Library of a disk that behaves as the file says that HF_DISK names.
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

pub struct Bed {
    pub name: String,
    pub folder: PathBuf,
    pub file: PathBuf,
    pub config: Config,
    pub daemon: Option<Child>,
    /// Library that is loaded into the daemon: a disk that fails or hangs.
    pub preload: Option<PathBuf>,
}

impl Bed {
    pub fn new(name: &str) -> Self {
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
            format!("ip -n {name} link set c0 up"),
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
        let config = GroupFile::load(&file).unwrap().replicated().unwrap();
        Self { name, folder, file, config, daemon: None, preload: None }
    }

    pub fn start(&mut self) {
        self.spawn();
        wait_for("the daemon", || self.ask("status").ok());
    }

    pub fn spawn(&mut self) {
        self.daemon = Some(self.daemon(Stdio::null()));
    }

    pub fn daemon(&self, log: Stdio) -> Child {
        // `ip netns exec` would make a mount namespace, which would take the pinned maps with it.
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

    /// Lets `fdatasync` in the daemon fail or hang from now on, or work again.
    pub fn disk(&self, how: &str) {
        std::fs::write(self.folder.join("disk"), how).unwrap();
    }

    /// Builds what [`Bed::disk`] needs for daemons that are started from now on.
    pub fn with_a_disk_of_our_own(&mut self) {
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

    /// The table of the edge.
    pub fn edge(&self) -> &holdfast::config::Edge {
        self.config.edge.as_ref().unwrap()
    }

    /// Both blocks of the state file.
    pub fn blocks(&self) -> [Option<StateBlock>; 2] {
        let bytes = std::fs::read(&self.edge().state_file).unwrap();
        [0, 4096].map(|at| {
            let text = bytes[at..].split(|byte| *byte == b'\n').take(6);
            let text: Vec<u8> = text.flat_map(|line| [line, b"\n"].concat()).collect();
            StateBlock::parse(&text).ok()
        })
    }

    /// Writes the state file as if a daemon had, with this epoch and current member.
    pub fn write_state(&self, epoch: u64, current: Option<&str>) {
        let newest = self.blocks().into_iter().flatten().map(|b| b.number).max().unwrap_or(0);
        let current = current.map(str::to_owned);
        let state = EdgeState { epoch, current, fenced: false };
        let mut bytes = Vec::new();
        for number in [newest + 1, newest + 2] {
            let mut block = StateBlock { number, state: state.clone() }.to_string().into_bytes();
            block.resize(4096, b'\n');
            bytes.extend(block);
        }
        std::fs::write(&self.edge().state_file, bytes).unwrap();
    }

    /// Restarts the host: what the kernel held is gone.
    pub fn reboot(&self) {
        for device in ["ec", "ep", "eb"] {
            let mut tc = Command::new("tc");
            let _ =
                tc.args(["qdisc", "del", "dev", device, "clsact"]).stderr(Stdio::null()).status();
        }
        let pins = self.config.pin_dir(Role::Edge);
        assert!(Command::new("umount").arg(pins).status().unwrap().success());
    }

    pub fn event(&self, what: &str) -> Option<String> {
        let answer = self.ask("events").ok()?;
        let events = answer["events"].as_array()?.iter().rev();
        let mut those = events.filter(|event| event["what"] == what);
        Some(those.next()?["detail"].as_str()?.to_owned())
    }

    /// Kills the daemon with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.daemon.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn ask(&self, what: &str) -> std::io::Result<Value> {
        let request = serde_json::from_str(&format!("{{\"cmd\":\"{what}\"}}")).unwrap();
        holdfast::admin::ask(&self.config.admin_socket(Role::Edge), request)
    }

    pub fn status(&self) -> Status {
        serde_json::from_value(self.ask("status").unwrap()).unwrap()
    }

    pub fn member(&self, name: &str) -> Member {
        self.member_in(name, 0, false)
    }

    /// A member in an epoch, perhaps as its primary.
    pub fn member_in(&self, name: &str, epoch: u64, speaks: bool) -> Member {
        let mut member = self.connect(name);
        member.say(&Message::Hello {
            epoch,
            speaks,
            version: VERSION,
            log_version: LOG_VERSION,
            group: "demo",
            member: name,
            fingerprint: Vec::new(),
            hash_key: None,
        });
        member.hear("Hello");
        member.hear("Epoch");
        // The edge does its part whatever the member's role is.
        let (role, state) = ("primary", "protected");
        member.say(&Message::Says { role, state, reason: "", remedy: "" });
        member
    }

    pub fn connect(&self, name: &str) -> Member {
        let identity = Identity {
            keyring: self.config.keyring(name).unwrap(),
            peers: vec!["edge".to_owned()],
            attempt: 0,
            group: "demo".to_owned(),
            me: name.to_owned(),
            kind: Kind::Edge,
        };
        let mut channel = Channel::connect(self.edge().listen, &identity, Instant::now()).unwrap();
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

pub struct Member {
    pub channel: Channel,
    pub heard: Vec<String>,
    pub signs: SignSocket,
    pub mac: [u8; 6],
}

impl Member {
    pub fn say(&mut self, message: &Message<'_>) {
        self.channel.send(message).unwrap();
        self.channel.flush().unwrap();
    }

    /// The next message that is not about who is alive; it must start with `start`.
    pub fn hear(&mut self, start: &str) -> String {
        let heard = wait_for(start, || {
            self.listen();
            (!self.heard.is_empty()).then(|| self.heard.remove(0))
        });
        assert!(heard.starts_with(start), "{heard} instead of {start}");
        heard
    }

    /// Takes what has arrived, and answers every heartbeat.
    pub fn listen(&mut self) {
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
        let mut newest = None;
        self.signs.drain(|payload| newest = way::number_of(payload).or(newest));
        if let Some(number) = newest {
            self.say(&Message::SignSeen { number, mac: self.mac });
        }
    }

    /// Asks until the edge has settled and grants the epoch.
    pub fn promote(&mut self, epoch: u64) {
        let refused = |heard: &str| heard.starts_with("Refused") && heard.contains("just started");
        let mut answer = self.ask(epoch);
        while refused(&answer) {
            std::thread::sleep(Duration::from_millis(20));
            answer = self.ask(epoch);
        }
        assert_eq!(answer, format!("Granted {{ epoch: {epoch} }}"));
        self.hear("Bounds");
    }

    pub fn ask(&mut self, epoch: u64) -> String {
        self.say(&Message::Promote { epoch });
        self.hear("")
    }

    pub fn granted(&mut self, epoch: u64) {
        assert_eq!(self.hear("Granted"), format!("Granted {{ epoch: {epoch} }}"));
        self.hear("Bounds");
    }
}

pub fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < LIMIT, "{what} did not come");
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub fn connect_from(address: [u8; 4], to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((address, 0)).into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// The process of nsenter becomes the daemon.
pub fn daemon_pid(bed: &Bed) -> u32 {
    bed.daemon.as_ref().expect("a daemon").id()
}

pub fn limit_descriptors(pid: u32, soft: usize) {
    let limit = format!("--nofile={soft}:");
    let done = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status();
    assert!(done.unwrap().success());
}

/// Processor time that a process has used, in ticks of 10 ms.
pub fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

pub fn text(folder: &Path) -> String {
    let member = |name: &str, port: &str, last: u8| {
        format!(
            "[[member]]\nname = \"{name}\"\naddress = \"127.0.0.{last}:7701\"\ninterface = \"x\"\n\
             edge_port = \"{port}\"\nmac = \"02:00:00:00:00:0{last}\"\n"
        )
    };
    let folder = folder.display();
    format!(
        "[group]\nname = \"demo\"\nkey_file = \"demo.key\"\nservices = [\"10.9.0.100:6379\"]\n\
         run_dir = \"{folder}/run\"\nevents_dir = \"none\"\nrealtime = false\nheartbeat_ms = {HEARTBEAT_MS}\n\
         [edge]\nlisten = \"127.0.0.1:7700\"\nclients = [\"ec\"]\nstate_file = \"{folder}/epoch\"\n{}{}\
         [server]\ncommand = [\"true\"]\n",
        member("a", "ep", 2),
        member("b", "eb", 3)
    )
}

/// Runs a test on a thread inside the namespace, since the harness' threads are shared.
pub fn in_bed(name: &str, test: impl FnOnce(&mut Bed) + Send) {
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
