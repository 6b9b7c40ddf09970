//! The ways from one end to the other that are compared: none at all, ours, and the peers'. Each is
//! started as its own manual says.

use super::bed::{A, B, Bed, OUTSIDE, bulk_at, messages_at, run_here};
use crate::holdfast_binary;
use anyhow::{Context as _, Result};
use holdfast_program::TUNNEL;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a tunnel may take until it is up.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The port of every tunnel.
const PORT: u16 = 4600;

/// What carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The wire itself.
    Plain,
    /// Ours with an interface, and these lines of its file beside those that it must have.
    Ours(&'static str, &'static str),
    /// Ours with forwarded ports: connections end at both ends.
    Splice,
    WireGuard,
    Speeder,
    TinyFec,
    Kcptun,
}

/// What the load is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Udp,
    /// TCP with this congestion control.
    Tcp(&'static str),
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    pub name: &'static str,
    pub way: Way,
    pub carrier: Carrier,
    /// Whether it carries messages, and bulk.
    pub messages: bool,
    pub bulk: bool,
}

/// The largest cap of redundancy that a file may ask for.
const UNCAPPED: &str = "overhead_max = \"400%\"\n";
const NOW: &str = "[class.now]\nmatch = [\"udp\"]\n";
const SOON: &str = "[class.soon]\nmatch = [\"udp\"]\n";

const CUBIC: Carrier = Carrier::Tcp("cubic");
const BBR: Carrier = Carrier::Tcp("bbr");

const fn messages(name: &'static str, way: Way, carrier: Carrier) -> Lane {
    Lane { name, way, carrier, messages: true, bulk: false }
}

const fn bulk(name: &'static str, way: Way, carrier: Carrier) -> Lane {
    Lane { name, way, carrier, messages: false, bulk: true }
}

/// All of them.
pub const LANES: [Lane; 18] = [
    messages("plain-udp", Way::Plain, Carrier::Udp),
    Lane { messages: true, ..bulk("plain-cubic", Way::Plain, CUBIC) },
    Lane { messages: true, ..bulk("plain-bbr", Way::Plain, BBR) },
    messages("ours", Way::Ours("", ""), Carrier::Udp),
    messages("ours-now", Way::Ours(UNCAPPED, NOW), Carrier::Udp),
    messages("ours-soon", Way::Ours("", SOON), Carrier::Udp),
    bulk("ours-splice", Way::Splice, CUBIC),
    bulk("ours-tun-cubic", Way::Ours("", ""), CUBIC),
    bulk("ours-tun-bbr", Way::Ours("", ""), BBR),
    messages("wireguard", Way::WireGuard, Carrier::Udp),
    bulk("wireguard-cubic", Way::WireGuard, CUBIC),
    bulk("wireguard-bbr", Way::WireGuard, BBR),
    messages("udpspeeder", Way::Speeder, Carrier::Udp),
    messages("tinyfec", Way::TinyFec, Carrier::Udp),
    bulk("tinyfec-cubic", Way::TinyFec, CUBIC),
    bulk("tinyfec-bbr", Way::TinyFec, BBR),
    messages("kcptun-tcp", Way::Kcptun, CUBIC),
    bulk("kcptun", Way::Kcptun, CUBIC),
];

/// Peers that this bench cannot run, and why.
pub const NOT_THERE: [&str; 1] =
    ["quinn (QUIC with BBR): it is a library, and no program for this bench was written with it"];

/// Where the far end is reached from the near one.
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    pub messages: SocketAddr,
    pub bulk: SocketAddr,
}

/// The peers' programs.
#[derive(Clone, Debug)]
pub struct Peers(pub PathBuf);

impl Peers {
    fn find(&self, name: &str) -> Result<PathBuf, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(self.0.clone()).chain(std::env::split_paths(&path));
        all.map(|folder| folder.join(name)).find(|file| file.is_file()).ok_or_else(|| {
            format!("no {name} in {} or PATH: scripts/peers brings it", self.0.display())
        })
    }

    fn text(&self, name: &str) -> Result<String> {
        let found = self.find(name).map_err(anyhow::Error::msg)?;
        Ok(found.display().to_string())
    }
}

impl Lane {
    /// Why it cannot be measured here, if it cannot.
    pub fn missing(&self, peers: &Peers) -> Option<String> {
        if let Carrier::Tcp(control) = self.carrier
            && !has_control(control)
        {
            return Some(format!("kernel has no tcp_{control}"));
        }
        let programs: &[&str] = match self.way {
            Way::Plain | Way::Ours(..) | Way::Splice => &[],
            Way::WireGuard => &["wireguard-go", "wg"],
            Way::Speeder => &["speederv2"],
            Way::TinyFec => &["tinyvpn"],
            Way::Kcptun => &["kcptun-client", "kcptun-server"],
        };
        programs.iter().find_map(|name| peers.find(name).err())
    }
}

fn has_control(name: &str) -> bool {
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    known.unwrap_or_default().split_whitespace().any(|it| it == name)
}

impl Way {
    /// Starts it on both ends.
    ///
    /// # Errors
    /// When it does not come up, with what it said.
    pub fn start(self, bed: &mut Bed, peers: &Peers) -> Result<Targets> {
        match self {
            Self::Plain => Ok(targets(OUTSIDE[B])),
            Self::Ours(lines, classes) => ours_tun(bed, lines, classes),
            Self::Splice => ours_splice(bed),
            Self::WireGuard => wireguard(bed, peers),
            Self::Speeder => speeder(bed, peers),
            Self::TinyFec => tinyfec(bed, peers),
            Self::Kcptun => kcptun(bed, peers),
        }
    }
}

fn targets(address: Ipv4Addr) -> Targets {
    Targets { messages: messages_at(address), bulk: bulk_at(address) }
}

fn ours_tun(bed: &mut Bed, lines: &str, classes: &str) -> Result<Targets> {
    let of_end = |end: usize| {
        format!(
            "mode = \"tun\"\ninterface = \"t0\"\naddress = [\"10.9.0.{}/24\"]\n{lines}",
            end + 1
        )
    };
    ours(bed, [of_end(A), of_end(B)], classes)?;
    Ok(targets(Ipv4Addr::new(10, 9, 0, 2)))
}

fn ours_splice(bed: &mut Bed) -> Result<Targets> {
    let here = targets(Ipv4Addr::LOCALHOST);
    let near = format!(
        "mode = \"forward\"\nforward = [\"udp {m} -> {m}\", \"tcp {b} -> {b}\"]\n",
        m = here.messages,
        b = here.bulk
    );
    let far =
        format!("mode = \"forward\"\nallow = [\"udp {}\", \"tcp {}\"]\n", here.messages, here.bulk);
    ours(bed, [near, far], "")?;
    Ok(here)
}

/// Both ends of ours: keys, files, programs, until they have heard each other.
fn ours(bed: &mut Bed, lines: [String; 2], classes: &str) -> Result<()> {
    let program = holdfast_binary()?.with_file_name(TUNNEL).display().to_string();
    let file = |bed: &Bed, end: usize, ending: &str| {
        bed.file(&format!("{}.{ending}", ["a", "b"][end])).display().to_string()
    };
    let mut keys = Vec::new();
    for end in [A, B] {
        keys.push(run_here(&program, &["key", "gen", &file(bed, end, "key")])?);
    }
    for (end, lines) in lines.iter().enumerate() {
        let text = format!(
            "[tunnel]\nkey = \"{}\"\nrun_dir = \"{}\"\nlisten = \"0.0.0.0:{PORT}\"\n{lines}\n\
             [peer]\nkey = \"{}\"\naddress = \"{}:{PORT}\"\n{classes}",
            file(bed, end, "key"),
            bed.file("run").display(),
            keys[1 - end],
            OUTSIDE[1 - end]
        );
        let config = file(bed, end, "toml");
        std::fs::write(&config, text).with_context(|| config.clone())?;
        bed.run(end, &program, &["up", "--config", &config])?;
    }
    let is_up = |end| {
        run_here(&program, &["status", "--json", "--config", &file(bed, end, "toml")]).is_ok()
    };
    bed.wait("ends that hear each other", START_LIMIT, || is_up(A) && is_up(B))
}

fn wireguard(bed: &mut Bed, peers: &Peers) -> Result<Targets> {
    let (program, wg) = (peers.text("wireguard-go")?, peers.text("wg")?);
    // Its sockets lie in one folder of the machine, whatever the network.
    let name = |bed: &Bed, end: usize| format!("wg{}{}", bed.id, ["a", "b"][end]);
    let mut keys = Vec::new();
    for end in [A, B] {
        let (secret, key) = (run_here(&wg, &["genkey"])?, bed.file(&format!("wg{end}")));
        std::fs::write(&key, &secret)?;
        let public = format!("'{wg}' pubkey < '{}'", key.display());
        keys.push(run_here("sh", &["-c", &public])?);
        let name = name(bed, end);
        bed.run(end, &program, &["-f", &name])?;
        let socket = PathBuf::from(format!("/var/run/wireguard/{name}.sock"));
        bed.wait("the interface of wireguard-go", START_LIMIT, || socket.exists())?;
    }
    for end in [A, B] {
        let (name, port) = (name(bed, end), PORT.to_string());
        let key = bed.file(&format!("wg{end}")).display().to_string();
        let endpoint = format!("{}:{PORT}", OUTSIDE[1 - end]);
        run_here(&wg, &["set", &name, "private-key", &key, "listen-port", &port])?;
        run_here(
            &wg,
            &[
                "set",
                &name,
                "peer",
                &keys[1 - end],
                "endpoint",
                &endpoint,
                "allowed-ips",
                "0.0.0.0/0",
            ],
        )?;
        let own = end + 1;
        bed.hosts[end]
            .ip(&format!("addr add 10.10.0.{own}/24 dev {name}\nlink set {name} mtu 1420 up\n"))?;
    }
    Ok(targets(Ipv4Addr::new(10, 10, 0, 2)))
}

/// UDPspeeder with the values of its README.
fn speeder(bed: &mut Bed, peers: &Peers) -> Result<Targets> {
    let program = peers.text("speederv2")?;
    let here = targets(Ipv4Addr::LOCALHOST);
    let (target, listen) = (here.messages.to_string(), format!("0.0.0.0:{PORT}"));
    let server = format!("{}:{PORT}", OUTSIDE[B]);
    let common = ["-f20:10", "-k", "bench", "--timeout", "8"];
    bed.run(B, &program, &[&["-s", "-l", &listen, "-r", &target], &common[..]].concat())?;
    bed.run(A, &program, &[&["-c", "-l", &target, "-r", &server], &common[..]].concat())?;
    Ok(here)
}

/// tinyfecVPN with the values that its README gives for games: what is lost comes soon.
fn tinyfec(bed: &mut Bed, peers: &Peers) -> Result<Targets> {
    let program = peers.text("tinyvpn")?;
    let (listen, server) = (format!("0.0.0.0:{PORT}"), format!("{}:{PORT}", OUTSIDE[B]));
    let common = ["-f2:2", "--mode", "1", "--timeout", "1", "-k", "bench", "--tun-dev", "tv0"];
    let common = [&common[..], &["--sub-net", "10.22.22.0"]].concat();
    bed.run(B, &program, &[&["-s", "-l", &listen], &common[..]].concat())?;
    bed.run(A, &program, &[&["-c", "-r", &server, "--keep-reconnect"], &common[..]].concat())?;
    for end in [A, B] {
        let host = bed.hosts[end].path();
        bed.wait("the interface of tinyfecVPN", START_LIMIT, || has_interface(&host, "tv0"))?;
    }
    Ok(targets(Ipv4Addr::new(10, 22, 22, 1)))
}

fn has_interface(network: &Path, name: &str) -> bool {
    let network = format!("--net={}", network.display());
    run_here("nsenter", &[&network, "ip", "link", "show", name]).is_ok()
}

fn kcptun(bed: &mut Bed, peers: &Peers) -> Result<Targets> {
    let (client, server) = (peers.text("kcptun-client")?, peers.text("kcptun-server")?);
    let here = targets(Ipv4Addr::LOCALHOST);
    let (target, listen) = (here.bulk.to_string(), format!(":{PORT}"));
    let remote = format!("{}:{PORT}", OUTSIDE[B]);
    let common = ["--mode", "fast3", "--nocomp", "--key", "bench"];
    let windows = ["--sndwnd", "1024", "--rcvwnd", "1024"];
    let common = [&common[..], &windows[..]].concat();
    bed.run(B, &server, &[&["-t", &target, "-l", &listen], &common[..]].concat())?;
    bed.run(A, &client, &[&["-r", &remote, "-l", &target], &common[..]].concat())?;
    Ok(here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_have_names_of_their_own_and_carry_something() {
        for (index, lane) in LANES.iter().enumerate() {
            assert!(LANES[..index].iter().all(|other| other.name != lane.name), "{}", lane.name);
            assert!(lane.messages || lane.bulk, "{}", lane.name);
            assert!(!lane.bulk || lane.carrier != Carrier::Udp, "{}", lane.name);
        }
        let nowhere = Peers("/nonexistent".into());
        assert_eq!(LANES[0].missing(&nowhere), None);
        let speeder = LANES.iter().find(|lane| lane.way == Way::Speeder).unwrap();
        if speeder.missing(&nowhere).is_some() {
            assert!(speeder.missing(&nowhere).unwrap().contains("scripts/peers"));
        }
    }
}
