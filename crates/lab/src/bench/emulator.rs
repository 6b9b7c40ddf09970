//! `holdfast-lab bench emu`: what an emulated wire carries, next to a veth
//! pair, with one plain TCP stream.

use crate::emu::EmuSpec;
use crate::testbed::{Host, Plan, Role, Testbed};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use holdfast_report::Summary;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Serialize;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

/// Bytes of one write.
const CHUNK_BYTES: usize = 128 << 10;

/// Options of the emulator bench.
#[derive(Args, Clone, Debug)]
pub struct EmulatorArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// How often veth and emulator are measured.
    #[arg(long, default_value_t = 3)]
    pub rounds: u64,
    /// How long each measurement lasts, ms.
    #[arg(long, default_value_t = 1000)]
    pub duration_ms: u64,
    /// What the wire does, for example `delay 1ms`.
    #[arg(default_value = "delay 0ms", num_args = 1..)]
    pub words: Vec<String>,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct EmulatorReport {
    bench: &'static str,
    words: String,
    rounds: u64,
    /// One TCP stream over a veth pair, Mbit/s.
    pub veth_mbit_per_s: Summary,
    /// One TCP stream over the emulated wire, Mbit/s.
    pub emulated_mbit_per_s: Summary,
}

/// Runs the bench.
///
/// # Errors
/// When the testbed cannot be built.
pub fn run(args: &EmulatorArgs) -> Result<EmulatorReport> {
    let words: Vec<&str> = args.words.iter().flat_map(|word| word.split_whitespace()).collect();
    let spec = EmuSpec::parse(&words)?;
    let duration = Duration::from_millis(args.duration_ms);
    let (mut veth, mut emulated) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        veth.push(one_stream(&Testbed::build(&Plan::default())?, duration)?);
        let plan = Plan { client_path: Some(spec.clone()), ..Plan::default() };
        emulated.push(one_stream(&Testbed::build(&plan)?, duration)?);
    }
    Ok(EmulatorReport {
        bench: "emu",
        words: words.join(" "),
        rounds: args.rounds,
        veth_mbit_per_s: Summary::of(&veth),
        emulated_mbit_per_s: Summary::of(&emulated),
    })
}

/// Sends one stream from the client to the edge; returns Mbit/s at the
/// receiver.
fn one_stream(testbed: &Testbed, duration: Duration) -> Result<f64> {
    let listener = on_host(testbed.host(Role::Edge), || {
        TcpListener::bind("10.8.0.1:0").context("cannot listen")
    })?;
    let address = listener.local_addr()?;
    let mut sender = on_host(testbed.host(Role::Client), || {
        TcpStream::connect(address).context("cannot connect")
    })?;
    let (mut receiver, _) = listener.accept()?;
    let sending = std::thread::spawn(move || {
        let chunk = vec![0x5a; CHUNK_BYTES];
        let start = Instant::now();
        while start.elapsed() < duration && sender.write_all(&chunk).is_ok() {}
    });
    let (mut buffer, mut bytes) = (vec![0; CHUNK_BYTES], 0u64);
    let start = Instant::now();
    loop {
        match receiver.read(&mut buffer)? {
            0 => break,
            count => bytes += count as u64,
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    if sending.join().is_err() {
        bail!("the sender panicked");
    }
    Ok(bytes as f64 * 8.0 / seconds / 1e6)
}

/// Runs `work` in a thread that has moved to a host's network; sockets that it makes stay in that
/// network.
fn on_host<T: Send>(host: &Host, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let file = format!("/proc/{}/ns/net", host.holder());
    let done = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let namespace = File::open(file)?;
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                work()
            })
            .join()
    });
    match done {
        Ok(result) => result,
        Err(_) => bail!("the thread on a host panicked"),
    }
}

impl EmulatorReport {
    /// A line for people.
    pub fn print(&self) {
        println!(
            "{}: {:.0} Mbit/s ({:.0} to {:.0}); a veth pair: {:.0} Mbit/s",
            self.words,
            self.emulated_mbit_per_s.median,
            self.emulated_mbit_per_s.min,
            self.emulated_mbit_per_s.max,
            self.veth_mbit_per_s.median
        );
    }
}
