//! The files that redis keeps, and what it reports of them.

use crate::world;
use holdfast_lab::testbed::{Role, Testbed, addresses};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Script by which the server computes a digest of all keys and values.
pub const DIGEST: &str = "local k=redis.call('KEYS','*') table.sort(k) local s='' \
     for _,v in ipairs(k) do s=redis.sha1hex(s..v..redis.call('GET',v)) end return s";

/// Output of redis-cli, asked through the service.
pub fn redis_cli(testbed: &Testbed, words: &[&str]) -> String {
    let mut cli = testbed.host(Role::Client).command("timeout");
    cli.args(["20", "redis-cli", "-h", addresses::SERVICE_V4]).args(words);
    let done = cli.stdin(Stdio::null()).output().expect("redis-cli starts");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Waits until no child of the server is working.
pub fn quiet(testbed: &Testbed) {
    let busy = ["aof_rewrite_in_progress:1", "aof_rewrite_scheduled:1", "rdb_bgsave_in_progress:1"];
    world::wait_until("the end of a child", || {
        let said = redis_cli(testbed, &["info", "persistence"]);
        said.contains("rdb_bgsave_in_progress:") && !busy.iter().any(|word| said.contains(word))
    });
}

/// A separate redis on a copy of the survivor's files.
pub struct Plain {
    child: Child,
    folder: PathBuf,
}

impl Plain {
    pub fn start(files: &Path, appendonly: &str) -> Self {
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

    /// Ends it, and moves the files that it has written to `folder`, readable for anybody.
    pub fn keep_in(mut self, folder: &Path) {
        self.says(&["shutdown", "nosave"]);
        let _ = self.child.wait();
        let moved = Command::new("sh")
            .arg("-c")
            .arg("cp -r \"$0\"/appendonlydir \"$1\"/ && chown -R nobody: \"$1\"")
            .args([&self.folder, folder])
            .status();
        assert!(moved.expect("sh starts").success());
    }

    pub fn says(&self, words: &[&str]) -> String {
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
