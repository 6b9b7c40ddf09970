//! A server that ends before it has served anybody is no primary that died: every host reports how
//! it ended and where its log is, and a command that waits for protection is told at once.

use crate::status_is_true_on_every_host::{HOSTS, expect_with_code, launch_redis, remedy};
use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::time::{Duration, Instant};

/// Longest time for an answer that comes at once, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(10);

#[test]
fn by_a_setting_that_it_does_not_know() {
    let _limit = world::limit(Duration::from_secs(60));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let group = launch_redis(&testbed, |recipe| {
        recipe.command.extend(["--no-such-setting", "yes"].map(str::to_owned));
    });
    let why = "the server ended at its start, with exit status 1; its log is";
    expect_with_code(&testbed, &group, &HOSTS.map(|role| (role, "ended", why)), 1);
    for role in HOSTS {
        assert!(remedy(&group, role).contains("what the server's log says"), "{role:?}");
    }
    let [primary, backup] = [Role::Primary, Role::Backup].map(|role| {
        let events = group.verb(role, &["events"]).expect("a verb").stdout;
        String::from_utf8_lossy(&events).into_owned()
    });
    assert!(primary.contains(why), "{primary}");
    // The backup's server has ended by itself, if it came so far, or the reason is the primary's.
    assert!(backup.contains("server ended at its start"), "{backup}");
    assert!(!backup.contains("server died"), "{backup}");

    let asked = Instant::now();
    for role in HOSTS {
        let waited = group.verb(role, &["status", "--wait", "protected"]).expect("a verb");
        assert_eq!(waited.status.code(), Some(1), "{role:?}");
    }
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
}

/// The group began without a backup; a member that comes later learns the reason, too.
#[test]
fn of_a_member_that_begins_alone() {
    let _limit = world::limit(Duration::from_secs(60));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let prepare = |role| Recipe::prepare(Program::Redis, testbed.host(role), 0).expect("a folder");
    let [mut recipe, _] = [Role::Primary, Role::Backup].map(prepare);
    recipe.command.extend(["--no-such-setting", "yes"].map(str::to_owned));
    let options = GroupOptions { alone_after_s: Some(1), ..GroupOptions::default() };
    let mut group = Group::prepare(&testbed, &recipe, &options).expect("files");
    for role in [Role::Edge, Role::Primary] {
        group.start_daemon(role).expect("a daemon");
    }
    let why = "the server ended at its start, with exit status 1; its log is";
    let all = HOSTS.map(|role| (role, "ended", why));
    expect_with_code(&testbed, &group, &all[..2], 1);
    group.start_daemon(Role::Backup).expect("a daemon");
    expect_with_code(&testbed, &group, &all, 1);
}

/// Its interpreter is missing, which nobody knows before it is started: its member leaves, and
/// keeps neither the address nor programs.
#[test]
fn of_a_program_that_cannot_be_run() {
    let _limit = world::limit(Duration::from_secs(60));
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let host = testbed.host(Role::Primary);
    let mut recipe = Recipe::prepare(Program::Redis, host, 0).expect("a folder");
    let script = host.outside().join("server.sh");
    std::fs::write(&script, "#!/nonexistent/interpreter\n").expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(script, mode).expect("a mode");
    recipe.command = vec![host.inside().join("server.sh").display().to_string()];
    let options = GroupOptions { alone_after_s: Some(1), ..GroupOptions::default() };
    let mut group = Group::prepare(&testbed, &recipe, &options).expect("files");
    for role in [Role::Edge, Role::Primary] {
        group.start_daemon(role).expect("a daemon");
    }
    world::wait_until("its last words", || group.log_tails().contains("could not be started"));
    world::wait_until("its end", || group.status(Role::Primary).is_err());
    let shown = |program: &str, words: &[&str]| {
        let done = host.command(program).args(words).output().expect("it runs");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let left = shown("ip", &["address"]) + &shown("tc", &["qdisc", "show", "dev", "p0"]);
    assert!(!left.contains("10.9.0.100") && !left.contains("clsact"), "{left}");
}
