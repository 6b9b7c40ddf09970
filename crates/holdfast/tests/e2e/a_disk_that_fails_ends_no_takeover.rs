//! The edge's disk fails at the moment of a takeover: the backup, which holds the
//! last copy of everything, waits for it and then goes on.

use crate::world;
use holdfast_lab::load::Action;
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::process::Command;
use std::time::Duration;

/// Library in which fdatasync fails while the file that HF_DISK names begins with `f`.
const DISK_C: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int fdatasync(int fd) {
    char c = 'w';
    int mood = open(getenv("HF_DISK"), O_RDONLY | O_CLOEXEC);
    if (mood >= 0) { if (read(mood, &c, 1) != 1) c = 'w'; close(mood); }
    if (c == 'f') { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
"#;

/// Time for which the disk fails after the primary's server is dead, in ms.
const FAILS_MS: u64 = 1500;

#[test]
fn the_backup_waits_for_the_disk() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let edge = testbed.host(Role::Edge);
    let (source, library) = (edge.outside().join("disk.c"), edge.outside().join("disk.so"));
    std::fs::write(&source, DISK_C).expect("a source");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
    assert!(cc.status().expect("a C compiler").success());
    let mood = edge.outside().join("disk.mood");
    std::fs::write(&mood, "works").expect("a disk");
    let inside = |file: &str| edge.inside().join(file).display().to_string();
    let options = GroupOptions {
        heartbeat_ms: Some(100),
        edge_env: vec![
            ("LD_PRELOAD".to_owned(), inside("disk.so")),
            ("HF_DISK".to_owned(), inside("disk.mood")),
        ],
        ..GroupOptions::default()
    };
    let recipe =
        Recipe::prepare(Program::Redis, testbed.host(Role::Primary), 0).expect("a directory");
    Recipe::prepare(Program::Redis, testbed.host(Role::Backup), 0).expect("a directory");
    let group = Group::start(&testbed, &recipe, &options).expect("the group protects");
    let server = group.server_pid(Role::Primary).expect("a server");
    let write = |what: &str| {
        Action::Run(
            ["sh", "-c", &format!("echo {what} > {}", mood.display())].map(String::from).to_vec(),
        )
    };
    let fault = vec![
        (0, write("fails")),
        (100_000, Action::Kill(server)),
        (100_000 + FAILS_MS * 1000, write("works")),
    ];
    let load = world::counting(3300, 300, Some(fault));
    let run = world::start(&testbed, &load);
    world::wait_until("the edge to name its disk", || {
        let status = group.status(Role::Edge).unwrap_or_default();
        let says = |name: &str, part: &str| status[name].as_str().unwrap_or("").contains(part);
        status["state"] == "waiting" && says("reason", "edge.state") && says("remedy", "the disk")
    });
    world::finish(run, &group);
    let status = group.status(Role::Backup).expect("the survivor answers");
    assert_eq!(status["role"], "primary", "{status}");
    let fence_us = status["last_takeover"]["phases_us"]["fence"].as_u64().unwrap_or(0);
    assert!(fence_us > FAILS_MS * 500, "the disk did not fail in time: {status}");
    // The backup has asked many times, and reported it once.
    let events = group.events(Role::Backup);
    let since = events.iter().skip_while(|(_, what)| what != "promote");
    let said = since.filter(|(_, what)| what == "state").count();
    assert!((2..8).contains(&said), "{said} states: {events:#?}");
}
