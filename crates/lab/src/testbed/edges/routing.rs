//! The programs that lead clients' packets to an edge where that is not Holdfast's own work:
//! keepalived at both edges, or BIRD at both edges and the router, as Debian ships them.

use super::wires::{
    GATEWAY_V4, GATEWAY_V6, ROUTER_V4, ROUTER_V6, Segment, address, address_v6, interface,
};
use super::{Node, Way};
use crate::testbed::host::Host;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

/// Kernel table in which an edge keeps the service addresses that are to be announced.
pub(super) const TABLE: u32 = 200;

/// Files in which keepalived keeps its process numbers.
const PID_FILES: [&str; 2] = ["keepalived.pid", "vrrp.pid"];

/// Private numbers of the two autonomous systems.
const ROUTER_AS: u32 = 65_000;
const EDGES_AS: u32 = 65_001;

/// Whether a host runs such a program.
pub(super) fn is_needed(node: Node, way: Way) -> bool {
    match way {
        Way::Mac => false,
        Way::Keepalived => Node::EDGES.contains(&node),
        Way::Bgp => node == Node::Router || Node::EDGES.contains(&node),
    }
}

/// Starts the program of a host. `healthy`: the command that says whether an edge should get
/// clients' packets.
pub(super) fn start(node: Node, host: &Host, way: Way, healthy: &str) -> Result<Child> {
    let inside = |file: &str| host.inside().join(file).display().to_string();
    let (name, text, words) = match way {
        Way::Bgp => {
            let text = if node == Node::Router { router_bird() } else { edge_bird(node)? };
            let words = ["-f", "-c", &inside("bird.conf"), "-s", &inside("bird.ctl")];
            ("bird", text, words.map(str::to_owned).to_vec())
        }
        Way::Keepalived | Way::Mac => {
            for file in PID_FILES {
                // One of an earlier life would name a process of somebody else.
                let _ = fs::remove_file(host.outside().join(file));
            }
            let [pid, vrrp_pid] = PID_FILES.map(inside);
            let file = inside("keepalived.conf");
            let words = ["--dont-fork", "--log-console", "--vrrp", "--use-file", &file];
            let files = ["--pid", &pid, "--vrrp_pid", &vrrp_pid];
            let words = words.iter().chain(&files).map(|it| (*it).to_owned()).collect();
            ("keepalived", keepalived(node, healthy), words)
        }
    };
    fs::write(host.outside().join(format!("{name}.conf")), text)?;
    spawn(host, name, &words)
}

fn spawn(host: &Host, name: &str, words: &[String]) -> Result<Child> {
    let log = host.outside().join("routing.log");
    let log = fs::File::options().create(true).append(true).open(log)?;
    let mut command = host.command(Path::new("/usr/sbin").join(name));
    command.args(words).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("cannot start {name}"))
}

/// One instance for both families, whose addresses belong together.
fn keepalived(node: Node, healthy: &str) -> String {
    let priority = if node == Node::E1 { 150 } else { 100 };
    let (name, device) = (node.name(), interface::EDGE_OUTSIDE);
    format!(
        "global_defs {{\n  router_id {name}\n  vrrp_version 3\n  script_user root\n}}\n\
         vrrp_script healthy {{\n  script \"{healthy}\"\n  interval 1\n  timeout 1\n  fall 1\n\
         \x20 rise 1\n  init_fail\n}}\n\
         vrrp_instance clients {{\n  state BACKUP\n  nopreempt\n  interface {device}\n\
         \x20 virtual_router_id 51\n  priority {priority}\n  advert_int 0.1\n\
         \x20 virtual_ipaddress {{\n    {GATEWAY_V4}/24\n  }}\n\
         \x20 virtual_ipaddress_excluded {{\n    {GATEWAY_V6}/64\n  }}\n\
         \x20 track_script {{\n    healthy\n  }}\n}}\n"
    )
}

const BIRD_BOTH: &str = "log stderr all;\nprotocol device { }\n\
     protocol bfd {\n  interface \"*\" {\n    min rx interval 50 ms;\n    min tx interval 50 ms;\n    \
     multiplier 3;\n  };\n}\n\
     template bgp watched {\n  direct;\n  bfd;\n  connect delay time 1;\n  connect retry time 1;\n  \
     error wait time 1, 2;\n}\n";

/// Two sessions with each edge, one for each family, and all routes that are as good together in
/// the kernel.
fn router_bird() -> String {
    let mut text = format!("router id {ROUTER_V4};\n{BIRD_BOTH}");
    for family in ["ipv4", "ipv6"] {
        text += &format!(
            "protocol kernel kernel_{family} {{\n  merge paths;\n  {family} {{ import none; export \
             where source = RTS_BGP; }};\n}}\n"
        );
    }
    let edges = [("e1", 11), ("e2", 12)];
    for (name, end) in edges {
        let sessions = [
            ("ipv4", ROUTER_V4, format!("10.8.1.{end}")),
            ("ipv6", ROUTER_V6, format!("fd08:1::{end}")),
        ];
        for (family, own, other) in sessions {
            text += &format!(
                "protocol bgp {name}_{family} from watched {{\n  local {own} as {ROUTER_AS};\n  \
                 neighbor {other} as {EDGES_AS};\n  {family} {{ import all; export none; }};\n}}\n"
            );
        }
    }
    text
}

/// The routes that Holdfast keeps in its table are learnt, and told to the router.
fn edge_bird(node: Node) -> Result<String> {
    let outside = Segment::Outside;
    let own = [address(node, outside), address_v6(node, outside)];
    let [Some(own4), Some(own6)] = own else { anyhow::bail!("{} is no edge", node.name()) };
    let mut text = format!("router id {own4};\n{BIRD_BOTH}");
    for (family, own, other) in [("ipv4", own4, ROUTER_V4), ("ipv6", own6, ROUTER_V6)] {
        text += &format!(
            "protocol kernel table_{family} {{\n  kernel table {TABLE};\n  learn;\n  {family} {{ \
             import all; export none; }};\n}}\n\
             protocol bgp router_{family} from watched {{\n  local {own} as {EDGES_AS};\n  \
             neighbor {other} as {ROUTER_AS};\n  {family} {{ import none; export all; next hop \
             self; }};\n}}\n"
        );
    }
    Ok(text)
}
