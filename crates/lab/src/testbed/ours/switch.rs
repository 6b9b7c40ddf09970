//! The switch of a pair without an edge: the bridge on the router's host.

use super::super::{Role, SETUP_LIMIT, Testbed, interface};
use super::Group;
use crate::command::{output, wait_for};
use anyhow::{Context as _, Result};

/// A port of the bridge where neither member is.
pub const THIRD_PORT: &str = "third";

/// Whether frames to addresses that the switch does not know go to every port of it.
///
/// # Errors
/// When `bridge` refuses.
pub(super) fn flood(testbed: &Testbed, yes: bool) -> Result<()> {
    let (of_router, word) = (testbed.host(Role::Edge).namespace(), if yes { "on" } else { "off" });
    for port in [interface::EDGE_PRIMARY, interface::EDGE_BACKUP] {
        output("bridge", &["-n", of_router, "link", "set", "dev", port, "flood", word])?;
    }
    Ok(())
}

/// Makes the switch's third port, unless there is one.
fn make_third_port(testbed: &Testbed) -> Result<()> {
    let router = testbed.host(Role::Edge);
    if output("ip", &["-n", router.namespace(), "link", "show", THIRD_PORT]).is_ok() {
        return Ok(());
    }
    router.ip(&format!(
        "link add {THIRD_PORT} type veth peer name stranger\n\
         link set stranger up\n\
         link set {THIRD_PORT} master br0 up\n"
    ))
}

impl Group<'_> {
    /// The service's hardware address, as the file's reader says it.
    ///
    /// # Errors
    /// When the pair has an edge.
    pub fn service_mac(&self) -> Result<String> {
        let file = self.testbed.host(Role::Primary).outside().join("holdfast.toml");
        let (binary, file) = (crate::holdfast_binary()?, file.display().to_string());
        let shown =
            output(&binary.display().to_string(), &["config", "show", "--effective", &file])?;
        let mac = shown.lines().find_map(|line| line.strip_prefix("mac = "));
        let mac = mac.with_context(|| format!("no hardware address in:\n{shown}"))?;
        Ok(mac.trim_matches('"').to_owned())
    }

    /// The command line by which the switch learns the service's hardware address at a port, as by a
    /// frame that comes from there.
    ///
    /// # Errors
    /// When the pair has an edge, or a port cannot be made.
    pub fn learn_words(&self, port: &str) -> Result<Vec<String>> {
        self.words_to_learn(port, &["dynamic"])
    }

    fn words_to_learn(&self, port: &str, how: &[&str]) -> Result<Vec<String>> {
        if port == THIRD_PORT {
            make_third_port(self.testbed)?;
        }
        let (mac, of_router) = (self.service_mac()?, self.testbed.host(Role::Edge).namespace());
        let words = ["bridge", "-n", of_router, "fdb", "replace", &mac, "dev", port, "master"];
        Ok(words.iter().chain(how).map(|word| (*word).to_owned()).collect())
    }

    /// The switch learns it now; `for_good`: whatever comes from other ports later.
    ///
    /// # Errors
    /// As [`Group::learn_words`], and when `bridge` refuses.
    pub fn learn(&self, port: &str, for_good: bool) -> Result<()> {
        // A static entry alone moves with the next frame from elsewhere.
        let how = if for_good { &["static", "sticky"][..] } else { &["dynamic"] };
        let words = self.words_to_learn(port, how)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (program, rest) = words.split_first().context("no words")?;
        // A port learns once the kernel has noticed that its link is up, and refuses before.
        wait_for("a port of the switch that learns", SETUP_LIMIT, || output(program, rest).ok())?;
        Ok(())
    }

    /// The switch forgets that address.
    ///
    /// # Errors
    /// When `bridge` refuses.
    pub fn forget(&self, port: &str) -> Result<()> {
        let (mac, of_router) = (self.service_mac()?, self.testbed.host(Role::Edge).namespace());
        output("bridge", &["-n", of_router, "fdb", "del", &mac, "dev", port, "master"]).map(drop)
    }
}
