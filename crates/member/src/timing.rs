//! How long daemons wait for each thing. The times stand here once, so that those that are tested
//! are those that ship.

use std::time::Duration;

/// Time between two heartbeats if the file says nothing, in ms: three missing ones take less than
/// the 75 ms that a cut link may cost.
pub const HEARTBEAT_MS_DEFAULT: u64 = 18;

/// A pause that doubles with each failed attempt before.
pub(crate) fn doubled(first: Duration, failed: u32, most: Duration) -> Duration {
    first.saturating_mul(1 << failed.min(16)).min(most)
}

/// Times of every member.
pub mod member {
    use super::Duration;

    /// Time between two questions to the edge while nobody is current.
    pub const ASK_EVERY: Duration = Duration::from_millis(100);
    /// Time between two looks for a channel that could take the question.
    pub const ASK_RETRY: Duration = Duration::from_millis(10);
}

/// Times of members that meet.
pub mod pairing {
    use super::Duration;

    /// Time between two looks after handshakes that have come to a halt.
    pub const LOOK_EVERY: Duration = Duration::from_millis(50);
    /// Time after which the backup compares again; reading a server and its
    /// libraries takes a good part of a second.
    pub const COMPARE_EVERY: Duration = Duration::from_secs(2);
}

/// Times of the primary.
pub mod primary {
    use super::Duration;

    /// Time between two looks for log that the shim did not announce.
    pub const TICK: Duration = Duration::from_millis(4);
    /// Time after which log is read that the server has sent to the backup itself, and that the
    /// backup does not say it has: three times as long as that takes at most.
    pub const DIRECT_READ_AFTER: Duration = Duration::from_millis(3);
    /// Time between two reports of the kernel's progress to the backup.
    pub const PROGRESS_EVERY: Duration = Duration::from_millis(2);
    /// Additional time for each connection, so that a thousand do not cost a core.
    pub const PROGRESS_PER_CONN: Duration = Duration::from_micros(20);
    /// Time between two requests to the edge to let this member run on alone.
    pub const ASK_EVERY: Duration = Duration::from_millis(10);
    /// Longest age of the status that the daemon shows.
    pub const REPORT_EVERY: Duration = Duration::from_millis(50);
    /// Time between two looks for ending connections in the kernel.
    pub const CLOSING_EVERY: Duration = Duration::from_millis(20);
    /// Time after the last of these looks for which a lone server's limit of connections
    /// holds: many of them, and not long enough to shut out the clients of a server whose
    /// daemon has died.
    pub const MINDED: Duration = Duration::from_secs(5);
    /// Time for which slots of ended connections are kept for late packets, unless they are half of
    /// all or fewer than an eighth of all are free.
    pub const LINGER: Duration = Duration::from_secs(60);
    /// Time between two looks after connections that nobody has accepted.
    pub const STRAY_EVERY: Duration = Duration::from_secs(2);
    /// Time between two looks after connections that nobody has accepted, while a quarter of the
    /// gate's slots, or less, is free.
    pub const SCARCE_EVERY: Duration = Duration::from_millis(200);
    /// Time for which an owed ACK waits for a reply to carry it, unless it covers
    /// more than [`OWED_BYTES`] (RFC 5681 §4.2).
    pub const OWED_WAIT: Duration = Duration::from_millis(5);
    /// As [`OWED_WAIT`], where the server hears from the backup itself.
    pub const DIRECT_OWED_WAIT: Duration = Duration::from_micros(500);
    /// Bytes for which an owed ACK does not wait: two segments of the usual size.
    pub const OWED_BYTES: i32 = 2 * 1448;
    /// Longest wait for the shim to run in a server, without which nothing of it is replicated.
    pub const ATTACH_MAX: Duration = Duration::from_secs(5);
    /// Longest wait of a planned switchover until the backup holds everything that the
    /// server has logged.
    pub const CONFIRM_MAX: Duration = Duration::from_secs(1);
    /// Time between two looks at whether the backup of a planned switchover holds everything.
    pub const CONFIRM_LOOK: Duration = Duration::from_micros(200);
    /// Longest time until the edge lets the backup of a planned switchover speak.
    pub const GRANT_MAX: Duration = Duration::from_secs(3);
    /// Longest time until the edge lets the cold backup of a planned switchover speak, which builds
    /// its server before it asks.
    pub const GRANT_BUILD_MAX: Duration = Duration::from_secs(60);
    /// Time between two looks at whether the edge has let the backup of a planned switchover speak.
    pub const GRANT_LOOK: Duration = Duration::from_millis(20);
    /// Time between two looks of a primary that has nothing left to do.
    pub const IDLE_LOOK: Duration = Duration::from_millis(200);
    /// Age below which no unfinished handshake makes room for another.
    pub const YOUNG: Duration = Duration::from_millis(100);
    /// Most unfinished handshakes looked at in one go, so that nobody else waits for
    /// long.
    pub const HALF_OPEN_LOOK_MAX: usize = 64;
    /// Time between two looks of a primary that speaks alone and that others may join.
    pub const ALONE_LOOK: Duration = Duration::from_millis(20);
    /// Longest time in which a joiner that has the whole image catches up with the log: as long
    /// the server may have to keep to its pace.
    pub const CATCHING_UP_MAX: Duration = Duration::from_secs(60);
    /// Pause after a failed attempt to join, doubled with each further one.
    pub const REJOIN_PAUSE: Duration = Duration::from_secs(1);
    /// Longest pause after a failed attempt to join.
    pub const REJOIN_PAUSE_MAX: Duration = Duration::from_secs(60);
    /// Time for which a replaced member still answers the one that replaced it, before it
    /// begins again as its backup.
    pub const REPLACED_REST: Duration = Duration::from_secs(1);
    /// Time in step after which a joined backup's earlier attempts no longer count: a replica
    /// that always differs after seconds costs its server a freeze each time.
    pub const IN_STEP_LASTS: Duration = Duration::from_secs(60);
    /// Time between two pieces of an image, which makes 200 MB/s: both daemons run before
    /// everything else on their processors, and the servers beside them have clients.
    pub const IMAGE_EVERY: Duration = Duration::from_micros(1300);
    /// Time without a joiner after which what a server that speaks alone can be rebuilt from is
    /// kept: a backup that comes at once needs an image of its own.
    pub const KEEP_AFTER: Duration = Duration::from_millis(500);
    /// Pause after a failed attempt to keep what a server can be rebuilt from, doubled with each
    /// further one.
    pub const KEEP_PAUSE: Duration = Duration::from_secs(1);
    /// Longest pause after failed attempts to keep what a server can be rebuilt from.
    pub const KEEP_PAUSE_MAX: Duration = Duration::from_secs(60);
    /// Time of successful keeping after which earlier failed attempts no longer count.
    pub const KEEP_LASTS: Duration = Duration::from_secs(10);
    /// Longest time until the rest of a fallen server's log is kept.
    pub const FALL_MAX: Duration = Duration::from_millis(50);
    /// Longest silence of a joiner; nobody waits for it meanwhile.
    pub const JOINER_SILENT: Duration = Duration::from_secs(10);
    /// Longest wait of a joiner for clients to acknowledge what they were sent before it came.
    pub const CLIENTS_MAX: Duration = Duration::from_secs(5);
    /// Most slow clients whose output is copied while the server stands still: each costs the
    /// others some microseconds.
    pub const SLOW_MAX: usize = 1024;
    /// Number of the kernel's repetitions to a client after which it is no longer waited for: three
    /// take 1.4 s on a short path, and more on a long one.
    pub const REPEATS_MAX: u8 = 3;
    /// Time between two looks at the listeners' backlogs.
    pub const BACKLOG_EVERY: Duration = Duration::from_secs(1);
}

/// Times of the backup.
pub mod backup {
    use super::Duration;

    /// Most packets taken from the tap in one turn.
    pub const TAP_BATCH: usize = 256;
    /// Bytes of log for which the replica is woken at once: one wake-up for many
    /// records costs the pair far less than one each.
    pub const WAKE_BYTES: u64 = 64 << 10;
    /// Longest time for which less log than [`WAKE_BYTES`] waits for the replica to be woken.
    pub const WAKE_AFTER: Duration = Duration::from_micros(400);
    /// Time between two looks at the tap, unless the primary's log wakes the backup first: the log
    /// needs the copies, and a client's ACK can wait that long.
    pub const TAP_AFTER: Duration = Duration::from_micros(800);
    /// Held bytes that are reported at once; fewer wait for the next confirmation of
    /// the log, or for [`HELD_AFTER`].
    pub const HELD_BYTES: usize = 512 << 10;
    /// Longest time for which held bytes are not reported.
    pub const HELD_AFTER: Duration = Duration::from_millis(1);
    /// Time between two looks at whether a server is built from its image by now;
    /// messages and copies of packets are looked at when they come.
    pub const COPY_LOOK: Duration = Duration::from_millis(2);
    /// Time between two looks at a replica that the backup waits for.
    pub const LOOK_AFTER: Duration = Duration::from_micros(200);
    /// Pause until a backup that has given up joins again, doubled each time.
    pub const REJOIN_PAUSE: Duration = Duration::from_secs(2);
    /// Longest pause until a backup that has given up joins again.
    pub const REJOIN_PAUSE_MAX: Duration = Duration::from_secs(120);
    /// Time that a backup must have followed until earlier failures are
    /// forgotten.
    pub const PROVEN_AFTER: Duration = Duration::from_secs(60);
    /// Longest time for which a joiner may lack what it needs to be in step, while output already
    /// waits.
    pub const CLOSING_MAX: Duration = Duration::from_secs(10);
    /// Part of [`CLOSING_MAX`] in which a joiner waits for bytes of clients' streams from before
    /// its tap. Bytes that it then still lacks cost a connection if a takeover comes before they
    /// are read.
    pub const STREAMS_MAX: Duration = Duration::from_secs(5);
    /// Part of [`CLOSING_MAX`] in which a joiner waits for bytes of a connection that the server
    /// has not accepted: nobody can be asked for them.
    pub const UNACCEPTED_MAX: Duration = Duration::from_secs(1);
    /// Pause after a failed attempt at a new image, doubled with each further one.
    pub const RENEW_PAUSE: Duration = Duration::from_secs(1);
    /// Longest pause after a failed attempt at a new image.
    pub const RENEW_PAUSE_MAX: Duration = Duration::from_secs(60);
    /// Longest time for which nothing of a new image may come: clients have five seconds to take
    /// what they were sent before it.
    pub const RENEW_SILENT_MAX: Duration = Duration::from_secs(10);
    /// Most failed attempts at a new image in a row; then the backup leaves and joins anew, so that
    /// its log does not grow for ever.
    pub const RENEW_TRIES_MAX: u32 = 5;
    /// Time from the primary's first heartbeat within which it answers the edge, even if it was
    /// busy with its start.
    pub const START_PATIENCE: Duration = Duration::from_millis(100);
    /// Longest age of the status that the daemon shows.
    pub const REPORT_EVERY: Duration = Duration::from_millis(20);
}

/// Times of a takeover.
pub mod takeover {
    use super::Duration;

    /// Longest time for which a replica stands at one place of its log, short of the end; after
    /// that it counts as hung.
    pub const PARK_MAX: Duration = Duration::from_secs(5);
    /// Additional time for a cold backup, to build its server (decision 30): a few times what that
    /// takes on any machine that can do it at all.
    pub const BUILD_MAX: Duration = Duration::from_secs(30);
    /// Additional time for each MB of the image, which makes 20 MB/s.
    pub const BUILD_PER_IMAGE_MB: Duration = Duration::from_millis(50);
    /// Additional time for each MB of the log: a server in Python replays 8
    /// MB/s.
    pub const BUILD_PER_LOG_MB: Duration = Duration::from_millis(500);
    /// Time between two looks at whether the server is built.
    pub const BUILD_LOOK: Duration = Duration::from_millis(2);
    /// Time between two requests to an edge that does not answer.
    pub const ASK_EVERY: Duration = Duration::from_millis(50);
    /// Time between two looks at a replica that executes the rest of its log.
    pub const DRAIN_LOOK: Duration = Duration::from_micros(200);
    /// Time between two looks for the edge's answer, once the log is at its end.
    pub const GRANT_LOOK: Duration = Duration::from_millis(5);
    /// Time between two looks for what clients answer to probes.
    pub const PROBE_LOOK: Duration = Duration::from_millis(2);
    /// Time after going live for which clients' ACKs still drive the resending of what
    /// was in flight; then the kernel's own timers do, and somebody may join.
    pub const NUDGE_MAX: Duration = Duration::from_secs(5);
    /// Time between two looks at clients that make no progress.
    pub const NUDGE_LOOK: Duration = Duration::from_millis(20);
    /// Time between two looks of a survivor that has nothing left to do.
    pub const IDLE_LOOK: Duration = Duration::from_millis(500);
    /// Most batches taken from the tap in a row: a flood must not keep the takeover from its end.
    pub const TAP_BATCHES: usize = 256;
}

/// Times of a pair's edge.
pub mod edge {
    use super::Duration;

    /// Time between two looks at a share of the flows, for those that are over.
    pub const FLOW_AGE_PERIOD: Duration = Duration::from_millis(100);
    /// Time for which a member that went away keeps its tap: it may only have
    /// lost its channel, and need not ask the primary for what is copied now.
    pub const TAP_LINGER: Duration = Duration::from_secs(5);
    /// Time for living members to speak after a start of the edge's host: that of a connection
    /// attempt whose first packets were lost.
    pub const SETTLE: Duration = Duration::from_secs(3);
}

/// Times of a spread group's edge.
pub mod spread {
    use super::Duration;

    /// Time between two ticks of the redirector's clock, and between two looks at the
    /// routes.
    pub const TICK: Duration = Duration::from_secs(1);
    /// Ticks between two looks for flows that are over.
    pub const AGE_TICKS: u64 = 5;
    /// Longest time after its start for which the daemon leaves everything as it is; shorter if all
    /// host servers that were up come back.
    pub const GRACE: Duration = Duration::from_secs(3);
}

/// Times of one edge among several of a spread group.
pub mod edges {
    use super::Duration;

    /// Time between two signs of life where one edge acts on what reaches all of them. Who takes
    /// one for dead that is not only sends its packets a second time, so this may be short.
    pub const DUTY_EVERY: Duration = Duration::from_millis(15);
    /// Signs of life that may be missing.
    pub const MISSED: u64 = 3;
    /// Time between two lists of connections that are elsewhere, so that none grows old at an edge
    /// that does not see its packets.
    pub const REFRESH: Duration = Duration::from_secs(10);
    /// Time for which an edge that starts waits for the others, and once more for what they know.
    pub const WAIT: Duration = Duration::from_secs(1);
}

/// Times of a spread group's host server.
pub mod host_server {
    use super::Duration;

    /// Time between two looks for listeners without a bind, which is how long a
    /// service that leaves stays announced.
    pub const LOOK_EVERY: Duration = Duration::from_millis(200);
    /// Times of the looks after a bind, in ms since it.
    pub const AFTER_BIND_MS: [u64; 7] = [1, 2, 5, 10, 20, 50, 100];
    /// Pause after a look, in multiples of its duration, whatever is bound: a
    /// daemon that only looked would miss its heartbeats.
    pub const REST: u64 = 4;
    /// Time between two questions whether listeners answer.
    pub const ASK_EVERY: Duration = Duration::from_secs(1);
    /// Time after which a connection that the server has not accepted counts as unanswered.
    pub const ANSWER_MAX: Duration = Duration::from_millis(500);
    /// Failures in a row after which a service is withdrawn.
    pub const FAILURES_MAX: u32 = 2;
    /// Time without movement in a server's queue after which the server is withdrawn, if at least
    /// [`FAILURES_MAX`] test connections have found it so.
    pub const STANDS_MAX: Duration = Duration::from_secs(2);
}
