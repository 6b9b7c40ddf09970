//! What a primary needs of its host.

use super::join::{Book, Image};
use super::keeper::KeeperHost;
use super::lacking::{Earlier, Unacked};
use crate::host::MemberHost;
use crate::pairing::PairingHost;
use holdfast_replica::primary::{Counters, Peeked, Wanted};
use holdfast_wire::gate::SlotView;
use holdfast_wire::message::{ConnId, ConnKey, ConnRecord, DirectKey, Message};
use holdfast_wire::seq::SeqNo;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::Duration;

/// A SYN-ACK that the gate holds back, or has let pass because the server speaks alone.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub conn: ConnId,
    /// Cookie of the kernel's socket, which tells it from others of the same tuple.
    pub socket: u64,
    pub record: ConnRecord,
}

/// What a primary needs of its host.
pub trait PrimaryHost: MemberHost + PairingHost + KeeperHost + Sized {
    /// A part of the log.
    type Bytes: Deref<Target = [u8]>;

    // The gate.

    /// SYN-ACKs that have reached the gate since the last call.
    fn held(&mut self) -> Vec<Held>;
    fn conn_of(&self, key: &ConnKey) -> Option<ConnId>;
    fn slot(&self, conn: ConnId) -> Option<SlotView>;
    /// Lets a connection's SYN-ACK out, and from now on what follows.
    fn open(&mut self, conn: ConnId);
    /// Forgets a connection; a SYN-ACK that is held is never sent.
    fn free(&mut self, conn: ConnId);
    fn set_stable(&mut self, conn: ConnId, stable: SeqNo);
    fn allow_fin(&mut self, conn: ConnId);
    /// Says that slots of connections that are over are freed for `lasts`: new connections that the
    /// gate has no slot for are refused meanwhile, where the server speaks alone.
    fn mind_slots(&mut self, lasts: Duration);
    /// Keeps back the kernel's FINs and RSTs from now on, because the server is dead.
    fn set_server_dead(&mut self);

    // The log.

    /// Whether a shim runs in the server.
    fn is_attached(&self) -> bool;
    /// Where the log ends.
    fn tail(&self) -> u64;
    /// As [`Self::tail`], for a reader that has read up to `from`; `None`: the end went back.
    fn take_tail(&mut self, from: u64) -> Option<u64>;
    /// Whether the log has ended because the server ends, while others of its processes may still
    /// send what hangs on nothing behind that.
    fn is_log_over(&self) -> bool {
        false
    }
    fn bytes(&self, pos: u64, len: usize) -> Self::Bytes;
    /// Whether this daemon may sleep after reading the log up to `read_to`: false if more has come,
    /// or could come unannounced.
    fn may_sleep(&mut self, read_to: u64) -> bool;
    /// Where the log ended when the server last announced it to this daemon.
    fn announced(&self) -> u64 {
        u64::MAX
    }
    /// As [`Self::may_sleep`], where log that was not announced may wait.
    fn may_sleep_until_announced(&mut self, read_to: u64) -> bool {
        self.may_sleep(read_to)
    }
    fn set_log_stable(&mut self, pos: u64);
    /// Why the shim cannot go on recording, if so.
    fn log_fault(&self) -> Option<String>;
    /// Looks at what a connection's socket holds unread.
    fn peek(&mut self, wanted: &Wanted, into: &mut Vec<u8>) -> Peeked;

    // The server.

    /// Stops the server where it is.
    fn pause_server(&mut self);
    /// It goes on, and is not dead: what [`Self::pause_server`] and [`Self::set_server_dead`] did is
    /// undone.
    fn resume_server(&mut self);
    /// As [`MemberHost::kill_server`], without waiting for its end.
    fn strike_server(&mut self);
    /// Makes the server independent of this daemon's death: the gate lets everything pass and sends
    /// the SYN-ACKs that it held, and gate and shim go on keeping their books.
    ///
    /// # Errors
    /// When the gate cannot be opened, with the reason.
    fn go_alone(&mut self) -> Result<(), String>;
    /// Backlog of the listener with the smallest one, in handshakes; `None`: nobody listens.
    fn backlog(&mut self) -> Option<usize>;
    /// Ends connections in the kernel; returns whether it did.
    fn destroy(&mut self, keys: &[ConnKey]) -> bool;
    /// Ends the watching of server and gate, whose reports nobody reads any more.
    fn stop_watching(&mut self);

    // The backup.

    /// Hands on messages that have come; returns whether the channel is lost.
    fn recv(&mut self, each: &mut dyn FnMut(&mut Self, &Message<'_>)) -> bool;
    fn send(&mut self, message: &Message<'_>);
    /// Sends what is queued as far as there is room; returns whether all of it is on its way.
    fn flush(&mut self) -> bool;
    /// Closes the channel, which is of no more use.
    fn drop_peer(&mut self);

    // The short way of the log (decision 35), in this order.

    /// A key with its number, and the port from which the server's threads would send the log;
    /// `None`: they cannot, or the backup does not understand it.
    fn offer_direct(&mut self) -> Option<(u64, DirectKey, u16)> {
        None
    }
    /// They may, to this port of the backup.
    fn begin_direct(&mut self, _port: u16) {}
    /// They may not any more.
    fn end_direct(&mut self) {}

    // A joiner, while the server speaks alone.

    /// What a member does while its server speaks alone and somebody may join.
    fn stand_beside(&mut self);
    /// Refuses, for this reason, members that come now.
    fn turn_away(&mut self, reason: &str);
    /// Makes the member that has just been met the one that joins.
    fn admit(&mut self);
    /// Number of living connections of the server that the gate does not know, and that it would
    /// cut off once it holds packets back.
    fn strangers(&mut self) -> usize;
    /// Begins to copy the server as it is at one moment, at which its log begins; the server's
    /// output does not wait for that. What the kernel then holds for the clients of the `slow`
    /// sockets is copied, too. If a replica `has_differed`, the server's threads may race, and may
    /// have to run one at a time from there on (decision 34).
    ///
    /// # Errors
    /// When that fails, with the reason; the server goes on as before.
    fn take_image(&mut self, slow: &[u64], has_differed: bool) -> Result<(), String>;
    /// The image that was begun, or why it failed; `None`: its moment has not come yet.
    fn image_taken(&mut self) -> Option<Result<Image, String>>;
    /// Connections that the server had accepted at the image's moment. Those that it had closed by
    /// then are among them as long as the kernel has them: nothing else tells them from connections
    /// that it has not accepted.
    fn books(&mut self) -> Vec<Book>;
    /// Output for the clients of the slow sockets, as far as there was room for it.
    fn earlier(&mut self) -> Vec<Earlier>;
    /// Sockets of the connections that the server has accepted so far, except those that it closed
    /// long ago.
    fn sockets(&mut self) -> BTreeSet<u64>;
    /// The next bytes of the image, at most `most`; none at all at its end. `None`: they are not
    /// there yet.
    ///
    /// # Errors
    /// When the image will never be complete, with the reason.
    fn image(&mut self, most: usize) -> Result<Option<Vec<u8>>, String>;
    /// Drops the image, and stops taking one.
    fn drop_image(&mut self);
    /// Frees the log's room before `pos`: the joiner holds what was there.
    fn free_log(&mut self, pos: u64);
    /// Whether the server will not soon have to wait for room in the log.
    fn has_log_room(&self) -> bool;
    /// Ends the log, which nobody follows.
    fn end_log(&mut self);
    /// Makes output wait, from now on, until what it depends on is stable; the log is stable up to
    /// `pos`.
    fn commit(&mut self, pos: u64);
    /// Makes the gate hold back ACKs, and what else it may hold back, from now on.
    ///
    /// # Errors
    /// When the kernel refuses, with the reason; the gate stays open as before.
    fn clamp(&mut self) -> Result<(), String>;
    /// What the clients of these connections have not acknowledged; `None`: the kernel does not
    /// tell.
    fn unacked(&mut self, keys: &[ConnKey]) -> Option<Vec<Unacked>>;

    /// Shows the state of the primary, from time to time.
    fn report(&mut self, report: &Report<'_>);
}

/// State of a primary, for `status` and metrics.
#[derive(Debug)]
pub struct Report<'a> {
    pub is_attached: bool,
    /// Whether the backup does not answer, and the edge is asked to bar it.
    pub is_in_doubt: bool,
    pub connections: usize,
    pub frames_unconfirmed: usize,
    /// Bytes of the log that the replica had read and not executed at its last heartbeat.
    pub unexecuted: u64,
    pub log_at: u64,
    pub counters: &'a Counters,
    /// Number of unfinished handshakes that had to make room.
    pub handshakes_ended: u64,
    /// Percentage of the server's image that a joiner has; `None`: nobody joins.
    pub joins: Option<u8>,
    /// Whether what a server that speaks alone can be rebuilt from is kept, or begins to be.
    pub keeps: bool,
    /// Number of connections that a takeover would end: what their clients were sent before the
    /// backup joined, and have not acknowledged, is nowhere but in this host's kernel.
    pub at_risk: usize,
}
