//! Questions to a witness, and its replies, as the plaintext of datagrams that the group's key
//! authenticates elsewhere. A question is answered from what it says alone: the witness keeps
//! nothing of who asks. What is replayed asks for a change that was made, that the record does
//! not fit any more, or whose ticket is old; a reply counts only with the number of the question
//! that waits for it.

use super::stored::is_pair;
use super::{Asker, Mode, Owner, Record, Refusal, Reply, Request};
use crate::state::{MEMBER_NAME_MAX, is_member_name};

/// Longest question, in bytes.
pub const QUESTION_BYTES_MAX: usize =
    MAGIC_BYTES + 3 * (1 + MEMBER_NAME_MAX) + 4 * 8 + 3 * RECORD_BYTES + 1;
/// Length of every reply, in bytes.
pub const REPLY_BYTES: usize = MAGIC_BYTES + 3 * 8 + 1 + RECORD_BYTES;

const MAGIC_BYTES: usize = 5;
/// Names and versions of the formats.
const QUESTION: [u8; MAGIC_BYTES] = *b"HFWQ\x01";
const REPLY: [u8; MAGIC_BYTES] = *b"HFWA\x01";
/// Whose it is, its mode, epoch and life; whose: 0 is nobody's, so that there is none.
const RECORD_BYTES: usize = 2 + 2 * 8;

/// A question as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub number: u64,
    pub asker: Asker,
    pub request: Request,
}

/// The names of both members in the order in which records count them.
fn members(asker: &Asker) -> [&str; 2] {
    let mut names = [asker.from.name.as_str(), asker.peer.as_str()];
    names.sort_unstable();
    names
}

impl Question {
    /// The question's bytes; `None` if a record in it is no member's.
    #[must_use]
    pub fn build(&self) -> Option<Vec<u8>> {
        let Self { number, asker, request } = self;
        let names = members(asker);
        let mut bytes = QUESTION.to_vec();
        for name in [&asker.group, &asker.from.name, &asker.peer] {
            bytes.push(u8::try_from(name.len()).ok()?);
            bytes.extend(name.as_bytes());
        }
        for word in [*number, asker.from.life, asker.lineage, asker.ticket] {
            bytes.extend(word.to_be_bytes());
        }
        put(&mut bytes, asker.known.as_ref(), names)?;
        match request {
            Request::Read => bytes.push(0),
            Request::Swap { expected, next } => {
                bytes.push(1);
                put(&mut bytes, expected.as_ref(), names)?;
                put(&mut bytes, Some(next), names)?;
            }
        }
        Some(bytes)
    }

    /// Reads what `build` writes; `None` for anything else.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut left = bytes.strip_prefix(&QUESTION)?;
        let mut names = [(); 3].map(|()| String::new());
        for name in &mut names {
            let len = usize::from(*take(&mut left, 1)?.first()?);
            let text = std::str::from_utf8(take(&mut left, len)?).ok()?;
            *name = Some(text).filter(|text| is_member_name(text))?.to_owned();
        }
        let [group, from, peer] = names;
        let (number, life) = (word(&mut left)?, word(&mut left)?);
        let (lineage, ticket) = (word(&mut left)?, word(&mut left)?);
        let from = Owner { name: from, life };
        let mut asker = Asker { group, from, peer, lineage, known: None, ticket };
        let [one, other] = members(&asker).map(str::to_owned);
        if !is_pair(&one, &other) || asker.from.life == 0 {
            return None;
        }
        let names = [one.as_str(), other.as_str()];
        asker.known = get(&mut left, names)?;
        let request = match take(&mut left, 1)? {
            [0] => Request::Read,
            [1] => {
                Request::Swap { expected: get(&mut left, names)?, next: get(&mut left, names)?? }
            }
            _ => return None,
        };
        left.is_empty().then_some(Self { number, asker, request })
    }

    /// The reply to this question as bytes; `None` if its record is no member's.
    #[must_use]
    pub fn reply(&self, reply: &Reply) -> Option<[u8; REPLY_BYTES]> {
        let mut bytes = REPLY.to_vec();
        for word in [self.number, reply.lineage, reply.ticket] {
            bytes.extend(word.to_be_bytes());
        }
        let (code, record) = match &reply.outcome {
            Ok(record) => (0, record.as_ref()),
            Err(refusal) => (1 + REFUSALS.iter().position(|it| it == refusal)? as u8, None),
        };
        bytes.push(code);
        put(&mut bytes, record, members(&self.asker))?;
        bytes.try_into().ok()
    }
}

/// Reads what [`Question::reply`] writes to `asker`; `None` for anything else. The first of the two
/// is the number of the question.
#[must_use]
pub fn parse_reply(bytes: &[u8], asker: &Asker) -> Option<(u64, Reply)> {
    let mut left = bytes.strip_prefix(&REPLY)?;
    let (number, lineage, ticket) = (word(&mut left)?, word(&mut left)?, word(&mut left)?);
    let code = *take(&mut left, 1)?.first()?;
    let record = get(&mut left, members(asker))?;
    let outcome = match code.checked_sub(1) {
        None => Ok(record),
        Some(code) => Err(*REFUSALS.get(usize::from(code)).filter(|_| record.is_none())?),
    };
    (left.is_empty() && lineage != 0).then_some((number, Reply { lineage, ticket, outcome }))
}

/// Refusals by their numbers in a reply.
const REFUSALS: [Refusal; 13] = [
    Refusal::Name,
    Refusal::TooManyGroups,
    Refusal::Stranger,
    Refusal::OtherLineage,
    Refusal::Settling,
    Refusal::Behind,
    Refusal::Conflict,
    Refusal::Busy,
    Refusal::NotWritten,
    Refusal::Barred,
    Refusal::OwnerLives,
    Refusal::Change,
    Refusal::Unproven,
];

fn put(bytes: &mut Vec<u8>, record: Option<&Record>, names: [&str; 2]) -> Option<()> {
    let Some(Record { epoch, owner, mode }) = record else {
        bytes.extend([0; RECORD_BYTES]);
        return Some(());
    };
    let whose = names.iter().position(|name| *name == owner.name)?;
    bytes.extend([1 + whose as u8, u8::from(*mode == Mode::Solo)]);
    bytes.extend(epoch.to_be_bytes());
    bytes.extend(owner.life.to_be_bytes());
    Some(())
}

/// The record that comes next; the outer `None`: it is malformed.
fn get(left: &mut &[u8], names: [&str; 2]) -> Option<Option<Record>> {
    let &[whose, mode] = take(left, 2)?.first_chunk()?;
    let (epoch, life) = (word(left)?, word(left)?);
    if (whose, mode, epoch, life) == (0, 0, 0, 0) {
        return Some(None);
    }
    let name = (*names.get(usize::from(whose.checked_sub(1)?))?).to_owned();
    let mode = *[Mode::Pair, Mode::Solo].get(usize::from(mode))?;
    if epoch == 0 || life == 0 {
        return None;
    }
    Some(Some(Record { epoch, owner: Owner { name, life }, mode }))
}

fn take<'b>(left: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (taken, rest) = left.split_at_checked(len)?;
    *left = rest;
    Some(taken)
}

fn word(left: &mut &[u8]) -> Option<u64> {
    take(left, 8)?.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asker(known: Option<Record>) -> Asker {
        let from = Owner { name: "b".to_owned(), life: 7 };
        let (group, peer) = ("web".to_owned(), "a".to_owned());
        Asker { group, from, peer, lineage: 9, known, ticket: 13 }
    }

    fn record(epoch: u64, name: &str, mode: Mode) -> Record {
        Record { epoch, owner: Owner { name: name.to_owned(), life: 5 }, mode }
    }

    fn questions() -> Vec<Question> {
        let known = record(3, "a", Mode::Pair);
        let next = record(4, "b", Mode::Solo);
        let swap = Request::Swap { expected: Some(known.clone()), next: next.clone() };
        let first = Request::Swap { expected: None, next };
        let all = [(None, Request::Read), (Some(known), swap), (None, first)];
        all.map(|(known, request)| Question { number: 6, asker: asker(known), request }).to_vec()
    }

    #[test]
    fn every_question_is_read_as_it_was_written() {
        for question in questions() {
            let bytes = question.build().unwrap();
            assert!(bytes.len() <= QUESTION_BYTES_MAX);
            assert_eq!(Question::parse(&bytes), Some(question.clone()));
            assert!((0..bytes.len()).all(|len| Question::parse(&bytes[..len]).is_none()));
            assert_eq!(Question::parse(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn every_reply_is_read_by_who_has_asked() {
        let question = &questions()[1];
        let mut outcomes: Vec<Result<Option<Record>, Refusal>> =
            REFUSALS.iter().map(|refusal| Err(*refusal)).collect();
        outcomes.extend([Ok(None), Ok(Some(record(8, "b", Mode::Pair)))]);
        for outcome in outcomes {
            let reply = Reply { lineage: 11, ticket: 12, outcome };
            let bytes = question.reply(&reply).unwrap();
            assert_eq!(parse_reply(&bytes, &question.asker), Some((6, reply)));
        }
        let unknown = Reply { lineage: 0, ticket: 12, outcome: Ok(None) };
        assert_eq!(parse_reply(&question.reply(&unknown).unwrap(), &question.asker), None);
    }

    #[test]
    fn nobodys_record_is_not_written() {
        let mut question = questions()[1].clone();
        question.asker.known = Some(record(1, "c", Mode::Pair));
        assert_eq!(question.build(), None);
        let reply = Reply { lineage: 1, ticket: 2, outcome: Ok(Some(record(1, "c", Mode::Pair))) };
        assert_eq!(question.reply(&reply), None);
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for (from, to) in [("web", "w b"), ("web", "")] {
            let mut question = questions()[0].clone();
            question.asker.group = question.asker.group.replace(from, to);
            assert_eq!(Question::parse(&question.build().unwrap()), None, "{to:?}");
        }
        let mut twins = questions()[0].clone();
        twins.asker.peer = "b".to_owned();
        assert_eq!(Question::parse(&twins.build().unwrap()), None);
        let mut dead = questions()[0].clone();
        dead.asker.from.life = 0;
        assert_eq!(Question::parse(&dead.build().unwrap()), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..QUESTION_BYTES_MAX),
            at in 0_usize..80, flip: u8,
        ) {
            for magic in [QUESTION, REPLY] {
                let mut bytes = [&magic[..], &bytes].concat();
                if let Some(question) = Question::parse(&bytes) {
                    prop_assert_eq!(question.build(), Some(bytes.clone()));
                }
                bytes.truncate(REPLY_BYTES);
                let _ = parse_reply(&bytes, &asker(None));
            }
            let mut bytes = questions()[1].build().unwrap();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            if let Some(question) = Question::parse(&bytes) {
                prop_assert_eq!(question.build(), Some(bytes));
            }
        }
    }
}
