//! The pairing of a primary whose server runs alone with a member that joins it.

use super::{PEER, PrimaryDaemon};
use holdfast_member::pairing::{Apart, PairingHost};
use holdfast_wire::message::{FingerprintPart, LogKey, Message};

impl PairingHost for PrimaryDaemon<'_, '_> {
    fn turn_peer(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        self.door.turn((self.node, &mut self.listener, PEER), each)
    }

    fn is_ready_to_greet(&mut self) -> bool {
        self.door.is_ready_to_greet(self.node)
    }

    fn say_hello(&mut self, runs: bool) -> Result<bool, String> {
        self.door.say_hello(self.node, runs)
    }

    fn is_own_fingerprint(&self, theirs: &[FingerprintPart<'_>]) -> bool {
        self.door.is_own_fingerprint(self.node, theirs)
    }

    fn learn_key(&mut self, _: Option<LogKey>) {
        // It is this member's server that writes the log.
    }

    fn keep(&mut self, _: Vec<Vec<u8>>) {
        // A joiner waits for the answer.
    }

    fn hang_up(&mut self) {
        self.door.hang_up();
    }

    fn show_apart(&mut self, why: &Apart<'_>) {
        let (reason, remedy) = self.door.apart(self.node, why);
        self.node.set_unfit(&reason, &remedy);
    }
}
