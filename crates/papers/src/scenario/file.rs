//! The scenario file as it is written; docs/SCENARIOS.md explains it.

use super::units::{Queue, Rate, Time};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A scenario file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Determines every loss.
    #[serde(default)]
    pub seed: u64,
    /// End of the run.
    #[serde(default = "hour")]
    pub end: Time,
    /// The thesis' dumb-bell, instead of links.
    pub dumbbell: Option<DumbbellTable>,
    /// Links between named nodes.
    #[serde(default)]
    pub link: Vec<LinkTable>,
    /// Parallel strings between two nodes.
    #[serde(default)]
    pub switch: Vec<SwitchTable>,
    /// TCPs, by name.
    #[serde(default)]
    pub profile: BTreeMap<String, ProfileTable>,
    /// Transfers.
    pub flow: Vec<FlowTable>,
    /// Outages: what is down, and when.
    #[serde(default)]
    pub outage: Vec<OutageTable>,
    /// Local recovery at the first switch.
    pub recovery: Option<RecoveryTable>,
    /// Rate control at the first switch.
    pub rate_control: Option<RateControlTable>,
    /// What to vary; read before the rest.
    #[serde(default)]
    pub sweep: BTreeMap<String, Vec<toml::Value>>,
}

fn hour() -> Time {
    Time(3_600_000_000_000)
}

/// How a link loses packets.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub enum LossTable {
    /// Each with this probability.
    Share(f64),
    /// In bursts.
    Bursts {
        /// Probability of a change from good to bad, per packet.
        to_bad: f64,
        /// Back.
        to_good: f64,
        /// While good.
        #[serde(default)]
        loss_good: f64,
        /// While bad.
        loss_bad: f64,
    },
}

/// The thesis' topology. Every flow has a source and a destination of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DumbbellTable {
    /// Rate of access and egress links.
    pub rate: Rate,
    /// Rate of each string.
    pub strings: Vec<Rate>,
    /// S to R1, R1 to N, N to R2, R2 to D.
    pub delays: [Time; 4],
    /// Queue before each string.
    pub queue: Option<Queue>,
    /// Losses of each string.
    pub loss: Option<LossTable>,
}

/// A link; in both directions unless `one_way`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkTable {
    /// One end.
    pub from: String,
    /// The other.
    pub to: String,
    /// Without limit if not given.
    pub rate: Option<Rate>,
    /// One-way delay.
    pub delay: Time,
    /// Queue in the direction from `from` to `to`; the other direction has
    /// none.
    pub queue: Option<Queue>,
    /// Losses in the same direction.
    pub loss: Option<LossTable>,
    /// There is no way back.
    #[serde(default)]
    pub one_way: bool,
}

/// Strings from one node to another, each by the nodes between.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchTable {
    /// The node where they begin: the edge.
    pub from: String,
    /// The node where they meet.
    pub to: String,
    /// The nodes between, for each string.
    pub strings: Vec<Vec<String>>,
    /// Shares of new flows; equal if not given.
    #[serde(default)]
    pub weights: Vec<u32>,
}

/// A TCP: what it starts from, and what is different.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileTable {
    /// `ns2`, `ns3` or `modern`.
    pub base: Option<String>,
    /// `reno`, `newreno`, `sack`, `vegas` or `cubic`.
    pub congestion: Option<String>,
    pub mss_bytes: Option<u32>,
    pub header_bytes: Option<u32>,
    pub window_segments: Option<u32>,
    pub initial_window_segments: Option<u32>,
    pub syn_loss_window_segments: Option<u32>,
    pub syn_timeout: Option<Time>,
    pub syn_linear_timeouts: Option<u32>,
    pub rto_min: Option<Time>,
    pub rto_max: Option<Time>,
    pub tick: Option<Time>,
    pub delack: Option<Time>,
    pub delack_segments: Option<u32>,
    pub delack_syn: Option<bool>,
    pub quick_acks: Option<u32>,
    pub ack_push: Option<bool>,
    pub dup_acks: Option<u32>,
    pub impatient: Option<bool>,
    pub limited_transmit: Option<bool>,
    pub syn_adds_segment: Option<bool>,
    pub rto_floor_of_variation: Option<bool>,
    pub reduces_again: Option<bool>,
    pub ns3_recovery: Option<bool>,
    pub counts_segments: Option<bool>,
    pub hystart: Option<bool>,
    pub timestamps: Option<bool>,
    pub sack: Option<bool>,
    pub prr: Option<bool>,
    pub rack: Option<bool>,
    pub tlp: Option<bool>,
}

/// Transfers that are alike.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowTable {
    /// Number of flows.
    #[serde(default = "one")]
    pub count: u32,
    /// Node that they start from; not with a dumb-bell.
    pub from: Option<String>,
    /// Node that they go to; not with a dumb-bell.
    pub to: Option<String>,
    /// Start of the first flow.
    #[serde(default)]
    pub start: Time,
    /// Time from one flow's start to the next.
    #[serde(default)]
    pub every: Time,
    /// Segments of data.
    pub segments: u32,
    /// `ns2`, `ns3`, `modern`, or one of the file's.
    #[serde(default = "ns2")]
    pub profile: String,
    /// String; dealt out if not given.
    pub string: Option<u32>,
}

fn one() -> u32 {
    1
}

fn ns2() -> String {
    "ns2".to_owned()
}

/// Something is down.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutageTable {
    /// A string of the first switch.
    pub string: Option<u32>,
    /// Links, as `from-to`; both directions.
    #[serde(default)]
    pub links: Vec<String>,
    /// A node: all its links.
    pub node: Option<String>,
    /// Beginning.
    pub from: Time,
    /// End.
    pub until: Time,
    /// The string stays down, its flows move to the others.
    #[serde(default)]
    pub moves_flows: bool,
    /// Packets are lost at the far end only.
    #[serde(default)]
    pub far_end: bool,
}

/// HALR; what is not given is the default of docs/SCENARIOS.md.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecoveryTable {
    pub segments: Option<usize>,
    pub syn_only: Option<bool>,
    pub ack_copies: Option<u32>,
    pub flows_max: Option<usize>,
    pub bytes_max: Option<u64>,
    pub pace: Option<Rate>,
    pub tail_delay: Option<Time>,
    /// Policy as it ships: `syn`, `head`, `head+tail` or `all`.
    pub policy: Option<String>,
    /// `suspicion` or `always`.
    pub start: Option<String>,
    /// Time between two heartbeats.
    pub heartbeat: Option<Time>,
}

/// PFRC.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateControlTable {
    /// Capacity left after a failure.
    pub capacity: Rate,
    pub interval: Option<Time>,
    pub rtt: Time,
    pub alpha: Option<f64>,
    pub utilization: Option<f64>,
    pub window_min_bytes: Option<u32>,
    pub keeps_right_edge: Option<bool>,
    /// `printed` or `shipped`.
    pub law: Option<String>,
}
