//! Clients that lie, vanish and flood, beside those whose bytes are checked. Whatever happens to
//! them, no other client may notice them.

use crate::testbed::server::Program;
use crate::testbed::{Role, Testbed, addresses, interface};
use anyhow::{Context as _, Result};
use holdfast_chance::Rng;
use holdfast_linux::netns;
use holdfast_linux::raw::RawSender;
use holdfast_linux::tap::{Service, TapSocket};
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Flags, TcpOptions, TcpPacket, TcpSegment};
use holdfast_wire::seq::SeqNo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Range of client ports for which the client's kernel does not answer, since the lab sends all
/// packets itself.
const RAW_PORTS: (u16, u16) = (62_000, 64_000);

/// Longest time for the service to answer a SYN if nothing is wrong. The next SYN may come from
/// another port.
const SYN_ACK_LIMIT: Duration = Duration::from_millis(500);

/// Time for which a client without a kernel listens at once.
const HEAR_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Bytes of such a client's receive buffer: it gets only its own packets, so little is enough.
const EARS_BYTES: usize = 1 << 20;

/// What a hostile client does in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// No hostile client.
    Nobody,
    /// Connects, says PING, and is never heard again.
    Vanishing(u16),
    /// Sends an RST one beyond the next number, then answers everything by an ACK for bytes that were
    /// never sent.
    Lying,
    /// Sends a byte of urgent data in the middle of a request.
    Urgent,
    /// Sends nonsense, and resets.
    Garbage,
    /// Asks for much, and reads nothing.
    Deaf,
    /// Sends SYNs from addresses that nobody has.
    Flood(u32),
    /// Connects to the daemons' own ports, and says nothing, or nonsense.
    Stranger,
}

/// Lets packets of the lab's own TCP stay unanswered by the client's kernel.
///
/// # Errors
/// When `nft` refuses.
pub fn prepare(testbed: &Testbed) -> Result<()> {
    let (from, until) = RAW_PORTS;
    let rules = format!(
        "table inet raw {{\nchain input {{\ntype filter hook input priority 0;\n\
         tcp dport {from}-{until} drop\n}}\n}}\n"
    );
    let client = testbed.host(Role::Client);
    let status = client.network_command("nft").arg(rules).status().context("cannot start nft")?;
    anyhow::ensure!(status.success(), "nft refuses the rule of the client's host");
    // The server's answers to spoofed SYNs are routed to the client.
    testbed.host(Role::Edge).ip("route replace 10.6.0.0/16 via 10.8.0.2\n")
}

/// A hostile client at work, until it is finished or dropped.
pub struct Attack {
    stop: Arc<AtomicBool>,
    /// Number of times that the client reached the service, or why it could not begin.
    thread: Option<JoinHandle<Result<u64>>>,
    what: Hostile,
}

impl Hostile {
    /// Draws what comes beside the visitors, more often nothing.
    pub fn draw(rng: &mut Rng, program: Program) -> Self {
        let count = rng.range(5, 40);
        let all = [
            Self::Nobody,
            Self::Nobody,
            Self::Vanishing(count as u16),
            Self::Lying,
            Self::Garbage,
            Self::Urgent,
            Self::Deaf,
            Self::Flood(10 * count as u32),
            Self::Stranger,
        ];
        let drawn = rng.pick(&all);
        // Hostile clients speak redis' language.
        if program == Program::Redis { drawn } else { Self::Nobody }
    }

    /// Handshakes that the client leaves to the server's kernel to forget.
    pub fn half_open(self) -> u64 {
        match self {
            Self::Flood(count) => count.into(),
            _ => 0,
        }
    }

    /// Connections that the client leaves without a word.
    pub fn left_behind(self) -> u64 {
        match self {
            Self::Vanishing(count) => count.into(),
            Self::Lying => 1,
            _ => 0,
        }
    }

    /// Starts the client on the client host's network.
    pub fn start(self, testbed: &Testbed, seed: u64) -> Attack {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let namespace = Path::new("/run/netns").join(testbed.host(Role::Client).namespace());
        let thread = thread::spawn(move || {
            netns::enter(&namespace)?;
            self.attack(&mut Rng::of_state(seed), &told)
        });
        Attack { stop, thread: Some(thread), what: self }
    }

    /// Attacks; returns the number of connections made, or of packets sent if there are no
    /// connections. The service may end or refuse them; an error means that there was no attack.
    fn attack(self, rng: &mut Rng, stop: &AtomicBool) -> Result<u64> {
        match self {
            Self::Nobody => Ok(0),
            Self::Vanishing(count) => vanish(rng, stop, count),
            Self::Lying => lie(rng, stop),
            Self::Urgent => Ok(urgent(stop)),
            Self::Garbage => Ok(garbage(rng, stop)),
            Self::Deaf => Ok(deaf(stop)),
            Self::Flood(count) => flood(rng, stop, count),
            Self::Stranger => strangers(rng, stop),
        }
    }

    /// What is wrong with the end of an attack.
    fn wrong(self, ended: thread::Result<Result<u64>>, undisturbed: bool) -> Option<String> {
        match ended {
            Err(_) => Some(format!("the hostile client panicked: {self:?}")),
            Ok(Err(error)) => Some(format!("there was no hostile client: {self:?}: {error:#}")),
            Ok(Ok(0)) if undisturbed && self != Self::Nobody => {
                Some(format!("the hostile client has reached nobody: {self:?}"))
            }
            Ok(Ok(_)) => None,
        }
    }
}

impl Attack {
    /// Ends the attack, and closes the connections of vanished clients as an operator of redis
    /// would. Returns what went wrong. If the service was `undisturbed`, the attack must have
    /// reached it.
    pub fn finish(mut self, testbed: &Testbed, undisturbed: bool) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        let wrong = ended.and_then(|ended| self.what.wrong(ended, undisturbed));
        wrong.into_iter().chain(self.clean_up(testbed)).collect()
    }

    fn clean_up(&self, testbed: &Testbed) -> Option<String> {
        if self.what.left_behind() == 0 {
            return None;
        }
        let namespace = Path::new("/run/netns").join(testbed.host(Role::Client).namespace());
        let cleaned = thread::spawn(move || {
            netns::enter(&namespace)?;
            send_away()
        });
        match cleaned.join() {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("a new client cannot send others away: {error:#}")),
            Err(_) => Some("sending clients away panicked".to_owned()),
        }
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        // A step that ends early does not wait; the thread sees the flag soon.
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn service() -> SocketAddr {
    let address = addresses::SERVICE_V4.parse().unwrap_or(Ipv4Addr::LOCALHOST);
    SocketAddr::from((address, Program::Redis.port()))
}

fn connect() -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&service(), Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    Ok(stream)
}

/// Closes in redis every connection that a client without a kernel made.
fn send_away() -> Result<()> {
    let mut stream = connect()?;
    stream.write_all(b"CLIENT LIST\r\n")?;
    let mut text = String::new();
    let mut buffer = [0; 65_536];
    // The answer is a bulk of all lines, whose length comes first.
    loop {
        let count = stream.read(&mut buffer)?;
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        let head = text.split_once("\r\n");
        let whole = head.and_then(|(size, rest)| {
            let size: usize = size.strip_prefix('$')?.parse().ok()?;
            Some(rest.len() >= size + 2)
        });
        if count == 0 || whole == Some(true) {
            break;
        }
    }
    for word in text.split_whitespace().filter_map(|word| word.strip_prefix("addr=")) {
        let port = word.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
        if port.is_some_and(|port| (RAW_PORTS.0..RAW_PORTS.1).contains(&port)) {
            stream.write_all(format!("CLIENT KILL ADDR {word}\r\n").as_bytes())?;
            let _ = stream.read(&mut buffer)?;
        }
    }
    Ok(())
}

/// A TCP client without a kernel: the lab sends its packets, and overhears what arrives.
struct RawClient {
    sender: RawSender,
    ears: TapSocket,
    key: ConnKey,
    seq: SeqNo,
    ack: SeqNo,
}

impl RawClient {
    /// Tries one port after the other until the service answers, which it does not at a port whose
    /// earlier client has vanished. Returns `None` when it is told to stop before.
    fn connect(rng: &mut Rng, stop: &AtomicBool) -> Result<Option<Self>> {
        while !stop.load(Ordering::Relaxed) {
            let mut this = Self::open(rng)?;
            if this.shake_hands() {
                return Ok(Some(this));
            }
        }
        Ok(None)
    }

    fn open(rng: &mut Rng) -> Result<Self> {
        let port = rng.range(RAW_PORTS.0.into(), RAW_PORTS.1.into()) as u16;
        let key = key_of(addresses::CLIENT.parse()?, port);
        let own = Service { address: key.client, port };
        Ok(Self {
            sender: RawSender::open(None)?,
            ears: TapSocket::open(interface::CLIENT, &[own], EARS_BYTES)?,
            key,
            seq: SeqNo(rng.draw() as u32),
            ack: SeqNo(0),
        })
    }

    fn shake_hands(&mut self) -> bool {
        let limit = Instant::now() + SYN_ACK_LIMIT;
        // A SYN that cannot be sent gets no answer either.
        let _ = self.send(Flags::SYN, &[]);
        while Instant::now() < limit {
            let syn_ack = self
                .hear(|packet| packet.flags.has(Flags::SYN).then_some((packet.seq, packet.ack)));
            if let Some((seq, ack)) = syn_ack {
                (self.ack, self.seq) = (seq.plus(1), ack);
                return self.send(Flags::ACK, &[]).is_ok();
            }
        }
        false
    }

    fn send(&self, flags: Flags, payload: &[u8]) -> Result<()> {
        self.send_as(self.seq, self.ack, flags, payload)
    }

    fn send_as(&self, seq: SeqNo, ack: SeqNo, flags: Flags, payload: &[u8]) -> Result<()> {
        let mss = flags.has(Flags::SYN).then_some(1460);
        let options = TcpOptions { mss, ..TcpOptions::default() };
        let window = 64_000;
        let segment = TcpSegment {
            key: self.key,
            to_client: false,
            seq,
            ack,
            flags,
            window,
            options,
            payload,
        };
        Ok(self.sender.send(&segment.build()?)?)
    }

    fn say(&mut self, bytes: &[u8]) -> Result<()> {
        self.send(Flags::ACK | Flags::PSH, bytes)?;
        self.seq = self.seq.plus(bytes.len() as u64);
        Ok(())
    }

    /// Looks at the newest packets of the server to this client; returns what `take` makes of them,
    /// if any come soon.
    fn hear<T>(&mut self, take: impl Fn(&TcpPacket<'_>) -> Option<T>) -> Option<T> {
        let mut heard = None;
        let mut ears = [PollFd::from_borrowed_fd(self.ears.fd(), PollFlags::IN)];
        poll(&mut ears, Some(&HEAR_WAIT)).ok()?;
        let port = self.key.server_port;
        let drained = self.ears.drain(1, |l3, checksum| {
            let packet = TcpPacket::parse(l3, checksum).ok();
            let said = packet.filter(|it| it.source_port == port).and_then(|it| take(&it));
            heard = said.or(heard.take());
        });
        drained.ok().and(heard)
    }
}

fn key_of(client: Ipv4Addr, client_port: u16) -> ConnKey {
    let service: Ipv4Addr = addresses::SERVICE_V4.parse().unwrap_or(Ipv4Addr::LOCALHOST);
    ConnKey {
        server: service.to_ipv6_mapped().octets(),
        client: client.to_ipv6_mapped().octets(),
        server_port: Program::Redis.port(),
        client_port,
    }
}

fn vanish(rng: &mut Rng, stop: &AtomicBool, count: u16) -> Result<u64> {
    let mut vanished = 0;
    for _ in 0..count {
        let Some(mut client) = RawClient::connect(rng, stop)? else { break };
        vanished += done(client.say(b"PING\r\n"));
    }
    Ok(vanished)
}

/// Sends a false RST and false ACKs. They concern only the client's own connection, and yet once
/// ended the takeover of all connections.
fn lie(rng: &mut Rng, stop: &AtomicBool) -> Result<u64> {
    const BEYOND: u64 = 1_000;
    let Some(mut client) = RawClient::connect(rng, stop)? else { return Ok(0) };
    let mut lies = done(client.say(b"PING\r\n"));
    thread::sleep(Duration::from_millis(30));
    lies += done(client.send_as(client.seq.plus(1), client.ack, Flags::RST, &[]));
    while !stop.load(Ordering::Relaxed) {
        let asked = client.hear(|packet| Some(packet.seq.plus(packet.payload.len() as u64)));
        if let Some(end) = asked {
            lies += done(client.send_as(client.seq, end.plus(BEYOND), Flags::ACK, &[]));
        }
    }
    Ok(lies)
}

fn urgent(stop: &AtomicBool) -> u64 {
    let Ok(mut stream) = connect() else { return 0 };
    let said = stream
        .write_all(b"SET urgent 12")
        .and_then(|()| SockRef::from(&stream).send_out_of_band(b"!"));
    wait_for_end(stop);
    // The service may have ended the connection.
    let _ = stream.write_all(b"34\r\n");
    done(said)
}

fn garbage(rng: &mut Rng, stop: &AtomicBool) -> u64 {
    let mut connections = 0;
    while !stop.load(Ordering::Relaxed) {
        connections += done(nonsense(rng));
        thread::sleep(Duration::from_millis(20));
    }
    connections
}

fn nonsense(rng: &mut Rng) -> Result<()> {
    let mut stream = connect()?;
    let bytes: Vec<u8> = (0..rng.range(1, 3_000)).map(|_| rng.draw() as u8).collect();
    // The service may close in the middle.
    let _ = stream.write_all(&bytes);
    if rng.one_in(2) {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    }
    Ok(())
}

fn deaf(stop: &AtomicBool) -> u64 {
    let Ok(mut stream) = connect() else { return 0 };
    let mut asked = done(stream.write_all(b"SETRANGE deaf 1000000 x\r\n"));
    for _ in 0..40 {
        asked += done(stream.write_all(b"GET deaf\r\n"));
    }
    wait_for_end(stop);
    asked
}

fn wait_for_end(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Counts one for a success.
fn done<T, E>(result: Result<T, E>) -> u64 {
    result.is_ok().into()
}

fn flood(rng: &mut Rng, stop: &AtomicBool, count: u32) -> Result<u64> {
    let sender = RawSender::open(None)?;
    let mut sent = 0;
    for _ in 0..count {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let [_, _, high, low] = (rng.draw() as u32).to_be_bytes();
        let segment = TcpSegment {
            key: key_of(Ipv4Addr::new(10, 6, high, low), rng.range(1024, 60_000) as u16),
            to_client: false,
            seq: SeqNo(rng.draw() as u32),
            ack: SeqNo(0),
            flags: Flags::SYN,
            window: 64_240,
            options: TcpOptions { mss: Some(1460), ..TcpOptions::default() },
            payload: &[],
        };
        // A full queue is the flood's own problem.
        sent += done(sender.send(&segment.build()?));
        thread::sleep(Duration::from_millis(2));
    }
    Ok(sent)
}

/// Connects as a stranger: anybody who reaches the edge can connect to its ports.
fn strangers(rng: &mut Rng, stop: &AtomicBool) -> Result<u64> {
    const DOORS: [&str; 3] = ["10.9.0.1:7700", "10.9.0.2:7701", "10.9.0.3:7701"];
    let mut held = Vec::new();
    let mut opened = 0;
    while !stop.load(Ordering::Relaxed) {
        let door = rng.pick(&DOORS).parse()?;
        if let Ok(mut stream) = TcpStream::connect_timeout(&door, Duration::from_millis(100)) {
            opened += 1;
            if rng.one_in(2) {
                let _ = stream.write_all(&rng.draw().to_be_bytes());
            }
            held.push(stream);
        }
        if held.len() > 64 {
            held.clear();
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_redis_meets_those_who_speak_its_language() {
        let mut rng = Rng::of_state(3);
        for _ in 0..100 {
            assert_eq!(Hostile::draw(&mut rng, Program::Nginx), Hostile::Nobody);
        }
        let drawn: Vec<_> = (0..200).map(|_| Hostile::draw(&mut rng, Program::Redis)).collect();
        assert!(drawn.contains(&Hostile::Lying) && drawn.contains(&Hostile::Stranger));
    }

    #[test]
    fn an_attack_that_never_happened_is_told() {
        let ended = |what: Hostile, ended, undisturbed| what.wrong(ended, undisturbed).is_some();
        let failed = || Err(anyhow::anyhow!("no socket"));
        for undisturbed in [false, true] {
            assert!(ended(Hostile::Lying, Ok(failed()), undisturbed));
            assert!(ended(Hostile::Lying, Err(Box::new("a panic")), undisturbed));
            assert!(!ended(Hostile::Lying, Ok(Ok(1)), undisturbed));
            assert!(!ended(Hostile::Nobody, Ok(Ok(0)), undisturbed));
        }
        assert!(ended(Hostile::Lying, Ok(Ok(0)), true));
        assert!(!ended(Hostile::Lying, Ok(Ok(0)), false));
    }

    #[test]
    fn an_attack_that_is_dropped_ends() {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            wait_for_end(&told);
            Ok(1)
        });
        drop(Attack { stop: Arc::clone(&stop), thread: Some(thread), what: Hostile::Deaf });
        assert!(stop.load(Ordering::Relaxed));
    }
}
