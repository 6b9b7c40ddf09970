//! A few seconds of `bench tunnel`: over a wire that loses a tenth of all packets nearly all messages
//! come through the tunnel, what is lost is what the wire was told to lose, and nothing fails. Needs
//! root and the programs beside this test.

use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The binary of the laboratory, which lies above the tests.
fn laboratory() -> std::path::PathBuf {
    let own = std::env::current_exe().expect("this program is somewhere");
    let folder = own.parent().and_then(|deps| deps.parent()).expect("it lies in a folder");
    folder.join("holdfast-lab")
}

fn number(row: &Value, place: &str) -> f64 {
    row.pointer(place).and_then(Value::as_f64).unwrap_or_else(|| panic!("{place} in {row}"))
}

/// Share of messages that come later than one repair and 3 ms after half of them, or never. A host whose
/// programs wake up late is late for all of them: plain UDP's median is 10 to 14 ms, then.
fn late_soon(row: &Value) -> f64 {
    let curve = row["delays"]["curve_ms"].as_array().expect("a distribution");
    let deadline_ms = number(row, "/delays/p50_ms") + 23.0;
    let late = curve.iter().filter(|it| it.as_f64().is_some_and(|ms| ms > deadline_ms)).count();
    let (share, lost) = (late as f64 / curve.len() as f64, number(row, "/delays/lost"));
    lost + share * (1.0 - lost)
}

#[test]
fn messages_and_bulk_come_through() {
    let begun = Instant::now();
    let ran = Command::new(laboratory())
        .args(["bench", "tunnel", "--quick", "--json", "--loss", "10%", "--workload", "M,B"])
        .args(["--budget-us", "40000"])
        .args(["--lane", "plain-udp,ours,ours-now,ours-splice"])
        .stdin(Stdio::null())
        .output()
        .expect("the laboratory runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stdout));
    let report: Value = serde_json::from_slice(&ran.stdout).expect("one object");
    let row = |cell: usize, row: usize| &report["cells"][cell]["rows"][row]["rounds"][0];
    let (plain, ours, copied, splice) = (row(0, 0), row(0, 1), row(0, 2), row(1, 0));
    for messages in [plain, ours, copied] {
        let offered = number(messages, "/seen/there/offered/packets");
        let lost = number(messages, "/seen/there/lost/packets") / offered;
        assert!((0.04..0.17).contains(&lost), "the wire loses a tenth: {lost}");
    }
    assert!((0.04..0.17).contains(&number(plain, "/delays/lost")), "{plain}");
    assert!(number(ours, "/delays/lost") < 0.01, "{ours}");
    assert!(late_soon(copied) < late_soon(plain) / 2.0, "{copied}");
    // Where the cap forbids most copies what is lost twice takes two repairs.
    assert!(late_soon(ours) < late_soon(plain), "{ours}");
    assert!(number(ours, "/delays/late_now") < number(plain, "/delays/late_now") / 4.0, "{ours}");
    assert!(number(ours, "/wire_bytes_per_byte") > 1.0, "{ours}");
    let cpu_us = number(ours, "/cpu_us_per_packet/0");
    assert!(cpu_us > 0.0 && number(plain, "/cpu_us_per_packet/0") == 0.0, "{ours}");
    // CUBIC alone has 1 of 50 Mbit/s over such a path.
    assert!(number(splice, "/goodput_mbit_per_s") > 5.0, "{splice}");
    println!("{:.1} s", begun.elapsed().as_secs_f64());
}
