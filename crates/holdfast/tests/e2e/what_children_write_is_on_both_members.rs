//! redis saves its data and rewrites its log in a child, and opens what the child
//! has written. The pair stays protected meanwhile, and the survivor has the files;
//! a save that was under way when the primary died is finished by the survivor.

use crate::world;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::{Role, Testbed, addresses};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const KEYS: u32 = 5000;
/// How long clients count beside the first saves, ms.
const LOAD_MS: u64 = 4000;
/// How long the slow save takes for each key, us.
const SLOW_KEY_US: u32 = 400;
/// A digest of all keys and values, made by the server.
const DIGEST: &str = "local k=redis.call('KEYS','*') table.sort(k) local s='' \
     for _,v in ipairs(k) do s=redis.sha1hex(s..v..redis.call('GET',v)) end return s";

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
        // The survivor saves as ever.
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
        // Asked for now: later it would be the youngest process of that program.
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

fn redis_cli(testbed: &Testbed, words: &[&str]) -> String {
    let mut cli = testbed.host(Role::Client).command("timeout");
    cli.args(["20", "redis-cli", "-h", addresses::SERVICE_V4]).args(words);
    let done = cli.stdin(Stdio::null()).output().expect("redis-cli starts");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn fill(testbed: &Testbed) {
    let filling = format!("for i=1,{KEYS} do redis.call('SET','key:'..i,('v'..i):rep(20)) end");
    redis_cli(testbed, &["eval", &filling, "0"]);
}

/// Waits until no child of the server works any more.
fn quiet(testbed: &Testbed) {
    let busy = ["aof_rewrite_in_progress:1", "aof_rewrite_scheduled:1", "rdb_bgsave_in_progress:1"];
    world::wait_until("the end of a child", || {
        let said = redis_cli(testbed, &["info", "persistence"]);
        said.contains("rdb_bgsave_in_progress:") && !busy.iter().any(|word| said.contains(word))
    });
}

/// A redis of its own, on a copy of the survivor's files.
struct Plain {
    child: Child,
    folder: PathBuf,
}

impl Plain {
    fn start(files: &Path, appendonly: &str) -> Self {
        let unique = format!("hf-redis-{}-{appendonly}", std::process::id());
        let folder = std::env::temp_dir().join(unique);
        let copied = Command::new("cp").arg("-r").arg(files).arg(&folder).status();
        assert!(copied.expect("cp starts").success());
        let socket = folder.join("socket").display().to_string();
        let own = folder.display().to_string();
        let child = Command::new("/usr/bin/redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket", &socket, "--dir", &own])
            .args(["--appendonly", appendonly])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis starts");
        let plain = Self { child, folder };
        world::wait_until("a redis on the files", || plain.says(&["ping"]) == "PONG\n");
        plain
    }

    fn says(&self, words: &[&str]) -> String {
        let socket = self.folder.join("socket");
        let done = Command::new("redis-cli").arg("-s").arg(socket).args(words).output();
        String::from_utf8_lossy(&done.expect("redis-cli starts").stdout).into_owned()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
