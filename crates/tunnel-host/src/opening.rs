//! What `up` opens on this host, and why that cannot be had. `check` tries the same, and keeps nothing
//! of it, so that what it says is what `up` would say.

use crate::cli::Failure;
use crate::config::{Config, Mode};
use crate::inside::{Device, Door, Ports};
use crate::outside::Outside;
use crate::run_dir;
use holdfast_program::exit;
use rustix::io::Errno;
use rustix::net::netdevice;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;

/// Opens what the tunnel carries.
///
/// # Errors
/// With what could not be had, and a remedy.
pub fn door(config: &Config) -> Result<Door, Failure> {
    if config.mode != Mode::Tun {
        return Ok(Door::Ports(Box::new(ports(config)?)));
    }
    free_interface(&config.interface)?;
    let device = Device::open(config).map_err(|error| of_device(&error))?;
    Ok(Door::Device(Box::new(device)))
}

/// Opens the socket for the peer.
///
/// # Errors
/// As `bind`, with a remedy.
pub fn outside(config: &Config) -> Result<Outside, Failure> {
    Outside::open(config.listen).map_err(|error| {
        let listen = config.listen.map_or("any port".to_owned(), |it| it.to_string());
        let remedy = of_bind(error.kind(), "listen");
        Failure::new(exit::of(&error), format!("udp {listen}: {error}\n  remedy: {remedy}"))
    })
}

/// All for which `up` would refuse to start on this host, as far as it can be known without making
/// the interface: that would be seen by others.
pub fn obstacles(config: &Config) -> Vec<Failure> {
    let folder = if config.run_dir.exists() { run_dir::look(&config.run_dir) } else { Ok(()) };
    // What was opened stays open until all is: what is wanted twice shows.
    let (ports, interface) = match config.mode {
        Mode::Tun => (None, free_interface(&config.interface).err()),
        Mode::Udp | Mode::Forward => (Some(ports(config)), None),
    };
    let outside = outside(config);
    let ports = ports.and_then(Result::err);
    [folder.err().map(Failure::from), ports, interface, outside.err()]
        .into_iter()
        .flatten()
        .collect()
}

fn ports(config: &Config) -> Result<Ports, Failure> {
    Ports::open(config).map_err(|error| {
        let cause = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
        let code = cause.map_or(exit::DEGRADED, exit::of);
        let remedy = of_bind(cause.map_or(ErrorKind::Other, io::Error::kind), "forward");
        Failure::new(code, format!("{error:#}\n  remedy: {remedy}"))
    })
}

/// What helps when an address cannot be listened at that the file has under `key`.
fn of_bind(kind: ErrorKind, key: &str) -> String {
    match kind {
        ErrorKind::AddrInUse => format!(
            "something listens there (`ss -lntup` shows what): end it, or choose another port by `{key}`"
        ),
        ErrorKind::AddrNotAvailable => {
            "no interface of this host has that address: see `ip address`".to_owned()
        }
        ErrorKind::PermissionDenied => {
            format!("ports below 1024 are root's: choose another one by `{key}`")
        }
        _ => format!("look at `{key}` in [tunnel]"),
    }
}

/// Whether no interface of this host has the name. A TUN device that somebody has prepared is
/// refused, too: it would not go when the tunnel does, and may have other addresses.
fn free_interface(name: &str) -> Result<(), Failure> {
    let socket = UnixDatagram::unbound()?;
    match netdevice::name_to_index(&socket, name) {
        Err(Errno::NODEV) => Ok(()),
        Ok(_) => Err(taken(&format!("the interface {name}: this host has one of that name"))),
        Err(error) => {
            let error = io::Error::from(error);
            let remedy = "choose another name by `interface` in [tunnel]";
            let message = format!("the interface {name}: {error}\n  remedy: {remedy}");
            Err(Failure::new(exit::of(&error), message))
        }
    }
}

fn taken(what: &str) -> Failure {
    let remedy =
        "choose another name by `interface` in [tunnel], or see by `ip -d link` whose it is";
    Failure::new(exit::DEGRADED, format!("{what}\n  remedy: {remedy}"))
}

fn of_device(error: &anyhow::Error) -> Failure {
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    let (code, remedy) = match cause.and_then(io::Error::raw_os_error) {
        Some(libc::EPERM | libc::EACCES) => (
            exit::NOT_PERMITTED,
            "do it as root, or with CAP_NET_ADMIN; mode = \"udp\" needs no rights",
        ),
        Some(libc::EBUSY | libc::EEXIST) => return taken(&format!("{error:#}")),
        Some(libc::ENOENT | libc::ENODEV) => {
            (exit::DEGRADED, "this kernel has no TUN devices: modprobe tun")
        }
        _ => (
            cause.map_or(exit::DEGRADED, exit::of),
            "look at `interface`, `address` and `inner_mtu` in [tunnel], and at the kernel's log",
        ),
    };
    Failure::new(code, format!("{error:#}\n  remedy: {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_tunnel::secure::SecretKey;
    use std::net::{TcpListener, UdpSocket};
    use std::path::Path;

    fn parse(tunnel: &str) -> Config {
        let peer = SecretKey::from_random([5; 32]).public();
        let text = format!(
            "[tunnel]\nkey = \"a\"\nrun_dir = \"/nowhere\"\n{tunnel}\n[peer]\nkey = \"{peer}\"\n\
             address = \"192.0.2.1:5\"\n"
        );
        Config::parse(Path::new("/etc/holdfast/tunnel/x.toml"), &text).expect("a file")
    }

    fn told(config: &Config) -> Vec<String> {
        obstacles(config).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ports_that_others_have_are_told_with_a_remedy() {
        let (udp, tcp) = (UdpSocket::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
        let own = udp.as_ref().expect("a port").local_addr().expect("an address");
        let forward = tcp.as_ref().expect("a port").local_addr().expect("an address");
        let config = parse(&format!(
            "mode = \"forward\"\nlisten = \"{own}\"\nforward = [\"tcp {forward} -> 10.0.0.5:53\"]"
        ));
        let both = told(&config);
        let [first, second] = &both[..] else { panic!("both are told: {both:?}") };
        assert!(first.starts_with(&format!("tcp {forward}: ")) && first.contains("by `forward`"));
        assert!(second.starts_with(&format!("udp {own}: ")) && second.contains("by `listen`"));
        assert!(both.iter().all(|it| it.contains("\n  remedy: ")), "{both:?}");
        drop((udp, tcp));
        assert_eq!(told(&config), [""; 0], "and nothing of it is kept");
        assert_eq!(told(&config), [""; 0]);
    }

    #[test]
    fn an_interface_that_is_there_is_told() {
        let tun = |name: &str| {
            parse(&format!("mode = \"tun\"\naddress = [\"10.9.0.1/30\"]\ninterface = \"{name}\""))
        };
        let there = told(&tun("lo"));
        assert_eq!(there.len(), 1, "{there:?}");
        assert!(
            there[0].contains("the interface lo") && there[0].contains("remedy: "),
            "{there:?}"
        );
        let refused = door(&tun("lo")).err().expect("up refuses it as well");
        assert_eq!(refused.to_string(), there[0]);
        assert_eq!(told(&tun("hf-nobody-has")), [""; 0]);
    }
}
