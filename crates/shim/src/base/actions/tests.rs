use super::ActionCell;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// An action whose parts all contain `n`.
fn action(n: u64) -> libc::sigaction {
    // SAFETY: a set is an array of words; no restorer is a valid one.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = n as usize;
        action.sa_flags = n as i32;
        action.sa_mask = core::mem::transmute::<[u64; 16], libc::sigset_t>([n; 16]);
        action
    }
}

fn parts(action: &libc::sigaction) -> (usize, i32, [u64; 16]) {
    // SAFETY: as above.
    let mask = unsafe { core::mem::transmute::<libc::sigset_t, [u64; 16]>(action.sa_mask) };
    (action.sa_sigaction, action.sa_flags, mask)
}

#[test]
fn the_newest_action_counts_and_can_be_taken_back() {
    let cell = ActionCell::new();
    assert!(cell.get().is_none());
    for n in 1..6 {
        cell.set(Some(&action(n)));
        let got = cell.get().expect("an action");
        assert_eq!(parts(&got), (n as usize, n as i32, [n; 16]));
    }
    cell.set(None);
    assert!(cell.get().is_none());
}

#[test]
fn the_restorer_is_kept() {
    extern "C" fn restorer() {}
    let cell = ActionCell::new();
    let mut action = action(1);
    let given: extern "C" fn() = restorer;
    action.sa_restorer = Some(given);
    cell.set(Some(&action));
    let kept = cell.get().and_then(|it| it.sa_restorer).expect("a restorer");
    assert!(core::ptr::fn_addr_eq(kept, given));
}

#[test]
fn a_reader_beside_the_writer_never_sees_a_mixture() {
    let rounds = if cfg!(miri) { 200 } else { 200_000 };
    let (cell, done) = (ActionCell::new(), AtomicBool::new(false));
    cell.set(Some(&action(1)));
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 2..rounds {
                cell.set(Some(&action(n)));
            }
            done.store(true, SeqCst);
        });
        while !done.load(SeqCst) {
            let (handler, flags, mask) = parts(&cell.get().expect("an action"));
            assert!(flags as usize == handler && mask == [handler as u64; 16], "{handler} {flags}");
            // Miri runs one thread at a time.
            std::thread::yield_now();
        }
    });
}
