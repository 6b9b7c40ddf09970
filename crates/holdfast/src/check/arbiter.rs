//! Can this host ask who decides between the members of a pair without an edge, and keep what it
//! hears?

use super::{Finding, host};
use crate::config::{ArbiterKind, Config};
use crate::daemon::lease;

/// Checks the folder in which the record is kept. One that a reboot empties is no danger: then both
/// members have to be there before anything is granted.
pub(super) fn state_dir(config: &Config) -> Option<Finding> {
    const NAME: &str = "arbiter.state_dir";
    let dir = &config.arbiter.as_ref()?.state_dir;
    let shown = dir.display();
    let finding = match host::in_memory(dir) {
        Some((point, kind)) => Finding::warn(
            NAME,
            format!("{shown} lies on {point}, a {kind} that a reboot empties"),
            "choose a place on a disk, or nobody can take over after a reboot until both members \
             have said what they know",
        ),
        None => Finding::ok(NAME, format!("{shown} survives a reboot")),
    };
    Some(finding)
}

/// Asks each member of the etcd, where one decides.
pub(super) fn etcd(config: &Config) -> Vec<Finding> {
    const NAME: &str = "arbiter.etcd";
    let Some(ArbiterKind::Etcd(etcd)) = config.arbiter.as_ref().map(|it| &it.kind) else {
        return Vec::new();
    };
    let reached = lease::reach(etcd, &config.group.name);
    let all_fail = reached.iter().all(Result::is_err);
    let each = etcd.endpoints.iter().zip(reached).map(|(url, reached)| match reached {
        Ok(()) => Finding::ok(NAME, format!("{url} answers")),
        Err(error) => {
            let found = format!("{error:#}");
            let remedy = "look at `etcdctl endpoint health`, the files of arbiter.etcd_*, and the \
                          rights of etcd_user on the prefix /holdfast/";
            match all_fail {
                true => Finding::fail(NAME, found, remedy),
                false => Finding::warn(NAME, found, remedy),
            }
        }
    });
    each.collect()
}
