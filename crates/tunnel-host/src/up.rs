//! `up`: opens everything, gives up all rights that are not needed any more, and runs.

use crate::cli::Failure;
use crate::config::{Config, Mode};
use crate::control::Control;
use crate::host::Host;
use crate::inside::{Device, Door, Ports};
use crate::outside::Outside;
use crate::signals::Signals;
use crate::{rights, run_dir};
use holdfast_program::exit;
use holdfast_tunnel::secure::{NoRandom, Random, Secure, Settings, Suites};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::io::{self, ErrorKind};
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
    let door = open_door(&config)?;
    let outside = Outside::open(config.listen).map_err(|error| of_socket(&config, &error))?;
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

fn open_door(config: &Config) -> Result<Door, Failure> {
    if config.mode != Mode::Tun {
        return Ok(Door::Ports(Box::new(Ports::open(config)?)));
    }
    let opened = Device::open(config).map(|device| Door::Device(Box::new(device)));
    opened.map_err(|error| {
        let cause = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
        match cause.and_then(io::Error::raw_os_error) {
            Some(libc::EPERM | libc::EACCES) => Failure::new(
                exit::NOT_PERMITTED,
                format!(
                    "{error:#}\n  remedy: do it as root, or with CAP_NET_ADMIN; mode = \"udp\" needs \
                     no rights"
                ),
            ),
            Some(libc::EBUSY | libc::EEXIST) => Failure::new(
                exit::DEGRADED,
                format!(
                    "{error:#}\n  remedy: another program has an interface of that name: choose \
                     another one by `interface` in [tunnel]"
                ),
            ),
            Some(libc::ENOENT | libc::ENODEV) => Failure::new(
                exit::DEGRADED,
                format!("{error:#}\n  remedy: this kernel has no TUN devices: modprobe tun"),
            ),
            _ => error.into(),
        }
    })
}

fn of_socket(config: &Config, error: &io::Error) -> Failure {
    let listen = config.listen.map_or("any port".to_owned(), |it| it.to_string());
    let remedy = match error.kind() {
        ErrorKind::AddrInUse => "another program listens there: choose another port by `listen`",
        ErrorKind::AddrNotAvailable => {
            "no interface of this host has that address: see `ip address`"
        }
        ErrorKind::PermissionDenied => {
            "ports below 1024 are root's: choose another one by `listen`"
        }
        _ => "look at `listen` in [tunnel]",
    };
    Failure::new(exit::of(error), format!("udp {listen}: {error}\n  remedy: {remedy}"))
}

/// A seed for what the machine decides between equals.
fn seed() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|error| anyhow::anyhow!("the kernel gives no random bytes: {error}"))?;
    Ok(u64::from_ne_bytes(bytes))
}
