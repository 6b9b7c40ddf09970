//! Options of `init` and `join`.

use crate::cli::when::seconds;
use crate::config::Run;
use crate::init::Code;
use clap::Args;
use clap::builder::PossibleValue;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Options of `init`.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// The group's name, of which its files are named.
    pub name: String,
    /// Address and port that clients use and no host has: `10.9.0.100:6379` or `[fd09::100]:6379`; once
    /// for each. Asked for on a terminal if it is left out.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = service)]
    pub service: Vec<SocketAddr>,
    /// The server's command, with quotes as in a shell: '/usr/bin/redis-server --bind * --save ""'.
    /// Asked for on a terminal if it is left out.
    #[arg(long, value_name = "COMMAND")]
    pub command: Option<String>,
    /// User who runs the server; it must be on both members.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// A folder in which the server keeps its state; once for each.
    ///
    /// A member that joins later gets it in place of all that it had there.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Vec<PathBuf>,
    /// For a server of several processes: `run` in `[server]`.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = server_run())]
    pub server_run: String,
    /// This host stands between the clients and the members, instead of being their witness.
    #[arg(long)]
    pub edge: bool,
    /// An interface of the edge that faces clients; once for each. Without it that of the default
    /// route, or the only one that leads to no member.
    #[arg(long, value_name = "INTERFACE", requires = "edge")]
    pub clients: Vec<String>,
    /// One key for all three hosts, which this one makes and sends to the others. Without it each host
    /// makes a key of its own, which never leaves it, and only public keys are exchanged.
    #[arg(long)]
    pub shared_key: bool,
    /// Where to wait for the others: an address of this host, or address and port. Without it all
    /// addresses, port 7709.
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = listen)]
    pub listen: Option<Listen>,
    /// Time until it is given up to wait: seconds, or `90s`, `15m`, `1h`; a day at most.
    #[arg(long, value_name = "TIME", default_value = "600", value_parser = timeout)]
    pub timeout: u64,
    #[command(flatten)]
    pub set_up: SetUpArgs,
}

/// Options of `join`.
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// Where init waits, as it says.
    #[arg(value_name = "ADDRESS:PORT", value_parser = meeting)]
    pub address: SocketAddr,
    /// The code that init prints; dashes and case mean nothing. Without it one line of standard
    /// input is read, which other users of this host do not see.
    #[arg(value_parser = code)]
    pub code: Option<Code>,
    /// The interface of this host that carries the service. Without it the one in the network of the
    /// service, or that by which this host reaches init's.
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    #[command(flatten)]
    pub set_up: SetUpArgs,
}

/// What both have in common: what happens on this host.
#[derive(Args, Clone, Debug)]
pub struct SetUpArgs {
    /// Where the group's file and key are written.
    #[arg(long, value_name = "DIR", default_value = "/etc/holdfast")]
    pub directory: PathBuf,
    /// Replace the group's file and key, if they are there.
    #[arg(long)]
    pub force: bool,
    /// Change the kernel's settings as `holdfast check` wants them, now and for each boot
    /// (/etc/sysctl.d/60-holdfast-NAME.conf).
    #[arg(long)]
    pub apply: bool,
    /// Go on as this host's daemon, in the foreground, instead of having systemd start it.
    #[arg(long)]
    pub run: bool,
    /// One JSON object of the schema holdfast.init/1 per line.
    #[arg(long)]
    pub json: bool,
}

fn timeout(text: &str) -> Result<u64, String> {
    let found = seconds(text)?;
    if (1..=86_400).contains(&found) { Ok(found) } else { Err("write 1s to 24h".to_owned()) }
}

/// Where to listen.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    pub address: IpAddr,
    pub port: Option<u16>,
}

/// Reads a service's address and port.
///
/// # Errors
/// What is wrong with it, and how one is written.
pub fn service(text: &str) -> Result<SocketAddr, String> {
    const WRITE: &str = "write address and port: 10.9.0.100:6379 or [fd09::100]:6379";
    let Err(_) = text.parse::<SocketAddr>() else {
        return text.parse().map_err(|_| WRITE.to_owned());
    };
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if text.starts_with('[') == text.ends_with(']') && bare.parse::<IpAddr>().is_ok() {
        return Err(format!("the port is missing; {WRITE}"));
    }
    let (address, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let inside = address.trim_start_matches('[').trim_end_matches(']');
    let what = match inside.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) if !address.starts_with('[') || !address.ends_with(']') => {
            return Err(format!("an IPv6 address stands in brackets: [{v6}]:{port}"));
        }
        Ok(_) if is_number(port) => format!("the port {port} is none: the highest is 65535"),
        Ok(_) => format!("`{port}` is no port"),
        Err(_) if inside.split('.').count() == 4 && inside.split('.').all(is_number) => {
            format!("{inside} is no IPv4 address: each of its four numbers is at most 255")
        }
        Err(_) => format!("`{address}` is no address, and host names are not looked up"),
    };
    Err(format!("{what}; {WRITE}"))
}

fn meeting(text: &str) -> Result<SocketAddr, String> {
    let found: Option<SocketAddr> = text.parse().ok();
    found.ok_or_else(|| "write what init prints: address and port, 10.1.0.9:7709".to_owned())
}

fn listen(text: &str) -> Result<Listen, String> {
    let alone = text.parse().ok().map(|address| Listen { address, port: None });
    let both = text.parse::<SocketAddr>().ok();
    let both = both.map(|at| Listen { address: at.ip(), port: Some(at.port()) });
    alone.or(both).filter(|it| !it.address.is_unspecified()).ok_or_else(|| {
        "write an address of this host, 10.1.0.9 or 10.1.0.9:7709 or [fd01::9]:7709".to_owned()
    })
}

fn code(text: &str) -> Result<Code, String> {
    text.parse().map_err(|error| format!("{error}; compare it with what init prints"))
}

/// The words of `run` in `[server]`.
fn server_run() -> clap::builder::PossibleValuesParser {
    [Run::Auto, Run::Parallel, Run::OneAtATime].map(|it| PossibleValue::new(it.word())).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_service_is_said() {
        assert_eq!(service("10.9.0.100:6379"), Ok("10.9.0.100:6379".parse().unwrap()));
        for (text, what) in [
            ("10.9.0.100:99999", "the port 99999 is none: the highest is 65535"),
            ("10.9.0.100:http", "`http` is no port"),
            ("10.9.0.100", "the port is missing"),
            ("fd09::100", "the port is missing"),
            ("10.9.0.300:7701", "10.9.0.300 is no IPv4 address: each of its four numbers"),
            ("[fd09::100:7701", "stands in brackets"),
            ("example.org:80", "`example.org` is no address, and host names are not looked up"),
            ("", "`` is no address"),
        ] {
            let told = service(text).expect_err("no service");
            assert!(told.starts_with(what) || told.contains(what), "{text}: {told}");
        }
    }
}
