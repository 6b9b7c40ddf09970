use super::*;
use holdfast_edge::{Law, RightEdge};
use holdfast_netsim::net::run as simulate;
use holdfast_netsim::net::scenario::Alert;
use holdfast_wire::packet::{Checksum, TcpPacket};

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

[recovery]
segments = 2

[sweep]
"outage.0.until" = ["300ms", "600ms", "900ms"]
"flow.0.profile" = ["ns2", "web"]
"#;

fn error(change: impl Fn(String) -> String) -> String {
    let text = change(FILE.to_owned());
    let sweep = match Sweep::parse(&text) {
        Ok(sweep) => sweep,
        Err(error) => return error.to_string(),
    };
    sweep.file(0).and_then(|file| build(&file)).unwrap_err().to_string()
}

#[test]
fn a_file_becomes_a_scenario() {
    let sweep = Sweep::parse(FILE).unwrap();
    assert_eq!(sweep.points(), 6);
    let ends: Vec<u64> = (0..6)
        .map(|point| {
            let scenario = build(&sweep.file(point).unwrap()).unwrap();
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
fn the_machines_can_be_those_that_ship() {
    let with = |recovery: &str, law: &str| {
        let text = FILE.replace("segments = 2", recovery);
        let text = text.replace("[sweep]", &format!("[rate_control]\n{law}\n[sweep]"));
        let scenario = build(&Sweep::parse(&text).unwrap().file(5).unwrap()).unwrap();
        let outcome = simulate(&scenario).unwrap();
        assert!(outcome.flows.iter().all(|flow| flow.finished_ns.is_some()));
        (scenario.switches[0].clone(), outcome.recovery[0].resent)
    };
    let capacity = "capacity = \"100mbit\"\nrtt = \"100ms\"";
    let (printed, _) = with("segments = 2", capacity);
    assert_eq!(printed.alert, Alert::Told);
    assert_eq!(printed.rate_control.unwrap().law, Law::Printed);
    assert!(printed.recovery.unwrap().always);
    let law = format!("law = \"shipped\"\n{capacity}");
    let (shipped, resent) = with("policy = \"head+tail\"\nheartbeat = \"10ms\"", &law);
    assert_eq!(shipped.alert, Alert::Heartbeats(10_000_000));
    let control = shipped.rate_control.unwrap();
    assert_eq!((control.law, control.right_edge), (Law::SHIPPED, RightEdge::Keeps));
    assert_eq!((control.interval_ns, control.utilization), (100_000_000, 0.98));
    let recovery = shipped.recovery.unwrap();
    assert!(!recovery.always && recovery.hold_ns > 0 && resent > 0);
}

#[test]
fn errors_say_what_to_write() {
    let with = |from: &'static str, to: &'static str| error(move |text| text.replace(from, to));
    for (from, to, wanted) in [
        ("delay = \"40ms\"", "delay = \"40\"", "\"40\" is no time; write for example 250ms"),
        ("\"100mbit\"", "\"fast\"", "\"fast\" is no rate"),
        ("\"750p\"", "\"750\"", "\"750\" is no queue"),
        ("seed = 7", "sed = 7", "unknown field `sed`"),
        (
            "base = \"modern\"",
            "base = \"linux\"",
            "there is no profile \"linux\"; there is ns2, ns3, modern",
        ),
        ("to = \"D\"\nevery", "to = \"E\"\nevery", "there is no node \"E\"; there is D, N1"),
        ("loss = 0.001", "loss = 1.5", "loss is 1.5; let it be 0 to 1"),
        ("segments = 100", "segments = 0", "segments is 0; let it be 1 to"),
        ("count = 4", "count = 4000000", "flows: 4000000 are too many"),
        ("string = 0\n", "string = 9\n", "string 9 does not exist; there are 2"),
        (
            "\"outage.0.until\"",
            "\"outage.7.until\"",
            "there is no place to sweep \"outage.7.until\"",
        ),
        ("[[\"N1\"], [\"N2\"]]", "[[\"N1\", \"N2\"], [\"N2\"]]", "there is no link of string"),
        ("until = \"600ms\"", "until = \"6xs\"", "is no time"),
        ("segments = 2", "policy = \"tail\"", "there is no recovery.policy \"tail\"; there is syn"),
        ("segments = 2", "segments = 2\npolicy = \"head\"", "leave out segments"),
        ("segments = 2", "heartbeat = \"20ms\"", "heartbeat need a policy"),
        (
            "segments = 2",
            "policy = \"head\"\nstart = \"now\"",
            "there is no recovery.start \"now\"; there is suspicion, always",
        ),
        (
            "[sweep]",
            "[rate_control]\ncapacity = \"1mbit\"\nrtt = \"1ms\"\nlaw = \"mine\"\n[sweep]",
            "there is no rate_control.law \"mine\"; there is printed, shipped",
        ),
        (
            "[sweep]",
            "[rate_control]\ncapacity = \"1mbit\"\nrtt = \"1ms\"\nlaw = \"shipped\"\n\
             keeps_right_edge = false\n[sweep]",
            "the shipped law keeps the right edge",
        ),
    ] {
        let found = with(from, to);
        assert!(found.contains(wanted), "{from} -> {to}: {found}");
    }
    let cut = error(|text| text.replace("from = \"R2\"\nto = \"D\"", "from = \"X\"\nto = \"D\""));
    assert!(cut.contains("no links lead from \"S\" to \"D\""), "{cut}");
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
        [rate_control]
        capacity = "50mbit"
        rtt = "100ms"
    "#;
    let sweep = Sweep::parse(text).unwrap();
    let outcome = simulate(&build(&sweep.file(0).unwrap()).unwrap()).unwrap();
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
    let sweep = Sweep::parse(FILE).unwrap();
    let mut scenario = build(&sweep.file(3).unwrap()).unwrap();
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
fn a_sweep_without_values_and_two_names_for_one_thing_are_mistakes() {
    let with = |from: &'static str, to: String| error(move |text| text.replacen(from, &to, 1));
    let said = with("[sweep]", "[sweep]\nend = []".to_owned());
    assert!(said.contains("the sweep of \"end\" has no values"), "{said}");
    for name in ["reno", "sack", "vegas"] {
        let said = with("congestion = \"newreno\"", format!("congestion = {name:?}"));
        assert!(said.contains("would be the same as \"newreno\""), "{name}: {said}");
        // ns-2's one-way agents distinguish them.
        let links = FILE.split("[profile.web]").next().unwrap_or_default();
        let one_way = format!(
            "{links}[profile.web]\nbase = \"ns2\"\ncongestion = {name:?}\n\
             [[flow]]\nfrom = \"S\"\nto = \"D\"\nsegments = 9\nprofile = \"web\"\n"
        );
        let sweep = Sweep::parse(&one_way).unwrap();
        assert!(build(&sweep.file(0).unwrap()).is_ok(), "{name}");
    }
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
    let sweep = Sweep::parse(FILE).unwrap();
    let scenario = build(&sweep.file(3).unwrap()).unwrap();
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
        let scenario = build(&Sweep::parse(&text).unwrap().file(0).unwrap()).unwrap();
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
            if let Ok(sweep) = Sweep::parse(&changed) && sweep.points() > 0 {
                let _ = sweep.file(0).and_then(|file| build(&file));
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
        DumbbellTable, File, FlowTable, LinkTable, OutageTable, ProfileTable, RateControlTable,
        RecoveryTable, SwitchTable,
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
        keys::<RecoveryTable>(),
        keys::<RateControlTable>(),
    ]
    .concat();
    assert!(all.len() > 80, "{}", all.len());
    let missing: Vec<&String> = all.iter().filter(|key| !is_set(key)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let (_, example) = text.split_once("```toml\n").expect("an example");
    let example = example.split("```").next().unwrap_or_default();
    toml::from_str::<File>(example).expect("the example");
}
