//! What a seed draws before a run begins: the clients, the path to them, and
//! the faults. A plan prints as one readable paragraph.

mod draw;
mod joins;
mod show;

use crate::Ns;
use crate::Rng;
use crate::clock::ClockPlan;
use crate::packet::NO_SCALING;
use crate::sweep::{Case, Uneven};
use draw::{draw_clock, draw_faults, draw_rare};
use holdfast_replica::limits::{self as replica, PrimaryLimits, Share};
use holdfast_wire::buffering::Buffering;
pub use joins::{ColdPlan, How, JoinPlan, Rebuild, Step};

const MS: Ns = 1_000_000;

/// Bad manners of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    /// It acknowledges what was never sent.
    AcksUnsent,
    /// It resets one beyond the next number, and claims to have more than was sent when
    /// a member that takes over probes it.
    ResetsBeside,
    /// Its segments lie outside the window, have no ACK, or begin anew.
    StraysOutside,
    /// It ends its stream more than once, and in different places.
    EndsTwice,
    /// It completes none of many handshakes.
    FloodsSyns,
    /// Many short connections, each ended by a reset.
    Storms,
}

/// Where a client vanishes without a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// When its SYN is answered.
    HalfOpen,
    /// After its FIN.
    Ended,
}

/// What may be expected of a client's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    Good,
    /// It says two things about one byte, and nobody knows which one is read.
    Contradicts,
    /// See [`Trick`].
    Bad,
}

/// One client's habits.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    pub start: Ns,
    /// Requests of a session, and how many may be open at a time.
    pub requests: u8,
    pub pipeline: u8,
    pub think: Ns,
    pub filler_max: u16,
    pub bulk_max: u16,
    pub wscale: u8,
    /// Whether its first sequence numbers are about to wrap.
    pub near_wrap: bool,
    /// Whether it ends its sending side before the answers are there.
    pub half_close: bool,
    /// Whether the server ends first.
    pub server_ends: bool,
    /// Whether it reports, and hears, bytes beyond a hole (RFC 2018).
    pub sack: bool,
    /// Whether it and its server mark packets as able to hear of congestion (RFC
    /// 3168).
    pub ecn: bool,
    /// Whether the next session has the same ports.
    pub reuse_port: bool,
    /// Whether its repeats contradict what it sent first.
    pub lies: bool,
    /// Whether it repeats its SYN as late as most clients do (RFC 6298 §2.1).
    pub patient: bool,
    /// Period in which it reads nothing, so that its window closes.
    pub looks_away: Option<(Ns, Ns)>,
    pub vanishes_at: Option<Ns>,
    /// The stage of its second session at which it vanishes.
    pub vanishes_in: Option<Stage>,
    /// Whether it leaves sessions in the middle, without a word, and comes again from
    /// the same port at once.
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
    /// Permille of packets, whose ends can hear of it, that report a congested path.
    pub congestion_permille: u64,
}

/// Sizes of tables and queues (law L6).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections that the gate knows.
    pub gate_slots: usize,
    /// Most flows that the edge follows.
    pub edge_flows: usize,
    /// Most SYNs that the gate remembers; the oldest gives way.
    pub gate_syns: usize,
    /// Most handshakes, and connections to accept, that a listener takes.
    pub backlog: usize,
    /// Most packets in the socket of a backup's tap; further ones are lost.
    pub tap_packets: usize,
    pub primary: PrimaryLimits,
    pub backup: replica::Limits,
}

impl Limits {
    /// The daemons' limits, except for the tables of the kernels.
    pub const WIDE: Self = Self {
        gate_slots: 256,
        edge_flows: 64,
        gate_syns: 1024,
        backlog: 128,
        tap_packets: usize::MAX,
        primary: PrimaryLimits::DEFAULT,
        backup: replica::Limits::DEFAULT,
    };

    /// Limits that a few clients reach; `clients` is their number.
    fn draw(rng: &mut Rng, clients: usize) -> Self {
        let mut limits = Self::WIDE;
        limits.edge_flows = rng.pick(&[64, 64, 64, clients + 2]);
        limits.backlog = rng.pick(&[128, 32, 4]);
        if rng.one_in(4) {
            limits.tighten(rng, clients);
        }
        limits
    }

    /// Whether the backup may have no room for a SYN.
    pub(crate) fn forget_syns(&self) -> bool {
        self.backup.syns_max < Self::WIDE.backup.syns_max
    }

    /// Makes everything tiny, but so that every client gets through in the end: what
    /// clients send at a time, and a log's records, have room.
    pub fn tighten(&mut self, rng: &mut Rng, clients: usize) {
        self.gate_syns = rng.range(2, 6) as usize;
        // Fewer handshakes may be old than there are connections.
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
    /// Whether an old image may be in its place when the edge's host is started
    /// again.
    pub rolls_back: bool,
}

/// Which direction of a link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    Both,
    /// Only towards the member, or from the primary to the backup.
    To,
    From,
}

/// What breaks. Members are 0, the first primary, and 1, its backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A whole machine stands still, as if stopped; 2 is the edge's. When it goes on,
    /// its clock has gone on, has stood still, or leaps.
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
    /// The member that then speaks, or the other one, dies.
    Dies {
        speaks: bool,
        how: How,
    },
    /// The daemon alone dies, and its server with it. It may be started again.
    KillDaemon {
        member: usize,
        again: Option<Ns>,
    },
    /// The process of the server, or of the replica, dies alone.
    KillServer {
        member: usize,
    },
    SlowBackup {
        lasts: Ns,
    },
    HangReplica,
    /// The backup thinks the primary dead, which is well and goes on.
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
    /// Messages between the members come late, as after lost segments.
    SlowPair {
        lasts: Ns,
    },
    EdgeDaemon {
        lasts: Ns,
    },
    EdgeHost {
        lasts: Ns,
    },
    /// Servers accept nobody; clients that connect wait in the kernel.
    AcceptsNobody {
        lasts: Ns,
    },
    /// The shim of a recording server reports that it cannot go on.
    ShimBreaks {
        member: usize,
    },
    /// Somebody sets the time of day of a member's host.
    SetsClock {
        member: usize,
        /// Amount, forward or back, in ns.
        by: i64,
    },
    /// Somebody closes the edge by hand, and opens it again.
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
    /// Right after this message between the members has come.
    Message(u64),
    /// This long after the fault before.
    After(Ns),
    /// When a join has next come so far.
    Join(Step),
}

/// What a mutation breaks in the model, to prove that a checker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The gate lets every ACK pass (L1).
    AckBeyondStable,
    /// The shim does not wait before it writes (L2).
    NoCommit,
    /// A SYN-ACK does not wait for its record (L2).
    SynAckAtOnce,
    /// The edge lets every member speak (L3).
    NoFence,
    /// The gate clamps the ACK and leaves the window as it was (L4).
    ShrinkWindow,
    /// The replica counts one request twice (L5).
    CountTwice,
    /// The edge promotes a backup that is not in step (L5).
    PromoteAnybody,
    /// The gate lets FINs leave with payload, though the server did not ask (L2).
    LeaveFin,
    /// The gate leaves D-SACKs above the ACK that it has rewritten (L1).
    KeepDsack,
    /// The gate takes more connections than it has slots (L6).
    NoLimit,
    /// At its limit the gate gives a new connection the slot of an old one (L6).
    EvictOldest,
    /// An edge that was closed by hand is never opened (liveness).
    StaysClosed,
    /// Bytes that the server has not read are told wrongly (L5).
    PeekAside,
    /// A backup that could take over does not (liveness).
    NeverPromote,
    /// A primary that goes on alone keeps the ACKs that its gate withheld (owed).
    AcksKept,
    /// A primary that another has replaced goes on (L3).
    NeverStandDown,
    /// Idle channels are not probed, as in early daemons, so that nobody misses
    /// an edge that was restarted (liveness).
    NoKeepalive,
    /// The current member does not ask a restarted edge to open the fence again,
    /// nor who is current now, as in early daemons (liveness).
    NobodyAsksAgain,
    /// A restarted edge is not told in a takeover who is in step, as in early
    /// daemons (liveness).
    NotSaidAgain,
    /// A member that comes back while the edge still has its old channel counts as
    /// in step, as in early daemons (liveness).
    NotForgotten,
    /// A backup that has asked to be current gives up when its primary sends it
    /// away, as in early daemons (liveness).
    SentAway,
    /// Heartbeats between the members are not sent (cause).
    NoBeats,
    /// A primary and the edge show what they showed, though the backup is gone (status).
    StaysProtected,
    /// The gate keeps the slots of connections that are over (rest).
    KeepSlots,
    /// A promoted server reads its host's clocks as they are (L5).
    ClocksAnew,
    /// The edge keeps to itself what it has kept for an outage (knock).
    NeverResend,
    /// A client that lies costs others their connections (one client).
    NeighbourPays,
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
    /// Permille of the copies to the backup that are lost all the time.
    pub copy_loss_permille: u64,
    /// Longest pause of the server, from time to time.
    pub server_pause: Option<Ns>,
    /// Whether no shim ever runs in the first primary's server.
    pub unattached: bool,
    pub disk: DiskPlan,
    /// Clocks of both members, and of the edge.
    pub clocks: [ClockPlan; 3],
    /// Time after which clients begin no session.
    pub load_until: Ns,
    pub faults: Vec<(When, Fault)>,
    pub uneven: Uneven,
    /// Whether the daemons' heartbeats come by datagrams, too.
    pub pulses: bool,
    pub joins: JoinPlan,
    /// Set if the backup is cold (decision 30).
    pub cold: Option<ColdPlan>,
    /// A server that falls while it is alone is rebuilt (decision 31).
    pub rebuild: Option<Rebuild>,
    /// What acknowledgements and output wait for (decision 32). Nothing draws another mode
    /// than output commit: the others give up laws that are judged.
    pub buffering: Buffering,
    /// The case of a sweep that this is.
    pub case: Option<Case>,
    /// How long the run goes on when all clients are done.
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
        // A stream of its own, so that earlier draws stay the same.
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
    /// Whether it does something that no other client may suffer from.
    #[must_use]
    pub fn is_at_fault(&self) -> bool {
        self.manners() != Manners::Good || self.vanishes_at.is_some() || self.vanishes_in.is_some()
    }

    /// Whether it reads everything that it asks for. One that looks away may end its
    /// connection with replies unread, and so may one that leaves in the middle.
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
    /// What may be expected of it.
    pub fn manners(&self) -> Manners {
        match (self.trick, self.lies) {
            (Some(_), _) => Manners::Bad,
            (None, true) => Manners::Contradicts,
            (None, false) => Manners::Good,
        }
    }

    /// Draws habits that have a stream of their own.
    fn draw_habits(&mut self, rng: &mut Rng) {
        self.sack = rng.one_in(2);
        self.ecn = rng.one_in(3);
        self.vanishes_in = rng.one_in(12).then(|| rng.pick(&[Stage::HalfOpen, Stage::Ended]));
        self.comes_again = rng.one_in(8);
    }

    /// A client with bad manners.
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
