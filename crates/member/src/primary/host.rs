//! What a primary needs of its host.

use super::join::{Book, Image};
use super::keeper::KeeperHost;
use super::lacking::{Earlier, Unacked};
use crate::host::MemberHost;
use crate::pairing::PairingHost;
use holdfast_replica::primary::{Counters, Peeked, Wanted};
use holdfast_wire::gate::SlotView;
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord, Message};
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::Duration;

/// A SYN-ACK that the gate holds back, or has let pass where the server speaks alone.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub conn: ConnId,
    /// Names the socket among all that its tuple ever had.
    pub socket: u64,
    pub record: ConnRecord,
}

/// What a primary needs of its host.
pub trait PrimaryHost: MemberHost + PairingHost + KeeperHost + Sized {
    /// A part of the log.
    type Bytes: Deref<Target = [u8]>;

    // The gate.

    /// SYN-ACKs that have come to it since the last time.
    fn held(&mut self) -> Vec<Held>;
    fn conn_of(&self, key: &ConnKey) -> Option<ConnId>;
    fn slot(&self, conn: ConnId) -> Option<SlotView>;
    /// Lets a connection's SYN-ACK out, and from now on what follows.
    fn open(&mut self, conn: ConnId);
    /// Forgets a connection; a SYN-ACK that is held is never sent.
    fn free(&mut self, conn: ConnId);
    fn set_stable(&mut self, conn: ConnId, stable: SeqNo);
    fn allow_fin(&mut self, conn: ConnId);
    /// For so long slots of connections that are over are freed: new ones that the gate has
    /// no slot for are refused where the server speaks alone.
    fn mind_slots(&mut self, lasts: Duration);
    /// No FIN or RST of the kernel leaves any more.
    fn set_server_dead(&mut self);

    // The log.

    /// A shim runs in the server.
    fn is_attached(&self) -> bool;
    /// Where the log ends.
    fn tail(&self) -> u64;
    /// As [`Self::tail`], for who has read up to `from`; `None`: it went back.
    fn take_tail(&mut self, from: u64) -> Option<u64>;
    fn bytes(&self, pos: u64, len: usize) -> Self::Bytes;
    /// The server writes no log that would be missed by who sleeps after reading up
    /// to `read_to`.
    fn may_sleep(&mut self, read_to: u64) -> bool;
    fn set_log_stable(&mut self, pos: u64);
    /// The shim cannot go on recording, in words.
    fn log_fault(&self) -> Option<String>;
    /// Looks at what a connection's socket holds unread.
    fn peek(&mut self, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked;

    // The server.

    /// Stops it where it is.
    fn pause_server(&mut self);
    /// As [`MemberHost::kill_server`], without waiting for its end.
    fn strike_server(&mut self);
    /// From now on no death of ours touches the service: the gate lets everything pass and
    /// keeps its books, as the shim does, and held SYN-ACKs are sent.
    ///
    /// # Errors
    /// When the gate cannot be opened, in words.
    fn go_alone(&mut self) -> Result<(), String>;
    /// How many handshakes the smallest listener bears, if there is one.
    fn backlog(&mut self) -> Option<usize>;
    /// Ends connections in the kernel; whether it did.
    fn destroy(&mut self, keys: &[ConnKey]) -> bool;
    /// Server and gate have nothing more to say that anybody reads.
    fn stop_watching(&mut self);

    // The backup.

    /// Hands on what has come; whether the channel is lost.
    fn recv(&mut self, each: &mut dyn FnMut(&mut Self, &Message<'_>)) -> bool;
    fn send(&mut self, message: &Message<'_>);
    /// Whether what was to be sent is on its way, as far as there is room.
    fn flush(&mut self) -> bool;
    /// The channel is of no use any more.
    fn drop_peer(&mut self);

    // A joiner, while the server speaks alone.

    /// What a member does beside a server that speaks alone and that somebody may join.
    fn stand_beside(&mut self);
    /// Whoever comes hears that it cannot join now.
    fn turn_away(&mut self, reason: &str);
    /// Who has just been met is the one that joins.
    fn admit(&mut self);
    /// Living connections of the server that the gate does not know: it would let nothing
    /// of them pass any more.
    fn strangers(&mut self) -> usize;
    /// Begins to copy the server as it is at one moment, at which its log begins; its output
    /// does not wait for it. What the kernel holds then for the clients of the `slow` sockets is
    /// copied too.
    ///
    /// # Errors
    /// In words; the server goes on as before.
    fn take_image(&mut self, slow: &[u64]) -> Result<(), String>;
    /// What has become of it; `None`: that moment has not come.
    fn image_taken(&mut self) -> Option<Result<Image, String>>;
    /// The connections that it had accepted then, and of those that it had let go of by then
    /// what the kernel still has: no other way tells them from what it has not accepted.
    fn books(&mut self) -> Vec<Book>;
    /// Output of the slow sockets, as far as there was room for it.
    fn earlier(&mut self) -> Vec<Earlier>;
    /// Sockets of connections that it has accepted until now, but those that it has let go of
    /// long ago.
    fn sockets(&mut self) -> BTreeSet<u64>;
    /// The next bytes of the image, at most so many; none are left if it gives none.
    /// `None`: they are not there yet.
    ///
    /// # Errors
    /// In words: the image will never be whole.
    fn image(&mut self, most: usize) -> Result<Option<Vec<u8>>, String>;
    /// Nobody needs the image any more, and from here on nobody takes one.
    fn drop_image(&mut self);
    /// The joiner holds the log before `pos`: its room may be used again.
    fn free_log(&mut self, pos: u64);
    /// The server will not have to wait for room soon.
    fn has_log_room(&self) -> bool;
    /// Nobody follows the log any more, and none did: it ends.
    fn end_log(&mut self);
    /// Output waits from now on until what it depends on is stable, as it is up to `pos`.
    fn commit(&mut self, pos: u64);
    /// From now on ACKs wait, and what else the gate holds back.
    ///
    /// # Errors
    /// When the kernel refuses, in words; the gate stands open as before.
    fn clamp(&mut self) -> Result<(), String>;
    /// What each connection's client has not acknowledged; `None`: the kernel does not tell.
    fn unacked(&mut self, keys: &[ConnKey]) -> Option<Vec<Unacked>>;

    /// How things are, now and then.
    fn report(&mut self, report: &Report<'_>);
}

/// See [`PrimaryHost::report`].
#[derive(Debug)]
pub struct Report<'a> {
    pub is_attached: bool,
    /// The backup does not answer, and the edge is asked to bar it.
    pub is_in_doubt: bool,
    pub connections: usize,
    pub frames_unconfirmed: usize,
    /// Of the log, read and not executed by the replica at its last heartbeat.
    pub unexecuted: u64,
    pub log_at: u64,
    pub counters: &'a Counters,
    /// Handshakes that had to make room.
    pub handshakes_ended: u64,
    /// Somebody joins, and so many hundredths of the server's image are there; `None`: the
    /// backup follows, or there is none.
    pub joins: Option<u8>,
    /// The server speaks alone, and what it can be rebuilt of is kept, or begins to be.
    pub keeps: bool,
    /// Connections that a takeover would end: what their clients were sent before the backup
    /// joined is nowhere but in this host's kernel, and they have not taken it.
    pub at_risk: usize,
}
