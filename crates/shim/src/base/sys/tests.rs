use super::{decimal, libc_result, takes_numbers};

#[test]
fn numbers_are_written_in_full() {
    for n in [0, 7, -1, 10, 1234, i64::MAX, i64::MIN] {
        assert_eq!(decimal(n, &mut [0; 24]), n.to_string());
    }
}

#[test]
fn results_below_the_range_of_errors_are_results() {
    for r in [0, 5, isize::MAX, -4096, isize::MIN] {
        assert_eq!(libc_result(r), r);
    }
}

/// Calls that write, read or map memory must say `unsafe`.
#[test]
fn calls_that_take_addresses_are_none_of_numbers() {
    let calls =
        [libc::SYS_read, libc::SYS_write, libc::SYS_mmap, libc::SYS_munmap, libc::SYS_futex];
    assert!(!calls.into_iter().any(takes_numbers));
    assert!(takes_numbers(libc::SYS_close));
}
