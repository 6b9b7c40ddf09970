//! HALR at work: when packets are copied, when what an outage has swallowed is
//! resent, and how long acknowledgements wait meanwhile. [`Recovery`] decides which
//! packets are kept; a host copies and sends them: eBPF programs and their ring on
//! the wire, a switch in the simulator.

mod policy;
#[cfg(test)]
mod tests;

pub use policy::{HalrConfig, HalrLimits, Keeps};

use crate::Ns;
use crate::recovery::{PacketStore, Recovery, Resend};

/// Time between two looks at what the host has copied, in ns: the looks tell its
/// age.
const LOOK_NS: Ns = 1_000_000_000;
/// The same while acknowledgements may ask for more, in ns: less than a round
/// trip behind the edge.
const FOLLOW_LOOK_NS: Ns = 1_000_000;
/// Most acknowledgements held at once: 2 MB of them.
const HELD_MAX: usize = 16_384;

/// What the machine needs of its host: copies of packets that pass, and a way to
/// send.
pub trait HalrHost {
    /// The name of a flow, in one direction of its data.
    type Key: Ord + Copy;
    /// Where the copies are kept.
    type PacketStore: PacketStore;
    /// An acknowledgement that the data path did not forward.
    type Held;
    /// Reason why the data path does not do what it was told.
    type Error;
    /// Number of [`HalrHost::drain`] calls after which nothing is left, however
    /// much has waited; 0 where packets do not wait, so that nobody has to look
    /// for them.
    const DRAINS_MAX: usize;

    /// Starts copying the packets that pass, or stops it; what was copied and
    /// not yet drained is then thrown away.
    ///
    /// # Errors
    /// When the data path refuses.
    fn set_copying(&mut self, on: bool) -> Result<(), Self::Error>;
    /// Takes a share of what was copied, in order, until [`Intake::is_full`].
    /// True if nothing is left.
    fn drain(&mut self, now: Ns, intake: &mut Intake<Self>) -> bool;
    /// From now on, bare acknowledgements out of the cluster are only copied, not
    /// forwarded, until [`HalrHost::release`], or for at most `at_most_ns`. False
    /// if the host cannot do that.
    fn hold(&mut self, at_most_ns: Ns) -> bool;
    /// Packets that passed so far and were not copied for lack of room.
    fn lost(&mut self) -> u64 {
        0
    }
    /// Acknowledgements are forwarded again. What was copied before is still to
    /// be drained.
    fn release(&mut self);
    /// Sends a held acknowledgement on.
    fn forward(&mut self, held: Self::Held);
    /// Sends a packet again.
    fn resend(
        &mut self,
        shelf: &Self::PacketStore,
        resend: &Resend<<Self::PacketStore as PacketStore>::Packet>,
    );
}

/// Receives the copies.
pub struct Intake<H: HalrHost + ?Sized> {
    /// The cache, which is shown every packet.
    pub cache: Recovery<H::Key, H::PacketStore>,
    /// Held acknowledgements in their order.
    held: Vec<H::Held>,
    held_count: u64,
}

impl<H: HalrHost + ?Sized> Intake<H> {
    /// Takes an acknowledgement that the data path did not forward.
    pub fn hold(&mut self, held: H::Held) {
        self.held.push(held);
        self.held_count += 1;
    }

    /// Whether the held acknowledgements must be sent on before another one is
    /// taken.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.held.len() >= HELD_MAX
    }
}

/// The machine of HALR; see the module.
///
/// # Contract
/// * [`Halr::handle_start`] comes first.
/// * [`Halr::handle_suspected`] when packets may be lost, and [`Halr::handle_trusted`]
///   when they may not, as often as that is known; [`Halr::handle_restored`] when
///   there is a way again.
/// * [`Halr::handle_copies`] when the host has copied much, [`Halr::look`] before
///   any step for which the packets before it matter, and
///   [`Halr::handle_timeout`] when [`Halr::poll_timeout`] says.
pub struct Halr<H: HalrHost + ?Sized> {
    config: HalrConfig,
    intake: Intake<H>,
    /// Time of the last look at what was copied, while packets are kept.
    looked: Option<Ns>,
    /// Number of packets that had not been copied at that time.
    lost: u64,
    /// When resending began, while acknowledgements are held.
    holding: Option<Ns>,
}

impl<H: HalrHost + ?Sized> Halr<H> {
    /// A machine with an empty cache.
    #[must_use]
    pub fn new(config: HalrConfig, shelf: H::PacketStore) -> Self {
        let cache = Recovery::new(config.cache, shelf);
        let intake = Intake { cache, held: Vec::new(), held_count: 0 };
        Self { config, intake, looked: None, lost: 0, holding: None }
    }

    /// Forgets what an earlier life has left in the host, and starts caching if it
    /// is to cache always.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn handle_start(&mut self, now: Ns, host: &mut H) -> Result<(), H::Error> {
        host.set_copying(false)?;
        if self.config.always { self.begin(now, host) } else { Ok(()) }
    }

    /// Packets that pass may be lost; `true` if they are kept from now on and
    /// were not before.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn handle_suspected(&mut self, now: Ns, host: &mut H) -> Result<bool, H::Error> {
        if self.is_active() || self.config.is_off() {
            return Ok(false);
        }
        self.begin(now, host)?;
        Ok(true)
    }

    /// Nothing is lost any more. Everything is forgotten, unless packets are kept
    /// always or until all are resent; `true` if nothing is kept from now on.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn handle_trusted(&mut self, host: &mut H) -> Result<bool, H::Error> {
        if !self.is_active() || self.config.always || self.is_resending() {
            return Ok(false);
        }
        self.looked = None;
        host.set_copying(false)?;
        self.intake.cache.clear();
        Ok(true)
    }

    fn begin(&mut self, now: Ns, host: &mut H) -> Result<(), H::Error> {
        if self.config.is_off() {
            return Ok(());
        }
        self.looked = Some(now);
        host.set_copying(true)
    }

    /// Takes a share of what was copied. The rest waits for the next call.
    pub fn handle_copies(&mut self, now: Ns, host: &mut H) {
        self.take_share(now, host);
    }

    /// Like [`Halr::handle_copies`], if there may be anything.
    pub fn look(&mut self, now: Ns, host: &mut H) {
        if self.is_active() {
            self.take_share(now, host);
        }
    }

    /// Takes a share; true if nothing is left.
    fn take_share(&mut self, now: Ns, host: &mut H) -> bool {
        if let Some(looked) = &mut self.looked {
            *looked = now;
        }
        let is_all = host.drain(now, &mut self.intake);
        let lost = host.lost();
        if std::mem::replace(&mut self.lost, lost) != lost && self.config.forgets_at_loss {
            // A packet that was not seen may have answered any of the cached
            // ones.
            self.intake.cache.clear();
        }
        // From another processor's program, which had begun before they were let
        // go.
        if self.holding.is_none() || self.intake.is_full() {
            self.let_go(host);
        }
        is_all
    }

    /// The service is back for some flows: `lost_since` tells, for a kept packet,
    /// since when such packets may have been lost. Their packets go out again with
    /// [`Halr::handle_timeout`], which is called here for the first time. Returns the
    /// number of these flows.
    pub fn handle_restored(
        &mut self,
        now: Ns,
        lost_since: impl Fn(&<H::PacketStore as PacketStore>::Packet) -> Option<Ns>,
        host: &mut H,
    ) -> usize {
        // Packets that came before the service was back are among those that it
        // lacks.
        let _all = (0..H::DRAINS_MAX).any(|_| self.take_share(now, host));
        let cache = &mut self.intake.cache;
        let before = cache.kept_flows();
        cache.handle_restored_for(now, lost_since);
        let flows = before - cache.kept_flows();
        if flows > 0 && self.config.hold_ns > 0 && host.hold(self.config.hold_max_ns) {
            self.holding = Some(now);
        }
        self.handle_timeout(now, host);
        flows
    }

    /// When the held acknowledgements go on: while packets are being resent, not too
    /// soon.
    fn held_until(&self) -> Option<Ns> {
        let HalrConfig { hold_ns, hold_max_ns, .. } = self.config;
        let longest = if self.intake.cache.is_kicking() { hold_max_ns } else { hold_ns };
        self.holding.map(|since| since + longest)
    }

    /// Sends held acknowledgements on and stops holding.
    fn let_go(&mut self, host: &mut H) {
        if self.holding.take().is_some() {
            host.release();
        }
        self.intake.held.drain(..).for_each(|held| host.forward(held));
    }

    /// When [`Halr::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        let resend = self.intake.cache.poll_timeout();
        let looked = self.looked.filter(|_| H::DRAINS_MAX > 0);
        let look = looked.map(|looked| looked + self.look_period());
        resend.into_iter().chain(look).chain(self.held_until()).min()
    }

    fn look_period(&self) -> Ns {
        if self.is_resending() { FOLLOW_LOOK_NS } else { LOOK_NS }
    }

    /// Whether packets are being resent, or acknowledgements may still ask for some.
    #[must_use]
    pub fn is_resending(&self) -> bool {
        self.intake.cache.poll_timeout().is_some()
    }

    /// Does what is due; returns the number of packets resent.
    pub fn handle_timeout(&mut self, now: Ns, host: &mut H) -> usize {
        // Packets that have passed since may acknowledge kept ones, which then
        // need not be resent.
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.look(now, host);
        }
        let count = self.resend(now, host);
        if self.held_until().is_some_and(|until| until <= now) {
            self.let_go(host);
            self.take_share(now, host);
        }
        count
    }

    fn resend(&mut self, now: Ns, host: &mut H) -> usize {
        for count in 0..self.config.resends_per_turn {
            let Some(resend) = self.intake.cache.poll_resend(now) else { return count };
            host.resend(self.intake.cache.shelf(), &resend);
        }
        self.config.resends_per_turn
    }

    /// The cache of kept packets.
    #[must_use]
    pub fn cache(&self) -> &Recovery<H::Key, H::PacketStore> {
        &self.intake.cache
    }

    /// Forgets a flow that has ended, as its host knows.
    pub fn forget(&mut self, key: H::Key) {
        self.intake.cache.forget(key);
    }

    /// Whether packets are kept.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.looked.is_some()
    }

    /// Acknowledgements that were ever held.
    #[must_use]
    pub fn held_count(&self) -> u64 {
        self.intake.held_count
    }
}
