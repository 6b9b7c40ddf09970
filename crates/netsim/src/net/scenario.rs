//! The scenario of a simulation: plain data, so that scenario files, figures and tests use the same
//! words. Entries of the tables are named by their index.

use super::link::LinkSpec;
use crate::Ns;
use crate::tcp::Profile;
use holdfast_edge::{HalrConfig, PfrcConfig};

/// Most hops of one path in one direction.
pub const HOPS_MAX: usize = 64;

/// One step of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// Through the link of this index.
    Link(u32),
    /// Through the string of this switch that the flow is assigned to.
    String {
        /// Number of the switch.
        switch: u32,
        /// Index of the link among those of the string.
        stage: u32,
        /// Whether the hop is in the direction of the data.
        forward: bool,
    },
    /// Past the machines of this switch.
    Edge(u32),
}

/// The path of a flow's packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Hops of data.
    pub forward: Vec<Hop>,
    /// Hops of acknowledgements.
    pub back: Vec<Hop>,
}

/// A string: one of several parallel paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StringSpec {
    /// Links in the direction of data.
    pub forward: Vec<u32>,
    /// Links in the direction of acknowledgements, in their order.
    pub back: Vec<u32>,
    /// Its share of new flows, in proportion to the other strings'.
    pub weight: u32,
}

/// A balancing switch in front of parallel strings, with the edge's machines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SwitchSpec {
    /// The strings; new flows are distributed among those that are up.
    pub strings: Vec<StringSpec>,
    /// Configuration of local recovery, if the switch has it.
    pub recovery: Option<HalrConfig>,
    /// How the local recovery learns of outages.
    pub alert: Alert,
    /// Configuration of rate control, if the switch has it.
    pub rate_control: Option<PfrcConfig>,
}

/// How an edge learns of an outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alert {
    /// It is told when there is a path again, and counts everything that it keeps as lost (thesis
    /// §3.3).
    #[default]
    Told,
    /// It hears heartbeats, one in each period. Two missing ones make it suspect that packets are
    /// lost; the first one that gets through says that there is a path again, unless the edge
    /// itself has moved the flows to another string. What went into the failed string since the
    /// last heartbeat that got through counts as lost.
    Heartbeats(Ns),
}

/// A transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowSpec {
    /// When its SYN leaves, in ns.
    pub start_ns: Ns,
    /// Number of segments of data.
    pub segments: u32,
    /// Index of its profile.
    pub profile: u32,
    /// Index of its path.
    pub path: u32,
    /// The string that it uses, instead of one that the switch assigns.
    pub string: Option<u32>,
}

/// Where packets of a link that is down are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CutAt {
    /// When they enter and when they leave, so that packets under way are lost, too.
    #[default]
    BothEnds,
    /// Only when they leave, as by an error at the receiving interface.
    FarEnd,
}

/// A period in which something is down.
#[derive(Clone, Debug, PartialEq)]
pub struct OutageSpec {
    /// Links that are down.
    pub links: Vec<u32>,
    /// A string (switch, string) whose links are all down.
    pub string: Option<(u32, u32)>,
    /// Beginning of the period, in ns.
    pub from_ns: Ns,
    /// End of the period, at which the failover is complete, in ns.
    pub until_ns: Ns,
    /// Whether the string stays down, so that its flows move to the other strings at the end.
    pub moves_flows: bool,
    /// Where packets are lost.
    pub cut: CutAt,
}

/// What is measured besides the flows' times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Width of the bins in which bytes delivered are counted for each flow, in ns.
    pub bin_ns: Option<Ns>,
    /// Whether bytes are counted in order, as an application reads them, or as they arrive.
    pub in_order: bool,
    /// Links whose waiting packets and overflows are recorded.
    pub queues: Vec<u32>,
    /// Flows of which every change of the window and of the smoothed round trip is recorded.
    pub windows: Vec<u32>,
}

/// A whole simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scenario {
    /// Seed that determines every loss.
    pub seed: u64,
    /// All links.
    pub links: Vec<LinkSpec>,
    /// All switches.
    pub switches: Vec<SwitchSpec>,
    /// All paths.
    pub paths: Vec<Path>,
    /// All profiles of TCP.
    pub profiles: Vec<Profile>,
    /// All flows.
    pub flows: Vec<FlowSpec>,
    /// All outages.
    pub outages: Vec<OutageSpec>,
    /// End of the run in ns, whatever is still to happen.
    pub end_ns: Ns,
    /// What is measured.
    pub watch: Watch,
}

/// Why a scenario cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// An index names nothing.
    #[error("{what} {number} does not exist; there are {count}")]
    Missing {
        /// The kind of thing that was named.
        what: &'static str,
        /// The index.
        number: u32,
        /// Number of things of that kind.
        count: usize,
    },
    /// A path is too long or has no link.
    #[error("path {path} has {hops} hops; let it have 1 to {HOPS_MAX}")]
    PathLength {
        /// Index of the path.
        path: usize,
        /// Number of its hops.
        hops: usize,
    },
    /// Strings of one switch differ in length.
    #[error("a string of switch {switch} has not {stages} links; give all strings as many")]
    Stages {
        /// Index of the switch.
        switch: usize,
        /// Number of links of its first string.
        stages: usize,
    },
    /// An outage ends before it begins.
    #[error("outage {outage} ends before it begins; give it a later end")]
    Outage {
        /// Index of the outage.
        outage: usize,
    },
}

impl Scenario {
    /// Checks that every number names something.
    ///
    /// # Errors
    /// The first index that names nothing.
    pub fn check(&self) -> Result<(), ScenarioError> {
        for (index, switch) in self.switches.iter().enumerate() {
            let stages = switch.strings.first().map_or(0, |string| string.forward.len());
            for string in &switch.strings {
                if string.forward.len() != stages || string.back.len() != stages || stages == 0 {
                    return Err(ScenarioError::Stages { switch: index, stages });
                }
                self.check_links(string.forward.iter().chain(&string.back))?;
            }
        }
        for (index, path) in self.paths.iter().enumerate() {
            for hops in [&path.forward, &path.back] {
                if hops.is_empty() || hops.len() > HOPS_MAX {
                    return Err(ScenarioError::PathLength { path: index, hops: hops.len() });
                }
                hops.iter().try_for_each(|hop| self.check_hop(*hop))?;
            }
        }
        for flow in &self.flows {
            exists("profile", flow.profile, self.profiles.len())?;
            exists("path", flow.path, self.paths.len())?;
        }
        for (index, outage) in self.outages.iter().enumerate() {
            self.check_links(outage.links.iter())?;
            if let Some((switch, string)) = outage.string {
                exists("switch", switch, self.switches.len())?;
                exists("string", string, self.switches[switch as usize].strings.len())?;
            }
            if outage.until_ns < outage.from_ns {
                return Err(ScenarioError::Outage { outage: index });
            }
        }
        self.watch.windows.iter().try_for_each(|it| exists("flow", *it, self.flows.len()))?;
        self.check_links(self.watch.queues.iter())
    }

    fn check_links<'a>(&self, links: impl Iterator<Item = &'a u32>) -> Result<(), ScenarioError> {
        let mut links = links;
        links.try_for_each(|link| exists("link", *link, self.links.len()))
    }

    fn check_hop(&self, hop: Hop) -> Result<(), ScenarioError> {
        match hop {
            Hop::Link(link) => exists("link", link, self.links.len()),
            Hop::Edge(switch) => exists("switch", switch, self.switches.len()),
            Hop::String { switch, stage, .. } => {
                exists("switch", switch, self.switches.len())?;
                let first = self.switches[switch as usize].strings.first();
                exists("stage", stage, first.map_or(0, |string| string.forward.len()))
            }
        }
    }
}

fn exists(what: &'static str, number: u32, count: usize) -> Result<(), ScenarioError> {
    if (number as usize) < count {
        return Ok(());
    }
    Err(ScenarioError::Missing { what, number, count })
}
