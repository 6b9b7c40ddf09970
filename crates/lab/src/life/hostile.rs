//! Clients that lie, vanish and flood, beside those whose bytes are checked. What
//! they get is their own affair; nobody else may notice them.

use crate::testbed::server::Program;
use crate::testbed::{Role, Testbed, addresses};
use anyhow::{Context as _, Result};
use holdfast_linux::netns;
use holdfast_linux::raw::RawSender;
use holdfast_sim::Rng;
use holdfast_wire::message::ConnKey;
use holdfast_wire::packet::{Checksum, Flags, TcpOptions, TcpPacket, TcpSegment};
use holdfast_wire::seq::SeqNo;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Ports behind which the client's kernel does not answer: all is made by hand.
const RAW_PORTS: (u16, u16) = (62_000, 64_000);

/// What a hostile client does in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// There is none.
    Nobody,
    /// Connects, says PING, and is never heard again.
    Vanishing(u16),
    /// Sends an RST one beyond the next number, then acknowledges what was never
    /// sent, to whatever it is asked.
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

/// Packets with which the kernel is not concerned stay unanswered.
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
    // Where spoofed SYNs are answered to.
    testbed.host(Role::Edge).ip("route replace 10.6.0.0/16 via 10.8.0.2\n")
}

/// A hostile client at work.
pub struct Attack {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
    what: Hostile,
}

impl Hostile {
    /// What comes beside the visitors, more often nothing.
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
        // What it says is redis' language.
        if program == Program::Redis { drawn } else { Self::Nobody }
    }

    /// Connections that it leaves behind without a word.
    pub fn left_behind(self) -> u64 {
        match self {
            Self::Vanishing(count) => count.into(),
            Self::Lying => 1,
            _ => 0,
        }
    }

    /// Starts it on the client's network.
    pub fn start(self, testbed: &Testbed, seed: u64) -> Attack {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let namespace = Path::new("/run/netns").join(testbed.host(Role::Client).namespace());
        let thread = std::thread::spawn(move || {
            netns::enter(&namespace)?;
            self.attack(&mut Rng::of_state(seed), &told)
        });
        Attack { stop, thread, what: self }
    }

    fn attack(self, rng: &mut Rng, stop: &AtomicBool) -> Result<()> {
        match self {
            Self::Nobody => {}
            Self::Vanishing(count) => {
                for _ in 0..count {
                    RawClient::connect(rng)?.say(b"PING\r\n")?;
                }
            }
            Self::Lying => lie(rng, stop)?,
            Self::Urgent => urgent(stop)?,
            Self::Garbage => {
                while !stop.load(Ordering::Relaxed) {
                    garbage(rng)?;
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            Self::Deaf => deaf(stop)?,
            Self::Flood(count) => flood(rng, count)?,
            Self::Stranger => strangers(rng, stop),
        }
        Ok(())
    }
}

impl Attack {
    /// Ends it, and sends away those that have vanished, as an operator of redis does.
    pub fn finish(self, testbed: &Testbed) -> Option<String> {
        self.stop.store(true, Ordering::Relaxed);
        // That the service ended it or refused it is as good.
        let _ = self.thread.join();
        if self.what.left_behind() == 0 {
            return None;
        }
        let namespace = Path::new("/run/netns").join(testbed.host(Role::Client).namespace());
        let cleaned = std::thread::spawn(move || {
            netns::enter(&namespace)?;
            send_away()
        });
        match cleaned.join() {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("a new client cannot send others away: {error:#}")),
            Err(_) => Some("sending clients away failed".to_owned()),
        }
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

/// Closes in redis every connection that was made by hand.
fn send_away() -> Result<()> {
    let mut stream = connect()?;
    stream.write_all(b"CLIENT LIST\r\n")?;
    let mut text = String::new();
    let mut buffer = [0; 65_536];
    // A bulk of all lines: its length stands first.
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

/// A TCP without a kernel: what it sends is made by hand, what comes is overheard.
struct RawClient {
    sender: RawSender,
    ears: Socket,
    key: ConnKey,
    seq: SeqNo,
    ack: SeqNo,
}

impl RawClient {
    fn connect(rng: &mut Rng) -> Result<Self> {
        // ETH_P_ALL of linux/if_ether.h.
        let every = Protocol::from(i32::from(3_u16.to_be()));
        let ears = Socket::new(Domain::PACKET, Type::DGRAM, Some(every))?;
        ears.set_read_timeout(Some(Duration::from_millis(20)))?;
        let port = rng.range(RAW_PORTS.0.into(), RAW_PORTS.1.into()) as u16;
        let mut this = Self {
            sender: RawSender::open(None)?,
            ears,
            key: key_of(addresses::CLIENT.parse()?, port),
            seq: SeqNo(rng.draw() as u32),
            ack: SeqNo(0),
        };
        let limit = Instant::now() + Duration::from_secs(2);
        this.send(Flags::SYN, &[])?;
        loop {
            let syn_ack = this
                .hear(|packet| packet.flags.has(Flags::SYN).then_some((packet.seq, packet.ack)));
            if let Some((seq, ack)) = syn_ack {
                (this.ack, this.seq) = (seq.plus(1), ack);
                return this.send(Flags::ACK, &[]).map(|()| this);
            }
            anyhow::ensure!(Instant::now() < limit, "no SYN-ACK");
        }
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

    /// The next packet of the server to this client, if it comes soon.
    fn hear<T>(&self, take: impl FnOnce(&TcpPacket<'_>) -> Option<T>) -> Option<T> {
        let mut buffer = vec![0; 1 << 16];
        let length = (&self.ears).read(&mut buffer).ok()?;
        let packet = TcpPacket::parse(&buffer[..length], Checksum::Partial).ok()?;
        let ours = packet.source_port == self.key.server_port
            && packet.destination_port == self.key.client_port;
        ours.then(|| take(&packet)).flatten()
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

/// Its own connection only, and yet it once ended the takeover of all.
fn lie(rng: &mut Rng, stop: &AtomicBool) -> Result<()> {
    const BEYOND: u64 = 1_000;
    let mut client = RawClient::connect(rng)?;
    client.say(b"PING\r\n")?;
    std::thread::sleep(Duration::from_millis(30));
    client.send_as(client.seq.plus(1), client.ack, Flags::RST, &[])?;
    while !stop.load(Ordering::Relaxed) {
        let asked = client.hear(|packet| Some(packet.seq.plus(packet.payload.len() as u64)));
        if let Some(end) = asked {
            client.send_as(client.seq, end.plus(BEYOND), Flags::ACK, &[])?;
        }
    }
    Ok(())
}

fn urgent(stop: &AtomicBool) -> Result<()> {
    let mut stream = connect()?;
    stream.write_all(b"SET urgent 12")?;
    SockRef::from(&stream).send_out_of_band(b"!")?;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(stream.write_all(b"34\r\n")?)
}

fn garbage(rng: &mut Rng) -> Result<()> {
    let mut stream = connect()?;
    let bytes: Vec<u8> = (0..rng.range(1, 3_000)).map(|_| rng.draw() as u8).collect();
    stream.write_all(&bytes)?;
    if rng.one_in(2) {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    }
    Ok(())
}

fn deaf(stop: &AtomicBool) -> Result<()> {
    let mut stream = connect()?;
    stream.write_all(b"SETRANGE deaf 1000000 x\r\n")?;
    for _ in 0..40 {
        stream.write_all(b"GET deaf\r\n")?;
    }
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn flood(rng: &mut Rng, count: u32) -> Result<()> {
    let sender = RawSender::open(None)?;
    for _ in 0..count {
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
        // That a queue is full is the flood's own affair.
        let _ = sender.send(&segment.build()?);
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Whoever may reach the edge may knock at its doors.
fn strangers(rng: &mut Rng, stop: &AtomicBool) {
    const DOORS: [&str; 3] = ["10.9.0.1:7700", "10.9.0.2:7701", "10.9.0.3:7701"];
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let door = DOORS[rng.below(DOORS.len() as u64) as usize].parse();
        let Ok(door) = door else { return };
        if let Ok(mut stream) = TcpStream::connect_timeout(&door, Duration::from_millis(100)) {
            if rng.one_in(2) {
                let _ = stream.write_all(&rng.draw().to_be_bytes());
            }
            held.push(stream);
        }
        if held.len() > 64 {
            held.clear();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
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
}
