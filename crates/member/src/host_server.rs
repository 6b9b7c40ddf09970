//! A host server of a spread group: when it looks for listeners, which of them it
//! trusts to answer, and what it announces to the edges.

mod answering;
mod looks;
mod offered;

pub use answering::Answer;
pub use offered::Waiting;

use crate::nanos;
use crate::shown::{Protection, Shown};
use crate::spread::Service;
use crate::standing::hello;
use crate::timing::host_server::ASK_EVERY;
use answering::Answering;
use holdfast_cluster::Nanos;
use holdfast_wire::message::{Message, Offer};
use holdfast_wire::packet::mapped;
use looks::Looks;
use offered::offered;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Remedy where no listener is one of the group.
const UNSEEN: &str = "let a server listen at one of them; one that listens at all addresses (0.0.0.0, [::]) counts \
                      where services = [\"ADDRESS:PORT\"] in this host's [[host]] names its port";

/// What the machine needs of its host: its listeners, clients for them, and a
/// channel to each edge, which is named by its place in the file.
pub trait ListenerHost {
    /// The time, which has advanced since the machine was called.
    fn now(&self) -> Nanos;
    /// Sends a message to an edge, if its channel is open.
    fn send(&mut self, edge: usize, message: &Message<'_>);
    /// The sockets that wait for clients; `None` if the kernel does not tell.
    fn listening(&mut self) -> Option<Vec<Waiting>>;
    /// Whether a bind was noticed since the last call. It may not have happened yet.
    fn take_bind(&mut self) -> bool;
    /// Begins to ask whether these services answer a client, unless that is
    /// under way.
    fn ask(&mut self, services: &[Service]);
    /// The answers to the last [`ask`](Self::ask), once they are known.
    fn answers(&mut self) -> Option<Vec<(Service, Answer)>>;
    /// Notes an event that people want to know about: its kind, and a text.
    fn note(&mut self, what: &'static str, words: String);
}

/// Configuration of a host server.
#[derive(Clone, Debug)]
pub struct Setup {
    pub group: String,
    pub name: String,
    /// Names of the edges.
    pub edges: Vec<String>,
    /// Its share of new connections.
    pub weight: u32,
    /// Whether packets come without encapsulation.
    pub layer2: bool,
    /// Its tunnel endpoints, at most one per family.
    pub tunnels: Vec<IpAddr>,
    /// Addresses that clients use.
    pub addresses: Vec<IpAddr>,
    /// Services to announce; `None`: everything that is bound to these
    /// addresses.
    pub services: Option<Vec<Service>>,
}

/// What an edge has said in one turn; of each kind, the last message counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EdgeWords {
    beat: Option<u64>,
    refused: Option<String>,
}

impl EdgeWords {
    /// Takes one more message.
    pub fn take(&mut self, message: &Message<'_>) {
        match message {
            Message::Beat { number, .. } => self.beat = Some(*number),
            Message::Refused { reason, .. } => self.refused = Some((*reason).to_owned()),
            _ => {}
        }
    }
}

/// The machine of a host server: it looks for listeners, and announces those that answer to the
/// edges.
///
/// # Contract
/// * [`HostServer::handle_timeout`] follows at [`HostServer::next_deadline`], which any
///   other call may bring forward.
#[derive(Debug)]
pub struct HostServer {
    setup: Setup,
    looks: Looks,
    ask_at: Nanos,
    answering: Answering,
    listening: Vec<Service>,
    announced: Vec<Service>,
    announced_at_bind: u64,
    /// Why each edge has refused what it was last told.
    refused: BTreeMap<usize, String>,
}

impl HostServer {
    #[must_use]
    pub fn new(setup: Setup, now: Nanos) -> Self {
        Self {
            refused: BTreeMap::new(),
            setup,
            looks: Looks::new(now),
            ask_at: now,
            answering: Answering::default(),
            listening: Vec::new(),
            announced: Vec::new(),
            announced_at_bind: 0,
        }
    }

    /// The channel to an edge has opened.
    pub fn handle_opened(&mut self, edge: usize, host: &mut impl ListenerHost) {
        host.note("joined", self.edge(edge));
        self.refused.remove(&edge);
        host.send(edge, &hello(&self.setup.group, &self.setup.name, (0, false), Vec::new()));
        host.send(edge, &self.announcement());
    }

    /// The channel is gone.
    pub fn handle_closed(&mut self, edge: usize, why: &str, host: &mut impl ListenerHost) {
        host.note("left", format!("{}: {why}", self.edge(edge)));
    }

    /// An edge, as people call it.
    #[must_use]
    pub fn edge(&self, edge: usize) -> String {
        match &self.setup.edges[..] {
            [_] => "the edge".to_owned(),
            several => format!("the edge {}", several[edge]),
        }
    }

    /// Takes what an edge has said in a turn, and answers its heartbeats.
    pub fn handle_heard(&mut self, edge: usize, heard: EdgeWords, host: &mut impl ListenerHost) {
        if let Some(reason) = heard.refused {
            host.note("refused", reason.clone());
            self.refused.insert(edge, reason);
        }
        if let Some(number) = heard.beat {
            host.send(edge, &Message::Beat { number, echo: number, executed: 0 });
        }
    }

    /// Takes note of a bind, if one was noticed.
    pub fn handle_bind(&mut self, now: Nanos, host: &mut impl ListenerHost) {
        if host.take_bind() {
            self.looks.bind(now);
        }
    }

    /// When [`HostServer::handle_timeout`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        self.looks.due().min(self.ask_at)
    }

    /// Looks for listeners and asks whether they answer, as far as that is due.
    pub fn handle_timeout(&mut self, now: Nanos, host: &mut impl ListenerHost) {
        if self.ask_at <= now {
            self.ask_at = now.plus(nanos(ASK_EVERY));
            host.ask(&self.listening);
            self.answering.keep(&self.listening);
        }
        if self.looks.due() <= now {
            self.look(now, host);
        }
    }

    fn look(&mut self, now: Nanos, host: &mut impl ListenerHost) {
        if let Some(answers) = host.answers() {
            self.answering.learn(now, &answers);
        }
        let found = host.listening();
        // The kernel reports a bind before it is done, so the binds of all sockets that were found
        // have been reported by now.
        self.handle_bind(now, host);
        let at_bind = self.looks.follow_a_bind();
        self.looks.looked(now, host.now());
        if let Some(found) = found {
            let Setup { addresses, services, .. } = &self.setup;
            self.listening = offered(addresses, services.as_deref(), &found);
            self.announce(at_bind, host);
        }
    }

    /// Tells the edges what has changed.
    fn announce(&mut self, at_bind: bool, host: &mut impl ListenerHost) {
        let good = self.listening.iter().filter(|service| self.answering.is_good(service));
        let good: Vec<Service> = good.copied().collect();
        if good == self.announced {
            return;
        }
        let names: Vec<String> = good.iter().map(ToString::to_string).collect();
        host.note("announced", if names.is_empty() { "nothing".into() } else { names.join(", ") });
        if at_bind {
            let new = good.iter().filter(|service| !self.announced.contains(service));
            self.announced_at_bind += new.count() as u64;
        }
        self.announced = good;
        let said = self.announcement();
        self.refused.clear();
        (0..self.setup.edges.len()).for_each(|edge| host.send(edge, &said));
    }

    /// Announces everything; an edge that missed it asks by reconnecting.
    fn announcement(&self) -> Message<'static> {
        let Setup { weight, layer2, tunnels, .. } = &self.setup;
        Message::Announce {
            weight: *weight,
            layer2: *layer2,
            tunnels: tunnels.iter().map(|ip| mapped(*ip)).collect(),
            services: self.announced.iter().map(Offer::from).collect(),
        }
    }

    /// The services that the edges were told of.
    #[must_use]
    pub fn announced(&self) -> &[Service] {
        &self.announced
    }

    /// The state that it shows, with its channel to each edge open or not.
    #[must_use]
    pub fn shown(&self, connected: &[bool]) -> Shown {
        let waits = |reason: &str, remedy| Shown::new(Protection::Waiting, reason, remedy);
        let away = connected.iter().position(|connected| !connected);
        let silent = away.map(|edge| format!("{} does not answer", self.edge(edge)));
        if !connected.contains(&true) {
            return waits(silent.as_deref().unwrap_or_default(), "");
        }
        if self.announced.is_empty() {
            return waits("no server listens at an address of the group", UNSEEN);
        }
        let is_open = |edge: &&usize| connected.get(**edge).is_some_and(|is_open| *is_open);
        let refusing: Vec<&usize> = self.refused.keys().filter(is_open).collect();
        if let Some(edge) = refusing.first() {
            let reason =
                format!("{} refuses this host server: {}", self.edge(**edge), self.refused[*edge]);
            let is_alone = refusing.len() == connected.iter().filter(|is_open| **is_open).count();
            let state = if is_alone { Protection::Waiting } else { Protection::Unprotected };
            return Shown::new(
                state,
                &reason,
                "mend the file of that host, and `holdfast reload` there",
            );
        }
        match silent {
            Some(reason) => {
                Shown::new(Protection::Unprotected, &reason, "start holdfast on its host")
            }
            None => Shown::protected(),
        }
    }

    /// Number of services announced because their bind was noticed.
    #[must_use]
    pub fn announced_at_bind(&self) -> u64 {
        self.announced_at_bind
    }
}

#[cfg(test)]
mod tests;
