//! An edge of a transit group: which strings are heard, which of them are used, and
//! what happens to packets and to flows' windows when that changes. The data path
//! lives in the kernel and goes on without it.
//!
//! [`Strings`] judges the strings; this file has its detectors, and the order in
//! which its verdicts are carried out.

pub mod beat;
mod lines;
mod other;

pub use lines::Fresh;

use crate::shown::{Protection, Shown};
use crate::words::counted;
use holdfast_cluster::Nanos;
use holdfast_edge::strings::{Strings, StringsConfig, StringsEvent, Table};
use lines::Lines;
use other::{News, Other};

/// What the machine needs of its host: the kernel's table, sockets into each
/// string, and something that keeps packets and caps windows. Strings are named by
/// their index.
pub trait TransitHost {
    /// Reason why the kernel does not do what it was told.
    type Error;
    /// The time, which has advanced since the machine was called.
    fn now(&self) -> Nanos;
    /// Sends a heartbeat into every string. `lost`: the strings that are dead here.
    /// A heartbeat that cannot be sent is as good as lost.
    fn beat(&mut self, lost: u32);
    /// Packets of flows that have come through each string so far.
    fn traffic(&mut self) -> Vec<u64>;
    /// The table in force, even one from an earlier life.
    ///
    /// # Errors
    /// When it cannot be read.
    fn table(&mut self) -> Result<Option<Table>, Self::Error>;
    /// Puts a table in force: nothing goes to a string that is out, and its flows go
    /// elsewhere with their next packet. `is_closed` is kept for the daemon's next life.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_table(&mut self, epoch: u32, table: &Table, is_closed: bool) -> Result<(), Self::Error>;
    /// Marks the present moment, so that packets that have passed before it are told apart from
    /// later ones.
    fn mark(&mut self);
    /// Sets whether packets that pass may be lost, and are kept; otherwise what is
    /// not needed any more is forgotten. `true` if that changes anything.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn set_cache(&mut self, on: bool) -> Result<bool, Self::Error>;
    /// Resends into one string what was kept on its way into another; flows that
    /// have their own string among those in use keep it. Returns the number of
    /// flows.
    fn resend(&mut self, ways: &[Way], usable: u32) -> usize;
    /// Caps windows, because only these strings are left, with this capacity.
    /// Returns the number of flows if they are capped from now on.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn cap(&mut self, strings: &[usize], bytes_per_s: u64) -> Result<Option<usize>, Self::Error>;
    /// Ends the capping, because all the capacity is there; `true` if windows
    /// were capped until now.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn uncap(&mut self) -> Result<bool, Self::Error>;
    /// Notes an event that people want to know about: its kind, and a text.
    fn note(&mut self, what: &'static str, words: String);
}

/// Where to resend the packets that were kept on their way into a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The string that they were for; `None` if there was none.
    pub from: Option<usize>,
    /// The last moment at which packets are known to have got through it.
    pub sound: Nanos,
    /// The string that they go into now.
    pub into: usize,
}

/// Remedy for an edge with another key.
const SAME_KEY: &str =
    "copy key_file from one edge to the other; then start the daemon there again";

/// What the life of a daemon has left in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Number of the table.
    pub epoch: u32,
    /// Bit `i`: string `i` was in use. A string that was not has to be heard before it is used.
    pub usable: u32,
    /// An operator has closed the edge, and not opened it again.
    pub is_closed: bool,
}

impl Left {
    /// The state of a host that has just booted: every string counts as well.
    pub const NOTHING: Self = Self { epoch: 0, usable: u32::MAX, is_closed: false };
}

/// Configuration of an edge of strings.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The strings' names, by their index.
    pub names: Vec<String>,
    /// Name of the other edge.
    pub other: &'static str,
    pub strings: StringsConfig,
    /// Time between two heartbeats.
    pub period: Nanos,
}

/// The machine of a transit group's edge: it judges the strings by their heartbeats and moves flows
/// to those that work.
///
/// # Contract
/// * [`TransitMachine::handle_start`] comes first.
/// * Strings are judged in [`TransitMachine::handle_timeout`]: before it, hand over
///   whatever has come already.
/// * Call [`TransitMachine::handle_turned`] after it, and after whatever keeps
///   packets had its turn.
#[derive(Debug)]
pub struct TransitMachine {
    setup: Setup,
    strings: Strings,
    lines: Lines,
    other: Other,
    beat_at: Nanos,
    /// Number of the table.
    epoch: u32,
    /// Whether it is closed by hand, until it is opened by hand.
    closed: bool,
}

impl TransitMachine {
    /// `left` is what an earlier life has left.
    #[must_use]
    pub fn new(setup: Setup, left: Left, now: Nanos) -> Self {
        let lines = Lines::new(setup.names.len(), setup.period, now);
        let other = Other::new(setup.period);
        let strings = Strings::new(setup.strings.clone(), left.usable);
        let Left { epoch, is_closed: closed, .. } = left;
        Self { strings, lines, other, beat_at: now, epoch, closed, setup }
    }

    /// Puts the first table in force.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn handle_start<H: TransitHost>(&mut self, me: &str, host: &mut H) -> Result<(), H::Error> {
        host.note("started", format!("{me}, {}", self.in_use()));
        self.act(host)
    }

    /// A fresh heartbeat has come through a string.
    pub fn handle_beat(&mut self, string: usize, fresh: &Fresh, now: Nanos) {
        self.other.handle_beat();
        self.lines.handle_beat(string, fresh, now, &mut self.strings);
    }

    /// A heartbeat has come from the other edge's address that was made with another key.
    pub fn handle_foreign_beat(&mut self) {
        self.other.handle_foreign();
    }

    /// Judges which strings are silent, carries that out, and sends heartbeats, each
    /// when it is time.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn handle_timeout<H: TransitHost>(
        &mut self,
        now: Nanos,
        host: &mut H,
    ) -> Result<(), H::Error> {
        // Once per heartbeat, because each detector is due at least that often.
        if self.lines.next_deadline().is_some_and(|due| due <= now) {
            self.lines.count(now, &host.traffic(), &mut self.strings);
        }
        self.lines.judge(now, &mut self.strings);
        self.act(host)?;
        if self.beat_at <= now {
            self.beat_at = now.plus(self.setup.period);
            host.mark();
            host.beat(self.strings.lost());
            self.other.handle_sent();
        }
        self.tell_of_other(host);
        Ok(())
    }

    fn tell_of_other(&mut self, host: &mut impl TransitHost) {
        let other = self.setup.other;
        while let Some(news) = self.other.poll_news(self.strings.is_all_silent()) {
            match news {
                News::Silent => host.note(
                    "silent",
                    format!("nothing from the {other} edge; its daemon may be dead"),
                ),
                News::Foreign => host.note("refused", foreign(other)),
                News::Heard => host.note("trust", format!("{other} edge: heard again")),
            }
        }
    }

    /// Keeps packets while they may be lost.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn handle_turned<H: TransitHost>(&mut self, host: &mut H) -> Result<(), H::Error> {
        let is_in_doubt = self.strings.is_in_doubt();
        if host.set_cache(is_in_doubt)? {
            let words = if is_in_doubt {
                "packets may be lost: they are kept"
            } else {
                "all is well: nothing is kept any more"
            };
            host.note("cache", words.to_owned());
        }
        Ok(())
    }

    /// When [`TransitMachine::handle_timeout`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        self.lines.next_deadline().map_or(self.beat_at, |at| at.min(self.beat_at))
    }

    /// Closes or opens the edge, whatever is heard; returns the number of the
    /// table.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn handle_hand<H: TransitHost>(
        &mut self,
        close: bool,
        host: &mut H,
    ) -> Result<u32, H::Error> {
        self.closed = close;
        self.set_table(&self.strings.table(), host)?;
        host.note(if close { "fenced" } else { "unfenced" }, "by hand".to_owned());
        if !close {
            self.resend(u32::MAX, host);
        }
        Ok(self.epoch)
    }

    fn act<H: TransitHost>(&mut self, host: &mut H) -> Result<(), H::Error> {
        while let Some(event) = self.strings.poll_event() {
            self.do_one(event, host)?;
        }
        Ok(())
    }

    fn do_one<H: TransitHost>(
        &mut self,
        event: StringsEvent,
        host: &mut H,
    ) -> Result<(), H::Error> {
        match event {
            StringsEvent::Table(table) => return self.put_in_force(&table, host),
            StringsEvent::Restored { strings } => self.resend(strings, host),
            StringsEvent::Capacity { bytes_per_s, full_bytes_per_s } => {
                return self.regulate(bytes_per_s, full_bytes_per_s, host);
            }
            StringsEvent::Renew(string) => self.lines.renew(string, host.now()),
            StringsEvent::Suspected(string) => {
                let words = format!("{}: two heartbeats are missing", self.name(string));
                host.note("suspect", words);
            }
            StringsEvent::Trusted(string) => {
                host.note("trust", format!("{}: heard again", self.name(string)));
            }
            StringsEvent::Declared { string, by_peer } => {
                let why = if by_peer {
                    format!("the {} edge does not hear it", self.setup.other)
                } else {
                    "three heartbeats are missing".to_owned()
                };
                host.note("declare", format!("{}: {why}", self.name(string)));
            }
            StringsEvent::Returned(string) => host.note("return", self.name(string).to_owned()),
            // Told with what else is known of the other edge.
            StringsEvent::AllSilent => {}
        }
        Ok(())
    }

    fn put_in_force<H: TransitHost>(
        &mut self,
        table: &Table,
        host: &mut H,
    ) -> Result<(), H::Error> {
        let before = host.table()?;
        if before.as_ref() == Some(table) {
            return Ok(());
        }
        self.set_table(table, host)?;
        let gone = before.map_or(0, |before| before.usable & !table.usable);
        if gone != 0 {
            let words = format!("table {}: {} is out", self.epoch, self.names(gone));
            host.note("fence", words);
        }
        host.note("switch", format!("table {}: {}", self.epoch, self.in_use()));
        Ok(())
    }

    fn set_table<H: TransitHost>(&mut self, table: &Table, host: &mut H) -> Result<(), H::Error> {
        self.epoch = self.epoch.wrapping_add(1);
        let usable = if self.closed { 0 } else { table.usable };
        host.set_table(self.epoch, &Table { usable, slots: table.slots }, self.closed)
    }

    /// Resends what was kept on its way into these strings into one that is in use:
    /// the string itself, if it is, or else the heir of those that are not.
    fn resend<H: TransitHost>(&mut self, strings: u32, host: &mut H) {
        // Nothing leaves a closed edge; everything is resent when it is opened.
        if self.closed {
            return;
        }
        let Some(heir) = self.strings.heir() else { return };
        let usable = self.strings.usable();
        let lost = (0..self.setup.names.len()).filter(|string| strings >> string & 1 == 1);
        let way = |string: usize| Way {
            from: Some(string),
            sound: self.lines.sound(string),
            into: if usable >> string & 1 == 1 { string } else { heir },
        };
        // While no string was left, packets were for none.
        let none = Way { from: None, sound: Nanos(0), into: heir };
        let ways: Vec<Way> = lost.map(way).chain([none]).collect();
        let flows = host.resend(&ways, usable);
        if flows > 0 {
            host.note("resend", counted(flows as u64, "flow"));
        }
    }

    /// Caps windows if less than all the capacity is left, or uncaps them if
    /// all is back.
    fn regulate<H: TransitHost>(
        &mut self,
        bytes_per_s: u64,
        full_bytes_per_s: u64,
        host: &mut H,
    ) -> Result<(), H::Error> {
        let [now, full] = [bytes_per_s, full_bytes_per_s].map(|bytes| bytes * 8 / 1_000_000);
        host.note("capacity", format!("{now} of {full} Mbit/s"));
        if bytes_per_s == 0 || bytes_per_s >= full_bytes_per_s {
            if host.uncap()? {
                host.note("regulate", "off: all the capacity is there".to_owned());
            }
            return Ok(());
        }
        let usable = self.strings.usable();
        let strings: Vec<usize> =
            (0..self.setup.names.len()).filter(|string| usable >> string & 1 == 1).collect();
        if let Some(flows) = host.cap(&strings, bytes_per_s)? {
            let share =
                if flows == 1 { "1 flow has".to_owned() } else { format!("{flows} flows share") };
            host.note("regulate", format!("{share} {now} Mbit/s"));
        }
        Ok(())
    }

    /// How long packets wait in front of a string, there or back, since the last
    /// call.
    fn queue_delay(&mut self, string: usize) -> Option<Nanos> {
        self.lines.queue_delay(string)
    }

    /// Bytes that wait in front of these strings, as far as heartbeats have told since
    /// the last call.
    pub fn queue_bytes(&mut self, strings: &[usize]) -> Option<f64> {
        let mut waiting = |string: usize| {
            let bytes_per_s = *self.setup.strings.capacities_bytes_per_s.get(string)? as f64;
            let delay = self.queue_delay(string)?;
            Some(delay.0 as f64 / 1e9 * bytes_per_s)
        };
        strings.iter().map(|string| waiting(*string)).sum()
    }

    /// The state that it shows.
    #[must_use]
    pub fn shown(&self) -> Shown {
        if self.closed {
            return Shown::new(
                Protection::Fenced,
                "the edge was closed by hand",
                "holdfast edge unfence --config FILE --role ROLE",
            );
        }
        let other = self.setup.other;
        if self.other.is_foreign() {
            let reason = format!("{}; flows stay where they are", foreign(other));
            return Shown::new(Protection::Waiting, &reason, SAME_KEY);
        }
        if self.strings.is_all_silent() || self.other.is_unheard() {
            return Shown::new(
                Protection::Waiting,
                &format!("nothing is heard from the {other} edge; flows stay where they are"),
                &format!("start holdfast on the {other} edge, or look at the strings"),
            );
        }
        let usable = self.strings.usable();
        match usable.count_ones() {
            0 => Shown::new(Protection::Waiting, "no string is left", "look at the strings"),
            1 => Shown::new(
                Protection::Unprotected,
                &format!("only one string is left; dead: {}", self.names(!usable)),
                "repair the dead strings",
            ),
            _ => Shown::protected(),
        }
    }

    /// The judge of the strings.
    #[must_use]
    pub fn strings(&self) -> &Strings {
        &self.strings
    }

    /// Number of the table in force.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether it was closed by hand.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// A string's name.
    #[must_use]
    pub fn name(&self, string: usize) -> &str {
        self.setup.names.get(string).map_or("?", String::as_str)
    }

    fn names(&self, mask: u32) -> String {
        let of_mask = (0..self.setup.names.len()).filter(|index| mask >> index & 1 == 1);
        of_mask.map(|index| self.name(index)).collect::<Vec<_>>().join(", ")
    }

    /// Names of the strings that new flows go to, for people.
    fn in_use(&self) -> String {
        let Table { usable, slots } = self.strings.table();
        if usable == 0 {
            return "no string is left".to_owned();
        }
        let used = slots.iter().fold(0, |mask, slot| mask | 1 << slot);
        format!("flows go by {}", self.names(used))
    }
}

/// Why the other edge's heartbeats are not believed.
fn foreign(other: &str) -> String {
    format!("heartbeats of the {other} edge are not believed: its key differs")
}

#[cfg(test)]
mod tests;
