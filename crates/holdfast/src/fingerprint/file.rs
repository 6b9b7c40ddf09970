//! What the group's file must say alike on the edge's host and on the members': one
//! file is meant for all. Settings that concern only one host may differ.

use super::compare;
use super::{Kind, Part};
use crate::config::{Config, Member};

/// The settings, one line each; every service has a line of its own, so that a
/// difference names it.
#[must_use]
pub fn of_file(config: &Config) -> Vec<String> {
    let edge = config.edge.iter().flat_map(|edge| {
        [format!("edge.listen = {}", edge.listen), format!("edge.first = {}", edge.first)]
    });
    let group = std::iter::once(format!("heartbeat_ms = {}", config.group.heartbeat_ms));
    let services = config.group.services.iter().map(|service| format!("service {service}"));
    let members = config.members.iter().flat_map(|Member { name, address, port, .. }| {
        let mac = port.as_ref().map(|port| format!("mac of {name} = {}", port.mac));
        std::iter::once(format!("address of {name} = {address}")).chain(mac)
    });
    group.chain(edge).chain(services).chain(members).collect()
}

/// How the file of the member `name` differs from the edge's; `None` if it does not, or
/// if the member has not said what its file says.
pub fn other_file(edges: &[String], members: &[String], name: &str) -> Option<String> {
    if members.is_empty() {
        return None;
    }
    let part = |line: &String| Part { kind: Kind::Setting, name: line.clone(), hash: 0 };
    let parts = |lines: &[String]| lines.iter().map(part).collect::<Vec<_>>();
    let found = compare::difference((&parts(members), &[]), &parts(edges), name, "edge")?;
    Some(format!("the file of `{name}` differs from the edge's: {}", found.what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn config() -> Config {
        let example = include_str!("../../../../docs/example.toml");
        Config::parse(Path::new("/etc/holdfast/demo.toml"), example).expect("a good file")
    }

    #[test]
    fn each_setting_that_both_use_is_compared_and_named() {
        let lines = of_file(&config());
        assert_eq!(other_file(&lines, &of_file(&config()), "a"), None);
        assert_eq!(other_file(&lines, &[], "a"), None, "an older release says nothing");
        type Change = fn(&mut Config);
        let changes: [(Change, &str); 7] = [
            (|it| it.group.services[0].set_port(80), "service 10.9.0.100:80 (only on a)"),
            (|it| it.group.services.truncate(1), "service [fd09::100]:6379 (only on edge)"),
            (|it| it.group.heartbeat_ms = 20, "heartbeat_ms = 18 (only on edge)"),
            (
                |it| it.edge.as_mut().unwrap().listen.set_port(1),
                "edge.listen = 10.9.0.1:1 (only on a)",
            ),
            (|it| it.edge.as_mut().unwrap().first = "b".to_owned(), "edge.first = b (only on a)"),
            (|it| it.members[1].address.set_port(1), "address of b = 10.9.0.3:1 (only on a)"),
            (
                |it| it.members[0].port.as_mut().unwrap().mac.0[5] = 9,
                "mac of a = 02:00:00:00:00:09 (only on a)",
            ),
        ];
        for (change, named) in changes {
            let mut theirs = config();
            change(&mut theirs);
            let told = other_file(&lines, &of_file(&theirs), "a").expect("a difference");
            assert!(told.contains(named), "{told}");
        }
        let mut own = config();
        (own.group.realtime, own.group.share_cpu, own.group.direct) = (false, false, true);
        own.members[0].interface = "eth7".to_owned();
        assert_eq!(other_file(&lines, &of_file(&own), "a"), None, "only that host uses it");
    }
}
