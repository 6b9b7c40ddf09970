//! The topology of the thesis (Fig 11): sources S, two load-balancing switches R1 and R2 with the
//! cluster's strings between them, and destinations D.
//!
//! ```text
//! S_i ──access── R1 ──in── N_k ──out── R2 ──egress── D_i
//! ```

use super::link::{LinkSpec, QueueLimit};
use super::loss::LossModel;
use super::scenario::{
    Alert, CutAt, FlowSpec, Hop, OutageSpec, Path, Scenario, StringSpec, SwitchSpec, Watch,
};
use crate::Ns;
use crate::tcp::Profile;
use holdfast_edge::{HalrConfig, PfrcConfig};

const MS: Ns = 1_000_000;

/// Time in ns after which a flow never ends: an hour.
const END_NS: Ns = 3_600_000 * MS;

/// A dumb-bell.
#[derive(Clone, Debug, PartialEq)]
pub struct Dumbbell {
    /// Rate of access and egress links, in bits per second.
    pub rate_bps: u64,
    /// Rate of each string, which is also its weight.
    pub string_rates_bps: Vec<u64>,
    /// One-way delays in ns: S to R1, R1 to N, N to R2, R2 to D.
    pub delays_ns: [Ns; 4],
    /// Queue in front of each string's first link.
    pub buffer: QueueLimit,
    /// Losses of each string's first link.
    pub loss: LossModel,
    /// Local recovery at R1.
    pub recovery: Option<HalrConfig>,
    /// How R1's local recovery learns of outages.
    pub alert: Alert,
    /// Rate control at R1.
    pub rate_control: Option<PfrcConfig>,
}

impl Dumbbell {
    /// The thesis' dumb-bell: one string, 100 Mb/s everywhere, a round trip of 100 ms, and the
    /// cluster close to the destinations (thesis §7.1).
    #[must_use]
    pub fn thesis() -> Self {
        Self {
            rate_bps: 100_000_000,
            string_rates_bps: vec![100_000_000],
            delays_ns: [40 * MS, MS, MS, 8 * MS],
            buffer: QueueLimit::None,
            loss: LossModel::Never,
            recovery: None,
            alert: Alert::Told,
            rate_control: None,
        }
    }

    /// A scenario in which each of `pairs` sources sends to its destination; each path has the
    /// number of its pair.
    #[must_use]
    pub fn scenario(&self, pairs: u32, profile: Profile) -> Scenario {
        let mut scenario = Scenario {
            profiles: vec![profile],
            switches: vec![SwitchSpec {
                recovery: self.recovery,
                alert: self.alert,
                rate_control: self.rate_control,
                ..SwitchSpec::default()
            }],
            end_ns: END_NS,
            ..Scenario::default()
        };
        for rate_bps in &self.string_rates_bps {
            let string = self.string(&mut scenario, *rate_bps);
            scenario.switches[0].strings.push(string);
        }
        for _ in 0..pairs {
            let path = self.pair(&mut scenario);
            scenario.paths.push(path);
        }
        scenario
    }

    /// The first link of a string, which is the bottleneck.
    #[must_use]
    pub fn bottleneck(string: u32) -> u32 {
        4 * string
    }

    fn string(&self, scenario: &mut Scenario, rate_bps: u64) -> StringSpec {
        let free = |delay_ns| LinkSpec {
            rate_bps,
            delay_ns,
            queue: QueueLimit::None,
            loss: LossModel::Never,
        };
        let [_, inward, outward, _] = self.delays_ns;
        let bottleneck = LinkSpec { queue: self.buffer, loss: self.loss, ..free(inward) };
        let first = scenario.links.len() as u32;
        scenario.links.extend([bottleneck, free(outward), free(outward), free(inward)]);
        StringSpec {
            forward: vec![first, first + 1],
            back: vec![first + 2, first + 3],
            weight: (rate_bps / 1_000_000).max(1) as u32,
        }
    }

    fn pair(&self, scenario: &mut Scenario) -> Path {
        let [access, _, _, egress] = self.delays_ns;
        let first = scenario.links.len() as u32;
        for delay_ns in [access, egress, egress, access] {
            scenario.links.push(LinkSpec {
                rate_bps: self.rate_bps,
                delay_ns,
                queue: QueueLimit::None,
                loss: LossModel::Never,
            });
        }
        let string = |stage, forward| Hop::String { switch: 0, stage, forward };
        Path {
            forward: vec![
                Hop::Link(first),
                Hop::Edge(0),
                string(0, true),
                string(1, true),
                Hop::Link(first + 1),
            ],
            back: vec![
                Hop::Link(first + 2),
                string(0, false),
                string(1, false),
                Hop::Edge(0),
                Hop::Link(first + 3),
            ],
        }
    }
}

/// A scenario of one flow that begins at `start_ns` and whose string is down for a while: an
/// active/backup cluster that fails over (thesis §7.2).
#[must_use]
pub fn one_flow(
    dumbbell: &Dumbbell,
    profile: Profile,
    segments: u32,
    start_ns: Ns,
    outage: Option<(Ns, Ns)>,
) -> Scenario {
    let mut scenario = dumbbell.scenario(1, profile);
    scenario.flows.push(FlowSpec { start_ns, segments, profile: 0, path: 0, string: None });
    scenario.outages.extend(outage.map(|(from_ns, until_ns)| OutageSpec {
        links: Vec::new(),
        string: Some((0, 0)),
        from_ns,
        until_ns,
        moves_flows: false,
        cut: CutAt::BothEnds,
    }));
    scenario
}

/// The scenario of section 7.4 of the thesis: two strings, and two groups of 50 flows of 3000
/// segments, one flow of each group every 250 ms; the first string fails at 5 s, and at 8 s its
/// flows move to the other one.
#[must_use]
pub fn active_active(dumbbell: &Dumbbell, profile: Profile) -> Scenario {
    const FLOWS_PER_GROUP: u32 = 50;
    const SEGMENTS: u32 = 3000;
    let mut scenario = dumbbell.scenario(2 * FLOWS_PER_GROUP, profile);
    for number in 0..FLOWS_PER_GROUP {
        for group in 0..2 {
            scenario.flows.push(FlowSpec {
                start_ns: Ns::from(number) * 250 * MS,
                segments: SEGMENTS,
                profile: 0,
                path: 2 * number + group,
                string: Some(group),
            });
        }
    }
    scenario.outages.push(OutageSpec {
        links: Vec::new(),
        string: Some((0, 0)),
        from_ns: 5000 * MS,
        until_ns: 8000 * MS,
        moves_flows: true,
        cut: CutAt::BothEnds,
    });
    scenario.end_ns = 60_000 * MS;
    scenario.watch =
        Watch { bin_ns: Some(100 * MS), queues: vec![Dumbbell::bottleneck(1)], ..Watch::default() };
    scenario
}
