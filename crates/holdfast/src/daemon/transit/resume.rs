//! What makes flows go on after an outage: the cache is filled while packets may
//! be lost, resent when there is a way again (HALR), and windows are capped
//! while capacity is missing (PFRC).

use super::TransitDaemon;
use crate::config::transit::{Side, TransitConfig};
use crate::daemon::recover::{Exit, Recoverer, Way};
use crate::daemon::regulate::Regulator;
use anyhow::{Context, Result};
use holdfast_linux::bpf::{NO_STRING, Transit};
use holdfast_linux::link::Link;
use holdfast_linux::raw::RawSender;
use std::rc::Rc;
use std::time::{Duration, Instant};

pub(super) fn components(
    config: &TransitConfig,
    bpf: &mut Transit,
) -> Result<(Recoverer, Regulator)> {
    let now = Instant::now();
    let copies = bpf.take_copies().context("the copies are taken")?;
    let regulated = bpf.take_regulated().context("the cap is taken")?;
    let recoverer = Recoverer::new(&config.recover, copies, now)?;
    Ok((recoverer, Regulator::new(&config.regulate, regulated, now)?))
}

/// A way out for each string, by the routes that lead into it.
pub(super) fn exits(config: &TransitConfig, side: Side) -> Result<Vec<Rc<Exit>>> {
    let exit = |string: &crate::config::transit::TransitString| {
        let interface = &string.end(side).interface;
        let ifindex = Link::by_name(interface)?.index;
        Ok(Rc::new(Exit::Routed { raw: RawSender::open_on(interface)?, ifindex }))
    };
    config.strings.iter().map(exit).collect()
}

impl TransitDaemon<'_> {
    /// The components' turn.
    pub(super) fn resume(&mut self, now: Instant, is_readable: bool) -> Result<()> {
        if is_readable {
            self.recoverer.on_readable(now);
        }
        self.recoverer.poll(now);
        self.poll_regulator(now)?;
        if self.machine.is_in_doubt() {
            if self.recoverer.start(now)? {
                self.events.add("cache", "packets may be lost: they are kept");
            }
        } else if self.recoverer.stop()? {
            self.events.add("cache", "all is well: nothing is kept any more");
        }
        Ok(())
    }

    fn poll_regulator(&mut self, now: Instant) -> Result<()> {
        let Self { regulator, lines, config, .. } = self;
        let waiting = |string: usize| {
            let bytes_per_s = config.strings[string].capacity as f64 / 8.0;
            lines.queue_delay(string).map(|delay| delay.as_secs_f64() * bytes_per_s)
        };
        Ok(regulator.poll(now, |strings| strings.iter().copied().map(waiting).sum())?)
    }

    /// What was cached on its way into these strings goes into one that is in use:
    /// its own, if it is, or the heir of those that are not.
    pub(super) fn resend(&mut self, strings: u32) {
        let Some(heir) = self.machine.heir() else { return };
        let usable = self.machine.usable();
        let in_use = |string: &usize| usable >> string & 1 == 1;
        let lost = (0..self.exits.len()).filter(|string| strings >> string & 1 == 1);
        let mut ways: Vec<Way> = lost
            .map(|string| {
                let exit = if in_use(&string) { string } else { heir };
                let sound = self.started + Duration::from_nanos(self.lines.sound(string).0);
                Way { way: string as u16, sound, exit: Rc::clone(&self.exits[exit]) }
            })
            .collect();
        // While no string was left, packets were for none.
        let exit = Rc::clone(&self.exits[heir]);
        ways.push(Way { way: NO_STRING, sound: self.started, exit });
        for string in (0..self.exits.len()).filter(in_use) {
            self.recoverer.has_way(string as u16, &self.exits[string]);
        }
        let flows = self.recoverer.restored(Instant::now(), &ways);
        if flows > 0 {
            self.events.add("resend", format!("{flows} flows"));
        }
    }

    /// Less than all the capacity is left, or all is back.
    pub(super) fn regulate(&mut self, bytes_per_s: u64, full_bytes_per_s: u64) -> Result<()> {
        let usable = self.machine.usable();
        let strings: Vec<usize> =
            (0..self.exits.len()).filter(|string| usable >> string & 1 == 1).collect();
        if bytes_per_s == 0 || bytes_per_s >= full_bytes_per_s {
            if self.regulator.stop()? {
                self.events.add("regulate", "off: all the capacity is there");
            }
            return Ok(());
        }
        let flows = self.flow_counts().iter().sum::<u64>() as usize;
        if self.regulator.start(Instant::now(), &strings, bytes_per_s, flows)? {
            let mbit = bytes_per_s * 8 / 1_000_000;
            self.events.add("regulate", format!("{flows} flows share {mbit} Mbit/s"));
        }
        Ok(())
    }
}
