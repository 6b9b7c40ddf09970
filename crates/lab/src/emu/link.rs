//! A wire between two network namespaces, carried by a process of its own:
//! two TAP or TUN interfaces, one thread per direction. The process dies with
//! the one that started it, and its interfaces with it.

use super::direction::{Counts, Direction};
use super::segment::{FRAME_MAX, VNET_LEN};
use super::spec::EmuSpec;
use crate::command::Killed;
use anyhow::{Context as _, Result, bail, ensure};
use holdfast_linux::priority;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tun_rs::{DeviceBuilder, SyncDevice};

/// Number of packets that the kernel keeps for the emulator.
const DEVICE_QUEUE_PACKETS: u32 = 10_000;

/// Number of frames that are fetched before due ones are sent again.
const BATCH_FRAMES: usize = 64;

/// Real-time priority of a wire, which must not stand still on a busy machine: above whatever a
/// takeover raises, and below the daemons.
const PRIORITY: i32 = 6;

/// Command by which the binary runs [`carry`].
pub(crate) const CARRY_COMMAND: &str = "emu-link";

/// One end of a wire.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct End {
    /// File of the network namespace, such as `/run/netns/x`.
    pub namespace: PathBuf,
    /// Name of the interface to create in it.
    pub interface: String,
}

/// Whether the wire carries Ethernet frames or IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layer {
    /// Ethernet frames between two TAP interfaces.
    Ethernet,
    /// IP packets between two TUN interfaces.
    Ip,
}

/// What the carrying process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkArguments {
    a: End,
    b: End,
    layer: Layer,
    words: Vec<String>,
}

/// A running wire; dropping it cuts it and removes its interfaces.
pub struct Link {
    child: Killed,
    /// A line here is answered by one there, which says what became of the packets.
    asked: ChildStdin,
    told: BufReader<ChildStdout>,
}

/// What became of the packets of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireCounts {
    /// From the first end to the second.
    pub there: Counts,
    /// From the second end to the first.
    pub back: Counts,
}

impl WireCounts {
    /// What was added since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { there: self.there.since(earlier.there), back: self.back.since(earlier.back) }
    }
}

impl Link {
    /// Creates an Ethernet wire between two new interfaces. They are down and
    /// without addresses.
    ///
    /// # Errors
    /// When a namespace cannot be entered or a device not be created.
    pub fn between(a: End, b: End, spec: &EmuSpec) -> Result<Self> {
        Self::start(&LinkArguments { a, b, layer: Layer::Ethernet, words: spec.words() })
    }

    /// Creates a wire for IP packets between two new interfaces.
    ///
    /// # Errors
    /// As [`Link::between`].
    pub fn ip_between(a: End, b: End, spec: &EmuSpec) -> Result<Self> {
        Self::start(&LinkArguments { a, b, layer: Layer::Ip, words: spec.words() })
    }

    /// The pid of the process that carries the wire.
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// What became of the packets so far.
    ///
    /// # Errors
    /// When the wire does not live any more.
    pub fn counts(&mut self) -> Result<WireCounts> {
        let gone = "the emulated wire does not answer";
        self.asked.write_all(b"\n").context(gone)?;
        let mut line = String::new();
        self.told.read_line(&mut line).context(gone)?;
        serde_json::from_str(&line).context(gone)
    }

    fn start(arguments: &LinkArguments) -> Result<Self> {
        let mut child = Command::new(crate::own_binary()?)
            .args([CARRY_COMMAND, &serde_json::to_string(arguments)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the process of an emulated wire")?;
        let (Some(asked), Some(told)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("an emulated wire without pipes");
        };
        let mut link = Self { child: Killed(child), asked, told: BufReader::new(told) };
        let mut line = String::new();
        link.told.read_line(&mut line)?;
        ensure!(line.trim() == "ready", "the emulated wire did not come up");
        Ok(link)
    }
}

/// Carries a wire until it is killed or its starter dies.
pub(crate) fn carry(arguments: &str) -> Result<()> {
    crate::die_with_parent()?;
    let arguments: LinkArguments = serde_json::from_str(arguments)?;
    let spec = EmuSpec::parse(&arguments.words)?;
    let a = open(&arguments.a, arguments.layer)?;
    let b = open(&arguments.b, arguments.layer)?;
    println!("ready");
    let link_len = if arguments.layer == Layer::Ethernet { 14 } else { 0 };
    let [there, back] = spec.directions();
    let (there, back) = (Direction::new(there, link_len, 0), Direction::new(back, link_len, 1));
    let counts = [Mutex::default(), Mutex::default()];
    std::thread::scope(|scope| {
        scope.spawn(|| answer(&counts));
        let other = scope.spawn(|| pump(&b, &a, back, &counts[1]));
        pump(&a, &b, there, &counts[0])?;
        match other.join() {
            Ok(result) => result,
            Err(_) => bail!("a direction of the wire panicked"),
        }
    })
}

/// Answers each line of standard input with the counts, until there are no more.
fn answer(counts: &[Mutex<Counts>; 2]) {
    let asked = std::io::stdin().lock().lines();
    for _line in asked.map_while(Result::ok) {
        let told = WireCounts { there: *locked(&counts[0]), back: *locked(&counts[1]) };
        let Ok(text) = serde_json::to_string(&told) else { return };
        println!("{text}");
    }
}

fn locked(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates an interface in another namespace, from a thread that moves there.
fn open(end: &End, layer: Layer) -> Result<SyncDevice> {
    let thread = std::thread::scope(|scope| {
        scope
            .spawn(|| -> Result<SyncDevice> {
                let namespace = File::open(&end.namespace)
                    .with_context(|| format!("cannot open {}", end.namespace.display()))?;
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                    .context("cannot enter the network namespace")?;
                let device = DeviceBuilder::new()
                    .name(&end.interface)
                    .layer(match layer {
                        Layer::Ethernet => tun_rs::Layer::L2,
                        Layer::Ip => tun_rs::Layer::L3,
                    })
                    .offload(true)
                    .enable(false)
                    .tx_queue_len(DEVICE_QUEUE_PACKETS)
                    .build_sync()
                    .with_context(|| format!("cannot create {}", end.interface))?;
                device.set_nonblocking(true)?;
                Ok(device)
            })
            .join()
    });
    match thread {
        Ok(device) => device,
        Err(_) => bail!("the thread that creates an interface panicked"),
    }
}

/// Moves frames from one device to the other.
fn pump(
    from: &SyncDevice,
    to: &SyncDevice,
    mut direction: Direction,
    counts: &Mutex<Counts>,
) -> Result<()> {
    // Without the right to real-time priority the wire is only less punctual.
    let _ = priority::set_realtime(PRIORITY);
    let mut buffer = vec![0u8; FRAME_MAX];
    loop {
        for _ in 0..BATCH_FRAMES {
            let length = match rustix::io::read(from, &mut buffer) {
                Ok(length) => length,
                Err(Errno::AGAIN | Errno::INTR) => break,
                // EIO: the interface is down; it may come up again.
                Err(Errno::IO) => break,
                Err(error) => return Err(error).context("reading from an emulated wire"),
            };
            let frame = &buffer[..length];
            if length < VNET_LEN {
                continue;
            }
            if direction.passes(frame) {
                send(to, frame);
            } else {
                direction.offer(now_ns(), frame);
            }
        }
        let now = now_ns();
        while let Some(frame) = direction.take_due(now) {
            send(to, &frame);
            direction.reuse(frame);
        }
        *locked(counts) = direction.counts();
        let wait = direction.next_due_ns().map(|due| timespec(due.saturating_sub(now_ns())));
        let mut fds = [PollFd::new(from, PollFlags::IN)];
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for an emulated wire"),
        }
    }
}

/// Sends a frame. One that the other side does not take (it is down, or out of memory) is lost, as
/// on any wire.
fn send(to: &SyncDevice, frame: &[u8]) {
    let _ = rustix::io::write(to, frame);
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

fn now_ns() -> u64 {
    crate::monotonic_ns()
}
