//! The short way of the log (decision 35): the datagram sockets of both ends. The primary's goes to
//! its server, whose threads send by it; nobody else is heard on the backup's.

use holdfast_wire::direct::{DATAGRAM_MAX, KEY_BYTES, Seal, Speaker};
use holdfast_wire::message::DirectKey;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Most datagrams looked at in one turn for one that the server has sent.
const FORGED_MAX: usize = 64;
/// Least time after which an unanswered datagram counts as lost: a busy backup is no lost datagram.
const WAIT_MIN: Duration = Duration::from_millis(1);
/// Longest such time.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// The primary's end, before the backup has agreed.
pub struct Offered {
    socket: UdpSocket,
    pub id: u64,
    pub key: DirectKey,
}

impl Offered {
    /// A socket at this host's address among the members, and a new key.
    ///
    /// # Errors
    /// If the kernel gives no socket, or no random bytes.
    pub fn new(mut own: SocketAddr) -> io::Result<Self> {
        own.set_port(0);
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        let id = getrandom::u64().map_err(io::Error::other)?.max(1);
        Ok(Self { socket: UdpSocket::bind(own)?, id, key: DirectKey(key) })
    }

    /// # Errors
    /// If the kernel does not tell.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// The socket, which from now on reaches only the backup at this port.
    ///
    /// # Errors
    /// If there is no way to it.
    pub fn towards(&self, mut backup: SocketAddr, port: u16) -> io::Result<BorrowedFd<'_>> {
        backup.set_port(port);
        self.socket.connect(backup)?;
        Ok(self.socket.as_fd())
    }
}

/// Time after which an unanswered datagram counts as lost, where a round trip takes so long and
/// varies so much (RFC 6298 §2.3).
pub fn wait(round_trip: Option<(Duration, Duration)>) -> Duration {
    let (mean, deviation) = round_trip.unwrap_or_default();
    (WAIT_MIN + 2 * mean + 4 * deviation).min(WAIT_MAX)
}

/// The backup's end.
pub struct Listening {
    socket: UdpSocket,
    seal: Seal,
    counter: u64,
    refused: u64,
    datagram: Box<[u8]>,
}

impl Listening {
    /// Listens to this port of the primary, at this host's address among the members.
    ///
    /// # Errors
    /// If the kernel gives no such socket.
    pub fn new(
        mut own: SocketAddr,
        mut primary: SocketAddr,
        (id, key, port): (u64, &DirectKey, u16),
    ) -> io::Result<Self> {
        own.set_port(0);
        primary.set_port(port);
        let socket = UdpSocket::bind(own)?;
        socket.connect(primary)?;
        socket.set_nonblocking(true)?;
        let datagram = vec![0; DATAGRAM_MAX].into_boxed_slice();
        Ok(Self { socket, seal: Seal::new(id, &key.0), counter: 0, refused: 0, datagram })
    }

    /// # Errors
    /// If the kernel does not tell.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// Hands on the datagram that has come: a position of the log, and the records there. There is
    /// one at a time, since the server waits for each. What it has not sealed is counted, and gone
    /// by quickly: a turn of the daemon for each would keep it from everything else.
    pub fn recv(&mut self, each: impl FnOnce(u64, &[u8])) {
        for _ in 0..FORGED_MAX {
            match self.socket.recv(&mut self.datagram) {
                Ok(len) => {
                    let said = self.seal.open(Speaker::Server, &mut self.datagram[..len]);
                    if let Some(said) = said {
                        return each(said.position, said.records);
                    }
                    self.refused += 1;
                }
                // That of an answer which reached nobody.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(_) => return,
            }
        }
    }

    /// Number of datagrams that the server has not sealed.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Tells the server that everything before this position is held. What is lost, its daemon
    /// hears by the channel.
    pub fn send_held(&mut self, position: u64) {
        self.counter += 1;
        let made = self.seal.seal(Speaker::Backup, self.counter, position, 0, &mut self.datagram);
        if let Some(len) = made {
            let _lost = self.socket.send(&self.datagram[..len]);
        }
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::direct::records_at;

    #[test]
    fn the_server_is_heard_and_nobody_else() {
        let home = SocketAddr::from(([127, 0, 0, 1], 0));
        let offered = Offered::new(home).expect("a socket");
        let way = (offered.id, &offered.key, offered.port().expect("a port"));
        let mut listening = Listening::new(home, home, way).expect("a socket");
        let port = listening.port().expect("a port");
        offered.towards(home, port).expect("a way");
        let seal = Seal::new(offered.id, &offered.key.0);
        let mut datagram = [0; 256];
        datagram[records_at()..][..8].copy_from_slice(b"records!");
        let len = seal.seal(Speaker::Server, 1, 40, 8, &mut datagram).expect("room");
        let stranger = UdpSocket::bind(home).expect("a socket");
        stranger.send_to(&datagram[..len], (home.ip(), port)).expect("sent");
        offered.socket.send(b"noise").expect("sent");
        offered.socket.send(&datagram[..len]).expect("sent");
        std::thread::sleep(Duration::from_millis(20));
        let mut heard = Vec::new();
        for _ in 0..3 {
            listening.recv(|position, records| heard.push((position, records.to_vec())));
        }
        assert_eq!((heard, listening.refused()), (vec![(40, b"records!".to_vec())], 1));
        listening.send_held(48);
        let len = offered.socket.recv(&mut datagram).expect("an answer");
        let said = seal.open(Speaker::Backup, &mut datagram[..len]).expect("it is sealed");
        assert_eq!((said.position, said.records.len()), (48, 0));
    }

    #[test]
    fn a_loss_is_waited_for_as_long_as_the_way_takes() {
        let ms = Duration::from_millis;
        assert_eq!(wait(None), ms(1));
        assert_eq!(wait(Some((ms(5), ms(1)))), ms(15));
        assert_eq!(wait(Some((ms(500), ms(1)))), WAIT_MAX);
    }
}
