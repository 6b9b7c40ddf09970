//! What belongs to the machine (interfaces, addresses, clocks of threads), and what
//! a survivor must still have: the rest of what it has read in part.

mod shim_harness;

use shim_harness::{ask_at, compiled, run_and_promote, wait_for};
use std::io::Write as _;
use std::net::TcpStream;

const PORT: u16 = 16_372;

fn ask(question: &str) -> String {
    ask_at(PORT, question)
}

#[test]
fn what_only_the_machine_knows_replays_and_the_rest_survives() {
    let Some(program) = compiled("asks.c") else { return };
    let path = program.display().to_string();
    let load = || {
        wait_for(PORT);
        for round in 0..20 {
            let interfaces = ask("0");
            assert!(interfaces.contains(" -1 95 "), "SIOCETHTOOL: {interfaces}");
            assert!(ask("1").starts_with("addresses 0 "));
            assert!(ask("2").starts_with("clocks 0 "));
            assert_eq!(ask("3"), "paths 12 Written piped -1 1\n", "round {round}");
        }
        // A megabyte for a client that does not read, and how much of it waits.
        let mut client = TcpStream::connect(("127.0.0.1", PORT)).expect("connected");
        client.write_all(b"9").expect("asked");
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(client);
        assert_eq!(ask("4"), "put s a l\n");
    };
    run_and_promote(&[&path, &PORT.to_string()], PORT, "machines", load, || {
        assert_eq!(ask("5"), "get tream another\n");
        assert_eq!(ask("3"), "paths 12 Written piped -1 1\n");
        assert!(ask("1").starts_with("addresses 0 "));
        assert!(ask("2").starts_with("clocks 0 "));
    });
    let _ = std::fs::remove_file(program);
}
