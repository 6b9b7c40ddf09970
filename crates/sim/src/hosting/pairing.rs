//! The host of the pairing machine. The fingerprints of simulated hosts never differ.

use super::AtHost;
use crate::edge::GROUP;
use crate::pipe::{Input, Kind};
use crate::plan::{Step, When};
use crate::server::KEY;
use crate::world::NAMES;
use holdfast_member::pairing::{Apart, PairingHost};
use holdfast_member::standing::keyed_hello;
use holdfast_wire::message::{FingerprintPart, LogKey, Message};

impl AtHost<'_> {
    /// `turn_peer` of a primary, which accepts its backup.
    fn turn_door(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        let mut opened = false;
        let pair = &mut self.d.pair;
        for input in std::mem::take(&mut pair.inbox) {
            match input {
                Input::Accepted(pipe) => (pair.pipe, opened) = (Some(pipe), true),
                Input::Lost(pipe) if pair.pipe == Some(pipe) => pair.pipe = None,
                Input::Message(pipe, bytes) if pair.pipe == Some(pipe) => {
                    let _ = Message::decode(&bytes).map(|message| each(&message));
                }
                _ => {}
            }
        }
        opened
    }

    /// `turn_peer` of a backup, which connects to its primary.
    fn turn_seeker(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        let mut opened = false;
        for input in self.world.turn_link(self.d, Kind::Pair) {
            match input {
                Input::Opened(_) => opened = true,
                Input::Message(_, bytes) => {
                    let _ = Message::decode(&bytes).map(|message| each(&message));
                }
                _ => {}
            }
        }
        opened
    }
}

impl PairingHost for AtHost<'_> {
    fn turn_peer(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        if self.d.member.speaks { self.turn_door(each) } else { self.turn_seeker(each) }
    }

    fn is_ready_to_greet(&mut self) -> bool {
        true
    }

    fn say_hello(&mut self, runs: bool) -> Result<bool, String> {
        let (epoch, speaks) = (self.d.member.epoch, self.d.member.speaks);
        let Some(pipe) = self.d.pair.pipe else { return Ok(false) };
        let names = (GROUP, NAMES[self.d.at]);
        let key = speaks.then_some(LogKey(KEY));
        let message = keyed_hello(names, (epoch, runs), Vec::new(), key);
        self.world.send(pipe, usize::from(speaks), &message);
        if runs {
            self.world.crosses(When::Join(Step::Prepares));
        }
        Ok(true)
    }

    fn is_own_fingerprint(&self, theirs: &[FingerprintPart<'_>]) -> bool {
        theirs.is_empty()
    }

    fn learn_key(&mut self, key: Option<LogKey>) {
        assert_eq!(key, Some(LogKey(KEY)), "every primary tells the key of its log");
    }

    fn keep(&mut self, early: Vec<Vec<u8>>) {
        let Some(pipe) = self.d.pair.pipe else { return };
        for bytes in early.into_iter().rev() {
            self.d.pair.inbox.push_front(Input::Message(pipe, bytes));
        }
    }

    fn hang_up(&mut self) {
        let end = usize::from(self.d.member.speaks);
        if let Some(pipe) = self.d.pair.pipe.take() {
            self.world.close_pipe(pipe, end);
        }
    }

    fn show_apart(&mut self, why: &Apart<'_>) {
        self.say(|| format!("{why:?}"));
    }
}
