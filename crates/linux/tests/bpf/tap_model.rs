//! The tap from end to end, packet by packet: a client's packets go through `bpf/edge.bpf.c` to a
//! primary's kernel and, as copies, to the backup's machine. What the kernel has accepted, the
//! backup holds as well: the edge, which copies what is plausible, the tap drop, and the machine,
//! which takes what is acceptable, must not be stricter than the kernel. And the backup holds
//! nothing that the client cannot have sent.

use crate::common::edge::*;
use crate::common::{ACK, Capture, Context, FIN, Frame, PSH, REDIRECT, RST, STOLEN, SYN};
use crate::common::{is_root, near};
use holdfast_linux::bpf::TapDrop;
use holdfast_sim::Rng;
use holdfast_sim::models::{KernelModel, TapModel};
use holdfast_wire::packet::{Checksum, TcpPacket};
use holdfast_wire::seq::SeqNo;

const SEEDS: u64 = 2;
/// Number of connections of a seed, one after the other.
const CONNECTIONS: u32 = 25;
/// Number of a client's packets in each connection.
const PACKETS: u32 = 60;
/// Bytes that a server writes at once.
const REPLY: [u8; 150] = [7; 150];
const NOP: u8 = 1;

struct Tapped<'a> {
    f: &'a Fixture,
    capture: &'a Capture,
    rng: Rng,
    kernel: KernelModel,
    tap: TapModel,
    /// First sequence number that the client has not sent yet.
    next: SeqNo,
    server_next: SeqNo,
    tsval: u32,
    at: String,
    taken: u32,
    withheld: u32,
}

#[test]
fn the_backup_holds_what_the_primarys_kernel_takes() {
    if !is_root() {
        return;
    }
    for seed in 0..SEEDS {
        let mut f = Fixture::with_flows(&format!("tap-model-{seed}"), 64);
        f.edge.set_current(1, Some(0)).expect("fence");
        f.edge.set_tap(1, true).expect("tap");
        crate::common::sh("ip link add b0 type veth peer name b1");
        let services = [(address(VIP4), PORT)];
        let _drop = TapDrop::attach("b0", &services, &f.lab.pin_dir).expect("tap drop");
        let capture = Capture::new("m1");
        let (mut taken, mut withheld) = (0, 0);
        for connection in 0..CONNECTIONS {
            let rng = Rng::new(seed, u64::from(connection) + 2);
            let mut tapped = Tapped::new(&f, &capture, rng);
            for number in 0..PACKETS {
                tapped.at = format!("seed {seed}, connection {connection}, packet {number}");
                tapped.step();
                if tapped.kernel.is_reset() {
                    break;
                }
            }
            taken += tapped.taken;
            withheld += tapped.withheld;
        }
        assert!(taken > 200 && withheld > 50, "seed {seed}: {taken} taken, {withheld} withheld");
        f.edge.detach().expect("detach");
    }
}

impl<'a> Tapped<'a> {
    fn new(f: &'a Fixture, capture: &'a Capture, mut rng: Rng) -> Self {
        let starts = [0, u32::MAX, u32::MAX - 2_000, 0x7fff_fc00, rng.draw() as u32];
        // The edge recognises a SYN-ACK by its ISS, so that it must not be the one of the tuple's
        // last connection.
        let (irs, iss) = (SeqNo(rng.pick(&starts)), SeqNo(rng.pick(&starts)));
        let iss = iss.plus(rng.below(1 << 20));
        let tsval = rng.pick(&starts);
        let scale = [NOP, 3, 3, 7];
        let options = [times(tsval), scale.to_vec()].concat();
        let syn = request().seq(irs.0).ack(0).flags(SYN).window(64_240).options(&options).build();
        let mut kernel = KernelModel::accept(&syn[14..], iss).expect("a SYN");
        f.client_sends(&syn);
        let syn_ack = kernel.syn_ack();
        let window = TcpPacket::parse(&syn_ack, Checksum::Verify).expect("a SYN-ACK").window;
        let tap = TapModel::new(kernel.record(window));
        let mut tapped = Self {
            f,
            capture,
            rng,
            kernel,
            tap,
            next: irs.plus(1),
            server_next: iss.plus(1),
            tsval,
            at: String::new(),
            taken: 0,
            withheld: 0,
        };
        tapped.through_the_edge(&syn_ack);
        capture.tcp_frames();
        tapped
    }

    /// Sends a packet from the primary through the edge to its client.
    fn through_the_edge(&mut self, l3: &[u8]) {
        let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0], l3].concat();
        assert_eq!(self.f.member_sends(0, &frame).0, REDIRECT, "{}", self.at);
        let packet = TcpPacket::parse(l3, Checksum::Verify).expect("a packet");
        self.server_next = self.server_next.max(packet.seq_end());
    }

    fn step(&mut self) {
        if self.rng.one_in(5) {
            for packet in self.kernel.write(&REPLY) {
                self.through_the_edge(&packet);
            }
        }
        let frame = self.draw();
        let bytes = frame.build();
        let before = self.kernel.rcv_nxt();
        assert_eq!(self.f.client_sends(&bytes).0, REDIRECT, "{}: {frame:?}", self.at);
        let copies = self.capture.tcp_frames();
        assert!(copies.len() <= 1, "{}: {frame:?}", self.at);
        for copy in &copies {
            let dropped = self.f.lab.run("tapdrop/tapdrop", copy, Context::default()).0;
            assert_eq!(dropped, STOLEN, "{}: {frame:?}", self.at);
            self.tap.take(&copy[14..]);
        }
        let answer = self.kernel.receive(&bytes[14..]);
        let after = self.kernel.rcv_nxt();
        assert!(!after.after(self.tap.held()), "{}: {frame:?} is missed", self.at);
        // Nothing may be held that the client could not have sent.
        let most = self.next.max(after);
        assert!(!self.tap.held().after(most), "{}: {frame:?} is believed", self.at);
        self.taken += u32::from(after != before);
        self.withheld += u32::from(copies.is_empty() && !is_pure(&frame));
        if !self.kernel.is_reset() {
            self.through_the_edge(&answer);
        }
    }

    /// The client's next bytes, or some around them; now and then with an ACK, a number or a time
    /// that no honest client could have.
    fn draw(&mut self) -> Frame {
        let rcv_nxt = self.kernel.rcv_nxt();
        let seqs = [rcv_nxt, rcv_nxt, rcv_nxt.plus(100), rcv_nxt.plus(4_000)];
        let seq = if self.rng.one_in(2) { rcv_nxt } else { near(&mut self.rng, &seqs, 7) };
        // The ACK is for something sent, old or new, or a byte or a unit off.
        let old = SeqNo(self.server_next.0.wrapping_sub(self.rng.below(2_000) as u32));
        let acks = [self.server_next, self.server_next, old];
        let ack = if self.rng.one_in(4) { near(&mut self.rng, &acks, 7) } else { self.server_next };
        let usual = [ACK, ACK | PSH, ACK | PSH];
        let rare = [FIN | ACK, RST, RST | ACK, SYN, PSH, 0];
        let flags = if self.rng.one_in(15) { self.rng.pick(&rare) } else { self.rng.pick(&usual) };
        // A stream ends once, and nothing is sent after its end.
        let ends = flags & FIN != 0;
        let (seq, ack) = if ends { (rcv_nxt, self.server_next) } else { (seq, ack) };
        let payload = self.rng.pick(&[0, 1, 90, 500, 1_400]);
        // A timestamp one tick back is accepted by all, and one that is far older by none. In
        // between lies what the backup refuses and the kernel does not, if only the backup got a
        // newer packet behind a hole: the client's repetition has a newer time.
        let back = if ends { 0 } else { self.rng.pick(&[0, 0, 0, 0, 0, 0, 1, 10_000]) };
        self.tsval = self.tsval.wrapping_add(self.rng.below(3) as u32);
        let frame = request().seq(seq.0).ack(ack.0).flags(flags).window(500).payload(payload);
        let end = seq.plus(payload as u64 + u64::from(ends));
        self.next = self.next.max(end);
        frame.options(&times(self.tsval.wrapping_sub(back)))
    }
}

fn is_pure(frame: &Frame) -> bool {
    frame.payload == 0 && frame.flags & (SYN | FIN | RST) == 0
}

fn times(tsval: u32) -> Vec<u8> {
    let mut options = vec![NOP, NOP, 8, 10];
    options.extend(tsval.to_be_bytes());
    options.extend([0, 0, 0, 7]);
    options
}
