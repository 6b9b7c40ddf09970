use super::output::PointRow;
use super::*;
use holdfast_edge::{Law, RightEdge};
use holdfast_netsim::net::run as simulate;
use holdfast_netsim::net::scenario::Alert;
use holdfast_wire::packet::{Checksum, TcpPacket};
use std::path::Path;

const FILE: &str = r#"
seed = 7
end = "60s"

[[link]]
from = "S"
to = "R1"
rate = "100mbit"
delay = "40ms"

[[link]]
from = "R1"
to = "N1"
rate = "100mbit"
delay = "1ms"
queue = "750p"
loss = 0.001

[[link]]
from = "N1"
to = "R2"
delay = "1ms"

[[link]]
from = "R1"
to = "N2"
delay = "1ms"

[[link]]
from = "N2"
to = "R2"
delay = "1ms"

[[link]]
from = "R2"
to = "D"
delay = "8ms"

[[switch]]
from = "R1"
to = "R2"
strings = [["N1"], ["N2"]]

[profile.web]
base = "modern"
congestion = "newreno"
rto_min = "300ms"

[[flow]]
count = 4
from = "S"
to = "D"
every = "10ms"
segments = 100
profile = "web"

[[outage]]
string = 0
from = "100ms"
until = "600ms"
moves_flows = true

[recover]
law = "printed"
policy = "head+tail"

[sweep]
"outage.0.until" = ["300ms", "600ms", "900ms"]
"flow.0.profile" = ["ns2", "web"]
"#;

fn read(text: &str) -> Result<Sweep, Mistakes> {
    Sweep::read(Path::new("x.toml"), text)
}

fn error(change: impl Fn(String) -> String) -> String {
    let text = change(FILE.to_owned());
    match read(&text) {
        Ok(sweep) => sweep.scenario(0).unwrap_err().to_string(),
        Err(mistakes) => mistakes.to_string(),
    }
}

/// The place of a text in the file, as messages name it.
fn place(of: &str) -> String {
    let at = FILE.find(of).unwrap();
    let line = FILE[..at].matches('\n').count() + 1;
    let column = at - FILE[..at].rfind('\n').map_or(0, |it| it + 1) + 1;
    format!("x.toml:{line}:{column}: ")
}

#[test]
fn a_file_becomes_a_scenario() {
    let sweep = read(FILE).unwrap();
    assert_eq!(sweep.points(), 6);
    let ends: Vec<u64> = (0..6)
        .map(|point| {
            let scenario = sweep.scenario(point).unwrap();
            let outcome = simulate(&scenario).unwrap();
            assert!(outcome.flows.iter().all(|flow| flow.finished_ns.is_some()));
            assert!(outcome.flows.iter().any(|flow| flow.moved));
            scenario.outages[0].until_ns / 1_000_000
        })
        .collect();
    // Names are sorted, so that the profile comes first and the end varies fastest.
    assert_eq!(ends, [300, 600, 900, 300, 600, 900]);
}

#[test]
fn the_machines_are_those_that_ship_or_the_thesis() {
    let with = |recover: &str, regulate: &str| {
        let text = FILE.replace("law = \"printed\"\npolicy = \"head+tail\"", recover);
        let text = text.replace("[sweep]", &format!("[regulate]\n{regulate}\n[sweep]"));
        let scenario = read(&text).unwrap().scenario(5).unwrap();
        let outcome = simulate(&scenario).unwrap();
        assert!(outcome.flows.iter().all(|flow| flow.finished_ns.is_some()));
        (scenario.switches[0].clone(), outcome)
    };
    let capacity = "capacity = \"100mbit\"\nrtt_ms = 100";
    let printed = format!("law = \"printed\"\n{capacity}");
    let (printed, _) = with("law = \"printed\"\npolicy = \"head+tail\"", &printed);
    assert_eq!(printed.alert, Alert::Told);
    let control = printed.rate_control.unwrap();
    assert_eq!((control.law, control.interval_ns), (Law::Printed, 250_000_000));
    let recovery = printed.recovery.unwrap();
    assert!(recovery.always && recovery.cache.segments_max == 2);
    let (shipped, outcome) = with("policy = \"head+tail\"\nheartbeat_ms = 10", capacity);
    assert_eq!(shipped.alert, Alert::Heartbeats(10_000_000));
    let control = shipped.rate_control.unwrap();
    assert_eq!((control.law, control.right_edge), (Law::SHIPPED, RightEdge::Keeps));
    assert_eq!((control.interval_ns, control.utilization), (100_000_000, 0.98));
    let recovery = shipped.recovery.unwrap();
    assert!(!recovery.always && recovery.hold_ns > 0 && outcome.recovery[0].resent > 0);
    let (off, outcome) = with("policy = \"off\"", capacity);
    assert!(off.recovery.is_none() && outcome.recovery.is_empty());
}

/// Every mistake has its place, and says what to write.
#[test]
fn errors_say_where_and_what_to_write() {
    let policy = "policy = \"head+tail\"\n";
    let regulate = |rest: &str| format!("[regulate]\ncapacity = \"1mbit\"\n{rest}\n[sweep]");
    let cases: Vec<(&str, String, &str, &str)> = vec![
        (
            "\"40ms\"",
            "\"40\"".into(),
            "\"40\" is not a time",
            "remedy: write for example \"250ms\"",
        ),
        ("\"100mbit\"", "\"fast\"".into(), "\"fast\" is not a rate", "remedy: write for example"),
        ("\"750p\"", "\"750\"".into(), "\"750\" is not a queue", "\"750p\" for packets"),
        ("seed = 7", "sed = 7".into(), "unknown key `sed`", "remedy: did you mean `seed`?"),
        ("\"modern\"", "\"modem\"".into(), "unknown base \"modem\"", "did you mean `modern`?"),
        (
            "\"D\"\nevery",
            "\"E\"\nevery".into(),
            "unknown node \"E\"",
            "one of: D, N1, N2, R1, R2, S",
        ),
        ("0.001", "1.5".into(), "loss = 1.5 is out of bounds", "remedy: let it be 0 to 1"),
        ("100\nprofile", "0\nprofile".into(), "segments = 0 is out of bounds", "1 to 100000000"),
        (
            "4\nfrom",
            "\"four\"\nfrom".into(),
            "\"four\" is not a whole number",
            "write a whole number",
        ),
        (
            "0\nfrom = \"100ms\"",
            "9\nfrom = \"100ms\"".into(),
            "string 9 does not exist: there are 2",
            "name one of 0 to 1",
        ),
        (
            "\"300ms\",",
            "\"60ms\",".into(),
            "the outage ends before it begins",
            "give it a later end",
        ),
        (
            "\"head+tail\"",
            "\"head+tale\"".into(),
            "unknown policy \"head+tale\"",
            "did you mean `head+tail`?",
        ),
        ("\"printed\"", "\"mine\"".into(), "unknown law \"mine\"", "one of: shipped, printed"),
    ];
    for (from, to, message, remedy) in cases {
        let found = error(|text| text.replacen(from, &to, 1));
        let wanted = format!("{}{message}", place(from));
        assert!(found.contains(&wanted) && found.contains(remedy), "{from} -> {to}: {found}");
    }
    let with = |from: &str, to: &str| error(|text| text.replacen(from, to, 1));
    for (from, to, wanted) in [
        (
            policy,
            "policy = \"head\"\nstart = \"always\"\n",
            "`start` is a setting of the machine that ships",
        ),
        (
            "law = \"printed\"\n",
            "ack_copies = 2\n",
            "`ack_copies` is a setting of the thesis' machine",
        ),
        (policy, "pace_mbit = 9000000\n", "remedy: let it be 0 to 1000000"),
        ("[sweep]", &regulate("rtt_ms = 1\nlaw = \"mine\""), "unknown law \"mine\""),
        ("[sweep]", &regulate(""), "`rtt_ms` is missing"),
        (
            "[sweep]",
            &regulate("rtt_ms = 1\nkeeps_right_edge = false"),
            "the shipped law keeps the right edge",
        ),
        ("[[\"N1\"], [\"N2\"]]", "[[\"N1\"], [\"N1\", \"N2\"]]", "different numbers of nodes"),
        ("[[\"N1\"], [\"N2\"]]", "[[\"N1\"], [\"D\"]]", "no links lead from \"R1\" to \"D\""),
        ("string = 0\n", "node = \"N3\"\n", "unknown node \"N3\""),
        ("string = 0\n", "", "nothing is down in this outage"),
        (
            "from = \"R2\"\nto = \"D\"",
            "from = \"X\"\nto = \"D\"",
            "no links lead from \"S\" to \"D\"",
        ),
        ("count = 4", "count = 4000000", "4000000 flows are too many"),
    ] {
        let found = with(from, to);
        assert!(found.contains(wanted) && found.starts_with("x.toml:"), "{from} -> {to}: {found}");
    }
}

/// One look at a file finds all that is wrong with it.
#[test]
fn all_mistakes_are_told_at_once() {
    let of_the_reader = error(|text| {
        let text = text.replace("seed = 7", "sed = 7").replace("\"750p\"", "\"750\"");
        text.replace("segments = 100\n", "").replace("moves_flows = true", "moves_flows = 1")
    });
    assert_eq!(of_the_reader.matches("remedy: ").count(), 4, "{of_the_reader}");
    for wanted in
        ["`sed`", "\"750\" is not a queue", "`segments` is missing", "1 is not true or false"]
    {
        assert!(of_the_reader.contains(wanted), "{wanted}: {of_the_reader}");
    }
    // A value that cannot be read is not missing, too.
    let unread = error(|text| text.replace("segments = 100", "segments = \"many\""));
    assert_eq!(unread.matches("remedy: ").count(), 1, "{unread}");
    let of_the_scenario = error(|text| {
        let text = text.replace("0.001", "1.5").replace("to = \"D\"\nevery", "to = \"E\"\nevery");
        text.replace("string = 0\n", "string = 9\n").replace("\"modern\"", "\"linux\"")
    });
    assert_eq!(of_the_scenario.matches("remedy: ").count(), 4, "{of_the_scenario}");
}

/// Words of earlier releases are answered with today's.
#[test]
fn former_words_are_answered_with_those_of_the_product() {
    let with = |from: &str, to: &str| error(|text| text.replacen(from, to, 1));
    for (from, to, wanted) in [
        ("[recover]", "[recovery]", "write `[recover]`"),
        ("[sweep]", "[rate_control]\n[sweep]", "write `[regulate]`"),
        ("law = \"printed\"", "segments = 2", "write `policy`: \"head\" for 1"),
        ("law = \"printed\"", "bytes_max = 2", "write `memory_mb`"),
        ("law = \"printed\"", "heartbeat = \"20ms\"", "write `heartbeat_ms`"),
    ] {
        let found = with(from, to);
        assert!(found.contains(wanted), "{to}: {found}");
    }
}

#[test]
fn a_dumbbell_needs_no_links() {
    let text = r#"
        [dumbbell]
        rate = "100mbit"
        strings = ["100mbit", "50mbit"]
        delays = ["40ms", "1ms", "1ms", "8ms"]
        queue = "100p"
        loss = { to_bad = 0.001, to_good = 0.1, loss_bad = 0.3 }
        [[flow]]
        count = 30
        segments = 50
        every = "20ms"
        [regulate]
        capacity = "50mbit"
        rtt_ms = 100
        law = "printed"
    "#;
    let sweep = read(text).unwrap();
    let outcome = simulate(&sweep.scenario(0).unwrap()).unwrap();
    assert!(outcome.flows.iter().all(|flow| flow.finished_ns.is_some()));
    // Two thirds of the flows use the string of twice the rate.
    let passed = |link: usize| outcome.links[link].passed as f64;
    assert!((1.5..2.6).contains(&(passed(0) / passed(4))), "{} {}", passed(0), passed(4));
}

#[test]
fn shares_are_read_and_checked() {
    assert_eq!(parse_shard("2/4"), Ok(Shard { number: 2, of: 4 }));
    for bad in ["0/4", "5/4", "x", "1/", "/1", "1/0"] {
        assert!(parse_shard(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_series_holds_every_byte_and_the_queue() {
    let sweep = read(FILE).unwrap();
    let mut scenario = sweep.scenario(3).unwrap();
    let mut series = Series::new(&[0]);
    series.watch(&mut scenario);
    series.add(3, 7, &simulate(&scenario).unwrap());
    let mut rows = series.csv().lines();
    assert_eq!(rows.next(), Some("point,seed,at_s,goodput_mbps,moved_mbps,queue_0_packets"));
    let rows: Vec<Vec<f64>> =
        rows.map(|row| row.split(',').map(|it| it.parse().unwrap()).collect()).collect();
    let bytes = |column: usize| rows.iter().map(|row| row[column]).sum::<f64>() * 1e5 / 8.0;
    let sent = f64::from(4 * 100 * 1448);
    assert!((bytes(3) - sent).abs() < 100.0, "{} of {sent}", bytes(3));
    assert!(bytes(4) > 0.0 && bytes(4) < sent);
    assert!(rows.iter().any(|row| row[5] > 0.0));
}

#[test]
fn mistakes_of_a_sweep_stand_in_the_sweep() {
    let with = |from: &'static str, to: String| error(move |text| text.replacen(from, &to, 1));
    let said = with("[sweep]", "[sweep]\nend = []".to_owned());
    assert!(
        said.contains("x.toml:") && said.contains("the sweep of \"end\" has no values"),
        "{said}"
    );
    let said = with("\"600ms\", \"900ms\"", "\"6xs\", \"soon\"".to_owned());
    assert_eq!(said.matches("is not a time").count(), 2, "{said}");
    assert!(said.contains(&place("\"600ms\", ")), "{said}");
    let said = with("\"outage.0.until\"", "\"outage.0.untl\"".to_owned());
    assert!(said.contains("unknown key `untl`") && said.contains("`until`"), "{said}");
    let said = with("\"outage.0.until\"", "\"outage.7.until\"".to_owned());
    assert!(said.contains("unknown value to sweep") && said.contains("outage.0.until"), "{said}");
    // What only some combinations have is found in all that are looked at.
    let text = FILE.replace("[\"ns2\", \"web\"]", "[\"ns2\", \"wep\"]");
    let sweep = read(&text).unwrap();
    let said = sweep.check(&(0..6).collect::<Vec<_>>()).unwrap_err().to_string();
    assert_eq!(said.matches("unknown profile \"wep\"").count(), 1, "{said}");
    assert!(said.contains(&place("\"web\"]")), "{said}");
}

#[test]
fn two_names_for_one_thing_are_a_mistake() {
    for name in ["reno", "sack", "vegas"] {
        let to = format!("congestion = {name:?}");
        let said = error(|text| text.replacen("congestion = \"newreno\"", &to, 1));
        assert!(said.contains("would be the same as \"newreno\""), "{name}: {said}");
        // ns-2's one-way agents distinguish them.
        let links = FILE.split("[profile.web]").next().unwrap_or_default();
        let one_way = format!(
            "{links}[profile.web]\nbase = \"ns2\"\ncongestion = {name:?}\n\
             [[flow]]\nfrom = \"S\"\nto = \"D\"\nsegments = 9\nprofile = \"web\"\n"
        );
        assert!(read(&one_way).unwrap().scenario(0).is_ok(), "{name}");
    }
}

/// A row has plain numbers with units in the names, and says what it is of; means have intervals.
#[test]
fn rows_and_means_are_ready_for_a_table() {
    let args = <Words as clap::Parser>::parse_from(["sim", "x.toml", "--seeds", "3"]).args;
    let sweep = read(FILE).unwrap();
    let origin = Origin::new(FILE, &sweep, &args);
    let rows = run(&args, &origin, &sweep, &[0, 1]).unwrap().rows;
    assert_eq!(rows.len(), 6);
    let row: serde_json::Value = serde_json::to_value(&rows[3]).unwrap();
    assert_eq!(row["outage.0.until_s"], 0.6);
    assert_eq!((&row["point"], &row["points"], &row["seeds"]), (&1.into(), &6.into(), &3.into()));
    let back: PointRow = serde_json::from_value(row).unwrap();
    assert_eq!(back, rows[3]);
    let csv = means::Means::of(&rows).csv();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("flow.0.profile,outage.0.until_s,point,seeds,"), "{}", lines[0]);
    assert!(lines[0].contains("completion_median_s_mean,completion_median_s_ci95"));
    assert!(lines[1].starts_with("ns2,0.3,0,3,4,0,4,0,"), "{}", lines[1]);
    let svg = plot::plot(&rows).unwrap();
    assert!(svg.contains("outage.0.until_s") && svg.contains("flow.0.profile = "), "{svg}");
    let widths: Vec<usize> = lines.iter().map(|line| line.split(',').count()).collect();
    assert!(widths.iter().all(|width| *width == widths[0]), "{widths:?}");
}

#[derive(clap::Parser)]
struct Words {
    #[command(flatten)]
    args: SimArgs,
}

/// The packets that pass a link, as pcapng.
fn captured(scenario: &Scenario, link: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = capture::Writer::new(&mut bytes, link, scenario).unwrap();
    let _ = Network::new(scenario).unwrap().with_tap(&mut writer).run();
    writer.finish().unwrap();
    bytes
}

#[test]
fn a_capture_is_valid_packets() {
    let sweep = read(FILE).unwrap();
    let scenario = sweep.scenario(3).unwrap();
    let bytes = captured(&scenario, 0);
    let mut packets = 0;
    let mut rest = &bytes[..];
    while let Some((head, _)) = rest.split_first_chunk::<8>() {
        let kind = u32::from_le_bytes(head[..4].try_into().unwrap());
        let length = u32::from_le_bytes(head[4..].try_into().unwrap()) as usize;
        let (block, after) = rest.split_at(length);
        if kind == 6 {
            let captured = u32::from_le_bytes(block[20..24].try_into().unwrap()) as usize;
            let packet = TcpPacket::parse(&block[28..28 + captured], Checksum::Verify).unwrap();
            packets += 1;
            assert_ne!(packet.window, 0, "a window of 0 says that nothing can be taken");
            assert!(packet.payload.len() == 1448 || packets <= 4);
        }
        rest = after;
    }
    assert!(packets > 400, "{packets}");
}

/// tshark, where it is installed, finds every checksum right and nothing malformed in both
/// directions of a link, under every profile.
#[test]
fn tshark_reads_a_capture() {
    for profile in ["ns2", "ns3", "modern", "web"] {
        let text = FILE.replace("profile = \"web\"", &format!("profile = {profile:?}"));
        let scenario = read(&text).unwrap().scenario(0).unwrap();
        for link in [0, 1] {
            let name = format!("holdfast-{}-{profile}-{link}.pcapng", std::process::id());
            let file = std::env::temp_dir().join(name);
            std::fs::write(&file, captured(&scenario, link)).unwrap();
            let mut tshark = std::process::Command::new("tshark");
            tshark.args(["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"]);
            tshark.args(["-T", "fields", "-e", "_ws.malformed", "-e", "ip.checksum.status"]);
            let read = tshark.args(["-e", "tcp.checksum.status", "-r"]).arg(&file).output();
            std::fs::remove_file(&file).unwrap();
            let Ok(read) = read else {
                eprintln!("there is no tshark");
                return;
            };
            let lines = String::from_utf8(read.stdout).unwrap();
            assert!(lines.lines().count() > 100, "{profile}, link {link}: {lines}");
            // A line has nothing malformed, and twice 1 for a good checksum.
            assert!(lines.lines().all(|line| line == "\t1\t1"), "{profile}, link {link}: {lines}");
        }
    }
}

proptest::proptest! {
    /// No text makes the reader panic, or is built into something that cannot run.
    #[test]
    fn any_text_is_read_or_refused(at in 0..FILE.len(), text in "[ -~\\n]{0,12}") {
        if FILE.is_char_boundary(at) {
            let changed = format!("{}{text}{}", &FILE[..at], &FILE[at..]);
            if let Ok(sweep) = read(&changed) {
                let _ = sweep.scenario(0);
            }
        }
    }
}

/// The keys that a table has, as its reader names them.
fn keys<T: serde::de::DeserializeOwned>() -> Vec<String> {
    let error = toml::from_str::<T>("zz = 1").err().expect("no such key").to_string();
    let (_, names) = error.split_once("expected").expect("it says what it takes");
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// docs/SCENARIOS.md explains every key, also a new one, and its examples can be read.
#[test]
fn every_key_is_explained_and_the_example_is_right() {
    use file::{
        DumbbellTable, File, FlowTable, LinkTable, OutageTable, ProfileTable, RecoverTable,
        RegulateTable, SwitchTable,
    };
    let text = include_str!("../../../../docs/SCENARIOS.md");
    let code: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    // A key is set, heads a table, or is between backticks.
    let is_set = |key: &str| {
        let ways =
            [format!("\n{key} ="), format!(" {key} ="), format!("[{key}]"), format!("[{key}.")];
        ways.iter().any(|way| text.contains(way))
            || code.iter().any(|it| it.rsplit('.').next() == Some(key))
    };
    let all = [
        keys::<File>(),
        keys::<DumbbellTable>(),
        keys::<LinkTable>(),
        keys::<SwitchTable>(),
        keys::<ProfileTable>(),
        keys::<FlowTable>(),
        keys::<OutageTable>(),
        keys::<RecoverTable>(),
        keys::<RegulateTable>(),
    ]
    .concat();
    assert!(all.len() > 80, "{}", all.len());
    let missing: Vec<&String> = all.iter().filter(|key| !is_set(key)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let (_, example) = text.split_once("```toml\n").expect("an example");
    let example = example.split("```").next().unwrap_or_default();
    toml::from_str::<File>(example).expect("the example");
}

/// Every row stands for itself: a time, a flow, and numbers whose units are in the names.
#[test]
fn single_flows_have_windows_round_trips_and_their_queue() {
    let mut scenario = read(FILE).unwrap().scenario(3).unwrap();
    let mut each = Each::new(&[2, 0, 2], 2);
    each.watch(&mut scenario);
    let outcome = simulate(&scenario).unwrap();
    each.add((3, 7), &scenario, &outcome);
    let mut rows = each.csv().lines();
    assert_eq!(rows.next(), Some("point,seed,t_s,flow,cwnd_bytes,srtt_ms,queue_packets"));
    let rows: Vec<Vec<&str>> = rows.map(|row| row.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 7 && ["0", "2"].contains(&row[3])), "{rows:?}");
    let trips: Vec<f64> = rows.iter().filter_map(|row| row[5].parse().ok()).collect();
    // The way is 100 ms there and back, and queues make it longer only.
    assert!(!trips.is_empty() && trips.iter().all(|ms| (99.0..500.0).contains(ms)), "{trips:?}");
    assert!(rows.iter().all(|row| row[4].parse::<u64>().is_ok_and(|bytes| bytes > 0)));
    // The same run without being watched is the same run.
    scenario.watch = Default::default();
    assert_eq!(simulate(&scenario).unwrap().events, outcome.events);
    let svg = each.svg();
    assert!(svg.contains(">flow 0<") && svg.contains(">flow 2<") && !svg.contains("NaN"));
    scenario.watch.windows = vec![99];
    assert!(simulate(&scenario).is_err(), "there is no such flow");
}
