//! How a member asks its arbiter, whatever that is.

use super::DATAGRAM_BYTES_MAX;
use super::alone::{self, Alone};
use super::etcd::{self, Etcd};
use super::keeper::Keeper;
use crate::config::{Arbiter, ArbiterKind, Config, Member};
use crate::daemon::sealed::{self, Sealed, seal};
use crate::key::Keyring;
use crate::poll::{Interest, Poll};
use anyhow::{Context as _, Result};
use holdfast_cluster::arbiter::client::ClientSettings;
use holdfast_cluster::arbiter::datagram::{Question, parse_reply};
use holdfast_cluster::arbiter::{Asker, Call, Owner, Reply, Request, own};
use holdfast_cluster::lease::Kept;
use holdfast_linux::arp_cache;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

/// The witness's role.
const WITNESS: &str = "witness";

/// See the module.
pub(super) enum Way {
    Witness(Asks),
    Etcd(Etcd),
    Alone(Box<Alone>),
}

/// Datagrams to a witness and back.
pub(super) struct Asks {
    socket: UdpSocket,
    at: SocketAddr,
    keyring: Keyring,
    /// Questions since the last answer.
    unanswered: u32,
}

impl Asks {
    fn open(at: SocketAddr, key: &Keyring) -> Result<Self> {
        let any = match at {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = UdpSocket::bind(any).context("a socket for the witness")?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, at, keyring: key.clone(), unanswered: 0 })
    }

    fn ask(&mut self, call: Call, asker: &Asker, request: Request) {
        // A switch that was taught a wrong port for the witness's hardware address learns the right
        // one when the witness answers a question to everybody. Asked for seldom: it may be down.
        if self.unanswered > 0 && self.unanswered.is_power_of_two() {
            // In a thread of its own, because the kernel may be long about it.
            let at = self.at.ip();
            let _not_the_cause = std::thread::Builder::new().spawn(move || arp_cache::forget(at));
        }
        self.unanswered = self.unanswered.saturating_add(1);
        let question = Question { number: call.number, asker: asker.clone(), request };
        // The names are the file's, so there is always a question. One that cannot be sent is as
        // good as lost.
        if let Some(bytes) = question.build() {
            let key = self.keyring.with(WITNESS).first().arbiter_key();
            let _ = self.socket.send_to(&seal(&bytes, Sealed::Question, &key), self.at);
        }
    }

    fn take(&mut self, asker: &Asker) -> Option<Option<(u64, Reply)>> {
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        let got = sealed::receive(&self.socket, self.at, &mut buffer)?;
        let secrets = self.keyring.with(WITNESS);
        let opened = got.and_then(|it| sealed::open_with(it, Sealed::Reply, &secrets));
        let reply = opened.and_then(|(plain, _)| parse_reply(plain, asker));
        if reply.is_some() {
            self.unanswered = 0;
        }
        Some(reply)
    }
}

/// How the arbiter is asked.
pub(super) fn settings(arbiter: &Arbiter) -> ClientSettings {
    match &arbiter.kind {
        ArbiterKind::Witness(_) => ClientSettings::STANDARD,
        ArbiterKind::Etcd(etcd) => etcd::settings(etcd),
        ArbiterKind::None | ArbiterKind::Command(_) | ArbiterKind::Gateway => alone::ASKED,
    }
}

/// What the lease is to know of an earlier life: the record, and of which arbiter, where that may be
/// another one than before.
pub(super) fn kept(arbiter: &Arbiter, found: &Kept) -> Kept {
    let lineage = match arbiter.kind {
        ArbiterKind::Witness(_) => found.lineage,
        ArbiterKind::Etcd(_) => etcd::LINEAGE,
        ArbiterKind::None | ArbiterKind::Command(_) | ArbiterKind::Gateway => own::LINEAGE,
    };
    Kept { record: found.record.clone(), lineage }
}

impl Way {
    /// # Errors
    /// When a socket cannot be made, or a file not be read.
    pub fn open(
        (config, arbiter): (&Config, &Arbiter),
        (member, me): (&Member, &Owner),
        key: &Keyring,
        keeper: &Arc<Keeper>,
        started: Instant,
    ) -> Result<Self> {
        match &arbiter.kind {
            ArbiterKind::Witness(at) => Asks::open(*at, key).map(Self::Witness),
            ArbiterKind::Etcd(etcd) => {
                let names: Vec<&str> = config.members.iter().map(|it| it.name.as_str()).collect();
                let members = names.try_into().ok().context("a group has two members")?;
                let group = (config.group.name.as_str(), me.name.as_str(), me.life);
                Etcd::start(etcd, members, group, config.group.realtime).map(Self::Etcd)
            }
            ArbiterKind::None | ArbiterKind::Command(_) | ArbiterKind::Gateway => {
                let (of, keeper) = ((member, me), Arc::clone(keeper));
                let alone = Alone::start((config, arbiter), of, keeper, started)?;
                Ok(Self::Alone(Box::new(alone)))
            }
        }
    }

    /// Has `poll` look for answers.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn register(&self, poll: &Poll, token: u64) -> Result<()> {
        match self {
            Self::Witness(asks) => Ok(poll.add(&asks.socket, token, Interest::Read)?),
            Self::Etcd(etcd) => etcd.register(poll, token),
            Self::Alone(alone) => alone.register(poll, token),
        }
    }

    /// Begins a request.
    pub fn ask(&mut self, call: Call, asker: &Asker, request: Request) {
        match self {
            Self::Witness(asks) => asks.ask(call, asker, request),
            Self::Etcd(etcd) => etcd.ask(call, asker, request),
            Self::Alone(alone) => alone.ask(call.number, request),
        }
    }

    /// What has come next: an answer with the number of its question, or `Some(None)` for what is
    /// none; `None` if nothing has come.
    pub fn take(&mut self, asker: &Asker) -> Option<Option<(u64, Reply)>> {
        match self {
            Self::Witness(asks) => asks.take(asker),
            Self::Etcd(etcd) => etcd.take().map(Some),
            Self::Alone(alone) => alone.take().map(Some),
        }
    }

    /// Why there is no answer, where that is known.
    pub fn failure(&self) -> Option<String> {
        match self {
            Self::Witness(_) => None,
            Self::Etcd(etcd) => etcd.failure(),
            Self::Alone(alone) => alone.failure(),
        }
    }

    /// The record, where this member keeps it itself.
    pub fn alone(&mut self) -> Option<&mut Alone> {
        match self {
            Self::Alone(alone) => Some(alone),
            Self::Witness(_) | Self::Etcd(_) => None,
        }
    }
}
