//! What a backup needs of its host: to follow, and to take over.

use super::Cause;
use crate::host::MemberHost;
use holdfast_replica::backup::Counters;
use holdfast_replica::promotion::{Discarded, ManifestConn, Restore};
use holdfast_wire::log::Header;
use holdfast_wire::message::{ConnKey, DirectKey, Message};
use holdfast_wire::packet::TcpPacket;
use holdfast_wire::seq::SeqNo;

/// What a replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replica {
    Replays,
    /// It has come to the end of its log, and stands still.
    Parked,
    /// It did something else, in words.
    Diverged(String),
    Ended,
    /// What is kept of it, so that it could be built, is not kept any more, in words.
    Unkept(String),
    /// So much log is kept of it that a takeover would take long: a new image is due.
    Outgrown(String),
}

/// What is kept of a replica that is built only when a takeover needs it (decision 30), and
/// of which nothing runs yet, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub image: u64,
    pub log: u64,
}

/// What a backup needs of its host to join, and to follow.
pub trait FollowHost: MemberHost + Sized {
    // The tap.

    /// Hands on at most so many segments of clients; whether there was any.
    fn drain_tap(&mut self, most: usize, each: &mut dyn FnMut(&mut Self, &TcpPacket<'_>)) -> bool;
    /// Whether every copy wakes this member.
    fn watch_tap(&mut self, yes: bool);
    /// No copy is needed any more.
    fn close_tap(&mut self);

    // The replica.

    fn replica(&self) -> Replica;
    /// Does a thread of the replica compute, or wait for a processor or a disk?
    fn is_replica_busy(&self) -> bool;
    /// A process of the replica that somebody has stopped.
    fn stopped_by_hand(&self) -> Option<u32>;
    /// Appends a record to its log; whether there was room.
    fn replay(&mut self, header: &Header, payload: &[&[u8]]) -> bool;
    /// The client has acknowledged so much of a connection's output.
    fn acked(&mut self, accept: u32, bytes: u64);
    /// The connection is over.
    fn gone(&mut self, accept: u32);
    /// Bytes of the log: appended, and executed.
    fn progress(&self) -> (u64, u64);
    /// Half of the room for its log is free.
    fn has_room(&self) -> bool;
    /// Tells it of new records.
    fn wake_replica(&mut self);

    // A joiner's replica, in this order. What is replayed before it runs is kept. Where it is
    // built only when a takeover needs it (decision 30), all of it is kept until then: it is
    // `made` as soon as it could be built, and once more when the takeover has built it.

    /// An image of at most so many bytes comes, of a server whose log begins at `log_from`:
    /// a server is made of it while it comes.
    ///
    /// # Errors
    /// When there is no room for it, in words.
    fn begin_copy(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String>;
    /// Its next bytes.
    ///
    /// # Errors
    /// In words.
    fn take_image(&mut self, bytes: &[u8]) -> Result<(), String>;
    /// Bytes of it for which no room is needed any more: as many may follow.
    fn image_kept(&self) -> u64;
    /// It is whole.
    fn end_image(&mut self);
    /// What has become of the server: it follows the log, or nothing is left of it, and why.
    /// `None`: it is being made.
    fn copy_made(&mut self) -> Option<Result<(), String>>;
    /// What was kept goes to it, as far as it has room; whether nothing is kept any more.
    fn feed_copy(&mut self) -> bool;
    // The primary.

    /// Whether anything may have come from it.
    fn is_peer_ready(&self) -> bool;
    /// Hands on what has come; whether the channel was lost.
    fn recv(&mut self, each: &mut dyn FnMut(&mut Self, &Message<'_>)) -> bool;
    fn send(&mut self, message: &Message<'_>);
    fn flush(&mut self);
    fn close_peer(&mut self);

    // The short way of the log (decision 35).

    /// Listens for what the primary's server sends itself from this port, with this key; returns
    /// the port. `None`: it cannot.
    fn open_direct(&mut self, _id: u64, _key: &DirectKey, _port: u16) -> Option<u16> {
        None
    }
    /// Hands on what has come that way: positions of the log, and the records there.
    fn recv_direct(&mut self, _each: &mut dyn FnMut(&mut Self, u64, &[u8])) {}
    /// Tells the server that everything before this position is held.
    fn send_held(&mut self, _position: u64) {}

    /// How things are, now and then.
    fn report(&mut self, report: &Report<'_>);
}

/// What it needs to take over, too.
pub trait BackupHost: FollowHost {
    // A new image of what is kept, in this order; its pieces are taken as a joiner's are.

    /// From here on the log is kept a second time.
    ///
    /// # Errors
    /// When there is no room for it, in words.
    fn begin_renewal(&mut self) -> Result<(), String>;
    /// An image of at most so many bytes comes, which belongs to this position of the log.
    ///
    /// # Errors
    /// When there is no room for it, or the log was not kept from there on, in words.
    fn begin_new_image(&mut self, log_from: u64, image_bytes: u64) -> Result<(), String>;
    /// Whether what has come of it is kept, with the log up to its position at least.
    ///
    /// # Errors
    /// It cannot be kept, in words.
    fn is_renewal_kept(&mut self) -> Result<bool, String>;
    /// It is over: it takes the place of what was kept before (`replaces`), or is dropped.
    fn end_renewal(&mut self, replaces: bool);

    // A takeover.

    /// See [`Kept`]; `None`: the replica is there, or is just being built of an image that
    /// comes.
    fn kept(&self) -> Option<Kept>;
    /// No record follows: it parks when it has executed them all.
    fn end_log(&mut self);

    // A takeover, in this order.

    /// It has begun: the replica is given the processor; one of which all is kept is built.
    fn begin_takeover(&mut self);
    /// Looks whether clients could reach this host's server, before the edge is asked: it lets
    /// nobody else speak once it has granted that.
    ///
    /// # Errors
    /// When the interface is gone, in words.
    fn find_interface(&mut self) -> Result<(), String>;
    /// Those of the connections with these accept numbers that the parked replica has.
    fn manifest(&mut self, accepts: &[u32]) -> Vec<ManifestConn>;
    /// Takes a connection over from the replica, to be rebuilt.
    fn restore(&mut self, restore: &Restore<'_>);
    /// Rebuilds the connections taken since in the kernel, which does not speak yet.
    fn rebuild(&mut self);
    /// A connection that is not carried over, and why.
    fn lost(&mut self, lost: &Discarded);
    fn revive_listeners(&mut self);
    /// The service address is this host's.
    ///
    /// # Errors
    /// When the kernel refuses, in words.
    fn take_address(&mut self) -> Result<(), String>;
    /// How far each client's clock had come: before the sockets hear anybody.
    fn show_clocks(&mut self);
    /// What clients send reaches this host's kernel.
    ///
    /// # Errors
    /// When the kernel refuses, in words.
    fn hear_clients(&mut self) -> Result<(), String>;
    /// Output that no client has, the ends of streams, and the accept queue: all of it
    /// before the server writes again.
    fn send_retained(&mut self);
    /// The server speaks for itself.
    fn set_live(&mut self);
    /// Tells the network where the service is and every client what has arrived, and sends again
    /// what may be lost.
    fn kick(&mut self);
    /// A client's packet that was kept, into this host's kernel.
    fn inject(&mut self, raw: Vec<u8>);
    /// It is over: the replica's process is like any other.
    fn end_takeover(&mut self);

    // Afterwards.

    /// Something that was in flight may still be lost.
    fn has_nudges(&self) -> bool;
    /// A client's ACK drives what may be lost.
    fn nudge(&mut self, key: &ConnKey, ack: SeqNo);
    /// A client repeats its SYN: the SYN-ACK was lost.
    fn repeat_syn_ack(&mut self, key: &ConnKey);
    /// Begins again where a client has made no progress, or has not answered a SYN-ACK.
    fn nudge_again(&mut self);
    /// Handshakes of which no client has been heard in all that time end, as the kernel's own
    /// would: they were rebuilt as connections, which nothing else would ever end.
    fn end_unanswered(&mut self);
}

/// See [`FollowHost::report`].
#[derive(Debug)]
pub struct Report<'a> {
    /// Why it takes over, once it does.
    pub promoting: Option<Cause>,
    /// Whether it builds the server for that, and has not asked the edge yet.
    pub builds: bool,
    pub counters: &'a Counters,
    /// Connections of which the tap keeps something.
    pub connections: usize,
    /// Frames and bytes of the log that wait for what the tap lacks.
    pub unresolved: (usize, usize),
    /// Hundredths of the image that are here, while this member joins.
    pub joins: Option<u8>,
}
