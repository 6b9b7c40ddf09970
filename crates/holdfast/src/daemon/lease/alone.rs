//! A pair that asks nobody: the record is on this host's disk, and what proves that the other member
//! is silent for good is a command of the file, or that this host reaches its router.
//!
//! Disk and proofs take time: each has a thread, which rings when it is done.

mod proof;

use super::keeper::Keeper;
use super::locked;
use crate::config::{Arbiter, ArbiterKind, Config, Member};
use crate::poll::{Interest, Poll};
use anyhow::Result;
use holdfast_cluster::Nanos;
use holdfast_cluster::arbiter::client::ClientSettings;
use holdfast_cluster::arbiter::own::{Own, Settings, Way};
use holdfast_cluster::arbiter::{Owner, Reply, Request};
use holdfast_cluster::lease::{Kept, Message};
use holdfast_linux::process::EventFd;
use proof::Prover;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

pub use proof::reach_router;

/// How the own record is asked: a disk that takes longer than a try is what is said of it.
pub(super) const ASKED: ClientSettings = ClientSettings {
    endpoints: 1,
    try_out: Nanos::from_ms(1000),
    pause: Nanos::from_ms(10),
    poll: Nanos::from_ms(100),
};
/// Time for which the owner, and its backup, want a change before the other host is switched off: what
/// passes by itself should cost nobody a host, and where only the path between the two is cut the
/// owner goes on.
const COMMAND_AFTER: [Nanos; 2] = [Nanos::from_ms(500), Nanos::from_ms(1000)];
/// The same for asking the router.
const GATEWAY_AFTER: [Nanos; 2] = [Nanos::from_ms(100), Nanos::from_ms(120)];
/// Time after a proof that failed.
const COMMAND_AGAIN: Nanos = Nanos::from_ms(5000);
const GATEWAY_AGAIN: Nanos = Nanos::from_ms(200);

/// What a thread has done.
enum Done {
    Written(bool),
    Proved(bool),
}

/// See the module.
pub(super) struct Alone {
    own: Own,
    keeper: Arc<Keeper>,
    /// Lineage of the arbiter that was asked before, if there was one: it stays on the disk.
    lineage: u64,
    done: Receiver<Done>,
    tell: Teller,
    prover: Option<Sender<()>>,
    /// Why the last proof was not given.
    failure: Arc<Mutex<Option<String>>>,
    started: Instant,
}

/// How a thread says that it is done.
#[derive(Clone)]
struct Teller {
    done: Sender<Done>,
    bell: Arc<EventFd>,
}

impl Teller {
    fn tell(&self, done: Done) {
        // The lease's thread ends with this daemon.
        let _ = self.done.send(done);
        self.bell.ring();
    }
}

impl Alone {
    /// What an earlier life has kept of the record counts as this one's own.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(
        (config, arbiter): (&Config, &Arbiter),
        (me, owner): (&Member, &Owner),
        keeper: Arc<Keeper>,
        started: Instant,
    ) -> Result<Self> {
        let (way, patience, retry) = match arbiter.kind {
            ArbiterKind::Command(_) => (Way::Command, COMMAND_AFTER, COMMAND_AGAIN),
            ArbiterKind::Gateway => (Way::Gateway, GATEWAY_AFTER, GATEWAY_AGAIN),
            _ => (Way::Nobody, [Nanos(0); 2], Nanos(0)),
        };
        let (peer, founds) = (config.other(me).name.clone(), config.first() == me.name);
        let settings = Settings { me: owner.clone(), peer, founds, way, patience, retry };
        let Kept { record, lineage } = keeper.found.clone();
        let (sender, done) = channel();
        let tell = Teller { done: sender, bell: Arc::new(EventFd::new()?) };
        let failure = Arc::new(Mutex::default());
        let prover = match Prover::new(config, arbiter, me) {
            Some(prover) => Some(prover.start(tell.clone(), Arc::clone(&failure))?),
            None => None,
        };
        let own = Own::new(settings, record);
        Ok(Self { own, keeper, lineage, done, tell, prover, failure, started })
    }

    fn now(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// Has `poll` look for what is done.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn register(&self, poll: &Poll, token: u64) -> Result<()> {
        Ok(poll.add(&*self.tell.bell, token, Interest::Read)?)
    }

    /// Begins a request.
    pub fn ask(&mut self, number: u64, request: Request) {
        self.own.handle_request(self.now(), number, request);
        self.serve();
        // Whoever asks is in the middle of something, and fetches the answer when it is woken.
        self.tell.bell.ring();
    }

    /// Takes a message of the other member that counts.
    pub fn hear(&mut self, message: &Message) {
        self.own.handle_heard(self.now(), message);
        self.serve();
    }

    /// Completes a message to the other member.
    pub fn mark(&mut self, message: &mut Message) {
        self.own.mark(message);
    }

    /// Whether this member must be silent: both own one epoch.
    pub fn is_contested(&self) -> bool {
        self.own.is_contested_alive()
    }

    /// This daemon is about to end.
    pub fn leave(&mut self) {
        self.own.leave();
    }

    /// Takes the operator's word that the other host is off. False if nothing waits for it.
    pub fn take_word(&mut self) -> bool {
        self.own.handle_word(self.now())
    }

    /// The next answer, with the number of its question.
    pub fn take(&mut self) -> Option<(u64, Reply)> {
        let _ = self.tell.bell.take();
        while let Ok(done) = self.done.try_recv() {
            match done {
                Done::Written(ok) => self.own.handle_written(self.now(), ok),
                Done::Proved(ok) => self.own.handle_proof(self.now(), ok),
            }
        }
        self.serve();
        self.own.poll_reply()
    }

    /// Why the last proof was not given.
    pub fn failure(&self) -> Option<String> {
        locked(&self.failure).clone()
    }

    /// Has done what the machine wants.
    fn serve(&mut self) {
        if let Some(record) = self.own.poll_write() {
            let tell = self.tell.clone();
            let kept = Kept { record: Some(record), lineage: self.lineage };
            self.keeper.keep_and(&kept, move |ok| tell.tell(Done::Written(ok)));
        }
        if self.own.poll_proof()
            && let Some(prover) = &self.prover
        {
            let _ = prover.send(());
        }
    }
}
