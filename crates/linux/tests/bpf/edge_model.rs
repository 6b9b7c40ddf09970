//! The edge's data path compared with its model: the same packets, drawn by seed, go through
//! `bpf/edge.bpf.c` and through the simulator's edge. After each packet both have passed, copied or
//! refused it alike, the packet is the same but for its hop, and the flow has the same words. There
//! are more tuples than the table has room for.

use crate::common::edge::*;
use crate::common::{ACK, CWR, Capture, ECE, FIN, Frame, PSH, REDIRECT, RST, STOLEN, SYN};
use crate::common::{Flows, is_root, near, sums_are_right};
use holdfast_sim::Rng;
use holdfast_sim::models::{EdgeModel, FLOWS_MAX, FlowWords};
use holdfast_wire::seq::SeqNo;

const SEEDS: u64 = 4;
/// Number of packets of a seed.
const PACKETS: u32 = 2_500;
/// Number of tuples of the packets: half of the packets are of the first few, so that flows have a
/// history, and the others fill the table.
const TUPLES: u64 = 80;
const BUSY_TUPLES: u64 = 4;
const NOP: u8 = 1;

struct Pair {
    f: Fixture,
    flows: Flows,
    captures: [Capture; 2],
    model: EdgeModel,
    rng: Rng,
    current: Option<usize>,
    taps: [bool; 2],
    epoch: u64,
    /// Describes the packet, for the message of a failure.
    at: String,
    seen: Seen,
}

/// Counts of what the packets led to: draws that reach nothing compare nothing.
#[derive(Debug, Default)]
struct Seen {
    copies: u32,
    not_copied: u32,
    started: u32,
    fenced: u32,
}

#[test]
fn the_edge_and_its_model_say_the_same_of_every_packet() {
    if !is_root() {
        return;
    }
    for seed in 0..SEEDS {
        let mut pair = Pair::new(seed);
        for number in 0..PACKETS {
            pair.at = format!("seed {seed}, packet {number}");
            pair.step();
        }
        let Seen { copies, not_copied, started, fenced } = pair.seen;
        let enough = copies > 100 && not_copied > 100 && started > 60 && fenced > 50;
        assert!(enough, "seed {seed}: {:?}", pair.seen);
        for counter in ["refused_flows", "untracked", "learnt", "implausible"] {
            assert!(pair.f.count(counter) > 0, "no {counter}");
        }
        pair.f.edge.detach().expect("detach");
    }
}

impl Pair {
    fn new(seed: u64) -> Self {
        let f = Fixture::with_flows(&format!("edge-model-{seed}"), FLOWS_MAX as u32);
        let flows = f.lab.flows();
        Self {
            captures: [Capture::new("m0"), Capture::new("m1")],
            f,
            flows,
            model: EdgeModel::default(),
            rng: Rng::new(seed, 1),
            current: None,
            taps: [false; 2],
            epoch: 0,
            at: String::new(),
            seen: Seen::default(),
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..3 => self.user_space_writes(),
            3..50 => self.client_sends(),
            _ => self.member_sends(),
        }
    }

    /// Changes fence and tap as user space does.
    fn user_space_writes(&mut self) {
        self.epoch += 1;
        self.current = self.rng.pick(&[Some(0), Some(0), Some(1), Some(1), None]);
        self.f.edge.set_current(self.epoch, self.current).expect("fence");
        let member = self.rng.below(2) as usize;
        self.taps[member] = !self.rng.one_in(3);
        self.f.edge.set_tap(member, self.taps[member]).expect("tap");
    }

    fn draw_port(&mut self) -> u16 {
        let most = if self.rng.one_in(2) { BUSY_TUPLES } else { TUPLES };
        40000 + self.rng.below(most) as u16
    }

    fn client_sends(&mut self) {
        let port = self.draw_port();
        let mut frame = request();
        frame.source.1 = port;
        let words = self.model.flow(&key(port));
        let frame = match words {
            Some(words) => self.of_client(frame, &words),
            None => frame.payload(self.rng.below(3) as usize),
        };
        let bytes = frame.build();
        let (verdict, out) = self.f.client_sends(&bytes);
        let copied = self.model.client_sends(&bytes[14..]);
        match self.current {
            None => assert_eq!(verdict, STOLEN, "{}: {frame:?}", self.at),
            Some(to) => {
                assert_eq!(verdict, REDIRECT, "{}: {frame:?}", self.at);
                let expected = hop(&frame, MEMBER_MACS[to], PORT_MACS[to]);
                assert!(out == expected && sums_are_right(&out), "{}: {frame:?}", self.at);
            }
        }
        for member in [0, 1] {
            let gets = copied && self.taps[member] && self.current != Some(member);
            let copy = hop(&frame, MEMBER_MACS[member], PORT_MACS[member]);
            let found = self.captures[member].tcp_frames();
            let expected = if gets { vec![copy] } else { Vec::new() };
            assert_eq!(found, expected, "{}: {frame:?} of {words:?}", self.at);
        }
        self.seen.copies += u32::from(copied);
        self.seen.not_copied += u32::from(!copied);
        self.compare(port, &frame);
    }

    fn of_client(&mut self, frame: Frame, flow: &FlowWords) -> Frame {
        let seqs = [flow.server_ack, flow.server_ack, flow.right_edge];
        let seq = near(&mut self.rng, &seqs, flow.wscale);
        // A flow that was learnt has no ISS: numbers half the space apart have no order.
        let first = if flow.learnt { flow.seq_end } else { flow.iss };
        let acks = [flow.seq_end, flow.seq_end, flow.client_ack, first];
        let ack = near(&mut self.rng, &acks, flow.wscale);
        let usual = [ACK, ACK, ACK | PSH, ACK | PSH];
        let rare = [FIN | ACK, RST, RST | ACK, SYN, SYN | ECE | CWR, FIN, PSH, 0, ACK | ECE];
        let flags = if self.rng.one_in(3) { self.rng.pick(&rare) } else { self.rng.pick(&usual) };
        let payload = self.rng.pick(&[0, 0, 1, 2, 60]);
        frame.seq(seq.0).ack(ack.0).flags(flags).payload(payload)
    }

    fn member_sends(&mut self) {
        let port = self.draw_port();
        let mut frame = reply();
        frame.target.1 = port;
        let words = self.model.flow(&key(port));
        let frame = match words.filter(|_| !self.rng.one_in(8)) {
            Some(known) => self.of_server(frame, &known),
            None => self.new_flow(frame, words),
        };
        let member = if self.rng.one_in(12) { 1 } else { self.current.unwrap_or(0) };
        let bytes = frame.build();
        let (verdict, out) = self.f.member_sends(member, &bytes);
        if self.current == Some(member) {
            let passes = self.model.member_sends(&bytes[14..]);
            let expected = if passes { REDIRECT } else { STOLEN };
            assert_eq!(verdict, expected, "{}: {frame:?} of {words:?}", self.at);
            let hopped = hop(&frame, CLIENT_MAC, EDGE_CLIENT_MAC);
            assert!(!passes || out == hopped, "{}: {frame:?}", self.at);
        } else {
            assert_eq!(verdict, STOLEN, "{}: {frame:?}", self.at);
            self.seen.fenced += 1;
        }
        self.compare(port, &frame);
    }

    /// Makes the frame a SYN-ACK, or one that may be of a flow older than the table.
    fn new_flow(&mut self, frame: Frame, known: Option<FlowWords>) -> Frame {
        let anywhere = self.rng.draw() as u32;
        // No two of these are half the space apart, where they would have no order.
        let numbers = [0, u32::MAX, u32::MAX - 300, 0x7fff_cfc7, anywhere];
        let (mut seq, ack) = (self.rng.pick(&numbers), self.rng.pick(&numbers));
        if let Some(flow) = known.filter(|_| self.rng.one_in(3)) {
            seq = flow.iss.0;
        }
        let frame = frame.seq(seq).ack(ack).window(self.rng.pick(&[0, 1, 65535]));
        if self.rng.one_in(3) {
            let flags = self.rng.pick(&[ACK, ACK | PSH, RST, RST | ACK, FIN | ACK, 0]);
            return frame.flags(flags).payload(self.rng.pick(&[0, 1, 700]));
        }
        self.seen.started += 1;
        let options = self.times(anywhere);
        let scale = self.rng.pick(&[None, Some(0), Some(7), Some(14), Some(15)]);
        let scale = scale.map_or([NOP; 4], |scale| [NOP, 3, 3, scale]);
        frame.flags(SYN | ACK).options(&[options, scale.to_vec()].concat())
    }

    fn of_server(&mut self, frame: Frame, flow: &FlowWords) -> Frame {
        let seq = near(&mut self.rng, &[flow.seq_end, flow.seq_end, flow.client_ack], flow.wscale);
        let acks = [flow.server_ack, flow.server_ack, flow.right_edge];
        let ack = near(&mut self.rng, &acks, flow.wscale);
        let usual = [ACK, ACK, ACK | PSH, ACK | ECE];
        let rare = [FIN | ACK, RST, RST | ACK, FIN, PSH, 0];
        let flags = if self.rng.one_in(5) { self.rng.pick(&rare) } else { self.rng.pick(&usual) };
        let payload = self.rng.pick(&[0, 0, 1, 2, 700]);
        let shift = if flow.wscale > 14 { 0 } else { flow.wscale };
        let aimed = (flow.right_edge.since(ack).max(0) >> shift).min(65535) as u16;
        let anything = self.rng.draw() as u16;
        let window = self.rng.pick(&[aimed, aimed, aimed.saturating_add(1), 0, 65535, anything]);
        let back = self.rng.pick(&[1, 1, 0, 0x7fff_ffff]);
        let tsval = flow.tsval.wrapping_add(self.rng.below(4) as u32).wrapping_sub(back);
        let frame = frame.seq(seq.0).ack(ack.0).flags(flags).window(window).payload(payload);
        if self.rng.one_in(5) { frame } else { frame.options(&self.times(tsval)) }
    }

    fn times(&self, tsval: u32) -> Vec<u8> {
        let mut options = vec![NOP, NOP, 8, 10];
        options.extend(tsval.to_be_bytes());
        options.extend([0, 0, 0, 7]);
        options
    }

    fn compare(&self, port: u16, frame: &Frame) {
        let key = key(port);
        let found = self.flows.words(&key);
        assert_eq!(found, self.model.flow(&key), "{}: after {frame:?}", self.at);
    }
}

/// The words of a flow are at the offsets at which the program has them.
#[test]
fn words_of_a_flow_are_read_where_they_lie() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("edge-words", false, None);
    f.edge.set_current(1, Some(0)).expect("fence");
    f.member_sends(0, &syn_ack(40000).build());
    f.client_sends(&request().ack(SERVER_ISS.wrapping_add(1)).build());
    let words = f.lab.flows().words(&key(40000)).expect("a flow");
    let bounds = f.bounds().expect("bounds");
    assert_eq!(Some(words.iss), bounds.iss);
    assert_eq!((words.seq_end, words.right_edge), (bounds.seq_end, bounds.right_edge));
    assert_eq!((words.tsval, words.client_ack), (bounds.tsval, bounds.client_ack));
    assert_eq!((words.server_ack, words.wscale), (SeqNo(CLIENT_ISS + 1), 9));
    assert!(words.established && !words.client_fin && !words.server_fin && !words.reset);
}
