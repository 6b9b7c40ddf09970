//! The slots of a run: sources, switches in a row, the sink, and the path back.

use super::cell::Cell;
use super::outcome::Outcome;
use super::scenario::Scenario;
use super::sink::{Ack, Receiver};
use super::source::Source;
use super::switch::Output;
use crate::{Ns, Rng};
use std::collections::VecDeque;

/// Number of cells of TCP's acknowledgement: its 40 bytes and AAL5's trailer fill one.
const ACK_CELLS_TCP: u64 = 1;
/// Number of cells of Boston's acknowledgement, whose reports need a second.
const ACK_CELLS_BOSTON: u64 = 2;

/// A wire: a cell comes out when its place in the ring is reached again.
type Line = Vec<Option<Cell>>;

struct Switch {
    output: Output,
    /// Sources that are connected to the switch.
    sources: Vec<usize>,
    /// The line to the next switch, or to the sink.
    line: Line,
}

struct Connection {
    source: Source,
    receiver: Receiver,
    line: Line,
    starts_in_slot: u64,
    /// Slots that an acknowledgement takes from the sink to the source.
    way_back_slots: u64,
    acks: VecDeque<(u64, Ack)>,
}

pub(super) struct Network<'a> {
    scenario: &'a Scenario,
    switches: Vec<Switch>,
    connections: Vec<Connection>,
    ack_cells: u64,
    /// Slot until which the sink's wire is busy with acknowledgements.
    sink_busy_until: u64,
    outcome: Outcome,
}

impl<'a> Network<'a> {
    pub fn new(scenario: &'a Scenario) -> Self {
        let mut rng = Rng::new(scenario.seed, 0xa7e);
        let hop_slots = scenario.slots(scenario.delay_ns) + 1;
        let line = || vec![None; hop_slots as usize];
        let count = usize::from(scenario.switches);
        let jitter_slots = scenario.slots(scenario.jitter_ns).max(1);
        let connection = |number: u16| {
            let hops = 1 + count - usize::from(number) % count;
            Connection {
                source: Source::new(number, scenario),
                receiver: Receiver::new(scenario),
                line: line(),
                starts_in_slot: rng.below(jitter_slots),
                way_back_slots: hops as u64 * hop_slots - 1,
                acks: VecDeque::with_capacity(64),
            }
        };
        let connections: Vec<Connection> = (0..scenario.sources).map(connection).collect();
        let switch = |number: usize| Switch {
            output: Output::new(scenario.policy, scenario.buffer_cells, scenario.sources),
            sources: (0..connections.len()).filter(|it| it % count == number).collect(),
            line: line(),
        };
        Self {
            scenario,
            switches: (0..count).map(switch).collect(),
            ack_cells: if scenario.protocol.is_boston() { ACK_CELLS_BOSTON } else { ACK_CELLS_TCP },
            sink_busy_until: 0,
            outcome: Outcome::new(connections.len()),
            connections,
        }
    }

    pub fn run(mut self) -> Outcome {
        let slots = self.scenario.slots(self.scenario.duration_ns);
        let places = self.switches[0].line.len();
        for slot in 0..slots {
            let (now, place) = (self.scenario.slot_ns(slot), slot as usize % places);
            self.sink(slot, now, place);
            self.switch(slot, place);
            self.sources(slot, now, place);
        }
        self.finish(slots)
    }

    /// Handles the cell that comes out of the last switch's line.
    fn sink(&mut self, slot: u64, now: Ns, place: usize) {
        let last = self.switches.len() - 1;
        let Some(cell) = self.switches[last].line[place].take() else { return };
        self.outcome.cells_received += 1;
        let flow = usize::from(cell.flow);
        let connection = &mut self.connections[flow];
        let arrived = connection.receiver.handle_cell(&cell);
        self.outcome.usable += u64::from(arrived.is_usable);
        self.outcome.noticed += u64::from(arrived.is_first);
        if let Some(segment) = arrived.completed {
            let response = now - connection.source.first_sent_at(segment);
            self.outcome.note_delivered(flow, now, response, self.scenario.deadline_ns);
        }
        if let Some(ack) = arrived.ack {
            self.sink_busy_until = self.sink_busy_until.max(slot) + self.ack_cells;
            connection.acks.push_back((self.sink_busy_until + connection.way_back_slots, ack));
        }
    }

    /// Lets every switch take a cell from each input, beginning with another input in each slot,
    /// and send one.
    fn switch(&mut self, slot: u64, place: usize) {
        let mut from_before = None;
        for switch in &mut self.switches {
            let inputs = switch.sources.len() + 1;
            let first = (slot % inputs as u64) as usize;
            for input in (first..inputs).chain(0..first) {
                let cell = match switch.sources.get(input) {
                    Some(source) => self.connections[*source].line[place].take(),
                    None => from_before.take(),
                };
                if let Some(cell) = cell {
                    switch.output.offer(cell);
                }
            }
            // The cell that is sent takes the place of the one that comes out.
            from_before = switch.line[place].take();
            switch.line[place] = switch.output.take();
        }
    }

    fn sources(&mut self, slot: u64, now: Ns, place: usize) {
        for connection in &mut self.connections {
            let source = &mut connection.source;
            if connection.starts_in_slot == slot {
                source.start(now, &mut self.outcome);
            }
            while let Some((_, ack)) = connection.acks.pop_front_if(|it| it.0 <= slot) {
                source.handle_ack(now, &ack, &mut self.outcome);
            }
            if source.deadline() <= now {
                source.handle_timeout(now, &mut self.outcome);
            }
            if let Some(cell) = source.take(now) {
                self.outcome.cells_sent += 1;
                connection.line[place] = Some(cell);
            }
        }
    }

    fn finish(mut self, slots: u64) -> Outcome {
        self.outcome.duration_ns = self.scenario.slot_ns(slots);
        self.outcome.packet_bytes = self.scenario.packet_bytes;
        self.outcome.cells_dropped = self.switches.iter().map(|it| it.output.dropped).sum();
        for (flow, connection) in self.outcome.flows.iter_mut().zip(&self.connections) {
            (flow.timeouts, flow.cuts) = connection.source.timeouts_and_cuts();
        }
        self.outcome
    }
}
