//! What differs between two files of a group, and what a daemon that runs can do about it.

use crate::config::GroupFile;
use serde::Serialize;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// One setting that has another value in the file than in the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// As `group.heartbeat_ms`, `host.h1.weight`.
    pub setting: String,
    /// Its value in the daemon; empty if it had none.
    pub before: String,
    /// Its value in the file; empty if it has none.
    pub now: String,
    /// What has to be done before it counts; absent if it counts from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<&'static str>,
}

/// Who reads the file again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader<'a> {
    /// A daemon whose data path in the kernel goes on without it: it can begin anew.
    Edge,
    Witness,
    /// The member called so, whose server runs.
    Member(&'a str),
}

/// What a setting whose daemon cannot begin anew with it needs.
pub const NEEDS_DOWN: &str = "`holdfast down --stop` with the earlier file on this host, then a start with this one: \
     names, folders and state files are where the daemons find each other and what they have left";
/// The same for heartbeats.
pub const NEEDS_PACE: &str = "restarts of all daemons, one after the other. Who is heard must never be slower than who \
     listens expects: if it becomes shorter, begin with the members or host servers, if longer, with the edges";
/// The same for the size of the table of connections.
pub const NEEDS_TABLE: &str = "another table of connections, which would forget those that there are: `holdfast down --stop` \
     and a start, at a quiet moment";
/// The same for keys that the other hosts do not have yet, or that they still speak with.
pub const NEEDS_KEY: &str = "the same on the other hosts first, or they and this host would not hear each other: on all \
     hosts add the new key as the second one (in key_file, or in public_keys), and say `holdfast reload`; then on all \
     put it first, and reload; then on all remove the earlier one, and reload. Without that, a restart of all daemons \
     of the group";
/// The same for a step from one key of all hosts to a key of each, or back, that leaves one out.
pub const NEEDS_STEPS: &str = "the steps between one key of all hosts and a key of each, on all hosts one after the other, \
     with `holdfast reload` after each: in key_file the key that is spoken with stays the first line, the other is the \
     second, the one of all marked `shared`, and every file has the public_keys; then the other one first; then without \
     the earlier one (and without public_keys, if one key of all is what stays). Without that, a restart of all daemons \
     of the group";
/// The same for what this daemon has given up the rights to.
pub const NEEDS_RIGHTS: &str =
    "a restart of this daemon: at its start it has given up all rights that its file did not need";
const NEEDS_RESTART: &str = "a restart of this daemon. On the member that is the backup nobody notices it; on the \
     primary say `holdfast switchover` first";
const NEEDS_BOTH: &str = "a restart of both members, stopped before either is started: they must be equal in it. This \
     ends the connections, and what the server holds in its memory only is lost";
const NEEDS_CHANNEL: &str = "restarts of both members' daemons, the backup's first and the primary's after a \
     `holdfast switchover`: until both have the new file they do not reach each other, and the server is not protected";
const NEEDS_OTHERS: &str = "nothing on this host: it is another host's; reload the daemon there";

/// Settings that are compared between the members before they pair, or that the server was started
/// with.
const OF_BOTH: [&str; 9] = [
    "group.services",
    "group.connections_max",
    "group.mode",
    "group.buffering",
    "server.",
    "segment.",
    "arbiter.",
    "cold.",
    "group.rebuild",
];
/// Settings that a member takes over while it runs.
const LIVE: [&str; 5] = ["group.rejoin_max", "group.alone_after_s", "hooks.", "metrics.", "page."];
/// Settings that no daemon can change without having its traces removed first.
const OF_PLACES: [&str; 5] =
    ["group.name", "group.kind", "group.run_dir", "edge.state_file", "arbiter.state_dir"];

/// The settings that differ, in the order of their names.
#[must_use]
pub fn changes(before: &GroupFile, now: &GroupFile, reader: Reader<'_>) -> Vec<Change> {
    let (before, now) = (settings(before), settings(now));
    let (old, new) = (&before.values, &now.values);
    let names = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name)));
    let mut found: Vec<Change> = names
        .filter(|name| old.get(*name) != new.get(*name))
        .map(|name| Change {
            setting: name.clone(),
            before: shown(name, old.get(name)),
            now: shown(name, new.get(name)),
            needs: needs(name, old.contains_key(name) && new.contains_key(name), reader),
        })
        .collect();
    found.extend(reordered(&before, &now).then(|| Change {
        setting: "member".to_owned(),
        before: "one order".to_owned(),
        now: "another order".to_owned(),
        needs: Some(NEEDS_DOWN),
    }));
    found.sort_by(|a, b| a.setting.cmp(&b.setting));
    found
}

/// Whether both files have the same members in another order, which is their numbers for
/// heartbeats, and in the kernel.
fn reordered(before: &Settings, now: &Settings) -> bool {
    let names = |of: &Settings| of.members.clone();
    let sorted = |of: &Settings| {
        let mut names = names(of);
        names.sort();
        names
    };
    names(before) != names(now) && sorted(before) == sorted(now)
}

/// Whether the setting says with which keys hosts speak to each other: all daemons take them over
/// while they run.
#[must_use]
pub fn is_of_keys(setting: &str) -> bool {
    ["key", "group.key_file"].contains(&setting) || setting.ends_with(".public_keys")
}

/// What `setting` needs; `stays`: it is in both files.
fn needs(setting: &str, stays: bool, reader: Reader<'_>) -> Option<&'static str> {
    let begins = |names: &[&str]| names.iter().any(|name| setting.starts_with(name));
    // A member or an edge that is called otherwise is another one.
    let is_renamed = !stays && ["member.", "edge."].iter().any(|it| setting.starts_with(it));
    if is_of_keys(setting) {
        return None;
    }
    if begins(&OF_PLACES) || is_renamed && setting.ends_with(".name") {
        return Some(NEEDS_DOWN);
    }
    if setting == "group.heartbeat_ms" {
        return Some(NEEDS_PACE);
    }
    let Reader::Member(me) = reader else {
        // What the kernel has given the process stays with it.
        if setting == "group.realtime" {
            return Some(NEEDS_RESTART);
        }
        let is_size = ["group.flows_max", "edge.flows_max"].contains(&setting);
        return is_size.then_some(NEEDS_TABLE);
    };
    let own = format!("member.{me}.");
    match setting {
        _ if begins(&LIVE) => None,
        _ if begins(&OF_BOTH) => Some(NEEDS_BOTH),
        _ if setting.ends_with(".edge_port") || setting.ends_with(".mac") => Some(NEEDS_OTHERS),
        "edge.listen" => Some(NEEDS_RESTART),
        "group.channel" => Some(NEEDS_CHANNEL),
        _ if begins(&["edge.", "recover."]) => Some(NEEDS_OTHERS),
        _ if setting.starts_with("member.") && !setting.starts_with(&own) => Some(NEEDS_RESTART),
        _ => Some(NEEDS_RESTART),
    }
}

/// The value as people read it. What may be a secret is not shown.
fn shown(setting: &str, value: Option<&Value>) -> String {
    let is_secret = setting.starts_with("server.env.") || setting.contains("password");
    match value {
        None => String::new(),
        Some(_) if is_secret => "(not shown)".to_owned(),
        Some(value) => value.to_string(),
    }
}

/// What a file says.
struct Settings {
    /// Every setting, defaults included, by its name.
    values: BTreeMap<String, Value>,
    /// The names of the members of a pair, in the order of the file.
    members: Vec<String>,
}

fn settings(file: &GroupFile) -> Settings {
    let mut values = BTreeMap::new();
    let table: Table = toml::from_str(&file.effective()).unwrap_or_default();
    flatten("", &Value::Table(table), &mut values);
    let members = match file {
        GroupFile::Replicated(config) => config.members.iter().map(|it| it.name.clone()).collect(),
        GroupFile::Spread(_) | GroupFile::Transit(_) => Vec::new(),
    };
    Settings { values, members }
}

fn flatten(name: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    let below = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match value {
        Value::Table(table) => {
            table.iter().for_each(|(key, value)| flatten(&below(key), value, into));
        }
        Value::Array(items) if items.iter().any(Value::is_table) => {
            for (number, item) in items.iter().enumerate() {
                // Hosts are known by their names, wherever they stand.
                let named = item.get("name").and_then(Value::as_str).map(str::to_owned);
                flatten(&below(&named.unwrap_or_else(|| number.to_string())), item, into);
            }
        }
        _ => {
            into.insert(name.to_owned(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const PAIR: &str = include_str!("../../../../../docs/example.toml");
    const SPREAD: &str = include_str!("../../../../../docs/example-spread.toml");

    fn parse(text: &str) -> GroupFile {
        GroupFile::parse(Path::new("/etc/holdfast/x.toml"), text).unwrap()
    }

    fn differ(text: &str, from: &str, to: &str, reader: Reader<'_>) -> Vec<Change> {
        assert!(text.contains(from), "{from}");
        changes(&parse(text), &parse(&text.replace(from, to)), reader)
    }

    /// The only setting that differs, and what it needs.
    fn one(text: &str, from: &str, to: &str, reader: Reader<'_>) -> (String, Option<&'static str>) {
        let found = differ(text, from, to, reader);
        assert_eq!(found.len(), 1, "{found:?}");
        (found[0].setting.clone(), found[0].needs)
    }

    #[test]
    fn a_file_that_says_the_same_in_other_words_has_not_changed() {
        let said = "# heartbeat_ms = 18 ";
        assert_eq!(differ(PAIR, said, "heartbeat_ms = 18 ", Reader::Edge), []);
    }

    #[test]
    fn what_each_setting_needs_depends_on_who_reads() {
        let mac = ("02:00:00:00:00:0b", "02:00:00:00:00:0c");
        let redis = ("\"--save\", \"\"", "\"--save\", \"60 1\"");
        let (rejoin, rejoin_now) = ("# rejoin_max = 16", "rejoin_max = 3");
        let (beat, beat_now) = ("# heartbeat_ms = 18", "heartbeat_ms = 40");
        let (realtime, not) = ("# realtime = true", "realtime = false");
        let (a, edge) = (Reader::Member("a"), Reader::Edge);
        for (from, to, reader, setting, needs) in [
            (mac.0, mac.1, Reader::Edge, "member.b.mac", None),
            (mac.0, mac.1, a, "member.b.mac", Some(NEEDS_OTHERS)),
            (redis.0, redis.1, Reader::Edge, "server.command", None),
            (redis.0, redis.1, a, "server.command", Some(NEEDS_BOTH)),
            (rejoin, rejoin_now, a, "group.rejoin_max", None),
            (beat, beat_now, a, "group.heartbeat_ms", Some(NEEDS_PACE)),
            (beat, beat_now, Reader::Edge, "group.heartbeat_ms", Some(NEEDS_PACE)),
            (realtime, not, a, "group.realtime", Some(NEEDS_RESTART)),
            ("10.9.0.2:7701", "10.9.0.2:7702", a, "member.a.address", Some(NEEDS_RESTART)),
            ("10.9.0.1:7700", "10.9.0.1:7709", a, "edge.listen", Some(NEEDS_RESTART)),
            ("\"ec\"", "\"e9\"", a, "edge.clients", Some(NEEDS_OTHERS)),
            ("# flows_max = 65536", "flows_max = 99", a, "edge.flows_max", Some(NEEDS_OTHERS)),
            ("# flows_max = 65536", "flows_max = 99", edge, "edge.flows_max", Some(NEEDS_TABLE)),
            (realtime, not, edge, "group.realtime", Some(NEEDS_RESTART)),
            ("name = \"demo\"", "name = \"other\"", Reader::Edge, "group.name", Some(NEEDS_DOWN)),
        ] {
            let pinned = "[group]\nrun_dir = \"/run/x\"\n";
            let text = PAIR.replace("[group]\n", pinned);
            let text = text.replace("[edge]\n", "[edge]\nstate_file = \"/var/lib/x\"\n");
            let text = text.replace("# state_file", "# ");
            assert_eq!(one(&text, from, to, reader), (setting.to_owned(), needs));
        }
    }

    #[test]
    fn keys_count_at_once_for_whoever_reads() {
        let key = |digit: &str| crate::key::GroupKey::parse(&digit.repeat(64)).unwrap().public();
        let first = parse(PAIR);
        let GroupFile::Replicated(mut config) = first.clone() else { panic!("its kind") };
        config.members[1].public_keys = vec![key("1")];
        config.group.key_file = "/etc/holdfast/new.key".into();
        let now = GroupFile::Replicated(config);
        for reader in [Reader::Edge, Reader::Witness, Reader::Member("a"), Reader::Member("b")] {
            let found = changes(&first, &now, reader);
            let of: Vec<_> = found.iter().map(|it| (it.setting.as_str(), it.needs)).collect();
            assert_eq!(of, [("group.key_file", None), ("member.b.public_keys", None)]);
        }
        let mut taken = first;
        taken.take_keys(&now);
        assert_eq!(changes(&taken, &now, Reader::Edge), []);
    }

    #[test]
    fn another_name_is_another_member() {
        let found = differ(PAIR, "name = \"b\"", "name = \"c\"", Reader::Edge);
        let named = |name: &str| found.iter().find(|it| it.setting == name).unwrap().needs;
        assert_eq!(named("member.b.name"), Some(NEEDS_DOWN));
        assert_eq!(named("member.c.name"), Some(NEEDS_DOWN));
    }

    #[test]
    fn members_have_their_numbers_by_their_order() {
        let first = parse(PAIR);
        let GroupFile::Replicated(mut config) = first.clone() else { panic!("its kind") };
        config.members.reverse();
        let found = changes(&first, &GroupFile::Replicated(config), Reader::Edge);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].setting.as_str(), found[0].needs), ("member", Some(NEEDS_DOWN)));
    }

    #[test]
    fn a_host_server_may_come_and_go() {
        let first = parse(SPREAD);
        let GroupFile::Spread(mut config) = first.clone() else { panic!("its kind") };
        let gone = config.hosts.pop().unwrap().name;
        let found = changes(&first, &GroupFile::Spread(config), Reader::Edge);
        let (name, is_free) = (format!("host.{gone}.name"), |it: &Change| it.needs.is_none());
        assert!(found.iter().any(|it| it.setting == name && it.now.is_empty()), "{found:?}");
        assert!(found.iter().all(is_free), "{found:?}");
    }

    #[test]
    fn a_value_that_may_be_secret_is_not_shown() {
        let found = differ(PAIR, "# env = { TZ = \"UTC\" }", "env = { TZ = \"s3\" }", Reader::Edge);
        assert_eq!(
            (found[0].setting.as_str(), found[0].now.as_str()),
            ("server.env.TZ", "(not shown)")
        );
    }
}
