//! `holdfast init` on real sockets: it listens, and waits for two guests.

use super::draft::{HostRole, Wish};
use super::facts::{Facts, links};
use super::files::Places;
use super::meeting::{Code, Host, Lack, Output};
use super::neighbours::Neighbours;
use super::party::Party;
use super::ways::default_route;
use super::{InitError, PORT, Told, finish};
use crate::key::PublicKey;
use crate::poll::{Interest, Poll};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const LISTENER: u64 = u64::MAX - 1;
/// Most connections taken in one turn.
const TAKEN_PER_TURN: usize = 16;
/// Most connections that are kept only so that the other end reads why it was refused.
const CLOSING_MAX: usize = 16;
/// Most bytes read of a connection in one turn.
const READ_BYTES: usize = 16 << 10;
/// Time in which whoever was refused has read why.
const LINGER: Duration = Duration::from_secs(1);
/// Time in which the guests say that they have written.
const WRITE: Duration = Duration::from_secs(10);
/// Time after which a host that is out of descriptors is asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that the kernel keeps until they are taken.
const BACKLOG: i32 = 64;

/// What `init` was asked for.
#[derive(Clone, Debug)]
pub struct Begin {
    pub wish: Wish,
    /// Where to listen; without it, at every address.
    pub listen: Option<IpAddr>,
    pub port: u16,
    /// Where file and key go.
    pub directory: PathBuf,
    /// Whether files that are there are replaced.
    pub force: bool,
    /// How long guests are waited for.
    pub timeout: Duration,
}

/// The group that was made.
#[derive(Clone, Debug)]
pub struct Made {
    pub file: PathBuf,
    pub key: PathBuf,
    /// Names and addresses.
    pub members: Vec<(String, IpAddr)>,
    /// Members of which nobody knows whether they have written.
    pub unconfirmed: Vec<String>,
    /// The public half of this host's own key; `None` where all hosts have the same.
    pub public: Option<PublicKey>,
}

/// The sockets of a meeting.
struct Room {
    listener: TcpListener,
    poll: Poll,
    streams: BTreeMap<u64, Stream>,
    host: Host,
}

struct Stream {
    socket: TcpStream,
    /// The other end's address, and this one's.
    ends: (IpAddr, IpAddr),
    out: Vec<u8>,
    /// Whether anything was ever said to the other end.
    spoken: bool,
    /// When it is closed, whatever the other end does; only what was said is still sent.
    closes_at: Option<Instant>,
}

/// Makes a group: tells `waits` once where the others may come and with which code, then `tell`
/// what happens, until the files are written on all three hosts.
///
/// # Errors
/// Why there is no group; then nothing was written here.
pub fn begin(
    asked: &Begin,
    waits: impl FnOnce(SocketAddr, &Code),
    tell: &mut dyn FnMut(Told),
) -> Result<Made, InitError> {
    let places = Places::new(&asked.directory, &asked.wish.name, asked.force);
    asked.wish.check(&places.file).map_err(InitError::Config)?;
    if let Some(lack) = places.occupied() {
        return Err(InitError::Usage(lack));
    }
    if let Some(lack) = finish::in_use(&asked.wish.name, &places.file) {
        return Err(InitError::Misfit(lack));
    }
    check_edge(&asked.wish)?;
    let address = reached_at(asked)?;
    let own = Facts::gather(address, None, &asked.directory, &asked.wish.name)?;
    check_neighbours(asked, &own)?;
    let mut party = Party::new(&asked.wish, &places, own)?;
    let code = Code::generate()?;
    let mut room = Room::open(asked, code.clone())?;
    if asked.wish.host == HostRole::Edge
        && let Some(about) = party.own().outside(&asked.wish.services, None)
    {
        tell(Told::warning(&party.own().host, &about));
    }
    waits(SocketAddr::from((address, room.listener.local_addr()?.port())), &code);
    let until = Instant::now() + asked.timeout;
    let mut written_until = None;
    while !party.is_over() {
        let limit = written_until.unwrap_or(until);
        if Instant::now() >= limit {
            break;
        }
        room.turn(limit)?;
        room.answer(&mut party, tell)?;
        if party.has_written() && written_until.is_none() {
            written_until = Some(Instant::now() + WRITE);
        }
    }
    if !party.has_written() {
        let why = nobody_came(&party, asked.timeout);
        party.dismiss(&mut room.host, &why);
        room.leave();
        return Err(InitError::Unreachable(why));
    }
    room.leave();
    let (members, unconfirmed, public) = (party.members(), party.unconfirmed(), party.public());
    Ok(Made { file: places.file, key: places.key, members, unconfirmed, public })
}

fn nobody_came(party: &Party<'_>, timeout: Duration) -> Lack {
    let there = party.names();
    let who = match &there[..] {
        [] => "nobody has".to_owned(),
        some => format!("only {} has", some.join(", ")),
    };
    Lack::new(
        format!("{who} joined within {} s; nothing was written", timeout.as_secs()),
        "say init again, and join on the two other hosts; they have to reach this one at the TCP port \
         that init names",
    )
}

/// An edge without an interface for clients is not worth waiting with.
fn check_edge(wish: &Wish) -> Result<(), InitError> {
    let links = links()?;
    if let Some(bad) = wish.clients.iter().find(|name| !links.iter().any(|it| it.name == **name)) {
        let names: Vec<&str> = links.iter().map(|it| it.name.as_str()).collect();
        return Err(InitError::Usage(Lack::new(
            format!("this host has no Ethernet interface {bad} that is up"),
            format!("--clients with one of: {}", names.join(", ")),
        )));
    }
    if wish.host == HostRole::Edge && links.iter().filter(|it| !it.networks.is_empty()).count() < 2
    {
        return Err(InitError::Misfit(Lack::new(
            "this host has one network, and an edge stands between two: that of the clients and that \
             of the members",
            "say init on the host in front of the members, or leave --edge out: then this one is the \
             witness of two members on one segment",
        )));
    }
    Ok(())
}

/// What this host has already must not be what the group is to have: nobody is waited for then.
fn check_neighbours(asked: &Begin, own: &Facts) -> Result<(), Lack> {
    let Wish { services, clients, host, .. } = &asked.wish;
    let neighbours = Neighbours::of(&asked.directory, &asked.wish.name);
    let outward = || default_route(services.iter().all(SocketAddr::is_ipv6));
    let outer = match host {
        HostRole::Witness => Vec::new(),
        HostRole::Edge if clients.is_empty() => outward().into_iter().collect(),
        HostRole::Edge => clients.clone(),
    };
    let outer: Vec<&str> = outer.iter().map(String::as_str).collect();
    let lack = neighbours.with_service(services);
    let lack = lack.or_else(|| neighbours.with_address(services, own));
    lack.or_else(|| neighbours.with_interface(&outer)).map_or(Ok(()), Err)
}

/// The address of this host that the others are told: the one asked for, or that in the service's
/// network, where they most likely are, or that of the way out.
fn reached_at(asked: &Begin) -> Result<IpAddr, InitError> {
    if let Some(address) = asked.listen {
        return Ok(address);
    }
    let all: Vec<_> = links()?.into_iter().flat_map(|it| it.networks).collect();
    let services = || asked.wish.services.iter().map(SocketAddr::ip);
    let beside = services().find_map(|it| all.iter().find(|net| net.has(it)));
    let outward = || super::ways::source().filter(|it| all.iter().any(|net| net.address == *it));
    let found = beside.map(|it| it.address).or_else(outward);
    found.or_else(|| all.first().map(|it| it.address)).ok_or_else(|| {
        InitError::Misfit(Lack::new(
            "this host has no address at which the others could reach it",
            "give one of its interfaces an address, and set it up",
        ))
    })
}

impl Room {
    fn open(asked: &Begin, code: Code) -> Result<Self, InitError> {
        let listener = listen(asked.listen, asked.port).map_err(|error| unheard(asked, &error))?;
        listener.set_nonblocking(true)?;
        let poll = Poll::new()?;
        poll.add(&listener, LISTENER, Interest::Read)?;
        let host = Host::new(code, Instant::now());
        Ok(Self { listener, poll, streams: BTreeMap::new(), host })
    }

    /// Waits until something happens, and takes it in.
    fn turn(&mut self, limit: Instant) -> io::Result<()> {
        let closing = self.streams.values().filter_map(|it| it.closes_at).min();
        let due = self.host.deadline().min(limit).min(closing.unwrap_or(limit));
        let ready: Vec<u64> = self.poll.wait(Some(due))?.iter().map(|it| it.token).collect();
        for token in ready {
            match token {
                LISTENER => self.take_connections(),
                id => self.read(id),
            }
        }
        let now = Instant::now();
        self.host.tick(now);
        self.streams.retain(|_, it| it.closes_at.is_none_or(|at| now < at));
        Ok(())
    }

    /// Has the party answer what happened, and sends what comes of it.
    fn answer(
        &mut self,
        party: &mut Party<'_>,
        tell: &mut dyn FnMut(Told),
    ) -> Result<(), InitError> {
        let mut result = Ok(());
        while let Some(event) = self.host.event() {
            let streams = &self.streams;
            let ends = |id: u64| streams.get(&id).map(|it| it.ends);
            result = result.and(party.hear(event, &mut self.host, ends, tell));
        }
        self.send();
        if result.is_err() {
            self.leave();
        }
        result
    }

    fn take_connections(&mut self) {
        for _ in 0..TAKEN_PER_TURN {
            match self.listener.accept() {
                Ok((socket, from)) => self.take_connection(socket, from),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                Err(_) => return std::thread::sleep(PAUSE),
            }
        }
    }

    fn take_connection(&mut self, socket: TcpStream, from: SocketAddr) {
        // It is gone already, or this host cannot wait for it.
        let Ok(local) = socket.local_addr() else { return };
        if socket.set_nonblocking(true).is_err() || socket.set_nodelay(true).is_err() {
            return;
        }
        let ends = (from.ip().to_canonical(), local.ip().to_canonical());
        let id = self.host.came(ends.0, Instant::now());
        if self.poll.add(&socket, id, Interest::Read).is_err() {
            return self.host.gone(id);
        }
        let stream = Stream { socket, ends, out: Vec::new(), spoken: false, closes_at: None };
        self.streams.insert(id, stream);
    }

    fn read(&mut self, id: u64) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.flush();
        let mut buffer = [0; READ_BYTES];
        let gone = match stream.socket.read(&mut buffer) {
            Ok(0) => true,
            Ok(len) => {
                // Whoever was refused is read on, so that the kernel does not cut off why.
                if stream.closes_at.is_none() {
                    self.host.take(id, &buffer[..len], Instant::now());
                }
                false
            }
            Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        if gone {
            self.host.gone(id);
            self.streams.remove(&id);
        }
    }

    /// Sends what the machine wants to be sent.
    fn send(&mut self) {
        while let Some(output) = self.host.output() {
            match output {
                Output::Send(id, bytes) => {
                    let Some(stream) = self.streams.get_mut(&id) else { continue };
                    stream.out.extend(bytes);
                    stream.spoken = true;
                    stream.flush();
                }
                Output::Close(id) => self.close(id),
            }
        }
        for (id, stream) in &self.streams {
            let wanted = if stream.out.is_empty() { Interest::Read } else { Interest::Both };
            let _as_before = self.poll.modify(&stream.socket, *id, wanted);
        }
    }

    /// Closes a connection, at once or when the other end has had time to read what was said.
    fn close(&mut self, id: u64) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !stream.spoken {
            self.streams.remove(&id);
            return;
        }
        stream.closes_at = Some(Instant::now() + LINGER);
        stream.flush();
        let closing = || self.streams.iter().filter_map(|(id, it)| Some((it.closes_at?, *id)));
        if closing().count() > CLOSING_MAX
            && let Some((_, oldest)) = closing().min()
        {
            self.streams.remove(&oldest);
        }
    }

    /// Lets everybody read what was said to them last.
    fn leave(&mut self) {
        self.send();
        let until = Instant::now() + LINGER;
        while !self.streams.is_empty() && Instant::now() < until {
            if self.turn(until).is_err() {
                return;
            }
            self.send();
        }
    }
}

impl Stream {
    /// Writes what the kernel takes.
    fn flush(&mut self) {
        while !self.out.is_empty() {
            match self.socket.write(&self.out) {
                Ok(len) if len > 0 => drop(self.out.drain(..len)),
                // Reading shows what is wrong.
                _ => return,
            }
        }
        if self.closes_at.is_some() {
            let _it_may_be_gone = self.socket.shutdown(Shutdown::Write);
        }
    }
}

/// Why nobody can be waited for.
fn unheard(asked: &Begin, error: &io::Error) -> InitError {
    match asked.listen.filter(|_| error.kind() == ErrorKind::AddrNotAvailable) {
        Some(address) => {
            let links = links().unwrap_or_default();
            let own: Vec<String> =
                links.iter().flat_map(|it| &it.networks).map(|it| it.address.to_string()).collect();
            InitError::Usage(Lack::new(
                format!("{address} is no address of this host"),
                format!("--listen with one of: {}; or leave it out", own.join(", ")),
            ))
        }
        None => InitError::Misfit(Lack::new(
            format!("nobody can be waited for at TCP port {}: {error}", asked.port),
            format!(
                "is another init under way? --listen with an address of this host and another port than {PORT}"
            ),
        )),
    }
}

/// Listens at an address, or at all of both families, or of IPv4 where there is no other.
fn listen(address: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    let at = |ip: IpAddr| {
        let socket =
            Socket::new(Domain::for_address((ip, port).into()), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            socket.set_only_v6(false)?;
        }
        socket.bind(&SocketAddr::from((ip, port)).into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    match address {
        Some(address) => at(address),
        None => at(Ipv6Addr::UNSPECIFIED.into()).or_else(|error: io::Error| match error.kind() {
            ErrorKind::AddrInUse => Err(error),
            _ => at(Ipv4Addr::UNSPECIFIED.into()),
        }),
    }
}
