//! Two applications and a path between them, in virtual time.

use crate::app::{App, Outcome, stream_len};
use crate::profile::{Path, Profile};
use crate::rng::Rng;
use holdfast_boston::{Endpoint, Frame, Nanos};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Time after which a run that is not over counts as stuck.
const TIME_MAX: Nanos = Nanos::from_ms(40_000_000);
/// Largest additional delay of a frame that takes another path.
const STRAY: Nanos = Nanos::from_ms(20_000);
/// Time after which a client that failed tries again.
const RETRY: Nanos = Nanos::from_ms(1000);
/// Longest time after the client has everything until its server knows.
const PATIENCE: Nanos = Nanos::from_ms(700_000);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A frame arrives at the side.
    Arrives(usize, Vec<u8>),
    Dies(usize),
    /// A new application starts on the side.
    Starts(usize),
    Ends,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub frames: u64,
    pub lost: u64,
    pub corrupted: u64,
    pub failures: u64,
    pub virtual_time: Nanos,
}

pub struct World {
    profile: Profile,
    rng: Rng,
    now: Nanos,
    queue: BinaryHeap<Reverse<(Nanos, u64, What)>>,
    queued: u64,
    /// The applications of each side, the present one last. Earlier ones may still answer late
    /// frames.
    sides: [Vec<App>; 2],
    /// When each side wants to be called.
    deadlines: [Option<Nanos>; 2],
    /// Whether the path of each side is in a burst of losses.
    is_bad: [bool; 2],
    names: u64,
    pub summary: Summary,
}

impl World {
    pub fn new(profile: Profile) -> Self {
        let mut world = Self {
            rng: Rng::new(profile.seed ^ 0x5eed),
            profile,
            now: Nanos::default(),
            queue: BinaryHeap::new(),
            queued: 0,
            sides: [Vec::new(), Vec::new()],
            deadlines: [None; 2],
            is_bad: [false; 2],
            names: 0,
            summary: Summary::default(),
        };
        world.start(1);
        world.start(0);
        for (side, at) in [0, 1].map(|side| (side, world.profile.sides[side].restart)) {
            if let Some((dies, back)) = at {
                world.push(dies, What::Dies(side));
                world.push(dies.plus(back), What::Starts(side));
            }
        }
        world
    }

    fn push(&mut self, at: Nanos, what: What) {
        self.queued += 1;
        self.queue.push(Reverse((at, self.queued, what)));
    }

    /// Starts an application. Names are even for clients and odd for servers.
    fn start(&mut self, side: usize) {
        self.names += 1;
        let name = 2 * self.names + side as u64;
        let profile = self.profile.sides[side];
        let seed = self.profile.seed.wrapping_mul(1_000_003) ^ name;
        let make = if side == 0 { Endpoint::connect } else { Endpoint::listen };
        let endpoint = make(self.now, profile.config, seed).expect("a drawn configuration works");
        self.sides[side].push(App::new(endpoint, name, profile));
        self.deadlines[side] = Some(self.now);
    }

    /// The applications of a side, in the order in which they started.
    pub fn apps(&self, side: usize) -> &[App] {
        &self.sides[side]
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// When something went wrong, with what that is.
    pub fn run(&mut self) -> Result<Summary, String> {
        loop {
            for side in 0..2 {
                if self.deadlines[side].is_some_and(|at| at <= self.now) {
                    self.step(side)?;
                }
            }
            let queued = self.queue.peek().map(|Reverse((at, _, _))| *at);
            let next = self.deadlines.into_iter().flatten().chain(queued).min();
            let Some(next) = next.filter(|at| *at < TIME_MAX) else {
                return Err(format!("stuck at {} ms", self.now.0 / 1_000_000));
            };
            self.now = next;
            while self.queue.peek().is_some_and(|Reverse((at, _, _))| *at <= self.now) {
                let Some(Reverse((_, _, what))) = self.queue.pop() else { break };
                match what {
                    What::Arrives(side, bytes) => self.arrive(side, &bytes),
                    What::Dies(side) => {
                        self.sides[side].clear();
                        self.deadlines[side] = None;
                    }
                    What::Starts(side) => self.start(side),
                    What::Ends => {
                        self.summary.virtual_time = self.now;
                        return self.verdict();
                    }
                }
            }
        }
    }

    fn arrive(&mut self, side: usize, bytes: &[u8]) {
        let Ok(frame) = Frame::parse(bytes) else { return };
        let to = match &frame {
            Frame::Syn(_) => None,
            Frame::Reset { tag, is_reflected } => (!is_reflected).then_some(*tag),
            Frame::SynAck { to, .. }
            | Frame::Cell { to, .. }
            | Frame::Ack { to, .. }
            | Frame::Ping { to } => Some(*to),
        };
        let is_for_all = matches!(frame, Frame::Reset { is_reflected: true, .. });
        let apps = &mut self.sides[side];
        let named = to.and_then(|to| apps.iter().position(|app| app.endpoint.tag() == to));
        let one = named.or(apps.len().checked_sub(1));
        for (index, app) in apps.iter_mut().enumerate() {
            if is_for_all || Some(index) == one {
                app.endpoint.handle_frame(self.now, &frame);
            }
        }
        self.deadlines[side] = Some(self.now);
    }

    fn step(&mut self, side: usize) -> Result<(), String> {
        let mut frames = Vec::new();
        let peer = self.profile.sides[1 - side];
        let len_of = |name: u64| {
            (name % 2 == (1 - side) as u64 && name > 0).then(|| stream_len(&peer, name))
        };
        let mut deadline: Option<Nanos> = None;
        let mut apps = std::mem::take(&mut self.sides[side]);
        let had_outcome = apps.last().is_none_or(|app| app.outcome.is_some());
        for app in &mut apps {
            let wants = app.step(self.now, len_of, &mut frames);
            let wants = wants.map_err(|why| format!("{} at {}: {why}", app.name, self.now.0))?;
            deadline = deadline.into_iter().chain(wants).min();
        }
        if deadline.is_some_and(|at| at <= self.now) {
            return Err(format!("side {side} stands still at {} ns", self.now.0));
        }
        self.deadlines[side] = deadline;
        let outcome = apps.last().and_then(|app| app.outcome).filter(|_| !had_outcome);
        self.sides[side] = apps;
        for frame in frames {
            self.send(side, &frame);
        }
        match outcome {
            Some(Outcome::Failed(_)) => {
                self.summary.failures += 1;
                self.push(self.now.plus(RETRY), What::Starts(side));
            }
            Some(Outcome::Closed) if side == 1 => self.push(self.now, What::Starts(side)),
            Some(Outcome::Closed) => self.push(self.now.plus(PATIENCE), What::Ends),
            None => {}
        }
        Ok(())
    }

    fn send(&mut self, side: usize, frame: &Frame) {
        self.summary.frames += 1;
        let Path { delay, jitter, stray, duplicate, corrupt, .. } = self.profile.sides[side].path;
        let is_dark = self
            .profile
            .blackouts
            .iter()
            .any(|(at, len)| *at <= self.now && self.now < at.plus(*len));
        if self.is_lost(side) || is_dark {
            self.summary.lost += 1;
            return;
        }
        let copies = if self.rng.chance(duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let mut bytes = frame.to_bytes();
            if self.rng.chance(corrupt) {
                self.summary.corrupted += 1;
                let at = self.rng.range(0, bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.rng.range(0, 8);
            }
            let late_max = if self.rng.chance(stray) { STRAY } else { jitter };
            let late = Nanos(self.rng.range(0, late_max.0 + 1));
            self.push(self.now.plus(delay).plus(late), What::Arrives(1 - side, bytes));
        }
    }

    /// Whether a frame is lost, by Gilbert's channel with the profile's mean loss and burst.
    fn is_lost(&mut self, side: usize) -> bool {
        let Path { loss, burst, .. } = self.profile.sides[side].path;
        let leave = (1.0 / burst).min((1.0 - loss) / loss.max(1e-9));
        let enter = leave * loss / (1.0 - loss);
        let is_bad = &mut self.is_bad[side];
        *is_bad = if *is_bad { !self.rng.chance(leave) } else { self.rng.chance(enter) };
        *is_bad
    }

    /// Checks that the last client has everything, and, without a restart, that its server has too
    /// and nobody failed.
    fn verdict(&self) -> Result<Summary, String> {
        for side in 0..2 {
            let peer = &self.profile.sides[1 - side];
            for app in &self.sides[side] {
                let has_all = app.has_read_all(|name| Some(stream_len(peer, name)));
                if app.outcome == Some(Outcome::Closed) && !has_all {
                    return Err(format!("{} closed without having read all", app.name));
                }
            }
        }
        if self.profile.has_restart() {
            return Ok(self.summary);
        }
        let is_closed = |side: usize| self.sides[side][0].outcome == Some(Outcome::Closed);
        if self.summary.failures == 0 && is_closed(0) && is_closed(1) {
            return Ok(self.summary);
        }
        let outcomes = [0, 1].map(|side| self.sides[side][0].outcome);
        Err(format!("the path should be survived: {outcomes:?}"))
    }
}
