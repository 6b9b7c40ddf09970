//! What the members of a pair without an edge send each other in frames of their own, about the
//! segment that they share: who holds the service's hardware address, and whether frames to it
//! arrive. Whoever carries them adds a tag.

/// How clients' frames reach both members (`[segment] mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// They go to an address that the switch has never seen, and so to every port.
    #[default]
    Flood,
    /// They go to the backup, which hands them on to the primary.
    Chain,
    /// They go to the primary, which copies them to the backup.
    Clone,
}

impl Mode {
    /// All of them, in the order in which they are to be tried.
    pub const ALL: [Self; 3] = [Self::Flood, Self::Chain, Self::Clone];

    /// As the file says it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Flood => "flood",
            Self::Chain => "chain",
            Self::Clone => "clone",
        }
    }
}

/// Size of a frame's content in bytes, without its tag.
pub const BYTES: usize = 26;
const MAGIC: [u8; 8] = *b"hfastseg";
/// Version of the content, behind the flags.
const FORMAT: u8 = 0;
const HOLDS: u8 = 1;
const OFFERS: u8 = 2;
const SEES: u8 = 4;
const ABLE: u8 = 8;

/// What a member says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Says {
    /// It has the switch send frames for the service to its port.
    pub holds: bool,
    /// The other one shall do so, and hand them on.
    pub offers: bool,
    /// What the other one sends to the service's hardware address arrives.
    pub sees: bool,
    /// It could hand frames on.
    pub able: bool,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To everybody, with what its sender says.
    Hello(Says),
    /// To the service's hardware address, to be seen where clients' frames go.
    Probe,
    /// To everybody, from the service's hardware address: switches learn from it.
    Announcement,
}

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    /// Which member of the file has sent it.
    pub side: u8,
    /// The address of its interface.
    pub mac: [u8; 6],
    pub number: u64,
}

impl Frame {
    /// The content as bytes.
    #[must_use]
    pub fn build(&self) -> [u8; BYTES] {
        let (kind, flags) = match self.kind {
            Kind::Hello(says) => (
                0,
                [(says.holds, HOLDS), (says.offers, OFFERS), (says.sees, SEES), (says.able, ABLE)]
                    .iter()
                    .filter(|(yes, _)| *yes)
                    .fold(0, |all, (_, flag)| all | flag),
            ),
            Kind::Probe => (1, 0),
            Kind::Announcement => (2, 0),
        };
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&[kind, self.side, flags, FORMAT]);
        bytes[12..18].copy_from_slice(&self.mac);
        bytes[18..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// The content of these bytes; `None` if they are none, or of a later release.
    #[must_use]
    pub fn parse(bytes: &[u8; BYTES]) -> Option<Self> {
        if !is_one(bytes) || bytes[11] != FORMAT {
            return None;
        }
        let [kind, side, flags] = [bytes[8], bytes[9], bytes[10]];
        let has = |flag| flags & flag != 0;
        let says =
            Says { holds: has(HOLDS), offers: has(OFFERS), sees: has(SEES), able: has(ABLE) };
        let kind = match kind {
            0 => Kind::Hello(says),
            1 => Kind::Probe,
            2 => Kind::Announcement,
            _ => return None,
        };
        let mac = *bytes[12..].first_chunk()?;
        Some(Self { kind, side, mac, number: u64::from_le_bytes(*bytes[18..].first_chunk()?) })
    }
}

/// Whether that is the payload of such a frame, whoever has sent it.
#[must_use]
pub fn is_one(payload: &[u8]) -> bool {
    payload.starts_with(&MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_arrives() {
        let mut kinds = vec![Kind::Probe, Kind::Announcement];
        kinds.extend((0..16).map(|bits| {
            let has = |bit: u8| bits & bit != 0;
            Kind::Hello(Says { holds: has(1), offers: has(2), sees: has(4), able: has(8) })
        }));
        for kind in kinds {
            let frame = Frame { kind, side: 1, mac: [2, 3, 4, 5, 6, 7], number: 1 << 40 };
            let mut bytes = frame.build();
            assert!(is_one(&bytes));
            assert_eq!(Frame::parse(&bytes), Some(frame));
            bytes[11] = 1;
            assert_eq!((Frame::parse(&bytes), is_one(&bytes)), (None, true), "another version");
            (bytes[11], bytes[8]) = (0, 9);
            assert_eq!(Frame::parse(&bytes), None, "a kind of a later release");
            bytes[0] ^= 1;
            assert_eq!((Frame::parse(&bytes), is_one(&bytes)), (None, false));
        }
    }

    #[test]
    fn every_mode_has_a_word_of_its_own() {
        assert_eq!(Mode::ALL.map(Mode::word), ["flood", "chain", "clone"]);
    }
}
