//! Bytes of a client's stream in the receive queue of the server's kernel: the backup asks for
//! them where the tap has lost its copy (decision 4).

use holdfast_linux::bpf::Gate;
use holdfast_linux::spawn::Server;
use holdfast_linux::unread::{self, Unread};
use holdfast_replica::primary::{Peeked, Wanted};
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering::Relaxed;

/// Reads the wanted bytes from the connection's receive queue, without removing them there,
/// through a duplicate of the server's descriptor.
pub fn peek(gate: &Gate, server: &Server, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked {
    // Most often that is not worth its system calls: the server has read the bytes already, or
    // the kernel has not received them either (its rcv_nxt is not beyond them).
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
