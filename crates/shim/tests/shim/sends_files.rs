//! What `sendfile` sends is compared by the file's parts, once the file has been left alone for a
//! while: it is not read again each time, and a file that differs is still found out.

use crate::harness::{Outcome, headers, observe_edited, scratch, sh, wait_for, write};
use holdfast_wire::log::{BY_FILE, Header, Op};
use holdfast_wire::shm::mode;
use std::path::Path;
use std::time::Duration;

/// Longer than a file must have been left alone.
const SETTLED: Duration = Duration::from_millis(3100);

/// Records nginx under load, lets `between` change the files, and replays it. How many intents said
/// which part of a file they were of, and what came of it.
fn replayed(name: &str, port: u16, between: impl FnOnce(&Path)) -> (usize, Outcome) {
    let dir = scratch(name);
    let root = dir.display();
    write(
        &dir.join("nginx.conf"),
        &format!(
            "daemon off; master_process off; worker_processes 1; pid nginx.pid; error_log error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3;\n\
             uwsgi_temp_path t4; scgi_temp_path t5; sendfile on;\n\
             server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
        ),
    );
    let conf = dir.join("nginx.conf").display().to_string();
    let argv = ["/usr/sbin/nginx", "-p", ".", "-c", &conf];
    let load = || {
        wait_for(port);
        let get = format!("curl -sf http://127.0.0.1:{port}/256k.bin | cmp - {root}/256k.bin");
        sh(&get);
        std::thread::sleep(SETTLED);
        sh(&get);
        sh(&format!("wrk -d1 -c4 -t1 http://127.0.0.1:{port}/256k.bin; {get}"));
    };
    let mut by_file = 0;
    let outcome = observe_edited(&argv, port, name, load, |log| {
        by_file = count(log);
        between(&dir);
    });
    let _ = std::fs::remove_dir_all(dir);
    (by_file, outcome)
}

fn count(log: &[u8]) -> usize {
    let is_it = |header: Header| header.op == Op::Intent as u8 && header.flags & BY_FILE != 0;
    headers(log).filter(|(_, header)| is_it(*header)).count()
}

#[test]
fn what_is_left_alone_is_compared_by_its_parts() {
    let (by_file, o) = replayed("parts", 16_461, |_| {});
    assert!(by_file > 20, "{by_file}");
    assert_eq!((o.left, o.replica.0), (0, mode::REPLAY), "{:?} {}", o.replica, o.said);
}

#[test]
fn a_file_that_differs_is_found_out() {
    let (by_file, o) = replayed("differs", 16_462, |dir| {
        let mut bytes = std::fs::read(dir.join("256k.bin")).expect("the document");
        bytes[100_000] ^= 1;
        std::fs::write(dir.join("256k.bin"), bytes).expect("the document");
    });
    assert!(by_file > 20, "{by_file}");
    assert_eq!(o.replica.0, mode::DIVERGED, "{}", o.said);
    assert!(o.replica.1.contains("writes other bytes"), "{}", o.replica.1);
}
