//! One measurement: a workload over a lane over a path.

use super::bed::{A, B, Bed};
use super::bulk::Bulk;
use super::lane::{Carrier, Lane, Peers, Way};
use super::talk::{LOST, Progress, Talk};
use super::work::{HEADERS, Messages, Packet, Workload};
use crate::emu::{EmuSpec, WireCounts};
use anyhow::{Result, bail};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Until a connection in bulk has found its rate, and a tunnel what the path loses.
const WARM: Duration = Duration::from_secs(3);
/// The part of the messages that comes before, too: a tunnel learns from them.
const WARM_PART: usize = 10;
/// How long the last messages are waited for: as long as they were on their way in the worst case
/// of TCP's timers.
const LAST_LIMIT: Duration = Duration::from_secs(3);
/// Bulk is counted in packets of so many bytes.
const BULK_PACKET_BYTES: f64 = 1400.0;

/// What all lanes of a cell have in common.
#[derive(Clone, Debug)]
pub struct Setting {
    pub spec: EmuSpec,
    /// Beyond the path's delay, after which a message is late.
    pub budget: Duration,
    /// Messages that count.
    pub messages: usize,
    /// How long bulk counts.
    pub bulk: Duration,
    pub seed: u64,
}

impl Setting {
    /// When a message is late: the path's delay there and the budget, or the path's delay, one
    /// repair (a round trip) and 3 ms more.
    pub fn deadlines(&self) -> [Duration; 2] {
        let [there, back] = self.spec.directions().map(|it| it.delay);
        [there + self.budget, there + there + back + Duration::from_millis(3)]
    }
}

/// How long messages took. What was lost is later than all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Delays {
    pub count: usize,
    /// One way, in ms; `None`: so many were lost.
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub p999_ms: Option<f64>,
    /// Share that is later than the path's delay and the budget.
    pub late_now: f64,
    /// Share that is later than one repair takes.
    pub late_soon: f64,
    pub lost: f64,
    /// At equal steps of the distribution, in ms, for the picture.
    pub curve_ms: Vec<f64>,
}

/// Points of a distribution that are kept.
const CURVE_POINTS: usize = 200;

impl Delays {
    /// What delays in ns say, in any order.
    pub fn of(mut delays_ns: Vec<u64>, deadlines: [Duration; 2]) -> Self {
        delays_ns.sort_unstable();
        let count = delays_ns.len();
        let come = delays_ns.partition_point(|it| *it != LOST);
        let ms = |ns: u64| ns as f64 / 1e6;
        let at = |share: f64| {
            let place = (count as f64 * share).ceil() as usize;
            delays_ns[..come].get(place.saturating_sub(1)).map(|it| ms(*it))
        };
        let later = |deadline: Duration| {
            let in_time = delays_ns.partition_point(|it| u128::from(*it) <= deadline.as_nanos());
            (count - in_time) as f64 / count.max(1) as f64
        };
        let points = CURVE_POINTS.min(come);
        Self {
            count,
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            late_now: later(deadlines[0]),
            late_soon: later(deadlines[1]),
            lost: (count - come) as f64 / count.max(1) as f64,
            curve_ms: (1..=points).map(|it| ms(delays_ns[it * come / points - 1])).collect(),
        }
    }
}

/// What one measurement found.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    pub delays: Option<Delays>,
    pub goodput_mbit_per_s: Option<f64>,
    /// The first megabyte of bulk.
    pub object_ms: Option<f64>,
    /// Bytes of IP on the wire, both ways, per byte of IP inside (of bulk: per byte).
    pub wire_bytes_per_byte: f64,
    /// Processor time of the programs of each end, us per packet inside.
    pub cpu_us_per_packet: [f64; 2],
    /// What the wire did meanwhile.
    pub seen: WireCounts,
}

impl Workload {
    /// Measures it.
    ///
    /// # Errors
    /// When the lane does not come up, or a program of it ends.
    pub fn measure(&self, lane: &Lane, setting: &Setting, peers: &Peers) -> Result<Round> {
        let mut bed = Bed::start(&setting.spec)?;
        let targets = lane.way.start(&mut bed, peers)?;
        let bulk = match (self.has_bulk, lane.carrier) {
            (true, Carrier::Tcp(control)) => Some(Bulk::start(&bed, targets.bulk, control)?),
            (true, Carrier::Udp) => bail!("bulk needs a connection"),
            (false, _) => None,
        };
        let mut window = Window::new(&bulk);
        let delays = match &self.messages {
            None => {
                std::thread::sleep(WARM);
                window.open(&mut bed, &bulk)?;
                std::thread::sleep(setting.bulk);
                None
            }
            Some(messages) => {
                let carrier = self.carrier_of_messages(lane);
                let talk = Talk::open(&bed, targets, carrier)?;
                if bulk.is_some() {
                    std::thread::sleep(WARM);
                }
                Some(exchange(messages, setting, &talk, || window.open(&mut bed, &bulk))?)
            }
        };
        let inner = delays.as_ref().map_or([0, 0], |it| it.inner);
        let round = window.close(&mut bed, &bulk, inner)?;
        bed.check()?;
        let delays = delays.map(|it| Delays::of(it.delays_ns, setting.deadlines()));
        Ok(Round { delays, ..round })
    }

    /// Beside bulk messages are datagrams where the way takes them.
    fn carrier_of_messages(&self, lane: &Lane) -> Carrier {
        if self.has_bulk && lane.way != Way::Kcptun { Carrier::Udp } else { lane.carrier }
    }
}

/// What messages found.
struct Exchanged {
    delays_ns: Vec<u64>,
    /// Packets and bytes of IP inside that count.
    inner: [u64; 2],
}

/// Sends messages there, and back if the workload says so; `begins` is called when they begin to
/// count.
fn exchange(
    messages: &Messages,
    setting: &Setting,
    talk: &Talk,
    begins: impl FnOnce() -> Result<()>,
) -> Result<Exchanged> {
    let frame = messages.packets_per_frame as usize;
    let warm = (setting.messages / WARM_PART)
        .max(WARM.as_secs() as usize * messages.per_second as usize)
        .next_multiple_of(frame);
    let each = (setting.messages.max(1) * frame).div_ceil(if messages.both_ways { 2 } else { 1 });
    let plan = messages.plan(warm + each, setting.seed);
    let takes = plan.last().map_or(Duration::ZERO, |it| it.at);
    let begun_ns = crate::monotonic_ns() + 20_000_000;
    let until_ns = begun_ns + takes.as_nanos() as u64 + LAST_LIMIT.as_nanos() as u64;
    let ways: &[(usize, usize)] = if messages.both_ways { &[(A, B), (B, A)] } else { &[(A, B)] };
    let progress: Vec<Progress> = ways.iter().map(|_| Progress::default()).collect();
    let (plan, count) = (&plan[..], plan.len());
    let heard = std::thread::scope(|scope| -> Result<Vec<Vec<u64>>> {
        let mut hearing = Vec::new();
        for ((from, to), progress) in ways.iter().copied().zip(&progress) {
            hearing.push(scope.spawn(move || talk.hear(to, count, progress)));
            scope.spawn(move || talk.send(from, plan, begun_ns, until_ns));
        }
        let wait = |at: Duration| {
            let at_ns = begun_ns + at.as_nanos() as u64;
            std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(crate::monotonic_ns())));
        };
        wait(plan[warm].at);
        let began = begins();
        wait(takes);
        let until = Instant::now() + LAST_LIMIT;
        progress.iter().for_each(|it| it.finish(count, until));
        began?;
        let joined = hearing.into_iter().map(|it| it.join());
        joined.map(|it| it.map_err(|_| anyhow::anyhow!("who hears panicked"))).collect()
    })?;
    let delays_ns = heard.iter().flat_map(|it| frames(&it[warm..], frame)).collect();
    Ok(Exchanged { delays_ns, inner: inner(&plan[warm..], ways.len() as u64) })
}

/// Packets and bytes of IP inside.
fn inner(plan: &[Packet], ways: u64) -> [u64; 2] {
    let bytes: usize = plan.iter().map(|it| it.payload_bytes + HEADERS).sum();
    [plan.len() as u64 * ways, bytes as u64 * ways]
}

/// A frame is there with its last packet.
fn frames(delays_ns: &[u64], packets: usize) -> Vec<u64> {
    delays_ns.chunks(packets).filter_map(|frame| frame.iter().copied().max()).collect()
}

/// From the moment from which everything counts.
struct Window {
    begun: Instant,
    counts: WireCounts,
    cpu_ns: [u64; 2],
    bulk_bytes: u64,
}

impl Window {
    fn new(bulk: &Option<Bulk>) -> Self {
        let bulk_bytes = bulk.as_ref().map_or(0, Bulk::bytes);
        Self { begun: Instant::now(), counts: WireCounts::default(), cpu_ns: [0; 2], bulk_bytes }
    }

    fn open(&mut self, bed: &mut Bed, bulk: &Option<Bulk>) -> Result<()> {
        *self = Self { counts: bed.counts()?, cpu_ns: bed.cpu_ns(), ..Self::new(bulk) };
        Ok(())
    }

    /// What has happened since; `inner` is the packets and bytes of messages.
    fn close(&self, bed: &mut Bed, bulk: &Option<Bulk>, inner: [u64; 2]) -> Result<Round> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let bulk_bytes = bulk.as_ref().map_or(0, Bulk::bytes) - self.bulk_bytes;
        let seen = bed.counts()?.since(self.counts);
        let cpu_ns = bed.cpu_ns();
        let wire_bytes = seen.there.offered.bytes + seen.back.offered.bytes;
        let packets = inner[0] as f64 + bulk_bytes as f64 / BULK_PACKET_BYTES;
        let cpu_us = |end: usize| cpu_ns[end].saturating_sub(self.cpu_ns[end]) as f64 / 1e3;
        Ok(Round {
            delays: None,
            goodput_mbit_per_s: bulk.as_ref().map(|_| bulk_bytes as f64 * 8.0 / seconds / 1e6),
            object_ms: bulk.as_ref().and_then(Bulk::object_ms),
            wire_bytes_per_byte: wire_bytes as f64 / (inner[1] + bulk_bytes).max(1) as f64,
            cpu_us_per_packet: [A, B].map(|end| cpu_us(end) / packets.max(1.0)),
            seen,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_later_than_all() {
        let deadlines = [12, 33].map(Duration::from_millis);
        let mut delays: Vec<u64> = (0..98).map(|it| 10_000_000 + it * 250_000).collect();
        delays.extend([LOST, LOST]);
        let told = Delays::of(delays, deadlines);
        assert_eq!((told.count, told.p50_ms, told.p99_ms), (100, Some(22.25), None));
        assert_eq!((told.lost, told.late_now, told.late_soon), (0.02, 0.91, 0.07));
        assert_eq!(told.curve_ms.len(), 98);
        assert_eq!(Delays::of(Vec::new(), deadlines).p50_ms, None);
    }

    #[test]
    fn a_frame_is_as_late_as_its_last_packet() {
        assert_eq!(frames(&[1, 5, 2, 7, LOST, 7, 3], 3), [5, LOST, 3]);
    }

    #[test]
    fn deadlines_are_those_of_the_path() {
        let spec = EmuSpec::parse(&["delay", "10ms", "back", "delay", "20ms"]).unwrap();
        let budget = Duration::from_millis(2);
        let setting = Setting { spec, budget, messages: 1, bulk: Duration::ZERO, seed: 1 };
        assert_eq!(setting.deadlines(), [12, 43].map(Duration::from_millis));
    }
}
