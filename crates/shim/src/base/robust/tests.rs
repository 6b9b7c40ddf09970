use super::*;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::atomic::AtomicBool;

#[test]
fn a_lock_of_a_dead_process_is_taken_over() {
    note_process();
    let mut owner = Command::new("sleep").arg("1000").spawn().expect("a process");
    let word = AtomicU32::new(owner.id());
    let is_taken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lock(&word);
            is_taken.store(true, SeqCst);
            unlock(&word);
        });
        while word.load(SeqCst) & HAS_SLEEPERS == 0 {
            std::hint::spin_loop();
        }
        assert!(!has_ended(owner.id()) && !is_taken.load(SeqCst), "its owner runs");
        owner.kill().expect("it runs");
        // It was not waited for: it is a zombie.
        while !has_ended(owner.id()) {
            std::thread::yield_now();
        }
    });
    assert!(is_taken.load(SeqCst));
    assert_eq!(word.load(SeqCst), 0);
    assert_eq!(owner.wait().expect("it has ended").signal(), Some(libc::SIGKILL));
    assert!(has_ended(owner.id()), "and is forgotten");
}
