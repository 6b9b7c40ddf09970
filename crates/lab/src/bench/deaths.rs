//! `holdfast-lab bench deaths`: a server, or its host, dies behind HAProxy and in our pair, in
//! turns. Its clients do what the best clients do: they connect again at once when a connection
//! ends, and ask again. Measured are the connections that end, and how long clients wait for a
//! reply.

use super::faults::cut_off;
use super::recover::on_host;
use super::service::{Service, Variant, address, with_service};
use crate::load::{self, Action};
use crate::testbed::ours::GroupOptions;
use crate::testbed::server::Program;
use crate::testbed::{Plan, Role};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Args;
use holdfast_report::{Summary, progress};
use serde::Serialize;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Time from the first replies to the death.
const BEFORE: Duration = Duration::from_millis(500);
/// Shortest time from the death to the end of a run.
const AFTER_MIN: Duration = Duration::from_secs(1);
/// Longest time from the death to the end of a run: HAProxy asks a dead host three times by default,
/// waits 2 s for each answer, and 2 s between them.
const AFTER_MAX: Duration = Duration::from_secs(20);
/// Since when a client must have had a reply to count as served.
const SERVED: Duration = Duration::from_millis(50);
/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(1);
/// Time between two looks of a waiting client whether the run is over.
const LOOK: Duration = Duration::from_millis(20);

/// What is compared, in the order in which it alternates.
const VARIANTS: [Variant; 3] = [Variant::Haproxy, Variant::HaproxyEager, Variant::Ours];

/// Options of the bench.
#[derive(Args, Clone, Debug, Serialize)]
pub struct DeathsArgs {
    /// Print one JSON object.
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,
    /// Deaths of each kind, in each variant.
    #[arg(long, default_value_t = 8)]
    pub runs: u64,
    /// What dies.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kill9,link-cut")]
    pub deaths: Vec<Death>,
    /// Clients, each with one request at a time.
    #[arg(long, default_value_t = 4)]
    pub clients: usize,
}

/// What dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Death {
    /// The server, by kill -9: its kernel tells everybody.
    Kill9,
    /// The host's link goes down: nobody is told.
    LinkCut,
}

/// What one kind of death does in one variant.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    death: Death,
    variant: Variant,
    /// Clients of all runs.
    pub clients: u64,
    /// Those whose connection ended.
    pub ended: u64,
    /// Those that were not served again while the run lasted.
    pub unserved: u64,
    /// Longest wait of any client for a reply in each run, in ms; those that were not served
    /// again are left out.
    pub wait_ms: Summary,
    /// Time from the death to the first notice that a connection had ended, in each run in which
    /// one did, in ms.
    pub told_ms: Summary,
}

/// What the bench found.
#[derive(Clone, Debug, Serialize)]
pub struct DeathsReport {
    bench: &'static str,
    options: DeathsArgs,
    /// Every kind of death in every variant.
    pub rows: Vec<Row>,
}

/// What a client has seen.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Longest time between two replies of which the second came after the death.
    wait: Duration,
    /// Time from the death to the first end of a connection.
    told: Option<Duration>,
}

/// What the clients of a run share, with times in ns since `began`.
struct Clients {
    address: SocketAddr,
    began: Instant,
    died_ns: AtomicU64,
    stop: AtomicBool,
    last_reply_ns: Vec<AtomicU64>,
    seen: Mutex<Vec<Seen>>,
}

/// Runs the bench.
///
/// # Errors
/// When a variant cannot be built; what clients lose is a result, not an error.
pub fn run(args: &DeathsArgs) -> Result<DeathsReport> {
    let kinds = args.deaths.len() * VARIANTS.len();
    let progress = progress("deaths", args.runs * kinds as u64);
    let mut runs = vec![Vec::new(); kinds];
    for _ in 0..args.runs {
        for (death_at, death) in args.deaths.iter().enumerate() {
            for (at, variant) in VARIANTS.into_iter().enumerate() {
                let one = one(args, *death, variant).with_context(|| format!("{variant:?}"))?;
                runs[death_at * VARIANTS.len() + at].push(one);
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    let kinds = args.deaths.iter().flat_map(|death| VARIANTS.map(|variant| (*death, variant)));
    let rows = kinds.zip(&runs).map(|((death, variant), of)| sum_up(death, variant, of)).collect();
    Ok(DeathsReport { bench: "deaths", options: args.clone(), rows })
}

/// What the clients of one death saw; `None`: not served again.
fn one(args: &DeathsArgs, death: Death, variant: Variant) -> Result<Vec<Option<Seen>>> {
    let (plan, options) = (Plan::default(), GroupOptions::default());
    with_service(variant, Program::Redis, &plan, &options, 0, |service| {
        let clients = Arc::new(Clients {
            address: SocketAddr::new(address(false)?, Program::Redis.port()),
            began: Instant::now(),
            died_ns: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            last_reply_ns: (0..args.clients).map(|_| AtomicU64::new(0)).collect(),
            seen: Mutex::new(vec![Seen::default(); args.clients]),
        });
        let namespace = service.testbed.host(Role::Client).namespace();
        let threads: Vec<_> = (0..args.clients)
            .map(|number| {
                let clients = Arc::clone(&clients);
                on_host(namespace, move || clients.one(number))
            })
            .collect();
        thread::sleep(BEFORE);
        ensure!(clients.are_served(), "a client is not served before the death");
        let steps = steps(death, service)?;
        clients.died_ns.store(clients.now_ns(), Ordering::SeqCst);
        load::perform(steps);
        let served = clients.wait_served();
        clients.stop.store(true, Ordering::SeqCst);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a client's thread has failed"))?;
        }
        let seen = clients.seen.lock().map_err(|_| anyhow!("a client has failed"))?;
        Ok(seen.iter().zip(served).map(|(seen, served)| served.then_some(*seen)).collect())
    })
}

fn steps(death: Death, service: &Service<'_>) -> Result<Vec<(u64, Action)>> {
    Ok(match death {
        Death::Kill9 => vec![(0, Action::Kill(service.server_pid()?))],
        Death::LinkCut => cut_off(service.testbed, Role::Primary),
    })
}

impl Clients {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Who has had a reply lately.
    fn served(&self) -> Vec<bool> {
        let since_ns = self.now_ns().saturating_sub(SERVED.as_nanos() as u64);
        self.last_reply_ns.iter().map(|at| at.load(Ordering::SeqCst) > since_ns).collect()
    }

    fn are_served(&self) -> bool {
        self.served().into_iter().all(|it| it)
    }

    /// Waits until all are served again after the death; says who is in the end.
    fn wait_served(&self) -> Vec<bool> {
        let died = Instant::now();
        while died.elapsed() < AFTER_MIN || (!self.are_served() && died.elapsed() < AFTER_MAX) {
            thread::sleep(LOOK);
        }
        self.served()
    }

    /// Asks, and connects again whenever a connection has ended, until the run is over.
    fn one(&self, number: usize) -> Result<()> {
        while !self.stop.load(Ordering::SeqCst) {
            match self.converse(number) {
                Ok(()) => return Ok(()),
                Err(_ended) => self.note(number, |seen, since_death| {
                    seen.told = seen.told.or(since_death);
                })?,
            }
            thread::sleep(RETRY);
        }
        Ok(())
    }

    /// One connection, until it ends or the run is over.
    fn converse(&self, number: usize) -> Result<()> {
        let mut stream = TcpStream::connect_timeout(&self.address, AFTER_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        loop {
            stream.write_all(b"PING\r\n")?;
            if !self.answered(&mut stream)? {
                return Ok(());
            }
            let (before_ns, now_ns) =
                (self.last_reply_ns[number].load(Ordering::SeqCst), self.now_ns());
            self.last_reply_ns[number].store(now_ns, Ordering::SeqCst);
            let wait = Duration::from_nanos(now_ns - before_ns);
            self.note(number, |seen, since_death| {
                if since_death.is_some() {
                    seen.wait = seen.wait.max(wait);
                }
            })?;
        }
    }

    /// Waits for the reply; `false`: the run is over.
    fn answered(&self, stream: &mut TcpStream) -> Result<bool> {
        const REPLY: &[u8] = b"+PONG\r\n";
        let (mut reply, mut got) = ([0; REPLY.len()], 0);
        while got < REPLY.len() {
            match stream.read(&mut reply[got..]) {
                Ok(0) => bail!("the connection has ended"),
                Ok(count) => got += count,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    if self.stop.load(Ordering::SeqCst) {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        ensure!(reply == REPLY, "not the reply");
        Ok(!self.stop.load(Ordering::SeqCst))
    }

    /// Notes something that has just happened, and how long after the death.
    fn note(&self, number: usize, what: impl FnOnce(&mut Seen, Option<Duration>)) -> Result<()> {
        let died_ns = self.died_ns.load(Ordering::SeqCst);
        let since_ns = (died_ns > 0).then(|| self.now_ns().saturating_sub(died_ns));
        let mut seen = self.seen.lock().map_err(|_| anyhow!("another client has failed"))?;
        what(&mut seen[number], since_ns.map(Duration::from_nanos));
        Ok(())
    }
}

fn sum_up(death: Death, variant: Variant, runs: &[Vec<Option<Seen>>]) -> Row {
    let ms = |it: Duration| it.as_secs_f64() * 1e3;
    let served = |run: &Vec<Option<Seen>>| run.iter().flatten().copied().collect::<Vec<_>>();
    let all: Vec<Vec<Seen>> = runs.iter().map(served).collect();
    let waits: Vec<f64> =
        all.iter().filter_map(|run| run.iter().map(|seen| seen.wait).max()).map(ms).collect();
    let told: Vec<f64> = all
        .iter()
        .filter_map(|run| run.iter().filter_map(|seen| seen.told).min())
        .map(ms)
        .collect();
    Row {
        death,
        variant,
        clients: runs.iter().map(|run| run.len() as u64).sum(),
        ended: all.iter().flatten().filter(|seen| seen.told.is_some()).count() as u64,
        unserved: runs.iter().flatten().filter(|seen| seen.is_none()).count() as u64,
        wait_ms: Summary::of(&waits),
        told_ms: Summary::of(&told),
    }
}

impl DeathsReport {
    /// A table for people.
    pub fn print(&self) {
        println!(
            "{:<8} {:<13} {:>7} {:>6} {:>8}   {:<32} {:<32}",
            "death",
            "variant",
            "clients",
            "ended",
            "unserved",
            "longest wait, ms",
            "told after, ms"
        );
        let shown = |it: &Summary| format!("{:.1} ({:.1} to {:.1})", it.median, it.min, it.max);
        for row in &self.rows {
            let told = if row.ended == 0 { "-".to_owned() } else { shown(&row.told_ms) };
            println!(
                "{:<8} {:<13} {:>7} {:>6} {:>8}   {:<32} {told:<32}",
                format!("{:?}", row.death),
                format!("{:?}", row.variant),
                row.clients,
                row.ended,
                row.unserved,
                shown(&row.wait_ms),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_served_again_has_no_wait() {
        let seen = |wait, told: Option<u64>| Seen {
            wait: Duration::from_millis(wait),
            told: told.map(Duration::from_millis),
        };
        let runs = [
            vec![Some(seen(30, Some(4))), Some(seen(50, Some(3)))],
            vec![Some(seen(10, None)), None],
            vec![Some(seen(30, None))],
        ];
        let row = sum_up(Death::Kill9, Variant::Haproxy, &runs);
        assert_eq!((row.clients, row.ended, row.unserved), (5, 2, 1));
        assert_eq!(row.wait_ms, Summary { median: 30.0, min: 10.0, max: 50.0 });
        assert_eq!(row.told_ms, Summary { median: 3.0, min: 3.0, max: 3.0 });
    }
}
