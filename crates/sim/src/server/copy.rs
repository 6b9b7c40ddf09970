//! Copies a running server, as `crates/linux` does: its log begins at the image, and the
//! copy replays from the first record on.

use super::{Conn, Doing, Mode, Server};
use crate::app::PerConn;
use crate::kernel::{Socket, cookie};
use holdfast_member::primary::Book;
use holdfast_wire::message::ConnKey;
use std::collections::{BTreeMap, VecDeque};

impl Server {
    /// Starts to log; output does not wait yet.
    pub fn begins_log(&mut self) {
        let tail = self.tail();
        (self.mode, self.commits) = (Mode::Record, false);
        (self.stable, self.dirty) = (tail, (tail, self.records));
    }

    /// A copy of the process that replays the log from here.
    pub fn copied(&self, books: &[(ConnKey, Book)]) -> Self {
        let mut copy = Self {
            mode: Mode::Replay,
            log: Vec::new(),
            ring: VecDeque::new(),
            appended: 0,
            executed: 0,
            taken: 0,
            stable: 0,
            dirty: (0, self.records),
            log_ended: false,
            parked: false,
            ..self.clone()
        };
        for conn in copy.conns.values_mut() {
            // Output written before the image belongs to the original.
            (conn.kept, conn.keep_from) = (VecDeque::new(), conn.out_bytes);
        }
        let closed = books.iter().filter(|(_, book)| book.closed);
        let closed = closed.map(|(key, book)| (book.accept, Conn::closed(*key, book)));
        copy.conns.extend(closed);
        match copy.doing {
            // Its record follows the image, although the write itself is already done.
            Doing::Written(accept, _) => copy.doing = Doing::Write(accept),
            // Their records came before the image.
            Doing::EndSending(accept, _) => copy.shut(accept),
            Doing::LetGo(accept, _) => copy.closed(accept),
            _ => {}
        }
        copy
    }

    /// The connections that it has accepted, with their four-tuples.
    pub fn books(&self, sockets: &BTreeMap<ConnKey, Socket>) -> Vec<(ConnKey, Book)> {
        let of = |key: &ConnKey, accept: u32| {
            sockets.get(key).filter(|socket| socket.accept == Some(accept))
        };
        let open = self.conns.iter().map(|(accept, conn)| {
            let socket = of(&conn.key, *accept);
            let socket = socket.map_or(u64::MAX - u64::from(*accept), |s| cookie(s.iss, s.irs));
            let lets_go = matches!(self.doing, Doing::LetGo(doing, _) if doing == *accept);
            let ends = matches!(self.doing, Doing::EndSending(doing, _) if doing == *accept);
            let Conn { in_bytes, out_bytes, eof, shut, open, .. } = *conn;
            let closed = !open || lets_go;
            let shut = shut || ends || closed;
            (conn.key, Book { accept: *accept, socket, in_bytes, out_bytes, eof, shut, closed })
        });
        // Connections that the server has released belong to the kernel.
        let orphans = sockets.values().filter(|socket| socket.orphan && !socket.is_over());
        let closed = orphans.filter_map(|socket| {
            let accept = socket.accept.filter(|accept| !self.conns.contains_key(accept))?;
            let book = Book {
                accept,
                socket: cookie(socket.iss, socket.irs),
                in_bytes: socket.read,
                out_bytes: socket.out_end(),
                eof: socket.client_fin,
                shut: true,
                closed: true,
            };
            Some((socket.key, book))
        });
        open.chain(closed).collect()
    }
}

impl Conn {
    fn closed(key: ConnKey, book: &Book) -> Self {
        Self {
            key,
            app: PerConn::default(),
            pending: Vec::new(),
            end: false,
            eof: book.eof,
            shut: true,
            open: false,
            in_bytes: book.in_bytes,
            out_bytes: book.out_bytes,
            kept: VecDeque::new(),
            keep_from: book.out_bytes,
            gone: false,
        }
    }
}
