//! What the eBPF tests share: a private network namespace with a directory for
//! pins, one frame builder, and a way to run a pinned program on a frame.

pub mod claims;
pub mod edge;
pub mod flows;
pub mod gate;
pub mod redirector;
pub mod topology;
pub mod transit;

pub use flows::Flows;

use aya::maps::{Array, Map, MapData, MapInfo};
use aya::programs::{ProgramInfo, SchedClassifier};
use aya::{TestRun, TestRunOptions};
use holdfast_sim::Rng;
use holdfast_wire::seq::SeqNo;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const URG: u8 = 0x20;
pub const ECE: u8 = 0x40;
pub const CWR: u8 = 0x80;

pub const PASS: u32 = u32::MAX;
pub const STOLEN: u32 = 4;
pub const REDIRECT: u32 = 7;

/// Mark by which an edge's program knows a question, as in `bpf/layout.h`.
pub const TRACE_MARK: u32 = 0x686f_6c64;

const ETHERNET: usize = 14;
/// Bytes of a capture's buffer: more than any test keeps in flight, so that captures lose nothing.
const CAPTURE_BYTES: i32 = 128 << 20;
/// Bytes of `struct __sk_buff`, of which a test may set some fields.
const CONTEXT_BYTES: usize = 192;
const CONTEXT_MARK: usize = 8;
const CONTEXT_IFINDEX: usize = 40;
const CONTEXT_GSO_SEGS: usize = 164;
const CONTEXT_GSO_SIZE: usize = 176;

/// Whether the test can run. A test that cannot fails, unless `HOLDFAST_MAY_SKIP=1`.
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    assert!(root || may_skip(), "loading eBPF programs needs root; or set HOLDFAST_MAY_SKIP=1");
    root
}

/// Whether tests that cannot run on this machine count as passed.
pub fn may_skip() -> bool {
    std::env::var_os("HOLDFAST_MAY_SKIP").is_some_and(|value| value == "1")
}

/// A program and its model, which get the same packets.
pub trait Drawn {
    fn new(seed: u64) -> Self;
    /// Sends the next packet; `at` names the step in a failure.
    fn step(&mut self, at: String);
    /// Asserts that the steps led to enough, and removes program and model.
    fn end(self, seed: u64);
}

/// Runs `steps` steps of each seed.
pub fn draw<D: Drawn>(seeds: u64, steps: u32) {
    if !is_root() {
        return;
    }
    for seed in 0..seeds {
        let mut drawn = D::new(seed);
        (0..steps).for_each(|step| drawn.step(format!("seed {seed}, step {step}")));
        drawn.end(seed);
    }
}

/// A directory for pins and, for this thread, a private network namespace.
pub struct Lab {
    pub pin_dir: PathBuf,
}

impl Lab {
    pub fn new(name: &str) -> Self {
        // SAFETY: unshare of the network namespace concerns this thread only.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "unshare");
        Self::pins_only(name)
    }

    pub fn pins_only(name: &str) -> Self {
        let pin_dir = format!("/run/hfbpf-{}-{name}", std::process::id());
        Self { pin_dir: pin_dir.into() }
    }

    /// The slots of the gate, for words that a daemon stores only when it is late.
    pub fn slots(&self) -> Slots {
        let info = ProgramInfo::from_pin(self.pin_dir.join("gate/gate_egress")).expect("pinned");
        let ids = info.map_ids().expect("its maps").expect("their numbers");
        let is_slots = |id: &u32| {
            MapInfo::from_id(*id).is_ok_and(|map| map.name_as_str() == Some("gate_slots"))
        };
        let id = ids.into_iter().find(is_slots).expect("slots");
        let map = Map::Array(MapData::from_id(id).expect("a map"));
        Slots(Array::try_from(map).expect("an array of slots"))
    }

    /// The flows of the edge, with all their words.
    pub fn flows(&self) -> Flows {
        Flows::pinned(&self.pin_dir)
    }

    /// Runs a pinned program on `frame`; returns its verdict and the frame afterwards.
    pub fn run(&self, program: &str, frame: &[u8], context: Context) -> (u32, Vec<u8>) {
        let program = SchedClassifier::from_pin(self.pin_dir.join(program)).expect("pinned");
        let mut out = vec![0; frame.len() + 256];
        let context = context.bytes();
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        options.data_out = Some(&mut out);
        options.ctx_in = Some(&context);
        let result = program.test_run(options).expect("test run");
        out.truncate(result.data_size_out as usize);
        (result.return_value, out)
    }
}

/// `struct gate_slot` by its offsets.
pub struct Slots(Array<MapData, [u8; SLOT_BYTES]>);

const SLOT_BYTES: usize = 128;
const STABLE: usize = 0;
const SND_NXT: usize = 36;
const LAST_EDGE: usize = 52;

impl Slots {
    fn put(&mut self, index: u32, at: usize, bytes: &[u8]) {
        let mut slot = self.0.get(&index, 0).expect("a slot");
        slot[at..at + bytes.len()].copy_from_slice(bytes);
        self.0.set(index, slot, 0).expect("stored");
    }

    pub fn set_stable(&mut self, index: u32, generation: u32, stable: u32) {
        let word = u64::from(generation) << 32 | u64::from(stable);
        self.put(index, STABLE, &word.to_ne_bytes());
    }

    pub fn set_snd_nxt(&mut self, index: u32, snd_nxt: u32) {
        self.put(index, SND_NXT, &snd_nxt.to_ne_bytes());
    }

    pub fn set_last_edge(&mut self, index: u32, edge: u32) {
        self.put(index, LAST_EDGE, &edge.to_ne_bytes());
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _absent = Command::new("umount").arg("-l").arg(&self.pin_dir).output();
        let _kept = std::fs::remove_dir(&self.pin_dir);
    }
}

/// One of the sequence numbers that are `known`, or one that is a byte or a window's unit away.
pub fn near(rng: &mut Rng, known: &[SeqNo], wscale: u8) -> SeqNo {
    let unit = if wscale > 14 { 1 } else { 1i64 << wscale };
    let way = rng.pick(&[0, 0, 1, -1, 2, unit, -unit, unit - 1, 1 - unit, unit + 1, -unit - 1]);
    rng.pick(known).plus(way as u64)
}

/// Runs a command line, whose words are separated by blanks.
pub fn sh(line: &str) {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a command"));
    let output = command.args(words).output().expect("command runs");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Index of an interface of this thread's namespace.
pub fn ifindex(name: &str) -> u32 {
    let name = std::ffi::CString::new(name).expect("a name");
    // SAFETY: `name` is NUL-terminated.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert_ne!(index, 0, "{name:?}");
    index
}

/// A socket that receives every frame that arrives at an interface.
pub struct Capture(OwnedFd);

impl Capture {
    pub fn new(interface: &str) -> Self {
        const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: socket() takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(ALL)) };
        assert!(fd >= 0, "packet socket");
        // SAFETY: `fd` is a new descriptor that nobody else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let bytes: libc::c_int = CAPTURE_BYTES;
        // SAFETY: the option's value is one int, which `bytes` is.
        let status = unsafe {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE);
            libc::setsockopt(fd, level, name, (&raw const bytes).cast(), 4)
        };
        assert_eq!(status, 0, "receive buffer");
        // SAFETY: an all-zero sockaddr_ll is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ALL;
        address.sll_ifindex = ifindex(interface) as i32;
        let size = size_of_val(&address) as u32;
        // SAFETY: `address` is a whole sockaddr_ll of `size` bytes.
        let status = unsafe { libc::bind(fd, (&raw const address).cast(), size) };
        assert_eq!(status, 0, "bind");
        Self(socket)
    }

    /// The TCP frames since the last call.
    pub fn tcp_frames(&self) -> Vec<Vec<u8>> {
        self.frames(|protocol| protocol == 6)
    }

    /// The frames of wanted IP protocols since the last call.
    pub fn frames(&self, wanted: impl Fn(u8) -> bool) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0u8; 70_000];
        loop {
            // SAFETY: the buffer is as long as said.
            let n = unsafe {
                libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0)
            };
            let Ok(n) = usize::try_from(n) else { return frames };
            let frame = buffer[..n].to_vec();
            let protocol = match frame.get(12..14) {
                Some([0x08, 0x00]) => frame.get(23),
                Some([0x86, 0xdd]) => frame.get(20),
                _ => None,
            };
            if protocol.is_some_and(|protocol| wanted(*protocol)) {
                frames.push(frame);
            }
        }
    }
}

pub fn counter(counters: &[(&str, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| *known == name).expect("known counter").1
}

#[derive(Clone, Copy, Default)]
pub struct Context {
    pub ifindex: u32,
    pub gso_size: u32,
    pub mark: u32,
}

impl Context {
    fn bytes(self) -> [u8; CONTEXT_BYTES] {
        let mut bytes = [0; CONTEXT_BYTES];
        let mut put =
            |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        put(CONTEXT_MARK, self.mark);
        put(CONTEXT_IFINDEX, self.ifindex);
        put(CONTEXT_GSO_SIZE, self.gso_size);
        put(CONTEXT_GSO_SEGS, u32::from(self.gso_size != 0));
        bytes
    }
}

/// A TCP frame to build or compare with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub source: (IpAddr, u16),
    pub target: (IpAddr, u16),
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub urgent: u16,
    /// TCP options, a multiple of 4 bytes.
    pub options: Vec<u8>,
    pub payload: usize,
    pub ttl: u8,
}

impl Frame {
    pub fn new(source: (IpAddr, u16), target: (IpAddr, u16)) -> Self {
        Self {
            source,
            target,
            seq: 0,
            ack: 0,
            flags: ACK,
            window: 0,
            urgent: 0,
            options: Vec::new(),
            payload: 0,
            ttl: 64,
        }
    }

    pub fn seq(mut self, seq: u32) -> Self {
        self.seq = seq;
        self
    }

    pub fn ack(mut self, ack: u32) -> Self {
        self.ack = ack;
        self
    }

    pub fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    pub fn window(mut self, window: u16) -> Self {
        self.window = window;
        self
    }

    /// The frame with an urgent pointer to behind an urgent byte.
    pub fn urgent(mut self, pointer: u16) -> Self {
        self.flags |= URG;
        self.urgent = pointer;
        self
    }

    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    pub fn payload(mut self, bytes: usize) -> Self {
        self.payload = bytes;
        self
    }

    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// The frame with complete checksums; payload bytes count up from 0.
    pub fn build(&self) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(self.source.1.to_be_bytes());
        tcp.extend(self.target.1.to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([((20 + self.options.len()) as u8 / 4) << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 2]);
        tcp.extend(self.urgent.to_be_bytes());
        tcp.extend(&self.options);
        tcp.extend((0..self.payload).map(|i| i as u8));
        let check = checksum(&[&pseudo(self.source.0, self.target.0, tcp.len()), &tcp]);
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        frame.extend(self.ip_header(tcp.len()));
        frame.extend(tcp);
        frame
    }

    fn ip_header(&self, tcp_len: usize) -> Vec<u8> {
        match (self.source.0, self.target.0) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let total = ((20 + tcp_len) as u16).to_be_bytes();
                let mut ip = vec![0x45, 0, total[0], total[1], 0, 1, 0x40, 0, self.ttl, 6, 0, 0];
                ip.extend(source.octets());
                ip.extend(target.octets());
                let check = checksum(&[&ip]);
                ip[10..12].copy_from_slice(&check.to_be_bytes());
                [vec![0x08, 0x00], ip].concat()
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let length = (tcp_len as u16).to_be_bytes();
                let mut ip = vec![0x86, 0xdd, 0x60, 0, 0, 0, length[0], length[1], 6, self.ttl];
                ip.extend(source.octets());
                ip.extend(target.octets());
                ip
            }
            _ => panic!("one family per frame"),
        }
    }
}

/// Whether the TCP checksum of a frame (and that of its IPv4 header) is right.
pub fn sums_are_right(frame: &[u8]) -> bool {
    let ip = &frame[ETHERNET..];
    if ip[0] >> 4 == 4 {
        let addresses: [[u8; 4]; 2] =
            [ip[12..16].try_into().expect("4"), ip[16..20].try_into().expect("4")];
        let pseudo = pseudo(addresses[0].into(), addresses[1].into(), ip.len() - 20);
        checksum(&[&ip[..20]]) == 0 && checksum(&[&pseudo, &ip[20..]]) == 0
    } else {
        let addresses: [[u8; 16]; 2] =
            [ip[8..24].try_into().expect("16"), ip[24..40].try_into().expect("16")];
        let pseudo = pseudo(addresses[0].into(), addresses[1].into(), ip.len() - 40);
        checksum(&[&pseudo, &ip[40..]]) == 0
    }
}

fn pseudo(source: IpAddr, target: IpAddr, tcp_len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for address in [source, target] {
        match address {
            IpAddr::V4(v4) => bytes.extend(v4.octets()),
            IpAddr::V6(v6) => bytes.extend(v6.octets()),
        }
    }
    bytes.extend((tcp_len as u32).to_be_bytes());
    bytes.extend([0, 0, 0, 6]);
    bytes
}

fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum: u64 = 0;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Asserts that `out` tells the sender of `frame` that at most `mtu` bytes fit: ICMP fragmentation
/// needed (RFC 1191 §4), or ICMPv6 packet too big (RFC 4443 §3.2).
pub fn assert_too_big(out: &[u8], frame: &[u8], mtu: u32) {
    assert_eq!((&out[..6], &out[6..12]), (&frame[6..12], &frame[..6]), "back where it came from");
    if frame[ETHERNET] >> 4 == 4 {
        assert_eq!(out[26..34], [&frame[30..34], &frame[26..30]].concat()[..], "from the service");
        assert_eq!((out[23], out[34], out[35]), (1, 3, 4));
        assert_eq!(u32::from(u16::from_be_bytes([out[40], out[41]])), mtu);
        assert_eq!(out[42..], frame[14..94]);
        assert_eq!((checksum(&[&out[14..34]]), checksum(&[&out[34..]])), (0, 0));
    } else {
        assert_eq!(out[22..54], [&frame[38..54], &frame[22..38]].concat()[..], "from the service");
        assert_eq!((out[20], out[54], out[55]), (58, 2, 0));
        assert_eq!(u32::from_be_bytes([out[58], out[59], out[60], out[61]]), mtu);
        assert_eq!(out[62..], frame[14..94]);
        assert!(icmp6_is_right(out));
    }
}

/// Gives an ICMPv6 frame its checksum.
pub fn sum_icmp6(frame: &mut [u8]) {
    let length = (frame.len() as u32 - 54).to_be_bytes();
    let check = checksum(&[&frame[22..54], &length, &[0, 0, 0, 58], &frame[54..]]);
    frame[56..58].copy_from_slice(&check.to_be_bytes());
}

/// Whether the checksum of an ICMPv6 frame is right.
pub fn icmp6_is_right(frame: &[u8]) -> bool {
    let length = (frame.len() as u32 - 54).to_be_bytes();
    checksum(&[&frame[22..54], &length, &[0, 0, 0, 58], &frame[54..]]) == 0
}
