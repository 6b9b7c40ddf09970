//! What a simulation is made of: plain data, so that a scenario file, a figure
//! and a test all say it in the same words. Places in the tables are numbers.

use super::link::LinkSpec;
use crate::Ns;
use crate::tcp::Profile;
use holdfast_edge::{HalrConfig, PfrcConfig};

/// Most hops of one path in one direction.
pub const HOPS_MAX: usize = 64;

/// One step of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// Through this link.
    Link(u32),
    /// Through the string of this switch that the flow is assigned to: its
    /// link at this place, forward or back.
    String {
        /// Number of the switch.
        switch: u32,
        /// Index of the string's link.
        stage: u32,
        /// Whether it goes in the direction of the data.
        forward: bool,
    },
    /// Past this switch's edge machines.
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

/// One of several parallel paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StringSpec {
    /// Links in the direction of data.
    pub forward: Vec<u32>,
    /// Links in the direction of acknowledgements, in their order.
    pub back: Vec<u32>,
    /// Its share of new flows, in proportion to the other strings'.
    pub weight: u32,
}

/// A balancing switch before parallel strings, with the edge's machines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SwitchSpec {
    /// The strings; new flows are dealt out among those that are up.
    pub strings: Vec<StringSpec>,
    /// Local recovery, if it has it.
    pub recovery: Option<HalrConfig>,
    /// How the local recovery learns of outages.
    pub alert: Alert,
    /// Rate control, if it has it.
    pub rate_control: Option<PfrcConfig>,
}

/// How an edge learns of an outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alert {
    /// By being told when there is a way again; takes everything that it keeps
    /// for lost (thesis §3.3).
    #[default]
    Told,
    /// By heartbeats, one in each of these times: two that are missing make it
    /// suspect that packets are lost, the first one that gets through says that there
    /// is a way again, unless it has moved the flows to another one itself. Lost is
    /// what went into what was down since the last heartbeat that got through.
    Heartbeats(Ns),
}

/// A transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowSpec {
    /// When its SYN leaves.
    pub start_ns: Ns,
    /// Number of segments of data.
    pub segments: u32,
    /// Index of its endpoints' profile.
    pub profile: u32,
    /// Index of its path.
    pub path: u32,
    /// The string it is put on, if the switch has no choice.
    pub string: Option<u32>,
}

/// When a packet of a link that is down is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CutAt {
    /// When it enters and when it leaves, so that what is under way is lost too.
    #[default]
    BothEnds,
    /// Only when it leaves: an error at the receiving interface.
    FarEnd,
}

/// A period in which something is down.
#[derive(Clone, Debug, PartialEq)]
pub struct OutageSpec {
    /// These links.
    pub links: Vec<u32>,
    /// All links of this string (switch, string).
    pub string: Option<(u32, u32)>,
    /// Beginning of the period.
    pub from_ns: Ns,
    /// End of the period, when the failover is complete.
    pub until_ns: Ns,
    /// Whether the string stays down: at the end its flows move to the other
    /// strings.
    pub moves_flows: bool,
    /// When packets are lost.
    pub cut: CutAt,
}

/// Measurements beside the flows' times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Width of a bin, to count bytes delivered per flow.
    pub bin_ns: Option<Ns>,
    /// Whether arrivals are counted in order (as an application reads) or as
    /// they come.
    pub in_order: bool,
    /// Waiting packets and overflows of these links.
    pub queues: Vec<u32>,
    /// Whether every change of each flow's window is recorded.
    pub windows: bool,
}

/// A whole simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scenario {
    /// Seed that determines every loss.
    pub seed: u64,
    /// Links.
    pub links: Vec<LinkSpec>,
    /// Switches.
    pub switches: Vec<SwitchSpec>,
    /// Paths.
    pub paths: Vec<Path>,
    /// Profiles.
    pub profiles: Vec<Profile>,
    /// Flows.
    pub flows: Vec<FlowSpec>,
    /// Outages.
    pub outages: Vec<OutageSpec>,
    /// When it ends, whatever is still to come.
    pub end_ns: Ns,
    /// What is measured.
    pub watch: Watch,
}

/// Why a scenario cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// A number that names nothing.
    #[error("{what} {number} does not exist; there are {count}")]
    Missing {
        /// What was named.
        what: &'static str,
        /// Its number.
        number: u32,
        /// How many there are.
        count: usize,
    },
    /// A path that is too long or has no link.
    #[error("path {path} has {hops} hops; let it have 1 to {HOPS_MAX}")]
    PathLength {
        /// Index of the path.
        path: usize,
        /// Its hops.
        hops: usize,
    },
    /// Strings of one switch that differ in length.
    #[error("a string of switch {switch} has not {stages} links; give all strings as many")]
    Stages {
        /// Index of the switch.
        switch: usize,
        /// Links of its first string.
        stages: usize,
    },
    /// An outage that ends before it begins.
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
    /// The first number that does not.
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
