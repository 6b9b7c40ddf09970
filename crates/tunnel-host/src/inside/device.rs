//! The tunnel's interface. The kernel hands over up to 64 KB of one flow at a time, and takes as much
//! (IFF_VNET_HDR), so a system call is made per some forty packets instead of for each.

use super::Counters;
use crate::config::Config;
use holdfast_tunnel::{Endpoint, clamp_mss};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use tun_rs::{DeviceBuilder, GROTable, SyncDevice, VIRTIO_NET_HDR_LEN};

/// Most bytes of what the kernel hands over at once.
const SUPER_BYTES: usize = VIRTIO_NET_HDR_LEN + 65_535;
/// Packets that one of them is cut into at most: 64 KB in the smallest segments that are usual.
const PACKETS_MAX: usize = 256;
/// Packets that are given together.
const GIVEN_MAX: usize = 64;
/// Calls that are made in a turn before the other side has its turn.
const CALLS_PER_TURN: usize = 8;
/// Packets that the kernel queues before this program reads them. It is the machine that queues, for
/// it knows which packets are urgent; the kernel's 500 would be 110 ms at 50 Mbit/s.
const KERNEL_QUEUE_PACKETS: u32 = 64;

/// The interface, with buffers.
pub struct Device {
    device: SyncDevice,
    super_packet: Vec<u8>,
    packets: Vec<Vec<u8>>,
    lengths: Vec<usize>,
    given: Vec<Vec<u8>>,
    given_count: usize,
    gro: GROTable,
    mtu: usize,
    /// Nothing is read, so that the kernel holds its senders back.
    is_paused: bool,
    pub counters: Counters,
}

impl Device {
    /// Makes the interface of a file, with its addresses, and switches it on. It is gone when this
    /// program is.
    ///
    /// # Errors
    /// With what could not be done.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        use anyhow::Context as _;
        let name = &config.interface;
        let mut builder = DeviceBuilder::new()
            .name(name.clone())
            .mtu(config.inner_mtu)
            .offload(true)
            .tx_queue_len(KERNEL_QUEUE_PACKETS);
        for address in &config.addresses {
            builder = match address.ip {
                IpAddr::V4(ip) => builder.ipv4(ip, address.prefix, None),
                IpAddr::V6(ip) => builder.ipv6(ip, address.prefix),
            };
        }
        let device = builder.build_sync().with_context(|| format!("the interface {name}"))?;
        device.set_nonblocking(true).with_context(|| format!("the interface {name}"))?;
        let packet_bytes = usize::from(config.inner_mtu);
        Ok(Self {
            device,
            super_packet: vec![0; SUPER_BYTES],
            packets: vec![vec![0; packet_bytes]; PACKETS_MAX],
            lengths: vec![0; PACKETS_MAX],
            given: (0..GIVEN_MAX).map(|_| Vec::with_capacity(2 * SUPER_BYTES)).collect(),
            given_count: 0,
            gro: GROTable::default(),
            mtu: packet_bytes,
            is_paused: false,
            counters: Counters::default(),
        })
    }

    pub fn take(
        &mut self,
        machine: &mut Endpoint,
        is_ready: bool,
        now: Duration,
    ) -> io::Result<bool> {
        for _ in 0..CALLS_PER_TURN {
            self.is_paused = is_ready && machine.is_filling();
            if self.is_paused {
                return Ok(false);
            }
            let read = self.device.recv_multiple(
                &mut self.super_packet,
                &mut self.packets,
                &mut self.lengths,
                0,
            );
            let count = match read {
                Ok(count) => count,
                Err(error) => match error.raw_os_error() {
                    // EIO: the interface is down; it may come up again.
                    Some(libc::EAGAIN | libc::EINTR | libc::EIO) => return Ok(false),
                    Some(libc::EBADFD) => return Err(error),
                    // A packet that cannot be cut.
                    _ if error.kind() != ErrorKind::NotFound => {
                        self.counters.refused += 1;
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            for (packet, length) in self.packets.iter_mut().zip(&self.lengths).take(count) {
                let packet = packet.get_mut(..*length).unwrap_or_default();
                self.counters.clamped += u64::from(clamp_mss(packet, self.mtu));
                if is_ready && machine.handle_packet(packet, now).is_ok() {
                    self.counters.taken += 1;
                    self.counters.taken_bytes += packet.len() as u64;
                } else {
                    self.counters.refused += 1;
                }
            }
        }
        Ok(true)
    }

    /// Whether packets of the inside wait for room in the machine.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Adds a packet to those that are given together.
    pub fn give(&mut self, packet: &[u8]) {
        let Some(buffer) = self.given.get_mut(self.given_count) else { return };
        buffer.clear();
        buffer.resize(VIRTIO_NET_HDR_LEN, 0);
        buffer.extend_from_slice(packet);
        // The other end's interface may have larger packets than this one.
        let is_clamped = clamp_mss(&mut buffer[VIRTIO_NET_HDR_LEN..], self.mtu);
        self.counters.clamped += u64::from(is_clamped);
        self.counters.given += 1;
        self.counters.given_bytes += packet.len() as u64;
        self.given_count += 1;
        if self.given_count == GIVEN_MAX {
            self.flush();
        }
    }

    /// Hands the packets to the kernel.
    pub fn flush(&mut self) {
        if self.given_count == 0 {
            return;
        }
        let packets = &mut self.given[..self.given_count];
        // A packet that the kernel does not take is lost, as on any path.
        if self.device.send_multiple(&mut self.gro, packets, VIRTIO_NET_HDR_LEN).is_err() {
            self.counters.undelivered += 1;
        }
        self.given_count = 0;
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
