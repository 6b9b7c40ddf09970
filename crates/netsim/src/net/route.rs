//! The routes of all paths, one after the other in one table. A packet knows its place in it, so
//! that forwarding need not look at its flow, which may be far away in memory.

use super::scenario::{Hop, Scenario};

/// One step of a route, packed into four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step(u32);

/// Where a step leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goes {
    /// Into the link of this number.
    Link(u32),
    /// Into one of the links of this row of [`Routes::strings`].
    String(u32),
    /// Past the machines of this switch.
    Edge(u32),
    /// To the endpoint.
    End,
}

/// Number of the upper bits of a step that hold its kind; the others hold a number.
const KIND_BITS: u32 = 2;
const NUMBER: u32 = u32::MAX >> KIND_BITS;

impl Step {
    pub(super) const END: Self = Self::new(3, 0);

    const fn new(kind: u32, number: u32) -> Self {
        Self(kind << (32 - KIND_BITS) | number & NUMBER)
    }

    /// Number of the link, the row or the switch.
    #[inline]
    pub(super) fn number(self) -> u32 {
        self.0 & NUMBER
    }

    #[inline]
    pub(super) fn goes(self) -> Goes {
        let number = self.number();
        match self.0 >> (32 - KIND_BITS) {
            0 => Goes::Link(number),
            1 => Goes::String(number),
            2 => Goes::Edge(number),
            _ => Goes::End,
        }
    }
}

/// The routes of all paths.
#[derive(Default)]
pub(super) struct Routes {
    steps: Vec<Step>,
    /// For each path the place where the steps of its data begin, and that of its acknowledgements.
    begins: Vec<[u32; 2]>,
    /// The link of each string, for each place in a switch's strings, in either direction.
    strings: Vec<Vec<u32>>,
    /// Switch, place and direction of each row.
    rows: Vec<(u32, u32, bool)>,
}

impl Routes {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let mut routes = Self::default();
        for path in &scenario.paths {
            let begins = [&path.forward, &path.back].map(|hops| {
                let begin = routes.steps.len() as u32;
                for hop in hops {
                    let step = routes.step(scenario, *hop);
                    routes.steps.extend(step);
                }
                routes.steps.push(Step::END);
                begin
            });
            routes.begins.push(begins);
        }
        routes
    }

    /// A hop as a step; `None` for a switch without machines.
    fn step(&mut self, scenario: &Scenario, hop: Hop) -> Option<Step> {
        match hop {
            Hop::Link(link) => Some(Step::new(0, link)),
            Hop::Edge(number) => {
                let switch = &scenario.switches[number as usize];
                let acts = switch.recovery.is_some() || switch.rate_control.is_some();
                acts.then(|| Step::new(2, number))
            }
            Hop::String { switch, stage, forward } => {
                let known = self.rows.iter().position(|it| *it == (switch, stage, forward));
                let row = known.unwrap_or_else(|| {
                    self.rows.push((switch, stage, forward));
                    let strings = scenario.switches[switch as usize].strings.iter();
                    let ways = strings.map(|it| if forward { &it.forward } else { &it.back });
                    self.strings.push(ways.map(|links| links[stage as usize]).collect());
                    self.rows.len() - 1
                });
                Some(Step::new(1, row as u32))
            }
        }
    }

    /// The places where the steps of a path begin, forward and back.
    pub(super) fn begins(&self, path: u32) -> [u32; 2] {
        self.begins[path as usize]
    }

    #[inline]
    pub(super) fn at(&self, place: u32) -> Step {
        self.steps[place as usize]
    }

    /// The link of a string at a place.
    #[inline]
    pub(super) fn link(&self, row: u32, string: u32) -> u32 {
        self.strings[row as usize][string as usize]
    }
}
