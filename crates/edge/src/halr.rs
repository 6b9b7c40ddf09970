//! HALR at work: when packets are copied, when what an outage has swallowed goes
//! out again, and for how long acknowledgements wait meanwhile. What is kept of
//! the packets is the business of [`Recovery`], where they are copied and sent that
//! of a host: eBPF programs and their ring on the wire, a switch in the simulator.

mod policy;
#[cfg(test)]
mod tests;

pub use policy::{HalrConfig, HalrLimits, Keeps};

use crate::Ns;
use crate::recovery::{Recovery, Resend, Shelf};

/// Time between two looks after what the host has copied, ns: so that its age is
/// known.
const LOOK_NS: Ns = 1_000_000_000;
/// The same while acknowledgements may ask for more, ns: less than a round trip
/// behind the edge.
const FOLLOW_LOOK_NS: Ns = 1_000_000;
/// Acknowledgements that are held at once, 2 MB of them.
const HELD_MAX: usize = 16_384;

/// What the machine needs of the host that it runs on: copies of what passes, and
/// hands that send.
pub trait HalrHost {
    /// The name of a flow, in one direction of its data.
    type Key: Ord + Copy;
    /// Where the copies are kept.
    type Shelf: Shelf;
    /// An acknowledgement that was not forwarded.
    type Held;
    /// Why the data path does not do what it was told.
    type Error;
    /// Calls of [`HalrHost::drain`] after which nothing is left, however much has
    /// waited; 0 where packets do not wait, so that nobody has to look for them.
    const DRAINS_MAX: usize;

    /// From now on packets that pass are copied, or no longer, and then what was
    /// copied and not yet drained is thrown away.
    ///
    /// # Errors
    /// When the data path refuses.
    fn set_copying(&mut self, on: bool) -> Result<(), Self::Error>;
    /// Takes a share of what was copied, in its order, until [`Intake::is_full`].
    /// Whether nothing is left.
    fn drain(&mut self, now: Ns, intake: &mut Intake<Self>) -> bool;
    /// From now on bare acknowledgements that come out of the cluster are not
    /// forwarded, only copied, until [`HalrHost::release`], and for `at_most_ns` if
    /// that does not come. Whether it is so.
    fn hold(&mut self, at_most_ns: Ns) -> bool;
    /// Packets that passed and were not copied, for want of room, so far.
    fn lost(&mut self) -> u64 {
        0
    }
    /// They are forwarded again. What was copied before is still to be drained.
    fn release(&mut self);
    /// Sends on what was held.
    fn forward(&mut self, held: Self::Held);
    /// Sends a packet again.
    fn resend(&mut self, shelf: &Self::Shelf, resend: &Resend<<Self::Shelf as Shelf>::Packet>);
}

/// What becomes of the copies.
pub struct Intake<H: HalrHost + ?Sized> {
    /// Every packet is shown to it.
    pub cache: Recovery<H::Key, H::Shelf>,
    /// In their order.
    held: Vec<H::Held>,
    held_count: u64,
}

impl<H: HalrHost + ?Sized> Intake<H> {
    /// An acknowledgement that the data path did not forward.
    pub fn hold(&mut self, held: H::Held) {
        self.held.push(held);
        self.held_count += 1;
    }

    /// Whether those that are held have to go on before another one is taken.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.held.len() >= HELD_MAX
    }
}

/// See the module.
///
/// # Contract
/// * [`Halr::handle_start`] comes first.
/// * [`Halr::handle_suspected`] when packets may be lost, [`Halr::handle_trusted`]
///   when they may not, as often as it is known; [`Halr::handle_restored`] when there
///   is a way again.
/// * [`Halr::handle_copies`] when the host has copied much, [`Halr::look`] before
///   something after which it matters what came before; and
///   [`Halr::handle_timeout`] when [`Halr::poll_timeout`] says.
pub struct Halr<H: HalrHost + ?Sized> {
    config: HalrConfig,
    intake: Intake<H>,
    /// While packets are kept: the last look for what was copied.
    looked: Option<Ns>,
    /// Packets that were not copied, at that time.
    lost: u64,
    /// When what was cached began to go out again, while acknowledgements are held.
    holding: Option<Ns>,
}

impl<H: HalrHost + ?Sized> Halr<H> {
    /// A machine with an empty cache.
    #[must_use]
    pub fn new(config: HalrConfig, shelf: H::Shelf) -> Self {
        let cache = Recovery::new(config.cache, shelf);
        let intake = Intake { cache, held: Vec::new(), held_count: 0 };
        Self { config, intake, looked: None, lost: 0, holding: None }
    }

    /// Forgets what an earlier life has left in the host, and caches from now on if
    /// it is to do so always.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn handle_start(&mut self, now: Ns, host: &mut H) -> Result<(), H::Error> {
        host.set_copying(false)?;
        if self.config.always { self.begin(now, host) } else { Ok(()) }
    }

    /// Packets that pass may be lost; `true` if they are kept from now on.
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

    /// Nothing is lost any more. Everything is forgotten, unless it is to be kept
    /// always or until all is resent; `true` if nothing is kept from now on.
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

    /// Takes a share of what was copied. What is left waits for the next call.
    pub fn handle_copies(&mut self, now: Ns, host: &mut H) {
        self.take_share(now, host);
    }

    /// As [`Halr::handle_copies`], if there may be anything.
    pub fn look(&mut self, now: Ns, host: &mut H) {
        if self.is_active() {
            self.take_share(now, host);
        }
    }

    /// Whether nothing is left.
    fn take_share(&mut self, now: Ns, host: &mut H) -> bool {
        if let Some(looked) = &mut self.looked {
            *looked = now;
        }
        let is_all = host.drain(now, &mut self.intake);
        let lost = host.lost();
        if std::mem::replace(&mut self.lost, lost) != lost && self.config.forgets_at_loss {
            // What was not seen may have answered any of them.
            self.intake.cache.clear();
        }
        // Of another processor's program, which had begun before they were let go.
        if self.holding.is_none() || self.intake.is_full() {
            self.let_go(host);
        }
        is_all
    }

    /// The service is back for the flows of which a packet is kept since when, as
    /// `lost_since` knows, such packets may have been lost. What is kept of them goes
    /// out again with [`Halr::handle_timeout`], of which the first call is made here.
    /// Returns how many flows that are.
    pub fn handle_restored(
        &mut self,
        now: Ns,
        lost_since: impl Fn(&<H::Shelf as Shelf>::Packet) -> Option<Ns>,
        host: &mut H,
    ) -> usize {
        // What came before the service was back is among what it lacks.
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

    /// When those that are held go on: while packets are being resent, not too soon.
    fn held_until(&self) -> Option<Ns> {
        let HalrConfig { hold_ns, hold_max_ns, .. } = self.config;
        let longest = if self.intake.cache.is_kicking() { hold_max_ns } else { hold_ns };
        self.holding.map(|since| since + longest)
    }

    /// What was held goes on, and nothing is held any more.
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

    /// Does what is due; returns how many packets were resent.
    pub fn handle_timeout(&mut self, now: Ns, host: &mut H) -> usize {
        // What came since may have been acknowledged, and need not be sent again.
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

    /// What is kept.
    #[must_use]
    pub fn cache(&self) -> &Recovery<H::Key, H::Shelf> {
        &self.intake.cache
    }

    /// The flow has ended, as its host knows.
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
