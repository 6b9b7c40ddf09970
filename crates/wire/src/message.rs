//! Messages between members, and between them and their edge.
//!
//! Encoded with postcard inside one encrypted channel message each. Every
//! length is bounded by the channel's message limit; unknown variants and
//! trailing bytes are errors.
//!
//! A build speaks [`VERSION`] and understands [`VERSION_OLDEST`]; which of them a channel carries
//! its two ends agree on. What an older version has in another form is in `coding`.

mod coding;

pub use coding::{BadMessage, is_understood};

use crate::hash::HashKey;
use crate::packet::mapped;
use crate::seq::SeqNo;
use serde::{Deserialize, Serialize, Serializer};
use std::net::{AddrParseError, Ipv6Addr, SocketAddr};

/// Newest version of the conversation.
pub const VERSION: u32 = 14;
/// Oldest version that is understood: a group goes from one release to the next without ending a
/// connection.
pub const VERSION_OLDEST: u32 = 12;
/// First version with the messages of the log's short way.
pub const VERSION_DIRECT: u32 = 13;
/// First version whose replicas understand intents that have [`BY_FILE`](crate::log::BY_FILE) or
/// [`LATER`](crate::log::LATER).
pub const VERSION_SPARES_HASHES: u32 = 14;
/// Largest encoded message, in bytes; a long one takes several channel records.
pub const MESSAGE_MAX: usize = 4 << 20;
/// Most parts of a fingerprint in [`Message::Hello`]; more is malformed.
pub const FINGERPRINT_PARTS_MAX: usize = 4096;
/// Most services in one [`Message::Announce`]; more is malformed.
pub const OFFERS_MAX: usize = 64;
/// Longest name of a [`FingerprintPart`], in bytes; a longer one is malformed.
pub const FINGERPRINT_NAME_BYTES_MAX: usize = 256;
/// Most connections in one [`Message::AreAlive`] or [`Message::NotAlive`]; more
/// is malformed.
pub const KEYS_MAX: usize = 512;
/// Most bytes in one [`Message::Unread`]; more is malformed. A longer message
/// would delay the log's frames.
pub const UNREAD_BYTES_MAX: usize = 256 << 10;
/// Most connections in one [`Message::Adopt`]; more is malformed.
pub const ADOPTED_MAX: usize = 512;
/// Most bytes in one [`Message::Image`]; more is malformed. A longer message
/// would delay heartbeats and the log's frames.
pub const IMAGE_BYTES_MAX: usize = 256 << 10;
/// Most connections in one [`Message::Flows`]; more is malformed. A longer message would delay the
/// edges' signs of life.
pub const FLOWS_MAX: usize = 512;
/// Longest text that a daemon says about itself, in bytes; a longer one is malformed.
pub const SAID_BYTES_MAX: usize = 2048;

/// The part of a text that one message carries.
#[must_use]
pub fn clip(text: &str) -> &str {
    let end = (0..=text.len().min(SAID_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Four-tuple, IPv4 mapped into IPv6, ports in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConnKey {
    pub server: [u8; 16],
    pub client: [u8; 16],
    pub server_port: u16,
    pub client_port: u16,
}

impl std::fmt::Display for ConnKey {
    /// Written as operators write it: `10.0.0.1:4242>10.9.0.100:80`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = |address, port| SocketAddr::new(Ipv6Addr::from(address).to_canonical(), port);
        let (client, server) =
            (end(self.client, self.client_port), end(self.server, self.server_port));
        write!(f, "{client}>{server}")
    }
}

impl std::str::FromStr for ConnKey {
    type Err = AddrParseError;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (client, server) = text.split_once('>').unwrap_or((text, ""));
        let (client, server): (SocketAddr, SocketAddr) = (client.parse()?, server.parse()?);
        Ok(Self {
            server: mapped(server.ip()),
            client: mapped(client.ip()),
            server_port: server.port(),
            client_port: client.port(),
        })
    }
}

/// The gate's slot and its generation: `generation << 32 | index`. Unique
/// among all connections of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConnId(pub u64);

/// Everything that the SYN and SYN-ACK agreed on: a repaired socket needs it,
/// and the client's later packets do not tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnRecord {
    pub key: ConnKey,
    /// Server's and client's initial sequence numbers.
    pub iss: SeqNo,
    pub irs: SeqNo,
    /// Segment size that the server announced; what it may send is learnt from
    /// `peer_mss`.
    pub mss: u16,
    /// Segment size that the client announced (from the tap's SYN; 0 =
    /// none, which means RFC 9293's default).
    pub peer_mss: u16,
    /// Shift of windows the server sends / the client sends; 255 = no scaling.
    pub rcv_wscale: u8,
    pub snd_wscale: u8,
    pub sack: bool,
    /// The server's first TSval if timestamps are on.
    pub tsval: Option<u32>,
    /// The unscaled window of the SYN-ACK.
    pub window: u16,
}

/// What the primary's kernel has accepted for one connection (decision 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnProgress {
    pub conn: ConnId,
    /// Oldest byte the client has not acknowledged, next byte to send.
    pub snd_una: SeqNo,
    pub snd_nxt: SeqNo,
    /// Largest right edge advertised to the client on the wire.
    pub right_edge: SeqNo,
    /// Last TSval sent.
    pub tsval: u32,
    /// Next byte that the kernel itself expects of the client's stream, its FIN
    /// included, whatever ACKs the gate let out.
    pub rcv_nxt: SeqNo,
}

/// Most bytes of one direction of a connection: no network carries so much, and positions in such
/// streams add up within 64 bits.
pub const STREAM_BYTES_MAX: u64 = 1 << 62;

/// A connection that the server already had when its log begins, as the joining backup
/// takes it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// Gate's id and record; `None` if the primary's gate does not know the
    /// connection, so that no takeover keeps it.
    pub conn: Option<(ConnId, ConnRecord)>,
    /// The server's accept number; `None` if it has not accepted the connection
    /// yet.
    pub accept: Option<u32>,
    /// Stream bytes that the server had read and written by then.
    pub in_bytes: u64,
    pub out_bytes: u64,
    /// Bytes of `out_bytes` that the client has acknowledged.
    pub acked_bytes: u64,
    /// Whether the server has seen the end of the client's stream.
    pub eof: bool,
    /// Whether the server has closed the connection.
    pub closed: bool,
    /// The client's last timestamp, as the primary's kernel has it; `None` if it is not known, or
    /// there are none. What is older is stale (PAWS, RFC 7323 §5).
    pub client_tsval: Option<u32>,
}

impl Adopted {
    /// Whether there could be a connection with these numbers, which are the server's word.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let Self { in_bytes, out_bytes, acked_bytes, .. } = *self;
        in_bytes.max(out_bytes) <= STREAM_BYTES_MAX && acked_bytes <= out_bytes + 1
    }
}

/// Bounds the edge has seen on the wire for one flow (decision 16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowBounds {
    pub key: ConnKey,
    /// The server's initial sequence number. `None` if its SYN-ACK was not seen:
    /// the bounds then tell the least that the client has, not the most.
    pub iss: Option<SeqNo>,
    /// Highest sequence end, right edge and TSval sent to the client.
    pub seq_end: SeqNo,
    pub right_edge: SeqNo,
    pub tsval: u32,
    /// Highest ACK from the client.
    pub client_ack: SeqNo,
}

/// The kind of a part of a member's fingerprint (decision 25).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FingerprintKind {
    /// The server's program.
    Program,
    /// A shared object that the loader maps into it; named by its soname.
    Library,
    /// A word of its command line, named by its position; the program is 0.
    Argument,
    /// A variable of its environment.
    Variable,
    /// A file that its command line names.
    File,
    /// A value of the group's file; the part's name contains the value.
    Setting,
    /// A feature flag of the processor.
    CpuFeature,
}

/// The key of the hashes in a primary's log, as its backup is told. It is a secret: it is never
/// shown.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogKey(pub HashKey);

impl std::fmt::Debug for LogKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogKey(secret)")
    }
}

/// One thing that must be the same on both members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FingerprintPart<'a> {
    pub kind: FingerprintKind,
    /// At most [`FINGERPRINT_NAME_BYTES_MAX`] bytes.
    pub name: &'a str,
    /// Hash of the content, keyed with the group's secret.
    pub hash: u64,
}

/// Everything members say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message<'a> {
    /// First message of both sides.
    Hello {
        /// The channel's, whatever the sender put here.
        version: u32,
        log_version: u32,
        group: &'a str,
        member: &'a str,
        /// The sender's epoch.
        epoch: u64,
        /// Whether the sender is the primary of that epoch and its server lives. An
        /// edge whose disk knows less believes it; another member joins what
        /// already runs.
        speaks: bool,
        /// Between members, the sender's fingerprint. To the edge, the settings of the
        /// group's file that the edge's copy must share (empty from releases that did
        /// not send them). From the edge, empty. At most [`FINGERPRINT_PARTS_MAX`] parts.
        #[serde(borrow)]
        fingerprint: Vec<FingerprintPart<'a>>,
        /// From a primary to its backup, the key of the hashes in its log. `None` from
        /// everybody else.
        hash_key: Option<LogKey>,
    },
    /// Heartbeat; `echo` is the last number received from the other side.
    Beat {
        number: u64,
        echo: u64,
        executed: u64,
    },

    // primary -> backup
    /// Whole records without tapped payload. Frames are numbered from 1.
    Frame {
        number: u64,
        #[serde(serialize_with = "in_one_piece")]
        records: &'a [u8],
    },
    /// The payload of record `index` (from 0) of frame `frame`.
    Payload {
        frame: u64,
        index: u32,
        #[serde(serialize_with = "in_one_piece")]
        bytes: &'a [u8],
    },
    /// A SYN-ACK waits for [`Message::ConnOk`].
    Conn {
        conn: ConnId,
        record: ConnRecord,
    },
    /// Accepted state of the primary's kernel.
    Progress {
        conns: Vec<ConnProgress>,
    },
    /// Answer to [`Message::NeedUnread`]: the client's stream from `offset` on, as
    /// the primary's kernel holds it. No bytes and not `last` means that it cannot
    /// tell.
    Unread {
        conn: ConnId,
        offset: u64,
        /// At most [`UNREAD_BYTES_MAX`] bytes.
        bytes: &'a [u8],
        /// Whether the client's stream ends behind `bytes`.
        last: bool,
    },
    /// The connection is over: the client acknowledged the server's FIN, or reset it.
    Gone {
        conn: ConnId,
    },
    /// The server's process is dead; `last` is the last frame there is.
    ServerDied {
        last: u64,
    },

    /// The primary is being stopped by its operator: whatever ends next, the backup
    /// takes over.
    Stopping,

    /// The receiver joins: the server's image has at most this many bytes, and its log
    /// begins at this position. Connections and the image follow.
    Join {
        log_from: u64,
        image_bytes: u64,
    },
    /// Connections that the server had at that position of the log.
    Adopt {
        /// At most [`ADOPTED_MAX`] connections.
        conns: Vec<Adopted>,
    },
    /// Output of an adopted connection that the server had written and its client had not
    /// acknowledged, from this stream offset on. Consecutive messages leave no gap.
    Earlier {
        conn: ConnId,
        offset: u64,
        /// At most [`IMAGE_BYTES_MAX`] bytes.
        #[serde(serialize_with = "in_one_piece")]
        bytes: &'a [u8],
    },
    /// The next bytes of the image; an empty message ends it.
    Image {
        /// At most [`IMAGE_BYTES_MAX`] bytes.
        #[serde(serialize_with = "in_one_piece")]
        bytes: &'a [u8],
    },
    /// From now on output waits for confirmation. A backup that has executed
    /// everything up to and including this frame is in step.
    Closing {
        number: u64,
    },

    // backup -> primary
    /// This many bytes of the image have arrived.
    ImageOk {
        bytes: u64,
    },
    /// The image runs, and has executed almost all that the log held.
    CaughtUp,
    /// The backup is in step: it can take over.
    Joined,
    /// Everything up to and including this frame is held.
    FrameOk {
        number: u64,
    },
    ConnOk {
        conn: ConnId,
    },
    /// The client's streams are held up to these sequence numbers.
    Held {
        conns: Vec<(ConnId, SeqNo)>,
    },
    /// The tap lacks (or contradicts) the payload of this record.
    Need {
        frame: u64,
        index: u32,
    },
    /// The tap lacks the bytes `[from, until)` of the client's stream, which the
    /// server may not have read; its FIN counts as one.
    NeedUnread {
        conn: ConnId,
        from: u64,
        until: u64,
    },

    // backup -> primary, and back: a new image of a server whose log goes on
    /// The backup keeps the log a second time from here on, for an image that it asks for.
    Renew,
    /// An image of at most so many bytes was taken where the log had come to this position; it
    /// follows as for a joiner, and ends when no client lacks what it was sent before it.
    Renewed {
        log_from: u64,
        image_bytes: u64,
    },
    /// Nothing comes of that image; what there was before stays.
    ImageOff {
        reason: &'a str,
    },

    // member <-> edge
    /// Asks which member is current; the edge answers with [`Message::Epoch`].
    Ask,
    Epoch {
        epoch: u64,
        current: &'a str,
    },
    /// Whether the edge hears a member; told to the others when it changes.
    Reach {
        member: &'a str,
        yes: bool,
    },
    /// The current member asked to run on alone and was refused, because the
    /// receiver is in step and answers. The receiver must take over, or both would
    /// wait.
    Alone {
        member: &'a str,
    },
    /// The backup is in step with the primary in this epoch (or no longer is).
    InStep {
        epoch: u64,
        yes: bool,
    },
    /// The backup is in step in this epoch, and builds the server, which it takes
    /// over when that is there (decision 30). A primary whose server lives need not
    /// wait for it.
    Builds {
        epoch: u64,
    },
    /// Fence the current member and make me current in `epoch`.
    Promote {
        epoch: u64,
    },
    /// The current member's server lives and has lost its backup: bar that one, and
    /// let me run on alone in `epoch`.
    GoAlone {
        epoch: u64,
    },
    Granted {
        epoch: u64,
    },
    Refused {
        reason: &'a str,
        /// Whether it may be granted later; the asking member then gives nothing up and
        /// asks again.
        again: bool,
    },
    Bounds {
        flows: Vec<FlowBounds>,
        last: bool,
    },
    /// Connections that the edge has not heard of for a long time. Only the
    /// current member of this epoch answers, with [`Message::NotAlive`].
    AreAlive {
        epoch: u64,
        /// At most [`KEYS_MAX`] keys.
        keys: Vec<ConnKey>,
    },
    /// Connections of [`Message::AreAlive`] that are over: the edge may forget
    /// them.
    NotAlive {
        epoch: u64,
        /// At most [`KEYS_MAX`] keys.
        keys: Vec<ConnKey>,
    },

    // everybody -> everybody
    /// The sender's state as it knows it by itself, in the words of
    /// `holdfast.status/1`; sent on every change, and from time to time.
    Says {
        role: &'a str,
        state: &'a str,
        /// At most [`SAID_BYTES_MAX`] bytes, as all texts here.
        reason: &'a str,
        remedy: &'a str,
    },
    /// The backup will never be promoted; its channel to the primary ends here.
    GaveUp {
        state: &'a str,
        reason: &'a str,
    },
    /// The sender has taken over; the content of `last_takeover` in its status.
    TookOver {
        cause: &'a str,
        /// Durations in the order of the status's `phases_us`.
        phases_us: [u64; 7],
        total_us: u64,
        connections: u64,
        /// Time in RFC 3339 by the sender's clock.
        at: &'a str,
    },

    // member -> edge
    /// The edge's sign with this number has reached the host where the sender
    /// has this hardware address.
    SignSeen {
        number: u64,
        mac: [u8; 6],
    },

    // host server -> edge of a spread group
    /// Everything that the host server serves now, and how packets reach it. A
    /// service that it named before and no longer names is withdrawn.
    Announce {
        weight: u32,
        /// Whether packets come without encapsulation.
        layer2: bool,
        /// The host server's tunnel endpoints, IPv4 mapped into IPv6: at most one
        /// per family.
        tunnels: Vec<[u8; 16]>,
        /// At most [`OFFERS_MAX`] services.
        services: Vec<Offer>,
    },

    // edge -> edge of a spread group
    /// A sign of life: whether the sender could have clients' packets, whether it acts on those that
    /// all edges get, and how many of these have reached it.
    Duty {
        able: bool,
        serves: bool,
        seen: u64,
    },
    /// Whether an operator wants a host server empty. Of several such words the highest `stamp`
    /// counts.
    Drains {
        host: &'a str,
        yes: bool,
        stamp: u64,
    },
    /// Connections at a host server that would not get them if they were new. `last` ends all that
    /// the sender has.
    Flows {
        host: &'a str,
        /// At most [`FLOWS_MAX`] connections.
        flows: Vec<EdgeFlow>,
        last: bool,
    },

    // Since version 13. The short way of the log (see [`crate::direct`]).
    /// primary -> backup: the server's threads would send the log to the backup themselves, from
    /// this port.
    Direct {
        id: u64,
        key: DirectKey,
        port: u16,
    },
    /// backup -> primary: they may, to this port.
    DirectOk {
        id: u64,
        port: u16,
    },
    /// primary -> backup: the last frame ended at this position of the log. Frames that follow are
    /// [`Message::FrameAt`].
    LogAt {
        position: u64,
    },
    /// As [`Message::Frame`], of records from this position of the log on. The backup may have
    /// some of them already.
    FrameAt {
        number: u64,
        position: u64,
        #[serde(serialize_with = "in_one_piece")]
        records: &'a [u8],
    },
    /// backup -> primary: everything before this position of the log is held.
    LogHeld {
        position: u64,
    },
}

/// The key of a log's datagrams. It is a secret: it is never shown.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectKey(pub [u8; crate::direct::KEY_BYTES]);

impl std::fmt::Debug for DirectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DirectKey(secret)")
    }
}

/// A connection as an edge of a spread group knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeFlow {
    pub key: ConnKey,
    /// Time since its client's last packet, in s.
    pub age_s: u32,
    /// Time between its first and its last packet, in s.
    pub lived_s: u16,
    /// What its client has said, in the flags of the redirector's table.
    pub flags: u8,
}

/// A service that a host server announces; IPv4 mapped into IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Offer {
    pub address: [u8; 16],
    pub port: u16,
    pub udp: bool,
}

/// Serializes bytes in one piece, which serde would encode one by one; the
/// encoding is the same.
fn in_one_piece<S: Serializer>(bytes: &&[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(bytes)
}

#[cfg(test)]
mod tests;
