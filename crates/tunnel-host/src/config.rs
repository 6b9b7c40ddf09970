//! The file of one end of a tunnel. Nothing in it is guessed: an unknown key, a value out of range or
//! a forward that cannot be is an error with its place and a remedy.

mod error;
mod forward;
mod raw;
#[cfg(test)]
mod tests;

pub use error::{ConfigError, ConfigErrors};
pub use forward::{Allow, Forward, Transport};

use crate::keyfile;
use error::{Findings, explain, of_file};
use holdfast_tunnel::secure::PublicKey;
use holdfast_tunnel::{Budgets, DATAGRAM_BYTES_MIN, INNER_MTU_MAX, PathLoss, Rule};
use raw::RawFile;
use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What a tunnel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// IP packets of an interface.
    Tun,
    /// Datagrams of local UDP ports.
    Udp,
    /// Bytes of local TCP ports, and datagrams of UDP ports.
    Forward,
}

impl Mode {
    /// Its word in files.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tun => "tun",
            Self::Udp => "udp",
            Self::Forward => "forward",
        }
    }
}

/// An address of the tunnel's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InsideAddress {
    pub ip: IpAddr,
    pub prefix: u8,
}

/// A checked file.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file's name without its ending: the tunnel's name.
    pub name: String,
    pub path: PathBuf,
    pub key: PathBuf,
    pub listen: Option<SocketAddr>,
    pub mode: Mode,
    pub interface: String,
    pub addresses: Vec<InsideAddress>,
    pub inner_mtu: u16,
    pub overhead_max: f64,
    /// Share of the datagrams of class `now` that may be later than it allows.
    pub late_max: f64,
    pub path_loss: PathLoss,
    pub rules: Vec<Rule>,
    pub forwards: Vec<Forward>,
    pub allowed: Vec<Allow>,
    pub flows_max: usize,
    pub idle: Duration,
    pub run_dir: PathBuf,
    pub peer: PublicKey,
    pub peer_address: Option<SocketAddr>,
    pub keepalive: Option<Duration>,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its place and a remedy.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let text = read_limited(path).map_err(|error| ConfigErrors(vec![error]))?;
        Self::parse(path, &text)
    }

    /// Checks `text` as if it had been read from `path`.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigErrors> {
        let raw: RawFile = toml::from_str(text)
            .map_err(|error| ConfigErrors(vec![explain(path, text, &error)]))?;
        let mut findings = Findings { path, text, found: Vec::new() };
        let config = raw.check(&mut findings);
        match config {
            Some(config) if findings.found.is_empty() => Ok(config),
            _ => {
                findings.found.sort_by_key(|error| (error.line, error.column));
                Err(ConfigErrors(findings.found))
            }
        }
    }

    /// Also what the key file says, which `check` and `up` need.
    ///
    /// # Errors
    /// One error about the key.
    pub fn secret(&self) -> Result<holdfast_tunnel::secure::SecretKey, ConfigErrors> {
        let told = |message: String, remedy: String| {
            ConfigErrors(vec![of_file(&self.path, message, remedy)])
        };
        let key = keyfile::load(&self.key).map_err(|error| {
            let key = self.key.display();
            told(format!("the key file {key}: {error}"), error.remedy(&self.key))
        })?;
        if key.public() == self.peer {
            return Err(told(
                "the key of [peer] is this end's own".to_owned(),
                "write there what `holdfast tunnel key pub FILE` prints at the other end"
                    .to_owned(),
            ));
        }
        Ok(key)
    }

    /// The socket at which the daemon answers.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(format!("tunnel-{}.sock", self.name))
    }

    /// The file whose lock says that a daemon runs.
    pub fn lock(&self) -> PathBuf {
        self.run_dir.join(format!("tunnel-{}.lock", self.name))
    }

    /// What the machine is told.
    pub fn machine(&self) -> holdfast_tunnel::Config {
        holdfast_tunnel::Config {
            overhead_max: self.overhead_max,
            path_loss: self.path_loss,
            budgets: Budgets { late_max: self.late_max, ..Budgets::default() },
            datagram_bytes_max: DATAGRAM_BYTES_MIN,
            inner_mtu: match self.mode {
                Mode::Tun => usize::from(self.inner_mtu),
                // A datagram of a port has any length.
                Mode::Udp | Mode::Forward => INNER_MTU_MAX,
            },
            rules: self.rules.clone(),
            ..holdfast_tunnel::Config::default()
        }
    }
}

fn read_limited(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |error: std::io::Error| {
        of_file(path, format!("cannot be read: {error}"), "give the path of this end's file")
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let message = format!("has more than {FILE_BYTES_MAX} bytes");
        return Err(of_file(
            path,
            message,
            "a configuration is never that large; is it the right file?",
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        of_file(path, format!("cannot be read: {error}"), "it must be a UTF-8 text file")
    })
}
