//! How long daemons wait for what. A number that stood in two places
//! would be tested in one and shipped in the other.

use std::time::Duration;

/// Time between two heartbeats, ms, where the file says nothing: three that are
/// missing are less than the 75 ms that a cut link may cost.
pub const HEARTBEAT_MS_DEFAULT: u64 = 18;

/// A pause that doubles with each attempt that has failed before.
pub(crate) fn doubled(first: Duration, failed: u32, most: Duration) -> Duration {
    first.saturating_mul(1 << failed.min(16)).min(most)
}

/// Every member.
pub mod member {
    use super::Duration;

    /// Time between two questions to the edge while nobody is current.
    pub const ASK_EVERY: Duration = Duration::from_millis(100);
    /// Time between two looks for a channel that could take the question.
    pub const ASK_RETRY: Duration = Duration::from_millis(10);
}

/// Members that meet.
pub mod pairing {
    use super::Duration;

    /// Time between two looks after handshakes that have come to a halt.
    pub const LOOK_EVERY: Duration = Duration::from_millis(50);
    /// The backup compares again after this long; reading a server and its
    /// libraries takes a good part of a second.
    pub const COMPARE_EVERY: Duration = Duration::from_secs(2);
}

/// The primary.
pub mod primary {
    use super::Duration;

    /// Time between two looks for log that the shim did not announce.
    pub const TICK: Duration = Duration::from_millis(4);
    /// Time between two reports of the kernel's progress to the backup.
    pub const PROGRESS_EVERY: Duration = Duration::from_millis(2);
    /// How much longer that is for each connection, so that a thousand do not cost a
    /// core.
    pub const PROGRESS_PER_CONN: Duration = Duration::from_micros(20);
    /// Time between two requests to the edge to let this member run on alone.
    pub const ASK_EVERY: Duration = Duration::from_millis(10);
    /// Age at which the status is brought up to date.
    pub const REPORT_EVERY: Duration = Duration::from_millis(50);
    /// Time between two looks for ending connections in the kernel.
    pub const CLOSING_EVERY: Duration = Duration::from_millis(20);
    /// How long slots of ended connections are kept for late packets, unless they
    /// are half of all.
    pub const LINGER: Duration = Duration::from_secs(60);
    /// Time between two looks after connections that nobody has accepted.
    pub const STRAY_EVERY: Duration = Duration::from_secs(2);
    /// The same while a quarter of the gate's slots, or less, is free.
    pub const SCARCE_EVERY: Duration = Duration::from_millis(200);
    /// How long an owed ACK waits for a reply to carry it, unless it covers more than
    /// [`OWED_BYTES`] (RFC 5681 §4.2).
    pub const OWED_WAIT: Duration = Duration::from_millis(5);
    /// Two segments.
    pub const OWED_BYTES: i32 = 2 * 1448;
    /// How long a server may take until the shim runs in it.
    pub const ATTACH_MAX: Duration = Duration::from_secs(5);
    /// Wait of a planned switchover at most, until the backup holds all that the server
    /// has logged.
    pub const CONFIRM_MAX: Duration = Duration::from_secs(1);
    /// Time between two looks whether it does.
    pub const CONFIRM_LOOK: Duration = Duration::from_micros(200);
    /// How long the edge may take to let the backup of a planned switchover speak.
    pub const GRANT_MAX: Duration = Duration::from_secs(3);
    /// Time between two looks whether it has.
    pub const GRANT_LOOK: Duration = Duration::from_millis(20);
    /// Time between two looks of a primary that has nothing left to do.
    pub const IDLE_LOOK: Duration = Duration::from_millis(200);
    /// Age below which no unfinished handshake makes room for another.
    pub const YOUNG: Duration = Duration::from_millis(100);
    /// Unfinished handshakes that are looked at in one go, so that nobody else waits
    /// for long.
    pub const HALF_OPEN_LOOK_MAX: usize = 64;
    /// Time between two looks of a primary that speaks alone, and that somebody may join.
    pub const ALONE_LOOK: Duration = Duration::from_millis(20);
    /// Pause after an attempt to join that failed, doubled with each, and the longest.
    pub const REJOIN_PAUSE: Duration = Duration::from_secs(1);
    pub const REJOIN_PAUSE_MAX: Duration = Duration::from_secs(60);
    /// How long a member that was replaced still answers who replaced it, until it begins
    /// again as its backup.
    pub const REPLACED_REST: Duration = Duration::from_secs(1);
    /// How long a backup that has joined is in step until the attempts before it count no
    /// more: a replica that always differs after seconds costs its server a freeze each time.
    pub const IN_STEP_LASTS: Duration = Duration::from_secs(60);
    /// Time between two pieces of an image, 200 MB/s: both daemons come before everything
    /// else on their processors, and the servers beside them have clients.
    pub const IMAGE_EVERY: Duration = Duration::from_micros(1300);
    /// How long a joiner may say nothing; nobody waits for it meanwhile.
    pub const JOINER_SILENT: Duration = Duration::from_secs(10);
    /// How long a joiner waits for clients to acknowledge what they were sent before it.
    pub const CLIENTS_MAX: Duration = Duration::from_secs(5);
    /// Clients that take nothing, whose output is copied while the server stands still: each
    /// costs the others some microseconds.
    pub const SLOW_MAX: usize = 64;
    /// How often the kernel has repeated itself to a client that is not waited for: three
    /// times are 1.4 s of a short path, and more of a long one.
    pub const REPEATS_MAX: u8 = 3;
    /// Time between two questions for the backlog of the listeners.
    pub const BACKLOG_EVERY: Duration = Duration::from_secs(1);
}

/// The backup.
pub mod backup {
    use super::Duration;

    /// Packets taken from the tap in one turn.
    pub const TAP_BATCH: usize = 256;
    /// Bytes of log for which the replica is woken at once: one wake-up for many
    /// records costs the pair far less than one each.
    pub const WAKE_BYTES: u64 = 64 << 10;
    /// How long less log than that waits.
    pub const WAKE_AFTER: Duration = Duration::from_micros(400);
    /// Time between two looks at the tap, unless the primary's log wakes us first:
    /// the log needs the copies, and a client's ACK can wait that long.
    pub const TAP_AFTER: Duration = Duration::from_micros(800);
    /// Bytes held that are told at once; fewer wait for the next confirmation of the
    /// log, or for [`HELD_AFTER`].
    pub const HELD_BYTES: usize = 512 << 10;
    /// How long what is held may be untold.
    pub const HELD_AFTER: Duration = Duration::from_millis(1);
    /// Time between two looks at whether a server is made of its image by now; messages
    /// and copies of packets are looked at when they come.
    pub const COPY_LOOK: Duration = Duration::from_millis(2);
    /// Time between two looks at a replica that is waited for.
    pub const LOOK_AFTER: Duration = Duration::from_micros(200);
    /// Pause of a backup that has given up, until it joins again: doubled with each time,
    /// and the longest.
    pub const REJOIN_PAUSE: Duration = Duration::from_secs(2);
    pub const REJOIN_PAUSE_MAX: Duration = Duration::from_secs(120);
    /// How long a backup must have followed until what went before is forgotten.
    pub const PROVEN_AFTER: Duration = Duration::from_secs(60);
    /// How long a joiner may lack what it needs to be in step, while output already waits.
    pub const CLOSING_MAX: Duration = Duration::from_secs(10);
    /// How long of that it waits for what came of clients' streams before its tap. What it
    /// lacks then costs a connection, if a takeover comes before it is read.
    pub const STREAMS_MAX: Duration = Duration::from_secs(5);
    /// How long for that of a connection which the server has not accepted: nobody can be
    /// asked for it.
    pub const UNACCEPTED_MAX: Duration = Duration::from_secs(1);
    /// Time from its first beat within which a primary that was busy with its start
    /// answers the edge.
    pub const START_PATIENCE: Duration = Duration::from_millis(100);
    /// Age at which the status is brought up to date.
    pub const REPORT_EVERY: Duration = Duration::from_millis(20);
}

/// A takeover.
pub mod takeover {
    use super::Duration;

    /// How long a replica may take to the end of its log; later it is hung.
    pub const PARK_MAX: Duration = Duration::from_secs(5);
    /// What a cold backup has besides, until its server is built and has come to its log's
    /// end (decision 30): on any machine that does it at all, a few times what it takes.
    pub const BUILD_MAX: Duration = Duration::from_secs(30);
    /// For each MB of the image, 20 MB/s.
    pub const BUILD_PER_IMAGE_MB: Duration = Duration::from_millis(50);
    /// For each MB of the log: a server in Python replays 8 MB/s.
    pub const BUILD_PER_LOG_MB: Duration = Duration::from_millis(500);
    /// Time between two looks whether the server is built.
    pub const BUILD_LOOK: Duration = Duration::from_millis(2);
    /// Time between two requests to an edge that does not answer.
    pub const ASK_EVERY: Duration = Duration::from_millis(50);
    /// Time between two looks at a replica that executes the rest of its log.
    pub const DRAIN_LOOK: Duration = Duration::from_micros(200);
    /// Time between two looks for the edge's answer, once the log is at its end.
    pub const GRANT_LOOK: Duration = Duration::from_millis(5);
    /// Time between two looks for what clients answer to probes.
    pub const PROBE_LOOK: Duration = Duration::from_millis(2);
    /// How long after it has gone live clients' ACKs still drive what was in flight; then
    /// the kernel's own timers do, and somebody may join.
    pub const NUDGE_MAX: Duration = Duration::from_secs(5);
    /// Time between two looks at clients that make no progress.
    pub const NUDGE_LOOK: Duration = Duration::from_millis(20);
    /// Time between two looks of a survivor that has nothing left to do.
    pub const IDLE_LOOK: Duration = Duration::from_millis(500);
    /// Packets taken from the tap in one turn.
    pub const TAP_BATCH: usize = 256;
}

/// The edge of a pair.
pub mod edge {
    use super::Duration;

    /// Time between two looks at a share of the flows, whether they are over.
    pub const FLOW_AGE_PERIOD: Duration = Duration::from_millis(100);
    /// How long a member that went away keeps its tap: it may only have lost its
    /// channel, and what is copied now it need not ask the primary for.
    pub const TAP_LINGER: Duration = Duration::from_secs(5);
    /// Wait after a start of the host until members that live have said so: the time of
    /// a connection attempt whose first packets were lost.
    pub const SETTLE: Duration = Duration::from_secs(3);
}

/// The edge of a spread group.
pub mod spread {
    use super::Duration;

    /// Time between two ticks of the redirector's clock, and between two looks at the
    /// routes.
    pub const TICK: Duration = Duration::from_secs(1);
    /// Ticks between two looks for flows that are over.
    pub const AGE_TICKS: u64 = 5;
    /// How long after its start the daemon leaves everything as it is, unless all host
    /// servers that were up have come back before.
    pub const GRACE: Duration = Duration::from_secs(3);
}

/// A host server of a spread group.
pub mod host_server {
    use super::Duration;

    /// Time between two looks for listeners without a bind: how long a service that
    /// leaves stays announced.
    pub const LOOK_EVERY: Duration = Duration::from_millis(200);
    /// Looks after a bind, ms since it.
    pub const AFTER_BIND_MS: [u64; 7] = [1, 2, 5, 10, 20, 50, 100];
    /// Rest after a look, in multiples of its duration, whatever is bound: a daemon
    /// that only looked would miss its heartbeats.
    pub const REST: u64 = 4;
    /// Time between two questions whether listeners answer.
    pub const ASK_EVERY: Duration = Duration::from_secs(1);
    /// Time after which a server that has not accepted a connection counts as ill.
    pub const ANSWER_MAX: Duration = Duration::from_millis(500);
    /// Failures in a row after which a service is withdrawn.
    pub const FAILURES_MAX: u32 = 2;
    /// Time in which a server has taken nobody of its queue after which it is withdrawn;
    /// so many questions have found it so.
    pub const STANDS_MAX: Duration = Duration::from_secs(2);
}
