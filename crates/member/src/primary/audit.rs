//! What the server's books say of its connections lies in memory that the server can write over.
//! Nobody joins on numbers that cannot be, or that contradict what the gate has seen of the
//! kernel's: a takeover would go by them.

use super::{Book, Conn, PrimaryHost, PrimaryMachine};
use crate::words::counted;
use holdfast_wire::gate::SlotView;
use holdfast_wire::message::{Adopted, ConnId, ConnKey, STREAM_BYTES_MAX};
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeMap;

/// Most bytes that a kernel accepts beyond the right edge that it has told: one large packet that
/// begins before it, and what a window scale rounds.
const BEYOND_EDGE_MAX: i32 = 1 << 20;
/// Most bytes that a kernel has taken from the server and not sent: no socket buffer of Linux is
/// larger.
const UNSENT_MAX: i32 = 1 << 30;

fn refusal(name: &str, what: &str) -> String {
    format!(
        "what the server's memory says of connection {name} cannot be: {what}; nobody can join \
         until that connection is over"
    )
}

/// Why a book's numbers are not those of any connection.
pub(super) fn impossible(book: &Book, key: Option<&ConnKey>) -> Option<String> {
    let Book { accept, in_bytes, out_bytes, .. } = *book;
    (in_bytes.max(out_bytes) > STREAM_BYTES_MAX).then(|| {
        let name = key.map_or_else(|| format!("number {accept}"), ToString::to_string);
        refusal(&name, &format!("{} read, {out_bytes} written", counted(in_bytes, "byte")))
    })
}

/// Why a book is not that of the connection which the gate has seen. What the kernel has received
/// and sent since the book was read counts for it.
pub(super) fn contradiction(book: &Book, conn: &Conn, slot: &SlotView) -> Option<String> {
    let Book { in_bytes, out_bytes, .. } = *book;
    if let Some(reason) = impossible(book, Some(&conn.key)) {
        return Some(reason);
    }
    let behind = |iss: SeqNo, bytes| iss.plus(1).plus(bytes);
    let what = if behind(conn.record.irs, in_bytes).since(slot.right_edge) > BEYOND_EDGE_MAX {
        format!("{in_bytes} bytes read, and its client may not have sent so much")
    } else if behind(conn.record.iss, out_bytes).since(slot.snd_nxt) > UNSENT_MAX {
        format!("{out_bytes} bytes written, and no kernel keeps so much that it has not sent")
    } else {
        return None;
    };
    Some(refusal(&conn.key.to_string(), &what))
}

/// Why a book was wrong about what was written to a client, if the client had `acked` more before
/// the image. While a log is on, no image is taken in the middle of a write.
pub(super) fn unwritten(adopted: &[Adopted], acked: &BTreeMap<ConnId, SeqNo>) -> Option<String> {
    adopted.iter().filter(|it| it.accept.is_some()).find_map(|it| {
        let (id, record) = it.conn?;
        // The server's end counts as one.
        let beyond = acked.get(&id)?.since(record.iss.plus(2).plus(it.out_bytes));
        let has = it.out_bytes.saturating_add_signed(i64::from(beyond) + 1);
        (beyond > 0).then(|| too_little(&record.key, it.out_bytes, has))
    })
}

fn too_little(key: &ConnKey, written: u64, has: u64) -> String {
    let what = format!("{written} bytes written, and its client has acknowledged {has}");
    refusal(&key.to_string(), &what)
}

impl PrimaryMachine {
    /// What each client has acknowledged, as the gate has seen it.
    pub(super) fn acked(&self, host: &impl PrimaryHost) -> BTreeMap<ConnId, SeqNo> {
        let acked = |id: &ConnId| Some((*id, host.slot(*id)?.snd_una));
        self.tables.conns.keys().filter_map(acked).collect()
    }

    /// Why the books were wrong about what was written to some client, if it has acknowledged more
    /// than books and log tell. A write that was under way at the image is in the log by the time
    /// that its replica has caught up.
    pub(super) fn unwritten(&mut self, host: &mut impl PrimaryHost) -> Option<String> {
        let acked = self.acked(host);
        // Whatever the server had written by then is in the log up to here.
        self.take_log(host);
        let lacks = |(id, acked)| Some((id, self.log.unwritten(id, acked)?));
        let (id, (has, written)) = acked.into_iter().find_map(lacks)?;
        Some(too_little(&self.tables.conns.get(&id)?.key, written, has))
    }
}
