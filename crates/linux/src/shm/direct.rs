//! The daemon's side of the log's short way, on which the shim sends it to the backup itself
//! (decision 35).

use super::SharedMemory;
use holdfast_wire::direct::KEY_BYTES;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

impl SharedMemory {
    /// From now on the shim sends the log to the backup itself, by the socket that it was given
    /// ([`crate::spawn::Server::give_direct`]).
    pub fn begin_direct(&self, id: u64, key: &[u8; KEY_BYTES], wait: Duration) {
        let direct = &self.header().direct;
        for (to, word) in direct.key.iter().zip(key.chunks_exact(8)) {
            to.store(u64::from_ne_bytes(word.try_into().unwrap_or_default()), Relaxed);
        }
        // What was logged until now is announced, whoever sends it.
        direct.announced.fetch_max(self.tail(), Relaxed);
        self.set_direct_wait(wait);
        direct.id.store(id, Release);
    }

    /// Time after which what the shim has sent and nobody has confirmed counts as lost.
    pub fn set_direct_wait(&self, wait: Duration) {
        self.header().direct.wait_ns.store(wait.as_nanos() as u64, Relaxed);
    }

    /// From now on only the daemon sends the log. An answer that the shim hears now counts no more.
    pub fn end_direct(&self) {
        self.header().direct.id.store(0, SeqCst);
    }

    /// How often the shim's own datagrams were confirmed in time, and how often they were not: the
    /// server's word.
    #[must_use]
    pub fn direct_counts(&self) -> (u64, u64) {
        let direct = &self.header().direct;
        (direct.confirmed.load(Relaxed), direct.lost.load(Relaxed))
    }

    /// Where the log ended when the shim last woke the daemon.
    #[must_use]
    pub fn announced(&self) -> u64 {
        let direct = &self.header().direct;
        // A shim that has not taken its socket, perhaps of a release that never will, announces
        // nothing of its own. What lies behind the end is nonsense, and would keep the daemon awake.
        let takes_part = direct.taken.load(Acquire) == direct.id.load(Acquire);
        let tail = self.tail();
        if takes_part { direct.announced.load(SeqCst).min(tail) } else { tail }
    }

    /// As [`Self::may_sleep`], where log that the shim has not announced may wait.
    #[must_use]
    pub fn may_sleep_until_announced(&self, seen_tail: u64) -> bool {
        self.may_sleep_if(|| self.announced() <= seen_tail)
    }
}
