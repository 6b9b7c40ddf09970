//! Strings: parallel chains of middleboxes between a pair of edges (thesis
//! §2.1). This machine decides at one edge which of them may be used and which
//! part of the flows belongs to which, from what the edge hears through each
//! string and from what the other edge says it does not hear.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

/// Most strings of one group.
pub const STRINGS_MAX: usize = 8;
/// Number of parts into which flows are hashed.
pub const SLOTS: usize = 256;
/// Heartbeats in a row after which a string that was declared dead is used again;
/// more than one, so that a flapping string stays out.
pub const RETURN_BEATS: u32 = 5;
/// Heartbeats that come through another string, since its own last one, and make a
/// silent string dead. A peer that dies while it sends leaves one string a single
/// heartbeat ahead of the next.
pub const AHEAD_BEATS: u32 = 2;

/// How strings share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The first string that is alive does all of it.
    ActiveBackup,
    /// All strings share it, in proportion to their capacities.
    ActiveActive,
}

/// The strings of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StringsConfig {
    pub mode: Mode,
    /// Capacity of each string, in the order of preference; at most
    /// [`STRINGS_MAX`].
    pub capacities_bytes_per_s: Vec<u64>,
}

/// Where flows go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Mask of strings that may be used: bit `i` is string `i`.
    pub usable: u32,
    /// The string of each part of the flows.
    pub slots: [u8; SLOTS],
}

/// Something that has to be done, or is worth telling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StringsEvent {
    /// Two heartbeats are missing on a string: what passes may be lost.
    Suspected(usize),
    /// A suspected string is heard again; nothing was done about it.
    Trusted(usize),
    /// A string is out, because it is silent here or, `by_peer`, at the other edge.
    Declared { string: usize, by_peer: bool },
    /// A string may be used again.
    Returned(usize),
    /// Nothing is heard on any string. The other edge's daemon may be dead, so
    /// the table stays as it is.
    AllSilent,
    /// The silence of this string is to be judged anew, from now on: it was
    /// nobody's fault.
    Renew(usize),
    /// The new table, to be put in force.
    Table(Box<Table>),
    /// Packets sent into these strings (a mask) may be lost, and there is a way
    /// again for what is sent now.
    Restored { strings: u32 },
    /// Capacity of the strings in use; undisturbed they carry
    /// `full_bytes_per_s`.
    Capacity { bytes_per_s: u64, full_bytes_per_s: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hearing {
    Heard,
    Suspected,
    /// Was silent, then heard for this many heartbeats.
    Silent(u32),
    /// Was silent, as all were, until another string was heard again: it is
    /// judged anew.
    Hoped,
}

/// The machine of one edge's strings; see the module.
///
/// Contract: tell it every verdict of a detector per string and every fresh
/// heartbeat; after each call drain [`Strings::poll_event`] until it answers
/// `None`, and do what it says in that order.
#[derive(Debug)]
pub struct Strings {
    config: StringsConfig,
    hearing: Vec<Hearing>,
    /// Heartbeats through one string since the last through the other:
    /// `[other][one]`.
    ahead: [[u32; STRINGS_MAX]; STRINGS_MAX],
    /// Mask of strings declared dead here.
    lost: u32,
    /// Mask of strings declared dead at the other edge.
    peer_lost: u32,
    /// Mask of strings that the table in force uses.
    usable: u32,
    all_silent: bool,
    /// Mask of strings whose packets may be lost and have no way yet.
    owed: u32,
    capacity: u64,
    events: VecDeque<StringsEvent>,
}

impl Strings {
    /// A machine that takes every string in `usable` for alive; an earlier life
    /// has declared the others dead.
    #[must_use]
    pub fn new(config: StringsConfig, usable: u32) -> Self {
        let count = config.capacities_bytes_per_s.len().min(STRINGS_MAX);
        let lost = all(count) & !usable;
        let hearing = (0..count).map(|string| {
            if lost >> string & 1 == 0 { Hearing::Heard } else { Hearing::Silent(0) }
        });
        let mut strings = Self {
            hearing: hearing.collect(),
            ahead: [[AHEAD_BEATS; STRINGS_MAX]; STRINGS_MAX],
            config,
            lost,
            peer_lost: 0,
            usable: all(count) & !lost,
            all_silent: false,
            owed: 0,
            capacity: 0,
            events: VecDeque::new(),
        };
        strings.capacity = strings.full();
        strings.events.push_back(StringsEvent::Table(Box::new(strings.table())));
        strings.note_capacity();
        strings
    }

    /// Two heartbeats are missing.
    pub fn handle_suspected(&mut self, string: usize) {
        if self.hearing[string] == Hearing::Heard {
            self.hearing[string] = Hearing::Suspected;
            self.events.push_back(StringsEvent::Suspected(string));
        }
    }

    /// Three heartbeats are missing.
    pub fn handle_silent(&mut self, string: usize) {
        self.hearing[string] = Hearing::Silent(0);
        self.judge();
        let silent = |hearing: &Hearing| matches!(hearing, Hearing::Silent(_));
        if !self.all_silent && self.hearing.iter().all(silent) {
            self.all_silent = true;
            self.events.push_back(StringsEvent::AllSilent);
        }
    }

    /// Notes that packets of flows came through `string`: its heartbeats may be
    /// missing, but it is not behind the others.
    pub fn handle_traffic(&mut self, string: usize) {
        self.ahead[string] = [0; STRINGS_MAX];
    }

    /// Takes a fresh heartbeat that came through `string`. It says which
    /// strings the other edge has declared dead; `missed` says that earlier
    /// ones never came.
    pub fn handle_beat(&mut self, string: usize, peer_lost: u32, missed: bool) {
        self.peer_lost = peer_lost & all(self.hearing.len());
        self.ahead.iter_mut().for_each(|row| row[string] = row[string].saturating_add(1));
        self.ahead[string] = [0; STRINGS_MAX];
        match self.hearing[string] {
            Hearing::Heard => {}
            Hearing::Suspected => {
                self.hearing[string] = Hearing::Heard;
                self.events.push_back(StringsEvent::Trusted(string));
                // An outage too short to be declared has swallowed packets, too.
                if missed {
                    self.owed |= 1 << string;
                }
            }
            Hearing::Hoped => self.hearing[string] = Hearing::Heard,
            Hearing::Silent(beats) if self.is_lost(string) && beats + 1 < RETURN_BEATS => {
                self.hearing[string] = Hearing::Silent(beats + 1);
            }
            Hearing::Silent(_) => {
                self.hearing[string] = Hearing::Heard;
                self.lost &= !(1 << string);
            }
        }
        // A string that was declared dead and is not used yet ends no silence.
        if self.all_silent && !self.is_lost(string) {
            self.end_silence();
        }
        self.judge();
        self.restore();
    }

    /// After the first heartbeat that ends a silence on all strings, the others
    /// follow; those that do not are judged from now on.
    fn end_silence(&mut self) {
        self.all_silent = false;
        self.owed = all(self.hearing.len());
        for string in 0..self.hearing.len() {
            if self.hearing[string] == Hearing::Silent(0) && !self.is_lost(string) {
                self.hearing[string] = Hearing::Hoped;
                self.events.push_back(StringsEvent::Renew(string));
            }
        }
    }

    /// Reports lost packets for resending as soon as the strings that now carry
    /// their flows are heard again: what is resent too early is lost as well.
    fn restore(&mut self) {
        if self.owed == 0 {
            return;
        }
        let heir = self.heir();
        let has_way = |string: &usize| {
            let into = if self.usable >> string & 1 == 1 { Some(*string) } else { heir };
            into.is_some_and(|into| {
                matches!(self.hearing[into], Hearing::Heard | Hearing::Suspected)
            })
        };
        let ready = bits(self.owed).filter(has_way).fold(0, |mask, string| mask | 1 << string);
        self.owed &= !ready;
        match self.events.back_mut() {
            _ if ready == 0 => {}
            Some(StringsEvent::Restored { strings }) => *strings |= ready,
            _ => self.events.push_back(StringsEvent::Restored { strings: ready }),
        }
    }

    /// Judges the strings: one is dead if it is silent while another is heard;
    /// silence on all says nothing about any.
    fn judge(&mut self) {
        for (string, hearing) in self.hearing.iter().enumerate() {
            let is_heard = |(other, it): (usize, &Hearing)| {
                *it == Hearing::Heard && self.ahead[string][other] >= AHEAD_BEATS
            };
            if *hearing == Hearing::Silent(0) && self.hearing.iter().enumerate().any(is_heard) {
                self.lost |= 1 << string;
            }
        }
        let usable = all(self.hearing.len()) & !self.lost & !self.peer_lost;
        let (gone, back) = (self.usable & !usable, usable & !self.usable);
        if usable == self.usable {
            return;
        }
        for string in bits(gone) {
            let by_peer = !self.is_lost(string);
            self.events.push_back(StringsEvent::Declared { string, by_peer });
        }
        for string in bits(back) {
            self.events.push_back(StringsEvent::Returned(string));
        }
        let was_closed = self.usable == 0;
        self.usable = usable;
        self.events.push_back(StringsEvent::Table(Box::new(self.table())));
        if usable != 0 && (gone != 0 || was_closed) {
            self.owed |= if was_closed { all(self.hearing.len()) } else { gone };
            self.restore();
        }
        self.note_capacity();
    }

    fn note_capacity(&mut self) {
        let now = self.table_capacity(self.usable);
        if now != self.capacity {
            self.capacity = now;
            let full_bytes_per_s = self.full();
            self.events.push_back(StringsEvent::Capacity { bytes_per_s: now, full_bytes_per_s });
        }
    }

    /// The next thing to be done.
    pub fn poll_event(&mut self) -> Option<StringsEvent> {
        self.events.pop_front()
    }

    /// The strings declared dead here, to be reported to the other edge.
    #[must_use]
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// The strings that may be used.
    #[must_use]
    pub fn usable(&self) -> u32 {
        self.usable
    }

    /// Whether nothing is heard on any string.
    #[must_use]
    pub fn is_all_silent(&self) -> bool {
        self.all_silent
    }

    /// Whether packets that pass now may be lost: some string is not heard, and
    /// nothing is done about it yet, or no string is left.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        let doubtful = |(string, hearing): (usize, &Hearing)| {
            *hearing != Hearing::Heard && self.usable >> string & 1 == 1
        };
        self.usable == 0 || self.hearing.iter().enumerate().any(doubtful)
    }

    /// State of a string in a word.
    #[must_use]
    pub fn word(&self, string: usize) -> &'static str {
        match self.hearing[string] {
            _ if self.is_lost(string) => "dead",
            _ if self.peer_lost >> string & 1 == 1 => "unheard",
            Hearing::Heard => "alive",
            Hearing::Suspected => "suspected",
            Hearing::Silent(_) | Hearing::Hoped => "silent",
        }
    }

    /// The string in use that has the largest part of the flows; packets sent into
    /// strings no longer in use are resent there. `None`: no string is left.
    #[must_use]
    pub fn heir(&self) -> Option<usize> {
        let slots = self.table().slots;
        let part = |string: &usize| slots.iter().filter(|it| usize::from(**it) == *string).count();
        bits(self.usable).max_by_key(part)
    }

    /// The table for flows now.
    #[must_use]
    pub fn table(&self) -> Table {
        let weights = &self.config.capacities_bytes_per_s;
        let count = self.hearing.len();
        let slots = match self.config.mode {
            Mode::ActiveBackup => [self.usable.trailing_zeros() as u8; SLOTS],
            Mode::ActiveActive => share(&weights[..count], self.usable),
        };
        Table { usable: self.usable, slots }
    }

    fn is_lost(&self, string: usize) -> bool {
        self.lost >> string & 1 == 1
    }

    fn full(&self) -> u64 {
        self.table_capacity(all(self.hearing.len()))
    }

    fn table_capacity(&self, usable: u32) -> u64 {
        let mut in_use = bits(usable).map(|string| self.config.capacities_bytes_per_s[string]);
        match self.config.mode {
            Mode::ActiveBackup => in_use.next().unwrap_or(0),
            Mode::ActiveActive => in_use.fold(0, u64::saturating_add),
        }
    }
}

/// Assigns every part to a string, in proportion to the weights. A part whose
/// string is not usable goes to one that is, again in proportion; no other part
/// moves.
fn share(weights: &[u64], usable: u32) -> [u8; SLOTS] {
    let everything = all(weights.len());
    let mut first = Turns::new(weights, everything);
    let mut instead = Turns::new(weights, if usable == 0 { everything } else { usable });
    std::array::from_fn(|_| {
        let string = first.next();
        if usable >> string & 1 == 1 { string as u8 } else { instead.next() as u8 }
    })
}

/// Turns in proportion to weights, spread as evenly as can be.
struct Turns<'a> {
    weights: &'a [u64],
    among: u32,
    credit: [i128; STRINGS_MAX],
}

impl<'a> Turns<'a> {
    fn new(weights: &'a [u64], among: u32) -> Self {
        Self { weights, among, credit: [0; STRINGS_MAX] }
    }

    fn next(&mut self) -> usize {
        let mut total = 0;
        let mut best = self.among.trailing_zeros() as usize;
        for string in bits(self.among) {
            let weight = i128::from(self.weights[string]);
            total += weight;
            self.credit[string] += weight;
            if self.credit[string] > self.credit[best] {
                best = string;
            }
        }
        self.credit[best] -= total;
        best
    }
}

fn all(count: usize) -> u32 {
    (1 << count) - 1
}

fn bits(mask: u32) -> impl Iterator<Item = usize> {
    (0..STRINGS_MAX).filter(move |bit| mask >> bit & 1 == 1)
}
