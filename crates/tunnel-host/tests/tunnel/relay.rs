//! Something in the middle: it loses and delays datagrams between two ends that take it for each
//! other, and remembers some.

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes that may wait for it.
const BUFFER_BYTES: usize = 32 << 20;
/// Datagrams that it remembers.
const KEPT_MAX: usize = 2000;

#[derive(Clone, Default)]
pub struct Switches {
    pub ends: Arc<AtomicBool>,
    /// Datagrams of a thousand that are lost.
    pub lost_of_1000: Arc<AtomicU64>,
    /// Longer ones are lost, in bytes; 0: none for its length.
    pub longest: Arc<AtomicUsize>,
    pub passed: Arc<AtomicU64>,
    pub dropped: Arc<AtomicU64>,
}

/// Passes datagrams that come at `listen` on to the one of `ends` that did not send them, until it is
/// told to end; those that it remembers, in order.
pub fn run(
    listen: SocketAddr,
    ends: [SocketAddr; 2],
    delay: Duration,
    switches: &Switches,
) -> Vec<Vec<u8>> {
    let socket = UdpSocket::bind(listen).expect("the relay's port");
    // What it has no turn to take on a busy machine waits: it loses only what it is told to.
    set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).expect("a large buffer");
    let mut flying: VecDeque<(Instant, SocketAddr, Vec<u8>)> = VecDeque::new();
    let (mut kept, mut chance) = (Vec::new(), 1u64);
    let mut buffer = vec![0; 65_536];
    while !switches.ends.load(Ordering::Relaxed) {
        let now = Instant::now();
        while let Some((_, to, bytes)) = flying.pop_front_if(|(at, ..)| *at <= now) {
            let _ = socket.send_to(&bytes, to);
        }
        let wait = flying.front().map_or(Duration::from_millis(20), |(at, ..)| *at - now);
        socket.set_read_timeout(Some(wait.max(Duration::from_micros(50)))).expect("a time");
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        let Some(place) = ends.iter().position(|end| *end == from) else { continue };
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let longest = switches.longest.load(Ordering::Relaxed);
        let is_too_long = longest > 0 && length > longest;
        if is_too_long || (chance >> 33) % 1000 < switches.lost_of_1000.load(Ordering::Relaxed) {
            switches.dropped.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        switches.passed.fetch_add(1, Ordering::Relaxed);
        let bytes = buffer[..length].to_vec();
        if kept.len() < KEPT_MAX {
            kept.push(bytes.clone());
        }
        flying.push_back((Instant::now() + delay, ends[1 - place], bytes));
    }
    kept
}
