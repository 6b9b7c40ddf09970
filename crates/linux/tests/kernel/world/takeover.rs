//! A connection between the client and the primary, and what is needed to move it to the backup.

use super::{PORT, World};
use holdfast_linux::address::AddressSocket;
use holdfast_linux::link::Link;
use holdfast_linux::neighbour::Announcer;
use holdfast_linux::raw::RawSender;
use holdfast_linux::repair::{ClosingState, RestoreSpec};
use holdfast_wire::message::{ConnKey, ConnRecord};
use holdfast_wire::packet::{Flags, TcpOptions, TcpSegment, mapped};
use holdfast_wire::seq::SeqNo;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

pub const TCP_TIMESTAMP: libc::c_int = 24;
pub const SIOCOUTQNSD: libc::c_ulong = 0x894b;
pub fn get<const N: usize>(fd: &impl AsRawFd, name: libc::c_int) -> [u32; N] {
    let mut value = [0u32; N];
    let mut len = size_of_val(&value) as libc::socklen_t;
    let start = value.as_mut_ptr().cast();
    // SAFETY: pointer and length describe `value`.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, name, start, &raw mut len) };
    assert_eq!(result, 0, "getsockopt {name}");
    value
}

pub fn set(fd: &impl AsRawFd, name: libc::c_int, value: i32) {
    let start = (&raw const value).cast();
    // SAFETY: pointer and length describe `value`.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, name, start, 4) };
    assert_eq!(result, 0, "setsockopt {name}");
}

pub fn queued(fd: &impl AsRawFd, request: libc::c_ulong) -> usize {
    let mut value: libc::c_int = 0;
    // SAFETY: these ioctls write one int.
    assert_eq!(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, &raw mut value) }, 0);
    value as usize
}

pub fn info(fd: &impl AsRawFd) -> libc::tcp_info {
    // SAFETY: tcp_info is plain data; all zero is valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as libc::socklen_t;
    let start = (&raw mut info).cast();
    // SAFETY: pointer and length describe `info`.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, start, &raw mut len)
    };
    assert_eq!(result, 0);
    info
}

/// What gate and log would know of the dead host's connection.
pub struct Dead {
    pub record: ConnRecord,
    pub rcv_nxt: SeqNo,
    pub unread: usize,
    pub snd_una: SeqNo,
    pub in_flight: usize,
    pub unsent: usize,
    pub right_edge: SeqNo,
    pub peer_window: u32,
    pub tsval: u32,
}

/// Reads a connection's numbers from its living socket. No packet may arrive meanwhile.
pub fn dissect(server: &TcpStream, world: &World, client_port: u16) -> Dead {
    let tcp = info(server);
    set(server, libc::TCP_REPAIR, 1);
    set(server, libc::TCP_REPAIR_QUEUE, 1);
    let [rcv_end] = get(server, libc::TCP_QUEUE_SEQ);
    set(server, libc::TCP_REPAIR_QUEUE, 2);
    let [write_seq] = get(server, libc::TCP_QUEUE_SEQ);
    let [_, peer_window, _, rcv_wnd, rcv_wup] = get(server, libc::TCP_REPAIR_WINDOW);
    let [tsval] = get(server, TCP_TIMESTAMP);
    let (unread, unacked) = (queued(server, libc::FIONREAD), queued(server, libc::TIOCOUTQ));
    let unsent = queued(server, SIOCOUTQNSD);
    set(server, libc::TCP_REPAIR, -1);
    let has = |bit: u8| tcp.tcpi_options & bit != 0;
    let wscale = |shift: u8| if has(4) { shift } else { 255 };
    let scales = tcp.tcpi_snd_rcv_wscale;
    let key = ConnKey {
        server: mapped(world.vip()),
        client: mapped(world.client()),
        server_port: PORT,
        client_port,
    };
    Dead {
        record: ConnRecord {
            key,
            iss: SeqNo(0),
            irs: SeqNo(0),
            mss: tcp.tcpi_advmss as u16 + if has(1) { 12 } else { 0 },
            peer_mss: if world.v6 { 1440 } else { 1460 },
            rcv_wscale: wscale(scales >> 4),
            snd_wscale: wscale(scales & 15),
            sack: has(2),
            tsval: has(1).then_some(tsval & !1),
            window: 0,
        },
        rcv_nxt: SeqNo(rcv_end.wrapping_sub(unread as u32)),
        unread,
        snd_una: SeqNo(write_seq.wrapping_sub(unacked as u32)),
        in_flight: unacked - unsent,
        unsent,
        right_edge: SeqNo(rcv_wup.wrapping_add(rcv_wnd)),
        peer_window,
        tsval: tsval & !1,
    }
}

pub fn spec<'a>(dead: &'a Dead, unread: &'a [&'a [u8]], in_flight: &'a [u8]) -> RestoreSpec<'a> {
    RestoreSpec {
        key: dead.record.key,
        record: &dead.record,
        rcv_nxt: dead.rcv_nxt,
        unread,
        snd_una: dead.snd_una,
        in_flight,
        peer_window_bytes: dead.peer_window,
        right_edge: dead.right_edge,
        tsval: dead.record.tsval.map(|_| dead.tsval.wrapping_add(2000) & !1),
        client_clock: None,
        congestion: Some("cubic"),
        send_buffer_bytes: 1 << 20,
        recv_buffer_bytes: 1 << 20,
        closing: ClosingState::Established,
    }
}

/// The backup's tools, opened in its namespace.
pub struct Backup {
    pub socket: OwnedFd,
    pub raw: RawSender,
    pub address: AddressSocket,
    pub announcer: Announcer,
    pub link: Link,
}

impl Backup {
    pub fn new(world: &World, family: libc::c_int) -> Self {
        world.within("b", || {
            // SAFETY: socket() touches no memory of ours.
            let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
            assert!(fd >= 0);
            Self {
                // SAFETY: the descriptor is new.
                socket: unsafe { OwnedFd::from_raw_fd(fd) },
                raw: RawSender::open(None).unwrap(),
                address: AddressSocket::open().unwrap(),
                announcer: Announcer::open().unwrap(),
                link: Link::by_name("m0").unwrap(),
            }
        })
    }

    pub fn take_address(&mut self, world: &World) {
        let vip = mapped(world.vip());
        self.address.add(self.link.index, &vip).unwrap();
        self.announcer.announce(&self.link, &vip).unwrap();
    }

    pub fn kick(&self, spec: &RestoreSpec<'_>) {
        let packet = TcpSegment {
            key: spec.key,
            to_client: true,
            seq: spec.snd_una,
            ack: spec.rcv_end(),
            flags: Flags::ACK,
            window: 1000,
            options: TcpOptions {
                timestamps: spec.tsval.map(|value| (value, 0)),
                ..TcpOptions::default()
            },
            payload: &[],
        };
        self.raw.send(&packet.build().unwrap()).unwrap();
    }

    pub fn into_stream(self) -> TcpStream {
        // SAFETY: the descriptor's ownership moves.
        unsafe { TcpStream::from_raw_fd(self.socket.into_raw_fd()) }
    }
}

pub fn fence(world: &World) {
    world.ip("p", "link set m0 down");
    world.route_to("cb");
}

pub fn listen(world: &World, dual_stack: bool) -> TcpListener {
    let any = if world.v6 || dual_stack { "::" } else { "0.0.0.0" };
    let address = SocketAddr::new(any.parse().unwrap(), PORT);
    world.within("p", || TcpListener::bind(address).unwrap())
}

/// An idle connection between `client` and a server whose numbers are then read.
pub fn idle(world: &World) -> (TcpStream, TcpStream, Backup) {
    let listener = listen(world, false);
    let mut client = world.connect();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
    let backup = Backup::new(world, if world.v6 { libc::AF_INET6 } else { libc::AF_INET });
    std::thread::sleep(Duration::from_millis(60));
    (client, server, backup)
}
