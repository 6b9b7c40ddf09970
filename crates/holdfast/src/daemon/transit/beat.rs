//! Encodes heartbeats through strings as authenticated datagrams (`proven.rs`). The state
//! machine [`Beats`](holdfast_member::transit::beat::Beats) decides which of them are fresh.

use crate::daemon::proven::{DATAGRAM_BYTES, Datagram, Echo};
use holdfast_member::transit::beat::{self, Beat};

/// Name and version of the format.
const MAGIC: [u8; 5] = *b"HFSB\x02";

pub(super) fn encode(beat: &Beat, key: &[u8; 32]) -> [u8; DATAGRAM_BYTES] {
    let Beat { side, string, lost, session, number, echo, waited_us } = *beat;
    let echo = Echo { session: echo.session, number: echo.number };
    Datagram { head: [side, string, lost], session, number, echo, word: waited_us }
        .encode(MAGIC, key)
}

/// The heartbeat in `bytes`; `None` if it was not made with `key`, or is another kind of
/// datagram.
pub(super) fn decode(bytes: &[u8], key: &[u8; 32]) -> Option<Beat> {
    let Datagram { head, session, number, echo, word } = Datagram::decode(bytes, MAGIC, key)?;
    let [side, string, lost] = head;
    let echo = beat::Echo { session: echo.session, number: echo.number };
    Some(Beat { side, string, lost, session, number, echo, waited_us: word })
}

/// Whether `bytes` are in the form of a heartbeat, whatever key they were made with.
pub(super) fn has_form(bytes: &[u8]) -> bool {
    bytes.len() == DATAGRAM_BYTES && bytes.starts_with(&MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: [u8; 32] = [7; 32];
    const BEAT: Beat = Beat {
        side: 1,
        string: 2,
        lost: 3,
        session: 4,
        number: 5,
        echo: beat::Echo { session: 6, number: 7 },
        waited_us: 8,
    };

    #[test]
    fn a_heartbeat_is_read_as_it_is_written_and_with_no_other_key() {
        let bytes = encode(&BEAT, &KEY);
        assert_eq!(decode(&bytes, &KEY), Some(BEAT));
        assert_eq!(decode(&bytes, &[8; 32]), None);
        assert!(has_form(&bytes) && !has_form(&bytes[1..]) && !has_form(&[0; DATAGRAM_BYTES]));
        assert!((0..DATAGRAM_BYTES).all(|len| decode(&bytes[..len], &KEY).is_none()));
    }

    proptest! {
        #[test]
        fn no_bit_may_change(index in 0..DATAGRAM_BYTES * 8) {
            let mut bytes = encode(&BEAT, &KEY);
            bytes[index / 8] ^= 1 << (index % 8);
            prop_assert_eq!(decode(&bytes, &KEY), None);
        }

        #[test]
        fn garbage_is_nobodys(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decode(&bytes, &KEY), None);
        }
    }
}
