//! The gate compared with its model: the same packets, drawn by seed, go through `bpf/gate.bpf.c`
//! and through the simulator's gate, with the same words of user space between them. After each
//! packet both have given the same verdict, the packet is the same byte for byte, and every slot
//! has the same content. Numbers are drawn from critical places: at the wrap, and a byte or a
//! window's unit around everything that a slot knows. Now and then the server speaks alone for a
//! while.

use crate::common::{ACK, CWR, Context, ECE, FIN, Frame, Lab, PASS, PSH, RST, STOLEN, SYN};
use crate::common::{is_root, near, sums_are_right};
use holdfast_linux::bpf::{Adopted, BpfError, Gate, GateConfig, SlotView};
use holdfast_sim::Rng;
use holdfast_sim::models::GateModel;
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord};
use holdfast_wire::packet::{Checksum, TcpPacket};
use holdfast_wire::seq::SeqNo;
use std::net::IpAddr;
use std::time::Duration;

/// Longer than a test runs.
const AGES: Duration = Duration::from_secs(3600);
const EGRESS: &str = "gate/gate_egress";
const INGRESS: &str = "gate/gate_ingress";
const PORT: u16 = 6379;
/// Number of slots: fewer than tuples, so that the table is full much of the time.
const SLOTS: u32 = 3;
/// Number of tuples of the packets.
const TUPLES: u64 = 6;
const SEEDS: u64 = 5;
/// Number of packets of a seed.
const PACKETS: u32 = 4_000;
/// Distance in bytes by which a kernel's ACK may be beyond what is known.
const ACK_STRIDE: u64 = 100_000;
const NOP: u8 = 1;
/// Number of SYN-ACKs after which the ring of events is full, whether they were taken or not.
const RING_EVENTS: u32 = 1 << 13;

/// A connection that was held, until its slot is given back.
#[derive(Clone, Copy)]
struct Conn {
    tuple: usize,
    at_gate: ConnId,
    at_model: ConnId,
    /// Whether the slot's word for `stable` is of another generation.
    is_late: bool,
}

#[derive(Clone, Copy, Default)]
struct Syn {
    seq: u32,
    mss_and_scale: bool,
}

struct Pair {
    lab: Lab,
    gate: Gate,
    model: GateModel,
    rng: Rng,
    server: IpAddr,
    client: IpAddr,
    conns: Vec<Conn>,
    syns: Vec<Syn>,
    /// Whether the server speaks alone.
    solo: bool,
    /// Whether somebody frees slots.
    minded: bool,
    /// Describes the packet, for the message of a failure.
    at: String,
    seen: Seen,
}

/// Counts of what the packets led to: draws that reach nothing compare nothing.
#[derive(Debug, Default)]
struct Seen {
    held: u32,
    passed: u32,
    changed: u32,
    stolen: u32,
    /// Packets that passed while the server speaks alone.
    alone: u32,
    /// New connections that did not pass meanwhile.
    refused_alone: u32,
    /// Connections that were adopted.
    adopted: u32,
}

#[test]
fn the_gate_and_its_model_say_the_same_of_every_packet() {
    if !is_root() {
        return;
    }
    for seed in 0..SEEDS {
        let mut pair = Pair::new(seed);
        for number in 0..PACKETS {
            pair.at = format!("seed {seed}, packet {number}");
            pair.step();
        }
        let Seen { held, passed, changed, stolen, alone, refused_alone, adopted } = pair.seen;
        assert!(
            held > 40 && passed > 200 && changed > 100 && stolen > 200,
            "seed {seed}: {:?}",
            pair.seen
        );
        assert!(alone > 200 && refused_alone > 0 && adopted > 10, "seed {seed}: {:?}", pair.seen);
        for counter in ["refused_slots", "refused_unknown_syn", "held_fins", "repeats"] {
            assert!(pair.count(counter) > 0, "no {counter}");
        }
        let unknown = pair.count("unknown_alone");
        assert!(unknown > 0 && unknown == pair.model.unknown_alone(), "seed {seed}: {unknown}");
        pair.gate.detach().expect("detach");
    }
}

/// A dead daemon takes no events and frees no slots; while the server speaks alone, that refuses no
/// connection.
#[test]
fn a_full_ring_of_events_refuses_nobody_alone() {
    if !is_root() {
        return;
    }
    let mut pair = Pair::new(SEEDS);
    "the ring".clone_into(&mut pair.at);
    pair.set_solo(false);
    let syn_acks: Vec<Frame> = (0..=SLOTS as usize).map(|tuple| pair.handshake(tuple)).collect();
    let [first, .., last] = &syn_acks[..] else { panic!("several") };
    syn_acks.iter().for_each(|syn_ack| pair.compare(syn_ack));
    for _ in 0..RING_EVENTS {
        pair.compare(last);
    }
    assert!(pair.count("refused_events") > 0, "{:?}", pair.gate.counters());
    pair.model.set_events_full(true);
    let key = key(first);
    let at_gate = pair.gate.conn(&key).expect("a slot");
    assert!(pair.gate.free(at_gate).expect("freed"));
    pair.model.free(pair.model.conn(&key).expect("a slot"));
    pair.compare(first);
    pair.set_solo(true);
    pair.compare(first);
    assert_eq!((pair.gate.conn(&key), pair.model.conn(&key)), (None, None));
    assert_eq!((pair.count("unknown_alone"), pair.model.unknown_alone()), (1, 1));
    pair.compare_held(0);
    pair.model.set_events_full(false);
    pair.compare(first);
    pair.compare_held(0);
    assert!(pair.gate.conn(&key).is_some() && pair.model.conn(&key).is_some());
    pair.gate.detach().expect("detach");
}

impl Pair {
    fn new(seed: u64) -> Self {
        let lab = Lab::new(&format!("model-{seed}"));
        crate::common::sh("ip link add p0 type veth peer name p1");
        let (server, client) =
            if seed % 3 == 2 { ("fd00:9::100", "fd00:8::2") } else { ("10.9.0.100", "10.8.0.2") };
        let server = server.parse().expect("address");
        let gate = Gate::attach(&GateConfig {
            interface: "p0".into(),
            services: vec![(server, PORT)],
            slots: SLOTS,
            solo: false,
            deposable: false,
            pin_dir: lab.pin_dir.clone(),
        });
        Self {
            lab,
            gate: gate.unwrap_or_else(|error| panic!("{error}")),
            model: GateModel::new(SLOTS as usize),
            rng: Rng::new(seed, 0),
            server,
            client: client.parse().expect("address"),
            conns: Vec::new(),
            syns: vec![Syn::default(); TUPLES as usize],
            solo: false,
            minded: false,
            at: String::new(),
            seen: Seen::default(),
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..8 => self.client_speaks(),
            8..20 => self.kernel_answers_a_syn(),
            20..45 => self.user_space_writes(),
            _ => self.kernel_sends(),
        }
        self.compare_tuples();
    }

    fn count(&self, counter: &str) -> u64 {
        crate::common::counter(&self.gate.counters(), counter)
    }

    fn set_solo(&mut self, solo: bool) {
        self.gate.set_solo(solo).expect("flag");
        self.model.set_solo(solo);
        self.solo = solo;
    }

    fn set_minded(&mut self, minded: bool) {
        let lasts = if minded { AGES } else { Duration::ZERO };
        self.gate.mind_slots(lasts).expect("flag");
        self.model.set_minded(minded);
        self.minded = minded;
    }

    /// A client's SYN; returns the kernel's answer.
    fn handshake(&mut self, tuple: usize) -> Frame {
        let options = self.syn_options();
        let answer = self.out(tuple).seq(9).ack(8).flags(SYN | ACK).options(&options);
        let mut syn = answer.clone().seq(7).ack(0).flags(SYN);
        std::mem::swap(&mut syn.source, &mut syn.target);
        let bytes = syn.build();
        self.lab.run(INGRESS, &bytes, Context::default());
        self.model.ingress(&bytes[14..]);
        answer
    }

    /// A frame from the kernel to a client.
    fn out(&self, tuple: usize) -> Frame {
        Frame::new((self.server, PORT), (self.client, 40000 + tuple as u16))
    }

    fn draw_tuple(&mut self) -> usize {
        self.rng.below(TUPLES) as usize
    }

    /// An initial sequence number from which the stream soon wraps, or any other.
    fn draw_start(&mut self) -> u32 {
        let anywhere = self.rng.draw() as u32;
        self.rng.pick(&[0, u32::MAX, u32::MAX - 300, 0x7fff_ffff, 0x8000_0000, anywhere])
    }

    /// A client's SYN in most cases; the gate looks at nothing else of a client.
    fn client_speaks(&mut self) {
        let (tuple, seq) = (self.draw_tuple(), self.draw_start());
        let flags = self.rng.pick(&[SYN, SYN, SYN, SYN | ECE | CWR, SYN | ACK, SYN | RST, ACK]);
        let options = self.syn_options();
        let mut frame = self.out(tuple).seq(seq).flags(flags).window(64240).options(&options);
        std::mem::swap(&mut frame.source, &mut frame.target);
        let bytes = frame.build();
        let (verdict, out) = self.lab.run(INGRESS, &bytes, Context::default());
        assert_eq!((verdict, out == bytes), (PASS, true), "{}: {frame:?}", self.at);
        self.model.ingress(&bytes[14..]);
        if flags & (SYN | ACK | RST) == SYN {
            self.syns[tuple] = Syn { seq, mss_and_scale: true };
        }
    }

    /// Options of a SYN: MSS, SACK permitted, timestamps, and perhaps a window scale.
    fn syn_options(&mut self) -> Vec<u8> {
        let scale = self.rng.pick(&[None, Some(0), Some(1), Some(7), Some(14), Some(15)]);
        let tsval = self.rng.draw() as u32;
        let mut options = vec![2, 4, 5, 0xb4, 4, 2, 8, 10];
        options.extend(tsval.to_be_bytes());
        options.extend([0, 0, 0, 7]);
        options.extend(scale.map_or([NOP; 4], |scale| [NOP, 3, 3, scale]));
        options
    }

    fn kernel_answers_a_syn(&mut self) {
        let tuple = self.draw_tuple();
        // It is a repetition, or answers what was never asked.
        let known = self.conns.iter().find(|conn| conn.tuple == tuple).copied();
        let known = known.and_then(|conn| self.gate.slot(conn.at_gate));
        let repeated = known.filter(|_| self.rng.one_in(3));
        let mut iss = repeated.map_or_else(|| self.draw_start(), |slot| slot.iss.0);
        let mut irs = repeated.map_or(self.syns[tuple].seq, |slot| slot.irs.0);
        if self.rng.one_in(12) {
            irs = irs.wrapping_add(1);
        }
        if self.rng.one_in(12) {
            iss = iss.wrapping_sub(1);
        }
        let ack = irs.wrapping_add(1);
        let window = self.rng.pick(&[0, 1, 65160, 65535]);
        let mut options = self.syn_options();
        if !self.syns[tuple].mss_and_scale {
            options.truncate(16);
        }
        let flags = SYN | ACK;
        let frame = self.out(tuple).seq(iss).ack(ack).flags(flags).window(window);
        self.compare(&frame.options(&options));
        self.compare_held(tuple);
    }

    /// Checks that both hold the same SYN-ACK, and would report the same of it to the backup.
    fn compare_held(&mut self, tuple: usize) {
        let mut at_gate: Vec<(ConnId, ConnRecord, bool)> = Vec::new();
        self.gate.drain_events(|held| at_gate.push((held.conn, held.record, held.passed)));
        let at_model = self.model.drain_held();
        assert_eq!(at_gate.len(), at_model.len(), "{}", self.at);
        for (found, expected) in at_gate.into_iter().zip(at_model) {
            let ((gate_id, found, passed), (model_id, expected, model_passed)) = (found, expected);
            assert_eq!(passed, model_passed, "{}", self.at);
            // In the simulation all hosts have the same MSS.
            let expected = ConnRecord { mss: found.mss, peer_mss: found.peer_mss, ..expected };
            assert_eq!(found, expected, "{}", self.at);
            let conn = Conn { tuple, at_gate: gate_id, at_model: model_id, is_late: false };
            self.conns.push(conn);
            self.seen.held += 1;
        }
    }

    /// Stores what a daemon stores, for a connection that lives or one that is gone.
    fn user_space_writes(&mut self) {
        if self.rng.one_in(30) {
            let dead = self.rng.one_in(2);
            self.gate.set_server_dead(dead).expect("flag");
            return self.model.set_server_dead(dead);
        }
        if self.rng.one_in(if self.solo { 12 } else { 40 }) {
            return self.set_solo(!self.solo);
        }
        if self.rng.one_in(25) {
            return self.adopt();
        }
        if self.rng.one_in(30) {
            let minded = self.rng.one_in(2);
            return self.set_minded(minded);
        }
        if self.conns.is_empty() {
            return;
        }
        let which = self.rng.below(self.conns.len() as u64) as usize;
        let Conn { at_gate, at_model, .. } = self.conns[which];
        let view = self.gate.slot(at_gate).expect("it is not freed");
        match self.rng.below(100) {
            0..45 => {
                assert!(self.gate.open(at_gate));
                self.model.open(at_model);
            }
            45..78 => {
                let known = [view.rcv_nxt, view.last_ack, view.stable];
                let drawn = near(&mut self.rng, &known, view.rcv_wscale);
                // The position never goes back, and the backup has little that the primary lacks.
                let ahead = self.rng.below(3_000);
                let stable = view.stable.max(drawn);
                let stable = if self.conns[which].is_late { view.rcv_nxt } else { stable };
                let most = view.rcv_nxt.plus(ahead).max(view.stable);
                let stable = if stable.after(most) { most } else { stable };
                assert!(self.gate.set_stable(at_gate, stable));
                self.model.set_stable(at_model, stable);
                self.conns[which].is_late = false;
            }
            78..81 => self.late_word(which, view),
            81..88 => {
                assert!(self.gate.allow_fin(at_gate));
                self.model.allow_fin(at_model);
            }
            _ => {
                assert!(self.gate.free(at_gate).expect("freed"));
                self.model.free(at_model);
                self.conns.remove(which);
                let stale = [self.gate.open(at_gate), self.gate.allow_fin(at_gate)];
                assert_eq!(stale, [false; 2], "{}: it is gone", self.at);
            }
        }
    }

    /// Adopts a connection that is older than the gate, perhaps of a tuple that has a slot.
    fn adopt(&mut self) {
        let tuple = self.draw_tuple();
        let key = key(&self.out(tuple));
        let [iss, irs] = [(); 2].map(|()| SeqNo(self.draw_start()));
        let rcv_wscale = self.rng.pick(&[0, 1, 7, 14, 255]);
        let (mss, window) = (1460, 65_160);
        let tsval = Some(self.rng.draw() as u32);
        let (peer_mss, snd_wscale, sack) = (mss, rcv_wscale, true);
        let record = ConnRecord {
            key,
            iss,
            irs,
            mss,
            peer_mss,
            rcv_wscale,
            snd_wscale,
            sack,
            tsval,
            window,
        };
        let [sent, received] = [(); 2].map(|()| self.rng.below(ACK_STRIDE));
        let (snd_una, rcv_nxt) = (iss.plus(1 + sent), irs.plus(1 + received));
        let adopted = Adopted {
            record,
            snd_una,
            snd_nxt: snd_una.plus(self.rng.below(3_000)),
            rcv_nxt,
            right_edge: rcv_nxt.plus(self.rng.below(65_536)),
            tsval: self.rng.draw() as u32,
            tsecr: 9,
            fin_allowed: self.rng.one_in(4),
        };
        let former = self.gate.conn(&key);
        self.conns.retain(|conn| Some(conn.at_gate) != former);
        let at_model = self.model.adopt(&adopted);
        let at_gate = match self.gate.adopt(&adopted) {
            Ok(conn) => Some(conn),
            Err(BpfError::NoSlot) => None,
            Err(error) => panic!("{}: {error}", self.at),
        };
        assert_eq!(at_gate.is_some(), at_model.is_some(), "{}: {adopted:?}", self.at);
        if let (Some(at_gate), Some(at_model)) = (at_gate, at_model) {
            self.conns.push(Conn { tuple, at_gate, at_model, is_late: false });
            self.seen.adopted += 1;
        }
    }

    /// A late daemon stores what another connection of this slot may acknowledge. For this
    /// connection it means nothing, so all of it is unconfirmed again.
    fn late_word(&mut self, which: usize, view: SlotView) {
        let Conn { at_gate, at_model, .. } = self.conns[which];
        let (index, generation) = (at_gate.0 as u32, (at_gate.0 >> 32) as u32);
        let other = self.rng.pick(&[0, generation.wrapping_sub(1), generation.wrapping_add(1)]);
        self.lab.slots().set_stable(index, other, view.rcv_nxt.plus(500).0);
        self.model.set_stable(at_model, view.irs.plus(1));
        self.conns[which].is_late = true;
    }

    fn kernel_sends(&mut self) {
        let tuple = self.draw_tuple();
        // In most cases it is the newest connection of the tuple.
        let known = self.conns.iter().rev().find(|conn| conn.tuple == tuple).copied();
        let frame = match known.and_then(|conn| self.gate.slot(conn.at_gate)) {
            Some(slot) => self.segment(tuple, &slot),
            None => self.stray(tuple),
        };
        self.compare(&frame);
    }

    /// A frame of a connection without a slot.
    fn stray(&mut self, tuple: usize) -> Frame {
        let seq = self.rng.pick(&[0, 0, 1, 77]);
        let flags = self.rng.pick(&[RST, RST | ACK, RST | ACK, ACK, FIN | ACK, 0]);
        let payload = self.rng.pick(&[0, 0, 9]);
        self.out(tuple).seq(seq).ack(5).flags(flags).window(9).payload(payload)
    }

    fn segment(&mut self, tuple: usize, slot: &SlotView) -> Frame {
        let scale = slot.rcv_wscale;
        let sent = [slot.snd_nxt, slot.snd_nxt, slot.snd_una];
        let seq = if self.rng.one_in(2) { slot.snd_nxt } else { near(&mut self.rng, &sent, scale) };
        let acked = [slot.stable, slot.stable, slot.last_ack, slot.rcv_nxt];
        let mut ack = near(&mut self.rng, &acked, scale);
        if self.rng.one_in(6) {
            ack = slot.rcv_nxt.plus(self.rng.below(ACK_STRIDE));
        }
        let flags = self.draw_flags();
        let payload = self.rng.pick(&[0, 0, 0, 1, 2, 100]);
        let window = self.draw_window(slot, ack);
        let options = self.draw_options(slot, ack);
        let frame = self.out(tuple).seq(seq.0).ack(ack.0).flags(flags).window(window);
        frame.options(&options).payload(payload)
    }

    fn draw_flags(&mut self) -> u8 {
        let usual = [ACK, ACK, ACK, ACK | PSH, ACK | PSH];
        let rare = [FIN | ACK, FIN | ACK, RST, RST | ACK, FIN | RST | ACK, PSH, FIN, 0];
        let flags = if self.rng.one_in(4) { self.rng.pick(&rare) } else { self.rng.pick(&usual) };
        flags | self.rng.pick(&[0, 0, 0, 0, ECE, CWR])
    }

    /// A window, often one whose right edge is a unit away from what was seen.
    fn draw_window(&mut self, slot: &SlotView, ack: SeqNo) -> u16 {
        let shift = if slot.rcv_wscale > 14 { 0 } else { slot.rcv_wscale };
        let edge = near(&mut self.rng, &[slot.right_edge, slot.last_edge], slot.rcv_wscale);
        let aimed = (edge.since(ack).max(0) >> shift).min(65535) as u16;
        let anything = self.rng.draw() as u16;
        self.rng.pick(&[aimed, aimed, aimed, aimed.saturating_add(1), 0, 1, 65535, anything])
    }

    /// Options of a frame: timestamps, and SACK blocks around what may be acknowledged.
    fn draw_options(&mut self, slot: &SlotView, ack: SeqNo) -> Vec<u8> {
        let mut options = Vec::new();
        if !self.rng.one_in(5) {
            let back = self.rng.pick(&[0, 1, 0x7fff_ffff]);
            let tsval = slot.tsval.wrapping_add(self.rng.below(3) as u32).wrapping_sub(back);
            options.extend([NOP, NOP, 8, 10]);
            options.extend(tsval.to_be_bytes());
            options.extend([0, 0, 0, 9]);
        }
        if self.rng.one_in(3) {
            let blocks = 1 + self.rng.below(3);
            let padding = self.rng.below(3) as usize;
            options.extend(&[NOP; 2][..padding]);
            options.extend([5, 2 + 8 * blocks as u8]);
            for _ in 0..blocks {
                let left = near(&mut self.rng, &[slot.stable, ack], slot.rcv_wscale);
                let right = left.plus(self.rng.pick(&[1, 2, 100, 5000]));
                options.extend(left.0.to_be_bytes());
                options.extend(right.0.to_be_bytes());
            }
            options.resize(options.len().next_multiple_of(4), NOP);
        }
        options
    }

    /// Runs the same packet through both, and compares everything.
    fn compare(&mut self, frame: &Frame) {
        let bytes = frame.build();
        let (verdict, out) = self.lab.run(EGRESS, &bytes, Context::default());
        let passed = self.model.egress(&bytes[14..]);
        let expected = if passed.is_some() { PASS } else { STOLEN };
        assert_eq!(verdict, expected, "{}: {frame:?}\nthe model: {passed:?}", self.at);
        match passed {
            None => {
                let is_new = frame.flags & (SYN | ACK) == SYN | ACK;
                let refused = self.minded && is_new;
                assert!(!self.solo || refused, "{}: {frame:?} withheld alone", self.at);
                self.seen.refused_alone += u32::from(self.solo);
                self.seen.stolen += 1;
            }
            Some(passed) => {
                let mut expected = frame.clone().window(passed.window).flags(passed.flags.0);
                if frame.flags & ACK != 0 {
                    expected.ack = passed.ack.0;
                }
                if !passed.has_sack {
                    blank_sack(&mut expected.options);
                }
                assert!(
                    out == expected.build() && sums_are_right(&out),
                    "{}",
                    self.differs(frame, &expected, &out)
                );
                self.seen.passed += 1;
                self.seen.alone += u32::from(self.solo);
                assert!(!self.solo || out == bytes, "{}: {frame:?} changed alone", self.at);
                self.seen.changed += u32::from(expected != *frame);
            }
        }
        self.compare_slots(frame);
    }

    fn differs(&self, sent: &Frame, expected: &Frame, out: &[u8]) -> String {
        let found = TcpPacket::parse(&out[14..], Checksum::Verify);
        format!("{}: {sent:?}\nthe model: {expected:?}\nthe gate: {found:?}", self.at)
    }

    fn compare_slots(&self, frame: &Frame) {
        for conn in &self.conns {
            let found = self.gate.slot(conn.at_gate);
            // All hosts of the simulation have timestamps, and nobody reads the echo.
            let alike = |view: SlotView| SlotView { tsecr: 0, has_ts: true, ..view };
            let late = |view: SlotView| SlotView { stable: view.irs.plus(1), ..view };
            let found = found.map(alike).map(|view| if conn.is_late { late(view) } else { view });
            let expected = self.model.view(conn.at_model);
            assert_eq!(found, expected, "{}: after {frame:?}", self.at);
        }
    }

    /// Checks that the same connection has the tuple in both.
    fn compare_tuples(&self) {
        for tuple in 0..TUPLES as usize {
            let key = key(&self.out(tuple));
            let known = |conn: &&Conn| Some(conn.at_model) == self.model.conn(&key);
            let expected = self.conns.iter().find(known).map(|conn| conn.at_gate);
            assert_eq!(self.gate.conn(&key), expected, "{}: tuple {tuple}", self.at);
        }
    }
}

/// Key of a frame from a server.
fn key(frame: &Frame) -> ConnKey {
    let mapped = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    ConnKey {
        server: mapped(frame.source.0),
        client: mapped(frame.target.0),
        server_port: frame.source.1,
        client_port: frame.target.1,
    }
}

/// Replaces the SACK option of [`Pair::draw_options`] by NOPs.
fn blank_sack(options: &mut [u8]) {
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        let len = if kind == NOP { 1 } else { usize::from(options[at + 1]) };
        if kind == 5 {
            options[at..at + len].fill(NOP);
        }
        at += len;
    }
}
