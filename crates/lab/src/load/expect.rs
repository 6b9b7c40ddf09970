//! What a connection must receive next, byte by byte. Almost every reply is
//! known beforehand; the few places that are not (a shared counter, an HTTP
//! head, a broker's packet number) are named.

use super::pattern;
use std::collections::VecDeque;
use thiserror::Error;

/// Bytes of the longest text that is compared literally.
const TEXT_MAX: usize = 120;

/// Bytes of the longest line or head that is collected before it is judged.
const COLLECT_MAX: usize = 8 << 10;

/// What a connection must receive next.
#[derive(Clone, Debug)]
pub(super) enum Expect {
    /// Exactly these bytes.
    Text { bytes: [u8; TEXT_MAX], len: usize, done: usize },
    /// These bytes of a pattern.
    Pattern { salt: u64, at: u64, end: u64 },
    /// A line, ended by CR LF, that the talk will judge.
    Line,
    /// An HTTP head that the talk will judge.
    Head,
    /// This many bytes, which the talk will use.
    Capture(usize),
    /// The end of the connection.
    End,
    /// Nothing: a complete reply has been received.
    Reply,
}

impl Expect {
    pub(super) fn text(text: &[u8]) -> Self {
        debug_assert!(text.len() <= TEXT_MAX, "longer texts are patterns");
        let len = text.len().min(TEXT_MAX);
        let mut bytes = [0; TEXT_MAX];
        bytes[..len].copy_from_slice(&text[..len]);
        Self::Text { bytes, len, done: 0 }
    }
}

/// What the conversation has to know of the bytes that arrive.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<'a> {
    Line(&'a [u8]),
    Head(&'a [u8]),
    Captured(&'a [u8]),
    Reply,
}

/// A byte that must not have come.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum Wrong {
    #[error("got {got:?} where {wanted:?} must be")]
    Text { got: String, wanted: String },
    #[error("wrong byte at {at} of a pattern that ends at {end}")]
    Pattern { at: u64, end: u64 },
    #[error("{0} bytes that nobody asked for, beginning {1:?}")]
    Unasked(usize, String),
    #[error("a line or head without end")]
    Endless,
    #[error("{0}")]
    Judged(String),
}

/// The queue of what must be received.
#[derive(Default)]
pub(super) struct Expectations {
    queue: VecDeque<Expect>,
    collected: Vec<u8>,
}

impl Expectations {
    pub(super) fn push(&mut self, expect: Expect) {
        self.queue.push_back(expect);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.collected.clear();
    }

    /// Whether the end of the connection is what must come next.
    pub(super) fn wants_end(&self) -> bool {
        matches!(self.queue.front(), Some(Expect::End))
    }

    /// Removes the end of the connection, and the reply that it completes.
    pub(super) fn took_end(&mut self) {
        self.queue.pop_front();
        if matches!(self.queue.front(), Some(Expect::Reply)) {
            self.queue.pop_front();
        }
    }

    /// Takes received bytes; `tell` gets what the conversation must know.
    pub(super) fn take(
        &mut self,
        mut input: &[u8],
        mut tell: impl FnMut(Received<'_>) -> Result<(), Wrong>,
    ) -> Result<(), Wrong> {
        loop {
            let Some(front) = self.queue.front_mut() else {
                return match input.len() {
                    0 => Ok(()),
                    len => Err(Wrong::Unasked(len, shown(input))),
                };
            };
            let complete = match front {
                Expect::Text { bytes, len, done } => {
                    let count = input.len().min(*len - *done);
                    if input[..count] != bytes[*done..*done + count] {
                        let (got, wanted) = (shown(input), shown(&bytes[*done..*len]));
                        return Err(Wrong::Text { got, wanted });
                    }
                    input = &input[count..];
                    *done += count;
                    *done == *len
                }
                Expect::Pattern { salt, at, end } => {
                    let count = (input.len() as u64).min(*end - *at) as usize;
                    if let Some(wrong) = pattern::first_wrong(*salt, *at, &input[..count]) {
                        return Err(Wrong::Pattern { at: wrong, end: *end });
                    }
                    input = &input[count..];
                    *at += count as u64;
                    at == end
                }
                Expect::Line => {
                    let found =
                        collect(&mut self.collected, &mut input, |seen| seen.ends_with(b"\r\n"))?;
                    if found {
                        tell(Received::Line(&self.collected[..self.collected.len() - 2]))?;
                    }
                    found
                }
                Expect::Head => {
                    let found = collect(&mut self.collected, &mut input, |seen| {
                        seen.ends_with(b"\r\n\r\n")
                    })?;
                    if found {
                        tell(Received::Head(&self.collected))?;
                    }
                    found
                }
                Expect::Capture(len) => {
                    let len = *len;
                    let found = collect(&mut self.collected, &mut input, |seen| seen.len() == len)?;
                    if found {
                        tell(Received::Captured(&self.collected))?;
                    }
                    found
                }
                Expect::End if input.is_empty() => return Ok(()),
                Expect::End => return Err(Wrong::Unasked(input.len(), shown(input))),
                Expect::Reply => {
                    self.queue.pop_front();
                    tell(Received::Reply)?;
                    continue;
                }
            };
            if !complete {
                return Ok(());
            }
            self.collected.clear();
            self.queue.pop_front();
        }
    }
}

/// Moves bytes from `input` until `enough`; the caller clears `collected`.
fn collect(
    collected: &mut Vec<u8>,
    input: &mut &[u8],
    enough: impl Fn(&[u8]) -> bool,
) -> Result<bool, Wrong> {
    while let Some((first, rest)) = input.split_first() {
        collected.push(*first);
        *input = rest;
        if enough(collected) {
            return Ok(true);
        }
        if collected.len() > COLLECT_MAX {
            return Err(Wrong::Endless);
        }
    }
    Ok(false)
}

/// The beginning of some bytes, for a message.
fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(40)].escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reply() -> Expectations {
        let mut expect = Expectations::default();
        expect.push(Expect::text(b"$5000\r\n"));
        expect.push(Expect::Pattern { salt: 2, at: 0, end: 5000 });
        expect.push(Expect::text(b"\r\n"));
        expect.push(Expect::Reply);
        expect.push(Expect::Line);
        expect.push(Expect::Reply);
        expect
    }

    fn bytes() -> Vec<u8> {
        let mut bytes = b"$5000\r\n".to_vec();
        pattern::append(&mut bytes, 2, 0, 5000);
        bytes.extend_from_slice(b"\r\n:17\r\n");
        bytes
    }

    proptest! {
        #[test]
        fn any_split_is_understood(cuts in proptest::collection::vec(1usize..4000, 1..20)) {
            let (mut expect, bytes) = (reply(), bytes());
            let (mut at, mut heard) = (0, Vec::new());
            for cut in cuts.into_iter().chain([bytes.len()]) {
                let end = (at + cut).min(bytes.len());
                expect.take(&bytes[at..end], |what| { heard.push(format!("{what:?}")); Ok(()) }).unwrap();
                at = end;
            }
            prop_assert_eq!(heard.len(), 3);
            prop_assert!(expect.is_empty());
        }

        #[test]
        fn any_wrong_byte_is_seen(at in 0usize..5009, flip in 1u8..) {
            let mut bytes = bytes();
            bytes[at] ^= flip;
            prop_assert!(reply().take(&bytes, |_| Ok(())).is_err());
        }
    }

    #[test]
    fn bytes_after_the_last_reply_are_wrong() {
        let mut expect = reply();
        let mut bytes = bytes();
        bytes.push(b'x');
        assert_eq!(expect.take(&bytes, |_| Ok(())), Err(Wrong::Unasked(1, "x".into())));
    }
}
