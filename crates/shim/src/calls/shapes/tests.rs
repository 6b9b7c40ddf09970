//! The replica's server gets what the primary's kernel answered.

use super::{Kind, log, new_fd, simple, with_data};
use crate::base::state::Mode;
use crate::base::table::Call;
use crate::testing::attach;
use core::cell::Cell;

#[test]
fn a_number_comes_from_the_log_and_the_kernel_is_asked_if_told_so() {
    let member = attach(Mode::Record);
    assert_eq!(simple(Call::listen, 3, false, || -98), -98);
    assert_eq!(simple(Call::setsockopt, 3, true, || 5), 5);
    member.become_mode(Mode::Replay);
    assert_eq!(simple(Call::listen, 3, false, || unreachable!()), -98);
    let asked = Cell::new(0);
    let kernel = || {
        asked.set(asked.get() + 1);
        -22
    };
    assert_eq!((simple(Call::setsockopt, 3, true, kernel), asked.get()), (5, 1));
}

/// A replica whose log ends before the answer parks there, and never says what came of it.
#[test]
fn output_waits_for_what_the_kernel_has_answered() {
    let member = attach(Mode::Record);
    for answer in [0, -1] {
        simple(Call::setsockopt, 3, false, || answer);
        assert!(!log::is_committed(), "{answer}");
        member.confirm();
        assert!(log::is_committed(), "{answer}");
    }
    new_fd(Call::socket, -1, Kind::Outside, false, || 9, || unreachable!());
    assert!(!log::is_committed(), "a descriptor");
}

#[test]
fn out_parameters_are_filled_in_again() {
    let member = attach(Mode::Record);
    let (mut number, mut bytes) = (0u32, [0u8; 5]);
    let outs = [((&raw mut number).cast(), 4), (core::ptr::null_mut(), 9), (bytes.as_mut_ptr(), 5)];
    let (first, last) = (outs[0].0.cast::<u32>(), outs[2].0);
    let r = with_data(Call::getsockopt, 3, &outs, || {
        // SAFETY: the variables above.
        unsafe {
            first.write(77);
            last.copy_from_nonoverlapping(b"hello".as_ptr(), 5);
        }
        1
    });
    assert_eq!((r, number, &bytes), (1, 77, b"hello"));
    member.become_mode(Mode::Replay);
    let (mut number, mut bytes) = (0u32, [0u8; 5]);
    let outs = [((&raw mut number).cast(), 4), (core::ptr::null_mut(), 9), (bytes.as_mut_ptr(), 5)];
    assert_eq!(with_data(Call::getsockopt, 3, &outs, || unreachable!()), 1);
    assert_eq!((number, &bytes), (77, b"hello"));
}

#[test]
fn what_failed_filled_in_nothing() {
    let member = attach(Mode::Record);
    let mut byte = 1u8;
    assert_eq!(with_data(Call::getsockopt, 3, &[(&raw mut byte, 1)], || -9), -9);
    assert_eq!(member.records()[0].1, []);
    member.become_mode(Mode::Replay);
    assert_eq!(with_data(Call::getsockopt, 3, &[(&raw mut byte, 1)], || unreachable!()), -9);
    assert_eq!(byte, 1);
}
