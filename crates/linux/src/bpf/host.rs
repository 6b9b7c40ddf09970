//! A host server's end of a spread group (`bpf/host.bpf.c`): removes the outer header of packets
//! from the edge's tunnel, and lowers the MSS option of SYN-ACKs so that segments fit into it.

use super::error::BpfError;
use super::layout::{HOST_COUNTERS, HostConfig};
use super::loader::{Counters, Detached, Mended, Object};
use super::owner::{GROUP_NAME, Owner};
use aya::maps::{Array, MapData};
use aya::programs::TcAttachType::{self, Egress, Ingress};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

static OBJECT: Object = Object {
    name: "host",
    bytes: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/host.bpf.o")),
    maps: &[GROUP_NAME, "addresses", "counters", "capture_credit", "captures", "host_config"],
    counters: &HOST_COUNTERS,
    priority: 104,
};

const DIRECTIONS: [TcAttachType; 2] = [Egress, Ingress];

/// Configuration of a host server's end.
#[derive(Clone, Debug)]
pub struct HostEndConfig {
    /// The group's name, by which its programs are told from another group's.
    pub group: String,
    /// Interface towards the edge.
    pub interface: String,
    /// This host's tunnel endpoints (outer destinations).
    pub tunnel4: Option<Ipv4Addr>,
    pub tunnel6: Option<Ipv6Addr>,
    /// The edge's prefixes, as address and length: only packets with such an outer source are
    /// taken.
    pub outer4: (Ipv4Addr, u8),
    pub outer6: (Ipv6Addr, u8),
    /// The services' addresses: only packets to these are taken out of the tunnel.
    pub addresses: Vec<IpAddr>,
    /// MTU of the path from the edge in bytes, for outer packets; 0 leaves the MSS as it is.
    pub mtu: u32,
    /// Directory for pins; a BPF file system is mounted there if needed.
    pub pin_dir: PathBuf,
}

/// The attached programs. Dropping them leaves them in place.
pub struct HostEnd {
    counters: Counters,
}

impl HostEnd {
    /// Attaches to the interface, in place of any earlier end.
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses, the interface does not exist, or there
    /// are no or too many addresses.
    pub fn attach(config: &HostEndConfig) -> Result<Self, BpfError> {
        Self::is_free(&config.interface, &config.group, &config.pin_dir)?;
        OBJECT.unpin(&config.pin_dir)?;
        let mut loaded = OBJECT.load(&config.pin_dir, &[])?;
        loaded.set_group(&config.group)?;
        loaded.set_addresses(&config.addresses)?;
        let mut row: Array<MapData, HostConfig> = loaded.map("host_config")?;
        row.set(0, raw_config(config), 0).map_err(BpfError::map("host_config"))?;
        let interface = [config.interface.as_str()];
        loaded.attach("host_egress", &interface, Egress)?;
        loaded.attach("host_ingress", &interface, Ingress)?;
        Ok(Self { counters: loaded.counters()? })
    }

    /// Attaches the programs of `pin_dir` again that somebody has removed, alone or with their
    /// interface.
    #[must_use]
    pub fn mend(interface: &str, pin_dir: &Path) -> Mended {
        let places = [("host_egress", interface, Egress), ("host_ingress", interface, Ingress)];
        OBJECT.mend_each(pin_dir, places)
    }

    /// Counts since it was attached.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.read()
    }

    /// Removes what this or an earlier process left; nothing to remove is no error. Another
    /// group's programs stay.
    ///
    /// # Errors
    /// [`BpfError::PinDir`] if pins cannot be removed.
    pub fn detach_stale(
        interface: &str,
        group: &str,
        pin_dir: &Path,
    ) -> Result<Vec<Detached>, BpfError> {
        OBJECT.detach_all(&[interface], &DIRECTIONS, Some(Owner::Group(group.into())), pin_dir)
    }

    /// # Errors
    /// [`BpfError::OtherGroup`] if another group has its place at the interface.
    pub fn is_free(interface: &str, group: &str, pin_dir: &Path) -> Result<(), BpfError> {
        OBJECT.refuse_others(&[interface], &DIRECTIONS, &Owner::Group(group.into()), pin_dir)
    }
}

fn raw_config(config: &HostEndConfig) -> HostConfig {
    let mask4 = u32::MAX.checked_shl(32 - u32::from(config.outer4.1)).unwrap_or(0);
    let mask6 = u128::MAX.checked_shl(128 - u32::from(config.outer6.1)).unwrap_or(0);
    HostConfig {
        tunnel4: config.tunnel4.map_or([0; 4], |ip| ip.octets()),
        outer4: config.outer4.0.octets(),
        outer4_mask: mask4.to_be_bytes(),
        mtu: config.mtu,
        tunnel6: config.tunnel6.map_or([0; 16], |ip| ip.octets()),
        outer6: config.outer6.0.octets(),
        outer6_mask: mask6.to_be_bytes(),
    }
}
