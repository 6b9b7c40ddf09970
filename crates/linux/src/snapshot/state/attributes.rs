//! Extended attributes of state: what a server, or whoever set up its files, has noted beside a
//! file's content (Samba its DOS attributes, and Windows' lists of rights).
//!
//! Names are never followed: an attribute of a link is the link's own.

use crate::sockopt::checked_len;
use holdfast_wire::snapshot::Attribute;
use libc::{c_char, c_int};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// What a host gives its files by itself: labels and seals of its own security modules, and how its
/// file system stores them. They stay behind, and those of the other host are left as they are.
const OF_THE_HOST: [&[u8]; 6] = [
    b"btrfs.",
    b"security.SMACK64",
    b"security.apparmor",
    b"security.evm",
    b"security.ima",
    b"security.selinux",
];

/// Most bytes of a list of names, and of a value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const BYTES_MAX: usize = 64 << 10;
/// Most looks at what becomes longer in between.
const LOOKS_MAX: usize = 8;

/// A file's attributes in order of name, without those that a host gives by itself.
pub(super) fn of(path: &Path) -> io::Result<Vec<Attribute>> {
    let (path, mut found) = (c_path(path)?, Vec::new());
    for name in names(&path)? {
        let c_name = CString::new(&name[..])?;
        let get = |at: *mut u8, len| {
            // SAFETY: two C strings, and room for `len` bytes.
            unsafe { libc::lgetxattr(path.as_ptr(), c_name.as_ptr(), at.cast(), len) }
        };
        match filled(get) {
            Ok(value) => found.push(Attribute { name, value }),
            // It was removed meanwhile: the next look finds that.
            Err(error) if error.raw_os_error() == Some(libc::ENODATA) => {}
            Err(error) => return Err(of_name(&name, &error)),
        }
    }
    Ok(found)
}

/// Gives a file exactly these attributes. What its folder has had it inherit goes.
pub(super) fn set(path: &Path, wanted: &[Attribute]) -> io::Result<()> {
    let path = c_path(path)?;
    for name in names(&path)? {
        if !wanted.iter().any(|it| it.name == name) {
            let c_name = CString::new(&name[..])?;
            // SAFETY: two C strings.
            let removed = unsafe { libc::lremovexattr(path.as_ptr(), c_name.as_ptr()) };
            done(removed).map_err(|error| of_name(&name, &error))?;
        }
    }
    for Attribute { name, value } in wanted {
        let c_name = CString::new(&name[..])?;
        let (at, len) = (value.as_ptr().cast(), value.len());
        // SAFETY: two C strings, and `len` bytes.
        let set = unsafe { libc::lsetxattr(path.as_ptr(), c_name.as_ptr(), at, len, 0) };
        done(set).map_err(|error| of_name(name, &error))?;
    }
    Ok(())
}

/// Names of a file's attributes but for the host's, in order.
fn names(path: &CString) -> io::Result<Vec<Vec<u8>>> {
    let list = |at: *mut u8, len| {
        // SAFETY: a C string, and room for `len` bytes.
        unsafe { libc::llistxattr(path.as_ptr(), at.cast::<c_char>(), len) }
    };
    let list = match filled(list) {
        // Its file system has none.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
        list => list?,
    };
    let is_wanted =
        |name: &&[u8]| !name.is_empty() && !OF_THE_HOST.iter().any(|host| name.starts_with(host));
    let mut names: Vec<_> =
        list.split(|byte| *byte == 0).filter(is_wanted).map(<[u8]>::to_vec).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// All that a call has to say, which without room says how much that is.
fn filled(call: impl Fn(*mut u8, usize) -> isize) -> io::Result<Vec<u8>> {
    for _ in 0..LOOKS_MAX {
        let len = checked_len(call(ptr::null_mut(), 0))?;
        if len == 0 {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; len.min(BYTES_MAX)];
        match checked_len(call(bytes.as_mut_ptr(), bytes.len())) {
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) => {}
            len => {
                bytes.truncate(len?);
                return Ok(bytes);
            }
        }
    }
    Err(io::Error::from_raw_os_error(libc::ERANGE))
}

fn done(result: c_int) -> io::Result<()> {
    crate::sockopt::checked(result).map(drop)
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn of_name(name: &[u8], error: &io::Error) -> io::Error {
    let text = format!("its extended attribute {}: {error}", String::from_utf8_lossy(name));
    io::Error::new(error.kind(), text)
}
