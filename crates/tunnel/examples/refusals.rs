//! How fast one thread refuses the first messages of strangers, apart from what its kernel takes to
//! bring them: `cargo run --release -p holdfast-tunnel --example refusals`.

use holdfast_tunnel::secure::{NoRandom, Random, SecretKey, Secure, Settings, Suites, ToSend};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const MESSAGES: u32 = 500_000;

struct Counting(u8);

impl Random for Counting {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), NoRandom> {
        for byte in bytes {
            self.0 = self.0.wrapping_mul(29).wrapping_add(17);
            *byte = self.0;
        }
        Ok(())
    }
}

fn end(own: u8, peer: u8, address: Option<SocketAddr>) -> Secure {
    let settings = Settings {
        key: SecretKey::from_random([own; 32]),
        peer: SecretKey::from_random([peer; 32]).public(),
        peer_address: address,
        keepalive: None,
        suites: Suites::ALL,
    };
    Secure::new(settings, Box::new(Counting(own)), Duration::ZERO)
}

/// Hands a message to a responder again and again, from many addresses.
fn measure(what: &str, message: &[u8]) {
    let mut responder = end(2, 3, None);
    let (begun, mut refused) = (Instant::now(), 0);
    for count in 0..MESSAGES {
        let from = SocketAddr::from(([10, 0, (count >> 8) as u8, count as u8], 4000));
        let mut message = message.to_vec();
        let now = begun.elapsed();
        refused += u32::from(responder.handle_datagram(from, &mut message, now).is_err());
        while responder.poll(now, Duration::from_secs(1)).is_some() {}
    }
    let took = begun.elapsed();
    let (each, per_s) = (took / MESSAGES, f64::from(refused) / took.as_secs_f64());
    println!("{what:<60} {per_s:>10.0} a second, {each:?} each; {refused} of {MESSAGES} refused");
}

fn main() {
    let address = SocketAddr::from(([192, 0, 2, 1], 51_900));
    let mut stranger = end(9, 2, Some(address));
    let first = stranger.poll(Duration::ZERO, Duration::from_secs(1));
    let Some(ToSend { bytes: right, .. }) = first else { return };
    let mut wrong = right.clone();
    if let Some(byte) = wrong.last_chunk_mut::<32>().and_then(|macs| macs.first_mut()) {
        *byte ^= 1;
    }
    let mut cookie = right.clone();
    if let Some(byte) = cookie.last_mut() {
        *byte ^= 1;
    }
    measure("of who does not know the public key", &wrong);
    measure("of who knows it, beyond those that are looked at", &right);
    measure("the same with a cookie that is none", &cookie);
    measure("noise of the same length", &vec![0; right.len()]);
    measure("a sealed datagram of no session", &[[4; 8], [0; 8], [1; 8]].concat());
}
