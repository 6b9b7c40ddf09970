//! redis saves its data and rewrites its log in a child, and reads what the child has written. The
//! pair stays protected meanwhile, and the survivor has the files; a save that was under way when
//! the primary died is completed by the survivor.

use crate::redis_files::{DIGEST, Plain, quiet, redis_cli};
use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::{Role, Testbed};
use std::time::Duration;

const KEYS: u32 = 5000;
/// Time for which clients count during the first saves, in ms.
const LOAD_MS: u64 = 4000;
/// Time that the slow save takes for each key, in µs.
const SLOW_KEY_US: u32 = 400;
#[test]
fn saves_and_rewritten_logs_survive() {
    let _limit = world::limit(Duration::from_secs(120));
    let options = GroupOptions { heartbeat_ms: Some(200), ..GroupOptions::default() };
    world::with_redis_and(&options, |testbed, group| {
        let redis = |words: &[&str]| redis_cli(testbed, words);
        fill(testbed);
        let load = world::start(testbed, &world::counting(LOAD_MS, 0, None));
        for command in [&["config", "set", "appendonly", "yes"][..], &["bgsave"], &["bgrewriteaof"]]
        {
            redis(command);
            quiet(testbed);
            group.ensure_protected().unwrap_or_else(|error| panic!("{command:?}: {error:#}"));
        }
        world::finish(load, group);
        redis(&["bgsave"]);
        quiet(testbed);
        group.ensure_protected().expect("a pair");
        let digest = redis(&["eval", DIGEST, "0"]);
        kill(group, group.server_pid(Role::Primary).expect("a server"));
        assert_eq!(redis(&["eval", DIGEST, "0"]), digest, "{}", group.log_tails());

        let own = testbed.host(Role::Backup).outside().join("server");
        let saved = Plain::start(&own, "no");
        assert_eq!(saved.says(&["eval", DIGEST, "0"]), digest, "dump.rdb");
        drop(saved);
        let logged = Plain::start(&own, "yes");
        assert_eq!(logged.says(&["eval", DIGEST, "0"]), digest, "the log");
        drop(logged);
        // The survivor saves as usual.
        redis(&["bgsave"]);
        quiet(testbed);
        assert!(redis(&["info", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    });
}

#[test]
fn a_save_under_way_is_finished_by_the_survivor() {
    let _limit = world::limit(Duration::from_secs(120));
    let options = GroupOptions { heartbeat_ms: Some(200), ..GroupOptions::default() };
    world::with_redis_and(&options, |testbed, group| {
        let redis = |words: &[&str]| redis_cli(testbed, words);
        fill(testbed);
        redis(&["config", "set", "rdb-key-save-delay", &SLOW_KEY_US.to_string()]);
        // The pid is looked up now: later it would be that of the youngest process of the program.
        let primary = group.server_pid(Role::Primary).expect("a server");
        redis(&["bgsave"]);
        std::thread::sleep(Duration::from_millis(300));
        assert!(redis(&["info", "persistence"]).contains("rdb_bgsave_in_progress:1"));
        kill(group, primary);
        quiet(testbed);
        let told = redis(&["info", "persistence"]);
        assert!(told.contains("rdb_last_bgsave_status:ok"), "{told}\n{}", group.log_tails());
        let own = testbed.host(Role::Backup).outside().join("server");
        let saved = Plain::start(&own, "no");
        assert_eq!(saved.says(&["dbsize"]), format!("{KEYS}\n"));
    });
}

/// Kills the primary's server and waits for the takeover.
fn kill(group: &Group<'_>, primary: u32) {
    world::signal(primary, "KILL");
    world::wait_until("the takeover", || {
        group.status(Role::Backup).is_ok_and(|status| status["role"] == "primary")
    });
}

fn fill(testbed: &Testbed) {
    let filling = format!("for i=1,{KEYS} do redis.call('SET','key:'..i,('v'..i):rep(20)) end");
    redis_cli(testbed, &["eval", &filling, "0"]);
}
