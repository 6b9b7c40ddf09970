//! When windows are capped, and at what: the order of a failure, its intervals and
//! its repair.

use super::{Measurement, PfrcConfig, WindowControl};
use crate::Ns;

/// What the machine needs of its host: counts of what flows send, and a way to cap
/// what is advertised to them.
pub trait PfrcHost {
    /// Reason why the data path does not do what it was told.
    type Error;
    /// What has come for the remaining strings since the last call.
    fn measured(&mut self) -> Measurement;
    /// Begins a new interval in which no window is larger than this, except for
    /// earlier promises.
    ///
    /// # Errors
    /// When the data path refuses.
    fn set_window(&mut self, window_bytes: u32) -> Result<(), Self::Error>;
    /// Stops capping.
    ///
    /// # Errors
    /// When the data path refuses.
    fn uncap(&mut self) -> Result<(), Self::Error>;
}

/// The machine of PFRC; see the module.
///
/// Contract: [`Pfrc::handle_failure`] when capacity is lost,
/// [`Pfrc::handle_repair`] when all is back, and [`Pfrc::handle_timeout`] when
/// [`Pfrc::poll_timeout`] says.
#[derive(Clone, Debug)]
pub struct Pfrc {
    config: PfrcConfig,
    control: WindowControl,
}

impl Pfrc {
    /// A machine that caps nothing.
    #[must_use]
    pub fn new(config: PfrcConfig) -> Self {
        Self { config, control: WindowControl::new(config) }
    }

    /// Strings have failed: this much capacity is left for this many flows. If the
    /// controller is already on, it begins anew.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn handle_failure<H: PfrcHost>(
        &mut self,
        now: Ns,
        capacity_bytes_per_s: u64,
        flows: usize,
        host: &mut H,
    ) -> Result<(), H::Error> {
        self.config.capacity_bytes_per_s = capacity_bytes_per_s;
        self.control = WindowControl::new(self.config);
        self.control.start(now, flows);
        // Bytes that came before are not part of the first interval.
        let _before = host.measured();
        host.set_window(self.whole_bytes())
    }

    /// All capacity is back; `true` if windows were capped until now.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn handle_repair<H: PfrcHost>(&mut self, host: &mut H) -> Result<bool, H::Error> {
        let was_on = self.control.is_on();
        self.control.stop();
        if was_on {
            host.uncap()?;
        }
        Ok(was_on)
    }

    /// Ends the interval, if it is over.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn handle_timeout<H: PfrcHost>(&mut self, now: Ns, host: &mut H) -> Result<(), H::Error> {
        if self.control.poll_timeout().is_none_or(|ends| ends > now) {
            return Ok(());
        }
        self.control.handle_interval(now, host.measured());
        host.set_window(self.whole_bytes())
    }

    /// When the interval ends; `None` while it is off.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Ns> {
        self.control.poll_timeout()
    }

    /// Whether windows are capped.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.control.is_on()
    }

    /// The window that every flow may use; `None` while it is off.
    #[must_use]
    pub fn window_bytes(&self) -> Option<f64> {
        self.control.window_bytes()
    }

    fn whole_bytes(&self) -> u32 {
        self.control.window_bytes().map_or(0, |window| window as u32)
    }
}
