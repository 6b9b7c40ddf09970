//! What the rows need of Debian, installed without starting any service.

use super::row::Row;
use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Debian asks this program before it starts a service after an installation.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// A policy that is removed again.
struct Policy(bool);

impl Policy {
    fn forbid() -> Result<Self> {
        let is_ours = !Path::new(POLICY).exists();
        if is_ours {
            fs::write(POLICY, "#!/bin/sh\nexit 101\n")?;
            fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self(is_ours))
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if self.0 {
            let _ = fs::remove_file(POLICY);
        }
    }
}

/// The packages of those rows whose programs are missing.
pub fn lacking(rows: &[Row]) -> BTreeSet<&'static str> {
    let lacking = rows.iter().filter(|row| !row.missing().is_empty());
    lacking.flat_map(|row| row.packages).copied().collect()
}

/// Installs packages.
///
/// # Errors
/// When apt-get fails.
pub fn packages(names: &BTreeSet<&str>) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let _policy = Policy::forbid()?;
    let install = ["install", "-y", "-qq", "--no-install-recommends"];
    let install = install.into_iter().chain(names.iter().copied()).collect::<Vec<_>>();
    for words in [&["update", "-qq"][..], &install] {
        let mut command = Command::new("apt-get");
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive").stdout(std::io::stderr());
        let status = command.status().context("cannot start apt-get")?;
        ensure!(status.success(), "apt-get {}: {status}", words.join(" "));
    }
    Ok(())
}
