//! Interfaces by name, with errors that name the interface.

use super::error::BpfError;
use crate::link;

/// The interface's index.
pub(crate) fn ifindex(interface: &str) -> Result<u32, BpfError> {
    let failed = |source| BpfError::NoInterface { interface: interface.into(), source };
    link::index_of(interface).map_err(failed)
}

/// The interface's Ethernet address.
pub(crate) fn mac(interface: &str) -> Result<[u8; 6], BpfError> {
    let failed = |source| BpfError::NoInterface { interface: interface.into(), source };
    link::hardware(interface).map_err(failed)
}
