//! The verbs that ask an edge what it serves, and where a packet would go.

use super::args::{
    EdgeDrainArgs, EdgeHealthyArgs, EdgeShowArgs, EdgeTraceArgs, EdgeVerb, GroupArgs,
};
use super::group::{self, Daemon};
use super::watch::ask;
use super::{Failure, print};
use crate::admin::{Request, TraceRequest};
use crate::config::GroupFile;
use crate::status::exit;
use serde_json::Value;
use std::fmt::Write;
use std::net::SocketAddr;

pub(super) fn run(verb: &EdgeVerb) -> Result<u8, Failure> {
    match verb {
        EdgeVerb::Show(args) => show(args),
        EdgeVerb::Trace(args) => trace(args),
        EdgeVerb::Drain(args) => drain(args),
        EdgeVerb::Healthy(args) => healthy(args),
        EdgeVerb::Fence(args) => {
            let request = Request::Fence { until_takeover: args.until_takeover };
            by_hand(&args.group, request, args.json)
        }
        EdgeVerb::Unfence(args) => by_hand(&args.group, Request::Unfence, args.json),
    }
}

fn by_hand(group: &GroupArgs, request: Request, json: bool) -> Result<u8, Failure> {
    let file = group::file(group)?;
    let closes = matches!(request, Request::Fence { .. });
    let answer = ask(&daemon_of(&file, group.role.as_deref())?, request)?;
    print(&if json { answer.to_string() + "\n" } else { done(&file, closes, &answer) })?;
    Ok(exit::OK)
}

fn done(file: &GroupFile, closes: bool, answer: &Value) -> String {
    let what = match (closes, matches!(file, GroupFile::Transit(_))) {
        (true, true) => "closed: nothing goes into the strings",
        (false, true) => "open: flows go through the strings",
        (true, false) => "closed: no member speaks",
        (false, false) => "open: the current member may speak",
    };
    format!("the edge is {what} (epoch {})\n", plain(&answer["epoch"]))
}

fn show(args: &EdgeShowArgs) -> Result<u8, Failure> {
    let answer = ask(&daemon(&args.group)?, Request::Show)?;
    print(&if args.json { answer.to_string() + "\n" } else { render_show(&answer) })?;
    Ok(exit::OK)
}

fn healthy(args: &EdgeHealthyArgs) -> Result<u8, Failure> {
    let answer = ask(&daemon(&args.group)?, Request::Show)?;
    match answer["healthy"].as_bool() {
        Some(true) => {
            print("this edge is ready for clients\n")?;
            Ok(exit::OK)
        }
        Some(false) => {
            print("this edge is not ready for clients; see `holdfast status`\n")?;
            Ok(exit::DEGRADED)
        }
        None => Err(Failure::usage("only edges of spread groups can be several".to_owned())),
    }
}

fn trace(args: &EdgeTraceArgs) -> Result<u8, Failure> {
    let (from, to) = parse_flow(&args.flow).map_err(Failure::usage)?;
    let request =
        TraceRequest { from, to, udp: args.udp, syn: args.syn, payload_bytes: args.payload };
    let answer = ask(&daemon(&args.group)?, Request::Trace(request))?;
    print(&if args.json { answer.to_string() + "\n" } else { render_trace(&answer) })?;
    Ok(exit::OK)
}

fn drain(args: &EdgeDrainArgs) -> Result<u8, Failure> {
    let request = Request::Drain { name: args.name.clone(), end: args.end };
    ask(&daemon(&args.group)?, request)?;
    let EdgeDrainArgs { name, end, .. } = args;
    print(&if *end {
        format!("{name} gets new connections again\n")
    } else {
        format!(
            "{name} gets no new connections; those it has go on \
             (`holdfast edge drain {name} --end` undoes that)\n"
        )
    })?;
    Ok(exit::OK)
}

/// The edge's daemon, whatever role this host has; of the two edges of a transit group, that of
/// this host.
fn daemon(group: &GroupArgs) -> Result<Daemon, Failure> {
    daemon_of(&group::file(group)?, group.role.as_deref())
}

fn daemon_of(file: &GroupFile, asked: Option<&str>) -> Result<Daemon, Failure> {
    if matches!(file, GroupFile::Transit(_)) {
        return Ok(Daemon::of(file, &file.role_of_daemon(asked).map_err(Failure::usage)?));
    }
    // Of several edges, that of this host, or the first one.
    let edges = match file {
        GroupFile::Spread(config) => config.edges.iter().map(|it| it.name.as_str()).collect(),
        _ => vec!["edge"],
    };
    let own = file.role_of_daemon(None).ok();
    let mine = own.as_deref().filter(|own| edges.contains(own));
    let found = Daemon::of(file, asked.or(mine).unwrap_or(edges[0]));
    match own {
        Some(own)
            if asked.is_none() && !edges.contains(&own.as_str()) && !found.socket.exists() =>
        {
            Err(not_the_edge(&own))
        }
        _ => Ok(found),
    }
}

/// As a daemon refuses a verb that is another one's: somebody answers here.
fn not_the_edge(own: &str) -> Failure {
    Failure::degraded(format!(
        "this host is `{own}`, and not the edge\n  remedy: ask on the edge's host"
    ))
}

fn parse_flow(text: &str) -> Result<(SocketAddr, SocketAddr), String> {
    let remedy =
        || format!("\"{text}\" is not a flow; write it like '10.0.0.1:4242>10.9.0.100:80'");
    let (from, to) = text.split_once('>').ok_or_else(remedy)?;
    let address = |part: &str| part.trim().parse::<SocketAddr>().map_err(|_| remedy());
    let (from, to) = (address(from)?, address(to)?);
    if from.is_ipv4() == to.is_ipv4() { Ok((from, to)) } else { Err(remedy()) }
}

/// A value as a person reads it.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Object(part) if part.contains_key("count") && part.contains_key("max") => {
            format!("{} of {}", plain(&part["count"]), plain(&part["max"]))
        }
        other => other.to_string(),
    }
}

fn render_show(answer: &Value) -> String {
    let mut text = String::new();
    let list = |key: &str| answer[key].as_array().cloned().unwrap_or_default();
    let _ = writeln!(text, "{} ({})", plain(&answer["group"]), plain(&answer["kind"]));
    for service in list("services") {
        let name = service.get("address").unwrap_or(&service);
        let members = service["members"].as_array().map(|members| {
            let names: Vec<String> = members.iter().map(plain).collect();
            if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
        });
        let _ = writeln!(
            text,
            "  service {}{}",
            plain(name),
            members.map_or(String::new(), |members| format!(" -> {members}"))
        );
    }
    for member in list("members") {
        let _ = write!(text, "  member {}:", plain(&member["name"]));
        for (key, value) in member.as_object().into_iter().flatten() {
            if key != "name" && !value.is_null() {
                let _ = write!(text, " {key} {}", plain(value));
            }
        }
        text.push('\n');
    }
    for (key, yes, no) in [
        ("healthy", "ready for clients", "not ready for clients"),
        (
            "serves",
            "acts on what reaches all edges",
            "leaves what reaches all edges to another one",
        ),
    ] {
        if let Some(is_so) = answer[key].as_bool() {
            let _ = writeln!(text, "  {}", if is_so { yes } else { no });
        }
    }
    for edge in list("edges") {
        let is_heard = edge["heard"] == true;
        let note = if is_heard { "is heard" } else { "does not answer" };
        let _ = writeln!(text, "  edge {}: {note}", plain(&edge["name"]));
    }
    for section in ["flows", "cache", "regulate", "counters"] {
        let Some(fields) = answer[section].as_object() else { continue };
        let shown: Vec<String> = fields
            .iter()
            .filter(|(_, value)| section != "counters" || value.as_u64() != Some(0))
            .map(|(key, value)| format!("{key} {}", plain(value)))
            .collect();
        if !shown.is_empty() {
            let _ = writeln!(text, "  {section}: {}", shown.join(", "));
        }
    }
    text
}

fn render_trace(answer: &Value) -> String {
    let mut text = format!("{}\n", plain(&answer["verdict"]));
    for (key, value) in answer.as_object().into_iter().flatten() {
        if key == "verdict" || value.is_null() {
            continue;
        }
        match value.as_array() {
            Some(lines) => {
                for line in lines {
                    let _ = writeln!(text, "  {key}: {}", plain(line));
                }
            }
            None => {
                let _ = writeln!(text, "  {key}: {}", plain(value));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    const PAIR: &str = include_str!("../../../../docs/example.toml");
    const STRINGS: &str = include_str!("../../../../docs/example-transit.toml");

    fn file(text: &str) -> GroupFile {
        GroupFile::parse(Path::new("/etc/x.toml"), text).unwrap()
    }

    #[test]
    fn a_flow_has_two_ends_of_one_family() {
        let (from, to) = parse_flow("10.0.0.1:4242 > 10.9.0.100:80").unwrap();
        assert_eq!((from.port(), to.to_string().as_str()), (4242, "10.9.0.100:80"));
        assert!(parse_flow("[fd00::1]:1>[fd00::2]:2").is_ok());
        for bad in ["", "10.0.0.1:1", "10.0.0.1>10.0.0.2:1", "10.0.0.1:1>[fd00::2]:2"] {
            assert!(parse_flow(bad).unwrap_err().contains("is not a flow"), "{bad}");
        }
    }

    /// `switchover` on the edge has the same.
    #[test]
    fn a_verb_on_the_wrong_host_has_the_code_of_a_refusal() {
        assert_eq!(not_the_edge("a").code, exit::DEGRADED);
    }

    #[test]
    fn what_was_done_by_hand_is_said() {
        let answer = json!({"epoch": 7});
        let [pair, strings] = [PAIR, STRINGS].map(file);
        let said = |file, closes| done(file, closes, &answer);
        assert_eq!(said(&pair, true), "the edge is closed: no member speaks (epoch 7)\n");
        assert!(said(&pair, false).contains("open: the current member may speak"));
        assert!(said(&strings, true).contains("closed: nothing goes into the strings"));
        assert!(said(&strings, false).contains("open: flows go through the strings"));
    }

    #[test]
    fn an_edge_of_strings_is_found_without_its_role() {
        let folder = std::env::temp_dir().join(format!("holdfast-edges-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let run_dir = format!("[group]\nrun_dir = {folder:?}\n");
        let file = file(&STRINGS.replace("[group]\n", &run_dir));
        assert!(daemon_of(&file, None).unwrap_err().to_string().contains("--role near|far"));
        std::fs::write(file.admin_socket("far"), "").unwrap();
        assert_eq!(daemon_of(&file, None).unwrap(), Daemon::of(&file, "far"));
        assert_eq!(daemon_of(&file, Some("near")).unwrap(), Daemon::of(&file, "near"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_an_edge_says_is_readable() {
        let shown = render_show(&json!({
            "group": "web", "kind": "spread",
            "services": [{"address": "10.9.0.100:80", "members": ["a", "b"]}],
            "members": [{"name": "a", "state": "up", "weight": 100, "flows": 3}],
            "flows": {"count": 3, "max": 32, "ipv4": {"count": 3, "max": 16}},
            "cache": null, "regulate": null,
            "counters": {"redirected": 7, "answered": 0},
        }));
        assert!(shown.contains("service 10.9.0.100:80 -> a, b"), "{shown}");
        assert!(shown.contains("member a: flows 3 state up weight 100"), "{shown}");
        assert!(shown.contains("flows: count 3, ipv4 3 of 16, max 32\n"), "{shown}");
        assert!(shown.contains("counters: redirected 7\n"), "{shown}");
        let traced =
            render_trace(&json!({"verdict": "redirected", "member": "a", "rewritten": ["x"]}));
        assert_eq!(traced, "redirected\n  member: a\n  rewritten: x\n");
    }
}
