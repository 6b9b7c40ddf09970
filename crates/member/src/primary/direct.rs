//! The short way of the log (decision 35): the server's threads send it to the backup themselves,
//! and hear what it holds. The daemon reads it later, for its own books, and sends what the backup
//! does not say that it has.

use super::{PrimaryHost, PrimaryMachine};
use crate::nanos;
use crate::timing::primary::{DIRECT_OWED_WAIT, DIRECT_READ_AFTER, OWED_WAIT};
use holdfast_cluster::Nanos;
use holdfast_wire::message::Message;
use std::time::Duration;

/// How far the two members have come with it.
#[derive(Debug, Default)]
pub(super) enum Direct {
    #[default]
    Off,
    /// The backup was asked, with the key of this number.
    Offered(u64),
    /// It listens at this port.
    Agreed(u16),
    /// `since`: since when there is log that was not read.
    On { since: Option<Nanos> },
}

impl Direct {
    pub(super) const fn is_on(&self) -> bool {
        matches!(self, Self::On { .. })
    }

    /// Time for which an owed ACK waits for a reply. A server that hears from the backup itself may
    /// have sent it already.
    pub(super) const fn owed_wait(&self) -> Duration {
        if self.is_on() { DIRECT_OWED_WAIT } else { OWED_WAIT }
    }

    /// When the log is read although nobody has announced it.
    pub(super) fn due(&self) -> Option<Nanos> {
        match self {
            Self::On { since } => since.map(|at| at.plus(nanos(DIRECT_READ_AFTER))),
            _ => None,
        }
    }
}

impl PrimaryMachine {
    /// Comes to terms with the backup, once it is in step.
    pub(super) fn agree_on_direct(&mut self, host: &mut impl PrimaryHost) {
        if !self.tables.is_committing || self.closing.is_some() || self.tables.keeper.is_some() {
            return;
        }
        match self.direct {
            Direct::Off => {
                if let Some((id, key, port)) = host.offer_direct() {
                    self.tables.say(&Message::Direct { id, key, port }, host);
                    self.direct = Direct::Offered(id);
                }
            }
            Direct::Offered(id) => {
                let said = self.tables.direct_ok.take().filter(|(said, _)| *said == id);
                if let Some((_, port)) = said {
                    self.direct = Direct::Agreed(port);
                }
            }
            Direct::Agreed(port) => {
                let mut has_begun = false;
                self.act(host, |log, out| has_begun = log.begin_direct(out));
                if has_begun {
                    host.begin_direct(port);
                    self.direct = Direct::On { since: None };
                }
            }
            Direct::On { .. } => {}
        }
    }

    /// The backup is gone, and the server hears it no more either.
    pub(super) fn lose_backup(&mut self, host: &mut impl PrimaryHost) {
        self.log.handle_backup_lost();
        self.direct = Direct::Off;
        self.tables.direct_ok = None;
        host.end_direct();
    }

    /// Reads the log, as far as the server does not send it itself.
    pub(super) fn read_log(&mut self, host: &mut impl PrimaryHost) {
        let Direct::On { since } = &mut self.direct else { return self.take_log(host) };
        let (now, tail) = (host.now(), host.tail());
        if tail == self.log_at {
            *since = None;
            return;
        }
        let age = now.since(*since.get_or_insert(now));
        if host.announced() > self.log_at || tail < self.log_at || age >= nanos(DIRECT_READ_AFTER) {
            *since = None;
            return self.take_log(host);
        }
        self.read_held(host);
    }

    /// Reads what the backup has.
    pub(super) fn read_held(&mut self, host: &mut impl PrimaryHost) {
        let Direct::On { since } = &mut self.direct else { return };
        let tail = host.tail();
        let held_to = self.log.held_to().min(tail);
        if held_to > self.log_at {
            *since = (held_to < tail).then(|| host.now());
            self.take_log_to(held_to, host);
        }
    }

    /// Whether the daemon may sleep now.
    pub(super) fn may_sleep(&self, host: &mut impl PrimaryHost) -> bool {
        match self.direct.is_on() {
            true => host.may_sleep_until_announced(self.log_at),
            false => host.may_sleep(self.log_at),
        }
    }
}
