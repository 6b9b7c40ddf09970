//! The channel between the members over a path that loses packets (`channel = "coded"`, decision 37):
//! a `holdfast-tunnel` beside each daemon carries its bytes, coded. The daemon that dials connects to
//! a port of its own host, where its tunnel listens; the other one's tunnel connects to its daemon.
//!
//! What the ends of the channel prove to each other is not changed by that: a tunnel has keys of its
//! own, derived of the same secret, so that strangers cannot disturb it.

use super::child::{self, Care, Child};
use crate::config::{ChannelWay, Config, Member};
use crate::key::{GroupKey, Keyring};
use holdfast_program::TUNNEL;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::{DirBuilder, File, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The tunnel's name, in its folder.
const NAME: &str = "channel";
/// Ports above a member's own, which its lease may have one above.
const PORTS_ABOVE: u16 = 2;
/// Redundancy per byte and share of late datagrams. A commit needs both directions, and waits for
/// each datagram before it, heartbeats too, some six of them: of a thousand one is late at most. There
/// are few bytes, for what clients send does not go this way.
const OVERHEAD_MAX: &str = "400%";
const LATE_MAX: &str = "0.02%";
/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long an answer may take: the tunnel waits for its peer's itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Time without an answer after which a tunnel is not believed to work any more.
const HUNG_AFTER: Duration = Duration::from_secs(15);
/// Time for which one that was up may not be before it is started anew: the channel then breaks, as
/// over TCP alone (`channel`, USER_TIMEOUT).
const GONE_AFTER: Duration = Duration::from_secs(3);
/// Most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// How long an end without its peer keeps to one of two secrets, by the member's place: they must not
/// change at once, or they would never meet.
const PATIENCE: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(9)];

/// Where a member's tunnel is reached by the other one's, by UDP.
#[must_use]
pub fn address(member: &Member) -> SocketAddr {
    member.port_above(PORTS_ABOVE)
}

/// Where a member keeps its tunnel's files.
#[must_use]
pub fn folder(run_dir: &Path, me: &str) -> PathBuf {
    run_dir.join(format!("{me}-channel"))
}

/// What keeps a channel from being coded on this host, and the remedy.
#[must_use]
pub fn lacks() -> Option<(String, String)> {
    let program = child::beside(Plan::PROGRAM);
    let what = format!("{} is missing, and channel = \"coded\" needs it", program.display());
    let remedy = "install it beside this program (`cargo build --release --bin holdfast-tunnel` makes \
                  it), or take channel out of the file of every host";
    (!program.exists()).then(|| (what, remedy.to_owned()))
}

/// The tunnel of this daemon's channel, for as long as this lives.
#[derive(Debug)]
pub struct Coded {
    _child: Option<Child>,
    door: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

/// What its tunnel has last said.
#[derive(Clone, Debug, Default)]
struct Seen {
    counters: Vec<(&'static str, u64)>,
    /// Why it is not up.
    waits: String,
}

impl Coded {
    /// Starts it, if the file says so.
    ///
    /// # Errors
    /// If its program is not there, with the remedy: there would be no channel.
    pub fn start(config: &Config, me: &Member, keyring: &Keyring) -> anyhow::Result<Option<Self>> {
        if config.group.channel != ChannelWay::Coded {
            return Ok(None);
        }
        if let Some((what, remedy)) = lacks() {
            anyhow::bail!("{what}\n  remedy: {remedy}");
        }
        let other = config.other(me);
        let place = config.members.iter().position(|it| it.name == me.name).unwrap_or(0);
        let plan = Plan::new(
            folder(&config.group.run_dir, &me.name),
            [me, other].map(|it| (it.name.clone(), address(it), it.address)),
            door(config, me),
            keyring.clone(),
            PATIENCE[place.min(1)],
        );
        let (door, seen) = (plan.door, Arc::clone(&plan.seen));
        Ok(Some(Self { _child: Child::start(plan), door, seen }))
    }

    /// Where the other member's daemon is reached, on this host.
    #[must_use]
    pub fn door(&self) -> SocketAddr {
        self.door
    }

    /// Why it does not reach the other member's tunnel, if it does not.
    #[must_use]
    pub fn waits(&self) -> Option<String> {
        Some(locked(&self.seen).waits.clone()).filter(|why| !why.is_empty())
    }

    /// Counters for the status, by name: whether the tunnel is up, what the path loses each way in
    /// thousandths, and what was sent for it, in bytes.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        locked(&self.seen).counters.clone()
    }
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    // Only ever replaced as a whole, also by whoever panics.
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An address of this host that nobody else has: 127.0.0.0/8 is all its own.
fn door(config: &Config, me: &Member) -> SocketAddr {
    let mut hasher = DefaultHasher::new();
    (&config.group.name, &config.group.run_dir, &me.name).hash(&mut hasher);
    let [a, b, c, ..] = hasher.finish().to_be_bytes();
    let ip = Ipv4Addr::new(127, a, b, c.clamp(1, 254));
    SocketAddr::from((ip, config.other(me).address.port()))
}

/// One end of the tunnel; of two things the first is this member's.
#[derive(Debug)]
struct Plan {
    folder: PathBuf,
    names: [String; 2],
    tunnels: [SocketAddr; 2],
    daemons: [SocketAddr; 2],
    door: SocketAddr,
    keyring: Keyring,
    patience: Duration,
    /// The secret that its keys are derived of, and whether the next one is the other's turn.
    spoken: Option<GroupKey>,
    takes_next: bool,
    /// When it was last up, and when it last answered, or began.
    up_at: Instant,
    heard_at: Instant,
    was_up: bool,
    /// Who was asked and has not answered, and what has come of the answer.
    asked: Option<(UnixStream, Vec<u8>)>,
    ask_at: Instant,
    seen: Arc<Mutex<Seen>>,
}

impl Care for Plan {
    const PROGRAM: &'static str = TUNNEL;
    const WITHOUT: &'static str = "the members' channel is not there (channel = \"coded\")";
    const PAUSE_MAX: Duration = Duration::from_secs(2);
    /// It says goodbye, and resets what it carries.
    const END: libc::c_int = libc::SIGQUIT;

    fn is_due(&mut self) -> bool {
        // One that has ended is not up.
        self.forget("its program has ended");
        true
    }

    fn spawn(&mut self) -> io::Result<Process> {
        self.clear();
        let secret = self.choose();
        self.write(&secret)?;
        self.spoken = Some(secret);
        let now = Instant::now();
        (self.up_at, self.heard_at, self.was_up) = (now, now, false);
        let mut command = Command::new(child::beside(Self::PROGRAM));
        command.arg("up").arg("--config").arg(self.file());
        command.arg("--with-parent").arg(std::process::id().to_string());
        command.env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
    }

    fn look(&mut self) -> bool {
        self.ask();
        let secrets = self.keyring.with(&self.names[1]);
        if !secrets.iter().any(|it| Some(it) == self.spoken.as_ref()) {
            return false;
        }
        let is_gone = self.was_up && self.up_at.elapsed() > GONE_AFTER;
        let is_hung = self.heard_at.elapsed() > HUNG_AFTER;
        // One of two hosts may be a step ahead in a change of keys.
        let is_alone = secrets.iter().count() > 1 && self.up_at.elapsed() > self.patience;
        self.takes_next |= is_alone;
        !(is_gone || is_hung || is_alone)
    }

    fn clear(&mut self) {
        let _absent = std::fs::remove_dir_all(&self.folder);
    }
}

impl Plan {
    /// An end that has not begun. Of each host: its name, and where its tunnel and its daemon are
    /// reached.
    fn new(
        folder: PathBuf,
        [own, other]: [(String, SocketAddr, SocketAddr); 2],
        door: SocketAddr,
        keyring: Keyring,
        patience: Duration,
    ) -> Self {
        let now = Instant::now();
        Self {
            folder,
            names: [own.0, other.0],
            tunnels: [own.1, other.1],
            daemons: [own.2, other.2],
            door,
            keyring,
            patience,
            spoken: None,
            takes_next: false,
            up_at: now,
            heard_at: now,
            was_up: false,
            asked: None,
            ask_at: now,
            seen: Arc::default(),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.join(format!("{NAME}.toml"))
    }

    fn key_file(&self) -> PathBuf {
        self.folder.join(format!("{NAME}.key"))
    }

    /// The secret to speak with: the one before as long as it counts, or when it was in vain the one
    /// behind it.
    fn choose(&mut self) -> GroupKey {
        let secrets = self.keyring.with(&self.names[1]);
        let at = secrets.iter().position(|it| Some(it) == self.spoken.as_ref());
        let next = usize::from(std::mem::take(&mut self.takes_next));
        let at = at.map_or(0, |at| (at + next) % secrets.iter().count().max(1));
        secrets.iter().nth(at).unwrap_or_else(|| secrets.first()).clone()
    }

    /// Makes the tunnel's folder, its file and its key.
    fn write(&self, secret: &GroupKey) -> io::Result<()> {
        let shown = self.folder.display();
        self.write_files(secret).map_err(|it| io::Error::new(it.kind(), format!("{shown}: {it}")))
    }

    fn write_files(&self, secret: &GroupKey) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        std::fs::set_permissions(&self.folder, Permissions::from_mode(0o700))?;
        let mut options = File::options();
        let mut key = options.write(true).create_new(true).mode(0o600).open(self.key_file())?;
        key.write_all(secret.tunnel_key(&self.names[0]).to_text().as_bytes())?;
        std::fs::write(self.file(), self.text(secret))
    }

    /// The tunnel's file.
    fn text(&self, secret: &GroupKey) -> String {
        let [own, other] = self.daemons;
        let [listen, peer] = self.tunnels;
        let key = secret.tunnel_key(&self.names[1]).public();
        let mut text = String::new();
        let _ = write!(
            text,
            "[tunnel]\nkey = \"{NAME}.key\"\nlisten = \"{listen}\"\nmode = \"forward\"\nrun_dir = \".\"\n\
             forward = [\"tcp {door} -> {other}\"]\nallow = [\"tcp {own}\"]\n\
             overhead_max = \"{OVERHEAD_MAX}\"\nlate_max = \"{LATE_MAX}\"\n\
             \n[peer]\nkey = \"{key}\"\naddress = \"{peer}\"\n\
             \n[class.now]\nmatch = [\"tcp\"]\n",
            door = self.door,
        );
        text
    }

    /// Asks the tunnel how it is, and hears what it answers, without waiting.
    fn ask(&mut self) {
        let now = Instant::now();
        if self.asked.is_none() && now >= self.ask_at {
            self.ask_at = now + ASK_EVERY;
            self.asked = question(&self.folder).ok().map(|stream| (stream, Vec::new()));
        }
        let Some((stream, answer)) = &mut self.asked else { return };
        let room = ANSWER_BYTES_MAX.saturating_sub(answer.len() as u64);
        match stream.take(room).read_to_end(answer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if now < self.ask_at + ANSWER_WITHIN {
                    return;
                }
                self.forget("it does not answer");
            }
            Ok(_) => self.hear(),
            Err(_) => {}
        }
        self.asked = None;
    }

    fn hear(&mut self) {
        let Some((_, answer)) = &self.asked else { return };
        let Ok(said) = serde_json::from_slice::<Value>(answer) else { return };
        // It has been read: nobody else is to find it there.
        let _gone = std::fs::remove_file(self.key_file());
        self.heard_at = Instant::now();
        if said["state"] != "up" {
            let why = said["reason"].as_str().unwrap_or_default().to_owned();
            return self.forget(&why);
        }
        let mut seen = locked(&self.seen);
        if !seen.waits.is_empty() {
            tracing::info!("the members' channel has its tunnel");
        }
        *seen = Seen { counters: counters(&said, true), waits: String::new() };
        (self.was_up, self.up_at) = (true, self.heard_at);
    }

    /// Notes that it is not up.
    fn forget(&self, why: &str) {
        let mut seen = locked(&self.seen);
        if seen.waits != why {
            tracing::info!("the tunnel of the members' channel waits: {why}");
        }
        *seen = Seen { counters: counters(&Value::Null, false), waits: why.to_owned() };
    }
}

fn question(folder: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(folder.join(format!("tunnel-{NAME}.sock")))?;
    stream.set_nonblocking(true)?;
    stream.write_all(b"status\n")?;
    Ok(stream)
}

fn counters(said: &Value, is_up: bool) -> Vec<(&'static str, u64)> {
    let number = |place: &str| said.pointer(place).and_then(Value::as_f64).unwrap_or(0.0);
    vec![
        ("up", u64::from(is_up)),
        ("round_trip_us", (number("/machine/rtt_ms") * 1e3) as u64),
        ("sending_loss_permille", (number("/machine/sending/loss") * 1e3) as u64),
        ("receiving_loss_permille", (number("/machine/receiving/loss") * 1e3) as u64),
        ("redundant_bytes", number("/machine/sending/redundant_bytes") as u64),
        ("resent_bytes", number("/machine/sending/retransmitted_bytes") as u64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(me: usize) -> Plan {
        let at = |last: u8, port: u16| SocketAddr::from(([10, 0, 0, last], port));
        let mut hosts = [("a", 1), ("b", 2)]
            .map(|(name, last)| (name.to_owned(), at(last, 7003), at(last, 7001)));
        hosts.rotate_left(me);
        Plan::new(
            std::env::temp_dir().join(format!("hf-coded-{}-{me}", std::process::id())),
            hosts,
            "127.1.2.3:7001".parse().unwrap(),
            Keyring::shared(vec![GroupKey::parse(&"5".repeat(64)).unwrap()]),
            PATIENCE[me],
        )
    }

    #[test]
    fn each_end_knows_the_others_public_key_and_both_differ() {
        let secret = GroupKey::parse(&"7".repeat(64)).unwrap();
        let texts = [plan(0).text(&secret), plan(1).text(&secret)];
        let own = ["a", "b"].map(|name| secret.tunnel_key(name).public().to_string());
        assert_ne!(own[0], own[1]);
        assert!(texts[0].contains(&own[1]) && texts[1].contains(&own[0]));
        assert!(texts[0].contains("forward = [\"tcp 127.1.2.3:7001 -> 10.0.0.2:7001\"]"));
        assert!(texts[1].contains("allow = [\"tcp 10.0.0.2:7001\"]"));
    }

    #[test]
    fn its_key_is_its_owners_alone_and_goes_with_it() {
        let mut plan = plan(0);
        plan.write(&GroupKey::parse(&"7".repeat(64)).unwrap()).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&plan.folder), 0o700);
        assert_eq!(mode(&plan.folder.join("channel.key")), 0o600);
        plan.clear();
        assert!(!plan.folder.exists());
    }

    #[test]
    fn a_secret_that_counts_no_more_is_given_up_and_of_two_the_other_is_tried() {
        let [one, two] = ["5", "6"].map(|it| GroupKey::parse(&it.repeat(64)).unwrap());
        let long_ago = || Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let mut plan = plan(0);
        plan.spoken = Some(two.clone());
        assert!(!plan.look(), "it is not in the ring");
        assert_eq!(plan.choose(), one);
        plan.spoken = Some(one.clone());
        assert!(plan.look());
        plan.up_at = long_ago();
        assert!(plan.look(), "there is no other one");
        // The second of three reloads: the one that is spoken with is the second now.
        plan.keyring.take_over(&Keyring::shared(vec![two.clone(), one.clone()]));
        assert!(!plan.look(), "the other one's turn");
        assert_eq!(plan.choose(), two);
        assert_eq!(plan.choose(), one, "as long as it was not tried in vain again");
    }

    #[test]
    fn a_tunnel_that_was_up_and_is_not_or_does_not_answer_is_started_anew() {
        let mut plan = plan(0);
        plan.spoken = Some(GroupKey::parse(&"5".repeat(64)).unwrap());
        let long_ago = Instant::now().checked_sub(GONE_AFTER * 2).unwrap();
        plan.up_at = long_ago;
        assert!(plan.look(), "it may wait for its peer as long as it likes");
        plan.was_up = true;
        assert!(!plan.look());
        plan.was_up = false;
        plan.heard_at = Instant::now().checked_sub(HUNG_AFTER * 2).unwrap();
        assert!(!plan.look());
    }

    #[test]
    fn what_a_tunnel_says_is_counted() {
        let said = serde_json::json!({"machine": {"rtt_ms": 20.5, "sending": {"loss": 0.1}}});
        let counted = counters(&said, true);
        assert!(counted.contains(&("round_trip_us", 20_500)));
        assert!(counted.contains(&("sending_loss_permille", 100)));
        assert_eq!(counters(&Value::Null, false)[0], ("up", 0), "of another release");
    }
}
