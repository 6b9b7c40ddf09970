//! The host's end of a meeting: who may come in, and how far each guest is.
//!
//! Call [`Host::came`], [`Host::take`], [`Host::gone`] and [`Host::tick`] with what happens, then
//! [`Host::output`] and [`Host::event`] until both answer `None`, then wait until [`Host::deadline`].
//! Strangers cost a connection for five seconds and nothing else: no guest waits for one.

use super::Code;
use super::link::{Link, LinkError, Refusal, parse, refusal};
use super::talk::{Lack, ToGuest, ToHost};
use crate::init::facts::{Facts, PORTS};
use crate::key::PublicKey;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Guests that a group needs besides its host.
pub const GUESTS: usize = 2;
/// Wrong codes from one address after which it is shut out.
pub const WRONG_CODES_MAX: u32 = 3;
/// Most connections of strangers; one more takes the place of the oldest.
const STRANGERS_MAX: usize = 32;
/// Most of them from one address.
const STRANGERS_PER_ADDRESS_MAX: usize = 4;
/// Most connections of those who have shown the code.
const KNOWN_MAX: usize = 8;
/// Addresses with wrong codes that are remembered.
const REMEMBERED_MAX: usize = 4096;
/// Time that a stranger has to show the code.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Silence after which a guest is gone.
pub const SILENCE: Duration = Duration::from_secs(30);
/// Time between two words about strangers.
const WORD_EVERY: Duration = Duration::from_secs(1);
/// Most words about strangers that wait for their turn.
const UNSAID_MAX: usize = 16;
/// Time between two signs of life.
const HERE_EVERY: Duration = Duration::from_secs(5);

/// The host's machine.
pub struct Host {
    code: Code,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    wrong: BTreeMap<IpAddr, u32>,
    here_at: Instant,
    /// When somebody was last told of a stranger.
    said_at: Option<Instant>,
    /// Wrong codes that are told when it is time: the last of each address.
    unsaid: VecDeque<Event>,
    now: Instant,
    outputs: VecDeque<Output>,
    events: VecDeque<Event>,
}

struct Connection {
    from: IpAddr,
    link: Link,
    since: Instant,
    heard: Instant,
    stage: Stage,
    /// Number of the last offer that was made to it; 0 before the first.
    offered: u64,
}

/// How far a guest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Stranger,
    /// It has said what it is, and has no answer yet.
    Met,
    /// It looks what it lacks.
    Asked,
    /// It can be a member, and waits for the others.
    Seated,
    Offered,
    Ready,
    Committed,
    Done,
}

/// What the caller has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    Send(u64, Vec<u8>),
    /// Close it when all is sent.
    Close(u64),
}

/// What has happened.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody has shown the code: answer with [`Host::welcome`] or [`Host::refuse`].
    Met { id: u64, build: String, facts: Facts },
    /// A guest can be a member; `taken` are the ports of its host that the group cannot have, and
    /// `public` is of its host's own key. It may still be refused.
    Seated { id: u64, taken: BTreeSet<u16>, public: PublicKey },
    /// As many as are needed: answer with [`Host::offer`] for each, if [`Host::is_complete`] still.
    Complete,
    /// All can write: answer with [`Host::commit`], if [`Host::is_ready`] still.
    Ready,
    /// A guest has written.
    Done { id: u64 },
    /// Somebody whose facts were told is gone.
    Left { id: u64, why: Left },
    /// Somebody came with another code; `shut_out`: no more is heard of him. One word a second is told
    /// of strangers; of wrong codes that came meanwhile the last of each address follows.
    WrongCode { from: IpAddr, count: u32, shut_out: bool },
    /// Somebody came who is no guest for another reason.
    Stranger { from: IpAddr, why: LinkError },
}

/// Why a guest has gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// Its host lacks something, which is told there, too.
    Lacks(Vec<Lack>),
    /// It cannot write the files.
    Unable(Lack),
    Silent,
    Broken(LinkError),
}

impl Host {
    #[must_use]
    pub fn new(code: Code, now: Instant) -> Self {
        Self {
            code,
            connections: BTreeMap::new(),
            next: 0,
            wrong: BTreeMap::new(),
            here_at: now + HERE_EVERY,
            said_at: None,
            unsaid: VecDeque::new(),
            now,
            outputs: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// A connection has come; the number is its own from now on.
    pub fn came(&mut self, from: IpAddr, now: Instant) -> u64 {
        let id = self.next;
        self.next += 1;
        self.now = now;
        let from = from.to_canonical();
        if self.wrong_codes(from) >= WRONG_CODES_MAX {
            self.outputs.push_back(Output::Send(id, refusal(Refusal::ShutOut)));
            self.outputs.push_back(Output::Close(id));
            return id;
        }
        self.make_room(from);
        match Link::host(&self.code) {
            Ok(link) => {
                let stage = Stage::Stranger;
                let connection =
                    Connection { from, link, since: now, heard: now, stage, offered: 0 };
                self.connections.insert(id, connection);
            }
            Err(_) => self.outputs.push_back(Output::Close(id)),
        }
        id
    }

    /// Bytes have come.
    pub fn take(&mut self, id: u64, bytes: &[u8], now: Instant) {
        self.now = now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.heard = now;
        let mut out = Vec::new();
        let taken = connection.link.take(bytes, &mut out);
        if !out.is_empty() {
            self.outputs.push_back(Output::Send(id, out));
        }
        let heard = taken.and_then(|messages| {
            messages.iter().try_for_each(|message| self.hear(id, parse(message)?))
        });
        if let Err(error) = heard {
            self.end(id, Left::Broken(error));
        }
    }

    /// The other end has closed the connection.
    pub fn gone(&mut self, id: u64) {
        self.end(id, Left::Broken(LinkError::Closed));
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        let late = |it: &Connection| now >= it.due();
        let ids = |of: &BTreeMap<u64, Connection>, which: &dyn Fn(&Connection) -> bool| {
            of.iter().filter(|(_, it)| which(it)).map(|(id, _)| *id).collect::<Vec<_>>()
        };
        for id in ids(&self.connections, &late) {
            self.end(id, Left::Silent);
        }
        if self.may_speak()
            && let Some(event) = self.unsaid.pop_front()
        {
            self.tell_of_stranger(event);
        }
        if now >= self.here_at {
            self.here_at = now + HERE_EVERY;
            for id in ids(&self.connections, &|it| it.stage > Stage::Stranger) {
                self.say(id, &ToGuest::Here);
            }
        }
    }

    /// When [`Host::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let due = self.connections.values().map(Connection::due).min();
        let word = self.said_at.filter(|_| !self.unsaid.is_empty()).map(|at| at + WORD_EVERY);
        [due, word].into_iter().flatten().fold(self.here_at, Instant::min)
    }

    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Lets a guest in that has been met, and asks whether it can be a member.
    pub fn welcome(&mut self, id: u64, group: &str, text: &str) {
        let wanted = ToGuest::Wanted { group: group.to_owned(), text: text.to_owned() };
        self.advance(id, Stage::Met, Stage::Asked, &wanted);
    }

    /// Tells a guest that it cannot be a member, and why.
    pub fn refuse(&mut self, id: u64, why: Lack) {
        self.say(id, &ToGuest::Refused { why });
        self.forget(id);
    }

    /// Gives a seated guest everything; `key` where all hosts have the same.
    pub fn offer(&mut self, id: u64, role: &str, text: &str, key: Option<&str>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.stage == Stage::Seated {
            connection.offered += 1;
            let [role, text] = [role, text].map(str::to_owned);
            let key = key.map(str::to_owned);
            let offer = ToGuest::Offer { offer: connection.offered, role, text, key };
            self.advance(id, Stage::Seated, Stage::Offered, &offer);
        }
    }

    /// Whether as many as are needed still wait for an offer: one may have left after
    /// [`Event::Complete`], which is then for nothing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.those(Stage::Seated).len() == GUESTS
    }

    /// Whether all can still write; as [`Host::is_complete`], of [`Event::Ready`].
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.those(Stage::Ready).len() == GUESTS
    }

    /// Has all write.
    pub fn commit(&mut self) {
        for id in self.those(Stage::Ready) {
            self.advance(id, Stage::Ready, Stage::Committed, &ToGuest::Commit);
        }
    }

    fn hear(&mut self, id: u64, said: ToHost) -> Result<(), LinkError> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        match (connection.stage, said) {
            (Stage::Stranger, ToHost::Hello { build, facts }) => {
                if !facts.is_possible() {
                    return Err(LinkError::Unknown);
                }
                connection.stage = Stage::Met;
                self.events.push_back(Event::Met { id, build, facts });
                self.limit_known(id);
            }
            (Stage::Stranger, _) => return Err(LinkError::Unknown),
            (_, ToHost::Here) => {}
            (Stage::Asked, ToHost::Able { lacks, taken, public }) if lacks.is_empty() => {
                if !taken.iter().all(|port| PORTS.contains(port)) {
                    return Err(LinkError::Unknown);
                }
                connection.stage = Stage::Seated;
                self.events.push_back(Event::Seated { id, taken, public });
                if self.is_complete() {
                    self.events.push_back(Event::Complete);
                }
            }
            (Stage::Asked, ToHost::Able { lacks, .. }) => self.end(id, Left::Lacks(lacks)),
            (Stage::Offered, ToHost::Ready { offer }) if offer == connection.offered => {
                connection.stage = Stage::Ready;
                if self.is_ready() {
                    self.events.push_back(Event::Ready);
                }
            }
            // The answer to an offer that was worth nothing any more when it came.
            (Stage::Seated | Stage::Offered, ToHost::Ready { offer })
                if connection.was_offered(offer) => {}
            // To whichever offer: with this word a guest goes.
            (Stage::Seated | Stage::Offered, ToHost::Unable { offer, why })
                if connection.was_offered(offer) =>
            {
                self.end(id, Left::Unable(why));
            }
            (Stage::Committed, ToHost::Done) => {
                connection.stage = Stage::Done;
                self.events.push_back(Event::Done { id });
            }
            _ => return Err(LinkError::Unknown),
        }
        Ok(())
    }

    fn those(&self, stage: Stage) -> Vec<u64> {
        let found = self.connections.iter().filter(|(_, it)| it.stage == stage);
        found.map(|(id, _)| *id).collect()
    }

    fn advance(&mut self, id: u64, from: Stage, to: Stage, by: &ToGuest) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.stage == from {
            connection.stage = to;
            self.say(id, by);
        }
    }

    fn say(&mut self, id: u64, message: &ToGuest) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut out = Vec::new();
        match connection.link.say(message, &mut out) {
            Ok(()) => self.outputs.push_back(Output::Send(id, out)),
            Err(error) => self.end(id, Left::Broken(error)),
        }
    }

    /// Ends a connection, and says so if anybody knows of it.
    fn end(&mut self, id: u64, why: Left) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (from, stage) = (connection.from, connection.stage);
        match (stage, why) {
            (Stage::Stranger, Left::Broken(LinkError::WrongCode)) => self.count_wrong(id, from),
            (Stage::Stranger, Left::Broken(LinkError::Closed) | Left::Silent) => {}
            (Stage::Stranger, Left::Broken(why)) => {
                self.tell_of_stranger(Event::Stranger { from, why });
            }
            (Stage::Done, _) => {}
            (_, why) => self.events.push_back(Event::Left { id, why }),
        }
        self.forget(id);
    }

    /// Closes a connection. The guests that stay wait for another one, unless all write already.
    fn forget(&mut self, id: u64) {
        let Some(gone) = self.connections.remove(&id) else { return };
        self.outputs.push_back(Output::Close(id));
        if matches!(gone.stage, Stage::Offered | Stage::Ready) {
            let waits = |it: &&mut Connection| matches!(it.stage, Stage::Offered | Stage::Ready);
            self.connections.values_mut().filter(waits).for_each(|it| it.stage = Stage::Seated);
        }
    }

    fn count_wrong(&mut self, id: u64, from: IpAddr) {
        self.outputs.push_back(Output::Send(id, refusal(Refusal::WrongCode)));
        let count = self.wrong_codes(from) + 1;
        if self.wrong.len() < REMEMBERED_MAX || self.wrong.contains_key(&source(from)) {
            self.wrong.insert(source(from), count);
        }
        let shut_out = count >= WRONG_CODES_MAX;
        self.tell_of_stranger(Event::WrongCode { from, count, shut_out });
    }

    /// A crowd of strangers is told of once in a while.
    fn tell_of_stranger(&mut self, event: Event) {
        let wrong = |it: &Event| match it {
            Event::WrongCode { from, .. } => Some(source(*from)),
            _ => None,
        };
        let from = wrong(&event);
        // The last word counts all.
        self.unsaid.retain(|it| from.is_none() || wrong(it) != from);
        if self.may_speak() {
            self.said_at = Some(self.now);
            self.events.push_back(event);
        } else if from.is_some() && self.unsaid.len() < UNSAID_MAX {
            self.unsaid.push_back(event);
        }
    }

    /// Whether it is time for a word about strangers.
    fn may_speak(&self) -> bool {
        self.said_at.is_none_or(|at| self.now.saturating_duration_since(at) >= WORD_EVERY)
    }

    fn wrong_codes(&self, from: IpAddr) -> u32 {
        self.wrong.get(&source(from)).copied().unwrap_or(0)
    }

    /// Closes the oldest stranger where there are too many, one from the same address before others.
    fn make_room(&mut self, from: IpAddr) {
        let strangers = |same: bool| {
            let of = move |it: &Connection| {
                it.stage == Stage::Stranger && (!same || source(it.from) == source(from))
            };
            self.connections.iter().filter(move |(_, it)| of(it)).map(|(id, it)| (it.since, *id))
        };
        let oldest = if strangers(true).count() >= STRANGERS_PER_ADDRESS_MAX {
            strangers(true).min()
        } else if strangers(false).count() >= STRANGERS_MAX {
            strangers(false).min()
        } else {
            None
        };
        if let Some((_, id)) = oldest {
            self.forget(id);
        }
    }

    /// Whoever has the code may still not hold as many connections as he likes.
    fn limit_known(&mut self, newest: u64) {
        let known = self.connections.values().filter(|it| it.stage > Stage::Stranger).count();
        if known > KNOWN_MAX {
            self.events.pop_back();
            self.refuse(newest, Lack::new("too many are here already", "wait a moment"));
        }
    }
}

impl Connection {
    fn was_offered(&self, offer: u64) -> bool {
        (1..=self.offered).contains(&offer)
    }

    fn due(&self) -> Instant {
        match self.stage {
            Stage::Stranger => self.since + HANDSHAKE,
            _ => self.heard + SILENCE,
        }
    }
}

/// To whom wrong codes are counted: whoever has an IPv6 address mostly has 2^64 of them.
fn source(from: IpAddr) -> IpAddr {
    match from {
        IpAddr::V4(_) => from,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
    }
}
