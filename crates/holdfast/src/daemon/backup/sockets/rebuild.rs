//! The sockets of many connections at once. The kernel is called some twenty times for each, which
//! takes a thousand clients' time one after the other; several processors share that.

use crate::daemon::placement;
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
    /// The kernel's cookie of the socket.
    pub socket: u64,
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
        Self { accept: restore.accept, adopted, tsval: restore.tsval, socket: 0 }
    }
}

/// Does this for each of them, in any order, by as many threads as are worth it and start.
pub(super) fn for_each<T: Send>(all: &mut [T], work: impl Fn(&mut T) + Sync) {
    if all.len() < SHARED_FROM {
        return all.iter_mut().for_each(work);
    }
    let shares = Mutex::new(all.chunks_mut(SHARE));
    let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
    let take = || {
        while let Some(share) = next() {
            share.iter_mut().for_each(&work);
        }
    };
    let threads = available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
    scope(|scope| {
        for _ in 1..threads {
            let help = || {
                placement::leave();
                take();
            };
            // Without a helper it takes longer.
            let _ = Builder::new().name("rebuild".to_owned()).spawn_scoped(scope, help);
        }
        take();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_done_once_however_many_there_are() {
        for count in [0, 1, SHARED_FROM - 1, SHARED_FROM, 1000] {
            let mut all = vec![0; count];
            for_each(&mut all, |it| *it += 1);
            assert_eq!(all, vec![1; count]);
        }
    }
}
