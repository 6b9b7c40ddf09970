//! What a redirector does with maps that another version has left: those with something to remember
//! are refused and left unchanged; the others are made anew.

use crate::common::redirector::{FLOWS_MAX, Fixture, request};
use crate::common::{PASS, REDIRECT, SYN, is_root, sh};
use aya::maps::MapData;
use holdfast_linux::bpf::{BpfError, mend_pins};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Name of a map whose layout no other map has, as if another version had made it.
const STRANGE: &str = "spread_fragments";

fn established(name: &str) -> Fixture {
    let mut f = Fixture::new(name);
    f.serve(&[0]);
    for flags in [SYN, 0] {
        assert_eq!(f.send(&request(40000).flags(flags).build()).0, REDIRECT);
    }
    f
}

/// Puts the pin of one map in the place of another; returns the map that was pinned there.
fn swap(pins: &Path, map: &str, by: &str) -> MapData {
    let path = pins.join(map);
    let before = MapData::from_pin(&path).expect("pinned");
    std::fs::remove_file(&path).expect("removed");
    MapData::from_pin(pins.join(by)).expect("pinned").pin(&path).expect("pinned again");
    before
}

fn refusal(f: &Fixture, flows_max: u32) -> String {
    match f.try_attach(flows_max) {
        Err(error @ BpfError::Incompatible { .. }) => error.to_string(),
        Err(error) => panic!("an error of another kind: {error}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn what_remembers_in_another_layout_is_refused_and_goes_on() {
    if !is_root() {
        return;
    }
    let mut f = established("pins-refused");
    let pins = f.pins();
    for map in [
        "spread_config",
        "spread_directories",
        "spread_tables",
        "spread_hosts",
        "spread_flows4",
        "spread_flows6",
    ] {
        let before = swap(&pins, map, STRANGE);
        let text = refusal(&f, FLOWS_MAX);
        for part in [map, "40-byte keys", "another version", &format!("rm -r {}", pins.display())] {
            assert!(text.contains(part), "{part}: {text}");
        }
        std::fs::remove_file(pins.join(map)).expect("removed");
        assert!(refusal(&f, FLOWS_MAX).contains("none"), "{map} is not there");
        assert!(!pins.join(map).exists(), "a refusal makes nothing");
        before.pin(pins.join(map)).expect("pinned again");
        assert_eq!(f.send(&request(40000).build()).0, REDIRECT, "the old one goes on");
    }
    let text = refusal(&f, 2 * FLOWS_MAX);
    assert!(text.contains("16 entries") && text.contains("flows_max"), "{text}");
    f.attach_again();
    assert_eq!(f.redirect.flows().count(), 1, "it remembers everything");

    // This is the remedy in the message.
    std::fs::remove_dir_all(&pins).expect("removed");
    f.redirect = f.try_attach(2 * FLOWS_MAX).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((f.redirect.flows().count(), f.redirect.flows().max), (0, 2 * FLOWS_MAX));
    assert_eq!(f.send(&request(40000).build()).0, PASS, "no service is known yet");
}

#[test]
fn what_need_not_remember_is_made_anew() {
    if !is_root() {
        return;
    }
    let mut f = established("pins-renewed");
    let pins = f.pins();
    for map in [
        "counters",
        "capture_credit",
        "captures",
        "spread_embryos4",
        "spread_embryos6",
        "spread_datagrams4",
        "spread_datagrams6",
        "spread_full",
    ] {
        let before = swap(&pins, map, STRANGE).info().expect("a map").key_size();
        f.attach_again();
        let after = MapData::from_pin(pins.join(map)).expect("pinned").info().expect("a map");
        assert_eq!(after.key_size(), before, "{map}");
    }
    assert_eq!(f.redirect.flows().count(), 1);
    assert_eq!(f.count("redirected"), 0, "counted from now on");
    assert_eq!(f.send(&request(40000).build()).0, REDIRECT);
    assert_eq!(f.count("redirected"), 1);
    for flags in [SYN, 0] {
        assert_eq!(f.send(&request(40001).flags(flags).build()).0, REDIRECT);
    }
    assert_eq!(f.redirect.flows().count(), 2);
}

/// Emptying `/run` removes names, and not what they stand for.
#[test]
fn what_was_unpinned_by_others_is_pinned_again_and_nothing_else() {
    if !is_root() {
        return;
    }
    let mut f = established("pins-mended");
    let (pins, all) = (f.pins(), f.pins().parent().expect("a folder").to_owned());
    let names = |at: &Path| {
        let found = std::fs::read_dir(at).into_iter().flatten().flatten();
        let names = found.map(|entry| entry.file_name());
        // The kernel has files of its own in the root directory.
        let is_ours = |name: &std::ffi::OsString| !name.to_string_lossy().ends_with(".debug");
        names.filter(is_ours).collect::<std::collections::BTreeSet<_>>()
    };
    let before = (names(&all), names(&pins));
    assert!(!mend_pins(&all).expect("nothing is missing"));
    for unmounts in [false, true] {
        std::fs::remove_dir_all(&pins).expect("removed");
        for mark in names(&all) {
            std::fs::remove_dir(all.join(mark)).expect("removed");
        }
        if unmounts {
            sh(&format!("umount {}", all.display()));
            sh(&format!("rmdir {}", all.display()));
        }
        assert!(mend_pins(&all).expect("they are back"));
        assert_eq!((names(&all), names(&pins)), before);
        let mode = all.metadata().expect("mounted").permissions().mode() & 0o777;
        assert!(!unmounts || mode == 0o700, "{mode:o}: nobody else makes folders there");
        f.attach_again();
        assert_eq!(f.redirect.flows().count(), 1, "it remembers everything");
        assert_eq!(f.send(&request(40000).build()).0, REDIRECT);
    }
    // Pins that this process removes itself stay away.
    holdfast_linux::bpf::Redirect::detach_stale(&["ec"], &f.config.group, &all).expect("removed");
    assert!(!mend_pins(&all).expect("nothing is missing"));
    assert!(!pins.exists());
}
