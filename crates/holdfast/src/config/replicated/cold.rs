//! `mode`, `rebuild`, and the table `[cold]` that groups with either may have.

use super::super::checks::number;
use super::super::error::Findings;
use crate::spool::Sync;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Bounds of `spool_max_mb`: up to a TiB.
const SPOOL_MAX_MB: RangeInclusive<u64> = 1..=1 << 20;
const SPOOL_MAX_MB_DEFAULT: u64 = 8192;
/// Bounds of `snapshot_every_mb`.
const SNAPSHOT_EVERY_MB: RangeInclusive<u64> = 1..=1 << 20;
const SNAPSHOT_EVERY_MB_DEFAULT: u64 = 1024;

/// Whether a replica runs on the backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Hot,
    /// The replica is built when a takeover needs it (decision 30).
    Cold,
}

impl Mode {
    /// The mode, as the file writes it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Cold => "cold",
        }
    }
}

/// The table `[cold]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cold {
    /// Folder for image and log, in files without names.
    pub spool_dir: PathBuf,
    /// Most MiB of both together.
    pub spool_max_mb: u64,
    pub spool_sync: Sync,
    /// MiB of log after which a new image takes the place of the old one.
    pub snapshot_every_mb: u64,
}

/// `[cold]` as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCold {
    spool_dir: Option<PathBuf>,
    spool_max_mb: Option<Spanned<u64>>,
    spool_sync: Option<Sync>,
    snapshot_every_mb: Option<Spanned<u64>>,
}

/// Checks `[cold]`, which only a group has that keeps a server's image and log; there all of it
/// has defaults.
pub(super) fn check(
    findings: &mut Findings,
    keeps: bool,
    raw: Option<Spanned<RawCold>>,
    group: &str,
    folder: &Path,
) -> Option<Cold> {
    if !keeps {
        if let Some(raw) = raw {
            findings.add(
                raw.span(),
                "[cold] in a group that is hot",
                "write mode = \"cold\" or rebuild = true into [group], or remove the table",
            );
        }
        return None;
    }
    let raw = raw.map(Spanned::into_inner);
    let (dir, max, sync, every) = raw.map_or((None, None, None, None), |raw| {
        (raw.spool_dir, raw.spool_max_mb, raw.spool_sync, raw.snapshot_every_mb)
    });
    let default = || Path::new("/var/lib/holdfast").join(format!("{group}.spool"));
    let every_at = every.as_ref().map(Spanned::span);
    let max_at = max.as_ref().map(Spanned::span);
    let spool_max_mb =
        number(findings, "spool_max_mb", max, SPOOL_MAX_MB_DEFAULT, SPOOL_MAX_MB, "MiB");
    let default_every = SNAPSHOT_EVERY_MB_DEFAULT.min(spool_max_mb.div_ceil(2));
    let snapshot_every_mb =
        number(findings, "snapshot_every_mb", every, default_every, SNAPSHOT_EVERY_MB, "MiB");
    if let Some(at) = every_at.or(max_at).filter(|_| snapshot_every_mb > spool_max_mb) {
        findings.add(
            at,
            format!("snapshot_every_mb = {snapshot_every_mb} is more than spool_max_mb"),
            "the spool has room for an image, and for the log until the next one: raise \
             spool_max_mb, or lower snapshot_every_mb",
        );
    }
    Some(Cold {
        spool_dir: dir.map_or_else(default, |dir| folder.join(dir)),
        spool_max_mb,
        spool_sync: sync.unwrap_or_default(),
        snapshot_every_mb,
    })
}
