//! The third party of a pair without an edge: one record that says who owns the service,
//! changed by compare-and-swap and by nothing else.
//!
//! It is asked once per takeover, may be slow, and may be away while nothing else fails: it
//! holds no lease. Corosync's qnetd and the test-and-set of VMware FT have the same place.
//! [`witness::Witness`] is an arbiter of our own, [`client::Client`] asks any of them, and
//! [`Arbiter`] is what a way of asking (a witness, etcd, a row in a database) has to offer. Where
//! there is no third party, the members keep the record themselves: [`own::Own`].

pub mod client;
pub mod datagram;
pub mod own;
pub mod stored;
pub mod witness;

/// One life of a member. Another life of the same name has none of the first one's
/// connections, and may be a copy of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub name: String,
    /// Drawn at random when the member starts; not 0.
    pub life: u64,
}

/// What the owner's right to speak depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// On the other member's grants.
    Pair,
    /// On the record alone.
    Solo,
}

/// The record. Who begins an epoch is alone; once a backup is in step the same epoch is a pair's. So
/// no two records of a group have the same epoch and mode, and each change makes the rank greater.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub epoch: u64,
    pub owner: Owner,
    pub mode: Mode,
}

impl Record {
    /// Its place among all records of the group.
    #[must_use]
    pub fn rank(&self) -> (u64, bool) {
        (self.epoch, self.mode == Mode::Pair)
    }

    /// Whether its owner may ask for it after `before`: a member begins an epoch alone, and only who
    /// runs alone, and has made the lease with the other one before, becomes a pair.
    #[must_use]
    pub fn may_follow(&self, before: Option<&Self>) -> bool {
        match self.mode {
            Mode::Solo => rank_of(before).0.checked_add(1) == Some(self.epoch),
            Mode::Pair => before.is_some_and(|it| *it == Self { mode: Mode::Solo, ..self.clone() }),
        }
    }

    /// Whether both cannot be of one group: an epoch has one owner, whatever its mode.
    #[must_use]
    pub fn contradicts(&self, other: &Self) -> bool {
        self.epoch == other.epoch && self.owner != other.owner
    }
}

/// Rank of a record that may be missing: nothing comes before it.
#[must_use]
pub fn rank_of(record: Option<&Record>) -> (u64, bool) {
    record.map_or((0, false), Record::rank)
}

/// Who asks, and what it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    pub group: String,
    pub from: Owner,
    /// Name of the group's other member.
    pub peer: String,
    /// Latest lineage of the arbiter that has answered; 0 before any has.
    pub lineage: u64,
    /// The newest record that the asker has seen; `None` if it has seen none.
    pub known: Option<Record>,
    /// The ticket of the arbiter's last answer; 0 if that proves nothing any more.
    pub ticket: u64,
}

impl Asker {
    /// Epoch of the newest record that the asker has seen; 0 if it has seen none.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.known.as_ref().map_or(0, |record| record.epoch)
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Read,
    /// Makes the record `next`, if it is `expected`.
    Swap {
        expected: Option<Record>,
        next: Record,
    },
}

/// What the arbiter says to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Tells arbiters apart, and one from itself before it may have forgotten something: a
    /// witness has a later one after each boot of its host. An arbiter that cannot forget
    /// always says the same, which is not 0.
    pub lineage: u64,
    /// Proves for a while, in the next question of the same life, that the asker has had this
    /// reply; 0 proves nothing.
    pub ticket: u64,
    /// The record after the request, whether that changed it or not; `None` if there is none.
    pub outcome: Result<Option<Record>, Refusal>,
}

/// Why an arbiter does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("a name is not one: use up to 64 of a-z, A-Z, 0-9, `-`, `_`, `.`, not twice")]
    Name,
    #[error("the witness serves as many groups as it may")]
    TooManyGroups,
    #[error("the group has other members")]
    Stranger,
    #[error(
        "this is not the witness that was asked before: its host was started again, or it is another"
    )]
    OtherLineage,
    #[error(
        "the witness is new to this group, or its host was started again and its disk may be an old one: it waits until both members have said what they know"
    )]
    Settling,
    #[error(
        "the witness's disk is older than what a member knows; it waits until both members have said what they know"
    )]
    Behind,
    #[error(
        "two records of one epoch: somebody answers in the witness's name, or a member was copied; look at both members before anything is changed by hand"
    )]
    Conflict,
    #[error("another change is being written")]
    Busy,
    #[error("the record could not be written")]
    NotWritten,
    #[error("the owner runs alone: nobody else may speak before it says so")]
    Barred,
    #[error(
        "an earlier life of the member was heard a moment ago: it runs, or the member was copied"
    )]
    OwnerLives,
    #[error("the record cannot be changed in this way")]
    Change,
    #[error("the member has not shown that it hears the witness now; it is to ask again")]
    Unproven,
    #[error(
        "the other member is silent, which does not prove that its host is off, and nobody else is there to ask"
    )]
    NotOff,
    #[error(
        "the other member is not heard, and may hold the connections or know of a server that runs"
    )]
    Unheard,
    #[error("the other member is silent, and it is being proved that it stays so")]
    Proving,
    #[error("the other member is silent, and it could not be proved that it stays so")]
    NoProof,
}

impl Refusal {
    /// Whether the same request may be granted later.
    #[must_use]
    pub fn may_pass(self) -> bool {
        match self {
            Self::OtherLineage
            | Self::Settling
            | Self::Behind
            | Self::Conflict
            | Self::Busy
            | Self::NotWritten
            | Self::TooManyGroups
            | Self::OwnerLives
            | Self::Unproven
            | Self::NotOff
            | Self::Unheard
            | Self::Proving
            | Self::NoProof => true,
            Self::Name | Self::Stranger | Self::Barred | Self::Change => false,
        }
    }
}

/// One request on its way: the answer comes back with the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which of the arbiter's addresses is asked.
    pub endpoint: usize,
    pub number: u64,
}

/// A way to ask an arbiter. Both begin a request and return at once.
///
/// Who can send and hears nothing would win a record and never know, and so bar the other one
/// for ever. So a change is only made for an asker who hears the arbiter now: its ticket says
/// that it has had an answer a moment ago, and [`Refusal::Unproven`] brings it another ticket.
/// Where an arbiter knows no tickets, its way of asking has to make and check them.
pub trait Arbiter {
    /// Asks for the record.
    fn read(&mut self, call: Call, asker: &Asker);
    /// Asks to make the record `next`, if it is `expected`.
    fn compare_and_swap(
        &mut self,
        call: Call,
        asker: &Asker,
        expected: Option<&Record>,
        next: &Record,
    );
}
