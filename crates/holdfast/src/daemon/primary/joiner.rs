//! Who comes to the door of a primary whose server speaks alone.

use super::{PEER, PrimaryDaemon};
use holdfast_member::pairing::{Apart, PairingHost};
use holdfast_wire::message::{Message, WorldPart};
use holdfast_wire::packet::mapped;

impl PrimaryDaemon<'_, '_> {
    /// Who has come in is the backup-to-be.
    pub(super) fn admit(&mut self) {
        self.peer = self.door.take();
        (self.is_peer_gone, self.is_peer_ready) = (self.peer.is_none(), true);
        (self.says, self.watching_write) = (None, false);
    }

    /// A connection that the gate does not know would be cut off as soon as it holds
    /// anything back.
    pub(super) fn knows_all(&mut self) -> Result<(), String> {
        let ips: Vec<_> = self.node.config.service_ips().into_iter().map(mapped).collect();
        let own = self.diag.own(&ips, &self.node.config.service_ports());
        let own = own.map_err(|error| error.to_string())?;
        let unknown = own.iter().filter(|key| self.gate.conn(key).is_none()).count();
        match unknown {
            0 => Ok(()),
            n => Err(format!(
                "{n} connections have begun while the gate was away or full; it can be joined \
                 when they are over"
            )),
        }
    }
}

impl PairingHost for PrimaryDaemon<'_, '_> {
    fn turn_peer(&mut self, each: &mut dyn FnMut(&Message<'_>)) -> bool {
        self.door.turn((self.node, &mut self.listener, PEER), each)
    }

    fn say_hello(&mut self, runs: bool) -> Result<bool, String> {
        self.door.say_hello(self.node, runs)
    }

    fn is_own_world(&self, theirs: &[WorldPart<'_>]) -> bool {
        self.door.is_own_world(self.node, theirs)
    }

    fn keep(&mut self, _: Vec<Vec<u8>>) {
        // A joiner waits for the answer.
    }

    fn hang_up(&mut self) {
        self.door.hang_up();
    }

    fn show_apart(&mut self, why: &Apart<'_>) {
        // It serves, whoever may not join it.
        let (reason, remedy) = self.door.apart(self.node, why);
        let what = format!("{}: {reason}; remedy: {remedy}", self.node.other.name);
        self.node.events.add("cannot join", what);
    }
}
