//! Every call that reads or sends, with every flag and with buffers that are null,
//! short or long: what the server gets is the same without the shim, recorded, and
//! replayed.

use crate::harness::{compiled, run, wait_for};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Command};

const PLAIN_PORT: u16 = 16_370;
const PORT: u16 = 16_371;
/// What each client sends behind the number of its case.
const BYTES: usize = 64;

/// The program without the shim.
struct Plain(Child);

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ask(port: u16, case: i32) -> String {
    let client = TcpStream::connect(("127.0.0.1", port));
    let mut client = client.unwrap_or_else(|error| panic!("case {case}: {error}"));
    let mut request = case.to_le_bytes().to_vec();
    request.extend((0..BYTES).map(|i| b'a' + (i % 26) as u8));
    client.write_all(&request).expect("sent");
    client.shutdown(Shutdown::Write).expect("ended");
    let mut answer = String::new();
    // A server that closes with bytes unread resets the connection.
    let _ = client.read_to_string(&mut answer);
    answer
}

/// What came of all cases.
fn all(port: u16) -> Vec<String> {
    wait_for(port);
    (0..).map(|case| ask(port, case)).take_while(|answer| answer != "end\n").collect()
}

fn plain(program: &Path) -> Vec<String> {
    let child = Command::new(program).arg(PLAIN_PORT.to_string()).spawn().expect("started");
    let _plain = Plain(child);
    all(PLAIN_PORT)
}

/// What is refused under the shim, and says so.
fn is_refused(case: &str) -> bool {
    case.contains("recvmmsg") || case.contains("OOB: ")
}

#[test]
fn every_flag_means_what_it_means_without_the_shim() {
    let Some(program) = compiled("flags.c") else { return };
    let without = plain(&program);
    assert!(without.len() > 1000, "only {} cases", without.len());
    let path = program.display().to_string();
    // The replica compares every byte of every answer with the recorded one.
    run(&[&path, &PORT.to_string()], PORT, "flags", || {
        let with = all(PORT);
        assert_eq!(without.len(), with.len());
        for (without, with) in without.iter().zip(&with) {
            if is_refused(without) {
                let answer = with.split(": ").nth(1).unwrap_or_default();
                assert!(answer.starts_with("-1 errno"), "{with}");
            } else {
                assert_eq!(without, with);
            }
        }
    });
    let _ = std::fs::remove_file(program);
}
