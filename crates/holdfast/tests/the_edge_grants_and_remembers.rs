//! The edge's daemon in a namespace of its own, with real eBPF on real
//! interfaces: who is granted, who is refused, and what survives kill -9.

use holdfast::channel::{Channel, ChannelError, Identity, Kind};
use holdfast::config::{Config, Role};
use holdfast::key::GroupKey;
use holdfast::status::{State, Status};
use holdfast_linux::netns;
use holdfast_wire::log::LOG_VERSION;
use holdfast_wire::message::{Message, VERSION};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(10);

/// Members here answer heartbeats only while they listen, and are silent after
/// three of these without an answer.
const HEARTBEAT_MS: u64 = 500;

struct Bed {
    name: String,
    folder: PathBuf,
    file: PathBuf,
    config: Config,
    daemon: Option<Child>,
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
        Self { name, folder, file, config, daemon: None }
    }

    fn start(&mut self) {
        // Not `ip netns exec`: it makes a mount namespace, which would take the
        // pinned maps with it.
        let child = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", self.name))
            .arg(env!("CARGO_BIN_EXE_holdfast"))
            .args(["run", "--role", "edge", "--config"])
            .arg(&self.file)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.daemon = Some(child);
        wait_for("the daemon", || self.ask("status").ok());
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
        let mut member = Member { channel, heard: Vec::new() };
        member.say(&Message::Hello {
            epoch: 0,
            version: VERSION,
            log_version: LOG_VERSION,
            group: "demo",
            member: name,
            world: Vec::new(),
        });
        member.hear("Hello");
        member.hear("Epoch");
        member
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
        let Self { channel, heard } = self;
        let mut beats = Vec::new();
        channel
            .recv(|message| match message {
                Message::Beat { number, .. } => beats.push(number),
                Message::Reach { .. } => {}
                _ => heard.push(format!("{message:?}")),
            })
            .unwrap();
        for number in beats {
            self.say(&Message::Beat { number, echo: number, executed: 0 });
        }
    }

    fn promote(&mut self, epoch: u64) {
        self.say(&Message::Promote { epoch });
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
        assert_eq!(bed.status().state, State::Unprotected);
        b.say(&Message::Promote { epoch: 2 });
        assert!(b.hear("Refused").contains("in step"));
        b.say(&Message::InStep { epoch: 1, yes: true });
        wait_for("protected", || (bed.status().state == State::Protected).then_some(()));
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
        wait_for("protected", || (bed.status().state == State::Protected).then_some(()));
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
fn a_hand_that_closed_the_edge_is_not_overruled_by_a_member() {
    in_bed("overruled", |bed| {
        let mut a = bed.member("a");
        a.promote(1);
        bed.ask("fence").unwrap();
        a.say(&Message::Promote { epoch: 1 });
        assert!(a.hear("Refused").contains("closed by hand"));
        assert_eq!(bed.status().state, State::Fenced);
    });
}

#[test]
fn an_edge_that_was_closed_by_hand_says_so_and_opens_again() {
    in_bed("hand", |bed| {
        let mut a = bed.member("a");
        a.promote(1);
        bed.ask("fence").unwrap();
        assert_eq!(bed.status().state, State::Fenced);
        bed.ask("unfence").unwrap();
        assert_eq!(bed.status().state, State::Unprotected);
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
        let mut newer = bed.member("a");
        let _newest = bed.member("a");
        let gone = wait_for("the older channel's end", || newer.channel.recv(|_| {}).err());
        assert!(matches!(gone, ChannelError::Closed | ChannelError::Io(_)), "{gone:?}");
    });
}
