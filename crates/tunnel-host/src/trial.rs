//! `holdfast tunnel test`: messages and then bulk through a tunnel that runs, beside whatever else it
//! carries. The other end sends messages back, and counts the bulk.
//!
//! What is said has a flow of its own, and begins with a kind and a number: 0 asks, 1 answers with the
//! same bytes, 2 is bulk, 3 asks how much bulk has come, 4 tells it. The number of bulk is the trial's.

use holdfast_tunnel::{Class, Endpoint};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The flow of trials, which no port has.
pub const FLOW: u32 = u32::MAX;
pub const SCHEMA: &str = "holdfast.tunnel-test/1";
/// Longest phase.
pub const SECONDS_MAX: u32 = 60;

/// Pause between two messages: 200 a second, as a game's or a telephone's.
const PAUSE: Duration = Duration::from_millis(5);
const MESSAGE_BYTES: usize = 64;
const BULK_BYTES: usize = 1200;
/// Bulk that is handed over in a turn, and that may wait for being sent.
const BULK_PER_TURN: usize = 64;
const WAITING_BYTES_MAX: usize = 256 << 10;
/// Pause between two turns of bulk.
const BULK_PAUSE: Duration = Duration::from_millis(1);
/// How long the last answers are waited for.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Pause between two questions how much has come: question and answer may be lost.
const AGAIN: Duration = Duration::from_millis(300);
/// Points of the distribution that are told.
const POINTS: usize = 200;

const ASK: u8 = 0;
const ANSWER: u8 = 1;
const BULK: u8 = 2;
const HOW_MUCH: u8 = 3;
const SO_MUCH: u8 = 4;

/// What a trial has found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    pub schema: String,
    pub seconds: u32,
    pub messages_sent: usize,
    pub messages_answered: usize,
    pub rtt_p50_ms: f64,
    pub rtt_p99_ms: f64,
    pub rtt_p999_ms: f64,
    /// Round trips at equal steps of the distribution, in ms.
    pub rtt_ms: Vec<f64>,
    /// Plaintext of this end's datagrams per byte of the messages and bulk that they carried.
    pub messages_bytes_per_byte: f64,
    pub bulk_bits_per_s: f64,
    pub bulk_bytes_per_byte: f64,
    /// Share of datagrams that was lost each way at the end; -1 where no message was answered, so that
    /// nothing is known of it.
    pub loss_sending: f64,
    pub loss_receiving: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Messages,
    LastAnswers,
    Bulk,
    HowMuch,
}

struct Running {
    found: Found,
    phase: Phase,
    /// When the phase ends, and the next thing in it is due.
    until: Duration,
    at: Duration,
    sent_at: Vec<Duration>,
    rtts: Vec<Duration>,
    /// Bytes of datagrams at the begin of the phase.
    wire_begun: u64,
    /// What the peer knows it by.
    number: u32,
}

/// Bulk of a trial of the peer's: bytes, and when the first and the last of them came.
#[derive(Default)]
struct Heard {
    number: u32,
    bytes: u64,
    begun: Duration,
    last: Duration,
}

/// A trial of this end's, and what is counted for one of the peer's.
#[derive(Default)]
pub struct Trial {
    running: Option<Running>,
    heard: Heard,
    done: Option<Found>,
    message: Vec<u8>,
}

impl Trial {
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Begins a trial, unless one runs.
    pub fn begin(&mut self, seconds: u32, machine: &Endpoint, now: Duration) {
        if self.is_running() {
            return;
        }
        let seconds = seconds.clamp(1, SECONDS_MAX);
        self.running = Some(Running {
            found: Found { schema: SCHEMA.to_owned(), seconds, ..Found::default() },
            phase: Phase::Messages,
            until: now + Duration::from_secs(seconds.into()),
            at: now,
            sent_at: Vec::new(),
            rtts: Vec::new(),
            wire_begun: machine.report().sending.bytes,
            number: now.subsec_nanos(),
        });
    }

    /// What a trial that has ended found, once.
    pub fn take_found(&mut self) -> Option<Found> {
        self.done.take()
    }

    pub fn wake_at(&self) -> Option<Duration> {
        self.running.as_ref().map(|running| running.at.min(running.until))
    }

    /// Takes a message of the flow of trials.
    pub fn hear(&mut self, message: &[u8], machine: &mut Endpoint, now: Duration) {
        let Some((kind, rest)) = message.split_first() else { return };
        match *kind {
            ASK => {
                self.message.clear();
                self.message.push(ANSWER);
                self.message.extend_from_slice(rest);
                let _full = machine.handle_message(FLOW, Class::Now, &self.message, now);
            }
            BULK => {
                let number = rest.first_chunk().map_or(0, |it| u32::from_be_bytes(*it));
                if self.heard.number != number {
                    self.heard = Heard { number, begun: now, ..Heard::default() };
                }
                self.heard.bytes += message.len() as u64;
                self.heard.last = now;
            }
            HOW_MUCH => {
                let took = self.heard.last.saturating_sub(self.heard.begun);
                let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                self.message.clear();
                self.message.push(SO_MUCH);
                self.message.extend(self.heard.bytes.to_be_bytes());
                self.message.extend(micros.to_be_bytes());
                let _full = machine.handle_message(FLOW, Class::Now, &self.message, now);
            }
            ANSWER => self.hear_answer(rest, now),
            SO_MUCH => self.hear_much(rest),
            _ => {}
        }
    }

    fn hear_answer(&mut self, rest: &[u8], now: Duration) {
        let Some(running) = &mut self.running else { return };
        let number = rest.first_chunk().map(|bytes| u32::from_be_bytes(*bytes) as usize);
        let sent = number.and_then(|number| running.sent_at.get_mut(number));
        // Each counts once.
        if let Some(sent) = sent.filter(|sent| **sent != Duration::MAX) {
            running.rtts.push(now.saturating_sub(*sent));
            *sent = Duration::MAX;
        }
    }

    fn hear_much(&mut self, rest: &[u8]) {
        let Some(mut running) = self.running.take_if(|it| it.phase == Phase::HowMuch) else {
            return;
        };
        let numbers = rest.split_first_chunk::<8>();
        if let Some((bytes, micros)) =
            numbers.and_then(|(a, rest)| Some((a, rest.first_chunk::<8>()?)))
        {
            let micros = u64::from_be_bytes(*micros).max(1);
            let bytes = u64::from_be_bytes(*bytes);
            running.found.bulk_bits_per_s = bytes as f64 * 8e6 / micros as f64;
            running.found.bulk_bytes_per_byte /= (bytes as f64).max(1.0);
        }
        self.done = Some(running.found);
    }

    /// Does what is due.
    pub fn go(&mut self, machine: &mut Endpoint, now: Duration) {
        let Some(running) = &mut self.running else { return };
        if now >= running.until {
            self.next_phase(machine, now);
            return;
        }
        if now < running.at {
            return;
        }
        self.message.clear();
        match running.phase {
            Phase::Messages => {
                self.message.push(ASK);
                self.message.extend((running.sent_at.len() as u32).to_be_bytes());
                self.message.resize(MESSAGE_BYTES, 0);
                running.sent_at.push(now);
                running.at = (running.at + PAUSE).max(now);
                let _full = machine.handle_message(FLOW, Class::Now, &self.message, now);
            }
            Phase::LastAnswers => running.at = running.until,
            Phase::Bulk => {
                self.message.push(BULK);
                self.message.extend(running.number.to_be_bytes());
                self.message.resize(BULK_BYTES, 0);
                running.at = now + BULK_PAUSE;
                let waits = machine.report().sending.queue_bytes;
                for _ in 0..BULK_PER_TURN {
                    if waits >= WAITING_BYTES_MAX
                        || machine.handle_message(FLOW, Class::Bulk, &self.message, now).is_err()
                    {
                        break;
                    }
                }
            }
            Phase::HowMuch => {
                self.message.push(HOW_MUCH);
                running.at = now + AGAIN;
                let _full = machine.handle_message(FLOW, Class::Now, &self.message, now);
            }
        }
    }

    fn next_phase(&mut self, machine: &Endpoint, now: Duration) {
        let Some(running) = &mut self.running else { return };
        let report = machine.report();
        let wire = report.sending.bytes.saturating_sub(running.wire_begun) as f64;
        let length = Duration::from_secs(running.found.seconds.into());
        running.at = now;
        match running.phase {
            Phase::Messages => {
                (running.phase, running.until) = (Phase::LastAnswers, now + LAST_ANSWERS);
            }
            Phase::LastAnswers => {
                let bytes = running.sent_at.len() * MESSAGE_BYTES;
                running.found.messages_bytes_per_byte = wire / bytes.max(1) as f64;
                running.found.tell(running.sent_at.len(), &mut running.rtts);
                running.wire_begun = report.sending.bytes;
                (running.phase, running.until) = (Phase::Bulk, now + length);
            }
            Phase::Bulk => {
                running.found.bulk_bytes_per_byte = wire;
                let is_answered = running.found.messages_answered > 0;
                let known = |loss: f64| if is_answered { loss } else { -1.0 };
                running.found.loss_sending = known(report.sending.loss);
                running.found.loss_receiving = known(report.receiving.loss);
                (running.phase, running.until) = (Phase::HowMuch, now + 5 * LAST_ANSWERS);
                // What is on its way comes first.
                running.at = now + AGAIN;
            }
            Phase::HowMuch => {
                // Nobody has said how much has come: nothing of it is told.
                running.found.bulk_bytes_per_byte = 0.0;
                self.done = self.running.take().map(|running| running.found);
            }
        }
    }
}

impl Found {
    /// Fills in what the round trips say.
    fn tell(&mut self, sent: usize, rtts: &mut [Duration]) {
        rtts.sort_unstable();
        let ms = |rtt: &Duration| rtt.as_secs_f64() * 1e3;
        // What was not answered is later than anything.
        let at = |share: f64| {
            let place = (sent as f64 * share).ceil() as usize;
            rtts.get(place.saturating_sub(1)).map_or(-1.0, ms)
        };
        (self.messages_sent, self.messages_answered) = (sent, rtts.len());
        (self.rtt_p50_ms, self.rtt_p99_ms, self.rtt_p999_ms) = (at(0.5), at(0.99), at(0.999));
        let points = POINTS.min(rtts.len());
        self.rtt_ms =
            (1..=points).filter_map(|it| rtts.get(it * rtts.len() / points - 1)).map(ms).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_tunnel::Config;

    #[test]
    fn of_a_path_that_nobody_answered_on_no_loss_is_told() {
        let mut machine = Endpoint::new(Config::default(), 1, Duration::ZERO);
        let mut trial = Trial::default();
        trial.begin(1, &machine, Duration::ZERO);
        let (mut now, mut datagram) = (Duration::ZERO, Vec::new());
        let found = loop {
            now += Duration::from_millis(5);
            trial.go(&mut machine, now);
            while machine.poll_datagram(now, &mut datagram).is_some() {}
            if let Some(found) = trial.take_found() {
                break found;
            }
            assert!(now < Duration::from_secs(20), "it ends");
        };
        assert!(found.messages_sent > 100 && found.messages_answered == 0, "{found:?}");
        assert!(found.loss_sending < 0.0 && found.loss_receiving < 0.0, "{found:?}");
    }

    #[test]
    fn what_is_not_answered_counts_as_late() {
        let mut found = Found::default();
        let mut rtts: Vec<Duration> = (1..=98).rev().map(Duration::from_millis).collect();
        found.tell(100, &mut rtts);
        assert_eq!((found.rtt_p50_ms, found.rtt_p99_ms), (50.0, -1.0));
        assert_eq!((found.messages_sent, found.messages_answered), (100, 98));
        assert_eq!(found.rtt_ms.len(), 98);
        found.tell(0, &mut []);
        assert!(found.rtt_ms.is_empty());
    }
}
