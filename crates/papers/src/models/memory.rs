//! The memory that local recovery needs (thesis §3.4).

/// Bytes of one data packet and one acknowledgement for each flow.
#[must_use]
pub fn flows_bytes(flows: u64, data_bytes: u64, ack_bytes: u64) -> u64 {
    flows * (data_bytes + ack_bytes)
}

/// Bytes of the SYNs that arrive during an outage.
#[must_use]
pub fn syn_bytes(connections_per_s: f64, outage_s: f64, syn_bytes: u64) -> u64 {
    (connections_per_s * outage_s).round() as u64 * syn_bytes
}
