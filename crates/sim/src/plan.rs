//! What a seed draws before a run begins: the clients, the path to them, and
//! the faults. A plan prints as one readable paragraph.

mod draw;
mod joins;
mod show;

use crate::Ns;
use crate::Rng;
use crate::clock::ClockPlan;
use crate::direct::DirectPlan;
use crate::packet::NO_SCALING;
use crate::sweep::{Case, Uneven};
use draw::{draw_clock, draw_faults, draw_rare};
use holdfast_replica::limits::{self as replica, PrimaryLimits, Share};
use holdfast_wire::buffering::Buffering;
pub use joins::{ColdPlan, How, JoinPlan, Rebuild, Step};

const MS: Ns = 1_000_000;

/// What a hostile client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    /// It acknowledges bytes that were never sent.
    AcksUnsent,
    /// Its RSTs are one beyond the expected sequence number. When a member that takes over
    /// probes it, it acknowledges more than was sent.
    ResetsBeside,
    /// Its segments lie outside the window, have no ACK, or carry a SYN.
    StraysOutside,
    /// It sends several FINs with different sequence numbers.
    EndsTwice,
    /// It sends many SYNs and completes none of the handshakes.
    FloodsSyns,
    /// Many short connections, each ended by a reset.
    Storms,
}

/// The moment at which a client vanishes without ending its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// When it gets its SYN-ACK.
    HalfOpen,
    /// After its FIN.
    Ended,
}

/// What the checkers may expect of a client's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    Good,
    /// Its retransmissions differ from its first segments, and either may be the one read.
    Contradicts,
    /// See [`Trick`].
    Bad,
}

/// One client's habits.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    pub start: Ns,
    /// Requests of a session.
    pub requests: u8,
    /// Most requests that wait for their replies at a time.
    pub pipeline: u8,
    pub think: Ns,
    pub filler_max: u16,
    pub bulk_max: u16,
    pub wscale: u8,
    /// Whether its initial sequence numbers are about to wrap.
    pub near_wrap: bool,
    /// Whether it sends its FIN before it has the replies.
    pub half_close: bool,
    /// Whether the server closes first.
    pub server_ends: bool,
    /// Whether it uses selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Whether it and its server use explicit congestion notification (RFC 3168).
    pub ecn: bool,
    /// Whether the next session has the same port.
    pub reuse_port: bool,
    /// Whether its retransmissions differ from what it sent first.
    pub lies: bool,
    /// Whether it retransmits its SYN only after 1 s, as most clients do (RFC 6298 §2.1).
    pub patient: bool,
    /// Period in which it reads nothing, so that its window closes.
    pub looks_away: Option<(Ns, Ns)>,
    pub vanishes_at: Option<Ns>,
    /// The stage of its second session at which it vanishes.
    pub vanishes_in: Option<Stage>,
    /// Whether it abandons some sessions without ending them, and connects again from the
    /// same port at once.
    pub comes_again: bool,
    pub trick: Option<Trick>,
}

/// The path between clients and edge.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub delay: Ns,
    pub loss_permille: u64,
    pub duplicate_permille: u64,
    pub reorder_permille: u64,
    /// Permille of ECN-capable packets that the path marks as having met congestion.
    pub congestion_permille: u64,
}

/// Sizes of tables and queues (law L6).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections that the gate knows.
    pub gate_slots: usize,
    /// Most flows that the edge tracks.
    pub edge_flows: usize,
    /// Most SYNs that the gate remembers; a new one replaces the oldest.
    pub gate_syns: usize,
    /// Size of a listener's queues of handshakes and of connections to accept, each.
    pub backlog: usize,
    /// Most packets in the socket of a backup's tap; further ones are lost.
    pub tap_packets: usize,
    pub primary: PrimaryLimits,
    pub backup: replica::Limits,
}

impl Limits {
    /// The daemons' default limits; the tables of the kernel programs are smaller here.
    pub const WIDE: Self = Self {
        gate_slots: 256,
        edge_flows: 64,
        gate_syns: 1024,
        backlog: 128,
        tap_packets: usize::MAX,
        primary: PrimaryLimits::DEFAULT,
        backup: replica::Limits::DEFAULT,
    };

    /// Draws limits that this many clients may reach.
    fn draw(rng: &mut Rng, clients: usize) -> Self {
        let mut limits = Self::WIDE;
        limits.edge_flows = rng.pick(&[64, 64, 64, clients + 2]);
        limits.backlog = rng.pick(&[128, 32, 4]);
        if rng.one_in(4) {
            limits.tighten(rng, clients);
        }
        limits
    }

    /// Whether the backup's table of SYNs may be full.
    pub(crate) fn forget_syns(&self) -> bool {
        self.backup.syns_max < Self::WIDE.backup.syns_max
    }

    /// Makes all limits tiny, but large enough that every client succeeds in the end: there
    /// is room for what clients send at a time and for a log's records.
    pub fn tighten(&mut self, rng: &mut Rng, clients: usize) {
        self.gate_syns = rng.range(2, 6) as usize;
        // Fewer handshakes may be pending than there are connections.
        self.backlog = 4;
        self.tap_packets = rng.pick(&[4, 16, 64]);
        let conns_max = clients + rng.range(2, 6) as usize;
        self.primary = PrimaryLimits {
            conns_max,
            frames_unconfirmed_max: rng.range(1, 6) as usize,
            frame_bytes_max: rng.spread(100, 3000) as usize,
        };
        self.backup = replica::Limits {
            conns_max,
            stream_bytes_max: rng.spread(1500, 9000) as usize,
            beyond_pieces_max: rng.range(1, 5) as usize,
            beyond_bytes_max: rng.spread(100, 2000) as usize,
            raws_bytes_max: rng.range(8, 64) as usize,
            held: Share { each: 500, common: rng.below(2000) as usize },
            aside: Share { each: 250, common: rng.below(1000) as usize },
            syns_max: rng.range(1, 5) as usize,
            early_bytes_max: rng.range(1, 1000) as usize,
            unread_asked_max: rng.range(1, 4) as usize,
            late_syns_max: rng.range(1, 4) as usize,
            late_bytes_max: rng.range(8, 64) as usize,
            ..replica::Limits::DEFAULT
        };
    }
}

/// The edge's disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskPlan {
    /// Permille of writes that fail.
    pub fails_permille: u64,
    /// Whether the edge's host may find an older image on its disk after a restart.
    pub rolls_back: bool,
}

/// Which direction of a link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    Both,
    /// Only towards the member, or from the primary to the backup.
    To,
    /// Only the other direction.
    From,
}

/// A fault. Members are 0, the first primary, and 1, its backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A whole machine is suspended; `member` 2 is the edge's. When it resumes, its clock
    /// has continued, has stood still, or jumps.
    FreezeHost {
        member: usize,
        lasts: Ns,
    },
    HostDies {
        member: usize,
    },
    /// A dead member is started again.
    Starts {
        member: usize,
    },
    /// The member that is current at that time (`speaks`), or the other one, dies.
    Dies {
        speaks: bool,
        how: How,
    },
    /// The daemon dies, and its server with it. The daemon may be started `again`.
    KillDaemon {
        member: usize,
        again: Option<Ns>,
    },
    /// Only the process of the server, or of the replica, dies.
    KillServer {
        member: usize,
    },
    SlowBackup {
        lasts: Ns,
    },
    HangReplica,
    /// The backup believes that the primary is dead, although it runs well.
    Mistake,
    CutPair {
        ways: Ways,
        lasts: Ns,
    },
    CutEdge {
        member: usize,
        ways: Ways,
        lasts: Ns,
    },
    TapLoss {
        lasts: Ns,
    },
    /// Messages between the members arrive late, as after lost segments.
    SlowPair {
        lasts: Ns,
    },
    EdgeDaemon {
        lasts: Ns,
    },
    EdgeHost {
        lasts: Ns,
    },
    /// Servers stop calling accept(); new connections wait in the kernel.
    AcceptsNobody {
        lasts: Ns,
    },
    /// The shim of a recording server reports that it cannot go on.
    ShimBreaks {
        member: usize,
    },
    /// An administrator sets the time of day of a member's host.
    SetsClock {
        member: usize,
        /// Amount, forward or back, in ns.
        by: i64,
    },
    /// An operator closes the edge, and opens it again.
    ClosedByHand {
        until_takeover: bool,
        lasts: Ns,
    },
}

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    At(Ns),
    /// Right after this record of the first primary's log.
    Record(u64),
    /// Right after this message between the members has arrived.
    Message(u64),
    /// This long after the previous fault.
    After(Ns),
    /// When a join next reaches this step.
    Join(Step),
}

/// A mutation: what is deliberately wrong in the model, to prove that a checker sees it. In
/// parentheses, the law or the check that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The gate lets every ACK pass (L1).
    AckBeyondStable,
    /// The shim does not wait for the log before it writes (L2).
    NoCommit,
    /// A SYN-ACK does not wait until the backup has its record (L2).
    SynAckAtOnce,
    /// The edge lets every member send to clients (L3).
    NoFence,
    /// The gate lowers the ACK without enlarging the window by as much (L4).
    ShrinkWindow,
    /// The replica counts one request twice (L5).
    CountTwice,
    /// The edge promotes a backup that is not in step (L5).
    PromoteAnybody,
    /// The gate lets a FIN leave with payload before the server has asked for it (L2).
    LeaveFin,
    /// The gate keeps D-SACKs above the ACK that it has rewritten (L1).
    KeepDsack,
    /// The gate tracks more connections than it has slots (L6).
    NoLimit,
    /// At its limit the gate gives a new connection the slot of an old one (L6).
    EvictOldest,
    /// An edge that was closed by hand is never opened (liveness).
    StaysClosed,
    /// Bytes that the server has not read yet are sent wrongly to the backup (L5).
    PeekAside,
    /// A backup that could take over does not (liveness).
    NeverPromote,
    /// A primary that goes on alone keeps the ACKs that its gate withheld (owed).
    AcksKept,
    /// A primary that was replaced continues (L3).
    NeverStandDown,
    /// Idle channels are not probed, so that the restart of the edge goes unnoticed
    /// (liveness).
    NoKeepalive,
    /// The current member does not ask a restarted edge to open the fence again, nor who is
    /// current now (liveness).
    NobodyAsksAgain,
    /// In a takeover, a restarted edge is not told who is in step (liveness).
    NotSaidAgain,
    /// A member that comes back while the edge still has its old channel counts as in step
    /// (liveness).
    NotForgotten,
    /// A backup that has asked to be current gives up when its primary sends it away
    /// (liveness).
    SentAway,
    /// Heartbeats between the members are not sent (cause).
    NoBeats,
    /// A primary and the edge show an unchanged status when the backup is gone (status).
    StaysProtected,
    /// The gate keeps the slots of connections that have ended (rest).
    KeepSlots,
    /// A promoted server sees its host's clocks unadjusted (L5).
    ClocksAnew,
    /// The edge never resends the SYNs that it has kept during an outage (knock).
    NeverResend,
    /// A hostile client costs others their connections (one client).
    NeighbourPays,
    /// The backup tells the server of more than it holds (L2).
    HeldUnseen,
}

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub clients: Vec<ClientPlan>,
    pub path: Path,
    pub limits: Limits,
    pub ring_bytes: u64,
    pub receive_buffer: u64,
    pub wscale: u8,
    /// Permille of the copies to the backup that are lost, at any time.
    pub copy_loss_permille: u64,
    /// Longest of the server's occasional pauses.
    pub server_pause: Option<Ns>,
    /// Whether no shim ever runs in the first primary's server.
    pub unattached: bool,
    pub disk: DiskPlan,
    /// Clocks of both members, and of the edge.
    pub clocks: [ClockPlan; 3],
    /// Time from which clients begin no new session.
    pub load_until: Ns,
    pub faults: Vec<(When, Fault)>,
    pub uneven: Uneven,
    /// Whether the daemons also send heartbeats as datagrams.
    pub pulses: bool,
    /// Set if the log goes the short way (decision 35).
    pub direct: Option<DirectPlan>,
    pub joins: JoinPlan,
    /// Set if the backup is cold (decision 30).
    pub cold: Option<ColdPlan>,
    /// Set if a server that falls while it runs alone is rebuilt (decision 31).
    pub rebuild: Option<Rebuild>,
    /// What acknowledgements and output wait for (decision 32). Seeds draw only output
    /// commit, because the other modes give up laws that are checked.
    pub buffering: Buffering,
    /// The case, if this is a run of a sweep.
    pub case: Option<Case>,
    /// How long the run continues when all clients are done.
    pub rest: Ns,
    pub mutation: Option<Mutation>,
}

impl Plan {
    /// The plan of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 1);
        let mut faults = draw_faults(&mut rng);
        let rough = rng.one_in(2);
        let path = Path {
            delay: rng.spread(100_000, 20 * MS),
            loss_permille: if rough { rng.below(60) } else { 0 },
            duplicate_permille: if rough { rng.below(30) } else { 0 },
            reorder_permille: if rough { rng.below(60) } else { 0 },
            congestion_permille: 0,
        };
        let count = 2 + rng.below(5);
        // Generators of their own, so that earlier draws stay the same.
        let mut strain = Rng::new(seed, 3);
        let mut habits = Rng::new(seed, 4);
        let mut clients: Vec<ClientPlan> = (0..count).map(|_| ClientPlan::draw(&mut rng)).collect();
        clients.iter_mut().for_each(|client| client.draw_habits(&mut habits));
        let hostile = if habits.one_in(4) { habits.range(1, 3) } else { 0 };
        clients.extend((0..hostile).map(|_| ClientPlan::draw_hostile(&mut habits)));
        if habits.one_in(12) {
            faults.push(draw_rare(&mut habits, faults.is_empty()));
        }
        let congestion_permille = habits.pick(&[0, 100]);
        let mut clocks = Rng::new(seed, 7);
        clients.iter_mut().for_each(|client| client.patient = clocks.one_in(2));
        if clocks.one_in(4) {
            faults.push(draw_clock(&mut clocks, faults.is_empty()));
        }
        let mut joining = Rng::new(seed, 9);
        let joins = JoinPlan::draw(&mut joining);
        let more = joins::draw_joins(&mut joining, &mut faults);
        Self {
            seed,
            clients,
            path: Path { congestion_permille, ..path },
            limits: Limits {
                gate_slots: if rng.one_in(8) { 2 * count as usize + 2 } else { 256 },
                ..Limits::draw(&mut habits, count as usize)
            },
            ring_bytes: rng.pick(&[16 << 10, 64 << 10, 1 << 20]),
            receive_buffer: rng.pick(&[3000, 8000, 60000]),
            wscale: rng.pick(&[NO_SCALING, 0, 2, 7]),
            copy_loss_permille: strain.pick(&[0, 0, 10, 100]),
            server_pause: strain.one_in(2).then(|| strain.spread(MS, 200 * MS)),
            unattached: habits.one_in(40),
            disk: DiskPlan {
                fails_permille: strain.pick(&[0, 0, 100, 500]),
                rolls_back: strain.one_in(2),
            },
            clocks: [(); 3].map(|()| ClockPlan::draw(&mut clocks)),
            load_until: rng.range(600 * MS, 1500 * MS) + more,
            faults,
            uneven: if strain.one_in(4) { Uneven::ROUGH } else { Uneven::default() },
            pulses: clocks.one_in(2),
            direct: DirectPlan::draw(&mut Rng::new(seed, 13)),
            joins,
            cold: ColdPlan::draw(&mut Rng::new(seed, 11)),
            rebuild: None,
            buffering: Buffering::Commit,
            case: None,
            rest: 0,
            mutation: None,
        }
    }
}

impl ClientPlan {
    /// Whether it misbehaves or vanishes; no other client may suffer from that.
    #[must_use]
    pub fn is_at_fault(&self) -> bool {
        self.manners() != Manners::Good || self.vanishes_at.is_some() || self.vanishes_in.is_some()
    }

    /// Whether it reads all its replies. A client that stops reading for a while, or that
    /// abandons sessions, may end its connection with replies unread.
    #[must_use]
    pub fn reads_all(&self) -> bool {
        !self.is_at_fault() && self.looks_away.is_none() && !self.comes_again
    }

    fn draw(rng: &mut Rng) -> Self {
        let pipeline = rng.pick(&[1, 1, 2, 6]);
        let from = rng.range(50 * MS, 900 * MS);
        Self {
            start: rng.range(20 * MS, 200 * MS),
            requests: rng.range(1, 20) as u8,
            pipeline,
            think: rng.spread(MS, 60 * MS),
            filler_max: rng.pick(&[10, 200, 900]),
            bulk_max: rng.pick(&[0, 100, 1500]),
            wscale: rng.pick(&[NO_SCALING, 0, 3]),
            near_wrap: rng.one_in(4),
            half_close: rng.one_in(4),
            sack: false,
            ecn: false,
            server_ends: rng.one_in(4),
            reuse_port: rng.one_in(4),
            lies: rng.one_in(6),
            patient: false,
            looks_away: rng.one_in(5).then(|| (from, from + rng.spread(20 * MS, 1000 * MS))),
            vanishes_at: rng.one_in(10).then(|| rng.range(100 * MS, 1200 * MS)),
            vanishes_in: None,
            comes_again: false,
            trick: None,
        }
    }
}

impl ClientPlan {
    /// What the checkers may expect of it.
    pub fn manners(&self) -> Manners {
        match (self.trick, self.lies) {
            (Some(_), _) => Manners::Bad,
            (None, true) => Manners::Contradicts,
            (None, false) => Manners::Good,
        }
    }

    /// Draws the habits that have a random generator of their own.
    fn draw_habits(&mut self, rng: &mut Rng) {
        self.sack = rng.one_in(2);
        self.ecn = rng.one_in(3);
        self.vanishes_in = rng.one_in(12).then(|| rng.pick(&[Stage::HalfOpen, Stage::Ended]));
        self.comes_again = rng.one_in(8);
    }

    /// Draws a hostile client.
    fn draw_hostile(rng: &mut Rng) -> Self {
        let mut plan = Self::draw(rng);
        plan.draw_habits(rng);
        let trick = rng.pick(&[
            Trick::AcksUnsent,
            Trick::ResetsBeside,
            Trick::StraysOutside,
            Trick::EndsTwice,
            Trick::FloodsSyns,
            Trick::Storms,
        ]);
        plan.plays(trick);
        plan
    }

    /// Makes it play this trick from now on.
    pub fn plays(&mut self, trick: Trick) {
        self.trick = Some(trick);
        if trick == Trick::Storms {
            (self.requests, self.think) = (1, 10 * MS);
        }
    }
}

impl Fault {
    /// How long it lasts; 0 for what does not end.
    #[must_use]
    pub fn lasts(&self) -> Ns {
        match *self {
            Self::FreezeHost { lasts, .. }
            | Self::SlowBackup { lasts }
            | Self::CutPair { lasts, .. }
            | Self::CutEdge { lasts, .. }
            | Self::TapLoss { lasts }
            | Self::AcceptsNobody { lasts }
            | Self::SlowPair { lasts }
            | Self::EdgeDaemon { lasts }
            | Self::EdgeHost { lasts }
            | Self::ClosedByHand { lasts, .. } => lasts,
            Self::KillDaemon { again, .. } => again.unwrap_or(0),
            Self::ShimBreaks { .. } | Self::SetsClock { .. } => 0,
            Self::Starts { .. } | Self::Dies { .. } => 0,
            Self::HostDies { .. } | Self::KillServer { .. } | Self::HangReplica | Self::Mistake => {
                0
            }
        }
    }
}
