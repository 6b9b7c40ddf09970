//! Second daemons, hosts with the same name, strangers and scarcity.

use crate::bed::*;
use holdfast::channel::ChannelError;
use holdfast::config::Role;
use holdfast_wire::message::Message;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

#[test]
fn two_daemons_of_one_role_never_run_at_once() {
    in_bed("twice", |bed| {
        for round in 0..10 {
            bed.kill();
            let mut two = [bed.daemon(Stdio::piped()), bed.daemon(Stdio::piped())];
            let loser = wait_for("one to give way", || {
                two.iter_mut().position(|it| it.try_wait().unwrap().is_some())
            });
            wait_for("the other one", || bed.ask("status").ok());
            let [mut first, mut second] = two;
            let (lost, kept) =
                if loser == 0 { (&mut first, &mut second) } else { (&mut second, &mut first) };
            let mut said = String::new();
            lost.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert!(said.contains("runs already"), "{round}: {said}");
            assert!(kept.try_wait().unwrap().is_none(), "round {round}");
            bed.daemon = Some(if loser == 0 { second } else { first });
            // A third daemon is not accepted either, and takes nothing with it.
            let third = bed.daemon(Stdio::null()).wait().unwrap();
            assert!(!third.success() && bed.ask("status").is_ok());
        }
    });
}

#[test]
fn a_second_host_of_one_name_is_refused_while_the_first_answers() {
    in_bed("double", |bed| {
        let mut a = bed.member("a");
        let mut b = bed.member("b");
        a.promote(1);
        for _ in 0..3 {
            let mut double = bed.connect("a");
            let refused = double.hear("Refused");
            assert!(refused.contains("another host is connected as `a`"), "{refused}");
            let gone = wait_for("the end", || double.channel.recv(|_| {}).err());
            assert!(matches!(gone, ChannelError::Closed | ChannelError::Io(_)), "{gone:?}");
            a.listen();
        }
        a.promote(1);
        let peers = bed.status().peers;
        assert!(peers.iter().any(|peer| peer.note.contains("two hosts")), "{peers:?}");
        assert!(bed.event("refused").is_some_and(|it| it.contains("another host")));
        // The first host gives way once it no longer answers.
        wait_for("the other one to be taken", || {
            // An edge that hears nobody would accuse nobody.
            for _ in 0..60 {
                b.listen();
                std::thread::sleep(Duration::from_millis(10));
            }
            let mut double = bed.connect("a");
            double.hear("").starts_with("Hello").then_some(())
        });
    });
}

#[test]
fn silent_strangers_keep_no_member_out_of_an_edge_that_starts_again() {
    in_bed("silent-strangers", |bed| {
        let mut a = bed.member("a");
        let _b = bed.member("b");
        a.promote(1);
        bed.kill();
        let to = bed.edge().listen;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut all: Vec<TcpStream> = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    if all.len() < 200 {
                        let last = 1 + all.len() as u8;
                        all.extend(connect_from([127, 0, 1, last], to));
                    }
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            bed.start();
            std::thread::sleep(Duration::from_millis(100));
            let begun = Instant::now();
            let (a, b) = (bed.member_in("a", 1, true), bed.member_in("b", 1, false));
            let took = begun.elapsed();
            stop.store(true, Ordering::Relaxed);
            drop((a, b));
            assert!(took < Duration::from_secs(1), "{took:?}");
        });
    });
}

#[test]
fn an_edge_without_descriptors_neither_spins_nor_ends() {
    in_bed("descriptors", |bed| {
        let mut a = bed.member("a");
        let _b = bed.member("b");
        a.promote(1);
        let pid = daemon_pid(bed);
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        limit_descriptors(pid, open + 1);
        let to = bed.edge().listen;
        let strangers: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(to).unwrap()).collect();
        let asking: Vec<_> = (0..3)
            .map(|_| UnixStream::connect(bed.config.admin_socket(Role::Edge)).unwrap())
            .collect();
        let before = ticks(pid);
        for _ in 0..100 {
            a.listen();
            std::thread::sleep(Duration::from_millis(10));
        }
        let used = ticks(pid) - before;
        assert!(used < 30, "{used} of 100 ticks");
        limit_descriptors(pid, 1024);
        drop((strangers, asking));
        wait_for("the daemon", || bed.ask("status").ok());
        a.promote(1);
    });
}

#[test]
fn a_reader_of_the_log_that_hangs_does_not_stop_the_edge() {
    in_bed("log", |bed| {
        bed.kill();
        // Nobody reads the pipe.
        bed.daemon = Some(bed.daemon(Stdio::piped()));
        wait_for("the daemon", || bed.ask("status").ok());
        let mut a = bed.member("a");
        let _b = bed.member("b");
        a.promote(1);
        // Each of these is an event and writes a line: more than a pipe holds.
        for _ in 0..2500 {
            let request = holdfast::admin::Request::Fence { until_takeover: true };
            holdfast::admin::ask(&bed.config.admin_socket(Role::Edge), request).unwrap();
        }
        bed.ask("unfence").unwrap();
        a.promote(1);
    });
}

#[test]
fn a_stranger_and_a_member_out_of_turn_are_shown_the_door() {
    in_bed("stranger", |bed| {
        let mut a = bed.member("a");
        a.say(&Message::FrameOk { number: 1 });
        assert!(a.hear("Refused").contains("only a member"));
        let gone = wait_for("the end", || a.channel.recv(|_| {}).err());
        assert!(matches!(gone, ChannelError::Closed | ChannelError::Io(_)), "{gone:?}");
    });
}
