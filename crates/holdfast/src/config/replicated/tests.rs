//! Tests of correct files, and of the messages about incorrect ones.

use super::*;
use crate::key::GroupKey;
use proptest::prelude::*;

const GOOD: &str = r#"
[group]
name = "demo"
key_file = "demo.key"
services = ["10.9.0.100:6379", "[fd09::100]:6379"]

[edge]
listen = "10.9.0.1:7700"
clients = ["ec"]

[[member]]
name = "a"
address = "10.9.0.2:7701"
interface = "p0"
edge_port = "ep"
mac = "02:00:00:00:00:0a"

[[member]]
name = "b"
address = "10.9.0.3:7701"
interface = "b0"
edge_port = "eb"
mac = "02:00:00:00:00:0b"

[server]
command = ["/usr/bin/redis-server", "--save", ""]
env = { TZ = "UTC" }
"#;

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(Path::new("/etc/holdfast/demo.toml"), text)
}

/// The only mistake in `GOOD` after `from` was replaced by `to`, with the text of the line to which
/// it points.
fn mistake(from: &str, to: &str) -> (String, String, String) {
    assert!(GOOD.contains(from), "{from}");
    let text = GOOD.replacen(from, to, 1);
    let errors = parse(&text).expect_err(to).0;
    assert_eq!(errors.len(), 1, "{errors:?}");
    let error = errors.into_iter().next().unwrap();
    let line = text.lines().nth(error.at.line.wrapping_sub(1)).unwrap_or_default().to_owned();
    (error.message, error.remedy, line)
}

/// `GOOD` with public keys for these roles.
fn keyed(keys: &[(&str, &str)]) -> String {
    let head = |role: &str| match role {
        "edge" => "[edge]\n".to_owned(),
        name => format!("name = \"{name}\"\n"),
    };
    keys.iter().fold(GOOD.to_owned(), |text, (role, its)| {
        text.replacen(&head(role), &format!("{}public_keys = [{its}]\n", head(role)), 1)
    })
}

#[test]
fn each_host_may_have_a_key_of_its_own_and_then_all_must() {
    let public =
        |digit: &str| format!("\"{}\"", GroupKey::parse(&digit.repeat(64)).unwrap().public());
    let publics = ["1", "2", "3", "4", "5"].map(public);
    let [a, b, edge, next, third] = publics.each_ref().map(String::as_str);
    let both = format!("{b}, {next}");
    let config = parse(&keyed(&[("a", a), ("b", &both), ("edge", edge)])).unwrap();
    let counts: Vec<_> =
        config.public_keys().iter().map(|(name, its)| (*name, its.len())).collect();
    assert_eq!(counts, [("edge", 1), ("a", 1), ("b", 2)]);
    assert!(config.effective().contains(&a[1..]), "{}", config.effective());
    let said = |keys: &[(&str, &str)]| parse(&keyed(keys)).unwrap_err().to_string();
    let some = said(&[("a", a)]);
    assert!(some.contains("`edge`, `b` have no public_keys, and `a` has"), "{some}");
    let same = said(&[("a", a), ("b", a), ("edge", edge)]);
    assert!(same.contains("`a` and `b` have the same public key"), "{same}");
    let many = said(&[("a", a), ("b", &format!("{both}, {third}")), ("edge", edge)]);
    assert!(many.contains("public_keys has 3 entries"), "{many}");
    let twice = said(&[("a", &format!("{a}, {a}"))]);
    assert!(twice.contains("is listed twice"), "{twice}");
    // A secret is not repeated where others read.
    let secret = format!("\"{}\"", "1".repeat(64));
    let shown = said(&[("a", &secret)]);
    assert!(shown.contains("form of a secret") && !shown.contains(&"1".repeat(64)), "{shown}");
    let weak = said(&[("a", "\"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"")]);
    assert!(weak.contains("nothing stays secret"), "{weak}");
}

#[test]
fn a_good_file_is_understood_with_its_defaults() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.group.heartbeat_ms, 18);
    assert!(config.group.realtime);
    assert!(!config.server.trap_tsc && !config.server.aslr);
    assert_eq!(config.server.run, Run::Auto);
    assert_eq!(config.group.run_dir, Path::new("/run/holdfast/demo"));
    assert_eq!(config.group.key_file, Path::new("/etc/holdfast/demo.key"));
    let edge = config.edge.as_ref().unwrap();
    assert_eq!(edge.state_file, Path::new("/var/lib/holdfast/demo.epoch"));
    assert_eq!(edge.first, "a");
    assert_eq!(config.other(&config.members[0]).name, "b");
    assert_eq!(config.other(&config.members[1]).name, "a");
    assert_eq!(config.role("b"), Ok(Role::Member(1)));
    assert_eq!(config.admin_socket(Role::Edge), Path::new("/run/holdfast/demo/edge.sock"));
    assert_eq!(config.members[0].port.as_ref().unwrap().mac.to_string(), "02:00:00:00:00:0a");
    assert_eq!((config.service_ips().len(), config.service_ports()), (2, vec![6379]));
}

#[test]
fn the_counter_is_trapped_and_addresses_are_random_on_request_only() {
    let config = parse(&format!("{GOOD}trap_tsc = true\naslr = true\n")).unwrap();
    assert!(config.server.trap_tsc && config.server.aslr);
    assert_eq!(parse(&config.effective()).unwrap().server, config.server);
}

#[test]
fn the_effective_file_is_a_file_that_means_the_same() {
    let config = parse(GOOD).unwrap();
    assert_eq!(parse(&config.effective()).unwrap().effective(), config.effective());
}

#[test]
fn an_unknown_key_is_an_error_with_a_suggestion() {
    let (message, remedy, line) = mistake("key_file", "keyfile");
    assert_eq!(
        (message.as_str(), remedy.as_str()),
        ("unknown key `keyfile`", "did you mean `key_file`?")
    );
    assert_eq!(line, "keyfile = \"demo.key\"");
    let (_, remedy, line) = mistake("[server]", "[servers]");
    assert_eq!((remedy.as_str(), line.as_str()), ("did you mean `server`?", "[servers]"));
    let (_, remedy, line) = mistake("clients", "colour");
    assert!(remedy.starts_with("the keys there are: listen, clients"), "{remedy}");
    assert_eq!(line, "colour = [\"ec\"]");
}

#[test]
fn a_missing_key_comes_with_an_example() {
    let (message, remedy, _) = mistake("listen = \"10.9.0.1:7700\"", "");
    assert_eq!(message, "`listen` is missing");
    assert_eq!(remedy, "add, for example: listen = \"10.9.0.1:7700\"");
}

/// Who is refused is told what to write, and why not less, or more.
#[test]
fn a_heartbeat_that_is_refused_has_its_bounds_and_their_reason() {
    let cases = [
        ("1", "write heartbeat_ms = 5 or more, ", "every host stands still"),
        ("1001", "write heartbeat_ms = 1000 or less, ", "clients wait so long"),
        ("-18", "write a whole number: heartbeat_ms = 20", ""),
        ("\"18\"", "write it without quotes: heartbeat_ms = 18", ""),
    ];
    for (value, wanted, why) in cases {
        let (_, remedy, _) = mistake("[edge]", &format!("heartbeat_ms = {value}\n[edge]"));
        assert!(remedy.contains(wanted) && remedy.contains(why), "{value}: {remedy}");
    }
    let segment = include_str!("../../../../../docs/example-segment.toml");
    for value in ["101", "1001"] {
        let line = format!("heartbeat_ms = {value} ");
        let text = segment.replacen("# heartbeat_ms = 18 ", &line, 1);
        let shown = Config::parse(Path::new("/x.toml"), &text).unwrap_err().to_string();
        let wanted = "write heartbeat_ms = 100 or less, the same on every host: without an edge";
        assert!(shown.contains(wanted), "{shown}");
        assert_eq!(shown.matches("heartbeat_ms = ").count(), 2, "one word on it: {shown}");
    }
}

#[test]
fn values_are_checked_where_they_stand() {
    let cases = [
        ("\"10.9.0.100:6379\"", "\"10.9.0.100\"", "is not an address with a port"),
        ("\"10.9.0.100:6379\"", "\"redis:6379\"", "is not an address with a port"),
        ("\"10.9.0.100:6379\"", "\"10.9.0.100:0\"", "is not the address of one host and port"),
        ("\"[fd09::100]:6379\"", "\"10.9.0.100:6379\"", "is listed twice"),
        ("\"10.9.0.100:6379\"", "\"10.9.0.2:6379\"", "10.9.0.2 is the address of"),
        ("\"10.9.0.100:6379\"", "\"10.9.0.1:6379\"", "10.9.0.1 is the address of"),
        ("\"10.9.0.100:6379\"", "\"127.0.0.1:6379\"", "the address of every host"),
        ("\"10.9.0.100:6379\"", "\"255.255.255.255:6379\"", "no meaning beyond one link"),
        ("\"[fd09::100]:6379\"", "\"[fe80::100]:6379\"", "no meaning beyond one link"),
        ("\"10.9.0.100:6379\"", "\"169.254.0.1:6379\"", "which no router forwards"),
        ("\"10.9.0.1:7700\"", "\"10.9.0.3:7700\"", "10.9.0.3 is the address of b, too"),
        ("\"10.9.0.3:7701\"", "\"10.9.0.2:7702\"", "have the same address"),
        ("[\"ec\"]", "[\"ec\", \"ep\"]", "clients do not come through ep"),
        ("[\"ec\"]", "[\"lo\"]", "clients do not come through lo"),
        (
            "clients = [\"ec\"]",
            "l3 = \"br0\"\nclients = [\"br0\"]",
            "clients do not come through br0: it leads to the members",
        ),
        ("[\"10.9.0.100:6379\", \"[fd09::100]:6379\"]", "[]", "services has 0 addresses"),
        ("[\"ec\"]", "[]", "clients lists 0 interfaces"),
        ("[\"ec\"]", "[\"an-interface-with-a-long-name\"]", "cannot be the name of an interface"),
        ("\"02:00:00:00:00:0a\"", "\"02:00:00:00:00\"", "is not a hardware address"),
        ("\"02:00:00:00:00:0a\"", "\"03:00:00:00:00:0a\"", "is not a hardware address"),
        ("\"02:00:00:00:00:0a\"", "\"02:00:00:00:00:0b\"", "the same mac"),
        ("\"10.9.0.3:7701\"", "\"10.9.0.2:7701\"", "the same address"),
        ("name = \"b\"", "name = \"edge\"", "cannot be called `edge`"),
        ("name = \"demo\"", "name = \"../demo\"", "cannot be a name"),
        ("[\"/usr/bin/redis-server\", \"--save\", \"\"]", "[]", "command is empty"),
        ("clients = [\"ec\"]", "clients = [\"ec\"]\nfirst = \"c\"", "is not a member"),
        ("[edge]", "heartbeat_ms = 1\n[edge]", "heartbeat_ms = 1 is out of range"),
        ("[edge]", "connections_max = 9\n[edge]", "connections_max = 9 is out of range"),
        ("env = { TZ = \"UTC\" }", "ring_bytes = 5000000", "ring_bytes = 5000000 is not possible"),
        ("env = { TZ = \"UTC\" }", "directory = \"here\"", "not an absolute path"),
        (
            "env = { TZ = \"UTC\" }",
            "env = { \"A=B\" = \"1\" }",
            "cannot name an environment variable",
        ),
        ("env = { TZ = \"UTC\" }", "env = { LD_PRELOAD = \"/x.so\" }", "is set by Holdfast itself"),
        ("env = { TZ = \"UTC\" }", "env = { TZ = \"a\\u0000\" }", "a value with a zero byte"),
        ("\"--save\", \"\"]", "\"a\\u0000b\"]", "a word with a zero byte"),
    ];
    for (from, to, expected) in cases {
        let (message, remedy, line) = mistake(from, to);
        assert!(message.contains(expected), "{to}: {message}");
        assert!(!remedy.is_empty());
        let wanted = to.lines().next_back().unwrap();
        let section = line == "[[member]]" || to.ends_with("[edge]") || to.ends_with("\"c\"");
        assert!(section || line.contains(wanted), "{to}: points at `{line}`");
    }
}

#[test]
fn one_backup_per_group() {
    let third = "\n[[member]]\nname = \"c\"\naddress = \"10.9.0.4:7701\"\ninterface = \"c0\"\nedge_port = \"ec2\"\nmac = \"02:00:00:00:00:0c\"\n[server]";
    let (message, remedy, _) = mistake("[server]", third);
    assert_eq!(message, "the group has 3 members");
    assert!(remedy.contains("one backup per group for now"));
}

#[test]
fn a_text_in_place_of_a_list_is_put_in_brackets() {
    for (from, to, list) in [
        (
            "[\"/usr/bin/redis-server\", \"--save\", \"\"]",
            "\"redis --port 1\"",
            "[\"redis\", \"--port\", \"1\"]",
        ),
        ("[\"ec\"]", "\"ec\"", "[\"ec\"]"),
        ("[\"ec\"]", "'a \"b\"'", "[\"...\", \"...\"]"),
    ] {
        let (message, remedy, line) = mistake(from, to);
        assert!(message.contains("is not a list"), "{message}");
        assert_eq!(remedy, format!("write a list: {list}"));
        assert!(line.contains(to), "{line}");
    }
}

#[test]
fn all_mistakes_are_told_at_once_and_in_order() {
    let text = GOOD.replace("10.9.0.100:6379", "nonsense").replace("\"ec\"", "\"\"");
    let errors = parse(&text).unwrap_err();
    assert_eq!(errors.0.iter().map(|e| e.at.line).collect::<Vec<_>>(), [5, 9]);
    let shown = errors.to_string();
    assert!(shown.starts_with("/etc/holdfast/demo.toml:5:13: \"nonsense\""), "{shown}");
    assert_eq!(shown.matches("remedy:").count(), 2);
}

#[test]
fn bad_syntax_has_a_place() {
    let (_, _, line) = mistake("name = \"demo\"", "name = demo");
    assert_eq!(line, "name = demo");
    let (message, _, line) = mistake("\"demo\"", "5");
    assert!(message.contains("name: the number 5 is not a text"), "{message}");
    assert_eq!(line, "name = 5");
}

proptest! {
    #[test]
    fn nonsense_never_panics(text in "\\PC{0,300}") {
        let _ = parse(&text);
    }

    #[test]
    fn a_damaged_file_never_panics(at in 0..GOOD.len(), with in "\\PC{0,4}") {
        let mut text = GOOD.to_owned();
        if text.is_char_boundary(at) {
            text.replace_range(at..=at, &with);
            let _ = parse(&text);
        }
    }
}

#[test]
fn state_folders_are_one_servers_own() {
    let with = |dirs: &str| parse(&format!("{GOOD}state_dirs = [{dirs}]\nlog = \"/srv/log/it\"\n"));
    let config = with("\"/var/lib/redis/\", \"/srv/redis\"").unwrap();
    assert_eq!(config.server.state_dirs, [Path::new("/var/lib/redis"), Path::new("/srv/redis")]);
    assert_eq!(config.server.state_dirs[0].as_os_str(), "/var/lib/redis");
    assert_eq!(parse(&config.effective()).unwrap().server, config.server);
    for (dirs, says) in [
        ("\"redis\"", "absolute"),
        ("\"/srv/../etc/x\"", "absolute"),
        ("\"/\"", "own"),
        ("\"/srv\"", "own"),
        ("\"/var/lib\"", "own"),
        ("\"/usr/share/x\"", "own"),
        ("\"/srv/log\"", "the log"),
        ("\"/run/holdfast\"", "run_dir"),
        ("\"/var/lib/holdfast\"", "state_file"),
        ("\"/srv/a/b\", \"/srv/a\"", "overlaps"),
    ] {
        let errors = with(dirs).expect_err(dirs).0;
        assert!(errors.len() == 1 && errors[0].message.contains(says), "{dirs}: {errors:?}");
    }
}

/// `GOOD` with a cold backup, and with these lines in `[cold]`.
fn cold(lines: &str) -> String {
    let text = GOOD.replacen("[edge]", "mode = \"cold\"\n\n[edge]", 1);
    format!("{text}\n[cold]\n{lines}\n")
}

#[test]
fn a_cold_backup_has_its_defaults() {
    let config = parse(&GOOD.replacen("[edge]", "mode = \"cold\"\n\n[edge]", 1)).unwrap();
    let kept = config.cold.clone().expect("the table's defaults");
    assert_eq!(kept.spool_dir, Path::new("/var/lib/holdfast/demo.spool"));
    assert_eq!((kept.spool_max_mb, kept.snapshot_every_mb), (8192, 1024));
    assert_eq!(parse(&config.effective()).unwrap().cold, config.cold);
    let config = parse(&cold("spool_dir = \"here\"\nspool_sync = \"always\"")).unwrap();
    let kept = config.cold.clone().expect("a table");
    assert_eq!(kept.spool_dir, Path::new("/etc/holdfast/here"));
    assert_eq!(kept.spool_sync, crate::spool::Sync::Always);
    let small = parse(&cold("spool_max_mb = 100")).unwrap();
    assert_eq!(small.cold.as_ref().expect("a table").snapshot_every_mb, 50);
    assert_eq!(parse(GOOD).unwrap().cold, None);
}

#[test]
fn what_does_not_go_together_in_a_cold_group_is_explained() {
    let of = |text: &str| {
        let error = parse(text).expect_err(text).0.into_iter().next().expect("a mistake");
        (error.message, error.remedy)
    };
    let (message, remedy) = of(&format!("{GOOD}\n[cold]\nspool_max_mb = 5\n"));
    assert_eq!(message, "[cold] in a group that is hot");
    assert!(remedy.contains("mode = \"cold\""), "{remedy}");
    let (message, _) = of(&cold("spool_max_mb = 5\nsnapshot_every_mb = 6"));
    assert!(message.contains("more than spool_max_mb"), "{message}");
    let (message, remedy) = of(&cold("spool_max_mb = 0"));
    assert!(message.contains("out of range") && remedy.contains("8192"), "{message}: {remedy}");
    let (message, _) = of(&cold("spool_sync = \"sometimes\""));
    assert!(message.contains("sometimes"), "{message}");
    let (message, _) = of(&GOOD.replacen("[edge]", "mode = \"warm\"\n\n[edge]", 1));
    assert!(message.contains("warm"), "{message}");
    let state = "state_dirs = [\"/srv/demo\"]";
    let text =
        cold("spool_dir = \"/srv/demo/spool\"").replacen("env =", &format!("{state}\nenv ="), 1);
    let (message, _) = of(&text);
    assert!(message.contains("spool_dir"), "{message}");
}

#[test]
fn output_waits_for_all_unless_the_file_says_otherwise() {
    let with = |word: &str| {
        parse(&GOOD.replacen("[edge]", &format!("buffering = \"{word}\"\n\n[edge]"), 1))
    };
    assert_eq!(parse(GOOD).unwrap().group.buffering, Buffering::Commit);
    for mode in Buffering::ALL {
        let config = with(mode.word()).unwrap();
        assert_eq!(config.group.buffering, mode);
        assert_eq!(parse(&config.effective()).unwrap().group.buffering, mode);
    }
    let ConfigErrors(errors) = with("prr").unwrap_err();
    assert!(errors[0].message.contains("`prs`"), "what there is: {}", errors[0].message);
}

#[test]
fn a_family_is_asked_for_and_goes_with_an_image() {
    for (word, run) in [("parallel", Run::Parallel), ("one-at-a-time", Run::OneAtATime)] {
        is_asked_for(word, run);
    }
    let ConfigErrors(errors) = parse(&format!("{GOOD}run = \"serial\"\n")).unwrap_err();
    let said = &errors[0].message;
    assert!(said.contains("`parallel`") && said.contains("`one-at-a-time`"), "{said}");
}

fn is_asked_for(word: &str, run: Run) {
    let text = format!("{GOOD}run = \"{word}\"\n");
    let config = parse(&text).unwrap();
    assert_eq!((config.server.run, config.server.run.word()), (run, word));
    assert_eq!(parse(&config.effective()).unwrap().server, config.server);
    for setting in ["mode = \"cold\"", "rebuild = true"] {
        let text = text.replacen("[edge]", &format!("{setting}\n\n[edge]"), 1);
        assert_eq!(parse(&text).unwrap().server.run, run, "{setting}");
    }
}
