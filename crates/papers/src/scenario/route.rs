//! The shortest routes through links and strings, by delay.

use super::error::FileError;
use holdfast_netsim::net::link::LinkSpec;
use holdfast_netsim::net::scenario::{Hop, Path, SwitchSpec};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// One possible step from a node.
#[derive(Clone, Copy, Debug)]
struct Step {
    to: u32,
    delay_ns: u64,
    by: By,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Link(u32),
    Switch { switch: u32, forward: bool },
}

/// Nodes by name, and the links and strings between them.
#[derive(Default)]
pub struct Graph {
    names: BTreeMap<String, u32>,
    steps: Vec<Vec<Step>>,
    /// Links by their ends.
    pub ends: BTreeMap<(u32, u32), u32>,
}

impl Graph {
    /// The node of this name, created if it is new.
    pub fn node(&mut self, name: &str) -> u32 {
        if let Some(node) = self.names.get(name) {
            return *node;
        }
        let node = self.names.len() as u32;
        self.names.insert(name.to_owned(), node);
        self.steps.push(Vec::new());
        node
    }

    /// The node of this name.
    ///
    /// # Errors
    /// When no node has this name.
    pub fn find(&self, name: &str) -> Result<u32, FileError> {
        self.names.get(name).copied().ok_or_else(|| FileError::Unknown {
            what: "node",
            name: name.to_owned(),
            known: self.names.keys().cloned().collect(),
        })
    }

    /// The name of a node.
    pub fn name(&self, node: u32) -> String {
        self.names.iter().find(|it| *it.1 == node).map_or(String::new(), |it| it.0.clone())
    }

    /// Adds a link that routes may use.
    pub fn join(&mut self, from: u32, to: u32, link: u32, spec: &LinkSpec) {
        let step = Step { to, delay_ns: spec.delay_ns, by: By::Link(link) };
        self.steps[from as usize].push(step);
    }

    /// Adds a switch's strings, in both directions.
    pub fn join_switch(&mut self, from: u32, to: u32, switch: u32, delay_ns: u64) {
        let step = |to, forward| Step { to, delay_ns, by: By::Switch { switch, forward } };
        self.steps[from as usize].push(step(to, true));
        self.steps[to as usize].push(step(from, false));
    }

    /// The shortest path there and back.
    ///
    /// # Errors
    /// When there is none.
    pub fn path(&self, from: u32, to: u32, switches: &[SwitchSpec]) -> Result<Path, FileError> {
        let none = |from, to| FileError::NoRoute { from: self.name(from), to: self.name(to) };
        let forward = self.shortest(from, to).ok_or_else(|| none(from, to))?;
        let back = self.shortest(to, from).ok_or_else(|| none(to, from))?;
        Ok(Path { forward: hops(&forward, switches), back: hops(&back, switches) })
    }

    /// Dijkstra's algorithm; of equal routes the one that was written first.
    fn shortest(&self, from: u32, to: u32) -> Option<Vec<By>> {
        let mut best: Vec<Option<(u64, u32, By)>> = vec![None; self.steps.len()];
        let mut next = BinaryHeap::from([Reverse((0, from))]);
        while let Some(Reverse((length, node))) = next.pop() {
            if best[node as usize].is_some_and(|it| it.0 < length) {
                continue;
            }
            for step in &self.steps[node as usize] {
                let through = length + step.delay_ns;
                let known = best[step.to as usize].map_or(u64::MAX, |it| it.0);
                if step.to != from && through < known {
                    best[step.to as usize] = Some((through, node, step.by));
                    next.push(Reverse((through, step.to)));
                }
            }
        }
        let mut way = Vec::new();
        let mut at = to;
        while at != from {
            let (_, before, by) = best[at as usize]?;
            way.push(by);
            at = before;
        }
        way.reverse();
        Some(way)
    }
}

/// Hops of a route: the edge is in front of the strings for data, and behind them for
/// acknowledgements.
fn hops(way: &[By], switches: &[SwitchSpec]) -> Vec<Hop> {
    let mut hops = Vec::new();
    for by in way {
        match *by {
            By::Link(link) => hops.push(Hop::Link(link)),
            By::Switch { switch, forward } => {
                let first = switches[switch as usize].strings.first();
                let stages = first.map_or(0, |it| it.forward.len() as u32);
                let strings = (0..stages).map(|stage| Hop::String { switch, stage, forward });
                if forward {
                    hops.push(Hop::Edge(switch));
                }
                hops.extend(strings);
                if !forward {
                    hops.push(Hop::Edge(switch));
                }
            }
        }
    }
    hops
}
