//! The right to speak of a member without an edge: a thread of its own keeps the lease with the
//! other member, asks the witness, and tells the kernel until when this host may speak. Nothing
//! that the daemon's loop does delays it; and where it is not run itself, the kernel falls silent
//! by what it was told last.

mod alone;
mod etcd;
mod keeper;
mod way;

use super::sealed::{self, Sealed, TAG_BYTES, seal};
use super::speak::Begun;
use crate::check::why_taken_udp;
use crate::config::{Arbiter, Config, Member};
use crate::key::Keyring;
use crate::poll::{Interest, Poll};
use anyhow::{Context as _, Result};
use holdfast_cluster::Nanos;
use holdfast_cluster::arbiter::datagram::REPLY_BYTES;
use holdfast_cluster::arbiter::{self, Asker, Call, Mode, Owner, Record, Refusal, Reply, Request};
use holdfast_cluster::lease::{
    Kept, LEASE_BYTES, Lease, LeaseOutput, Message, Note, Role, Setup, Timing,
};
use holdfast_linux::bpf::{Deadline, Until};
use holdfast_linux::priority;
use holdfast_linux::process::EventFd;
use holdfast_member::own_edge::{Orders, Seen, Whose};
use keeper::Keeper;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use way::Way;

pub use alone::reach_router;
pub use etcd::reach;

/// Real-time priority, that of the heartbeats.
const PRIORITY: i32 = super::pulse::PRIORITY;
/// Shortest lease: shorter ones lapse on machines that have other work, whatever the priority.
pub const LEASE_MIN: Duration = Duration::from_millis(60);
/// Longest datagram of those that come to a member.
const DATAGRAM_BYTES_MAX: usize =
    TAG_BYTES + if REPLY_BYTES > LEASE_BYTES { REPLY_BYTES } else { LEASE_BYTES };
/// Most datagrams taken from a socket in one turn.
const BATCH_MAX: usize = 64;
/// Pause after a full turn, so that a stranger who floods the port costs a few percent of a
/// processor.
const FLOOD_PAUSE: Duration = Duration::from_millis(1);
const PEER: u64 = 0;
const ARBITER: u64 = 1;
const ORDERS: u64 = 2;

/// Where a member's lease thread listens: the port above that of its daemon.
#[must_use]
pub fn address(member: &Member) -> SocketAddr {
    member.port_above(1)
}

/// What the thread knows, for the daemon's loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub record: Option<Seen>,
    /// Until when the kernel lets this host speak, in the machines' time; 0: it does not.
    pub deadline: u64,
    /// See [`Lease::granted`], in the machines' time.
    pub granted: Option<Nanos>,
    pub hears_other: bool,
    pub other_follows: Option<u64>,
    /// Whether this host has fallen silent for good in this epoch.
    pub has_resigned: bool,
    /// Whether the arbiter answers.
    pub is_answered: bool,
    /// Why the arbiter has refused something, since it last did something.
    pub refused: Option<Refusal>,
    /// Why the arbiter does not answer, where that is known.
    pub unanswered: Option<String>,
    /// Why this host cannot write down what the arbiter has granted.
    pub unkept: Option<String>,
    pub counters: Vec<(&'static str, u64)>,
}

/// What the thread and the loop share.
struct Shared {
    view: Mutex<View>,
    notes: Mutex<Vec<Note>>,
    orders: Mutex<Orders>,
    stop: AtomicBool,
    /// Whether an operator says that the other host is off.
    word: AtomicBool,
    /// Rings in the loop.
    bell: EventFd,
    /// Rings in the thread.
    ordered: EventFd,
}

/// The loop's handle on the thread; dropping it ends the thread, and this member is silent soon
/// after, unless it speaks alone.
pub struct LeaseThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl LeaseThread {
    /// Starts the thread, which hears the other member at the socket of [`listen`]; `started` is
    /// where its time begins. What an earlier life has seen of the record counts.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub fn start(
        (config, arbiter): (&Config, &Arbiter),
        me: &Member,
        key: &Keyring,
        (begun, socket): (Begun, UdpSocket),
        started: Instant,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            view: Mutex::default(),
            notes: Mutex::default(),
            orders: Mutex::default(),
            stop: AtomicBool::new(false),
            word: AtomicBool::new(false),
            bell: EventFd::new()?,
            ordered: EventFd::new()?,
        });
        let realtime = config.group.realtime;
        let keeper = Arc::new(Keeper::start(config, arbiter, me)?);
        let setup = setup((config, arbiter), me, way::kept(arbiter, &keeper.found))?;
        let way = Way::open((config, arbiter), (me, &setup.me), key, &keeper, started)?;
        let outlet = Outlet::open(config, (me, socket), key, (begun, started), (way, keeper))?;
        let mut thread = Thread::new(setup, outlet, Arc::clone(&shared))?;
        let thread = std::thread::Builder::new().name("lease".to_owned()).spawn(move || {
            if realtime {
                // Without the privilege leases lapse when the machine is busy.
                let _ = priority::set_realtime(PRIORITY);
            }
            thread.run();
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Rings when there is something new.
    #[must_use]
    pub fn bell(&self) -> &EventFd {
        &self.shared.bell
    }

    /// What the thread knows now.
    #[must_use]
    pub fn view(&self) -> View {
        let _ = self.shared.bell.take();
        locked(&self.shared.view).clone()
    }

    /// What is worth telling, since the last call.
    #[must_use]
    pub fn take_notes(&self) -> Vec<Note> {
        std::mem::take(&mut locked(&self.shared.notes))
    }

    /// Tells the thread that an operator says that the other host is off.
    pub fn give_word(&self) {
        self.shared.word.store(true, Relaxed);
        self.shared.ordered.ring();
    }

    /// Tells the thread what the member wants.
    pub fn order(&self, orders: Orders) {
        let mut waiting = locked(&self.shared.orders);
        *waiting = Orders {
            in_step: orders.in_step.or(waiting.in_step),
            claim: waiting.claim || orders.claim,
            begin: waiting.begin || orders.begin,
            anew: waiting.anew || orders.anew,
            resign: waiting.resign || orders.resign,
            resume: waiting.resume || orders.resume,
        };
        drop(waiting);
        self.shared.ordered.ring();
    }
}

impl Drop for LeaseThread {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.ordered.ring();
        // It says that this member leaves; a panic of it has ended the daemon before.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Where the other member's lease is heard. Whoever is there already may be a daemon of this member:
/// to be opened before anything of this host is changed.
///
/// # Errors
/// When somebody is there, who is named.
pub fn listen(me: &Member) -> Result<UdpSocket> {
    let own = address(me);
    UdpSocket::bind(own).with_context(|| {
        format!("cannot listen at {own}, one port above `address`{}", why_taken_udp(own))
    })
}

/// The value, also after a panic of its other user, which ends the daemon anyway.
fn locked<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn setup((config, arbiter): (&Config, &Arbiter), me: &Member, kept: Kept) -> Result<Setup> {
    let period = config.heartbeat();
    let lease = LEASE_MIN.max(period * 3);
    let nanos = |of: Duration| Nanos(of.as_nanos() as u64);
    let timing = Timing::new(nanos(period), nanos(lease), Nanos(0)).context(
        "group.heartbeat_ms does not fit a lease; remedy: write heartbeat_ms = 5 to 100",
    )?;
    let side = config.members.iter().position(|it| it.name == me.name).unwrap_or(0) as u8;
    let life = getrandom::u64().map_err(std::io::Error::other)? | 1;
    Ok(Setup {
        group: config.group.name.clone(),
        me: Owner { name: me.name.clone(), life },
        peer: config.other(me).name.clone(),
        sides: [side, 1 - side],
        kept,
        preferred: config.first() == me.name,
        timing,
        arbiter: way::settings(arbiter),
    })
}

/// What the lease's machine acts upon.
struct Outlet {
    keyring: Keyring,
    /// The other member's name.
    other: String,
    peer: (UdpSocket, SocketAddr),
    way: Way,
    deadline: Deadline,
    /// Whether the kernel lets a server speak that was alone when an earlier daemon died. The lease
    /// that begins is silent, and knows nothing of it before it has read the record.
    speaks_still: bool,
    started: Instant,
    notes: Vec<Note>,
    /// The last note: a refusal that repeats is told once.
    noted: Option<Note>,
    keeper: Arc<Keeper>,
    forged: u64,
}

impl Outlet {
    fn open(
        config: &Config,
        (me, peer): (&Member, UdpSocket),
        key: &Keyring,
        (begun, started): (Begun, Instant),
        (way, keeper): (Way, Arc<Keeper>),
    ) -> Result<Self> {
        // Then the kernel leaves what strangers send, however much. Without a way there it does not,
        // and each datagram is looked at here.
        let _no_route_yet = peer.connect(address(config.other(me)));
        peer.set_nonblocking(true)?;
        Ok(Self {
            keyring: key.clone(),
            other: config.other(me).name.clone(),
            peer: (peer, address(config.other(me))),
            way,
            deadline: begun.deadline,
            speaks_still: begun.speaks,
            started,
            notes: Vec::new(),
            noted: None,
            keeper,
            forged: 0,
        })
    }

    fn now(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }
}

impl arbiter::Arbiter for Outlet {
    fn read(&mut self, call: Call, asker: &Asker) {
        self.way.ask(call, asker, Request::Read);
    }

    fn compare_and_swap(
        &mut self,
        call: Call,
        asker: &Asker,
        expected: Option<&Record>,
        next: &Record,
    ) {
        let request = Request::Swap { expected: expected.cloned(), next: next.clone() };
        self.way.ask(call, asker, request);
    }
}

impl LeaseOutput for Outlet {
    fn store(&mut self, deadline: u64) {
        if self.speaks_still && deadline == 0 {
            return;
        }
        self.speaks_still = false;
        let until = match deadline {
            0 => Until::Silent,
            u64::MAX => Until::Told,
            ns => Until::At(self.started + Duration::from_nanos(ns)),
        };
        // One that cannot be stored leaves what was stored last: an earlier end, or a silence that
        // was ordered and is not kept, which must end this daemon.
        if let Err(error) = self.deadline.set(until) {
            assert!(deadline != 0, "L3: this host cannot be silenced: {error}");
            tracing::warn!("the right to speak is not renewed: {error}");
        }
    }

    fn send(&mut self, message: &Message) {
        let mut message = *message;
        if let Some(alone) = self.way.alone() {
            alone.mark(&mut message);
        }
        let (socket, to) = &self.peer;
        let key = self.keyring.with(&self.other).first().arbiter_key();
        // A datagram that cannot be sent is as good as lost.
        let _ = socket.send_to(&seal(&message.build(), Sealed::Lease, &key), to);
    }

    fn heard(&mut self, _: Nanos, message: &Message) {
        if let Some(alone) = self.way.alone() {
            alone.hear(message);
        }
    }

    fn keep(&mut self, kept: &Kept) {
        // A record of its own was kept before it was true.
        if self.way.alone().is_none() {
            self.keeper.keep(kept);
        }
    }

    fn note(&mut self, note: Note) {
        // A refusal that repeats; and who founds a group is alone, which says nothing of a fault.
        let is_said = match note {
            Note::Refused(_) => self.noted == Some(note),
            Note::Unprotected => self.noted == Some(Note::Founded),
            _ => false,
        };
        self.noted = Some(note);
        if !is_said {
            self.notes.push(note);
        }
    }
}

struct Thread {
    lease: Lease,
    outlet: Outlet,
    poll: Poll,
    shared: Arc<Shared>,
    refused: Option<Refusal>,
    /// How often the right to speak has run out in a pair, and whether it has now.
    lapses: u64,
    is_lapsed: bool,
}

impl Thread {
    fn new(setup: Setup, mut outlet: Outlet, shared: Arc<Shared>) -> Result<Self> {
        let lease = Lease::new(outlet.now(), setup, &mut outlet);
        let poll = Poll::new()?;
        poll.add(&outlet.peer.0, PEER, Interest::Read)?;
        outlet.way.register(&poll, ARBITER)?;
        poll.add(&shared.ordered, ORDERS, Interest::Read)?;
        Ok(Self { lease, outlet, poll, shared, refused: None, lapses: 0, is_lapsed: false })
    }

    fn run(&mut self) {
        while !self.shared.stop.load(Relaxed) {
            let due = self.outlet.started + Duration::from_nanos(self.lease.next_deadline().0);
            if self.poll.wait(Some(due)).is_err() {
                return;
            }
            self.note_lapse();
            // What waits in the sockets is not missing.
            let full = self.take_peer() | self.take_arbiter();
            self.obey();
            self.settle_contest();
            let now = self.outlet.now();
            if self.lease.next_deadline() <= now {
                self.lease.handle_timeout(now, &mut self.outlet);
            }
            self.settle_outlived();
            self.publish();
            if full {
                std::thread::sleep(FLOOD_PAUSE);
            }
        }
        if let Some(alone) = self.outlet.way.alone() {
            alone.leave();
        }
        self.lease.handle_leave(self.outlet.now(), &mut self.outlet);
    }

    /// Counts a lease that has run out before it was renewed: clients' packets were left then.
    fn note_lapse(&mut self) {
        let is_paired = matches!(self.lease.role(), Role::Paired | Role::Pairing);
        let is_lapsed = is_paired && self.lease.deadline() <= self.outlet.now().0;
        self.lapses += u64::from(is_lapsed && !self.is_lapsed);
        self.is_lapsed = is_lapsed;
    }

    /// Takes what the other member has sent; true if there may be more.
    fn take_peer(&mut self) -> bool {
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        for _ in 0..BATCH_MAX {
            let (socket, peer) = &self.outlet.peer;
            let Some(got) = sealed::receive(socket, *peer, &mut buffer) else { return false };
            let secrets = self.outlet.keyring.with(&self.outlet.other);
            let opened = got.and_then(|it| sealed::open_with(it, Sealed::Lease, &secrets));
            match opened.and_then(|(plain, _)| Message::parse(plain)) {
                Some(message) => {
                    let now = self.outlet.now();
                    self.lease.handle_message(now, &message, &mut self.outlet);
                }
                None => self.outlet.forged += 1,
            }
        }
        true
    }

    /// Takes what the arbiter has said; true if there may be more.
    fn take_arbiter(&mut self) -> bool {
        for _ in 0..BATCH_MAX {
            let Some(answer) = self.outlet.way.take(self.lease.asker()) else { return false };
            match answer {
                Some((number, reply)) => self.take_reply(number, &reply),
                None => self.outlet.forged += 1,
            }
        }
        true
    }

    fn take_reply(&mut self, number: u64, reply: &Reply) {
        // The change is asked for again with the ticket that this brings.
        let refused = reply.outcome.as_ref().err().copied();
        self.refused = refused.filter(|it| *it != Refusal::Unproven);
        self.lease.handle_reply(self.outlet.now(), number, reply, &mut self.outlet);
    }

    /// Does what the member wants.
    fn obey(&mut self) {
        let _ = self.shared.ordered.take();
        let orders = std::mem::take(&mut *locked(&self.shared.orders));
        let (now, lease, out) = (self.outlet.now(), &mut self.lease, &mut self.outlet);
        if self.shared.word.swap(false, Relaxed)
            && let Some(alone) = out.way.alone()
        {
            alone.take_word();
        }
        if orders.resign {
            lease.handle_resign(now, out);
        }
        if orders.resume {
            lease.handle_resume(now, out);
        }
        if orders.begin {
            lease.handle_found(now, out);
        }
        if let Some((epoch, yes)) = orders.in_step
            && lease.in_step() != yes.then_some(epoch)
        {
            lease.handle_in_step(now, epoch, yes, out);
        }
        if orders.claim {
            lease.handle_peer_gone(now, out);
        }
        if orders.anew {
            lease.handle_anew(now, out);
        }
    }

    /// Falls silent where both members own one epoch: at most one of them is right.
    fn settle_contest(&mut self) {
        let owns = matches!(self.lease.role(), Role::Paired | Role::Pairing | Role::Solo);
        if owns && self.outlet.way.alone().is_some_and(|alone| alone.is_contested()) {
            self.lease.handle_resign(self.outlet.now(), &mut self.outlet);
        }
    }

    /// Silences a server that has outlived its daemon, if the record turns out to be another's.
    fn settle_outlived(&mut self) {
        let is_open =
            matches!(self.lease.role(), Role::Starting | Role::Restarting | Role::Claiming);
        if self.outlet.speaks_still && !is_open {
            self.outlet.speaks_still = false;
            self.outlet.store(self.lease.deadline());
        }
    }

    /// Shows the loop what is known, and wakes it if that is news.
    fn publish(&mut self) {
        let notes = std::mem::take(&mut self.outlet.notes);
        let view = self.view();
        let mut shown = locked(&self.shared.view);
        let is_news = !notes.is_empty() || is_news(&shown, &view);
        *shown = view;
        drop(shown);
        locked(&self.shared.notes).extend(notes);
        if is_news {
            self.shared.bell.ring();
        }
    }

    fn whose(&self, record: &Record) -> Whose {
        let me = self.lease.me();
        match () {
            () if record.owner == *me => Whose::Mine,
            () if record.owner.name == me.name => Whose::Earlier,
            () => Whose::Other,
        }
    }

    fn view(&self) -> View {
        let counts = self.lease.counts();
        let record = self.lease.record().map(|record| Seen {
            epoch: record.epoch,
            whose: self.whose(record),
            pair: record.mode == Mode::Pair,
        });
        View {
            record,
            deadline: self.lease.deadline(),
            granted: self.lease.granted(),
            hears_other: self.lease.hears_peer(self.outlet.now()),
            other_follows: self.lease.peer_follows(),
            has_resigned: self.lease.role() == Role::Resigned,
            is_answered: self.lease.is_arbiter_heard(),
            refused: self.refused,
            unkept: self.outlet.keeper.failure(),
            unanswered: self.outlet.way.failure(),
            counters: vec![
                ("grants", counts.grants),
                ("lapses", self.lapses),
                ("overslept", counts.overslept),
                ("forged", self.outlet.forged + counts.misdirected),
                ("replayed", counts.replayed + counts.unproven),
                ("refusals", counts.refusals),
                ("conflicts", counts.forgotten + counts.lineages),
            ],
        }
    }
}

/// Whether the loop has to know: a lease that is only renewed is no news.
fn is_news(before: &View, after: &View) -> bool {
    let kind = |deadline: u64| match deadline {
        0 | u64::MAX => deadline,
        _ => 1,
    };
    let lasting = |view: &View| View {
        deadline: kind(view.deadline),
        granted: None,
        counters: vec![],
        ..view.clone()
    };
    lasting(before) != lasting(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_for_the_member_wakes_its_loop() {
        let view = View { deadline: 7, ..View::default() };
        let granted = Some(Nanos(2));
        let renewed =
            View { deadline: 9, granted, counters: vec![("grants", 1)], ..View::default() };
        assert!(!is_news(&view, &renewed));
        assert!(is_news(&view, &View { deadline: u64::MAX, ..View::default() }));
        assert!(is_news(&view, &View { deadline: 0, ..View::default() }));
        assert!(is_news(&view, &View { hears_other: true, ..view.clone() }));
    }
}
