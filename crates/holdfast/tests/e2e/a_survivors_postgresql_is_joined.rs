//! PostgreSQL as Debian starts it (`run = "one-at-a-time"`): its SysV segment, its other shared
//! memory and its files go over to a member that joins its survivor, under the load of `pgbench`;
//! and what the clients were told is true after another takeover.

use crate::world;
use holdfast_lab::testbed::config::ServerRun;
use holdfast_lab::testbed::ours::{ColdOptions, Group, GroupOptions, Signal};
use holdfast_lab::testbed::server::Recipe;
use holdfast_lab::testbed::{Plan, Role, Testbed, addresses};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const BIN: &str = "/usr/lib/postgresql/15/bin";
const USER: &str = "postgres";
const PORT: u16 = 5432;
const CLIENTS: u32 = 4;
/// Transactions per second of all clients: as many as replicas follow on a busy machine.
const RATE: u32 = 40;
/// Room for the database and two copies of it, in MB.
const DISK_MB: u32 = 600;
/// Time for which one run of the load goes on, in s; the next one follows.
const RUN_S: u32 = 20;
/// Time for which a pair stands before its primary dies.
const BETWEEN: Duration = Duration::from_secs(2);

/// Makes a database with the tables of pgbench, alike on both members, in memory: how long a disk
/// takes is not tested. The server that makes it serves nobody else.
fn database(testbed: &Testbed) -> Recipe {
    let hosts = [Role::Primary, Role::Backup].map(|role| testbed.host(role));
    let inside = hosts[0].inside().join("server");
    let at = inside.display();
    let script = format!(
        "mkdir -p {at} && chown {USER} {at} && cd {at} && exec setpriv --reuid {USER} --regid {USER} \
         --init-groups sh -euc '{BIN}/initdb -A trust -D {at}/made && \
         echo \"host all all all trust\" >> {at}/made/pg_hba.conf && \
         {BIN}/pg_ctl -w -D {at}/made -o \"-k {at} -c listen_addresses=\" -l {at}/log start && \
         {BIN}/pgbench -i -q -s 1 -h {at} postgres && {BIN}/pg_ctl -w -m fast -D {at}/made stop'"
    );
    shell(&mut hosts[0].command("sh"), &script);
    let [from, to] = hosts.map(|host| host.outside().join("server"));
    let copied = Command::new("cp").arg("-a").args([&from, &to]).status();
    assert!(copied.expect("cp starts").success());
    for host in hosts {
        let script = format!(
            "cd {at} && mkdir data && mount -t tmpfs -o size={DISK_MB}m data data && \
             cp -a made/. data && chown {USER} data && chmod 700 data && rm -r made"
        );
        shell(&mut host.command("sh"), &script);
    }
    let words = [&format!("{BIN}/postgres"), "-D", &format!("{at}/data"), "-k", &format!("{at}")];
    let listen = ["-h", addresses::SERVICE_V4, "-p", &PORT.to_string()];
    Recipe {
        program: format!("{BIN}/postgres").into(),
        port: PORT,
        has_ipv6: false,
        command: words.into_iter().chain(listen).map(str::to_owned).collect(),
        state_dirs: vec![inside.join("data")],
        directory: inside,
        user: USER,
        env: Vec::new(),
    }
}

fn shell(command: &mut Command, script: &str) {
    let done = command.args(["-euc", script]).output().expect("a shell");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A command of PostgreSQL's clients, on their host.
fn tool(testbed: &Testbed, name: &str) -> Command {
    let mut command = testbed.host(Role::Client).command(format!("{BIN}/{name}"));
    command.args(["-U", USER, "-h", addresses::SERVICE_V4, "-p", &PORT.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A session that stays.
struct Session {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Session {
    fn new(testbed: &Testbed) -> Self {
        let mut child = tool(testbed, "psql").args(["-XqtA", "postgres"]).spawn().expect("psql");
        let to = child.stdin.take().expect("its input");
        let from = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, to, from }
    }

    /// Asks for one line.
    fn ask(&mut self, question: &str) -> String {
        writeln!(self.to, "{question}").expect("psql takes it");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the four tables say that must be the same, and how many transactions there were.
const SUMS: &str = "select (select sum(tbalance) from pgbench_tellers), \
    (select sum(bbalance) from pgbench_branches), (select sum(abalance) from pgbench_accounts), \
    (select coalesce(sum(delta), 0) from pgbench_history), (select count(*) from pgbench_history);";

/// One run of pgbench, none of whose clients may fail; returns how many transactions there were.
fn bench(testbed: &Testbed) -> u64 {
    let load = tool(testbed, "pgbench")
        .args(["-n", "-c", &CLIENTS.to_string(), "-R", &RATE.to_string()])
        .args(["-T", &RUN_S.to_string(), "postgres"])
        .output();
    let load = load.expect("pgbench");
    let said = [&load.stdout, &load.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    assert!(load.status.success(), "{said:?}");
    let (_, rest) = said[0].split_once("actually processed: ").expect("a count");
    let count = rest.split_whitespace().next().unwrap_or_default();
    count.parse().expect("a number")
}

/// Ends the load, also when what happens meanwhile fails: the scope waits for it.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Each member dies and joins again, and the first one dies once more.
fn members_die(group: &mut Group<'_>, session: &mut Session) {
    for round in 1..=3 {
        std::thread::sleep(BETWEEN);
        group.ensure_protected().expect("a pair under load");
        let primary = group.wait_primary().expect("a primary");
        group.kill_member(primary).expect("they die");
        world::speaks(group, primary.other());
        let counted = session.ask("update own set n = n + 1 returning n;");
        assert_eq!(counted, (round + 1).to_string(), "{}", group.log_tails());
        if round < 3 {
            group.start_daemon(primary).expect("a daemon");
            world::heals(group, "it joins");
        }
    }
}

fn options() -> GroupOptions {
    GroupOptions { run: ServerRun::OneAtATime, heartbeat_ms: Some(200), ..GroupOptions::default() }
}

/// Runs a group of these members under the load of pgbench; what happens to it ends nobody's
/// session, and no transaction is lost or made twice.
fn lives_through(
    options: &GroupOptions,
    members: &[Role],
    happens: impl FnOnce(&mut Group<'_>, &mut Session),
) {
    let _limit = world::limit(Duration::from_secs(240));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let recipe = database(&testbed);
    let mut group = Group::prepare(&testbed, &recipe, options).expect("folders");
    for role in [Role::Edge].iter().chain(members) {
        group.start_daemon(*role).expect("a daemon");
    }
    match members.len() {
        1 => world::is_rebuilt(&group, "yes"),
        _ => world::heals(&mut group, "both are there"),
    }
    // It listens while it still starts, and refuses everybody.
    world::wait_until("a session", || {
        let asked = tool(&testbed, "psql").args(["-XqtAc", "select 1", "postgres"]).output();
        asked.is_ok_and(|it| it.status.success())
    });
    let mut session = Session::new(&testbed);
    // A table that only this session has, and a lock that lasts as long as it does.
    let own = "create temp table own (n int); insert into own values (1);";
    writeln!(session.to, "{own}").expect("psql takes it");
    assert_eq!(session.ask("select pg_advisory_lock(7) is null;"), "f");
    let ends = AtomicBool::new(false);
    let count = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut count = 0;
            while !ends.load(SeqCst) {
                count += bench(&testbed);
            }
            count
        });
        let until_here = Ends(&ends);
        happens(&mut group, &mut session);
        drop(until_here);
        load.join().expect("no client of pgbench has failed")
    });
    let sums = session.ask(SUMS);
    let sums: Vec<&str> = sums.split('|').collect();
    assert_eq!(sums.len(), 5, "{sums:?}");
    assert!(sums[..4].iter().all(|sum| *sum == sums[0]), "{sums:?}");
    assert_eq!(sums[4], count.to_string(), "every transaction that a client was told of, once");
    assert_eq!(session.ask("select count(*) from pg_locks where locktype = 'advisory';"), "1");
}

const PAIR: [Role; 2] = [Role::Primary, Role::Backup];

#[test]
fn balances_are_right_after_takeovers_joins_and_another_takeover() {
    lives_through(&options(), &PAIR, members_die);
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_cold_backup_builds_it() {
    let cold = Some(ColdOptions::default());
    lives_through(&GroupOptions { cold, ..options() }, &PAIR, members_die);
}

#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn it_is_rebuilt_in_place_when_it_falls() {
    let cold = Some(ColdOptions::default());
    let (alone_after_s, rebuild) = (Some(1), true);
    let options = GroupOptions { cold, alone_after_s, rebuild, ..options() };
    lives_through(&options, &[Role::Primary], |group, session| {
        for fall in 1..=2 {
            std::thread::sleep(BETWEEN);
            world::is_rebuilt(group, "yes");
            group.signal_server(Role::Primary, Signal::KILL).expect("a server");
            let counted = session.ask("update own set n = n + 1 returning n;");
            assert_eq!(counted, (fall + 1).to_string(), "{}", group.log_tails());
        }
    });
}

/// The image of a server whose processes wait for their turn.
#[test]
#[ignore = "others of its kind run; `make soak` runs all"]
fn a_cold_backup_gets_a_new_image_of_it() {
    let cold = Some(ColdOptions { snapshot_every_mb: Some(1), ..ColdOptions::default() });
    lives_through(&GroupOptions { cold, ..options() }, &PAIR, |group, session| {
        world::wait_for_group(group, "a new image", || {
            !group.details(Role::Backup, "renewed").is_empty()
        });
        std::thread::sleep(BETWEEN);
        group.kill_member(Role::Primary).expect("they die");
        world::speaks(group, Role::Backup);
        let counted = session.ask("update own set n = n + 1 returning n;");
        assert_eq!(counted, "2", "{}", group.log_tails());
    });
}
