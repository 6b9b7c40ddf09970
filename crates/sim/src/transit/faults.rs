//! Faults, and how they end.

use super::plan::{Fault, MS, Ways};
use super::world::{Event, World};
use crate::clock::Pause;

impl World {
    pub fn strikes(&mut self, number: usize) {
        let (_, fault) = self.plan.faults[number];
        self.say(|| format!("fault: {fault:?}"));
        let lasts = match fault {
            Fault::StringFails { lasts, .. }
            | Fault::AllFail { lasts }
            | Fault::Lossy { lasts, .. }
            | Fault::EdgeDaemon { lasts, .. }
            | Fault::Freeze { lasts, .. }
            | Fault::ClosedByHand { lasts, .. }
            | Fault::Replays { lasts, .. } => lasts,
        };
        self.change(&fault, true);
        self.schedule(lasts, Event::Ends(number));
    }

    pub fn ends(&mut self, number: usize) {
        let (_, fault) = self.plan.faults[number];
        if let Fault::ClosedByHand { edge, .. } = fault
            && (self.edges[edge].frozen.is_some() || self.edges[edge].machine.is_none())
        {
            // No daemon is there that could take the operator's order.
            return self.schedule(10 * MS, Event::Ends(number));
        }
        self.say(|| format!("over: {fault:?}"));
        self.change(&fault, false);
        self.pending -= 1;
        self.faults_over = self.now;
    }

    fn change(&mut self, fault: &Fault, begins: bool) {
        match *fault {
            Fault::StringFails { string, ways, .. } => self.cut(string, ways, begins),
            Fault::AllFail { .. } => {
                (0..self.ways.len()).for_each(|string| self.cut(string, Ways::Both, begins));
            }
            Fault::Lossy { string, permille, .. } => {
                for way in &mut self.ways[string] {
                    way.loss = if begins { way.loss + permille } else { way.loss - permille };
                }
                self.check.truth.loses(self.now, string, permille, begins);
            }
            Fault::EdgeDaemon { edge, .. } => self.daemon(edge, begins),
            Fault::Freeze { edge, .. } => self.freeze(edge, begins),
            Fault::ClosedByHand { edge, .. } => self.by_hand(edge, begins),
            Fault::Replays { string, .. } => {
                let count = &mut self.replays[string];
                *count = if begins { *count + 1 } else { *count - 1 };
            }
        }
    }

    fn cut(&mut self, string: usize, ways: Ways, begins: bool) {
        for (way, cut) in [(0, ways != Ways::ToNear), (1, ways != Ways::ToFar)] {
            if cut {
                let cuts = &mut self.ways[string][way].cuts;
                *cuts = if begins { *cuts + 1 } else { *cuts - 1 };
                self.check.truth.cut(self.now, string, way, begins);
            }
        }
    }

    fn daemon(&mut self, edge: usize, dies: bool) {
        self.check.truth.blind(self.now, dies);
        if dies {
            self.edges[edge].dies();
            self.check.drops_held(edge);
        } else if self.edges[edge].machine.is_none() {
            self.edges[edge].starts(self.now);
            self.turn(edge);
        }
    }

    fn freeze(&mut self, number: usize, begins: bool) {
        self.check.truth.blind(self.now, begins);
        let edge = &mut self.edges[number];
        if begins {
            edge.frozen.get_or_insert(self.now);
            edge.was_frozen = true;
            return;
        }
        let Some(since) = edge.frozen.take() else { return };
        let pause = Pause::draw(&mut self.rng);
        self.edges[number].clock.paused(since, self.now, pause);
        self.edges[number].wakes = None;
        self.turn(number);
    }

    fn by_hand(&mut self, number: usize, close: bool) {
        self.check.truth.blind(self.now, close);
        let edge = &mut self.edges[number];
        if let (Some(machine), None) = (&mut edge.machine, edge.frozen) {
            let Ok(_epoch) = machine.handle_hand(close, &mut edge.wire);
            edge.is_ordered_closed = close;
        }
        self.turn(number);
    }
}
