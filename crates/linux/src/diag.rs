//! The state of TCP connections by their exact four-tuple, asked from the kernel
//! without listing all sockets (`SOCK_DIAG_BY_FAMILY`).

use crate::netlink;
use holdfast_wire::message::ConnKey;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Questions per system call; their answers must fit the socket's buffer.
const BATCH: usize = 32;
/// `struct inet_diag_req_v2` and `struct inet_diag_msg`, in bytes.
const REQUEST: usize = 56;
const ANSWER: usize = 72;

/// Why the kernel did not say.
#[derive(Debug, thiserror::Error)]
pub enum DiagError {
    #[error("opening a socket diagnosis socket: {0}; the kernel must have CONFIG_INET_DIAG")]
    Open(io::Error),
    #[error("asking for the state of a connection: {0}")]
    Ask(io::Error),
}

/// RFC 9293 §3.3.2, numbered as in Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    Established,
    SynSent,
    SynReceived,
    FinWait1,
    FinWait2,
    TimeWait,
    Closed,
    CloseWait,
    LastAck,
    Closing,
}

impl TcpState {
    /// `None` for a listener, which is no connection, and for unknown numbers.
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Established,
            2 => Self::SynSent,
            // 12 is Linux's NEW_SYN_RECV.
            3 | 12 => Self::SynReceived,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Closed,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            11 => Self::Closing,
            _ => return None,
        })
    }
}

/// A socket diagnosis socket.
#[derive(Debug)]
pub struct DiagSocket {
    fd: OwnedFd,
    sequence: u32,
}

impl DiagSocket {
    /// # Errors
    /// [`DiagError::Open`].
    pub fn open() -> Result<Self, DiagError> {
        let fd = netlink::open(libc::NETLINK_SOCK_DIAG).map_err(DiagError::Open)?;
        Ok(Self { fd, sequence: 0 })
    }

    /// The state of each connection as seen by this host as its server; `None`
    /// where it has no such connection.
    ///
    /// # Errors
    /// [`DiagError::Ask`].
    pub fn states(&mut self, keys: &[ConnKey]) -> Result<Vec<Option<TcpState>>, DiagError> {
        let mut states = vec![None; keys.len()];
        for (keys, states) in keys.chunks(BATCH).zip(states.chunks_mut(BATCH)) {
            self.batch(keys, states).map_err(DiagError::Ask)?;
        }
        Ok(states)
    }

    /// As [`Self::states`] for one connection.
    ///
    /// # Errors
    /// [`DiagError::Ask`].
    pub fn state(&mut self, key: &ConnKey) -> Result<Option<TcpState>, DiagError> {
        let mut state = [None];
        self.batch(std::slice::from_ref(key), &mut state).map_err(DiagError::Ask)?;
        Ok(state[0])
    }

    fn batch(&mut self, keys: &[ConnKey], states: &mut [Option<TcpState>]) -> io::Result<()> {
        let first = self.sequence;
        self.sequence = first.wrapping_add(keys.len() as u32);
        let mut requests = Vec::with_capacity(keys.len() * (REQUEST + 16));
        for (index, key) in keys.iter().enumerate() {
            let sequence = first.wrapping_add(index as u32);
            let flags = libc::NLM_F_REQUEST;
            netlink::append(&mut requests, SOCK_DIAG_BY_FAMILY, flags, sequence, &request(key));
        }
        netlink::discard(self.fd.as_fd());
        netlink::send(&self.fd, &requests)?;

        let mut buffer = [0; 8192];
        let mut missing = keys.len();
        while missing > 0 {
            for answer in netlink::answers(netlink::receive(&self.fd, &mut buffer)?) {
                let index = answer.sequence.wrapping_sub(first) as usize;
                let Some(state) = states.get_mut(index) else {
                    continue;
                };
                missing = missing.saturating_sub(1);
                match answer.errno() {
                    Some(libc::ENOENT | 0) => {}
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    None if answer.body.len() >= ANSWER => {
                        *state = TcpState::from_number(answer.body[1]);
                    }
                    None => return Err(io::ErrorKind::InvalidData.into()),
                }
            }
        }
        Ok(())
    }
}

/// `struct inet_diag_req_v2`. The kernel looks mapped addresses up among IPv4
/// connections too, whatever the family of their socket.
fn request(key: &ConnKey) -> Vec<u8> {
    let mut body = vec![libc::AF_INET6 as u8, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend(u32::MAX.to_ne_bytes());
    body.extend(key.server_port.to_be_bytes());
    body.extend(key.client_port.to_be_bytes());
    body.extend(key.server);
    body.extend(key.client);
    // Any interface, any cookie.
    body.extend(0u32.to_ne_bytes());
    body.extend([0xff; 8]);
    body
}
