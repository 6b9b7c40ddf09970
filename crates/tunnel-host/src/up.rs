//! `up`: opens everything, gives up all rights that are not needed any more, and runs.

use crate::cli::Failure;
use crate::config::Config;
use crate::control::Control;
use crate::host::Host;
use crate::signals::Signals;
use crate::{opening, rights, run_dir};
use holdfast_program::exit;
use holdfast_tunnel::secure::{NoRandom, Random, Secure, Settings, Suites};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Random bytes of the kernel.
struct Kernel;

impl Random for Kernel {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), NoRandom> {
        getrandom::fill(bytes).map_err(|_| NoRandom)
    }
}

/// Ends when `parent` does, which has started it: nobody else would.
fn end_with(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::QUIT))?;
    let is_there = getppid().is_some_and(|it| it.as_raw_nonzero().get().cast_unsigned() == parent);
    if is_there { Ok(()) } else { Err(io::Error::other("who has started it is gone")) }
}

/// Runs one end until a signal comes, or `parent` ends.
///
/// # Errors
/// If it cannot start, or has to end.
pub fn run(file: &Path, parent: Option<u32>) -> Result<u8, Failure> {
    // First: what ends a program with a key in its memory must not leave a dump of it.
    let mut signals = Signals::take()?;
    if let Some(parent) = parent {
        end_with(parent)?;
    }
    let config = Config::load(file)?;
    let key = config.secret()?;
    run_dir::make(&config.run_dir)?;
    let _lock = run_dir::lock(&config)?;
    let door = opening::door(&config)?;
    let outside = opening::outside(&config)?;
    let control = Control::open(&config)?;
    rights::give_up(&config)?;
    let settings = Settings {
        key,
        peer: config.peer,
        peer_address: config.peer_address,
        keepalive: config.keepalive,
        suites: Suites::of_this_processor(),
    };
    let begun = Instant::now();
    let secure = Secure::new(settings, Box::new(Kernel), Duration::ZERO);
    let mut host = Host::new(config, secure, outside, door, control, begun, seed()?);
    let ended = host.run(&mut signals);
    host.end();
    ended?;
    Ok(exit::OK)
}

/// A seed for what the machine decides between equals.
fn seed() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| anyhow::anyhow!("the kernel gives no random bytes: {error}"))?;
    Ok(u64::from_ne_bytes(bytes))
}
