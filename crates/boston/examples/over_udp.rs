//! A megabyte between two UDP sockets of this machine, of which every tenth datagram is lost.

use holdfast_boston::{Config, Endpoint, Event, Frame, Nanos, Poll, Shape};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;

/// One end: the machine, its socket, and how many datagrams it has sent.
struct End(Endpoint, UdpSocket, u32);

impl End {
    /// Gives the machine what has come and the time, and does what it says.
    fn turn(&mut self, now: Nanos) -> Result<(), Box<dyn std::error::Error>> {
        let Self(machine, socket, sent) = self;
        let mut datagram = [0; 2048];
        while let Ok(len) = socket.recv(&mut datagram) {
            machine.handle_frame(now, &Frame::parse(&datagram[..len])?);
        }
        machine.handle_timeout(now);
        loop {
            match machine.poll(now) {
                Poll::Transmit(frame) => {
                    *sent += 1;
                    if !sent.is_multiple_of(10) {
                        socket.send(&frame.to_bytes())?;
                    }
                }
                Poll::Event(Event::Failed(why)) => return Err(why.into()),
                Poll::Event(_) => {}
                // A program that has nothing else to do sleeps until then.
                Poll::Wait(_) => return Ok(()),
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sockets = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    for (own, other) in [(0, 1), (1, 0)] {
        sockets[own].connect(sockets[other].local_addr()?)?;
        sockets[own].set_nonblocking(true)?;
    }
    let [near, far] = sockets;
    let mut config = Config::default();
    config.shape = Shape { cells: 16, cell_len: 1024 };
    let mut client = End(Endpoint::connect(Nanos(0), config, 1)?, near, 0);
    let mut server = End(Endpoint::listen(Nanos(0), config, 2)?, far, 0);
    let data: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    let (mut written, mut read, mut heard) = (0, 0, vec![0; BYTES]);
    let begun = Instant::now();
    while read < BYTES {
        let now = Nanos(begun.elapsed().as_nanos() as u64);
        written += client.0.write(&data[written..]);
        client.turn(now)?;
        read += server.0.read(now, &mut heard[read..]);
        server.turn(now)?;
        std::thread::sleep(Duration::from_micros(50));
    }
    assert_eq!(heard, data);
    println!("{BYTES} bytes in {:?}, in {} datagrams", begun.elapsed(), client.2);
    Ok(())
}
