//! Ports that lead through the tunnel, of UDP and of TCP.

use super::Counters;
use super::datagrams::Datagrams;
use super::splice::Splice;
use crate::config::Config;
use holdfast_tunnel::Endpoint;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

/// The ports of one tunnel.
pub struct Ports {
    pub datagrams: Datagrams,
    pub splice: Splice,
}

impl Ports {
    /// Listens at all ports of a file.
    ///
    /// # Errors
    /// With the port that could not be had.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        Ok(Self { datagrams: Datagrams::open(config)?, splice: Splice::open(config)? })
    }

    pub fn take(
        &mut self,
        machine: &mut Endpoint,
        is_ready: bool,
        now: Duration,
    ) -> io::Result<bool> {
        let is_more = self.datagrams.take(machine, is_ready, now)?;
        Ok(self.splice.take(machine, is_ready)? || is_more)
    }

    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.datagrams.as_fd(), self.splice.as_fd()]
    }

    pub fn forget_peer(&mut self) {
        self.datagrams.forget_peer();
        self.splice.reset_all();
    }

    pub fn counters(&self) -> Counters {
        let (one, other) = (self.datagrams.counters(), self.splice.counters());
        Counters {
            taken: one.taken,
            taken_bytes: one.taken_bytes + other.taken_bytes,
            given: one.given,
            given_bytes: one.given_bytes + other.given_bytes,
            refused: one.refused,
            undelivered: one.undelivered,
            clamped: 0,
            flows: one.flows + other.flows,
            flows_idle: one.flows_idle,
            flows_refused: one.flows_refused + other.flows_refused,
            resets: other.resets,
            resets_unanswered: other.resets_unanswered,
            targets_unreached: other.targets_unreached,
            not_allowed: one.not_allowed + other.not_allowed,
            connections_not_allowed: other.not_allowed,
        }
    }
}
