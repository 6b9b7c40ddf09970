//! One step of a life: loads begin, something happens, and everything is checked.

use super::act::{Break, Deed, Truth};
use super::hostile::{self, Hostile};
use super::judge::{self, Heal};
use super::leaks::{self, Leaks};
use super::pressure::{self, FullDisk, Jump, Scarce};
use super::protection::Protection;
use super::{LifeArgs, StepReport};
use crate::load::{Group as LoadGroup, Report, Run, Spec, Workload};
use crate::testbed::ours::{Group, GroupOptions};
use crate::testbed::server::{DOCUMENT_BYTES, Program, Recipe};
use crate::testbed::{Plan, Role, Testbed, addresses, interface};
use anyhow::{Context as _, Result, ensure};
use holdfast_chance::Rng;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Time for which the visitors of a step go on, in ms.
const VISIT_MS: u64 = 1_800;

/// Range of the time from the visitors' start to the deed, in ms.
const DEED_MS: (u64, u64) = (100, 700);

/// Range of the time for which a member's link stays cut, in ms.
const CUT_MS: (u64, u64) = (300, 1_200);

/// Number of the interface group to which ports belong while they are cut off.
const CUT_GROUP: u8 = 77;

/// Range of the time for which the edge reaches nobody, in ms.
const GLITCH_MS: (u64, u64) = (40, 250);

/// Range of the time for which a daemon stands still, in ms: less than a heartbeat of the shortest
/// default there ever was.
const PAUSE_MS: (u64, u64) = (2, 15);

/// Largest jump of the clock, in s.
const JUMP_MAX_S: u64 = 3_600;

/// Range of the time before a daemon is started again, in ms.
const AWAY_MS: (u64, u64) = (0, 800);

/// Range of the time from a joiner's start until something breaks, in ms: a join takes about a
/// second.
const JOINING_MS: (u64, u64) = (0, 1_500);

/// Pause of a backup that gave up before it joins again, doubled each time.
const REST: Duration = Duration::from_secs(2);
const REST_MAX: Duration = Duration::from_secs(120);

/// Time until the server's kernel no longer asks a client that has vanished (tcp_orphan_retries),
/// and the edge has asked about it.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(300);

/// Time until the server's kernel has forgotten a handshake that nobody answered
/// (tcp_synack_retries), and the edge has asked about it.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(80);

/// Names of the edge's port for each member.
const PORTS: [(Role, &str); 2] =
    [(Role::Primary, interface::EDGE_PRIMARY), (Role::Backup, interface::EDGE_BACKUP)];

/// A group from its first start to its last step.
pub struct Life<'a> {
    testbed: &'a Testbed,
    group: Group<'a>,
    program: Program,
    rng: Rng,
    seed: u64,
    options: String,
    jump_clock: bool,
    rest: Duration,
    truth: Truth,
    /// When the member that serves had last been joined before this deed.
    joined: Option<String>,
    /// How often each member's daemon was made to give up.
    gave_up: [u32; 2],
    protection: Protection,
    /// Clients that stay through takeovers and joins, until a repair ends their connections.
    elders: Option<Run>,
    elders_count: u64,
    loads: u64,
    /// Numbers of connections whose clients have vanished, with the time when they did.
    vanished: Vec<(Instant, u64)>,
    /// Numbers of handshakes that nobody answers, with the time when they came.
    half_open: Vec<(Instant, u64)>,
    leaks: Leaks,
    takeovers: u64,
    repairs: u64,
}

impl<'a> Life<'a> {
    /// A testbed of four hosts on whose network every host sees everything.
    ///
    /// # Errors
    /// Those of the testbed.
    pub fn testbed() -> Result<Testbed> {
        Testbed::build(&Plan::default())
    }

    /// Starts the group, and the clients that stay.
    ///
    /// # Errors
    /// When the group does not become protected.
    pub fn begin(testbed: &'a Testbed, args: &LifeArgs, seed: u64) -> Result<Self> {
        let mut rng = Rng::new(seed, 1);
        // Redis is drawn most often, since it can do most of what a server can be asked for.
        // memcached, whose threads race, is never drawn and has to be asked for.
        let drawn = rng.pick(&[
            Program::Redis,
            Program::Redis,
            Program::Redis,
            Program::Nginx,
            Program::Lighttpd,
            Program::Mosquitto,
        ]);
        let program = args.server.unwrap_or(drawn);
        let largest = DOCUMENT_BYTES[1];
        let recipe = Recipe::prepare(program, testbed.host(Role::Primary), largest)?;
        Recipe::prepare(program, testbed.host(Role::Backup), largest)?;
        let options = GroupOptions { heartbeat_ms: args.heartbeat_ms, ..GroupOptions::default() };
        let group = Group::start(testbed, &recipe, &options)?;
        hostile::prepare(testbed)?;
        let mut life = Self {
            testbed,
            group,
            program,
            rng,
            seed,
            options: args.replayed(),
            jump_clock: args.jump_clock,
            rest: Duration::from_secs(args.rest_s),
            truth: Truth::Pair { current: Role::Primary },
            joined: None,
            gave_up: [0; 2],
            protection: Protection::begin(Instant::now()),
            elders: None,
            elders_count: 0,
            loads: 0,
            vanished: Vec::new(),
            half_open: Vec::new(),
            leaks: Leaks::default(),
            takeovers: 0,
            repairs: 0,
        };
        life.start_elders()?;
        Ok(life)
    }

    /// Number of takeovers so far.
    pub fn takeovers(&self) -> u64 {
        self.takeovers
    }

    /// Number of repairs so far.
    pub fn repairs(&self) -> u64 {
        self.repairs
    }

    /// Ends the life, and returns its times of protection.
    pub fn end(mut self) -> Protection {
        self.protection.end(Instant::now());
        self.protection
    }

    /// Keeps the daemons' logs in the directory that was asked for.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn keep_logs(&self, args: &LifeArgs) -> Result<()> {
        let Some(folder) = &args.keep_logs else { return Ok(()) };
        std::fs::create_dir_all(folder)?;
        for role in Role::ALL {
            let log = self.testbed.host(role).outside().join("daemon.log");
            if let Ok(text) = std::fs::read(&log) {
                std::fs::write(folder.join(format!("{}-{}.log", self.seed, role.name())), text)?;
            }
        }
        Ok(())
    }

    /// Runs one step.
    pub fn step(&mut self, number: u64) -> StepReport {
        let deed = self.truth.draw(&mut self.rng, self.jump_clock);
        let spec = self.visitors(deed);
        let hostile = Hostile::draw(&mut self.rng, self.program);
        let mut report = StepReport {
            command: format!(
                "holdfast-lab life --seed {} --steps {number}{}",
                self.seed, self.options
            ),
            what: format!("{number}: {:?} in {:?}", deed, self.truth),
            load: format!("{} beside {hostile:?}", shown(&spec)),
            violations: Vec::new(),
            connections: 0,
            truth_ms: 0,
        };
        if let Err(error) = self.live(deed, &spec, hostile, &mut report) {
            report.violations.push(format!("{error:#}"));
        }
        report
    }

    fn live(
        &mut self,
        deed: Deed,
        spec: &Spec,
        hostile: Hostile,
        report: &mut StepReport,
    ) -> Result<()> {
        if deed.ends_connections() {
            self.end_elders(report)?;
        }
        let served = self.truth.speaker().is_some() && !deed.ends_connections();
        let run = served.then(|| Run::start(self.testbed.host(Role::Client), spec)).transpose()?;
        let attack = served.then(|| hostile.start(self.testbed, self.seed ^ self.loads));
        std::thread::sleep(self.some_ms(DEED_MS));
        let began = Instant::now();
        let busy = (deed == Deed::Busy).then(pressure::busy).transpose()?;
        let full = (deed == Deed::Full).then(|| FullDisk::fill(self.testbed)).transpose()?;
        if !deed.keeps_protection() {
            self.protection.lost(began);
        }
        self.perform(deed)?;
        self.know_what_came_of(deed)?;
        let down = self.down();
        report.violations.extend(self.wait_for_truth(deed, &down));
        report.truth_ms = began.elapsed().as_millis() as u64;
        if matches!(self.truth, Truth::Pair { .. }) && report.violations.is_empty() {
            self.protection.regained(Instant::now());
            if deed.heals() {
                self.protection.healed(report.truth_ms);
            }
        }
        if deed.is_takeover() {
            report.violations.extend(judge::takeover_is_told(&self.group, self.truth));
        }
        if let Some(run) = run {
            check("a visitor", run.finish().context("the visitors")?, report);
        }
        drop((busy, full));
        if let Some(attack) = attack {
            report.violations.extend(attack.finish(self.testbed, deed.disturbs_nobody()));
        }
        // The state at the deed must still be true at the end.
        if matches!(self.truth, Truth::Pair { .. }) && report.violations.is_empty() {
            std::thread::sleep(self.rest);
        }
        report.violations.extend(judge::wait_for_truth(&self.group, self.truth, &down).1);
        self.look_after_elders(deed, report)?;
        if served {
            self.vanished.push((Instant::now(), hostile.left_behind()));
            self.half_open.push((Instant::now(), hostile.half_open()));
        }
        report.violations.extend(self.leaks(&down));
        Ok(())
    }

    fn know_what_came_of(&mut self, deed: Deed) -> Result<()> {
        self.truth = self.truth.after(deed);
        self.takeovers += u64::from(deed.is_takeover());
        if deed == Deed::DieJoined {
            // Only the edge knows whether there was a backup in time.
            self.truth = Truth::Pair { current: self.group.current()? };
        }
        Ok(())
    }

    /// What is still untrue after every host had time to tell what happened.
    fn wait_for_truth(&mut self, deed: Deed, down: &[Role]) -> Vec<String> {
        let Truth::Pair { current } = self.truth else {
            return judge::wait_for_truth(&self.group, self.truth, down).1;
        };
        if !deed.heals() {
            return judge::wait_for_truth(&self.group, self.truth, down).1;
        }
        let mut rest = Duration::ZERO;
        if deed.gives_up() {
            let times = &mut self.gave_up[usize::from(current == Role::Primary)];
            rest = (REST * (1 << (*times).min(6))).min(REST_MAX);
            *times += 1;
        }
        let heal = Heal { current, before: self.joined.take(), rest };
        judge::wait_for_heal(&self.group, &heal).1
    }

    fn perform(&mut self, deed: Deed) -> Result<()> {
        let (current, backup) = match self.truth {
            Truth::Pair { current } => (current, current.other()),
            Truth::Solo { survivor: last } | Truth::Dead { last } => (last, last.other()),
        };
        // The member that serves after the deed is the one that is joined.
        self.joined =
            judge::last_joined(&self.group, if deed.is_takeover() { backup } else { current });
        match deed {
            Deed::Quiet | Deed::Busy | Deed::Full => std::thread::sleep(self.some_ms(DEED_MS)),
            Deed::KillServer | Deed::KillLast => self.group.signal_server(current, Signal::KILL)?,
            Deed::KillReplica => self.group.signal_server(backup, Signal::KILL)?,
            Deed::KillDaemon => self.group.stop_daemon(current, Signal::KILL)?,
            Deed::StopPrimary => self.group.stop_daemon(current, Signal::TERM)?,
            Deed::Switchover => self.switch_over(current)?,
            Deed::KillBackup => self.group.stop_daemon(backup, Signal::KILL)?,
            Deed::StopBackup => self.group.stop_daemon(backup, Signal::TERM)?,
            Deed::Cut => self.cut(&[current], CUT_MS)?,
            Deed::CutBackup => self.cut(&[backup], CUT_MS)?,
            Deed::Glitch => self.cut(&[current, backup], GLITCH_MS)?,
            Deed::KillEdge => self.restart_edge(Signal::KILL, false)?,
            Deed::StopEdge => self.restart_edge(Signal::TERM, false)?,
            Deed::RebootEdge => self.restart_edge(Signal::KILL, true)?,
            Deed::Pause(role) => self.pause(role)?,
            Deed::Scarce(role) => {
                let _scarce = Scarce::start(self.group.daemon_pid(role)?)?;
                std::thread::sleep(self.some_ms(DEED_MS));
            }
            Deed::Clock => {
                let seconds = self.rng.range(1, JUMP_MAX_S) as i64;
                let _jump = Jump::by(if self.rng.one_in(2) { -seconds } else { seconds })?;
                std::thread::sleep(self.some_ms(DEED_MS));
            }
            Deed::Hup(role) if self.group.has_daemon(role) => {
                self.group.signal_daemon(role, Signal::HUP)?;
            }
            Deed::Hup(_) => {}
            Deed::Join
            | Deed::BreakJoin(_)
            | Deed::DieJoined
            | Deed::Orphan
            | Deed::Repair
            | Deed::DownAndUp => self.mend(deed, current, backup)?,
        }
        Ok(())
    }

    /// Carries out a deed that repairs: `alone` serves, or has served, without `lost`.
    fn mend(&mut self, deed: Deed, alone: Role, lost: Role) -> Result<()> {
        match deed {
            Deed::Join => self.start_member(lost),
            Deed::BreakJoin(broken) => self.break_join(broken, alone, lost),
            Deed::DieJoined => {
                self.start_member(lost)?;
                std::thread::sleep(self.some_ms(JOINING_MS));
                self.group.signal_server(alone, Signal::KILL)?;
                std::thread::sleep(self.some_ms(DEED_MS));
                self.stop_members()?;
                self.start_members()
            }
            Deed::Orphan => {
                self.group.stop_daemon(alone, Signal::KILL)?;
                self.start_member(alone)
            }
            Deed::Repair => {
                self.stop_members()?;
                self.start_members()
            }
            _ => self.down_and_up(),
        }
    }

    fn break_join(&mut self, broken: Break, alone: Role, joiner: Role) -> Result<()> {
        self.start_member(joiner)?;
        std::thread::sleep(self.some_ms(JOINING_MS));
        // A join that was complete before the break is over; one that completes later is not.
        match broken {
            Break::Edge => return self.restart_edge(Signal::KILL, false),
            _ => self.joined = judge::last_joined(&self.group, alone),
        }
        match broken {
            Break::Joiner => {
                self.group.stop_daemon(joiner, Signal::KILL)?;
                self.start_member(joiner)
            }
            Break::Copy => self.group.signal_server(joiner, Signal::KILL),
            _ => self.cut(&[joiner], CUT_MS),
        }
    }

    fn switch_over(&self, from: Role) -> Result<()> {
        let done = self.group.verb(from, &["switchover", "--json"])?;
        let [said, error] = [&done.stdout, &done.stderr].map(|it| String::from_utf8_lossy(it));
        let is_done = done.status.success() && said.contains("protected_after_ms");
        ensure!(is_done, "holdfast switchover on the {}: {said}{error}", from.name());
        Ok(())
    }

    /// Starts a member's daemon, which counts anew how often it has given up.
    fn start_member(&mut self, role: Role) -> Result<()> {
        self.gave_up[usize::from(role == Role::Backup)] = 0;
        self.group.start_daemon(role)
    }

    /// Cuts members off at the edge's ports for a while.
    fn cut(&mut self, members: &[Role], span_ms: (u64, u64)) -> Result<()> {
        let pause = self.some_ms(span_ms);
        let edge = self.testbed.host(Role::Edge);
        // The ports are cut at once: on a busy machine, commands one after the other would be many
        // heartbeats apart, which is another fault.
        let group = |(role, port): &(Role, &str)| {
            format!("link set {port} group {}\n", u8::from(members.contains(role)) * CUT_GROUP)
        };
        edge.ip(&PORTS.iter().map(group).collect::<String>())?;
        let set = |state: &str| edge.ip(&format!("link set group {CUT_GROUP} {state}\n"));
        set("down")?;
        std::thread::sleep(pause);
        set("up")
    }

    fn restart_edge(&mut self, signal: Signal, reboot: bool) -> Result<()> {
        self.group.stop_daemon(Role::Edge, signal)?;
        if reboot {
            self.testbed.forget_edge_programs()?;
        }
        std::thread::sleep(self.some_ms(AWAY_MS));
        self.group.start_daemon(Role::Edge)
    }

    fn pause(&mut self, role: Role) -> Result<()> {
        let pause = self.some_ms(PAUSE_MS);
        self.group.signal_daemon(role, Signal::STOP)?;
        std::thread::sleep(pause);
        self.group.resume_daemon(role)
    }

    fn stop_members(&mut self) -> Result<()> {
        for role in [Role::Primary, Role::Backup] {
            if self.group.has_daemon(role) {
                self.group.stop_daemon(role, Signal::TERM)?;
            }
        }
        self.repairs += 1;
        Ok(())
    }

    /// Starts both members in a drawn order: the first one waits for the other.
    fn start_members(&mut self) -> Result<()> {
        let mut order = [Role::Primary, Role::Backup];
        if self.rng.one_in(2) {
            order.reverse();
        }
        order.into_iter().try_for_each(|role| self.start_member(role))?;
        self.group.wait_protected().context(self.group.log_tails())
    }

    /// Removes everything as an operator would, and checks that nothing is left.
    fn down_and_up(&mut self) -> Result<()> {
        self.stop_members()?;
        self.group.stop_daemon(Role::Edge, Signal::TERM)?;
        for role in [Role::Edge, Role::Primary, Role::Backup] {
            let done = self.group.verb(role, &["down"])?;
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            ensure!(done.status.success(), "holdfast down on the {}: {said}", role.name());
            leaks::ensure_clean(self.testbed, role)?;
        }
        self.group.start_daemon(Role::Edge)?;
        self.start_members()
    }

    /// What the group holds beyond what lives, or may still be ending.
    fn leaks(&mut self, down: &[Role]) -> Vec<String> {
        self.vanished.retain(|(at, _)| at.elapsed() < GIVEN_UP_AFTER);
        self.half_open.retain(|(at, _)| at.elapsed() < FORGOTTEN_AFTER);
        let sum = |all: &[(Instant, u64)]| all.iter().map(|(_, count)| count).sum::<u64>();
        let living = self.elders_count + sum(&self.vanished);
        let count = leaks::Living { living, half_open: sum(&self.half_open) };
        self.leaks.grown(self.testbed, &self.group, self.truth, down, count)
    }

    /// Daemons that do not run.
    fn down(&self) -> Vec<Role> {
        let all = [Role::Edge, Role::Primary, Role::Backup];
        all.into_iter().filter(|role| !self.group.has_daemon(*role)).collect()
    }

    fn some_ms(&mut self, (from, until): (u64, u64)) -> Duration {
        Duration::from_millis(self.rng.range(from, until))
    }

    fn start_elders(&mut self) -> Result<()> {
        let groups = elders(self.program);
        self.elders_count = groups.iter().map(|group| group.connections as u64).sum();
        let spec = self.spec(groups, 0);
        self.elders = Some(Run::start(self.testbed.host(Role::Client), &spec)?);
        Ok(())
    }

    /// Ends the clients that stay, and checks that each got correct replies all the time.
    fn end_elders(&mut self, report: &mut StepReport) -> Result<()> {
        self.elders_count = 0;
        let Some(run) = self.elders.take() else { return Ok(()) };
        check("an elder", run.finish().context("the elders")?, report);
        Ok(())
    }

    /// Checks that the clients that stay go on, unless one of them has failed; after a repair
    /// starts new ones.
    fn look_after_elders(&mut self, deed: Deed, report: &mut StepReport) -> Result<()> {
        if self.elders.as_mut().is_some_and(Run::has_ended) {
            self.end_elders(report)?;
            report.violations.push("the elders have ended".to_owned());
        }
        let served = self.truth.speaker().is_some();
        if deed.ends_connections() && served && report.violations.is_empty() {
            self.start_elders()?;
        }
        Ok(())
    }

    fn spec(&mut self, groups: Vec<LoadGroup>, duration_ms: u64) -> Spec {
        self.loads += 1;
        let address =
            if self.rng.one_in(3) { addresses::SERVICE_V6 } else { addresses::SERVICE_V4 };
        Spec {
            address: address.parse().unwrap_or(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)),
            groups,
            duration_ms,
            congestion: None,
            fault: None,
            seed: self.seed.wrapping_mul(1_000_003).wrapping_add(self.loads),
            points: Vec::new(),
        }
    }

    /// The load of the clients that come for this step.
    fn visitors(&mut self, deed: Deed) -> Spec {
        let port = self.program.port();
        let choices = visits(self.program);
        let mut groups = Vec::new();
        for _ in 0..1 + self.rng.below(2) {
            let (workload, connections) = self.rng.pick(choices);
            groups.push(LoadGroup::usual(workload, connections, port));
        }
        // The service is not to blame for the time that other programs take.
        let longer = if deed == Deed::Busy { 2 } else { 1 };
        self.spec(groups, VISIT_MS * longer)
    }
}

/// What the visitors of a server do, and how many they are.
fn visits(program: Program) -> &'static [(Workload, usize)] {
    match program {
        Program::Redis => &[
            (Workload::Pingpong, 1),
            (Workload::Incr, 6),
            (Workload::Shared, 8),
            (Workload::Echo, 3),
            (Workload::Upload, 2),
            (Workload::Download, 2),
            (Workload::Churn, 6),
            (Workload::Pubsub, 3),
        ],
        Program::Memcached1 | Program::Memcached4 => {
            &[(Workload::Memcached, 6), (Workload::MemcachedShared, 6)]
        }
        Program::Mosquitto => &[(Workload::Mqtt, 4)],
        _ => &[(Workload::HttpKeepalive, 8), (Workload::HttpClose, 4)],
    }
}

/// What the clients that stay do: little, and at every moment.
fn elders(program: Program) -> Vec<LoadGroup> {
    let port = program.port();
    let paced = |workload, connections, interval_us| LoadGroup {
        interval_us,
        ..LoadGroup::usual(workload, connections, port)
    };
    match program {
        Program::Redis => vec![
            paced(Workload::Incr, 3, 20_000),
            paced(Workload::Idle, 4, 0),
            paced(Workload::IdleSubscriber, 2, 0),
        ],
        Program::Memcached1 | Program::Memcached4 => vec![paced(Workload::Memcached, 4, 20_000)],
        Program::Mosquitto => vec![paced(Workload::Mqtt, 2, 20_000)],
        _ => vec![paced(Workload::HttpKeepalive, 4, 20_000)],
    }
}

/// A load in a few words.
fn shown(spec: &Spec) -> String {
    let group = |it: &LoadGroup| format!("{} {:?}", it.connections, it.workload);
    spec.groups.iter().map(group).collect::<Vec<_>>().join(" and ")
}

/// Counts a load's connections, and adds what went wrong with them.
fn check(who: &str, load: Report, report: &mut StepReport) {
    report.connections += load.connections.len();
    report.violations.extend(load.shared_error.map(|error| format!("{who}: {error}")));
    let broken = load.connections.iter().enumerate().filter(|(_, it)| !it.survived());
    for (index, connection) in broken.take(3) {
        let error = connection.error.as_deref().unwrap_or("it broke");
        report.violations.push(format!("{who}, {index}, {:?}: {error}", connection.workload));
    }
}
