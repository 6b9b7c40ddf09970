//! Who holds the ports that a daemon of this host, and its server, have to listen at. This
//! is only looked up, never tried: a running group is not touched.

use super::Finding;
use crate::config::spread::SpreadEdge;
use crate::config::{Arbiter, ChannelWay, Config, Member, Role};
use crate::leavings;
use holdfast_linux::listeners::{ListenerSocket, Listening};
use holdfast_linux::process;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// What a port is needed for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Channels; without the port the daemon does not start.
    Channel,
    /// Heartbeats; without the port, those of the channel remain.
    Datagrams,
    /// What the members of a pair without an edge say to each other, or ask a witness; without the
    /// port the daemon does not start.
    Lease,
    /// The coded channel of the members; without the port there is no channel.
    Tunnel,
    /// Clients come here, now or after a takeover.
    Service,
}

/// All listeners of this host, and the role's own processes.
struct Ports {
    tcp: Vec<Listening>,
    udp: Vec<Listening>,
    own: Vec<u32>,
}

/// Checks the ports of a pair's edge or member.
pub(super) fn of_pair(config: &Config, role: Role) -> Vec<Finding> {
    let member = match role {
        Role::Edge | Role::Witness => None,
        Role::Member(index) => config.members.get(index),
    };
    let name = config.role_name(role);
    let socket = config.admin_socket(role);
    let ports = match Ports::look(&config.group.run_dir, name, &socket) {
        Ok(ports) => ports,
        Err(error) => {
            let found = format!("the kernel does not tell who listens: {error}");
            return vec![Finding::warn("ports", found, "use a kernel with CONFIG_INET_DIAG")];
        }
    };
    let needs = match (role, config.arbiter.as_ref().and_then(Arbiter::witness)) {
        (Role::Witness, Some(at)) => vec![("arbiter.witness", at, Need::Lease)],
        _ => needs(config, member),
    };
    needs.into_iter().map(|(key, at, need)| ports.judge(key, at, need)).collect()
}

/// Checks the ports that a spread group's edge listens at.
pub(super) fn of_spread_edge(run_dir: &Path, socket: &Path, edge: &SpreadEdge) -> Finding {
    match Ports::look(run_dir, &edge.name, socket) {
        Ok(ports) => ports.judge("edge.listen", edge.listen, Need::Channel),
        Err(error) => {
            let found = format!("the kernel does not tell who listens: {error}");
            Finding::warn("ports", found, "use a kernel with CONFIG_INET_DIAG")
        }
    }
}

/// Who is where a daemon cannot listen, and the remedy, as a part of its error; empty where
/// nobody is found.
pub(crate) fn why_taken(at: SocketAddr) -> String {
    told_of(at, ListenerSocket::open().and_then(|mut kernel| kernel.listening()))
}

/// The same for datagrams.
pub(crate) fn why_taken_udp(at: SocketAddr) -> String {
    told_of(at, ListenerSocket::open().and_then(|mut kernel| kernel.bound_udp()))
}

/// The process of a daemon, by the name of its program, that hears heartbeats there.
pub(crate) fn daemon_heard_at(at: SocketAddr) -> Option<u32> {
    let all = ListenerSocket::open().and_then(|mut kernel| kernel.bound_udp()).unwrap_or_default();
    let own = program_of(std::process::id())?;
    let holders = all.iter().filter(|it| it.serves(at.ip(), at.port()));
    let mut holders = holders.filter_map(|it| process::holder_of_socket(it.inode));
    holders.find(|pid| program_of(*pid).is_some_and(|name| name == own))
}

/// The name of the program that a process runs, also of one whose file an upgrade has replaced.
fn program_of(pid: u32) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = path.file_name()?.to_str()?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name).to_owned())
}

fn told_of(at: SocketAddr, all: io::Result<Vec<Listening>>) -> String {
    let all = all.unwrap_or_default();
    let Some(it) = all.iter().find(|it| it.serves(at.ip(), at.port())) else {
        return String::new();
    };
    let holder = process::holder_of_socket(it.inode);
    let remedy = format!("{}, or choose another port in the file of every host", stop(holder));
    format!(": {} (remedy: {remedy})", who(it, holder))
}

fn needs(config: &Config, member: Option<&Member>) -> Vec<(&'static str, SocketAddr, Need)> {
    let edge = config.edge.as_ref().map(|edge| ("edge.listen", edge.listen));
    let own = member.map(|member| ("address", member.address)).or(edge);
    let both = |(key, at)| [(key, at, Need::Channel), (key, at, Need::Datagrams)];
    let mut all: Vec<_> = own.into_iter().flat_map(both).collect();
    if let Some(member) = member {
        if config.segment.is_some() {
            all.push(("address", crate::daemon::lease_address(member), Need::Lease));
        }
        if config.group.channel == ChannelWay::Coded {
            all.push(("address", crate::daemon::coded::address(member), Need::Tunnel));
        }
        let services = config.group.services.iter();
        all.extend(services.map(|service| ("services", *service, Need::Service)));
    }
    all
}

impl Ports {
    fn look(run_dir: &Path, name: &str, socket: &Path) -> io::Result<Self> {
        let mut kernel = ListenerSocket::open()?;
        let (tcp, udp) = (kernel.listening()?, kernel.bound_udp()?);
        let mut own = leavings::servers(run_dir, name, None);
        if let Ok(daemon) = UnixStream::connect(socket)
            && let Ok(pid) = process::peer(daemon.as_fd())
        {
            own.extend(process::family(pid));
        }
        Ok(Self { tcp, udp, own })
    }

    fn judge(&self, key: &str, at: SocketAddr, need: Need) -> Finding {
        let (all, kind) = match need {
            Need::Datagrams | Need::Lease | Need::Tunnel => (&self.udp, "UDP"),
            Need::Channel | Need::Service => (&self.tcp, "TCP"),
        };
        let shown = format!("{key} = {at} ({kind})");
        let mut own = false;
        for it in all.iter().filter(|it| it.port == at.port()) {
            let holder = process::holder_of_socket(it.inode);
            if holder.is_some_and(|pid| self.own.contains(&pid)) {
                own |= it.serves(at.ip(), at.port());
            } else if it.serves(at.ip(), at.port()) {
                return taken(&shown, it, holder, need);
            } else if need == Need::Service {
                return beside(&shown, it, holder);
            }
        }
        Finding::ok("port", format!("{shown}: {}", if own { "this daemon's own" } else { "free" }))
    }
}

fn taken(shown: &str, it: &Listening, holder: Option<u32>, need: Need) -> Finding {
    let who = who(it, holder);
    let stop = stop(holder);
    let found = format!("{shown} is taken: {who}");
    match need {
        Need::Channel | Need::Lease | Need::Tunnel => Finding::fail(
            "port",
            found,
            format!("{stop}, or choose another port in the file of every host"),
        ),
        Need::Service => Finding::fail("port", found, stop),
        Need::Datagrams => Finding::warn(
            "port",
            format!("{found}; heartbeats by datagrams are not heard"),
            format!("{stop}, or choose another port in the file of every host"),
        ),
    }
}

/// Reports a listener at another address of the same port, which is in the way of a
/// server that listens everywhere.
fn beside(shown: &str, it: &Listening, holder: Option<u32>) -> Finding {
    let who = who(it, holder);
    let found = format!("{shown}: {who}: a server that listens at all addresses could not");
    Finding::warn("port", found, stop(holder))
}

fn who(it: &Listening, holder: Option<u32>) -> String {
    let place = SocketAddr::new(it.address, it.port);
    match holder {
        Some(pid) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({}) is at {place}", name.trim_end())
        }
        None => format!("a process that cannot be seen from here is at {place}"),
    }
}

fn stop(holder: Option<u32>) -> String {
    let what = holder.map_or("it".to_owned(), |pid| format!("process {pid}"));
    format!("stop {what}, perhaps a service of the distribution (`systemctl disable --now NAME`)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;
    use std::net::{TcpListener, UdpSocket};

    fn ports(own: Vec<u32>) -> Ports {
        let mut kernel = ListenerSocket::open().expect("a socket");
        let (tcp, udp) = (kernel.listening().expect("TCP"), kernel.bound_udp().expect("UDP"));
        Ports { tcp, udp, own }
    }

    #[test]
    fn a_daemon_is_known_by_its_program() {
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let at = udp.local_addr().expect("an address");
        assert_eq!(daemon_heard_at(at), Some(std::process::id()));
        assert_eq!(daemon_heard_at(SocketAddr::new("127.0.0.2".parse().unwrap(), at.port())), None);
        drop(udp);
        let script = "import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                      s.bind(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True)\n\
                      sys.stdin.read()";
        let mut python = std::process::Command::new("python3");
        let python = python.args(["-c", script]).stdin(std::process::Stdio::piped());
        let mut stranger = python.stdout(std::process::Stdio::piped()).spawn().expect("python3");
        let mut port = String::new();
        let told = stranger.stdout.take().expect("a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(told), &mut port).expect("a line");
        let at = SocketAddr::from(([127, 0, 0, 1], port.trim().parse().expect("a port")));
        assert_eq!((daemon_heard_at(at), why_taken_udp(at).is_empty()), (None, false));
        // Its input ends when it is waited for.
        stranger.wait().expect("its end");
    }

    #[test]
    fn who_holds_a_port_is_named_unless_it_is_the_daemon_itself() {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = tcp.local_addr().expect("an address");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let heard_at = udp.local_addr().expect("an address");
        let me = std::process::id();
        let stranger = ports(Vec::new());
        for (need, verdict) in [(Need::Channel, Verdict::Fail), (Need::Service, Verdict::Fail)] {
            let found = stranger.judge("address", at, need);
            assert_eq!(found.verdict, verdict, "{found:?}");
            assert!(found.found.contains(&format!("process {me} (")), "{found:?}");
            assert!(found.remedy.contains(&format!("stop process {me}")), "{found:?}");
        }
        let deaf = stranger.judge("address", heard_at, Need::Datagrams);
        assert_eq!(deaf.verdict, Verdict::Warn, "{deaf:?}");
        udp.connect("127.0.0.1:9").expect("connected");
        let deaf = ports(Vec::new()).judge("address", heard_at, Need::Lease);
        assert_eq!(deaf.verdict, Verdict::Fail, "it hears one sender only: {deaf:?}");
        assert!(why_taken_udp(heard_at).contains(&format!("process {me} (")));
        let own = ports(vec![me]).judge("address", at, Need::Channel);
        assert_eq!(own.verdict, Verdict::Ok, "{own:?}");
        assert!(own.found.contains("own"), "{own:?}");
        let elsewhere = SocketAddr::new("127.0.0.2".parse().expect("an address"), at.port());
        let beside = stranger.judge("services", elsewhere, Need::Service);
        assert_eq!(beside.verdict, Verdict::Warn, "{beside:?}");
        assert_eq!(stranger.judge("address", elsewhere, Need::Channel).verdict, Verdict::Ok);
        let told = why_taken(at);
        assert!(
            told.contains(&format!("process {me} (")) && told.contains("remedy: stop"),
            "{told}"
        );
        drop(tcp);
        // What another test of this process forks has it open until that becomes another program.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !why_taken(at).is_empty() && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(why_taken(at), "");
        let free = ports(Vec::new()).judge("address", at, Need::Channel);
        assert_eq!(free.verdict, Verdict::Ok, "{free:?}");
    }
}
