//! Can this host ask who decides between the members of a pair without an edge, and keep what it
//! hears?

use super::{Finding, host};
use crate::config::{ArbiterKind, Config, Member};
use crate::daemon::lease;
use std::os::unix::fs::PermissionsExt as _;

/// Checks the folder in which the record is kept. With a witness or etcd one that a reboot empties is no
/// danger: then both members have to be there before anything is granted.
pub(super) fn state_dir(config: &Config) -> Option<Finding> {
    const NAME: &str = "arbiter.state_dir";
    let dir = &config.arbiter.as_ref()?.state_dir;
    let shown = dir.display();
    let is_own = config.arbiter.as_ref()?.is_own();
    let finding = match host::in_memory(dir) {
        Some((point, kind)) if is_own => Finding::fail(
            NAME,
            format!("{shown} lies on {point}, a {kind} that a reboot empties"),
            "choose a place on a disk: nobody else keeps who owns the service",
        ),
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

/// What is to be known of a pair without a third party, and whether this host has what it needs.
pub(super) fn alone(config: &Config, member: &Member) -> Option<Finding> {
    Some(match &config.arbiter.as_ref()?.kind {
        ArbiterKind::Witness(_) | ArbiterKind::Etcd(_) => return None,
        ArbiterKind::None => Finding::warn(
            "arbiter.none",
            "nobody takes over when a host dies silently, before an operator says so",
            "have somebody woken when `holdfast status` is not protected, or name a witness, an etcd or \
             a command",
        ),
        ArbiterKind::Gateway => match lease::reach_router(&member.interface) {
            Ok(()) => Finding::warn(
                "arbiter.gateway",
                "UNSAFE: both members serve where they reach their router and not each other",
                "name a witness, an etcd or a command, or connect the members by two ways",
            ),
            Err(error) => Finding::fail(
                "arbiter.gateway",
                format!("{error:#}"),
                "have the router refuse connections to its TCP port 9, or name a witness",
            ),
        },
        ArbiterKind::Command(off) => command(&off.command),
    })
}

fn command(words: &[String]) -> Finding {
    const NAME: &str = "arbiter.command";
    let program = words.first().map_or("", String::as_str);
    let remedy = "write the path of a program that root may run, and try it: it gets the other \
                  member's name, and exit code 0 says that its host is off for sure";
    match std::fs::metadata(program) {
        Err(error) => Finding::fail(NAME, format!("{program}: {error}"), remedy),
        Ok(found) if !found.is_file() || found.permissions().mode() & 0o111 == 0 => {
            Finding::fail(NAME, format!("{program} cannot be run"), remedy)
        }
        Ok(_) => Finding::ok(NAME, format!("{program} is there; it was not tried")),
    }
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

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_command_is_a_program_that_can_be_run() {
        let of = |program: &str| command(&[program.to_owned()]).verdict;
        assert_eq!(of("/bin/sh"), Verdict::Ok);
        assert_eq!(["/proc/version", "/bin", "/no/such"].map(of), [Verdict::Fail; 3]);
    }
}
