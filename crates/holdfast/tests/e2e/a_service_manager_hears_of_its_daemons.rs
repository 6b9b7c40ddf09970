//! A service manager, as systemd is one, hears that a daemon is ready, its state, that its loop
//! turns, and that it is stopping. What the daemon starts does not speak for it.

use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time after which a loop that was not told of counts as hung.
const WATCHDOG: Duration = Duration::from_secs(2);

/// A manager's end.
struct Manager(UnixDatagram);

impl Manager {
    fn listen(place: &Path) -> Self {
        let socket = UnixDatagram::bind(place).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time");
        Self(socket)
    }

    fn next(&self) -> Option<String> {
        let mut buffer = [0; 4096];
        let len = self.0.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
    }

    /// The first words that contain these, and whatever came before them.
    fn hears(&self, what: &str) -> (String, Vec<String>) {
        let (mut found, mut before) = (None, Vec::new());
        world::wait_until(what, || {
            match self.next() {
                Some(words) if words.contains(what) => found = Some(words),
                Some(words) => before.push(words),
                None => {}
            }
            found.is_some()
        });
        (found.unwrap_or_default(), before)
    }

    /// Makes room for what comes next: the kernel keeps few words for who does not listen.
    fn clear(&self) {
        while self.next().is_some() {}
    }

    /// Whether nothing comes for longer than a loop may be silent.
    fn misses_the_loop(&self) -> bool {
        self.clear();
        let until = Instant::now() + WATCHDOG + Duration::from_millis(200);
        std::iter::from_fn(|| (Instant::now() < until).then(|| self.next())).all(|it| it.is_none())
    }
}

#[test]
fn from_their_start_to_their_end() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    // One that leaves its environment where it is; redis writes its title over it.
    let recipe =
        |role| Recipe::prepare(Program::Memcached1, testbed.host(role), 0).expect("a folder");
    let [recipe, _] = [Role::Primary, Role::Backup].map(recipe);
    let place = testbed.host(Role::Edge).outside().join("manager");
    let manager = Manager::listen(&place);
    let env = [
        ("NOTIFY_SOCKET", place.display().to_string()),
        ("WATCHDOG_USEC", WATCHDOG.as_micros().to_string()),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let options = GroupOptions { env, alone_after_s: Some(1), ..GroupOptions::default() };
    let mut group = Group::prepare(&testbed, &recipe, &options).expect("folders");

    // A member that waits for its edge has started all the same.
    group.start_daemon(Role::Primary).expect("a daemon");
    let (ready, before) = manager.hears("READY=1");
    assert!(ready.contains("STATUS=no role a, waiting: the edge"), "{ready}");
    assert!(before.iter().all(|words| words == "WATCHDOG=1"), "{before:?}");
    manager.hears("WATCHDOG=1");
    // The loop that hangs is told of no more, whatever other threads do.
    group.signal_daemon(Role::Primary, Signal::STOP).expect("a daemon");
    assert!(manager.misses_the_loop());
    group.resume_daemon(Role::Primary).expect("it goes on");
    manager.hears("WATCHDOG=1");

    group.start_daemon(Role::Edge).expect("a daemon");
    let (ready, _) = manager.hears("READY=1");
    assert!(ready.contains("STATUS=edge edge, "), "{ready}");
    manager.hears("STATUS=primary a, ");
    let server = group.server_pid(Role::Primary).expect("a server");
    let mut environ = String::new();
    // One that is just being started has none yet.
    world::wait_until("the server's environment", || {
        let read = std::fs::read(format!("/proc/{server}/environ")).expect("a process");
        environ = String::from_utf8_lossy(&read).into_owned();
        environ.contains("HOLDFAST_SHIM=")
    });
    assert!(!environ.contains("WATCHDOG_"), "{environ}");
    assert!(!environ.contains("NOTIFY_SOCKET"), "{environ}");

    manager.clear();
    group.stop_daemon(Role::Edge, Signal::TERM).expect("it ends");
    manager.hears("STOPPING=1");
    manager.clear();
    group.stop_daemon(Role::Primary, Signal::TERM).expect("it ends");
    manager.hears("STOPPING=1");
    manager.clear();
    assert!(manager.misses_the_loop());
}
