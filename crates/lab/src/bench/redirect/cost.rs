//! What one packet costs the redirector's program (`BPF_PROG_TEST_RUN`).

use super::super::stats::Interval;
use crate::testbed::{Role, Testbed};
use anyhow::{Result, anyhow};
use holdfast_linux::bpf::{
    Host, HostState, MAGLEV_ENTRIES, Question, Redirect, RedirectConfig, SPREAD_FLOWS_DEFAULT,
    ServiceKey, Way,
};
use holdfast_linux::netns;
use serde::Serialize;
use std::net::IpAddr;
use std::path::Path;

const REPEAT: u32 = 300_000;
const RUNS: usize = 15;
/// Above everything that ordinary processes do.
const PRIORITY: i32 = 50;
/// Of the loopback, which every network has.
const LOOPBACK: u32 = 1;
const V4: &str = "10.9.0.100";
const V6: &str = "fd09::100";

/// ns per packet, the undoing of the rewrite included.
#[derive(Clone, Debug, Serialize)]
pub struct Costs {
    /// Parsed, and not of a service.
    pub miss: Interval,
    /// Parsed, flow found, encapsulated in IPv4, and taken out again.
    pub ip_in_ip: Interval,
    /// The same in IPv6.
    pub ip6_in_ip6: Interval,
    /// Parsed, flow found, one hop counted.
    pub layer2: Interval,
}

impl Costs {
    /// One line.
    pub fn print(&self) {
        println!(
            "program, ns per packet with the rewrite undone: miss {:.0}, layer 2 {:.0}, \
             IP-in-IP {:.0}, IPv6-in-IPv6 {:.0}",
            self.miss.median, self.layer2.median, self.ip_in_ip.median, self.ip6_in_ip6.median
        );
    }
}

/// Loads a redirector that is attached to nothing, and times it.
pub fn measure(bed: &Testbed) -> Result<Costs> {
    let host = bed.host(Role::Edge);
    let namespace = Path::new("/run/netns").join(host.namespace());
    let pins = bed.directory().join("cost");
    let measured = std::thread::spawn(move || {
        netns::enter(&namespace)?;
        // Without it, what other processes do in between would count.
        let _ = holdfast_linux::process::set_realtime(PRIORITY);
        time(&pins)
    });
    measured.join().map_err(|_| anyhow!("the measuring thread has panicked"))?
}

fn time(pins: &Path) -> Result<Costs> {
    let mut redirect = Redirect::attach(&RedirectConfig {
        client_interfaces: Vec::new(),
        pin_dir: pins.to_path_buf(),
        flows_max: SPREAD_FLOWS_DEFAULT,
        seed: 1,
        outer4: ([172, 16, 0, 0].into(), 16),
        outer6: ([0xfd68, 0, 0, 0, 0, 0, 0, 0].into(), 64),
    })?;
    let table = vec![0; MAGLEV_ENTRIES];
    for address in [V4, V6] {
        let service = ServiceKey { address: address.parse()?, port: 80, udp: false };
        redirect.set_service(&service, &table)?;
    }
    let runs = |redirect: &Redirect, v6: bool, port: u16| -> Result<Interval> {
        let (from, to) =
            if v6 { ("[fd08::2]", format!("[{V6}]")) } else { ("10.8.0.2", V4.into()) };
        let question = Question {
            from: format!("{from}:40000").parse()?,
            to: format!("{to}:{port}").parse()?,
            udp: false,
            syn: false,
            payload_bytes: 64,
        };
        let run = |_| Ok(redirect.cost(&question, REPEAT)?.as_nanos() as f64);
        Ok(Interval::of(&(0..RUNS).map(run).collect::<Result<Vec<_>>>()?))
    };
    redirect.set_host(0, &loopback(true)?)?;
    let layer2 = runs(&redirect, false, 80)?;
    redirect.set_host(0, &loopback(false)?)?;
    let costs = Costs {
        miss: runs(&redirect, false, 81)?,
        ip_in_ip: runs(&redirect, false, 80)?,
        ip6_in_ip6: runs(&redirect, true, 80)?,
        layer2,
    };
    redirect.detach()?;
    // The testbed's directory goes with it; the file system of pins must not stay.
    let _ = crate::command::output("umount", &["-l", &pins.display().to_string()]);
    Ok(costs)
}

fn loopback(layer2: bool) -> Result<Host> {
    let way = |address: &str| -> Result<Way> {
        let address: IpAddr = address.parse()?;
        Ok(Way { address, next_hop: address, ifindex: LOOPBACK, mtu: 1500 })
    };
    let (v4, v6) = (Some(way("10.9.0.2")?), Some(way("fd09::2")?));
    Ok(Host { v4, v6, state: HostState::Up, layer2 })
}
