//! The sockets of many connections at once. The kernel is called some twenty times for each, which
//! takes a thousand clients' time one after the other; several processors share that.

use crate::daemon::placement;
use holdfast_linux::priority;
use holdfast_replica::promotion::Restore;
use holdfast_wire::gate::Adopted;
use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, available_parallelism, scope};

/// Number of connections from which on a thread is worth its start.
const SHARED_FROM: usize = 64;

/// Most connections that a thread takes at a time.
const SHARE: usize = 16;

/// Most threads: the kernel keeps all ports of one service in one place, for which more of them would
/// wait.
const THREADS_MAX: usize = 4;

/// What the gate learns of a connection that is carried over, which a member that joins later
/// needs.
pub struct Adoption {
    pub accept: Option<u32>,
    pub adopted: Adopted,
    /// Its clock, which begins anew here.
    pub tsval: Option<u32>,
}

/// A connection that was rebuilt, or was not.
pub struct Rebuilt<S> {
    pub adoption: Adoption,
    /// The kernel's cookie of the socket; 0 if there is none, or it was not rebuilt.
    pub socket: u64,
    /// What the gate has answered.
    pub slot: S,
}

impl Adoption {
    pub(super) fn of(restore: &Restore<'_>) -> Self {
        let Restore { record, closing, .. } = *restore;
        let fin_seen = u64::from(closing.client_fin);
        let adopted = Adopted {
            record: *record,
            snd_una: restore.snd_una,
            snd_nxt: restore.snd_una.plus(restore.in_flight_end - restore.snd_una_offset),
            rcv_nxt: restore.rcv_nxt.plus(fin_seen),
            right_edge: restore.right_edge,
            tsval: restore.tsval.unwrap_or(0),
            tsecr: restore.client_tsval.unwrap_or(0),
            fin_allowed: closing.server_fin,
        };
        Self { accept: restore.accept, adopted, tsval: restore.tsval }
    }
}

/// Does this for shares of them, in any order, by as many threads as are worth it and start; and
/// `meanwhile` here.
pub(super) fn in_shares<T: Send, R>(
    all: &mut [T],
    work: impl Fn(&mut [T]) + Sync,
    meanwhile: impl FnOnce() -> R,
) -> R {
    if all.len() < SHARED_FROM {
        work(all);
        return meanwhile();
    }
    let shares = Mutex::new(all.chunks_mut(SHARE));
    let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
    let take = || {
        while let Some(share) = next() {
            work(share);
        }
    };
    let threads = available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
    scope(|scope| {
        let help = || {
            placement::leave();
            take();
        };
        priority::inherited(|| {
            for _ in 1..threads {
                // Without a helper it takes longer.
                let _ = Builder::new().name("rebuild".to_owned()).spawn_scoped(scope, help);
            }
        });
        let done = meanwhile();
        take();
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_done_once_however_many_there_are() {
        for count in [0, 1, SHARED_FROM - 1, SHARED_FROM, 1000] {
            let mut all = vec![0; count];
            assert_eq!(
                in_shares(&mut all, |share| share.iter_mut().for_each(|it| *it += 1), || 7),
                7
            );
            assert_eq!(all, vec![1; count]);
        }
    }
}
