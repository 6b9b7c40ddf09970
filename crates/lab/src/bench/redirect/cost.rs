//! What one packet costs the redirector's program (`BPF_PROG_TEST_RUN`).

use crate::testbed::{Role, Testbed};
use anyhow::{Result, anyhow};
use holdfast_linux::bpf::{
    Cost, Host, HostState, MAGLEV_ENTRIES, Question, Redirect, RedirectConfig,
    SPREAD_FLOWS_DEFAULT, ServiceKey, Way,
};
use holdfast_linux::netns;
use holdfast_report::Interval;
use serde::Serialize;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

const REPEAT: u32 = 300_000;
const RUNS: usize = 15;
/// Real-time priority of the measurement, above that of ordinary processes.
const PRIORITY: i32 = 50;
/// Interface index of the loopback, which every network has.
const LOOPBACK: u32 = 1;
const V4: &str = "10.9.0.100";
const V6: &str = "fd09::100";

/// Times in ns per packet. All of them contain the time to run a program at all.
#[derive(Clone, Debug, Serialize)]
pub struct Costs {
    /// Time of a program that does nothing.
    pub nothing: Interval,
    /// Time of a packet that is parsed and belongs to no service.
    pub miss: Interval,
    /// Time of a packet that is parsed, whose flow is found, and whose counted hop is undone.
    pub layer2: Interval,
    /// Time of a packet that is parsed, whose flow is found, and that is encapsulated.
    pub ip_in_ip: Wrapped,
    /// Time of a packet that is encapsulated in IPv6.
    pub ip6_in_ip6: Wrapped,
}

/// Times of a program that encapsulates: it can run on the same packet again only after the packet
/// was unwrapped.
#[derive(Clone, Debug, Serialize)]
pub struct Wrapped {
    /// Times as measured, of the program and the unwrapping.
    pub whole: Interval,
    /// Half of the time to wrap a packet and to unwrap it, and nothing else.
    pub undoing: Interval,
    /// `whole` without `undoing`, run by run.
    pub program: Interval,
}

impl Costs {
    /// Prints three lines for people.
    pub fn print(&self) {
        println!(
            "program, ns per packet: run {:.0}, miss {:.0}, layer 2 with its undoing {:.0}",
            self.nothing.median, self.miss.median, self.layer2.median,
        );
        for (name, cost) in [("IPv4", &self.ip_in_ip), ("IPv6", &self.ip6_in_ip6)] {
            println!(
                "  IP-in-IP, {name}: {:.0} [{:.0} .. {:.0}] ({:.0} measured, less {:.0} for \
                 unwrapping it again)",
                cost.program.median,
                cost.program.low,
                cost.program.high,
                cost.whole.median,
                cost.undoing.median
            );
        }
    }
}

/// Loads a redirector that is attached to nothing, and times it.
pub fn measure(bed: &Testbed) -> Result<Costs> {
    let host = bed.host(Role::Edge);
    let namespace = Path::new("/run/netns").join(host.namespace());
    let pins = bed.directory().join("cost");
    let measured = std::thread::spawn(move || {
        netns::enter(&namespace)?;
        // Without real-time priority, other processes that run in between would count.
        let _ = holdfast_linux::priority::set_realtime(PRIORITY);
        time(&pins)
    });
    measured.join().map_err(|_| anyhow!("the measuring thread has panicked"))?
}

fn time(pins: &Path) -> Result<Costs> {
    let mut redirect = Redirect::attach(&RedirectConfig {
        group: "bench".to_owned(),
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
    let runs = |redirect: &Redirect, v6: bool, port: u16| -> Result<Vec<Cost>> {
        let (from, to) =
            if v6 { ("[fd08::2]", format!("[{V6}]")) } else { ("10.8.0.2", V4.into()) };
        let question = Question {
            from: format!("{from}:40000").parse()?,
            to: format!("{to}:{port}").parse()?,
            udp: false,
            syn: false,
            payload_bytes: 64,
        };
        (0..RUNS).map(|_| Ok(redirect.cost(&question, REPEAT)?)).collect()
    };
    redirect.set_host(0, &loopback(true)?)?;
    let layer2 = runs(&redirect, false, 80)?;
    redirect.set_host(0, &loopback(false)?)?;
    let miss = runs(&redirect, false, 81)?;
    let costs = Costs {
        nothing: of(&miss, |cost| cost.nothing),
        miss: of(&miss, |cost| cost.whole),
        layer2: of(&layer2, |cost| cost.whole),
        ip_in_ip: wrapped(&runs(&redirect, false, 80)?),
        ip6_in_ip6: wrapped(&runs(&redirect, true, 80)?),
    };
    redirect.detach()?;
    // The testbed's directory is removed with it, so the file system of pins must not stay.
    let _ = crate::command::output("umount", &["-l", &pins.display().to_string()]);
    Ok(costs)
}

fn of(costs: &[Cost], what: impl Fn(&Cost) -> Duration) -> Interval {
    let ns: Vec<f64> = costs.iter().map(|cost| what(cost).as_nanos() as f64).collect();
    Interval::of(&ns)
}

fn wrapped(costs: &[Cost]) -> Wrapped {
    Wrapped {
        whole: of(costs, |cost| cost.whole),
        undoing: of(costs, |cost| cost.undoing),
        program: of(costs, Cost::program),
    }
}

fn loopback(layer2: bool) -> Result<Host> {
    let way = |address: &str| -> Result<Way> {
        let address: IpAddr = address.parse()?;
        Ok(Way { address, next_hop: address, ifindex: LOOPBACK, mtu: 1500 })
    };
    let (v4, v6) = (Some(way("10.9.0.2")?), Some(way("fd09::2")?));
    Ok(Host { v4, v6, state: HostState::Up, layer2 })
}
