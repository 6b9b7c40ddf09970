//! The edge of a spread group: which host servers are heard, what each may
//! announce and is doing, and who gets the new flows of a service. The data path
//! lives in the kernel and goes on without it.

mod announced;
mod edges;
mod links;
mod roster;
mod service;
mod shown;

pub use edges::{EdgeWord, Edges, EdgesHost, EdgesSetup, Elsewhere};
pub use links::{Said, Word};
pub use roster::{Condition, Roster};
pub use service::Service;

use crate::nanos;
use crate::standing::hello;
use crate::timing::spread::{AGE_TICKS, GRACE, TICK};
use crate::words::counted;
use announced::{allowed, check, complaint, found};
use holdfast_cluster::Nanos;
use holdfast_wire::message::Message;
use links::{HealthChange, Link};
use roster::Announcement;
use service::address_of;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What the machine needs of its host: the kernel's redirector, and channels to the
/// host servers. Host servers are named by their link, and by the redirector's slot
/// for each.
pub trait SpreadHost {
    /// Reason why the kernel does not do what it was told.
    type Error;
    /// Sends a message to a host server that is here. If its channel fails,
    /// [`SpreadMachine::handle_closed`] follows the present call.
    fn send(&mut self, link: usize, message: &Message<'_>);
    /// Closes a channel, after everything that was sent on it.
    fn close(&mut self, link: usize);
    /// Finds the path of packets to these host servers now.
    fn find_ways(&mut self, placed: &[Placed]);
    /// Tells the redirector the state of the host servers.
    fn set_hosts(&mut self, placed: &[Placed]);
    /// Redirects a service by this table of slots.
    ///
    /// # Errors
    /// When the kernel refuses, with the reason.
    fn set_service(&mut self, service: &Service, table: &[u8]) -> Result<(), String>;
    /// Sends packets of a service the plain way again.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn remove_service(&mut self, service: &Service) -> Result<(), Self::Error>;
    /// A second has passed; flows age by such ticks.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn tick(&mut self) -> Result<(), Self::Error>;
    /// Forgets flows that are over, up to a number. Returns whether more may be left.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn age_flows(&mut self) -> Result<bool, Self::Error>;
    /// Whether flows of any service are left.
    fn has_flows(&mut self) -> bool;
    /// Re-injects SYNs that were kept on their way to these slots. Returns the
    /// number of connections.
    fn resend(&mut self, slots: &[u8]) -> usize;
    /// Resends what is due. `on` says whether SYNs that pass may be lost, and are
    /// kept.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_cache(&mut self, on: bool) -> Result<(), Self::Error>;
    /// Notes an event that people want to know about: its kind, and a text.
    fn note(&mut self, what: &'static str, words: String);
}

/// What the edge's file grants a host server.
#[derive(Clone, Debug)]
pub struct Given {
    pub name: String,
    pub tunnels: Vec<IpAddr>,
    /// Whether packets go to it without encapsulation.
    pub layer2: bool,
    /// Its largest share.
    pub weight: u32,
    /// Services that it may serve; `None`: any of the group's addresses.
    pub services: Option<Vec<Service>>,
}

/// Configuration of an edge.
#[derive(Clone, Debug)]
pub struct Setup {
    pub group: String,
    /// Name of this edge.
    pub me: String,
    /// Addresses that clients use.
    pub addresses: Vec<IpAddr>,
    pub hosts: Vec<Given>,
    /// Most host servers that there may be.
    pub hosts_max: usize,
    /// Time between two heartbeats.
    pub period: Nanos,
}

impl Setup {
    fn given(&self, name: &str) -> Option<&Given> {
        self.hosts.iter().find(|host| host.name == name)
    }

    fn name_at(&self, tunnels: &[IpAddr]) -> String {
        let is = |host: &&Given| host.tunnels.iter().any(|tunnel| tunnels.contains(tunnel));
        self.hosts.iter().find(is).map_or("?", |host| &host.name).to_owned()
    }
}

/// The redirector's state of a host server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Up,
    /// It keeps its flows and gets no new ones, because an operator drains it.
    Draining,
    /// It was declared dead: a repeated SYN goes to another host server.
    Dead,
    /// It was declared dead, and is still drained when it comes back.
    DeadDrained,
}

impl State {
    fn is_dead(self) -> bool {
        matches!(self, Self::Dead | Self::DeadDrained)
    }

    fn is_drained(self) -> bool {
        matches!(self, Self::Draining | Self::DeadDrained)
    }
}

/// A host server that has a slot in the redirector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub slot: u8,
    pub name: String,
    /// Its tunnel endpoints, at most one per family.
    pub tunnels: Vec<IpAddr>,
    pub layer2: bool,
    pub state: State,
}

/// The machine of a spread group's edge: it judges the host servers by their heartbeats, checks
/// what they announce, and redirects services to them.
///
/// # Contract
/// * [`SpreadMachine::handle_start`] comes first.
/// * Host servers are judged in [`SpreadMachine::handle_timeout`]: before it, hand
///   over everything already received from those that [`SpreadMachine::due`]
///   names.
/// * [`SpreadMachine::handle_timeout`] and then [`SpreadMachine::handle_turned`] end
///   every turn, even one in which only messages have come.
#[derive(Debug)]
pub struct SpreadMachine {
    setup: Setup,
    roster: Roster,
    links: Vec<Link>,
    placed: Vec<Placed>,
    /// Whether every host server that was up when this daemon started is back, or was waited for.
    settled: bool,
    settle_at: Nanos,
    tick_at: Nanos,
    ticks: u64,
    /// Whether the last aging may have left flows that are over.
    more_over: bool,
    /// Slots whose SYNs may have been lost and can now be delivered.
    lost: BTreeSet<u8>,
    /// Names of host servers that are to be drained when they come.
    to_drain: BTreeSet<String>,
    /// Whether new connections go elsewhere than when this was last asked.
    moved: bool,
}

impl SpreadMachine {
    #[must_use]
    pub fn new(setup: Setup, now: Nanos) -> Self {
        Self {
            setup,
            roster: Roster::default(),
            links: Vec::new(),
            placed: Vec::new(),
            settled: false,
            settle_at: now.plus(nanos(GRACE)),
            tick_at: now.plus(nanos(TICK)),
            ticks: 0,
            more_over: false,
            lost: BTreeSet::new(),
            to_drain: BTreeSet::new(),
            moved: false,
        }
    }

    /// Takes over what an earlier life has left in the kernel. The file now says
    /// whose slots these are.
    pub fn handle_start(
        &mut self,
        services: &[Service],
        mut placed: Vec<Placed>,
        host: &mut impl SpreadHost,
    ) {
        placed.iter_mut().for_each(|placed| placed.name = self.setup.name_at(&placed.tunnels));
        services.iter().for_each(|service| self.roster.inherit(*service));
        for Placed { slot, state, .. } in &placed {
            self.roster.set_draining(*slot, state.is_drained());
        }
        host.note("started", found(services.len(), placed.len()));
        self.settled = placed.is_empty();
        self.placed = placed;
    }

    /// The link of the host server that comes as `name`; `None`: there are too many
    /// already, or nobody may have this name. A host server that is not in the file is
    /// told so, as long as there is room beside all that are.
    pub fn link_of(&mut self, name: &str, now: Nanos) -> Option<usize> {
        if let Some(index) = self.links.iter().position(|link| link.name == name) {
            return Some(index);
        }
        let is_stranger = |name: &str| self.setup.given(name).is_none();
        let strangers = self.links.iter().filter(|link| is_stranger(&link.name)).count();
        let room = self.setup.hosts_max.saturating_sub(self.setup.hosts.len());
        let is_full = self.links.len() >= self.setup.hosts_max;
        if is_full
            || is_stranger(name) && strangers >= room
            || name.is_empty()
            || name == self.setup.me
        {
            return None;
        }
        self.links.push(Link::new(name, self.setup.period, now));
        Some(self.links.len() - 1)
    }

    /// A host server's channel has opened; an earlier channel of it is closed.
    pub fn handle_opened(&mut self, index: usize, host: &mut impl SpreadHost) {
        let Some(link) = self.links.get_mut(index) else { return };
        (link.here, link.greeted) = (true, false);
        host.send(index, &hello(&self.setup.group, &self.setup.me, (0, false), Vec::new()));
        host.note("joined", link.name.clone());
    }

    /// A channel is gone. Heartbeats tell whether its host server is out; one whose
    /// daemon starts again was not.
    pub fn handle_closed(&mut self, index: usize, why: &str, host: &mut impl SpreadHost) {
        let Some(link) = self.links.get_mut(index).filter(|link| link.here) else { return };
        link.here = false;
        host.note("left", format!("{}: {why}", link.name));
    }

    /// Takes a message of a host server that is here; false if that is not
    /// allowed.
    pub fn handle_word(
        &mut self,
        index: usize,
        word: Word,
        now: Nanos,
        host: &mut impl SpreadHost,
    ) -> bool {
        let Some(link) = self.links.get_mut(index).filter(|link| link.here) else { return false };
        link.hear(now);
        if let Word::Hello { fits } = word {
            link.greeted = fits;
        }
        if let Some(why) = word.fault(link.greeted) {
            host.send(index, &Message::Refused { reason: why, again: false });
            host.close(index);
            self.handle_closed(index, why, host);
            return false;
        }
        match word {
            Word::Announce(said) => self.hear_announcement(index, &said, host),
            Word::Hello { .. } | Word::Beat | Word::Nonsense => self.revive(index, host),
        }
        true
    }

    /// A host server that was declared dead is heard again.
    fn revive(&mut self, index: usize, host: &mut impl SpreadHost) {
        let slots = self.slots_of(&self.links[index].name);
        let link = &mut self.links[index];
        for slot in &slots {
            // This is news only for a host server that has announced something
            // before.
            if self.roster.weight(*slot) > 0 && self.roster.set_alive(*slot, true) {
                host.note("trusted", link.name.clone());
            }
        }
        if std::mem::take(&mut link.doubted) {
            self.lost.extend(slots);
        }
    }

    /// Takes a host server's announcement of what it is and serves. What the file
    /// does not grant is refused, and the earlier announcement stays.
    fn hear_announcement(&mut self, index: usize, said: &Said, host: &mut impl SpreadHost) {
        let name = self.links[index].name.clone();
        let complaint = match self.announce(&name, said, host) {
            Ok(complaint) => complaint,
            Err(reason) => reason,
        };
        if complaint != self.links[index].complaint {
            if !complaint.is_empty() {
                host.send(index, &Message::Refused { reason: &complaint, again: false });
                host.note("refused", format!("{name}: {complaint}"));
            }
            self.links[index].complaint = complaint;
        }
    }

    /// Takes an announcement; returns what is wrong with it nevertheless, or an
    /// empty text.
    fn announce(
        &mut self,
        name: &str,
        said: &Said,
        host: &mut impl SpreadHost,
    ) -> Result<String, String> {
        check(&self.setup, name, said)?;
        let (services, strange) = allowed(&self.setup, name, &said.services);
        let slot = self.place(name, said, host).ok_or("all slots are taken")?;
        let list: Vec<String> = services.iter().map(ToString::to_string).collect();
        let (weight, identity) = (said.weight, said.tunnels.concat());
        if self.roster.announce(slot, Announcement { weight, services, identity }) {
            let what = if list.is_empty() { "nothing".to_owned() } else { list.join(", ") };
            host.note("announced", format!("{name}: {what}, weight {weight}"));
        }
        Ok(complaint(&strange))
    }

    /// The slot with these tunnel addresses, or a free one: a flow knows its host
    /// server by the slot.
    fn place(&mut self, name: &str, said: &Said, host: &mut impl SpreadHost) -> Option<u8> {
        let said_by_family = |is_v4: bool| {
            let mut addresses = said.tunnels.iter().map(address_of);
            addresses.rfind(|address| address.is_ipv4() == is_v4)
        };
        let tunnels: Vec<IpAddr> = [true, false].into_iter().filter_map(said_by_family).collect();
        let same = |p: &&mut Placed| p.tunnels.iter().any(|address| tunnels.contains(address));
        let slot = match self.placed.iter_mut().find(same) {
            Some(placed) => {
                name.clone_into(&mut placed.name);
                placed.tunnels = tunnels;
                placed.layer2 = said.layer2;
                placed.slot
            }
            None => {
                let is_free = |slot: &u8| self.placed.iter().all(|p| p.slot != *slot);
                let slot = (0..self.setup.hosts_max as u8).find(is_free)?;
                let (name, layer2) = (name.to_owned(), said.layer2);
                self.roster.set_draining(slot, self.to_drain.contains(&name));
                self.placed.push(Placed { slot, name, tunnels, layer2, state: State::Up });
                slot
            }
        };
        host.find_ways(&self.placed);
        self.set_hosts(host);
        Some(slot)
    }

    fn set_hosts(&mut self, host: &mut impl SpreadHost) {
        for placed in &mut self.placed {
            let condition = self.roster.condition(placed.slot);
            // Before all have come back, no host server is dead.
            placed.state = match (condition.alive || !self.settled, condition.draining) {
                (false, false) => State::Dead,
                (false, true) => State::DeadDrained,
                (true, true) => State::Draining,
                (true, false) => State::Up,
            };
        }
        host.set_hosts(&self.placed);
    }

    /// The links whose silence would mean something now.
    pub fn due(&self, now: Nanos) -> Vec<usize> {
        let is_due =
            |index: &usize| self.links[*index].next_deadline().is_some_and(|due| due <= now);
        (0..self.links.len()).filter(is_due).collect()
    }

    /// When [`SpreadMachine::handle_timeout`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        let settle = (!self.settled).then_some(self.settle_at);
        let watch = self.links.iter().filter_map(Link::next_deadline);
        watch.chain(settle).fold(self.tick_at, Nanos::min)
    }

    /// Sends heartbeats, judges the host servers, does what else is due, and changes
    /// the redirection where necessary.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn handle_timeout<H: SpreadHost>(
        &mut self,
        now: Nanos,
        host: &mut H,
    ) -> Result<(), H::Error> {
        for index in self.due(now) {
            self.watch(index, now, host);
        }
        self.settled |= self.settle_at <= now;
        if self.tick_at <= now {
            self.tick_at = now.plus(nanos(TICK));
            self.tick(host)?;
        }
        self.apply(host);
        Ok(())
    }

    fn watch(&mut self, index: usize, now: Nanos, host: &mut impl SpreadHost) {
        let link = &mut self.links[index];
        let (beat, news) = link.watch(now, self.setup.period);
        if let Some((number, echo)) = beat.filter(|_| link.here) {
            host.send(index, &Message::Beat { number, echo, executed: 0 });
        }
        match news {
            Some(HealthChange::Suspected) => {
                host.note("suspect", link.name.clone());
                link.doubted = true;
            }
            Some(HealthChange::Declared) => {
                host.note("declare", link.name.clone());
                for slot in self.slots_of(&self.links[index].name) {
                    self.roster.set_alive(slot, false);
                    self.lost.insert(slot);
                }
            }
            None => {}
        }
    }

    fn tick<H: SpreadHost>(&mut self, host: &mut H) -> Result<(), H::Error> {
        self.ticks += 1;
        host.tick()?;
        host.find_ways(&self.placed);
        self.set_hosts(host);
        // The redirector may have room for the service now.
        self.roster.try_again();
        let is_due = self.ticks.is_multiple_of(AGE_TICKS);
        // A flood may end more flows than are forgotten at once.
        if is_due || self.more_over {
            self.more_over = host.age_flows()?;
        }
        if is_due {
            self.forget_unserved(host)?;
        }
        Ok(())
    }

    /// Forgets a service without host servers when its last flow has gone.
    fn forget_unserved<H: SpreadHost>(&mut self, host: &mut H) -> Result<(), H::Error> {
        let unserved = self.roster.unserved();
        if !self.settled || unserved.is_empty() || host.has_flows() {
            return Ok(());
        }
        for service in unserved {
            host.remove_service(&service)?;
            self.roster.forget(&service);
            host.note("removed", service.to_string());
        }
        Ok(())
    }

    /// Carries out the roster's changes, once all host servers had the time to
    /// return.
    fn apply(&mut self, host: &mut impl SpreadHost) {
        if !self.settled {
            let is_back = |p: &Placed| self.roster.condition(p.slot).alive;
            let mut waited_for = self.placed.iter().filter(|p| !p.state.is_dead());
            self.settled = waited_for.all(is_back);
        }
        if !self.settled {
            return;
        }
        self.set_hosts(host);
        for change in self.roster.changes() {
            let service = change.service;
            if let Err(error) = host.set_service(&service, &change.table) {
                if self.roster.refuse(service, &error) {
                    host.note("refused", format!("{service}: {error}"));
                }
                continue;
            }
            self.roster.apply(&change);
            self.moved = true;
            let members: Vec<&str> =
                change.members.iter().map(|slot| self.name_of(*slot)).collect();
            let to = if members.is_empty() { "nobody".to_owned() } else { members.join(", ") };
            host.note("switch", format!("{service} -> {to}"));
        }
    }

    /// Call after the redirector knows who is there: SYNs of a host server that died
    /// or was away are re-injected.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn handle_turned<H: SpreadHost>(&mut self, host: &mut H) -> Result<(), H::Error> {
        if !self.lost.is_empty() {
            let slots: Vec<u8> = std::mem::take(&mut self.lost).into_iter().collect();
            let flows = host.resend(&slots);
            if flows > 0 {
                host.note("resend", counted(flows as u64, "flow"));
            }
        }
        host.set_cache(self.links.iter().any(|link| link.doubted))
    }

    /// Drains a host server for an operator, or (`end`) no longer drains it.
    ///
    /// # Errors
    /// When none has this name; the text says so.
    pub fn handle_drain(
        &mut self,
        name: &str,
        end: bool,
        host: &mut impl SpreadHost,
    ) -> Result<(), String> {
        if self.slots_of(name).is_empty() {
            let known: Vec<&str> = self.placed.iter().map(|p| p.name.as_str()).collect();
            return Err(format!("no host server `{name}`; there are: {}", known.join(", ")));
        }
        self.drain(name, end, host);
        Ok(())
    }

    /// Drains a host server, which need not have come yet, or (`end`) no longer drains it.
    fn drain(&mut self, name: &str, end: bool, host: &mut impl SpreadHost) {
        if end {
            self.to_drain.remove(name);
        } else if self.setup.given(name).is_some() {
            self.to_drain.insert(name.to_owned());
        }
        for slot in self.slots_of(name) {
            if self.roster.set_draining(slot, !end) {
                host.note(if end { "undrained" } else { "drained" }, name.to_owned());
            }
        }
        self.set_hosts(host);
        self.apply(host);
    }

    /// Whether at least one host server is heard.
    fn hears_somebody(&self) -> bool {
        self.placed.iter().any(|placed| self.roster.condition(placed.slot).alive)
    }

    /// Whether each host server of the file is heard.
    fn hears_all(&self) -> bool {
        let is_alive = |slot: u8| self.roster.condition(slot).alive;
        self.setup.hosts.iter().all(|it| self.slots_of(&it.name).into_iter().any(is_alive))
    }

    fn slots_of(&self, name: &str) -> Vec<u8> {
        self.placed.iter().filter(|p| p.name == name).map(|p| p.slot).collect()
    }

    /// Name of the host server in a slot.
    #[must_use]
    pub fn name_of(&self, slot: u8) -> &str {
        self.placed.iter().find(|p| p.slot == slot).map_or("?", |p| &p.name)
    }

    /// Who serves what.
    #[must_use]
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The host servers that the redirector knows.
    #[must_use]
    pub fn placed(&self) -> &[Placed] {
        &self.placed
    }

    /// Whether every host server that was up when this daemon started is back, or was waited for:
    /// until then everything stays as an earlier life has left it.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// Whether the host server's channel is open.
    #[must_use]
    pub fn is_here(&self, name: &str) -> bool {
        self.links.iter().any(|link| link.name == name && link.here)
    }
}

#[cfg(test)]
mod tests;
