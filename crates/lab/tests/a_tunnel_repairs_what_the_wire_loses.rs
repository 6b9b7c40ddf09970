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

#[test]
fn messages_and_bulk_come_through() {
    let begun = Instant::now();
    let ran = Command::new(laboratory())
        .args(["bench", "tunnel", "--quick", "--json", "--loss", "10%", "--workload", "M,B"])
        .args(["--budget-us", "40000"])
        .args(["--lane", "plain-udp,ours,ours-splice"])
        .stdin(Stdio::null())
        .output()
        .expect("the laboratory runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stdout));
    let report: Value = serde_json::from_slice(&ran.stdout).expect("one object");
    let row = |cell: usize, row: usize| &report["cells"][cell]["rows"][row]["rounds"][0];
    let (plain, ours, splice) = (row(0, 0), row(0, 1), row(1, 0));
    for messages in [plain, ours] {
        let offered = number(messages, "/seen/there/offered/packets");
        let lost = number(messages, "/seen/there/lost/packets") / offered;
        assert!((0.04..0.17).contains(&lost), "the wire loses a tenth: {lost}");
    }
    assert!((0.04..0.17).contains(&number(plain, "/delays/lost")), "{plain}");
    assert!(number(ours, "/delays/lost") < 0.01, "{ours}");
    // One repair takes 33 ms, and a few more where programs wake up late; what is lost twice takes two.
    // The simulated test of the same messages has wake-ups that are late by no more than a millisecond.
    assert!(number(ours, "/delays/late_soon") < number(plain, "/delays/late_soon"), "{ours}");
    assert!(number(ours, "/delays/late_now") < number(plain, "/delays/late_now") / 4.0, "{ours}");
    assert!(number(ours, "/wire_bytes_per_byte") > 1.0, "{ours}");
    let cpu_us = number(ours, "/cpu_us_per_packet/0");
    assert!(cpu_us > 0.0 && number(plain, "/cpu_us_per_packet/0") == 0.0, "{ours}");
    // CUBIC alone has 1 of 50 Mbit/s over such a path.
    assert!(number(splice, "/goodput_mbit_per_s") > 5.0, "{splice}");
    println!("{:.1} s", begun.elapsed().as_secs_f64());
}
