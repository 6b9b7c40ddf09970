//! What the end-to-end tests share: takeovers described by the options of
//! `holdfast-lab bench takeover`, so that a failure is replayed by copying a line, and a time limit
//! for tests that hang. Needs root.

use holdfast_lab::load::{Action, Fault, Group as LoadGroup, Report, Run, Spec, Workload};
use holdfast_lab::takeover::{Outcome, TakeoverArgs, failure, one_takeover};
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed, addresses};
use holdfast_linux::rights::{Held, set_of};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Path of the binary under test, which has its shim beside it.
pub fn binary() -> PathBuf {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_holdfast"));
    let shim = binary.with_file_name("libholdfast_shim.so");
    if !shim.is_file() {
        let name = shim.parent().and_then(Path::file_name).filter(|name| *name != "debug");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--locked", "-p", "holdfast-shim", "--profile"]);
        build.arg(name.unwrap_or("dev".as_ref()));
        assert!(build.status().expect("cargo starts").success(), "the shim does not build");
    }
    binary
}

/// Path of the laboratory, which the workspace's build puts beside the binary.
pub fn lab() -> PathBuf {
    binary().with_file_name("holdfast-lab")
}

/// Runs the binary to its end.
pub fn holdfast(words: &[&str]) -> Output {
    Command::new(binary()).args(words).output().expect("holdfast starts")
}

/// How many times as long as on a quiet machine a test may take: both processors may be busy, and
/// what gives this machine its own may be, too.
const BUSY: u32 = 4;

/// Ends this process if the guard still lives after several times `quiet`, what it takes at most
/// on a quiet machine; the testbeds' cleaners then remove what it leaves.
#[must_use]
pub fn limit(quiet: Duration) -> Limit {
    let limit = BUSY * quiet * if is_full() { RUNS_FULL as u32 } else { 1 };
    let (alive, gone) = channel::<()>();
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    std::thread::spawn(move || {
        if gone.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{name}: still running after {} s, given up", limit.as_secs());
            std::process::exit(124);
        }
    });
    Limit { _alive: alive }
}

/// A guard that ends this process after its limit; see [`limit`].
pub struct Limit {
    _alive: Sender<()>,
}

/// What an edge, a host server and an edge of strings keep of root's rights (docs/SYSTEMD.md).
pub const OF_PACKETS: [&str; 14] = [
    "CAP_BPF",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_IPC_LOCK",
    "CAP_KILL",
    "CAP_NET_ADMIN",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_PERFMON",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
];

/// A daemon that starts no server has no other capabilities than these, nor has what it starts, and
/// is filtered.
///
/// # Panics
/// When it has other rights.
pub fn keeps_only(pid: u32, capabilities: &[&str]) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a daemon");
    let (held, most) = (Held::parse(&status), set_of(capabilities));
    // Some testbeds give their daemons less than they may keep.
    assert_eq!(held.capabilities & !most, 0, "{:?}", held.names());
    assert!(held.gains_none && held.filtered, "{held:?}");
    let bounds = format!("CapBnd:\t{:016x}", held.capabilities);
    assert!(status.contains(&bounds), "{status}");
}

/// The first seed of this run: `HOLDFAST_SEED`, or 1.
pub fn first_seed() -> u64 {
    std::env::var("HOLDFAST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Whether everything is to be tried, however long it takes: `HOLDFAST_MATRIX=full`.
pub fn is_full() -> bool {
    std::env::var("HOLDFAST_MATRIX").is_ok_and(|text| text == "full")
}

/// One takeover of a fresh pair, or why it could not be tried.
pub fn outcome(words: &str, seed: u64) -> Result<Outcome, String> {
    binary();
    let args = TakeoverArgs::of_words(words).map_err(|error| error.to_string())?;
    one_takeover(&args, seed).map_err(|error| format!("{}\n{error:#}", error.root_cause()))
}

/// What went wrong in a takeover, as one line that replays it.
pub fn complaint(words: &str, seed: u64) -> Option<String> {
    let why = match outcome(words, seed) {
        Ok(outcome) => format!("{}\n{}", failure(&outcome)?, outcome.last_words),
        Err(error) => error,
    };
    // The daemons' words are long.
    eprintln!("{why}");
    let why = why.lines().next().unwrap_or_default().to_owned();
    Some(format!("holdfast-lab bench takeover {words} --runs 1 --seed {seed}   # {why}"))
}

/// Number of takeovers of each kind if everything is to be tried.
const RUNS_FULL: u64 = 20;
/// Length from which on a sample of a list is tried.
const LONG_LIST: usize = 5;

/// Runs `runs` takeovers of each kind, with every byte of every client checked; of a long list a
/// sample.
///
/// # Panics
/// When any connection is lost, hangs, or gets a wrong byte.
pub fn all_survive(kinds: &[&str], runs: u64) {
    let first = first_seed();
    let runs = if is_full() { RUNS_FULL } else { runs };
    let complaints: Vec<String> = sample(kinds)
        .flat_map(|words| (first..first + runs).filter_map(|seed| complaint(words, seed)))
        .collect();
    report(&complaints, sample(kinds).count() as u64 * runs);
}

/// Of a long list every other one, by the seed, unless everything is to be tried.
pub fn sample<T>(all: &[T]) -> impl Iterator<Item = &T> {
    let step = if is_full() || all.len() < LONG_LIST { 1 } else { 2 };
    all.iter().skip(first_seed() as usize % step).step_by(step)
}

/// Fails with one replay line for each complaint, if there is any.
///
/// # Panics
/// When there is a complaint.
pub fn report(complaints: &[String], runs: u64) {
    let text = complaints.join("\n");
    assert!(complaints.is_empty(), "{} of {runs} takeovers failed:\n{text}\n", complaints.len());
}

/// Runs a protected redis-server for the time of `work`.
pub fn with_redis<T>(work: impl FnOnce(&Testbed, &Group<'_>) -> T) -> T {
    with_redis_and(&GroupOptions::default(), work)
}

/// As [`with_redis`], for work that starts daemons again.
pub fn with_redis_mut(work: impl FnOnce(&Testbed, &mut Group<'_>)) {
    with_server(Program::Redis, 0, &Plan::default(), &GroupOptions::default(), work);
}

/// As [`with_redis`], with settings of the group.
pub fn with_redis_and<T>(
    options: &GroupOptions,
    work: impl FnOnce(&Testbed, &Group<'_>) -> T,
) -> T {
    with_redis_on(&Plan::default(), options, work)
}

/// As [`with_redis_and`], on hosts and links by `plan`.
pub fn with_redis_on<T>(
    plan: &Plan,
    options: &GroupOptions,
    work: impl FnOnce(&Testbed, &Group<'_>) -> T,
) -> T {
    with_server(Program::Redis, 0, plan, options, |testbed, group| work(testbed, group))
}

/// As [`with_redis_on`], with any server; `documents`: size in bytes up to which documents are
/// made.
pub fn with_server<T>(
    program: Program,
    documents: u64,
    plan: &Plan,
    options: &GroupOptions,
    work: impl FnOnce(&Testbed, &mut Group<'_>) -> T,
) -> T {
    binary();
    let testbed = Testbed::build(plan).expect("the testbed stands");
    let recipe =
        Recipe::prepare(program, testbed.host(Role::Primary), documents).expect("a directory");
    Recipe::prepare(program, testbed.host(Role::Backup), documents).expect("a directory");
    let mut group = Group::start(&testbed, &recipe, options).expect("the group protects");
    work(&testbed, &mut group)
}

/// A recipe of redis, with its folders on both members.
fn redis_of_both(testbed: &Testbed) -> Recipe {
    let recipe = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a folder");
    let [recipe, _] = [Role::Primary, Role::Backup].map(recipe);
    recipe
}

/// Runs only the edge and one member, whose server need not be redis.
pub fn with_one<T>(
    first: Role,
    options: &GroupOptions,
    change: impl FnOnce(&mut Recipe),
    work: impl FnOnce(&Testbed, &mut Group<'_>) -> T,
) -> T {
    binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut recipe = redis_of_both(&testbed);
    change(&mut recipe);
    let mut group = Group::prepare(&testbed, &recipe, options).expect("folders");
    for role in [Role::Edge, first] {
        group.start_daemon(role).expect("a daemon");
    }
    work(&testbed, &mut group)
}

/// Options with which redis holds a file that it writes and that cannot be copied, so that no
/// member can join.
pub const UNCOPIED: [&str; 2] = ["--appendonly", "yes"];

/// As [`with_server`], with a redis that no member can join.
pub fn with_uncopied_redis<T>(
    options: &GroupOptions,
    work: impl FnOnce(&Testbed, &mut Group<'_>) -> T,
) -> T {
    binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let mut recipe = redis_of_both(&testbed);
    recipe.command.extend(UNCOPIED.map(str::to_owned));
    let mut group = Group::start(&testbed, &recipe, options).expect("the group protects");
    work(&testbed, &mut group)
}

/// Number of loads started so far.
static LOADS: AtomicU32 = AtomicU32::new(0);

/// A load of counting clients over IPv4, some on counters of their own and some on a shared one.
/// `fault` happens `after_ms` after all connections work, and the load goes on for `duration_ms`.
pub fn counting(duration_ms: u64, after_ms: u64, fault: Option<Vec<(u64, Action)>>) -> Spec {
    let port = Program::Redis.port();
    Spec {
        address: addresses::SERVICE_V4.parse().expect("an address"),
        groups: vec![
            LoadGroup::usual(Workload::Incr, 2, port),
            LoadGroup::usual(Workload::Shared, 2, port),
        ],
        duration_ms,
        congestion: None,
        fault: fault.map(|steps| Fault { after_us: after_ms * 1000, redraw_us: 1000, steps }),
        // The seed determines the keys, and a second load counts from 1 again.
        seed: first_seed() + u64::from(LOADS.fetch_add(1, Ordering::Relaxed)),
        points: Vec::new(),
    }
}

/// Starts a load on the client's host.
pub fn start(testbed: &Testbed, spec: &Spec) -> Run {
    Run::start(testbed.host(Role::Client), spec).expect("the load starts")
}

/// Waits for a load, and checks that every reply was right.
///
/// # Panics
/// When a reply was wrong or did not come.
pub fn finish(run: Run, group: &Group<'_>) -> Report {
    let report = run.finish().unwrap_or_else(|error| panic!("{error:#}\n{}", group.log_tails()));
    let errors: Vec<&String> =
        report.connections.iter().filter_map(|it| it.error.as_ref()).collect();
    let replies: Vec<u64> = report.connections.iter().map(|it| it.replies).collect();
    assert!(
        report.all_survived(),
        "{errors:?} after {replies:?} replies, {:?}\n{}",
        report.shared_error,
        group.log_tails()
    );
    report
}

/// Sends a signal to a process, by the name that kill(1) takes.
///
/// # Panics
/// When there is no such process.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(status.expect("kill starts").success());
}

/// Whether a process no longer runs, even if it was not waited for yet.
pub fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Processor time that a process has used, in ms.
pub fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ')).expect("its fields");
    // These are user and system time, in ticks of 10 ms.
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number") * 10).sum()
}

/// Waits until the group protects again.
///
/// # Panics
/// When it does not, with what the daemons said.
pub fn heals(group: &mut Group<'_>, why: &str) {
    if let Err(error) = group.wait_protected() {
        panic!("{why}: {error:#}\n{}", group.log_tails());
    }
}

/// Waits until this member is the primary.
///
/// # Panics
/// When it is not after [`WAIT_LIMIT`].
pub fn speaks(group: &Group<'_>, role: Role) {
    wait_for_group(group, "the right primary", || group.primary() == Some(role));
}

/// Kills daemon and server of each member in turn, and starts the member again, which joins the
/// other one.
///
/// # Panics
/// When a member does not join.
pub fn each_dies_and_joins(group: &mut Group<'_>) {
    for _ in 0..2 {
        let primary = group.wait_primary().expect("a primary");
        group.kill_member(primary).expect("they die");
        group.start_daemon(primary).expect("a daemon");
        heals(group, "it joins");
    }
}

/// Waits until a lone primary's status begins so where it tells whether its server can be rebuilt
/// in place.
pub fn is_rebuilt(group: &Group<'_>, said: &str) {
    wait_for_group(group, said, || {
        let is = group.status(Role::Primary).unwrap_or_default();
        let says = is["rebuild"].as_str().is_some_and(|it| it.starts_with(said));
        is["state"] == "unprotected" && says
    });
}

/// Longest wait for something whose promptness is not tested: the machine may be busy.
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Waits until `ready` is true.
///
/// # Panics
/// When it is not after [`WAIT_LIMIT`].
pub fn wait_until(what: &str, ready: impl FnMut() -> bool) {
    wait_within(WAIT_LIMIT, what, ready, String::new);
}

/// A counter of a daemon's status; 0 if it has none, or does not answer.
pub fn counter(group: &Group<'_>, role: Role, name: &str) -> u64 {
    let status = group.status(role).unwrap_or_default();
    status["counters"][name].as_u64().unwrap_or_default()
}

/// Waits for something that happens by chance, and surely some time.
///
/// # Panics
/// When it has not after three times [`WAIT_LIMIT`].
pub fn wait_long(what: &str, ready: impl FnMut() -> bool) {
    wait_within(3 * WAIT_LIMIT, what, ready, String::new);
}

/// As [`wait_until`], with what the group's daemons said when it is in vain.
///
/// # Panics
/// As above.
pub fn wait_for_group(group: &Group<'_>, what: &str, ready: impl FnMut() -> bool) {
    wait_within(WAIT_LIMIT, what, ready, || format!("\n{}", group.log_tails()));
}

fn wait_within(
    limit: Duration,
    what: &str,
    mut ready: impl FnMut() -> bool,
    told: impl Fn() -> String,
) {
    let until = Instant::now() + limit;
    while !ready() {
        assert!(Instant::now() < until, "{what}: not within {limit:?}{}", told());
        std::thread::sleep(Duration::from_millis(10));
    }
}
