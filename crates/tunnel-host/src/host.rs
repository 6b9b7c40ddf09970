//! The loop of one end: one thread that sleeps until something comes or is due.

use crate::config::{Config, Mode};
use crate::control::{Control, Question};
use crate::inside::Door;
use crate::manager::Manager;
use crate::outside::Outside;
use crate::signals::Signals;
use crate::status::{self, Peer, SessionState, Status};
use crate::trial::{self, Trial};
use anyhow::{Context as _, Result};
use holdfast_tunnel::secure::{HEADER_BYTES, Heard, Secure, ToSend};
use holdfast_tunnel::{Ecn, Endpoint, Inside};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// System calls that take datagrams in a turn before the other side has its turn.
const RECEIVES_PER_TURN: usize = 4;
/// Datagrams that are sent in a turn.
const SENT_PER_TURN: usize = 256;
/// Longest sleep: a clock that leaps, or a mistake of ours, costs no more than that.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Bytes of a datagram that the sealing adds in front and behind.
const SEALED_BYTES: usize = holdfast_tunnel::secure::OVERHEAD_BYTES;

/// One end of a tunnel, with all that it has opened.
pub struct Host {
    config: Config,
    secure: Secure,
    machine: Endpoint,
    /// The life of the peer that the machine knows.
    peer_life: u64,
    /// As [`Secure::paths`], as far as the machine knows.
    paths: u64,
    datagram_bytes_max: usize,
    outside: Outside,
    door: Door,
    control: Control,
    trial: Trial,
    manager: Manager,
    begun: Instant,
    seed: u64,
    plaintext: Vec<u8>,
    /// Datagrams of the peer that the machine did not understand.
    malformed: u64,
    told: Told,
}

/// What there is to do after a sleep.
#[derive(Clone, Copy, Debug)]
struct Awake {
    has_signal: bool,
    has_datagrams: bool,
    has_inside: bool,
    has_question: bool,
}

/// What was last written into the log.
#[derive(Default, PartialEq, Eq)]
struct Told {
    is_up: bool,
    peer_address: Option<SocketAddr>,
    peer_life: u64,
    is_closed_by_peer: bool,
}

impl Host {
    pub fn new(
        config: Config,
        secure: Secure,
        outside: Outside,
        door: Door,
        control: Control,
        begun: Instant,
        seed: u64,
    ) -> Self {
        let machine = Endpoint::new(config.machine(), seed, Duration::ZERO);
        Self {
            datagram_bytes_max: config.machine().datagram_bytes_max,
            config,
            secure,
            machine,
            peer_life: 0,
            paths: 0,
            outside,
            door,
            control,
            trial: Trial::default(),
            manager: Manager::of_environment(),
            begun,
            seed,
            plaintext: Vec::new(),
            malformed: 0,
            told: Told::default(),
        }
    }

    /// Turns until a signal comes.
    ///
    /// # Errors
    /// If the interface or the socket is gone.
    pub fn run(&mut self, signals: &mut Signals) -> Result<()> {
        self.say(&format!("up, mode {}", self.config.mode.word()));
        self.manager.ready();
        let mut is_more = false;
        loop {
            let wake = if is_more { Some(Duration::ZERO) } else { self.wake_at() };
            let awake = self.sleep(signals, wake)?;
            if awake.has_signal && signals.have_come() {
                return Ok(());
            }
            is_more = self.turn(awake)?;
        }
    }

    /// Says goodbye to the peer, and removes what would stay.
    pub fn end(&mut self) {
        let now = self.now();
        self.manager.stopping();
        // Whoever is connected through the tunnel sees that it has not ended well.
        self.door.forget_peer();
        self.machine.close();
        self.send_of_machine(now);
        self.secure.close(now);
        self.send_of_secure(now);
        self.outside.flush();
        self.control.close();
        self.say("down");
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Waits until something comes or `wake`, which is a time since the begin.
    fn sleep(&self, signals: &Signals, wake: Option<Duration>) -> Result<Awake> {
        let outside = match self.outside.is_waiting() {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        let mut fds =
            vec![PollFd::new(&self.outside, outside), PollFd::new(signals, PollFlags::IN)];
        let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        fds.extend(self.door.fds().into_iter().flatten().map(watch));
        let control_at = fds.len();
        fds.extend(self.control.fds().map(watch));
        let sleep = wake.map_or(SLEEP_MAX, |at| at.saturating_sub(self.now()).min(SLEEP_MAX));
        let timeout = Timespec {
            tv_sec: sleep.as_secs().cast_signed(),
            tv_nsec: sleep.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting"),
        }
        let has = |fds: &[PollFd<'_>]| fds.iter().any(|fd| !fd.revents().is_empty());
        let (others, control) = fds.split_at(control_at);
        let (first, door) = others.split_at(2);
        let is_due = |at: Duration| at <= self.now();
        Ok(Awake {
            has_datagrams: has(&first[..1]),
            has_signal: has(&first[1..]),
            has_inside: has(door),
            has_question: has(control) || self.control.wake_at().is_some_and(is_due),
        })
    }

    /// When the next thing is due, in time since the begin.
    fn wake_at(&self) -> Option<Duration> {
        // What the kernel has no room for has to wait for that.
        let machine = match self.secure.is_ready(self.now()) && !self.outside.is_waiting() {
            true => self.machine.wake_at(),
            false => None,
        };
        let (secure, door) = (self.secure.wake_at(), self.door.wake_at());
        let of_own = [self.control.wake_at(), self.trial.wake_at(), self.manager.wake_at()];
        let others = [secure, door].into_iter().chain(of_own);
        others.flatten().chain(machine).min()
    }

    /// Takes what has come and sends what is due; whether there may be more at once.
    fn turn(&mut self, awake: Awake) -> Result<bool> {
        let mut is_more = awake.has_datagrams && self.receive()?;
        // What the kernel had no room for goes first.
        let is_stuck = !self.outside.flush();
        let now = self.now();
        let is_ready = self.secure.is_ready(now);
        if awake.has_inside || self.door.is_paused() || !is_ready {
            is_more |= self.door.take(&mut self.machine, is_ready, now).context("the inside")?;
        }
        self.door.do_due(now);
        self.manager.turn(now);
        self.trial.go(&mut self.machine, now);
        self.give_inside();
        self.send_of_secure(now);
        if !is_stuck {
            is_more |= self.send_of_machine(self.now());
        }
        self.outside.flush();
        self.serve_control(awake.has_question);
        self.tell();
        Ok(is_more && !self.outside.is_waiting())
    }

    /// Takes datagrams of the network.
    fn receive(&mut self) -> Result<bool> {
        for _ in 0..RECEIVES_PER_TURN {
            let now = self.begun.elapsed();
            let Self { secure, machine, peer_life, config, seed, door, malformed, .. } = self;
            let datagram_bytes_max = &mut self.datagram_bytes_max;
            let is_drained = self.outside.receive(|from, ecn, datagram| {
                let heard = secure.handle_datagram(from, datagram, now);
                if secure.peer_life() != *peer_life {
                    *peer_life = secure.peer_life();
                    *machine = Endpoint::new(config.machine(), *seed, now);
                    *datagram_bytes_max = config.machine().datagram_bytes_max;
                    door.forget_peer();
                }
                match heard {
                    Ok(Heard::Data { number, plaintext }) => {
                        let understood = machine.handle_datagram(number, plaintext, ecn, now);
                        *malformed += u64::from(understood.is_err());
                        true
                    }
                    Ok(Heard::Own) => true,
                    Err(_) => false,
                }
            });
            let is_drained = is_drained.context("the UDP socket")?;
            self.follow_path();
            if is_drained {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Tells the machine how large its datagrams may be now, and has the path asked where they seem to be too
    /// large.
    fn follow_path(&mut self) {
        let now = self.now();
        if self.secure.paths() != self.paths {
            self.paths = self.secure.paths();
            self.machine.path_changed();
        }
        if let Some(round) = self.machine.take_path_doubt(now) {
            self.secure.doubt_path(round, now);
        }
        let most = self.secure.datagram_bytes_max();
        if most != self.datagram_bytes_max {
            self.datagram_bytes_max = most;
            self.machine.set_datagram_bytes_max(most);
        }
    }

    fn give_inside(&mut self) {
        let now = self.now();
        while let Some(inside) = self.machine.poll_inside(now) {
            match inside {
                Inside::Message { flow: trial::FLOW, bytes } => {
                    self.trial.hear(&bytes, &mut self.machine, now);
                }
                other => self.door.give(other, &mut self.machine, now),
            }
        }
        self.door.flush();
    }

    /// Sends what the layer of keys has to say by itself.
    fn send_of_secure(&mut self, now: Duration) {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        while let Some(ToSend { to, bytes }) = self.secure.poll(now, since_1970) {
            if !self.outside.has_room(to, Ecn::NotCapable, bytes.len()) && !self.outside.flush() {
                // The kernel has no room: this one is lost, as on any path, and asked for again.
                continue;
            }
            self.outside.push(to, Ecn::NotCapable, |batch, _| {
                batch.extend_from_slice(&bytes);
                true
            });
            // A question that is too large for the path takes nobody along.
            self.outside.flush();
        }
        self.follow_path();
    }

    /// Seals and sends what the machine has to send; whether there may be more.
    fn send_of_machine(&mut self, now: Duration) -> bool {
        for _ in 0..SENT_PER_TURN {
            if !self.secure.is_ready(now) {
                return false;
            }
            let Some(outgoing) = self.machine.poll_datagram(now, &mut self.plaintext) else {
                return false;
            };
            let Some(to) = self.secure.standing(now).peer_address else { return false };
            let bytes = self.plaintext.len() + SEALED_BYTES;
            if !self.outside.has_room(to, outgoing.ecn, bytes) && !self.outside.flush() {
                // Its number is used up, so it counts as lost, and is repaired like that.
                return false;
            }
            let (secure, plaintext) = (&mut self.secure, &self.plaintext);
            self.outside.push(to, outgoing.ecn, |batch, at| {
                batch.extend_from_slice(&[0; HEADER_BYTES]);
                batch.extend_from_slice(plaintext);
                secure.seal(outgoing.number, batch, at, now).is_some()
            });
        }
        true
    }

    fn serve_control(&mut self, has_question: bool) {
        let now = self.now();
        let questions = if has_question { self.control.take(now) } else { Vec::new() };
        for question in questions {
            match question {
                Question::Status => self.secure.probe(now),
                Question::Test(seconds) => self.trial.begin(seconds, &self.machine, now),
            }
            self.send_of_secure(now);
        }
        if let Some(found) = self.trial.take_found() {
            self.control.answer_tests(&serde_json::to_string(&found).unwrap_or_default());
        }
        if self.control.is_asked_for_status() {
            let heard_age = self.secure.standing(now).heard_age;
            let heard_at = heard_age.map(|age| now.saturating_sub(age));
            let answer = serde_json::to_string(&self.status()).unwrap_or_default();
            self.control.answer(heard_at, now, &answer);
        }
    }

    fn status(&self) -> Status {
        let now = self.now();
        let standing = self.secure.standing(now);
        let counters = self.secure.counters();
        let (state, reason, remedy) = status::judge(&self.config, &standing, &counters);
        let session = standing.suite.zip(standing.session_age);
        Status {
            schema: status::SCHEMA.to_owned(),
            name: self.config.name.clone(),
            mode: self.config.mode,
            interface: (self.config.mode == Mode::Tun).then(|| self.config.interface.clone()),
            pid: std::process::id(),
            uptime_s: now.as_secs_f64(),
            state,
            reason,
            remedy,
            peer: Peer {
                key: self.config.peer.to_string(),
                address: standing.peer_address.map(|it| it.to_string()),
                heard_s: standing.heard_age.map(|it| it.as_secs_f64()),
                is_closed: standing.is_closed_by_peer,
            },
            session: session.map(|(suite, age)| SessionState {
                cipher: suite.to_string(),
                age_s: age.as_secs_f64(),
            }),
            udp_bytes_max: standing.udp_bytes,
            overhead_max: self.config.overhead_max,
            rate_measured_s: self
                .machine
                .rate_measured_at()
                .map(|at| now.saturating_sub(at).as_secs_f64()),
            security: counters,
            malformed: self.malformed,
            outside: self.outside.counters(),
            inside: self.door.counters(),
            machine: serde_json::to_value(self.machine.report()).unwrap_or_default(),
        }
    }

    /// Writes into the log what has changed.
    fn tell(&mut self) {
        let standing = self.secure.standing(self.now());
        let next = Told {
            is_up: standing.suite.is_some(),
            peer_address: standing.peer_address,
            peer_life: self.peer_life,
            is_closed_by_peer: standing.is_closed_by_peer,
        };
        if next == self.told {
            return;
        }
        let at = next.peer_address.map_or(String::new(), |it| format!(" at {it}"));
        if next.is_up && (!self.told.is_up || next.peer_life != self.told.peer_life) {
            let cipher = standing.suite.map_or(String::new(), |it| it.to_string());
            let again = if next.peer_life > 1 { ", which was started again" } else { "" };
            self.say(&format!("heard the peer{at}{again}; {cipher}"));
        } else if next.is_up && next.peer_address != self.told.peer_address {
            self.say(&format!("the peer has moved: it is{at} now"));
        } else if next.is_closed_by_peer && !self.told.is_closed_by_peer {
            self.say("the peer said that it ends");
        } else if !next.is_up && self.told.is_up {
            self.say("the peer is not heard any more");
        }
        self.told = next;
    }

    fn say(&self, text: &str) {
        let _nobody_reads = writeln!(io::stderr(), "tunnel {}: {text}", self.config.name);
        self.manager.say(text);
    }
}
