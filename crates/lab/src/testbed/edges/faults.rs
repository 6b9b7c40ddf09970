//! What happens to an edge. An edge's data path lives in its kernel, which no signal reaches: where
//! it is to be dead for the others, its ports of the switch pass nothing, and keep their carrier.

use super::group::ANSWER_LIMIT_S;
use super::wires::{self, GATEWAY_V4, GATEWAY_V6, Segment, interface};
use super::{Edges, Node, Part, Way, routing};
use crate::command::{self, descendants_running, wait_for};
use crate::load::{self, Action};
use crate::testbed::SETUP_LIMIT;
use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde::Serialize;
use std::fs;

/// Longest time for an edge to forget everything, in s.
const DOWN_LIMIT_S: &str = "60";

/// Time for which a frozen edge stays frozen, in µs.
const FROZEN_US: u64 = 5_000_000;

/// What the switch does with an edge's ports, as part of the names of files.
const CUT: &str = "cut";
const CUT_OUTSIDE: &str = "cut-outside";
const CUT_SERVICE: &str = "cut-service";
const JOIN: &str = "join";

/// What breaks at one edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum EdgeFault {
    /// The host is gone from one moment to the next, and says no word.
    Kill,
    /// It stands still, data path included, and goes on 5 s later.
    Freeze,
    /// Its wires lead nowhere any more; it lives.
    Cut,
    /// The one towards the router leads nowhere any more; host servers and the other edge reach it.
    CutOutside,
    /// The one towards the host servers and the other edge leads nowhere any more; the router reaches
    /// it.
    CutService,
    /// kill -9 of Holdfast's daemon alone; the data path goes on.
    Daemon,
}

impl Edges {
    /// Writes what a cut and its end need, so that they take no time when they happen.
    pub(super) fn write_cuts(&self) -> Result<()> {
        let folder = self.host(Node::Switch).outside();
        for edge in Node::EDGES {
            let lines = [
                (CUT, wires::out_of(edge, &Segment::BOTH)),
                (CUT_OUTSIDE, wires::out_of(edge, &[Segment::Outside])),
                (CUT_SERVICE, wires::out_of(edge, &[Segment::Service])),
                (JOIN, wires::back_into(edge, &Segment::BOTH)),
            ];
            for (what, lines) in lines {
                fs::write(folder.join(format!("{what}-{}", edge.name())), lines)?;
            }
        }
        Ok(())
    }

    fn ports(&self, what: &str, edge: Node) -> Action {
        let switch = self.host(Node::Switch);
        let file = switch.outside().join(format!("{what}-{}", edge.name())).display().to_string();
        let words = ["bridge", "-n", switch.namespace(), "-batch", &file];
        Action::Run(words.map(str::to_owned).to_vec())
    }

    /// The steps of a fault at an edge, with the processes that run there now.
    ///
    /// # Errors
    /// When they cannot be found.
    pub fn fault_steps(&self, fault: EdgeFault, edge: Node) -> Result<Vec<(u64, Action)>> {
        let cut = (0, self.ports(CUT, edge));
        let pids = self.host(edge).processes()?;
        // A connection whose process is killed says good-bye: the cut comes first.
        Ok(match fault {
            EdgeFault::Cut => vec![cut],
            EdgeFault::CutOutside => vec![(0, self.ports(CUT_OUTSIDE, edge))],
            EdgeFault::CutService => vec![(0, self.ports(CUT_SERVICE, edge))],
            EdgeFault::Kill => [cut]
                .into_iter()
                .chain(pids.into_iter().map(|pid| (0, Action::Kill(pid))))
                .collect(),
            EdgeFault::Freeze => {
                let starters = self.running.iter().filter(|it| it.node == edge);
                let starters = starters.map(|it| it.child.id());
                // `nsenter` stops with its child, and goes on only when it is told to.
                let all = pids.iter().copied().chain(starters).collect();
                let joined = (FROZEN_US, self.ports(JOIN, edge));
                vec![cut, (0, Action::Stop(pids)), joined, (0, Action::Continue(all))]
            }
            EdgeFault::Daemon => vec![(0, Action::Kill(self.daemon_pid(edge)?))],
        })
    }

    /// Lets a fault happen now; returns when its last step is done.
    ///
    /// # Errors
    /// As [`Edges::fault_steps`], and when what was killed does not end.
    pub fn breaks(&mut self, fault: EdgeFault, edge: Node) -> Result<()> {
        let steps = self.fault_steps(fault, edge)?;
        load::perform(steps);
        self.after(fault, edge)
    }

    /// Notes what a fault that has happened has ended, for example one that the load caused.
    ///
    /// # Errors
    /// When a process does not end.
    pub fn after(&mut self, fault: EdgeFault, edge: Node) -> Result<()> {
        let ends = |part: Part| match fault {
            EdgeFault::Kill => true,
            EdgeFault::Daemon => part == Part::Daemon,
            _ => false,
        };
        for it in self.running.iter_mut().filter(|it| it.node == edge && ends(it.part)) {
            let child = &mut it.child;
            wait_for("the end of a process", SETUP_LIMIT, || child.try_wait().ok().flatten())?;
        }
        self.running.retain(|it| it.node != edge || !ends(it.part));
        if matches!(fault, EdgeFault::Kill | EdgeFault::Cut) {
            self.gone.push(edge);
        }
        Ok(())
    }

    /// Boots an edge that was killed: its kernel has forgotten everything, and its programs start
    /// by themselves.
    ///
    /// # Errors
    /// When something of it does not start.
    pub fn boot(&mut self, edge: Node) -> Result<()> {
        let host = self.host(edge);
        host.signal_all(Signal::KILL)?;
        let down = self.verb(edge, DOWN_LIMIT_S, &["down"])?.output()?;
        let said = String::from_utf8_lossy(&down.stderr);
        ensure!(down.status.success(), "{} forgets nothing: {}, {said}", edge.name(), down.status);
        let device = interface::EDGE_OUTSIDE;
        let kept = match self.way {
            Way::Mac => Vec::new(),
            Way::Keepalived => vec![
                format!("addr del {GATEWAY_V4}/24 dev {device}"),
                format!("addr del {GATEWAY_V6}/64 dev {device}"),
            ],
            Way::Bgp => [4, 6]
                .map(|family| format!("-{family} route flush table {}", routing::TABLE))
                .to_vec(),
        };
        for line in kept {
            let words =
                [&["-n", host.namespace()], &line.split(' ').collect::<Vec<_>>()[..]].concat();
            // It may have had none.
            let _ = command::output("ip", &words);
        }
        load::perform(vec![(0, self.ports(JOIN, edge))]);
        self.gone.retain(|it| *it != edge);
        self.launch(edge)?;
        if routing::is_needed(edge, self.way) {
            self.start_routing_at(edge)?;
        }
        Ok(())
    }

    /// Lets an edge lose a host server, as an operator does: the step that asks for it.
    ///
    /// # Errors
    /// When there is no binary to ask with.
    pub fn drain_step(&self, edge: Node, host: Node) -> Result<Action> {
        let command = self.verb(edge, ANSWER_LIMIT_S, &["edge", "drain", host.name()])?;
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        Ok(Action::Run(words.map(|word| word.to_string_lossy().into_owned()).collect()))
    }

    /// The pid of a host's daemon, as seen from outside.
    fn daemon_pid(&self, node: Node) -> Result<u32> {
        let found = self.running.iter().find(|it| it.node == node && it.part == Part::Daemon);
        let child = &found.with_context(|| format!("{} has no daemon", node.name()))?.child;
        let found = descendants_running(child.id(), &crate::holdfast_binary()?);
        found.last().copied().with_context(|| format!("{}'s daemon does not run", node.name()))
    }
}
