//! Mistakes that operators make, in files and on the command line: each is told with its place, in
//! words of its own and with a remedy, once, and with the documented exit code. Nothing here needs a
//! daemon or a namespace.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PAIR: &str = include_str!("../../../docs/example.toml");
const SEGMENT: &str = include_str!("../../../docs/example-segment.toml");
const SPREAD: &str = include_str!("../../../docs/example-spread.toml");
const TRANSIT: &str = include_str!("../../../docs/example-transit.toml");

/// Words of the TOML reader and of Rust, which mean nothing to an operator.
const FOREIGN: [&str; 8] = [
    "invalid type",
    "invalid value",
    "Raw",
    "expected a",
    "expected u",
    "unknown field",
    "unknown variant",
    "missing field",
];

/// A mistake: what is replaced in which example, how many errors that makes, and words of the first
/// and its remedy.
struct Mistake(&'static str, &'static str, &'static str, usize, &'static [&'static str]);

/// Every place of the replaced text; the first error points at the line where that begins, but for
/// those of a whole table.
#[rustfmt::skip]
const MISTAKES: &[Mistake] = &[
    // Keys and tables.
    Mistake(PAIR, "key_file", "keyfile", 1, &["unknown key `keyfile`", "did you mean `key_file`?"]),
    Mistake(PAIR, "[server]", "[sever]", 1, &["unknown key `sever`", "did you mean `server`?"]),
    Mistake(PAIR, "clients = ", "colour = ", 1, &["unknown key `colour`", "the keys there are: listen, clients"]),
    Mistake(PAIR, "listen = \"10.9.0.1:7700\"", "", 1, &["`listen` is missing", "listen = \"10.9.0.1:7700\""]),
    Mistake(PAIR, "name = \"demo\"", "name = \"demo\"\nname = \"x\"", 1, &["duplicate key", "remove one of the two"]),
    Mistake(PAIR, "name = \"demo\"", "name = demo", 1, &["remedy: a value is a number"]),
    Mistake(PAIR, "[edge]", "[edge", 1, &["remedy:"]),
    Mistake(SPREAD, "[[host]]", "[[hosts]]", 1, &["unknown key `hosts`", "did you mean `host`?"]),
    Mistake(TRANSIT, "next_hop", "nexthop", 1, &["unknown key `nexthop`", "did you mean `next_hop`?"]),
    // Values of a wrong type.
    Mistake(PAIR, "[\"ec\"]", "\"ec\"", 1, &["clients: the text \"ec\" is not a list", "write a list: [\"ec\"]"]),
    Mistake(PAIR, "[\"ec\"]", "7", 1, &["clients: the number 7 is not a list", "write a list"]),
    Mistake(PAIR, "name = \"demo\"", "name = 5", 1, &["name: the number 5 is not a text", "name = \"5\""]),
    Mistake(PAIR, "name = \"demo\"", "name = true", 1, &["name: true is not a text", "name = \"true\""]),
    Mistake(PAIR, "name = \"demo\"", "name = [\"demo\"]", 1, &["name: a list is not a text"]),
    Mistake(PAIR, "# heartbeat_ms = 18 ", "heartbeat_ms = \"18\" ", 1, &["heartbeat_ms: the text \"18\" is not a whole number", "heartbeat_ms = 18"]),
    Mistake(PAIR, "# heartbeat_ms = 18 ", "heartbeat_ms = 1.5 ", 1, &["heartbeat_ms: the number 1.5 is not a whole number"]),
    Mistake(PAIR, "# heartbeat_ms = 18 ", "heartbeat_ms = -1 ", 1, &["heartbeat_ms: the number -1 is not a whole number that is not negative"]),
    Mistake(PAIR, "# realtime = true ", "realtime = \"yes\" ", 1, &["realtime: the text \"yes\" is not true or false", "realtime = true"]),
    Mistake(PAIR, "# realtime = true ", "realtime = 1 ", 1, &["realtime: the number 1 is not true or false"]),
    Mistake(PAIR, "[[member]]\nname = \"a\"", "[member]\nname = \"a\"", 1, &["remedy:", "two brackets: [[member]]"]),
    Mistake(PAIR, "# env = { TZ = \"UTC\" }", "env = { TZ = 5 }", 1, &["TZ: the number 5 is not a text", "TZ = \"5\""]),
    Mistake(PAIR, "# env = { TZ = \"UTC\" }", "env = \"TZ=UTC\"", 1, &["env: the text \"TZ=UTC\" is not a table"]),
    Mistake(PAIR, "# user = \"redis\"", "user = 33", 1, &["user: the number 33 is not a text", "user = \"33\""]),
    // Words for settings.
    Mistake(PAIR, "# mode = \"hot\" ", "mode = \"could\" ", 1, &["mode: `could` is none of `hot`, `cold`", "did you mean `cold`?"]),
    Mistake(PAIR, "# buffering = \"commit\" ", "buffering = \"comit\" ", 1, &["buffering: `comit` is none of", "did you mean `commit`?"]),
    Mistake(PAIR, "# run = \"auto\" ", "run = \"paralel\" ", 1, &["run: `paralel` is none of", "did you mean `parallel`?"]),
    Mistake(PAIR, "# run = \"auto\" ", "run = true ", 1, &["run: true is none of `auto`, `parallel`, `one-at-a-time`", "write run = \"auto\""]),
    Mistake(PAIR, "# mode = \"hot\" ", "mode = 1 ", 1, &["mode: 1 is none of `hot`, `cold`"]),
    Mistake(PAIR, "[group]", "[group]\nkind = \"replicatd\"", 1, &["no kind of group called `replicatd`", "did you mean `replicated`?"]),
    Mistake(SPREAD, "kind = \"spread\"", "kind = \"spred\"", 1, &["no kind of group called `spred`", "did you mean `spread`?"]),
    Mistake(SPREAD, "kind = \"spread\"", "kind = \"web\"", 1, &["no kind of group called `web`", "one of: replicated, spread, transit"]),
    Mistake(SPREAD, "#method = \"ip-in-ip\"", "method = \"layer2\"", 1, &["method: `layer2` is none of", "did you mean `layer-2`?"]),
    Mistake(TRANSIT, "mode = \"active/backup\"", "mode = \"active\"", 1, &["mode: `active` is none of", "did you mean `active/"]),
    Mistake(SEGMENT, "# mode = \"flood\"", "mode = \"chian\"", 1, &["mode: `chian` is none of", "did you mean `chain`?"]),
    Mistake(PAIR, "# first = \"a\"", "first = \"c\"", 1, &["first = \"c\" is not a member", "one of: a, b"]),
    // Addresses.
    Mistake(PAIR, "10.9.0.1:7700", "10.9.0.1", 1, &["\"10.9.0.1\" is not an address with a port", "10.9.0.100:6379"]),
    Mistake(PAIR, "10.9.0.1:7700", "edge:7700", 1, &["is not an address with a port", "host names are not looked up"]),
    Mistake(PAIR, "10.9.0.1:7700", "10.9.0.1:77000", 1, &["is not an address with a port"]),
    Mistake(PAIR, "10.9.0.100:6379", "10.9.0.1:6379", 1, &["10.9.0.1 is the address of the edge", "an address of its own"]),
    Mistake(PAIR, "10.9.0.100:6379", "10.9.0.2:6379", 1, &["10.9.0.2 is the address of a", "an address of its own"]),
    Mistake(PAIR, "10.9.0.100:6379", "0.0.0.0:6379", 1, &["is not the address of one host"]),
    Mistake(PAIR, "10.9.0.100:6379", "127.0.0.1:6379", 1, &["the address of every host itself"]),
    Mistake(PAIR, "\"[fd09::100]:6379\"", "\"10.9.0.100:6379\"", 1, &["is listed twice", "remove one"]),
    Mistake(PAIR, "\"10.9.0.3:7701\"", "\"10.9.0.2:7701\"", 1, &["have the same address", "different hosts"]),
    Mistake(PAIR, "10.9.0.2:7701", "here", 1, &["\"here\" is not an address"]),
    Mistake(PAIR, "02:00:00:00:00:0a", "02:00:00:00:0a", 1, &["is not a hardware address", "six pairs"]),
    Mistake(PAIR, "02:00:00:00:00:0a", "ff:ff:ff:ff:ff:ff", 1, &["is not a hardware address", "neither zero nor a group"]),
    Mistake(PAIR, "02:00:00:00:00:0b", "02:00:00:00:00:0a", 1, &["have the same mac"]),
    Mistake(SEGMENT, "10.9.0.9:7702", "10.9.0.3:7702", 1, &["10.9.0.3 is the address of b, too", "third host"]),
    Mistake(TRANSIT, "\"1gbit\"", "\"1gb\"", 1, &["capacity = \"1gb\" is not a rate", "100mbit"]),
    // Names and numbers.
    Mistake(PAIR, "name = \"demo\"", "name = \"Demo Group\"", 1, &["\"Demo Group\" cannot be a name", "a-z, 0-9"]),
    Mistake(PAIR, "name = \"b\"", "name = \"edge\"", 1, &["a member cannot be called `edge`", "another name"]),
    Mistake(PAIR, "name = \"b\"", "name = \"a\"", 1, &["have the same name"]),
    Mistake(PAIR, "\"ec\"", "\"eth0:1\"", 1, &["cannot be the name of an interface", "ip link"]),
    Mistake(PAIR, "\"ec\"", "\"ep\"", 1, &["clients do not come through ep: it leads to a"]),
    Mistake(PAIR, "# heartbeat_ms = 18 ", "heartbeat_ms = 5000 ", 1, &["heartbeat_ms = 5000 is out of range", "5 to 1000"]),
    Mistake(PAIR, "# connections_max = 32768 ", "connections_max = 0 ", 1, &["connections_max = 0 is out of range"]),
    // The server.
    Mistake(PAIR, "[\"/usr/bin/redis-server\", \"--bind\", \"*\", \"-::*\", \"--protected-mode\", \"no\", \"--save\", \"\"]", "[]", 1, &["command is empty", "command = ["]),
    Mistake(PAIR, "# directory = \"/var/lib/redis\"", "directory = \"redis\"", 1, &["directory is not an absolute path", "slash"]),
    Mistake(PAIR, "# state_dirs = [\"/var/lib/redis\"]", "state_dirs = [\"/var/lib\"]", 1, &["is not one server's own", "/var/lib/redis"]),
    Mistake(PAIR, "# env = { TZ = \"UTC\" }", "env = { LD_PRELOAD = \"/x\" }", 1, &["is set by Holdfast itself", "leave it out"]),
    Mistake(PAIR, "# user = \"redis\"", "user = \"\"", 1, &["user is empty", "nobody"]),
    // What does not go together.
    Mistake(PAIR, "[edge]", "[segment]\n[edge]", 1, &["an edge or a segment, not both"]),
    Mistake(PAIR, "# [cold] ", "[cold] ", 1, &["[cold] in a group that is hot", "mode = \"cold\""]),
    Mistake(SEGMENT, "[segment]", "[recover]\npolicy = \"syn\"\n[segment]", 1, &["[recover] means nothing where no edge", "remove it"]),
    Mistake(SEGMENT, "# state_dir = \"/var/lib/holdfast/witness\"", "state_dir = \"witness\"", 1, &["state_dir is not an absolute path", "slash"]),
    Mistake(SEGMENT, "witness = \"10.9.0.9:7702\"", "none = false", 1, &["[arbiter] names nobody", "holdfast witness"]),
    Mistake(SEGMENT, "witness = \"10.9.0.9:7702\"", "", 1, &["[arbiter] names nobody who says which member goes on", "below it one of: witness ="]),
    Mistake(SEGMENT, "interface = \"b0\"", "interface = \"b0\"\nmac = \"02:00:00:00:00:0b\"", 1, &["mac means nothing where no edge", "remove it"]),
    Mistake(SPREAD, "#[recover]", "[recover]\npolicy = \"all\"", 1, &["keeps SYNs and nothing else"]),
    Mistake(TRANSIT, "\"eth2\"", "\"eth1\"", 1, &["have the same near.interface"]),
    // Two at once: each is told, and nothing that follows from them.
    Mistake(PAIR, "0.9.0.", "0.9.0.0.", 4, &["is not an address with a port"]),
    Mistake(PAIR, "mac = \"02:00:00:00:00:", "mac = \"02:00:00:00:", 2, &["is not a hardware address"]),
];

/// A folder with a file and its key, which is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
        let key = holdfast(&["key", "gen"]).stdout;
        fs::write(path.join("demo.key"), key).expect("a key");
        let only_own = fs::Permissions::from_mode(0o600);
        fs::set_permissions(path.join("demo.key"), only_own).expect("permissions");
        Self(path)
    }

    fn file(&self, text: &str) -> String {
        let path = self.0.join("demo.toml");
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    }

    /// The example of a pair that keeps everything in this folder.
    fn pair(&self) -> String {
        let here = self.0.display();
        let text = PAIR.replace("/etc/holdfast", &here.to_string());
        self.file(&text.replacen("[group]", &format!("[group]\nrun_dir = \"{here}/run\""), 1))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays in /tmp harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn holdfast(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast")).args(words).output().expect("the program")
}

/// As somebody who is not root, and has none of root's rights.
fn as_nobody(words: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
    command.args(["--inh-caps=-all", "--no-new-privs"]);
    command.arg(env!("CARGO_BIN_EXE_holdfast")).args(words).output().expect("setpriv")
}

fn said(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}

/// What is wrong with the answer to a mistake.
fn flaws(Mistake(base, from, to, errors, words): &Mistake, folder: &Folder) -> Vec<String> {
    assert!(base.contains(from), "{from}");
    // More than one error are those of every place.
    let times = if *errors > 1 { usize::MAX } else { 1 };
    let text = base.replacen(from, to, times);
    let done = holdfast(&["config", "check", &folder.file(&text)]);
    let said = said(&done);
    let mut flaws: Vec<String> = Vec::new();
    let mut expect = |is_good: bool, what: String| {
        if !is_good {
            flaws.push(what);
        }
    };
    expect(done.status.code() == Some(2), format!("exit code {:?}", done.status.code()));
    expect(done.stdout.is_empty(), "it writes to standard output".to_owned());
    let count = said.matches("remedy: ").count();
    expect(count == *errors, format!("{count} errors"));
    let at = format!("{}:", folder.0.join("demo.toml").display());
    expect(said.contains(&at), "no place".to_owned());
    for word in *words {
        expect(said.contains(word), format!("no `{word}`"));
    }
    for word in FOREIGN {
        expect(!said.contains(word), format!("foreign words: {word}"));
    }
    if flaws.is_empty() { flaws } else { vec![format!("{to}: {}\n{said}", flaws.join(", "))] }
}

#[test]
fn each_mistake_in_a_file_is_told_once_with_its_place_and_a_remedy() {
    let folder = Folder::new("mistakes");
    let flaws: Vec<String> = MISTAKES.iter().flat_map(|it| flaws(it, &folder)).collect();
    assert!(flaws.is_empty(), "{} of {}:\n{}", flaws.len(), MISTAKES.len(), flaws.join("\n"));
    let good = holdfast(&["config", "check", &folder.pair()]);
    assert_eq!(good.status.code(), Some(0), "{}", said(&good));
}

#[test]
fn each_mistake_on_the_command_line_has_its_code_and_words() {
    let folder = Folder::new("commands");
    let file = folder.pair();
    let of = |words: &'static str| -> Vec<String> {
        words
            .split(' ')
            .map(|word| if word == "FILE" { file.clone() } else { word.to_owned() })
            .collect()
    };
    let cases: &[(&'static str, i32, &[&str])] = &[
        ("statsu", 2, &["status"]),
        ("status", 2, &["--config"]),
        ("config check /none/x.toml", 2, &["/none/x.toml: cannot be read", "remedy: "]),
        ("config check /", 2, &["/: cannot be read", "remedy: "]),
        ("config exmaple", 2, &["example"]),
        ("config example --spread --transit", 2, &["cannot be used with"]),
        ("status --config FILE --role bb", 2, &["no role `bb`", "did you mean `b`?", "edge, a, b"]),
        ("status --config FILE --role witness", 2, &["no role `witness`", "edge, a, b"]),
        ("status --config FILE", 2, &["--role edge|a|b"]),
        ("status --config FILE --role b --wait protekted", 2, &["protected"]),
        ("status --config FILE --role b", 4, &["remedy: "]),
        ("events --config FILE --role b", 4, &["remedy: "]),
        ("switchover --config FILE --role a", 4, &["remedy: "]),
        ("switchover --config FILE --role a --to c", 2, &["no member `c`", "a and b", "--to b"]),
        ("status /etc/holdfast/demo.toml", 2, &["tip:", "--config /etc/holdfast/demo.toml"]),
        ("status --config FILE --wait protected --timeout 5min", 2, &["90, 90s, 5m, 1h"]),
        ("init demo --service 10.9.0.100:99999", 2, &["the port 99999 is none"]),
        ("init demo --service 10.9.0.300:7701", 2, &["10.9.0.300 is no IPv4 address"]),
        ("edge trace --config FILE --role edge nonsense", 2, &["is not a flow", "10.9.0.100:80"]),
        ("takeover --config FILE --role a", 2, &["--i-have-powered-it-off"]),
        ("check --config FILE --role bb", 2, &["no role `bb`", "did you mean `b`?"]),
        ("check --pauses 0", 2, &["0 is not in 1..=86400"]),
        ("run --config FILE --role c", 2, &["no role `c`"]),
        ("capture --config FILE --role a -o /dev/null", 4, &["remedy: capture on the edge"]),
        ("capture --config FILE --role edge", 2, &["--output"]),
        ("witness --config FILE", 2, &["remedy: "]),
        ("support --config FILE redis-server", 2, &["remedy: give either"]),
        ("support --try", 2, &["remedy: holdfast support --try PROGRAM"]),
        ("support --run paralel x", 2, &["one of: auto, parallel, one-at-a-time"]),
        ("support --markdown --json", 2, &["cannot be used with"]),
        ("completions bsh", 2, &["bash"]),
    ];
    let mut flaws = Vec::new();
    for (words, code, wanted) in cases {
        let words = of(words);
        let done = holdfast(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let said = said(&done);
        let lacks: Vec<_> = wanted.iter().filter(|word| !said.contains(**word)).collect();
        if done.status.code() != Some(*code) || !lacks.is_empty() {
            flaws.push(format!(
                "{}: {:?}, without {lacks:?}:\n{said}",
                words.join(" "),
                done.status.code()
            ));
        }
    }
    assert!(flaws.is_empty(), "{}", flaws.join("\n"));
}

/// Whoever is not root is told so by every verb that needs it, with code 3.
#[test]
fn who_is_not_root_is_told_so() {
    let folder = Folder::new("rights");
    let file = folder.pair();
    let run = folder.0.join("run");
    fs::create_dir_all(&run).expect("a folder");
    let sockets = ["a", "edge"].map(|role| {
        let path = run.join(format!("{role}.sock"));
        let socket = UnixListener::bind(&path).expect("a socket");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("permissions");
        socket
    });
    let mut flaws = Vec::new();
    for words in [
        "run --role a",
        "status --role a",
        "events --role a",
        "switchover --role a",
        "move --role a --to b",
        "down --role a",
        "capture --role edge -o /dev/null",
        "edge show",
        "edge fence",
        "edge trace 10.0.0.1:4242>10.9.0.100:80",
    ] {
        let words: Vec<&str> = words.split(' ').chain(["--config", &file]).collect();
        let done = as_nobody(&words);
        let said = said(&done);
        let is_told = said.contains("root") && said.contains("remedy: ");
        if done.status.code() != Some(3) || !is_told {
            flaws.push(format!("{words:?}: {:?} {said}", done.status.code()));
        }
    }
    drop(sockets);
    assert!(flaws.is_empty(), "{}", flaws.join("\n"));
}

#[test]
fn examples_of_all_kinds_are_files() {
    let folder = Folder::new("examples");
    for option in ["", "--segment", "--spread", "--transit"] {
        let words = ["config", "example", option];
        let done = holdfast(&words[..if option.is_empty() { 2 } else { 3 }]);
        assert_eq!(done.status.code(), Some(0), "{option}");
        let file = folder.file(&String::from_utf8(done.stdout).expect("text"));
        let checked = holdfast(&["config", "show", &file]);
        assert_eq!(checked.status.code(), Some(0), "{option}: {}", said(&checked));
    }
}

/// `support` in its forms, as people and programs read it.
#[test]
fn a_program_is_judged_in_words_and_in_json() {
    let folder = holdfast(&["support", "/etc"]);
    assert!(String::from_utf8_lossy(&folder.stdout).contains("/etc is no program: it is a folder"));
    let quoted = holdfast(&["support", "sleep", "", "1 2"]);
    assert!(String::from_utf8_lossy(&quoted.stdout).contains("sleep '' '1 2'"), "{quoted:?}");
    let refused = holdfast(&["support", "/none/such"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    let told = String::from_utf8_lossy(&refused.stdout);
    assert!(told.starts_with("refused: /none/such") && told.contains("remedy: "), "{told}");
    let plain = holdfast(&["support", "sleep", "1"]);
    assert_eq!(plain.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&plain.stdout).starts_with("works: sleep 1"));
    let json = holdfast(&["support", "--json", "sleep", "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&json.stdout).expect("an object");
    assert_eq!(
        (&told["schema"], &told["verdict"]),
        (&"holdfast.support/1".into(), &"works".into())
    );
    assert_eq!(told["command"][1], "--json", "what follows the program is its own");
    assert!(told["calls"].as_array().is_some_and(|calls| !calls.is_empty()));
    let table = holdfast(&["support", "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&table.stdout).expect("an object");
    assert!(told["calls"].as_array().is_some_and(|calls| calls.len() > 90));
    let page = holdfast(&["support", "--markdown"]).stdout;
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/SUPPORT.md");
    assert_eq!(page, fs::read(kept).expect("the page"));
}
