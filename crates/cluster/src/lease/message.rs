//! What members say to each other about the lease, as the plaintext of a datagram that the
//! group's key authenticates elsewhere. All kinds have the same fields and length.

use crate::arbiter::{Mode, Owner, Record};

/// Length of every message, in bytes.
pub const LEASE_BYTES: usize = 57;

/// Name and version of the format.
const MAGIC: [u8; 5] = *b"HFLS\x02";
const SOLO: u8 = 1;
const FOLLOWS: u8 = 2;
const OWNS: u8 = 4;
const YIELDS: u8 = 8;

/// What a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The owner asks for a grant.
    Ask,
    /// The backup grants the question that it echoes.
    Grant,
    /// The owner has fallen silent, and will not ask again in this epoch.
    Resign,
    /// Tells only what every message does.
    Word,
}

/// One datagram that was received, named to its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Echo {
    pub session: u64,
    pub number: u64,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Numbers of the members in the group.
    pub from: u8,
    pub to: u8,
    pub kind: Kind,
    /// Life of the sender: random, not 0.
    pub session: u64,
    /// Number in that life, from 1.
    pub number: u64,
    /// The last message of the receiver that the sender has had.
    pub echo: Echo,
    /// Epoch of the newest record that the sender has seen; 0 if it has seen none.
    pub epoch: u64,
    /// Whether that record is solo.
    pub solo: bool,
    /// Whether it is the sender's, by its name; else the receiver's.
    pub owns: bool,
    /// The life that owns it; 0 if the sender has seen none.
    pub life: u64,
    /// Whether the sender is in step with its owner, as its backup.
    pub follows: bool,
    /// Whether the sender will never take over in that epoch, which is the receiver's.
    pub yields: bool,
}

impl Message {
    /// A message that says nothing.
    pub const NOTHING: Self = Self {
        from: 0,
        to: 0,
        kind: Kind::Word,
        session: 0,
        number: 0,
        echo: Echo { session: 0, number: 0 },
        epoch: 0,
        solo: false,
        owns: false,
        life: 0,
        follows: false,
        yields: false,
    };

    /// The message's bytes.
    #[must_use]
    pub fn build(&self) -> [u8; LEASE_BYTES] {
        let mut bytes = [0; LEASE_BYTES];
        bytes[..5].copy_from_slice(&MAGIC);
        let kind = match self.kind {
            Kind::Ask => 0,
            Kind::Grant => 1,
            Kind::Resign => 2,
            Kind::Word => 3,
        };
        let flags = u8::from(self.solo) * SOLO
            + u8::from(self.follows) * FOLLOWS
            + u8::from(self.owns) * OWNS
            + u8::from(self.yields) * YIELDS;
        bytes[5..9].copy_from_slice(&[self.from, self.to, kind, flags]);
        let Echo { session, number } = self.echo;
        let words = [self.session, self.number, session, number, self.epoch, self.life];
        for (place, word) in bytes[9..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Tells which record the sender has seen last; `me` is the sender's name.
    pub fn tell(&mut self, record: Option<&Record>, me: &str) {
        self.epoch = record.map_or(0, |record| record.epoch);
        self.solo = record.is_some_and(|record| record.mode == Mode::Solo);
        self.owns = record.is_some_and(|record| record.owner.name == me);
        self.life = record.map_or(0, |record| record.owner.life);
    }

    /// The record that the sender has seen last; `sender` and `receiver` are their names.
    #[must_use]
    pub fn record(&self, sender: &str, receiver: &str) -> Option<Record> {
        let name = if self.owns { sender } else { receiver }.to_owned();
        let mode = if self.solo { Mode::Solo } else { Mode::Pair };
        let owner = Owner { name, life: self.life };
        (self.epoch != 0).then_some(Record { epoch: self.epoch, owner, mode })
    }

    /// Reads what `build` writes; `None` for anything else.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEASE_BYTES] = bytes.try_into().ok()?;
        let (from, to, kind, flags) = (bytes[5], bytes[6], bytes[7], bytes[8]);
        if bytes[..5] != MAGIC || flags & !(SOLO | FOLLOWS | OWNS | YIELDS) != 0 {
            return None;
        }
        let kind = [Kind::Ask, Kind::Grant, Kind::Resign, Kind::Word].get(usize::from(kind))?;
        let mut words = [0; 6];
        for (word, place) in words.iter_mut().zip(bytes[9..].chunks_exact(8)) {
            *word = u64::from_be_bytes(place.try_into().ok()?);
        }
        let [session, number, echoed_session, echoed, epoch, life] = words;
        let (solo, owns) = (flags & SOLO != 0, flags & OWNS != 0);
        let is_none = epoch == 0;
        if session == 0 || number == 0 || (life == 0) != is_none || is_none && (solo || owns) {
            return None;
        }
        let (follows, yields) = (flags & FOLLOWS != 0, flags & YIELDS != 0);
        let (kind, echo) = (*kind, Echo { session: echoed_session, number: echoed });
        let says = Self {
            from,
            to,
            kind,
            session,
            number,
            echo,
            epoch,
            solo,
            owns,
            life,
            ..Self::NOTHING
        };
        Some(Self { follows, yields, ..says })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MESSAGE: Message = Message {
        from: 1,
        to: 2,
        kind: Kind::Grant,
        session: 3,
        number: 4,
        echo: Echo { session: 5, number: 6 },
        epoch: 7,
        solo: true,
        owns: true,
        life: 8,
        ..Message::NOTHING
    };

    #[test]
    fn every_kind_is_read_as_it_is_written() {
        for kind in [Kind::Ask, Kind::Grant, Kind::Resign, Kind::Word] {
            for flags in 0..16 {
                let [solo, follows, owns, yields] = [1, 2, 4, 8].map(|bit| flags & bit != 0);
                let message = Message { kind, solo, follows, owns, yields, ..MESSAGE };
                assert_eq!(Message::parse(&message.build()), Some(message));
            }
            let knows_none =
                Message { kind, epoch: 0, solo: false, owns: false, life: 0, ..MESSAGE };
            assert_eq!(Message::parse(&knows_none.build()), Some(knows_none));
        }
        let bytes = MESSAGE.build();
        assert_eq!(bytes[..9], *b"HFLS\x02\x01\x02\x01\x05");
        assert_eq!([16, 24, 32, 40, 48, 56].map(|at| bytes[at]), [3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let changed = |at: usize, to: u8| {
            let mut bytes = MESSAGE.build();
            bytes[at] = to;
            Message::parse(&bytes)
        };
        assert_eq!(changed(4, 1), None, "another version");
        assert_eq!(changed(7, 4), None, "another kind");
        assert_eq!(changed(8, 16), None, "a flag of another release");
        assert_eq!((changed(16, 0), changed(24, 0)), (None, None), "no life, no number");
        assert_eq!((changed(48, 0), changed(56, 0)), (None, None), "a record is somebody's");
        assert!((0..LEASE_BYTES).all(|len| Message::parse(&MESSAGE.build()[..len]).is_none()));
        assert_eq!(Message::parse(&[MESSAGE.build().as_slice(), &[0]].concat()), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), LEASE_BYTES)) {
            let mut bytes = bytes;
            bytes[..5].copy_from_slice(&MAGIC);
            if let Some(message) = Message::parse(&bytes) {
                prop_assert_eq!(message.build().to_vec(), bytes);
            }
        }
    }
}
