//! `holdfast capture` shows what the edge does to packets, and nobody is slower
//! for it or hears of it.

use crate::world;
use holdfast_lab::testbed::Role;
use std::process::Stdio;
use std::time::Duration;

/// Of the pcapng specification.
const ENHANCED_PACKET: u32 = 6;

#[test]
fn packets_can_be_watched() {
    let _limit = world::limit(Duration::from_secs(60));
    world::with_redis(|testbed, group| {
        let mut capture = testbed.host(Role::Edge).command(world::binary());
        capture.args(["capture", "--role", "edge", "--packets", "50", "--seconds", "20"]);
        capture.args(["--output", "-", "--config"]).arg(group.config());
        let capture = capture.stdout(Stdio::piped()).spawn().expect("a capture");
        world::finish(world::start(testbed, &world::counting(1500, 0, None)), group);
        let output = capture.wait_with_output().expect("its end");
        assert!(output.status.success());
        let comments = comments(&output.stdout);
        assert_eq!(comments.len(), 50);
        assert!(comments.iter().all(|comment| comment == "holdfast: redirected"), "{comments:?}");
    });
}

/// The comments of a file's packets, each of which is whole.
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
