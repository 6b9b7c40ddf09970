//! A replica that differs says where, and what a person can do about it.

use crate::harness::{compiled, headers, observe_edited, wait_for};
use holdfast_wire::log::{Header, Op};
use holdfast_wire::shm::mode;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use zerocopy::IntoBytes as _;

/// Changes the first record of this kind.
fn change(log: &mut [u8], op: Op, change: impl FnOnce(&mut Header)) {
    let found = headers(log).find(|(_, header)| header.op == op as u8);
    let (at, mut header) = found.unwrap_or_else(|| panic!("no {} in the log", op.name()));
    change(&mut header);
    log[at..][..size_of::<Header>()].copy_from_slice(header.as_bytes());
}

/// What the replica says of a log that was changed.
fn reason(port: u16, edit: impl FnOnce(&mut [u8])) -> String {
    let Some(program) = compiled("flags.c") else { return String::new() };
    let path = program.display().to_string();
    let load = || {
        wait_for(port);
        let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        client.write_all(&0i32.to_le_bytes()).expect("asked");
        client.shutdown(Shutdown::Write).expect("ended");
        let _ = client.read_to_end(&mut Vec::new());
    };
    let o = observe_edited(&[&path, &port.to_string()], port, "says", load, edit);
    let _ = std::fs::remove_file(program);
    assert_eq!(o.replica.0, mode::DIVERGED, "{}", o.said);
    o.replica.1
}

#[test]
fn every_kind_of_difference_has_a_hint() {
    let said = reason(16_375, |log| change(log, Op::Intent, |header| header.hash ^= 1));
    assert!(said.contains("is address randomisation off on both members?"), "{said}");
    let said = reason(16_376, |log| change(log, Op::Intent, |header| header.ret += 1));
    assert!(said.ends_with("files or settings that differ"), "{said}");
    let said = reason(16_377, |log| change(log, Op::Read, |header| header.op = Op::Fork as u8));
    assert!(said.contains("one process"), "{said}");
    // An intent has no name of a call.
    let said = reason(16_378, |log| change(log, Op::Read, |header| header.op = Op::Intent as u8));
    assert!(said.contains("did Intent on descriptor "), "{said}");
    assert!(said.contains("the replica does Read on descriptor "), "{said}");
    let said = reason(16_379, |log| change(log, Op::Read, |header| header.op = Op::Lock as u8));
    assert!(said.contains("threads race outside pthread locks"), "{said}");
}
