//! A server is copied while signals wait in it, for a call at which their handlers run or until it
//! asks for them. What the original did with them the log tells, so the copy does it once. Needs
//! root.

use crate::harness::copy::{Log, copying, image_of, promote_copy};
use crate::harness::count::Killed;
use crate::harness::{ask, compiled, scratch, sh, start, wait_for};
use holdfast_linux::spawn::Server;
use holdfast_wire::shm::{mode, option};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

const PORT: u16 = 16_690;
/// `PR_TSC_SIGSEGV`, as the program says it.
const TRAPPED: &str = "tsc 2";

#[test]
fn signals_that_wait_in_an_image_are_handled_once_and_the_counter_stays_trapped() {
    let Some(program) = compiled("pending.c") else { return };
    let (dir, path, at) =
        (scratch("copied-signals"), program.display().to_string(), PORT.to_string());
    let server = start(&[&path, &at], PORT, option::TRAP_TSC, mode::SOLO, &dir);
    let mut server = Killed(server);
    wait_for(PORT);
    let mut client = TcpStream::connect(("127.0.0.1", PORT)).expect("connected");
    client.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    client.write_all(b"b").expect("asked");
    std::thread::sleep(Duration::from_millis(200));
    let pid = server.0.pid();
    sh(&format!("for it in USR1 USR2 HUP TERM; do kill -$it {pid}; done"));
    std::thread::sleep(Duration::from_millis(50));
    let image = image_of(&server.0);
    client.set_nonblocking(true).expect("a socket");
    assert!(client.peek(&mut [0]).is_err(), "it still makes no call");
    client.set_nonblocking(false).expect("a socket");
    let mut log = Log::from(image.books.log_from);
    let mut copying = copying(PORT, &dir);
    copying.settings.options = option::TRAP_TSC;
    let copy = Killed(Server::copy(&image.bytes[..], &copying).expect("a copy"));
    std::thread::scope(|s| {
        let asks = s.spawn(move || {
            client.write_all(b"wor").expect("asked");
            let mut lines = BufReader::new(client).lines();
            [(); 4].map(|()| lines.next().expect("a line").expect("an answer"))
        });
        while !asks.is_finished() {
            log.pass(&server.0, &copy.0);
            std::thread::yield_now();
        }
        let answers = asks.join().expect("answers");
        assert_eq!(answers, ["handled 1", "took 12", "opened 1", "read 15"]);
    });
    log.catch_up(&server.0, &copy.0);
    server.0.kill();
    promote_copy(&copy.0);
    let answers = ["handled 1", "took -1", "opened 1", "read 0", TRAPPED];
    assert_eq!(ask(PORT, "cwort"), answers);
    let _ = std::fs::remove_file(program);
    let _ = std::fs::remove_dir_all(dir);
}
