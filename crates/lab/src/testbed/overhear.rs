//! Which packets of one host reach another. Packets are recognised by a time to live that only that
//! host's kernel gives them, so nothing of Holdfast takes part in the answer.

use super::topology::interface;
use super::{Host, Role, Testbed};
use anyhow::{Context as _, Result};
use holdfast_linux::arrival;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// Time to live of the primary's packets; every other host's start with 64.
const TIME_TO_LIVE: u32 = 91;

/// Most routers between the two hosts, each of which takes one off.
const HOPS_MAX: u32 = 1;

/// `ETH_P_ALL` of linux/if_ether.h.
const EVERY_PROTOCOL: u16 = 3;

/// Most arrival times that are kept; beyond that the older half is dropped.
const REMEMBERED: usize = 1 << 16;

/// Time after which the listener notices that it has to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Listens at the client for packets of the primary's kernel.
pub struct Overheard {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<SystemTime>>,
}

impl Overheard {
    /// Marks the primary's packets and starts to listen.
    ///
    /// # Errors
    /// When the kernel refuses the mark or the socket.
    pub fn start(testbed: &Testbed) -> Result<Self> {
        testbed.host(Role::Primary).sysctl(&[
            &format!("net.ipv4.ip_default_ttl={TIME_TO_LIVE}"),
            &format!("net.ipv6.conf.{}.hop_limit={TIME_TO_LIVE}", interface::PRIMARY),
        ])?;
        let socket = socket_at(testbed.host(Role::Client), Some(&filter()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || listen(socket, &told));
        Ok(Self { stop, thread })
    }

    /// Arrival times of the packets, in order.
    pub fn finish(self) -> Vec<SystemTime> {
        self.stop.store(true, Ordering::Relaxed);
        // A listener that panicked has heard nothing, and its panic is on stderr.
        self.thread.join().unwrap_or_default()
    }
}

fn listen(mut socket: Socket, told: &AtomicBool) -> Vec<SystemTime> {
    let mut heard = Vec::new();
    while !told.load(Ordering::Relaxed) {
        if socket.read(&mut [0; 1]).is_ok() {
            if heard.len() == REMEMBERED {
                heard.drain(..REMEMBERED / 2);
            }
            // On a busy machine this thread may run long after the packet arrived.
            heard.push(arrival::of_last(&socket).unwrap_or_else(|_| SystemTime::now()));
        }
    }
    heard
}

/// A socket for all packets of a host, or for those that a filter takes. It stays in the network in
/// which it was made, whoever reads it.
///
/// # Errors
/// When the kernel refuses it.
pub(crate) fn socket_at(host: &Host, filter: Option<&[SockFilter]>) -> Result<Socket> {
    let namespace = std::path::PathBuf::from(format!("/proc/{}/ns/net", host.holder()));
    let make = || -> Result<Socket> {
        holdfast_linux::netns::enter(&namespace)?;
        let protocol = Protocol::from(i32::from(EVERY_PROTOCOL.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol))?;
        if let Some(filter) = filter {
            socket.attach_filter(filter)?;
        }
        socket.set_read_timeout(Some(LOOK_EVERY))?;
        // Asking once makes the kernel keep arrival times; there is none yet.
        let _ = arrival::of_last(&socket);
        Ok(socket)
    };
    let made = std::thread::scope(|scope| scope.spawn(make).join());
    made.unwrap_or_else(|_| anyhow::bail!("the thread panicked")).context("cannot listen at a host")
}

/// Takes one byte of packets whose time to live is the mark, less the hops.
fn filter() -> [SockFilter; 10] {
    let [load, shift, equal, jump, at_least, greater, give] =
        [0x30, 0x74, 0x15, 0x05, 0x35, 0x25, 0x06];
    let op = |code, yes, no, value| SockFilter::new(code, yes, no, value);
    [
        op(load, 0, 0, 0),
        op(shift, 0, 0, 4),
        op(equal, 2, 0, 6),
        // IPv4 has it in byte 8, IPv6 in byte 7.
        op(load, 0, 0, 8),
        op(jump, 0, 0, 1),
        op(load, 0, 0, 7),
        op(at_least, 0, 2, TIME_TO_LIVE - HOPS_MAX),
        op(greater, 1, 0, TIME_TO_LIVE),
        op(give, 0, 0, 1),
        op(give, 0, 0, 0),
    ]
}
