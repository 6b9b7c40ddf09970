//! What a service manager hears of a tunnel that it has started (sd_notify(3)), in the confinement that
//! the program gives itself.

use crate::bed::{A, B, Bed, INSIDE, OUTSIDE, SOON, wait};
use crate::traffic::ping;
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A manager that takes what comes; its words so far.
fn listen(place: &Path) -> Arc<Mutex<Vec<String>>> {
    let socket = UnixDatagram::bind(place).expect("a socket");
    let words = Arc::new(Mutex::new(Vec::new()));
    let heard = words.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok(length) = socket.recv(&mut buffer) {
            let word = String::from_utf8_lossy(&buffer[..length]).into_owned();
            heard.lock().expect("the words").push(word);
        }
    });
    words
}

#[test]
fn that_it_is_ready_what_it_does_that_it_turns_and_that_it_ends() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    let place = bed.folder.join("manager");
    let words = listen(&place);
    let count = |word: &str| {
        let words = words.lock().expect("the words");
        words.iter().filter(|it| it.starts_with(word)).count()
    };
    let socket = format!("NOTIFY_SOCKET={}", place.display());
    bed.start_as(A, &["env", &socket, "WATCHDOG_USEC=400000"]);
    wait("an end that answers", SOON, || bed.status(A).is_some());
    assert_eq!([count("STATUS=up, mode tun"), count("READY=1")], [1, 1]);
    // An idle loop turns for it alone: four times in that time.
    let before = count("WATCHDOG=1");
    std::thread::sleep(Duration::from_secs(2));
    let turns = count("WATCHDOG=1") - before;
    assert!((10..=25).contains(&turns), "{turns} words in two seconds");
    bed.start(B);
    bed.wait_up();
    assert_eq!(count("STATUS=heard the peer at "), 1);
    assert_eq!(bed.stop(A, Signal::TERM), Some(0));
    wait("the last word", SOON, || count("STOPPING=1") == 1);
}

/// One that takes nothing keeps nobody waiting.
#[test]
fn a_manager_that_hangs_hinders_nothing() {
    let Some(mut bed) = Bed::new() else { return };
    bed.write_tun(OUTSIDE);
    let place = bed.folder.join("manager");
    let _hangs = UnixDatagram::bind(&place).expect("a socket");
    let socket = format!("NOTIFY_SOCKET={}", place.display());
    bed.start_as(A, &["env", &socket, "WATCHDOG_USEC=4000"]);
    bed.start(B);
    bed.wait_up();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(ping(&bed, INSIDE[B], 20, 56), 20);
}
