//! FT-TCP Table 1 (§5.3): the time of a request, and the time until a packet is acknowledged, both
//! seen at the client. The paper's request lists a folder of Samba: 87 bytes, a reply of 464, 39
//! bytes, a reply of 49. Here they have the same sizes, and are of redis.

use super::sides::{Side, bars, link, rounds};
use super::trace::{Seen, Trace, seconds};
use crate::bench::heal::fill::{asked, in_client};
use crate::bench::service::Service;
use crate::testbed::server::Program;
use anyhow::{Result, ensure};
use holdfast_papers::figures::{Check, Drawn, Effort, Measured, Table};
use holdfast_report::progress;
use holdfast_wire::buffering::Buffering;
use holdfast_wire::seq::SeqNo;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(super) const FIGURE: Measured = Measured {
    id: "fttcp-latency",
    title: "FT-TCP Table 1: latency of requests and of packets, by buffering mode",
    measure,
};

const ROUNDS: u64 = 3;

/// Number of requests in a round; the paper has 30 in all.
const REQUESTS: usize = 200;
/// Number of requests in a quick round.
const QUICK_REQUESTS: usize = 40;
/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(5);

/// Bytes of the two requests of an exchange, each with those of its reply.
pub(super) const EXCHANGE: [(usize, usize); 2] = [(87, 464), (39, 49)];

/// Time without a reply after which the server counts as gone, in s.
const PATIENCE_S: u64 = 10;

/// The paper's mean times for clean TCP, in ms: of a request, and of a packet.
const PAPER_CLEAN: (f64, f64) = (2.2, 0.7);
/// The paper's mean time of a request with a cold backup in the mode PRS, in ms.
const PAPER_COLD_PRS_MS: f64 = 5.8;
/// The paper's mean time of a request with a hot backup in the mode PRS, in ms.
const PAPER_HOT_PRS_MS: f64 = 6.2;
/// The paper's mean time of a packet with a backup, in ms.
const PAPER_PACKET_MS: f64 = 2.3;

/// Times of a side, in µs.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) side: Side,
    pub(super) requests: Vec<f64>,
    pub(super) packets: Vec<f64>,
}

fn measure(effort: &Effort) -> Result<Drawn> {
    let fresh = |side| Found { side, requests: Vec::new(), packets: Vec::new() };
    let mut found: Vec<Found> = Side::all().into_iter().map(fresh).collect();
    let rounds = rounds(effort, ROUNDS);
    let progress = progress("fttcp-latency", rounds * found.len() as u64);
    let count = if effort.quick { QUICK_REQUESTS } else { REQUESTS };
    for _ in 0..rounds {
        for it in &mut found {
            let seen = it.side.serve(link(), |service| exchanges(service, count))?;
            let (requests, packets) = (request_us(&seen), packet_us(&seen));
            ensure!(requests.len() >= count, "{} of {count} requests were seen", requests.len());
            it.requests.extend(requests);
            it.packets.extend(packets);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(draw(&found))
}

/// Runs the paper's exchange `count` times; returns the segments that passed at the client.
fn exchanges(service: &mut Service<'_>, count: usize) -> Result<Vec<Seen>> {
    let testbed = service.testbed;
    let seen = in_client(testbed, |at| {
        fill(at)?;
        let trace = Trace::start(testbed, Program::Redis.port())?;
        let mut client = TcpStream::connect(at)?;
        client.set_nodelay(true)?;
        client.set_read_timeout(Some(Duration::from_secs(PATIENCE_S)))?;
        let mut reply = [0; EXCHANGE[0].1];
        for _ in 0..count {
            for (asked, answered) in EXCHANGE {
                client.write_all(&get(&key(asked)))?;
                client.read_exact(&mut reply[..answered])?;
            }
            std::thread::sleep(PAUSE);
        }
        trace.finish()
    })?;
    service.ensure_protected()?;
    Ok(seen)
}

/// Sets values whose replies have the paper's sizes.
fn fill(at: SocketAddr) -> Result<()> {
    let mut client = TcpStream::connect(at)?;
    for (request, reply) in EXCHANGE {
        let value = vec![b'v'; value_len(reply)];
        asked(&mut client, &[b"SET", key(request).as_bytes(), &value], PATIENCE_S)?;
    }
    Ok(())
}

/// A key for which a GET has `request` bytes, if its length has two digits.
fn key(request: usize) -> String {
    "k".repeat(request - get("").len() - 1)
}

pub(super) fn get(key: &str) -> Vec<u8> {
    format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).into_bytes()
}

/// Bytes of a value whose reply, `$LEN` and the value, has `reply` bytes.
pub(super) fn value_len(reply: usize) -> usize {
    let digits = if reply < 100 { 2 } else { 3 };
    reply - digits - 5
}

/// Times from each first request to the reply to the second one, in µs.
pub(super) fn request_us(seen: &[Seen]) -> Vec<f64> {
    let mut begun = None;
    let mut found = Vec::new();
    for it in seen.iter().filter(|it| it.len > 0) {
        if it.from_client && it.len == EXCHANGE[0].0 {
            begun = Some(it.at);
        } else if !it.from_client
            && it.len == EXCHANGE[1].1
            && let Some(begun) = begun.take()
        {
            found.push(seconds(begun, it.at) * 1e6);
        }
    }
    found
}

/// Times from each segment with data to its acknowledgement, in µs.
pub(super) fn packet_us(seen: &[Seen]) -> Vec<f64> {
    let mut waiting: Vec<(u16, SeqNo, std::time::SystemTime)> = Vec::new();
    let mut found = Vec::new();
    for it in seen {
        if it.from_client && it.len > 0 {
            waiting.push((it.port, it.end, it.at));
        } else if !it.from_client {
            waiting.retain(|(port, end, at)| {
                let waits = *port != it.port || end.after(it.ack);
                if !waits {
                    found.push(seconds(*at, it.at) * 1e6);
                }
                waits
            });
        }
    }
    found
}

/// Count, smallest, median, mean, largest, and standard deviation, as in the paper's table.
pub(super) fn statistics(values: &[f64]) -> [f64; 6] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|it| (it - mean).powi(2)).sum();
    let end = |it: Option<&f64>| it.copied().unwrap_or(f64::NAN);
    let middle = end(sorted.get(sorted.len() / 2));
    [count, end(sorted.first()), middle, mean, end(sorted.last()), (squares / count).sqrt()]
}

const MEDIAN: usize = 2;

pub(super) fn draw(found: &[Found]) -> Drawn {
    let mut columns = vec!["side".to_owned()];
    for what in ["request", "packet"] {
        let parts = ["count", "min_us", "median_us", "mean_us", "max_us", "deviation_us"];
        columns.extend(parts.map(|part| format!("{what}_{part}")));
    }
    let mut table = Table { columns, rows: Vec::new() };
    for (index, it) in found.iter().enumerate() {
        let [requests, packets] = [&it.requests, &it.packets].map(|it| statistics(it));
        table.rows.push([&[index as f64][..], &requests, &packets].concat());
    }
    let medians = |it: &Found| [&it.requests, &it.packets].map(|it| statistics(it)[MEDIAN]);
    let sides: Vec<_> = found.iter().map(|it| (it.side.name(), medians(it).to_vec())).collect();
    let chart = bars("Latency at the client, medians", "µs", &["request", "packet"], &sides);
    Drawn { charts: vec![chart], table, checks: checks(found) }
}

/// Compares medians with the paper's means: here one machine carries all hosts, and whatever else
/// it does is in the tail.
fn checks(found: &[Found]) -> Vec<Check> {
    let of = |side, pick: fn(&Found) -> &Vec<f64>| {
        let it = found.iter().find(|it| it.side == side);
        it.map_or(f64::NAN, |it| statistics(pick(it))[MEDIAN])
    };
    let requests: fn(&Found) -> &Vec<f64> = |it| &it.requests;
    let packets: fn(&Found) -> &Vec<f64> = |it| &it.packets;
    let (cold, hot) = (Side::cold(Buffering::Prs), Side::hot(Buffering::Prs));
    let times = |ours: f64, clean: f64| format!("{:.2}: {ours} of {clean} ms", ours / clean);
    let mut checks = vec![
        Check::unsaid(
            "a request, clean TCP, ms",
            "(2.2 ms, Samba on machines of 2002)",
            of(Side::Clean, requests) / 1e3,
        ),
        Check::unsaid(
            "a packet, clean TCP, ms",
            "(0.7 ms, on machines of 2002)",
            of(Side::Clean, packets) / 1e3,
        ),
    ];
    for (side, paper) in [(cold, PAPER_COLD_PRS_MS), (hot, PAPER_HOT_PRS_MS)] {
        let what = format!("a request, {} : clean TCP", side.name());
        let ours = of(side, requests) / of(Side::Clean, requests);
        checks.push(
            Check::new(&what, &times(paper, PAPER_CLEAN.0), ours, (1.0, paper / PAPER_CLEAN.0))
                .because("less than the paper's goes the same way"),
        );
    }
    for side in [cold, hot] {
        let what = format!("a packet, {} : clean TCP", side.name());
        let ours = of(side, packets) / of(Side::Clean, packets);
        let most = PAPER_PACKET_MS / PAPER_CLEAN.1;
        checks.push(Check::new(&what, &times(PAPER_PACKET_MS, PAPER_CLEAN.1), ours, (1.0, most)));
    }
    checks.push(
        Check::new(
            "a request, hot PRS less cold PRS, ms",
            "0.4: 6.2 less 5.8 ms",
            (of(hot, requests) - of(cold, requests)) / 1e3,
            (-0.05, 0.4),
        )
        .because("a confirmation does not wait for the replica, so that both are alike"),
    );
    for (word, side) in [("cold", Side::cold as fn(_) -> _), ("hot", Side::hot as fn(_) -> _)] {
        let of_mode = |mode| of(side(mode), requests);
        let what = format!("a request, {word}, PRS : immediate");
        let ours = of_mode(Buffering::Prs) / of_mode(Buffering::Immediate);
        checks.push(Check::new(&what, "more is waited for", ours, (1.0, 10.0)));
    }
    checks.extend(added(&of));
    checks
}

/// Checks of what clients see of the waits; the paper's times are of its own machines.
fn added(of: &impl Fn(Side, fn(&Found) -> &Vec<f64>) -> f64) -> Vec<Check> {
    let requests: fn(&Found) -> &Vec<f64> = |it| &it.requests;
    let mut checks = Vec::new();
    for side in Side::all().into_iter().skip(1) {
        let added = of(side, requests) - of(Side::Clean, requests);
        let what = format!("a request, {}, above clean TCP, µs", side.name());
        checks.push(Check::unsaid(&what, "(2 requests and 2 replies)", added));
    }
    checks.push(
        Check::unsaid(
            "a wait for the backup, hot COMMIT less immediate, by reply, µs",
            "(buffering: cold 30 µs less than hot)",
            (of(Side::hot(Buffering::Commit), requests)
                - of(Side::hot(Buffering::Immediate), requests))
                / 2.0,
        )
        .because("the paper measures it inside of the primary; this is what clients see of it"),
    );
    checks
}
