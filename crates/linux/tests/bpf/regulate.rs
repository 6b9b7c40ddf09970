//! The cap on advertised windows, packet by packet: program and machine use the same vectors.

use crate::common::{ACK, Context, FIN, Frame, Lab, PASS, RST, SYN, is_root, sums_are_right};
use aya::maps::{Array, HashMap, MapData, PerCpuArray};
use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader, Pod};
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

const SENDER: (&str, u16) = ("10.8.0.2", 40000);
const RECEIVER: (&str, u16) = ("10.9.0.100", 80);
const STRING: u32 = 1;

/// A flow as in `struct regulate_flow`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Flow {
    seen_ns: u64,
    turn_ns: u64,
    turn_us: u32,
    turn_from: u32,
    turn_bytes: u32,
    sent_end: u32,
    right_edge: u32,
    session: u16,
    interval: u16,
    near_scale: u8,
    far_scale: u8,
    flags: u8,
    zero: [u8; 5],
}

// SAFETY: plain integers without padding, every bit pattern of which is valid.
unsafe impl Pod for Flow {}

struct Fixture {
    ebpf: Ebpf,
    lab: Lab,
    session: u16,
    interval: u16,
}

impl Fixture {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        let programs = lab.pin_dir.join("regulate");
        std::fs::create_dir_all(&lab.pin_dir).expect("a directory");
        let mounted = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&lab.pin_dir).status();
        assert!(mounted.expect("mount runs").success());
        std::fs::create_dir(&programs).expect("a directory");
        let object = compiled(name);
        let mut ebpf = EbpfLoader::new().btf(None).load(&object).expect("loads");
        for program in ["to_string", "from_string"] {
            let classifier: &mut SchedClassifier =
                ebpf.program_mut(program).expect("is there").try_into().expect("a classifier");
            classifier.load().unwrap_or_else(|error| panic!("{error:?}"));
            classifier.pin(programs.join(program)).expect("a pin");
        }
        Self { ebpf, lab, session: 0, interval: 0 }
    }

    /// Sends the sender's frame into the string.
    fn sends(&self, frame: &Frame) {
        let built = frame.build();
        let after = self.lab.run("regulate/to_string", &built, Context::default());
        assert_eq!(after, (PASS, built), "data is never changed");
    }

    /// Takes the receiver's frame out of the string; returns its window.
    fn answers(&self, frame: &Frame) -> u16 {
        let (verdict, out) =
            self.lab.run("regulate/from_string", &frame.build(), Context::default());
        assert_eq!(verdict, PASS);
        assert!(sums_are_right(&out));
        let at = if out[12] == 0x08 { 14 + 20 + 14 } else { 14 + 40 + 14 };
        let window = u16::from_be_bytes([out[at], out[at + 1]]);
        assert_eq!(out, frame.clone().window(window).build(), "nothing else is changed");
        window
    }

    fn handshake(&self, near: Option<u8>, far: Option<u8>) {
        self.sends(&data().flags(SYN).options(&scale(near)));
        assert_eq!(self.answers(&ack().flags(SYN | ACK).options(&scale(far)).window(60000)), 60000);
    }

    fn set(&mut self, window: u32) {
        self.interval += 1;
        let word =
            u64::from(window) | u64::from(self.interval) << 32 | u64::from(self.session) << 48;
        let map = self.ebpf.map_mut("regulate_control").expect("a map");
        Array::<&mut MapData, u64>::try_from(map).expect("an array").set(0, word, 0).expect("set");
    }

    /// Switches the cap on.
    fn start(&mut self, window: u32) {
        self.session += 1;
        self.set(window);
    }

    /// The key and words of the only flow.
    fn flow(&mut self) -> Option<([u8; 36], Flow)> {
        let map = self.ebpf.map_mut("regulate_flows").expect("a map");
        let map = HashMap::<&mut MapData, [u8; 36], Flow>::try_from(map).expect("a hash");
        map.iter().next().map(|entry| entry.expect("an entry"))
    }

    fn promise(&mut self, edge: Option<u32>) {
        let (key, mut flow) = self.flow().expect("a flow");
        flow.session = if edge.is_some() { self.session } else { 0 };
        flow.right_edge = edge.unwrap_or(77);
        let map = self.ebpf.map_mut("regulate_flows").expect("a map");
        let mut map = HashMap::<&mut MapData, [u8; 36], Flow>::try_from(map).expect("a hash");
        map.insert(key, flow, 0).expect("insert");
    }

    /// Bytes and active flows that the string measured.
    fn measured(&mut self) -> (u64, u64) {
        let [bytes, flows, ..] = self.counted();
        (bytes, flows)
    }

    /// The counters, the last of which is for flows that do not feel the cap yet.
    fn counted(&mut self) -> [u64; 4] {
        let map = self.ebpf.map_mut("regulate_strings").expect("a map");
        let map = PerCpuArray::<&mut MapData, [u64; 4]>::try_from(map).expect("an array");
        let values = map.get(&STRING, 0).expect("values");
        values.iter().fold([0; 4], |sum, it| std::array::from_fn(|at| sum[at] + it[at]))
    }
}

fn compiled(name: &str) -> Vec<u8> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = std::env::temp_dir().join(format!("holdfast-{}-{name}.bpf.o", std::process::id()));
    let status = Command::new("clang")
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"])
        .arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH))
        .arg(format!("-I{}", manifest.join("../../bpf").display()))
        .arg("-c")
        .arg(manifest.join("tests/programs/regulate.bpf.c"))
        .arg("-o")
        .arg(&out)
        .status();
    assert!(status.expect("clang runs").success());
    let bytes = std::fs::read(&out).expect("the object");
    std::fs::remove_file(&out).expect("the object goes");
    bytes
}

fn end((address, port): (&str, u16)) -> (IpAddr, u16) {
    (address.parse().expect("an address"), port)
}

fn data() -> Frame {
    Frame::new(end(SENDER), end(RECEIVER)).seq(5000).window(500)
}

fn ack() -> Frame {
    Frame::new(end(RECEIVER), end(SENDER)).seq(9000).ack(5001)
}

fn scale(shift: Option<u8>) -> Vec<u8> {
    shift.map_or_else(|| vec![2, 4, 5, 0xb4], |shift| vec![2, 4, 5, 0xb4, 1, 3, 3, shift])
}

#[test]
fn windows_are_clamped_as_the_vectors_say() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("vectors");
    let rows = include_str!("../../../edge/vectors/clamp.txt");
    let mut count = 0;
    for row in rows.lines().filter(|row| !row.starts_with('#')) {
        let words: Vec<&str> = row.split_whitespace().collect();
        let number = |index: usize| words[index].parse::<u32>().expect("a number");
        f.handshake(Some(2), Some(number(4) as u8));
        f.start(number(0));
        f.promise((words[1] != "-").then(|| number(1)));
        let frame = ack().ack(number(2)).window(number(3) as u16);
        assert_eq!(u32::from(f.answers(&frame)), number(5), "{row}");
        let (_, flow) = f.flow().expect("a flow");
        assert_eq!((flow.right_edge, flow.session), (number(6), f.session), "{row}");
        count += 1;
    }
    assert!(count > 15);
}

#[test]
fn only_flows_whose_scale_is_known_are_touched() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("scale");
    let later = |f: &Fixture| {
        // The first acknowledgement shows what was advertised.
        f.answers(&ack().ack(6000).window(100));
        f.answers(&ack().ack(6000 + (100 << 14)).window(65535))
    };
    f.start(1000);
    f.sends(&data().payload(100));
    assert_eq!(later(&f), 65535, "no handshake was seen");
    f.sends(&data().flags(SYN).options(&scale(Some(7))));
    assert_eq!(later(&f), 65535, "half of one");
    for (near, far, becomes) in [
        (Some(7), Some(7), 8),
        (Some(0), Some(9), 2),
        (Some(7), None, 1000),
        (None, Some(7), 1000),
        (None, None, 1000),
    ] {
        f.handshake(near, far);
        assert_eq!(later(&f), becomes, "{near:?} {far:?}");
    }
    // After the cap was off and on again, it is not known what was advertised meanwhile.
    f.handshake(Some(7), Some(7));
    f.set(0);
    assert_eq!(later(&f), 65535);
    f.start(1000);
    assert_eq!(f.answers(&ack().ack(9_000_000).window(60000)), 60000);
    assert_eq!(f.answers(&ack().ack(9_000_000).window(60001)), 60000, "the promise is kept");
    assert_eq!(f.answers(&ack().ack(9_000_000 + (60000 << 7)).window(60000)), 8);
}

#[test]
fn no_more_is_promised_than_the_sender_may_use_soon() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("room");
    f.start(u32::MAX);
    f.handshake(Some(7), Some(7));
    let window = |f: &Fixture, of: u32, window| u32::from(f.answers(&ack().ack(of).window(window)));
    f.sends(&data().seq(5001));
    assert_eq!(window(&f, 5001, 100), 100, "what was promised before is not known");
    // What was sent and not acknowledged is added to the least window.
    f.sends(&data().seq(5001).payload(1400));
    assert_eq!(window(&f, 5001, 60_000) << 7, 65_536 + 1408);
    // The right edge stays where it is, to the unit.
    assert_eq!(window(&f, 6401, 60_000) << 7, 65_536 + 128);
    let (_, flow) = f.flow().expect("a flow");
    assert_eq!(flow.sent_end, 6401);
    assert!(flow.turn_us > 0);
}

#[test]
fn the_string_is_measured_while_it_is_on() {
    if !is_root() {
        return;
    }
    let mut f = Fixture::new("measure");
    f.handshake(Some(7), Some(7));
    f.sends(&data().payload(1000));
    assert_eq!(f.measured(), (0, 0), "off");
    f.start(1000);
    f.sends(&data().payload(1000));
    f.sends(&data().payload(500));
    f.sends(&data());
    assert_eq!(f.measured(), (1500 + 2 * 54, 1), "one flow, and no acknowledgements");
    assert_eq!(f.counted()[2..], [0, 0], "nothing is known of promises");
    f.set(2000);
    f.sends(&data().payload(1000));
    assert_eq!(f.measured().1, 2, "once more in the next interval");
    f.answers(&ack().ack(6000).window(100));
    f.set(2000);
    f.sends(&data().payload(1000));
    assert_eq!(f.counted()[2..], [1054, 1], "it was promised more");
    f.answers(&ack().ack(6000 + (98 << 7)).window(100));
    f.set(2000);
    f.sends(&data().payload(1000));
    assert_eq!(f.counted()[2..], [1054, 1], "it has used that up");
    f.sends(&data().flags(FIN | ACK));
    f.answers(&ack().flags(FIN | ACK));
    assert_eq!(f.flow().expect("a flow").1.flags & 15, 15);
    f.answers(&ack().flags(RST));
    assert_eq!(f.flow().expect("a flow").1.flags & 16, 16);
}
