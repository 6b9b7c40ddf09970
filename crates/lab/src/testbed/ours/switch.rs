//! The switch of a pair without an edge: the bridge on the router's host.

use super::super::{Role, Testbed, interface};
use super::Group;
use crate::command::output;
use anyhow::{Context as _, Result};

/// A port of the bridge where neither member is.
pub const THIRD_PORT: &str = "third";

/// Whether frames to addresses that the switch does not know go to every port of it.
///
/// # Errors
/// When `bridge` refuses.
pub(super) fn flood(testbed: &Testbed, yes: bool) -> Result<()> {
    let word = if yes { "on" } else { "off" };
    for port in [interface::EDGE_PRIMARY, interface::EDGE_BACKUP] {
        let of_router = testbed.host(Role::Edge).namespace();
        output("bridge", &["-n", of_router, "link", "set", "dev", port, "flood", word])?;
    }
    Ok(())
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
        let router = self.testbed.host(Role::Edge);
        if port == THIRD_PORT {
            router.ip("link add third type dummy\nlink set third master br0 up\n")?;
        }
        let (mac, of_router) = (self.service_mac()?, router.namespace());
        let words = ["bridge", "-n", of_router, "fdb", "replace", &mac, "dev", port];
        let words = words.into_iter().chain(["master", "dynamic"]);
        Ok(words.map(str::to_owned).collect())
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
