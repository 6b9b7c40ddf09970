//! A backup of its own host's server (decision 31): beside a server that speaks alone it
//! joins and follows like any cold backup, in the same daemon, and promotes nobody. When that
//! server falls, it is what a takeover rebuilds the server of.

use super::{BackupHost, BackupMachine, Cause, FollowHost, Replica, Stage, rest};
use crate::host::{MemberEvent, Turn};
use holdfast_cluster::Nanos;
use holdfast_wire::message::ConnKey;

/// Why it is left down, as far as the machine knows.
pub const TWICE: &str = "it has fallen again where it had fallen before, and is not rebuilt again";

impl BackupMachine {
    /// A turn beside the server; when it wants the next one.
    ///
    /// # Errors
    /// Nothing is kept any more, in words.
    pub(crate) fn keep(&mut self, host: &mut impl FollowHost) -> Result<Nanos, String> {
        let stage = std::mem::replace(&mut self.stage, Stage::GaveUp { again_at: None });
        match stage {
            Stage::Joining(joining) => {
                let (stage, turn) = self.join(joining, false, host);
                self.stage = stage;
                match turn {
                    Turn::Busy => Ok(host.now()),
                    Turn::Until(at) => Ok(at),
                    // What it has said tells why.
                    Turn::End(_) => Err("nothing is kept of the server".to_owned()),
                }
            }
            stage => {
                self.stage = stage;
                // Who speaks is beside it, in the same daemon: no silence means anything.
                self.work(host.is_peer_ready(), host);
                if let Replica::Unkept(reason) | Replica::Outgrown(reason) = host.replica() {
                    return Err(reason);
                }
                match self.effects.broken.take() {
                    Some(reason) => Err(reason),
                    None => Ok(self.deadline(host)),
                }
            }
        }
    }

    /// Whether all of the log that came is kept.
    pub(crate) fn has_all(&self) -> bool {
        self.log.unresolved().0 == 0
    }

    /// The connection whose bytes the server was given last, as far as the log goes.
    #[must_use]
    pub fn last_input(&self) -> Option<ConnKey> {
        self.log.last_input()
    }

    /// The server has fallen, and all that it has logged is here: it is rebuilt.
    pub fn rebuild(&mut self, host: &mut impl BackupHost) -> Turn {
        self.promote(Cause::Fallen, host)
    }

    /// It cannot be rebuilt, or has fallen at the same place again: it stays down, as it would
    /// have without this.
    pub(super) fn leave_fallen(
        &mut self,
        reason: &str,
        stop: bool,
        host: &mut impl BackupHost,
    ) -> (Stage, Turn) {
        let again = host.replica() == Replica::Ended;
        let reason = if again { TWICE } else { reason };
        host.kill_server();
        host.close_tap();
        // From a kernel that knows them no more its clients hear that it is over.
        let heard = host.hear_clients().err();
        let reason = heard.map_or_else(|| reason.to_owned(), |why| format!("{reason}; {why}"));
        host.show(MemberEvent::NotRebuilt { reason: &reason, input: self.last_input() });
        (Stage::GaveUp { again_at: None }, rest(None, stop, host))
    }
}
