//! The scenario file as it is written; docs/SCENARIOS.md explains it.

use super::units::{Queue, Rate, Time};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A scenario file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Seed that determines every loss.
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
    /// Kinds of TCP, by name.
    #[serde(default)]
    pub profile: BTreeMap<String, ProfileTable>,
    /// Transfers.
    pub flow: Vec<FlowTable>,
    /// Outages: what is down, and when.
    #[serde(default)]
    pub outage: Vec<OutageTable>,
    /// Local recovery at the first switch.
    pub recover: Option<RecoverTable>,
    /// Rate control at the first switch.
    pub regulate: Option<RegulateTable>,
    /// Values to vary; read before the rest of the file.
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
    /// Every packet is lost with this probability.
    Share(f64),
    /// Packets are lost in bursts.
    Bursts {
        /// Probability of a change from good to bad, for each packet.
        to_bad: f64,
        /// Probability of a change from bad to good, for each packet.
        to_good: f64,
        /// Share of packets lost while good.
        #[serde(default)]
        loss_good: f64,
        /// Share of packets lost while bad.
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
    /// One-way delays from S to R1, R1 to N, N to R2, and R2 to D.
    pub delays: [Time; 4],
    /// Queue in front of each string.
    pub queue: Option<Queue>,
    /// Losses of each string.
    pub loss: Option<LossTable>,
}

/// A link; in both directions unless `one_way`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkTable {
    /// Node at one end.
    pub from: String,
    /// Node at the other end.
    pub to: String,
    /// Rate of the link; no limit if not given.
    pub rate: Option<Rate>,
    /// One-way delay.
    pub delay: Time,
    /// Queue in the direction from `from` to `to`; the other direction has none.
    pub queue: Option<Queue>,
    /// Losses in the direction from `from` to `to`.
    pub loss: Option<LossTable>,
    /// Whether the link leads in one direction only.
    #[serde(default)]
    pub one_way: bool,
}

/// Strings from one node to another, each given by the nodes between.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchTable {
    /// The node where the strings begin: the edge.
    pub from: String,
    /// The node where the strings meet.
    pub to: String,
    /// The nodes between, for each string.
    pub strings: Vec<Vec<String>>,
    /// Shares of new flows, by string; equal if not given.
    #[serde(default)]
    pub weights: Vec<u32>,
}

/// A TCP: the profile that it starts from, and what is different.
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

/// Flows that are alike.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowTable {
    /// Number of flows.
    #[serde(default = "one")]
    pub count: u32,
    /// Node at which the flows start; not with a dumb-bell.
    pub from: Option<String>,
    /// Node at which the flows end; not with a dumb-bell.
    pub to: Option<String>,
    /// Start of the first flow.
    #[serde(default)]
    pub start: Time,
    /// Time from one flow's start to the next.
    #[serde(default)]
    pub every: Time,
    /// Segments of data in each flow.
    pub segments: u32,
    /// Profile of the flows: `ns2`, `ns3`, `modern`, or one of the file's.
    #[serde(default = "ns2")]
    pub profile: String,
    /// String of the flows; distributed by the switch if not given.
    pub string: Option<u32>,
}

fn one() -> u32 {
    1
}

fn ns2() -> String {
    "ns2".to_owned()
}

/// An outage: what is down, and when.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutageTable {
    /// String of the first switch that is down.
    pub string: Option<u32>,
    /// Links that are down in both directions, as `from-to`.
    #[serde(default)]
    pub links: Vec<String>,
    /// Node that is down, with all its links.
    pub node: Option<String>,
    /// Beginning of the outage.
    pub from: Time,
    /// End of the outage.
    pub until: Time,
    /// Whether the string stays down and its flows move to the others at the end.
    #[serde(default)]
    pub moves_flows: bool,
    /// Whether packets are lost at the far end only.
    #[serde(default)]
    pub far_end: bool,
}

/// Settings of HALR; what is not given is the default of docs/SCENARIOS.md.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecoverTable {
    /// What is kept: `off`, `syn`, `head`, `head+tail` or `all`.
    pub policy: Option<String>,
    /// The machine: `shipped`, or the thesis', `printed`.
    pub law: Option<String>,
    pub flows_max: Option<usize>,
    pub memory_mb: Option<u64>,
    pub pace_mbit: Option<u64>,
    /// Of the shipped machine only: when packets begin to be kept, `suspicion` or `always`.
    pub start: Option<String>,
    pub heartbeat_ms: Option<f64>,
    pub heaviest: Option<usize>,
    pub age_s: Option<u64>,
    /// Of the thesis' machine only.
    pub ack_copies: Option<u32>,
    pub tail_delay_ms: Option<f64>,
}

/// Settings of PFRC.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegulateTable {
    /// Capacity that is left after a failure.
    pub capacity: Rate,
    pub rtt_ms: f64,
    /// Law of the rate control: `shipped`, or the thesis', `printed`.
    pub law: Option<String>,
    pub interval_ms: Option<f64>,
    pub alpha: Option<f64>,
    pub utilization_percent: Option<f64>,
    pub window_min_bytes: Option<u32>,
    pub keeps_right_edge: Option<bool>,
}
