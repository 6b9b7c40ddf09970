//! Drops the edge's copies of clients' packets before they reach the backup's IP stack, until the
//! backup is live; packet sockets (the tap) see them first (decision 2). See
//! `bpf/tapdrop.bpf.c`.

use super::error::BpfError;
use super::layout::TAPDROP_COUNTERS;
use super::loader::{Counters, Detached, Object};
use super::owner::Owner;
use aya::maps::{Array, MapData};
use aya::programs::TcAttachType::Ingress;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

static OBJECT: Object = Object {
    name: "tapdrop",
    bytes: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tapdrop.bpf.o")),
    maps: &["services", "addresses", "counters", "tapdrop_live"],
    counters: &TAPDROP_COUNTERS,
    // Behind what hands frames on where there is no edge.
    priority: 111,
};

/// The attached program. Dropping it leaves it in place.
pub struct TapDrop {
    live: Array<MapData, u32>,
    counters: Counters,
    interface: String,
    pin_dir: PathBuf,
}

impl TapDrop {
    /// Attaches to `interface`, in place of any earlier one, and drops packets
    /// to `services` until [`TapDrop::set_live`].
    ///
    /// # Errors
    /// [`BpfError`] if the kernel refuses, the interface does not exist, or there
    /// are no or too many services.
    pub fn attach(
        interface: &str,
        services: &[(IpAddr, u16)],
        pin_dir: &Path,
    ) -> Result<Self, BpfError> {
        OBJECT.unpin(pin_dir)?;
        let mut loaded = OBJECT.load(pin_dir, &[])?;
        loaded.set_services(services)?;
        loaded.attach("tapdrop", &[interface], Ingress)?;
        Ok(Self {
            live: loaded.map("tapdrop_live")?,
            counters: loaded.counters()?,
            interface: interface.into(),
            pin_dir: pin_dir.into(),
        })
    }

    /// Lets packets to the services pass (`true`) or drops them from now on.
    ///
    /// # Errors
    /// [`BpfError::Map`] if the kernel refuses the map update.
    pub fn set_live(&mut self, live: bool) -> Result<(), BpfError> {
        self.live.set(0, u32::from(live), 0).map_err(BpfError::map("tapdrop_live"))
    }

    /// Attaches the program again if somebody has removed it; returns it then.
    ///
    /// # Errors
    /// [`BpfError::Attach`].
    pub fn mend(interface: &str, pin_dir: &Path) -> Result<Vec<Detached>, BpfError> {
        OBJECT.mend(pin_dir, &[("tapdrop", interface, Ingress)])
    }

    /// # Errors
    /// [`BpfError::OtherGroup`] if another group has its place at the interface.
    pub fn is_free(
        interface: &str,
        services: &[(IpAddr, u16)],
        pin_dir: &Path,
    ) -> Result<(), BpfError> {
        let own = Owner::of_services(services);
        OBJECT.refuse_others(&[interface], &[Ingress], &own, pin_dir)
    }

    /// Counts since it was attached.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.read()
    }

    /// Removes program and pins.
    ///
    /// # Errors
    /// [`BpfError::PinDir`] if pins cannot be removed.
    pub fn detach(self) -> Result<(), BpfError> {
        Self::detach_stale(&self.interface, &[], &self.pin_dir).map(drop)
    }

    /// Removes what an earlier process left; nothing to remove is no error. Another
    /// group's programs, which serve none of `services`, stay.
    ///
    /// # Errors
    /// [`BpfError::PinDir`] if pins cannot be removed.
    pub fn detach_stale(
        interface: &str,
        services: &[(IpAddr, u16)],
        pin_dir: &Path,
    ) -> Result<Vec<Detached>, BpfError> {
        let owner = (!services.is_empty()).then(|| Owner::of_services(services));
        OBJECT.detach_all(&[interface], &[Ingress], owner, pin_dir)
    }
}
