//! Small writes wait for the backup, by connection: what a server writes later by another
//! descriptor of the same connection does not overtake them, and an end does not lose them.

use crate::harness::{compiled, run, wait_for};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

const PORT: u16 = 16_454;
const MANY: usize = 9000;

#[test]
fn what_is_written_by_several_descriptors_of_a_connection_arrives_in_order() {
    let Some(program) = compiled("doubles.c") else { return };
    let path = program.display().to_string();
    let line = format!("HEAD {}\n", "x".repeat(MANY));
    let answers = [
        ('a', line.repeat(2)),
        ('b', format!("early {line}")),
        ('c', format!("early {line}")),
        ('d', "bye\n".to_owned()),
        ('e', line.clone()),
    ];
    run(&[&path, &PORT.to_string()], PORT, "doubles", || {
        wait_for(PORT);
        for _ in 0..20 {
            for (question, expected) in &answers {
                let mut client = TcpStream::connect(("127.0.0.1", PORT)).expect("connected");
                write!(client, "{question}").expect("asked");
                client.shutdown(Shutdown::Write).expect("ended");
                let mut answer = String::new();
                client.read_to_string(&mut answer).expect("answered");
                assert!(answer == *expected, "{question}: {answer:.100}");
            }
        }
    });
    let _ = std::fs::remove_file(program);
}
