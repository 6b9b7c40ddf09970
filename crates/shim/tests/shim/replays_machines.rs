//! What belongs to the machine (interfaces, addresses, clocks of threads), and what
//! a survivor must still have: the rest of what it has read in part.

use crate::harness::{
    ask_at, compiled, run_and_promote, run_and_promote_family_anew, scratch, sh, wait_for, write,
};
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

/// Each member has its own /etc/hosts.
#[test]
fn names_are_what_they_are_on_the_primary() {
    const OF_PRIMARY: &str = "192.0.2.1 asked.test\n192.0.2.7 one.test\n";
    let Some(program) = compiled("asks.c") else { return };
    let (path, dir) = (program.display().to_string(), scratch("names"));
    let hosts = dir.join("hosts");
    write(&hosts, OF_PRIMARY);
    // SAFETY: this thread and its servers only.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_FS | libc::CLONE_NEWNS) }, 0);
    sh(&format!("mount --make-rprivate / && mount --bind {} /etc/hosts", hosts.display()));
    let load = || {
        wait_for(PORT + 1);
        for _ in 0..100 {
            let names = ask_at(PORT + 1, "6");
            assert_eq!(names, "names 0 192.0.2.1 asked.test 0 one.test\n");
        }
    };
    let anew = || write(&hosts, &OF_PRIMARY.replace(".1", ".2").replace("one", "two"));
    let argv = [&path[..], &(PORT + 1).to_string()];
    run_and_promote_family_anew(&argv, PORT + 1, "names", load, anew, || {
        assert_eq!(ask_at(PORT + 1, "6"), "names 0 192.0.2.2 asked.test 0 two.test\n");
    });
    sh("umount /etc/hosts");
    std::fs::remove_dir_all(dir).unwrap();
    let _ = std::fs::remove_file(program);
}
