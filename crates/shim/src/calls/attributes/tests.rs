//! What is read of a file's attributes on the replica is what the primary read.

use super::{fgetxattr, flistxattr, fsetxattr};
use crate::base::state::Mode;
use crate::base::sys::errno;
use crate::testing::attach;
use core::ffi::CStr;
use std::os::fd::AsRawFd;

const NAME: &CStr = c"user.holdfast";

fn set(fd: i32, value: &[u8]) {
    // SAFETY: a name of ours, and as many bytes as are said.
    let r = unsafe { fsetxattr(fd, NAME.as_ptr().cast(), value.as_ptr(), value.len(), 0) };
    assert_eq!(r, 0, "errno {}", errno());
}

/// The attribute's value; the code of the error if there is none.
fn get(fd: i32, room: usize) -> Result<Vec<u8>, i32> {
    let mut bytes = [0; 64];
    // SAFETY: a name and memory of ours.
    let r = unsafe { fgetxattr(fd, NAME.as_ptr().cast(), bytes.as_mut_ptr(), room) };
    let len = usize::try_from(r).map_err(|_| errno())?;
    Ok(if room == 0 { vec![0; len] } else { bytes[..len].to_vec() })
}

fn names_bytes(fd: i32) -> isize {
    // SAFETY: no memory is written to where there is no room.
    unsafe { flistxattr(fd, core::ptr::null_mut(), 0) }
}

#[test]
#[cfg(not(miri))]
fn a_file_that_another_process_changes_has_the_same_attributes_on_both_members() {
    let member = attach(Mode::Record);
    let path = std::env::temp_dir().join(format!("hf-attributes-{}", std::process::id()));
    let file = std::fs::File::create_new(&path).expect("a file");
    std::fs::remove_file(path).expect("its file");
    let fd = file.as_raw_fd();
    let before = names_bytes(fd);
    assert_eq!(get(fd, 64), Err(libc::ENODATA));
    set(fd, b"value");
    assert_eq!((get(fd, 0), get(fd, 64)), (Ok(vec![0; 5]), Ok(b"value".to_vec())));
    assert_eq!(get(fd, 2), Err(libc::ERANGE));
    let lens: Vec<usize> = member.records().iter().map(|record| record.1.len()).collect();
    assert_eq!(lens, [0, 0, 0, 5, 0], "no more than was read is in the log");
    member.become_mode(Mode::Replay);
    set(fd, b"from another process");
    assert_eq!((names_bytes(fd), get(fd, 64)), (before, Err(libc::ENODATA)));
    assert_eq!((get(fd, 0), get(fd, 64)), (Ok(vec![0; 5]), Ok(b"value".to_vec())));
    assert_eq!(get(fd, 2), Err(libc::ERANGE));
}
