//! The common ground of tests of a member's role: a clock, an edge that is mostly
//! there, and a list of what the machine has done.

use crate::host::{ConnState, Context, Hosted, Member, MemberEvent, MemberHost};
use holdfast_cluster::Nanos;
use holdfast_wire::message::{ConnKey, ConnRecord, Message};
use holdfast_wire::packet::TcpSegment;
use holdfast_wire::seq::SeqNo;

/// Time between two heartbeats of the tests.
pub const PERIOD: Nanos = Nanos::from_ms(10);
/// Epoch in which the tests begin.
pub const EPOCH: u64 = 3;

/// A test's host, which notes what the machine does.
pub struct Bench {
    pub now: Nanos,
    pub member: Member,
    pub lines: Vec<String>,
    /// What the edge says in the next turn; its heartbeats come by themselves.
    pub edge: Vec<Message<'static>>,
    /// Whether nothing is heard of the edge.
    pub mute: bool,
    /// Whether there is no channel to the edge.
    pub is_cut: bool,
    /// Whether the channel to the edge opens in the next turn.
    pub opens: bool,
    /// What the other member says in the next turn, beside its heartbeats.
    pub peer: Vec<Message<'static>>,
    /// Whether something was said to the other member that has not left yet.
    pub is_unsent: bool,
    /// Whether a turn was the end of the role.
    pub has_ended: bool,
}

impl Bench {
    pub fn new(me: &str, other: &str) -> Self {
        let mut member = Member::new("demo", me, other, PERIOD, Nanos(0));
        member.epoch = EPOCH;
        let now = Nanos::from_ms(1);
        let (lines, edge, peer) = (Vec::new(), Vec::new(), Vec::new());
        let (mute, is_cut, opens, is_unsent, has_ended) = (false, false, false, false, false);
        Self { now, member, lines, edge, mute, is_cut, opens, peer, is_unsent, has_ended }
    }

    pub fn note(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    pub fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    pub fn has(&self, line: &str) -> bool {
        self.lines.iter().any(|known| known == line)
    }
}

impl Context for Bench {
    fn now(&self) -> Nanos {
        self.now
    }
    fn member(&mut self) -> &mut Member {
        &mut self.member
    }
    fn turn_edge(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        for message in std::mem::take(&mut self.edge) {
            self.member.handle_edge(&message);
            each(&message);
        }
        let now = self.now;
        if !self.mute {
            self.member.handle_edge(&Message::Beat { number: 1, echo: 0, executed: 0 });
        }
        self.member.settle(now, &mut |_| {});
        std::mem::take(&mut self.opens)
    }
    fn is_edge_open(&self) -> bool {
        !self.is_cut
    }
    fn tell_edge(&mut self, message: &Message<'_>) {
        self.note(format!("to the edge: {message:?}"));
    }
}

/// The host of a member that has nobody but its edge.
pub struct Lone {
    pub bench: Bench,
    /// What the kernel says of connections; `None`: it does not answer.
    pub states: Option<Vec<ConnState>>,
    /// How often it was asked for that.
    pub asked: u32,
    pub has_ended: bool,
}

impl Lone {
    pub fn new(me: &str, other: &str) -> Self {
        Self { bench: Bench::new(me, other), states: None, asked: 0, has_ended: false }
    }
}

impl Hosted for Lone {
    type Context = Bench;
    fn context(&self) -> &Bench {
        &self.bench
    }
    fn context_mut(&mut self) -> &mut Bench {
        &mut self.bench
    }
}

impl MemberHost for Lone {
    fn has_server_ended(&mut self) -> bool {
        self.has_ended
    }
    fn kill_server(&mut self) {
        self.bench.note("kill");
    }
    fn states(&mut self, _: &[ConnKey]) -> Option<Vec<ConnState>> {
        self.asked += 1;
        self.states.clone()
    }
    fn send_segment(&mut self, _: &TcpSegment<'_>) {}
    fn stand_by(&mut self) {
        self.bench.note("refuses who comes");
    }
    fn show(&mut self, news: MemberEvent<'_>) {
        self.bench.note(format!("shows {}", name(&news)));
    }
}

/// Implements a test's host by the [`Bench`] in its field `bench`, and lets a
/// machine's bed take turns.
macro_rules! on_bench {
    ($book:ty, $bed:ty) => {
        impl std::ops::Deref for $book {
            type Target = $crate::bench::Bench;
            fn deref(&self) -> &Self::Target {
                &self.bench
            }
        }
        impl std::ops::DerefMut for $book {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.bench
            }
        }
        impl $crate::host::Hosted for $book {
            type Context = $crate::bench::Bench;
            fn context(&self) -> &Self::Context {
                &self.bench
            }
            fn context_mut(&mut self) -> &mut Self::Context {
                &mut self.bench
            }
        }
        impl $bed {
            fn turn(&mut self) -> Turn {
                let turn = self.machine.turn(false, &mut self.book);
                assert!(!self.book.is_unsent, "what it says leaves in its turn");
                self.book.has_ended |= matches!(turn, Turn::End(_));
                turn
            }
            fn pass(&mut self, ms: u64) {
                for _ in 0..ms {
                    self.book.now = self.book.now.plus(Nanos::from_ms(1));
                    self.turn();
                }
            }
        }
    };
}
pub(crate) use on_bench;

/// First word of a value's `{:?}` output.
pub fn name(it: &impl std::fmt::Debug) -> String {
    let all = format!("{it:?}");
    all.split([' ', '{']).next().unwrap_or_default().to_owned()
}

/// Key of the client with this port.
pub fn key(client_port: u16) -> ConnKey {
    ConnKey { server: [1; 16], client: [2; 16], server_port: 80, client_port }
}

/// What the gate saw of the handshake of the client with this port.
pub fn record(client_port: u16) -> ConnRecord {
    ConnRecord {
        key: key(client_port),
        iss: SeqNo(100),
        irs: SeqNo(999),
        mss: 1460,
        peer_mss: 1460,
        rcv_wscale: 7,
        snd_wscale: 7,
        sack: true,
        tsval: None,
        window: 60_000,
    }
}
