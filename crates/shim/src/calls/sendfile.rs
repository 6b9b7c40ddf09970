//! `sendfile`: output whose bytes the server never has in its memory. What it sends is compared as
//! what a write sends, by a hash: of the bytes, or of the file's parts ([`parts`]), so that a file
//! that does not change is not read again each time (decision 36).

use crate::base::commit;
use crate::base::state::{Mode, header, mode};
use crate::base::sys::{self, libc_result, sys, syscall};
use crate::base::{conns, defer, fds, log, quiet, token};
use crate::calls::output::{self, Write};
use crate::calls::parts::{self, Range};
use crate::calls::{children, family, inherited, signals};
use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use holdfast_wire::hash::hash;
use holdfast_wire::log::{BY_FILE, Header, NO_CONN};

/// Most bytes of one `sendfile`: its content may be read into memory to be hashed.
const SENDFILE_MAX: usize = 512 << 10;
/// Bytes up to which the content itself is hashed: it is read in any case, to be deferred.
const SMALL: usize = defer::FD_BYTES_MAX;

/// A part of a file, read to be hashed (primary) or retained (replica). The buffer is reused:
/// mapping half a megabyte for each call would cost more than reading it.
struct Chunk {
    at: *mut u8,
    len: usize,
}

static SPARE: AtomicUsize = AtomicUsize::new(0);

impl Chunk {
    /// Reads up to `n` bytes of `file` from an offset on.
    fn read(file: i32, from: i64, n: usize) -> Result<Self, isize> {
        let at = match SPARE.swap(0, Relaxed) {
            0 => sys::map_anonymous(SENDFILE_MAX),
            spare => spare as *mut u8,
        };
        if at.is_null() {
            return Err(-(libc::ENOMEM as isize));
        }
        // SAFETY: a mapping of at least this size.
        let r = unsafe { syscall!(SYS_pread64, file, at, n.min(SENDFILE_MAX), from) };
        let chunk = Self { at, len: r.max(0) as usize };
        if r < 0 { Err(r) } else { Ok(chunk) }
    }

    fn hash(&self) -> u64 {
        hash(&header().hash_key, self.bytes())
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes of the mapping were filled by pread.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let other = SPARE.swap(self.at as usize, Relaxed);
        if other != 0 {
            sys::unmap(other as *mut u8, SENDFILE_MAX);
        }
    }
}

/// Where a `sendfile` begins: at `offset`, or at the file's own position.
fn place(file: i32, offset: *const i64) -> i64 {
    // SAFETY: the caller's off_t, or null.
    unsafe { offset.as_ref() }
        .copied()
        .unwrap_or_else(|| sys!(SYS_lseek, file, 0, libc::SEEK_CUR) as i64)
}

fn advance(file: i32, offset: *mut i64, n: isize) {
    if n <= 0 {
        return;
    }
    if offset.is_null() {
        sys!(SYS_lseek, file, n, libc::SEEK_CUR);
    } else {
        // SAFETY: the caller's off_t.
        unsafe { *offset += n as i64 };
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendfile(out: i32, file: i32, offset: *mut i64, count: usize) -> isize {
    // SAFETY: the server's own call, with its own arguments.
    let raw = |n: usize| unsafe { syscall!(SYS_sendfile, out, file, offset, n) };
    if !fds::is_virtual(out) || matches!(mode(), Mode::Pass) {
        children::touch(out);
        family::touch(out, "sendfile");
        return libc_result(raw(count));
    }
    libc_result(quiet::call(|call| match mode() {
        Mode::Pass => Some(raw(count)),
        Mode::Record => record(call, (out, file, offset), count, raw),
        Mode::Replay => replay((out, file, offset), count),
    }))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendfile64(out: i32, file: i32, offset: *mut i64, count: usize) -> isize {
    // SAFETY: the same call on a 64-bit system.
    unsafe { sendfile(out, file, offset, count) }
}

/// `sendfile` on the primary. Without a log the file's content is not read.
fn record(
    call: &quiet::Call,
    (out, file, offset): (i32, i32, *mut i64),
    count: usize,
    raw: impl Fn(usize) -> isize,
) -> Option<isize> {
    signals::deliver();
    let conn = conns::of_fd(out);
    let _writing = output::hold_stream(call, conn)?;
    let from = place(file, offset);
    let len = count.min(SENDFILE_MAX);
    let mut write = Write { fd: out, conn, len, is_later: false };
    let mut intent = 0;
    if log::is_on() {
        intent = log::which();
        let intended = match intend(&mut write, file, from, count) {
            Ok(intended) => intended,
            Err(errno) => return Some(errno),
        };
        if let Some(chunk) = intended
            && conn != NO_CONN
            && defer::try_keep(out, &output::one(chunk.at, chunk.len), chunk.len)
        {
            advance(file, offset, chunk.len as isize);
            write.written(chunk.len as isize, 0);
            return Some(chunk.len as isize);
        }
    }
    defer::flush_fd(out);
    commit::commit();
    let r = match inherited::outside_reset(out) {
        Some(r) => r,
        None => token::apart_if(token::may_block(out), || match intent {
            0 => call.sleep(|| raw(write.len)),
            _ => Some(token::lend(|| raw(write.len))),
        })?,
    };
    // If a log has begun meanwhile, it has no intent of this call yet.
    if log::which() != intent && log::is_on() {
        let _unreadable = intend(&mut write, file, from, count);
    }
    write.written(r, 0);
    Some(r)
}

/// Logs the intent to send what lies in the file, with the hash of the file's parts if it has them
/// and the backup understands that, and otherwise with that of the bytes, which are returned.
fn intend(write: &mut Write, file: i32, from: i64, count: usize) -> Result<Option<Chunk>, isize> {
    let range = output::spares_hashes()
        .then(|| Range::of(file, from, count.min(SENDFILE_MAX)))
        .flatten()
        .filter(|range| range.len() > SMALL && range.is_settled());
    if let Some(range) = range
        && let Some(hash) = range.hash(range.file_bytes())
    {
        write.len = range.len();
        write.intent(BY_FILE, hash, &range.file_bytes().to_le_bytes());
        return Ok(None);
    }
    let chunk = Chunk::read(file, from, count)?;
    write.len = chunk.len;
    write.intent(0, chunk.hash(), &[]);
    Ok(Some(chunk))
}

/// `sendfile` on the replica. What it retains it reads from the file to where it is kept, unless it
/// had to read it to compare it.
fn replay((out, file, offset): (i32, i32, *mut i64), count: usize) -> Option<isize> {
    let from = place(file, offset);
    let range = Range::of(file, from, count.min(SENDFILE_MAX));
    let range = range.filter(|range| range.len() > SMALL);
    let read = Cell::new(None);
    let len = match &range {
        Some(range) => range.len(),
        None => match Chunk::read(file, from, count) {
            Ok(chunk) => {
                let len = chunk.len;
                read.set(Some(chunk));
                len
            }
            Err(errno) => return Some(errno),
        },
    };
    let hash = |intent: &Header, payload: &[u8]| {
        let hash = if intent.flags & BY_FILE != 0 {
            range.as_ref().zip(parts::file_bytes_in(payload)).and_then(|(it, all)| it.hash(all))
        } else {
            let chunk = read.take().or_else(|| Chunk::read(file, from, len).ok());
            let hash = chunk.as_ref().map(Chunk::hash);
            read.set(chunk);
            hash
        };
        // What cannot be read here is not what the primary has read.
        hash.unwrap_or(!intent.hash)
    };
    let conn = conns::of_fd(out);
    let keep = |accepted: isize| {
        let accepted = accepted.clamp(0, len as isize) as usize;
        match (read.take(), &range) {
            _ if conn == NO_CONN => {}
            (Some(chunk), _) => conns::keep(conn, &chunk.bytes()[..accepted.min(chunk.len)]),
            (None, Some(range)) => {
                conns::keep_with(conn, accepted, |at, to, n| range.fill(at, to, n))
            }
            (None, None) => {}
        }
    };
    let resulted = |_: &Header, result: &Header| keep(result.ret as isize);
    let r = match output::replay_result(out, len, hash, || {}, resulted) {
        Some(r) => r,
        None => {
            let r = output::at_end(out, len)?;
            keep(r);
            r
        }
    };
    advance(file, offset, r);
    Some(r)
}
