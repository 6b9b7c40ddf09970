//! Handshakes that nobody finishes must not shut others out. A kernel without SYN
//! cookies (what only a cookie knows cannot be replicated) takes no SYN while its
//! listener's queue is full, and keeps an unanswered one for seconds: a few hundred
//! strangers' SYNs each second are enough. So the oldest make room for the newest.

use super::Loop;
use crate::daemon::member::mapped;
use holdfast_linux::diag::{DiagError, DiagSocket, TcpState};
use holdfast_wire::message::{ConnId, ConnKey};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// No handshake makes room before it is this old.
const YOUNG: Duration = Duration::from_millis(100);
/// Handshakes looked at in one go, so that nobody else waits for long.
const LOOK_MAX: usize = 64;
/// How often the listeners are asked for their backlog.
const BACKLOG_EVERY: Duration = Duration::from_secs(1);

/// Handshakes, oldest first.
pub(super) struct HalfOpen {
    young: VecDeque<(Instant, ConnId)>,
    /// Those that were not answered when they were [`YOUNG`].
    old: VecDeque<ConnId>,
    /// Who would be asked for by a connection to each service.
    services: Vec<ConnKey>,
    /// How many may be old: half of what the smallest listener bears.
    old_max: usize,
    backlog_at: Instant,
    /// How many had to make room.
    pub(super) ended: u64,
}

impl HalfOpen {
    pub(super) fn new(services: &[(IpAddr, u16)], now: Instant) -> Self {
        let nowhere = |ip: IpAddr| match ip {
            IpAddr::V4(_) => mapped(Ipv4Addr::UNSPECIFIED.into()),
            IpAddr::V6(_) => mapped(Ipv6Addr::UNSPECIFIED.into()),
        };
        let key = |&(ip, server_port): &(IpAddr, u16)| ConnKey {
            server: mapped(ip),
            client: nowhere(ip),
            server_port,
            client_port: 0,
        };
        let services = services.iter().map(key).collect();
        Self {
            young: VecDeque::new(),
            old: VecDeque::new(),
            services,
            old_max: usize::MAX,
            backlog_at: now,
            ended: 0,
        }
    }

    pub(super) fn begun(&mut self, conn: ConnId, now: Instant) {
        self.young.push_back((now, conn));
    }

    fn ask_backlog(&mut self, now: Instant, diag: &mut DiagSocket) {
        if now < self.backlog_at {
            return;
        }
        self.backlog_at = now + BACKLOG_EVERY;
        let backlogs = self.services.iter().filter_map(|key| diag.backlog(key).ok().flatten());
        self.old_max = backlogs.min().map_or(usize::MAX, |backlog| (backlog as usize / 2).max(1));
    }
}

impl Loop {
    /// Ends the oldest handshakes where too many are not finished.
    pub(super) fn make_room(&mut self, nanos: u64, now: Instant) -> Result<(), DiagError> {
        let half_open = &mut self.half_open;
        let grown = |at: &Instant| now.saturating_duration_since(*at) >= YOUNG;
        let due = half_open.young.iter().take(LOOK_MAX).take_while(|(at, _)| grown(at)).count();
        let due: Vec<ConnId> = half_open.young.drain(..due).map(|(_, conn)| conn).collect();
        let due = self.unanswered(&due)?;
        self.half_open.ask_backlog(now, &mut self.diag);
        let half_open = &mut self.half_open;
        half_open.old.extend(due.into_iter().map(|(conn, _)| conn));
        let many = half_open.old.len().saturating_sub(half_open.old_max).min(LOOK_MAX);
        let oldest: Vec<ConnId> = half_open.old.drain(..many).collect();
        let (conns, keys): (Vec<_>, Vec<_>) = self.unanswered(&oldest)?.into_iter().unzip();
        for conn in &conns {
            // Who answers now hears that it is too late, and can try again.
            self.gate.allow_fin(*conn);
        }
        self.diag.destroy(&keys)?;
        self.half_open.ended += conns.len() as u64;
        for conn in conns {
            self.let_go(conn, nanos, now);
        }
        Ok(())
    }

    /// Those of which the client has not answered the SYN-ACK.
    fn unanswered(&mut self, conns: &[ConnId]) -> Result<Vec<(ConnId, ConnKey)>, DiagError> {
        let known = conns.iter().filter_map(|id| Some((*id, self.conns.get(id)?.key)));
        let known: Vec<(ConnId, ConnKey)> = known.collect();
        let keys: Vec<ConnKey> = known.iter().map(|(_, key)| *key).collect();
        let states = self.diag.states(&keys)?;
        let waits = |state: &Option<TcpState>| *state == Some(TcpState::SynReceived);
        let all = known.into_iter().zip(states);
        Ok(all.filter(|(_, state)| waits(state)).map(|(conn, _)| conn).collect())
    }
}
