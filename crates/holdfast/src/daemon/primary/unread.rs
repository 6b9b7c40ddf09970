//! What the server's kernel holds of a client's stream and the server has not
//! read: the backup asks for it where the tap has lost the copy (decision 4).

use holdfast_linux::bpf::Gate;
use holdfast_linux::spawn::Server;
use holdfast_linux::unread::{self, Unread};
use holdfast_replica::primary::{Peeked, Wanted};
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering::Relaxed;

/// Looks at the connection's receive queue through a duplicate of the server's
/// descriptor.
pub fn peek(gate: &Gate, server: &Server, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked {
    // Most often a look is not worth its system calls: the server has read on, or
    // the kernel lacks the bytes too, since they were lost on the client's way.
    let is_read = server.memory.entry(wanted.accept).in_bytes.load(Relaxed) > wanted.from;
    let slot = gate.slot(wanted.conn).filter(|_| !is_read);
    if slot.is_none_or(|slot| !slot.rcv_nxt.after(slot.irs.plus(1).plus(wanted.from))) {
        return Peeked::Nothing;
    }
    let Some(connection) = server.borrow(wanted.accept, wanted.socket) else {
        return Peeked::Nothing;
    };
    match unread::look(connection.as_fd(), wanted.from..wanted.until, into) {
        Ok(Unread::Bytes) => Peeked::Bytes,
        Ok(Unread::Last) => Peeked::Last,
        Ok(Unread::Nothing) | Err(_) => Peeked::Nothing,
    }
}
