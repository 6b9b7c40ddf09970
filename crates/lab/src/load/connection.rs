//! One connection of the load: its socket, what it has yet to send, what it must receive, and when
//! it last made progress.

use super::expect::{Expectations, Received, Wrong};
use super::talk::Talk;
use super::{ConnectionReport, Group, LaneNow};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// Time after the fault in which a gap counts as the fault's, in ns: bytes that were under way may
/// still arrive, and detection takes up to 75 ms.
const FAULT_WINDOW_NS: u64 = 100_000_000;

/// Least distance between two points of a plot, in ns.
const POINT_STEP_NS: u64 = 200_000;

/// Most points that are kept for each connection.
const POINTS_MAX: usize = 100_000;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not connected; a churning one will connect again.
    Closed,
    /// The handshake is under way.
    Connecting,
    /// Established.
    Open,
    /// Nothing more will happen: it failed or is finished.
    Done,
}

/// What all connections share.
pub(super) struct Common {
    pub(super) address: IpAddr,
    pub(super) congestion: Option<String>,
    pub(super) epoll: OwnedFd,
    pub(super) fault_ns: Option<u64>,
    /// Whether the load is between ready and stop.
    pub(super) measuring: bool,
    pub(super) latency: hdrhistogram::Histogram<u64>,
    pub(super) connect: hdrhistogram::Histogram<u64>,
}

pub(super) struct Connection {
    pub(super) talk: Talk,
    pub(super) state: State,
    pub(super) report: ConnectionReport,
    /// Number of all replies, including those before ready.
    pub(super) replies: u64,
    pub(super) next_ask_ns: u64,
    pub(super) last_progress_ns: u64,
    fd: Option<OwnedFd>,
    index: u64,
    port: u16,
    depth: usize,
    interval_ns: u64,
    expect: Expectations,
    out: Vec<u8>,
    out_sent: usize,
    asked_ns: VecDeque<u64>,
    waiting_since_ns: u64,
    connect_ns: u64,
    wants_writable: bool,
    bytes_total: u64,
    point_ns: u64,
    keep_points: bool,
    /// The longest gap since the last snapshot, and when it began.
    recent_gap_ns: (u64, u64),
}

impl Connection {
    pub(super) fn new(talk: Talk, group: &Group, index: usize, keep_points: bool) -> Self {
        Self {
            report: ConnectionReport {
                workload: group.workload,
                replies: 0,
                bytes_in: 0,
                bytes_out: 0,
                connects: 0,
                open_at_fault: false,
                stall_ns: 0,
                stall_start_ns: 0,
                later_gap_ns: 0,
                byte_errors: 0,
                resets: 0,
                hung: false,
                error: None,
                failed_ns: None,
                points: Vec::new(),
            },
            talk,
            state: State::Closed,
            replies: 0,
            next_ask_ns: 0,
            last_progress_ns: 0,
            fd: None,
            index: index as u64,
            port: group.port,
            depth: group.depth.max(1),
            interval_ns: group.interval_us * 1000,
            expect: Expectations::default(),
            out: Vec::with_capacity((group.size_bytes as usize + 256) * group.depth.clamp(1, 64)),
            out_sent: 0,
            asked_ns: VecDeque::new(),
            waiting_since_ns: 0,
            connect_ns: 0,
            wants_writable: false,
            bytes_total: 0,
            point_ns: 0,
            keep_points,
            recent_gap_ns: (0, 0),
        }
    }

    /// Whether something is under way that the service must finish.
    pub(super) fn is_outstanding(&self) -> bool {
        match self.state {
            State::Connecting => true,
            State::Open => !self.expect.is_empty() || self.out_sent < self.out.len(),
            State::Closed | State::Done => false,
        }
    }

    /// Begins to connect.
    pub(super) fn connect(&mut self, common: &mut Common, now_ns: u64) {
        match self.try_connect(common, now_ns) {
            Ok(()) => self.state = State::Connecting,
            Err(error) => self.fail(format!("connect: {error}")),
        }
    }

    fn try_connect(&mut self, common: &mut Common, now_ns: u64) -> rustix::io::Result<()> {
        let family = match common.address {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        if let Some(congestion) = &common.congestion {
            sockopt::set_tcp_congestion(&fd, congestion)?;
        }
        match net::connect(&fd, &SocketAddr::new(common.address, self.port)) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let data = epoll::EventData::new_u64(self.index);
        epoll::add(&common.epoll, &fd, data, epoll::EventFlags::IN | epoll::EventFlags::OUT)?;
        self.wants_writable = true;
        self.connect_ns = now_ns;
        self.waiting_since_ns = now_ns;
        self.out.clear();
        self.out_sent = 0;
        self.asked_ns.clear();
        self.expect.clear();
        self.fd = Some(fd);
        Ok(())
    }

    /// Closes the socket in order.
    pub(super) fn close(&mut self) {
        self.fd = None;
        self.state = State::Closed;
    }

    /// Handles readiness of the socket; `scratch` receives the bytes.
    pub(super) fn ready(&mut self, common: &mut Common, now_ns: u64, scratch: &mut [u8]) {
        if self.state == State::Connecting && !self.established(common, now_ns) {
            return;
        }
        if self.state == State::Open {
            self.receive(common, now_ns, scratch);
        }
        if self.state == State::Open {
            self.send(common);
        }
    }

    fn established(&mut self, common: &mut Common, now_ns: u64) -> bool {
        let Some(fd) = &self.fd else { return false };
        match sockopt::socket_error(fd) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => {
                self.report.resets += 1;
                self.fail(format!("connect: {error}"));
                return false;
            }
        }
        if net::getpeername(fd).is_err() {
            return false;
        }
        if common.measuring {
            common.connect.saturating_record(now_ns - self.connect_ns);
        }
        self.state = State::Open;
        self.report.connects += 1;
        self.progress(common, now_ns, 0);
        self.waiting_since_ns = now_ns;
        self.asked_ns.push_back(now_ns);
        self.talk.begin(&mut self.out, &mut self.expect);
        true
    }

    /// Sends the next request if depth and pace allow; returns whether it did.
    pub(super) fn ask(&mut self, common: &mut Common, now_ns: u64) -> bool {
        if self.state != State::Open || self.asked_ns.len() >= self.depth {
            return false;
        }
        if now_ns < self.next_ask_ns {
            return false;
        }
        if !self.is_outstanding() {
            self.waiting_since_ns = now_ns;
        }
        // The pace is kept as long as the service can follow.
        self.next_ask_ns = (self.next_ask_ns + self.interval_ns).max(now_ns);
        self.asked_ns.push_back(now_ns);
        self.talk.ask(&mut self.out, &mut self.expect);
        self.send(common);
        true
    }

    /// Prepares a subscriber for its publisher's next message.
    pub(super) fn announce(&mut self, now_ns: u64) {
        if !self.is_outstanding() {
            self.waiting_since_ns = now_ns;
        }
        self.asked_ns.push_back(now_ns);
        self.talk.announce(&mut self.expect);
    }

    fn receive(&mut self, common: &mut Common, now_ns: u64, scratch: &mut [u8]) {
        loop {
            let Some(fd) = &self.fd else { return };
            match net::recv(fd, &mut *scratch, RecvFlags::empty()) {
                Ok((_, 0)) => return self.ended(common, now_ns),
                Ok((_, count)) => {
                    if let Err(wrong) = self.hear(common, now_ns, &scratch[..count]) {
                        self.report.byte_errors += 1;
                        return self.fail(format!("{wrong}"));
                    }
                    if count < scratch.len() && !self.expect.wants_end() {
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.report.resets += 1;
                    return self.fail(format!("read: {error}"));
                }
            }
        }
    }

    fn hear(&mut self, common: &mut Common, now_ns: u64, bytes: &[u8]) -> Result<(), Wrong> {
        self.progress(common, now_ns, bytes.len() as u64);
        let Self { talk, expect, asked_ns, report, replies, .. } = self;
        let result = expect.take(bytes, |what| {
            if what == Received::Reply {
                *replies += 1;
                let asked = asked_ns.pop_front();
                if common.measuring {
                    report.replies += 1;
                    common.latency.saturating_record(now_ns - asked.unwrap_or(now_ns));
                }
            }
            talk.heard(what)
        });
        talk.answer(&mut self.out);
        result
    }

    fn ended(&mut self, common: &mut Common, now_ns: u64) {
        if self.expect.wants_end() {
            self.progress(common, now_ns, 0);
            self.expect.took_end();
            self.replies += 1;
            let asked = self.asked_ns.pop_front();
            if common.measuring {
                self.report.replies += 1;
                common.latency.saturating_record(now_ns - asked.unwrap_or(now_ns));
            }
            return self.close();
        }
        self.report.resets += 1;
        self.fail("the server's side ended the connection".to_owned());
    }

    fn send(&mut self, common: &mut Common) {
        let Some(fd) = &self.fd else { return };
        while self.out_sent < self.out.len() {
            match net::send(fd, &self.out[self.out_sent..], SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.out_sent += count;
                    if common.measuring {
                        self.report.bytes_out += count as u64;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.report.resets += 1;
                    return self.fail(format!("write: {error}"));
                }
            }
        }
        let blocked = self.out_sent < self.out.len();
        if !blocked {
            self.out.clear();
            self.out_sent = 0;
        }
        if blocked != self.wants_writable {
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, blocked);
            let data = epoll::EventData::new_u64(self.index);
            if let Err(error) = epoll::modify(&common.epoll, fd, data, flags) {
                return self.fail(format!("epoll: {error}"));
            }
            self.wants_writable = blocked;
        }
    }

    /// Notes that the application received something, and how long it had waited.
    fn progress(&mut self, common: &Common, now_ns: u64, bytes: u64) {
        let since_ns = self.last_progress_ns.max(self.waiting_since_ns);
        self.count_gap(common, since_ns, now_ns);
        self.last_progress_ns = now_ns;
        self.bytes_total += bytes;
        if common.measuring {
            self.report.bytes_in += bytes;
        }
        if self.keep_points && self.report.points.len() < POINTS_MAX && now_ns >= self.point_ns {
            self.report.points.push((now_ns, self.bytes_total));
            self.point_ns = now_ns + POINT_STEP_NS;
        }
    }

    fn count_gap(&mut self, common: &Common, since_ns: u64, now_ns: u64) {
        let gap_ns = now_ns.saturating_sub(since_ns);
        self.recent_gap_ns = self.recent_gap_ns.max((gap_ns, since_ns));
        let (counts, later) = match common.fault_ns {
            Some(fault_ns) => (now_ns >= fault_ns, since_ns > fault_ns + FAULT_WINDOW_NS),
            None => (common.measuring, false),
        };
        if counts && later {
            self.report.later_gap_ns = self.report.later_gap_ns.max(gap_ns);
        } else if counts && gap_ns > self.report.stall_ns {
            self.report.stall_ns = gap_ns;
            self.report.stall_start_ns = since_ns;
        }
    }

    /// Time between requests, ns.
    pub(super) fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// Forgets gaps from before the fault.
    pub(super) fn fault_came(&mut self) {
        self.report.stall_ns = 0;
        self.report.open_at_fault = matches!(self.state, State::Open | State::Connecting);
    }

    /// Time for which the connection has been waiting, in ns.
    pub(super) fn waiting_ns(&self, now_ns: u64) -> u64 {
        if !self.is_outstanding() {
            return 0;
        }
        now_ns.saturating_sub(self.last_progress_ns.max(self.waiting_since_ns))
    }

    /// What it has seen by `now_ns`; the gaps of the next snapshot begin anew.
    pub(super) fn snapshot(&mut self, has_fault: bool, now_ns: u64) -> LaneNow {
        let waiting_ns = self.waiting_ns(now_ns);
        let present_ns = (waiting_ns, now_ns - waiting_ns);
        let (gap_ns, gap_start_ns) = std::mem::take(&mut self.recent_gap_ns).max(present_ns);
        LaneNow {
            replies: self.replies,
            bytes_in: self.bytes_total,
            pause_ns: self.report.stall_ns.max(if has_fault { waiting_ns } else { 0 }),
            gap_ns,
            gap_start_ns,
            has_ended: self.report.error.is_some(),
        }
    }

    /// Gives up waiting.
    pub(super) fn hang(&mut self, common: &Common, now_ns: u64) {
        let since_ns = self.last_progress_ns.max(self.waiting_since_ns);
        self.count_gap(common, since_ns, now_ns);
        self.report.hung = true;
        let doing = if self.state == State::Connecting { "connect" } else { "a reply" };
        self.fail(format!("no progress while waiting for {doing}"));
    }

    fn fail(&mut self, error: String) {
        self.report.error.get_or_insert(error);
        self.report.failed_ns.get_or_insert_with(crate::monotonic_ns);
        self.fd = None;
        self.state = State::Done;
    }
}
