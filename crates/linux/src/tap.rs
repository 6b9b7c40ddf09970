//! Seeing every packet for the service before the local stack does.
//!
//! An `AF_PACKET` socket for all protocols gets its copy before tc ingress, where
//! the backup drops the service's packets. A socket filter lets through only TCP
//! to the service addresses; the ring of packets waits in the socket's buffer
//! until [`TapSocket::drain`].

use crate::link::{Link, LinkError};
use crate::packet::PacketSocket;
use crate::sockopt::{self, Address, checked};
use crate::way;
use holdfast_wire::packet::{Checksum, mapped_ipv4};
use libc::{c_int, sock_filter};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use zerocopy::{FromBytes, IntoBytes};

/// Most services that one tap can watch: the filter's jumps reach that far.
pub const SERVICES_MAX: usize = 16;
/// Most packets taken by one system call.
pub const BATCH: usize = 8;
/// Largest packet taken whole, in bytes: one IP packet, even after GRO.
pub const PACKET_MAX: usize = 65_536;
/// Default size of the socket's buffer in bytes: it must hold what all clients
/// may send in one window while a promotion is busy.
pub const BUFFER_DEFAULT_BYTES: usize = 256 << 20;

// linux/if_packet.h
const PACKET_STATISTICS: c_int = 6;
const PACKET_AUXDATA: c_int = 8;
const PACKET_IGNORE_OUTGOING: c_int = 23;
const TP_STATUS_CSUM_NOT_READY: u32 = 1 << 3;
const TP_STATUS_CSUM_VALID: u32 = 1 << 7;
const ETHERTYPE_ALL: u16 = 0x0003;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Where the hardware header is, for a socket that gets packets without it.
const LINK_HEADER: u32 = libc::SKF_LL_OFF as u32;
/// The ancillary load that answers with the Ethernet type (`SKF_AD_PROTOCOL`).
const PROTOCOL_ANCILLARY: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
/// Room for one control message with the packet's auxiliary data, in 8-byte words.
const CONTROL_WORDS: usize = 8;

/// One address and port to watch; IPv4 mapped into IPv6, port in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    pub address: [u8; 16],
    pub port: u16,
}

/// Why a tap could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("{0} services on one tap; at most {SERVICES_MAX} are possible")]
    TooManyServices(usize),
    #[error("{step}: {source}; the daemon needs CAP_NET_RAW and CAP_NET_ADMIN")]
    Open { step: &'static str, source: io::Error },
    #[error("reading the tap: {0}")]
    Read(io::Error),
}

/// Packets that the tap has lost since the last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TapDrops {
    /// Packets for which the buffer had no room.
    pub overflow: u64,
    /// Packets longer than [`PACKET_MAX`].
    pub oversize: u64,
}

/// A packet socket on one interface.
pub struct TapSocket {
    fd: PacketSocket,
    buffers: Box<[u8]>,
    oversize: u64,
    /// Number of the interface.
    index: u32,
}

impl TapSocket {
    /// Opens the tap on the interface `name`, with a buffer of `buffer_bytes`
    /// (see [`BUFFER_DEFAULT_BYTES`]).
    ///
    /// # Errors
    /// [`TapError`].
    pub fn open(name: &str, services: &[Service], buffer_bytes: usize) -> Result<Self, TapError> {
        if services.len() > SERVICES_MAX {
            return Err(TapError::TooManyServices(services.len()));
        }
        Self::open_for(name, &filter(services), buffer_bytes)
    }

    /// Opens a tap for all frames to a hardware address, whoever has it.
    ///
    /// # Errors
    /// [`TapError`].
    pub fn open_for_address(
        name: &str,
        mac: [u8; 6],
        buffer_bytes: usize,
    ) -> Result<Self, TapError> {
        Self::open_for(name, &filter_address(mac), buffer_bytes)
    }

    fn open_for(name: &str, wanted: &[sock_filter], buffer_bytes: usize) -> Result<Self, TapError> {
        let link = Link::by_name(name)?;
        let failed = |step| move |source| TapError::Open { step, source };
        // Nothing arrives before the filter stands and bind() names a protocol.
        let fd = PacketSocket::open(libc::SOCK_DGRAM | libc::SOCK_NONBLOCK)
            .map_err(failed("opening a packet socket"))?;
        attach(fd.as_fd(), wanted).map_err(failed("SO_ATTACH_FILTER"))?;
        let on: c_int = 1;
        let size = c_int::try_from(buffer_bytes / 2).unwrap_or(c_int::MAX / 2);
        let set = |level, name, value: c_int| sockopt::set(fd.as_fd(), level, name, &value);
        // The kernel doubles the size.
        set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, size).map_err(failed("SO_RCVBUFFORCE"))?;
        set(libc::SOL_PACKET, PACKET_AUXDATA, on).map_err(failed("PACKET_AUXDATA"))?;
        set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, on)
            .map_err(failed("PACKET_IGNORE_OUTGOING"))?;
        sockopt::bind(fd.as_fd(), &Address::link(link.index, ETHERTYPE_ALL, None))
            .map_err(failed("binding the packet socket"))?;
        let buffers = vec![0; BATCH * PACKET_MAX].into();
        Ok(Self { fd, buffers, oversize: 0, index: link.index })
    }

    /// Taps the interface with this number from now on, which the name has if the interface was
    /// made anew. What has passed meanwhile is lost, as any packet may be.
    ///
    /// # Errors
    /// [`TapError::Open`].
    pub fn follow(&mut self, index: u32) -> Result<(), TapError> {
        if self.index == index {
            return Ok(());
        }
        sockopt::bind(self.fd.as_fd(), &Address::link(index, ETHERTYPE_ALL, None))
            .map_err(|source| TapError::Open { step: "binding the packet socket", source })?;
        self.index = index;
        Ok(())
    }

    /// The descriptor to poll for input.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Hands every waiting packet to `take`, IP header first, without blocking;
    /// stops after the batch that reaches `limit`. Returns how many there were.
    ///
    /// # Errors
    /// [`TapError::Read`], as when the interface went away.
    pub fn drain(
        &mut self,
        limit: usize,
        mut take: impl FnMut(&[u8], Checksum),
    ) -> Result<usize, TapError> {
        let mut total = 0;
        while total < limit {
            let count = self.batch(&mut take)?;
            total += count;
            if count < BATCH {
                break;
            }
        }
        Ok(total)
    }

    /// Packets lost since the last call.
    ///
    /// # Errors
    /// [`TapError::Read`].
    pub fn drops(&mut self) -> Result<TapDrops, TapError> {
        /// `struct tpacket_stats`; reading it resets the kernel's counters.
        #[derive(FromBytes, IntoBytes)]
        #[repr(C)]
        struct Statistics {
            packets: u32,
            drops: u32,
        }
        let counted: Statistics =
            sockopt::get(self.fd.as_fd(), libc::SOL_PACKET, PACKET_STATISTICS)
                .map_err(TapError::Read)?;
        let oversize = std::mem::take(&mut self.oversize);
        Ok(TapDrops { overflow: u64::from(counted.drops), oversize })
    }

    fn batch(&mut self, take: &mut impl FnMut(&[u8], Checksum)) -> Result<usize, TapError> {
        let mut control = [[0u64; CONTROL_WORDS]; BATCH];
        let mut pieces: [libc::iovec; BATCH] = std::array::from_fn(|_| libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: PACKET_MAX,
        });
        // SAFETY: mmsghdr is plain data; all zero is a valid value.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        for (index, buffer) in self.buffers.chunks_exact_mut(PACKET_MAX).enumerate() {
            pieces[index].iov_base = buffer.as_mut_ptr().cast();
            let header = &mut messages[index].msg_hdr;
            header.msg_iov = &raw mut pieces[index];
            header.msg_iovlen = 1;
            header.msg_control = control[index].as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&control[index]) as _;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: every message points to buffers that live and are ours alone
        // across the call: `pieces` and `control` on the stack, `self.buffers` behind.
        let result = checked(unsafe {
            libc::recvmmsg(
                self.fd.as_fd().as_raw_fd(),
                messages.as_mut_ptr(),
                BATCH as libc::c_uint,
                flags as _,
                std::ptr::null_mut(),
            )
        });
        let count = match result {
            Ok(count) => count as usize,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(0),
            Err(error) => return Err(TapError::Read(error)),
        };
        let buffers = self.buffers.chunks_exact(PACKET_MAX);
        for (message, buffer) in messages[..count].iter().zip(buffers) {
            match buffer.get(..message.msg_len as usize) {
                Some(l3) => take(l3, checksum_state(&message.msg_hdr)),
                None => self.oversize += 1,
            }
        }
        Ok(count)
    }
}

/// What the packet's auxiliary data says about its checksum.
fn checksum_state(header: &libc::msghdr) -> Checksum {
    // SAFETY: the kernel has filled in the control buffer and its length.
    let message = unsafe { libc::CMSG_FIRSTHDR(header) };
    if message.is_null() {
        return Checksum::Verify;
    }
    // SAFETY: CMSG_FIRSTHDR answers only with a whole header inside the buffer.
    let (level, kind) = unsafe { ((*message).cmsg_level, (*message).cmsg_type) };
    if level != libc::SOL_PACKET || kind != PACKET_AUXDATA {
        return Checksum::Verify;
    }
    // SAFETY: this message's data is a tpacket_auxdata, which begins with the
    // 32-bit status; CMSG_DATA need not be aligned.
    let status = unsafe { libc::CMSG_DATA(message).cast::<u32>().read_unaligned() };
    if status & (TP_STATUS_CSUM_NOT_READY | TP_STATUS_CSUM_VALID) == 0 {
        Checksum::Verify
    } else {
        Checksum::Partial
    }
}

fn attach(fd: BorrowedFd<'_>, program: &[sock_filter]) -> io::Result<()> {
    let program =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let start = (&raw const program).cast();
    let len = size_of_val(&program) as libc::socklen_t;
    // SAFETY: the kernel only reads the program, which lives across the call.
    checked(unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, start, len)
    })?;
    Ok(())
}

// linux/bpf_common.h: the instructions the filter needs.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF_INDEXED: u16 = 0x48;
const LOAD_X_IPV4_HEADER_LEN: u16 = 0xb1;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

fn op(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Equal: go on; otherwise skip `skip` instructions.
fn unless_equal(k: u32, skip: u8) -> sock_filter {
    sock_filter { code: JUMP_IF_EQUAL, jt: 0, jf: skip, k }
}

/// Lets through frames to one hardware address.
fn filter_address(mac: [u8; 6]) -> Vec<sock_filter> {
    let [a, b, c, d, e, f] = mac;
    vec![
        op(LOAD_WORD, LINK_HEADER),
        unless_equal(u32::from_be_bytes([a, b, c, d]), 3),
        op(LOAD_HALF, LINK_HEADER + 4),
        unless_equal(u32::from_be_bytes([0, 0, e, f]), 1),
        op(RETURN, u32::MAX),
        op(RETURN, 0),
    ]
}

/// Lets through TCP to each service, and the edge's signs;
/// [`holdfast_wire::packet::TcpPacket::parse`] handles fragments and IPv6 extension headers.
/// One block per service, which falls through to the next one.
fn filter(services: &[Service]) -> Vec<sock_filter> {
    let accept = op(RETURN, u32::MAX);
    let ethertype = op(LOAD_HALF, PROTOCOL_ANCILLARY);
    // The signs prove that the edge's frames reach this tap.
    let mut program = vec![ethertype, unless_equal(u32::from(way::ETHERTYPE), 1), accept];
    for service in services {
        let port = u32::from(service.port);
        if let Some(ipv4) = mapped_ipv4(&service.address) {
            program.extend([
                ethertype,
                unless_equal(u32::from(ETHERTYPE_IPV4), 8),
                op(LOAD_BYTE, 9),
                unless_equal(libc::IPPROTO_TCP as u32, 6),
                op(LOAD_WORD, 16),
                unless_equal(u32::from_be_bytes(ipv4), 4),
                op(LOAD_X_IPV4_HEADER_LEN, 0),
                op(LOAD_HALF_INDEXED, 2),
                unless_equal(port, 1),
                accept,
            ]);
            continue;
        }
        program.extend([
            ethertype,
            unless_equal(u32::from(ETHERTYPE_IPV6), 13),
            op(LOAD_BYTE, 6),
            unless_equal(libc::IPPROTO_TCP as u32, 11),
        ]);
        for (index, word) in service.address.chunks_exact(4).enumerate() {
            let word = word.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
            program.push(op(LOAD_WORD, 24 + 4 * index as u32));
            program.push(unless_equal(word, 9 - 2 * index as u8));
        }
        program.extend([op(LOAD_HALF, 42), unless_equal(port, 1), accept]);
    }
    program.push(op(RETURN, 0));
    program
}
