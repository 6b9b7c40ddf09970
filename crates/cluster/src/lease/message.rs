//! What members say to each other about the lease, as the plaintext of a datagram that the
//! group's key authenticates elsewhere. All kinds have the same fields and length.

/// Length of every message, in bytes.
pub const LEASE_BYTES: usize = 49;

/// Name and version of the format.
const MAGIC: [u8; 5] = *b"HFLS\x01";
const SOLO: u8 = 1;
const FOLLOWS: u8 = 2;

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
    /// Whether the sender is in step with its owner, as its backup.
    pub follows: bool,
}

impl Message {
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
        let flags = u8::from(self.solo) * SOLO + u8::from(self.follows) * FOLLOWS;
        bytes[5..9].copy_from_slice(&[self.from, self.to, kind, flags]);
        let Echo { session, number } = self.echo;
        let words = [self.session, self.number, session, number, self.epoch];
        for (place, word) in bytes[9..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Reads what `build` writes; `None` for anything else.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEASE_BYTES] = bytes.try_into().ok()?;
        let (from, to, kind, flags) = (bytes[5], bytes[6], bytes[7], bytes[8]);
        if bytes[..5] != MAGIC || flags & !(SOLO | FOLLOWS) != 0 {
            return None;
        }
        let kind = [Kind::Ask, Kind::Grant, Kind::Resign, Kind::Word].get(usize::from(kind))?;
        let mut words = [0; 5];
        for (word, place) in words.iter_mut().zip(bytes[9..].chunks_exact(8)) {
            *word = u64::from_be_bytes(place.try_into().ok()?);
        }
        let [session, number, echoed_session, echoed, epoch] = words;
        if session == 0 || number == 0 {
            return None;
        }
        let echo = Echo { session: echoed_session, number: echoed };
        let (solo, follows) = (flags & SOLO != 0, flags & FOLLOWS != 0);
        Some(Self { from, to, kind: *kind, session, number, echo, epoch, solo, follows })
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
        follows: false,
    };

    #[test]
    fn every_kind_is_read_as_it_is_written() {
        for kind in [Kind::Ask, Kind::Grant, Kind::Resign, Kind::Word] {
            for (solo, follows) in [(true, false), (false, true), (false, false), (true, true)] {
                let message = Message { kind, solo, follows, ..MESSAGE };
                assert_eq!(Message::parse(&message.build()), Some(message));
            }
        }
        let bytes = MESSAGE.build();
        assert_eq!(bytes[..9], *b"HFLS\x01\x01\x02\x01\x01");
        assert_eq!((bytes[16], bytes[24], bytes[32], bytes[40], bytes[48]), (3, 4, 5, 6, 7));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let changed = |at: usize, to: u8| {
            let mut bytes = MESSAGE.build();
            bytes[at] = to;
            Message::parse(&bytes)
        };
        assert_eq!(changed(4, 2), None, "another version");
        assert_eq!(changed(7, 4), None, "another kind");
        assert_eq!(changed(8, 4), None, "a flag of another release");
        assert_eq!((changed(16, 0), changed(24, 0)), (None, None), "no life, no number");
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
