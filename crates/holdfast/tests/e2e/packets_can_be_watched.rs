//! `holdfast capture` shows what the edge does to packets, without slowing or telling anybody.

use crate::{transit, world};
use holdfast_lab::testbed::strings::Edge;
use holdfast_lab::testbed::{Host, Role};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Type of a packet's block in the pcapng specification.
const ENHANCED_PACKET: u32 = 6;

#[test]
fn redirected_ones() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis(|testbed, group| {
        let capture = watch(testbed.host(Role::Edge), "edge", group.config(), (50, 20));
        world::finish(world::start(testbed, &world::counting(1500, 0, None)), group);
        let comments = seen(capture);
        assert_eq!(comments.len(), 50);
        assert!(comments.iter().all(|comment| comment == "holdfast: redirected"), "{comments:?}");
    });
}

#[test]
fn resent_ones() {
    let _limit = world::limit(Duration::from_secs(90));
    // A busy machine has little time to read, and most of what passes is not of interest: packets
    // without room are not shown.
    assert!((0..4).any(|_| is_resent_shown()), "nothing was shown as resent");
}

/// Whether a capture shows resent packets after an outage of all strings.
fn is_resent_shown() -> bool {
    let mut shown = false;
    let mut plan = transit::plan(&[100, 100], "");
    plan.tables = "[recover]\nstart = \"always\"\n".to_owned();
    transit::with_strings(&plan, |strings| {
        let run = transit::counting(strings, 4000);
        transit::pause(500);
        strings.cut_all().expect("cut");
        // Only what begins now is of interest.
        transit::pause(300);
        let near = strings.edge(Edge::Near);
        let capture = watch(near, "near", &near.inside().join("holdfast.toml"), (20_000, 3));
        transit::pause(300);
        strings.restore_all().expect("restored");
        transit::finish(strings, run);
        shown = seen(capture).iter().any(|comment| comment == "holdfast: resent");
    });
    shown
}

/// Starts `holdfast capture` on a host, for at most so many packets and seconds.
fn watch(host: &Host, role: &str, config: &Path, (packets, seconds): (u64, u64)) -> Child {
    let mut capture = host.command(world::binary());
    capture.args(["capture", "--role", role, "--packets", &packets.to_string()]);
    capture.args(["--seconds", &seconds.to_string(), "--output", "-", "--config"]).arg(config);
    capture.stdout(Stdio::piped()).spawn().expect("a capture")
}

/// The comments in a capture; tshark, if it is installed, must read the same.
fn seen(capture: Child) -> Vec<String> {
    let output = capture.wait_with_output().expect("its end");
    assert!(output.status.success());
    let comments = comments(&output.stdout);
    let file = std::env::temp_dir().join(format!("holdfast-{}.pcapng", std::process::id()));
    std::fs::write(&file, &output.stdout).expect("a file");
    let mut tshark = Command::new("tshark");
    tshark.args(["-T", "fields", "-e", "frame.comment", "-e", "_ws.malformed", "-r"]).arg(&file);
    match tshark.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => eprintln!("there is no tshark"),
        Err(error) => panic!("tshark: {error}"),
        Ok(read) => {
            let read = String::from_utf8_lossy(&read.stdout);
            let lines: Vec<&str> = read.lines().map(str::trim_end).collect();
            assert_eq!(lines, comments, "tshark");
        }
    }
    std::fs::remove_file(&file).expect("it was there");
    comments
}

/// The comments of a file's packets, each of which must be complete.
fn comments(mut file: &[u8]) -> Vec<String> {
    let word = |bytes: &[u8], at: usize| {
        u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
    };
    let mut found = Vec::new();
    while !file.is_empty() {
        let (block, rest) = file.split_at(word(file, 4) as usize);
        if word(block, 0) == ENHANCED_PACKET {
            let option = &block[28 + (word(block, 20) as usize).next_multiple_of(4)..];
            let length = usize::from(u16::from_le_bytes([option[2], option[3]]));
            found.push(String::from_utf8_lossy(&option[4..4 + length]).into_owned());
        }
        file = rest;
    }
    found
}
