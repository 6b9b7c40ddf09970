//! Whether the protected server listens where clients connect, or could do so after a takeover,
//! and whether it still makes progress.

use super::standstill::{Look, Stands, Standstill};
use holdfast_linux::listeners::{ListenerSocket, Listening, Place};
use holdfast_linux::process;
use std::collections::BTreeMap;
use std::fs::ReadDir;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time between two checks of a server that does not listen everywhere yet.
const LOOK_SOON: Duration = Duration::from_millis(100);
/// Time between two checks of one that does.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Most descriptors of the server that are searched in one turn, so that heartbeats are not late.
const FDS_AT_ONCE: usize = 1024;

/// Most processes of a family that are looked at in one turn, likewise.
const PROCESSES_AT_ONCE: usize = 16;

/// Iterates over the descriptors (in /proc) of one process after the other.
type Search = std::iter::Flatten<std::vec::IntoIter<ReadDir>>;

/// The server that is checked.
#[derive(Clone, Copy)]
pub struct Watched {
    pub pid: u32,
    /// Whether it is a family of processes: listeners of its children count, too.
    pub is_family: bool,
    /// A number that changes whenever the server does anything, such as the position of its log;
    /// `None` if there is none.
    pub moved: Option<u64>,
}

impl Watched {
    fn descriptors(self) -> Search {
        let all = match self.is_family {
            true => process::family(self.pid),
            false => vec![self.pid],
        };
        let each = all.iter().filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).ok());
        each.collect::<Vec<_>>().into_iter().flatten()
    }
}

/// The search for a process of the server that somebody has stopped: some at each look.
#[derive(Default)]
struct Workers {
    /// Those of the family that have not been looked at since it was last listed.
    rest: Vec<u32>,
    /// The one that was found.
    stopped: Option<u32>,
}

impl Workers {
    /// The process that is stopped: the server's own, or one that runs the same program. Others
    /// are its clients' business: whoever stops an editor in a session of SSH may do so.
    fn stopped(&mut self, server: Watched) -> Option<u32> {
        if process::is_stopped(server.pid) {
            return Some(server.pid);
        }
        self.stopped = self.stopped.filter(|pid| process::is_stopped(*pid));
        if server.is_family && self.stopped.is_none() {
            if self.rest.is_empty() {
                self.rest = process::family(server.pid);
            }
            let first = self.rest.len().saturating_sub(PROCESSES_AT_ONCE);
            let program = |pid: u32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
            let is_one =
                |pid: &u32| process::is_stopped(*pid) && program(*pid) == program(server.pid);
            self.stopped = self.rest.drain(first..).find(is_one);
        }
        self.stopped
    }
}

/// The checks, and their latest findings.
pub struct Services {
    socket: ListenerSocket,
    look_at: Instant,
    /// Path in /proc of the server's descriptor of each service's listener, once found.
    known: BTreeMap<SocketAddr, PathBuf>,
    /// Searches for such a descriptor that are not finished.
    searches: BTreeMap<SocketAddr, Search>,
    /// Addresses at which the replica's server listened at the last check.
    places: Vec<Place>,
    /// Number of listeners in its table then.
    listed: usize,
    missing: Option<String>,
    workers: Workers,
    standstill: Standstill,
    stands: Option<Stands>,
}

impl Services {
    pub fn open(now: Instant) -> std::io::Result<Self> {
        let missing = Some("the server has not started yet".to_owned());
        let socket = ListenerSocket::open()?;
        Ok(Self {
            socket,
            look_at: now,
            known: BTreeMap::new(),
            searches: BTreeMap::new(),
            places: Vec::new(),
            listed: 0,
            missing,
            workers: Workers::default(),
            standstill: Standstill::default(),
            stands: None,
        })
    }

    /// Why the server does not serve every service; `None`: it does.
    pub fn missing(
        &mut self,
        services: &[SocketAddr],
        server: Watched,
        now: Instant,
    ) -> Option<&str> {
        if now >= self.look_at {
            let mut queued = 0;
            self.missing = match self.socket.listening() {
                Ok(all) => {
                    let serve = |it: &&Listening| {
                        services.iter().any(|service| it.serves(service.ip(), service.port()))
                    };
                    queued = all.iter().filter(serve).map(|it| it.queued).sum();
                    services.iter().find_map(|service| self.lacks(&all, *service, server))
                }
                Err(error) => Some(format!("the kernel does not tell who listens: {error}")),
            };
            let stopped = self.workers.stopped(server);
            let look = Look { stopped, queued, moved: server.moved };
            self.stands = self.standstill.judge(look, now);
            let pause = if self.missing.is_some() { LOOK_SOON } else { LOOK_EVERY };
            self.look_at = now + pause;
        }
        self.missing.as_deref()
    }

    /// How the server stood still at the last check by [`Self::missing`]; `None`: it did not.
    pub fn stands(&self) -> Option<Stands> {
        self.stands
    }

    /// Whether it is not known yet if the server itself listens: the search through its
    /// descriptors takes several turns.
    pub fn is_searching(&self) -> bool {
        !self.searches.is_empty()
    }

    /// Why a replica could not listen after a takeover, because another process holds the address
    /// of a service, or of one of its own `listeners`; `None`: it could. The table lists `listed`
    /// of them; a change of that number makes the check due at once.
    pub fn taken(
        &mut self,
        services: &[SocketAddr],
        (listed, listeners): (usize, impl FnOnce() -> Vec<Place>),
        now: Instant,
    ) -> Option<&str> {
        if now >= self.look_at || listed != self.listed {
            self.look_at = now + LOOK_EVERY;
            (self.listed, self.places) = (listed, listeners());
            let in_the_way = |it: &Listening| {
                services.iter().any(|s| it.serves(s.ip(), s.port()))
                    || self.places.iter().any(|place| it.bars(place))
            };
            self.missing = match self.socket.listening() {
                Ok(all) => all.into_iter().find(in_the_way).map(|it| {
                    let place = SocketAddr::new(it.address, it.port);
                    format!("another process of this host listens at {place}: after a takeover the server could not")
                }),
                Err(error) => Some(format!("the kernel does not tell who listens: {error}")),
            };
        }
        self.missing.as_deref()
    }

    /// Whether the replica's server listened anywhere at the last check by [`Self::taken`].
    pub fn is_listening(&self) -> bool {
        !self.places.is_empty()
    }

    fn lacks(&mut self, all: &[Listening], service: SocketAddr, server: Watched) -> Option<String> {
        let serve = |it: &&Listening| it.serves(service.ip(), service.port());
        let names: Vec<PathBuf> =
            all.iter().filter(serve).map(|it| format!("socket:[{}]", it.inode).into()).collect();
        if names.is_empty() {
            self.known.remove(&service);
            self.searches.remove(&service);
            return Some(format!("the server does not listen at {service} yet"));
        }
        let is_one = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| names.contains(&to));
        if self.known.get(&service).is_some_and(is_one) {
            return None;
        }
        let other = Some(format!("another process than the protected server listens at {service}"));
        let begun = self.searches.remove(&service);
        let mut search = begun.unwrap_or_else(|| server.descriptors());
        let mut looked_at = 0;
        let some = search.by_ref().take(FDS_AT_ONCE).flatten().inspect(|_| looked_at += 1);
        if let Some(path) = some.map(|entry| entry.path()).find(is_one) {
            self.known.insert(service, path);
            return None;
        }
        if looked_at == FDS_AT_ONCE {
            self.searches.insert(service, search);
            return Some(format!("who listens at {service} is still looked for"));
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_linux::limits;
    use std::fs::File;
    use std::net::TcpListener;
    use std::os::fd::AsFd as _;
    use std::process::{Child, Command};

    #[test]
    fn a_listener_behind_many_descriptors_is_found_in_several_turns() {
        let most = limits::raise_open_files(4096).expect("a limit");
        assert!(most >= 4096, "{most} descriptors; run the tests as root");
        let many: Vec<File> =
            (0..3 * FDS_AT_ONCE).map(|_| File::open("/dev/null").expect("a file")).collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let service = [listener.local_addr().expect("an address")];
        let watched = |pid| Watched { pid, is_family: false, moved: None };
        let (mut now, own) = (Instant::now(), watched(std::process::id()));
        let mut services = Services::open(now).expect("a socket");
        let first = services.missing(&service, own, now).map(str::to_owned);
        assert!(first.is_some_and(|why| why.contains("looked for")));
        let mut turns = 1;
        while services.missing(&service, own, now).is_some() {
            (now, turns) = (now + LOOK_SOON, turns + 1);
            assert!(turns < 10);
        }
        drop(many);
        // Process 1 has none of our sockets.
        let mut others = Services::open(now).expect("a socket");
        let why = others.missing(&service, watched(1), now).map(str::to_owned);
        assert!(why.is_some_and(|why| why.contains("another process")));
    }

    /// A shell that ends with its children, whatever becomes of the test.
    struct Shell(Child);

    impl Drop for Shell {
        fn drop(&mut self) {
            process::kill_descendants(self.0.id());
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_stopped_worker_is_found_and_no_other_program() {
        let script = "(while :; do sleep 0.05; done) & (sleep 60; true) & wait";
        let Shell(leader) =
            &Shell(Command::new("sh").args(["-c", script]).spawn().expect("a shell"));
        let server = Watched { pid: leader.id(), is_family: true, moved: None };
        let until = Instant::now() + Duration::from_secs(10);
        let is_sleep = |pid: &u32| {
            let program = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            program.is_ok_and(|program| program.trim() == "sleep")
        };
        // A child is a shell until it has become `sleep`.
        let (worker, sleeper) = loop {
            let family = process::family(server.pid);
            assert!(Instant::now() < until, "{family:?}");
            let [_, worker, other, _, _, ..] = family[..] else { continue };
            if let Some(long) = process::family(other).into_iter().skip(1).find(is_sleep) {
                break (worker, long);
            }
        };
        let send = |pid: u32, number| {
            let process = process::pidfd_open(pid).expect("it lives");
            process::signal(process.as_fd(), number).expect("sent");
        };
        let mut workers = Workers::default();
        let mut becomes = |stopped: Option<u32>| {
            while workers.stopped(server) != stopped {
                assert!(Instant::now() < until, "{stopped:?} was expected");
            }
        };
        send(sleeper, libc::SIGSTOP);
        while !process::is_stopped(sleeper) {
            assert!(Instant::now() < until, "it stops");
        }
        (0..100).for_each(|_| becomes(None));
        for pid in [worker, server.pid] {
            send(pid, libc::SIGSTOP);
            becomes(Some(pid));
            send(pid, libc::SIGCONT);
            becomes(None);
        }
    }
}
