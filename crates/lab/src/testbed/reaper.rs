//! The cleaner of a testbed: a small shell of its own session that waits for
//! its standard input to end, which happens when the testbed is dropped and
//! also when the process dies of any signal, and then removes what is left.

use anyhow::{Context as _, Result};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(super) struct Reaper(Child);

impl Reaper {
    pub(super) fn start(id: &str, directory: &Path) -> Result<Self> {
        // Killing the first process of a host's pid namespace ends them all.
        let script = format!(
            r#"trap '' INT TERM HUP
cat >/dev/null
for ns in $(ip netns list | cut -d' ' -f1 | grep -E '^{id}-' || true); do
  ip netns pids "$ns" 2>/dev/null | xargs -r kill -9 2>/dev/null
  ip netns del "$ns" 2>/dev/null
done
umount -l '{dir}' 2>/dev/null
for i in 1 2 3 4 5; do rm -rf '{dir}' 2>/dev/null && break; sleep 0.05; done
"#,
            dir = directory.display()
        );
        let child = Command::new("setsid")
            .args(["sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the cleaner of the testbed")?;
        Ok(Self(child))
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // Nothing can be done here about a cleaner that fails.
        let _ = self.0.wait();
    }
}
