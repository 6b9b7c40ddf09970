//! What an inotify descriptor watches.

use super::super::names::{self, Mounts};
use holdfast_wire::snapshot::Watched;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;

/// Bytes of a file handle (`MAX_HANDLE_SZ`).
const HANDLE_MAX: usize = 128;

/// A line of an inotify descriptor: the watched file is named by its handle.
pub(super) fn watched(line: &str, mounts: &Mounts) -> Option<Watched> {
    let hex = |name: &str| {
        let (_, rest) = line.split_once(name)?;
        u64::from_str_radix(rest.split_whitespace().next()?, 16).ok()
    };
    let handle = line.split_once("f_handle:")?.1.trim();
    let bytes: Option<Vec<u8>> = (0..handle.len() / 2)
        .map(|at| u8::from_str_radix(handle.get(at * 2..at * 2 + 2)?, 16).ok())
        .collect();
    let (kind, device, inode) = (hex("fhandle-type:")?, hex("sdev:")?, hex(" ino:")?);
    Some(Watched {
        number: hex(" wd:")? as u32,
        mask: hex(" mask:")? as u32,
        path: path_of_handle(kind as i32, &bytes?, device, inode, mounts)?,
    })
}

/// The path of a file in one of the file systems that are mounted.
fn path_of_handle(
    kind: i32,
    handle: &[u8],
    device: u64,
    inode: u64,
    mounts: &Mounts,
) -> Option<Vec<u8>> {
    /// `struct file_handle`.
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        handle: [u8; HANDLE_MAX],
    }
    let mut wanted = Handle { bytes: handle.len() as u32, kind, handle: [0; HANDLE_MAX] };
    wanted.handle.get_mut(..handle.len())?.copy_from_slice(handle);
    // The kernel packs a device's numbers as 12 and 20 bits here.
    let device = ((device >> 20) as u32, (device & 0xf_ffff) as u32);
    mounts.points(device).find_map(|point| {
        let mount = names::open_folder(point).ok()?;
        // SAFETY: the kernel reads one handle with as many bytes as it says.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                mount.as_raw_fd(),
                &raw const wanted,
                libc::O_PATH | libc::O_CLOEXEC,
            )
        };
        let fd = crate::sockopt::checked_fd(fd).ok()?;
        let path = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
        let path = path.into_os_string().into_vec();
        let same = names::look(&path).is_ok_and(|found| found.inode == inode);
        same.then_some(path)
    })
}
